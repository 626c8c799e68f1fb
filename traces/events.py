"""One event of a Kineto trace, as far as it is read, and what its category means."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from latencylab.model.trace import KERNEL, MEMCPY, MEMSET

ABSENT = Raw(b"")
NO_STREAM = -2


class Args(
    msgspec.Struct,
    gc=False,
    frozen=True,
    rename={
        "graph_node": "graph node id",
        "dims": "Input Dims",
        "wait_stream": "wait_on_stream",
        "wait_record": "wait_on_cuda_event_record_corr_id",
        "group": "Process Group Name",
        "elements": "In msg nelems",
    },
):
    """The arguments that are read; -1, "" or ABSENT where missing.

    A missing stream is `NO_STREAM`, for Kineto writes -1 where a wait is on none, and the two must be told
    apart: fields are counted to find damage.
    """

    device: int = -1
    stream: int = NO_STREAM
    correlation: int = -1
    bytes: int = -1
    graph_node: int = -1
    wait_stream: int = -1
    wait_record: int = -1
    group: str = ""
    elements: int = -1
    dtype: str = ""
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
# Bytes of an element, by PyTorch's names of types.
DTYPE_BYTES = {
    **dict.fromkeys(("Bool", "Byte", "Char", "QInt8", "QUInt8"), 1),
    **dict.fromkeys(("Float8_e4m3fn", "Float8_e4m3fnuz", "Float8_e5m2", "Float8_e5m2fnuz"), 1),
    **dict.fromkeys(("Float8_e8m0fnu", "Float4_e2m1fn_x2"), 1),
    **dict.fromkeys(("BFloat16", "Half", "Short", "UInt16"), 2),
    **dict.fromkeys(("Float", "Int", "UInt32", "QInt32", "ComplexHalf"), 4),
    **dict.fromkeys(("Double", "Long", "UInt64", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
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
