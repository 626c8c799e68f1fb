"""What a step would be without the profiler: its host's map, its replay, and how far both can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latencylab.analyzers.host import PROFILER, WAITING
from latencylab.analyzers.host_map import (
    FLAT,
    Curve,
    HostMap,
    counted_steps,
    fit,
    host_factors,
    host_time,
    medians,
    profiled,
    stretch_speeds,
)
from latencylab.analyzers.replay import F64, Program, Scenarios, Times, replay, step_starts
from latencylab.analyzers.replay_build import PeerWaits, build_program
from latencylab.analyzers.replay_idle import ReplayedIdle, replayed_idle
from latencylab.analyzers.step_clock import ClockSteps, clock_steps, clocked_spans
from latencylab.analyzers.view import KindView
from latencylab.model.calibration import Calibration, CalibrationStatus, Estimate, SpanTime
from latencylab.model.integrity import InputError
from latencylab.model.trace import I64, Bool
from latencylab.model.unprofiled import StepClock

TRUSTED_PCT = 5.0  # of the measured step, by which the predicted one may be off
REPLAY_PCT = 1.0  # of the profiled step, by which its replay with nothing changed may be off
HOST_FACTORS = (0.1, 1.25)  # no profiler makes its host quicker, nor all of it ten times slower
GPU_FACTORS = (0.9, 1.05)  # the profiler slows the GPU by some percent: another factor is something else
OTHER_RUN = "what the step clock measured is not what the trace shows"
SPEEDS_REPLAYED = 7
MOST_STEPS = 64  # of a trace that are replayed: more tell no more, and take as much longer
RESAMPLED = 400
SEED = 1  # intervals are the same in every run


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """Stretches of steps without the profiler: the host's `speed` in each, its number of steps (`weight`),
    its request, and the measured `length` of its median step in ns, 0 where nothing measured it."""

    speed: F64
    weight: I64
    request: I64
    length: F64

    def at(self, speeds: F64, values: F64) -> F64:
        """Values known at these speeds (rising), at the speed of each stretch."""
        return np.interp(np.log(self.speed), np.log(speeds), values)

    def speeds(self) -> F64:
        """A few speeds that cover those of the stretches."""
        return np.unique(np.quantile(self.speed, np.linspace(0, 1, SPEEDS_REPLAYED)))

    def mean(self, values: F64) -> Estimate:
        """The mean over steps, with its interval by the bootstrap over requests."""
        group = self._groups()
        weights = np.bincount(group, self.weight)
        sums = np.bincount(group, values * self.weight)
        draws = np.random.default_rng(SEED).integers(0, len(sums), (RESAMPLED, len(sums)))
        spread = sums[draws].sum(axis=1) / weights[draws].sum(axis=1)
        low, high = np.quantile(spread, [0.025, 0.975]).tolist()
        value = float(sums.sum() / weights.sum())
        return Estimate(value, min(low, value), max(high, value))

    def median(self, values: F64, less: F64 | None = None) -> Estimate:
        """The median over steps, with its interval by the bootstrap over requests; of `less` subtracted."""
        value, spread = self._medians(values)
        if less is not None:
            other, its_spread = self._medians(less)
            value, spread = value - other, spread - its_spread
        low, high = np.quantile(spread, [0.025, 0.975]).tolist()
        return Estimate(value, min(low, value), max(high, value))

    def _medians(self, values: F64) -> tuple[float, F64]:
        """The median over steps, and those over requests drawn anew, the same ones at each call."""
        group = self._groups()
        by_group = np.array([np.median(values[group == g]) for g in range(int(group.max()) + 1)])
        draws = np.random.default_rng(SEED).integers(0, len(by_group), (RESAMPLED, len(by_group)))
        return float(np.median(np.repeat(values, self.weight))), np.median(by_group[draws], axis=1)

    def _groups(self) -> I64:
        """What is resampled: requests, or stretches where there are fewer than three of those."""
        requests, group = np.unique(self.request, return_inverse=True)
        return group if len(requests) >= 3 else np.arange(len(self.request))


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A calibrated model of the steps of one kind: `steps` are those that replays are summed over, `unmarked`
    the spans that hold waits of which the clock has no row."""

    view: KindView
    program: Program
    host_map: HostMap
    shape: Curve
    stretches: Stretches
    steps: I64
    unmarked: frozenset[str] = frozenset()

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(str(site) for site in self.view.rank.waits.sites)

    def predicted(self) -> F64:
        """The step of each stretch, ns."""
        return self.shape.step_at(self.stretches.speed)

    def depends_on_host(self) -> bool:
        """Whether any stretch's step would change with the speed of its host."""
        return bool((np.abs(self.shape.depends(self.stretches.speed)) >= FLAT).any())


@dataclass(frozen=True, slots=True, eq=False)
class Test:
    """Predictions of each half of the requests by a map fitted on the other half, per stretch in ns; the
    error of the median step in percent; that where the speed of the host is the other half's too; and
    what was measured."""

    predicted: F64
    error_pct: float
    blind_error_pct: float
    measured: Stretches


def fit_model(view: KindView, clock: StepClock, peers: PeerWaits | None = None) -> tuple[Model, Test]:
    """Fit the model of a kind of step to its clock, and test it.

    Raises InputError where there is nothing to fit, or the clock is of another configuration.
    """
    clocked = clocked_spans(clock, view)
    timed = clock_steps(clock, view, clocked)
    program, steps = program_of(view, peers, clocked)
    (host_map, shape), *halves = fit(program, steps, timed, [np.ones(len(timed), bool), *_halves(timed)])
    stretches = _stretches(timed, stretch_speeds(program, steps, timed, host_map, shape))
    model = Model(view, program, host_map, shape, stretches, steps, timed.unmarked)
    return model, _test(model, timed, halves)


def compare(model: Model, clock: StepClock) -> Test:
    """Test a model whose map another capture gave on the whole of this clock."""
    timed = clock_steps(clock, model.view, clocked_spans(clock, model.view))
    measured = _stretches(timed, np.ones(int(timed.stretch.max()) + 1))
    error = _error(model.stretches.median(model.predicted()).value, timed.length)
    return Test(model.predicted(), error, error, measured)


def _stretches(timed: ClockSteps, speed: F64) -> Stretches:
    numbers = np.arange(len(speed))
    first = np.searchsorted(timed.stretch, numbers)
    length = medians(timed.length, timed.stretch)
    return Stretches(speed, np.bincount(timed.stretch), timed.request[first], length)


def program_of(view: KindView, peers: PeerWaits | None, clocked: frozenset[str]) -> tuple[Program, I64]:
    """The model of a kind's rank, and the steps that count. Raises InputError where there are none."""
    program = build_program(view.rank, peers, clocked)
    found = len(view.rank.steps)
    steps = counted_steps(view.used, found)
    if program is None or not len(steps):
        raise InputError("the trace has too few steps, or too few of their launches, to be replayed")
    early = counted_steps(view.used[view.used < MOST_STEPS], min(found, MOST_STEPS))
    if found > MOST_STEPS and len(early):
        return program.until(MOST_STEPS), early
    return program, steps


def _halves(timed: ClockSteps) -> list[Bool]:
    """The steps of the even requests (of one alone, of its even stretches), and those of the others.

    Raises InputError where there are no two to part.
    """
    requests = np.unique(timed.request)
    units, of = (requests, timed.request) if len(requests) > 1 else (np.unique(timed.stretch), timed.stretch)
    if len(units) < 2:
        raise InputError(
            "the step clock has too few steps: a map is fitted on half of them and tested on the others"
        )
    even = np.isin(of, units[::2])
    return [even, ~even]


def _test(model: Model, timed: ClockSteps, halves: Sequence[tuple[HostMap, Curve]]) -> Test:
    """Fit on the one half and predict the other; then the other way round."""
    predicted = np.zeros(len(model.stretches.speed))
    blind = []
    for chosen, (host_map, shape) in zip(_halves(timed), halves, strict=True):
        step = shape.step_at(stretch_speeds(model.program, model.steps, timed, host_map, shape))
        tested = np.unique(timed.stretch[~chosen])
        predicted[tested] = step[tested]
        blind.append(_error(np.median(step[timed.stretch[chosen]]), timed.length[~chosen]))
    error = _error(np.median(predicted[timed.stretch]), timed.length)
    return Test(predicted, error, max(blind, key=abs), model.stretches)


def _error(predicted: float, measured: I64 | F64) -> float:
    whole = float(np.median(measured))
    return 100 * (float(predicted) - whole) / whole


def summarise(model: Model, test: Test | None) -> Calibration:
    """The calibration of a model, without its fixes and sites; without a test nothing was measured of it."""
    program, stretches = model.program, model.stretches
    base = profiled(program)
    unchanged = np.diff(step_starts(program, replay(program, base))[:, 0])[model.steps]
    traced = (model.view.rank.steps.end - model.view.rank.steps.start)[model.steps]
    replay_error = _error(np.median(unchanged), traced)
    idle, speeds = _idle(model)
    names = dict.fromkeys(name for one in idle for name in one.blame)

    def mean(values: list[float]) -> Estimate:
        return in_us(stretches.mean(stretches.at(speeds, np.array(values))))

    blame = {name: mean([one.blame.get(name, 0.0) for one in idle]) for name in names}
    host_factor = _host_factor(model)
    status, reason = _status(model, test, replay_error)
    return Calibration(
        status=status,
        reason=reason,
        rank=model.view.rank.trace.rank,
        kind=model.view.kind,
        profiled_step_us=float(np.median(traced)) / 1000,
        unprofiled_step_us=None if test is None else in_us(test.measured.median(test.measured.length)),
        predicted_step_us=in_us(stretches.median(model.predicted() if test is None else test.predicted)),
        error_pct=None if test is None else test.error_pct,
        blind_error_pct=None if test is None else test.blind_error_pct,
        replay_error_pct=replay_error,
        idle_host_us=mean([one.host for one in idle]),
        idle_gpu_us=mean([one.gpu for one in idle]),
        idle_host_blame_us=dict(sorted(blame.items(), key=lambda item: -item[1].value)),
        spans=_spans(model),
        host_factor=host_factor if model.depends_on_host() else None,
        gpu_factor=model.host_map.gpu if model.host_map.gpu_known else None,
        requests=len(np.unique(stretches.request)),
        steps=int(stretches.weight.sum()),
    )


def in_us(ns: Estimate) -> Estimate:
    """An estimate in ns as µs."""
    return Estimate(ns.value / 1000, ns.low / 1000, ns.high / 1000)


def _status(model: Model, test: Test | None, replay_error: float) -> tuple[CalibrationStatus, str]:
    gpu = model.host_map.gpu
    if test is None:
        return "untrusted", "nothing was measured of it without the profiler: its map is another capture's"
    if abs(replay_error) > REPLAY_PCT:
        return "untrusted", f"its replay with nothing changed is {replay_error:+.1f} % off the profiled step"
    host = _host_factor(model).value
    if not HOST_FACTORS[0] <= host <= HOST_FACTORS[1]:
        return "untrusted", f"host work would take {host:.2f} of its time in the trace: {OTHER_RUN}"
    if not GPU_FACTORS[0] <= gpu <= GPU_FACTORS[1]:
        return "untrusted", f"GPU work would take {gpu:.2f} of its time in the trace: {OTHER_RUN}"
    if abs(test.error_pct) > TRUSTED_PCT:
        return "untrusted", f"the predicted step is {test.error_pct:+.1f} % off the measured one"
    return "calibrated", ""


def scenarios_at(model: Model, speeds: F64) -> Scenarios:
    """The model's program at these speeds of the host."""
    return model.host_map.scenarios(model.program, speeds)


def replay_at(model: Model, speeds: F64) -> tuple[Scenarios, Times]:
    """The replay of the model's program at these speeds of the host."""
    scenarios = scenarios_at(model, speeds)
    return scenarios, replay(model.program, scenarios)


def _idle(model: Model) -> tuple[list[ReplayedIdle], F64]:
    speeds = model.stretches.speeds()
    scenarios, times = replay_at(model, speeds)
    idle = [
        replayed_idle(model.program, times, scenarios, k, model.steps, model.sites)
        for k in range(len(speeds))
    ]
    return idle, speeds


def _host_factor(model: Model) -> Estimate:
    """Unprofiled over profiled host time of a step, all sorts together."""
    traced = host_time(model.program, model.steps)
    unit = host_factors(model.program, model.host_map.relative, np.ones(1))[:, 0]
    counted = np.array([sort.doing not in (WAITING, PROFILER) for sort in model.program.sorts])
    ratio = float((traced * unit)[counted].sum() / max(traced[counted].sum(), 1.0))
    return model.stretches.mean(model.stretches.speed * ratio)


def _spans(model: Model) -> tuple[SpanTime, ...]:
    """Each span that was measured, the longest first."""
    counted = [sort.doing not in (WAITING, PROFILER) for sort in model.program.sorts]
    if (model.host_map.relative[counted] == 1).all():
        return ()  # no span was measured apart
    traced = host_time(model.program, model.steps)
    sums: dict[str, list[float]] = {}
    for sort, ns, factor in zip(
        model.program.sorts, traced.tolist(), model.host_map.relative.tolist(), strict=True
    ):
        if sort.doing not in (WAITING, PROFILER):
            its = sums.setdefault(sort.clocked, [0.0, 0.0])
            its[0] += ns
            its[1] += ns * factor
    speed = model.stretches.mean(model.stretches.speed)
    found = []
    for span, (profiled_ns, unit_ns) in sums.items():
        if profiled_ns <= 0:
            continue
        ratio = unit_ns / profiled_ns
        factor = Estimate(speed.value * ratio, speed.low * ratio, speed.high * ratio)
        us = profiled_ns / 1000
        found.append(
            SpanTime(span, us, Estimate(us * factor.value, us * factor.low, us * factor.high), factor)
        )
    return tuple(sorted(found, key=lambda one: -one.profiled_us))
