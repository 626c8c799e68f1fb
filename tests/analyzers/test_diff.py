"""Two simulated captures of which one was changed: the comparison names the change, and its sums hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import synth
from latencylab.analyzers import examine
from latencylab.analyzers.analyze import Examined, analyze_examined
from latencylab.analyzers.comparable import conflicts
from latencylab.analyzers.diff import compare
from latencylab.analyzers.diff_calibration import compare_calibrations
from latencylab.analyzers.diff_verdict import headline
from latencylab.model.calibration import Calibration, Estimate, SiteCost
from latencylab.model.capture import Capture
from latencylab.model.comparison import Comparison, Delta, KindChange, UnprofiledChange
from latencylab.model.integrity import InputError
from latencylab.model.unprofiled import Request, Unprofiled
from latencylab.traces import open_capture, sample_path
from synth import ranks
from synth.strategies import decode_loops
from synth.transform import rewritten

some = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
STEPS = 12
ESTIMATE = Estimate(1200, 1100, 1300)
LOOP = synth.decode_loop(["nextn"] * STEPS, synth.Shape(host=30_000))
Rule = Callable[[synth.Action], Iterable[synth.Action]]


def opened(*scenarios: synth.Scenario, **capture: Any) -> Examined:
    traces = tuple(synth.to_trace(synth.find(scenario).run) for scenario in scenarios)
    return examine(Capture("run", None, capture.pop("manifest", None), traces, **capture))


@cache
def base() -> Examined:
    return opened(LOOP)


def against(scenario: synth.Scenario) -> Comparison:
    return compare(base(), opened(scenario))


def nodes(change: Callable[[tuple[synth.Node, ...]], tuple[synth.Node, ...]], prefix: str) -> synth.Scenario:
    """The loop with the graphs whose first node is of that name changed."""

    def rule(action: synth.Action) -> list[synth.Action]:
        if isinstance(action, synth.GraphLaunch) and action.nodes[0].name.startswith(prefix):
            return [replace(action, nodes=change(action.nodes))]
        return [action]

    return rewritten(LOOP, rule)


def changes_of(delta: Delta) -> float:
    assert delta.change is not None
    return delta.change


def changed_kernels(kind: KindChange) -> list[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    return [(one.how, one.segment, one.base, one.head) for one in kind.kernels if one.how != "same"]


# what was changed is named as what it is


def test_a_slower_kernel() -> None:
    def slower(its: tuple[synth.Node, ...]) -> tuple[synth.Node, ...]:
        return tuple(
            replace(node, dur=node.dur + 50_000) if node.name == "verify_3" else node for node in its
        )

    found = against(nodes(slower, "verify"))
    first = found.kinds[0].kernels[0]
    assert (first.how, first.segment, first.base, first.head) == (
        "same",
        "verify",
        ("verify_3",),
        ("verify_3",),
    )
    assert changes_of(first.us) == pytest.approx(50.0)
    assert first.us.resolved
    assert changes_of(found.kinds[0].part("busy")) == pytest.approx(50.0)
    # The host is as late as before, so what the kernel takes longer the GPU waits less.
    assert "a step takes as long as before" in found.headline
    assert found.headline.endswith("the most +50.0 µs in kernel verify_3 of verify.")


def test_a_kernel_so_slow_that_the_step_is_longer() -> None:
    def slower(its: tuple[synth.Node, ...]) -> tuple[synth.Node, ...]:
        return tuple(
            replace(node, dur=node.dur + 900_000) if node.name == "verify_3" else node for node in its
        )

    found = against(nodes(slower, "verify"))
    change = changes_of(found.kinds[0].part("wall"))
    assert 400 < change < 900
    assert found.headline.startswith(f"In the trace a step takes {change:.1f} µs more")
    assert found.headline.endswith("the most +900.0 µs in kernel verify_3 of verify.")


def test_a_renamed_kernel() -> None:
    def renamed(its: tuple[synth.Node, ...]) -> tuple[synth.Node, ...]:
        return tuple(replace(node, name="other_3") if node.name == "verify_3" else node for node in its)

    found = against(nodes(renamed, "verify"))
    assert changed_kernels(found.kinds[0]) == [("renamed", "verify", ("verify_3",), ("other_3",))]
    assert all(one.us.change == 0 for one in found.kinds[0].kernels)
    assert "where verify_3 of verify was renamed or replaced by other_3" in found.headline


def test_fused_kernels_and_split_ones() -> None:
    def fused(its: tuple[synth.Node, ...]) -> tuple[synth.Node, ...]:
        one = replace(its[2], name="fused_2_3", dur=30_000)
        return (*its[:2], one, *its[4:])

    other = opened(nodes(fused, "verify"))
    found = compare(base(), other)
    assert changed_kernels(found.kinds[0]) == [("fused", "verify", ("verify_2", "verify_3"), ("fused_2_3",))]
    row = next(one for one in found.kinds[0].kernels if one.how == "fused")
    assert changes_of(row.us) == pytest.approx(-10.0)
    assert (row.ops.base, row.ops.head) == (2, 1)
    back = compare(other, base())
    assert changed_kernels(back.kinds[0]) == [("split", "verify", ("fused_2_3",), ("verify_2", "verify_3"))]


def test_a_fusion_in_every_layer_is_one_row() -> None:
    layer = [("norm", 4_000), ("gemm", 20_000), ("act", 3_000), ("gemm_down", 15_000)]

    def layers(ops: list[tuple[str, int]]) -> Callable[[tuple[synth.Node, ...]], tuple[synth.Node, ...]]:
        return lambda _: tuple(synth.Node(dur, 300, name) for _ in range(10) for name, dur in ops)

    fused = [layer[0], ("gemm_act", 21_000), layer[3]]
    found = compare(opened(nodes(layers(layer), "verify")), opened(nodes(layers(fused), "verify")))
    assert changed_kernels(found.kinds[0]) == [("fused", "verify", ("gemm", "act"), ("gemm_act",))]
    row = found.kinds[0].kernels[0]
    assert (row.ops.base, row.ops.head) == (20, 10)
    assert changes_of(row.us) == pytest.approx(-20.0)


def test_a_new_kernel_and_one_that_is_gone() -> None:
    def more(its: tuple[synth.Node, ...]) -> tuple[synth.Node, ...]:
        return (*its[:3], synth.Node(7_000, 300, "check"), *its[3:])

    other = opened(nodes(more, "verify"))
    assert changed_kernels(compare(base(), other).kinds[0]) == [("appeared", "verify", (), ("check",))]
    assert changed_kernels(compare(other, base()).kinds[0]) == [("vanished", "verify", ("check",), ())]


def test_a_kernel_in_a_seam_is_named_there() -> None:
    def rule(action: synth.Action) -> list[synth.Action]:
        if isinstance(action, synth.Launch) and action.name == "draft_seam_kernel_1":
            return [replace(action, name="seam_two")]
        return [action]

    found = against(rewritten(LOOP, rule))
    assert changed_kernels(found.kinds[0]) == [
        ("renamed", "seam before verify", ("draft_seam_kernel_1",), ("seam_two",))
    ]


def test_an_added_sync_appears_with_its_verdict_and_what_it_costs_unprofiled() -> None:
    shape = synth.Shape(host=30_000)
    stall = synth.decode_loop(["nextn"] * STEPS, replace(shape, stall=True, stall_ops=0), sync_records=True)
    other = synth.decode_loop(["nextn"] * STEPS, shape, sync_records=True)
    slow, fast = (
        Unprofiled(tuple(Request.of(0, [(0, 1), (round(ms * 1e6) + n, 4)]) for n in range(6)))
        for ms in (7.25, 6)
    )
    found = compare(opened(other, unprofiled=fast), opened(stall, unprofiled=slow))
    first = found.kinds[0].sites[0]
    assert (first.how, first.base_verdict) == ("appeared", "")
    assert first.head_verdict in ("pinning", "harmful")
    assert first.site.startswith("cudaStreamSynchronize in scheduler.run_batch")
    assert (first.per_step.base, first.per_step.head) == (0, 1)
    assert found.headline.startswith(f"A blocking call appeared: {first.site} ({first.head_verdict}")
    assert "without the profiler a step takes 1.25 ms more (6.00 ms to 7.25 ms)" in found.headline
    back = compare(opened(stall, unprofiled=slow), opened(other, unprofiled=fast))
    assert back.kinds[0].sites[0].how == "vanished"
    assert back.headline.startswith("A blocking call is gone: cudaStreamSynchronize")
    assert "1.25 ms less" in back.headline


def test_calibration_says_what_the_new_wait_costs() -> None:
    stall = synth.decode_loop(["nextn"] * STEPS, synth.Shape(host=30_000, stall=True), sync_records=True)
    kinds = compare(base(), opened(stall), force=True).kinds
    cost = SiteCost(kinds[0].sites[0].site, 3.0, ESTIMATE, ESTIMATE, 0.0, 900.0, "harmful")
    for status, said in (("calibrated", True), ("untrusted", False)):
        head = Calibration("calibrated", syncs=(cost,))
        found = compare_calibrations(replace(head, status=status, syncs=()), head)
        assert ("calibration charges 1.20 ms a step to it" in headline(kinds, None, found)) == said


def test_a_wait_that_calibration_charges_nothing_to_does_not_lead() -> None:
    """The step became slower by something else: the host would be late without the wait all the same."""
    stall = synth.decode_loop(["nextn"] * STEPS, synth.Shape(host=30_000, stall=True), sync_records=True)
    kinds = compare(base(), opened(stall), force=True).kinds
    sides = [
        Calibration(
            "calibrated", predicted_step_us=Estimate(us, us, us), idle_host_us=Estimate(idle, idle, idle)
        )
        for us, idle in ((5000.0, 100.0), (9000.0, 3300.0))
    ]
    steps = UnprofiledChange(Delta(5.0, 9.0), 6, 6, None, None)
    for charged, leads in ((0.0, False), (399.0, False), (400.0, True), (3000.0, True)):
        cost = SiteCost(
            kinds[0].sites[0].site, 3.0, ESTIMATE, Estimate(charged, 0, charged), 0.0, 900.0, "pinning"
        )
        found = compare_calibrations(sides[0], replace(sides[1], syncs=(cost,)))
        said = headline(kinds, steps, found)
        assert said.startswith(
            "A blocking call appeared" if leads else "Without the profiler a step takes 4.00 ms more"
        )
        assert "locking call appeared: cudaStreamSynchronize" in said
        assert "(5.00 ms to 9.00 ms), of it +3.20 ms idle with the host late" in said


def test_an_unclear_new_wait_is_named_and_a_hidden_one_is_not() -> None:
    kind = compare(base(), base()).kinds[0]
    assert kind.sites[0].head_verdict == "unclear"
    for site, said in (
        (
            replace(kind.sites[0], how="appeared", base_verdict=""),
            "A blocking call appeared: cudaEventSynchronize",
        ),
        (replace(kind.sites[0], how="appeared", base_verdict="", head_verdict="hidden"), "No change"),
        (replace(kind.sites[0], how="verdict", base_verdict="pinning"), "No change"),
        (
            replace(kind.sites[0], how="verdict", base_verdict="pinning", head_verdict="hidden"),
            "A blocking call is now",
        ),
    ):
        assert headline([replace(kind, sites=(site,))], None).startswith(said)


def test_a_slower_host_is_blamed() -> None:
    def rule(action: synth.Action) -> list[synth.Action]:
        if isinstance(action, synth.Span) and action.name == "draft":
            return [replace(action, body=(synth.Python(400_000), *action.body))]
        return [action]

    found = against(rewritten(LOOP, rule))
    first = found.kinds[0].blame[0]
    assert first.name == "span draft"
    assert first.us.resolved
    assert changes_of(first.us) > 200
    assert changes_of(found.kinds[0].part("busy")) == 0
    assert "idle with the host late (span draft)" in found.headline


# sums


def all_deltas(found: Comparison) -> list[Delta]:
    return [
        delta
        for kind in found.kinds
        for delta in (
            kind.median_wall,
            kind.run_ahead_least,
            *(row.us for rows in (kind.parts, kind.blame, kind.gpu_idle, kind.classes) for row in rows),
            *(one.us for one in kind.kernels),
            *(getattr(leg, f) for leg in kind.legs for f in leg.__dataclass_fields__ if f != "name"),
            *(delta for one in kind.sites for delta in (one.per_step, one.blocked_us, one.idle_us)),
        )
    ]


@some
@given(decode_loops(max_steps=8))
def test_a_capture_against_itself_is_all_zero(scenario: synth.Scenario) -> None:
    its = opened(scenario)
    found = compare(its, its)
    assert all(not delta.change and not delta.resolved for delta in all_deltas(found))
    assert all(one.how == "same" for kind in found.kinds for one in (*kind.kernels, *kind.sites))
    assert found.headline == "Nothing changed: every difference is zero."
    assert (found.mismatches, found.changes, found.notes) == ((), (), ())


@some
@given(st.data())
def test_sums(data: st.DataObject) -> None:
    """Parts add up on both sides, so in the change; to exchange the sides negates it, intervals too."""
    one, other = (opened(data.draw(decode_loops(max_steps=8))) for _ in range(2))
    there, back = compare(one, other, force=True), compare(other, one, force=True)
    for kind in there.kinds:
        for side in ("base", "head"):
            us = {row.name: getattr(row.us, side) for row in kind.parts}
            assert us["wall"] == pytest.approx(us["busy"] + us["idle"], abs=1e-6)
            assert us["idle"] == pytest.approx(
                us["idle_host"] + us["idle_gpu"] + us["idle_unknown"], abs=1e-6
            )
            for rows, whole in (
                (kind.classes, us["busy"]),
                (kind.kernels, us["busy"]),
                (kind.blame, us["idle_host"]),
                (kind.gpu_idle, us["idle_gpu"]),
            ):
                assert sum(getattr(row.us, side) for row in rows) == pytest.approx(whole, abs=1e-6)
        assert sum(changes_of(row.us) for row in kind.classes) == pytest.approx(
            changes_of(kind.part("busy")), abs=1e-6
        )
    mirrored = {(kind.rank, frozenset(kind.kind.split(" against "))): kind for kind in back.kinds}
    for kind in there.kinds:
        reverse = mirrored[kind.rank, frozenset(kind.kind.split(" against "))]
        for rows, others in (
            (kind.parts, reverse.parts),
            (kind.blame, reverse.blame),
            (kind.classes, reverse.classes),
        ):
            turned = {row.name: row.us for row in others}
            for row in rows:
                assert changes_of(row.us) == pytest.approx(-changes_of(turned[row.name]), abs=1e-9)
                if row.us.interval is not None:
                    low, high = turned[row.name].interval or (np.nan, np.nan)
                    assert row.us.interval == pytest.approx((-high, -low), abs=1e-6)


def test_means_are_those_of_the_findings() -> None:
    its = opened(synth.decode_loop(["prefill"] * 5 + ["nextn"] * STEPS, synth.Shape(host=30_000, stall=True)))
    analysis = analyze_examined(its, timelines=False)
    found = compare(its, its)
    assert [kind.kind for kind in found.kinds] == ["NEXTN", "prefill"]
    assert [kind.main for kind in found.kinds] == [True, False]
    rank = analysis.ranks[0]
    for kind, findings in zip(found.kinds, (rank.main, *rank.other_kinds), strict=True):
        assert findings.step_us is not None
        for row in kind.parts:
            assert row.us.base == pytest.approx(getattr(findings.step_us, row.name))
        assert {r.name: r.us.base for r in kind.blame} == pytest.approx(findings.idle_host_blame_us)
        assert {r.name: r.us.base for r in kind.classes if r.us.base} == pytest.approx(
            {k.name: k.us for k in findings.kernels if k.us}
        )
        for leg, its_leg in zip(kind.legs, findings.legs, strict=True):
            assert leg.name == its_leg.name
            assert leg.gpu_us.base == pytest.approx(its_leg.gpu_us)
            assert leg.busy_us.base == pytest.approx(its_leg.busy_us)
            assert leg.seam_us.base == pytest.approx(its_leg.seam_us)
            assert leg.seam_idle_host_us.base == pytest.approx(its_leg.seam_idle_host_us)
            assert leg.ops.base == pytest.approx(its_leg.ops)
        syncs = {sync.site: sync for sync in findings.syncs}
        assert set(syncs) == {site.site for site in kind.sites}
        for site in kind.sites:
            assert site.per_step.base == pytest.approx(syncs[site.site].per_step)
            assert site.blocked_us.base == pytest.approx(syncs[site.site].blocked_us)
            assert site.idle_us.base == pytest.approx(syncs[site.site].idle_us)


def test_few_steps_have_no_interval() -> None:
    short = opened(synth.decode_loop(["nextn"] * 6))
    assert all(row.us.interval is None for row in compare(short, short).kinds[0].parts)


# what is refused


def test_other_kinds_are_refused_unless_forced() -> None:
    other = opened(synth.decode_loop(["dspark"] * STEPS))
    with pytest.raises(
        InputError, match=r"kind of step: NEXTN against DSpark; legs: draft, verify, extend against"
    ):
        compare(base(), other)
    found = compare(base(), other, force=True)
    assert [one.field for one in found.mismatches] == ["kind of step", "legs"]
    assert found.kinds[0].kind == "NEXTN against DSpark"
    assert {leg.name: leg.gpu_us.change is None for leg in found.kinds[0].legs} == {
        "draft": False,
        "verify": False,
        "extend": True,
    }


def test_a_leg_launched_kernel_by_kernel_is_a_change() -> None:
    """The same work without its graph, as spans show; without spans it may be left out, which is another."""
    loops = [
        synth.decode_loop(
            ["nextn"] * STEPS, synth.Shape(legs=tuple(synth.Leg(name, nodes=3) for name in names))
        )
        for names in (("draft", "verify", "extend"), ("draft", "verify"))
    ]
    traces = [synth.to_trace(synth.find(loop).run) for loop in loops]
    spans = ("ll.draft", "ll.extend", "ll.verify")
    whole, eager = (
        examine(Capture("run", None, None, (replace(trace, names=(*trace.names, *spans)),)))
        for trace in traces
    )
    for found in (compare(whole, eager), compare(eager, whole)):
        assert found.mismatches == ()
        assert [one.field for one in found.changes] == ["legs"]
    with pytest.raises(InputError, match="legs: draft, verify, extend against draft, verify"):
        compare(opened(loops[0]), opened(loops[1]))
    fewer = replace(traces[1], names=(*traces[1].names, "ll.draft", "ll.verify"))
    with pytest.raises(InputError, match="leg spans: draft, extend, verify against draft, verify"):
        compare(whole, examine(Capture("run", None, None, (fewer,))))
    for legs in ("verify, draft", "draft, draft", "rank 0: draft, verify; rank 1: draft"):
        side = {"kind of step": "NEXTN", "legs": "draft, verify, extend", "leg spans": "draft"}
        assert [one.field for one in conflicts(side, {**side, "legs": legs})] == ["legs"]


# ranks


def test_ranks_are_compared_one_by_one_and_their_waits() -> None:
    def together(*injects: ranks.Inject) -> Examined:
        run = ranks.simulate(
            ranks.decode_ranks(ranks=2, steps=12, gpu_jitter=2_000, host_jitter=1_000, injects=injects)
        )
        return examine(Capture("ranks", None, None, ranks.to_traces(run)))

    late = tuple(ranks.Inject(1, step, 4, "kernel", 60_000) for step in range(12))
    found = compare(together(), together(*late))
    assert {kind.rank for kind in found.kinds} == {0, 1}
    assert found.collectives is not None
    assert changes_of(found.collectives.wait) > 10
    assert found.collectives.late[0].name.startswith("rank 1, ")
    assert changes_of(found.collectives.late[0].us) == pytest.approx(60, rel=0.2)
    waits = {kind.rank: kind.part("collective_wait") for kind in found.kinds}
    assert changes_of(waits[0]) > 40
    assert changes_of(waits[1]) < 10
    alone = compare(together(), together(*late), ranks=[0])
    assert [kind.rank for kind in alone.kinds] == [0]


# the samples


@cache
def sample(name: str) -> Examined:
    return examine(open_capture([sample_path(name)]))


def test_the_sample_with_a_stall_names_its_site() -> None:
    found = compare(sample("nextn"), sample("nextn-host-stall"))
    site = found.kinds[0].sites[0]
    assert (site.how, site.base_verdict, site.head_verdict) == ("appeared", "", "harmful")
    assert site.site == (
        "cudaStreamSynchronize in scheduler.run_batch > ll.resolve_seq_lens (aten::copy_),"
        " 16 B DtoH Pinned, before draft"
    )
    assert site.site in found.headline
    assert found.unprofiled is not None
    assert changes_of(found.unprofiled.step_ms) > 0.5
    assert f"{changes_of(found.unprofiled.step_ms):.2f} ms more" in found.headline
    assert {one.field for one in found.changes} == {
        "switch LATENCYLAB_FAULTS",
        "ledger kda-no-host-lengths",
        "fault kda-cpu-seq-lens.ranks",
    }


def test_the_other_kind_of_sample_is_refused() -> None:
    with pytest.raises(InputError, match=r"kind of step: .*legs: "):
        compare(sample("nextn"), sample("dspark"))


def test_a_verdict_by_calibration_on_one_side_alone_is_no_change() -> None:
    stall = sample("nextn-host-stall")
    bare = replace(stall, capture=replace(stall.capture, unprofiled=None))
    site = compare(bare, stall).kinds[0].sites[0]
    assert (site.base_verdict, site.head_verdict, site.how) == ("pinning", "harmful", "same")
