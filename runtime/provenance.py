"""What a manifest says of the machine and the software, so that two captures can be compared."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from latencylab.model.integrity import InputError

States = Mapping[int, Mapping[str, Any]]

_STATE = re.compile(r"plugin-rank(\d{1,6})\.json")
_SWITCHES = ("SGLANG_", "LATENCYLAB_", "CUDA_", "NCCL_", "TORCH_", "PYTORCH_")
_SECRET = re.compile(
    r"(^|_)((api|access|private|watermark)_?key|keyfile|passwords?|passwd|secrets?|credentials?|auth|hf_token)(_|$)"
    r"|(^|_)(key|token)$",
    re.IGNORECASE,
)
_NOT_ARGUMENTS = {"internal_states", "kv_events", "launch_command", "startup_time", "version", "frontend"}
_PACKAGES = (
    "latencylab",
    "sglang",
    "sglang-kernel",
    "torch",
    "triton",
    "flashinfer-python",
    "sgl-flash-mla",
    "nvtx",
    "numpy",
)
_PARTS = ("hooks", "faults", "packages", "server_args", "env", "ledger")  # of a state, each a JSON object
# What two servers on one machine hardly have in common, where both their information and their state tell it.
_IDENTITY = ("port", "model_path", "tp_size")


def describe_machine(*, is_local: bool = True) -> dict[str, Any]:
    """Host, its processor, GPU and driver; nothing of them where the server runs elsewhere."""
    known: dict[str, Any] = {"created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    if not is_local:
        return {**known, "host": None, "cpu": None, "gpu": None, "driver": None}
    gpu, driver = _nvidia_smi()
    return {**known, "host": socket.gethostname(), "cpu": _cpu(), "gpu": gpu, "driver": driver}


def describe_server(info: Mapping[str, Any], states: States) -> dict[str, Any]:
    """Arguments, packages, switches and faults: by the plugin of the first rank, else as the server says."""
    state = states[min(states)] if states else {}
    args = state.get("server_args") or {k: v for k, v in info.items() if k not in _NOT_ARGUMENTS}
    packages = dict(state.get("packages") or {})
    if isinstance(info.get("version"), str):
        packages.setdefault("sglang", info["version"])
    known = {
        "server_args": without_secrets(args),
        "packages": {name: str(version) for name, version in packages.items()},
        "env": {name: str(value) for name, value in without_secrets(state.get("env") or {}).items()},
        "faults": merged_faults(states),
        "ledger": state.get("ledger"),
    }
    if hooks := merged_hooks(states):
        known["hooks"] = hooks
    return known | {key: state[key] for key in ("gpu", "driver") if state.get(key)}


def merged_faults(states: States) -> dict[str, dict[str, Any]]:
    """The faults injected, each with its parameters and the `ranks` that have it."""
    merged: dict[str, dict[str, Any]] = {}
    for rank, state in states.items():
        for name, values in (state.get("faults") or {}).items():
            kept = {key: value for key, value in values.items() if key != "active"}
            fault = merged.setdefault(name, {**kept, "ranks": []})
            if values.get("active", True):
                fault["ranks"].append(rank)
    return merged


def merged_hooks(states: States) -> dict[str, str]:
    """For each target "took", or how it is on the first rank where it did not take."""
    merged: dict[str, str] = {}
    for rank, state in states.items():
        for target, how in (state.get("hooks") or {}).items():
            if merged.setdefault(target, "took") == "took" and how != "took":
                merged[target] = f"{how} (rank {rank})" if len(states) > 1 else how
    return merged


def check_same_server(info: Mapping[str, Any], states: States, folder: Path) -> None:
    """Raise InputError where the plugin's states are not those of the server that gives this information."""
    if not states:
        raise InputError(f"{folder}: no plugin-rank*.json: no server with the plugin uses this folder")
    args = states[min(states)].get("server_args") or {}
    for name in _IDENTITY:
        theirs, ours = info.get(name), args.get(name)
        if theirs is not None and ours is not None and theirs != ours:
            raise InputError(f"{folder} is of another server: its {name} is {ours}, and this one's {theirs}")


def read_states(folder: Path) -> dict[int, dict[str, Any]]:
    """What the plugin of each rank wrote into LATENCYLAB_DIR. Raises InputError for what is no such file.

    Files that an earlier server with more ranks left there, and nothing replaces, are left out.
    """
    states: dict[int, dict[str, Any]] = {}
    newest, size = 0, None
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if match := _STATE.fullmatch(path.name):
            try:
                written, state = path.stat().st_mtime_ns, json.loads(path.read_bytes())
            except (OSError, ValueError) as error:
                raise InputError(f"{path}: {error}") from None
            if not isinstance(state, dict):
                raise InputError(f"{path}: no JSON object")
            if odd := [part for part in _PARTS if not isinstance(state.get(part) or {}, dict)]:
                raise InputError(f"{path}: {odd[0]} is no JSON object")
            if not all(isinstance(fault, dict) for fault in (state.get("faults") or {}).values()):
                raise InputError(f"{path}: faults is no object of objects")
            states[int(match[1])] = state
            if written > newest:
                newest, size = written, state.get("world_size")
    return {rank: state for rank, state in sorted(states.items()) if not isinstance(size, int) or rank < size}


def world_size(info: Mapping[str, Any], states: States) -> int | None:
    """How many ranks there are, as far as anything says so."""
    for state in states.values():
        if isinstance(size := state.get("world_size"), int) and size > 0:
            return size
    sizes = [info.get(key, 1) for key in ("tp_size", "pp_size")]
    if "tp_size" in info and all(isinstance(size, int) and size > 0 for size in sizes):
        return int(sizes[0] * sizes[1])
    return None


def code_commit(package: str | None, fallback: Path | None = None) -> dict[str, Any]:
    """The commit of the code that ran: of the package where it is in a git checkout, else of `fallback`.

    `commit_of` says which; `dirty` whether tracked files differ from the commit.
    """
    spec = find_spec(package) if package else None
    places = [(package, Path(spec.origin))] if spec is not None and spec.origin else []
    if fallback is not None:
        places.append((fallback.name if fallback.is_file() else "working folder", fallback))
    for name, place in places:
        found = _commit(place)
        if found is not None:
            return {"commit": found[0], "commit_of": name, "dirty": found[1]}
    return {"commit": None}


def switches(env: Mapping[str, str]) -> dict[str, str]:
    """The variables of an environment that change what a server does."""
    chosen = {name: value for name, value in sorted(env.items()) if name.startswith(_SWITCHES)}
    return {name: str(value) for name, value in without_secrets(chosen).items()}


def without_secrets(given: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is named like a key or password."""
    return {name: value for name, value in given.items() if not _SECRET.search(name)}


def installed_packages() -> dict[str, str]:
    """The versions of this Python and of its packages that matter."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _cpu() -> str | None:
    """The processor's name and how many cores there are, or None where the system does not tell."""
    try:
        name = re.search(r"(?m)^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(errors="replace"))
    except OSError:
        return None
    return f"{name[1].strip()}, {os.cpu_count()} cores" if name else None


def _nvidia_smi() -> tuple[str | None, str | None]:
    """The name of the GPUs (one name where all are alike) and the driver's version."""
    rows = _said(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]).splitlines()
    pairs = [row.rpartition(",") for row in rows if "," in row]
    names = sorted({name.strip() for name, _, _ in pairs})
    return (", ".join(names) or None, pairs[0][2].strip() if pairs else None)


def _commit(place: Path) -> tuple[str, bool] | None:
    """The commit and whether it is dirty; None for a file that git does not track, as in an environment."""
    folder = place if place.is_dir() else place.parent
    git = ["git", "-C", str(folder)]
    if place.is_file() and not _said([*git, "ls-files", "--", place.name]):
        return None
    commit = _said([*git, "rev-parse", "--verify", "HEAD"]).strip()
    if not commit:
        return None
    return commit, bool(_said([*git, "status", "--porcelain", "--untracked-files=no"]).strip())


def _said(command: list[str]) -> str:
    """What a command prints, or nothing where it fails or is missing."""
    program = shutil.which(command[0])
    if program is None:
        return ""
    try:
        done = subprocess.run(  # noqa: S603 - fixed commands
            [program, *command[1:]],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=20,
            check=False,
            env={**os.environ, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
