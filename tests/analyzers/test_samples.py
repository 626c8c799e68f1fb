"""Our own captures: what they are known to show, and steps against a plain walk of the raw events."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import synth
from latencylab import traces
from latencylab.analyzers import analyze
from latencylab.model.capture import Capture
from latencylab.model.findings import Analysis, KindFindings
from latencylab.model.integrity import InputError
from synth.transform import rewritten

SAMPLES = Path(__file__).parents[2] / "traces" / "samples"
NAMES = ("nextn", "nextn-host-stall", "dspark", "plain")
KINDS = {"nextn": "NEXTN", "nextn-host-stall": "NEXTN", "dspark": "DSpark", "plain": "decode"}
BLOCKING = (
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "cudaDeviceSynchronize",
    "cudaMemcpy",
    "cudaFree",
)


@cache
def analysis(name: str) -> Analysis:
    return analyze(traces.open_capture([SAMPLES / name], cache=False))


def main(name: str) -> KindFindings:
    return analysis(name).ranks[0].main


def ns(us: float) -> int:
    """Exact below 2**43 µs."""
    return int(us) * 1000 + round((us - int(us)) * 1000)


@cache
def raw_events(name: str) -> list[dict[str, Any]]:
    doc = json.loads(gzip.decompress((SAMPLES / name / "rank0.trace.json.gz").read_bytes()))
    return [event for event in doc["traceEvents"] if event.get("ph") == "X"]


@cache
def raw_steps(name: str) -> list[tuple[int, str]]:
    """The start in ns and the name of each of our step spans, in order."""
    return sorted(
        (ns(e["ts"]), e["name"])
        for e in raw_events(name)
        if e["cat"] == "user_annotation" and e["name"].startswith("ll.step[")
    )


def walk(name: str, step: int) -> dict[str, int]:
    """The parts of one step in ns: event by event, without a line of the analyses."""
    events = raw_events(name)
    spans = [start for start, _ in raw_steps(name)]
    call = {
        e["args"]["correlation"]: (ns(e["ts"]), ns(e["ts"]) + ns(e["dur"]))
        for e in events
        if e["cat"] in ("cuda_runtime", "cuda_driver")
    }
    ops = sorted(
        (ns(e["ts"]), ns(e["ts"]) + ns(e["dur"]), e["args"]["correlation"])
        for e in events
        if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")
    )

    def begins(which: int) -> int:
        return min(op[0] for op in ops if spans[which] <= call[op[2]][0] < spans[which + 1])

    low, high = begins(step), begins(step + 1)
    parts = dict.fromkeys(("host", "in_launch", "in_graph", "dispatch", "launch_latency"), 0)
    seen: set[int] = set()
    reach = ops[0][1]
    for start, end, correlation in ops:
        gap_start, gap_end = max(reach, low), min(start, high)
        if gap_start < gap_end:
            called, returned = call[correlation]
            if correlation in seen:
                parts["in_graph"] += gap_end - gap_start
            elif returned <= reach:
                parts["dispatch"] += gap_end - gap_start
            else:
                late = min(returned, gap_end)
                parts["host"] += max(0, late - gap_start)
                parts["in_launch"] += max(0, late - max(gap_start, called))
                parts["launch_latency"] += gap_end - max(gap_start, late)
        seen.add(correlation)
        reach = max(reach, end)
    return {"wall": high - low, **parts}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("index", [5, 11, 20])
def test_a_step_is_what_its_raw_events_say(name: str, index: int) -> None:
    raw = walk(name, index)
    parts = analysis(name).ranks[0].steps[index].parts
    assert parts.wall * 1000 == pytest.approx(raw["wall"], abs=1e-3)
    assert parts.idle_host * 1000 == pytest.approx(raw["host"], abs=1e-3)
    assert parts.idle_host_in_launch * 1000 == pytest.approx(raw["in_launch"], abs=1e-3)
    gpu = raw["in_graph"] + raw["dispatch"] + raw["launch_latency"]
    assert parts.idle_gpu * 1000 == pytest.approx(gpu, abs=1e-3)
    assert parts.busy * 1000 == pytest.approx(raw["wall"] - raw["host"] - gpu, abs=1e-3)


def test_step_11_of_nextn_by_hand() -> None:
    """Read off the trace: the first op that `ll.step[2563 NEXTN]`, the twelfth, launches is an index kernel
    on stream 29, at 5118529076897.042 µs; that of the next is another, at 5118529088977.471 µs."""
    assert raw_steps("nextn")[11] == (5_118_529_076_703_629, "ll.step[2563 NEXTN]")
    assert walk("nextn", 11) == {
        "wall": 12_080_429,
        "host": 6_071_601,
        "in_launch": 1_782_104,
        "in_graph": 334_478,
        "dispatch": 46_078,
        "launch_latency": 35_988,
    }


@pytest.mark.parametrize("name", NAMES)
def test_steps_and_kinds_are_those_of_our_spans(name: str) -> None:
    found = main(name)
    assert found.steps.source == "ll.step"
    assert found.kind == KINDS[name]
    spans = raw_steps(name)
    assert len(spans) == 31  # the profiler stops in the last, which launches nothing any more
    numbers = [int(text.removeprefix("ll.step[").split()[0]) for _, text in spans]
    assert numbers == list(range(numbers[0], numbers[0] + 31))
    assert {text.rstrip("]").split()[1] for _, text in spans} == {KINDS[name]}
    assert [step.index for step in analysis(name).ranks[0].steps] == list(range(30))


@pytest.mark.parametrize("name", NAMES)
def test_every_graph_replay_lies_in_the_span_of_its_leg(name: str) -> None:
    """The graph launches of a step and what each holds, by our spans around the call in the raw events."""
    events = raw_events(name)
    low, high = (raw_steps(name)[step][0] for step in (11, 12))
    sizes = Counter(
        e["args"]["correlation"] for e in events if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")
    )
    ours = [
        (ns(e["ts"]), ns(e["ts"]) + ns(e["dur"]), e["name"])
        for e in events
        if e["cat"] == "user_annotation" and e["name"].startswith("ll.")
    ]
    by_leg: Counter[str] = Counter()
    for event in events:
        start = ns(event["ts"])
        if event["name"] == "cudaGraphLaunch" and low <= start < high:
            around = {text for begin, end, text in ours if begin <= start < end}
            (leg,) = around & {"ll.draft", "ll.verify", "ll.extend", "ll.decode"}
            if "ll.replay[metadata]" not in around:  # that belongs to the seam
                by_leg[leg.removeprefix("ll.")] += sizes[event["args"]["correlation"]]
    assert dict(by_leg) == {leg.name: leg.ops for leg in main(name).legs}


@pytest.mark.parametrize("name", NAMES)
def test_every_blocking_call_of_the_steady_steps_is_known_by_our_marks(name: str) -> None:
    syncs = main(name).syncs
    assert {sync.evidence for sync in syncs} == {"recorded"}
    steady = [step for step in analysis(name).ranks[0].steps if step.left_out is None]
    assert len(steady) == 27
    spans = raw_steps(name)
    within = [(spans[step.index][0], spans[step.index + 1][0]) for step in steady]
    raw = Counter(
        event["name"]
        for event in raw_events(name)
        if event["cat"] == "cuda_runtime" and event["name"] in BLOCKING
        for low, high in within
        if low <= ns(event["ts"]) < high
    )
    counted: Counter[str] = Counter()
    for sync in syncs:
        counted[sync.api] += sync.calls
    assert counted == raw


@pytest.mark.parametrize("name", NAMES)
def test_thirty_steps_whose_parts_add_up(name: str) -> None:
    found = main(name)
    assert (found.steps.found, found.steps.steady) == (30, 27)
    assert found.steps.left_out == {"first": 1, "last": 1, "profiler": 1}
    parts = found.step_us
    assert parts is not None
    assert parts.wall == pytest.approx(parts.busy + parts.idle, abs=1e-6)
    assert parts.idle == pytest.approx(parts.idle_host + parts.idle_gpu + parts.idle_unknown, abs=1e-6)
    doing = found.idle_host_doing_us
    fixed = doing.sync + doing.api + doing.framework + doing.gc + doing.waiting + doing.profiler
    assert fixed + sum(doing.span.values()) == pytest.approx(parts.idle_host, abs=1e-6)
    assert sum(found.idle_host_blame_us.values()) == pytest.approx(parts.idle_host, abs=1e-6)
    assert sum(kernel.us for kernel in found.kernels) == pytest.approx(parts.busy, abs=1e-6)
    assert sum(kernel.us for kernel in found.top_kernels) == pytest.approx(parts.busy, abs=1e-6)
    for step in analysis(name).ranks[0].steps:
        assert step.parts.wall == pytest.approx(step.parts.busy + step.parts.idle, abs=1e-6)


def test_busy_is_alike_with_and_without_the_stall() -> None:
    quiet, stalled = main("nextn").step_us, main("nextn-host-stall").step_us
    assert quiet is not None
    assert stalled is not None
    assert stalled.busy == pytest.approx(quiet.busy, rel=0.01)


def test_the_stall_is_found_with_its_span_and_copy() -> None:
    extra = {sync.site for sync in main("nextn-host-stall").syncs} - {
        sync.site for sync in main("nextn").syncs
    }
    found = [sync for sync in main("nextn-host-stall").syncs if sync.site in extra]
    assert [sync.api for sync in found] == ["cudaStreamSynchronize"]
    stall = found[0]
    assert stall.per_step == 1
    assert stall.span == "scheduler.run_batch > ll.resolve_seq_lens"
    assert stall.op == "aten::copy_"
    assert (stall.direction, stall.bytes) == ("DtoH Pinned", 16)
    assert stall.verdict in ("pinning", "harmful")
    assert stall.evidence == "recorded"
    assert stall.site == (
        "cudaStreamSynchronize in scheduler.run_batch > ll.resolve_seq_lens (aten::copy_),"
        " 16 B DtoH Pinned, before draft"
    )
    verdict = analysis("nextn-host-stall").verdict
    assert stall.site in verdict.text
    (fix,) = [fix for fix in analysis("nextn-host-stall").fixes if fix.site]
    assert (fix.site, fix.what, fix.calibrated) == (stall.site, f"remove the wait: {stall.site}", True)
    assert fix == analysis("nextn-host-stall").fixes[0]


@pytest.mark.parametrize("name", NAMES)
def test_the_wait_for_the_last_step_is_hidden(name: str) -> None:
    (wait,) = [sync for sync in main(name).syncs if sync.api == "cudaEventSynchronize"]
    assert wait.verdict == "hidden"
    assert wait.span == "ll.process_result > scheduler.process_batch_result"
    assert wait.evidence == "recorded"
    assert wait.per_step == 1


@pytest.mark.parametrize("name", ["nextn", "dspark", "plain"])
def test_nothing_pins_where_nothing_was_injected(name: str) -> None:
    assert not [sync for sync in main(name).syncs if sync.verdict in ("pinning", "harmful")]


@pytest.mark.parametrize(
    ("name", "legs"),
    [
        ("nextn", [("draft", 170), ("verify", 731), ("extend", 39)]),
        ("nextn-host-stall", [("draft", 170), ("verify", 731), ("extend", 39)]),
        ("dspark", [("draft", 107), ("verify", 816)]),
        ("plain", [("decode", 724)]),
    ],
)
def test_legs(name: str, legs: list[tuple[str, int]]) -> None:
    assert [(leg.name, leg.ops) for leg in main(name).legs] == legs


@pytest.mark.parametrize(
    ("name", "median_ms", "mean_ms", "busy_ms", "host_ms", "gpu_ms"),
    [
        ("nextn", 11.76, 11.79, 5.597, 5.77, 0.383),
        ("nextn-host-stall", 13.78, 13.81, 5.599, 7.78, 0.386),
        ("dspark", 11.83, 11.93, 8.481, 2.93, 0.491),
        ("plain", 4.27, 4.37, 3.099, 1.04, 0.223),
    ],
)
def test_figures_known_of_these_captures(
    name: str, median_ms: float, mean_ms: float, busy_ms: float, host_ms: float, gpu_ms: float
) -> None:
    found = main(name)
    assert found.steps.wall_us is not None
    assert found.step_us is not None
    assert found.steps.wall_us.median / 1000 == pytest.approx(median_ms, rel=0.03)
    assert found.step_us.wall / 1000 == pytest.approx(mean_ms, rel=0.03)
    assert found.step_us.busy / 1000 == pytest.approx(busy_ms, rel=0.005)
    assert found.step_us.idle_host / 1000 == pytest.approx(host_ms, rel=0.04)
    assert (found.idle_gpu_us.in_graph + found.idle_gpu_us.dispatch) / 1000 == pytest.approx(gpu_ms, rel=0.03)


def test_a_slow_step_is_explained_to_the_nanosecond() -> None:
    for step in analysis("nextn").ranks[0].steps:
        median = next(other for other in analysis("nextn").ranks[0].steps if not other.slower_by)
        over = sum(part.us for part in step.slower_by)
        assert over == pytest.approx(step.parts.wall - median.parts.wall, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_one_mode_is_reported_as_none(name: str) -> None:
    assert main(name).steps.modes_us == ()


def test_two_modes_are_reported_where_there_are_two() -> None:
    """A simulated loop whose host loses 3 ms in every other step."""
    drafts = itertools.count()

    def rule(action: synth.Action) -> list[synth.Action]:
        if isinstance(action, synth.Span) and action.name == "draft" and next(drafts) % 2:
            return [replace(action, body=(synth.Python(3_000_000), *action.body))]
        return [action]

    loop = rewritten(synth.decode_loop(["nextn"] * 24, synth.Shape(host=30_000)), rule)
    trace = synth.to_trace(synth.find(loop).run)
    found = analyze(Capture("run", None, None, (trace,))).ranks[0].main.steps
    assert found.wall_us is not None
    low, high = found.modes_us
    assert high - low == pytest.approx(3_000, rel=0.05)
    assert low <= found.wall_us.median <= high


@pytest.mark.parametrize("narrow", [{"steps": (10, 20)}, {"kind": "NEXTN"}, {"ranks": [0]}])
def test_narrowing(narrow: dict[str, Any]) -> None:
    capture = traces.open_capture([SAMPLES / "nextn"], cache=False)
    found = analyze(capture, **narrow).ranks[0].main.steps.found
    assert found == (10 if "steps" in narrow else 30)


@pytest.mark.parametrize("narrow", [{"steps": (40, 50)}, {"kind": "DSpark"}, {"ranks": [3]}])
def test_narrowing_to_nothing_is_refused(narrow: dict[str, Any]) -> None:
    capture = traces.open_capture([SAMPLES / "nextn"], cache=False)
    refused: Callable[..., Any] = analyze
    with pytest.raises(InputError):
        refused(capture, **narrow)
