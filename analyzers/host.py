"""What a host thread did at each moment: profiler, API call, GC, framework op, or the innermost span."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from latencylab.analyzers.intervals import Intervals
from latencylab.analyzers.marks import plain_name
from latencylab.model.trace import I64, ApiCalls, Bool, HostEvents, Trace

SYNC, API, FRAMEWORK, GC, WAITING, PROFILER, SPAN = range(7)  # SPAN + i: in span i of `Doing.spans`
FIXED = ("sync", "api", "framework", "gc", "waiting", "profiler")

GC_SPAN = re.compile(r"\bgc\b", re.IGNORECASE)
GLOO = re.compile(r"^gloo:")
ISSUED = re.compile(r"^c10d::")
NO_KIND = re.compile(r"^(?:gloo:|c10d::)|_(?:base)?")  # c10d::_allgather_base_ issues gloo:all_gather
WAITING_EVENT = re.compile(r"^(?:gloo:|c10d::(?:monitored_)?barrier|(?:(?:scheduler|ll)\.)?idle$)")


@dataclass(frozen=True, slots=True, eq=False)
class Activity:
    """A thread's doing as a step function of time: `label[i]` holds from `time[i]` to `time[i + 1]`.

    Labels from SPAN on are rows of `spans`, the names of spans; "" stands for the time outside all spans.
    """

    time: I64
    label: I64
    spans: tuple[str, ...]

    def at(self, time: I64) -> I64:
        """The label in force at each time."""
        return self.label[np.maximum(np.searchsorted(self.time, time, side="right") - 1, 0)]


def owned_overhead(trace: Trace, thread: int) -> Intervals:
    """The profiler's own work that this thread did.

    Kineto's overhead rows name no thread. One can be this thread's only if no event of the thread starts or
    ends within it: the thread did nothing else meanwhile.
    """
    edges = _edges(trace, thread)
    start, end = trace.overhead.start, trace.overhead.end
    alone = np.searchsorted(edges, start, side="right") == np.searchsorted(edges, end, side="left")
    return Intervals.union(start[alone], end[alone])


def host_collectives(trace: Trace) -> HostEvents:
    """The host's collectives in order of start: c10d records them as framework ops or as annotations."""
    is_gloo = trace.matching(GLOO)
    ops, spans = (table.take(is_gloo[table.name]) for table in (trace.ops, trace.spans))
    merged = HostEvents(
        *(
            np.concatenate([getattr(ops, column), getattr(spans, column)])
            for column in ("start", "end", "thread", "name")
        )
    )
    return merged.take(np.argsort(merged.start, kind="stable"))


def peer_waits(trace: Trace, thread: int) -> Intervals:
    """When this thread waited for a collective of the hosts that it issued and another thread carries out.

    Gloo has threads of its own, which record the collective; the issuing thread records c10d's op, which
    returns at once, and waits in silence. A collective belongs to the thread that last began such an op
    before it, of its kind where there are any, and which waits from the last that it recorded before the
    collective's end. What it does meanwhile without recording anything counts as waiting.
    """
    issued = trace.ops.take(trace.matching(ISSUED)[trace.ops.name])
    issued = issued.take(np.argsort(issued.start, kind="stable"))
    carried = host_collectives(trace)
    carried = carried.take(carried.thread != thread)
    if not len(issued) or not len(carried):
        return Intervals.union(carried.start[:0], carried.end[:0])
    kinds = np.array([NO_KIND.sub("", name) for name in trace.names], object)
    by = np.full(len(carried), -1, np.int64)
    for kind in np.unique(kinds[carried.name].astype(str)).tolist():
        of_kind = kinds[carried.name] == kind
        ops = issued.take(kinds[issued.name] == kind)
        ops = ops if len(ops) else issued
        last = np.searchsorted(ops.start, carried.start[of_kind], side="right") - 1
        by[of_kind] = np.where(last >= 0, ops.thread[last], -1)
    carried = carried.take(by == thread)
    edges = _edges(trace, thread)
    silent = edges[np.searchsorted(edges, carried.end, side="left") - 1]
    start = np.maximum(carried.start, silent)
    return Intervals.union(start[start < carried.end], carried.end[start < carried.end])


def thread_activity(trace: Trace, thread: int, waits: Intervals) -> Activity:
    """What this thread did, each layer over the one before: spans, waiting for a peer in silence, framework
    ops, GC, waiting for a request or a peer, API calls, `waits` (when it was blocked; the rest of a blocking
    call is API time), the profiler's own work.
    """
    spans = trace.spans
    time, label, names = innermost(trace, thread)
    layers: list[tuple[Intervals, int]] = [(peer_waits(trace, thread), WAITING)]
    layers.append((_merged(trace.ops, thread), FRAMEWORK))
    layers.append((_merged(spans, thread, trace.matching(GC_SPAN)), GC))
    is_waiting = trace.matching(WAITING_EVENT)
    layers.append((_merged(trace.ops, thread, is_waiting), WAITING))
    layers.append((_merged(spans, thread, is_waiting), WAITING))
    layers.append((_merged(trace.api, thread), API))
    layers.append((waits, SYNC))
    layers.append((owned_overhead(trace, thread), PROFILER))
    for cover, code in layers:
        time, label = _overlay(time, label, cover, code)
    return Activity(time, label, names)


def innermost(trace: Trace, thread: int) -> tuple[I64, I64, tuple[str, ...]]:
    """The innermost span of a thread over time, as a step function whose labels start at SPAN.

    Spans of one thread nest; where they overlap all the same, the later one counts.
    """
    spans = trace.spans
    rows = np.flatnonzero(spans.thread == thread)
    labels: dict[str, int] = {"": SPAN}
    time, label = [np.iinfo(np.int64).min], [SPAN]
    stack: list[tuple[int, int]] = []  # end and label of the open spans

    def close(until: int) -> None:
        while stack and stack[-1][0] <= until:
            end, _ = stack.pop()
            while stack and stack[-1][0] <= end:
                stack.pop()
            time.append(end)
            label.append(stack[-1][1] if stack else SPAN)

    for start, end, name in zip(
        spans.start[rows].tolist(), spans.end[rows].tolist(), spans.name[rows].tolist(), strict=True
    ):
        close(start)
        code = labels.setdefault(plain_name(trace.names[name]), SPAN + len(labels))
        stack.append((end, code))
        time.append(start)
        label.append(code)
    close(np.iinfo(np.int64).max)
    return np.array(time, np.int64), np.array(label, np.int64), tuple(labels)


@dataclass(frozen=True, slots=True, eq=False)
class Nest:
    """The events of one thread, in order of start, and how far those up to each one reach."""

    rows: I64
    start: I64
    end: I64
    reach: I64

    @classmethod
    def of(cls, events: HostEvents, thread: int) -> Nest:
        rows = np.flatnonzero(events.thread == thread)
        end = events.end[rows]
        return cls(rows, events.start[rows], end, np.maximum.accumulate(end) if len(end) else end)

    def holding(self, time: int) -> I64:
        """The rows of the events that hold this time, outermost first."""
        first = int(np.searchsorted(self.reach, time, side="right"))
        inside = slice(first, int(np.searchsorted(self.start, time, side="right")))
        return self.rows[inside][self.end[inside] > time]


class Paths:
    """The names of a table's events that hold a moment of a thread."""

    def __init__(self, events: HostEvents, names: tuple[str, ...]) -> None:
        self.events = events
        self.names = names
        self.nests: dict[int, Nest] = {}

    def at(self, thread: int, time: int) -> tuple[str, ...]:
        """Names, outermost first."""
        if thread not in self.nests:
            self.nests[thread] = Nest.of(self.events, thread)
        return tuple(self.names[i] for i in self.events.name[self.nests[thread].holding(time)].tolist())


def _edges(trace: Trace, thread: int) -> I64:
    """When the events of this thread start and end, in order."""
    times = [
        edges
        for table in (trace.api, trace.ops, trace.spans, trace.frames)
        for edges in _on_thread(table.thread, thread, table.start, table.end)
    ]
    return np.sort(np.concatenate(times))


def _on_thread(threads: np.ndarray, thread: int, *columns: I64) -> list[I64]:
    mine = threads == thread
    return [column[mine] for column in columns]


def _merged(events: HostEvents | ApiCalls, thread: int, named: Bool | None = None) -> Intervals:
    mine = events.thread == thread
    if named is not None:
        mine &= named[events.name]
    return Intervals.union(events.start[mine], events.end[mine])


def _overlay(time: I64, label: I64, cover: Intervals, code: int) -> tuple[I64, I64]:
    """The step function with `code` wherever `cover` holds."""
    times = np.unique(np.concatenate([time, cover.start, cover.end]))
    below = label[np.maximum(np.searchsorted(time, times, side="right") - 1, 0)]
    return times, np.where(cover.holds(times), code, below)
