"""Our captures of two ranks, of which one blocks each step, against a plain walk of the raw events."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import latencylab

SAMPLES = Path(__file__).parents[2] / "traces" / "samples"
NEXTN, DSPARK = "nextn-tp2-stall", "dspark-tp2-stall"
COLLECTIVE = re.compile(r"allreduce_fusion|AllGather")
# The median step without the fault, of the same server in the same minutes, see the samples' README.
DSPARK_CLEAN_US = 9_243.7
Interval = tuple[float, float]


@cache
def opened(name: str) -> latencylab.Run:
    return latencylab.open(SAMPLES / name, cache=False)


@cache
def raw(name: str, rank: int) -> tuple[int, list[tuple[str, str, float, float]]]:
    """The base in ns, and category, name, start and end in µs of the events in order of start."""
    doc = json.loads(gzip.decompress((SAMPLES / name / f"rank{rank}.trace.json.gz").read_bytes()))
    events = [
        (event.get("cat", ""), event["name"], event["ts"], event["ts"] + event["dur"])
        for event in doc["traceEvents"]
        if event.get("ph") == "X"
    ]
    return doc["baseTimeNanoseconds"], sorted(events, key=lambda event: event[2])


def rows(sample: str, rank: int, chosen: Callable[[str, str], bool]) -> list[Interval]:
    return [(start, end) for cat, name, start, end in raw(sample, rank)[1] if chosen(cat, name)]


@pytest.mark.parametrize(
    ("sample", "steps", "verdict", "said"),
    [
        (NEXTN, 13, "pinning", "before draft, which rank 1 alone calls, keeps the host"),
        (DSPARK, 14, "harmful", "before draft, which rank 1 alone calls, once a step"),
    ],
)
def test_the_call_that_one_rank_makes(sample: str, steps: int, verdict: str, said: str) -> None:
    made = []
    for rank in (0, 1):
        within = rows(sample, rank, lambda cat, name: name == "ll.resolve_seq_lens")
        calls = rows(sample, rank, lambda cat, name: name == "cudaStreamSynchronize")
        made.append(sum(any(a <= start < b for a, b in within) for start, _ in calls))
        assert len(rows(sample, rank, lambda cat, name: name.startswith("ll.step["))) == steps
    assert made == [0, steps]
    found = opened(sample).analysis
    pinning = [[s for s in rank.main.syncs if s.verdict == verdict] for rank in found.ranks]
    assert [len(its) for its in pinning] == [0, 1]
    assert pinning[1][0].per_step == 1
    assert "ll.resolve_seq_lens (aten::copy_), 16 B DtoH" in str(pinning[1][0].site)
    assert found.verdict.text.startswith("Rank 1: ")
    assert f"DtoH Pinned, {said}" in found.verdict.text


@pytest.mark.parametrize(
    ("sample", "pairs", "late_us"), [(NEXTN, 1378, (0, 885.8)), (DSPARK, 1372, (3.7, 1_173.1))]
)
def test_whom_the_other_rank_waits_for(sample: str, pairs: int, late_us: tuple[float, float]) -> None:
    """A collective has the same place in the order of both ranks; their clock is one."""
    first, second = (
        rows(sample, r, lambda cat, name: cat == "kernel" and bool(COLLECTIVE.search(name))) for r in (0, 1)
    )
    assert len(first) == len(second) == pairs
    base, steps = raw(sample, 0)[0], opened(sample).steps
    steady = steps[(steps["rank"] == 0) & steps.left_out.isna()]
    found = [0.0, 0.0]
    for (ours, _), (theirs, _) in zip(first, second, strict=True):
        at = base + round(ours * 1000)
        inside = ((steady.start_ns <= at) & (at < steady.end_ns)).any()
        if inside and abs(theirs - ours) > 5:
            found[theirs > ours] += abs(theirs - ours) / len(steady)
    assert found == pytest.approx(late_us, abs=0.1)
    collectives = opened(sample).analysis.collectives
    assert collectives is not None
    late = collectives.late[0]
    assert (late.rank, late.wait_us) == (1, pytest.approx(late_us[1], rel=0.01))
    assert late.share > 0.99


def test_what_the_call_costs_all_ranks() -> None:
    """As it was measured: with the fault on one rank, less without."""
    its = opened(DSPARK).analysis.calibration
    assert its is not None
    assert (its.status, its.rank) == ("calibrated", 1)
    assert its.unprofiled_step_us is not None
    cost = next(sync.cost_us for sync in its.syncs if "16 B DtoH Pinned" in sync.site)
    assert cost.low < its.unprofiled_step_us.value - DSPARK_CLEAN_US < cost.high
    assert cost.high - cost.low < 100
    late = opened(DSPARK).analysis.collectives
    assert late is not None
    assert next(iter(late.late[0].causes)).startswith("host idle: cudaStreamSynchronize in ")


def test_what_the_late_host_does_longer() -> None:
    collectives = opened(NEXTN).analysis.collectives
    assert collectives is not None
    its = collectives.uneven[0]
    assert (its.rank, its.on) == (1, "host")
    parts = {part.what: part.us for part in its.parts}
    assert parts["span ll.resolve_seq_lens"] == pytest.approx(113.5, abs=1)
    assert list(parts)[:2] == ["framework", "api"]
    assert next(iter(collectives.late[0].causes)) == "host idle: framework"


def test_waiting_in_the_broadcast_of_requests_is_no_work() -> None:
    """Gloo's thread shows how long; the scheduler's shows but the span around it."""
    for rank, findings in zip((0, 1), opened(NEXTN).analysis.ranks, strict=True):
        receive = rows(NEXTN, rank, lambda cat, name: name == "scheduler.recv_requests")
        gloo = rows(NEXTN, rank, lambda cat, name: name == "gloo:broadcast")
        assert len(receive) == len(gloo) == 13
        for (_, end), (_, its_end) in zip(gloo, receive, strict=True):
            assert end < its_end
        longest = sum(b - a for a, b in receive) / 13 - sum(b - a for a, b in gloo) / 13
        blamed = findings.main.idle_host_blame_us
        assert blamed["span scheduler.recv_requests"] < 1.2 * longest
        assert blamed["waiting"] > 150


def test_clocks_of_one_host_agree() -> None:
    alignment = opened(NEXTN).analysis.alignment
    assert alignment is not None
    clock = alignment.ranks[1]
    assert not clock.shifted
    assert abs(clock.offset_us) < clock.residual_us < 0.5
    assert clock.bound_us is not None
    assert clock.bound_us[0] < 0 < clock.bound_us[1]


def test_the_step_without_the_profiler() -> None:
    its = opened(NEXTN).analysis.calibration
    assert its is not None
    assert (its.status, its.rank) == ("calibrated", 1)
    assert its.unprofiled_step_us is not None
    assert its.unprofiled_step_us.value == pytest.approx(8_293, abs=1)
    assert its.error_pct is not None
    assert abs(its.error_pct) < 2
