"""A capture small enough to be read in a blink, and ways to run the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from latencylab.cli import run

STEPS = 8
STEP_US = 1000


@pytest.fixture(autouse=True)
def as_wide_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text goes to no terminal here; how wide the one is in which the tests run must not matter."""
    monkeypatch.delenv("COLUMNS", raising=False)


def _event(name: str, category: str, start: float, duration: float, tid: int, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 0 if category == "kernel" else 100,
        "tid": tid,
        "ts": start,
        "dur": duration,
        "args": args,
    }


def kineto_trace(rank: int = 0) -> dict[str, Any]:
    """A few decode steps, each a span with two launches and their kernels."""
    events = []
    for step in range(STEPS):
        start = 1_000_000 + step * STEP_US
        events.append(_event("scheduler.run_batch", "user_annotation", start, 600, 100))
        for index in range(2):
            launch = start + 100 + 300 * index
            correlation = 10 * step + index + 1
            events.append(
                _event("cudaLaunchKernel", "cuda_runtime", launch, 10, 100, correlation=correlation)
            )
            events.append(
                _event(
                    "gemm_kernel", "kernel", launch + 20, 200, 7, correlation=correlation, stream=7, device=0
                )
            )
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "Tiny GPU"}],
        "distributedInfo": {"rank": rank, "world_size": 1},
        "traceEvents": events,
    }


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "rank0.trace.json"
    path.parent.mkdir()
    path.write_text(json.dumps(kineto_trace()))
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An empty folder for results."""
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


Runner = Callable[..., Result]


@pytest.fixture
def latencylab(capsys: pytest.CaptureFixture[str]) -> Runner:
    """Run a command line in this process."""

    def call(*arguments: str | Path) -> Result:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        return Result(code, *capsys.readouterr())

    return call


@pytest.fixture
def script() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command line in a process of its own."""

    def call(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        command = [sys.executable, "-m", "latencylab", *map(str, arguments)]
        return subprocess.run(command, check=False, timeout=120, **options)

    return call
