"""Change points on series whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from latencylab.analyzers.trend import LEVEL, Change, find_changes

F64 = npt.NDArray[np.float64]


def noisy(random: np.random.Generator, count: int, noise: float = 0.01) -> F64:
    """Runs of 6 ms with 1 % noise."""
    return 6.0 * (1 + noise * random.standard_normal(count))


def places(values: F64) -> list[int]:
    return [change.index for change in find_changes(list(values))]


@pytest.mark.parametrize("heavy", [False, True])
def test_unchanged_series_are_not_marked(heavy: bool) -> None:
    random = np.random.default_rng(11)
    marked = 0
    for _ in range(400):
        noise = random.standard_t(2, 40) if heavy else random.standard_normal(40)
        marked += bool(places(6.0 * (1 + 0.01 * noise)))
    assert marked <= 4


def best_split(values: F64) -> int:
    """Where two means fit best: no method that knows only the values places a single step better."""
    return min(
        range(3, len(values) - 2), key=lambda k: values[:k].var() * k + values[k:].var() * (len(values) - k)
    )


def test_a_step_of_three_percent_is_found_where_it_is() -> None:
    """At three times the noise the best fit itself is off by more than one in 3 % of cases."""
    random = np.random.default_rng(12)
    near, alone, best = 0, 0, 0
    for _ in range(60):
        values = noisy(random, 40)
        values[20:] *= 1.03
        its = places(values)
        assert its
        near += any(abs(place - 20) <= 1 for place in its)
        alone += len(its) == 1
        best += best_split(values) in its
    assert near >= 56
    assert alone >= 58
    assert best >= 58


def test_its_levels_are_the_means_on_both_sides() -> None:
    values = noisy(np.random.default_rng(13), 40, 0.001)
    values[25:] *= 0.9
    (change,) = find_changes(list(values))
    assert change.index == 25
    assert change.before == pytest.approx(values[:25].mean())
    assert change.after == pytest.approx(values[25:].mean())
    assert change.pct == pytest.approx(-10, abs=0.2)
    assert 0 < change.p <= LEVEL


def test_a_slow_commit_that_was_reverted_is_two_changes() -> None:
    random = np.random.default_rng(14)
    both = 0
    for _ in range(30):
        values = noisy(random, 50)
        values[20:26] *= 1.04
        its = places(values)
        both += len(its) == 2 and abs(its[0] - 20) <= 1 and abs(its[1] - 26) <= 1
    assert both >= 27


def test_several_steps_in_a_long_series() -> None:
    values = noisy(np.random.default_rng(15), 400)
    values[100:] *= 1.05
    values[250:] *= 0.93
    values[330:] *= 1.04
    assert places(values) == pytest.approx([100, 250, 330], abs=2)


@pytest.mark.parametrize("where", [0, 7, 39])
def test_one_odd_run_is_no_change(where: int) -> None:
    values = noisy(np.random.default_rng(16), 40)
    values[where] *= 1.5
    assert places(values) == []


def test_what_is_missing_is_passed_over() -> None:
    values: list[float | None] = [5.0, 5.01, None, 5.0, 4.99, 5.0, math.nan, 5.01, 5.0]
    values += [None, 7.0, 7.01, 6.99, math.inf, 7.0, 7.01, 7.0, 6.99, None]
    (change,) = find_changes(values)
    assert change.index == 10
    assert find_changes([None] * 30) == ()


def test_from_nothing_there_is_no_percentage() -> None:
    (change,) = find_changes([0.0] * 12 + [40.0] * 12)
    assert (change.index, change.before, change.after, change.pct) == (12, 0.0, 40.0, None)


@pytest.mark.parametrize("values", [[], [5.0], [5.0, 9.0], [5.0] * 5, [0.1] * 50, [1.0, 2.0, 1.0, 2.0, 9.0]])
def test_too_few_or_constant_values_have_none(values: list[float]) -> None:
    assert find_changes(values) == ()


def test_the_same_values_give_the_same_answer_in_any_unit() -> None:
    values = noisy(np.random.default_rng(17), 60)
    values[31:] *= 1.02
    once = find_changes(list(values))
    assert find_changes(list(values)) == once
    assert [c.index for c in find_changes(list(values * 1e3))] == [c.index for c in once]


def test_reversed_it_is_found_at_the_same_border() -> None:
    values = noisy(np.random.default_rng(18), 40, 0.003)
    values[13:] *= 1.03
    assert places(values) == [13]
    assert places(values[::-1]) == [40 - 13]


def test_change_in_percent_of_a_negative_level() -> None:
    assert Change(3, -10.0, -5.0, 0.001).pct == 50
