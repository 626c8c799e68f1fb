"""The calls at which the host blocks until the GPU got somewhere."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from latencylab.analyzers.launches import Launches
from latencylab.model.findings import SyncKind
from latencylab.model.trace import I64, MISSING, Bool, Trace

EXPLICIT = re.compile(
    r"^(?:cuda|hip)(?:Stream|Device|Event|Thread)Synchronize|^cu(?:Stream|Ctx|Event)Synchronize"
)
WHOLE_DEVICE = re.compile(r"^(?:cuda|hip)(?:Device|Thread)Synchronize|^cuCtxSynchronize")
BLOCKING_COPY = re.compile(r"^(?:cuda|hip|cu)Memcpy(?!.*Async)")
ASYNC_COPY = re.compile(r"Memcpy\w*Async")
ALLOCATION = re.compile(
    r"^(?:cuda|hip)(?:Free|Malloc|HostAlloc|HostFree|HostMalloc)(?!.*Async)|^cuMem(?:Free|Alloc)(?!.*(?:Async|Pool))"
)
QUERY = re.compile(r"^(?:cuda|hip)EventQuery|^cuEventQuery")
TO_HOST = re.compile(r"DtoH|DeviceToHost|Device -> (?:Pinned|Pageable|Host)", re.IGNORECASE)
TO_PAGEABLE = re.compile(r"-> Pageable", re.IGNORECASE)

POLLS = 3  # queries in a row that make a polling loop
CLOCK_NS = 1_000  # by how much the host's and the GPU's stamps may disagree on what came first


@dataclass(frozen=True, slots=True, eq=False)
class BlockingCalls:
    """Blocking calls in order of start. `op` is the GPU op that a copy is itself, or -1."""

    start: I64
    end: I64
    thread: I64
    row: I64  # of the (first) API call
    kind: tuple[SyncKind, ...]
    api: tuple[str, ...]
    op: I64

    def __len__(self) -> int:
        return len(self.start)


def find_blocking(trace: Trace, launches: Launches) -> BlockingCalls:
    """All blocking calls of the trace.

    A copy, and an async copy to pageable memory, blocks unless its op ended after the call's return. A device
    synchronize after which nothing is launched is the profiler's own. A polling loop is three or more event
    queries in a row on one thread with no other API call between; those within a framework op are the
    caching allocator's, those of a thread that launches nothing a watchdog's.
    """
    api = trace.api
    by_row = np.full(len(api), MISSING, np.int64)
    by_row[launches.row] = launches.first_op
    last_launch = int(launches.start.max(initial=np.iinfo(np.int64).min))
    whole_device = trace.matching(WHOLE_DEVICE)[api.name]
    explicit = trace.matching(EXPLICIT)[api.name] & ~(whole_device & (api.start > last_launch))
    copy = trace.matching(BLOCKING_COPY)[api.name]
    to_pageable = trace.matching(ASYNC_COPY)[api.name] & (by_row >= 0)
    if len(trace.gpu):
        own = np.maximum(by_row, 0)
        to_pageable &= trace.matching(TO_PAGEABLE)[trace.gpu.name[own]]
        to_pageable &= trace.matching(TO_HOST)[trace.gpu.name[own]]
        copy = (copy | to_pageable) & ((by_row < 0) | (trace.gpu.end[own] <= api.end + CLOCK_NS))
    allocation = trace.matching(ALLOCATION)[api.name]
    rows = np.flatnonzero(explicit | copy | allocation)
    kinds: list[SyncKind] = ["explicit" if explicit[i] else "copy" if copy[i] else "alloc" for i in rows]
    names = [trace.names[api.name[i]] for i in rows]
    first, last = _polling_loops(trace, launches)
    start = np.concatenate([api.start[rows], api.start[first]])
    order = np.argsort(start, kind="stable")
    all_rows = np.concatenate([rows, first])[order]
    kinds += ["explicit"] * len(first)
    names += [f"{trace.names[api.name[i]]} polling" for i in first]
    return BlockingCalls(
        start=start[order],
        end=np.concatenate([api.end[rows], api.end[last]])[order],
        thread=api.thread[all_rows].astype(np.int64),
        row=all_rows,
        kind=tuple(kinds[i] for i in order),
        api=tuple(names[i] for i in order),
        op=np.where(copy[all_rows], by_row[all_rows], MISSING),
    )


def _polling_loops(trace: Trace, launches: Launches) -> tuple[I64, I64]:
    """The first and the last query of each polling loop, as rows of the API calls."""
    api = trace.api
    is_query = trace.matching(QUERY)[api.name]
    firsts, lasts = [], []
    for thread in np.intersect1d(api.thread[is_query], launches.thread):
        rows = np.flatnonzero(api.thread == thread)
        mine = trace.ops.thread == thread
        in_op = _covered(trace.ops.start[mine], trace.ops.end[mine], api.start[rows])
        polls = is_query[rows] & ~in_op
        edges = np.flatnonzero(np.diff(np.concatenate([[0], polls.astype(np.int8), [0]])))
        for begin, stop in edges.reshape(-1, 2):
            if stop - begin >= POLLS:
                firsts.append(rows[begin])
                lasts.append(rows[stop - 1])
    return np.array(firsts, np.int64), np.array(lasts, np.int64)


def _covered(start: I64, end: I64, time: I64) -> Bool:
    upto = np.searchsorted(start, time, side="right") - 1
    reach = np.maximum.accumulate(end) if len(end) else end
    return (upto >= 0) & (reach[np.maximum(upto, 0)] > time) if len(start) else np.zeros(len(time), bool)
