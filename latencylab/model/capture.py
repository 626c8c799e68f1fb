"""A capture: the traces of all ranks of one run, and what is known of the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latencylab.model.trace import Trace
from latencylab.model.unprofiled import Unprofiled


@dataclass(frozen=True, slots=True)
class Capture:
    """Traces in order of rank. `manifest` is None for a bare list of trace files.

    `folder` and `unprofiled` are None for a bare list too.
    """

    path: str
    folder: Path | None
    manifest: dict[str, Any] | None
    traces: tuple[Trace, ...]
    unprofiled: Unprofiled | None = None
