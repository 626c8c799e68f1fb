"""Legs and run-ahead of the steps of one kind."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from latencylab.analyzers.idle import HOST
from latencylab.analyzers.intervals import Intervals
from latencylab.analyzers.legs import LegTable
from latencylab.analyzers.steps import StepTable
from latencylab.analyzers.view import KindView
from latencylab.model.findings import Leg, RunAhead
from latencylab.model.trace import I64, MISSING


def summarise_legs(view: KindView) -> tuple[Leg, ...]:
    """The legs of a step in order, as means per step; one that comes twice in a step is two legs."""
    legs, pieces, work = view.rank.legs, view.rank.pieces, view.rank.work
    host = pieces.cause == HOST
    busy = Intervals.disjoint(work.start, work.end).within(legs.start, legs.end)
    seam_start = np.where(legs.seam_start < 0, legs.start, legs.seam_start)
    seam = np.maximum(legs.start - seam_start, 0)
    seam_host = Intervals.disjoint(pieces.start[host], pieces.end[host]).within(legs.start - seam, legs.start)
    ahead = run_ahead(legs)
    groups: dict[str, list[int]] = defaultdict(list)
    seen: dict[tuple[int, str], int] = defaultdict(int)
    for row in np.flatnonzero(view.legs).tolist():
        name, step = legs.name[row], int(legs.step[row])
        seen[step, name] += 1
        nth = seen[step, name]
        groups[name if nth == 1 or not view.by_step else f"{name} {nth}"].append(row)
    return tuple(
        Leg(
            name=name,
            gpu_us=view.mean_us((legs.end - legs.start)[rows].sum()),
            busy_us=view.mean_us(busy[rows].sum()),
            ops=int(legs.ops[rows].sum()) / view.units,
            launches=int(legs.launches[rows].sum()) / view.units,
            run_ahead_us=float(np.median(ahead[rows])) / 1000,
            seam_us=view.mean_us(seam[rows].sum()),
            seam_idle_host_us=view.mean_us(seam_host[rows].sum()),
        )
        for name, rows in groups.items()
    )


def run_ahead(legs: LegTable) -> I64:
    """Per leg the ns by which the host was ahead: first op's start minus launch call's end, at least 0."""
    ahead: I64 = np.maximum(legs.start - legs.launch_end, 0)
    return ahead


def least_run_ahead(legs: LegTable, steps: StepTable) -> I64:
    """The least run-ahead of each step's legs, in ns; -1 for a step without legs."""
    least = np.full(len(steps), np.iinfo(np.int64).max)
    inside = legs.step >= 0
    np.minimum.at(least, legs.step[inside], run_ahead(legs)[inside])
    return np.where(least == np.iinfo(np.int64).max, MISSING, least)


def summarise_run_ahead(view: KindView) -> RunAhead:
    """The median over all legs' first ops, and the 10th percentile of the steps' least."""
    legs = view.rank.legs
    ahead = run_ahead(legs)[view.legs]
    least = ahead
    if view.by_step:
        least = least_run_ahead(legs, view.rank.steps)[view.used]
        least = least[least >= 0]
    return RunAhead(float(np.median(ahead)) / 1000, float(np.percentile(least, 10)) / 1000)
