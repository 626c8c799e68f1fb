"""Our capture of two ranks, of which one blocks each step, against a plain walk of the raw events."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import latencylab

SAMPLE = Path(__file__).parents[2] / "traces" / "samples" / "nextn-tp2-stall"
COLLECTIVE = re.compile(r"allreduce_fusion|AllGather")
Interval = tuple[float, float]


@cache
def opened() -> latencylab.Run:
    return latencylab.open(SAMPLE, cache=False)


@cache
def raw(rank: int) -> tuple[int, list[tuple[str, str, float, float]]]:
    """The base in ns, and category, name, start and end in µs of the events in order of start."""
    doc = json.loads(gzip.decompress((SAMPLE / f"rank{rank}.trace.json.gz").read_bytes()))
    events = [
        (event.get("cat", ""), event["name"], event["ts"], event["ts"] + event["dur"])
        for event in doc["traceEvents"]
        if event.get("ph") == "X"
    ]
    return doc["baseTimeNanoseconds"], sorted(events, key=lambda event: event[2])


def rows(rank: int, chosen: Callable[[str, str], bool]) -> list[Interval]:
    return [(start, end) for cat, name, start, end in raw(rank)[1] if chosen(cat, name)]


def test_the_call_that_one_rank_makes() -> None:
    made = []
    for rank in (0, 1):
        within = rows(rank, lambda cat, name: name == "ll.resolve_seq_lens")
        calls = rows(rank, lambda cat, name: name == "cudaStreamSynchronize")
        made.append(sum(any(a <= start < b for a, b in within) for start, _ in calls))
        steps = rows(rank, lambda cat, name: name.startswith("ll.step["))
        assert len(steps) == 13
    assert made == [0, 13]
    found = opened().analysis
    pinning = [[s for s in rank.main.syncs if s.verdict == "pinning"] for rank in found.ranks]
    assert [len(its) for its in pinning] == [0, 1]
    assert pinning[1][0].per_step == 1
    assert "ll.resolve_seq_lens (aten::copy_), 16 B DtoH" in str(pinning[1][0].site)
    assert found.verdict.text.startswith("Rank 1: ")
    assert "DtoH Pinned, before draft, which rank 1 alone calls, keeps the host" in found.verdict.text


def test_whom_the_other_rank_waits_for() -> None:
    """A collective has the same place in the order of both ranks; their clock is one."""
    first, second = (
        rows(r, lambda cat, name: cat == "kernel" and bool(COLLECTIVE.search(name))) for r in (0, 1)
    )
    assert len(first) == len(second) == 1378
    base, steps = raw(0)[0], opened().steps
    steady = steps[(steps["rank"] == 0) & steps.left_out.isna()]
    late_us = {0: 0.0, 1: 0.0}
    for (ours, _), (theirs, _) in zip(first, second, strict=True):
        at = base + round(ours * 1000)
        inside = ((steady.start_ns <= at) & (at < steady.end_ns)).any()
        if inside and abs(theirs - ours) > 5:
            late_us[int(theirs > ours)] += abs(theirs - ours) / len(steady)
    assert late_us[0] == 0
    assert late_us[1] == pytest.approx(885.8, abs=0.1)
    collectives = opened().analysis.collectives
    assert collectives is not None
    late = collectives.late[0]
    assert (late.rank, late.wait_us) == (1, pytest.approx(late_us[1], rel=0.01))
    assert late.share > 0.99


def test_what_the_late_host_does_longer() -> None:
    collectives = opened().analysis.collectives
    assert collectives is not None
    its = collectives.uneven[0]
    assert (its.rank, its.on) == (1, "host")
    parts = {part.what: part.us for part in its.parts}
    assert parts["span ll.resolve_seq_lens"] == pytest.approx(113.5, abs=1)
    assert list(parts)[:2] == ["framework", "api"]
    assert next(iter(collectives.late[0].causes)) == "host idle: framework"


def test_waiting_in_the_broadcast_of_requests_is_no_work() -> None:
    """Gloo's thread shows how long; the scheduler's shows but the span around it."""
    for rank, findings in zip((0, 1), opened().analysis.ranks, strict=True):
        receive = rows(rank, lambda cat, name: name == "scheduler.recv_requests")
        gloo = rows(rank, lambda cat, name: name == "gloo:broadcast")
        assert len(receive) == len(gloo) == 13
        for (_, end), (_, its_end) in zip(gloo, receive, strict=True):
            assert end < its_end
        longest = sum(b - a for a, b in receive) / 13 - sum(b - a for a, b in gloo) / 13
        blamed = findings.main.idle_host_blame_us
        assert blamed["span scheduler.recv_requests"] < 1.2 * longest
        assert blamed["waiting"] > 150


def test_clocks_of_one_host_agree() -> None:
    alignment = opened().analysis.alignment
    assert alignment is not None
    clock = alignment.ranks[1]
    assert not clock.shifted
    assert abs(clock.offset_us) < clock.residual_us < 0.5
    assert clock.bound_us is not None
    assert clock.bound_us[0] < 0 < clock.bound_us[1]


def test_the_step_without_the_profiler() -> None:
    its = opened().analysis.calibration
    assert its is not None
    assert (its.status, its.rank) == ("calibrated", 1)
    assert its.unprofiled_step_us is not None
    assert its.unprofiled_step_us.value == pytest.approx(8_293, abs=1)
    assert its.error_pct is not None
    assert abs(its.error_pct) < 2
