"""One event of a Kineto trace, as far as it is read, and what its category means."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from latencylab.model.trace import KERNEL, MEMCPY, MEMSET

ABSENT = Raw(b"")


class Args(
    msgspec.Struct,
    gc=False,
    frozen=True,
    rename={
        "graph_node": "graph node id",
        "dims": "Input Dims",
        "wait_stream": "wait_on_stream",
        "wait_record": "wait_on_cuda_event_record_corr_id",
    },
):
    """The arguments that are read; -1 or ABSENT where missing."""

    device: int = -1
    stream: int = -1
    correlation: int = -1
    bytes: int = -1
    graph_node: int = -1
    wait_stream: int = -1
    wait_record: int = -1
    dims: Raw = ABSENT
    name: Raw = ABSENT


NO_ARGS = Args()


class Event(msgspec.Struct, gc=False):
    """`ts` and `dur` stay text: a double cannot hold ns since the epoch."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: Raw = ABSENT
    dur: Raw = ABSENT
    args: Args = NO_ARGS


# Keys that decide where an event stands; twice in one event, they tell that text is missing.
KEYS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "device", "stream", "correlation")

# Category, in lower case, to the table it fills. Legacy names are those of Kineto before 2022.
GPU = {
    "kernel": KERNEL,
    "gpu_memcpy": MEMCPY,
    "memcpy": MEMCPY,
    "gpu_memset": MEMSET,
    "memset": MEMSET,
}
API = {"cuda_runtime", "cuda_driver", "runtime", "driver", "hip_runtime", "hip_driver"}
OPS = {"cpu_op", "operator"}
SPANS = {"user_annotation"}
FRAMES = {"python_function", "python"}
SYNC = "cuda_sync"
OVERHEAD = "overhead"
PROFILER = "trace"  # the profiler's own record
WORK = {*GPU, *API, *OPS, *SPANS, *FRAMES, SYNC, OVERHEAD}
# Rows that say nothing about time on host or GPU: flows, markers, and annotations widened over GPU work.
IGNORED = {
    "ac2g",
    "async_cpu_to_gpu",
    "async_gpu",
    "collective_comm",
    "cpu_instant_event",
    "cuda_event",
    "cuda_profiler_range",
    "external_correlation",
    "fwdbwd",
    "gpu_pm_counter",
    "gpu_user_annotation",
}
