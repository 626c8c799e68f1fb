"""Each gap of the GPU, cut into pieces by whose fault it was: host, GPU or unknown.

For a gap [a, b) ended by op k with launch call [l0, l1]:
k not the first op of its graph launch -> IN_GRAPH; l1 <= a -> DISPATCH (queued in time); else HOST for
[a, min(l1, b)) and LATENCY for the rest; no launch known -> UNKNOWN. While any other launched op is
outstanding on the device the host has done its part, so such moments of a host piece are DISPATCH too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latencylab.analyzers.intervals import Intervals, cut, running_end
from latencylab.analyzers.launches import Launches
from latencylab.model.trace import I64, U8, Bool, Trace

IN_GRAPH, DISPATCH, LATENCY, HOST, UNKNOWN = range(5)


@dataclass(frozen=True, slots=True, eq=False)
class Idle:
    """The idle of the window in pieces, sorted and disjoint: start, end, cause, the op that ended the gap.

    `in_launch` marks host pieces that lie inside that op's launch call.
    """

    start: I64
    end: I64
    cause: U8
    op: I64
    in_launch: Bool

    def __len__(self) -> int:
        return len(self.start)

    def total(self, *causes: int) -> int:
        """The ns of all pieces with one of these causes."""
        return int((self.end - self.start)[np.isin(self.cause, causes)].sum())

    def cut_at(self, edges: I64) -> Idle:
        """The same idle, also cut at these times."""
        start, end, row = cut(self.start, self.end, edges)
        return Idle(start, end, self.cause[row], self.op[row], self.in_launch[row])


def find_gaps(trace: Trace) -> tuple[I64, I64, I64]:
    """The gaps between the first op's start and the last one's end: start, end, and the op that ends each.

    Ops starting together end a gap by the order of stream, then correlation; an op of no length ends one too.
    """
    gpu = trace.gpu
    before = running_end(gpu.end)
    op = np.flatnonzero(gpu.start[1:] > before[1:]) + 1 if len(gpu) else np.zeros(0, np.int64)
    return before[op], gpu.start[op], op


def split_idle(trace: Trace, launches: Launches) -> Idle:
    """Cut every gap of the trace into pieces by cause."""
    gap_start, gap_end, op = find_gaps(trace)
    call = launches.call[op]
    known = call >= 0
    l0, l1 = np.zeros(len(op), np.int64), np.zeros(len(op), np.int64)
    l0[known], l1[known] = trace.api.start[call[known]], trace.api.end[call[known]]
    whole = np.full(len(op), HOST, np.uint8)
    whole[l1 <= gap_start] = DISPATCH
    whole[~known] = UNKNOWN
    whole[~launches.first[op]] = IN_GRAPH
    is_host = whole == HOST
    host_end = np.where(is_host, np.minimum(l1, gap_end), gap_end)
    outstanding = _outstanding(trace, launches)
    edges = np.concatenate([host_end[is_host], l0[is_host], outstanding.start, outstanding.end])
    start, end, row = cut(gap_start, gap_end, edges)
    cause = whole[row]
    cause[(cause == HOST) & (start >= host_end[row])] = LATENCY
    cause[(cause == HOST) & outstanding.holds(start)] = DISPATCH
    in_launch = (cause == HOST) & (start >= l0[row])
    return Idle(start, end, cause, op[row], in_launch)


def _outstanding(trace: Trace, launches: Launches) -> Intervals:
    """When at least one op was launched, its call returned, and had not yet started."""
    joined = launches.call >= 0
    returned = trace.api.end[launches.call[joined]]
    return Intervals.union(returned, trace.gpu.start[joined])
