"""Legs, the graph-launched parts of a step, and the seams between them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from latencylab.analyzers.launches import Launches
from latencylab.analyzers.marks import LEG_REPLAY
from latencylab.analyzers.steps import LEG_SPAN, MODE, StepTable, outermost
from latencylab.model.trace import I64, Trace

MIN_OPS = 32  # of a graph replay that counts as a leg where no span names the legs
NAMES = {"draft_extend": "extend", "target_verify": "verify"}


@dataclass(frozen=True, slots=True, eq=False)
class LegTable:
    """Legs in order of their first launch.

    `start`..`end`: from its first op's start to its last op's end; `launch_start`, `launch_end`: the first
    of its `launches` graph launches; `seam_start`: the last op's end of the leg before, or -1 for the
    first; `step`: the step that launched it, or -1; `stream`: of its first op.
    """

    name: tuple[str, ...]
    start: I64
    end: I64
    launch_start: I64
    launch_end: I64
    seam_start: I64
    step: I64
    stream: I64
    thread: I64
    ops: I64
    launches: I64

    def __len__(self) -> int:
        return len(self.start)


def find_legs(trace: Trace, launches: Launches, steps: StepTable) -> LegTable:
    """Find the legs: what one leg span (draft, verify, extend, decode) launches as graphs.

    Our runtime marks each leg's own replay, so that a metadata graph within the span is told apart. Without
    any leg span each replay of 32 ops or more is a leg, named by its place in the step.
    """
    graphs = np.flatnonzero(launches.graph)
    spans = trace.spans
    replays = trace.matching(LEG_REPLAY)[spans.name]
    chosen = replays if replays.any() else outermost(spans, trace.matching(LEG_SPAN)[spans.name])
    rows = np.flatnonzero(chosen)
    holder = np.full(len(graphs), -1, np.int64)
    for thread in np.unique(launches.thread[graphs]):
        mine = rows[spans.thread[rows] == thread]
        if not len(mine):
            continue
        at = np.flatnonzero(launches.thread[graphs] == thread)
        span = np.searchsorted(spans.start[mine], launches.start[graphs[at]], side="right") - 1
        inside = (span >= 0) & (launches.start[graphs[at]] < spans.end[mine[np.maximum(span, 0)]])
        holder[at[inside]] = mine[span[inside]]
    step = steps.of_host(launches.start[graphs])
    members: dict[int, list[int]] = defaultdict(list)
    names: list[str] = []
    if (holder >= 0).any():
        for graph, span in zip(graphs[holder >= 0].tolist(), holder[holder >= 0].tolist(), strict=True):
            members[span].append(graph)
        names = [_leg_name(trace.names[spans.name[span]]) for span in members]
    else:
        seen: dict[int, int] = defaultdict(int)
        for graph, its_step in zip(graphs.tolist(), step.tolist(), strict=True):
            if launches.ops[graph] >= MIN_OPS:
                members[graph].append(graph)
                seen[its_step] += 1
                names.append(f"replay {seen[its_step]}")
    return _table(trace, launches, steps, list(members.values()), names)


def _leg_name(span: str) -> str:
    mode = LEG_REPLAY.match(span) or MODE.match(span)
    name = mode.group(1).lower() if mode else span
    return NAMES.get(name, name)


def _table(
    trace: Trace, launches: Launches, steps: StepTable, members: list[list[int]], names: list[str]
) -> LegTable:
    first = np.array([rows[0] for rows in members], np.int64)
    start = np.array([trace.gpu.start[launches.first_op[rows]].min() for rows in members], np.int64)
    end = np.array([launches.done[rows].max() for rows in members], np.int64)
    by_gpu = np.argsort(start, kind="stable")
    seam_start = np.full(len(first), -1, np.int64)
    seam_start[by_gpu[1:]] = np.maximum.accumulate(end[by_gpu])[:-1]
    return LegTable(
        name=tuple(names),
        start=start,
        end=end,
        launch_start=launches.start[first],
        launch_end=launches.end[first],
        seam_start=seam_start,
        step=steps.of_host(launches.start[first]),
        stream=trace.gpu.stream[launches.first_op[first]],
        thread=launches.thread[first],
        ops=np.array([launches.ops[rows].sum() for rows in members], np.int64),
        launches=np.array([len(rows) for rows in members], np.int64),
    )
