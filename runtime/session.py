"""The plugin's life in one scheduler process: hooks applied and verified, the clock run and written."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from latencylab.model.integrity import InputError, OutputError
from latencylab.runtime import hooks
from latencylab.runtime.control import obeyed_path, read_control, state_path, write_json
from latencylab.runtime.faults import Injected, Injector, parse_faults
from latencylab.runtime.gpu_clock import GpuClock
from latencylab.runtime.graphs import GraphHooks
from latencylab.runtime.ledger_hooks import Installed, install_hooks
from latencylab.runtime.ledger_state import observed_state, unhooked
from latencylab.runtime.profilers import ProfilerHooks
from latencylab.runtime.recorder import Recorder
from latencylab.runtime.settings import Settings
from latencylab.runtime.spans import Domain, Tracer, nvtx_domain
from latencylab.runtime.state import describe
from latencylab.runtime.step_clock import CAPACITY, DETAIL_EVERY, DETAIL_STEPS, StepRing
from latencylab.runtime.waits import Waits
from latencylab.traces.bundle import write_clock

logger = logging.getLogger(__name__)


def measure_layers(hook: Callable[..., Any], calls: int = 2000) -> float:
    """What a call through the registry's wrapper and a hook that passes through costs more, in ns.

    A hook that records measures itself from its first line on, but neither the wrapper nor its own call.
    """

    def plain(*_args: Any) -> None:
        pass

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return hook(plain, *args, **kwargs)

    best = []
    for function in (plain, wrapped):
        times = []
        for _ in range(5):
            start = time.perf_counter_ns()
            for _ in range(calls):
                function(hook, calls)
            times.append(time.perf_counter_ns() - start)
        best.append(min(times) / calls)
    return max(0.0, best[1] - best[0])


class Session:
    """What the plugin holds in one process. Its two methods are AROUND hooks of the scheduler."""

    def __init__(self, settings: Settings) -> None:
        if settings.folder is None:
            raise ValueError("settings without a folder")
        self._settings = settings
        self._folder: Path = settings.folder
        self._rank = 0
        self._obeyed = 0
        self._nvtx = ""
        self._state: dict[str, Any] = {}
        self._ring = StepRing(CAPACITY if settings.clock else 1)

    def make_scheduler(self, original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        """`Scheduler.__init__`: apply the hooks, let it be made, and look at what is in use."""
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType
        from sglang.srt.runtime_context import get_parallel

        server_args = args[0] if args else kwargs["server_args"]
        parallel = get_parallel()
        self._rank = parallel.pp_rank * parallel.tp_size + parallel.tp_rank
        self._world = parallel.pp_size * parallel.tp_size
        self._algorithm = str(server_args.speculative_algorithm or "")
        self._mode = hooks.ALGORITHMS.get(self._algorithm.upper())
        self._injector = Injector(self._rank)
        self._targets = hooks.targets_of(self._mode or hooks.DECODE)
        before = read_control(self._folder)
        self._obeyed = before.sequence if before else 0  # a command to a server that was here before
        self._prepare_recorder()
        for target in self._targets:
            HookRegistry.register(target.path, self._hooks[target.path], HookType.AROUND)
        restored = self._restore()
        HookRegistry.apply_hooks()
        self._refuse(hooks.verify(self._targets, self._hooks))
        if missing := unhooked(restored):
            raise SystemExit(f"latencylab: refused to start: {missing[0]} could not be hooked")

        result = original(scheduler, *args, **kwargs)

        found = hooks.verify(self._targets, self._hooks, scheduler)
        self._refuse(found)
        if self._mode is None:
            found["legs"] = f"missing: the speculative algorithm {self._algorithm} has no hooks"
        if self._nvtx:
            found["nvtx"] = self._nvtx
        self._state = describe(
            rank=self._rank,
            world_size=self._world,
            hooks=found,
            server_args=server_args,
        )
        took = sum(how == hooks.TOOK for how in found.values())
        logger.info("latencylab: %d of %d hooks took on rank %d", took, len(found), self._rank)
        for path, how in found.items():
            if how != hooks.TOOK:
                logger.warning("latencylab: %s: %s", path, how)
        return result

    def run_event_loop(self, original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        """`Scheduler.run_event_loop`: everything is captured by now, and serving begins."""
        import torch

        recorder = self._recorder
        if self._settings.clock:
            # The model runs on the forward stream under overlap, else on the one that is current in the loop.
            stream = scheduler.forward_stream if scheduler.enable_overlap else scheduler.schedule_stream
            recorder.gpu = GpuClock(
                lambda: torch.cuda.Event(enable_timing=True), stream, capacity=self._ring.capacity
            )
            recorder.gpu.reference()
            self._ring.layers_ns = measure_layers(recorder.span(""))
        if self._settings.clock or self._settings.spans:
            recorder.waits = Waits(torch, self._ring, recorder.tracer)
            recorder.waits.install_waits()
            gc.callbacks.append(recorder.on_gc)
        self._switch_faults(self._settings.faults, scheduler)
        try:
            self._write_state(scheduler)
        except OutputError as error:
            self._refuse_or_warn(str(error))
        recorder.poll = lambda: self._poll(scheduler)
        recorder.details = hooks.Details(self._targets, self._hooks)
        recorder.go_live()
        try:
            return original(scheduler, *args, **kwargs)
        finally:
            self._end()

    def _prepare_recorder(self) -> None:
        record_function = None
        if "profiler" in self._settings.spans:
            import torch

            record_function = torch.profiler.record_function
        domain = self._open_nvtx() if "nvtx" in self._settings.spans else None
        self._recorder = Recorder(
            self._ring,
            Tracer(domain, record_function),
            self._injector,
            decoding=self._mode or "verify",
            clock=self._settings.clock,
        )
        self._profilers = ProfilerHooks(self._recorder, wanted=record_function is not None)
        self._hooks = hooks.make_hooks(self._recorder, GraphHooks(self._recorder), self._profilers.hooks())

    def _open_nvtx(self) -> Domain | None:
        try:
            domain = nvtx_domain()
        except ImportError as error:
            self._nvtx = f"missing: {error}"
            self._refuse_or_warn(f"nvtx: {error}")
            return None
        self._nvtx = hooks.TOOK if domain is not None else "missing: no tool listens to NVTX"
        return domain

    def _refuse_or_warn(self, why: str) -> None:
        if self._settings.strict:
            raise SystemExit(f"latencylab: refused to start: {why}")
        logger.warning("latencylab: %s", why)

    def _refuse(self, found: dict[str, str]) -> None:
        refused = hooks.refusals(self._mode, self._algorithm, found)
        if refused and self._settings.strict:
            more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
            raise SystemExit(f"latencylab: refused to start: {refused[0]}{more}")

    def _restore(self) -> tuple[Installed, ...]:
        """Install the hooks that put optimisations off; one that was asked for and cannot be is the end."""
        try:
            return install_hooks(self._settings.hooks)
        except InputError as error:
            raise SystemExit(f"latencylab: refused to start: {error}") from None

    def _poll(self, scheduler: Any) -> None:
        """Obey a new command; called while idle."""
        command = read_control(self._folder)
        if command is None or command.sequence == self._obeyed:
            return
        self._obeyed = command.sequence
        if self._settings.clock:
            self._recorder.switch_clock(command.clock)
        if command.faults is not None:
            try:
                self._switch_faults(parse_faults(command.faults), scheduler)
            except InputError as error:
                logger.warning("latencylab: %s", error)
        try:
            if command.write:
                self._write()
            self._write_state(scheduler)
            write_json(obeyed_path(self._folder, self._rank), {"sequence": self._obeyed, **self._account()})
        except OutputError as error:
            logger.warning("latencylab: %s", error)

    def _switch_faults(self, faults: Iterable[Injected], scheduler: Any) -> None:
        self._injector.switch(faults, scheduler)
        self._state["faults"] = self._injector.active

    def _write_state(self, scheduler: Any) -> None:
        """The state, with what shows only in a server that serves, such as frozen objects."""
        self._state["ledger"] = observed_state(scheduler)
        write_json(state_path(self._folder, self._rank), self._state)

    def _write(self) -> None:
        gpu = self._recorder.gpu
        if self._settings.clock and gpu is not None:
            if not self._ring.stopped_by:
                gpu.reference()
            write_clock(self._folder, self._rank, self._ring.read(gpu.times))

    def _account(self) -> dict[str, Any]:
        """What the clock holds and what it cost."""
        ring, gpu = self._ring, self._recorder.gpu
        own = ring.own_us_per_step()
        return {
            "rows": len(ring),
            "overwritten": ring.overwritten,
            "clock": ring.on,
            "stopped_by": ring.stopped_by or None,
            "detail": f"{DETAIL_STEPS} of {DETAIL_EVERY} steps",
            "steps": ring.step + 1,
            "own_us_per_step": None if own is None else round(own, 2),
            "gpu_events_skipped": gpu.skipped if gpu else None,
            "gpu_clock_uncertainty_ns": gpu.uncertainty_ns if gpu else None,
            "sync_events": self._profilers.sync_events,
            "written_ns": time.time_ns(),
        }

    def _end(self) -> None:
        """The loop has ended: leave what was measured, and everything as it was."""
        recorder = self._recorder
        recorder.switch_clock(False)
        recorder.live = False
        if recorder.details is not None:
            recorder.details.switch(False)
        if recorder.waits is not None:
            recorder.waits.remove()
            gc.callbacks.remove(recorder.on_gc)
        try:
            self._write_at_exit()
        except OutputError as error:
            logger.warning("latencylab: %s", error)

    def _write_at_exit(self) -> None:
        gpu = self._recorder.gpu
        if gpu is not None:
            # The device may be stuck after an error, so nothing is synchronised.
            write_clock(self._folder, self._rank, self._ring.read(gpu.times))
            write_json(obeyed_path(self._folder, self._rank), {"sequence": self._obeyed, **self._account()})
