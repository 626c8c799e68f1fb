"""Everything that happened in one step, laid out to be drawn: host threads, GPU streams, idle and links.

Times are absolute int64 nanoseconds. Names are rows of `Timeline.names`; a missing row is -1. A `lane` counts
from 0 within its thread or stream; no two boxes of one lane overlap.
"""

from __future__ import annotations

from dataclasses import dataclass

from latencylab.model.trace import I64, Bool, Table

CAUSES = ("in_graph", "dispatch", "launch_latency", "host", "unknown")  # of a gap, by its number


@dataclass(frozen=True, slots=True, eq=False)
class HostBoxes(Table):
    """Spans or framework ops of the drawn threads."""

    thread: I64  # row of `Timeline.threads`
    lane: I64
    name: I64


@dataclass(frozen=True, slots=True, eq=False)
class CallBoxes(Table):
    """API calls of the drawn threads, and the calls that launched the step's ops, wherever they lie."""

    thread: I64
    lane: I64
    name: I64
    ops: I64  # GPU ops it launched


@dataclass(frozen=True, slots=True, eq=False)
class GpuBoxes(Table):
    """GPU ops; the step's `own` are those that start within it, the others neighbours' in the drawn time."""

    stream: I64  # row of `Timeline.streams`
    lane: I64
    name: I64
    kernel_class: I64  # row of names
    call: I64  # that launched it, a row of the call boxes
    linked: Bool  # first op of a leg, or ends a gap in which the GPU waited for the host
    own: Bool


@dataclass(frozen=True, slots=True, eq=False)
class GapBoxes(Table):
    """Idle of the GPU in disjoint pieces. `doing` and `blame` are labels as in the shares of a step (rows of
    names; of host gaps alone); `owed`: the blame is a blocking call's site."""

    cause: I64
    in_launch: Bool
    doing: I64
    blame: I64
    owed: Bool
    op: I64  # that ended it, a row of the GPU boxes
    own: Bool


@dataclass(frozen=True, slots=True, eq=False)
class LegBoxes(Table):
    """Legs on the GPU."""

    name: I64
    own: Bool


@dataclass(frozen=True, slots=True, eq=False)
class WaitBoxes(Table):
    """Blocking calls, a polling loop as one."""

    thread: I64
    site: I64  # row of names
    waits_for: I64  # row of names
    blocked: I64  # ns until the op waited for was done


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """One step. `start`..`end` is the step on the GPU; drawn is `first`..`last`, its host's interval too."""

    step: int
    start: int
    end: int
    first: int
    last: int
    names: tuple[str, ...]
    threads: tuple[str, ...]
    streams: tuple[int, ...]
    spans: HostBoxes
    ops: HostBoxes
    calls: CallBoxes
    gpu: GpuBoxes
    gaps: GapBoxes
    legs: LegBoxes
    waits: WaitBoxes
