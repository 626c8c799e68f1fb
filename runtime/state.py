"""What a scheduler process says of itself in its state file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from latencylab.runtime.provenance import installed_packages, switches, without_secrets

_DRIVER = re.compile(r"Kernel Module\s+(?:for \S+\s+)?(\d[\w.]*)")


def describe(
    *,
    rank: int,
    world_size: int,
    hooks: Mapping[str, str],
    server_args: Any,
) -> dict[str, Any]:
    """The content of the state file. Names that look like secrets are left out."""
    return {
        "rank": rank,
        "world_size": world_size,
        "pid": os.getpid(),
        "hooks": dict(hooks),
        "packages": installed_packages(),
        "server_args": _plain(vars(server_args)),
        "env": switches(os.environ),
        "gpu": _gpu(),
        "driver": _driver(),
    }


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that JSON can hold."""
    kept = {}
    for name, value in without_secrets(fields).items():
        if name.startswith("_"):
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
