"""Each fault does, in a toy engine, what it says, where it says, and only on the rank that it is for."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from standin.engine import LEG_US, Parallel, Toy, make_toy

from latencylab.model.unprofiled import StepClock
from latencylab.runtime.control import state_path
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


def test_kda_asks_for_lengths_before_the_scheduler_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = make_toy("NEXTN")
    backend = toy.modules["sglang.srt.layers.attention.linear.kda_backend"].KDAAttnBackend
    decided: list[bool] = []
    future_map = toy.modules["sglang.srt.managers.overlap_utils"].FutureMap
    make = future_map.__init__

    def decide(self: Any) -> None:
        decided.append(backend.needs_cpu_seq_lens)
        make(self)

    monkeypatch.setattr(future_map, "__init__", decide)
    toy.install(monkeypatch, {"LATENCYLAB_DIR": str(tmp_path), "LATENCYLAB_FAULTS": "kda-cpu-seq-lens"})
    toy.run()
    assert decided == [True]
    assert _state(tmp_path) == {"kda-cpu-seq-lens": {"active": True}}


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
