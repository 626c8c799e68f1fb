"""Steps by every source there is, their kinds, and what sets them aside."""

from __future__ import annotations

import re

import pytest

import synth
from latencylab.analyzers.kernels import load_classes
from latencylab.analyzers.launches import join_launches
from latencylab.analyzers.steps import find_steps, kind_of
from latencylab.analyzers.view import RankView
from latencylab.model.trace import Trace


def trace_of(name: str, count: int, body: tuple[synth.Action, ...]) -> Trace:
    """A thread that spends `count` spans of this name on the same body."""
    actions: list[synth.Action] = []
    for number in range(count):
        actions += [synth.Span(name.format(number), body), synth.Python(2_000)]
    return synth.to_trace(synth.Scenario((synth.Program(tuple(actions)),)))


LAUNCH = synth.Launch(dur=5_000, call_dur=3_000, latency=1_000)
GRAPH = synth.GraphLaunch(tuple(synth.Node(1_000, 100) for _ in range(40)), call_dur=9_000)
SMALL = synth.GraphLaunch(tuple(synth.Node(1_000, 100) for _ in range(3)), call_dur=9_000)


@pytest.mark.parametrize(
    ("name", "source", "kind"),
    [
        ("scheduler.run_batch", "scheduler.run_batch", "step"),
        ("step[DECODE bs=1]", "leg spans", "decode"),
        ("step[EXTEND bs=1 toks=8192]", "leg spans", "prefill"),
        ("ProfilerStep#{}", "ProfilerStep#", "step"),
        ("execute_context_0(0)_generation_1(1)", "execute_ spans", "decode"),
        ("execute_context_1(888_788544)_generation_0(0)", "execute_ spans", "prefill"),
        ("execute_new_2_cached_1", "execute_ spans", "step"),
    ],
)
def test_steps_by_spans(name: str, source: str, kind: str) -> None:
    trace = trace_of(name, 4, (synth.Python(500), LAUNCH, LAUNCH))
    steps = find_steps(trace, join_launches(trace))
    assert (len(steps), steps.source, set(steps.kind)) == (4, source, {kind})


def test_steps_by_the_cycle_of_leg_spans() -> None:
    """A cycle begins with its draft, even where the trace begins in the middle of one."""
    cycle = [
        synth.Span(name, (synth.Python(500), GRAPH))
        for name in ("draft", "step[VERIFY bs=1]", "draft_extend")
    ]
    trace = synth.to_trace(synth.Scenario((synth.Program(tuple(cycle[1:] + cycle * 3)),)))
    steps = find_steps(trace, join_launches(trace))
    assert (len(steps), steps.source, set(steps.kind)) == (3, "leg spans", {"NEXTN"})


def test_steps_by_the_pattern_of_graph_launches() -> None:
    trace = synth.to_trace(synth.Scenario((synth.Program((GRAPH, SMALL, synth.Python(900)) * 5),)))
    steps = find_steps(trace, join_launches(trace))
    assert (len(steps), steps.source) == (5, "pattern of graph launches")


def test_steps_by_spans_of_ones_choice() -> None:
    """They count alone: a pattern that marks nothing finds nothing."""
    trace = trace_of("my_step {}", 5, (synth.Python(500), LAUNCH))
    steps = find_steps(trace, join_launches(trace), re.compile(r"^my_step \d"))
    assert (len(steps), steps.source) == (5, r"^my_step \d")
    known = trace_of("scheduler.run_batch", 5, (synth.Python(500), LAUNCH))
    assert len(find_steps(known, join_launches(known), re.compile("other"))) == 0


def test_no_steps_where_nothing_repeats() -> None:
    trace = synth.to_trace(synth.Scenario((synth.Program((LAUNCH, GRAPH, LAUNCH)),)))
    assert find_steps(trace, join_launches(trace)).source == "none"


def test_a_span_that_launches_nothing_is_no_step() -> None:
    idle = synth.Span("scheduler.run_batch", (synth.Python(500),))
    work = synth.Span("scheduler.run_batch", (synth.Python(500), LAUNCH))
    trace = synth.to_trace(synth.Scenario((synth.Program((idle, work, idle, work, idle)),)))
    assert len(find_steps(trace, join_launches(trace))) == 2


@pytest.mark.parametrize(
    ("spans", "kind"),
    [
        ({"draft", "step[VERIFY bs=1]", "draft_extend"}, "NEXTN"),
        ({"step[DRAFT bs=1]", "step[VERIFY bs=1]"}, "DSpark"),
        ({"step[TARGET_VERIFY bs=1]"}, "verify"),
        ({"step[DECODE bs=1]"}, "decode"),
        ({"step[EXTEND bs=1 toks=100]", "draft_extend"}, "prefill"),
        ({"step[EXTEND bs=1]", "step[DECODE bs=1]"}, "mixed"),
        ({"step[MIXED bs=2]"}, "mixed"),
        ({"execute_32_context_1(a)_generation_3(b)"}, "mixed"),
        ({"anything else"}, "step"),
        (set(), "step"),
    ],
)
def test_kinds(spans: set[str], kind: str) -> None:
    assert kind_of(spans) == kind


def test_what_sets_a_step_aside() -> None:
    extras = (
        synth.Extra(3, synth.Gc(90_000)),
        synth.Extra(5, synth.Overhead(120_000)),
        synth.Extra(7, synth.Python(20_000_000)),
    )
    fenced = [synth.Extra(e.step, action) for e in extras for action in (synth.Python(300), e.action)]
    loop = synth.decode_loop(["nextn"] * 12, synth.Shape(), fenced)
    view = RankView.of(synth.to_trace(loop), load_classes())
    aside = {row: cause for row, cause in enumerate(view.left_out) if cause}
    assert aside[0] == "first"
    assert aside[11] == "last"
    assert aside[3] == "gc"
    assert aside[5] == "profiler"
    assert "outlier" in aside.values()
    assert len(aside) == 5


def test_a_slow_step_is_steady_all_the_same() -> None:
    """Durations alone set nothing aside below three times the median."""
    slow = [synth.Extra(4, synth.Python(30_000))]
    view = RankView.of(synth.to_trace(synth.decode_loop(["decode"] * 8, synth.Shape(), slow)), load_classes())
    wall = view.steps.end - view.steps.start
    assert wall.max() < 3 * sorted(wall)[len(wall) // 2]
    assert view.left_out == ("first", *[None] * 6, "last")
