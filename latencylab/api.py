"""The notebook's door: a capture opened and analysed, with its events as pandas frames.

import latencylab

run = latencylab.open("sample:nextn-host-stall")
run                                   # the verdict, and where a step goes
run.analysis.ranks[0].main.syncs      # the findings, as dataclasses
run.gaps.groupby("cause").us.sum()    # the events, as frames
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from latencylab.analyzers import analyze_examined, examine
from latencylab.analyzers.idle import DISPATCH, HOST, IN_GRAPH, LATENCY, UNKNOWN
from latencylab.analyzers.kernels import extend_classes
from latencylab.analyzers.shares import doing_name
from latencylab.analyzers.view import RankView
from latencylab.model.capture import Capture
from latencylab.model.findings import Analysis
from latencylab.model.trace import I64
from latencylab.traces import open_capture, read_text, sample_path

CAUSES = {
    HOST: "host",
    IN_GRAPH: "in_graph",
    DISPATCH: "dispatch",
    LATENCY: "launch_latency",
    UNKNOWN: "unknown",
}
STEP_COLUMNS = [
    "rank",
    "device",
    "step",
    "kind",
    "start_ns",
    "end_ns",
    "left_out",
    "wall_us",
    "busy_us",
    "collective_wait_us",
    "idle_us",
    "idle_host_us",
    "idle_host_in_launch_us",
    "idle_gpu_us",
    "idle_unknown_us",
    "run_ahead_us",
]
KINDS = ("kernel", "memcpy", "memset")
SAMPLE = "sample:"


def open_analysed(
    *paths: str | Path,
    ranks: Collection[int] | None = None,
    steps: tuple[int, int] | None = None,
    kind: str | None = None,
    classes: str | Path | None = None,
    step_span: str | None = None,
    **reading: Any,
) -> Opened:
    """Open a capture folder, trace files, a glob or `sample:NAME`, and analyse it.

    `ranks`, `steps` (half-open, of those found), `kind`, `classes` (a TOML file) and `step_span` (a regular
    expression) narrow the analysis as the command line's options do; `reading` goes to
    `traces.open_capture` (`cache`, `jobs`, `max_bytes`). Raises InputError with one line where anything is
    missing or unreadable.
    """
    places = [
        sample_path(str(path).removeprefix(SAMPLE)) if str(path).startswith(SAMPLE) else path
        for path in paths
    ]
    capture = open_capture(places, **reading)
    if len(paths) == 1 and str(paths[0]).startswith(SAMPLE):
        capture = replace(capture, path=str(paths[0]))
    table = None if classes is None else extend_classes(read_text(classes), str(classes))
    examined = examine(capture, classes=table, step_span=re.compile(step_span) if step_span else None)
    analysis = analyze_examined(examined, ranks=ranks, steps=steps, kind=kind)
    return Opened(capture, tuple(examined.views[i] for i in examined.places(ranks)), analysis)


@dataclass(frozen=True, repr=False)
class Opened:
    """A capture with its analysis, and frames with one row an event.

    Every frame has the columns rank and device. Times `start_ns` and `end_ns` are absolute int64 ns on the
    rank's own clock; durations are µs. `step` is the number of the step found, from 0, or -1 for none.
    """

    capture: Capture
    views: tuple[RankView, ...]
    analysis: Analysis

    def __repr__(self) -> str:
        return repr(self.analysis)

    def _repr_html_(self) -> str:
        return self.analysis._repr_html_()

    @cached_property
    def gpu_ops(self) -> pd.DataFrame:
        """Kernels, copies, memsets: name, kind, class, stream, correlation, bytes, exclusive_us, step."""
        return self._frame(_gpu_ops)

    @cached_property
    def api_calls(self) -> pd.DataFrame:
        """Runtime and driver calls: name, thread, correlation, ops (how many it launched), step."""
        return self._frame(_api_calls)

    @cached_property
    def spans(self) -> pd.DataFrame:
        """Spans on the host: name, thread, step."""
        return self._frame(_spans)

    @cached_property
    def gaps(self) -> pd.DataFrame:
        """The GPU's idle in pieces: cause, in_launch, doing and blame (of host pieces), op after it, step."""
        return self._frame(_gaps)

    @cached_property
    def blocking_calls(self) -> pd.DataFrame:
        """Blocking calls: site, api, evidence, waits_for, blocked_us, behind_us, queued_us, need_us, step."""
        return self._frame(_blocking_calls)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """Steps: index, kind, left_out, wall, busy, idle and its parts in µs, run_ahead_us."""
        rows = [
            (
                rank.rank,
                rank.device,
                step.index,
                step.kind,
                step.start_ns,
                step.end_ns,
                step.left_out,
                step.parts.wall,
                step.parts.busy,
                step.parts.collective_wait,
                step.parts.idle,
                step.parts.idle_host,
                step.parts.idle_host_in_launch,
                step.parts.idle_gpu,
                step.parts.idle_unknown,
                step.run_ahead_us,
            )
            for rank in self.analysis.ranks
            for step in rank.steps
        ]
        return pd.DataFrame(rows, columns=STEP_COLUMNS)

    def _frame(self, columns: Callable[[RankView], dict[str, Any]]) -> pd.DataFrame:
        frames = [
            pd.DataFrame({"rank": view.trace.rank, "device": view.trace.device, **columns(view)})
            for view in self.views
        ]
        return pd.concat(frames, ignore_index=True)


def _names(view: RankView, column: np.ndarray) -> pd.Categorical:
    used, codes = np.unique(column, return_inverse=True)
    return pd.Categorical.from_codes(
        codes, pd.Index([view.trace.names[i] for i in used.tolist()]).astype(str)
    )


def _times(start: I64, end: I64) -> dict[str, Any]:
    return {"start_ns": start, "end_ns": end, "us": (end - start) / 1000}


def _gpu_ops(view: RankView) -> dict[str, Any]:
    gpu = view.trace.gpu
    exclusive = np.bincount(view.work.op, view.work.length, len(gpu))
    launch = view.launches.of_op
    return {
        "name": _names(view, gpu.name),
        "kind": np.array(KINDS)[gpu.kind],
        "kernel_class": np.array(view.classes)[view.op_class],
        "stream": gpu.stream,
        "correlation": gpu.correlation,
        "bytes": gpu.bytes,
        **_times(gpu.start, gpu.end),
        "exclusive_us": exclusive / 1000,
        "launch_end_ns": np.where(launch >= 0, view.launches.end[launch] if len(view.launches) else -1, -1),
        "step": view.steps.of_gpu(gpu.start),
    }


def _api_calls(view: RankView) -> dict[str, Any]:
    api = view.trace.api
    ops = np.zeros(len(api), np.int64)
    ops[view.launches.row] = view.launches.ops
    return {
        "name": _names(view, api.name),
        "thread": _threads(view, api.thread),
        "correlation": api.correlation,
        **_times(api.start, api.end),
        "ops": ops,
        "step": view.steps.of_host(api.start),
    }


def _spans(view: RankView) -> dict[str, Any]:
    spans = view.trace.spans
    return {
        "name": _names(view, spans.name),
        "thread": _threads(view, spans.thread),
        **_times(spans.start, spans.end),
        "step": view.steps.of_host(spans.start),
    }


def _gaps(view: RankView) -> dict[str, Any]:
    pieces = view.pieces
    doing = [doing_name(code, pieces.spans) if code >= 0 else None for code in pieces.doing.tolist()]
    blame = [
        str(view.waits.sites[site]) if site >= 0 else its
        for site, its in zip(pieces.site.tolist(), doing, strict=True)
    ]
    return {
        "cause": [CAUSES[cause] for cause in pieces.cause.tolist()],
        "in_launch": pieces.in_launch,
        "doing": doing,
        "blame": blame,
        **_times(pieces.start, pieces.end),
        "op": _names(view, view.trace.gpu.name[pieces.op]),
        "step": pieces.step,
    }


def _blocking_calls(view: RankView) -> dict[str, Any]:
    waits, calls = view.waits, view.waits.calls
    waited = [view.trace.names[view.trace.gpu.name[op]] if op >= 0 else None for op in waits.op.tolist()]
    return {
        "site": [str(waits.sites[site]) for site in waits.site.tolist()],
        "api": list(calls.api),
        "thread": _threads(view, calls.thread),
        **_times(calls.start, calls.end),
        "evidence": list(waits.evidence),
        "waits_for": waited,
        "blocked_us": waits.blocked / 1000,
        "behind_us": np.where(waits.behind < 0, np.nan, waits.behind / 1000),
        "queued_us": waits.queued / 1000,
        "need_us": np.where(waits.need < 0, np.nan, waits.need / 1000),
        "step": view.steps.of_host(calls.start),
    }


def _threads(view: RankView, column: np.ndarray) -> list[str]:
    shown = [f"{thread.process}/{thread.thread}" for thread in view.trace.threads]
    return [shown[i] for i in column.tolist()]
