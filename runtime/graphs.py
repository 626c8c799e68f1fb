"""The hooks of CUDA graphs: their replays, the preparation before them, and their capture."""

from __future__ import annotations

import time
from typing import Any

from latencylab.runtime.recorder import Original, Recorder

_now = time.perf_counter_ns
METADATA, OTHER = "metadata", "other"


class GraphHooks:
    """Names each replay after its leg; a replay during the preparation is the metadata graph's."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._ring, self._tracer = recorder.ring, recorder.tracer
        self._prepare_span = self._ring.intern("ll.prepare")
        self._preparing: tuple[int, Any] | None = None
        self._in_replay = False

    def prepare(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        """`DecodeCudaGraphRunner.load_batch`, and `execute` of the draft runners, which load and replay in
        one: the first replay of a backend within it ends the preparation.
        """
        ring, tracer = self._ring, self._tracer
        if not (ring.detail or tracer.on):
            return original(*args, **kwargs)
        opened = tracer.push("ll.prepare", ring.step) if tracer.on else None
        self._preparing = (_now(), opened)
        try:
            return original(*args, **kwargs)
        finally:
            self._end_preparation()

    def _end_preparation(self) -> None:
        if self._preparing is None:
            return
        ended = _now()
        started, opened = self._preparing
        self._preparing = None
        if opened is not None:
            self._tracer.pop(opened)
        if self._ring.detail:
            self._ring.append(self._prepare_span, started, ended)
            if self._ring.measuring:
                self._ring.own_ns += _now() - ended

    def backend_replay(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        """`FullCudaGraphBackend.replay`: a leg's graph, or a prefill's."""
        if not (self._ring.detail or self._tracer.on):
            return original(*args, **kwargs)
        self._end_preparation()
        return self._replay(self._recorder.phase or OTHER, original, args, kwargs)

    def graph_replay(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        """`torch.cuda.CUDAGraph.replay`: those that no backend replays, such as the metadata graph."""
        if self._in_replay or not (self._ring.detail or self._tracer.on) or not self._recorder.on_thread():
            return original(*args, **kwargs)
        return self._replay(METADATA if self._preparing else OTHER, original, args, kwargs)

    def _replay(self, name: str, original: Original, args: Any, kwargs: Any) -> Any:
        ring, tracer = self._ring, self._tracer
        entered = _now()
        recording = ring.detail
        opened = tracer.push(f"ll.replay[{name}]", ring.step) if tracer.on else None
        self._in_replay = True
        started = _now()
        try:
            return original(*args, **kwargs)
        finally:
            ended = _now()
            self._in_replay = False
            if opened is not None:
                tracer.pop(opened)
            if recording:
                ring.append(ring.intern(f"ll.replay.{name}"), started, ended)
                if ring.measuring:
                    ring.own_ns += _now() - ended + started - entered

    def capture_begin(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        """`torch.cuda.CUDAGraph.capture_begin`: from here to `capture_end` nothing is recorded."""
        self._recorder.capture(1)
        try:
            return original(*args, **kwargs)
        except BaseException:
            self._recorder.capture(-1)
            raise

    def capture_end(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        """`torch.cuda.CUDAGraph.capture_end`."""
        try:
            return original(*args, **kwargs)
        finally:
            self._recorder.capture(-1)
