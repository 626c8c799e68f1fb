"""The hooks of profilers: the clock stops for good when one starts, and the torch profiler is told to record
what synchronising calls wait for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from latencylab.runtime.recorder import Original, Recorder


class ProfilerHooks:
    """Follows the profilers of one process. `sync_events` says what became of CUDA's sync events."""

    def __init__(self, recorder: Recorder, *, wanted: bool) -> None:
        self._recorder = recorder
        self._wanted = wanted
        self._running: Any = None
        self.sync_events = "no profiler yet"

    def hooks(self) -> dict[str, Callable[..., Any]]:
        """By the names that the table of targets uses."""
        return {
            "start_profile": self.start_profile,
            "profile_init": self.profile_init,
            "profile_start": self.profile_start,
            "profile_stop": self.profile_stop,
        }

    def start_profile(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        """`SchedulerProfilerManager._start_profile`: of torch, of Nsight Systems, of memory."""
        self._recorder.profiler_starts()
        return original(*args, **kwargs)

    def profile_init(self, original: Original, profile: Any, *args: Any, **kwargs: Any) -> Any:
        """`torch.profiler.profile.__init__`: adds the sync events where the caller has no own wishes."""
        if self._recorder.live and self._wanted and kwargs.get("experimental_config") is None:
            import torch

            try:
                config = torch.profiler._ExperimentalConfig(enable_cuda_sync_events=True)
            except (AttributeError, TypeError) as error:
                self.sync_events = f"off: {error}"
            else:
                self.sync_events = "on"
                kwargs["experimental_config"] = config
        return original(profile, *args, **kwargs)

    def profile_start(self, original: Original, profile: Any, *args: Any, **kwargs: Any) -> Any:
        """`torch.profiler.profile.start`."""
        self._recorder.profiler_starts()
        result = original(profile, *args, **kwargs)
        if self._wanted and self._recorder.live:
            self._running = profile
            self._recorder.profiler_runs(running=True)
        return result

    def profile_stop(self, original: Original, profile: Any, *args: Any, **kwargs: Any) -> Any:
        """`torch.profiler.profile.stop`: what is marked must be closed before it."""
        if self._running is profile:
            self._running = None
            self._recorder.profiler_runs(running=False)
        return original(profile, *args, **kwargs)
