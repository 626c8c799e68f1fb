"""The spans that our runtime adds to a trace: `ll.step[12 NEXTN]`, `ll.verify`, `ll.event_record[event=3 …]`.

What stands in brackets is detail of one call. Marks are those spans that hold a single API call of an event
or a stream, and tell which one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from latencylab.analyzers.intervals import holder
from latencylab.model.trace import I64, MISSING, Trace

STEP = re.compile(r"^ll\.step\b(?:\[(?P<number>\d+)(?:\s+(?P<kind>\w+))?\])?")
MARK = re.compile(r"^ll\.(?:wait\.|event_record\b|stream_wait\b)")
LEG_REPLAY = re.compile(r"^ll\.replay\[(draft|verify|extend|decode)\]$")
RECORD = re.compile(r"^ll\.event_record\b")
EVENT_WAIT = re.compile(r"^ll\.wait\.event_synchronize\b")
STREAM_SYNC = re.compile(r"^ll\.wait\.stream_synchronize\b")
DETAIL = re.compile(r"\b(event|stream)=(\d+)")
_BRACKETS = re.compile(r"\[[^\]]*\]$")


def plain_name(span: str) -> str:
    """A span's name without the detail of one call, where it is one of ours."""
    return _BRACKETS.sub("", span) if span.startswith("ll.") else span


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """The marks of one sort, in order of start: the event and the stream that each names, or -1."""

    start: I64
    end: I64
    thread: I64
    event: I64
    stream: I64

    @classmethod
    def of(cls, trace: Trace, pattern: re.Pattern[str]) -> Marks:
        spans = trace.spans
        rows = np.flatnonzero(trace.matching(pattern)[spans.name])
        said = [dict(DETAIL.findall(trace.names[i])) for i in spans.name[rows].tolist()]
        event, stream = (
            np.array([int(its.get(key, MISSING)) for its in said], np.int64) for key in ("event", "stream")
        )
        return cls(spans.start[rows], spans.end[rows], spans.thread[rows].astype(np.int64), event, stream)

    def __len__(self) -> int:
        return len(self.start)

    def holding(self, thread: I64, time: I64) -> I64:
        """The mark of this thread that holds each time, or -1."""
        found = np.full(len(time), MISSING, np.int64)
        for its in np.intersect1d(self.thread, thread):
            mine = np.flatnonzero(self.thread == its)
            asked = np.flatnonzero(thread == its)
            at = holder(self.start[mine], self.end[mine], time[asked])
            found[asked] = np.where(at >= 0, mine[np.maximum(at, 0)], MISSING)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class MarkedWaits:
    """What marks say of blocking calls: each waits for what was launched before `before` on `stream`, as the
    trace counts streams; -1 where they do not say."""

    before: I64
    stream: I64


def marked_waits(trace: Trace, thread: I64, time: I64) -> MarkedWaits:
    """Look up what calls at these times of these threads wait for: a stream, or an event's record.

    A mark counts streams by cuStreamGetId, which gives the number that CUPTI, and so the trace, has for it.
    """
    syncs, waits, records = (Marks.of(trace, pattern) for pattern in (STREAM_SYNC, EVENT_WAIT, RECORD))
    before, stream = np.full(len(time), MISSING, np.int64), np.full(len(time), MISSING, np.int64)
    if not len(syncs) and not len(records):
        return MarkedWaits(before, stream)
    for i, mark in enumerate(syncs.holding(thread, time).tolist()):
        if mark >= 0:
            before[i], stream[i] = time[i], syncs.stream[mark]
    for i, mark in enumerate(waits.holding(thread, time).tolist()):
        if mark < 0 or waits.event[mark] < 0:
            continue
        of_event = np.flatnonzero((records.event == waits.event[mark]) & (records.start < time[i]))
        if len(of_event):
            newest = of_event[-1]
            before[i] = records.start[newest]
            stream[i] = records.stream[newest]
    return MarkedWaits(before, stream)
