"""Commands to a running server, and its answers."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from latencylab.model.integrity import OutputError
from latencylab.runtime import control


def test_a_command_is_read_back_and_numbered(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    assert control.read_control(folder) is None
    assert control.write_control(folder, clock=True, write=False) == 1
    assert control.write_control(folder, clock=False, write=True) == 2
    assert control.read_control(folder) == control.Command(2, clock=False, write=True)
    assert [path.name for path in folder.iterdir()] == ["control.json"]


def test_a_command_names_faults_or_leaves_them_be(tmp_path: Path) -> None:
    for faults in ("item;gc:every=5", "", None):
        control.write_control(tmp_path, clock=True, write=False, faults=faults)
        command = control.read_control(tmp_path)
        assert command is not None
        assert command.faults == faults


@pytest.mark.parametrize("faults", [7, ["item"], {"item": {}}, False])
def test_faults_that_are_no_text_are_left_be(tmp_path: Path, faults: object) -> None:
    control.write_json(tmp_path / control.CONTROL, {"sequence": 1, "clock": True, "faults": faults})
    assert control.read_control(tmp_path) == control.Command(1, clock=True, write=False, faults=None)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"sequence": "x"}', "{"])
def test_what_is_no_command_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / control.CONTROL).write_text(text)
    assert control.read_control(tmp_path) is None


def test_waiting_ends_with_the_last_answer(tmp_path: Path) -> None:
    control.write_json(control.obeyed_path(tmp_path, 0), {"sequence": 3, "rows": 5})

    def answer() -> None:
        time.sleep(0.1)
        control.write_json(control.obeyed_path(tmp_path, 1), {"sequence": 4})

    thread = threading.Thread(target=answer)
    thread.start()
    start = time.monotonic()
    assert control.wait_obeyed(tmp_path, 3, [0, 1], timeout_s=20) == []
    assert 0.05 < time.monotonic() - start < 10
    thread.join()


def test_who_did_not_answer_in_time(tmp_path: Path) -> None:
    control.write_json(control.obeyed_path(tmp_path, 0), {"sequence": 2})
    control.write_json(control.obeyed_path(tmp_path, 1), {"sequence": 1})
    control.obeyed_path(tmp_path, 2).write_text("{")
    assert control.wait_obeyed(tmp_path, 2, [3, 2, 1, 0], timeout_s=0.05) == [1, 2, 3]


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    control.write_json(path, {"n": 0, "filler": "x" * 100_000})
    done = threading.Event()

    def write() -> None:
        for n in range(200):
            control.write_json(path, {"n": n, "filler": "x" * 100_000})
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not done.is_set():
        assert len(json.loads(path.read_text())["filler"]) == 100_000
    thread.join()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        control.write_control(tmp_path / "file", clock=True, write=True)


def test_an_answer_that_is_left_from_before_is_none_to_a_new_command(tmp_path: Path) -> None:
    control.write_json(control.obeyed_path(tmp_path, 0), {"sequence": 29})
    sequence = control.write_control(tmp_path, clock=True, write=False)
    assert sequence == 30
    assert control.wait_obeyed(tmp_path, sequence, [0], 0) == [0]
