"""What host threads do: the vocabulary of simulated programs. All durations are ns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KERNEL, MEMCPY, MEMSET = 0, 1, 2

Direction = Literal["DtoH", "HtoD", "DtoD"]
Memory = Literal["Pinned", "Pageable", "Device"]

MAIN_STREAM = 7
GC_NAME = "Python GC"
BASE_NS = 1_775_078_550_000_000_000
ORIGIN_NS = 4_909_914_216_204_635


class Action:
    """One thing a host thread does next."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Python(Action):
    """Time nobody traces: Python code, or anything that leaves no event."""

    dur: int


@dataclass(frozen=True, slots=True)
class Span(Action):
    """A named range around its body (`user_annotation`)."""

    name: str
    body: tuple[Action, ...] = ()


@dataclass(frozen=True, slots=True)
class FrameworkOp(Action):
    """A framework operator around its body (`cpu_op`)."""

    name: str
    body: tuple[Action, ...] = ()


@dataclass(frozen=True, slots=True)
class Gc(Action):
    """A garbage collection of the interpreter, which leaves a span of its own."""

    dur: int


@dataclass(frozen=True, slots=True)
class Overhead(Action):
    """Profiler buffer work on this thread: an `overhead` row and nothing else of the thread within it."""

    dur: int
    name: str = "Activity Buffer Request"


@dataclass(frozen=True, slots=True)
class Api(Action):
    """An API call that enqueues nothing and waits for nothing."""

    name: str
    dur: int


@dataclass(frozen=True, slots=True)
class Launch(Action):
    """A kernel (or memset) on `stream`, enqueued when its call returns.

    It starts at max(return of the call + `latency`, running end of its stream + `gap`, events its stream
    waits for). A negative `latency` lets it start within its call, not before the call; a negative `gap` is
    PDL: it may overlap its predecessor by so much, but never starts before it. `lost` leaves the call out
    of the trace; `overhead` is profiler work of so many ns amid the call, which lasts
    so much longer.
    """

    dur: int
    stream: int = MAIN_STREAM
    name: str = "kernel"
    call_dur: int = 3_000
    latency: int = 1_000
    gap: int = 0
    kind: int = KERNEL
    bytes: int = -1
    api: str = "cudaLaunchKernel"
    lost: bool = False
    overhead: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """One op of a graph: starts `gap` after the node it depends on (negative: PDL overlap).

    `after` is the index of that node, by default the one before. `stream` defaults to the launch's own.
    """

    dur: int
    gap: int = 0
    name: str = "node"
    stream: int | None = None
    after: int | None = None
    kind: int = KERNEL
    bytes: int = -1


@dataclass(frozen=True, slots=True)
class GraphLaunch(Action):
    """A CUDA graph replay: one call, one correlation id, many ops. The stream is free after all nodes."""

    nodes: tuple[Node, ...]
    stream: int = MAIN_STREAM
    call_dur: int = 8_000
    latency: int = 1_000
    api: str = "cudaGraphLaunch"
    lost: bool = False
    overhead: int = 0


@dataclass(frozen=True, slots=True)
class Copy(Action):
    """A memcpy. It blocks where `blocking` (cudaMemcpy) or where it reads to pageable host memory.

    A blocking copy is enqueued `call_dur` after its call starts; the call returns `return_delay` after the
    copy has ended. Any other is a launch as all others are.
    """

    direction: Direction = "DtoH"
    bytes: int = 16
    memory: Memory = "Pinned"
    dur: int = 1_500
    stream: int = MAIN_STREAM
    call_dur: int = 4_000
    latency: int = 1_000
    gap: int = 0
    blocking: bool = False
    return_delay: int = 2_000
    lost: bool = False

    @property
    def waits(self) -> bool:
        return self.blocking or (self.direction == "DtoH" and self.memory == "Pageable")

    @property
    def op_name(self) -> str:
        source, target = ("Device", "Device") if self.direction == "DtoD" else (self.memory, "Device")
        if self.direction == "DtoH":
            source, target = "Device", self.memory
        return f"Memcpy {self.direction} ({source} -> {target})"


@dataclass(frozen=True, slots=True)
class EventRecord(Action):
    """Marks what is enqueued on `stream` when the call returns."""

    event: str
    stream: int = MAIN_STREAM
    dur: int = 1_000
    api: str = "cudaEventRecord"


@dataclass(frozen=True, slots=True)
class StreamWait(Action):
    """Later ops of `stream` start after what the event marks. An event never recorded holds nobody."""

    event: str
    stream: int = MAIN_STREAM
    dur: int = 1_000


@dataclass(frozen=True, slots=True)
class StreamSync(Action):
    """Returns at max(start + `dur`, end of all enqueued on the stream before it + `return_delay`)."""

    stream: int = MAIN_STREAM
    dur: int = 3_000
    return_delay: int = 2_000


@dataclass(frozen=True, slots=True)
class EventSync(Action):
    """Returns at max(start + `dur`, end of what the event marks + `return_delay`)."""

    event: str
    dur: int = 3_000
    return_delay: int = 2_000


@dataclass(frozen=True, slots=True)
class DeviceSync(Action):
    """Waits for all enqueued on all streams before it; with another `api` (cudaFree) it stands for that."""

    dur: int = 3_000
    return_delay: int = 2_000
    api: str = "cudaDeviceSynchronize"


@dataclass(frozen=True, slots=True)
class EventQueryLoop(Action):
    """Calls cudaEventQuery, with `pause` of Python between, until the event is complete."""

    event: str
    dur: int = 1_000
    pause: int = 500


@dataclass(frozen=True, slots=True)
class Program:
    """All that one host thread does, from `start` ns after the origin."""

    actions: tuple[Action, ...]
    tid: int = 100
    start: int = 0
    name: str = "python"


@dataclass(frozen=True, slots=True)
class Scenario:
    """Threads of one process on one device, and how the trace of them is written.

    `background` holds (start, duration) of profiler work on no thread of the programs, in ns after the
    origin. `sync_records` writes `cuda_sync` rows. `kinds` is the kind of each step, where a builder knew.
    """

    programs: tuple[Program, ...]
    rank: int = 0
    world_size: int = 1
    device: int = 0
    pid: int = 100
    base: int = BASE_NS
    origin: int = ORIGIN_NS
    background: tuple[tuple[int, int], ...] = ()
    sync_records: bool = False
    kinds: tuple[str, ...] = ()
