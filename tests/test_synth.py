"""The simulator against cases worked out by hand, and against what must hold of any run."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth import (
    Api,
    Copy,
    DeviceSync,
    EventQueryLoop,
    EventRecord,
    EventSync,
    FrameworkOp,
    Gc,
    GraphLaunch,
    Launch,
    Node,
    Overhead,
    Parts,
    Program,
    Python,
    Scenario,
    Shape,
    Span,
    StreamSync,
    StreamWait,
    Truth,
    decode_loop,
    find,
    fold,
    pauses,
    permuted,
    shifted,
    slowed,
    to_doc,
    to_json,
    to_trace,
    with_profiler_overhead,
)
from synth.actions import Action
from synth.pieces import Judge
from synth.strategies import decode_loops, programs

quick = settings(deadline=None, max_examples=60)


def truth_of(*actions: Action, **scenario: Any) -> Truth:
    return find(Scenario((Program(actions),), **scenario))


def launch(dur: int, stream: int = 7, call_dur: int = 3, latency: int = 1, **more: Any) -> Launch:
    return Launch(dur, stream, call_dur=call_dur, latency=latency, **more)


def times(truth: Truth) -> list[tuple[int, int]]:
    t0 = truth.run.scenario.base + truth.run.scenario.origin
    return [(o.start - t0, o.end - t0) for o in truth.run.ops]


def base_case() -> Scenario:
    """20 kernels of 2.25 µs, one every 10 µs, each 4.2 µs after the start of its call of 3.1 µs."""
    op = FrameworkOp(
        "aten::add", (Python(2_000), Launch(2_250, call_dur=3_100, latency=1_100), Python(2_900))
    )
    return Scenario((Program((op, Python(2_000)) * 20),))


def test_kernels_one_by_one() -> None:
    truth = find(base_case())
    w = truth.window
    assert (w.wall, w.busy, w.idle) == (192_250, 45_000, 147_250)
    assert (w.host, w.host_in_launch, w.launch_latency) == (126_350, 58_900, 20_900)
    assert (w.in_graph, w.dispatch, w.unknown) == (0, 0, 0)
    # from a kernel's end at 8.45 to the next call at 12: the op ends at 8, the next one begins at 10
    assert w.doing == {"span:": 19 * 1_550, "framework": 19 * 2_000, "api": 19 * 3_100}
    assert set(truth.run_ahead.values()) == {1_100}


def test_graph_replays() -> None:
    nodes = tuple(Node(2_100, 0 if i == 0 else 500) for i in range(60))
    one = (Python(5_000), GraphLaunch(nodes, call_dur=9_000, latency=6_000))
    two = (Python(286_000), GraphLaunch(nodes, call_dur=9_000, latency=11_000))
    w = truth_of(*one, *two).window
    assert (w.wall, w.busy, w.in_graph) == (455_500, 252_000, 59_000)
    assert (w.host, w.launch_latency, w.dispatch) == (133_500, 11_000, 0)


def test_the_example_of_the_docstring() -> None:
    truth = truth_of(
        Launch(dur=5_000, call_dur=3_000, latency=1_000),
        StreamSync(dur=2_000, return_delay=1_500),
        Span("prepare", (Python(4_000), Launch(dur=2_000, call_dur=3_000, latency=1_000))),
    )
    assert (truth.window.host, truth.window.host_in_launch) == (8_500, 3_000)
    assert truth.window.doing == {"sync_tail": 1_500, "span:prepare": 4_000, "api": 3_000}
    (sync,) = truth.syncs
    assert (sync.blocked, sync.wait.end - sync.wait.start) == (6_000, 7_500)
    assert truth.window.blame == {sync.correlation: 6_000}
    assert truth.window.blame_rest == {"api": 2_500}  # the debt is spent on the beginning of the gap


def test_queued_in_time_is_dispatch() -> None:
    # calls end at 3 and 6; ops [4, 24) and, 5 after its predecessor, [29, 39)
    truth = truth_of(launch(20), launch(10, gap=5))
    assert times(truth) == [(4, 24), (29, 39)]
    assert (truth.window.dispatch, truth.window.host, truth.window.launch_latency) == (5, 0, 0)


def test_no_host_part_while_another_op_is_outstanding() -> None:
    # On stream 13 an op launched at 6 is due at 56. The op that ends the gap [9, 44) was launched late, by
    # a call of [40, 43), but all the time the other one was outstanding.
    truth = truth_of(launch(5), launch(10, 13, latency=50), Python(34), launch(2))
    assert times(truth) == [(4, 9), (56, 66), (44, 46)]
    assert (truth.window.dispatch, truth.window.host, truth.window.launch_latency) == (44, 0, 1)
    # launched in the middle of a gap it takes only the rest: host [9, 30), dispatch [30, 63)
    truth = truth_of(launch(5), Python(24), launch(10, 13, latency=70), Python(30), launch(2))
    assert times(truth) == [(4, 9), (100, 110), (64, 66)]
    parts = truth.parts(truth.start, truth.run.ops[2].start)
    assert (parts.host, parts.dispatch, parts.launch_latency) == (21, 33, 1)
    assert parts.host_in_launch == 0  # [27, 30) is inside a call, but not the one that ended the gap
    assert parts.doing == {"span:": 18, "api": 3}


def test_an_op_of_no_length_ends_a_gap() -> None:
    # ops [4, 5), [11, 11), [20, 30): the second gap's launch, by a call of [9, 12), is late against 11
    truth = truth_of(launch(1), Python(4), launch(0, latency=1), launch(10, latency=7))
    assert times(truth) == [(4, 5), (11, 11), (20, 30)]
    assert (truth.window.host, truth.window.launch_latency) == (5 + 2, 1 + 7)
    truth = truth_of(launch(1), Python(3), launch(0, 13, latency=9), Python(4), launch(10, latency=5))
    assert times(truth) == [(4, 5), (18, 18), (21, 31)]  # calls end at 3, 9 and 16
    # [5, 9) host, [9, 18) latency of the empty op; then 16 <= 18: dispatch
    assert (truth.window.host, truth.window.launch_latency, truth.window.dispatch) == (4, 9, 3)


def test_an_op_may_start_within_its_call() -> None:
    truth = truth_of(launch(2), Python(10), launch(5, call_dur=10, latency=-6))
    assert times(truth) == [(4, 6), (17, 22)]
    assert (truth.window.host, truth.window.host_in_launch, truth.window.launch_latency) == (11, 4, 0)
    assert list(truth.run_ahead.values()) == [1, 0]


def test_pdl_overlap_belongs_to_the_earlier_op() -> None:
    # ops [4, 24), [14, 20) inside it, [20, 40): it looks one op back only, and waits for the first
    truth = truth_of(launch(20), launch(6, gap=-10), launch(20, gap=-10))
    assert times(truth) == [(4, 24), (14, 20), (24, 44)]
    assert truth.window.exclusive == {0: 20, 2: 20}
    truth = truth_of(GraphLaunch((Node(10), Node(10, -4), Node(10, -4, after=0, stream=101)), 7, 3, 1))
    assert times(truth) == [(4, 14), (10, 20), (10, 20)]
    assert truth.window.exclusive == {0: 10, 1: 6}  # ties by stream: 7 before 101
    assert truth.window.busy == truth.window.wall == 16


def test_lost_launches_are_unknown() -> None:
    truth = truth_of(launch(2), Python(10), launch(5, lost=True), Python(4), launch(1, latency=6))
    assert times(truth) == [(4, 6), (17, 22), (29, 30)]
    assert (truth.window.unknown, truth.window.host, truth.window.launch_latency) == (11, 1, 6)
    assert len(to_trace(truth.run).api) == 2


def test_layers_of_doing() -> None:
    inner = FrameworkOp(
        "op", (Python(2), Span("in", (Python(3),)), Gc(4), Python(1), Api("cudaX", 5), Python(6))
    )
    body = (Python(7), inner, Python(1), Overhead(8), Python(1), Gc(9), launch(1, overhead=20))
    truth = truth_of(launch(0), Python(1), Span("out", body))
    want = {"span:out": 7 + 1 + 1, "framework": 2 + 3 + 1 + 6, "gc": 13, "api": 5 + 3, "profiler": 28}
    assert truth.window.doing == want
    assert truth.window.host_in_launch == 23
    assert truth.window.host == sum(want.values())


def test_debts_are_drawn_newest_first() -> None:
    # first sync: called at 3, op ends at 104: 101 blocked. The host is back at 106 and launches at 109.
    # second: called at 109, op [110, 130): 21 blocked. Host gap [104, 109) draws 5 on the first.
    # last op: sync back at 132, Python 60, call to 195, op at 196: gap [130, 195) draws 21, then 44.
    sync = StreamSync(7, 2, 2)
    truth = truth_of(launch(100), sync, launch(20), sync, Python(60), launch(1))
    one, two = truth.syncs
    assert (one.blocked, two.blocked) == (101, 21)
    assert truth.window.blame == {one.correlation: 5 + 44, two.correlation: 21}
    assert not truth.window.blame_rest
    # a second thread's host gaps draw on none of it
    other = Program((Python(200), launch(1)), tid=101)
    truth = find(Scenario((Program((launch(100), sync)), other)))
    assert truth.window.host == truth.window.blame_rest.total() == 203 - 104


def test_what_a_sync_waits_for() -> None:
    # ops: 0 [4, 104), 1 copy on 13 behind its event [105, 115), 2 [104, 204)
    truth = truth_of(
        launch(100),
        EventRecord("ready", 7, 1),
        StreamWait("ready", 13, 1),
        Copy("DtoH", 16, "Pinned", 10, 13, 2, 97),
        EventRecord("copied", 13, 1),
        launch(100),
        EventSync("copied", 2, 3),
        Span("draft", (Python(4), GraphLaunch((Node(5),), 7, 6, 1))),
        DeviceSync(2, 3),
        DeviceSync(2, 3, "cudaFree"),
        StreamSync(99, 2, 3),
    )
    assert times(truth)[:3] == [(4, 104), (104, 114), (104, 204)]
    event, device, free, empty = truth.syncs
    assert event.waited is truth.run.ops[1]
    assert event.waited.direction == "DtoH pinned"
    assert event.blocked == 114 - 11
    assert (event.behind_ops, event.behind) == ((truth.run.ops[2],), 100)
    assert (event.queued, event.need) == (204 - 117, 10)
    assert device.waited is truth.run.ops[3]
    assert (device.behind, device.queued, device.need) == (0, 0, None)
    assert (free.wait.kind, free.blocked, free.waited) == ("alloc", 0, truth.run.ops[3])
    assert (empty.waited, empty.blocked, empty.behind) == (None, 0, 0)


def test_blocking_copies() -> None:
    truth = truth_of(
        launch(1), Copy("DtoH", 4, "Pageable", 10, 7, 5, 2, return_delay=3), Python(4), launch(1)
    )
    assert times(truth) == [(4, 5), (10, 20), (31, 32)]
    (sync,) = truth.syncs
    assert (sync.wait.kind, sync.api, sync.blocked) == ("copy", "cudaMemcpyAsync", 17)
    assert truth.parts(truth.start, truth.run.ops[1].end).doing == {"sync": 5}
    assert truth.window.host_in_launch == 5 + 3
    assert truth.window.doing == {"sync": 5, "sync_tail": 3, "span:": 4, "api": 3}
    assert fold(truth.window.doing) == {"sync": 5, "span:": 4, "api": 6}
    assert truth.window.blame == {sync.correlation: 10}  # 17 owed, but the gap before it came too early
    assert not truth_of(Copy("HtoD", 4, "Pageable")).syncs
    assert truth_of(Copy("HtoD", 4, "Pageable", blocking=True)).syncs[0].api == "cudaMemcpy"


def test_polling() -> None:
    # record until 4, queries [4, 5) [7, 8) ... until one begins at 14 or later: 16
    truth = truth_of(launch(10), EventRecord("e", 7, 1), EventQueryLoop("e", 1, 2), launch(1))
    (poll,) = truth.syncs
    assert (poll.wait.kind, len(poll.wait.calls), poll.blocked) == ("poll", 5, 10)
    assert poll.wait.end - poll.wait.start == 13
    assert truth.window.doing == {"span:": 2, "sync_tail": 1, "api": 3}
    assert not truth_of(launch(1), EventRecord("e", 7, 1), EventQueryLoop("e", 1, 2)).syncs


def test_threads_take_turns() -> None:
    a = Program((launch(10), Python(20), launch(10)), tid=1)
    b = Program((Python(1), launch(10, call_dur=1), StreamSync(7, 1, 0)), tid=2)
    truth = find(Scenario((a, b)))
    assert times(truth) == [(3, 13), (13, 23), (27, 37)]  # b's call returns first, so its op is first
    assert truth.syncs[0].waited is truth.run.ops[0]
    assert (truth.window.host, truth.window.launch_latency) == (3, 1)


def test_a_decode_loop() -> None:
    truth = find(decode_loop(["prefill", "nextn", "nextn", "dspark", "decode"]))
    assert [s.kind for s in truth.steps] == ["prefill", "nextn", "nextn", "dspark", "decode"]
    assert [[leg.name for leg in s.legs] for s in truth.steps] == [
        [], ["draft", "verify", "extend"], ["draft", "verify", "extend"], ["draft", "verify"], ["decode"],
    ]  # fmt: skip
    nextn = truth.steps[2]
    assert [len(leg.ops) for leg in nextn.legs] == [3, 6, 2]
    assert len(nextn.ops) == 1 + 3 + 2 + 2 + 6 + 2 + 2 + 1 + 1  # prepare, legs and seams, metadata, copy
    hidden = [s for s in truth.syncs if s.step == 2]
    assert [s.api for s in hidden] == ["cudaEventSynchronize"]
    assert hidden[0].need is not None
    assert hidden[0].behind > hidden[0].need
    assert hidden[0].waited is truth.steps[1].ops[-1]


def test_a_stall_is_to_blame() -> None:
    slow = Shape(host=40_000, stall=True)
    truth, without = (
        find(decode_loop(["nextn"] * 6, slow)),
        find(decode_loop(["nextn"] * 6, Shape(host=40_000))),
    )
    step = truth.steps[3]
    stalls = {s.correlation for s in truth.syncs if s.api == "cudaStreamSynchronize"}
    assert sum(step.parts.blame[c] for c in stalls) > 0
    assert step.end - step.start > without.steps[3].end - without.steps[3].start
    stall = next(s for s in truth.syncs if s.step == 3)
    assert stall.waited is not None
    assert (stall.waited.bytes, stall.wait.call.spans) == (16, ("scheduler.run_batch",))
    assert stall.need is not None
    assert stall.behind < stall.need


def test_pauses_and_overhead_are_told_apart() -> None:
    loop = decode_loop(["nextn"] * 4, extras=pauses(3, 4, gc=5_000, overhead=7_000))
    assert [(s.gc, s.profiler) for s in find(loop).steps] == [(i in (0, 3),) * 2 for i in range(4)]
    busy_thread = find(
        Scenario((Program((launch(1), Python(50), launch(1))),), background=((20, 10), (1, 40)))
    )
    assert busy_thread.window.doing["profiler"] == 10  # the other row holds an end of a call


def test_slower_hosts() -> None:
    loop = decode_loop(["nextn"] * 3, Shape(host=40_000))
    plain, slow = find(loop), find(slowed(loop, 2.0, 3.0))
    assert slow.run.calls[0].end - slow.run.calls[0].start == 3 * 3_000
    assert slow.window.busy == plain.window.busy
    assert slow.window.host > plain.window.host
    inside = find(with_profiler_overhead(loop, 5_000, 4, inside=True))
    assert max(c.end - c.start for c in inside.run.calls if c.name == "cudaGraphLaunch") == 12_000 + 5_000
    assert find(with_profiler_overhead(loop, 50_000, 4)).window.doing["profiler"] > 0


def test_digits_are_exact() -> None:
    text = to_json(to_doc(base_case(), flows=True)).decode()
    assert '"ts": 4909914216204.635, "dur": 8.000' in text
    assert len(json.loads(text)["traceEvents"]) == len(to_doc(base_case(), flows=True)["traceEvents"])
    doc = to_doc(base_case())
    moved = to_json(shifted(doc, 1_001)).decode()
    assert '"ts": 4909914216205.636, "dur": 8.000' in moved
    mixed = permuted(doc, random.Random(1))
    assert sorted(map(json.dumps, mixed["traceEvents"])) == sorted(map(json.dumps, doc["traceEvents"]))


@quick
@given(programs(lost=True, polls=True))
def test_trace_and_document_agree(scenario: Scenario) -> None:
    trace, doc = (
        to_trace(scenario),
        json.loads(to_json(to_doc(scenario)), parse_float=lambda us: int(us.replace(".", ""))),
    )
    rows = [e for e in doc["traceEvents"] if e["ph"] == "X"]

    def of(*cats: str) -> list[tuple[int, int]]:
        mine = [e for e in rows if e["cat"] in cats]
        return sorted((e["ts"] + doc["baseTimeNanoseconds"], e["dur"]) for e in mine)

    pairs = [
        (trace.gpu, ("kernel", "gpu_memcpy", "gpu_memset")), (trace.api, ("cuda_runtime", "cuda_driver")),
        (trace.ops, ("cpu_op",)), (trace.spans, ("user_annotation",)), (trace.syncs, ("cuda_sync",)),
        (trace.overhead, ("overhead",)),
    ]  # fmt: skip
    for table, cats in pairs:
        assert sorted(zip(table.start.tolist(), (table.end - table.start).tolist(), strict=True)) == of(*cats)
        assert np.all(np.diff(table.start) >= 0)
    names = Counter(trace.names[i] for i in trace.gpu.name)
    assert names == Counter(e["name"] for e in rows if e["cat"] in pairs[0][1])


def check(parts: Parts) -> None:
    assert parts.wall == parts.busy + parts.gpu + parts.host + parts.unknown
    assert parts.host == parts.doing.total() == parts.blame.total() + parts.blame_rest.total()
    assert 0 <= parts.host_in_launch <= parts.host
    assert parts.busy == parts.exclusive.total()


@quick
@given(st.one_of(programs(lost=True, polls=True), decode_loops(), decode_loops(mixed=True)))
def test_what_holds_of_any_run(scenario: Scenario) -> None:
    truth = find(scenario)
    check(truth.window)
    assert truth.window.wall == truth.end - truth.start
    blamed = truth.window.blame
    assert all(blamed[s.correlation] <= s.blocked <= s.wait.end - s.wait.start for s in truth.syncs)
    for op in truth.run.ops:
        assert op.start >= op.call.start
        assert op.end >= op.start
    for sync in truth.syncs:
        assert sync.waited is None or sync.waited.end <= sync.wait.end
        assert sync.wait.call.correlation > max((o.call.correlation for o in sync.behind_ops), default=0)


@quick
@given(programs(lost=True, polls=True))
def test_nothing_changes_within_a_piece(scenario: Scenario) -> None:
    truth = find(scenario)
    asked = Judge(truth.run)
    assert sum(p.end - p.start for p in truth.pieces) == truth.window.wall
    for piece in truth.pieces:
        for t in range(piece.start, piece.end):
            assert asked.label(t) == (piece.label, piece.owner)
            if piece.label == "host":
                assert asked.doing(piece.thread, t) == piece.doing
    assert truth.window.busy == len({t for o in truth.run.ops for t in range(o.start, o.end)})


@quick
@given(decode_loops(mixed=True))
def test_steps_tile_the_time(scenario: Scenario) -> None:
    truth = find(scenario)
    assert len(truth.steps) == len(scenario.kinds)
    for one, two in zip(truth.steps, truth.steps[1:], strict=False):
        assert one.end == two.start > one.start
    for step in truth.steps:
        check(step.parts)
        assert step.parts.wall == step.end - step.start
    assert (
        sum(s.parts.host for s in truth.steps) == truth.parts(truth.steps[0].start, truth.steps[-1].end).host
    )


def test_a_run_without_ops_has_no_truth() -> None:
    with pytest.raises(ValueError, match="no window"):
        truth_of(Python(5))
