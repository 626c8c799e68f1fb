"""One step of all ranks on the reference's clock, laid out to be drawn one above the other.

Times are int64 nanoseconds on the reference's clock. Names are rows of `RankTimeline.names`; a missing row is
-1.
"""

from __future__ import annotations

from dataclasses import dataclass

from latencylab.model.timeline import GapBoxes, LegBoxes
from latencylab.model.trace import I64, Bool, Table


@dataclass(frozen=True, slots=True, eq=False)
class WorkBoxes(Table):
    """GPU work but for the step's collectives, all streams in one lane: where ops overlap the earlier one
    has the time."""

    name: I64
    kernel_class: I64  # row of names


@dataclass(frozen=True, slots=True, eq=False)
class ArrivalBoxes(Table):
    """A rank's collectives, from its arrival to its end."""

    wait: I64  # ns from its start on that were waiting for the last rank
    collective: I64  # row of `RankTimeline.collectives`


@dataclass(frozen=True, slots=True, eq=False)
class SharedCollectives(Table):
    """The step's collectives as all ranks together saw them, from the first arrival to the last end.

    `spread` of arrivals in ns; from `least` on it is `resolved`, and `sure` where causality alone, without
    the fit of the clocks, says that the first was there before the last. `blocking`: nobody can leave before
    the last arrives.
    """

    kind: I64  # row of names
    last: I64  # place of the last rank to arrive among the lanes, or -1
    spread: I64
    least: I64
    resolved: Bool
    sure: Bool
    blocking: Bool
    cause: I64  # row of names: the largest of the causes why the last was late
    cause_ns: I64


@dataclass(frozen=True, slots=True, eq=False)
class RankLane:
    """What one rank did in the step that it shares with the reference's. `start`..`end` is that step on its
    GPU, `residual` the precision of its clock in ns, -1 where nothing is known of it. Of the gaps `op` is -1:
    the op is not drawn."""

    rank: int
    step: int
    start: int
    end: int
    residual: int
    legs: LegBoxes
    work: WorkBoxes
    gaps: GapBoxes
    arrivals: ArrivalBoxes


@dataclass(frozen=True, slots=True, eq=False)
class RankTimeline:
    """The lanes of the ranks, the reference's first; `start`..`end` is the reference's step."""

    kind: str
    start: int
    end: int
    names: tuple[str, ...]
    lanes: tuple[RankLane, ...]
    collectives: SharedCollectives
