"""The JSON object that `diff --format json` prints; its stable keys are those of schema/diff-1.json."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib import resources
from typing import Any

from latencylab.model.comparison import (
    CalibrationChange,
    CollectivesChange,
    Comparison,
    Delta,
    KernelChange,
    KindChange,
    LegChange,
    Row,
    SideFacts,
    SiteChange,
    UnprofiledChange,
)
from latencylab.reports import diff_tables
from latencylab.reports.contract import as_plain

SCHEMA = "latencylab.diff/1"


def to_diff(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain JSON data. Times are µs per step unless their key says otherwise."""
    made = {
        "schema": SCHEMA,
        "tool": {"name": "latencylab", "version": comparison.version},
        "base": _side(comparison.base),
        "head": _side(comparison.head),
        "headline": diff_tables.headline(comparison),
        "comparable": {
            "forced": bool(comparison.mismatches),
            "mismatches": [asdict(one) for one in comparison.mismatches],
            "unknown": [asdict(one) for one in comparison.unknowns],
        },
        "changes": [asdict(one) for one in comparison.changes],
        "kinds": [_kind(kind) for kind in comparison.kinds],
        "collectives": None if comparison.collectives is None else _collectives(comparison.collectives),
        "unprofiled": None if comparison.unprofiled is None else _unprofiled(comparison.unprofiled),
        "calibration": None if comparison.calibration is None else _calibration(comparison.calibration),
        "notes": comparison.notes,
    }
    plain: dict[str, Any] = as_plain(made)
    return plain


def render_diff_json(comparison: Comparison, indent: int | None = 2) -> str:
    """The comparison as one JSON document."""
    return json.dumps(to_diff(comparison), indent=indent, ensure_ascii=False, allow_nan=False)


def diff_schema() -> dict[str, Any]:
    """The document as a JSON Schema (2020-12)."""
    file = resources.files("latencylab.reports").joinpath("schema/diff-1.json")
    loaded: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return loaded


def _side(facts: SideFacts) -> dict[str, Any]:
    return {
        "path": facts.path,
        "manifest": facts.manifest,
        "integrity": facts.integrity,
        "device_name": facts.device,
        "kind": facts.kind or None,
    }


def _kind(kind: KindChange) -> dict[str, Any]:
    return {
        "rank": kind.rank,
        "kind": kind.kind,
        "main": kind.main,
        "steps": {"base": kind.base_steps, "head": kind.head_steps},
        "step_us": {row.name: _delta(row.us) for row in kind.parts},
        "median_wall_us": _delta(kind.median_wall),
        "idle_host_blame_us": _rows(kind.blame),
        "idle_gpu_us": {row.name: _delta(row.us) for row in kind.gpu_idle},
        "legs": [_leg(leg) for leg in kind.legs],
        "run_ahead_least_us": _delta(kind.run_ahead_least),
        "syncs": [_site(site) for site in kind.sites],
        "kernel_classes": [{"class": row.name, "us": _delta(row.us)} for row in kind.classes],
        "kernels": [_kernel(kernel) for kernel in kind.kernels],
    }


def _leg(leg: LegChange) -> dict[str, Any]:
    return {
        "name": leg.name,
        "gpu_us": _delta(leg.gpu_us),
        "busy_us": _delta(leg.busy_us),
        "seam_us": _delta(leg.seam_us),
        "seam_idle_host_us": _delta(leg.seam_idle_host_us),
        "ops": _delta(leg.ops),
        "run_ahead_us": _delta(leg.run_ahead_us),
    }


def _site(site: SiteChange) -> dict[str, Any]:
    return {
        "site": site.site,
        "how": site.how,
        "verdict": {"base": site.base_verdict or None, "head": site.head_verdict or None},
        "per_step": _delta(site.per_step),
        "blocked_us": _delta(site.blocked_us),
        "idle_us": _delta(site.idle_us),
    }


def _kernel(kernel: KernelChange) -> dict[str, Any]:
    return {
        "segment": kernel.segment,
        "class": kernel.kernel_class,
        "how": kernel.how,
        "base": kernel.base,
        "head": kernel.head,
        "us": _delta(kernel.us),
        "ops": _delta(kernel.ops),
    }


def _collectives(found: CollectivesChange) -> dict[str, Any]:
    return {
        "step_us": {"wait": _delta(found.wait), "transfer": _delta(found.transfer)},
        "kinds": [
            {"name": wait.name, "wait_us": _delta(wait.us), "skew_us": _delta(skew)}
            for wait in found.kinds
            for skew in (row.us for row in found.skews if row.name == wait.name)
        ],
        "late": _rows(found.late),
    }


def _unprofiled(found: UnprofiledChange) -> dict[str, Any]:
    return {
        "step_ms": _delta(found.step_ms),
        "requests": {"base": found.base_requests, "head": found.head_requests},
        "range_ms": {"base": found.base_range, "head": found.head_range},
    }


def _calibration(found: CalibrationChange) -> dict[str, Any]:
    return {
        "status": {"base": found.base_status or None, "head": found.head_status or None},
        "profiled_step_us": _delta(found.profiled_step_us),
        "unprofiled_step_us": _delta(found.unprofiled_step_us),
        "predicted_step_us": _delta(found.predicted_step_us),
        "error_pct": _delta(found.error_pct),
        "idle_host_us": _delta(found.idle_host_us),
        "idle_gpu_us": _delta(found.idle_gpu_us),
        "idle_host_blame_us": _rows(found.blame),
        "sites": _rows(found.sites),
    }


def _rows(rows: tuple[Row, ...]) -> list[dict[str, Any]]:
    return [{"name": row.name, "us": _delta(row.us)} for row in rows]


def _delta(delta: Delta) -> dict[str, Any]:
    return {
        "base": delta.base,
        "head": delta.head,
        "change": delta.change,
        "interval": delta.interval,
        "resolved": delta.resolved,
    }
