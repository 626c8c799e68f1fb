"""The step clock that a run would have measured, and a profiler's way of slowing a run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from latencylab.model.unprofiled import StepClock
from synth.actions import MAIN_STREAM, Action, Copy, GraphLaunch, Launch, Scenario
from synth.engine import Mark, Run
from synth.transform import rewritten

STEP = "scheduler.run_batch"
BETWEEN_REQUESTS = 1_000_000_000
_BRACKETS = re.compile(r"\s*\[[^\]]*\]")


def step_clock(runs: Sequence[Run], *, full: bool = True, unmarked: str | None = None) -> StepClock:
    """The clock of these runs, a request each, one after the other. `full` has every span, and waiting apart;
    else there are the rows of steps alone. Calls that match `unmarked` have no row of their own."""
    rows: list[tuple[int, str, int, int, int, str, int, int]] = []
    step = 0
    for request, run in enumerate(runs):
        shift = request * BETWEEN_REQUESTS
        (thread,) = {m.thread for m in run.marks if m.name == STEP}
        mine = (m for m in run.marks if m.layer == "span" and m.thread == thread)
        spans = sorted(mine, key=lambda m: m.start)
        starts = [m.start for m in spans if m.name == STEP]
        for mark in spans:
            name = _BRACKETS.sub("", mark.name)
            if name == STEP or full:
                its = int(np.searchsorted(starts, mark.start, side="right")) - 1
                on_gpu = _gpu_start(run, mark.start) + shift if full and name in (STEP, "ll.step") else -1
                rows.append((step + its, name, *_shifted(mark, shift), -1, _kind(run, its), request, on_gpu))
        if full:
            for wait in run.waits:
                if unmarked and re.search(unmarked, wait.call.name):
                    continue
                its = int(np.searchsorted(starts, wait.start, side="right")) - 1
                done = wait.waited.end if wait.waited else wait.start
                waiting = min(max(done - wait.start, 0), wait.end - wait.start)
                times = wait.start + shift, wait.end + shift, waiting
                rows.append((step + its, "ll.wait.synchronize", *times, _kind(run, its), request, -1))
        step += len(starts)
    rows.sort(key=lambda row: row[3])
    number, span, start, end, waiting_ns, kind, of, on_gpu = zip(*rows, strict=True)
    return StepClock(
        step=np.array(number),
        span=span,
        start_ns=np.array(start),
        end_ns=np.array(end),
        waiting_ns=np.array(waiting_ns),
        cpu_ns=np.full(len(rows), -1),
        gpu_start_ns=np.array(on_gpu),
        kind=kind,
        request=np.array(of),
    )


def _gpu_start(run: Run, time: int) -> int:
    """When an event recorded then on the main stream comes: after what was launched there before."""
    before = [op.end for op in run.ops if op.stream == MAIN_STREAM and op.call.end <= time]
    return max([time, *before])


def _shifted(mark: Mark, by: int) -> tuple[int, int]:
    return mark.start + by, mark.end + by


def _kind(run: Run, step: int) -> str:
    words = {"nextn": "NEXTN", "dspark": "DSpark"}
    kind = run.scenario.kinds[max(step, 0)]
    return words.get(kind, kind)


def slower_gpu(scenario: Scenario, factor: float) -> Scenario:
    """The same with all GPU work, and the gaps inside graphs and between ops, slower by `factor`."""

    def rule(action: Action) -> list[Action]:
        match action:
            case GraphLaunch(nodes=nodes):
                slower = tuple(
                    replace(n, dur=round(n.dur * factor), gap=round(n.gap * factor)) for n in nodes
                )
                return [replace(action, nodes=slower)]
            case Launch() | Copy():
                return [replace(action, dur=round(action.dur * factor), gap=round(action.gap * factor))]
        return [action]

    return rewritten(scenario, rule)
