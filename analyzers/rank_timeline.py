"""One step of all ranks, laid out on one clock to be drawn."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np

from latencylab.analyzers.clocks import F64, RESOLVED, Clock
from latencylab.analyzers.ranks import RankSet
from latencylab.analyzers.timeline import build_timeline
from latencylab.analyzers.view import KindView
from latencylab.model.rank_timeline import (
    ArrivalBoxes,
    RankLane,
    RankTimeline,
    SharedCollectives,
    WorkBoxes,
)
from latencylab.model.trace import I64, MISSING, Bool, Table

T = TypeVar("T", bound=Table)


def build_rank_timeline(joined: RankSet, kind: KindView) -> RankTimeline | None:
    """The median step of the reference's main `kind` with the steps of the other ranks that share its
    collectives; None where no other rank does.

    Where some rank does not share the median step's, that one of the steps of most ranks is taken whose
    duration is nearest to the median.
    """
    steps = kind.rank.steps
    if not kind.by_step:
        return None
    wall = (steps.end - steps.start)[kind.used]
    by_wall = kind.used[np.argsort(np.abs(wall - np.sort(wall)[(len(wall) - 1) // 2]), kind="stable")]
    launched = _launched_in(joined)
    best: list[int] = []
    for row in by_wall.tolist():
        best = max(best, _match(launched, row), key=_shared)
        if _shared(best) == len(joined.views):
            break
    return _Layout(joined, launched, best).timeline(kind.kind or "") if _shared(best) > 1 else None


def _shared(steps: list[int]) -> int:
    """By how many ranks a step is shared."""
    return sum(step >= 0 for step in steps)


def _launched_in(joined: RankSet) -> I64:
    """Per paired collective and rank the step of that rank that launched it, or -1."""
    row = joined.pairing.row
    steps = [
        np.where(row[:, r] >= 0, rank.step[np.maximum(row[:, r], 0)] if len(rank) else -1, -1)
        for r, rank in enumerate(joined.ranks)
    ]
    return np.stack(steps, axis=1)


def _match(launched: I64, step: int) -> list[int]:
    """Per rank the step in which most of the collectives of the reference's step were launched, or -1."""
    rows = launched[launched[:, 0] == step]
    matched = []
    for its in rows.T:
        found, count = np.unique(its[its >= 0], return_counts=True)
        matched.append(int(found[count.argmax()]) if len(found) else -1)
    return matched


class _Layout:
    """The step of each rank that is drawn, the collectives that lie in any of them, and the names in use."""

    def __init__(self, joined: RankSet, launched: I64, steps: list[int]) -> None:
        self.joined = joined
        self.ranks = [r for r, step in enumerate(steps) if step >= 0]
        self.steps = steps
        wanted = np.array(steps, np.int64)
        inside = (launched == wanted) & (wanted >= 0)
        first_at = np.where(joined.skew.there, joined.skew.arrival, np.iinfo(np.int64).max).min(axis=1)
        rows = np.flatnonzero(inside.any(axis=1) & ~joined.skew.trimmed)
        self.rows = rows[np.argsort(first_at[rows], kind="stable")]
        self.names: dict[str, int] = {}

    def timeline(self, kind: str) -> RankTimeline:
        lanes = tuple(self._lane(r) for r in self.ranks)
        return RankTimeline(
            kind=kind,
            start=lanes[0].start,
            end=lanes[0].end,
            collectives=self._collectives(),
            lanes=lanes,
            names=tuple(self.names),
        )

    def _name(self, text: str) -> int:
        return self.names.setdefault(text, len(self.names))

    def _named(self, column: I64, names: tuple[str, ...]) -> I64:
        """The rows of `self.names` of a column of rows of other names; -1 stays -1."""
        kinds, at = np.unique(column, return_inverse=True)
        rows = [MISSING if kind < 0 else self._name(names[kind]) for kind in kinds.tolist()]
        return np.array(rows, np.int64)[at]

    def _lane(self, r: int) -> RankLane:
        view, clock, step = self.joined.views[r], self.joined.clocks[r], self.steps[r]
        line = build_timeline(view, step)
        legs, gaps = line.legs.take(line.legs.own), line.gaps.take(line.gaps.own)
        edges = clock.align(np.array([line.start, line.end]))
        return RankLane(
            rank=view.trace.rank,
            step=step,
            start=int(edges[0]),
            end=int(edges[1]),
            residual=round(clock.residual) if np.isfinite(clock.residual) else MISSING,
            legs=_aligned(clock, replace(legs, name=self._named(legs.name, line.names))),
            work=_aligned(clock, self._work(r)),
            gaps=_aligned(
                clock,
                replace(
                    gaps,
                    doing=self._named(gaps.doing, line.names),
                    blame=self._named(gaps.blame, line.names),
                    op=np.full(len(gaps), MISSING, np.int64),
                ),
            ),
            arrivals=self._arrivals(r),
        )

    def _work(self, r: int) -> WorkBoxes:
        view = self.joined.views[r]
        rows = self.rows[self.joined.skew.there[self.rows, r]]
        drawn = self.joined.ranks[r].op[self.joined.pairing.row[rows, r]]
        work = view.work
        own = np.flatnonzero((work.step == self.steps[r]) & ~np.isin(work.op, drawn))
        op = work.op[own]
        return WorkBoxes(
            start=work.start[own],
            end=work.end[own],
            name=self._named(view.trace.gpu.name[op].astype(np.int64), view.trace.names),
            kernel_class=self._named(view.op_class[op], view.classes),
        )

    def _arrivals(self, r: int) -> ArrivalBoxes:
        skew = self.joined.skew
        place = np.flatnonzero(skew.there[self.rows, r])
        rows = self.rows[place]
        wait = np.where(self.joined.pairing.blocking[rows], skew.wait[rows, r], 0)
        return ArrivalBoxes(skew.arrival[rows, r], skew.end[rows, r], wait, place)

    def _collectives(self) -> SharedCollectives:
        skew, pairing, rows = self.joined.skew, self.joined.pairing, self.rows
        there = skew.there[rows]
        lanes = np.full(there.shape[1], MISSING, np.int64)
        lanes[self.ranks] = np.arange(len(self.ranks))
        cause, cause_ns = self._main_causes()
        return SharedCollectives(
            start=np.where(there, skew.arrival[rows], np.iinfo(np.int64).max).min(axis=1),
            end=np.where(there, skew.end[rows], np.iinfo(np.int64).min).max(axis=1),
            kind=self._named(pairing.token[rows], pairing.tokens),
            last=lanes[skew.last[rows]],
            spread=skew.spread[rows],
            least=self._least(there),
            resolved=skew.resolved[rows],
            sure=skew.resolved[rows] & (skew.spread[rows] > self._doubt(there)),
            blocking=pairing.blocking[rows],
            cause=cause,
            cause_ns=cause_ns,
        )

    def _least(self, there: Bool) -> I64:
        """Per collective the spread from which it is resolved, by the clocks of the ranks in it."""
        precise = np.array([max(clock.residual, clock.noise) for clock in self.joined.clocks])
        return _whole(RESOLVED * np.where(there, precise, 0.0).max(axis=1, initial=0.0))

    def _doubt(self, there: Bool) -> I64:
        """Per collective by how much less its arrivals could be spread on clocks that causality allows: the
        last rank's at its highest, the first one's at its lowest.
        """
        skew, clocks = self.joined.skew, self.joined.clocks
        late = np.array([clock.high - (clock.offset if clock.shifted else 0.0) for clock in clocks])
        early = np.array([(clock.offset if clock.shifted else 0.0) - clock.low for clock in clocks])
        first = np.where(there, skew.arrival[self.rows], np.iinfo(np.int64).max).argmin(axis=1)
        return _whole(np.maximum(late[skew.last[self.rows]] + early[first], 0.0))

    def _main_causes(self) -> tuple[I64, I64]:
        """Per collective the largest cause of its last rank's lateness, and its ns; -1 and 0 without any."""
        causes = self.joined.causes
        cause, most = np.full(len(self.rows), MISSING, np.int64), np.zeros(len(self.rows))
        place = {row: i for i, row in enumerate(self.rows.tolist())}
        for row in np.flatnonzero(np.isin(causes.instance, self.rows) & (causes.ns > 0)).tolist():
            i = place[int(causes.instance[row])]
            if causes.ns[row] > most[i]:
                cause[i], most[i] = self._name(causes.names[int(causes.cause[row])]), causes.ns[row]
        return cause, _whole(most)


def _whole(ns: F64) -> I64:
    """Whole ns; what is out of bounds becomes very long."""
    whole: I64 = np.rint(np.minimum(ns, 1e18)).astype(np.int64)
    return whole


def _aligned(clock: Clock, table: T) -> T:
    """The table on the reference's clock."""
    return replace(table, start=clock.align(table.start), end=clock.align(table.end))
