"""One rank on its way into a Perfetto trace: its clock, which part of it is shown, and where tracks go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from latencylab.analyzers.intervals import Intervals
from latencylab.analyzers.ranks import RankSet
from latencylab.analyzers.view import RankView
from latencylab.model.trace import I64, Bool, Table
from latencylab.reports.format import clean
from latencylab.reports.perfetto_wire import TraceWriter, Track


@dataclass(slots=True, eq=False)
class Rank:
    """A rank to write: its `place` among those written and its `number` in `joined`, -1 where that is None.

    `shown` is the aligned time whose events are written; None means all. `uuid` is that of the track that
    holds the rank's tracks, `below` counts them.
    """

    place: int
    view: RankView
    joined: RankSet | None
    number: int
    shown: Intervals | None = None
    uuid: int = 0
    below: int = 0

    @property
    def device(self) -> str:
        """The name of its GPU, or else its number."""
        trace = self.view.trace
        return clean(trace.device_name or (f"device {trace.device}" if trace.device >= 0 else "no device"))

    @property
    def earliest(self) -> int:
        """The earliest time of the rank, aligned, in ns."""
        trace = self.view.trace
        tables: tuple[Table, ...] = (
            trace.gpu,
            trace.api,
            trace.ops,
            trace.spans,
            trace.frames,
            trace.overhead,
        )
        firsts = [int(table.start.min()) for table in tables if len(table)]
        return int(self.align(np.array([min(firsts, default=0)], np.int64))[0])

    @property
    def is_aligned(self) -> bool:
        """Whether its times can be compared with those of other ranks."""
        if self.joined is None:
            return False
        clock = self.joined.clocks[self.number]
        return self.number == 0 or (clock.points > 0 and not clock.broken)

    def align(self, time: I64) -> I64:
        """Times of this rank on the common clock."""
        return time if self.joined is None else self.joined.clocks[self.number].align(time)

    def shows(self, start: I64, end: I64) -> Bool:
        """Which of these aligned intervals overlap what is shown."""
        if self.shown is None:
            return np.ones(len(start), bool)
        return self.shown.holds(start) | (self.shown.within(start, end) > 0)

    def aligned(self, table: Table) -> tuple[I64, I64, I64]:
        """The rows of a table that are shown, with their aligned starts and ends."""
        start, end = self.align(table.start), self.align(table.end)
        rows = np.flatnonzero(self.shows(start, end))
        return rows, start[rows], end[rows]

    def track(self, writer: TraceWriter, name: str, description: str, **fields: Any) -> Track:
        """The rank's next track; `fields` are more of its TrackDescriptor."""
        self.below += 1
        fields |= {"name": clean(name), "description": description, "sibling_order_rank": self.below}
        return writer.track(self.uuid, **fields)


def nesting_lanes(start: I64, end: I64) -> I64:
    """For events in order of start, outer ones first: the first lane in which each nests or follows.

    Half-open: an event may start where the one before it ends.
    """
    lanes: list[list[int]] = []  # per lane the ends of the open events, the innermost last
    of = []
    for begin, until in zip(start.tolist(), end.tolist(), strict=True):
        for its in lanes:
            while its and its[-1] <= begin:
                its.pop()
        lane = next((i for i, its in enumerate(lanes) if not its or until <= its[-1]), len(lanes))
        if lane == len(lanes):
            lanes.append([])
        lanes[lane].append(until)
        of.append(lane)
    return np.array(of, np.int64)
