"""What a change gives: nothing where it changes nothing, never less than nothing where it takes work away."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latencylab import traces
from latencylab.analyzers import examine, kind_in_front
from latencylab.analyzers.calibrate import replay_at
from latencylab.analyzers.calibration import Calibrated, calibrate_by_clock
from latencylab.analyzers.replay_idle import replayed_idle
from latencylab.analyzers.what_if import Change, possible_changes, predict
from latencylab.model.capture import Capture
from latencylab.model.unprofiled import Unprofiled
from latencylab.traces.samples import sample_path
from synth import Scenario, Shape, decode_loop, simulate, slowed, to_trace, with_marks
from synth.clock import step_clock

NOISE = 0.01  # of the step: launches that find their stream free at another moment


def loop(steps: int, *, host: int, stall: bool) -> Scenario:
    return with_marks(decode_loop(["nextn"] * steps, Shape(host=host, stall=stall)))


@cache
def model(host: int, stall: bool) -> Calibrated:
    runs = [simulate(slowed(loop(40, host=host, stall=stall), slow)) for slow in (1.0, 1.1, 0.95)]
    trace = to_trace(simulate(slowed(loop(16, host=host, stall=stall), 1.7)))
    its = Capture("synth", None, None, (trace,), Unprofiled((), {0: step_clock(runs)}))
    return calibrate_by_clock(kind_in_front(examine(its)), its.unprofiled, None)


@cache
def stalled() -> Calibrated:
    its = traces.open_capture([sample_path("nextn-host-stall")], cache=False)
    return calibrate_by_clock(kind_in_front(examine(its)), its.unprofiled, None)


synthetic = st.builds(model, st.sampled_from([8_000, 25_000, 90_000]), st.booleans())


@settings(max_examples=20, deadline=None)
@given(synthetic)
def test_a_change_that_changes_nothing_gives_nothing(its: Calibrated) -> None:
    step_us = its.found.predicted_step_us
    assert step_us is not None
    nothing = (Change("host", spans=(("draft", 1.0),)), Change("kernels", kernels=(("verify", 1.0),)))
    for outcome in predict(its.model, nothing):
        assert outcome.gain_us.value == pytest.approx(0, abs=1e-6)
        assert outcome.step_us.value == pytest.approx(
            its.model.stretches.median(its.model.predicted()).value / 1000, rel=1e-9
        )


@settings(max_examples=20, deadline=None)
@given(synthetic, st.floats(0, 1), st.floats(1, 8))
def test_less_work_is_never_slower(its: Calibrated, scale: float, speedup: float) -> None:
    changes = [
        Change("span", spans=(("draft", scale),)),
        Change("kernels", kernels=(("verify", speedup),)),
        Change("gaps", in_graph=scale, dispatch=scale),
        *possible_changes(its.model, ()),
    ]
    for outcome in predict(its.model, changes):
        assert outcome.gain_us.value > -NOISE * outcome.step_us.value, outcome.change.what


@settings(max_examples=15, deadline=None)
@given(synthetic, st.floats(0.1, 0.9))
def test_more_of_a_change_gives_more(its: Calibrated, scale: float) -> None:
    half, whole = predict(
        its.model,
        (
            Change("", spans=(("scheduler.run_batch", scale),)),
            Change("", spans=(("scheduler.run_batch", 0.0),)),
        ),
    )
    assert whole.gain_us.value >= half.gain_us.value - NOISE * half.step_us.value


def test_in_a_sample_no_change_makes_the_step_longer() -> None:
    its = stalled()
    for outcome in predict(its.model, possible_changes(its.model, ())):
        assert outcome.gain_us.value > -NOISE * outcome.step_us.value, outcome.change.what
    for site in dict.fromkeys(its.model.sites):
        if site in {cost.site for cost in its.found.syncs}:
            assert its.predict(Change("", sites=(site,))).gain_us.value > -1.0


def test_the_fixes_of_a_sample_begin_with_the_wait() -> None:
    fixes = stalled().found.fixes
    assert fixes[0].site.startswith("cudaStreamSynchronize")
    gains = [fix.us_per_step for fix in fixes if not fix.site]
    assert gains == sorted(gains, reverse=True)


def test_causes_of_replayed_idle_add_up() -> None:
    """Each ns of host idle is blamed once, on a site or on what the host did."""
    for its in (stalled(), model(90_000, True), model(25_000, True)):
        speeds = its.model.stretches.speeds()
        scenarios, times = replay_at(its.model, speeds)
        for k in range(len(speeds)):
            idle = replayed_idle(its.model.program, times, scenarios, k, its.model.steps, its.model.sites)
            steps = len(its.model.steps)
            assert round(sum(idle.blame.values()) * steps) == pytest.approx(round(idle.host * steps), abs=1)
            assert all(ns >= 0 for ns in idle.blame.values())
            assert min(idle.host, idle.gpu, idle.unknown) >= 0
            assert np.isfinite([idle.host, idle.gpu, idle.unknown]).all()
