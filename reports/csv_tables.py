"""The findings as flat tables, one row a finding, for spreadsheets and notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from latencylab.model.findings import Analysis, KindFindings, RankFindings, Step
from latencylab.reports.format import finite, storable
from latencylab.reports.names import short_name
from latencylab.reports.summary import kinds, ordered_syncs

Row = dict[str, Any]

# Of every row, so that tables of several captures can be joined.
_KEYS = ("rank", "device", "kind")
_PARTS = (
    "wall",
    "busy",
    "collective_wait",
    "idle",
    "idle_host",
    "idle_host_in_launch",
    "idle_gpu",
    "idle_unknown",
)

COLUMNS: dict[str, tuple[str, ...]] = {
    "steps": (
        *_KEYS,
        "index",
        "start_ns",
        "end_ns",
        "left_out",
        *(f"{p}_us" for p in _PARTS),
        "run_ahead_us",
        "slower_by",
    ),
    "syncs": (
        *_KEYS,
        "site",
        "api",
        "sync_kind",
        "verdict",
        "evidence",
        "per_step",
        "calls",
        "call_us",
        "blocked_us",
        "idle_us",
        "behind_us",
        "need_us",
        "queued_us",
        "unprofiled_blocked_us",
        "cost_us",
        "bytes",
        "direction",
        "span",
        "op",
        "seam",
        "waits_for",
        "frames",
    ),
    "legs": (
        *_KEYS,
        "name",
        "seam_us",
        "seam_idle_host_us",
        "gpu_us",
        "busy_us",
        "ops",
        "launches",
        "run_ahead_us",
    ),
    "kernels": (*_KEYS, "class", "short_name", "name", "us", "ops"),
    "kernel_classes": (*_KEYS, "class", "us", "ops"),
    "idle": (*_KEYS, "split", "cause", "us"),
    "ranks": (
        "rank",
        "device",
        "reference",
        "offset_us",
        "residual_us",
        "bound_low_us",
        "bound_high_us",
        "drift_ppm",
        "points",
        "shifted",
        "unpaired",
        "note",
    ),
    "collectives": ("name", "per_step", "wait_us", "transfer_us", "skew_us", "resolved"),
    "late": ("rank", "kind", "wait_us", "share", "count", "cause", "us"),
    "uneven": ("rank", "kind", "on", "what", "us", "low_us", "high_us", "own_us"),
}


def tables(analysis: Analysis) -> dict[str, pd.DataFrame]:
    """One frame a table; the columns are the same whatever was found. Times are µs per step (of a table
    `steps`: µs of that step, of `ranks`: of clocks), `start_ns` and `end_ns` absolute ns.
    """
    rows: dict[str, list[Row]] = {name: [] for name in COLUMNS}
    for rank in analysis.ranks:
        rows["steps"].extend(_step(rank, step) for step in rank.steps)
        for kind in kinds(rank):
            key = {"rank": rank.rank, "device": rank.device, "kind": kind.kind}
            for name, row in _of_kind(kind):
                rows[name].append(key | row)
    for name, row in _of_ranks(analysis):
        rows[name].append(row)
    return {
        name: pd.DataFrame([_storable(row) for row in rows[name]], columns=list(columns))
        for name, columns in COLUMNS.items()
    }


def write_tables(analysis: Analysis, folder: Path) -> list[Path]:
    """Write each table as `<name>.csv` into the folder, which is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, frame in tables(analysis).items():
        path = folder / f"{name}.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            frame.to_csv(file, index=False, lineterminator="\n")
        written.append(path)
    return written


def _storable(row: Row) -> Row:
    """The row with empty cells for what is no number, and without what no file can hold."""
    return {
        name: finite(v) if isinstance(v, float) else storable(v) if isinstance(v, str) else v
        for name, v in row.items()
    }


def _step(rank: RankFindings, step: Step) -> Row:
    parts = asdict(step.parts)
    return {
        "rank": rank.rank,
        "device": rank.device,
        "kind": step.kind,
        "index": step.index,
        "start_ns": step.start_ns,
        "end_ns": step.end_ns,
        "left_out": step.left_out,
        **{f"{p}_us": parts[p] for p in _PARTS},
        "run_ahead_us": step.run_ahead_us,
        "slower_by": "; ".join(f"{d.what}: {d.us:.3f}" for d in step.slower_by),
    }


def _of_ranks(analysis: Analysis) -> Iterator[tuple[str, Row]]:
    """Each row about several ranks with the name of its table: none where they were not aligned."""
    found, alignment = analysis.collectives, analysis.alignment
    devices = {rank.rank: rank.device for rank in analysis.ranks}
    for clock in alignment.ranks if alignment else ():
        row = asdict(clock) | {
            "device": devices.get(clock.rank),
            "reference": alignment.reference if alignment else None,
            "unpaired": found.unpaired_by_rank.get(clock.rank) if found else None,
        }
        row["bound_low_us"], row["bound_high_us"] = row.pop("bound_us") or (None, None)
        yield "ranks", row
    for kind in found.kinds if found else ():
        row = asdict(kind)
        row["per_step"] = row.pop("count")
        yield "collectives", row
    for late in found.late if found else ():
        for name, us in late.causes.items():
            yield "late", asdict(late) | {"cause": name, "us": us}
    for its in found.uneven if found else ():
        for part in its.parts:
            row = asdict(part) | {"rank": its.rank, "kind": its.kind, "on": its.on}
            row["low_us"], row["high_us"] = row.pop("interval_us")
            yield "uneven", row


def _of_kind(kind: KindFindings) -> Iterator[tuple[str, Row]]:
    """Each row of one kind of step with the name of its table."""
    for sync in ordered_syncs(kind):
        row = asdict(sync)
        row["sync_kind"] = row.pop("kind")
        row["frames"] = " < ".join(sync.frames)
        yield "syncs", row
    for leg in kind.legs:
        yield "legs", asdict(leg)
    for kernel in kind.top_kernels:
        yield (
            "kernels",
            {
                "class": kernel.kernel_class,
                "short_name": short_name(kernel.name),
                "name": kernel.name,
                "us": kernel.us,
                "ops": kernel.ops,
            },
        )
    for group in kind.kernels:
        yield "kernel_classes", {"class": group.name, "us": group.us, "ops": group.ops}
    for split, cause, us in _idle(kind):
        yield "idle", {"split": split, "cause": cause, "us": us}


def _idle(kind: KindFindings) -> Iterator[tuple[str, str, float]]:
    """The idle time three times over: the host's by blame, the host's by doing, the GPU's by reason."""
    for cause, us in kind.idle_host_blame_us.items():
        yield "host_blame", cause, us
    doing = asdict(kind.idle_host_doing_us)
    spans: dict[str, float] = doing.pop("span")
    for name, us in doing.items():
        yield "host_doing", name, us
    for name, us in spans.items():
        yield "host_doing", f"span {name}", us
    for name, us in asdict(kind.idle_gpu_us).items():
        yield "gpu", name, us
