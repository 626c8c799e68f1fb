"""What nvidia-smi says of the GPUs and the processes on them, through its query interface."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

TIMEOUT_S = 30.0

_FIELDS = (
    "index",
    "name",
    "uuid",
    "pci.bus_id",
    "memory.total",
    "memory.used",
    "driver_version",
    "mig.mode.current",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "clocks.max.mem",
    "power.limit",
    "power.default_limit",
    "persistence_mode",
    "compute_mode",
)
_PROCESS_FIELDS = ("pid", "process_name", "used_memory", "gpu_uuid")
_UNKNOWN_FIELD = re.compile(r'Field "([^"]+)" is not a valid field')
_CUDA = re.compile(r"CUDA[^:\n]*Version\s*:\s*(\d+\.\d+)")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: memory in MiB, clocks in MHz, power in W; None where nvidia-smi does not know."""

    index: int | None
    name: str | None
    uuid: str | None
    bus_id: str | None
    memory_mib: float | None
    used_mib: float | None
    driver: str | None
    mig: str | None
    sm_mhz: float | None
    max_sm_mhz: float | None
    memory_mhz: float | None
    max_memory_mhz: float | None
    power_limit_w: float | None
    default_power_limit_w: float | None
    persistence: str | None
    compute_mode: str | None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that has a context on a GPU."""

    pid: int | None
    name: str | None
    used_mib: float | None
    gpu: str | None


@dataclass(frozen=True, slots=True)
class Smi:
    """All of it; `trouble` says in one line why there is nothing, and is empty otherwise."""

    gpus: tuple[Gpu, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    cuda: str | None = None
    trouble: str = ""


def query_gpus() -> Smi:
    """Ask the nvidia-smi on PATH; never raises."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return Smi(trouble="nvidia-smi is not on PATH")
    rows, trouble = _query(program, "gpu", _FIELDS)
    if trouble:
        return Smi(trouble=trouble)
    if not rows:
        return Smi(trouble="nvidia-smi names no GPU")
    processes, _ = _query(program, "compute-apps", _PROCESS_FIELDS)
    said, _ = _run(program, "--version")
    cuda = _CUDA.search(said)
    return Smi(
        tuple(_gpu(row) for row in rows),
        tuple(
            GpuProcess(
                _whole(row, "pid"),
                row.get("process_name"),
                _number(row, "used_memory"),
                row.get("gpu_uuid"),
            )
            for row in processes
        ),
        cuda[1] if cuda else None,
    )


def _query(program: str, what: str, fields: Iterable[str]) -> tuple[list[dict[str, str]], str]:
    """The rows of a query, by field, and what went wrong; fields unknown to this version are left out."""
    asked = list(fields)
    while asked:
        text, trouble = _run(program, f"--query-{what}={','.join(asked)}", "--format=csv,noheader,nounits")
        unknown = _UNKNOWN_FIELD.search(trouble)
        if unknown and unknown[1] in asked:
            asked.remove(unknown[1])
            continue
        if trouble:
            return [], trouble
        rows = csv.reader(text.splitlines(), skipinitialspace=True)
        return [_known(dict(zip(asked, row, strict=True))) for row in rows if len(row) == len(asked)], ""
    return [], "nvidia-smi knows no field that was asked for"


def _run(program: str, *arguments: str) -> tuple[str, str]:
    """Its output, and what it said instead where it failed."""
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command
            [program, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"nvidia-smi does not answer: {error}"
    if done.returncode != 0:
        said = " ".join((done.stdout + " " + done.stderr).split())
        return "", said or f"nvidia-smi ended with {done.returncode}"
    return done.stdout, ""


def _known(row: Mapping[str, str]) -> dict[str, str]:
    """Without the fields for which it prints [N/A], [Not Supported] and the like."""
    return {key: value.strip() for key, value in row.items() if value.strip() and not value.startswith("[")}


def _gpu(row: Mapping[str, str]) -> Gpu:
    return Gpu(
        index=_whole(row, "index"),
        name=row.get("name"),
        uuid=row.get("uuid"),
        bus_id=row.get("pci.bus_id"),
        memory_mib=_number(row, "memory.total"),
        used_mib=_number(row, "memory.used"),
        driver=row.get("driver_version"),
        mig=row.get("mig.mode.current"),
        sm_mhz=_number(row, "clocks.sm"),
        max_sm_mhz=_number(row, "clocks.max.sm"),
        memory_mhz=_number(row, "clocks.mem"),
        max_memory_mhz=_number(row, "clocks.max.mem"),
        power_limit_w=_number(row, "power.limit"),
        default_power_limit_w=_number(row, "power.default_limit"),
        persistence=row.get("persistence_mode"),
        compute_mode=row.get("compute_mode"),
    )


def _number(row: Mapping[str, str], key: str) -> float | None:
    try:
        return float(row[key])
    except (KeyError, ValueError):
        return None


def _whole(row: Mapping[str, str], key: str) -> int | None:
    number = _number(row, key)
    return None if number is None else int(number)
