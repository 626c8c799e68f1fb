"""The JSON object that `gate --format json` prints; schema/gate-1.json describes it."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib import resources
from typing import Any

from latencylab.model.gate import GATE_SCHEMA, GateResult
from latencylab.reports.contract import as_plain


def to_gate(result: GateResult) -> dict[str, Any]:
    """The decision as plain JSON data; `verdict` and `exit_code` first."""
    made = {"schema": GATE_SCHEMA, "verdict": result.verdict, "exit_code": result.exit_code, **asdict(result)}
    plain: dict[str, Any] = as_plain(made)
    return plain


def render_gate_json(result: GateResult, indent: int | None = 2) -> str:
    """The decision as one JSON document."""
    return json.dumps(to_gate(result), indent=indent, ensure_ascii=False, allow_nan=False)


def gate_schema() -> dict[str, Any]:
    """The document as a JSON Schema (2020-12)."""
    file = resources.files("latencylab.reports").joinpath("schema/gate-1.json")
    schema: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return schema
