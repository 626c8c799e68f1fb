"""All analyses of a capture, put together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from importlib.metadata import version

import numpy as np

from latencylab.analyzers.calibration import calibrate
from latencylab.analyzers.idle import HOST, UNKNOWN
from latencylab.analyzers.integrity import capture_issues, find_issues
from latencylab.analyzers.kernels import ClassTable, load_classes
from latencylab.analyzers.launches import join_launches
from latencylab.analyzers.rank_timeline import build_rank_timeline
from latencylab.analyzers.ranks import (
    RankSet,
    join_ranks,
    rank_issues,
    summarise_alignment,
    summarise_collectives,
)
from latencylab.analyzers.registry import run_all
from latencylab.analyzers.run_ahead import least_run_ahead
from latencylab.analyzers.slow import explain_steps
from latencylab.analyzers.step_clock import LEG
from latencylab.analyzers.steps import find_steps
from latencylab.analyzers.syncs import calibrated_syncs
from latencylab.analyzers.timeline import build_timelines
from latencylab.analyzers.verdict import front_rank, judge, rank_fixes
from latencylab.analyzers.view import GPU_CAUSES, KindView, RankView, step_parts, step_sums
from latencylab.model.capture import Capture
from latencylab.model.findings import (
    Analysis,
    KindFindings,
    RankFindings,
    Spread,
    Step,
    Steps,
    Tracing,
    WindowParts,
)
from latencylab.model.integrity import InputError, Integrity, Issue
from latencylab.model.trace import I64, Trace
from latencylab.stats import two_modes


@dataclass(frozen=True, eq=False)
class Examined:
    """A capture with the passes that all analyses build on: a view of each rank, and the ranks joined."""

    capture: Capture
    views: tuple[RankView, ...]
    joined: RankSet | None

    def places(self, ranks: Collection[int] | None) -> list[int]:
        """The places of these ranks among the views, of all for None. Raises InputError for none."""
        found = [i for i, view in enumerate(self.views) if ranks is None or view.trace.rank in ranks]
        lacking = sorted(set(ranks or ()) - {view.trace.rank for view in self.views})
        if lacking:
            there = ", ".join(str(view.trace.rank) for view in self.views)
            raise InputError(f"{self.capture.path}: no rank {lacking[0]}; it has {there}")
        return found

    def steps(self, place: int, chosen: tuple[int, int] | None, kind: str | None) -> I64:
        """The found steps [first, last) of this kind, as rows of the rank's step table.

        Raises InputError where any were asked for and there are none.
        """
        view = self.views[place]
        rows = chosen_steps(view, chosen, kind)
        if not len(rows) and (chosen is not None or kind is not None):
            there = ", ".join(f"{n} {name}" for name, n in Counter(view.steps.kind).items()) or "none"
            raise InputError(f"{self.capture.path}: rank {view.trace.rank} has no such steps; found: {there}")
        return rows


def chosen_steps(view: RankView, chosen: tuple[int, int] | None, kind: str | None) -> I64:
    """The found steps [first, last) of this kind, as rows of the step table."""
    first, last = chosen or (0, len(view.steps))
    rows = np.arange(len(view.steps))[first:last]
    return rows[[kind is None or kind.lower() == view.steps.kind[row].lower() for row in rows.tolist()]]


def examine(
    capture: Capture, *, classes: ClassTable | None = None, step_span: re.Pattern[str] | None = None
) -> Examined:
    """Run the passes that all analyses build on over every rank of a capture.

    `classes` are the kernel classes, the bundled ones for None; spans that match `step_span` mark the steps.
    """
    table = classes or load_classes()
    views = tuple(RankView.of(trace, table, step_span) for trace in capture.traces)
    return Examined(capture, views, join_ranks(views))


def analyze(
    capture: Capture,
    *,
    ranks: Collection[int] | None = None,
    steps: tuple[int, int] | None = None,
    kind: str | None = None,
    classes: ClassTable | None = None,
    step_span: re.Pattern[str] | None = None,
    timelines: bool = True,
) -> Analysis:
    """Analyse a capture, or of it only these ranks, these found steps [first, last), or this kind of step.

    Clocks are aligned and waits measured over all ranks, whichever are asked for. `classes` and `step_span`
    are as in `examine`; `timelines` lays steps out to be drawn. Raises InputError where the capture has
    none of what is asked for.
    """
    examined = examine(capture, classes=classes, step_span=step_span)
    return analyze_examined(examined, ranks=ranks, steps=steps, kind=kind, timelines=timelines)


def analyze_examined(
    examined: Examined,
    *,
    ranks: Collection[int] | None = None,
    steps: tuple[int, int] | None = None,
    kind: str | None = None,
    timelines: bool = True,
    calibrated: bool = True,
) -> Analysis:
    """What `analyze` gives, from passes already made; not `calibrated`, without what takes longest.

    Raises InputError as it does.
    """
    capture, views, joined = examined.capture, examined.views, examined.joined
    places = examined.places(ranks)
    for place in places:
        examined.steps(place, steps, kind)
    kinds = [_by_kind(view, chosen_steps(view, steps, kind)) for view in views]
    findings = tuple(
        _rank_findings(views[i], kinds[i], joined.wait_alone[i] if joined else None, timelines)
        for i in places
    )
    issues = [
        *(issue for view in views for issue in view.trace.issues),
        *(issue for i in places for issue in find_issues(views[i].trace, views[i].launches)),
        *rank_issues(views, joined),
        *capture_issues(capture.manifest),
    ]
    integrity = Integrity.of(_merged(issues))
    uneven = joined.uneven(kinds) if joined else ()
    joined = joined.settled(kinds, uneven) if joined else None
    collectives = summarise_collectives(joined, kinds, uneven) if joined else None
    front = front_rank(findings, uneven)
    in_front = kinds[places[front]][0]
    calibration = calibrate(in_front, capture.unprofiled, joined, uneven) if calibrated else None
    spoken = findings[front]
    main = replace(spoken.main, syncs=calibrated_syncs(spoken.main.syncs, calibration))
    findings = (*findings[:front], replace(spoken, main=main), *findings[front + 1 :])
    return Analysis(
        capture_path=capture.path,
        manifest=capture.manifest,
        version=version("latencylab"),
        verdict=judge(findings, front, integrity, collectives, calibration),
        fixes=rank_fixes(findings[front], calibration, uneven),
        integrity=integrity,
        ranks=findings,
        front=front,
        alignment=summarise_alignment(joined) if joined else None,
        collectives=collectives,
        rank_timeline=build_rank_timeline(joined, kinds[0][0]) if joined and timelines else None,
        calibration=calibration,
    )


def settled(
    examined: Examined, *, steps: tuple[int, int] | None = None, kind: str | None = None
) -> RankSet | None:
    """The ranks joined, with causes as `analyze` gives them for these steps; None where they are not."""
    joined = examined.joined
    if joined is None:
        return None
    kinds = [_by_kind(view, chosen_steps(view, steps, kind)) for view in examined.views]
    return joined.settled(kinds, joined.uneven(kinds))


def kind_in_front(
    examined: Examined,
    *,
    ranks: Collection[int] | None = None,
    steps: tuple[int, int] | None = None,
    kind: str | None = None,
) -> KindView:
    """The main kind of step of the rank that speaks for all, of what is chosen as in `analyze`.

    Raises InputError as it does.
    """
    places = examined.places(ranks)
    for place in places:
        examined.steps(place, steps, kind)
    kinds = [_by_kind(view, chosen_steps(view, steps, kind)) for view in examined.views]
    if len(places) == 1:
        return kinds[places[0]][0]
    findings = tuple(_rank_findings(examined.views[i], kinds[i], None, False) for i in places)
    uneven = examined.joined.uneven(kinds) if examined.joined else ()
    return kinds[places[front_rank(findings, uneven)]][0]


def host_window(
    trace: Trace, first: int, last: int, step_span: re.Pattern[str] | None = None
) -> tuple[int, int]:
    """The host interval [start, end) ns that launches the found steps `first` to `last` - 1.

    Raises InputError where the trace has no such steps.
    """
    steps = find_steps(trace, join_launches(trace), step_span)
    if not 0 <= first < last <= len(steps):
        raise InputError(f"{trace.path or 'trace'}: no steps {first}:{last}; found {len(steps)} of them")
    return int(steps.host_start[first]), int(steps.host_end[last - 1])


def _merged(issues: Iterable[Issue]) -> list[Issue]:
    """Issues of several ranks, one for each code and sentence, with the counts added up."""
    merged: dict[tuple[str, str, str], Issue] = {}
    for issue in issues:
        key = (issue.code, issue.severity, issue.detail)
        count = merged[key].count if key in merged else 0
        merged[key] = replace(issue, count=count + issue.count)
    return list(merged.values())


def _by_kind(view: RankView, found: I64) -> list[KindView]:
    """These steps by kind, the one that fills most of the time first; one without steps for none."""
    time = Counter[str]()
    for row in found.tolist():
        time[view.steps.kind[row]] += int(view.steps.end[row] - view.steps.start[row])
    by_kind = [_kind_view(view, name, found) for name, _ in time.most_common()]
    return by_kind or [KindView(view, None, found, found)]


def _rank_findings(
    view: RankView, by_kind: list[KindView], wait_alone: I64 | None, timelines: bool
) -> RankFindings:
    sums = step_sums(view)
    if wait_alone is not None:
        sums["collective_wait"] = wait_alone
    all_findings = [_kind_findings(one, sums) for one in by_kind]
    explained = {row: why for one in by_kind for row, why in explain_steps(one).items()}
    least = least_run_ahead(view.legs, view.steps)
    return RankFindings(
        rank=view.trace.rank,
        device=view.trace.device,
        device_name=view.trace.device_name,
        window_us=_window(view),
        gpu_ops=len(view.trace.gpu),
        launches=len(view.launches),
        main=all_findings[0],
        other_kinds=tuple(all_findings[1:]),
        steps=tuple(
            Step(
                index=row,
                kind=view.steps.kind[row],
                start_ns=int(view.steps.start[row]),
                end_ns=int(view.steps.end[row]),
                left_out=view.left_out[row],
                parts=step_parts(sums, np.array([row])),
                run_ahead_us=int(least[row]) / 1000 if least[row] >= 0 else None,
                slower_by=explained.get(row, ()),
            )
            for row in np.sort(np.concatenate([one.rows for one in by_kind])).tolist()
        ),
        timelines=tuple(its for one in by_kind for its in build_timelines(one)) if timelines else (),
        tracing=_tracing(view),
    )


def _tracing(view: RankView) -> Tracing:
    trace = view.trace
    recorded = len(trace.syncs) > 0
    return Tracing(
        stacks=trace.stacks or len(trace.frames) > 0,
        shapes=trace.shapes,
        sync_events=recorded if recorded or "explicit" in view.waits.calls.kind else None,
        versions=trace.versions,
        leg_spans=tuple(sorted({found.group(1) for name in trace.names if (found := LEG.match(name))})),
    )


def _kind_view(view: RankView, kind: str, found: I64) -> KindView:
    rows = np.array([row for row in found if view.steps.kind[row] == kind], np.int64)
    steady = np.array([row for row in rows if view.left_out[row] is None], np.int64)
    return KindView(view, kind, rows, steady)


def _kind_findings(one: KindView, sums: dict[str, I64]) -> KindFindings:
    wall_us = sums["wall"][one.used] / 1000
    causes = Counter(cause for row in one.rows if (cause := one.rank.left_out[row]) is not None)
    spread = Spread(*np.percentile(wall_us, [50, 10, 90]).tolist()) if one.by_step else None
    return KindFindings(
        kind=one.kind,
        steps=Steps(
            found=len(one.rows),
            steady=len(one.steady),
            source=one.rank.steps.source,
            left_out=dict(causes),
            wall_us=spread,
            modes_us=two_modes(wall_us),
        ),
        step_us=step_parts(sums, one.used) if one.by_step else None,
        **run_all(one),
    )


def _window(view: RankView) -> WindowParts:
    pieces, (start, end) = view.pieces, view.window
    host = pieces.cause == HOST

    def us(chosen: np.ndarray) -> float:
        return int(pieces.length[chosen].sum()) / 1000

    return WindowParts(
        wall=(end - start) / 1000,
        busy=int(view.work.length.sum()) / 1000,
        idle=int(pieces.length.sum()) / 1000,
        idle_host=us(host),
        idle_host_in_launch=us(pieces.in_launch),
        idle_gpu=us(np.isin(pieces.cause, GPU_CAUSES)),
        idle_unknown=us(pieces.cause == UNKNOWN),
    )
