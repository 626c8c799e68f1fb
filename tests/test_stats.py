"""Two modes are found where there are two, and not in one."""

from __future__ import annotations

import numpy as np
import pytest

from latencylab.stats import two_modes


def test_two_separate_modes() -> None:
    values = [*np.linspace(7.9, 8.3, 15), *np.linspace(10.4, 10.9, 9)]
    assert two_modes(values) == pytest.approx((8.1, 10.65))


@pytest.mark.parametrize("seed", range(20))
def test_one_normal_mode_is_one(seed: int) -> None:
    assert two_modes(np.random.default_rng(seed).normal(8, 0.3, 200)) == ()


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [5.0] * 12, [1, 1, 1, 1, 1, 1, 9, 9]])
def test_too_few_or_equal_values_have_none(values: list[float]) -> None:
    assert two_modes(values) == ()
