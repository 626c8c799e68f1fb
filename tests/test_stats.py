"""Two modes, where there are two; Student's t; the comparison of means; the block bootstrap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latencylab.stats import bootstrap_mean, compare_means, student_quantile, student_tail, two_modes


def test_two_separate_modes() -> None:
    values = [*np.linspace(7.9, 8.3, 15), *np.linspace(10.4, 10.9, 9)]
    assert two_modes(values) == pytest.approx((8.1, 10.65))


@pytest.mark.parametrize("seed", range(20))
def test_one_normal_mode_is_one(seed: int) -> None:
    assert two_modes(np.random.default_rng(seed).normal(8, 0.3, 200)) == ()


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [5.0] * 12, [1, 1, 1, 1, 1, 1, 9, 9]])
def test_too_few_or_equal_values_have_none(values: list[float]) -> None:
    assert two_modes(values) == ()


@pytest.mark.parametrize(
    ("chance", "freedom", "t"),
    [  # from published tables of Student's t
        (0.99, 1, 31.8205),
        (0.975, 2, 4.30265),
        (0.99, 8, 2.89646),
        (0.995, 30, 2.75),
        (0.95, 120, 1.65765),
        (0.5, 5, 0.0),
        (0.01, 8, -2.89646),
    ],
)
def test_student_quantile(chance: float, freedom: float, t: float) -> None:
    assert student_quantile(chance, freedom) == pytest.approx(t, abs=6e-5)


@given(st.floats(0.6, 200), st.floats(1e-6, 1 - 1e-6))
def test_tail_undoes_quantile(freedom: float, chance: float) -> None:
    assert student_tail(student_quantile(chance, freedom), freedom) == pytest.approx(1 - chance, rel=1e-6)


def test_welch_by_hand() -> None:
    """Variances 2.5 and 10 of five each: error² 0.5 + 2, freedom 2.5² / ((0.5² + 2²) / 4)."""
    found = compare_means([1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 4.0, 6.0, 8.0, 10.0])
    assert (found.change, found.error) == pytest.approx((3.0, 2.5**0.5))
    assert found.freedom == pytest.approx(6.25 / 1.0625)
    t = np.linspace(3 / 2.5**0.5, 2000, 4_000_001)
    density = (1 + t * t / found.freedom) ** (-(found.freedom + 1) / 2)
    whole = np.trapezoid((1 + (t - t[0]) ** 2 / found.freedom) ** (-(found.freedom + 1) / 2), t)
    assert found.p_greater() == pytest.approx(np.trapezoid(density, t) / (2 * whole), rel=1e-4)
    low, high = found.interval(found.p_greater())
    assert (low, high) == pytest.approx((0.0, 6.0), abs=1e-6)


def test_a_usual_spread_keeps_runs_that_agree_by_chance_from_being_precise() -> None:
    base, head = [1.0, 1.0001, 0.9999], [1.01, 1.0101, 1.0099]
    assert compare_means(base, head).p_greater() < 1e-4
    moderated = compare_means(base, head, 0.01, 2)
    assert moderated.p_greater() == pytest.approx(0.04, abs=0.005)
    # (2 * 0.01² + 4 * 1e-8) / 6: the posterior variance of both
    assert moderated.sd == pytest.approx(((2 * 1e-4 + 4e-8) / 6) ** 0.5)
    assert moderated.freedom == 6


def test_another_spread_than_the_usual_stands_for_itself() -> None:
    base, head = [1.0, 1.1, 0.9], [1.0, 1.1, 0.95]
    assert compare_means(base, head, 0.01, 2) == compare_means(base, head)


def test_equal_values_differ_for_sure_or_not_at_all() -> None:
    assert compare_means([1.0, 1.0], [2.0, 2.0]).p_greater() == 0
    assert compare_means([1.0, 1.0], [1.0, 1.0]).p_greater() == 1


def test_bootstrap_covers_the_mean_of_correlated_steps() -> None:
    rng = np.random.default_rng(3)
    covered, naive = 0, 0
    for seed in range(200):
        steps = np.zeros((6, 150))
        for i in range(1, 150):
            steps[:, i] = 0.8 * steps[:, i - 1] + rng.normal(size=6)
        interval = bootstrap_mean(list(steps), draws=300, seed=seed)
        assert interval is not None
        covered += interval[0] <= 0 <= interval[1]
        naive += abs(steps.mean()) <= 1.96 * steps.std() / np.sqrt(steps.size)
    assert 0.8 <= covered / 200 <= 0.99
    assert naive < 0.6 * covered  # what taking steps for independent would give


def test_bootstrap_of_nothing() -> None:
    assert bootstrap_mean([]) is None
    assert bootstrap_mean([[], []]) is None
    assert bootstrap_mean([[2.0, 2.0], []]) == (2.0, 2.0)
