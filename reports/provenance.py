"""Where a capture came from, as rows of a page: what a reader asks for first, then the whole manifest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import PurePath, PureWindowsPath
from typing import Any

from latencylab.model.findings import Analysis
from latencylab.reports import format as fmt

# The manifest's key, and what the page calls it.
_FIRST = (
    ("commit", "commit"),
    ("created", "recorded"),
    ("host", "host"),
    ("gpu", "GPU"),
    ("driver", "driver"),
    ("packages", "versions"),
    ("env", "switches"),
    ("faults", "faults injected"),
    ("ledger", "ledger"),
    ("workload", "workload"),
)


def capture_name(analysis: Analysis) -> str:
    """The capture's own name, without the folders that it lies in; of several files the first one's."""
    files = analysis.capture_path.split(", ")
    more = len(files) - 1 if len(files) == len(analysis.ranks) else 0
    path = files[0] if more else analysis.capture_path
    name = PureWindowsPath(PurePath(path).name).name or "capture"
    return f"{name} and {more} more" if more else name


def first_facts(manifest: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """What the manifest says of the code, the machine and the switches, each with its facts."""
    return [(title, _facts(manifest.get(key))) for key, title in _FIRST]


def manifest_rows(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The manifest flattened: `server.tp` and `4`."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from manifest_rows(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(v, dict | list | tuple) for v in value):
        for i, inner in enumerate(value):
            yield from manifest_rows(inner, f"{path}[{i}]")
    elif isinstance(value, list | tuple):
        yield path, ", ".join(_fact(v) for v in value) or fmt.MISSING
    elif path:
        yield path, _fact(value)


def _facts(value: Any) -> list[str]:
    """A value as short facts: `torch 2.14.1`, `SGLANG_SIMULATE_ACC_LEN 3.25`."""
    if value is None:
        return ["not recorded"]
    if value in ({}, [], ""):
        return ["none"]
    return [f"{name} {text}" if name else text for name, text in _rows(value)]


def _rows(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict | list | tuple):
        yield from manifest_rows(value)
    else:
        yield "", _fact(value)


def _fact(value: Any) -> str:
    """One value of a manifest."""
    if isinstance(value, float) and fmt.finite(value) is None:
        return fmt.MISSING
    if isinstance(value, bool):
        return json.dumps(value)
    return fmt.MISSING if value in (None, {}, "") else str(value)
