"""Running a command as a whole process: its time, its CPU time, and the memory of all its processes."""

from __future__ import annotations

import json
import os
import resource
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAMPLED_S = 0.02


@dataclass(frozen=True, slots=True)
class Run:
    """One run: wall and CPU seconds of the whole process and its children, imports included.

    `told` is the JSON object that the command printed last on stdout, if any. `over` says that the command
    was ended at its time limit. `pss` and `rss` are the highest sums over all its processes, in bytes, where
    they were sampled.
    """

    seconds: float
    cpu: float
    told: dict[str, Any]
    over: bool = False
    pss: int = 0
    rss: int = 0


def run(command: Sequence[str | Path], *, limit: float | None = None, memory: bool = False) -> Run:
    """Run it to its end, or to the limit in seconds; SystemExit where it fails.

    `memory` samples its processes, which slows them a little: do not time such a run.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.perf_counter()
        process = subprocess.Popen(  # noqa: S603
            [str(part) for part in command], stdout=out, stderr=err, start_new_session=True
        )
        sampler = _Sampler(process.pid) if memory else None
        try:
            status = process.wait(limit)
            over = False
        except subprocess.TimeoutExpired:
            over, status = True, 0
        except BaseException:
            _end(process)
            raise
        seconds = time.perf_counter() - started
        if over:
            _end(process)
        peak = sampler.stop() if sampler else (0, 0)
        out.seek(0)
        err.seek(0)
        if status:
            raise SystemExit(f"{command[0]} failed:\n{err.read().decode(errors='replace')[-2000:]}")
        lines = out.read().decode(errors="replace").strip().splitlines()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    told = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
    return Run(seconds, cpu, told, over, *peak)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it with all its descendants that stayed in its session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class _Sampler:
    """The highest sums of PSS and of RSS over a process and its descendants, read every 20 ms."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peak = (0, 0)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def stop(self) -> tuple[int, int]:
        self._done.set()
        self._thread.join()
        return self._peak

    def _sample(self) -> None:
        while not self._done.wait(SAMPLED_S):
            pss, rss = (sum(column) for column in zip(*map(_memory, _tree(self._pid)), strict=True))
            self._peak = max(self._peak[0], pss), max(self._peak[1], rss)


def _tree(pid: int) -> list[int]:
    """The process and all its descendants."""
    found = [pid]
    for parent in found:
        with suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def _memory(pid: int) -> tuple[int, int]:
    """(PSS, RSS) of a process in bytes; PSS counts a page that n processes share as 1/n."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        kb = {line.split()[0]: int(line.split()[1]) for line in lines}
        return kb.get("Pss:", 0) << 10, kb.get("Rss:", 0) << 10
    return 0, 0  # it has ended


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and most of some rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        digits = 0 if self.median >= 100 else 1 if self.median >= 10 else 2
        if self.least == self.most:
            return f"{self.median:.{digits}f}"
        return f"{self.median:.{digits}f} ({self.least:.{digits}f} to {self.most:.{digits}f})"


def ratios(over: Sequence[float], under: Sequence[float]) -> Spread:
    """How many times longer `over` took than `under`, round by round: rounds run side by side."""
    return Spread.of([a / b for a, b in zip(over, under, strict=True)])
