"""Calls that block the host, and calls that order streams: measured, and marked in traces.

Where the clock or spans are asked for, the blocking calls of `torch.cuda` are wrapped while the engine
serves, and record while either runs. While a torch profiler runs, recording an event and making a stream wait
for one are wrapped too: every recording has a number of its own,
which stands in the name of its span and of each wait for it, for the trace itself says neither event nor
stream. The number of a stream is the one that CUPTI writes into traces (`cuStreamGetId`).

Not wrapped are `Tensor.to("cpu")`, which is called too often for other ends, and `int` and `bool` of a
tensor. Under the overlap scheduler, which all presets have, a decode step of SGLang 0.5.23 calls none of them
on a tensor of the device: it waits for an event or a stream, and then reads host tensors. Without overlap
(`Scheduler.run_batch`, DSpark's budget), with pipeline stages, or while DSpark's confidence is collected, a
step has a blocking `.to("cpu")`: its wait is part of the spans around it and has no row of its own. The trace
shows such calls to calibration, which then reads the host's speed from how long the steps' spans last.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

from latencylab.runtime.spans import Tracer
from latencylab.runtime.step_clock import MISSING, StepRing

_NUMBER = "_latencylab_event"  # the attribute of an event that holds the number of its newest recording
_ABSENT = object()

Done = Callable[..., bool]
Describe = Callable[..., str]


class Patches:
    """Attributes replaced for a while."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._before)

    def put(self, owner: Any, name: str, value: Any) -> None:
        self._before.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def restore(self) -> None:
        """Put everything back, the newest first; what its owner only inherited is removed."""
        while self._before:
            owner, name, before = self._before.pop()
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


class Waits:
    """Wraps what blocks and what orders streams, for one thread: the one that creates it."""

    def __init__(self, torch: Any, ring: StepRing, tracer: Tracer) -> None:
        self._torch = torch
        self._ring = ring
        self._tracer = tracer
        self._thread = threading.get_ident()
        self._waits = Patches()
        self._marks = Patches()
        self._recordings = 0
        self._stream_ids: dict[int, int] = {}
        self._get_id = _stream_get_id()

    def install_waits(self) -> None:
        """Wrap the blocking calls."""
        if self._waits:
            return
        cuda, tensor = self._torch.cuda, self._torch.Tensor
        event, stream = cuda.Event, cuda.Stream
        self._block(event, "synchronize", "event_synchronize", event.query, self._of_event)
        self._block(stream, "synchronize", "stream_synchronize", stream.query, self._of_stream)
        self._block(cuda, "synchronize", "device_synchronize", None, self._of_step)
        for name in ("item", "tolist", "cpu"):
            self._block(tensor, name, name, self._stream_is_done, self._of_step, lambda read: read.is_cuda)

    def install_marks(self) -> None:
        """Wrap the calls that record events and make streams wait for them."""
        if self._marks:
            return
        event = self._torch.cuda.Event
        record, wait = event.record, event.wait

        def marked_record(self_: Any, stream: Any = None) -> Any:
            if not self._here(self._tracer.profiling):
                return record(self_, stream)
            self._recordings += 1
            setattr(self_, _NUMBER, self._recordings)
            return self._marked("ll.event_record", record, self_, stream)

        def marked_wait(self_: Any, stream: Any = None) -> Any:
            if not self._here(self._tracer.profiling):
                return wait(self_, stream)
            return self._marked("ll.stream_wait", wait, self_, stream)

        self._marks.put(event, "record", marked_record)
        self._marks.put(event, "wait", marked_wait)

    def remove_marks(self) -> None:
        self._marks.restore()

    def remove(self) -> None:
        self._marks.restore()
        self._waits.restore()

    def _here(self, wanted: bool) -> bool:
        return wanted and self._tracer.on and threading.get_ident() == self._thread

    def _marked(self, message: str, original: Callable[..., Any], event: Any, stream: Any) -> Any:
        if stream is None:
            stream = self._torch.cuda.current_stream()
        step = self._ring.step
        name = f"{message}[event={_number(event)} stream={self._stream_id(stream)} step={step}]"
        opened = self._tracer.push(message, step, name)
        try:
            return original(event, stream)
        finally:
            self._tracer.pop(opened)

    def _block(
        self,
        owner: Any,
        attribute: str,
        name: str,
        done: Done | None,
        describe: Describe,
        applies: Callable[[Any], bool] | None = None,
    ) -> None:
        """Wrap one blocking call. `done` tells beforehand whether there is anything to wait for."""
        original: Callable[..., Any] = getattr(owner, attribute)
        ring, tracer, thread = self._ring, self._tracer, self._thread
        message = f"ll.wait.{name}"
        span = ring.intern(message)
        now, ident = time.perf_counter_ns, threading.get_ident

        def waiting(*args: Any, **kwargs: Any) -> Any:
            recording = ring.on
            if not (recording or tracer.on) or ident() != thread or (applies and not applies(args[0])):
                return original(*args, **kwargs)
            entered = now()
            opened = tracer.push(message, ring.step, message + describe(*args)) if tracer.on else None
            waits = not done(*args) if recording and done else None
            started = now()
            try:
                return original(*args, **kwargs)
            finally:
                ended = now()
                if opened is not None:
                    tracer.pop(opened)
                if recording:
                    blocked = MISSING if waits is None else ended - started if waits else 0
                    ring.append_full(span, started, ended, blocked)
                    if ring.measuring:
                        ring.own_ns += now() - ended + started - entered

        self._waits.put(owner, attribute, waiting)

    def _of_event(self, event: Any) -> str:
        return f"[event={_number(event)} step={self._ring.step}]"

    def _of_stream(self, stream: Any) -> str:
        return f"[stream={self._stream_id(stream)} step={self._ring.step}]"

    def _of_step(self, *_: Any) -> str:
        return f"[step={self._ring.step}]"

    def _stream_is_done(self, _tensor: Any) -> bool:
        return bool(self._torch.cuda.current_stream().query())

    def _stream_id(self, stream: Any) -> int:
        """The stream's number in a trace, or -1 where the driver does not say."""
        handle = int(stream.cuda_stream)
        found = self._stream_ids.get(handle)
        if found is None:
            found = self._stream_ids[handle] = self._get_id(handle)
        return found


def _number(event: Any) -> int:
    """The number of an event's newest recording, or -1 where it was recorded before the marks were on."""
    return int(getattr(event, _NUMBER, MISSING))


def _stream_get_id() -> Callable[[int], int]:
    """The driver's `cuStreamGetId` (CUDA 12.0 and newer), else a function that knows no stream."""
    try:
        function = ctypes.CDLL("libcuda.so.1").cuStreamGetId
    except (OSError, AttributeError):
        return lambda _handle: MISSING
    function.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_ulonglong)]
    function.restype = ctypes.c_int

    def ask(handle: int) -> int:
        found = ctypes.c_ulonglong()
        return int(found.value) if function(handle, ctypes.byref(found)) == 0 else MISSING

    return ask
