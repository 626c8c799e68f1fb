"""The map from profiled to unprofiled time: a factor for each sort of host time, the host's speed, the GPU's.

With P the host time of a sort in a step of the trace, a stretch of steps without the profiler takes speed *
relative[sort] * P of it. `relative` comes from the spans that the clock has, waiting left out. Where it does
not have waiting apart, `relative` is 1 within the step's span; between the spans it comes from steps that do
not wait there. Spans that hold waits without a row have the factor of the others together. The speed of a
stretch is a state of the machine, read from its spans: the ratio of the sums where the clock has all waiting
apart, else the speed at which the replayed span of the step lasts as long as the measured one. The lengths of
steps enter in one place alone: where they depend on the GPU, its factor is the one with which the predicted
steps are as long as the measured ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from latencylab.analyzers.host import PROFILER, WAITING
from latencylab.analyzers.replay import F64, Program, Scenarios, joined, replay, span_lengths, step_starts
from latencylab.analyzers.step_clock import ClockSteps
from latencylab.model.integrity import InputError
from latencylab.model.trace import I64, Bool

SPEEDS = np.geomspace(0.15, 2.5, 36)  # of the host, over what the trace shows
WARM_STEPS = 6  # of a replay, until the queue is as long as it gets
UNHELD = 0.01  # of the time between two steps' spans: blocked no longer, all of it is the host's work
TRIED_GPU = 0.96  # the factor beside 1 between which the step's dependence on it is taken
GPU_SLOPE = 0.5  # of a change of the GPU's factor, at least so much in the step, for the step to show it
ROUNDS, SETTLED = 4, 0.01  # of fitting the time between spans, at most, and until it moves less than this
FLAT = 0.1  # a step that changes by less than this share of a change of speed does not depend on it
LEAST_NS = 2_000  # host time per step that a factor is made of; below, the whole's holds


@dataclass(frozen=True, slots=True, eq=False)
class HostMap:
    """Factors by sort of host time (`relative`), and the GPU's. `gpu` is 1 and `gpu_known` False where no
    step shows it. `pace`, by item, takes out how much faster or slower the host was in an item's step than
    in the median step of the trace: the spread of its speed without the profiler is in the stretches, whose
    speeds are about the `usual` one."""

    relative: F64
    pace: F64
    gpu: float = 1.0
    gpu_known: bool = False
    usual: float = 1.0

    def scenarios(self, program: Program, speed: F64) -> Scenarios:
        """The program at these speeds of the host, without the profiler: that slows the other ranks' hosts
        too, so no rank is taken to wait for those."""
        return Scenarios(
            host=host_factors(program, self.relative, speed),
            gpu=np.full(len(speed), self.gpu),
            gap=np.repeat(self.pace[:, None], len(speed), axis=1),
            hosts=np.zeros(len(speed)),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A replayed step by the host's speed: medians over the steps of a kind, ns. `span` is the step's own,
    `between` the host time from its end to the next one's start, and `held` how long the host is blocked in
    between; None where steps have no span."""

    step: F64
    span: F64 | None
    between: F64 | None
    held: F64 | None

    def step_at(self, speed: F64) -> F64:
        """The step at each of these speeds, ns."""
        step: F64 = np.interp(np.log(speed), np.log(SPEEDS), self.step)
        return step

    def depends(self, speed: F64) -> F64:
        """By how many percent the step changes for a percent of the speed."""
        slope = np.gradient(np.log(self.step), np.log(SPEEDS))
        depends: F64 = np.interp(np.log(speed), np.log(SPEEDS), slope)
        return depends

    def span_says_nothing(self, speed: float) -> bool:
        """Whether the step's span is as long at any speed around this one: it waits for the GPU."""
        if self.span is None:
            return False
        slope = np.gradient(np.log(self.span), np.log(SPEEDS))
        return bool(abs(np.interp(np.log(speed), np.log(SPEEDS), slope)) < FLAT)


def host_factors(program: Program, relative: F64, speed: F64) -> F64:
    """Sorts x speeds. The profiler's own work is gone, and so is waiting for other ranks' hosts, for it slows
    those too: what is left of that is in a span's measured time, with all else done in silence.
    """
    factors = relative[:, None] * speed
    factors[~_scaled(program)] = 0.0
    return factors


def profiled(program: Program) -> Scenarios:
    """The program as the trace has it."""
    return Scenarios(np.ones((len(program.sorts), 1)), np.ones(1))


def counted_steps(steps: I64, found: int) -> I64:
    """Those of these steps that a replay's medians are taken over: warm, and with a next one."""
    chosen = steps[steps < found - 1]
    warm = chosen[chosen >= min(WARM_STEPS, found // 4)]
    return warm if len(warm) else chosen


def curves(program: Program, maps: Sequence[HostMap], steps: I64) -> list[Curve]:
    """Replay the program at all speeds by each map, in one pass."""
    parts = [its.scenarios(program, SPEEDS) for its in maps]
    times = replay(program, joined(parts))
    shape = (len(maps), len(SPEEDS))

    def middle(values: F64) -> F64:
        median: F64 = np.median(values, axis=0).reshape(shape)
        return median

    step = middle(np.diff(step_starts(program, times), axis=0)[steps])
    spans = span_lengths(program, times)
    if spans is None:
        return [Curve(one, None, None, None) for one in step]
    between = np.diff(times.begin[program.edges[:, 0]], axis=0)[steps] - spans[steps]
    after = np.flatnonzero((program.step >= 0) & (np.arange(len(program)) > program.edges[program.step, 1]))
    held = np.zeros((len(program.edges), len(maps) * len(SPEEDS)))
    np.add.at(held, program.step[after], times.blocked[after])
    return [
        Curve(*one)
        for one in zip(step, middle(spans[steps]), middle(between), middle(held[steps]), strict=True)
    ]


def host_time(program: Program, steps: I64) -> F64:
    """The mean host ns of each sort in these steps, at the pace of the median one."""
    by_step = _host_time_by_step(program)[steps]
    total = by_step[:, _scaled(program)].sum(axis=1)
    paced = by_step * (np.median(total) / np.maximum(total, 1.0))[:, None]
    mean: F64 = paced.mean(axis=0)
    return mean


def paces(program: Program, steps: I64) -> F64:
    """Per item the median step's host time over that of its own step; 1 outside steps."""
    total = _host_time_by_step(program)[:, _scaled(program)].sum(axis=1)
    pace = np.where(total > 0, np.median(total[steps]) / np.maximum(total, 1.0), 1.0)
    return np.where(program.step >= 0, pace[np.maximum(program.step, 0)], 1.0)


def _host_time_by_step(program: Program) -> F64:
    by_step = np.zeros((len(program.edges), len(program.sorts)))
    inside = np.flatnonzero(program.step >= 0)
    np.add.at(by_step, program.step[inside], program.gap[inside])
    np.add.at(by_step, (program.step[inside], program.own_sort[inside]), program.own[inside])
    return by_step


def _scaled(program: Program) -> Bool:
    """The sorts of host time that the host's speed scales."""
    return np.array([sort.doing not in (WAITING, PROFILER) for sort in program.sorts], bool)


def fit(
    program: Program, steps: I64, clock: ClockSteps, choices: Sequence[Bool]
) -> list[tuple[HostMap, Curve]]:
    """Fit a map, with its curve, on each choice of the steps of a clock."""
    pace = paces(program, steps)
    maps = [HostMap(_relative(program, steps, clock, chosen), pace) for chosen in choices]
    shapes = curves(program, maps, steps)
    maps = _with_usual_speeds(maps, shapes, clock, choices)
    stretches = [np.unique(clock.stretch[chosen]) for chosen in choices]
    for _ in range(0 if clock.waits else ROUNDS):
        # What the host does between steps decides how long it waits within them, and so its speed there.
        better = [_between(program, steps, clock, *its) for its in zip(maps, shapes, stretches, strict=True)]
        moved = max(np.abs(new.relative - old.relative).max() for new, old in zip(better, maps, strict=True))
        if moved < SETTLED:
            break
        shapes = curves(program, better, steps)
        maps = _with_usual_speeds(better, shapes, clock, choices)
    tried = [replace(its, gpu=TRIED_GPU) for its in maps]
    tried_shapes = curves(program, tried, steps)
    fitted = [
        _with_gpu_factor(program, steps, clock, *its)
        for its in zip(maps, shapes, tried, tried_shapes, stretches, strict=True)
    ]
    return list(zip(fitted, curves(program, fitted, steps), strict=True))


def _with_gpu_factor(
    program: Program,
    steps: I64,
    clock: ClockSteps,
    host_map: HostMap,
    shape: Curve,
    tried: HostMap,
    tried_shape: Curve,
    stretches: I64,
) -> HostMap:
    """The map with the GPU's factor, from those stretches whose predicted step depends on it, by the slope of
    the prediction between two factors."""
    measured = np.log(medians(clock.length, clock.stretch)[stretches])

    def predicted(its_map: HostMap, its_shape: Curve) -> F64:
        speed = stretch_speeds(program, steps, clock, its_map, its_shape)[stretches]
        logarithm: F64 = np.log(its_shape.step_at(speed))
        return logarithm

    at_one, at_tried = predicted(host_map, shape), predicted(tried, tried_shape)
    slope = (at_one - at_tried) / -np.log(TRIED_GPU)
    bound = slope > GPU_SLOPE
    if not bound.any():
        return host_map
    factor = np.exp((measured - at_one)[bound] / slope[bound])
    return replace(host_map, gpu=float(np.median(factor)), gpu_known=True)


def _between(
    program: Program, steps: I64, clock: ClockSteps, host_map: HostMap, shape: Curve, stretches: I64
) -> HostMap:
    """The map with a factor for the host time between the steps' spans, from those stretches in which the
    replay blocks nowhere in between."""
    if shape.between is None or shape.held is None or shape.span_says_nothing(host_map.usual):
        return host_map
    speed = stretch_speeds(program, steps, clock, host_map, shape)[stretches]
    predicted = np.interp(np.log(speed), np.log(SPEEDS), shape.between)
    held = np.interp(np.log(speed), np.log(SPEEDS), shape.held)
    free = held < UNHELD * predicted
    if not free.any():
        return host_map
    measured = medians(clock.between, clock.stretch)[stretches]
    factor = float(np.median(measured[free] / predicted[free]))
    outside = np.array([sort.clocked == "" for sort in program.sorts])
    return replace(host_map, relative=np.where(outside, host_map.relative * factor, host_map.relative))


def stretch_speeds(program: Program, steps: I64, clock: ClockSteps, host_map: HostMap, shape: Curve) -> F64:
    """The host's speed in each stretch of a clock's steps, from its spans alone.

    Where waits within a step's span make it shorter for a slower host, it can be as long as the measured one
    at several speeds: the one nearest to the usual speed counts. Where waits make it as long at any speed,
    the time between the spans tells.
    """
    if clock.waits and clock.self_ns and not clock.unmarked:
        total = np.sum(list(clock.self_ns.values()), axis=0)
        unit = host_factors(program, host_map.relative, np.ones(1))[:, 0]
        # What is queued evens out the host's slow and quick steps: it is their mean that holds the GPU up.
        mean = np.bincount(clock.stretch, total) / np.bincount(clock.stretch)
        if (mean <= 0).any():
            raise InputError("the step clock's spans are longer than its steps, or its waits than its spans")
        return mean / float((host_time(program, steps) * unit).sum())
    spans, measured = (shape.span, clock.span) if shape.span is not None else (shape.step, clock.length)
    if shape.span_says_nothing(host_map.usual) and shape.between is not None:
        spans, measured = shape.between, clock.between
    return np.array(
        [_speed_at(spans, length, host_map.usual) for length in medians(measured, clock.stretch).tolist()]
    )


def _speed_at(spans: F64, length: float, usual: float) -> float:
    """The speed nearest to the usual one at which a replayed span is so long; where none is, the best one."""
    off, log_speed = spans - length, np.log(SPEEDS)
    crossing = np.flatnonzero((off[:-1] <= 0) != (off[1:] <= 0))
    if not len(crossing):
        return float(SPEEDS[np.argmin(np.abs(off))])
    part = off[crossing] / (off[crossing] - off[crossing + 1])
    roots = log_speed[crossing] + part * (log_speed[crossing + 1] - log_speed[crossing])
    return float(np.exp(roots[np.argmin(np.abs(roots - np.log(usual)))]))


def _with_usual_speeds(
    maps: Sequence[HostMap], shapes: Sequence[Curve], clock: ClockSteps, choices: Sequence[Bool]
) -> list[HostMap]:
    """The maps with the speed at which span and time to the next one are nearest to those measured."""
    found = []
    for host_map, shape, chosen in zip(maps, shapes, choices, strict=True):
        usual = host_map.usual
        if shape.span is not None and shape.between is not None:
            span = shape.span - np.median(clock.span[chosen])
            between = shape.between - np.median(clock.between[chosen])
            usual = float(SPEEDS[np.argmin(span**2 + between**2)])
        found.append(replace(host_map, usual=usual))
    return found


def medians(values: I64 | F64, group: I64) -> F64:
    """The median of the values of each group 0 to the last."""
    return np.array([np.median(values[group == g]) for g in range(int(group.max()) + 1)])


def _relative(program: Program, steps: I64, clock: ClockSteps, chosen: Bool) -> F64:
    """A factor for each sort from the spans of the clock; all 1 where waiting was not measured apart."""
    relative = np.ones(len(program.sorts))
    if not clock.waits:
        return relative
    traced = host_time(program, steps)
    profiled_ns: dict[str, float] = {}
    for sort, ns, counts in zip(program.sorts, traced.tolist(), _scaled(program).tolist(), strict=True):
        if counts:
            profiled_ns[sort.clocked] = profiled_ns.get(sort.clocked, 0.0) + ns
    detailed = chosen & clock.detailed
    if not detailed.any():
        return relative
    measured = {name: float(np.median(ns[detailed])) for name, ns in clock.self_ns.items()}
    both = [
        name
        for name, ns in profiled_ns.items()
        if ns >= LEAST_NS and measured.get(name, 0.0) > 0 and name not in clock.unmarked
    ]
    whole = sum(measured[name] for name in both) / max(sum(profiled_ns[name] for name in both), 1.0)
    factors = {name: measured[name] / profiled_ns[name] for name in both}
    for row, sort in enumerate(program.sorts):
        relative[row] = factors.get(sort.clocked, whole or 1.0)
    return relative
