"""The plugin in a toy engine: what it records, what it refuses, and that off means off."""

from __future__ import annotations

import gc
import json
import pkgutil
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from standin.engine import Parallel, Toy, make_toy

from latencylab.model.unprofiled import StepClock
from latencylab.runtime import control, step_clock
from latencylab.runtime.plugin import LOOP
from latencylab.traces.bundle import read_clock

STEPS = 40
LEGS = {None: ["decode"], "NEXTN": ["draft", "verify", "extend"], "DSPARK": ["draft", "verify"]}
ALGORITHMS = pytest.mark.parametrize("algorithm", list(LEGS))


@pytest.fixture(autouse=True)
def in_detail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step in detail, so that all rows can be counted."""
    monkeypatch.setattr(step_clock, "DETAIL_EVERY", step_clock.DETAIL_STEPS)


def _toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str | None = "NEXTN", **env: str) -> Toy:
    toy = make_toy(algorithm)
    variables = {f"LATENCYLAB_{name}": text for name, text in {"DIR": str(tmp_path), **env}.items()}
    toy.install(monkeypatch, variables)
    return toy


def _state(tmp_path: Path, rank: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(control.state_path(tmp_path, rank).read_text())
    return found


def _clock(tmp_path: Path, rank: int = 0) -> StepClock:
    clock = read_clock(tmp_path, rank)
    assert clock is not None
    return clock


def _rows(clock: StepClock, span: str) -> Any:
    return np.flatnonzero(np.array(clock.span) == span)


@ALGORITHMS
def test_every_hook_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str | None) -> None:
    toy = _toy(tmp_path, monkeypatch, algorithm, CLOCK="1", STRICT="1")
    toy.run()
    assert toy.registry.failures == {}
    state = _state(tmp_path)
    assert set(state["hooks"].values()) == {"took"}
    assert state["server_args"] == {"speculative_algorithm": algorithm, "tp_size": 1}
    assert state["gpu"] == "Fake H200"
    assert state["env"]["LATENCYLAB_CLOCK"] == "1"


@ALGORITHMS
def test_the_clock_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str | None) -> None:
    toy = _toy(tmp_path, monkeypatch, algorithm, CLOCK="1")
    toy.inbox = [("a", STEPS, 2), ("b", STEPS, 1)]
    began = time.time_ns()
    toy.run()
    clock = _clock(tmp_path)
    counts = Counter(clock.span)
    total = 2 * STEPS + 3
    assert counts["ll.step"] == total == len(set(clock.step[_rows(clock, "ll.step")].tolist()))
    for leg in LEGS[algorithm]:
        at_prefill = 3 if leg == "extend" else 0
        assert counts[f"ll.{leg}"] == 2 * STEPS + at_prefill
        assert counts[f"ll.replay.{leg}"] == 2 * STEPS
    prepared = {None: 1, "NEXTN": 3, "DSPARK": 2}[algorithm]
    assert counts["ll.prepare"] == 2 * STEPS * prepared
    assert counts["ll.replay.metadata"] == 2 * STEPS * (prepared if algorithm != "NEXTN" else 1)
    for name in ("resolve_seq_lens", "publish", "stash", "copy_result", "process_result"):
        assert counts[f"ll.{name}"] == total
    assert counts["ll.wait.event_synchronize"] == total
    # An idle engine turns its loop dozens of times; only the turns that ran a step are kept.
    assert counts["ll.receive"] <= total + 4
    assert counts["ll.idle"] == 2
    assert counts["ll.probe"] == 1 + (total - 1) // 32

    steps = _rows(clock, "ll.step")
    kinds = [clock.kind[row] for row in steps]
    word = {None: "decode", "NEXTN": "NEXTN", "DSPARK": "DSpark"}[algorithm]
    assert kinds == ["prefill"] * 2 + [word] * STEPS + ["prefill"] + [word] * STEPS
    assert clock.request[steps].tolist() == [0] * (STEPS + 2) + [1] * (STEPS + 1)
    assert (clock.cpu_ns[steps] > 0).all()
    assert (clock.end_ns >= clock.start_ns).all()
    assert began < clock.start_ns[steps].min() <= clock.end_ns[steps].max() < time.time_ns()


def test_only_some_steps_are_recorded_in_detail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_clock, "DETAIL_EVERY", 20)
    toy = _toy(tmp_path, monkeypatch, CLOCK="1")
    toy.inbox = [("a", STEPS, 1)]
    toy.run()
    clock = _clock(tmp_path)
    assert clock.step[_rows(clock, "ll.step")].tolist() == list(range(STEPS + 1))
    # The result of the last step is read in a turn without one.
    assert len(_rows(clock, "ll.wait.event_synchronize")) in (STEPS, STEPS + 1)
    detailed = {step for step in range(STEPS + 1) if step % 20 < step_clock.DETAIL_STEPS}
    for span in ("ll.verify", "ll.replay.verify", "ll.prepare", "ll.publish"):
        assert set(clock.step[_rows(clock, span)].tolist()) - {0} == detailed - {0}, span


def test_no_hook_within_steps_is_left_once_the_loop_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = _toy(tmp_path, monkeypatch, CLOCK="1")
    toy.inbox = [("a", STEPS, 1)]
    toy.run()
    worker = pkgutil.resolve_name("sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2")
    assert not hasattr(worker.verify, "__wrapped__")
    assert _rows(_clock(tmp_path), "ll.verify").size == STEPS


def test_spans_of_a_step_lie_within_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = _toy(tmp_path, monkeypatch, CLOCK="1")
    toy.inbox = [("a", STEPS, 1)]
    toy.run()
    clock = _clock(tmp_path)
    for step in _rows(clock, "ll.step"):
        inside = [
            row
            for row in np.flatnonzero(clock.step == clock.step[step])
            if clock.span[row] in {"ll.draft", "ll.verify", "ll.extend", "ll.publish"}
            or clock.span[row].startswith("ll.replay")
        ]
        assert (clock.start_ns[inside] >= clock.start_ns[step]).all()
        assert (clock.end_ns[inside] <= clock.end_ns[step]).all()


def test_the_gpus_starts_follow_its_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = _toy(tmp_path, monkeypatch, CLOCK="1")
    toy.inbox = [("a", STEPS, 1)]
    toy.run()
    clock = _clock(tmp_path)
    legs = [_rows(clock, f"ll.{leg}")[-STEPS:] for leg in LEGS["NEXTN"]]
    draft, verify, extend = (clock.gpu_start_ns[rows] for rows in legs)
    assert (draft > 0).all()
    assert np.median(verify - draft) == pytest.approx(150_000, rel=0.2)
    assert np.median(extend - verify) == pytest.approx(150_000, rel=0.2)


def test_a_wait_says_whether_there_was_anything_to_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = _toy(tmp_path, monkeypatch, CLOCK="1")

    def wait(_manager: Any, turn: int) -> None:
        if turn == 5:
            stream = toy.torch.cuda.Stream()
            stream.synchronize()
            stream.work(3000)
            stream.synchronize()
            toy.torch.cuda.synchronize()

    toy.on_turn = wait
    toy.inbox = [("a", STEPS, 1)]
    toy.run()
    clock = _clock(tmp_path)
    done, busy = _rows(clock, "ll.wait.stream_synchronize")
    assert clock.waiting_ns[done] == 0
    took = clock.end_ns[busy] - clock.start_ns[busy]
    assert clock.waiting_ns[busy] == took
    assert took > 2_500_000
    (device,) = _rows(clock, "ll.wait.device_synchronize")
    assert clock.waiting_ns[device] == -1
    assert clock.step[device] == 5


def test_written_on_demand_while_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = _toy(tmp_path, monkeypatch, CLOCK="1")
    monkeypatch.setattr("latencylab.runtime.recorder.POLL_NS", 0)
    seen: list[tuple[dict[str, Any], int]] = []

    def command(_scheduler: Any, turn: int) -> None:
        if turn == 10 and toy.turns == STEPS + 1:
            assert read_clock(tmp_path, 0) is None
            control.write_control(tmp_path, clock=False, write=True)
        if turn == 20 and toy.turns == STEPS + 1:
            obeyed = control.read_json(control.obeyed_path(tmp_path, 0))
            assert obeyed is not None
            seen.append((obeyed, len(_rows(_clock(tmp_path), "ll.step"))))
            toy.inbox.append(("unrecorded", 7, 1))
        if turn == 10 and toy.turns == STEPS + 9:
            control.write_control(tmp_path, clock=True, write=False)
        if turn == 15 and toy.turns == STEPS + 9:
            toy.inbox.append(("recorded", 3, 1))

    toy.on_idle = command
    toy.inbox = [("a", STEPS, 1)]
    toy.run()
    ((obeyed, steps),) = seen
    assert steps == STEPS + 1
    assert obeyed["sequence"] == 1
    assert obeyed["overwritten"] == 0
    assert obeyed["rows"] > 10 * STEPS
    assert obeyed["own_us_per_step"] > 0
    at_exit = _rows(_clock(tmp_path), "ll.step")
    assert _clock(tmp_path).step[at_exit].tolist() == [*range(STEPS + 1), *range(STEPS + 9, STEPS + 13)]


def test_a_profiler_ends_the_clock_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = _toy(tmp_path, monkeypatch, CLOCK="1", SPANS="profiler")

    def profile(manager: Any, turn: int) -> None:
        if turn == 10:
            manager._start_profile()
        if turn == 20:
            manager._stop_profile()

    toy.on_turn = profile
    toy.inbox = [("a", STEPS, 1)]
    toy.run()
    clock = _clock(tmp_path)
    assert max(clock.step[_rows(clock, "ll.step")]) == 9
    assert len(_rows(clock, "ll.verify")) == 9
    obeyed = control.read_json(control.obeyed_path(tmp_path, 0))
    assert obeyed is not None
    assert obeyed["stopped_by"] == "profiler"
    assert obeyed["sync_events"] == "on"


@ALGORITHMS
def test_spans_while_a_torch_profiler_runs_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str | None
) -> None:
    toy = _toy(tmp_path, monkeypatch, algorithm, SPANS="profiler")
    record_function, event = toy.torch.profiler.record_function, toy.torch.cuda.Event
    plain = dict(vars(event))
    during: dict[str, Any] = {}

    def profile(manager: Any, turn: int) -> None:
        if turn == 10:
            assert record_function.seen == []
            manager._start_profile()
            assert manager.profile.experimental_config.enable_cuda_sync_events
            assert vars(event)["record"] is not plain["record"]
        if turn == 20:
            manager._stop_profile()
            during["seen"] = len(record_function.seen)
            assert vars(event)["record"] is plain["record"]
            assert vars(event)["wait"] is plain["wait"]

    toy.on_turn = profile
    toy.inbox = [("a", STEPS, 1)]
    toy.run()
    assert record_function.open == []
    assert len(record_function.seen) == during["seen"]
    names = [name for name, _ in record_function.seen]
    word = {None: "decode", "NEXTN": "NEXTN", "DSPARK": "DSpark"}[algorithm]
    assert [n for n in names if n.startswith("ll.step")] == [f"ll.step[{n} {word}]" for n in range(11, 21)]
    for leg in LEGS[algorithm]:
        assert names.count(f"ll.{leg}") in (10, 9)
        assert names.count(f"ll.replay[{leg}]") == 10
    # Every wait for an event names the recording that it waits for.
    recorded = {n: re.search(r"event=(\d+)", n) for n in names if n.startswith("ll.event_record")}
    numbers = [int(found[1]) for found in recorded.values() if found]
    assert len(numbers) == len(set(numbers)) == names.count("ll.copy_result") * 2
    waits = [n for n in names if n.startswith(("ll.stream_wait", "ll.wait.event_synchronize"))]
    assert len(waits) >= 18
    known = [int(found[1]) for n in waits if (found := re.search(r"event=(-?\d+)", n))]
    assert len(known) == len(waits)
    assert set(known) <= {-1, *numbers}
    assert known.count(-1) <= 2  # those recorded before the profiler started


def test_nothing_is_recorded_while_a_graph_is_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake device refuses spans, queries and timing events during a capture."""
    toy = _toy(tmp_path, monkeypatch, None, CLOCK="1", SPANS="profiler")
    captured: list[bool] = []

    def capture(manager: Any, turn: int) -> None:
        if turn == 3:
            manager._start_profile()
        if turn in (2, 5):
            graph = toy.torch.cuda.CUDAGraph()
            graph.capture_begin()
            gc.collect()
            event = toy.torch.cuda.Event()
            event.record()
            event.wait()
            toy.scheduler_class.get_next_batch_to_run(None, None, None)
            graph.capture_end()
            captured.append(True)

    toy.on_turn = capture
    toy.inbox = [("a", 10, 1)]
    toy.run()
    assert captured == [True, True]


def test_a_capture_that_failed_does_not_end_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = _toy(tmp_path, monkeypatch, None, CLOCK="1")

    def fail(_manager: Any, turn: int) -> None:
        if turn == 3:
            toy.torch.cuda.CUDAGraph().capture_begin()
            toy.gpu.capturing = False  # the error ended it, and nobody called capture_end

    toy.on_turn = fail
    toy.inbox = [("a", 10, 1)]
    toy.run()
    clock = _clock(tmp_path)
    assert clock.step[_rows(clock, "ll.step")].tolist() == [0, 1, 2, *range(4, 11)]


def test_collections_are_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = _toy(tmp_path, monkeypatch, CLOCK="1", FAULTS="gc:every=10")
    toy.inbox = [("a", STEPS, 1)]
    before = list(gc.callbacks)
    toy.run()
    assert gc.callbacks == before
    clock = _clock(tmp_path)
    full = [row for row in _rows(clock, "ll.gc") if clock.step[row] % 10 == 0]
    assert {int(clock.step[row]) for row in full} >= {0, 10, 20, 30, 40}


class _Domain:
    def __init__(self) -> None:
        self.open: list[Any] = []
        self.seen: list[tuple[str, int]] = []

    def get_event_attributes(self, message: str) -> Any:
        return type("Attributes", (), {"message": message, "payload": None})()

    def push_range(self, attributes: Any) -> None:
        self.seen.append((attributes.message, attributes.payload))
        self.open.append(attributes.message)

    def pop_range(self) -> None:
        self.open.pop()


def test_nvtx_ranges_have_few_names_and_the_step_as_payload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    domain = _Domain()
    monkeypatch.setattr("latencylab.runtime.session.nvtx_domain", lambda: domain)
    toy = _toy(tmp_path, monkeypatch, SPANS="nvtx")
    toy.inbox = [("a", STEPS, 1)]
    toy.run()
    assert domain.open == ["ll.idle"]  # the loop ended while idle
    messages = Counter(message for message, _ in domain.seen)
    assert messages["ll.step[NEXTN]"] == STEPS
    assert messages["ll.replay[verify]"] == STEPS
    assert len(messages) < 25
    steps = [payload for message, payload in domain.seen if message == "ll.step[NEXTN]"]
    assert steps == list(range(1, STEPS + 1))
    assert messages["ll.idle"] == 2


def test_strict_refuses_to_go_without_the_package_of_nvtx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with pytest.raises(SystemExit, match=r"^latencylab: refused to start: nvtx: "):
        _toy(tmp_path, monkeypatch, SPANS="nvtx", STRICT="1").run()
    _toy(tmp_path, monkeypatch, SPANS="nvtx").run()
    assert _state(tmp_path)["hooks"]["nvtx"].startswith("missing: ")


def test_a_command_to_an_earlier_server_is_not_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control.write_control(tmp_path, clock=False, write=True)
    toy = _toy(tmp_path, monkeypatch, CLOCK="1")
    monkeypatch.setattr("latencylab.runtime.recorder.POLL_NS", 0)
    toy.inbox = [("a", 5, 1)]
    toy.run()
    assert len(_rows(_clock(tmp_path), "ll.step")) == 6


def test_off_means_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = make_toy("NEXTN")
    before = {name: dict(vars(module)) for name, module in toy.modules.items()}
    run_batch = toy.scheduler_class.run_batch
    toy.install(monkeypatch, {})
    assert toy.registry.hooks == {}
    toy.inbox = [("a", 5, 1)]
    toy.run()
    assert toy.scheduler_class.run_batch is run_batch
    assert {name: dict(vars(module)) for name, module in toy.modules.items()} == before
    assert list(tmp_path.iterdir()) == []


def test_off_imports_nothing_heavy() -> None:
    code = """
import sys
from latencylab.runtime.plugin import register
register()
print(*sorted(name for name in ("numpy", "pyarrow", "torch", "nvtx", "sglang") if name in sys.modules))
"""
    env = {"PATH": "/usr/bin"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_in_a_process_without_a_scheduler_nothing_is_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = make_toy()
    del toy.modules["sglang.srt.managers.scheduler"]
    toy.install(monkeypatch, {"LATENCYLAB_DIR": str(tmp_path), "LATENCYLAB_CLOCK": "1"})
    assert toy.registry.hooks == {}


def test_nonsense_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = make_toy()
    with pytest.raises(SystemExit, match=r"^latencylab: LATENCYLAB_SPANS: 'x' is none of nvtx, profiler$"):
        toy.install(monkeypatch, {"LATENCYLAB_DIR": str(tmp_path), "LATENCYLAB_SPANS": "x"})


def _without_verify(toy: Toy) -> None:
    del toy.modules["sglang.srt.speculative.eagle_worker_v2"].EAGLEWorkerV2.verify  # type: ignore[attr-defined]


def test_strict_refuses_where_a_target_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = _toy(tmp_path, monkeypatch, "NEXTN", CLOCK="1", STRICT="1")
    _without_verify(toy)
    with pytest.raises(
        SystemExit, match=r"^latencylab: refused to start: [^\n]*EAGLEWorkerV2.verify: missing"
    ):
        toy.run()
    assert any("verify" in target for target in toy.registry.failures)


def test_what_is_missing_stands_in_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = _toy(tmp_path, monkeypatch, "NEXTN", CLOCK="1")
    _without_verify(toy)
    toy.run()
    missing = {path: how for path, how in _state(tmp_path)["hooks"].items() if how != "took"}
    assert list(missing) == ["sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2.verify"]
    assert all(how.startswith("missing: ") for how in missing.values())


def test_strict_does_not_ask_for_what_this_way_of_decoding_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = _toy(tmp_path, monkeypatch, None, CLOCK="1", STRICT="1")
    _without_verify(toy)
    toy.run()
    assert not any("eagle" in path for path in _state(tmp_path)["hooks"])


def test_an_override_in_the_class_in_use_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = _toy(tmp_path, monkeypatch, "NEXTN", CLOCK="1", STRICT="1")
    worker = toy.modules["sglang.srt.speculative.eagle_worker_v2"].EAGLEWorkerV2

    class Special(worker):  # type: ignore[misc, valid-type]
        def verify(self, batch: Any) -> None:
            pass

    toy.eagle_class = Special
    with pytest.raises(SystemExit, match="Special overrides it"):
        toy.run()


def test_strict_refuses_an_algorithm_that_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = _toy(tmp_path, monkeypatch, "NGRAM", CLOCK="1", STRICT="1")
    with pytest.raises(SystemExit, match="the speculative algorithm NGRAM has no hooks"):
        toy.run()


def test_strict_refuses_an_engine_without_a_scheduler_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = make_toy()
    del toy.scheduler_class.run_event_loop
    with pytest.raises(SystemExit, match=f"{re.escape(LOOP)} does not exist"):
        toy.install(monkeypatch, {"LATENCYLAB_DIR": str(tmp_path), "LATENCYLAB_STRICT": "1"})


def test_each_rank_has_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = make_toy("DSPARK", parallel=Parallel(tp_rank=2, tp_size=4))
    toy.install(monkeypatch, {"LATENCYLAB_DIR": str(tmp_path), "LATENCYLAB_CLOCK": "1"})
    toy.inbox = [("a", 5, 1)]
    toy.run()
    state = _state(tmp_path, 2)
    assert (state["rank"], state["world_size"]) == (2, 4)
    assert len(_clock(tmp_path, 2)) > 0


def test_everything_is_put_back_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = _toy(tmp_path, monkeypatch, CLOCK="1")
    event, stream, tensor = toy.torch.cuda.Event, toy.torch.cuda.Stream, toy.torch.Tensor
    before = [dict(vars(owner)) for owner in (event, stream, tensor)]
    toy.run()
    after = [dict(vars(owner)) for owner in (event, stream, tensor)]
    for owner in (*before, *after):
        owner.pop("made", None)
    assert after == before
