"""How often the gate errs, by simulation: steps correlated within a run, two modes of the host, runs that
differ from each other. Seeds are fixed; 4,000 gates tell a rate of 1 % to 0.16 %.
"""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from latencylab.analyzers.gate import judge
from latencylab.analyzers.gate_metrics import judge_step
from latencylab.model.gate import Policy, Run
from latencylab.traces import open_capture, sample_path

F64 = npt.NDArray[np.float64]

GATES = 4000
FEWER = 1000  # where the rate is far from its limit
REQUESTS, STEPS = 6, 60
STEP_MS = 6.0
CORRELATION = 0.5  # of neighbouring steps
NOISE = 0.03  # of a step
MODES_APART = 0.04  # of the step
SWITCH = 0.1  # the chance, each step, that the host goes to its other mode
# What is left of both in the mean of a run, measured below.
WITHIN = 0.0040


@cache
def steps_within(runs: int, side: int) -> F64:
    """What correlated steps and the host's modes leave of each request's mean, as a share of the step."""
    rng = np.random.default_rng([runs, side])
    shape = (GATES, runs, REQUESTS)
    noise = rng.standard_normal(shape, np.float32)
    mode = rng.random(shape, np.float32) < 0.5
    total = np.zeros(shape, np.float32)
    fresh = np.float32(math.sqrt(1 - CORRELATION**2))
    for _ in range(STEPS):
        noise = np.float32(CORRELATION) * noise + fresh * rng.standard_normal(shape, np.float32)
        mode ^= rng.random(shape, np.float32) < SWITCH
        total += np.float32(NOISE) * noise + np.float32(MODES_APART) * mode
    return total.astype(np.float64) / STEPS


def runs_ms(runs: int, side: int, spread: float, within: float = 1.0) -> F64:
    """ms per step of each request of each run, as (gates, runs, requests).

    `spread` is the standard deviation of a run's mean, all in all, as a share; where steps within the run
    make more of it by themselves, it comes on top. `within` scales what differs within a run.
    """
    inner = WITHIN * within
    between = math.sqrt(spread**2 - inner**2) if spread > inner else spread
    own = between * np.random.default_rng([runs, side, 7]).standard_normal((GATES, runs, 1))
    return STEP_MS * (1 + within * steps_within(runs, side) + own)


def verdicts(base: F64, head: F64, policy: Policy | None = None) -> list[str]:
    """The gate's verdict on the step in each simulated gate."""
    policy = policy or Policy()
    return [
        judge_step(
            [Run("base", requests_step_ms=tuple(run)) for run in ours],
            [Run("head", requests_step_ms=tuple(run)) for run in theirs],
            policy,
        ).verdict
        for ours, theirs in zip(base.tolist(), head.tolist(), strict=True)
    ]


def rate(
    runs: int,
    spread: float,
    slower: float,
    policy: Policy | None = None,
    within: float = 1.0,
    gates: int = GATES,
) -> float:
    """The share of gates that call a regression where the head is slower by that much."""
    base, head = (runs_ms(runs, side, spread, within)[:gates] for side in (0, 1))
    return verdicts(base, head * (1 + slower), policy).count("regression") / gates


def test_the_simulation_is_what_it_says() -> None:
    for spread, seen in ((0.0, WITHIN), (0.01, 0.01), (0.05, 0.05)):
        means = np.log(runs_ms(5, 0, spread).mean(axis=2))
        assert math.sqrt(means.var(axis=1, ddof=1).mean()) == pytest.approx(seen, rel=0.03)


@pytest.mark.parametrize("spread", [0.0005, 0.01, 0.05])
@pytest.mark.parametrize("runs", [3, 5, 8])
def test_at_most_one_false_alarm_in_a_hundred(runs: int, spread: float) -> None:
    assert rate(runs, spread, 0.0) <= 0.01


@pytest.mark.parametrize("runs", [3, 5, 8])
def test_a_spread_of_twice_the_usual_raises_at_most_two(runs: int) -> None:
    """Where the usual spread misleads most: it is believed, and half of the truth."""
    assert rate(runs, 0.02, 0.0) <= 0.02


@pytest.mark.parametrize("spread", [0.0005, 0.01, 0.02, 0.05])
def test_nothing_assumed_keeps_to_alpha_at_any_spread(spread: float) -> None:
    assert rate(5, spread, 0.0, Policy(usual_spread_pct=0)) <= 0.01


@pytest.mark.parametrize(("runs", "least"), [(3, 0.6), (5, 0.95), (8, 0.99)])
def test_three_percent_are_caught(runs: int, least: float) -> None:
    assert rate(runs, 0.01, 0.03) >= least


def test_three_percent_are_caught_where_noise_within_runs_comes_on_top() -> None:
    """Runs that spread by 1 % before what steps and modes add: 1.08 % in all."""
    total = math.hypot(0.01, WITHIN)
    assert rate(5, total, 0.03) >= 0.93
    assert rate(5, total, 0.0) <= 0.01


def test_a_known_spread_catches_more_and_errs_as_seldom() -> None:
    known = Policy(known_spread_pct=1.0)
    assert rate(5, 0.01, 0.03, known, gates=FEWER) >= 0.97
    assert rate(3, 0.01, 0.03, known, gates=FEWER) >= rate(3, 0.01, 0.03, gates=FEWER) + 0.1
    assert rate(3, 0.01, 0.0, known) <= 0.01


def test_steady_runs_show_a_change_of_two_percent() -> None:
    assert rate(5, 0.0005, 0.02, within=0.1, gates=FEWER) == 1
    assert rate(5, 0.0005, 0.01, within=0.1, gates=FEWER) == 0  # below the minimum effect


@pytest.mark.parametrize("runs", [1, 2])
def test_few_runs_call_nothing_without_a_known_spread(runs: int) -> None:
    assert set(verdicts(runs_ms(3, 0, 0.01)[:, :runs], 1.5 * runs_ms(3, 1, 0.01)[:, :runs])) == {
        "inconclusive"
    }


@pytest.mark.parametrize("runs", [1, 2])
def test_few_runs_against_a_known_spread(runs: int) -> None:
    known = Policy(known_spread_pct=1.0)
    base, head = (runs_ms(3, side, 0.01)[:FEWER, :runs] for side in (0, 1))
    assert verdicts(base, head, known).count("regression") / FEWER <= 0.005
    assert verdicts(base, 1.1 * head, known).count("regression") / FEWER >= 0.99


@pytest.mark.parametrize("name", ["nextn", "nextn-host-stall", "dspark"])
def test_requests_of_one_process_are_never_a_regression(name: str) -> None:
    """All ways to split the six requests of a run in two: the host has two modes, up to 17 % apart."""
    capture = open_capture([sample_path(name)])
    assert capture.unprofiled is not None
    ms = [request.step_ms for request in capture.unprofiled.requests if request.step_ms]
    assert len(ms) == 6
    for size in range(1, 6):
        for chosen in itertools.combinations(range(6), size):
            sides = [ms[i] for i in chosen], [ms[i] for i in range(6) if i not in chosen]
            one, other = (Run("r", requests_step_ms=tuple(side)) for side in sides)
            assert judge([one], [other]).exit_code != 1
