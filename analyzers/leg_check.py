"""A check of the replay by what no profiler touched: when the GPU comes to each leg of a step.

The step clock records an event on the GPU at the start of a step and of each leg. In a replay such an event,
recorded at host time h, comes at max(h, end of the work launched before it on the legs' stream).
"""

from __future__ import annotations

import numpy as np

from latencylab.analyzers.calibrate import Model, replay_at
from latencylab.analyzers.replay import F64, Program, Times
from latencylab.analyzers.replay_build import clock_name
from latencylab.analyzers.step_clock import LEG, leg_lengths
from latencylab.model.calibration import LegTime
from latencylab.model.trace import I64
from latencylab.model.unprofiled import STEP_SPANS, StepClock


def check_legs(model: Model, clock: StepClock) -> tuple[LegTime, ...]:
    """The legs in the order of their step, where clock and trace have a span for each; else nothing."""
    measured = leg_lengths(clock, model.view.kind or "")
    predicted = _predicted(model, frozenset(measured)) if measured else {}
    middle = {leg: float(np.median(ns)) for leg, ns in measured.items()}
    return tuple(
        LegTime(leg, predicted[leg] / 1000, middle[leg] / 1000)
        for leg in model.program.seams
        if leg in predicted and middle[leg] > 0
    )


def _predicted(model: Model, legs: frozenset[str]) -> dict[str, float]:
    """Per leg the median ns to the next mark on the GPU, over the steps and the speeds of the host."""
    view, program, stretches = model.view, model.program, model.stretches
    trace, steps = view.rank.trace, view.rank.steps
    names = [clock_name(trace.names[row]) for row in trace.spans.name.tolist()]
    step_span = next((span for span in STEP_SPANS if span in names), "")
    rows = np.array(
        [
            row
            for row, name in enumerate(names)
            if (name == step_span or _leg(name) in legs) and trace.spans.thread[row] == steps.thread
        ],
        np.int64,
    )
    rows = rows[trace.spans.start[rows] < steps.host_start[len(program.edges) - 1]]
    if len(rows) < 2:
        return {}
    rows = rows[np.argsort(trace.spans.start[rows], kind="stable")]
    at = trace.spans.start[rows] - program.origin
    speeds = stretches.speeds()
    _, times = replay_at(model, speeds)
    length = np.diff(_on_gpu(program, times, at, steps.thread), axis=0)
    counted = np.isin(steps.of_host(trace.spans.start[rows[:-1]]), model.steps)
    name = np.array([_leg(names[row]) for row in rows[:-1].tolist()])
    found = {}
    for leg in legs:
        chosen = counted & (name == leg)
        if chosen.any():
            found[leg] = stretches.median(stretches.at(speeds, np.median(length[chosen], axis=0))).value
    return found


def _leg(span: str) -> str:
    its = LEG.match(span)
    return its.group(1) if its else ""


def _on_gpu(program: Program, times: Times, at: I64, thread: int) -> F64:
    """When events that this thread recorded at these times of the trace come in each replay."""
    stream = np.bincount(program.stream[program.leg >= 0]).argmax()
    queued = np.flatnonzero(program.stream == stream)
    before = np.searchsorted(program.start[queued], at) - 1
    done = np.where((before >= 0)[:, None], times.done[queued[np.maximum(before, 0)]], 0.0)
    mine = np.flatnonzero(program.thread == thread)
    after = np.clip(np.searchsorted(program.start[mine], at), 1, len(mine) - 1)
    last, following = mine[after - 1], mine[after]
    span = program.start[following] - program.start[last]
    part = np.divide(at - program.start[last], span, out=np.zeros(len(at)), where=span > 0)
    host = times.begin[last] + np.clip(part, 0, 1)[:, None] * (times.begin[following] - times.begin[last])
    latest: F64 = np.maximum(host, done)
    return latest
