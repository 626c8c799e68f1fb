"""What a replay says of the GPU's idle: whose fault it is, and what the host did meanwhile."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from latencylab.analyzers.blame import draw_on_debt
from latencylab.analyzers.host import FIXED, SPAN
from latencylab.analyzers.intervals import Intervals, cut, holder, running_end
from latencylab.analyzers.replay import F64, Program, Scenarios, Times, step_starts
from latencylab.analyzers.shares import NO_SPAN
from latencylab.model.trace import I64, MISSING


@dataclass(frozen=True, slots=True)
class ReplayedIdle:
    """Means per step in ns; `blame` by site or by what the host did adds up to `host`."""

    host: float
    gpu: float
    unknown: float
    blame: dict[str, float]


def replayed_idle(
    program: Program, times: Times, scenarios: Scenarios, k: int, steps: I64, sites: tuple[str, ...]
) -> ReplayedIdle:
    """Split scenario `k`'s idle by cause and blame as an analysis of its trace would, over these steps."""
    items = np.flatnonzero(times.launched)
    start, done = (_whole(column[items, k]) for column in (times.start, times.done))
    order = np.argsort(start, kind="stable")
    items, start, done = items[order], start[order], done[order]
    reach = running_end(done)
    late = np.flatnonzero(start[1:] > reach[1:]) + 1
    orphan = program.thread[items] == MISSING
    returned = np.where(orphan, start, _whole(np.where(orphan, 0, times.end[items, k])))
    gap_start, gap_end = reach[late], start[late]
    host_end = np.minimum(returned[late], gap_end)
    outstanding = Intervals.union(returned, start)
    bounds = _whole(step_starts(program, times)[:, k])
    edges = np.concatenate([host_end, outstanding.start, outstanding.end, bounds])
    begin, end, row = cut(gap_start, gap_end, edges)
    step = holder(bounds[:-1], bounds[1:], begin)
    counted = np.isin(step, steps)
    is_host = (begin < host_end[row]) & ~outstanding.holds(begin) & ~orphan[late][row] & counted
    unknown = orphan[late][row] & counted
    length = end - begin
    inside = np.isin(program.step[items], steps)
    in_graph = float((program.inside[items] * scenarios.gpu[k])[inside].sum())
    blame = _blame(
        program, times, scenarios, k, begin[is_host], end[is_host], items[late[row[is_host]]], sites
    )
    n = max(len(steps), 1)
    return ReplayedIdle(
        host=float(length[is_host].sum()) / n,
        gpu=(float(length[counted & ~is_host & ~unknown].sum()) + in_graph) / n,
        unknown=float(length[unknown].sum()) / n,
        blame={name: ns / n for name, ns in sorted(blame.items(), key=lambda item: -item[1])},
    )


def _whole(ns: F64) -> I64:
    return np.rint(ns).astype(np.int64)


def _blame(
    program: Program,
    times: Times,
    scenarios: Scenarios,
    k: int,
    start: I64,
    end: I64,
    ended_by: I64,
    sites: tuple[str, ...],
) -> dict[str, float]:
    """Host pieces by the blocking site that they are owed to, the rest by what their thread did."""
    blame: dict[str, float] = defaultdict(float)
    by_sort = np.zeros(len(program.sorts))
    thread = program.thread[ended_by]
    for its in np.unique(thread).tolist():
        here = thread == its
        mine = np.flatnonzero(program.thread == its)
        blocked = mine[times.blocked[mine, k] > 0]
        since = _whole(times.begin[blocked, k] + times.blocked[blocked, k])
        drawn = draw_on_debt(
            start[here], end[here], since, _whole(times.blocked[blocked, k]), program.site[blocked]
        )
        for since_ns, until_ns, site in drawn:
            blame[sites[site]] += until_ns - since_ns
        drawn_start, drawn_end, _ = np.array(drawn, np.int64).reshape(-1, 3).T
        begin, back = _whole(times.begin[mine, k]), _whole(times.end[mine, k])
        cuts = np.concatenate([drawn_start, drawn_end, begin, back])
        a, b, _ = cut(start[here], end[here], cuts)
        rest = ~Intervals.disjoint(drawn_start, drawn_end).holds(a)
        a, length = a[rest], (b - a)[rest]
        at = np.minimum(np.searchsorted(back, a, side="right"), len(mine) - 1)
        in_call = a >= begin[at]
        np.add.at(by_sort, program.own_sort[mine[at[in_call]]], length[in_call])
        gaps = program.gap[mine[at[~in_call]]] * scenarios.host[:, k]
        whole = np.maximum(gaps.sum(axis=1), 1e-9)
        by_sort += (gaps * (length[~in_call] / whole)[:, None]).sum(axis=0)
    for sort, ns in zip(program.sorts, by_sort.tolist(), strict=True):
        if ns > 0:
            blame[FIXED[sort.doing] if sort.doing < SPAN else f"span {sort.span or NO_SPAN}"] += ns
    return dict(blame)
