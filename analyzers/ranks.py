"""All ranks together: their clocks, the waits in collectives, and whose fault those were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from latencylab.analyzers.clocks import Clock, fit_clocks
from latencylab.analyzers.collectives import RankCollectives, find_collectives
from latencylab.analyzers.host_collectives import find_host_waits
from latencylab.analyzers.pairing import Pairing, pair_collectives
from latencylab.analyzers.skew import Causes, Skew, find_causes, lone_waits, measure_skew
from latencylab.analyzers.uneven import (
    StepTimes,
    find_uneven,
    host_excess,
    host_times,
    matched_steps,
    owed_to_excess,
)
from latencylab.analyzers.view import KindView, RankView
from latencylab.model.findings import (
    Alignment,
    CollectiveKind,
    Collectives,
    CollectiveTotals,
    Late,
    RankClock,
    Uneven,
)
from latencylab.model.integrity import Issue
from latencylab.model.trace import I64, Bool

APART_NS = 60_000_000_000  # between the records of ranks of one job, at most
ROUNDING_NS = 1e-3
UNEXPLAINED = "unexplained: before the record, or beyond what clocks and causes agree on"
ALONE = "a rank alone: its collectives' peers are not in the capture, so their waits cannot be told from work"


@dataclass(frozen=True, slots=True, eq=False)
class RankSet:
    """The ranks of one job on one timeline; `wait_alone[r]` is, per step of rank r, the ns of busy that were
    waiting in a collective while nothing else ran. `steps` are the steps that ranks share, an array (steps of
    the first rank, ranks), and `hosts` what each rank's host does in its steps. `causes` are as found, until
    they are `settled`.
    """

    views: tuple[RankView, ...]
    ranks: tuple[RankCollectives, ...]
    pairing: Pairing
    clocks: tuple[Clock, ...]
    skew: Skew
    causes: Causes
    wait_alone: tuple[I64, ...]
    steps: I64
    hosts: tuple[StepTimes, ...]

    def uneven(self, kinds: Sequence[Sequence[KindView]]) -> tuple[Uneven, ...]:
        """What single ranks do beyond the others in steps of the main kind, most first."""
        return find_uneven(_of_kind(kinds, _kind_names(kinds)[0]), self.steps, self.hosts)

    def settled(self, kinds: Sequence[Sequence[KindView]], uneven: Sequence[Uneven]) -> RankSet:
        """The same with the idle of late ranks' hosts charged to what those did beyond the others, in the
        collectives that count in any of these kinds of step; in all else causes stay as found.
        """
        causes = self.causes
        for name in _kind_names(kinds):
            chosen = _of_kind(kinds, name)
            judged = _judged(self, chosen)
            for r, view in enumerate(self.views):
                rows = judged[self.skew.last[judged] == r]
                if chosen[r] is None or not len(rows):
                    continue
                steps = _steps(self, r)[rows]
                excess = host_excess(self.hosts, self.steps, r, np.unique(steps[steps >= 0]))
                longer = [its for its in uneven if its.rank == view.trace.rank and its.on == "host"]
                sustained = [part.what for its in longer for part in its.parts]
                owed = owed_to_excess(view.trace.rank, causes.sums(rows), excess, sustained)
                causes = causes.charged(rows, owed)
        return replace(self, causes=causes)


def join_ranks(views: tuple[RankView, ...]) -> RankSet | None:
    """Pair the collectives of these ranks and align their clocks.

    None where nothing can be paired, or where the traces are not of one job.
    """
    if len(views) < 2 or job_differences(views):
        return None
    ranks = tuple(find_collectives(view) for view in views)
    pairing = pair_collectives(ranks)
    if not len(pairing):
        return None
    clocks = fit_clocks(ranks, pairing)
    skew = measure_skew(ranks, pairing, clocks)
    wait_alone = []
    for r, (view, rank) in enumerate(zip(views, ranks, strict=True)):
        wait = np.where(pairing.blocking & ~skew.trimmed, skew.wait[:, r], 0)
        ns, step = lone_waits(view, rank, pairing.row[:, r], wait)
        inside = step >= 0
        wait_alone.append(np.bincount(step[inside], ns[inside], len(view.steps)).astype(np.int64))
    host_waits = find_host_waits(views, ranks, pairing, clocks)
    causes = find_causes(views, ranks, pairing, skew, host_waits)
    steps, hosts = matched_steps(ranks, pairing), tuple(host_times(view) for view in views)
    return RankSet(views, ranks, pairing, clocks, skew, causes, tuple(wait_alone), steps, hosts)


def job_differences(views: tuple[RankView, ...]) -> list[str]:
    """In what the traces differ that are the same on all ranks of one job; nothing for one job.

    Size of the world, kind of GPU, versions, and a common time: clocks of one job's hosts differ by seconds
    at most, and the profiler's starts by half a minute.
    """
    traces = [view.trace for view in views]
    same: dict[str, set[Any]] = {
        "world_size": {trace.world_size for trace in traces if trace.world_size},
        "GPU": {trace.device_name for trace in traces if trace.device_name},
        **{
            name: {trace.versions[name] for trace in traces if name in trace.versions}
            for name in sorted({name for trace in traces for name in trace.versions})
        },
    }
    differing = [
        f"{name} {', '.join(map(str, sorted(values)))}" for name, values in same.items() if len(values) > 1
    ]
    starts, ends = zip(*(view.window for view in views), strict=True)
    apart = max(starts) - min(ends)
    if apart > APART_NS:
        differing.append(f"{apart / 1e9:,.0f} s between the end of one and the start of another")
    return differing


def summarise_alignment(joined: RankSet) -> Alignment:
    """The clocks in µs and ppm."""
    numbers = [view.trace.rank for view in joined.views]
    return Alignment(
        reference=numbers[0],
        ranks=tuple(
            RankClock(
                rank=number,
                offset_us=clock.offset / 1000,
                drift_ppm=clock.drift * 1e6,
                bound_us=_bound(clock),
                residual_us=clock.residual / 1000 if clock.points else None,
                points=clock.points,
                shifted=clock.shifted,
                note=_note(clock, number == numbers[0], alike),
            )
            for number, clock, alike in zip(numbers, joined.clocks, joined.pairing.alike, strict=True)
        ),
    )


def _bound(clock: Clock) -> tuple[float, float] | None:
    if clock.broken or not clock.points:
        return None
    return clock.low / 1000, clock.high / 1000


def _note(clock: Clock, is_reference: bool, alike: bool) -> str:
    if clock.broken:
        broken = "breaks causality: it leaves collectives before another rank arrives, on any offset"
        return f"reference; {broken}" if is_reference else broken
    if is_reference:
        return "reference"
    if not clock.points:
        return "nothing paired with the reference: not aligned"
    if alike:
        return "its steps are too alike to exclude a shift by whole steps"
    return "" if clock.shifted else "no offset beyond the residual: not shifted"


def summarise_collectives(
    joined: RankSet, kinds: Sequence[Sequence[KindView]], uneven: tuple[Uneven, ...] = ()
) -> Collectives:
    """The waits and transfers per step of the main kind of step, and who was late in each kind, and why.

    `kinds` is each rank's kinds of step, the main one first, by which the causes of `joined` are settled;
    `uneven` what single ranks do beyond the others. Blocking collectives count, those of the profiler's start
    apart.
    """
    skew, pairing = joined.skew, joined.pairing
    main = _of_kind(kinds, _kind_names(kinds)[0])
    used = _used(joined, main)
    counted = used.any(axis=1)
    units = np.array([kind.units if kind else 1 for kind in main], np.float64)
    per_rank = np.maximum(used.any(axis=0).sum(), 1)

    def per_step_us(ns: I64, rows: Bool) -> float:
        return float(((ns * used)[rows].sum(axis=0) / units).sum()) / float(per_rank) / 1000

    everything = np.ones(len(pairing), bool)
    return Collectives(
        paired=len(pairing),
        unpaired=sum(pairing.unpaired),
        unpaired_by_rank={
            view.trace.rank: count for view, count in zip(joined.views, pairing.unpaired, strict=True)
        },
        resolved=int((skew.resolved & counted).sum()),
        unresolved=int((~skew.resolved & counted).sum()),
        step_us=CollectiveTotals(per_step_us(skew.wait, everything), per_step_us(skew.transfer, everything)),
        late=tuple(late for name in _kind_names(kinds) for late in _late(joined, _of_kind(kinds, name))),
        kinds=tuple(
            CollectiveKind(
                name=pairing.tokens[token],
                count=float((used[rows].sum(axis=0) / units).sum()) / float(per_rank),
                wait_us=per_step_us(skew.wait, rows),
                transfer_us=per_step_us(skew.transfer, rows),
                skew_us=float(np.median(skew.spread[rows])) / 1000,
                resolved=int(skew.resolved[rows].sum()),
            )
            for token in np.unique(pairing.token[counted]).tolist()
            for rows in [counted & (pairing.token == token)]
        ),
        notes=tuple(_notes(joined)),
        uneven=uneven,
    )


def _used(joined: RankSet, kinds: Sequence[KindView | None]) -> Bool:
    """Per paired collective and rank whether it counts, given the kind of step to look at on each rank."""
    usable = ~joined.skew.trimmed & joined.pairing.blocking
    none = np.zeros(len(joined.pairing), bool)
    return np.stack(
        [
            joined.skew.there[:, r] & usable & kind.counts(_steps(joined, r)) if kind else none
            for r, kind in enumerate(kinds)
        ],
        axis=1,
    )


def _steps(joined: RankSet, r: int) -> I64:
    """Per paired collective the step of rank r that launched it, or -1."""
    row = joined.pairing.row[:, r]
    step = np.full(len(row), -1, np.int64)
    step[row >= 0] = joined.ranks[r].step[row[row >= 0]]
    return step


def _kind_names(kinds: Sequence[Sequence[KindView]]) -> list[str | None]:
    """The kinds of step of all ranks; None, for the window, only where no rank has steps."""
    names = list(dict.fromkeys(kind.kind for its in kinds for kind in its))
    return [name for name in names if name is not None] or [None]


def _of_kind(kinds: Sequence[Sequence[KindView]], name: str | None) -> list[KindView | None]:
    """Each rank's steps of this kind, None for a rank that has none."""
    return [next((kind for kind in its if kind.kind == name), None) for its in kinds]


def _judged(joined: RankSet, kinds: Sequence[KindView | None]) -> I64:
    """The resolved collectives of a kind of step."""
    return np.flatnonzero(joined.skew.resolved & _used(joined, kinds).any(axis=1))


def _late(joined: RankSet, kinds: Sequence[KindView | None]) -> list[Late]:
    """Each rank that was last in a resolved collective of a kind of step, by the wait that it caused."""
    skew = joined.skew
    judged = _judged(joined, kinds)
    others = np.maximum(skew.there.sum(axis=1) - 1, 1)
    caused = skew.wait.sum(axis=1) / others
    total = float(caused[judged].sum())
    units = max((kind.units for kind in kinds if kind), default=1)  # one for all, so that ranks compare
    late = []
    for r, (view, kind) in enumerate(zip(joined.views, kinds, strict=True)):
        rows = judged[skew.last[judged] == r]
        if not len(rows) or kind is None:
            continue
        # Names of which nothing is left, but for rounding, are no causes.
        found = {name: ns for name, ns in joined.causes.sums(rows).items() if abs(ns) > ROUNDING_NS}
        wait = float(caused[rows].sum())
        unexplained = wait - sum(found.values())
        if abs(unexplained) > 0.01 * wait:
            found[UNEXPLAINED] = unexplained
        late.append(
            Late(
                rank=view.trace.rank,
                kind=kind.kind or "window",
                wait_us=wait / units / 1000,
                share=wait / total if total else 0.0,
                count=len(rows),
                causes={
                    name: found[name] / units / 1000
                    for name in sorted(found, key=lambda name: (name == UNEXPLAINED, -abs(found[name])))
                },
            )
        )
    return sorted(late, key=lambda its: -its.wait_us)


def _notes(joined: RankSet) -> list[str]:
    notes = []
    if joined.skew.trimmed.any():
        longest = float(joined.skew.spread[joined.skew.trimmed].max()) / 1e6
        notes.append(
            f"the first {int(joined.skew.trimmed.sum())} collectives are set aside: ranks waited up to"
            f" {longest:,.1f} ms in them for a peer whose profiler started later"
        )
    for view, row, count in zip(joined.views, joined.pairing.diverges, joined.pairing.unpaired, strict=True):
        if row >= 0:
            notes.append(
                f"rank {view.trace.rank} diverges for good from its collective {row} on; {count} are unpaired"
            )
        elif count:
            notes.append(f"rank {view.trace.rank}: {count} collectives that no other rank has")
    return notes


def _clock_issues(joined: RankSet) -> list[Issue]:
    """Clocks that cannot be trusted, by what is wrong with them."""
    numbers = [view.trace.rank for view in joined.views]
    broken = [n for n, clock in zip(numbers, joined.clocks, strict=True) if clock.broken]
    alike = [n for n, its in zip(numbers, joined.pairing.alike, strict=True) if its]
    apart = [
        n for n, clock in zip(numbers, joined.clocks, strict=True) if clock.points == 0 and n != numbers[0]
    ]
    found = (
        (
            "clock_broken",
            broken,
            "leave collectives before other ranks arrive, on any offset of their clocks",
        ),
        ("steps_alike", alike, "have steps too alike to exclude that their record is shifted by whole steps"),
        ("clock_unknown", apart, "share no collective with the reference, so their clocks are as recorded"),
    )
    return [
        Issue(code, "warning", len(which), f"ranks {', '.join(map(str, which))} {text}")
        for code, which, text in found
        if which
    ]


def rank_issues(views: tuple[RankView, ...], joined: RankSet | None) -> list[Issue]:
    """What the set of ranks lacks."""
    issues = []
    world = max((view.trace.world_size or 1 for view in views), default=1)
    if len(views) == 1 and len(find_collectives(views[0])):
        of = f" of {world}" if world > 1 else ""
        issues.append(Issue("rank_alone", "info", 1, f"rank {views[0].trace.rank}{of} is {ALONE}"))
    differing = job_differences(views)
    if differing:
        detail = f"the traces are not of one job, so their ranks are not paired: {'; '.join(differing)}"
        issues.append(Issue("mixed_jobs", "warning", len(views), detail))
    elif joined is not None:
        issues += _clock_issues(joined)
    elif len(views) > 1:
        issues.append(
            Issue("ranks_not_paired", "warning", len(views), "no collective of the ranks could be paired")
        )
    return issues
