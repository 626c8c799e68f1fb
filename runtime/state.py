"""What a scheduler process says of itself in its state file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
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
ENV_PREFIXES = ("SGLANG_", "LATENCYLAB_")
SECRET = re.compile(r"api_key|password|secret|_token$", re.IGNORECASE)
_DRIVER = re.compile(r"Kernel Module\s+(?:for \S+\s+)?(\d[\w.]*)")


def describe(
    *,
    rank: int,
    world_size: int,
    hooks: Mapping[str, str],
    faults: Mapping[str, Any],
    server_args: Any,
) -> dict[str, Any]:
    """The content of the state file. Names that look like secrets are left out."""
    return {
        "rank": rank,
        "world_size": world_size,
        "pid": os.getpid(),
        "hooks": dict(hooks),
        "faults": dict(faults),
        "packages": _packages(),
        "server_args": _plain(vars(server_args)),
        "env": {
            name: text
            for name, text in sorted(os.environ.items())
            if name.startswith(ENV_PREFIXES) and not SECRET.search(name)
        },
        "gpu": _gpu(),
        "driver": _driver(),
    }


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that JSON can hold."""
    kept = {}
    for name, value in fields.items():
        if name.startswith("_") or SECRET.search(name):
            continue
        try:
            kept[name] = json.loads(json.dumps(value))
        except (TypeError, ValueError, RecursionError):
            continue
    return kept


def _gpu() -> str:
    import torch

    return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else ""


def _driver() -> str:
    """The driver's version, as its kernel module says, else as NVML does; "" where neither tells."""
    try:
        if found := _DRIVER.search(Path("/proc/driver/nvidia/version").read_text()):
            return found.group(1)
    except OSError:
        pass
    try:
        import pynvml

        pynvml.nvmlInit()
        told = pynvml.nvmlSystemGetDriverVersion()
    except Exception:  # noqa: BLE001  # NVML has its own errors, and is told about only here
        return ""
    return told.decode() if isinstance(told, bytes) else str(told)
