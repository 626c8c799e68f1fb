"""The analyses give, to the nanosecond, what the simulator knows to be true."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import synth
from latencylab.analyzers.host import FIXED, SPAN
from latencylab.analyzers.idle import DISPATCH, HOST, IN_GRAPH, LATENCY, UNKNOWN
from latencylab.analyzers.kernels import load_classes
from latencylab.analyzers.run_ahead import run_ahead
from latencylab.analyzers.view import RankView, step_sums
from latencylab.model.trace import Trace
from synth.strategies import decode_loops, programs

TABLE = load_classes()
many = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def view_of(trace: Trace) -> RankView:
    return RankView.of(trace, TABLE)


def doing_of(view: RankView, chosen: np.ndarray) -> Counter[str]:
    pieces = view.pieces
    sums: Counter[str] = Counter()
    for code, length in zip(pieces.doing[chosen].tolist(), pieces.length[chosen].tolist(), strict=True):
        sums[FIXED[code] if code < SPAN else f"span:{pieces.spans[code - SPAN]}"] += length
    return sums


def assert_parts(view: RankView, lo: int, hi: int, want: synth.Parts) -> None:
    pieces, work = view.pieces, view.work
    inside = (pieces.start >= lo) & (pieces.end <= hi)
    length = pieces.length
    got = {
        cause: int(length[inside & (pieces.cause == cause)].sum())
        for cause in (IN_GRAPH, DISPATCH, LATENCY, HOST, UNKNOWN)
    }
    assert got == {
        IN_GRAPH: want.in_graph,
        DISPATCH: want.dispatch,
        LATENCY: want.launch_latency,
        HOST: want.host,
        UNKNOWN: want.unknown,
    }
    assert int(length[inside & pieces.in_launch].sum()) == want.host_in_launch
    busy = (work.start >= lo) & (work.end <= hi)
    assert int(work.length[busy].sum()) == want.busy
    assert int(length[inside].sum()) + want.busy == want.wall == hi - lo
    assert doing_of(view, inside & (pieces.cause == HOST)) == +synth.fold(want.doing, "api")


@many
@given(programs(lost=True))
def test_window_of_any_program(scenario: synth.Scenario) -> None:
    truth = synth.find(scenario)
    view = view_of(synth.to_trace(truth.run))
    assert (view.pieces.length > 0).all()
    assert (view.work.length > 0).all()
    assert view.window == (truth.start, truth.end)
    assert_parts(view, truth.start, truth.end, truth.window)


@many
@given(programs(lost=True))
def test_exclusive_time_belongs_to_the_earlier_op(scenario: synth.Scenario) -> None:
    truth = synth.find(scenario)
    view = view_of(synth.to_trace(truth.run))
    ordered = sorted(truth.run.ops, key=lambda op: op.key)
    got: Counter[int] = Counter()
    for op, length in zip(view.work.op.tolist(), view.work.length.tolist(), strict=True):
        got[truth.run.ops.index(ordered[op])] += length
    assert got == +truth.window.exclusive


@many
@given(decode_loops(max_steps=6, mixed=True))
def test_steps_of_a_decode_loop(scenario: synth.Scenario) -> None:
    truth = synth.find(scenario)
    view = view_of(synth.to_trace(truth.run))
    assert [(step.start, step.end) for step in truth.steps] == list(
        zip(view.steps.start.tolist(), view.steps.end.tolist(), strict=True)
    )
    spelled = {"nextn": "NEXTN", "dspark": "DSpark", "decode": "decode", "prefill": "prefill"}
    assert [spelled[step.kind or ""] for step in truth.steps] == list(view.steps.kind)
    sums = step_sums(view)
    for row, step in enumerate(truth.steps):
        assert_parts(view, step.start, step.end, step.parts)
        parts = {name: int(column[row]) for name, column in sums.items()}
        assert parts["wall"] == parts["busy"] + parts["idle"]
        assert parts["idle"] == parts["idle_host"] + parts["idle_gpu"] + parts["idle_unknown"]
        assert parts["busy"] == step.parts.busy
        assert parts["idle_host"] == step.parts.host
        first_or_last = row in (0, len(truth.steps) - 1)
        if not first_or_last:
            assert (view.left_out[row] in ("gc", "profiler")) == (step.gc or step.profiler)


@many
@given(decode_loops(max_steps=5, mixed=True))
def test_legs_seams_and_run_ahead(scenario: synth.Scenario) -> None:
    truth = synth.find(scenario)
    view = view_of(synth.to_trace(truth.run))
    legs, ahead = view.legs, run_ahead(view.legs)
    got = [
        (legs.name[i], int(legs.start[i]), int(legs.end[i]), int(legs.ops[i]), int(ahead[i]))
        for i in range(len(legs))
    ]
    assert got == [(leg.name, leg.start, leg.end, len(leg.ops), leg.run_ahead) for leg in truth.legs]


@many
@given(decode_loops(max_steps=5, stall=True))
def test_recorded_waits_are_known_to_the_nanosecond(scenario: synth.Scenario) -> None:
    """With synchronization records every wait resolves, and so does every debt."""
    recorded = synth.Scenario(**{**_fields(scenario), "sync_records": True})
    truth = synth.find(recorded)
    view = view_of(synth.to_trace(truth.run))
    waits = view.waits
    ordered = sorted(truth.run.ops, key=lambda op: op.key)
    assert len(waits.calls) == len(truth.syncs)
    for row, sync in enumerate(truth.syncs):
        assert waits.calls.start[row] == sync.wait.start
        if sync.waited is None:
            continue
        assert waits.evidence[row] == "recorded"
        assert ordered[waits.op[row]] is sync.waited
        assert waits.blocked[row] == sync.blocked
        assert waits.behind[row] == sync.behind
        assert waits.queued[row] == sync.queued
        if truth.legs:
            assert waits.need[row] == (-1 if sync.need is None else sync.need)
    row_of = {sync.correlation: row for row, sync in enumerate(truth.syncs)}
    want: Counter[int] = Counter()
    for correlation, ns in truth.window.blame.items():
        want[int(waits.site[row_of[correlation]])] += ns
    got: Counter[int] = Counter()
    for site, ns in zip(view.pieces.site.tolist(), view.pieces.length.tolist(), strict=True):
        if site >= 0:
            got[site] += ns
    assert got == +want


def _fields(scenario: synth.Scenario) -> dict[str, object]:
    return {name: getattr(scenario, name) for name in scenario.__dataclass_fields__}


@many
@given(decode_loops(max_steps=6, stall=True, pauses=False))
def test_inferred_waits_never_name_a_newer_op_than_was_done(scenario: synth.Scenario) -> None:
    """Without records, what is inferred was done at the call's return, and hides no wait that there was."""
    truth = synth.find(synth.Scenario(**{**_fields(scenario), "sync_records": False}))
    view = view_of(synth.to_trace(truth.run))
    waits, gpu = view.waits, view.trace.gpu
    for row, sync in enumerate(truth.syncs):
        if waits.op[row] < 0:
            continue
        assert gpu.end[waits.op[row]] <= waits.calls.end[row] + 1_000
        assert 0 <= waits.blocked[row] <= waits.calls.end[row] - waits.calls.start[row]
        if sync.waited is not None and waits.evidence[row] == "eliminated":
            assert waits.behind[row] <= sync.behind or sync.behind == 0


@many
@given(programs(lost=True), st.integers(-(10**12), 10**12))
def test_a_shifted_clock_changes_nothing(scenario: synth.Scenario, shift: int) -> None:
    run = synth.simulate(scenario)
    one, other = view_of(synth.to_trace(run)), view_of(_shifted(synth.to_trace(run), shift))
    assert (other.pieces.start - one.pieces.start == shift).all()
    for name in ("cause", "op", "doing", "site", "in_launch"):
        assert (getattr(one.pieces, name) == getattr(other.pieces, name)).all()


def _shifted(trace: Trace, shift: int) -> Trace:
    fields = {name: getattr(trace, name) for name in trace.__dataclass_fields__}
    for name in ("gpu", "api", "ops", "spans", "frames", "syncs", "overhead"):
        table = fields[name]
        columns = {column: getattr(table, column) for column in table.__dataclass_fields__}
        columns["start"], columns["end"] = columns["start"] + shift, columns["end"] + shift
        fields[name] = type(table)(**columns)
    return Trace(**fields)
