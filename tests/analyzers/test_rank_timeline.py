"""The step of all ranks on one clock, against simulated ranks whose truth is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from latencylab.analyzers import analyze
from latencylab.model.capture import Capture
from latencylab.model.findings import Analysis
from latencylab.model.rank_timeline import RankTimeline
from synth import ranks

CLOCKS = tuple(ranks.Clock(offset=700_000 * r, ppb=9_000 * r) for r in range(4))
SHAPE: dict[str, Any] = {"steps": 9, "clocks": CLOCKS, "gpu_jitter": 2_000, "host_jitter": 1_000}
LATE = ranks.Inject(2, None, 4, "kernel", 60_000)


def play(**shape: Any) -> tuple[Analysis, RankTimeline, ranks.RankTruth]:
    run = ranks.simulate(ranks.decode_ranks(**(SHAPE | shape)))
    found = analyze(Capture("synthetic", None, None, ranks.to_traces(run)))
    assert found.rank_timeline is not None
    return found, found.rank_timeline, ranks.find(run)


def test_the_median_step_of_all_ranks() -> None:
    found, line, _ = play(injects=(LATE,))
    main = found.ranks[0].main
    assert [lane.rank for lane in line.lanes] == [0, 1, 2, 3]
    assert line.kind == main.kind
    assert main.steps.wall_us is not None
    assert (line.end - line.start) / 1000 == pytest.approx(main.steps.wall_us.median, rel=0.02)
    starts = [lane.start for lane in line.lanes]
    assert max(starts) - min(starts) < 5_000  # the same step, on one clock
    assert len({lane.step for lane in line.lanes}) == 1


@pytest.mark.parametrize("kind", ["one_shot", "nccl", "push", "fused"])
def test_arrivals_and_waits_are_the_true_ones(kind: str) -> None:
    _, line, truth = play(injects=(LATE,), kind=kind)
    shared = line.collectives
    by_start = sorted(
        (one for one in truth.instances if not one.host),
        key=lambda one: min(m.arrival for m in one.members.values()),
    )
    first = int(
        np.argmin([abs(min(m.arrival for m in one.members.values()) - shared.start[0]) for one in by_start])
    )
    for i, one in enumerate(by_start[first : first + len(shared)]):
        for place, lane in enumerate(line.lanes):
            at = np.flatnonzero(lane.arrivals.collective == i)[0]
            member = one.members[lane.rank]
            assert abs(int(lane.arrivals.start[at] - shared.start[i]) - spread(one, member)) < 1_500
            if shared.blocking[i]:
                assert abs(int(lane.arrivals.wait[at]) - member.wait) < 1_500
            if shared.resolved[i] and shared.spread[i] > 5_000:
                assert (shared.last[i] == place) == (one.last == lane.rank)


def spread(one: ranks.Instance, member: ranks.Member) -> int:
    return member.arrival - min(its.arrival for its in one.members.values())


def test_the_late_one_and_its_cause_are_named() -> None:
    _, line, _ = play(injects=(LATE,))
    shared = line.collectives
    widest = int(shared.spread.argmax())
    assert shared.last[widest] == 2
    assert shared.resolved[widest]
    assert shared.sure[widest]
    assert line.names[shared.cause[widest]] == "GPU work: qkv_gemm"
    assert shared.cause_ns[widest] == pytest.approx(60_000, abs=4_000)
    assert not shared.sure[~shared.resolved].any()
    assert (shared.resolved == (shared.spread > shared.least)).all()


def test_lanes_hold_the_step_once() -> None:
    found, line, _ = play(injects=(LATE,))
    for rank, lane in zip(found.ranks, line.lanes, strict=True):
        step = next(one for one in rank.steps if one.index == lane.step)
        collectives = sum(k.us for k in rank.main.kernels if k.name == "collective")
        work_us = int((lane.work.end - lane.work.start).sum()) / 1000
        assert work_us == pytest.approx(step.parts.busy - collectives, abs=0.1 * collectives + 1)
        idle_us = int((lane.gaps.end - lane.gaps.start).sum()) / 1000
        assert idle_us == pytest.approx(step.parts.idle, abs=0.05)
        assert (lane.work.start[1:] >= lane.work.end[:-1]).all()
        assert [line.names[i] for i in lane.legs.name] == [leg.name for leg in rank.main.legs]
        assert (lane.arrivals.wait <= lane.arrivals.end - lane.arrivals.start).all()


def test_a_step_that_all_share_is_taken() -> None:
    captures = (ranks.Capture(), ranks.Capture(skip=150), ranks.Capture(), ranks.Capture(diverge=300))
    _, line, _ = play(steps=11, captures=captures)
    assert len(line.lanes) == 4
    starts = [lane.start for lane in line.lanes]
    assert max(starts) - min(starts) < 5_000
    assert line.lanes[1].step < line.lanes[0].step  # its record begins later


def test_groups_without_the_reference_are_drawn() -> None:
    _, line, _ = play(subgroup=(1, 2))
    held = [len(lane.arrivals) for lane in line.lanes]
    assert held[1] == held[2] == held[0] + 3 == held[3] + 3


def test_ranks_of_one_clock_stay_where_they_are() -> None:
    _, line, _ = play(clocks=(ranks.Clock(),) * 4)
    assert all(lane.residual < 2_000 for lane in line.lanes)


def test_one_rank_has_none() -> None:
    run = ranks.simulate(ranks.decode_ranks(**SHAPE))
    assert analyze(Capture("synthetic", None, None, ranks.to_traces(run)[:1])).rank_timeline is None
