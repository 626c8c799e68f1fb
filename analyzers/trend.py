"""Change points of a series of runs: from which run on a figure has another level.

Circular binary segmentation (Olshen, Venkatraman, Lucito and Wigler, 2004, "Circular binary segmentation for
the analysis of array-based DNA copy number data", Biostatistics 5, 557): the segment whose mean differs most
from the mean of the rest is a change where shuffled values seldom hold one as different; then each part is
searched in turn. Unlike plain binary segmentation (Scott and Knott, 1974) it finds a slow commit that was
reverted soon, whose two changes hide each other. A segment inside is searched up to `LONGEST` values long,
one that touches an end at any length.

A significant segment's ends are then tested one by one against their neighbours, as its authors do, and the
least significant one goes until all that remain pass.

The permutation test supposes that without a change the values could stand in any order. It knows nothing of
a machine that drifts by itself: compare runs of one commit, taken apart in time, before a mark is believed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

# The share of unchanged series that get a mark is at most this.
LEVEL = 0.005
# Values in a segment: of two, half the series with a stray pair would be marked.
SHORTEST = 3
LONGEST = 50
_SHUFFLES = 2000
_BATCH = 100
_SEED = 20_260_101


@dataclass(frozen=True, slots=True)
class Change:
    """From the value at `index` on, the level is `after` in place of `before` (means of the segments).

    `p` is the significance of the change against the segments on both sides.
    """

    index: int
    before: float
    after: float
    p: float

    @property
    def pct(self) -> float | None:
        """The change in % of the level before; None where that is 0."""
        return 100 * (self.after - self.before) / abs(self.before) if self.before else None


def find_changes(values: Sequence[float | None], *, level: float = LEVEL) -> tuple[Change, ...]:
    """The change points of a series, in order; positions are those of `values`.

    Missing values (None, NaN, infinite) are passed over. The result depends on the values alone: the
    shuffles are seeded. Fewer than 2 * `SHORTEST` values have no change.
    """
    given = np.array([np.nan if v is None else v for v in values], np.float64)
    places = np.flatnonzero(np.isfinite(given))
    x = given[places]
    cuts = _keep_significant(x, _segment(x, 0, level), level)
    edges = [0, *(cut for cut, _ in cuts), len(x)]
    means = [float(x[a:b].mean()) for a, b in itertools.pairwise(edges) if b > a]
    return tuple(Change(int(places[cut]), means[i], means[i + 1], p) for i, (cut, p) in enumerate(cuts))


def _segment(x: F64, start: int, level: float) -> list[int]:
    """Where x falls into segments, as positions from `start`, before they are tested one by one."""
    if len(x) < 2 * SHORTEST:
        return []
    observed, a, b = _most_different(x[None, :])
    if not observed[0] > 0:
        return []
    if _p_value(x, float(observed[0]), level) > level:
        return []
    edges = [0, *(int(cut) for cut in (a[0], b[0]) if 0 < cut < len(x)), len(x)]
    found = [start + cut for cut in edges[1:-1]]
    for first, last in itertools.pairwise(edges):
        found += _segment(x[first:last], start + first, level)
    return sorted(found)


def _most_different(rows: F64) -> tuple[F64, I64, I64]:
    """Of each row the largest statistic and its segment [a, b).

    The statistic is the segment's distance from the row's mean, over its standard error for unit variance:
    |sum of deviations| / sqrt(n_in * n_out / n). Shuffling keeps the row's variance, so this orders segments
    and shuffles as Student's t would.
    """
    count, n = rows.shape
    sums = np.zeros((count, n + 1))
    np.cumsum(rows - rows.mean(axis=1, keepdims=True), axis=1, out=sums[:, 1:])
    sums[:, -1] = 0.0
    best = np.zeros(count)
    first = np.zeros(count, np.int64)
    last = np.full(count, n)
    every = np.arange(count)

    def offer(distance: F64, lengths: F64 | float, starts: I64, ends: I64) -> None:
        statistic = np.abs(distance) / np.sqrt(lengths * (n - lengths) / n)
        at = statistic.argmax(axis=1)
        top = statistic[every, at]
        better = top > best
        best[better], first[better], last[better] = top[better], starts[at][better], ends[at][better]

    heads = np.arange(SHORTEST, n - SHORTEST + 1)
    offer(sums[:, heads], heads.astype(np.float64), np.zeros_like(heads), heads)
    for length in range(SHORTEST, min(LONGEST, n - 2 * SHORTEST) + 1):
        starts = np.arange(SHORTEST, n - SHORTEST - length + 1)
        offer(sums[:, starts + length] - sums[:, starts], float(length), starts, starts + length)
    return best, first, last


def _p_value(x: F64, observed: float, level: float) -> float:
    """How often shuffled values hold a segment as different; stops once that is too often for `level`."""
    return _shuffled_share(x, observed, level, lambda rows: _most_different(rows)[0])


def _split_p(x: F64, cut: int, level: float) -> float:
    """How often shuffled values differ as much in mean before and after `cut`."""

    def distance(rows: F64) -> F64:
        apart: F64 = rows[:, :cut].mean(axis=1) - rows[:, cut:].mean(axis=1)
        return np.abs(apart)

    return _shuffled_share(x, float(distance(x[None, :])[0]), level, distance)


def _shuffled_share(x: F64, observed: float, level: float, statistic: Callable[[F64], F64]) -> float:
    """The share of shuffles of x whose statistic reaches the observed one, x itself counted among them
    (Phipson and Smyth, 2010, "Permutation p-values should never be zero").
    """
    random = np.random.default_rng(_SEED)
    reached, done = 0, 0
    while done < _SHUFFLES and reached <= level * (_SHUFFLES + 1):
        rows = random.permuted(np.broadcast_to(x, (_BATCH, len(x))), axis=1)
        reached += int((statistic(rows) >= observed * (1 - 1e-9)).sum())
        done += _BATCH
    return (1 + reached) / (1 + done)


def _keep_significant(x: F64, cuts: list[int], level: float) -> list[tuple[int, float]]:
    """The cuts that hold against both neighbouring segments, with their significance."""
    while cuts:
        edges = [0, *cuts, len(x)]
        tested = [
            _split_p(x[before:after], cut - before, level)
            for before, cut, after in zip(edges, cuts, edges[2:], strict=False)
        ]
        worst = int(np.argmax(tested))
        if tested[worst] <= level:
            return list(zip(cuts, tested, strict=True))
        cuts = cuts[:worst] + cuts[worst + 1 :]
    return []
