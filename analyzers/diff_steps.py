"""What a step is made of, as one column of ns a step for each part: what `diff` takes the means of."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from latencylab.analyzers.diff_bootstrap import Resampled
from latencylab.analyzers.idle import DISPATCH, HOST, IN_GRAPH, LATENCY, UNKNOWN
from latencylab.analyzers.intervals import Intervals
from latencylab.analyzers.run_ahead import least_run_ahead, run_ahead
from latencylab.analyzers.shares import doing_name
from latencylab.analyzers.view import GPU_CAUSES, KindView
from latencylab.model.comparison import Delta, LegChange, Row, by_effect
from latencylab.model.trace import I64, MISSING, Bool

Columns = dict[str, I64]
CAUSES = {"in_graph": IN_GRAPH, "dispatch": DISPATCH, "launch_latency": LATENCY}


class Units:
    """The units that means are taken over: the steps used, or the whole window as one."""

    def __init__(self, view: KindView) -> None:
        self.count = len(view.used) if view.by_step else 1
        self.of_step = np.full(len(view.rank.steps) + 1, MISSING if view.by_step else 0, np.int64)
        if view.by_step:
            self.of_step[view.used] = np.arange(self.count)

    def sums(self, step: I64, values: I64, chosen: Bool | None = None) -> I64:
        """The sum of the values in each unit, those alone that are chosen; a step of -1 is none."""
        unit = self.of_step[step]
        inside = unit >= 0 if chosen is None else (unit >= 0) & chosen
        return np.bincount(unit[inside], values[inside], self.count).astype(np.int64)


def compare_columns(
    base: Columns, head: Columns, resampled: Resampled, *, keep_order: bool = False
) -> tuple[Row, ...]:
    """Columns by name; where a name is on one side only, the other one's is 0: these are parts of a sum."""
    names = list(dict.fromkeys((*base, *head)))
    nothing = [np.zeros(size, np.int64) for size in resampled.sizes]
    deltas = resampled.deltas(
        [base.get(name, nothing[0]) for name in names], [head.get(name, nothing[1]) for name in names]
    )
    rows = [Row(name, delta) for name, delta in zip(names, deltas, strict=True)]
    return tuple(rows if keep_order else sorted(rows, key=by_effect(lambda row: row.us)))


def part_columns(view: KindView, wait_alone: I64 | None) -> Columns:
    """Wall, busy (of it `collective_wait`, where ranks are joined) and idle with its parts."""
    rank, units = view.rank, Units(view)
    pieces, work = rank.pieces, rank.work
    host = pieces.cause == HOST
    window = rank.window[1] - rank.window[0]
    wall = (rank.steps.end - rank.steps.start)[view.used] if view.by_step else np.array([window], np.int64)
    columns = {"wall": wall, "busy": units.sums(work.step, work.length)}
    if wait_alone is not None and view.by_step:
        columns["collective_wait"] = wait_alone[view.used]
    for name, chosen in (
        ("idle", np.ones(len(pieces), bool)),
        ("idle_host", host),
        ("idle_host_in_launch", pieces.in_launch),
        ("idle_gpu", np.isin(pieces.cause, GPU_CAUSES)),
        ("idle_unknown", pieces.cause == UNKNOWN),
    ):
        columns[name] = units.sums(pieces.step, pieces.length, chosen)
    return columns


def blame_columns(view: KindView) -> Columns:
    """Host idle by the blocking site it is owed to, or else by what the thread did, named as in findings."""
    pieces, sites, units = view.rank.pieces, view.rank.waits.sites, Units(view)
    chosen = view.pieces & (pieces.cause == HOST)
    columns: Columns = {}
    for site in np.unique(pieces.site[chosen]).tolist():
        its = chosen & (pieces.site == site)
        if site >= 0:
            columns[str(sites[site])] = units.sums(pieces.step, pieces.length, its)
            continue
        for doing in np.unique(pieces.doing[its]).tolist():
            name = doing_name(doing, pieces.spans)
            columns[name] = units.sums(pieces.step, pieces.length, its & (pieces.doing == doing))
    return columns


def gpu_idle_columns(view: KindView) -> Columns:
    """The GPU's own idle by cause."""
    pieces, units = view.rank.pieces, Units(view)
    return {
        name: units.sums(pieces.step, pieces.length, pieces.cause == cause) for name, cause in CAUSES.items()
    }


def class_columns(view: KindView) -> Columns:
    """Exclusive time of each kernel class; they add up to busy."""
    rank, units = view.rank, Units(view)
    its_class = rank.op_class[rank.work.op]
    return {
        rank.classes[row]: units.sums(rank.work.step, rank.work.length, its_class == row)
        for row in np.unique(its_class[view.work]).tolist()
    }


def leg_names(view: KindView) -> list[str]:
    """Each leg's name; one that comes again in its step is told apart by its number, as in findings."""
    legs = view.rank.legs
    seen: dict[tuple[int, str], int] = defaultdict(int)
    names = []
    for name, step in zip(legs.name, legs.step.tolist(), strict=True):
        seen[step, name] += 1
        nth = seen[step, name]
        names.append(name if nth == 1 or step < 0 else f"{name} {nth}")
    return names


def compare_legs(base: KindView, head: KindView, resampled: Resampled) -> tuple[LegChange, ...]:
    """Legs by name, in the order of head's step."""
    ours, theirs = _leg_columns(base), _leg_columns(head)
    found = []
    for name in dict.fromkeys((*theirs, *ours)):
        one, other = ours.get(name), theirs.get(name)
        quantities = list((one or other or {}).keys())
        deltas = resampled.deltas(
            [one[q] if one else None for q in quantities], [other[q] if other else None for q in quantities]
        )
        found.append(LegChange(name, **dict(zip(quantities, deltas, strict=True))))
    return tuple(found)


def _leg_columns(view: KindView) -> dict[str, Columns]:
    """Per leg its quantities: ns of each step, but `ops`, which are thousandfold, as means turn ns to µs."""
    rank, units, names = view.rank, Units(view), leg_names(view)
    legs, pieces, work = rank.legs, rank.pieces, rank.work
    host = pieces.cause == HOST
    seam_start = np.where(legs.seam_start < 0, legs.start, legs.seam_start)
    seam = np.maximum(legs.start - seam_start, 0)
    quantities = {
        "gpu_us": legs.end - legs.start,
        "busy_us": Intervals.disjoint(work.start, work.end).within(legs.start, legs.end),
        "seam_us": seam,
        "seam_idle_host_us": Intervals.disjoint(pieces.start[host], pieces.end[host]).within(
            legs.start - seam, legs.start
        ),
        "ops": legs.ops * 1000,
        "run_ahead_us": run_ahead(legs),
    }
    found: dict[str, Columns] = {}
    counted = view.legs
    for name in dict.fromkeys(name for name, counts in zip(names, counted, strict=True) if counts):
        its = counted & np.array([its_name == name for its_name in names])
        found[name] = {key: units.sums(legs.step, column, its) for key, column in quantities.items()}
    return found


def compare_least_run_ahead(base: KindView, head: KindView, resampled: Resampled) -> Delta:
    """The least run-ahead of a step's legs, as a mean over the steps; None where steps have no legs."""
    columns: list[I64 | None] = []
    for view in (base, head):
        least = least_run_ahead(view.rank.legs, view.rank.steps)[view.used]
        columns.append(least if len(least) and bool((least >= 0).all()) else None)
    return resampled.deltas(columns[:1], columns[1:])[0]
