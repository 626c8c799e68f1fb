"""Which API call enqueued which GPU op, joined by correlation id within one process."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from latencylab.model.trace import I64, MISSING, Bool, Trace

GRAPH_LAUNCH = re.compile("GraphLaunch")


@dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """The join of GPU ops to API calls, both ways.

    Per GPU op: `call`, the row of its API call or -1, and `first`, whether it is the first op of its
    call. Per launch, in order of the calls' start: `row` of the API call, `start`, `end` and `thread` of
    it, `graph`, its number of `ops`, the row of the first and of the last op to end (`first_op`,
    `last_op`), and `done`, when the last one ended.
    """

    call: I64
    first: Bool
    row: I64
    start: I64
    end: I64
    thread: I64
    graph: Bool
    ops: I64
    first_op: I64
    last_op: I64
    done: I64
    of_op: I64  # per GPU op, its launch, or -1

    def __len__(self) -> int:
        return len(self.row)

    def before(self, time: I64) -> I64:
        """How many launches began before each time."""
        return np.searchsorted(self.start, time, side="left")


def join_launches(trace: Trace) -> Launches:
    """Join each GPU op with the API call of its correlation id; ids of 0 and less are none.

    Where several calls carry one id, one within another (a runtime call and the driver call it makes) does
    not count: the outermost is what the thread was in. Where an id was used again, an op is of the last of
    its calls that began before it. A graph launch has many ops, all others one; ops of one id are one graph
    launch even where its call was not recorded.
    """
    gpu, api = trace.gpu, trace.api
    call = np.full(len(gpu), MISSING, np.int64)
    correlated = np.flatnonzero(api.correlation > 0)
    correlated = correlated[np.argsort(api.correlation[correlated], kind="stable")]
    if len(correlated) and len(gpu):
        ids, at, uses = np.unique(api.correlation[correlated], return_index=True, return_counts=True)
        found = np.minimum(np.searchsorted(ids, gpu.correlation), len(ids) - 1)
        hit = ids[found] == gpu.correlation
        call[hit] = correlated[at[found[hit]]]
        for repeated in np.flatnonzero(uses > 1).tolist():
            calls = _outermost(trace, correlated[at[repeated] : at[repeated] + uses[repeated]])
            ops = np.flatnonzero(gpu.correlation == ids[repeated])
            last = np.searchsorted(api.start[calls], gpu.start[ops], side="right") - 1
            call[ops] = calls[np.maximum(last, 0)]
    joined = np.flatnonzero(call >= 0)
    row, first_at, of_joined, ops = np.unique(
        call[joined], return_index=True, return_inverse=True, return_counts=True
    )
    first_op = joined[first_at]
    first = _first_of_correlation(np.where(call < 0, gpu.correlation, 0))
    first[joined] = False
    first[first_op] = True
    of_op = np.full(len(gpu), MISSING, np.int64)
    of_op[joined] = of_joined
    last_op = first_op.copy()
    by_end = joined[np.argsort(gpu.end[joined], kind="stable")]
    last_op[of_op[by_end]] = by_end
    is_graph = trace.matching(GRAPH_LAUNCH)
    return Launches(
        call=call,
        first=first,
        row=row,
        start=api.start[row],
        end=api.end[row],
        thread=api.thread[row].astype(np.int64),
        graph=is_graph[api.name[row]] | (ops > 1),
        ops=ops,
        first_op=first_op,
        last_op=last_op,
        done=gpu.end[last_op],
        of_op=of_op,
    )


def _outermost(trace: Trace, calls: I64) -> I64:
    """Of API calls in order of start, those that do not lie within the one before."""
    end = np.maximum.accumulate(trace.api.end[calls])
    outer: I64 = calls[np.append(True, trace.api.start[calls][1:] >= end[:-1])]
    return outer


def _first_of_correlation(correlation: I64) -> Bool:
    """Which ops, in their order, are the first of their correlation id; those without one all are."""
    first = correlation <= 0
    _, at = np.unique(correlation, return_index=True)
    first[at] = True
    return first
