"""How far the noise of steps moves a difference: a circular block bootstrap over the steps of a capture.

Steps that follow each other are alike (host modes, clocks of the GPU), so they are drawn with their
neighbours, in blocks of about the cube root of their number: Künsch, "The jackknife and the bootstrap for
general stationary observations" (Annals of Statistics 17, 1989), with the blocks taken round a circle so that
every step has the same weight (Politis and Romano, "A circular block-resampling procedure for stationary
data", 1992), and the length of block whose rate is best for an interval of a mean's percentiles (Hall,
Horowitz and Jing, "On blocking rules for the bootstrap with dependent data", Biometrika 82, 1995).

What the interval means: were these two processes traced again at some other moment, the difference of their
means would lie in it in about 95 of 100 cases, as far as steps further apart than a block are independent. It
knows nothing of what differs from one start of a process to the next, or between two machines, which is often
more than what differs between steps: an interval without zero does not make a regression. The gate, which
compares several captures a side, can tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from latencylab.model.comparison import Delta
from latencylab.model.trace import I64

DRAWS = 2000  # even: see `Resampled.of`
LEVEL = 95.0
LEAST = 5  # steps of a side: fewer say nothing of their own spread

F64 = npt.NDArray[np.float64]
Columns = Sequence[I64 | None]


def block_length(steps: int) -> int:
    """Steps that are drawn together: the cube root of their number, at least 1."""
    return max(1, round(math.cbrt(steps)))


def draw_steps(steps: int, seed: int, length: int) -> I64:
    """(draws / 2, steps): the steps that each draw consists of, in blocks of `length`."""
    random = np.random.default_rng(seed)
    first = random.integers(0, steps, (DRAWS // 2, -(-steps // length)))
    rows: I64 = (first[:, :, None] + np.arange(length)) % steps
    return rows.reshape(DRAWS // 2, -1)[:, :steps]


@dataclass(frozen=True, slots=True, eq=False)
class Resampled:
    """(draws, steps): the steps of each draw, None where either side has fewer than `LEAST` of them.

    `sizes`: how many steps each side has.
    """

    base: I64 | None
    head: I64 | None
    sizes: tuple[int, int]

    @classmethod
    def of(cls, base_steps: int, head_steps: int, length: int | None = None) -> Resampled:
        """Both sides are drawn independently of each other, in blocks of `length` or of `block_length`.

        Each half of the draws gives a side the other one's random numbers of the other half, so that to
        exchange the sides negates every draw: diff(a, b) = -diff(b, a), intervals included.
        """
        if min(base_steps, head_steps) < LEAST:
            return cls(None, None, (base_steps, head_steps))
        base = [draw_steps(base_steps, seed, length or block_length(base_steps)) for seed in (1, 2)]
        head = [draw_steps(head_steps, seed, length or block_length(head_steps)) for seed in (2, 1)]
        return cls(np.concatenate(base), np.concatenate(head), (base_steps, head_steps))

    def deltas(self, base: Columns, head: Columns) -> list[Delta]:
        """The means of quantities given in ns for each step, in µs, with their differences' intervals.

        None for a side that has no such quantity.
        """
        base_draws, head_draws = _draws(self.base, base), _draws(self.head, head)
        intervals: list[tuple[float, float] | None] = [None] * len(base)
        if base_draws is not None and head_draws is not None:
            edges = [50 - LEVEL / 2, 50 + LEVEL / 2]
            low, high = np.percentile(head_draws - base_draws, edges, axis=0).tolist()
            intervals = list(zip(low, high, strict=True))
        return [
            Delta(_mean_us(its), _mean_us(others), None if its is None or others is None else interval)
            for its, others, interval in zip(base, head, intervals, strict=True)
        ]


def resampled_medians(base: I64, head: I64, resampled: Resampled, per: float = 1e3) -> Delta:
    """The medians of a quantity given in ns for each step, divided by `per`; None for a side without any."""
    interval = None
    if resampled.base is not None and resampled.head is not None:
        draws = np.median(head[resampled.head], axis=1) - np.median(base[resampled.base], axis=1)
        low, high = (np.percentile(draws, [50 - LEVEL / 2, 50 + LEVEL / 2]) / per).tolist()
        interval = (low, high)
    sides = [float(np.median(side)) / per if len(side) else None for side in (base, head)]
    return Delta(sides[0], sides[1], interval)


def _draws(drawn: I64 | None, columns: Columns) -> F64 | None:
    """(draws, quantities) of means in µs."""
    if drawn is None or not columns:
        return None
    steps = drawn.shape[1]
    times = np.zeros((len(drawn), steps))  # each step is drawn
    np.add.at(times, (np.arange(len(drawn))[:, None], drawn), 1.0)
    table = np.stack([np.zeros(steps) if column is None else column for column in columns], axis=1)
    means: F64 = times @ table / (steps * 1000)
    return means


def _mean_us(ns: I64 | None) -> float | None:
    """Summed as integers before it is divided, so that means of parts add up to the mean of the whole."""
    return None if ns is None or not len(ns) else int(ns.sum()) / len(ns) / 1000
