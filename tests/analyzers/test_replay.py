"""The discrete-event model: against traces that it was made of, and against simulations of other hosts."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from latencylab import traces
from latencylab.analyzers import analyze, examine, kind_in_front
from latencylab.analyzers.calibration import wait_by_op
from latencylab.analyzers.host_map import profiled
from latencylab.analyzers.replay import Program, Scenarios, Times, replay, step_starts
from latencylab.analyzers.replay_build import FEWEST_STEPS, build_program
from latencylab.analyzers.replay_idle import replayed_idle
from latencylab.analyzers.replay_order import stream_waits
from latencylab.analyzers.view import RankView
from latencylab.model.capture import Capture
from synth import (
    Action,
    Leg,
    Scenario,
    Shape,
    StreamSync,
    decode_loop,
    ranks,
    simulate,
    slowed,
    to_trace,
    with_marks,
)
from synth.clock import slower_gpu
from synth.strategies import decode_loops
from synth.transform import rewritten

SAMPLES = Path(__file__).parents[2] / "traces" / "samples"
NAMES = ("nextn", "nextn-host-stall", "dspark")
STEPS = 14
EXTEND = Leg("draft_extend", nodes=1, node_dur=10_000, seam_kernels=1)  # too short to hide a wait before it
# On the GPU 11 * 60 µs of graphs a step; the host takes about 0.4 ms a step at host=10_000.
LEGS = (
    Leg("draft", nodes=3, node_dur=60_000, metadata_graph=2),
    Leg("step[VERIFY bs=1]", nodes=6, node_dur=60_000),
    Leg("draft_extend", nodes=2, node_dur=60_000, seam_kernels=1),
)


def loop(host: int, *, stall: bool = False) -> Scenario:
    """A slow host's trace alone cannot say which of the newest copies a wait was for; marks do."""
    legs = (*LEGS[:2], EXTEND) if stall else LEGS
    return with_marks(decode_loop(["nextn"] * STEPS, Shape(host=host, legs=legs, stall=stall)))


def view_of(scenario: Scenario) -> RankView:
    return examine(Capture("synth", None, None, (to_trace(simulate(scenario)),))).views[0]


def program_of(view: RankView) -> Program:
    program = build_program(view)
    assert program is not None
    return program


def played(program: Program, host: float = 1.0, gpu: float = 1.0, **more: object) -> Times:
    scenarios = Scenarios(np.full((len(program.sorts), 1), host), np.array([gpu]), **more)  # type: ignore[arg-type]
    return replay(program, scenarios)


def lengths(program: Program, times: Times) -> np.ndarray:
    return np.diff(step_starts(program, times)[:, 0])


@cache
def sample(name: str) -> tuple[RankView, Program]:
    view = examine(traces.open_capture([SAMPLES / name], cache=False)).views[0]
    return view, program_of(view)


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_replayed_unchanged_is_the_trace(name: str) -> None:
    view, program = sample(name)
    base = profiled(program)
    times = replay(program, base)
    steady = np.array([i for i, cause in enumerate(view.left_out) if cause is None])
    traced = np.diff(view.steps.start)
    assert np.median(lengths(program, times)[steady]) == pytest.approx(np.median(traced[steady]), rel=0.01)
    assert np.abs(lengths(program, times) - traced)[steady].max() < 0.01 * np.median(traced)
    sites = tuple(str(site) for site in view.waits.sites)
    idle = replayed_idle(program, times, base, 0, steady, sites)
    parts = analyze(traces.open_capture([SAMPLES / name], cache=False), timelines=False).ranks[0].main.step_us
    assert parts is not None
    assert idle.host / 1000 == pytest.approx(parts.idle_host, rel=0.05)
    assert idle.gpu / 1000 == pytest.approx(parts.idle_gpu, rel=0.05)
    assert idle.host == pytest.approx(sum(idle.blame.values()), rel=1e-6)


def test_thirty_steps_replay_at_once() -> None:
    _, program = sample("nextn-host-stall")
    begun = time.process_time()
    played(program)
    assert time.process_time() - begun < 2


@pytest.mark.parametrize("stall", [False, True])
@pytest.mark.parametrize("host", [3_000, 30_000])
def test_a_simulation_replayed_unchanged_is_itself(host: int, stall: bool) -> None:
    view = view_of(loop(host, stall=stall))
    program = program_of(view)
    times = played(program)
    ops = np.flatnonzero(program.op >= 0)
    true = view.trace.gpu.start[program.op[ops]] - program.origin
    assert np.abs(times.start[ops, 0] - true).max() < 1
    calls = np.flatnonzero(program.awaits >= 0)
    assert len(calls) >= STEPS - 1
    assert np.abs(times.begin[calls, 0] - program.start[calls]).max() < 1


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(decode_loops())
def test_any_loop_replayed_unchanged_is_itself(scenario: Scenario) -> None:
    view = view_of(scenario)
    program = build_program(view)
    if program is None:
        assert len(view.steps) < FEWEST_STEPS
        return
    times = played(program)
    ops = np.flatnonzero(program.op >= 0)
    true = view.trace.gpu.start[program.op[ops]] - program.origin
    assert np.abs(times.start[ops, 0] - true).max() < 1


@pytest.mark.parametrize("stall", [False, True])
@pytest.mark.parametrize(
    ("host", "bound"), [(4_000, "gpu"), (20_000, "gpu"), (40_000, "gpu"), (80_000, "host")]
)
def test_a_faster_host_is_as_simulated(host: int, bound: str, stall: bool) -> None:
    """The trace is of a host half as fast; replayed at twice its speed it is the faster host's run."""
    truth = view_of(loop(host, stall=stall))
    program = program_of(view_of(slowed(loop(host, stall=stall), 2.0)))
    replayed, slow = lengths(program, played(program, 0.5)), lengths(program, played(program))
    true = np.diff(truth.steps.start)
    assert np.median(replayed[4:]) == pytest.approx(np.median(true[4:]), rel=0.02)
    if bound == "host":
        assert np.median(slow[4:]) > 1.5 * np.median(true[4:])


def test_a_faster_gpu_is_as_simulated() -> None:
    truth = view_of(loop(4_000))
    program = program_of(view_of(slower_gpu(loop(4_000), 1.1)))
    replayed = lengths(program, played(program, gpu=1 / 1.1))
    assert np.median(replayed[4:]) == pytest.approx(np.median(np.diff(truth.steps.start)[4:]), rel=0.01)


def without_sync(action: Action) -> list[Action]:
    return [] if isinstance(action, StreamSync) else [action]


def test_without_a_wait_as_simulated_without_it() -> None:
    """In the slow trace the call finds the copy done; on the faster host it is what makes the step longer."""
    stalling = loop(20_000, stall=True)
    view = view_of(slowed(stalling, 2.5))
    program = program_of(view)
    site = next(i for i, s in enumerate(view.waits.sites) if s.api == "cudaStreamSynchronize")
    keeps = np.ones((len(view.waits.sites), 1), bool)
    with_it = np.median(lengths(program, played(program, 0.4, keeps=keeps))[4:])
    keeps[site] = False
    without = np.median(lengths(program, played(program, 0.4, keeps=keeps))[4:])
    true_with = np.median(np.diff(view_of(stalling).steps.start)[4:])
    true_without = np.median(np.diff(view_of(rewritten(stalling, without_sync)).steps.start)[4:])
    assert true_with > 1.05 * true_without
    assert with_it == pytest.approx(true_with, rel=0.02)
    assert without == pytest.approx(true_without, rel=0.02)


def test_marks_tell_what_an_op_waits_for() -> None:
    """The stall's copy waits for the last step's result, which is there before its draft extend."""
    view = view_of(loop(8_000, stall=True))
    launches, gpu = view.launches, view.trace.gpu
    waits = stream_waits(view.trace, launches)
    copies = [i for i in waits if gpu.bytes[launches.first_op[i]] == 16]
    assert len(copies) == STEPS - 1
    for copy in copies:
        (dependency,) = waits[copy]
        on = gpu.stream[launches.first_op[dependency]]
        later = [i for i in range(dependency + 1, copy) if gpu.stream[launches.first_op[i]] == on]
        assert sum(bool(launches.graph[i]) for i in later) == 1  # the extend graph alone


def test_without_marks_nothing_newer_than_the_trace_allows() -> None:
    view = view_of(decode_loop(["nextn"] * STEPS, Shape(host=8_000, legs=LEGS, stall=True)))
    launches, gpu = view.launches, view.trace.gpu
    waits = stream_waits(view.trace, launches)
    assert waits
    for launch, others in waits.items():
        for other in others:
            assert launches.done[other] <= gpu.start[launches.first_op[launch]] + 1_000


def test_too_little_to_replay() -> None:
    view = view_of(decode_loop(["nextn"] * 3, Shape(legs=LEGS)))
    assert build_program(view) is None


def test_without_waits_for_other_ranks_the_step_is_shorter_by_them() -> None:
    """Rank 2 is late by 30 µs in every step, and all else alike: the others' steps are so much longer."""
    late = ranks.Inject(2, None, 4, "kernel", 30_000)
    run = ranks.simulate(ranks.decode_ranks(steps=11, host=1_000, injects=(late,)))
    examined = examine(Capture("ranks", None, None, ranks.to_traces(run)))
    view = kind_in_front(examined, ranks=[0])
    wait = wait_by_op(view, examined.joined)
    assert wait is not None
    program = build_program(view.rank, wait)
    assert program is not None
    alone = lengths(program, played(program, peers=np.zeros(1)))[3:-1]
    shorter = np.median(lengths(program, played(program))[3:-1]) - np.median(alone)
    waited = np.bincount(view.rank.steps.of_gpu(view.rank.trace.gpu.start), wait.ns)[3:-1]
    assert shorter == pytest.approx(np.median(waited), rel=0.05)
    assert shorter > 30_000
