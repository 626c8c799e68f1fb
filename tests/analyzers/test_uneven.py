"""What single ranks do beyond the others: faults of one rank, named with their µs per step whatever the
profiler hides; and what a late rank's causes are where its host is merely behind.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from latencylab.analyzers import analyze
from latencylab.analyzers.analyze import examine, settled
from latencylab.analyzers.kernels import load_classes
from latencylab.analyzers.ranks import join_ranks
from latencylab.analyzers.skew import Causes
from latencylab.analyzers.uneven import COMMON, F64, HOST_IDLE, beyond, named, owed_to_excess, pace
from latencylab.analyzers.view import RankView
from latencylab.model.capture import Capture
from latencylab.model.findings import Analysis, Uneven
from latencylab.model.unprofiled import Unprofiled
from synth import ranks, with_marks
from synth.clock import step_clock
from synth.transform import slowed

US = 150  # a step, of each fault: some 10 % of the GPU's step
FREE, BOUND, PROFILED = 2.0, 4.0, 7.0  # how slow the hosts are: ahead, behind with a fault alone, behind
REQUESTS = (1.0, 1.04, 0.97, 1.02)
CLOCKS = (ranks.Clock(), ranks.Clock(3_412_345, 8_000), ranks.Clock(-512_000, -11_000), ranks.Clock(77))
SLEEP, SPIN = "host idle: span scheduler.run_batch", f"GPU work: {ranks.SPIN}"
GLOO = "host idle: waiting in gloo:broadcast"
NAMED = {"sleep": "in span scheduler.run_batch (Python or untraced)", "spin": "at::cuda::spin_kernel"}


def scene(fault: str, rank: int, hosts: float, world: int = 2, **shape: int) -> ranks.RankScenario:
    """Push all-reduces in three graphs, 1.6 ms a step, launched by hosts that jitter each by itself."""
    given = {"steps": 20, "per_leg": 28, "broadcasts": 1, "host": 20_000, "host_jitter": 4_000, **shape}
    given |= {"ranks": world, "gpu_jitter": 150, "noise": 300}
    made = ranks.decode_ranks(kind="push", seam_kind="push", clocks=CLOCKS[:world], **given)
    made = ranks.with_hosts(replace(made, ranks=tuple(with_marks(own) for own in made.ranks)), hosts)
    if fault == "sleep":
        return ranks.sleeping(made, rank, US * 1000)
    return ranks.spinning(made, rank, US * 1000) if fault == "spin" else made


@cache
def found(fault: str, rank: int = 0, hosts: float = PROFILED, world: int = 2) -> Analysis:
    run = ranks.simulate(scene(fault, rank, hosts, world))
    return analyze(Capture("synth", None, None, ranks.to_traces(run)), timelines=False)


@cache
def calibrated(fault: str, rank: int, of: int | None = None) -> tuple[Analysis, float]:
    """The same with requests without the profiler, of all ranks or of one; and their median step, µs."""
    runs = [
        ranks.simulate(scene(fault, rank, FREE * slow, steps=40, seed=9 + request))
        for request, slow in enumerate(REQUESTS)
    ]
    steps = [np.diff(RankView.of(ranks.to_traces(run)[0], load_classes()).steps.start)[4:] for run in runs]
    clocks = {place: step_clock([run.runs[place] for run in runs]) for place in range(2)}
    traces = ranks.to_traces(ranks.simulate(scene(fault, rank, PROFILED)))
    capture = Capture("synth", None, None, traces, Unprofiled((), clocks))
    chosen = None if of is None else [of]
    return analyze(capture, ranks=chosen, timelines=False), float(np.median(np.concatenate(steps))) / 1000


def uneven(its: Analysis) -> tuple[Uneven, ...]:
    assert its.collectives is not None
    return its.collectives.uneven


def causes(its: Analysis, rank: int) -> dict[str, float]:
    assert its.collectives is not None
    late = its.collectives.late[0]
    assert late.rank == rank
    assert sum(late.causes.values()) == pytest.approx(late.wait_us, rel=0.011)
    return late.causes


def gain(its: Analysis, fault: str, rank: int) -> float:
    """What the fix of the fault is said to give, µs per step."""
    (fix,) = [fix for fix in its.fixes if NAMED[fault] in fix.what and fix.what.endswith("as on the others")]
    assert f"on rank {rank} " in fix.what
    assert fix.calibrated or fix.bound == ("upper" if fault == "sleep" else "estimate")
    return fix.us_per_step


@pytest.mark.parametrize("fault", ["sleep", "spin"])
@pytest.mark.parametrize("hosts", [FREE, BOUND, PROFILED])
@pytest.mark.parametrize(("rank", "world"), [(0, 2), (1, 2), (2, 4)])
def test_a_fault_of_one_rank_is_named_with_its_us(fault: str, hosts: float, rank: int, world: int) -> None:
    its = found(fault, rank, hosts, world)
    (more,) = uneven(its)
    assert (more.rank, more.on) == (rank, "host" if fault == "sleep" else "gpu")
    assert more.us == pytest.approx(sum(part.us for part in more.parts))
    (part,) = more.parts
    assert part.what == {"sleep": SLEEP, "spin": SPIN}[fault].partition(": ")[2]
    low, high = part.interval_us
    assert 0 < low <= part.us <= high < part.own_us + 1
    assert low - 5 < US < high + 5
    side = "host takes" if fault == "sleep" else "GPU works"
    assert f"In the trace rank {rank}'s {side} 0.1" in its.verdict.text
    assert f": {NAMED[fault]}" in its.verdict.text
    assert ("what that costs without the profiler is not known" in its.verdict.text) == (fault == "sleep")
    assert its.ranks[its.front].rank == rank
    assert gain(its, fault, rank) == pytest.approx(US, rel=0.1)


@pytest.mark.parametrize("hosts", [FREE, BOUND, PROFILED])
@pytest.mark.parametrize("world", [2, 4])
def test_where_no_rank_does_more_none_is_said_to(hosts: float, world: int) -> None:
    its = found("", 0, hosts, world)
    assert not uneven(its)
    assert "longer in each step" not in its.verdict.text


def test_a_host_that_is_behind_is_late_for_what_it_does_more() -> None:
    """The other hosts do as much of all else, and are only further ahead."""
    its = causes(found("sleep", 1), rank=1)
    assert its[SLEEP] == pytest.approx(US, rel=0.1)
    assert next(iter(its)) == COMMON
    assert all(name.startswith(HOST_IDLE) for name in (SLEEP, COMMON))
    assert sum(us for name, us in its.items() if name not in (SLEEP, COMMON)) < 0.05 * sum(its.values())
    text = found("sleep", 1).verdict.text
    assert "of a step in collectives" in text
    assert text.endswith("whose host is behind, mostly with work that the other hosts do as well.")


def test_each_wait_has_the_causes_that_the_table_adds_up() -> None:
    """Charging them anew takes nothing from one collective to another, nor to what is not the host's."""
    examined = examine(
        Capture("synth", None, None, ranks.to_traces(ranks.simulate(scene("sleep", 1, BOUND))))
    )
    made, joined = examined.joined, settled(examined)
    assert made is not None
    assert joined is not None
    count = len(made.pairing)
    before, after = (np.bincount(its.causes.instance, its.causes.ns, count) for its in (made, joined))
    assert after == pytest.approx(before, abs=1.0)
    shares = (its.causes.share_of(count, HOST_IDLE) for its in (made, joined))
    assert next(shares) == pytest.approx(next(shares), abs=1e-6)
    late = found("sleep", 1, BOUND).collectives
    assert late is not None
    steps = joined.views[1].steps
    its_step = joined.ranks[1].step[joined.pairing.row[:, 1]]
    steady = [row for row in range(len(steps)) if joined.views[1].left_out[row] is None]
    counted = joined.skew.resolved & joined.pairing.blocking & np.isin(its_step, steady)
    sums = joined.causes.sums(np.flatnonzero(counted & (joined.skew.last == 1)))
    for name in (SLEEP, COMMON):
        charged = sums.get(name, 0.0) / len(steady) / 1000
        assert charged == pytest.approx(late.late[0].causes.get(name, 0.0), abs=0.01)


@pytest.mark.parametrize(("hosts", "named"), [(BOUND, SLEEP), (PROFILED, COMMON)])
def test_the_timeline_tells_the_cause_that_leads_the_table(hosts: float, named: str) -> None:
    traces = ranks.to_traces(ranks.simulate(scene("sleep", 1, hosts)))
    line = analyze(Capture("synth", None, None, traces)).rank_timeline
    assert line is not None
    shared = line.collectives
    told = shared.cause[(shared.last == 1) & (shared.cause_ns > 5_000)]
    assert {line.names[row] for row in told.tolist()} == {named}


def test_a_delay_that_the_queue_hides_at_first_is_still_the_cause() -> None:
    """The GPU runs out of work in what the host does long after it slept."""
    its = causes(found("sleep", 1, BOUND), rank=1)
    host = {name: us for name, us in its.items() if name.startswith("host idle: ")}
    assert its[SLEEP] > 0.9 * (sum(host.values()) + its.get(COMMON, 0.0))
    assert next(iter(its)) == SLEEP


@pytest.mark.parametrize("rank", [0, 1])
def test_work_of_one_gpu_makes_the_others_wait(rank: int) -> None:
    its = causes(found("spin", rank, FREE), rank)
    assert its[SPIN] == pytest.approx(US, rel=0.05)


@pytest.mark.parametrize("fault", ["sleep", "spin"])
@pytest.mark.parametrize("hosts", [FREE, BOUND, PROFILED])
def test_clocks_are_within_their_residuals(fault: str, hosts: float) -> None:
    run = ranks.simulate(scene(fault, 1, hosts))
    joined = join_ranks(tuple(RankView.of(trace, load_classes()) for trace in ranks.to_traces(run)))
    assert joined is not None
    clock = joined.clocks[1]
    offset, _ = ranks.find(run).relative(1, 0, clock.t0)
    assert abs(clock.offset - offset) < clock.residual
    assert clock.low < offset < clock.high


@pytest.mark.parametrize("rank", [0, 1])
def test_without_the_profiler_the_gpu_with_more_work_sets_the_step(rank: int) -> None:
    its, step = calibrated("spin", rank)
    assert its.calibration is not None
    assert (its.calibration.status, its.calibration.rank) == ("calibrated", rank)
    assert its.calibration.predicted_step_us is not None
    assert its.calibration.predicted_step_us.value == pytest.approx(step, rel=0.01)
    assert gain(its, "spin", rank) == pytest.approx(US, rel=0.1)
    assert next(iter(its.fixes)).calibrated
    assert its.calibration.even_us["gpu"].value == pytest.approx(US, rel=0.1)
    assert re.search(r"spin_kernel; without the profiler that costs 0\.1\d ms\.", its.verdict.text)


def test_what_a_host_does_more_costs_nothing_while_it_is_ahead() -> None:
    its, _ = calibrated("sleep", 1)
    assert its.calibration is not None
    assert (its.calibration.status, its.calibration.rank) == ("calibrated", 1)
    assert not any(NAMED["sleep"] in fix.what for fix in its.fixes)
    assert its.calibration.even_us["host"].value < 5
    assert "In the trace rank 1's host takes 0.1" in its.verdict.text
    assert "; without the profiler that costs less than 0.01 ms." in its.verdict.text


def test_without_the_profiler_no_rank_waits_for_the_hosts_that_it_slowed() -> None:
    """In the trace rank 0 waits a third of each step for the host of rank 1."""
    its, step = calibrated("sleep", 1, of=0)
    assert its.ranks[0].main.step_us is not None
    assert (its.ranks[0].main.step_us.collective_wait or 0.0) > 0.3 * its.ranks[0].main.step_us.wall
    assert its.calibration is not None
    assert (its.calibration.status, its.calibration.rank) == ("calibrated", 0)
    assert its.calibration.predicted_step_us is not None
    assert its.calibration.predicted_step_us.value == pytest.approx(step, rel=0.01)
    collectives = next(fix for fix in its.fixes if fix.what.startswith("make collective kernels"))
    assert collectives.us_per_step < 0.2 * step  # waiting in them is no work to be made faster
    assert "collective first" not in its.verdict.text


@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_host_is_told_from_one_that_does_more(slow: int) -> None:
    """All that it does takes 1.25 times as long."""
    made = scene("", 0, PROFILED)
    own = tuple(slowed(its, 1.25) if r == slow else its for r, its in enumerate(made.ranks))
    run = ranks.simulate(replace(made, ranks=own))
    its = analyze(Capture("synth", None, None, ranks.to_traces(run)), timelines=False)
    assert its.collectives is not None
    (more,) = its.collectives.uneven
    assert (more.rank, more.on) == (slow, "host")
    assert pace(more) == pytest.approx(1.25, abs=0.03)
    assert named(more).startswith("in nearly all it does, 1.2")
    for part in more.parts:
        assert pace(replace(more, parts=(replace(part, us=part.us * 9), *more.parts[:3]))) is None
    sleeping = found("sleep", slow).collectives
    assert sleeping is not None
    assert [pace(one) for one in sleeping.uneven] == [None]


def test_steps_are_matched_where_records_begin_and_end_apart() -> None:
    captures = (ranks.Capture(skip=100), ranks.Capture(stop=1_500))
    run = ranks.simulate(replace(scene("", 0, FREE), captures=captures))
    joined = join_ranks(tuple(RankView.of(trace, load_classes()) for trace in ranks.to_traces(run)))
    assert joined is not None
    truth = ranks.find(run)
    matched = joined.steps[(joined.steps >= 0).all(axis=1)]
    assert len(matched) > 10
    for steps in matched.tolist():
        true = []
        for r, step in enumerate(steps):
            rows = truth.rows[r][joined.ranks[r].op[joined.ranks[r].step == step]]
            true.append({truth.instances[row].step for row in rows.tolist()})
        assert len(true[0]) == 1
        assert true[0] == true[1]


@pytest.mark.parametrize(
    ("causes", "excess", "sustained", "expected"),
    [
        ({"host idle: api": 90.0}, {"api": 30.0}, (), {"host idle: api": 30.0, COMMON: 60.0}),
        ({"host idle: api": 90.0}, {"api": 500.0}, (), {"host idle: api": 90.0}),
        ({"host idle: api": 90.0}, {"api": -5.0}, (), {COMMON: 90.0}),
        ({"host idle: api": 90.0}, {}, (), {"host idle: api": 90.0}),
        (
            {"host idle: api": 90.0, "GPU work: k": 5.0},
            {"api": 10.0, "span a": 70.0},
            ("span a",),
            {"host idle: span a": 70.0, "host idle: api": 10.0, COMMON: 10.0, "GPU work: k": 5.0},
        ),
        (
            {"host idle: api": 90.0},
            {"api": 60.0, "span a": 60.0},
            ("span a",),
            {"host idle: span a": 60.0, "host idle: api": 30.0},
        ),
        (
            {
                "host idle: waiting in gloo:broadcast": 8.0,
                "host idle: waiting in gloo:broadcast for rank 0": 3.0,
            },
            {"api": 1.0},
            (),
            {COMMON: 8.0, "host idle: waiting in gloo:broadcast for rank 0": 3.0},
        ),
        (
            {"host idle: api": 90.0, "host idle: waiting in gloo:broadcast for rank 2": -50.0},
            {"api": 30.0},
            (),
            {"host idle: api": 30.0, COMMON: 10.0},
        ),
    ],
)
def test_a_late_host_owes_what_it_does_beyond_the_others(
    causes: dict[str, float],
    excess: dict[str, float],
    sustained: tuple[str, ...],
    expected: dict[str, float],
) -> None:
    assert owed_to_excess(2, causes, excess, sustained) == pytest.approx(expected)


def correlated(rng: np.random.Generator, steps: int, rho: float) -> F64:
    """One difference between ranks over the steps, without any in truth: as much like the step before, of
    variance 1."""
    noise = rng.standard_normal(steps)
    for i in range(1, steps):
        noise[i] = rho * noise[i - 1] + np.sqrt(1 - rho * rho) * noise[i]
    return noise


MARGIN = 1000.0  # ns of a step, below which a difference is not worth telling


def steps_of(**ns: float) -> tuple[list[str], F64]:
    """Twenty steps of these times, each with its own jitter of some ns."""
    jitter = np.random.default_rng(1).normal(0, 20, (20, len(ns)))
    table = np.array(list(ns.values()))[None, :] + jitter
    table[:, np.array(list(ns.values())) == 0] = 0
    return list(ns), table


@pytest.mark.parametrize(
    ("own", "others", "found"),
    [
        pytest.param({"a": 0, "b": 250_000}, {"a": 250_000, "b": 0}, {}, id="renamed"),
        pytest.param({"a": 0, "b": 300_000}, {"a": 250_000, "b": 0}, {"b": 50}, id="renamed and slower"),
        pytest.param(
            {"a": 0, "b": 240_000, "s": 400_000}, {"a": 250_000, "b": 0, "s": 0}, {"s": 400}, id="beside"
        ),
        pytest.param({"a": 100_000, "b": 70_000}, {"a": 180_000, "b": 0}, {}, id="less in all"),
        pytest.param(
            {"a": 100_000, "b": 70_000}, {"a": 180_000, "b": 20_000}, {"b": 50}, id="a part of both"
        ),
        pytest.param({"a": 100_000, "s": 70_000}, {"a": 100_000, "s": 0}, {"s": 70}, id="alone"),
    ],
)
def test_work_under_another_name_is_no_more_work(
    own: dict[str, float], others: dict[str, float], found: dict[str, float]
) -> None:
    names, mine = steps_of(**own)
    parts = beyond(names, mine, steps_of(**others)[1], MARGIN)
    assert {part.what: part.us for part in parts} == pytest.approx(found, abs=0.05)


@pytest.mark.parametrize(("spinning", "named"), [((1,), (1,)), ((0, 2), (0, 2)), ((0, 1, 3), ())])
def test_of_many_ranks_that_do_more_none_stands_out(
    spinning: tuple[int, ...], named: tuple[int, ...]
) -> None:
    made = scene("clean", 0, PROFILED, 4)
    for rank in spinning:
        made = ranks.spinning(made, rank, US * 1000)
    run = ranks.simulate(made)
    its = analyze(Capture("synth", None, None, ranks.to_traces(run)), timelines=False).collectives
    assert its is not None
    assert sorted(one.rank for one in its.uneven) == list(named)
    assert [one.us for one in its.uneven] == pytest.approx([US] * len(named), rel=0.02)


@pytest.mark.parametrize(("rho", "at_most"), [(0.0, 0.002), (0.8, 0.01), (0.95, 0.09)])
def test_steps_that_hang_together_are_less_evidence(rho: float, at_most: float) -> None:
    """As if they were independent 6 % of such causes would be named at 0.8, and a quarter at 0.95."""
    rng = np.random.default_rng(1)
    more = np.stack([correlated(rng, 100, rho) for _ in range(1_000)], axis=1)
    names = [str(i) for i in range(more.shape[1])]
    assert len(beyond(names, more, np.zeros_like(more), 0.0)) <= at_most * len(names)
    sure = beyond(names, more + 10, np.zeros_like(more), 0.0)
    assert len(sure) > 0.99 * len(names)
    assert all(0 < part.interval_us[0] < part.us < part.interval_us[1] for part in sure)


@pytest.mark.parametrize("seed", range(40))
def test_charged_causes_add_up(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = ("host idle: api", "host idle: span a", "GPU work: k", "host idle: gc", f"{GLOO} for rank 3")
    entries = [(i, c) for i in range(12) for c in range(len(names)) if rng.random() < 0.8]
    instance, cause = np.array(entries, np.int64).T
    causes = Causes(instance, cause, rng.normal(40, 60, len(entries)), names)
    rows = np.arange(0, 12, 2)
    excess = {"api": rng.normal(50, 200), "span a": rng.normal(200, 200), "gc": 0.0}
    owed = owed_to_excess(3, causes.sums(rows), excess, ["span a"])
    made = causes.charged(rows, owed)
    assert np.bincount(made.instance, made.ns) == pytest.approx(np.bincount(instance, causes.ns))
    for name, ns in made.sums(rows).items():
        assert ns == pytest.approx(owed.get(name, 0.0), abs=1e-6)
    left = np.arange(1, 12, 2)
    assert made.sums(left) == pytest.approx(causes.sums(left))
