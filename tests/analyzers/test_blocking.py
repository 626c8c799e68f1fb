"""Which calls block, what they wait for, and the verdict on their site."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import synth
from latencylab.analyzers import analyze
from latencylab.analyzers.kernels import load_classes
from latencylab.analyzers.view import RankView
from latencylab.model.capture import Capture
from latencylab.model.findings import KindFindings, Sync

LAUNCH = synth.Launch(dur=50_000, call_dur=3_000, latency=1_000)
FENCE = synth.Api("cudaGetDevice", 1_000)
RECORD = synth.EventRecord("e", 7)
POLL = synth.EventQueryLoop("e", dur=1_000, pause=500)


def blocking(*actions: synth.Action, **scenario: Any) -> list[str]:
    """The API names of the blocking calls that are found."""
    trace = synth.to_trace(synth.Scenario((synth.Program((*actions, LAUNCH)),), **scenario))
    return list(RankView.of(trace, load_classes()).waits.calls.api)


@pytest.mark.parametrize(
    ("actions", "found"),
    [
        ((LAUNCH, synth.StreamSync()), ["cudaStreamSynchronize"]),
        ((LAUNCH, RECORD, synth.EventSync("e")), ["cudaEventSynchronize"]),
        ((LAUNCH, synth.DeviceSync()), ["cudaDeviceSynchronize"]),
        ((LAUNCH, synth.DeviceSync(api="cudaFree")), ["cudaFree"]),
        ((LAUNCH, RECORD, FENCE, POLL, FENCE), ["cudaEventQuery polling"]),
        ((LAUNCH, RECORD, synth.FrameworkOp("aten::empty", (FENCE, POLL, FENCE))), []),
        ((LAUNCH, synth.Copy("DtoH", 4, "Pinned")), []),
        ((LAUNCH, synth.Copy("DtoH", 4, "Pageable")), ["cudaMemcpyAsync"]),
        ((LAUNCH, synth.Copy("DtoH", 4, "Pinned", blocking=True)), ["cudaMemcpy"]),
        ((LAUNCH, synth.Copy("HtoD", 4, "Pageable")), []),
    ],
)
def test_what_blocks(actions: tuple[synth.Action, ...], found: list[str]) -> None:
    assert blocking(*actions) == found


def test_the_profilers_own_last_sync_is_left_out() -> None:
    trace = synth.to_trace(synth.Scenario((synth.Program((LAUNCH, synth.DeviceSync())),)))
    assert len(RankView.of(trace, load_classes()).waits.calls) == 0


def test_a_watchdog_polls_for_itself() -> None:
    programs = (synth.Program((LAUNCH, RECORD, FENCE)), synth.Program((POLL,), tid=9, start=4_000))
    trace = synth.to_trace(synth.Scenario(programs))
    assert len(RankView.of(trace, load_classes()).waits.calls) == 0


def main(kinds: int = 10, recorded: bool = False, **shape: Any) -> KindFindings:
    loop = synth.decode_loop(["nextn"] * kinds, synth.Shape(**shape), sync_records=recorded)
    return analyze(Capture("loop", None, None, (synth.to_trace(loop),))).ranks[0].main


def by_api(found: KindFindings) -> dict[str, Sync]:
    return {sync.api: sync for sync in found.syncs}


@pytest.mark.parametrize("recorded", [True, False])
def test_a_read_of_the_last_step_is_hidden_and_a_stall_pins(recorded: bool) -> None:
    assert {sync.verdict for sync in main(recorded=recorded).syncs} == {"hidden"}
    stalled = by_api(main(recorded=recorded, stall=True))
    assert stalled["cudaStreamSynchronize"].verdict in ("pinning", "harmful")
    assert stalled["cudaStreamSynchronize"].behind_us == 0
    assert stalled["cudaStreamSynchronize"].evidence == ("recorded" if recorded else "blocked")
    assert stalled["cudaEventSynchronize"].verdict == "hidden"


def test_a_stall_that_drains_the_queue_is_harmful() -> None:
    """The host needs longer to launch the next leg than the GPU has left to do when the stall returns."""
    stalled = by_api(main(recorded=True, stall=True, host=14_000))
    sync = stalled["cudaStreamSynchronize"]
    assert sync.verdict == "harmful"
    assert sync.idle_us > 0


def test_without_evidence_a_site_is_unclear() -> None:
    """A slow host finds everything done: which op it would have waited for nobody can tell."""
    slow = by_api(main(stall=True, host=200_000))
    assert {sync.verdict for sync in slow.values()} == {"unclear"}
    assert {sync.evidence for sync in slow.values()} == {"eliminated"}


def test_a_site_is_named_alike_from_run_to_run() -> None:
    runs = [main(stall=True), main(stall=True, host=40_000), main(kinds=6, stall=True, call_dur=5_000)]
    sites = [{sync.site for sync in run.syncs} for run in runs]
    assert sites[0] == sites[1] == sites[2]
    assert len(sites[0]) == 2


def test_sites_lose_what_changes_from_step_to_step() -> None:
    body = (LAUNCH, synth.StreamSync(), synth.Python(1_000))
    spans = tuple(synth.Span(f"ProfilerStep#{n}", (synth.Span("read [7]", body),)) for n in range(5))
    trace = synth.to_trace(replace(synth.Scenario((synth.Program(spans),)), sync_records=True))
    sites = RankView.of(trace, load_classes()).waits.sites
    assert [site.span for site in sites] == ["ProfilerStep#N > read"]


def test_two_waits_in_one_span_are_two_sites() -> None:
    """What the one waits for says nothing of what the other does, though they share span and API."""
    reads = (synth.Copy("DtoH", 16, "Pinned", stream=17), synth.StreamSync(stream=17))
    legs = [
        synth.Span(
            name, (synth.Python(3_000), synth.GraphLaunch((synth.Node(60_000, 0),) * 3, call_dur=9_000))
        )
        for name in ("draft", "step[VERIFY bs=1]")
    ]
    body = (synth.StreamSync(), legs[0], *reads, legs[1])
    steps = tuple(synth.Span("scheduler.run_batch", body) for _ in range(8))
    trace = synth.to_trace(synth.Scenario((synth.Program(steps),)))
    syncs = {sync.seam: sync for sync in analyze(Capture("two", None, None, (trace,))).ranks[0].main.syncs}
    assert set(syncs) == {"draft", "verify"}
    assert syncs["draft"].behind_us == 0
    assert syncs["draft"].verdict in ("pinning", "harmful")


PINNED = synth.Copy("DtoH", 16, "Pinned", stream=17)
ITEM = synth.Copy("DtoH", 4, "Pageable", stream=17)
SYNC = synth.StreamSync(stream=17)


def read_by(*steps: tuple[synth.Action, ...], recorded: bool) -> list[tuple[str, str]]:
    """Per call of these steps its API and the copy that it reads, in order of time."""
    launch = synth.GraphLaunch((synth.Node(60_000),), call_dur=9_000)
    spans = tuple(synth.Span("scheduler.run_batch", (launch, *body, synth.Python(9_000))) for body in steps)
    scenario = synth.Scenario((synth.Program(spans),), sync_records=recorded)
    waits = RankView.of(synth.to_trace(scenario), load_classes()).waits
    sites = [waits.sites[row] for row in waits.site.tolist()]
    return [(site.api, f"{site.bytes} B {site.direction}") for site in sites]


@pytest.mark.parametrize("recorded", [True, False])
def test_the_call_after_a_copy_to_pageable_memory_reads_that_copy(recorded: bool) -> None:
    item = synth.FrameworkOp("aten::item", (ITEM, SYNC))
    copied = ("cudaMemcpyAsync", "4 B DtoH Pageable")
    synced = ("cudaStreamSynchronize", "4 B DtoH Pageable")
    assert read_by(*[(item,)] * 8, recorded=recorded) == [copied, synced] * 8
    # The next one reads the copy before: one copy is read once.
    pinned = ("cudaStreamSynchronize", "16 B DtoH Pinned")
    step = (PINNED, item, synth.Python(500), SYNC)
    assert read_by(*[step] * 8, recorded=recorded) == [copied, synced, pinned] * 8


@pytest.mark.parametrize("recorded", [True, False])
def test_one_copy_to_pageable_memory_renames_no_other_call(recorded: bool) -> None:
    step = (PINNED, synth.Python(500), SYNC)
    stray = (PINNED, synth.FrameworkOp("aten::item", (ITEM,)), synth.Python(500), SYNC)
    found = read_by(*[step] * 4, stray, *[step] * 4, recorded=recorded)
    others = found[:4] + found[-4:]
    assert others == [("cudaStreamSynchronize", "16 B DtoH Pinned")] * 8


def test_a_launch_between_a_copy_and_a_call_parts_them() -> None:
    step = (PINNED, ITEM, synth.Launch(1_000, stream=17), synth.Python(500), SYNC)
    found = read_by(*[step] * 8, recorded=True)
    assert ("cudaStreamSynchronize", "4 B DtoH Pageable") not in found


def test_a_call_did_not_wait_for_what_ended_after_it() -> None:
    """Elimination allows for clocks that disagree; on another thread an op may end that little later."""
    node = (synth.Node(0, name="gemm"),)
    first = synth.GraphLaunch(node, call_dur=1, latency=7, lost=True)
    syncs = (synth.StreamSync(7, 1, 0),) * 3
    programs = (
        synth.Program((synth.Launch(0, stream=13, name="gemm", call_dur=3, latency=0),), start=8),
        synth.Program((first, *syncs, synth.GraphLaunch(node, call_dur=1, latency=0)), tid=101),
    )
    waits = RankView.of(synth.to_trace(synth.Scenario(programs)), load_classes()).waits
    assert waits.evidence[2] == "eliminated"
    assert waits.blocked.tolist() == [0, 0, 0]
