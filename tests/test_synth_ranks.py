"""The simulator of several ranks against cases worked out by hand, and against what must hold of any run."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth import Copy, GraphLaunch, Launch, Node, Program, Python, StreamSync, ranks, to_json
from synth import simulate as simulate_one
from synth.actions import Action
from synth.rank_strategies import clocks, decodes, rank_decodes, rank_programs
from synth.ranks import Collective, CollectiveNode, Comm, Follower, HostCollective, Inject
from synth.strategies import decode_loops, programs

quick = settings(deadline=None, max_examples=60)
T0 = ranks.START_NS
Actions = tuple[Action, ...]


def truth_of(*actions: Actions, **scenario: Any) -> ranks.RankTruth:
    """Of one thread a rank, without noise unless asked for."""
    own = ranks.rank_scenarios(*((Program(a),) for a in actions))
    return ranks.find(ranks.RankScenario(own, **{"noise": 0, **scenario}))


def eager(kind: str = "one_shot", dur: int = 5, group: str = "tp", **more: Any) -> Collective:
    """Starts 4 ns after its call begins, where the stream is free."""
    comm = Comm(kind, group, **{k: more.pop(k) for k in ("root", "peer", "early") if k in more})
    return Collective(dur, call_dur=3, latency=1, comm=comm, **more)


def launch(dur: int, **more: Any) -> Launch:
    return Launch(dur, call_dur=3, latency=1, **more)


def rows(instance: ranks.Instance) -> list[tuple[int, int, int, int]]:
    """(arrival, wait, transfer, end) of each rank."""
    return [(m.arrival - T0, m.wait, m.transfer, m.end - T0) for m in instance.members.values()]


@quick
@given(programs(max_threads=3, lost=True, polls=True))
def test_one_rank_alone_runs_as_the_engine_of_one_rank_says(scenario: Any) -> None:
    assert ranks.simulate(ranks.RankScenario((scenario,))).runs == (simulate_one(scenario),)


@settings(deadline=None, max_examples=20)
@given(decode_loops(mixed=True))
def test_so_does_a_decode_loop(scenario: Any) -> None:
    assert ranks.simulate(ranks.RankScenario((scenario,))).runs == (simulate_one(scenario),)


def test_nobody_leaves_before_the_last() -> None:
    truth = truth_of((eager(), launch(2)), (Python(10), eager()), (Python(30), eager()))
    (one,) = truth.instances
    assert rows(one) == [(4, 30, 5, 39), (14, 20, 5, 39), (34, 0, 5, 39)]
    assert (one.last, one.last_arrival - T0, one.caused, one.margin) == (2, 34, 50, 20)
    assert truth.run.runs[0].ops[1].start == T0 + 39
    assert truth.caused == {0: 0, 1: 0, 2: 50}
    assert truth.totals[-1, 0] == ranks.Totals(wait=30, transfer=5, alone=30, count=1)


def test_the_last_leaves_a_push_first() -> None:
    (one,) = truth_of((eager("push", early=7),), (Python(30), eager("push", early=7))).instances
    assert rows(one) == [(4, 30, 12, 46), (34, 0, 5, 39)]
    # two that are nearly as late: the last waits for what the other has sent
    (one,) = truth_of((eager("push", early=7),), (Python(3), eager("push", early=7))).instances
    assert rows(one) == [(4, 3, 12, 19), (7, 0, 9, 16)]


def test_the_last_of_two_leaves_a_push_in_two_shots_last() -> None:
    """It waits for the sum that the other makes of its data, and the other for its data alone."""
    late = (Python(30), eager("push_2", early=7))
    (one,) = truth_of((eager("push_2", early=7),), late).instances
    assert rows(one) == [(4, 30, 12, 46), (34, 0, 19, 53)]
    # with a third rank all wait for a sum of another that has waited for the last rank's data
    (one,) = truth_of((eager("push_2", early=7),), (eager("push_2", early=7),), late).instances
    assert [end for *_, end in rows(one)] == [53, 53, 53]


def test_a_push_is_1_to_1_5_us_early_by_itself() -> None:
    (one,) = truth_of((eager("push"),), (Python(9_000), eager("push"))).instances
    assert 1_000 <= one.members[0].end - one.members[1].end <= 1_500


def test_noise_is_within_bounds_and_stays_the_same() -> None:
    body = (eager(),) * 200
    one, two = (truth_of(body, body, noise=600), truth_of(body, (Python(9), *body), noise=600))
    ends = [[m.transfer for m in i.members.values()] for i in one.instances]
    assert ends == [[m.transfer for m in i.members.values()] for i in two.instances]
    late = np.array(ends) - 5
    assert 0 <= late.min() < 20 < 580 < late.max() <= 600
    assert 150 < np.abs(late[:, 0] - late[:, 1]).mean() < 250


def test_pairs_join_two_ranks_only() -> None:
    sends = [
        (Python(10 * r), eager("send_recv", peer=p)) for r, p in enumerate((1, 0, 3, 2))
    ]  # ranks 0 with 1, 2 with 3
    first, second = truth_of(*sends).instances
    assert (first.ranks, second.ranks) == ((0, 1), (2, 3))
    assert rows(first) == [(4, 10, 5, 19), (14, 0, 5, 19)]
    assert rows(second) == [(24, 10, 5, 39), (34, 0, 5, 39)]


def test_a_broadcast_waits_for_its_root_alone() -> None:
    calls = [(Python(d), eager("nccl_broadcast", root=1)) for d in (0, 10, 30)]
    (one,) = truth_of(*calls).instances
    assert rows(one) == [(4, 10, 5, 19), (14, 0, 5, 19), (34, 0, 5, 39)]
    assert one.last == 1


@pytest.mark.parametrize("kind", ["put", "copy_gather"])
def test_some_wait_for_nobody(kind: str) -> None:
    truth = truth_of((eager(kind),), (Python(30), eager(kind)))
    assert rows(truth.instances[0]) == [(4, 0, 5, 9), (34, 0, 5, 39)]
    assert truth.caused == {0: 0, 1: 0}


def test_hosts_meet_too() -> None:
    meet = HostCollective(8)
    truth = truth_of((Python(20), meet, Python(1)), (meet, launch(2)), (Python(50), meet))
    (one,) = truth.of(host=True)
    assert rows(one) == [(20, 0, 8, 28), (0, 20, 8, 28), (50, 0, 8, 58)]
    assert truth.run.runs[1].ops[0].start == T0 + 28 + 4
    everyone = HostCollective(8, Comm("gloo_all_reduce", "cpu"))
    (one,) = truth_of((everyone,), (Python(20), everyone)).of(host=True)
    assert rows(one) == [(0, 20, 8, 28), (20, 0, 8, 28)]
    marks = [m for m in truth.run.runs[1].marks if m.layer == "framework"]
    assert [(m.name, m.end - m.start) for m in marks] == [("gloo:broadcast", 28)]


def test_a_host_that_reads_waits_for_the_other_rank() -> None:
    truth = truth_of((eager(), StreamSync(dur=3, return_delay=2), launch(1)), (Python(90), eager()))
    run = truth.run.runs[0]
    assert run.waits[0].end == T0 + 94 + 5 + 2
    assert run.waits[0].waited is run.ops[0]
    read = Copy("DtoH", 16, "Pageable", 4, call_dur=3, latency=1, return_delay=2)
    run = truth_of((eager(), read), (Python(90), eager())).run.runs[0]
    assert run.waits[0].end == T0 + 99 + 4 + 2


def test_pdl_starts_before_the_predecessor_ends_but_arrives_after() -> None:
    nodes = (Node(20), CollectiveNode(5, -8), Follower(6, 1), Node(3, 2))
    graph = GraphLaunch(nodes, call_dur=3, latency=1)
    truth = truth_of((graph,), (Python(40), graph))
    (one,) = truth.instances
    assert one.members[0].start == T0 + 4 + 20 - 8
    assert rows(one) == [(24, 40, 5, 69), (64, 0, 5, 69)]
    assert [(o.start - T0, o.end - T0) for o in truth.run.runs[0].ops[2:]] == [(17, 75), (77, 80)]
    (one,) = truth_of((launch(20), eager(gap=-8)), (launch(50), eager(gap=-8))).instances
    assert [m.start - T0 for m in one.members.values()] == [16, 46]
    assert rows(one) == [(24, 30, 5, 59), (54, 0, 5, 59)]


def test_alone_is_what_no_other_stream_fills() -> None:
    truth = truth_of((eager(), launch(10, stream=13)), (Python(30), eager()))
    assert truth.instances[0].members[0].alone == 30 - 10  # the kernel runs from 7 to 17


def test_lateness_is_inherited_through_another_group() -> None:
    sub, all_ = eager(group="sub"), eager()
    truth = truth_of((sub, all_), (Python(30), sub, all_), (all_,), groups=(("sub", (0, 1)),))
    first, second = truth.instances
    assert (first.group, first.last, first.ranks) == ("sub", 1, (0, 1))
    assert rows(first) == [(4, 30, 5, 39), (34, 0, 5, 39)]
    assert rows(second) == [(39, 0, 5, 44), (39, 0, 5, 44), (4, 35, 5, 44)]


def test_a_rank_that_never_comes_hangs_the_run() -> None:
    with pytest.raises(ValueError, match=r"one_shot 0 of tp misses \[1\]"):
        truth_of((eager(),), (Python(5),))
    with pytest.raises(ValueError, match="the others"):
        truth_of((eager(),), (eager("nccl"),))
    with pytest.raises(ValueError, match="not in group"):
        truth_of((eager(group="x"),), (Python(1),), groups=(("x", (1,)),))


def check_joints(truth: ranks.RankTruth) -> None:
    for joint in truth.run.joints:
        assert set(joint.rows) == set(joint.ranks)
    for i in truth.instances:
        for m in i.members.values():
            assert m.start <= m.arrival <= m.end
            assert m.wait >= 0
            assert m.transfer >= 0
            assert 0 <= m.alone <= m.wait
            if i.sync in ("all", "pair"):
                assert m.end >= max(x.arrival for x in i.members.values())
                assert m.arrival + m.wait == i.last_arrival


@quick
@given(rank_programs())
def test_any_program(scenario: ranks.RankScenario) -> None:
    truth = ranks.find(scenario)
    check_joints(truth)
    arrivals = [joint.arrivals for joint in truth.run.joints]  # the engine's own, found another way
    assert [{r: m.arrival for r, m in i.members.items()} for i in truth.instances] == arrivals


@settings(deadline=None, max_examples=30)
@given(rank_decodes(with_captures=True))
def test_any_decode_in_any_capture(scenario: ranks.RankScenario) -> None:
    truth = ranks.find(scenario)
    check_joints(truth)
    for rank, trace in enumerate(ranks.to_traces(truth.run)):
        gpu, clock, kept = trace.gpu, truth.clocks[rank], truth.rows[rank]
        assert len(gpu) == len(kept)
        assert np.array_equal(
            np.lexsort((gpu.graph_node, gpu.correlation, gpu.stream, gpu.start)), range(len(gpu))
        )
        for row in np.flatnonzero(kept >= 0):
            member = truth.instances[kept[row]].members[rank]
            assert member.recorded
            assert gpu.start[row] == clock.local(member.start)
            assert gpu.end[row] == clock.local(member.end)
            assert trace.names[gpu.name[row]] == ranks.KINDS[truth.instances[kept[row]].kind].kernel


@quick
@given(clocks(), st.lists(st.integers(-(10**9), 40 * 10**9), min_size=1))
def test_clocks_can_be_turned_back(clock: ranks.Clock, times: list[int]) -> None:
    column = np.array([T0 + t for t in times])
    assert clock.locals(column).tolist() == [clock.local(int(t)) for t in column]
    for t in times:
        local = clock.local(T0 + t)
        assert abs(clock.true(local) - (T0 + t)) <= 1
        assert clock.local(clock.true(local)) == local or clock.ppb > 0
        assert clock.local(T0 + t + 1) >= local


def test_a_clock_by_hand() -> None:
    clock = ranks.Clock(5_000, 50_000, T0, ((10**9, -20_000),))
    assert clock.local(T0) == T0 + 5_000
    assert clock.local(T0 + 10**9) == T0 + 10**9 + 5_000 + 50_000
    assert clock.local(T0 + 2 * 10**9) == T0 + 2 * 10**9 + 5_000 + 30_000
    assert (clock.rate(T0), clock.rate(T0 + 10**9)) == (50_000, -20_000)
    truth = truth_of((eager(),), (eager(),), clocks=(ranks.Clock(7, 100), clock))
    assert truth.relative(1, 0, T0) == (4_993, 49_900)


def test_captures() -> None:
    body = (*(eager(),) * 6, launch(2))
    captures = (
        ranks.Capture(skip=2), ranks.Capture(lost=(1, 4)), ranks.Capture(diverge=3), ranks.Capture(stop=5)
    )  # fmt: skip
    truth = truth_of(body, body, body, body, captures=captures)
    assert [r.tolist() for r in truth.rows] == [
        [2, 3, 4, 5, -1], [0, 2, 3, 5, -1], [0, 1, 2, -1, -1, -1], [0, 1, 2, 3, 4]
    ]  # fmt: skip
    recorded = [[r for r, m in i.members.items() if m.recorded] for i in truth.instances]
    assert recorded == [[1, 2, 3], [2, 3], [0, 1, 2, 3], [0, 1, 3], [0, 3], [0, 1]]
    traces = ranks.to_traces(truth.run)
    assert traces[0].window == (truth.instances[2].members[0].start - 1_000, truth.run.runs[0].end + 1_000)
    assert [len(t.api) for t in traces[:3]] == [2, 7, 7]  # the first kernels' calls came before the profiler


def names_of(doc: dict[str, Any], category: str) -> list[str]:
    return [e["name"] for e in doc["traceEvents"] if e.get("cat") == category]


@quick
@given(decodes())
def test_lates_are_of_collectives_of_their_rank(decode: ranks.Decode) -> None:
    truth = ranks.find(ranks.decode_ranks(decode))
    assert {x.late.rank in x.instance.members for x in truth.lates} <= {True}
    without = ranks.decode_ranks(decode, injects=())
    for x in truth.lates[:1]:
        effect = ranks.effect(truth.run.scenario, without, x.late)
        in_graph = x.late.cause == "kernel" and not x.late.name.startswith("seam_")
        assert effect >= (x.late.ns if in_graph else 0)  # in a seam the host's launch may be later still


@settings(deadline=None, max_examples=15)
@given(decodes(max_steps=2, with_captures=True))
def test_documents_say_what_traces_say(decode: ranks.Decode) -> None:
    run = ranks.simulate(ranks.decode_ranks(decode))
    for rank, (doc, trace) in enumerate(zip(ranks.to_docs(run), ranks.to_traces(run), strict=True)):
        read = json.loads(to_json(doc), parse_float=lambda text: int(text.replace(".", "")))
        gpu = [e for e in read["traceEvents"] if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
        base = read["baseTimeNanoseconds"]
        assert [base + e["ts"] for e in gpu] == trace.gpu.start.tolist()
        assert [base + e["ts"] + e["dur"] for e in gpu] == trace.gpu.end.tolist()
        assert [e["name"] for e in gpu] == [trace.names[n] for n in trace.gpu.name]
        assert read["distributedInfo"]["rank"] == trace.rank == rank
        assert read["distributedInfo"]["world_size"] == trace.world_size == decode.ranks
        said = [e["args"] for e in gpu if "Group size" in e["args"]]
        assert all(a["Process Group Name"] == "0" and a["Group size"] == decode.ranks for a in said)


def test_documents_name_their_groups() -> None:
    docs = ranks.to_docs(
        ranks.decode_ranks(
            ranks=3, steps=1, subgroup=(1, 2), captures=(ranks.Capture(base=ranks.START_NS // 2),)
        )
    )
    config = [
        [(g["pg_name"], g["pg_desc"], g["ranks"]) for g in d["distributedInfo"]["pg_config"]] for d in docs
    ]
    tp, sub = ("0", "tp", [0, 1, 2]), ("1", "sub", [1, 2])
    assert config == [[tp], [tp, sub], [tp, sub]]
    assert docs[0]["baseTimeNanoseconds"] == ranks.START_NS // 2
    assert names_of(docs[0], "cpu_op").count("c10d::broadcast_") == 2
    assert names_of(docs[0], "user_annotation").count("gloo:broadcast") == 2
    eager_nccl = [e["args"] for e in docs[1]["traceEvents"] if "Collective name" in e.get("args", {})]
    assert [a["Collective name"] for a in eager_nccl] == ["allreduce"] * 3
    assert eager_nccl[0]["Process Group Ranks"] == "[0, 1, 2]"


def test_a_quiet_decode_waits_for_noise_alone() -> None:
    truth = ranks.find(ranks.decode_ranks(steps=4, broadcasts=0))
    assert len(truth.of()) == 4 * 3 * 16
    assert max(m.wait for i in truth.of() for m in i.members.values()) <= 600
    quiet = ranks.find(ranks.decode_ranks(steps=4, broadcasts=0, noise=0))
    assert sum(t.wait for t in quiet.totals.values()) == 0
    assert {k: t.count for k, t in quiet.totals.items()} == {(s, r): 48 for s in range(4) for r in range(4)}


def test_starts_spread_where_work_differs() -> None:
    truth = ranks.find(ranks.decode_ranks(steps=4, gpu_jitter=20_000, host_jitter=4_000))
    spread = [max(m.arrival for m in i.members.values()) - min(m.arrival for m in i.members.values())
              for i in truth.of("one_shot")]  # fmt: skip
    assert 2_000 < np.median(spread) < 80_000


def with_late(decode: ranks.Decode, inject: Inject) -> tuple[ranks.LateTruth, int, ranks.RankTruth]:
    has, had = ranks.decode_ranks(decode, injects=(inject,)), ranks.decode_ranks(decode)
    truth = ranks.find(has)
    late = next(x for x in truth.lates if x.late.cause == inject.cause)
    return late, ranks.effect(has, had, late.late), truth


def test_a_longer_kernel_makes_the_others_wait_as_long() -> None:
    decode = ranks.Decode(steps=3, noise=0, broadcasts=0)
    late, effect, truth = with_late(decode, Inject(1, 1, 4, "kernel", 50_000))
    assert late.late == ranks.Late(1, (1, 4), "kernel", 50_000, "qkv_gemm")
    assert (late.instance.last, late.wait, effect) == (1, 50_000, 50_000)
    assert truth.caused == {0: 0, 1: 150_000, 2: 0, 3: 0}
    assert [truth.totals[1, r].wait for r in range(4)] == [50_000, 0, 50_000, 50_000]


@pytest.mark.parametrize("cause", ["python", "gc", "blocking"])
def test_a_late_host_shows_where_it_is_not_ahead(cause: Any) -> None:
    decode = ranks.Decode(steps=4, noise=0, broadcasts=0, per_leg=2, drain=True)
    late, effect, truth = with_late(decode, Inject(2, 2, 0, cause, 300_000))
    assert late.late.place == (2, 0)
    assert (late.instance.step, late.instance.last) == (2, 2)
    assert 290_000 <= late.wait == effect <= 320_000
    assert truth.caused[2] == 3 * late.wait


def test_a_late_host_does_not_show_where_it_is_far_ahead() -> None:
    decode = ranks.Decode(steps=4, noise=0, broadcasts=0, compute=40_000)
    _, effect, truth = with_late(decode, Inject(2, 2, 20, "python", 300_000))
    assert effect == 0
    assert sum(truth.caused.values()) == 0


def test_host_lateness_belongs_to_the_first_collective_of_the_launch() -> None:
    late, _, _ = with_late(ranks.Decode(steps=2, drain=True), Inject(0, 1, 7, "gc", 100_000, "x"))
    assert late.late.place == (1, 0)


def test_an_inherited_lateness() -> None:
    decode = ranks.Decode(steps=2, broadcasts=0, subgroup=(0, 1))
    late, effect, truth = with_late(decode, Inject(0, 1, 15, "inherited", 40_000))
    assert late.instance.last == 0
    assert 40_000 <= effect <= 42_500
    source = truth.lates[0]
    assert (source.late.rank, source.late.cause, source.instance.group) == (1, "kernel", "sub")
    waits = {r: m.wait for r, m in late.instance.members.items()}
    assert waits[0] == 0
    assert waits[1] <= 2_100
    assert min(waits[2], waits[3]) > 40_000


def test_a_rank_that_is_always_last() -> None:
    truth = ranks.find(ranks.decode_ranks(steps=3, injects=(Inject(3, None, None, "kernel", 2_000),)))
    assert len(truth.lates) == 3 * 48
    assert {i.last for i in truth.of("one_shot")} == {3}


def test_injections_without_a_place_are_refused() -> None:
    with pytest.raises(ValueError, match="no place for Inject"):
        ranks.decode_ranks(steps=2, injects=(Inject(0, 5, 0, "gc", 100),))


def test_a_profiler_that_starts_late_on_one_rank() -> None:
    scenario = ranks.decode_ranks(ranks=2, steps=2, starts=(0, 15 * 10**9), broadcasts=0)
    first, _ = ranks.to_traces(scenario)
    assert (first.gpu.end - first.gpu.start).max() > 14.9e9
    assert ranks.find(scenario).at(0, 0).members[0].wait > 14.9e9


def test_many_by_its_own_rules() -> None:
    clock = ranks.Clock(3_000_000, -20_000)
    made = ranks.many(3, 500, clocks=(ranks.Clock(), clock), late=((2, 100, 80_000),), kind="push")
    assert (made.end >= made.arrival.max(axis=0)).all()
    assert made.last[100] == 2
    assert (made.wait[:2, 100] > 78_000).all()
    for rank, trace in enumerate(made.traces):
        row = made.rows[rank]
        assert np.array_equal(trace.gpu.start[row], made.clocks[rank].locals(made.start[rank]))
        assert np.array_equal(trace.gpu.end[row], made.clocks[rank].locals(made.end[rank]))
        assert {trace.names[n] for n in trace.gpu.name[row]} == {ranks.KINDS["push"].kernel}
        assert (np.diff(trace.gpu.start) >= 0).all()
        assert (trace.gpu.end[:-1] <= trace.gpu.start[1:]).all()
        assert len(trace.api) == 13
        assert len(trace.spans) == 5
        assert (np.diff(trace.api.start) > 0).all()


def test_the_same_seed_makes_the_same_run() -> None:
    scenario = ranks.decode_ranks(steps=2, gpu_jitter=900, host_jitter=900, seed=3)
    again = ranks.decode_ranks(steps=2, gpu_jitter=900, host_jitter=900, seed=3)
    assert scenario == again
    assert ranks.find(scenario).totals == ranks.find(again).totals
    other = ranks.find(replace(scenario, seed=4))
    assert other.totals != ranks.find(scenario).totals


def test_spans_are_those_of_the_engine() -> None:
    trace = ranks.to_traces(ranks.decode_ranks(steps=1))[0]
    assert {trace.names[n] for n in trace.spans.name} == {
        "scheduler.recv_requests", "scheduler.get_next_batch_to_run", "scheduler.run_batch", "draft",
        "step[VERIFY bs=1]", "draft_extend", "copy_result_to_cpu", "scheduler.process_batch_result",
        "gloo:broadcast",
    }  # fmt: skip
