"""Each rank's clock against the reference's, with the interval that is guaranteed and the precision reached.

Two sources. Causality: nobody leaves a blocking collective before the last rank arrives, which bounds each
offset hard. And the ends of blocking collectives, which all ranks see nearly together, save that the last
rank leaves a one-shot or push collective 1 to 1.5 µs before the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from latencylab.analyzers.collectives import BARRIER_AT_END, PUSH, RankCollectives
from latencylab.analyzers.pairing import Pairing, robust_line
from latencylab.model.trace import I64, Bool

F64 = npt.NDArray[np.float64]

WAITED_NS = 1_000  # a rank that waited longer than this was not the last
LEAVES_FIRST_NS = 1_250.0  # by how much the last rank leaves a push collective before the others
LEAVES_FIRST_SPREAD_NS = 250.0  # the uncertainty of that
ROUNDS = 3
FEW_POINTS = 8  # below so many the residual is the largest deviation, not the median one
RESOLVED = 3  # residuals that a figure must exceed to be resolved


@dataclass(frozen=True, slots=True)
class Clock:
    """A rank's clock: aligned = local - offset - drift * (local - t0), in ns.

    `low`..`high` bound the offset at t0, by causality alone; `residual` is the precision: the larger of the
    MAD of the ends and the disagreement between kinds of collective. `shifted` is False where the offset is
    within three residuals of zero and nothing was shifted. `broken` says that causality leaves no offset at
    all. Without evidence (`points` 0) the clock is taken as it is, and nothing is known of it.
    """

    offset: float
    drift: float
    t0: int
    low: float
    high: float
    residual: float
    points: int
    shifted: bool
    broken: bool

    def align(self, time: I64) -> I64:
        """Local times on the reference's clock."""
        if not self.shifted:
            return time
        aligned: I64 = time - np.rint(self.offset + self.drift * (time - self.t0)).astype(np.int64)
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
        lines.append(robust_line(end[rows, r].astype(np.float64) - t0, _difference(end, rows, r)))
    residual = [0.0] * len(ranks)
    points = [int(_usable(there, pairing, r).sum()) for r in range(len(ranks))]
    for _ in range(ROUNDS):
        waits = _waits(_shifted(arrival, lines, t0), there)
        for r in range(1, len(ranks)):
            rows = np.flatnonzero(_usable(there, pairing, r))
            if len(rows):
                lines[r], residual[r] = _fit(end, waits, rows, r, pairing, t0)
    low, high, broken = _causal(start, end, there, pairing.blocking, lines, t0)
    clocks = [Clock(0.0, 0.0, t0, 0.0, 0.0, 0.0, points[0], shifted=False, broken=False)]
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
    local = (times - t0).astype(np.float64)
    return np.stack([local[:, r] - o - d * local[:, r] for r, (o, d) in enumerate(lines)], axis=1)


def _waits(arrival: F64, there: Bool) -> F64:
    """Per instance and rank, how long before the last arrival the rank was there; NaN where it is missing."""
    known = np.where(there, arrival, np.nan)
    waits: F64 = np.nanmax(known, axis=1, keepdims=True) - known
    return waits


def _fit(
    end: I64, waits: F64, rows: I64, r: int, pairing: Pairing, t0: int
) -> tuple[tuple[float, float], float]:
    """Offset, drift and residual of rank r from the ends.

    Points in which both ranks waited, or of collectives that end in a barrier, are unbiased and used alone
    where there are enough. Else the bias of the last rank is a parameter of the fit, and where one rank is
    always last, so that nothing tells it from an offset, it is what is known of such collectives.
    """
    names = np.array([bool(BARRIER_AT_END.search(name)) for name in pairing.tokens])
    pushes = np.array([bool(PUSH.search(name)) for name in pairing.tokens])
    token = pairing.token[rows]
    x = (end[rows, r] - t0).astype(np.float64)
    y = _difference(end, rows, r)
    both = (waits[rows, r] > WAITED_NS) & (waits[rows, 0] > WAITED_NS)
    unbiased = names[token] | both
    extra = 0.0
    if unbiased.sum() >= max(10, len(rows) // 20):
        x, y, token = x[unbiased], y[unbiased], token[unbiased]
    else:
        # The last rank ends early: y = offset - bias where r is last, offset + bias where the reference is.
        side = np.where(waits[rows, r] <= WAITED_NS, -1.0, 0.0) + np.where(
            waits[rows, 0] <= WAITED_NS, 1.0, 0.0
        )
        side *= pushes[token]
        bias = LEAVES_FIRST_NS
        late, early = y[side < 0], y[side > 0]
        if len(late) >= 5 and len(early) >= 5:
            line = robust_line(x, y - side * bias)
            rest = y - line[0] - line[1] * x
            bias = float(np.median(rest[side > 0]) - np.median(rest[side < 0])) / 2
        elif (side != 0).any():
            extra = LEAVES_FIRST_SPREAD_NS
        y = y - side * bias
    line = robust_line(x, y)
    rest = y - line[0] - line[1] * x
    spread = float(np.median(np.abs(rest)))
    medians = [
        float(np.median(rest[token == kind])) for kind in np.unique(token) if (token == kind).sum() >= 5
    ]
    disagreement = max(medians) - min(medians) if len(medians) > 1 else 0.0
    if len(rest) < FEW_POINTS:
        spread = float(np.abs(rest).max())
    return line, max(spread, disagreement, extra, _quantum(end[rows][:, [0, r]]))


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
    drifts = [(0.0, drift) for _, drift in lines]
    begin, finish = _shifted(start, drifts, t0), _shifted(end, drifts, t0)
    most = np.full((count, count), np.inf)  # most[b, a]: offset_a - offset_b is at most this
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
    low = [-float(most[r, 0]) for r in range(count)]
    high = [float(most[0, r]) for r in range(count)]
    return low, high, contradicted


def _culprits(most: npt.NDArray[np.float64]) -> list[bool]:
    """Which ranks break causality: those in most pairs that leave no offset (most[a, b] + most[b, a] < 0)."""
    impossible = (most + most.T) < 0
    votes = impossible.sum(axis=1)
    return [bool(vote and vote == votes.max()) for vote in votes]
