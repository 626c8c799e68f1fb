"""The timeline of a step against the simulator's truth: complete, disjoint where drawn, rightly linked."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import synth
from latencylab.analyzers import analyze, idle
from latencylab.analyzers.kernels import load_classes
from latencylab.analyzers.timeline import MOST_STEPS, build_timeline, choose_steps
from latencylab.analyzers.view import KindView, RankView
from latencylab.model.capture import Capture
from latencylab.model.timeline import CAUSES, Timeline
from latencylab.model.trace import I64, Table
from synth.strategies import decode_loops

TABLE = load_classes()
many = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
STALLING = synth.decode_loop(["dspark"] * 6, synth.Shape(host=1_500, stall=True), sync_records=True)


def view_of(truth: synth.Truth) -> RankView:
    return RankView.of(synth.to_trace(truth.run), TABLE)


def tracks(line: Timeline) -> list[tuple[Table, I64, I64]]:
    """Every table that is drawn in lanes, with the track and the lane of each box."""
    host = [(table, table.thread, table.lane) for table in (line.spans, line.ops, line.calls)]
    return [*host, (line.gpu, line.gpu.stream, line.gpu.lane)]


@many
@given(decode_loops())
def test_holds_the_whole_step(scenario: synth.Scenario) -> None:
    truth = synth.find(scenario)
    view = view_of(truth)
    for step in truth.steps:
        line = build_timeline(view, step.index)
        assert (line.start, line.end) == (step.start, step.end)
        assert line.first <= min(step.start, step.host[0])
        want = Counter(
            (o.start, o.end, o.stream, o.name) for o in truth.run.ops if step.start <= o.start < step.end
        )
        got = Counter(
            (
                int(line.gpu.start[i]),
                int(line.gpu.end[i]),
                line.streams[line.gpu.stream[i]],
                line.names[line.gpu.name[i]],
            )
            for i in np.flatnonzero(line.gpu.own).tolist()
        )
        assert got == want
        sums = np.bincount(
            line.gaps.cause[line.gaps.own], (line.gaps.end - line.gaps.start)[line.gaps.own], 5
        )
        parts = step.parts
        assert dict(zip(CAUSES, sums.astype(int).tolist(), strict=True)) == {
            "in_graph": parts.in_graph,
            "dispatch": parts.dispatch,
            "launch_latency": parts.launch_latency,
            "host": parts.host,
            "unknown": parts.unknown,
        }


@many
@given(decode_loops())
def test_boxes_of_a_lane_do_not_overlap(scenario: synth.Scenario) -> None:
    truth = synth.find(scenario)
    view = view_of(truth)
    for step in range(len(view.steps)):
        line = build_timeline(view, step)
        for table, track, lane in tracks(line):
            order = np.lexsort((table.end, table.start, lane, track))
            same = (track[order][1:] == track[order][:-1]) & (lane[order][1:] == lane[order][:-1])
            assert (table.start[order][1:] >= table.end[order][:-1])[same].all()
        assert (line.gaps.start[1:] >= line.gaps.end[:-1]).all()


@many
@given(decode_loops())
def test_links_join_the_right_launch(scenario: synth.Scenario) -> None:
    truth = synth.find(scenario)
    view = view_of(truth)
    launched: dict[tuple[int, int, int, str], set[tuple[int, int]]] = {}
    for op in truth.run.ops:
        if not op.call.lost:
            launched.setdefault((op.start, op.end, op.stream, op.name), set()).add(
                (op.call.start, op.call.end)
            )
    for step in truth.steps:
        line = build_timeline(view, step.index)
        gpu, calls = line.gpu, line.calls
        for i in np.flatnonzero(gpu.own).tolist():
            call = int(gpu.call[i])
            known = launched.get(
                (int(gpu.start[i]), int(gpu.end[i]), line.streams[gpu.stream[i]], line.names[gpu.name[i]])
            )
            assert (call >= 0) == (known is not None)
            if known is not None:
                assert (int(calls.start[call]), int(calls.end[call])) in known
                assert calls.ops[call] > 0
        linked = set(gpu.start[gpu.linked].tolist())
        assert {leg.start for leg in step.legs if step.start <= leg.start < step.end} <= linked
        late = np.flatnonzero((line.gaps.cause == CAUSES.index("host")) & line.gaps.own)
        assert (line.gaps.op[late] >= 0).all()
        assert gpu.linked[line.gaps.op[late]].all()
        assert (gpu.start[line.gaps.op[late]] >= line.gaps.end[late]).all()


def test_blocking_calls_and_what_they_delay() -> None:
    truth = synth.find(STALLING)
    view = view_of(truth)
    for step in truth.steps[1:]:
        line = build_timeline(view, step.index)
        want = {(s.wait.start, s.wait.end, s.blocked) for s in truth.syncs if s.step == step.index}
        waits = line.waits
        assert want <= set(zip(waits.start.tolist(), waits.end.tolist(), waits.blocked.tolist(), strict=True))
        names = [line.names[i] for i in waits.site.tolist()]
        assert any("16 B DtoH Pinned" in name for name in names)
        owed = line.gaps.owed & line.gaps.own
        assert (line.gaps.end - line.gaps.start)[owed].sum() == sum(step.parts.blame.values())
        assert {line.names[i] for i in line.gaps.blame[owed].tolist()} <= set(names)
    assert any(step.parts.blame for step in truth.steps[1:])


def test_a_call_far_before_its_op_is_there() -> None:
    """The host is two steps ahead at times: a link may lead out of the drawn time, but never nowhere."""
    shape = synth.Shape(host=200, call_dur=200, graph_call_dur=400)
    truth = synth.find(synth.decode_loop(["decode"] * 6, shape))
    view = view_of(truth)
    lines = [build_timeline(view, step.index) for step in truth.steps]
    assert all((line.gpu.call[line.gpu.own] >= 0).all() for line in lines)


def test_first_the_steps_that_say_most() -> None:
    extras = (synth.Extra(3, synth.Gc(400_000)), synth.Extra(7, synth.Python(90_000)))
    truth = synth.find(synth.decode_loop(["nextn"] * 60, extras=extras))
    view = view_of(truth)
    rows = np.arange(len(view.steps))
    steady = np.array([row for row in rows if view.left_out[row] is None])
    chosen = choose_steps(KindView(view, "NEXTN", rows, steady))
    wall = view.steps.end - view.steps.start
    assert wall[chosen[0]] == np.sort(wall[steady])[(len(steady) - 1) // 2]
    usual = [row for row in rows if view.left_out[row] in (None, "outlier")]
    assert wall[chosen[1]] == wall[usual].max()
    causes = {cause for cause in view.left_out if cause}
    assert {view.left_out[row] for row in chosen[2 : 2 + len(causes)]} == causes
    assert sorted(chosen) == rows.tolist()
    assert max(np.diff(np.sort(chosen[:20]))) < 10


def test_of_each_kind_the_median_step_leads() -> None:
    truth = synth.find(synth.decode_loop(["prefill"] * 5 + ["nextn"] * 50))
    found = analyze(Capture("x", None, None, (synth.to_trace(truth.run),))).ranks[0]
    kinds = {step.index: step.kind for step in found.steps}
    for kind in (found.main, *found.other_kinds):
        lines = [line for line in found.timelines if kinds[line.step] == kind.kind]
        assert 0 < len(lines) <= MOST_STEPS
        first = next(step for step in found.steps if step.index == lines[0].step)
        assert first.slower_by == ()


def test_causes_are_numbered_as_in_the_idle_pass() -> None:
    numbers = (idle.IN_GRAPH, idle.DISPATCH, idle.LATENCY, idle.HOST, idle.UNKNOWN)
    assert dict(zip(CAUSES, numbers, strict=True)) == {name: i for i, name in enumerate(CAUSES)}


@pytest.mark.parametrize("steps", [0, 1])
def test_without_steps_or_with_one(steps: int) -> None:
    loop = synth.decode_loop(["nextn"] * max(steps, 1))
    trace = synth.to_trace(synth.find(loop).run)
    if not steps:
        spans, ops = trace.spans.take(slice(0, 0)), trace.ops.take(slice(0, 0))
        keep = np.arange(min(4, len(trace.gpu)))
        trace = replace(trace, spans=spans, ops=ops, gpu=trace.gpu.take(keep))
    found = analyze(Capture("x", None, None, (trace,))).ranks[0]
    assert len(found.timelines) == len(found.steps) == steps
