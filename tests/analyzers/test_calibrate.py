"""Calibration: simulated profilers whose slowing is known, and our own captures against their own clocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from latencylab import traces
from latencylab.analyzers import analyze, examine, kind_in_front, what_if
from latencylab.analyzers.calibration import (
    NOT_MEASURED,
    Calibrated,
    calibrate,
    calibrate_by_clock,
    calibrate_by_map,
)
from latencylab.analyzers.host_map_carry import refuse_other_software
from latencylab.analyzers.replay_build import clock_name
from latencylab.analyzers.step_clock import clock_steps, clocked_spans
from latencylab.analyzers.what_if import Change, Outcome, joint_outcome
from latencylab.model.calibration import Calibration, Estimate, SiteCost, names_together
from latencylab.model.capture import Capture
from latencylab.model.findings import Analysis
from latencylab.model.integrity import InputError
from latencylab.model.unprofiled import StepClock, Unprofiled
from synth import Leg, Scenario, Shape, decode_loop, simulate, slowed, to_trace, with_marks
from synth.clock import slower_gpu, step_clock

SAMPLES = Path(__file__).parents[2] / "traces" / "samples"
NAMES = ("nextn", "nextn-host-stall", "dspark", "plain")
STALL = "cudaStreamSynchronize in scheduler.run_batch"
LEGS = (
    Leg("draft", nodes=3, node_dur=60_000, metadata_graph=2),
    Leg("step[VERIFY bs=1]", nodes=6, node_dur=60_000),
    Leg("draft_extend", nodes=2, node_dur=60_000, seam_kernels=1),
)
EXTEND = Leg("draft_extend", nodes=1, node_dur=10_000, seam_kernels=1)  # too short to hide a wait before it
HOSTS = (1.0, 1.05, 0.96, 1.1, 1.02, 0.98)  # how slow the host is in each request
GPU_BOUND, HOST_BOUND, STALLED = 8_000, 90_000, 25_000


def loop(host: int, steps: int, *, stall: bool = False, kind: str = "nextn") -> Scenario:
    legs = (*LEGS[:2], EXTEND) if stall else LEGS
    return with_marks(decode_loop([kind] * steps, Shape(host=host, legs=legs, stall=stall)))  # type: ignore[list-item]


def capture(
    unprofiled: Callable[[int], Scenario],
    profiled: Callable[[Scenario], Scenario],
    *,
    full: bool = True,
) -> Capture:
    """A trace of 20 steps under a profiler, and six requests of 40 steps without it."""
    runs = [simulate(slowed(unprofiled(40), host)) for host in HOSTS]
    trace, _ = to_trace(simulate(profiled(unprofiled(20)))), None
    return Capture("synth", None, None, (trace,), Unprofiled((), {0: step_clock(runs, full=full)}))


def true_step(unprofiled: Callable[[int], Scenario]) -> float:
    """The median step over all requests, µs."""
    steps = []
    for host in HOSTS:
        trace = to_trace(simulate(slowed(unprofiled(40), host)))
        steps.append(np.diff(examine(Capture("synth", None, None, (trace,))).views[0].steps.start)[4:])
    return float(np.median(np.concatenate(steps))) / 1000


def true_host_idle(unprofiled: Callable[[int], Scenario]) -> float:
    """The mean host idle over all requests, µs per step."""
    idle = []
    for host in HOSTS:
        trace = to_trace(simulate(slowed(unprofiled(40), host)))
        steps = analyze(Capture("synth", None, None, (trace,)), timelines=False).ranks[0].steps
        idle.append(np.mean([step.parts.idle_host for step in steps[6:-1]]))
    return float(np.mean(idle))


def calibrated(its: Capture) -> Calibrated:
    return calibrate_by_clock(kind_in_front(examine(its)), its.unprofiled, None)


def found(its: Capture) -> Calibration:
    return calibrate(kind_in_front(examine(its)), its.unprofiled, None)


def uniform(scenario: Scenario) -> Scenario:
    return slowed(scenario, 1.7)


def like_cupti(scenario: Scenario) -> Scenario:
    """API calls suffer most, and the GPU a little."""
    return slower_gpu(slowed(scenario, 1.4, calls=2.5), 1.02)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize(
    ("host", "stall"), [(GPU_BOUND, False), (HOST_BOUND, False), (STALLED, True), (HOST_BOUND, True)]
)
def test_a_uniform_profiler_is_seen_through(host: int, stall: bool, full: bool) -> None:
    def scenario(steps: int) -> Scenario:
        return loop(host, steps, stall=stall)

    its = found(capture(scenario, uniform, full=full))
    truth = true_step(scenario)
    assert its.status == "calibrated", its.reason
    assert its.predicted_step_us is not None
    assert its.unprofiled_step_us is not None
    assert its.unprofiled_step_us.value == pytest.approx(truth, rel=0.01)
    assert its.predicted_step_us.value == pytest.approx(truth, rel=0.02)
    assert its.idle_host_us is not None
    assert its.idle_host_us.value == pytest.approx(true_host_idle(scenario), abs=0.02 * truth)


@pytest.mark.parametrize(("host", "stall"), [(GPU_BOUND, False), (HOST_BOUND, False), (STALLED, True)])
def test_a_profiler_that_slows_calls_most_is_seen_through_by_the_full_clock(host: int, stall: bool) -> None:
    def scenario(steps: int) -> Scenario:
        return loop(host, steps, stall=stall)

    its = found(capture(scenario, like_cupti))
    assert its.status == "calibrated", its.reason
    assert its.predicted_step_us is not None
    assert its.predicted_step_us.value == pytest.approx(true_step(scenario), rel=0.02)
    if host != HOST_BOUND:
        assert its.gpu_factor == pytest.approx(1 / 1.02, abs=0.01)


def test_the_host_factor_is_the_profilers() -> None:
    its = found(capture(lambda steps: loop(HOST_BOUND, steps), uniform))
    assert its.host_factor is not None
    assert its.host_factor.value == pytest.approx(np.mean(HOSTS) / 1.7, rel=0.02)
    assert its.host_factor.low < its.host_factor.value < its.host_factor.high
    assert {span.span for span in its.spans} >= {"draft", "scheduler.run_batch"}
    for span in its.spans:
        assert span.factor.value == pytest.approx(np.mean(HOSTS) / 1.7, rel=0.05)


def test_a_step_that_does_not_depend_on_its_host_identifies_no_factor() -> None:
    its = found(capture(lambda steps: loop(GPU_BOUND, steps), lambda s: slowed(s, 1.2)))
    assert its.status == "calibrated"
    assert its.host_factor is None
    assert its.idle_host_us is not None
    assert its.idle_host_us.value == pytest.approx(0, abs=1)


def test_a_wait_that_looks_free_in_the_trace_is_found_dear() -> None:
    def scenario(steps: int) -> Scenario:
        return loop(STALLED, steps, stall=True)

    model = calibrated(capture(scenario, lambda s: slowed(s, 2.2)))
    site = next(cost for cost in model.found.syncs if cost.site.startswith("cudaStreamSynchronize"))
    assert site.profiled_blocked_us < 30
    assert site.blocked_us.value > 100
    assert site.verdict == "harmful"
    prediction = model.predict(Change("", sites=("cudaStreamSynchronize",)))
    assert prediction.gain_us.value == pytest.approx(site.cost_us.value, rel=0.01)
    assert prediction.notes
    assert any(fix.site == site.site and fix.calibrated for fix in model.found.fixes)


def pageable(steps: int, host: int = STALLED, *, stall: bool = True, marked: bool = True) -> Scenario:
    """As torch reads to pageable memory: the copy blocks, and the call after it waits for the same."""
    shape = Shape(host=host, legs=(*LEGS[:2], EXTEND), stall=stall, stall_memory="Pageable")
    return with_marks(decode_loop(["nextn"] * steps, shape), streams=marked)


def test_waits_that_hide_behind_each_other_are_found_dear_together() -> None:
    its = found(capture(pageable, lambda s: slowed(s, 2.2)))
    truth = true_step(pageable) - true_step(lambda steps: pageable(steps, stall=False))
    assert its.together is not None
    assert its.together.cost_us.value == pytest.approx(truth, rel=0.05)
    assert [site.partition(" in ")[0] for site in its.together.sites] == [
        "cudaMemcpyAsync",
        "cudaStreamSynchronize",
    ]
    assert all("16 B DtoH Pageable" in site for site in its.together.sites)
    assert max(cost.cost_us.value for cost in its.syncs) < 0.2 * truth
    calls = "cudaMemcpyAsync and cudaStreamSynchronize in scheduler.run_batch, 16 B DtoH Pageable"
    assert its.fixes[0].what.startswith(f"remove 2 waits together: {calls}")
    assert its.fixes[0].us_per_step == its.together.cost_us.value
    verdict = analyze(capture(pageable, lambda s: slowed(s, 2.2)), timelines=False).verdict
    assert verdict.text.startswith(
        "2 blocking calls together cost 0.05 ms of the 0.63 ms NEXTN step, and with"
    )


def joint_of(
    monkeypatch: pytest.MonkeyPatch, gains: dict[str, float], verdict: str
) -> tuple[str, float] | None:
    """What is told together of sites with names of one letter; `gains` by the sites removed, µs."""

    def outcome(change: Change) -> Outcome:
        gain = gains["".join(sorted(change.sites))]
        return Outcome(change, Estimate(1000 - gain, 0, 0), Estimate(gain, 0, 0))

    monkeypatch.setattr(what_if, "predict", lambda model, changes: tuple(map(outcome, changes)))
    costs = [
        SiteCost(name, 1.0, Estimate(1, 1, 1), Estimate(us, us, us), 0.0, 1.0, verdict)  # type: ignore[arg-type]
        for name, us in gains.items()
        if len(name) == 1
    ]
    told = joint_outcome(None, costs, 1000.0)  # type: ignore[arg-type]
    return None if told is None else ("".join(told.change.sites), told.gain_us.value)


ADDING_UP = {"a": 300.0, "b": 200.0, "ab": 500.0}
HIDING = {"m": 5.0, "s": 1.0, "ms": 300.0}
MANY = "abcdefghijklmnop"  # too many to be replayed without each
BOTH = {"a": 300.0, **HIDING, "am": 305.0, "as": 301.0, "ams": 600.0}


@pytest.mark.parametrize(
    ("gains", "verdict", "told"),
    [
        ({"a": 300.0}, "pinning", None),
        (ADDING_UP, "harmful", None),
        (HIDING, "pinning", ("ms", 300.0)),
        (HIDING, "unclear", None),
        (HIDING, "hidden", None),
        (BOTH, "pinning", ("ms", 300.0)),
        ({**dict.fromkeys(MANY, 1.0), MANY: 900.0}, "pinning", (MANY, 900.0)),
    ],
)
def test_only_waits_that_hide_behind_each_other_are_told_together(
    monkeypatch: pytest.MonkeyPatch, gains: dict[str, float], verdict: str, told: tuple[str, float] | None
) -> None:
    assert joint_of(monkeypatch, gains, verdict) == told


def test_sites_of_several_places_are_named_by_place() -> None:
    sites = ("a in run, x", "b in run, y", "c in run, x", "d")
    assert names_together(sites) == "a and c in run, x; b in run, y; d"


def test_one_wait_alone_is_not_told_twice() -> None:
    its = found(capture(lambda steps: loop(STALLED, steps, stall=True), lambda s: slowed(s, 2.2)))
    assert its.together is None


@pytest.mark.parametrize("slowing", [1.7, 4.0])
@pytest.mark.parametrize("host", [20_000, 45_000])
def test_waits_of_which_the_clock_has_no_row(host: int, slowing: float) -> None:
    """They are in the spans around them, where they would pass for the host's work, and the slower the host
    under the profiler, the less the trace shows of them."""

    def scenario(steps: int) -> Scenario:
        return pageable(steps, host, marked=False)

    its = found(unmarked(scenario, slowing))
    assert its.status == "calibrated", its.reason
    assert its.predicted_step_us is not None
    assert its.predicted_step_us.value == pytest.approx(true_step(scenario), rel=0.02)
    assert its.together is not None
    truth = true_step(scenario) - true_step(lambda steps: pageable(steps, host, stall=False))
    assert its.together.cost_us.value == pytest.approx(truth, rel=0.2)
    assert any("no row of waits in scheduler.run_batch" in note for note in its.notes)


def unmarked(scenario: Callable[[int], Scenario], slowing: float) -> Capture:
    """A capture whose clock has rows of waits for events alone."""
    runs = [simulate(slowed(scenario(40), host)) for host in HOSTS]
    clock = step_clock(runs, unmarked="Memcpy|StreamSync")
    its = capture(scenario, lambda s: slowed(s, slowing))
    return replace(its, unprofiled=Unprofiled((), {0: clock}))


def test_a_trace_without_marks_does_not_tell_which_waits_have_a_row() -> None:
    its = capture(lambda steps: loop(STALLED, steps, stall=True), uniform)
    bare = decode_loop(["nextn"] * 20, Shape(host=STALLED, legs=(*LEGS[:2], EXTEND), stall=True))
    for trace, spans in ((its.traces[0], 0), (to_trace(simulate(uniform(bare))), 0)):
        view = kind_in_front(examine(replace(its, traces=(trace,))))
        clock = its.unprofiled.clocks[0]  # type: ignore[union-attr]
        assert len(clock_steps(clock, view, clocked_spans(clock, view)).unmarked) == spans


def test_changes_that_the_step_does_not_depend_on_give_nothing() -> None:
    model = calibrated(capture(lambda steps: loop(GPU_BOUND, steps), lambda s: slowed(s, 1.2)))
    assert model.predict(Change("", spans=(("draft", 0.5),))).gain_us.value == pytest.approx(0, abs=0.5)
    faster = model.predict(Change("", kernels=(("verify", 2.0),)))
    assert faster.gain_us.value == pytest.approx(6 * 60 / 2, rel=0.05)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (Change("", sites=("nowhere",)), "nowhere"),
        (Change("", spans=(("no span", 0.5),)), "no span"),
        (Change("", kernels=(("no kernel", 2.0),)), "no kernel"),
        (Change("", seams=(("no leg", 0.5),)), "no leg"),
    ],
)
def test_a_change_to_what_is_not_there_is_refused(change: Change, word: str) -> None:
    model = calibrated(capture(lambda steps: loop(GPU_BOUND, steps), uniform))
    with pytest.raises(InputError, match=word):
        model.predict(change)


def renamed(clock: StepClock, **columns: object) -> StepClock:
    return replace(clock, **columns)  # type: ignore[arg-type]


def test_a_clock_of_another_configuration_is_refused_with_the_difference() -> None:
    its = capture(lambda steps: loop(GPU_BOUND, steps), uniform)
    assert its.unprofiled is not None
    clock = its.unprofiled.clocks[0]
    view = kind_in_front(examine(its))
    other = renamed(clock, kind=tuple("DSpark" for _ in clock.kind))
    with pytest.raises(InputError, match=r"kind NEXTN in the trace, \d+ DSpark"):
        calibrate_by_clock(view, Unprofiled((), {0: other}), None)
    legs = renamed(clock, span=tuple({"draft": "ll.draft"}.get(span, span) for span in clock.span))
    with pytest.raises(InputError, match="legs draft, extend, verify in the trace, draft in it"):
        calibrate_by_clock(view, Unprofiled((), {0: legs}), None)
    assert calibrate(view, Unprofiled((), {0: other}), None).status == "uncalibrated"


def test_a_leg_of_the_clock_may_be_launched_kernel_by_kernel() -> None:
    """The trace then has its span, and no graph of it."""
    its = capture(lambda steps: loop(GPU_BOUND, steps), uniform)
    assert its.unprofiled is not None
    clock = its.unprofiled.clocks[0]
    names = {
        "draft": "ll.draft",
        "step": "ll.verify",
        "draft_extend": "ll.extend",
        "copy_result_to_cpu": "ll.decode",
    }
    more = renamed(clock, span=tuple(names.get(span, span) for span in clock.span))
    view = kind_in_front(examine(its))
    with pytest.raises(
        InputError, match="legs draft, extend, verify in the trace, decode, draft, extend, verify in it"
    ):
        clock_steps(more, view, frozenset())
    traced = replace(its.traces[0], names=(*its.traces[0].names, "ll.decode"))
    seen = kind_in_front(examine(replace(its, traces=(traced,))))
    assert len(clock_steps(more, seen, frozenset())) == len(clock_steps(clock, view, frozenset()))


def test_a_map_of_other_software_is_refused_with_the_difference() -> None:
    ours = {"gpu": "H200", "packages": {"torch": "2.14.1"}, "server_args": {"tp_size": 1}}
    refuse_other_software(ours, ours | {"faults": {"x": True}})
    refuse_other_software(ours, None)
    with pytest.raises(InputError, match="gpu is H200 there and B200 here"):
        refuse_other_software(ours, ours | {"gpu": "B200"})
    with pytest.raises(InputError, match=r"package torch is 2\.14\.1 there and 2\.13\.0 here"):
        refuse_other_software(ours, ours | {"packages": {"torch": "2.13.0"}})
    with pytest.raises(InputError, match="server_args tp_size is 1 there and 4 here"):
        refuse_other_software(ours, ours | {"server_args": {"tp_size": 4}})


def test_a_clock_that_does_not_fit_is_not_trusted() -> None:
    """Steps twice as long, with spans as long as they were: no profiler makes a GPU so much faster."""
    its = capture(lambda steps: loop(GPU_BOUND, steps), uniform)
    assert its.unprofiled is not None
    clock = its.unprofiled.clocks[0]
    origin = clock.start_ns.min()
    later = origin + 2 * (clock.start_ns - origin)
    on_gpu = np.where(clock.gpu_start_ns < 0, -1, origin + 2 * (clock.gpu_start_ns - origin))
    end = later + clock.end_ns - clock.start_ns
    stretched = renamed(clock, start_ns=later, end_ns=end, gpu_start_ns=on_gpu)
    off = found(replace(its, unprofiled=Unprofiled((), {0: stretched})))
    assert off.status == "untrusted"
    assert off.reason
    assert not any(fix.calibrated for fix in off.fixes)


def test_of_a_long_trace_the_first_steps_are_replayed() -> None:
    clock = capture(lambda steps: loop(HOST_BOUND, steps), uniform).unprofiled
    trace = to_trace(simulate(uniform(loop(HOST_BOUND, 90))))
    model = calibrated(Capture("synth", None, None, (trace,), clock))
    assert len(model.model.program.edges) == 64
    assert model.model.steps.max() == 62
    assert model.found.status == "calibrated"
    assert model.found.error_pct == pytest.approx(0, abs=2)


def test_a_step_that_was_not_recorded_makes_no_long_step() -> None:
    its = capture(lambda steps: loop(HOST_BOUND, steps), uniform)
    assert its.unprofiled is not None
    clock = its.unprofiled.clocks[0]
    view = kind_in_front(examine(its))
    whole = clock_steps(clock, view, frozenset())
    kept = clock.step % 3 > 0
    columns = {name: getattr(clock, name) for name in clock.__slots__}
    holes = StepClock(
        **{
            name: tuple(np.array(column)[kept]) if isinstance(column, tuple) else column[kept]
            for name, column in columns.items()
        }
    )
    assert len(whole) > 200
    with pytest.raises(InputError, match="no two steps"):
        clock_steps(holes, view, frozenset())


def test_names_of_spans_as_a_clock_has_them() -> None:
    names = {
        "step[VERIFY bs=1]": "step",
        "ll.replay[draft]": "ll.replay.draft",
        "ll.step[3 NEXTN]": "ll.step",
    }
    assert {name: clock_name(name) for name in names} == names


@pytest.mark.parametrize("unprofiled", [None, Unprofiled((), {})])
def test_nothing_measured_is_uncalibrated(unprofiled: Unprofiled | None) -> None:
    its = replace(capture(lambda steps: loop(GPU_BOUND, steps), uniform), unprofiled=unprofiled)
    none = found(its)
    assert (none.status, none.reason) == ("uncalibrated", NOT_MEASURED)
    assert none.predicted_step_us is None
    assert none.idle_host_us is None
    assert none.profiled_step_us is not None
    whole = analyze(its, timelines=False)
    assert not any(fix.calibrated for fix in whole.fixes)


def test_a_clock_without_rows_or_with_a_few_is_uncalibrated() -> None:
    its = capture(lambda steps: loop(GPU_BOUND, steps), uniform)
    assert its.unprofiled is not None
    clock = its.unprofiled.clocks[0]
    columns = [name for name in clock.__slots__ if name not in ("span", "kind")]
    for rows in (0, 1, 40):
        few = renamed(
            clock,
            span=clock.span[:rows],
            kind=clock.kind[:rows],
            **{name: getattr(clock, name)[:rows] for name in columns},
        )
        assert found(replace(its, unprofiled=Unprofiled((), {0: few}))).status == "uncalibrated"


@cache
def sample(name: str) -> Capture:
    return traces.open_capture([SAMPLES / name], cache=False)


@cache
def of_sample(name: str) -> Calibrated:
    return calibrated(sample(name))


@cache
def analysis(name: str) -> Analysis:
    return analyze(sample(name), timelines=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_by_its_own_clock(name: str) -> None:
    its = of_sample(name).found
    assert its.status == "calibrated", its.reason
    assert its.error_pct == pytest.approx(0, abs=5)
    assert its.replay_error_pct == pytest.approx(0, abs=1)
    assert its.unprofiled_step_us is not None
    assert its.profiled_step_us is not None
    assert its.profiled_step_us > 1.2 * its.unprofiled_step_us.value


@pytest.mark.parametrize("name", NAMES[1:])
def test_a_sample_by_the_map_of_nextn(name: str) -> None:
    view = kind_in_front(examine(sample(name)))
    its = calibrate_by_map(view, sample(name).unprofiled, None, of_sample("nextn").model, "nextn").found
    assert its.error_pct == pytest.approx(0, abs=5)
    assert its.status == "calibrated"
    assert its.map_from == "nextn"


@pytest.mark.parametrize("name", NAMES)
def test_legs_come_when_the_clock_of_a_sample_says(name: str) -> None:
    """The replay is fitted on the lengths of steps alone: where its legs come is no part of the fit."""
    legs = of_sample(name).found.legs
    order = {"dspark": ["draft", "verify"], "plain": ["decode"]}
    assert [its.leg for its in legs] == order.get(name, ["draft", "verify", "extend"])
    assert all(abs(its.error_pct) < 5 for its in legs)
    assert sum(its.measured_us for its in legs) == pytest.approx(
        of_sample(name).found.unprofiled_step_us.value,
        rel=0.02,  # type: ignore[union-attr]
    )


@pytest.mark.parametrize("name", NAMES)
def test_launching_a_graph_takes_little_without_the_profiler(name: str) -> None:
    """The profiler slows graph launches 5 to 50 times, and all else about twice."""
    factors = {its.span: its.factor.value for its in of_sample(name).found.spans}
    replays = [factor for span, factor in factors.items() if span.startswith("ll.replay.")]
    assert replays
    assert min(replays) < 0.06 < 0.25 < factors["ll.prepare"]


def test_the_sites_of_an_analysis_are_those_of_its_calibration() -> None:
    its = analysis("nextn-host-stall")
    assert its.calibration is not None
    costs = {cost.site: cost for cost in its.calibration.syncs}
    syncs = its.ranks[its.front].main.syncs
    assert {sync.site for sync in syncs} == set(costs)
    assert syncs[0].verdict == "harmful"
    for sync in syncs:
        cost = costs[sync.site]
        assert (sync.verdict, sync.need_us) == (cost.verdict, cost.need_us)
        assert sync.cost_us == pytest.approx(max(cost.cost_us.value, 0))
    bare = analyze(replace(sample("nextn-host-stall"), unprofiled=None), timelines=False)
    assert bare.ranks[0].main.syncs[0].verdict == "pinning"
    assert all(sync.cost_us is None for sync in bare.ranks[0].main.syncs)


def test_the_stalls_cost() -> None:
    model = of_sample("nextn-host-stall")
    nextn, stalled = of_sample("nextn").found.unprofiled_step_us, model.found.unprofiled_step_us
    assert nextn is not None
    assert stalled is not None
    prediction = model.predict(Change("", sites=(STALL,)))
    assert prediction.step_us.value == pytest.approx(nextn.value, rel=0.07)
    assert model.found.predicted_step_us is not None
    predicted = model.found.predicted_step_us.value - prediction.step_us.value
    assert predicted == pytest.approx(stalled.value - nextn.value, rel=0.2)
    assert prediction.gain_us.value == pytest.approx(predicted, rel=0.01)
    assert model.found.fixes[0].site.startswith(STALL)
    assert analysis("nextn-host-stall").calibration == model.found


def test_what_a_verdict_says_of_it() -> None:
    for name in ("nextn", "dspark", "plain"):
        assert analysis(name).verdict.text.startswith("GPU bound: the ")
        assert "are the profiler's" in analysis(name).verdict.text
    assert analysis("nextn-host-stall").verdict.text.startswith("A blocking call costs 0.9")
    for name in NAMES:
        assert not any("not calibrated" in reason for reason in analysis(name).verdict.reasons)
    bare = analyze(replace(sample("nextn"), unprofiled=None), timelines=False)
    assert "profiler" not in bare.verdict.text
    assert any("not calibrated" in reason for reason in bare.verdict.reasons)
