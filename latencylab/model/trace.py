"""The columnar trace of one rank on one device: what readers make and analyzers read.

Times are absolute int64 nanoseconds. Every table is a frozen set of equally long numpy columns; names
are indices into `Trace.names`, threads into `Trace.threads`. A missing integer is -1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import Self

import numpy as np
import numpy.typing as npt

from latencylab.model.integrity import Issue

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]
Bool = npt.NDArray[np.bool_]

MISSING = -1
KERNEL, MEMCPY, MEMSET = 0, 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Columns of one length, starting with `start` and `end` in ns."""

    start: I64
    end: I64

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: I64 | Bool | slice) -> Self:
        """The same table with only these rows, in this order."""
        return type(self)(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


@dataclass(frozen=True, slots=True, eq=False)
class GpuOps(Table):
    """Kernels, copies and memsets, sorted by (start, stream, correlation, graph_node)."""

    stream: I64
    correlation: I64  # of the API call that enqueued it
    kind: U8  # KERNEL, MEMCPY or MEMSET
    name: I32
    bytes: I64  # of a copy or memset, or the message that a rank puts into a collective
    graph_node: I64
    group: I32  # the name of the process group that a collective kernel says it is of


@dataclass(frozen=True, slots=True, eq=False)
class ApiCalls(Table):
    """CUDA or HIP runtime and driver calls, sorted by (start, -end)."""

    thread: I32
    correlation: I64
    name: I32


@dataclass(frozen=True, slots=True, eq=False)
class HostEvents(Table):
    """Framework ops, spans or Python frames, sorted by (start, -end)."""

    thread: I32
    name: I32


@dataclass(frozen=True, slots=True, eq=False)
class SyncRecords(Table):
    """CUPTI's own synchronization records (Kineto's `cuda_sync` rows): what a wait waited for."""

    correlation: I64  # of the API call that waited
    stream: I64  # waited for; -1 for the whole device
    record_correlation: I64  # of the call that recorded the event waited for
    name: I32


@dataclass(frozen=True, slots=True, eq=False)
class Overhead(Table):
    """The profiler's own work, on no thread in particular."""

    name: I32


@dataclass(frozen=True, slots=True)
class Thread:
    process: str
    thread: str
    name: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One rank's events on one device, with all host threads of its process.

    `device` is -1 where the trace names none. `issues` are the repairs the reader made. `stacks` and
    `shapes` say that the profiler recorded Python stacks or tensor shapes, which slows the host.
    `window` is the (start, end) ns of the profiler's own record, or None. `groups` holds the ranks of each
    process group that this rank is known to be a member of; the names alone need not tell groups apart.
    """

    rank: int
    device: int
    names: tuple[str, ...]
    threads: tuple[Thread, ...]
    gpu: GpuOps
    api: ApiCalls
    ops: HostEvents
    spans: HostEvents
    frames: HostEvents
    syncs: SyncRecords
    overhead: Overhead
    device_name: str = ""
    world_size: int | None = None
    stacks: bool = False
    shapes: bool = False
    path: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    issues: tuple[Issue, ...] = ()
    window: tuple[int, int] | None = None
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def matching(self, pattern: re.Pattern[str]) -> Bool:
        """Which of `names` the pattern is found in; index it with a name column."""
        return np.fromiter((pattern.search(name) is not None for name in self.names), bool, len(self.names))

    def __repr__(self) -> str:
        return (
            f"Trace(rank {self.rank}, device {self.device} {self.device_name!r}: {len(self.gpu)} GPU ops,"
            f" {len(self.api)} API calls, {len(self.ops)} framework ops, {len(self.spans)} spans)"
        )
