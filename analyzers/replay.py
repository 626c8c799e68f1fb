"""The discrete-event model of a trace: host threads, launches, streams, events and blocking calls.

`Program` is what the host did and what the GPU got to do; `replay` says when each part of it happens if
the host, the GPU or single parts take another time. With t the host thread's time, r a stream's running
end, and x' a duration as the scenario scales it:

    begin of item i     b = t + gap'_i
    launch              e = b + own'_i;  op: s = max(e + latency_k, max(r, its events) + after'_k);
                        d = s + work'_k + wait_k;  r = max(r, d)
    blocking call       e = max(b + own'_i, d_of_what_it_waits_for + tail'_i)
    anything else       e = b + own'_i;  then t = e

A graph launch is one op with its internal order and gaps as its duration. Of the lower bounds of an op's
start, the one that held in the trace is known; the other is what it usually is for ops of its name, but no
more than the trace allows, so that a replay with nothing changed gives the trace again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from latencylab.model.trace import I64, MISSING, Bool

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sort:
    """A sort of host time: the innermost span, what the thread did there (a label of `host`), for the own
    time of API calls their name, and the innermost of the spans that a step clock has."""

    span: str
    doing: int
    api: str = ""
    clocked: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Host items in order of their start, each perhaps with an op on the GPU; all times in ns.

    Per item: its `thread`; `gap`, the host time since the thread's item before, by sort of host time; `own`,
    the call's time apart from waiting, by sort; the `stream` of its op (-1 without one), the op's `latency`
    from the return of the call, its place `after` the stream's and the events' end, its `work` with the
    idle inside it (`inside`), and its `wait` for peers, of which `for_hosts` for their hosts; the items
    whose ops it comes after (`events`, by item); the item whose op a blocking call `awaits` (-1 for none),
    its `tail` from that op's end to its return, and its `site`. `edges` holds the items that mark where each
    step's span begins and ends (-1 where it has no end); `step` and `seam` say where an item belongs.
    """

    origin: int
    sorts: tuple[Sort, ...]
    thread: I64
    gap: F64  # items x sorts
    own: F64  # per item
    own_sort: I64
    stream: I64
    latency: F64
    after: F64
    work: F64
    inside: F64
    wait: F64
    for_hosts: F64
    events: dict[int, tuple[int, ...]]
    awaits: I64
    tail: F64
    site: I64
    step: I64
    seam: I64  # the leg whose seam an item stands in, or the leg itself, by row of `seams`
    seams: tuple[str, ...]
    leg: I64  # the leg that an item is the first launch of, by row of `seams`, or -1
    edges: I64  # steps x 2
    op: I64  # the first GPU op of an item, a row of the trace, or -1
    start: F64  # of the item in the trace
    free_since: dict[int, float]  # when a stream is free of what was launched before the record

    def __len__(self) -> int:
        return len(self.thread)

    def until(self, step: int) -> Program:
        """The same up to where this step begins on the host."""
        last = int(self.edges[step, 0])
        items = {
            column.name: getattr(self, column.name)[:last]
            for column in fields(self)
            if isinstance(getattr(self, column.name), np.ndarray) and column.name != "edges"
        }
        events = {item: its for item, its in self.events.items() if item < last}
        return replace(self, **items, events=events, edges=self.edges[:step])


@dataclass(frozen=True, slots=True, eq=False)
class Scenarios:
    """K ways to replay a program. `host`: a factor for each sort of host time; `gpu`: one for all GPU work
    and gaps; `work`: a factor for the work of each item (None for 1); `keeps`: whether a site's wait holds
    the host, by site; `peers`: a factor for the waiting in collectives; `hosts`: one more for what of that is
    for peers' hosts; `dispatch`: one for the gaps before ops that were queued in time.
    """

    host: F64  # sorts x K
    gpu: F64  # K
    work: F64 | None = None  # items x K
    gap: F64 | None = None  # items x K: a factor on the gap and own time of each item
    keeps: Bool | None = None  # sites x K
    peers: F64 | None = None  # K
    hosts: F64 | None = None  # K
    dispatch: F64 | None = None  # K: a factor on the places of ops after the work before them

    def __len__(self) -> int:
        return len(self.gpu)


def joined(parts: Sequence[Scenarios]) -> Scenarios:
    """All scenarios as one set; parts say all the same things, or leave the same things out."""

    def together(name: str) -> Any:
        columns = [getattr(part, name) for part in parts]
        return None if columns[0] is None else np.concatenate(columns, axis=-1)

    return Scenarios(**{column.name: together(column.name) for column in fields(Scenarios)})


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """When everything happens: items x scenarios, ns after the program's origin. `start` and `done` of the
    ops are 0 for items without one; `blocked` is the time a call waited."""

    begin: F64
    end: F64
    start: F64
    done: F64
    blocked: F64
    launched: Bool = field(repr=False)


def replay(program: Program, scenarios: Scenarios) -> Times:
    """Play a program once in each scenario."""
    n, k = len(program), len(scenarios)
    gap = program.gap @ scenarios.host
    own = program.own[:, None] * scenarios.host[program.own_sort]
    if scenarios.gap is not None:
        gap, own = gap * scenarios.gap, own * scenarios.gap
    work = program.work[:, None] * scenarios.gpu
    if scenarios.work is not None:
        work = work * scenarios.work
    peers = np.ones(k) if scenarios.peers is None else scenarios.peers
    hosts = np.ones(k) if scenarios.hosts is None else scenarios.hosts
    work = work + (program.wait[:, None] - program.for_hosts[:, None] * (1 - hosts)) * peers
    gaps = scenarios.gpu if scenarios.dispatch is None else scenarios.gpu * scenarios.dispatch
    after = np.where(program.after[:, None] > 0, program.after[:, None] * gaps, program.after[:, None])
    tail = program.tail[:, None] * scenarios.host[program.own_sort]
    begin, end, start, done, blocked = (np.zeros((n, k)) for _ in range(5))
    threads, first = np.unique(program.thread, return_index=True)
    clock = {
        thread: np.full(k, program.start[row])
        for thread, row in zip(threads.tolist(), first.tolist(), strict=True)
    }
    ready = {
        stream: np.full(k, program.free_since.get(stream, -np.inf))
        for stream in np.unique(program.stream).tolist()
    }
    keeps = scenarios.keeps
    rows = zip(
        program.thread.tolist(),
        program.stream.tolist(),
        program.awaits.tolist(),
        program.site.tolist(),
        strict=True,
    )
    # An op that started within its call started at that part of it, however long it takes.
    early = np.divide(np.minimum(program.latency, 0), program.own, out=np.zeros(n), where=program.own > 0)
    enqueued = own * np.maximum(1 + early, 0)[:, None] + np.maximum(program.latency, 0)[:, None]
    for i, (thread, stream, awaited, site) in enumerate(rows):
        at = clock[thread] + gap[i] if thread != MISSING else np.full(k, -np.inf)
        back = at + own[i]
        if stream != MISSING:
            free = ready[stream]
            for event in program.events.get(i, ()):
                free = np.maximum(free, done[event])
            begun = np.maximum(at + enqueued[i], free + after[i])
            over = begun + work[i]
            start[i], done[i] = begun, over
            ready[stream] = np.maximum(ready[stream], over)
        if awaited != MISSING:
            until = np.maximum(back, done[awaited] + tail[i])
            held = np.maximum(np.minimum(done[awaited], until) - at, 0)
            if keeps is not None and site != MISSING:
                until = np.where(keeps[site], until, back)
                held = np.where(keeps[site], held, 0)
            blocked[i] = held
            back = until
        begin[i], end[i] = at, back
        clock[thread] = back
    return Times(begin, end, start, done, blocked, program.stream != MISSING)


def step_starts(program: Program, times: Times) -> F64:
    """When each step starts on the GPU: steps x scenarios. One without an op starts with the one before."""
    first = np.full((len(program.edges), times.start.shape[1]), np.inf)
    inside = np.flatnonzero(times.launched & (program.step >= 0))
    np.minimum.at(first, program.step[inside], times.start[inside])
    first[np.isinf(first)] = -np.inf
    return np.maximum.accumulate(first, axis=0)


def span_lengths(program: Program, times: Times) -> F64 | None:
    """How long each step's own span lasts on the host: steps x scenarios; None where steps have no span."""
    if (program.edges[:, 1] < 0).any():
        return None
    return times.end[program.edges[:, 1]] - times.end[program.edges[:, 0]]
