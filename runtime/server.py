"""Start a server, wait until it serves, and leave none of its processes behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from latencylab.model.integrity import InputError, OutputError
from latencylab.runtime.client import HttpTarget, TargetError
from latencylab.runtime.settings import VARIABLES

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Running:
    """A server that was started here, where what it prints goes, and its whole environment."""

    process: subprocess.Popen[bytes]
    log: Path
    env: Mapping[str, str]

    def ended(self, wait_s: float = 2.0) -> str | None:
        """How it ended, waiting a moment for it to be told, or None while it runs."""
        try:
            self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return None
        return f"the server had ended: {_ending(self.process, self.log)}"


POLL_S = 0.1
HEALTH_S = 1.0
GRACE_S = 30.0  # the time that a clean exit may take, in which the step clock is written
_TAIL = 64 << 10


@contextmanager
def run_server(
    argv: Sequence[str],
    env: Mapping[str, str],
    target: HttpTarget,
    log: Path,
    *,
    timeout_s: float = 1800.0,
    progress: Progress | None = None,
) -> Iterator[Running]:
    """A server that serves `target` while the block runs; all that it started is gone afterwards.

    `env` is added to this process's environment, of which only the plugin's variables are not passed on, lest
    they do what nobody asked for here. `log` takes what the server prints. Raises InputError where the server
    ends, or is not healthy after `timeout_s`.
    """
    started: list[Running] = []
    family: dict[int, str] = {}
    try:
        with _opened(log) as out, deferred_signals():
            whole = {**_without_ours(os.environ), **env}
            started.append(Running(_start(argv, whole, out.fileno()), log, whole))
        _wait_healthy(started[0], target, timeout_s, progress, family)
        yield started[0]
    except TargetError as error:
        ended = started[0].ended() if started else None
        raise TargetError(f"{error}; {ended}" if ended else str(error)) from None
    finally:
        for running in started:
            stop(running.process, family)


def _opened(log: Path) -> BinaryIO:
    try:
        return log.open("ab")
    except OSError as error:
        raise OutputError(f"cannot write {log}: {error.strerror or error}") from None


def _without_ours(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in VARIABLES}


def _start(argv: Sequence[str], env: Mapping[str, str], out: int) -> subprocess.Popen[bytes]:
    """In a session of its own, so that a Ctrl-C in the terminal leaves the order of stopping to us."""
    try:
        return subprocess.Popen(  # noqa: S603 - the user's own command
            list(argv),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    except OSError as error:
        raise InputError(f"cannot start {argv[0]}: {error.strerror or error}") from None


def _wait_healthy(
    running: Running,
    target: HttpTarget,
    timeout_s: float,
    progress: Progress | None,
    family: dict[int, str],
) -> None:
    """Wait, and note in `family` what it starts: orphans in sessions of their own cannot be found later."""
    start = time.monotonic()
    asked = 0.0
    process, log = running.process, running.log
    while process.poll() is None:
        now = time.monotonic()
        if now - start > timeout_s:
            raise InputError(f"the server was not ready after {timeout_s:g} s: {_last_line(log)}")
        if now - asked >= HEALTH_S:
            asked = now
            family |= _family(process.pid)
            if progress is not None:
                progress(_last_line(log))
            if target.is_healthy():
                family |= _family(process.pid)
                return
        time.sleep(POLL_S)
    raise InputError(f"the server ended before it was ready: {_ending(process, log)}")


def stop(
    process: subprocess.Popen[bytes], known: Mapping[int, str] | None = None, *, grace_s: float = GRACE_S
) -> None:
    """End a process and all that it started: asked first, then killed; at once if interrupted meanwhile.

    `known` are processes of its seen before, each with the time of its birth.
    """
    family = {**(known or {}), **_family(process.pid)}
    try:
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)
    finally:
        with deferred_signals():
            family |= _family(process.pid)
            for pid, born in family.items():
                if birth(pid) == born:  # else the number belongs to another process by now
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
            process.wait()


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _family(leader: int) -> dict[int, str]:
    """The process, all of its session and all descendants, each with the time of its birth."""
    parents: dict[int, int] = {}
    found: set[int] = {leader}
    births: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        fields = process_stat(int(entry.name)) if entry.name.isdecimal() else None
        if fields is not None:
            pid = int(entry.name)
            parents[pid], births[pid] = int(fields[1]), fields[19]
            if int(fields[3]) == leader:
                found.add(pid)
    grown = True
    while grown:
        children = {pid for pid, parent in parents.items() if parent in found}
        grown = not children <= found
        found |= children
    return {pid: births[pid] for pid in found if pid in births}


def birth(pid: int) -> str | None:
    """When a process was born, in ticks since the machine was: with its number it names it for good."""
    fields = process_stat(pid)
    return fields[19] if fields is not None else None


def process_stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on (the third), as the name before may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back until the block ends, lest a process is started and then forgotten."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            os.kill(os.getpid(), came[0])


def how_ended(code: int) -> str:
    """In words, from what `subprocess` gives as the exit code."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _ending(process: subprocess.Popen[bytes], log: Path) -> str:
    return f"{how_ended(process.returncode)}: {_last_line(log)}"


def _last_line(log: Path) -> str:
    """The last line with anything in it."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return "no log"
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "it printed nothing")
