"""What happened in one step, laid out to be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latencylab.analyzers.blame import Pieces
from latencylab.analyzers.idle import HOST
from latencylab.analyzers.shares import doing_name
from latencylab.analyzers.view import KindView, RankView
from latencylab.model.timeline import (
    CallBoxes,
    GapBoxes,
    GpuBoxes,
    HostBoxes,
    LegBoxes,
    Timeline,
    WaitBoxes,
)
from latencylab.model.trace import I32, I64, MISSING, ApiCalls, Bool, GpuOps, HostEvents

# Of one kind of step: nobody looks at more of them one by one, and each takes a few hundred KB.
MOST_STEPS = 40


def build_timelines(view: KindView) -> tuple[Timeline, ...]:
    """The timelines of up to 40 steps of a kind, in the order of `choose_steps`."""
    whole = _Whole.of(view.rank)
    return tuple(_Layout(view.rank, whole, step).timeline() for step in choose_steps(view)[:MOST_STEPS])


def choose_steps(view: KindView) -> list[int]:
    """All steps of the kind, those first that say most: the median one, the slowest one (steady or an
    outlier), one for each cause that steps were left out for, then the others, spread evenly.
    """
    if not view.by_step:
        return []
    wall = (view.rank.steps.end - view.rank.steps.start).tolist()
    by_wall = sorted(view.used.tolist(), key=lambda row: wall[row])
    slow = [row for row in view.rows.tolist() if view.rank.left_out[row] in (None, "outlier")]
    chosen = [by_wall[(len(by_wall) - 1) // 2], *sorted(slow, key=lambda row: -wall[row])[:1]]
    causes = {view.rank.left_out[row]: row for row in reversed(view.rows.tolist())}
    chosen += [row for cause, row in causes.items() if cause is not None]
    return list(dict.fromkeys(chosen + [int(view.rows[i]) for i in _spread(len(view.rows))]))


def _spread(count: int) -> list[int]:
    """0 to count - 1 so that every beginning of the list is spread evenly: the middle, the quarters, ..."""
    stretches, order = [(0, count)], []
    for low, high in stretches:  # grows while it is read
        if low < high:
            middle = (low + high) // 2
            order.append(middle)
            stretches += [(low, middle), (middle + 1, high)]
    return order


def build_timeline(rank: RankView, step: int) -> Timeline:
    """Lay out one step of the rank: all that overlaps its time on the GPU or its launching on the host."""
    return _Layout(rank, _Whole.of(rank), step).timeline()


class _Names:
    """The names in use, each once."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    def row(self, name: str) -> int:
        return self.rows.setdefault(name, len(self.rows))

    def of(self, column: I32 | I64, names: Sequence[str]) -> I64:
        """The rows of names that a column gives by number; -1 stays -1."""
        kinds, at = np.unique(column, return_inverse=True)
        rows = [MISSING if kind < 0 else self.row(names[kind]) for kind in kinds.tolist()]
        return np.array(rows, np.int64)[at]


@dataclass(frozen=True, slots=True, eq=False)
class _Whole:
    """What is the same for all steps: the ops worth an arrow from their launch (each leg's first, and those
    the host was late with), and how many ops each API call launched.
    """

    linked: Bool
    ops: I64

    @classmethod
    def of(cls, rank: RankView) -> _Whole:
        pieces, launches = rank.pieces, rank.launches
        linked = np.zeros(len(rank.trace.gpu), bool)
        linked[pieces.op[pieces.cause == HOST]] = True
        linked[launches.first_op[np.isin(launches.start, rank.legs.launch_start) & launches.graph]] = True
        ops = np.zeros(len(rank.trace.api), np.int64)
        ops[launches.row] = launches.ops
        return cls(linked, ops)


class _Layout:
    """One step's rows of the rank's tables, and the names in use so far."""

    def __init__(self, rank: RankView, whole: _Whole, step: int) -> None:
        steps = rank.steps
        self.rank, self.whole, self.step = rank, whole, step
        self.start, self.end = int(steps.start[step]), int(steps.end[step])
        self.first = min(self.start, int(steps.host_start[step]))
        self.last = max(self.end, min(int(steps.host_end[step]), rank.window[1]))
        self.names = _Names()
        self.gpu_rows = self._overlapping(rank.trace.gpu)
        launching = rank.launches.call[self.gpu_rows]
        own = launching[(launching >= 0) & (steps.of_gpu(rank.trace.gpu.start[self.gpu_rows]) == step)]
        its_threads = np.append(rank.trace.api.thread[own], steps.thread)
        self.threads = np.unique(its_threads[its_threads >= 0]).astype(np.int64)
        self.call_rows = np.union1d(self._on_threads(rank.trace.api), own)

    def timeline(self) -> Timeline:
        trace = self.rank.trace
        streams = np.unique(trace.gpu.stream[self.gpu_rows])
        spans, ops, calls = self._host(trace.spans), self._host(trace.ops), self._calls()
        gpu, gaps, legs, waits = self._gpu(streams), self._gaps(), self._legs(), self._waits()
        return Timeline(
            step=self.step,
            start=self.start,
            end=self.end,
            first=self.first,
            last=self.last,
            names=tuple(self.names.rows),
            threads=tuple(trace.threads[i].name or trace.threads[i].thread for i in self.threads.tolist()),
            streams=tuple(streams.tolist()),
            spans=spans,
            ops=ops,
            calls=calls,
            gpu=gpu,
            gaps=gaps,
            legs=legs,
            waits=waits,
        )

    def _overlapping(self, table: GpuOps | ApiCalls | HostEvents | Pieces) -> I64:
        """The rows that overlap the drawn time; for a table in order of start."""
        upto = int(np.searchsorted(table.start, self.last, side="right"))
        return np.flatnonzero(table.end[:upto] >= self.first)

    def _on_threads(self, table: HostEvents | ApiCalls) -> I64:
        rows = self._overlapping(table)
        return rows[np.isin(table.thread[rows], self.threads)]

    def _is_own(self, start: I64) -> Bool:
        """Which of these times on the GPU lie in the step."""
        own: Bool = self.rank.steps.of_gpu(start) == self.step
        return own

    def _host(self, events: HostEvents) -> HostBoxes:
        rows = self._on_threads(events)
        start, end = events.start[rows], events.end[rows]
        thread = np.searchsorted(self.threads, events.thread[rows])
        name = self.names.of(events.name[rows], self.rank.trace.names)
        return HostBoxes(start, end, thread, lanes(start, end, thread), name)

    def _calls(self) -> CallBoxes:
        api, rows = self.rank.trace.api, self.call_rows
        start, end = api.start[rows], api.end[rows]
        thread = np.searchsorted(self.threads, api.thread[rows])
        name = self.names.of(api.name[rows], self.rank.trace.names)
        return CallBoxes(start, end, thread, lanes(start, end, thread), name, self.whole.ops[rows])

    def _gpu(self, streams: I64) -> GpuBoxes:
        rank, gpu, rows = self.rank, self.rank.trace.gpu, self.gpu_rows
        start, end = gpu.start[rows], gpu.end[rows]
        stream = np.searchsorted(streams, gpu.stream[rows])
        return GpuBoxes(
            start=start,
            end=end,
            stream=stream,
            lane=lanes(start, end, stream),
            name=self.names.of(gpu.name[rows], rank.trace.names),
            kernel_class=self.names.of(rank.op_class[rows], rank.classes),
            call=_place(self.call_rows, rank.launches.call[rows]),
            linked=self.whole.linked[rows],
            own=self._is_own(start),
        )

    def _gaps(self) -> GapBoxes:
        pieces, waits = self.rank.pieces, self.rank.waits
        rows = self._overlapping(pieces)
        # Pieces are cut at every edge of what any thread did; those that say the same are one.
        labels = (pieces.cause, pieces.in_launch, pieces.op, pieces.doing, pieces.site, pieces.step)
        alike = np.stack([label[rows].astype(np.int64) for label in labels])
        joins = (pieces.start[rows][1:] == pieces.end[rows][:-1]) & (alike[:, 1:] == alike[:, :-1]).all(
            axis=0
        )
        heads = rows[np.append(True, ~joins)] if len(rows) else rows
        tails = rows[np.append(~joins, True)] if len(rows) else rows
        site, doing = pieces.site[heads], self._doing(pieces.doing[heads])
        return GapBoxes(
            start=pieces.start[heads],
            end=pieces.end[tails],
            cause=pieces.cause[heads].astype(np.int64),
            in_launch=pieces.in_launch[heads],
            doing=doing,
            blame=np.where(site >= 0, self.names.of(site, [str(one) for one in waits.sites]), doing),
            owed=site >= 0,
            op=_place(self.gpu_rows, pieces.op[heads]),
            own=pieces.step[heads] == self.step,
        )

    def _doing(self, codes: I64) -> I64:
        """Labels of doing as rows of names."""
        kinds, at = np.unique(codes, return_inverse=True)
        spans = self.rank.pieces.spans
        rows = [MISSING if code < 0 else self.names.row(doing_name(code, spans)) for code in kinds.tolist()]
        return np.array(rows, np.int64)[at]

    def _legs(self) -> LegBoxes:
        legs = self.rank.legs
        rows = np.flatnonzero((legs.end >= self.first) & (legs.start <= self.last))
        name = np.array([self.names.row(legs.name[i]) for i in rows.tolist()], np.int64)
        return LegBoxes(legs.start[rows], legs.end[rows], name, self._is_own(legs.start[rows]))

    def _waits(self) -> WaitBoxes:
        trace, waits = self.rank.trace, self.rank.waits
        calls = waits.calls
        inside = (calls.end >= self.first) & (calls.start <= self.last)
        rows = np.flatnonzero(inside & np.isin(calls.thread, self.threads))
        awaited = waits.op[rows]
        name = np.full(len(rows), MISSING, np.int64)
        name[awaited >= 0] = trace.gpu.name[awaited[awaited >= 0]]
        return WaitBoxes(
            start=calls.start[rows],
            end=calls.end[rows],
            thread=np.searchsorted(self.threads, calls.thread[rows]),
            site=self.names.of(waits.site[rows], [str(site) for site in waits.sites]),
            waits_for=self.names.of(name, trace.names),
            blocked=waits.blocked[rows],
        )


def _place(rows: I64, wanted: I64) -> I64:
    """Where each wanted row stands among these sorted rows, or -1."""
    if not len(rows):
        return np.full(len(wanted), MISSING, np.int64)
    at = np.minimum(np.searchsorted(rows, wanted), len(rows) - 1)
    return np.where(rows[at] == wanted, at, MISSING)


def lanes(start: I64, end: I64, track: I64) -> I64:
    """A lane for each box, in order of start within its track: the first that is free.

    Of boxes that nest, the lane is the depth.
    """
    free: dict[int, list[int]] = {}  # per track, when each lane becomes free
    lane = []
    for begin, until, its_track in zip(start.tolist(), end.tolist(), track.tolist(), strict=True):
        ends = free.setdefault(its_track, [])
        at = next((i for i, freed in enumerate(ends) if freed <= begin), len(ends))
        if at == len(ends):
            ends.append(until)
        else:
            ends[at] = until
        lane.append(at)
    return np.array(lane, np.int64)
