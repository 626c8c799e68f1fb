"""Take a capture of a Python program that uses torch, by running it under `runtime/script.py`."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from latencylab.model.integrity import InputError
from latencylab.runtime import script
from latencylab.runtime.capture import Finding, gather, trace_name
from latencylab.runtime.provenance import code_commit, describe_machine, switches
from latencylab.runtime.server import deferred_signals, how_ended, stop
from latencylab.runtime.trace_files import Found, is_whole, rank_of
from latencylab.traces import write_manifest

_BOOTSTRAP = str(Path(script.__file__).resolve())
# Modules that only start others, so the program to profile is what they are given.
_LAUNCHERS = {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"}


def record_program(
    folder: Path, command: Sequence[str], *, capture_range: bool, about: Mapping[str, Any]
) -> tuple[list[Finding], int]:
    """Run a command, fill `folder` with the capture of it, and give the program's exit code.

    `about` takes the place of what the manifest would say.

    Raises InputError where the command runs no Python program, or no trace came of it.
    """
    started = bootstrapped(command)
    program = started[started.index(_BOOTSTRAP) + 1]
    if program != "-m" and not Path(program).is_file():
        raise InputError(f"{program}: no such program")
    with tempfile.TemporaryDirectory(prefix="latencylab-traces-") as temporary:
        traces = Path(temporary)
        env = {**os.environ, script.FOLDER: temporary, script.RANGE: "1" if capture_range else ""}
        code = _run(started, env)
        if code == script.NO_TORCH:
            raise InputError("the program's Python has no torch: nothing there can be profiled")
        found = _found(traces)
        if not found.files:
            why = ": it never called torch.cuda.profiler.start() and stop()" if capture_range else ""
            raise InputError(f"the program ended with {how_ended(code)} and left no trace{why}")
        known = {**_about(traces, command), **about}
        names = {rank: trace_name(rank, path) for rank, path in found.files.items()}
        findings = gather(folder, found, None, "of the program")
    write_manifest(folder, {**known, "files": names})
    return findings, code


def bootstrapped(command: Sequence[str]) -> list[str]:
    """The command with our file in front of the Python program or module in it.

    Works for python, torchrun and other launchers that take a script or -m. Raises InputError.
    """
    for place, word in enumerate(command):
        module = command[place + 1] if word == "-m" and place + 1 < len(command) else None
        if (module is not None and module not in _LAUNCHERS) or (place and word.endswith(".py")):
            return [*command[:place], _BOOTSTRAP, *command[place:]]
    raise InputError(
        f"{' '.join(command)}: no Python program in it, such as python script.py or torchrun script.py"
    )


def _run(command: Sequence[str], env: Mapping[str, str]) -> int:
    """The exit code; whatever the program started is gone afterwards."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        with deferred_signals():
            started.append(subprocess.Popen(list(command), env=dict(env), start_new_session=True))  # noqa: S603
        return started[0].wait()
    except OSError as error:
        raise InputError(f"cannot start {command[0]}: {error.strerror or error}") from None
    finally:
        for process in started:
            stop(process, grace_s=5.0)


def _found(traces: Path) -> Found:
    files = {rank_of(path): path for path in sorted(traces.glob("rank*.trace.json.gz"))}
    known = {rank: path for rank, path in files.items() if rank is not None}
    return Found(known, tuple(rank for rank, path in known.items() if not is_whole(path)))


def _about(traces: Path, command: Sequence[str]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for path in sorted(traces.glob("about-rank*.json"))[:1]:
        told = json.loads(path.read_bytes())
    program = next((Path(word) for word in command[1:] if word.endswith(".py")), Path.cwd())
    machine = describe_machine()
    return {
        **code_commit(None, fallback=program.resolve()),
        **machine,
        "gpu": told.get("gpu") or machine["gpu"],
        "packages": told.get("packages", {}),
        "env": switches(os.environ),
        "workload": {"program": [Path(command[0]).name, *command[1:]]},
    }
