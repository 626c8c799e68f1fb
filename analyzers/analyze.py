"""All analyses of a capture, put together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np

from latencylab.analyzers.idle import HOST, UNKNOWN
from latencylab.analyzers.integrity import find_issues
from latencylab.analyzers.kernels import load_classes
from latencylab.analyzers.launches import join_launches
from latencylab.analyzers.rank_timeline import build_rank_timeline
from latencylab.analyzers.ranks import join_ranks, rank_issues, summarise_alignment, summarise_collectives
from latencylab.analyzers.registry import run_all
from latencylab.analyzers.run_ahead import least_run_ahead
from latencylab.analyzers.slow import explain_steps
from latencylab.analyzers.steps import find_steps
from latencylab.analyzers.timeline import build_timelines
from latencylab.analyzers.verdict import judge, rank_fixes
from latencylab.analyzers.view import GPU_CAUSES, KindView, RankView, step_parts, step_sums
from latencylab.model.capture import Capture
from latencylab.model.findings import (
    Analysis,
    KindFindings,
    RankFindings,
    Spread,
    Step,
    Steps,
    WindowParts,
)
from latencylab.model.integrity import InputError, Integrity, Issue
from latencylab.model.trace import I64, Trace
from latencylab.stats import two_modes


def analyze(
    capture: Capture,
    *,
    ranks: Collection[int] | None = None,
    steps: tuple[int, int] | None = None,
    kind: str | None = None,
    classes: Path | None = None,
) -> Analysis:
    """Analyse a capture, or of it only these ranks, these found steps [first, last), or this kind of step.

    Raises InputError where the capture has none of them, or where `classes`, a table of kernel classes to
    ask before the bundled one, cannot be used.
    """
    return analyze_views(capture, view_ranks(capture, ranks=ranks, classes=classes), steps=steps, kind=kind)


def view_ranks(
    capture: Capture, *, ranks: Collection[int] | None = None, classes: Path | None = None
) -> tuple[RankView, ...]:
    """The passes that all analyses build on, of all or only these ranks. Raises InputError as `analyze`."""
    traces = [trace for trace in capture.traces if ranks is None or trace.rank in ranks]
    if not traces:
        there = ", ".join(str(trace.rank) for trace in capture.traces)
        raise InputError(f"{capture.path}: none of the ranks asked for; it has {there}")
    table = load_classes(classes)
    return tuple(RankView.of(trace, table) for trace in traces)


def analyze_views(
    capture: Capture,
    views: tuple[RankView, ...],
    *,
    steps: tuple[int, int] | None = None,
    kind: str | None = None,
) -> Analysis:
    """What `analyze` gives, from passes already made. Raises InputError as it does."""
    joined = join_ranks(views)
    chosen = [_choose(view, steps, kind, capture.path) for view in views]
    waits = joined.wait_alone if joined else (None,) * len(views)
    findings = tuple(
        _rank_findings(view, kinds, wait) for view, kinds, wait in zip(views, chosen, waits, strict=True)
    )
    integrity = Integrity.of(
        _merged(
            [
                *(issue for view in views for issue in view.trace.issues),
                *(issue for view in views for issue in find_issues(view.trace, view.launches)),
                *rank_issues(views, joined),
            ]
        )
    )
    collectives = summarise_collectives(joined, tuple(kinds[0] for kinds in chosen)) if joined else None
    verdict = judge(findings, integrity, collectives)
    return Analysis(
        capture_path=capture.path,
        manifest=capture.manifest,
        version=version("latencylab"),
        verdict=verdict,
        fixes=rank_fixes(max(findings, key=lambda f: f.main.step_us.idle_host if f.main.step_us else 0.0)),
        integrity=integrity,
        ranks=findings,
        alignment=summarise_alignment(joined) if joined else None,
        collectives=collectives,
        rank_timeline=build_rank_timeline(joined, chosen[0][0]) if joined else None,
    )


def host_window(trace: Trace, first: int, last: int) -> tuple[int, int]:
    """The host interval [start, end) ns that launches the found steps `first` to `last` - 1.

    Raises InputError where the trace has no such steps.
    """
    steps = find_steps(trace, join_launches(trace))
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


def _choose(view: RankView, chosen: tuple[int, int] | None, kind: str | None, path: str) -> list[KindView]:
    """The steps to look at by kind, the kind that fills most of the time first; one without steps if none."""
    found = np.arange(len(view.steps))
    if chosen is not None:
        found = found[chosen[0] : chosen[1]]
    kinds = [view.steps.kind[row] for row in found]
    if (chosen is not None and not len(found)) or (kind is not None and kind not in kinds):
        there = ", ".join(f"{n} {name}" for name, n in Counter(view.steps.kind).items()) or "none"
        raise InputError(f"{path}: rank {view.trace.rank} has no such steps; found: {there}")
    if kind is not None:
        found = found[[its == kind for its in kinds]]
    time = Counter[str]()
    for row in found:
        time[view.steps.kind[row]] += int(view.steps.end[row] - view.steps.start[row])
    by_kind = [_kind_view(view, name, found) for name, _ in time.most_common()]
    return by_kind or [KindView(view, None, found, found)]


def _rank_findings(view: RankView, by_kind: list[KindView], wait_alone: I64 | None) -> RankFindings:
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
        timelines=tuple(timeline for one in by_kind for timeline in build_timelines(one)),
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
