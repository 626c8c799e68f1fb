"""What a trace lacks is said by name, and never guessed over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import synth
from latencylab.analyzers import analyze
from latencylab.model.capture import Capture
from latencylab.model.findings import Analysis
from latencylab.model.trace import Trace

LOOP = synth.decode_loop(["nextn"] * 6, synth.Shape(host=30_000))


def found(trace: Trace) -> Analysis:
    return analyze(Capture("synthetic", None, None, (trace,)))


def codes(analysis: Analysis) -> dict[str, int]:
    return {issue.code: issue.count for issue in analysis.integrity.issues}


def without(trace: Trace, *tables: str) -> Trace:
    empty: dict[str, Any] = {name: getattr(trace, name).take(slice(0, 0)) for name in tables}
    return replace(trace, **empty)


def test_a_good_trace_has_no_issue() -> None:
    assert codes(found(synth.to_trace(LOOP))) == {}


@pytest.mark.parametrize("table", ["api", "ops", "spans", "frames", "syncs", "overhead"])
def test_a_trace_may_lack_any_table(table: str) -> None:
    whole, lacking = found(synth.to_trace(LOOP)), found(without(synth.to_trace(LOOP), table))
    before, after = whole.ranks[0].window_us, lacking.ranks[0].window_us
    assert (before.wall, before.busy, before.idle) == (after.wall, after.busy, after.idle)


def test_kernels_alone_have_idle_of_unknown_cause() -> None:
    alone = found(without(synth.to_trace(LOOP), "api", "ops", "spans", "frames", "syncs", "overhead"))
    window = alone.ranks[0].window_us
    launched = window.idle_host + window.idle_gpu - alone.ranks[0].main.idle_gpu_us.in_graph
    assert launched == pytest.approx(0, abs=window.idle)
    assert window.idle_host == 0
    assert codes(alone)["no_launch"] == alone.ranks[0].gpu_ops
    abstained = alone.ranks[0].main.abstained
    assert {"idle_host_doing_us", "idle_host_blame_us", "legs", "run_ahead_us", "syncs"} <= set(abstained)
    assert "cannot say whose fault" in alone.verdict.text
    assert alone.verdict.confidence == "low"


def test_stacks_and_shapes_are_said_to_slow_the_host() -> None:
    slowed = found(replace(synth.to_trace(LOOP), stacks=True, shapes=True))
    assert codes(slowed) == {"stacks_on": 1, "shapes_on": 1}
    assert slowed.integrity.status == "degraded"
    assert slowed.verdict.confidence == "low"


def test_lost_launches_are_counted() -> None:
    trace = synth.to_trace(LOOP)
    launches = np.flatnonzero(np.isin(trace.api.correlation, trace.gpu.correlation))
    kept = np.delete(np.arange(len(trace.api)), launches[3])
    lost = replace(trace, api=trace.api.take(kept))
    ops = int((trace.gpu.correlation == trace.api.correlation[launches[3]]).sum())
    assert codes(found(lost)) == {"no_launch": ops}


def test_lost_kernels_are_counted() -> None:
    trace = synth.to_trace(LOOP)
    eager = [c for c in np.unique(trace.gpu.correlation) if (trace.gpu.correlation == c).sum() == 1]
    kept = np.flatnonzero(trace.gpu.correlation != eager[len(eager) // 2])
    assert codes(found(replace(trace, gpu=trace.gpu.take(kept)))) == {"launch_without_op": 1}


def test_an_op_before_its_launch_shows_that_the_clocks_disagree() -> None:
    trace = synth.to_trace(LOOP)
    start = trace.gpu.start - 60_000
    early = replace(trace, gpu=replace(trace.gpu, start=start, end=trace.gpu.end - 60_000))
    assert "clock_order" in codes(found(early))
    window = found(early).ranks[0].window_us
    assert min(window.idle_host, window.idle_gpu, window.idle_unknown) >= 0


def test_without_steps_the_window_is_the_unit() -> None:
    kernels = tuple(synth.Launch(dur=5_000, call_dur=3_000, latency=1_000) for _ in range(4))
    alone = found(synth.to_trace(synth.Scenario((synth.Program(kernels),))))
    rank = alone.ranks[0]
    assert rank.main.step_us is None
    assert rank.main.steps.found == 0
    assert sum(rank.main.idle_host_blame_us.values()) == pytest.approx(rank.window_us.idle_host)
    assert sum(kernel.us for kernel in rank.main.kernels) == pytest.approx(rank.window_us.busy)
    assert alone.verdict.reasons[0].startswith("no steps found")


def test_an_id_used_again_is_of_the_call_before_it() -> None:
    """Ids wrap around in long records: each op belongs to the last call of its id that began before it."""
    kernels = tuple(synth.Launch(dur=2_250, call_dur=3_100, latency=1_000) for _ in range(20))
    trace = synth.to_trace(synth.Scenario((synth.Program((*kernels, synth.Python(400_000), *kernels)),)))
    wrapped = replace(
        trace,
        gpu=replace(trace.gpu, correlation=(trace.gpu.correlation - trace.gpu.correlation[0]) % 20 + 1),
        api=replace(trace.api, correlation=(trace.api.correlation - trace.api.correlation[0]) % 20 + 1),
    )
    assert found(wrapped).ranks[0].window_us == found(trace).ranks[0].window_us


def test_an_op_that_began_before_the_steps_keeps_its_time() -> None:
    """What runs on from before is in the tables of kernels, so that they add up to busy."""
    trace = synth.to_trace(LOOP)
    rank = found(trace).ranks[0]
    late = trace.gpu.take(slice(0, 1))
    long = replace(late, end=late.end + 50_000_000, stream=late.stream + 40, correlation=late.correlation * 0)
    columns = {
        name: np.concatenate([getattr(long, name), getattr(trace.gpu, name)])
        for name in trace.gpu.__dataclass_fields__
    }
    covered = found(replace(trace, gpu=type(trace.gpu)(**columns))).ranks[0]
    assert covered.main.step_us is not None
    assert rank.main.step_us is not None
    assert covered.main.step_us.busy > rank.main.step_us.busy
    for table in (covered.main.kernels, covered.main.top_kernels):
        assert sum(row.us for row in table) == pytest.approx(covered.main.step_us.busy, abs=1e-6)


def test_a_capture_marked_unusable_is() -> None:
    trace = synth.to_trace(synth.decode_loop(["nextn"] * 4))
    marked = Capture("marked", None, {"unusable": "rank 1 gave no kernels"}, (trace,))
    integrity = analyze(marked).integrity
    assert integrity.status == "unusable"
    assert "rank 1 gave no kernels" in integrity.issues[-1].detail
    assert analyze(Capture("plain", None, {}, (trace,))).integrity.status == "ok"
