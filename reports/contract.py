"""The JSON object that `analyze --format json` prints; its stable keys are those of the schema file."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from importlib import resources
from pathlib import PurePath
from typing import Any

from latencylab.model.findings import (
    Analysis,
    Doing,
    KernelClass,
    KindFindings,
    RankFindings,
    Step,
    StepParts,
    Steps,
    Sync,
    WindowParts,
)
from latencylab.reports import calibration
from latencylab.reports.format import storable

SCHEMA = "latencylab.analysis/1"

# Nine decimals of a µs are a millionth of the ns that was measured: short to read, and sums such as
# wall = busy + idle still hold far below 1e-6 µs, which six decimals would not grant.
_DECIMALS = 9


def to_contract(analysis: Analysis) -> dict[str, Any]:
    """The analysis as plain JSON data. Times are in µs; what is missing, NaN or infinite is null."""
    return {
        "schema": SCHEMA,
        "tool": {"name": "latencylab", "version": analysis.version},
        "capture": {"path": _plain(analysis.capture_path), "manifest": _plain(analysis.manifest)},
        "verdict": _plain(
            {
                "text": analysis.verdict.text,
                "confidence": analysis.verdict.confidence,
                "reasons": analysis.verdict.reasons,
            }
        ),
        "fixes": [_plain(asdict(f)) for f in analysis.fixes],
        "integrity": {
            "status": analysis.integrity.status,
            "issues": [_plain(asdict(i)) for i in analysis.integrity.issues],
        },
        "ranks": [_rank(r) for r in analysis.ranks],
        "alignment": None if analysis.alignment is None else _plain(asdict(analysis.alignment)),
        "collectives": None if analysis.collectives is None else _plain(asdict(analysis.collectives)),
        "calibration": None
        if analysis.calibration is None
        else _plain(calibration.to_contract(analysis.calibration)),
    }


def render_json(analysis: Analysis, indent: int | None = 2) -> str:
    """The contract as one JSON document."""
    return json.dumps(to_contract(analysis), indent=indent, ensure_ascii=False, allow_nan=False)


def schema() -> dict[str, Any]:
    """The contract as a JSON Schema (2020-12)."""
    file = resources.files("latencylab.reports").joinpath("schema/analysis-1.json")
    loaded: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return loaded


def _rank(rank: RankFindings) -> dict[str, Any]:
    head = {
        "rank": rank.rank,
        "device": rank.device,
        "device_name": _plain(rank.device_name),
        "gpu_ops": rank.gpu_ops,
        "launches": rank.launches,
        "window_us": _window(rank.window_us),
    }
    tail = {
        "other_kinds": [_kind(k) for k in rank.other_kinds],
        "steps_table": [_step(s) for s in rank.steps],
    }
    return head | _kind(rank.main) | tail


def _kind(kind: KindFindings) -> dict[str, Any]:
    """What the contract holds of one kind of step: flat in the rank for the main one."""
    return {
        "kind": _plain(kind.kind),
        "steps": _steps(kind.steps),
        "step_us": None if kind.step_us is None else _step_parts(kind.step_us),
        "idle_host_doing_us": _doing(kind.idle_host_doing_us),
        "idle_host_blame_us": _plain(kind.idle_host_blame_us),
        "idle_gpu_us": _plain(asdict(kind.idle_gpu_us)),
        "legs": [_plain(asdict(leg)) for leg in kind.legs],
        "run_ahead_us": None if kind.run_ahead_us is None else _plain(asdict(kind.run_ahead_us)),
        "syncs": [_sync(s) for s in kind.syncs],
        "kernels": [_kernel_class(k) for k in kind.kernels],
        "top_kernels": [
            {"name": _plain(k.name)} | _kernel_class(KernelClass(k.kernel_class, k.us, k.ops))
            for k in kind.top_kernels
        ],
        "abstained": _plain(kind.abstained),
    }


def _steps(steps: Steps) -> dict[str, Any]:
    return {
        "found": steps.found,
        "steady": steps.steady,
        "source": _plain(steps.source),
        "left_out": _plain(steps.left_out),
        "wall_us": None if steps.wall_us is None else _plain(asdict(steps.wall_us)),
        "modes_us": _plain(steps.modes_us),
    }


def _window(parts: WindowParts) -> dict[str, Any]:
    return {
        "wall": _number(parts.wall),
        "busy": _number(parts.busy),
        "idle": _number(parts.idle),
        "idle_host": _number(parts.idle_host),
        "idle_host_in_launch": _number(parts.idle_host_in_launch),
        "idle_gpu": _number(parts.idle_gpu),
        "idle_unknown": _number(parts.idle_unknown),
    }


def _step_parts(parts: StepParts) -> dict[str, Any]:
    return _window(parts) | {"collective_wait": _plain(parts.collective_wait)}


def _doing(doing: Doing) -> dict[str, Any]:
    plain: dict[str, Any] = _plain(asdict(doing))
    return plain


def _sync(sync: Sync) -> dict[str, Any]:
    plain: dict[str, Any] = _plain(asdict(sync))
    return plain


def _kernel_class(kernel: KernelClass) -> dict[str, Any]:
    return {"class": _plain(kernel.name), "us": _number(kernel.us), "ops": _number(kernel.ops)}


def _step(step: Step) -> dict[str, Any]:
    """One row of the steps table."""
    return {
        "index": step.index,
        "kind": _plain(step.kind),
        "start_ns": step.start_ns,
        "end_ns": step.end_ns,
        "left_out": _plain(step.left_out),
        "us": _step_parts(step.parts),
        "run_ahead_us": _plain(step.run_ahead_us),
        "slower_by": [_plain(asdict(d)) for d in step.slower_by],
    }


def _number(value: float) -> float | None:
    return round(float(value), _DECIMALS) if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    """Any value as JSON data: manifests hold whatever their writer put there.

    Lone surrogates, which no UTF-8 file can hold, are replaced; numpy's values give Python's.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {_plain(str(k)): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    if isinstance(value, PurePath):
        return _plain(str(value))
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return _plain(str(value))


def as_plain(value: Any) -> Any:
    """Any value as JSON data, as in the contract: for its sister documents."""
    return _plain(value)
