"""Pairing, clocks and blame across ranks against simulated ranks whose truth is known."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from latencylab.analyzers import analyze
from latencylab.analyzers.host import GLOO, WAITING, peer_waits, thread_activity
from latencylab.analyzers.host_collectives import find_host_waits
from latencylab.analyzers.intervals import Intervals
from latencylab.analyzers.kernels import load_classes
from latencylab.analyzers.ranks import RankSet, join_ranks
from latencylab.analyzers.view import RankView
from latencylab.model.capture import Capture
from latencylab.model.trace import HostEvents, Trace
from synth import ranks

RUN_BATCH = re.compile(r"^scheduler\.run_batch$")
JITTER = {"gpu_jitter": 2_000, "host_jitter": 1_000}


def clocks(seed: int, count: int = 4) -> tuple[ranks.Clock, ...]:
    """Offsets of up to 5 ms and drifts of up to 50 ppm, of all ranks but the first."""
    rng = random.Random(seed)
    return (
        ranks.Clock(),
        *(
            ranks.Clock(offset=rng.randint(-5_000_000, 5_000_000), ppb=rng.randint(-50_000, 50_000))
            for _ in range(count - 1)
        ),
    )


def join(traces: tuple[Trace, ...]) -> RankSet:
    joined = join_ranks(tuple(RankView.of(trace, load_classes()) for trace in traces))
    assert joined is not None
    return joined


def play(**shape: Any) -> tuple[RankSet, ranks.RankTruth]:
    """Some 500 collectives of TP4, joined, and the truth."""
    shape = {"steps": 11, "clocks": clocks(1, shape.get("ranks", 4)), **shape}
    run = ranks.simulate(ranks.decode_ranks(**shape))
    return join(ranks.to_traces(run)), ranks.find(run)


def instances(joined: RankSet, truth: ranks.RankTruth) -> list[set[int]]:
    """Per paired collective the true instances that its ranks' ops are of: one, if it is right."""
    return [
        {
            int(truth.rows[r][joined.ranks[r].op[row]])
            for r, row in enumerate(joined.pairing.row[i].tolist())
            if row >= 0
        }
        for i in range(len(joined.pairing))
    ]


def assert_clocks(joined: RankSet, truth: ranks.RankTruth, within_ns: float = 1_000) -> None:
    for r, clock in enumerate(joined.clocks[1:], start=1):
        offset, _ = truth.relative(r, 0, clock.t0)
        assert clock.low <= offset <= clock.high
        assert abs(clock.offset - offset) < within_ns


SCENES: dict[str, dict[str, Any]] = {
    "alike steps": {},
    "jitter": JITTER,
    "two-shot": {"kind": "two_shot", **JITTER},
    "NCCL": {"kind": "nccl", **JITTER},
    "push": {"kind": "push", **JITTER},
    "fused under PDL": {"kind": "fused", "pdl": 4_000, "waits_along": True, **JITTER},
    "a group of two": {"subgroup": (1, 2), **JITTER},
    "8 ranks": {"ranks": 8, **JITTER},
    "2 ranks": {"ranks": 2, **JITTER},
    "one clock": {"clocks": (ranks.Clock(),) * 4, **JITTER},
    "seconds apart": {"clocks": (ranks.Clock(), *(ranks.Clock(offset=k * 700_000_000) for k in (1, -2, 3)))},
    "a rank begins late": {"captures": tuple(ranks.Capture(skip=k) for k in (0, 7, 0, 60)), **JITTER},
    "the reference begins late": {"captures": tuple(ranks.Capture(skip=k) for k in (70, 7, 0, 0)), **JITTER},
    "a rank with two whole steps": {
        "steps": 9,
        "captures": (ranks.Capture(), ranks.Capture(skip=250), *(ranks.Capture(),) * 2),
        "clocks": tuple(ranks.Clock(offset=700_000 * r, ppb=9_000 * r) for r in range(4)),
        **JITTER,
    },
    "one is lost": {"captures": (*(ranks.Capture(),) * 2, ranks.Capture(lost=(30, 200)), ranks.Capture())},
}


@pytest.mark.parametrize("scene", SCENES)
def test_collectives_are_paired_and_clocks_found(scene: str) -> None:
    joined, truth = play(**SCENES[scene])
    assert all(len(found) == 1 for found in instances(joined, truth))
    recorded = [
        sum(member.recorded for member in one.members.values()) for one in truth.instances if not one.host
    ]
    assert len(joined.pairing) == sum(count > 1 for count in recorded)
    assert_clocks(joined, truth)


@pytest.mark.parametrize(
    "kind", ["one_shot", "two_shot", "nccl", "push", "push_2", "pull", "pull_2", "fused"]
)
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_rank_that_is_always_last(kind: str, rank: int) -> None:
    always = ranks.Inject(rank, None, None, "kernel", 5_000)
    joined, truth = play(kind=kind, injects=(always,))
    assert_clocks(joined, truth)
    assert (joined.skew.last[joined.skew.resolved] == rank).mean() > 0.99


@pytest.mark.parametrize("kind", ["push", "push_2", "pull", "fused", "nccl"])
@pytest.mark.parametrize("later", [0, 300, 900, 1_800, 6_000])
def test_of_two_ranks_one_is_always_the_last(kind: str, later: int) -> None:
    """No two ranks wait, so what is known of each kind of collective is all there is to go by."""
    injects = (ranks.Inject(1, None, None, "kernel", later),) if later else ()
    joined, truth = play(ranks=2, kind=kind, injects=injects, noise=300, gpu_jitter=150)
    clock = joined.clocks[1]
    offset, _ = truth.relative(1, 0, clock.t0)
    assert clock.low <= offset <= clock.high
    assert abs(clock.offset - offset) < 2 * clock.residual
    if later == 6_000:
        assert (joined.skew.last[joined.skew.resolved] == 1).mean() > 0.99
        assert joined.skew.resolved.mean() > 0.9


@pytest.mark.parametrize(
    ("cause", "named"),
    [
        ("kernel", "GPU work: "),
        ("python", "host idle: span sampler.python"),
        ("gc", "host idle: gc"),
        ("blocking", "host idle: "),
    ],
)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_culprit_and_its_cause_are_named(cause: Any, named: str, seed: int) -> None:
    rng = random.Random(seed)
    injected = tuple(
        ranks.Inject(rng.randrange(4), step, 4, cause, rng.randint(20_000, 90_000)) for step in range(2, 10)
    )
    joined, truth = play(injects=injected, drain=cause != "kernel", clocks=clocks(seed), seed=seed)
    main = joined.causes.main_cause(len(joined.pairing))
    row = {found.pop(): i for i, found in enumerate(instances(joined, truth))}
    for late in truth.lates:
        i = row[late.instance.id]
        assert joined.skew.resolved[i]
        assert joined.skew.last[i] == late.late.rank == late.instance.last
        assert main[i].startswith(named)


def test_injected_work_of_over_2_us_is_found_in_99_of_100() -> None:
    found = total = 0
    for seed in range(4):
        rng = random.Random(seed)
        injected = tuple(
            ranks.Inject(rng.randrange(4), step, at, "kernel", rng.randint(2_100, 40_000))
            for step in range(1, 10)
            for at in (3, 20, 40)
        )
        joined, truth = play(injects=injected, clocks=clocks(seed), seed=seed)
        row = {its.pop(): i for i, its in enumerate(instances(joined, truth))}
        main = joined.causes.main_cause(len(joined.pairing))
        for late in truth.lates:
            i = row[late.instance.id]
            total += 1
            found += bool(
                joined.skew.resolved[i]
                and joined.skew.last[i] == late.late.rank
                and main[i].startswith("GPU work: ")
            )
    assert found / total >= 0.99


def test_without_injection_nobody_is_named() -> None:
    for kind in ("one_shot", "two_shot", "nccl"):
        joined, _ = play(kind=kind)
        assert not joined.skew.resolved.any()


def test_waits_and_transfers_are_the_true_ones() -> None:
    joined, truth = play(**JITTER)
    by_id = {one.id: one for one in truth.instances}
    for i, found in enumerate(instances(joined, truth)):
        for r, member in by_id[found.pop()].members.items():
            assert abs(int(joined.skew.wait[i, r]) - member.wait) < 1_500
            assert abs(int(joined.skew.transfer[i, r]) - member.transfer) < 1_500


def test_causes_add_up_to_the_mean_wait_of_the_others() -> None:
    injected = tuple(ranks.Inject(step % 4, step, 5, "kernel", 30_000) for step in range(1, 10))
    joined, _ = play(injects=injected, **JITTER)
    skew, causes = joined.skew, joined.causes
    total = np.bincount(causes.instance, causes.ns, len(joined.pairing))
    for i in np.unique(causes.instance).tolist():
        waits = np.delete(skew.arrival[i, skew.last[i]] - skew.arrival[i], skew.last[i])
        assert total[i] == pytest.approx(
            waits.mean(), abs=60
        )  # a clock drifts by some ns between collectives


def test_hosts_that_wait_for_a_peer_are_told_for_whom() -> None:
    """A broadcast's receivers wait for a late root, and leave with it."""
    late = ranks.Inject(0, 3, None, "python", 120_000)
    joined, _ = play(drain=True, injects=(late,))
    waits = find_host_waits(joined.views, joined.ranks, joined.pairing, joined.clocks)
    for its in waits[1:]:
        long = np.flatnonzero(its.end - its.start > 100_000)
        assert len(long)
        assert (its.rank[long] == 0).all()


def test_a_host_waits_in_silence_while_another_thread_carries_its_collective_out() -> None:
    late = ranks.Inject(0, 3, None, "python", 120_000)
    run = ranks.simulate(ranks.decode_ranks(steps=6, injects=(late,), host_jitter=900))
    for trace, own in zip(ranks.to_traces(run), run.runs, strict=True):
        (thread,) = np.unique(trace.spans.thread[trace.matching(RUN_BATCH)[trace.spans.name]]).tolist()
        found = thread_activity(trace, thread, Intervals.union(*np.zeros((2, 0), np.int64)))
        waited = [(m.start, m.end) for m in own.marks if m.name == "gloo:broadcast"]
        assert len(waited) == 12
        shown = found.label == WAITING
        ns = np.diff(found.time, append=found.time[-1])[shown].sum()
        assert ns == sum(end - start for start, end in waited)
        worker = int(trace.spans.thread[trace.matching(GLOO)[trace.spans.name]][0])
        idle = thread_activity(trace, worker, Intervals.union(*np.zeros((2, 0), np.int64)))
        assert np.diff(idle.time, append=idle.time[-1])[idle.label == WAITING].sum() == ns


def test_what_a_host_does_meanwhile_is_no_waiting() -> None:
    """An op during the collective: only what is silent after it is waited for."""
    scenario = ranks.decode_ranks(steps=2)
    trace = ranks.to_traces(scenario)[1]
    thread = int(trace.api.thread[0])
    gloo = trace.matching(GLOO)[trace.spans.name]
    start, end = int(trace.spans.start[gloo][1]), int(trace.spans.end[gloo][1])
    ops, before = trace.ops, peer_waits(trace, thread)
    columns = {"start": start + 1_000, "end": start + 4_000, "thread": thread, "name": ops.name[0]}
    more = HostEvents(**{name: np.append(getattr(ops, name), value) for name, value in columns.items()})
    after = peer_waits(replace(trace, ops=more.take(np.argsort(more.start, kind="stable"))), thread)
    assert before.total - after.total == 4_000
    assert (start + 4_000, end) in list(zip(after.start.tolist(), after.end.tolist(), strict=True))
    columns |= {"start": end, "end": end + 900}  # the thread goes on as soon as the collective is over
    more = HostEvents(**{name: np.append(getattr(ops, name), value) for name, value in columns.items()})
    assert peer_waits(replace(trace, ops=more), thread).total == before.total
    elsewhere = replace(ops, thread=np.where(ops.thread == thread, 7, ops.thread))
    assert peer_waits(replace(trace, ops=elsewhere), thread).total == 0


def test_collectives_that_another_thread_issues_take_no_waiting_away() -> None:
    """Another kind, as of NCCL, issued between the broadcast and its beginning on gloo's thread."""
    trace = ranks.to_traces(ranks.decode_ranks(steps=2))[1]
    thread = int(trace.api.thread[0])
    begins = trace.spans.start[trace.matching(GLOO)[trace.spans.name]]
    names = (*trace.names, "c10d::allgather_")
    ops, count = trace.ops, len(begins)
    columns = {
        "start": begins - 1,
        "end": begins,
        "thread": np.full(count, 9),
        "name": np.full(count, len(names) - 1),
    }
    more = HostEvents(**{name: np.append(getattr(ops, name), its) for name, its in columns.items()})
    assert (
        peer_waits(replace(trace, ops=more, names=names), thread).total == peer_waits(trace, thread).total > 0
    )


def test_a_rank_that_diverges_for_good_is_reported() -> None:
    for at in (200, 300):
        joined, truth = play(captures=(*(ranks.Capture(),) * 3, ranks.Capture(diverge=at)), **JITTER)
        assert all(len(found) == 1 for found in instances(joined, truth))
        assert joined.pairing.diverges[:3] == (-1, -1, -1)
        assert joined.pairing.diverges[3] == at
        assert joined.pairing.unpaired[3] > 100
        assert_clocks(joined, truth)


def test_a_profiler_that_starts_late_is_trimmed() -> None:
    joined, _ = play(starts=(0, 0, 15_000_000, 0), **JITTER)
    assert joined.skew.trimmed.sum() <= 3
    usable = ~joined.skew.trimmed
    assert joined.skew.spread[usable].max() < 2_000_000


@cache
def plain_run() -> tuple[Trace, ...]:
    injected = (ranks.Inject(2, 3, 4, "kernel", 40_000), ranks.Inject(1, 5, 9, "kernel", 25_000))
    shape: dict[str, Any] = {"steps": 8, "injects": injected, "clocks": clocks(7), **JITTER}
    return ranks.to_traces(ranks.simulate(ranks.decode_ranks(**shape)))


def moved(trace: Trace, by: int) -> Trace:
    tables = {
        name: replace(table, start=table.start + by, end=table.end + by)
        for name in ("gpu", "api", "ops", "spans", "frames", "syncs", "overhead")
        for table in [getattr(trace, name)]
    }
    return replace(trace, **tables)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(-(10**9), 10**9), min_size=4, max_size=4))
def test_a_constant_on_any_clock_changes_only_the_offsets(shifts: list[int]) -> None:
    base = join(plain_run())
    other = join(tuple(moved(trace, by) for trace, by in zip(plain_run(), shifts, strict=True)))
    assert (base.pairing.row == other.pairing.row).all()
    resolved = base.skew.resolved
    assert (resolved == other.skew.resolved).mean() > 0.99  # an offset's fraction of a ns may tip a close one
    assert (base.skew.last == other.skew.last)[resolved].all()
    assert abs(base.skew.wait - other.skew.wait).max() <= 2
    for r in range(1, 4):
        change = other.clocks[r].offset - base.clocks[r].offset
        assert change == pytest.approx(shifts[r] - shifts[0], abs=100)


def test_one_clock_comes_out_near_zero() -> None:
    joined, _ = play(clocks=(ranks.Clock(),) * 4, **JITTER)
    for clock in joined.clocks[1:]:
        assert clock.low < 0 < clock.high
        assert abs(clock.offset) < 500


def test_the_analysis_holds_the_ranks_findings() -> None:
    always = ranks.Inject(2, None, 4, "kernel", 30_000)
    shape: dict[str, Any] = {"steps": 11, "clocks": clocks(3), "injects": (always,)}
    traces = ranks.to_traces(ranks.simulate(ranks.decode_ranks(**shape)))
    found = analyze(Capture("synthetic", None, None, traces))
    assert found.alignment is not None
    assert found.collectives is not None
    late = found.collectives.late[0]
    assert (late.rank, late.share > 0.9) == (2, True)
    assert max(late.causes, key=lambda name: late.causes[name]).startswith("GPU work: ")
    assert sum(late.causes.values()) == pytest.approx(late.wait_us, rel=0.05)
    assert "rank 2" in found.verdict.text
    for rank in found.ranks:
        parts = rank.main.step_us
        assert parts is not None
        assert parts.collective_wait is not None
        assert 0 <= parts.collective_wait <= parts.busy
    waits = [rank.main.step_us.collective_wait for rank in found.ranks if rank.main.step_us]
    assert waits[2] == min(waits)  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"world_size": 8}, "world_size 4, 8"),
        ({"device_name": "NVIDIA A100"}, "GPU NVIDIA A100, NVIDIA H200"),
    ],
)
def test_mixed_jobs_are_named_and_not_paired(change: dict[str, Any], named: str) -> None:
    traces = plain_run()
    mixed = (*traces[:3], replace(traces[3], **change))
    found = analyze(Capture("synthetic", None, None, mixed))
    assert found.alignment is None
    (issue,) = [issue for issue in found.integrity.issues if issue.code == "mixed_jobs"]
    assert named in issue.detail


def test_records_of_different_hours_are_not_paired() -> None:
    traces = plain_run()
    later = (*traces[:3], moved(traces[3], 3_600_000_000_000))
    found = analyze(Capture("synthetic", None, None, later))
    assert found.alignment is None
    assert "mixed_jobs" in {issue.code for issue in found.integrity.issues}


def test_a_rank_alone_is_said_to_be_alone() -> None:
    found = analyze(Capture("synthetic", None, None, plain_run()[:1]))
    assert found.alignment is None
    assert found.collectives is None
    assert "rank_alone" in {issue.code for issue in found.integrity.issues}


def test_a_rank_without_collectives_is_named() -> None:
    traces = plain_run()
    names = tuple(
        "gemm" if "reduce" in name.lower() or "nccl" in name.lower() else name for name in traces[1].names
    )
    found = analyze(
        Capture("synthetic", None, None, (traces[0], replace(traces[1], names=names), *traces[2:]))
    )
    (issue,) = [issue for issue in found.integrity.issues if issue.code == "clock_unknown"]
    assert "ranks 1 share no collective" in issue.detail
    assert found.alignment is not None
    assert found.alignment.ranks[1].residual_us is None


def test_causes_and_the_headline_add_up() -> None:
    always = ranks.Inject(2, None, 4, "kernel", 30_000)
    run = ranks.simulate(ranks.decode_ranks(steps=11, clocks=clocks(3), injects=(always,), **JITTER))
    found = analyze(Capture("synthetic", None, None, ranks.to_traces(run)))
    assert found.collectives is not None
    for late in found.collectives.late:
        assert sum(late.causes.values()) == pytest.approx(late.wait_us, rel=0.011)


def test_a_rank_without_the_steps_asked_for_is_left_out_of_the_means() -> None:
    """It is no step of its own: a selection of steps that one rank lacks leaves the others' means alone."""
    traces = plain_run()
    middle = int((traces[3].gpu.start.min() + traces[3].gpu.end.max()) // 2)
    tables = {
        name: table.take(table.start < middle)
        for name in ("gpu", "api", "ops", "spans", "frames", "syncs", "overhead")
        for table in [getattr(traces[3], name)]
    }
    cut = Capture("synthetic", None, None, (*traces[:3], replace(traces[3], **tables)))
    whole = analyze(Capture("synthetic", None, None, traces), ranks=[0], steps=(5, 8)).collectives
    found = analyze(cut, ranks=[0], steps=(5, 8)).collectives
    assert whole is not None
    assert found is not None
    assert found.step_us.transfer == pytest.approx(whole.step_us.transfer, rel=0.1)
    assert "window" not in {late.kind for late in found.late}
    assert [late.share for late in found.late] == sorted((late.share for late in found.late), reverse=True)
