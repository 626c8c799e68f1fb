"""Step clocks that are damaged, or of another run: one clear status each, and no odd figure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from latencylab.analyzers import analyze, examine, kind_in_front
from latencylab.analyzers.calibrate import fit_model
from latencylab.analyzers.calibration import PEERS, calibrate, complete
from latencylab.analyzers.replay_build import PeerWaits
from latencylab.analyzers.step_clock import clock_steps, clocked_spans
from latencylab.analyzers.view import KindView
from latencylab.analyzers.what_if import Change
from latencylab.model.calibration import Calibration
from latencylab.model.capture import Capture
from latencylab.model.unprofiled import Request, StepClock, Unprofiled
from synth import Shape, decode_loop, simulate, slowed, to_trace, with_marks
from synth.clock import step_clock

MOST = int(np.iinfo(np.int64).max)
Damage = Callable[[StepClock], StepClock]


@cache
def whole() -> StepClock:
    runs = with_marks(decode_loop(["nextn"] * 40, Shape(host=60_000)))
    return step_clock([simulate(slowed(runs, slow)) for slow in (1.0, 1.1, 0.95, 1.05)])


@cache
def view() -> KindView:
    loop = with_marks(decode_loop(["nextn"] * 16, Shape(host=60_000)))
    trace = to_trace(simulate(slowed(loop, 1.7)))
    return kind_in_front(examine(Capture("synth", None, None, (trace,))))


def rows(clock: StepClock, chosen: np.ndarray) -> StepClock:
    columns = {name: np.array(getattr(clock, name)) for name in clock.__slots__}
    taken = {
        name: tuple(column[chosen].tolist()) if name in ("span", "kind") else column[chosen]
        for name, column in columns.items()
    }
    return StepClock(**taken)


def some(clock: StepClock, column: str, value: int) -> StepClock:
    values = getattr(clock, column).copy()
    values[::37] = value
    return replace(clock, **{column: values})


def stretched(clock: StepClock, times: float) -> StepClock:
    origin = int(clock.start_ns.min())

    def later(ns: np.ndarray) -> np.ndarray:
        return np.where(ns < 0, ns, origin + ((ns - origin) * times).astype(np.int64))

    return replace(
        clock,
        start_ns=later(clock.start_ns),
        end_ns=later(clock.end_ns),
        gpu_start_ns=later(clock.gpu_start_ns),
        waiting_ns=np.where(clock.waiting_ns < 0, -1, (clock.waiting_ns * times).astype(np.int64)),
    )


def found(clock: StepClock | None, *, rank: int = 0, requests: tuple[Request, ...] = ()) -> Calibration:
    its = calibrate(view(), Unprofiled(requests, {} if clock is None else {rank: clock}), None)
    for estimate in (its.unprofiled_step_us, its.predicted_step_us, its.idle_host_us):
        assert estimate is None or np.isfinite([estimate.value, estimate.low, estimate.high]).all()
    assert (its.predicted_step_us is None) == (its.status == "uncalibrated")
    assert (its.reason == "") == (its.status == "calibrated")
    return its


@pytest.mark.parametrize(
    ("damage", "status", "reason"),
    [
        (lambda c: c, "calibrated", ""),
        (lambda c: rows(c, np.random.default_rng(1).permutation(len(c))), "calibrated", ""),
        (lambda c: rows(c, np.arange(0)), "uncalibrated", "no step in it"),
        (lambda c: rows(c, c.step == 5), "uncalibrated", "no two steps of kind NEXTN in a row"),
        (lambda c: replace(c, span=("x",) * len(c)), "uncalibrated", "no step in it"),
        (lambda c: replace(c, kind=("extend",) * len(c)), "uncalibrated", "kind NEXTN in the trace"),
        (lambda c: replace(c, kind=("DSpark",) * len(c)), "uncalibrated", "160 DSpark in it"),
        (lambda c: stretched(c, 10), "untrusted", "is not what the trace shows"),
        (
            lambda c: stretched(c, 0.1),
            "untrusted",
            "what the step clock measured is not what the trace shows",
        ),
        (lambda c: replace(c, start_ns=c.end_ns, end_ns=c.start_ns), "uncalibrated", "end before they start"),
        (
            lambda c: replace(c, start_ns=c.start_ns * 0, end_ns=c.end_ns * 0, gpu_start_ns=c.step * 0),
            "uncalibrated",
            "do not go on",
        ),
    ],
)
def test_one_status_each(damage: Damage, status: str, reason: str) -> None:
    its = found(damage(whole()))
    assert its.status == status, its.reason
    assert reason in its.reason


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "column", ["start_ns", "end_ns", "waiting_ns", "gpu_start_ns", "cpu_ns", "step", "request"]
)
@pytest.mark.parametrize("value", [0, -MOST, MOST])
def test_extremes_give_no_figure_that_is_not_finite(column: str, value: int) -> None:
    found(some(whole(), column, value))


def test_a_wait_is_no_longer_than_its_call() -> None:
    clock = whole()
    waiting = np.where(clock.waiting_ns >= 0, MOST, clock.waiting_ns)
    steps = clock_steps(replace(clock, waiting_ns=waiting), view(), clocked_spans(clock, view()))
    assert all((ns >= 0).all() for ns in steps.self_ns.values())


def test_of_a_rank_without_a_clock_the_others_are_named() -> None:
    its = found(whole(), rank=3)
    assert its.status == "uncalibrated"
    assert its.reason == "rank 0 has no step clock: of the ranks only 3 has one"
    whole_analysis = analyze(
        Capture("synth", None, None, (view().rank.trace,), Unprofiled((), {3: whole()})), timelines=False
    )
    assert any(its.reason in doubt for doubt in whole_analysis.verdict.reasons)


def test_what_is_left_out_of_a_rank_among_others_is_said() -> None:
    """Its waits for the others' GPUs are constants of the replay; without skew they are gone."""
    ns = np.minimum(view().rank.trace.gpu.end - view().rank.trace.gpu.start, 5_000)
    alone, among, late = (
        complete(*fit_model(view(), whole(), wait))
        for wait in (None, PeerWaits(ns, np.zeros_like(ns)), PeerWaits(ns, ns))
    )
    assert alone.found.notes == ()
    assert among.found.notes == (PEERS,)
    skew = Change("", peers=0.0)
    assert alone.predict(skew).gain_us.value == pytest.approx(0, abs=1e-6)
    assert among.predict(skew).step_us.value <= among.predict(Change("nothing")).step_us.value
    assert late.found.notes == (PEERS,)
    assert late.predict(skew).gain_us.value == pytest.approx(0, abs=1e-6)  # for hosts it waits no more


def test_client_timings_alone_calibrate_nothing() -> None:
    its = found(None, requests=(Request.of(0, [(10, 1), (20, 2)]),))
    assert its.status == "uncalibrated"
    assert "client's timings alone" in its.reason


def test_steps_in_a_burst_of_detail_alone_tell_spans_apart() -> None:
    """Eight of 32 steps have all their spans; of the others the clock has the step and its waits."""
    clock = whole()
    inner = np.array([span not in ("ll.step", "ll.wait.synchronize") for span in clock.span])
    burst = rows(clock, ~inner | (clock.step % 32 < 8))
    clocked = clocked_spans(clock, view())
    steps, full = (clock_steps(its, view(), clocked) for its in (burst, clock))
    assert full.detailed.all()
    assert 0 < steps.detailed.sum() < len(steps) / 2
    for name, ns in steps.self_ns.items():
        assert np.median(ns[steps.detailed]) == pytest.approx(np.median(full.self_ns[name]), rel=0.1, abs=500)
    by_burst, by_all = found(burst), found(clock)
    assert by_burst.status == "calibrated"
    assert by_burst.predicted_step_us is not None
    assert by_all.predicted_step_us is not None
    assert by_burst.predicted_step_us.value == pytest.approx(by_all.predicted_step_us.value, rel=0.01)
    assert {its.span for its in by_burst.spans} == {its.span for its in by_all.spans}


def test_detail_that_is_never_whole_tells_no_spans_apart() -> None:
    """Every step lacks a span that others have: one factor for all, and no table of spans."""
    clock = whole()
    names = sorted({span for span in clock.span if span not in ("ll.step", "ll.wait.synchronize")})
    kept = np.array(
        [
            span not in names[:2] or names.index(span) == step % 2
            for span, step in zip(clock.span, clock.step.tolist(), strict=True)
        ]
    )
    its = found(rows(clock, kept))
    assert its.status == "calibrated"
    assert its.spans == ()
