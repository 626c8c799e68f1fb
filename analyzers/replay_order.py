"""Which GPU work waits for which across streams: what cudaStreamWaitEvent calls made ops wait for."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable

import numpy as np

from latencylab.analyzers.blocking import CLOCK_NS
from latencylab.analyzers.host import Paths
from latencylab.analyzers.launches import Launches
from latencylab.analyzers.marks import RECORD, Marks
from latencylab.model.trace import I64, MISSING, Trace

STREAM_WAIT = re.compile(r"^ll\.stream_wait\b")
STREAM_WAIT_CALL = re.compile(r"^(?:cuda|hip|cu)StreamWaitEvent")
RECORD_CALL = re.compile(r"^(?:cuda|hip|cu)EventRecord")
LOOK_BACK = 64  # records before a wait that may be the one waited for


def stream_waits(trace: Trace, launches: Launches) -> dict[int, tuple[int, ...]]:
    """Per launch, the launches of other streams after which its op had to wait by an event.

    A wait belongs to what its thread launches next. Which event it names is told by our runtime's marks, else
    by CUPTI's records. Where neither does, it is, for each other stream, the newest recorded point before
    the call that was complete whenever the op of this place in the program started: the trace allows no
    newer one, so the wait is never made shorter than it can have been.
    """
    api = trace.api
    rows = np.flatnonzero(trace.matching(STREAM_WAIT_CALL)[api.name])
    found: dict[int, set[int]] = defaultdict(set)
    if not len(rows) or not len(launches):
        return {}
    stream = trace.gpu.stream[launches.first_op]
    target = _next_launch(launches, api.thread[rows].astype(np.int64), api.start[rows])
    told = _told(trace, launches, rows, stream)
    for i, launch in enumerate(target.tolist()):
        if launch >= 0 and told[i] >= 0 and told[i] != launch:
            found[launch].add(int(told[i]))
    open_ = np.flatnonzero((target >= 0) & (told == MISSING))
    records = np.sort(api.start[trace.matching(RECORD_CALL)[api.name]])
    for group in _alike(trace, launches, rows, target, stream, open_):
        own = stream[target[group[0]]]
        for other in np.unique(stream[stream != own]).tolist():
            after = _eliminate(
                trace, launches, records, api.start[rows[group]], target[group], stream == other
            )
            for launch, dependency in zip(target[group].tolist(), after.tolist(), strict=True):
                if dependency >= 0:
                    found[launch].add(dependency)
    return {launch: tuple(sorted(its)) for launch, its in found.items()}


def _next_launch(launches: Launches, thread: I64, time: I64) -> I64:
    """The launch that each thread makes next after each time, or -1."""
    target = np.full(len(time), MISSING, np.int64)
    for its in np.unique(thread):
        mine = np.flatnonzero(launches.thread == its)
        asked = np.flatnonzero(thread == its)
        at = np.searchsorted(launches.start[mine], time[asked])
        there = at < len(mine)
        target[asked[there]] = mine[at[there]]
    return target


def _alike(trace: Trace, launches: Launches, rows: I64, target: I64, stream: I64, chosen: I64) -> list[I64]:
    """Waits of one place in the program: by span and by the name and stream of the op that follows."""
    spans = Paths(trace.spans, trace.names)
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for i in chosen.tolist():
        path = spans.at(int(trace.api.thread[rows[i]]), int(trace.api.start[rows[i]]))
        op = launches.first_op[target[i]]
        groups[path[-1:], int(trace.gpu.name[op]), int(stream[target[i]])].append(i)
    return [np.array(group, np.int64) for group in groups.values()]


def _eliminate(trace: Trace, launches: Launches, records: I64, time: I64, target: I64, on: np.ndarray) -> I64:
    """Per wait the newest launch of one stream at a record before it, by the place of the record, that
    was complete at every start of the target's op; -1 for none."""
    there = np.flatnonzero(on)
    start = trace.gpu.start[launches.first_op[target]]
    newest = np.searchsorted(records, time)
    for place in range(1, LOOK_BACK + 1):
        asked = newest >= place
        if not asked.any():
            break
        at = np.searchsorted(launches.start[there], records[newest[asked] - place]) - 1
        known = at >= 0
        if (launches.done[there[at[known]]] <= start[asked][known] + CLOCK_NS).all():
            found = np.full(len(time), MISSING, np.int64)
            found[np.flatnonzero(asked)[known]] = there[at[known]]
            return found
    return np.full(len(time), MISSING, np.int64)


def _told(trace: Trace, launches: Launches, rows: I64, stream: I64) -> I64:
    """Per wait the launch that a mark or a record names, -1 where neither says, -2 where the event stands
    before all that was launched."""
    api, syncs = trace.api, trace.syncs
    told = np.full(len(rows), MISSING, np.int64)
    thread, time = api.thread[rows].astype(np.int64), api.start[rows]
    record_of = {int(c): i for i, c in enumerate(syncs.correlation) if c >= 0}
    call_of = {int(c): i for i, c in enumerate(api.correlation) if c >= 0} if record_of else {}
    waits, records = Marks.of(trace, STREAM_WAIT), Marks.of(trace, RECORD)
    marked = waits.holding(thread, time) if len(waits) else np.full(len(rows), MISSING, np.int64)
    for i, row in enumerate(rows.tolist()):
        if marked[i] >= 0 and waits.event[marked[i]] >= 0:
            of_event = np.flatnonzero((records.event == waits.event[marked[i]]) & (records.start < time[i]))
            if len(of_event) and records.stream[of_event[-1]] >= 0:
                record = of_event[-1]
                told[i] = _newest(launches, stream, int(records.stream[record]), int(records.start[record]))
                continue
        known = record_of.get(int(api.correlation[row]))
        recorded_by = None if known is None else call_of.get(int(syncs.record_correlation[known]))
        if known is not None and recorded_by is not None and syncs.stream[known] >= 0:
            told[i] = _newest(launches, stream, syncs.stream[known], int(api.start[recorded_by]))
    return told


def _newest(launches: Launches, stream: I64, wanted: int, before: int) -> int:
    on = np.flatnonzero(stream[: int(launches.before(np.array(before)))] == wanted)
    return int(on[-1]) if len(on) else -2
