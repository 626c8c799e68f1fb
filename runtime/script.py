"""Run a Python program with PyTorch's profiler around it: `script.py [-m] PROGRAM ARGUMENTS`.

It is run by the program's own Python, which needs torch and nothing of latencylab. The profiler is on from
before the program's first line to its end, or, with LATENCYLAB_TRACE_RANGE set, from
`torch.cuda.profiler.start()` to `stop()`, the range that the CUDA profilers know too. Leaves
`rank0.trace.json.gz` and `about-rank0.json`, of each rank that torchrun starts, in LATENCYLAB_TRACE_FOLDER.
"""

from __future__ import annotations

import json
import os
import platform
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = "LATENCYLAB_TRACE_FOLDER"
RANGE = "LATENCYLAB_TRACE_RANGE"
NO_TORCH = 97  # an exit code that programs hardly have


class Recording:
    """One profile of this process; only its first range is kept, for each would overwrite the one before."""

    def __init__(self, torch: Any, folder: Path) -> None:
        kinds = torch.profiler.ProfilerActivity
        activities = [kinds.CPU, *([kinds.CUDA] if torch.cuda.is_available() else [])]
        try:  # what a synchronising call waits for is written only on request
            config = torch.profiler._ExperimentalConfig(enable_cuda_sync_events=True)
        except (AttributeError, TypeError):
            config = None
        self._profile = torch.profiler.profile(activities=activities, experimental_config=config)
        self._rank = int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or 0)
        self._torch, self._folder = torch, folder
        self._state = "new"

    def start(self) -> None:
        if self._state == "new":
            self._state = "on"
            self._profile.start()

    def stop(self) -> None:
        if self._state != "on":
            return
        self._state = "done"
        if self._torch.cuda.is_available():
            self._torch.cuda.synchronize()  # work still running would be missing from the trace
        self._profile.stop()
        path = self._folder / f"rank{self._rank}.trace.json.gz"
        unfinished = path.with_name(f"unfinished-{self._rank}.json.gz")
        self._profile.export_chrome_trace(str(unfinished))
        unfinished.replace(path)
        (self._folder / f"about-rank{self._rank}.json").write_text(json.dumps(_about(self._torch)))


def main(argv: Sequence[str]) -> None:
    """Run the program, and leave its trace however it ends."""
    is_module = argv[0] == "-m"
    name, *arguments = argv[1:] if is_module else argv
    sys.argv = [name, *arguments]
    sys.path[0] = "" if is_module else str(Path(name).resolve().parent)
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        sys.exit(NO_TORCH)
    # Taken out of the environment: what the program starts has a trace of its own, or none.
    folder, only_range = Path(os.environ.pop(FOLDER)), os.environ.pop(RANGE, "")
    recording = Recording(torch, folder)
    if only_range:
        torch.cuda.profiler.start, torch.cuda.profiler.stop = recording.start, recording.stop
    else:
        recording.start()
    try:
        if is_module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    finally:
        recording.stop()


def _about(torch: Any) -> dict[str, Any]:
    packages = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.version.cuda:
        packages["cuda"] = str(torch.version.cuda)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"packages": packages, "gpu": gpu}


if __name__ == "__main__":
    main(sys.argv[1:])
