"""What the hooks do: open spans, write rows of the step clock, and put faults where they belong.

Every hook is an AROUND hook, `fn(original, *args, **kwargs)`, and passes through while nothing records; those
within steps are not even in place then (`hooks.Details`). All of them run on the scheduler's thread alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from latencylab.runtime.faults import Injector
from latencylab.runtime.gpu_clock import GpuClock
from latencylab.runtime.spans import Tracer
from latencylab.runtime.step_clock import MISSING, PROBE_EVERY, StepRing
from latencylab.runtime.waits import Waits

if TYPE_CHECKING:
    from latencylab.runtime.hooks import Details

Original = Callable[..., Any]
POLL_NS = 20_000_000  # how often an idle scheduler looks for a command
REFERENCE_NS = 50_000_000  # how often an idle scheduler ties the GPU's clock to the host's
PREFILL, MIXED, OTHER = "prefill", "mixed", "step"
_MODES = {"EXTEND": PREFILL, "SPLIT_PREFILL": PREFILL, "MIXED": MIXED}

_now = time.perf_counter_ns
_cpu = time.thread_time_ns


class Recorder:
    """The hooks of one scheduler process, and what they share.

    `decoding` is the word for its decode steps: decode, NEXTN, DSpark. Nothing is recorded before `go_live`,
    which comes after all graphs were captured, nor while a graph is captured later.
    """

    def __init__(
        self, ring: StepRing, tracer: Tracer, injector: Injector, *, decoding: str, clock: bool
    ) -> None:
        self.ring = ring
        self.tracer = tracer
        self.injector = injector
        self.gpu: GpuClock | None = None
        self.waits: Waits | None = None
        self.poll: Callable[[], None] | None = None
        self.details: Details | None = None
        self.live = False
        self._clock = clock
        self._capturing = 0
        self._decoding = decoding
        self._kinds = {mode: (kind, ring.intern(kind)) for mode, kind in _MODES.items()}
        self._kinds["DECODE"] = (decoding, ring.intern(decoding))
        self._other = (OTHER, ring.intern(OTHER))
        self._kind = ""
        self._rid: Any = None
        self._turn_step = MISSING
        self._request = MISSING
        self._first_leg = False
        self._leg = ""
        self._idle: tuple[int, Any] | None = None
        self._next_poll = self._next_reference = self._next_probe = 0
        self._thread = 0
        self._gc: tuple[int, Any] | None = None
        self._step_span, self._idle_span, self._gc_span = map(ring.intern, ("ll.step", "ll.idle", "ll.gc"))
        self._receive, self._result, self._publish = map(
            self.span, ("ll.receive", "ll.process_result", "ll.publish")
        )

    # Switching on and off

    def go_live(self) -> None:
        """From here on the scheduler serves; called on its thread."""
        self._thread = threading.get_ident()
        self.live = True
        self._update()

    def switch_clock(self, on: bool) -> None:
        """Run the clock or not; once a profiler was on it never runs again."""
        self._clock = on
        self._update()

    def profiler_starts(self) -> None:
        """What follows is no longer unprofiled, even after the profiler has stopped."""
        if self.live and not self.ring.stopped_by:
            self.ring.stopped_by = "profiler"
            self._update()

    def profiler_runs(self, running: bool) -> None:
        """A torch profiler has started, or is about to stop."""
        if not self.live:
            return
        self.tracer.profile(running)
        if self.waits is not None:
            if self.tracer.profiling:
                self.waits.install_marks()
            else:
                self.waits.remove_marks()
        self._update()
        self._switch_details()

    def _switch_details(self) -> None:
        """Have the hooks within steps in place where anybody needs them."""
        wanted = self.ring.detail or self.tracer.on or self.injector.in_steps
        if self.details is not None and self.details.on != wanted:
            self.details.switch(wanted)

    def capture(self, more: int) -> None:
        """A capture of a graph begins (1) or has ended (-1)."""
        self._capturing += more
        self._update()

    @property
    def phase(self) -> str:
        """The leg under way, else what kind of step it is."""
        return self._leg or self._kind

    def on_thread(self) -> bool:
        """Whether this is the scheduler's thread, once it serves."""
        return self.live and threading.get_ident() == self._thread

    def _update(self) -> None:
        allowed = self.live and not self._capturing
        self.ring.switch(allowed and self._clock and not self.ring.stopped_by)
        self.tracer.update(allowed)

    # Hooks of the scheduler

    def run_batch(self, original: Original, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """`Scheduler.run_batch`: the step itself."""
        if not self.live:
            return original(scheduler, batch, *args, **kwargs)
        entered = _now()
        ring, tracer = self.ring, self.tracer
        if self._capturing:  # no capture spans two steps: one has failed on its way
            self.capture(-self._capturing)
        self._first_leg = True
        self._kind, kind = self._kinds.get(batch.forward_mode.name, self._other)
        if self._kind in (PREFILL, MIXED):
            self._count_request(batch)
        ring.begin_step(kind, self._request)
        recording, opened, ticket, cpu = ring.on, None, MISSING, 0
        if recording:
            if self.gpu is not None:
                ticket = self.gpu.record()
            cpu = _cpu()
        if tracer.on:
            opened = tracer.push(f"ll.step[{self._kind}]", ring.step, f"ll.step[{ring.step} {self._kind}]")
        started = _now()
        try:
            return original(scheduler, batch, *args, **kwargs)
        finally:
            ended = _now()
            if opened is not None:
                tracer.pop(opened)
            if recording and ring.on:  # a profiler that started within the step spoils it
                ring.append_full(self._step_span, started, ended, MISSING, _cpu() - cpu, ticket)
                ring.keep()
                if ring.measuring:
                    ring.own_ns += _now() - ended + started - entered

    def _count_request(self, batch: Any) -> None:
        """A request may be prefilled in several chunks: it is a new one where its id is."""
        rid = batch.reqs[0].rid if batch.reqs else None
        if rid is None or rid != self._rid:
            self._rid = rid
            self._request += 1

    def receive(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        """`SchedulerRequestReceiver.recv_requests`: the first thing in each turn of the loop.

        While idle it is called without pause, so it has no span of its own then; what it brings ends the
        idle time.
        """
        if not self.live:
            return original(*args, **kwargs)
        ring = self.ring
        if ring.step != self._turn_step:
            self._turn_step = ring.step
            ring.keep()
        ring.rewind()
        ring.begin_turn()
        self._switch_details()
        if ring.on and ring.step >= self._next_probe:
            self._next_probe = ring.step + PROBE_EVERY
            ring.probe()
            ring.keep()
        if self._idle is None:
            return self._receive(original, *args, **kwargs)
        received = original(*args, **kwargs)
        if received:
            self._end_idle(*self._idle)
        return received

    def process_result(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        """`Scheduler.process_batch_result`."""
        result = self._result(original, *args, **kwargs)
        if self.ring.on:
            self.ring.keep()
        return result

    def on_idle(self, original: Original, scheduler: Any) -> Any:
        """`Scheduler.on_idle`: called without pause while there is nothing to do."""
        if not self.live:
            return original(scheduler)
        if self._idle is None:
            self._idle = (
                _now(),
                self.tracer.push("ll.idle", self.ring.step) if self.tracer.on else None,
            )
            self._next_reference = 0
        result = original(scheduler)
        now = _now()
        if self.ring.on and self.gpu is not None and now >= self._next_reference:
            self.gpu.reference()
            self._next_reference = _now() + REFERENCE_NS
        if self.poll is not None and now >= self._next_poll:
            self.poll()
            self._next_poll = _now() + POLL_NS
        return result

    def _end_idle(self, started: int, opened: Any) -> None:
        self._idle = None
        if opened is not None:
            self.tracer.pop(opened)
        if self.ring.on:
            self.ring.append(self._idle_span, started, _now())
            self.ring.keep()

    def profile_predicate(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        """`SchedulerProfilerManager._profile_batch_predicate`: called by every `run_batch` at its start."""
        result = original(*args, **kwargs)
        if self.live:
            self.injector.in_run_batch(self.ring.step)
        return result

    def publish(
        self,
        original: Original,
        future_map: Any,
        future_indices: Any,
        new_seq_lens: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """`FutureMap.publish`, on the stream that runs the model."""
        result = self._publish(original, future_map, future_indices, new_seq_lens, *args, **kwargs)
        if self.live:
            self.injector.after_publish(new_seq_lens)
        return result

    # Hooks of the workers

    def span(self, name: str) -> Callable[..., Any]:
        """A hook that only measures."""
        ring, tracer = self.ring, self.tracer
        span = ring.intern(name)

        def hook(original: Original, *args: Any, **kwargs: Any) -> Any:
            recording = ring.detail
            if not (recording or tracer.on) or self._idle is not None:
                return original(*args, **kwargs)
            opened = tracer.push(name, ring.step) if tracer.on else None
            started = _now()
            try:
                return original(*args, **kwargs)
            finally:
                ended = _now()
                if opened is not None:
                    tracer.pop(opened)
                if recording:
                    ring.append(span, started, ended)
                    if ring.measuring:
                        ring.own_ns += _now() - ended

        return hook

    def leg(self, name: str, *, only_decoding: bool = False) -> Callable[..., Any]:
        """A hook of a leg: `only_decoding` where the hooked function also runs prefills."""
        message, ring, tracer = f"ll.{name}", self.ring, self.tracer
        span = ring.intern(message)

        def hook(original: Original, *args: Any, **kwargs: Any) -> Any:
            if not self.live:
                return original(*args, **kwargs)
            if self._first_leg:
                self._first_leg = False
                self.injector.before_first_leg()
            if not (ring.detail or tracer.on) or (only_decoding and self._kind != self._decoding):
                return original(*args, **kwargs)
            entered = _now()
            recording, opened, ticket = ring.detail, None, MISSING
            outer, self._leg = self._leg, name
            if recording and self.gpu is not None:
                ticket = self.gpu.record()
            if tracer.on:
                opened = tracer.push(message, ring.step)
            started = _now()
            try:
                return original(*args, **kwargs)
            finally:
                ended = _now()
                self._leg = outer
                if opened is not None:
                    tracer.pop(opened)
                if recording:
                    ring.append_full(span, started, ended, ticket=ticket)
                    if ring.measuring:
                        ring.own_ns += _now() - ended + started - entered

        return hook

    # Beside the hooks

    def on_gc(self, phase: str, info: Mapping[str, int]) -> None:
        """One of `gc.callbacks`; collections on other threads hold the GIL too, but are theirs."""
        ring, tracer = self.ring, self.tracer
        if not (ring.on or tracer.on) or threading.get_ident() != self._thread:
            return
        if phase == "start":
            message = f"ll.gc[{info['generation']}]"
            self._gc = (_now(), tracer.push(message, ring.step) if tracer.on else None)
        elif self._gc is not None:
            started, opened = self._gc
            self._gc = None
            if opened is not None:
                tracer.pop(opened)
            if ring.on:
                ring.append(self._gc_span, started, _now())
