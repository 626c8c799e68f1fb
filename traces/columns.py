"""Events to columns: what each category means, per rank, without an object per event kept."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from latencylab.model.trace import I64, U8, Bool
from latencylab.traces.digits import ABSENT, OK, QUOTED, UNREADABLE, parse_us, to_int64
from latencylab.traces.events import (
    API,
    DTYPE_BYTES,
    GPU,
    IGNORED,
    OPS,
    OVERHEAD,
    PROFILER,
    SPANS,
    SYNC,
    WORK,
    Args,
    Event,
)

_LABEL = re.compile(r"\[([A-Za-z]+\d+(?:[-_ ][A-Za-z]+\d+)*)\]\s*")
_PHASES = frozenset("XBEbenisftMPNODSTpFCRcvVa(),")
# Longer than any capture: a digit is wrong, and one such row would stretch the window to months.
DAY = 86_400_000_000_000
_NO_STREAM = (1 << 32) - 1  # CUPTI's invalid stream, before Kineto wrote it as -1


@dataclass(slots=True)
class RankEvents:
    """One rank's rows: for each table its columns, as pieces to be joined."""

    tables: dict[str, dict[str, list[I64]]] = field(default_factory=dict)
    threads: dict[tuple[str, str], int] = field(default_factory=dict)
    thread_names: dict[tuple[str, str], str] = field(default_factory=dict)
    notes: Counter[str] = field(default_factory=Counter)
    shapes: bool = False
    spans_start: int | None = None  # of the profiler's own record
    spans_end: int | None = None

    def add(self, table: str, **columns: I64) -> None:
        rows = self.tables.setdefault(table, {name: [] for name in columns})
        for name, column in columns.items():
            rows[name].append(column)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Complete events of one category and rank, with their times in ns as written."""

    events: Sequence[Event]
    start: I64
    duration: I64
    start_state: U8
    duration_state: U8

    def take(self, rows: Sequence[int] | Bool) -> _Rows:
        at = np.flatnonzero(rows) if isinstance(rows, np.ndarray) else np.array(rows, np.int64)
        events = [self.events[i] for i in at.tolist()]
        return _Rows(events, self.start[at], self.duration[at], self.start_state[at], self.duration_state[at])


class Collector:
    """Takes lists of events; `ranks` are by their label in the pids, "" where there is none."""

    def __init__(self) -> None:
        self.ranks: dict[str, RankEvents] = {}
        self.names: dict[str, int] = {}
        self._of_pid: dict[int | str, tuple[RankEvents, str]] = {}

    def add(self, events: Sequence[Event]) -> None:
        complete: dict[str, list[Event]] = {}
        for event in events:
            if event.ph == "X":
                if (rows := complete.get(event.cat)) is None:
                    rows = complete[event.cat] = []
                rows.append(event)
            elif event.cat != "ac2g":  # flows, half of all events
                self._add_other(event)
        groups = [(c.lower(), rows) for c, rows in complete.items() if c.lower() not in IGNORED]
        flat = [event for _, rows in groups for event in rows]
        start, start_state = parse_us([event.ts for event in flat])
        duration, duration_state = parse_us([event.dur for event in flat])
        done = 0
        for category, events in groups:
            part = slice(done, done + len(events))
            done += len(events)
            rows_ = _Rows(events, start[part], duration[part], start_state[part], duration_state[part])
            for rank, of_rank in self._by_rank(rows_):
                self._add_rows(rank, category, of_rank)

    def rank_of(self, pid: int | str) -> tuple[RankEvents, str]:
        """The rank that a pid belongs to, and the pid without the label of that rank."""
        found = self._of_pid.get(pid)
        if found is None:
            match = _LABEL.match(pid) if isinstance(pid, str) else None
            label = match[1].upper() if match else ""
            bare = str(pid)[match.end() :] if match else str(pid)
            found = self._of_pid[pid] = self.ranks.setdefault(label, RankEvents()), bare
        return found

    def _by_rank(self, rows: _Rows) -> list[tuple[RankEvents, _Rows]]:
        owners = {id(rank): rank for rank in (self.rank_of(pid)[0] for pid in {e.pid for e in rows.events})}
        if len(owners) == 1:
            return [(rank, rows) for rank in owners.values()]
        of_row = [id(self.rank_of(e.pid)[0]) for e in rows.events]
        return [(rank, rows.take([i for i, o in enumerate(of_row) if o == k])) for k, rank in owners.items()]

    def _add_other(self, event: Event) -> None:
        """Threads' names and the window's marks; what has no such phase by mistake is noted."""
        rank, pid = self.rank_of(event.pid)
        if event.cat.lower() in WORK or event.ph not in _PHASES:
            known = event.ph or event.cat or event.dur
            rank.notes["odd_phase" if known else "not_an_event"] += 1
        elif event.ph == "M" and event.name == "thread_name":
            try:
                name = msgspec.json.decode(event.args.name, type=str)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                return
            rank.thread_names[pid, str(event.tid)] = name
        elif event.name in ("Record Window End", "Iteration Start: PyTorch Profiler"):
            times, states = parse_us([event.ts])
            if states[0] == OK and event.name == "Record Window End":
                rank.spans_end = rank.spans_end or int(times[0])
            elif states[0] == OK:
                rank.spans_start = rank.spans_start or int(times[0])

    def _add_rows(self, rank: RankEvents, category: str, rows: _Rows) -> None:
        if category == PROFILER:
            for i, event in enumerate(rows.events):
                readable = rows.start_state[i] == rows.duration_state[i] == OK
                if event.name.startswith("PyTorch Profiler") and readable:
                    rank.spans_start = int(rows.start[i])
                    rank.spans_end = int(rows.start[i] + rows.duration[i])
            return
        if category not in WORK:
            for event in rows.events:
                gpu_like = event.args.stream >= 0 or event.args.correlation >= 0
                rank.notes["unknown_category" if gpu_like else "other_category"] += 1
            return
        rows = _readable(rows, rank.notes)
        if not rows.events:
            return
        unknown = (rows.duration_state == ABSENT) | (rows.duration_state == UNREADABLE)
        names = self.names
        columns = {
            "start": rows.start,
            "end": rows.start + rows.duration,
            "name": np.array([names.setdefault(e.name, len(names)) for e in rows.events], np.int64),
        }
        rank.notes["missing_field"] += sum(not e.name for e in rows.events)
        if category in GPU:
            kind = np.full(len(rows.events), GPU[category], np.int64)
            rank.add("gpu", **columns, kind=kind, **self._gpu(rank, rows.events))
        elif category in API:
            correlation = _integers(rank.notes, [e.args.correlation for e in rows.events])
            correlation[unknown] = -1  # nothing may be said from a call whose end is not known
            rank.add("api", **columns, correlation=correlation, thread=self._threads(rank, rows.events))
        elif category == SYNC:
            rank.add("syncs", **columns, **self._syncs(rank, rows.events))
        elif category == OVERHEAD:
            rank.add("overhead", **columns)
        else:
            table = "ops" if category in OPS else "spans" if category in SPANS else "frames"
            if table == "ops" and not rank.shapes:
                rank.shapes = any(e.args.dims for e in rows.events)
            rank.add(table, **columns, thread=self._threads(rank, rows.events))

    def _gpu(self, rank: RankEvents, events: Sequence[Event]) -> dict[str, I64]:
        args = [event.args for event in events]
        stream = _integers(rank.notes, [a.stream for a in args])
        for i in np.flatnonzero(stream < 0).tolist():
            stream[i] = _row_number(str(events[i].tid))
            bare = args[i].device < 0 and args[i].correlation < 0
            rank.notes["missing_field"] += bare or bool(stream[i] < 0)
        columns = {
            "stream": stream,
            "device": self._devices(rank, events),
            "correlation": _integers(rank.notes, [a.correlation for a in args]),
            "bytes": _integers(rank.notes, [a.bytes for a in args]),
            "graph_node": _integers(rank.notes, [a.graph_node for a in args]),
            "group": np.full(len(args), -1, np.int64),
        }
        messages = [i for i, a in enumerate(args) if a.group or a.elements >= 0]
        if messages:
            names = self.names
            said = [args[i] for i in messages]
            sizes = _integers(rank.notes, [_message_bytes(a) for a in said])
            columns["bytes"][messages] = np.maximum(columns["bytes"][messages], sizes)
            columns["group"][messages] = [
                names.setdefault(a.group, len(names)) if a.group else -1 for a in said
            ]
        return columns

    def _syncs(self, rank: RankEvents, events: Sequence[Event]) -> dict[str, I64]:
        # For waits on an event `stream` is the waiting stream, if any.
        stream = [e.args.wait_stream if "Event" in e.name else e.args.stream for e in events]
        return {
            "device": self._devices(rank, events),
            "correlation": _integers(rank.notes, [e.args.correlation for e in events]),
            "stream": _integers(rank.notes, [-1 if s == _NO_STREAM else max(s, -1) for s in stream]),
            "record_correlation": _integers(rank.notes, [e.args.wait_record for e in events]),
        }

    def _devices(self, rank: RankEvents, events: Sequence[Event]) -> I64:
        """The device of GPU rows: where the arguments do not say, Kineto has it as the row's process."""
        device = _integers(rank.notes, [event.args.device for event in events])
        for i in np.flatnonzero(device < 0).tolist():
            device[i] = _row_number(self.rank_of(events[i].pid)[1])
        return device

    def _threads(self, rank: RankEvents, events: Sequence[Event]) -> I64:
        threads = rank.threads
        known: dict[tuple[int | str, int | str], int] = {}
        found = []
        for event in events:
            key = event.pid, event.tid
            index = known.get(key)
            if index is None:
                thread = self.rank_of(event.pid)[1], str(event.tid)
                index = known[key] = threads.setdefault(thread, len(threads))
            found.append(index)
        # No system has such ids: a number is damaged.
        rank.notes["out_of_range"] += sum(type(i) is int and abs(i) >= 1 << 63 for key in known for i in key)
        if any(-1 in key for key in known):
            rank.notes["missing_field"] += sum(-1 in (e.pid, e.tid) for e in events)
        return np.array(found, np.int64)


def _readable(rows: _Rows, notes: Counter[str]) -> _Rows:
    """Rows without those of no usable time; unusable durations are 0."""
    start_state, duration_state = rows.start_state, rows.duration_state
    duration_state[(duration_state != ABSENT) & (rows.duration > DAY)] = UNREADABLE
    lost = (start_state == ABSENT) | (start_state == UNREADABLE)
    zero = ~lost & (rows.start == 0) & (rows.duration == 0)
    used = ~lost & ~zero
    notes["missing_field"] += int(np.sum(start_state == ABSENT) + np.sum(used & (duration_state == ABSENT)))
    notes["not_a_number"] += int(
        np.sum(start_state == UNREADABLE) + np.sum(used & (duration_state == UNREADABLE))
    )
    notes["quoted_number"] += int(np.sum((start_state == QUOTED) | (duration_state == QUOTED)))
    notes["zero_timestamp"] += int(zero.sum())
    negative = used & (rows.duration < 0)
    notes["negative_duration"] += int(negative.sum())
    rows.duration[negative | (duration_state == UNREADABLE)] = 0
    return rows if used.all() else rows.take(used)


def _message_bytes(args: Args) -> int:
    """What a rank puts into a collective; -1 where unknown."""
    size = DTYPE_BYTES.get(args.dtype)
    return -1 if size is None or args.elements < 0 else args.elements * size


def _integers(notes: Counter[str], values: Sequence[int]) -> I64:
    column, lost = to_int64(values)
    notes["out_of_range"] += lost
    return column


def _row_number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
