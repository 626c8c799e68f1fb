"""Each rank's clock against the reference's, with the interval that is guaranteed and the precision reached.

Two sources. Causality: nobody leaves a blocking collective before the last rank arrives, which bounds each
offset hard. And the ends of blocking collectives, which all ranks see nearly together, save that the last
rank leaves some before the others: a push in one shot by 1 to 1.5 µs, as was measured, others by what their
kernels' sources say (less, where it came by less than that after them: each leaves when the other's data is
there).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from latencylab.analyzers.collectives import (
    BARRIER_AT_END,
    ONE_SHOT,
    PUSH,
    TWO_SHOT_PUSH,
    RankCollectives,
    kind_of_token,
)
from latencylab.analyzers.pairing import Pairing, robust_line
from latencylab.model.trace import I64, Bool

F64 = npt.NDArray[np.float64]

WAITED_NS = 1_000  # a rank that waited longer than this was not the last
# By how much the last rank leaves before the others, and the uncertainty of that: measured where data is
# pushed in one shot, 1 to 1.5 µs, a flight of the data. None or as much in other one-shot collectives,
# according to how they are built. Not measured but read from the kernel's source is a push in two shots: the
# last rank waits for the sums of its data, two flights, as the others do for each other's; of two ranks the
# other waits for one flight alone.
LEAVES_FIRST_NS = {
    "push": (1_250.0, 250.0),
    "two-shot push": (0.0, 1_250.0),
    "one shot": (750.0, 750.0),
    "other": (0.0, 0.0),
}
UNTOLD = 0.1  # share of collectives with one of the two ranks last from which their bias matters
ROUNDS = 3
FEW_POINTS = 8  # below so many the residual is the largest deviation, not the median one,
FEW_POINTS_NS = 700.0  # and at least what ends of one collective usually differ by
BLOCKS = 8  # stretches of the window in which a clock that bends would show
RESOLVED = 3  # residuals, and times the noise, that a skew must exceed to be resolved


@dataclass(frozen=True, slots=True)
class Clock:
    """A rank's clock: local = aligned + offset + drift * (aligned - t0), in ns.

    `low`..`high` bound the offset at t0, by causality alone; `residual` is the precision: the largest of
    the MAD of the ends, the disagreement between kinds of collective, and what a bend of the clock leaves;
    `noise` is what one collective's end may be off, the 95th percentile. `shifted` is False where the
    offset is within three residuals of zero and nothing was shifted. `broken` says that causality leaves no
    offset at all.
    Without evidence (`points` 0) the clock is taken as it is, its residual is infinite, and nothing that
    needs it is resolved.
    """

    offset: float
    drift: float
    t0: int
    low: float
    high: float
    residual: float
    noise: float
    points: int
    shifted: bool
    broken: bool

    def align(self, time: I64) -> I64:
        """Local times on the reference's clock."""
        if not self.shifted:
            return time
        offset = round(self.offset)
        since = time - offset - self.t0
        drifted = (self.offset - offset + self.drift * since) / (1 + self.drift)
        aligned: I64 = time - offset - np.rint(drifted).astype(np.int64)
        return aligned


def fit_clocks(ranks: tuple[RankCollectives, ...], pairing: Pairing) -> tuple[Clock, ...]:
    """The clock of each rank; the first is the reference."""
    there = pairing.row >= 0
    start, end, arrival = (pairing.column(ranks, name) for name in ("start", "end", "arrival"))
    reference = np.flatnonzero(there[:, 0] & pairing.blocking)
    t0 = int(end[reference[0], 0]) if len(reference) else 0
    lines: list[tuple[float, float]] = [(0.0, 0.0)]
    for r in range(1, len(ranks)):
        rows = np.flatnonzero(_usable(there, pairing, r))
        lines.append(robust_line((end[rows, 0] - t0).astype(np.float64), _difference(end, rows, r)))
    unknown = float("inf")
    residual, noise = [0.0] + [unknown] * (len(ranks) - 1), [0.0] * len(ranks)
    points = [int(_usable(there, pairing, r).sum()) for r in range(len(ranks))]
    for _ in range(ROUNDS):
        waits = _waits(_shifted(arrival, lines, t0), there)
        for r in range(1, len(ranks)):
            rows = np.flatnonzero(_usable(there, pairing, r))
            if len(rows):
                lines[r], residual[r], noise[r] = _fit(end, waits, rows, r, pairing, t0)
    low, high, broken = _causal(start, end, there, pairing.blocking, lines, t0)
    clocks = [Clock(0.0, 0.0, t0, 0.0, 0.0, 0.0, 0.0, points[0], shifted=False, broken=broken[0])]
    for r in range(1, len(ranks)):
        offset, drift = lines[r]
        span = int(np.ptp(end[there[:, r], r])) if there[:, r].any() else 0
        evident = abs(offset) > RESOLVED * residual[r] or abs(drift) * span > RESOLVED * residual[r]
        zero_fits = low[r] <= 0 <= high[r]
        clocks.append(
            Clock(
                offset,
                drift,
                t0,
                low[r],
                high[r],
                residual[r],
                noise[r],
                points[r],
                shifted=points[r] > 0 and (evident or not zero_fits),
                broken=broken[r],
            )
        )
    return tuple(clocks)


def _usable(there: Bool, pairing: Pairing, r: int) -> Bool:
    usable: Bool = there[:, 0] & there[:, r] & pairing.blocking
    return usable


def _difference(end: I64, rows: I64, r: int) -> F64:
    return np.asarray(end[rows, r] - end[rows, 0], np.float64)


def _shifted(times: I64, lines: list[tuple[float, float]], t0: int) -> F64:
    """Times (instances, ranks) on the reference's clock, relative to t0."""
    since = np.stack([(times[:, r] - t0) - o for r, (o, _) in enumerate(lines)], axis=1)
    aligned: F64 = since / (1 + np.array([drift for _, drift in lines]))
    return aligned


def _waits(arrival: F64, there: Bool) -> F64:
    """Per instance and rank, how long before the last arrival the rank was there; NaN where it is missing."""
    known = np.where(there, arrival, np.nan)
    waits: F64 = np.nanmax(known, axis=1, keepdims=True) - known
    return waits


def _fit(
    end: I64, waits: F64, rows: I64, r: int, pairing: Pairing, t0: int
) -> tuple[tuple[float, float], float, float]:
    """Offset and drift, residual and noise of rank r from the ends.

    Points in which both ranks waited, or of collectives that end in a barrier, are unbiased and used alone
    where there are enough. Else the bias of the last rank is a parameter of the fit, and where one rank is
    always last, so that nothing tells it from an offset, it is what is known of such collectives.
    """
    kinds, kind_of = np.unique([kind_of_token(token) for token in pairing.tokens], return_inverse=True)
    barrier = np.array([bool(BARRIER_AT_END.search(kind)) for kind in kinds])
    usual, unsure = np.array([leaves_first(kind) for kind in kinds]).T
    which = kind_of[pairing.token[rows]]
    x = (end[rows, 0] - t0).astype(np.float64)
    y = _difference(end, rows, r)
    both = (waits[rows, r] > WAITED_NS) & (waits[rows, 0] > WAITED_NS)
    unbiased = barrier[which] | both
    extra = 0.0
    if unbiased.sum() >= max(10, len(rows) // 20):
        x, y, which = x[unbiased], y[unbiased], which[unbiased]
    else:
        # The last rank ends early: y = offset - bias where r is last, offset + bias where the reference is.
        side = np.where(waits[rows, r] <= WAITED_NS, -1.0, 0.0) + np.where(
            waits[rows, 0] <= WAITED_NS, 1.0, 0.0
        )
        bias = usual[which]
        if min((side < 0).sum(), (side > 0).sum()) >= FEW_POINTS:
            line = robust_line(x, y - side * bias)
            rest = y - line[0] - line[1] * x
            bias = np.full(len(y), float(np.median(rest[side > 0]) - np.median(rest[side < 0])) / 2)
        elif (side != 0).mean() > UNTOLD:
            extra = float(unsure[which[side != 0]].max())
        y = y - side * bias
    line = robust_line(x, y)
    rest = y - line[0] - line[1] * x
    spread = float(np.median(np.abs(rest)))
    medians = [
        float(np.median(rest[which == kind])) for kind in np.unique(which) if (which == kind).sum() >= 5
    ]
    disagreement = max(medians) - min(medians) if len(medians) > 1 else 0.0
    if len(rest) < FEW_POINTS:
        spread = max(float(np.abs(rest).max()), FEW_POINTS_NS)
    spread = max(spread, _bend(rest))
    quantum = _quantum(end[rows][:, [0, r]])
    return line, max(spread, disagreement, extra, quantum), float(np.percentile(np.abs(rest), 95))


def _bend(rest: F64) -> float:
    """By how much the ends of a stretch of the window are off the line on the whole: a clock that bends.

    The largest median of BLOCKS stretches, where each has enough points for one; else 0.
    """
    if len(rest) < BLOCKS * FEW_POINTS:
        return 0.0
    return max(abs(float(np.median(block))) for block in np.array_split(rest, BLOCKS))


def leaves_first(kind: str) -> tuple[float, float]:
    """By how many ns the last rank leaves a kind of collective before the others, and how unsure that is."""
    if PUSH.search(kind):
        return LEAVES_FIRST_NS["two-shot push" if TWO_SHOT_PUSH.search(kind) else "push"]
    return LEAVES_FIRST_NS["one shot" if ONE_SHOT.search(kind) else "other"]


def _quantum(times: I64) -> float:
    """The grid that the stamps lie on, in ns: 1 in new traces, 1000 in those that print whole µs."""
    return float(min(np.gcd.reduce(np.diff(times.ravel())), 1_000)) if times.size > 1 else 1.0


def _causal(
    start: I64, end: I64, there: Bool, blocking: Bool, lines: list[tuple[float, float]], t0: int
) -> tuple[list[float], list[float], list[bool]]:
    """The bounds of each offset at t0 for the drift found, and whether they leave nothing.

    For any two ranks a and b of a blocking collective, end_a >= start_b on one clock, so offset_b - offset_a
    >= start_b - end_a on their own ones. Bounds between ranks are chained over third ranks (shortest
    paths, Floyd and Warshall), which tightens them.
    """
    count = start.shape[1]
    begin, finish = _shifted(start, lines, t0), _shifted(end, lines, t0)
    most = np.full((count, count), np.inf)  # most[b, a]: by how much more offset_a - offset_b could be
    for a in range(count):
        for b in range(count):
            rows = there[:, a] & there[:, b] & blocking
            if a != b and rows.any():
                most[b, a] = float((finish[rows, a] - begin[rows, b]).min())
    np.fill_diagonal(most, 0.0)
    direct = most.copy()
    for middle in range(count):
        most = np.minimum(most, most[:, middle, None] + most[None, middle, :])
    contradicted = [bool(most[r, r] < 0) for r in range(count)]
    if any(contradicted):
        contradicted = _culprits(direct)
        most = direct
    low = [lines[r][0] - float(most[r, 0]) for r in range(count)]
    high = [lines[r][0] + float(most[0, r]) for r in range(count)]
    return low, high, contradicted


def _culprits(most: npt.NDArray[np.float64]) -> list[bool]:
    """Which ranks break causality: those in most pairs that leave no offset (most[a, b] + most[b, a] < 0)."""
    impossible = (most + most.T) < 0
    votes = impossible.sum(axis=1)
    return [bool(vote and vote == votes.max()) for vote in votes]
