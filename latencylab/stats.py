"""Statistics shared by analyses; each says where its method comes from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean of `head` minus mean of `base`, its standard error, and the degrees of freedom of that.

    `sd` is the spread within the sides as it was used, in the values' unit.
    """

    change: float
    error: float
    freedom: float
    sd: float

    def p_greater(self) -> float:
        """The one-sided p-value of no increase."""
        if self.error == 0:
            return 0.0 if self.change > 0 else 1.0
        return student_tail(self.change / self.error, self.freedom)

    def interval(self, alpha: float) -> tuple[float, float]:
        """What the change lies in, with `alpha` outside at either end."""
        reach = student_quantile(1 - alpha, self.freedom) * self.error
        return self.change - reach, self.change + reach


# A spread this many times the usual one is another spread: the two are not pooled.
UNUSUAL = 1.7


def compare_means(
    base: Sequence[float], head: Sequence[float], usual_sd: float = 0.0, weight: float = 0.0
) -> Difference:
    """Compare the means of two small samples, at least two values a side.

    The variance is moderated (Smyth, 2004, "Linear models and empirical Bayes methods", eq. for the posterior
    variance): pooled over both sides, and averaged with that of a spread known beforehand, `usual_sd`, which
    counts as `weight` degrees of freedom and adds them. So a few runs that happen to agree are not taken for
    precise. Where the sides spread more than `UNUSUAL` times the usual, it tells nothing of them: then it is
    Welch's test (1947), with Satterthwaite's degrees of freedom. `usual_sd` 0 or `weight` 0: Welch's always.
    """
    (mean_base, square_base), (mean_head, square_head) = _moments(base), _moments(head)
    n_base, n_head = len(base), len(head)
    freedom = n_base + n_head - 2
    pooled = (square_base + square_head) / freedom
    change = mean_head - mean_base
    if usual_sd > 0 and weight > 0 and math.sqrt(pooled) <= UNUSUAL * usual_sd:
        variance = (weight * usual_sd**2 + freedom * pooled) / (weight + freedom)
        error = math.sqrt(variance * (1 / n_base + 1 / n_head))
        return Difference(change, error, freedom + weight, math.sqrt(variance))
    of_base = square_base / (n_base - 1) / n_base
    of_head = square_head / (n_head - 1) / n_head
    both = of_base + of_head
    if both == 0:
        return Difference(change, 0.0, freedom, 0.0)
    welch = both**2 / (of_base**2 / (n_base - 1) + of_head**2 / (n_head - 1))
    return Difference(change, math.sqrt(both), welch, math.sqrt(pooled))


def _moments(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and the sum of squares about it."""
    mean = math.fsum(values) / len(values)
    return mean, math.fsum((value - mean) ** 2 for value in values)


def student_tail(t: float, freedom: float) -> float:
    """The chance that Student's t exceeds `t`; `freedom` need not be whole."""
    half = _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5) / 2
    return half if t > 0 else 1 - half


def student_quantile(chance: float, freedom: float) -> float:
    """The t that is not exceeded with this chance, above 0 and below 1.

    Newton's method on `student_tail`: convex above 0, so that from 0 on no step goes too far.
    """
    if chance < 0.5:
        return -student_quantile(1 - chance, freedom)
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    t = 0.0
    for _ in range(200):
        density = math.exp(log_scale - (freedom + 1) / 2 * math.log1p(t * t / freedom))
        step = (student_tail(t, freedom) - (1 - chance)) / density
        t += step
        if step <= 1e-10 * t:
            break
    return t


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b).

    By its continued fraction (DLMF 8.17.22), evaluated by the modified method of Lentz (Press et al.,
    "Numerical Recipes", 6.4); where that is slow, by I_x(a, b) = 1 - I_{1-x}(b, a).
    """
    if not 0 < x < 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    tiny = 1e-300
    c, d = 1.0, 1 / ((1 - (a + b) * x / (a + 1)) or tiny)
    fraction = d
    for m in range(1, 500):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / ((1 + term * d) or tiny)
            c = (1 + term / c) or tiny
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return math.exp(log_front) * fraction / a


def bootstrap_mean(
    parts: Sequence[npt.ArrayLike], *, draws: int = 1000, share: float = 0.95, seed: int = 0
) -> tuple[float, float] | None:
    """The interval of the mean of the parts' means, where the values of a part are correlated in order.

    Parts are drawn with replacement, and of each drawn part circular blocks of about the square root of its
    length (Politis and Romano, 1992, "A circular block-resampling procedure for stationary data"; Künsch,
    1989, for blocks). `share` of the drawn means lie in the interval. None where all parts are empty.
    """
    values = [x for part in parts if len(x := np.asarray(part, np.float64))]
    if not values:
        return None
    rng = np.random.default_rng(seed)
    drawn = np.empty((len(values), draws * len(values)))
    for row, x in enumerate(values):
        block = math.ceil(math.sqrt(len(x)))
        ends = np.concatenate([[0.0], np.cumsum(np.concatenate([x, x[:block]]))])
        means = (ends[block : block + len(x)] - ends[: len(x)]) / block
        places = rng.integers(len(x), size=(drawn.shape[1], math.ceil(len(x) / block)))
        drawn[row] = means[places].mean(axis=1)
    chosen = rng.integers(len(values), size=drawn.shape[1])
    of_run = drawn[chosen, np.arange(drawn.shape[1])].reshape(draws, len(values)).mean(axis=1)
    low, high = np.quantile(of_run, [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)
