"""What a step clock measured of the steps of one kind, made comparable with a trace's."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from latencylab.analyzers.marks import Marks
from latencylab.analyzers.replay import F64
from latencylab.analyzers.replay_build import Spans, clock_name
from latencylab.analyzers.view import KindView
from latencylab.model.integrity import InputError
from latencylab.model.trace import I64, MISSING, Bool
from latencylab.model.unprofiled import PROBE, STEP_SPANS, StepClock

MOST_ODD = 0.01  # of the spans, which damage may have reached without making the others doubtful
STRETCH = 16  # steps in a row of one request, whose host has one speed
OUTLIER_TIMES = 3  # the median step, as in a trace
RARE = 0.5  # of the steps (that have the commonest span): what fewer have is no part of every step
UNNAMED_DECODES = {"decode", "step", ""}  # what a clock may call steps of any kind but prefill
PREFILLS = {"prefill", "extend"}
WAIT = re.compile(r"^ll\.wait\.")
LEG = re.compile(r"^ll\.(draft|verify|extend|decode)$")


@dataclass(frozen=True, slots=True, eq=False)
class ClockSteps:
    """Steps one after the other in their requests, in ns. `length` is from start to start, by the GPU's time
    where the clock has it; `span` the step's own span, `between` from its end to the next one's start;
    `stretch` counts runs of up to 16 steps of one request. `self_ns` holds, per name of a span that the trace
    has too, the host time in it and in no inner one, without waiting ("" outside the step's span);
    it tells names apart only in steps that are `detailed`. `waits` says that waiting was measured apart, and
    `unmarked` names the spans in which the trace shows waits that the clock has no row for."""

    request: I64
    length: I64
    span: I64
    between: I64
    stretch: I64
    self_ns: dict[str, F64]
    waits: bool
    detailed: Bool
    unmarked: frozenset[str]

    def __len__(self) -> int:
        return len(self.length)


def clock_steps(clock: StepClock, view: KindView, clocked: frozenset[str]) -> ClockSteps:
    """The steps of a clock that are of this kind, without the first of each request and outliers.

    Raises InputError, naming the difference, where the clock is of another configuration than the trace.
    """
    name = STEP_SPANS[0] if STEP_SPANS[0] in clock.span else STEP_SPANS[1]
    is_step = np.array([span == name for span in clock.span], bool)
    rows = np.flatnonzero(is_step)
    if (odd := int((clock.end_ns < clock.start_ns).sum())) > MOST_ODD * len(clock):
        raise InputError(f"{odd} of the step clock's {len(clock)} spans end before they start")
    if not len(rows):
        raise InputError("the step clock has no step in it")
    rows = rows[np.argsort(clock.start_ns[rows], kind="stable")]
    kinds = np.array([clock.kind[row] for row in rows.tolist()])
    wanted = _check_kinds(view.kind or "", kinds)
    _check_legs(clock, view, wanted)
    mine = np.isin(kinds, list(wanted))
    request = clock.request[rows]
    # A step that was not recorded leaves a hole, and no length of the step before it.
    next_to = (request[1:] == request[:-1]) & (np.diff(clock.step[rows]) == 1)
    follows = np.append(mine[1:] & next_to, False)
    leads = np.append(False, mine[:-1] & next_to)
    length = np.append(np.diff(_gpu_or_host(clock, rows)), 0)
    kept = np.flatnonzero(mine & follows & leads)
    if not len(kept):
        raise InputError(f"the step clock has no two steps of kind {view.kind} in a row")
    kept = kept[(length[kept] > 0) & (length[kept] <= OUTLIER_TIMES * np.median(length[kept]))]
    if not len(kept):
        raise InputError("the step clock's times do not go on from step to step")
    until = np.append(clock.start_ns[rows][1:], clock.end_ns[rows][-1:])
    self_ns = _self_times(clock, rows[kept], until[kept], clocked)
    return ClockSteps(
        request=request[kept],
        length=length[kept],
        span=(clock.end_ns - clock.start_ns)[rows[kept]],
        between=(until - clock.end_ns[rows])[kept],
        stretch=_stretches(request[kept]),
        self_ns=self_ns,
        waits=bool((clock.waiting_ns >= 0).any()),
        detailed=_detailed(clock, rows[kept], until[kept], name),
        unmarked=_unmarked(view, clocked),
    )


def _unmarked(view: KindView, clocked: frozenset[str]) -> frozenset[str]:
    """The spans, of those that the clock has, in which most steps make a blocking call without our mark, such
    as `Tensor.to("cpu")`: what has no mark in the trace has no row in the clock. How long it waits in the
    trace says nothing, for a slowed host finds the GPU done. None where the trace has no marks at all.
    """
    trace, rank = view.rank.trace, view.rank
    marks = Marks.of(trace, WAIT)
    if not len(marks):
        return frozenset()
    calls, thread = rank.waits.calls, rank.steps.thread
    can_wait = np.array([kind != "alloc" for kind in calls.kind], bool)
    rows = np.flatnonzero(view.calls & can_wait & (calls.thread == thread))
    rows = rows[marks.holding(calls.thread[rows], calls.start[rows]) < 0]
    spans = Spans.of(trace, thread, clocked)
    label, step = spans.at(calls.start[rows]), rank.steps.of_host(calls.start[rows])
    return frozenset(
        spans.name(its)
        for its in np.unique(label).tolist()
        if len(np.unique(step[label == its])) >= RARE * len(view.used)
    )


def _detailed(clock: StepClock, rows: I64, until: I64, step_span: str) -> Bool:
    """The steps of which the clock has all that it ever has; all steps, where it has the steps and their
    waits alone. Of the first and the last step of a burst of detail it has a part, up to the next step."""
    inner = np.array([not WAIT.match(span) and span not in (step_span, PROBE) for span in clock.span], bool)
    start = clock.start_ns[rows]
    its = np.flatnonzero(inner)
    at = np.searchsorted(start, clock.start_ns[its], side="right") - 1
    inside = (at >= 0) & (clock.start_ns[its] < until[at])
    there: dict[str, Bool] = {}
    for row, step in zip(its[inside].tolist(), at[inside].tolist(), strict=True):
        there.setdefault(clock.span[row], np.zeros(len(rows), bool))[step] = True
    found = np.ones(len(rows), bool)
    often = RARE * max((int(has.sum()) for has in there.values()), default=0)
    for has in there.values():
        if has.sum() >= often:
            found &= has
    return found


def _check_kinds(kind: str, kinds: np.ndarray) -> set[str]:
    """The clock's words for the trace's kind."""
    there = Counter(kinds.tolist())
    exact = {word for word in there if word.lower() == kind.lower()}
    family = PREFILLS if kind.lower() in PREFILLS else UNNAMED_DECODES
    alike = exact or {word for word in there if word.lower() in family}
    if not alike:
        listed = ", ".join(f"{n} {word or 'unnamed'}" for word, n in there.items()) or "none"
        raise InputError(
            f"the step clock is of another configuration: kind {kind} in the trace, {listed} in it"
        )
    return alike


def _check_legs(clock: StepClock, view: KindView, wanted: set[str]) -> None:
    mine = {span for span, kind in zip(clock.span, clock.kind, strict=True) if kind in wanted}
    timed = {found.group(1) for found in map(LEG.match, mine) if found}
    legs = view.rank.legs
    traced = {legs.name[row] for row in np.flatnonzero(view.legs).tolist()}
    if timed and not any(name.startswith("replay ") for name in traced):
        traced = {LEG.sub(r"\1", name) for name in traced}
        # A leg that is launched kernel by kernel, not as a graph, has its span in the trace alone.
        eager = {found.group(1) for name in view.rank.trace.names if (found := LEG.match(name))}
        if not traced <= timed <= traced | eager:
            raise InputError(
                "the step clock is of another configuration: legs "
                f"{', '.join(sorted(traced)) or 'none'} in the trace, {', '.join(sorted(timed))} in it"
            )


def leg_lengths(clock: StepClock, kind: str) -> dict[str, I64]:
    """Per leg that the clock has, in their order in a step, the GPU time of each to the next leg or step, ns.

    Raises InputError where no step of the clock is of this kind.
    """
    wanted = _check_kinds(kind, np.array(clock.kind))
    of_leg = [LEG.match(span) for span in clock.span]
    is_mark = np.array(
        [
            (span in STEP_SPANS or leg is not None) and its in wanted
            for span, leg, its in zip(clock.span, of_leg, clock.kind, strict=True)
        ],
        bool,
    )
    rows = np.flatnonzero(is_mark & (clock.gpu_start_ns >= 0))
    rows = rows[np.argsort(clock.start_ns[rows], kind="stable")]
    here, there = rows[:-1], rows[1:]
    on = clock.step[there] - clock.step[here]
    is_step = np.array([clock.span[row] in STEP_SPANS for row in there.tolist()], bool)
    joined = (clock.request[here] == clock.request[there]) & (on == is_step)
    lengths: dict[str, list[int]] = {}
    for row, following in zip(here[joined].tolist(), there[joined].tolist(), strict=True):
        leg = of_leg[row]
        if leg is not None:
            ns = int(clock.gpu_start_ns[following] - clock.gpu_start_ns[row])
            lengths.setdefault(leg.group(1), []).append(ns)
    return {leg: np.array(ns, np.int64) for leg, ns in lengths.items()}


def _gpu_or_host(clock: StepClock, rows: I64) -> I64:
    """When each step began: on the GPU where the clock says so of all, else on the host."""
    on_gpu = clock.gpu_start_ns[rows]
    return clock.start_ns[rows] if (on_gpu == MISSING).any() else on_gpu


def _stretches(request: I64) -> I64:
    """Numbers of the runs of about 16 steps that each request is cut into."""
    stretch = np.zeros(len(request), np.int64)
    number = 0
    for its in dict.fromkeys(request.tolist()):
        rows = np.flatnonzero(request == its)
        parts = max(1, round(len(rows) / STRETCH))
        stretch[rows] = number + np.arange(len(rows)) * parts // len(rows)
        number += parts
    return stretch


def clocked_spans(clock: StepClock, view: KindView) -> frozenset[str]:
    """The names of spans that the clock and the trace both have."""
    trace = view.rank.trace
    traced = {clock_name(trace.names[i]) for i in np.unique(trace.spans.name).tolist()}
    return frozenset(traced & set(clock.span)) - {PROBE}


def _self_times(clock: StepClock, rows: I64, until: I64, clocked: frozenset[str]) -> dict[str, F64]:
    """Per name the host ns of each step that lie in that span and in no inner one, waiting left out."""
    start = clock.start_ns[rows]
    names = np.array([span if span in clocked else "" for span in clock.span])
    outside = (until - start).astype(np.float64)
    self_ns = {name: np.zeros(len(rows)) for name in sorted(clocked)}
    self_ns[""] = outside
    others = np.flatnonzero((names != "") | (clock.waiting_ns > 0))
    others = others[np.lexsort((-clock.end_ns[others], clock.start_ns[others]))]
    step = np.searchsorted(start, clock.start_ns[others], side="right") - 1
    stack: list[tuple[int, str]] = []
    rows_of = zip(
        others.tolist(),
        step.tolist(),
        clock.start_ns[others].tolist(),
        clock.end_ns[others].tolist(),
        np.clip(clock.waiting_ns[others], 0, np.maximum(clock.end_ns - clock.start_ns, 0)[others]).tolist(),
        strict=True,
    )
    for row, its, begin, end, waiting in rows_of:
        if its < 0 or begin >= until[its]:
            continue
        while stack and stack[-1][0] <= begin:
            stack.pop()
        holder = stack[-1][1] if stack else ""
        name = str(names[row])
        if name:
            self_ns[holder][its] -= end - begin
            self_ns[name][its] += end - begin - waiting
            stack.append((end, name))
        else:
            self_ns[holder][its] -= waiting
    return self_ns
