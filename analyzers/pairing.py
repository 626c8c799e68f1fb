"""Which collectives of several ranks are one: a first guess at the clocks from whole steps, then by time.

Steps repeat, so a sequence of kinds alone cannot tell a rank that began a step later from one that did not.
But in a collective that synchronises all ranks leave nearly together, so for the right shift the ends of a
rank differ from the reference's by a constant, and for a wrong one by the jitter of whole steps.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from latencylab.analyzers.collectives import BLOCKING, NOT_BLOCKING, RankCollectives, kind_of_token
from latencylab.model.trace import I64, Bool

F64 = npt.NDArray[np.float64]
# Jitter in ns; minus the number of pairs, and the offset in ns; what pairs, of the rank and the reference.
_Shift = tuple[float, tuple[int, float], Any, Any]

TOLERANCE_NS = 25_000  # by how much ends of one collective may differ on roughly aligned clocks, at most
AGREE_NS = 3_000  # and at least
MAX_SHIFT = 256  # steps, or without common steps collectives, by which captures are slid against each other
SAMPLED = 8  # ends of a step by which shifts are told apart
LIKE = 1.25  # times the least jitter (and this many ns) within which shifts are as good as each other
LIKE_NS = 20.0
MAX_DRIFT = 3e-4  # of one clock against another: oscillators of servers keep to 100 ppm
COMPARED = 4096  # collectives compared for each such shift


@dataclass(frozen=True, slots=True, eq=False)
class Pairing:
    """Collectives paired across ranks, in order of time on the reference.

    `row[i, r]` is the row of rank r's collective in its `RankCollectives`, or -1; `token[i]` a row of
    `tokens`; `blocking[i]` whether nobody can leave it before the last arrives. `unpaired[r]` counts rank
    r's collectives that no other rank has; `diverges[r]` is the row from which rank r is paired no more, or
    -1. `alike[r]` says that rank r's steps are too much alike to tell by how many whole steps its record is
    shifted.
    """

    row: I64
    token: I64
    tokens: tuple[str, ...]
    blocking: Bool
    unpaired: tuple[int, ...]
    diverges: tuple[int, ...]
    alike: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.row)

    def column(self, ranks: tuple[RankCollectives, ...], name: str) -> I64:
        """A column of the ranks' collectives as an array (instances, ranks); 0 where a rank is missing."""
        columns = [getattr(rank, name) for rank in ranks]
        return np.stack(
            [
                np.where(self.row[:, r] >= 0, column[np.maximum(self.row[:, r], 0)], 0)
                if len(column)
                else np.zeros(len(self.row), np.int64)
                for r, column in enumerate(columns)
            ],
            axis=1,
        )


def pair_collectives(ranks: tuple[RankCollectives, ...]) -> Pairing:
    """Pair the collectives of all ranks; the first rank is the reference."""
    tokens: dict[str, int] = {}
    token = [
        np.array([tokens.setdefault(name, len(tokens)) for name in rank.tokens], np.int64)[rank.token]
        if len(rank)
        else np.zeros(0, np.int64)
        for rank in ranks
    ]
    names = tuple(tokens)
    kinds = [kind_of_token(name) for name in names]
    is_blocking = np.array([bool(BLOCKING.search(k)) and not NOT_BLOCKING.search(k) for k in kinds], bool)
    rough: list[tuple[float, float, int] | None] = [(0.0, 0.0, int(ranks[0].start.min(initial=0)))]
    alike = [False]
    for rank, its in zip(ranks[1:], token[1:], strict=True):
        clock, is_alike = _rough_clock(ranks[0], token[0], rank, its, is_blocking)
        rough.append(clock)
        alike.append(is_alike)
    aligned_end = [_aligned(rank.end, clock) for rank, clock in zip(ranks, rough, strict=True)]
    row = _cluster(aligned_end, token, is_blocking, rough)
    if len(row):
        row = row[np.lexsort([_order(row, aligned_end)])]
    first = np.argmax(row >= 0, axis=1) if len(row) else np.zeros(0, np.int64)
    instance_token = np.array([token[r][row[i, r]] for i, r in enumerate(first.tolist())], np.int64)
    paired = [np.zeros(len(rank), bool) for rank in ranks]
    for r in range(len(ranks)):
        paired[r][row[row[:, r] >= 0, r]] = True
    return Pairing(
        row=row,
        token=instance_token,
        tokens=names,
        blocking=is_blocking[instance_token] if names else np.zeros(0, bool),
        unpaired=tuple(int((~p).sum()) for p in paired),
        diverges=tuple(_diverges(p) for p in paired),
        alike=tuple(alike),
    )


def _aligned(time: I64, clock: tuple[float, float, int] | None) -> I64:
    if clock is None:
        return time
    offset, drift, t0 = clock
    aligned: I64 = time - np.rint(offset + drift * (time - t0)).astype(np.int64)
    return aligned


def _order(row: I64, aligned_end: list[I64]) -> I64:
    """A time for each instance: the end on the first rank that has it."""
    first = np.argmax(row >= 0, axis=1)
    return np.array([aligned_end[r][row[i, r]] for i, r in enumerate(first.tolist())], np.int64)


def _diverges(paired: Bool) -> int:
    """The row after a rank's last paired collective, where at least three follow unpaired; else -1."""
    where = np.flatnonzero(paired)
    after = int(where[-1]) + 1 if len(where) else 0
    return after if len(paired) - after >= 3 else -1


def _rough_clock(
    ref: RankCollectives, ref_token: I64, rank: RankCollectives, token: I64, is_blocking: Bool
) -> tuple[tuple[float, float, int] | None, bool]:
    """A rank's clock against the reference from steps that hold the same collectives, else from the
    sequence of all; None where neither agrees. Also whether other shifts would do as well.

    Of all shifts by whole steps the one is taken for which the differences of ends jitter least from one
    step to the next; of shifts as good as that, the one under which most steps pair, and of these
    the one with the least offset.
    """
    common = np.isin(np.arange(len(is_blocking)), token) & np.isin(np.arange(len(is_blocking)), ref_token)
    ours, theirs = _steps_of(rank, token, is_blocking, common), _steps_of(ref, ref_token, is_blocking, common)
    found = [its for shift in _shifts(ours, theirs) if (its := _try_shift(ours, theirs, shift)) is not None]
    if found:
        (_, _, mine, its), alike = _best(found)
        local = np.concatenate([rank.end[ours.blocking[i]] for i in mine]).astype(np.float64)
        difference = local - np.concatenate([ref.end[theirs.blocking[i]] for i in its])
    else:
        slid = _slide(ref, ref_token, rank, token, is_blocking & common)
        if not slid:
            return None, False
        (_, _, local, difference), alike = _best(slid)
    t0 = int(local[0])
    offset, drift = robust_line(local - t0, difference)
    return (offset, drift, t0), alike


def _shifts(ours: _Steps, theirs: _Steps) -> range:
    """The shifts by whole steps worth a look: all, or the MAX_SHIFT nearest to what the raw clocks say."""
    if not len(ours.last_end) or not len(theirs.last_end):
        return range(0)
    middle = len(ours.last_end) // 2
    near = int(np.searchsorted(theirs.last_end, ours.last_end[middle])) - middle
    low, high = -len(ours.last_end) + 1, len(theirs.last_end)
    return range(max(low, near - MAX_SHIFT), min(high, near + MAX_SHIFT))


def _try_shift(ours: _Steps, theirs: _Steps, shift: int) -> _Shift | None:
    """Look at one shift by whole steps, with the steps of both that pair; None where too few do."""
    count = min(len(ours.last_end), len(theirs.last_end))
    low, high = max(0, -shift), min(len(ours.last_end), len(theirs.last_end) - shift)
    mine = low + np.flatnonzero(ours.signature[low:high] == theirs.signature[low + shift : high + shift])
    if len(mine) < max(1, count // 3):
        return None
    difference = (ours.ends[mine] - theirs.ends[mine + shift]).astype(np.float64)
    return _jitter(difference), (-len(mine), abs(float(np.median(difference)))), mine, mine + shift


def _best(found: list[_Shift]) -> tuple[_Shift, bool]:
    """The one of least jitter; of those as good, of most pairs, then of least offset.

    And whether there are others as good. One pair alone has no jitter to go by, so it counts only where no
    shift has more.
    """
    most = max(-rank_of[0] for _, rank_of, *_ in found)
    found = [its for its in found if -its[1][0] >= min(2, most)]
    least = min(jitter for jitter, *_ in found)
    good = [its for its in found if its[0] <= LIKE * least + LIKE_NS]
    return min(good, key=lambda its: its[1]), len(good) > 1 and least > 0


@dataclass(frozen=True, slots=True, eq=False)
class _Steps:
    """The steps of a rank that have blocking collectives, in order: a hash of all their tokens, the rows of
    the blocking ones, and the ends of some of these, SAMPLED a step, the last among them.
    """

    signature: I64
    blocking: list[I64]
    ends: I64

    @property
    def last_end(self) -> I64:
        return self.ends[:, -1]


def _steps_of(rank: RankCollectives, token: I64, is_blocking: Bool, common: Bool) -> _Steps:
    """The steps by the collectives of kinds that both ranks have; others are of groups that one is not in."""
    mine = np.flatnonzero(common[token]) if len(common) else np.zeros(0, np.int64)
    order = mine[np.argsort(rank.step[mine], kind="stable")]
    signature, blocking = [], []
    for rows in np.split(order, np.flatnonzero(np.diff(rank.step[order])) + 1):
        its = rows[is_blocking[token[rows]]] if len(rows) else rows
        if len(its):
            signature.append(hash(token[rows].tobytes()))
            blocking.append(its)
    sampled = [its[np.linspace(0, len(its) - 1, SAMPLED).astype(np.int64)] for its in blocking]
    ends = rank.end[np.array(sampled, np.int64).reshape(-1, SAMPLED)]
    return _Steps(np.array(signature, np.int64), blocking, ends)


def _slide(
    ref: RankCollectives, ref_token: I64, rank: RankCollectives, token: I64, usable: Bool
) -> list[_Shift]:
    """The shifts by single collectives, around what the raw clocks say, at which nine of ten kinds agree.

    For ranks without a common step.
    """
    mine, theirs = np.flatnonzero(usable[token]), np.flatnonzero(usable[ref_token])
    found: list[_Shift] = []
    if not len(mine) or not len(theirs):
        return found
    middle = len(mine) // 2
    near = int(np.searchsorted(ref.end[theirs], rank.end[mine[middle]])) - middle
    for shift in range(near - MAX_SHIFT, near + MAX_SHIFT + 1):
        a, b = mine[max(0, -shift) :][:COMPARED], theirs[max(0, shift) :][:COMPARED]
        count = min(len(a), len(b))
        if count < max(1, min(len(mine), len(theirs)) // 2):
            continue
        a, b = a[:count], b[:count]
        same = token[a] == ref_token[b]
        if same.mean() >= 0.9:
            local = rank.end[a[same]].astype(np.float64)
            difference = local - ref.end[b[same]]
            rank_of = (-int(same.sum()), abs(float(np.median(difference))))
            found.append((_jitter(difference), rank_of, local, difference))
    return found


def _jitter(difference: F64) -> float:
    """The median change from one step's differences to the next's: drift adds next to nothing to it."""
    return float(np.median(np.abs(np.diff(difference, axis=0)))) if len(difference) > 1 else 0.0


def robust_line(x: F64, y: F64) -> tuple[float, float]:
    """Offset and slope of y over x, from the medians of the outer thirds and of what remains.

    Tukey's resistant line (1977, "Exploratory Data Analysis", ch. 10), with three polishing rounds; the slope
    of a clock is bounded by what two oscillators can differ.
    """
    if len(x) < 6 or x[-1] == x[0]:
        return (float(np.median(y)) if len(y) else 0.0), 0.0
    order = np.argsort(x, kind="stable")
    third = len(x) // 3
    left, right = order[:third], order[-third:]
    span = float(np.median(x[right]) - np.median(x[left]))
    slope = 0.0
    for _ in range(3):
        rest = y - slope * x
        slope += float(np.median(rest[right]) - np.median(rest[left])) / span if span else 0.0
    slope = float(np.clip(slope, -MAX_DRIFT, MAX_DRIFT))
    return float(np.median(y - slope * x)), slope


def _cluster(
    aligned_end: list[I64], token: list[I64], is_blocking: Bool, rough: list[tuple[float, float, int] | None]
) -> I64:
    """Instances with at least two ranks, as rows of each rank's collectives: an array (instances, ranks).

    Blocking collectives of one kind are one where they end together; the others, which may not, where they
    are the n-th of their kind since the same blocking one.
    """
    ranks = [r for r, clock in enumerate(rough) if clock is not None]
    found: list[dict[int, int]] = []
    for kind in np.flatnonzero(is_blocking).tolist():
        found += _ending_together(aligned_end, [token[r] == kind for r in range(len(token))], ranks)
    found = [group for group in found if len(group) > 1]
    found += _in_order(found, token, is_blocking, ranks)
    rows = np.full((len(found), len(token)), -1, np.int64)
    for i, group in enumerate(found):
        for r, row in group.items():
            rows[i, r] = row
    return rows


def _ending_together(aligned_end: list[I64], chosen: list[Bool], ranks: list[int]) -> list[dict[int, int]]:
    """Group the chosen collectives by their ends, each rank once at most, as rows by rank."""
    rows = [np.flatnonzero(chosen[r]) for r in ranks]
    ends = [aligned_end[r][its] for r, its in zip(ranks, rows, strict=True)]
    tolerance = _tolerance(ends)
    time, row_of = np.concatenate(ends), np.concatenate(rows)
    rank_of = np.repeat(ranks, [len(its) for its in rows])
    order = np.argsort(time, kind="stable")
    groups: list[dict[int, int]] = []
    begun = 0
    for at, r, row in zip(time[order].tolist(), rank_of[order].tolist(), row_of[order].tolist(), strict=True):
        if not groups or at - begun > tolerance or r in groups[-1]:
            groups.append({})
            begun = at
        groups[-1][r] = row
    return groups


def _in_order(
    found: list[dict[int, int]], token: list[I64], is_blocking: Bool, ranks: list[int]
) -> list[dict[int, int]]:
    """Group the collectives that do not block by their order since the last group found."""
    instance = [np.full(len(its), -1, np.int64) for its in token]
    for number, group in enumerate(found):
        for r, row in group.items():
            instance[r][row] = number
    places: dict[tuple[int, int, int], dict[int, int]] = defaultdict(dict)
    for r in ranks:
        since = -1
        seen: dict[tuple[int, int], int] = defaultdict(int)
        for row, kind in enumerate(token[r].tolist()):
            if is_blocking[kind]:
                since = int(instance[r][row]) if instance[r][row] >= 0 else since
            else:
                places[since, kind, seen[since, kind]][r] = row
                seen[since, kind] += 1
    return [group for group in places.values() if len(group) > 1]


def _tolerance(ends: list[I64]) -> float:
    """Half the least usual distance between two collectives of the kind on one rank, within bounds."""
    gaps = [float(np.percentile(np.diff(its), 1)) for its in ends if len(its) > 1]
    return float(np.clip(min(gaps, default=TOLERANCE_NS) / 2, AGREE_NS, TOLERANCE_NS))
