"""A fake torch with one GPU: streams that are busy until a time of the host's clock, events, graphs.

The GPU's own clock may run faster or slower than the host's by `drift` (0.001 is 1 ms in a second).
"""

from __future__ import annotations

import itertools
import time
import types
from typing import Any, ClassVar

import numpy as np


class Gpu:
    """What the fake device did: every call that could be seen in a trace, in order."""

    def __init__(self, drift: float = 0.0) -> None:
        self.drift = drift
        self.calls: list[str] = []
        self.current: Any = None
        self.capturing = False
        self.slept_us: list[float] = []
        self.reached: list[int] = []  # when each recorded event was or will be reached


def wait_until(at_ns: int) -> None:
    while time.perf_counter_ns() < at_ns:
        pass


def make_torch(gpu: Gpu) -> types.ModuleType:  # noqa: C901  # many small classes share the one device
    """A module that has what the plugin uses of torch."""
    handles = itertools.count(0x10)

    class Stream:
        def __init__(self) -> None:
            self.cuda_stream = next(handles)
            self.busy_until = 0

        def work(self, us: float) -> None:
            self.busy_until = max(self.busy_until, time.perf_counter_ns()) + round(us * 1000)

        def query(self) -> bool:
            assert not gpu.capturing, "asking a stream during a capture breaks the capture"
            return time.perf_counter_ns() >= self.busy_until

        def synchronize(self) -> None:
            gpu.calls.append("stream.synchronize")
            wait_until(self.busy_until)

        def record_event(self, event: Any = None) -> Any:
            event = event or Event()
            event.record(self)
            return event

        def wait_event(self, event: Any) -> None:
            event.wait(self)

        def wait_stream(self, stream: Any) -> None:
            self.wait_event(stream.record_event())

    class Event:
        made: ClassVar[int] = 0

        def __init__(self, enable_timing: bool = False) -> None:
            Event.made += 1
            self.timing = enable_timing
            self.at: int | None = None

        def record(self, stream: Any = None) -> None:
            assert not (gpu.capturing and self.timing), "a timing event was recorded during a capture"
            stream = stream or gpu.current
            gpu.calls.append("event.record")
            self.at = max(stream.busy_until, time.perf_counter_ns())
            gpu.reached.append(self.at)

        def wait(self, stream: Any = None) -> None:
            stream = stream or gpu.current
            gpu.calls.append("stream.wait")
            stream.busy_until = max(stream.busy_until, self.at or 0)

        def query(self) -> bool:
            assert not gpu.capturing
            return self.at is None or time.perf_counter_ns() >= self.at

        def synchronize(self) -> None:
            gpu.calls.append("event.synchronize")
            wait_until(self.at or 0)

        def elapsed_time(self, later: Any) -> float:
            assert self.timing
            assert later.timing
            assert self.at is not None
            assert later.at is not None
            assert later.query(), "the event was not reached yet: this raises in CUDA"
            return float(np.float32((later.at - self.at) * (1 + gpu.drift) / 1e6))

    class TensorBase:
        def __init__(self, values: Any, is_cuda: bool = True) -> None:
            self.values = list(values)
            self.is_cuda = is_cuda
            self.shape = (len(self.values),)

        def numel(self) -> int:
            return len(self.values)

        def view(self, *_: int) -> Any:
            return self

        def __getitem__(self, index: int) -> Any:
            return type(self)([self.values[index]], self.is_cuda)

        def item(self) -> Any:
            if self.is_cuda:
                gpu.calls.append("item")
                wait_until(gpu.current.busy_until)
            return self.values[0]

        def tolist(self) -> Any:
            return self.values

        def cpu(self) -> Any:
            return type(self)(self.values, False)

    class Tensor(TensorBase):
        pass

    class CUDAGraph:
        def __init__(self) -> None:
            self.us = 0.0

        def capture_begin(self, pool: Any = None) -> None:
            gpu.capturing = True

        def capture_end(self) -> None:
            gpu.capturing = False

        def replay(self) -> None:
            gpu.calls.append("graph.replay")
            gpu.current.work(self.us)

    class RecordFunction:
        open: ClassVar[list[str]] = []
        seen: ClassVar[list[tuple[str, int]]] = []  # name, depth

        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> Any:
            assert not gpu.capturing, "a span was opened during a capture"
            RecordFunction.seen.append((self.name, len(RecordFunction.open)))
            RecordFunction.open.append(self.name)
            return self

        def __exit__(self, *_: object) -> None:
            assert RecordFunction.open.pop() == self.name, "spans do not nest"

    class Config:
        def __init__(self, enable_cuda_sync_events: bool = False) -> None:
            self.enable_cuda_sync_events = enable_cuda_sync_events

    class Profile:
        def __init__(self, *, activities: Any = None, experimental_config: Any = None) -> None:
            self.experimental_config = experimental_config
            self.running = False

        def start(self) -> None:
            self.running = True

        def stop(self) -> None:
            assert self.running
            self.running = False

    def sleep(cycles: int) -> None:
        us = cycles / 2000  # a GPU of 2 GHz
        gpu.slept_us.append(us)
        gpu.current.work(us)

    torch = types.ModuleType("torch")
    cuda = types.ModuleType("torch.cuda")
    profiler = types.ModuleType("torch.profiler")
    gpu.current = Stream()
    for name, value in {
        "Event": Event,
        "Stream": Stream,
        "CUDAGraph": CUDAGraph,
        "current_stream": lambda: gpu.current,
        "synchronize": lambda device=None: wait_until(gpu.current.busy_until),
        "is_available": lambda: True,
        "get_device_name": lambda: "Fake H200",
        "_sleep": sleep,
    }.items():
        setattr(cuda, name, value)
    for name, value in {
        "profile": Profile,
        "record_function": RecordFunction,
        "_ExperimentalConfig": Config,
    }.items():
        setattr(profiler, name, value)
    for name, value in {"Tensor": Tensor, "cuda": cuda, "profiler": profiler}.items():
        setattr(torch, name, value)
    return torch
