"""Two captures compared: what a step spends more or less on, and what in the program changed with it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from importlib.metadata import version
from statistics import median

import numpy as np

from latencylab.analyzers.analyze import Examined, analyze_examined
from latencylab.analyzers.comparable import differences, mismatches, name_mismatches, unknowns
from latencylab.analyzers.diff_bootstrap import Resampled, resampled_medians
from latencylab.analyzers.diff_calibration import compare_calibrations
from latencylab.analyzers.diff_kernels import compare_kernels
from latencylab.analyzers.diff_sites import compare_sites
from latencylab.analyzers.diff_steps import (
    blame_columns,
    class_columns,
    compare_columns,
    compare_least_run_ahead,
    compare_legs,
    gpu_idle_columns,
    part_columns,
)
from latencylab.analyzers.diff_verdict import headline
from latencylab.analyzers.gate_runs import steps_ms
from latencylab.analyzers.timeline import build_timeline, choose_steps
from latencylab.analyzers.view import KindView
from latencylab.model.comparison import (
    CollectivesChange,
    Comparison,
    Delta,
    Drawn,
    KindChange,
    Row,
    SideFacts,
    UnprofiledChange,
    by_effect,
)
from latencylab.model.findings import Analysis, Collectives, KindFindings, RankFindings
from latencylab.model.integrity import InputError
from latencylab.model.trace import I64
from latencylab.model.unprofiled import Unprofiled


def compare(
    base: Examined,
    head: Examined,
    *,
    ranks: Collection[int] | None = None,
    steps: tuple[int, int] | None = None,
    kind: str | None = None,
    force: bool = False,
    drawn: bool = False,
) -> Comparison:
    """Compare two captures, or of each only these ranks, found steps [first, last) or kind of step.

    Captures whose times say nothing of each other (see `comparable`) are compared only by `force`. `drawn`
    lays out the median step of both. Raises InputError where they are not comparable, naming the fields, or
    where either side has none of what is asked for.
    """
    if not force:
        _refuse_incomparable(
            *(
                analyze_examined(one, ranks=ranks, steps=steps, kind=kind, timelines=False, calibrated=False)
                for one in (base, head)
            )
        )
    sides = [_Side(one, ranks, steps, kind) for one in (base, head)]
    ours, theirs = sides[0].analysis, sides[1].analysis
    kinds, notes = _compare_kinds(*sides)
    unprofiled = compare_unprofiled(base.capture.unprofiled, head.capture.unprofiled)
    calibration = compare_calibrations(ours.calibration, theirs.calibration)
    return Comparison(
        version=version("latencylab"),
        base=_facts(ours),
        head=_facts(theirs),
        headline=headline(kinds, unprofiled, calibration),
        mismatches=mismatches(ours, theirs),
        unknowns=unknowns(ours, theirs),
        changes=differences(ours, theirs),
        kinds=kinds,
        collectives=_compare_collectives(ours.collectives, theirs.collectives),
        unprofiled=unprofiled,
        calibration=calibration,
        notes=tuple(notes),
        drawn=_draw(*sides) if drawn else None,
    )


def _refuse_incomparable(base: Analysis, head: Analysis) -> None:
    """Raises InputError where they are; before the calibrations, which take longest."""
    if differing := mismatches(base, head):
        raise InputError(f"not comparable: {name_mismatches(differing)} (--force compares all the same)")


class _Side:
    """One capture with its analysis, and the views of the steps of each kind of a rank."""

    def __init__(
        self,
        examined: Examined,
        ranks: Collection[int] | None,
        steps: tuple[int, int] | None,
        kind: str | None,
    ) -> None:
        self.examined = examined
        self.analysis = analyze_examined(examined, ranks=ranks, steps=steps, kind=kind, timelines=False)
        self.places = dict(zip(examined.places(ranks), self.analysis.ranks, strict=True))

    def rank(self, key: tuple[int, int]) -> tuple[int, RankFindings] | None:
        """The place of a rank on a device among the views, and its findings."""
        return next(
            ((place, its) for place, its in self.places.items() if (its.rank, its.device) == key), None
        )

    def view(self, place: int, findings: KindFindings) -> KindView:
        """The steps of one kind."""
        its = [step for step in self.places[place].steps if step.kind == findings.kind]
        rows = np.array([step.index for step in its], np.int64)
        steady = np.array([step.index for step in its if step.left_out is None], np.int64)
        return KindView(self.examined.views[place], findings.kind, rows, steady)

    def wait_alone(self, place: int) -> I64 | None:
        """Per step the ns in which nothing but waiting in collectives ran, where ranks are joined."""
        joined = self.examined.joined
        return joined.wait_alone[place] if joined else None

    @property
    def front(self) -> RankFindings:
        return self.analysis.ranks[self.analysis.front]


def _compare_kinds(base: _Side, head: _Side) -> tuple[tuple[KindChange, ...], list[str]]:
    """The kinds that both sides have, of the rank in front first, and what was left out."""
    ordered = sorted(head.analysis.ranks, key=lambda rank: (rank is not head.front, rank.rank, rank.device))
    found: list[KindChange] = []
    notes: list[str] = []
    for rank in ordered:
        ours, theirs = base.rank((rank.rank, rank.device)), head.rank((rank.rank, rank.device))
        if ours is None and len(base.places) == len(head.places) == 1:
            ours = next(iter(base.places.items()))  # the only rank of each, whatever its number
        if ours is None or theirs is None:
            notes.append(f"rank {rank.rank} is not in base")
            continue
        for before, after in _shared_kinds(ours[1], theirs[1], notes):
            found.append(_compare_kind(base, head, ours[0], theirs[0], before, after))
    there = {(rank.rank, rank.device) for rank in ordered}
    if len(base.places) > 1 or len(head.places) > 1:
        notes += [
            f"rank {rank.rank} is not in head"
            for rank in base.analysis.ranks
            if (rank.rank, rank.device) not in there
        ]
    if not found:
        raise InputError("not comparable: the two have no rank in common")
    return tuple(found), notes


def _shared_kinds(
    base: RankFindings, head: RankFindings, notes: list[str]
) -> Iterator[tuple[KindFindings, KindFindings]]:
    """The main kinds of both, and those others that both have."""
    yield base.main, head.main
    ours = {kind.kind: kind for kind in base.other_kinds if kind.kind != head.main.kind}
    theirs = {kind.kind: kind for kind in head.other_kinds if kind.kind != base.main.kind}
    for name in dict.fromkeys((*theirs, *ours)):
        if name in ours and name in theirs:
            yield ours[name], theirs[name]
        else:
            side = "base" if name in ours else "head"
            notes.append(f"rank {head.rank}: steps of kind {name} are in {side} alone")


def _compare_kind(
    base: _Side, head: _Side, base_place: int, head_place: int, before: KindFindings, after: KindFindings
) -> KindChange:
    ours, theirs = base.view(base_place, before), head.view(head_place, after)
    units = [len(view.used) if view.by_step else 1 for view in (ours, theirs)]
    resampled = Resampled.of(units[0], units[1])
    waits = [base.wait_alone(base_place), head.wait_alone(head_place)]
    if any(wait is None for wait in waits):
        waits = [None, None]
    parts = (part_columns(ours, waits[0]), part_columns(theirs, waits[1]))
    return KindChange(
        rank=head.places[head_place].rank,
        kind=" against ".join(dict.fromkeys(str(its.kind or "window") for its in (before, after))),
        main=before is base.places[base_place].main,
        base_steps=units[0] if ours.by_step else 0,
        head_steps=units[1] if theirs.by_step else 0,
        parts=compare_columns(parts[0], parts[1], resampled, keep_order=True),
        median_wall=resampled_medians(parts[0]["wall"], parts[1]["wall"], resampled),
        blame=compare_columns(blame_columns(ours), blame_columns(theirs), resampled),
        gpu_idle=compare_columns(gpu_idle_columns(ours), gpu_idle_columns(theirs), resampled),
        classes=compare_columns(class_columns(ours), class_columns(theirs), resampled),
        kernels=compare_kernels(ours, theirs, resampled),
        legs=compare_legs(ours, theirs, resampled),
        sites=compare_sites(ours, theirs, before.syncs, after.syncs, resampled),
        run_ahead_least=compare_least_run_ahead(ours, theirs, resampled),
    )


def compare_unprofiled(base: Unprofiled | None, head: Unprofiled | None) -> UnprofiledChange | None:
    """The time per step of the requests that ran without the profiler, ms; None where there is none.

    The unit is the request, not the step: steps of one request correlate up to 0.97. The interval resamples
    requests, one by one; with fewer than five a side there is none.
    """
    ours, theirs = ([] if side is None else steps_ms(side.requests) for side in (base, head))
    if not ours and not theirs:
        return None
    delta = resampled_medians(
        np.array([round(ms * 1e6) for ms in ours], np.int64),
        np.array([round(ms * 1e6) for ms in theirs], np.int64),
        Resampled.of(len(ours), len(theirs), length=1),
        per=1e6,
    )
    return UnprofiledChange(
        step_ms=Delta(median(ours) if ours else None, median(theirs) if theirs else None, delta.interval),
        base_requests=len(ours),
        head_requests=len(theirs),
        base_range=(min(ours), max(ours)) if ours else None,
        head_range=(min(theirs), max(theirs)) if theirs else None,
    )


def _compare_collectives(base: Collectives | None, head: Collectives | None) -> CollectivesChange | None:
    if base is None or head is None:
        return None

    def rows(ours: dict[str, float], theirs: dict[str, float]) -> tuple[Row, ...]:
        names = dict.fromkeys((*theirs, *ours))
        made = [Row(name, Delta(ours.get(name, 0.0), theirs.get(name, 0.0))) for name in names]
        return tuple(sorted(made, key=by_effect(lambda row: row.us)))

    return CollectivesChange(
        wait=Delta(base.step_us.wait, head.step_us.wait),
        transfer=Delta(base.step_us.transfer, head.step_us.transfer),
        kinds=rows(*({its.name: its.wait_us for its in side.kinds} for side in (base, head))),
        skews=rows(*({its.name: its.skew_us for its in side.kinds} for side in (base, head))),
        late=rows(
            *({f"rank {its.rank}, {its.kind}": its.wait_us for its in side.late} for side in (base, head))
        ),
    )


def _facts(analysis: Analysis) -> SideFacts:
    front = analysis.ranks[analysis.front]
    return SideFacts(
        path=analysis.capture_path,
        manifest=analysis.manifest,
        integrity=analysis.integrity.status,
        device=front.device_name,
        kind=front.main.kind or "",
    )


def _draw(base: _Side, head: _Side) -> tuple[Drawn, Drawn] | None:
    """The median step of the rank in front, on both sides."""
    drawn = []
    key = (head.front.rank, head.front.device)
    for side in (base, head):
        place, rank = side.rank(key) or next(iter(side.places.items()))
        view = side.view(place, rank.main)
        chosen = choose_steps(view)[:1]
        drawn += [
            Drawn(
                step=next(step for step in rank.steps if step.index == row),
                line=build_timeline(view.rank, row),
                classes=tuple(its.name for its in rank.main.kernels),
                verdicts={sync.site: sync.verdict for sync in rank.main.syncs},
            )
            for row in chosen
        ]
    return (drawn[0], drawn[1]) if len(drawn) == 2 else None
