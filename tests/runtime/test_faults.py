"""Each fault does, in a toy engine, what it says, where it says, and only on the rank that it is for."""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from standin.engine import LEG_US, Parallel, Toy, make_toy

from latencylab.model.unprofiled import StepClock
from latencylab.runtime import control
from latencylab.runtime.control import state_path
from latencylab.runtime.faults import Injector, parse_faults
from latencylab.traces.bundle import read_clock

STEPS = 30
ALGORITHMS = pytest.mark.parametrize("algorithm", [None, "NEXTN", "DSPARK"])


def _run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    algorithm: str | None,
    faults: str,
    *,
    rank: int = 0,
    clock: bool = True,
) -> tuple[Toy, StepClock | None]:
    toy = make_toy(algorithm, parallel=Parallel(tp_rank=rank, tp_size=4))
    env = {"LATENCYLAB_DIR": str(tmp_path), "LATENCYLAB_FAULTS": faults, "LATENCYLAB_STRICT": "1"}
    toy.install(monkeypatch, {**env, "LATENCYLAB_CLOCK": "1"} if clock else env)
    toy.inbox = [("a", STEPS, 1)]
    toy.run()
    return toy, read_clock(tmp_path, rank)


def _state(tmp_path: Path, rank: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(state_path(tmp_path, rank).read_text())["faults"]
    return found


def _median_us(clock: StepClock | None, span: str) -> float:
    assert clock is not None
    rows = np.array(clock.span) == span
    return float(np.median((clock.end_ns - clock.start_ns)[rows])) / 1000


@ALGORITHMS
def test_lengths_are_asked_for_once_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str | None
) -> None:
    toy, clock = _run(tmp_path, monkeypatch, algorithm, "kda-cpu-seq-lens")
    assert _state(tmp_path) == {"kda-cpu-seq-lens": {"rank": -1, "active": True}}
    wanted = STEPS if algorithm else 0  # without a draft the host knows them
    assert toy.gpu.calls.count("stream.synchronize") == wanted
    assert clock is not None
    assert clock.span.count("ll.wait.stream_synchronize") == wanted


def test_lengths_are_not_asked_for_without_the_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy, _ = _run(tmp_path, monkeypatch, "NEXTN", "")
    assert toy.gpu.calls.count("stream.synchronize") == 0


@ALGORITHMS
def test_item_reads_once_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str | None
) -> None:
    toy, clock = _run(tmp_path, monkeypatch, algorithm, "item")
    assert toy.gpu.calls.count("item") == STEPS + 1
    assert clock is not None
    steps = clock.step[np.array(clock.span) == "ll.wait.item"]
    assert steps.tolist() == list(range(STEPS + 1))
    # Published once the verify is launched, so the read waits for that leg.
    waited = clock.waiting_ns[np.array(clock.span) == "ll.wait.item"]
    assert np.median(waited) > 0.3 * LEG_US * 1000


def test_gc_collects_every_so_many_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda *_: collected.append(1))
    _run(tmp_path, monkeypatch, "NEXTN", "gc:every=7", clock=False)
    assert len(collected) == 1 + STEPS // 7


@ALGORITHMS
@pytest.mark.parametrize("busy", [0, 1])
def test_sleep_delays_each_run_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str | None, busy: int
) -> None:
    _, clock = _run(tmp_path, monkeypatch, algorithm, f"sleep:us=2000,busy={busy}")
    assert clock is not None
    rows = np.array(clock.span) == "ll.step"
    assert ((clock.end_ns - clock.start_ns)[rows] > 2_000_000).all()
    cpu = float(np.median(clock.cpu_ns[rows]))
    assert cpu > 1_000_000 if busy else cpu < 1_500_000


def test_a_fault_of_another_rank_does_nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, clock = _run(tmp_path, monkeypatch, "NEXTN", "sleep:us=20000,rank=1;gpu-work:us=9000,rank=2", rank=3)
    assert _median_us(clock, "ll.step") < 15_000
    states = _state(tmp_path, 3)
    assert {name: state["active"] for name, state in states.items()} == {"sleep": False, "gpu-work": False}


@ALGORITHMS
def test_gpu_work_comes_before_the_first_leg_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str | None
) -> None:
    toy, clock = _run(tmp_path, monkeypatch, algorithm, "gpu-work:us=400,rank=1", rank=1)
    assert _state(tmp_path, 1)["gpu-work"]["cycles_per_us"] == pytest.approx(2000, rel=0.05)
    done = toy.gpu.slept_us[2:]  # the first two measure the kernel
    # A prefill has a leg in NEXTN (draft extend) and, where the worker is the target's, in plain decode.
    assert len(done) in (STEPS, STEPS + 1)
    assert done == pytest.approx([400] * len(done), rel=0.05)
    assert clock is not None
    first = {None: "ll.decode", "NEXTN": "ll.draft", "DSPARK": "ll.draft"}[algorithm]
    legs = {None: 1, "NEXTN": 3, "DSPARK": 2}[algorithm]
    starts = clock.gpu_start_ns[np.array(clock.span) == first]
    assert float(np.median(np.diff(starts))) / 1000 >= 0.95 * (400 + legs * LEG_US)


def test_faults_work_without_clock_and_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy, clock = _run(tmp_path, monkeypatch, "NEXTN", "item", clock=False)
    assert clock is None
    assert toy.gpu.calls.count("item") == STEPS + 1


# Switched while the server runs


def _switched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy: Toy, cases: Sequence[str | None], start: str = ""
) -> list[dict[str, Any]]:
    """Serve a request as it was started, then one after each command; what each request came to.

    A case is the faults of the command; None is a command that leaves them be.
    """
    monkeypatch.setattr("latencylab.runtime.recorder.POLL_NS", 0)
    toy.install(monkeypatch, {"LATENCYLAB_DIR": str(tmp_path), "LATENCYLAB_FAULTS": start})
    found: list[dict[str, Any]] = []
    before: dict[str, int] = {}
    waiting = list(cases)

    def on_idle(scheduler: Any, turn: int) -> None:
        if turn == 10 and toy.turns == (len(found) + 1) * (STEPS + 1):
            now = {name: toy.gpu.calls.count(name) for name in ("item", "stream.synchronize")}
            now |= {"gpu-work": len(toy.gpu.slept_us)}
            found.append(
                {name: count - before.get(name, 0) for name, count in now.items()}
                | {"needed": scheduler.future_map.needs_cpu_seq_lens, "state": _state(tmp_path)}
            )
            before.update(now)
            if waiting:
                control.write_control(tmp_path, clock=False, write=False, faults=waiting.pop(0))
                toy.inbox.append(("next", STEPS, 1))
                toy.idle_turns = 0  # the command is obeyed some turns before the request comes

    toy.on_idle = on_idle
    toy.inbox = [("first", STEPS, 1)]
    toy.run()
    assert len(found) == len(cases) + 1
    return found


def test_a_fault_comes_and_goes_with_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = ["item", None, "kda-cpu-seq-lens", "", "item;kda-cpu-seq-lens"]
    found = _switched(tmp_path, monkeypatch, make_toy("NEXTN"), cases)
    assert [each["item"] for each in found] == [0, STEPS + 1, STEPS + 1, 0, 0, STEPS + 1]
    assert [each["stream.synchronize"] for each in found] == [0, 0, 0, STEPS, 0, STEPS]
    assert [each["needed"] for each in found] == [False, False, False, True, False, True]
    assert [sorted(each["state"]) for each in found] == [
        [],
        ["item"],
        ["item"],
        ["kda-cpu-seq-lens"],
        [],
        ["item", "kda-cpu-seq-lens"],
    ]


def test_a_fault_of_the_start_goes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _switched(tmp_path, monkeypatch, make_toy("NEXTN"), [""], "item;kda-cpu-seq-lens")
    assert [(each["item"], each["stream.synchronize"]) for each in found] == [(STEPS + 1, STEPS), (0, 0)]
    assert [each["needed"] for each in found] == [True, False]


def test_lengths_that_were_needed_without_the_fault_stay_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = make_toy("NEXTN")
    toy.needs_cpu_seq_lens = True
    found = _switched(tmp_path, monkeypatch, toy, ["kda-cpu-seq-lens", ""])
    assert [each["stream.synchronize"] for each in found] == [STEPS, STEPS, STEPS]
    assert [each["needed"] for each in found] == [True, True, True]


def test_a_scheduler_is_not_touched_without_the_fault() -> None:
    Injector(0).switch(parse_faults("item;gc:every=5"), scheduler=object())


def test_the_spin_kernel_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _switched(
        tmp_path, monkeypatch, make_toy("NEXTN"), ["gpu-work:us=300", "", "gpu-work:us=100,rank=0"]
    )
    measuring, steps = 2, STEPS + 1
    assert [each["gpu-work"] for each in found] == [0, measuring + steps, 0, steps]
    again = found[3]["state"]["gpu-work"]
    assert again["cycles_per_us"] == found[1]["state"]["gpu-work"]["cycles_per_us"] > 0
    assert (again["us"], again["rank"], again["active"]) == (100, 0, True)


def test_a_fault_switched_on_for_another_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _switched(tmp_path, monkeypatch, make_toy("NEXTN"), ["gpu-work:us=300,rank=1"])
    assert found[1]["gpu-work"] == 0
    assert found[1]["state"] == {"gpu-work": {"us": 300, "rank": 1, "active": False}}


@pytest.mark.parametrize("text", ["nonsense", "item;sleep", "gc:every=0", "item:us=1"])
def test_a_command_with_an_unknown_fault_leaves_them_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    with caplog.at_level(logging.WARNING):
        found = _switched(tmp_path, monkeypatch, make_toy("NEXTN"), [text, ""], "kda-cpu-seq-lens")
    assert [each["stream.synchronize"] for each in found] == [STEPS, STEPS, 0]
    assert [sorted(each["state"]) for each in found] == [["kda-cpu-seq-lens"], ["kda-cpu-seq-lens"], []]
    warnings = [
        record.getMessage() for record in caplog.records if record.name == "latencylab.runtime.session"
    ]
    assert len(warnings) == 1
    assert warnings[0].startswith("latencylab: fault ")
    obeyed = control.read_json(control.obeyed_path(tmp_path, 0))
    assert obeyed is not None
    assert obeyed["sequence"] == 2  # it answers, so that nobody waits for it in vain
