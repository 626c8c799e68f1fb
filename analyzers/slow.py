"""Why one step was slow: where it spent more than the median step of its kind."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from latencylab.analyzers.idle import DISPATCH, HOST, IN_GRAPH, LATENCY, UNKNOWN
from latencylab.analyzers.shares import doing_name
from latencylab.analyzers.view import KindView
from latencylab.model.findings import Difference
from latencylab.model.trace import I64

GPU_WAITS = {
    IN_GRAPH: "GPU idle: in_graph",
    DISPATCH: "GPU idle: dispatch",
    LATENCY: "GPU idle: launch_latency",
    UNKNOWN: "idle with no known launch",
}


def explain_steps(view: KindView) -> dict[int, tuple[Difference, ...]]:
    """For each step of the kind, its differences from the median step, largest first.

    A step is split into parts that add up to its wall time: busy by kernel class, host idle by blame, GPU
    idle by cause. The median step is the one (of the steady ones) whose wall time is the (lower) median, so
    that the differences of a step add up to how much longer than that one it took.
    """
    if not view.by_step:
        return {}
    steps = view.rank.steps
    names, table = _parts(view)
    by_wall = view.used[np.argsort((steps.end - steps.start)[view.used], kind="stable")]
    median = by_wall[(len(by_wall) - 1) // 2]
    return {
        int(row): tuple(
            Difference(names[part], float(difference[part]) / 1000)
            for part in np.argsort(-np.abs(difference), kind="stable")
            if difference[part]
        )
        for row in view.rows
        for difference in [table[row] - table[median]]
    }


def _parts(view: KindView) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The names of the parts, and per step of the rank the ns of each: an array (steps, parts)."""
    rank = view.rank
    names: list[str] = []
    columns: list[I64] = []

    def add(name: str, step: I64, length: I64) -> None:
        inside = step >= 0
        names.append(name)
        columns.append(np.bincount(step[inside], length[inside], len(rank.steps)).astype(np.int64))

    work_class = rank.op_class[rank.work.op]
    for row, name in enumerate(rank.classes):
        chosen = work_class == row
        add(f"busy: {name}", rank.work.step[chosen], rank.work.length[chosen])
    pieces = rank.pieces
    for cause, name in GPU_WAITS.items():
        chosen = pieces.cause == cause
        add(name, pieces.step[chosen], pieces.length[chosen])
    host = pieces.cause == HOST
    for site in np.unique(pieces.site[host & (pieces.site >= 0)]).tolist():
        chosen = host & (pieces.site == site)
        add(f"host idle: {rank.waits.sites[site]}", pieces.step[chosen], pieces.length[chosen])
    for code in np.unique(pieces.doing[host & (pieces.site < 0)]).tolist():
        chosen = host & (pieces.site < 0) & (pieces.doing == code)
        add(f"host idle: {doing_name(code, pieces.spans)}", pieces.step[chosen], pieces.length[chosen])
    return names, np.stack(columns, axis=1)
