"""Statistics shared by analyses; each says where its method comes from."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def two_modes(values: npt.ArrayLike, least_share: float = 0.2, separation: float = 4.0) -> tuple[float, ...]:
    """The medians of two modes, the smaller first, or () where the values have but one.

    The values are split where the sum of squares within both parts is least (Fisher, 1958, "On grouping
    for maximum homogeneity"). The parts are modes where each holds `least_share` of the values and at least
    three, and their means lie `separation` pooled standard deviations apart: Ashman's D (Ashman, Bird and
    Zepf, 1994), of which one normal distribution cut in half already reaches 2.65.
    """
    x = np.sort(np.asarray(values, np.float64))
    n = len(x)
    fewest = max(3, int(np.ceil(least_share * n)))
    if n < 2 * fewest:
        return ()
    total, squares = np.cumsum(x), np.cumsum(x * x)
    left = np.arange(fewest, n - fewest + 1)
    right = n - left
    sum_left, sum_right = total[left - 1], total[-1] - total[left - 1]
    within = squares[-1] - sum_left**2 / left - sum_right**2 / right
    at = int(left[np.argmin(within)])
    low, high = x[:at], x[at:]
    pooled = np.sqrt((low.var() + high.var()) / 2)
    if high.mean() - low.mean() < separation * pooled or high.mean() == low.mean():
        return ()
    return float(np.median(low)), float(np.median(high))
