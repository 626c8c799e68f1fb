"""The benchmark of the optimisations, against fake servers, and its table against numbers computed by hand."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fake_server import Behaviour, environment, install_fake_sglang, serving
from latencylab.model.integrity import InputError
from latencylab.runtime.bench import Workload
from latencylab.runtime.capture import Plan
from latencylab.runtime.client import HttpTarget
from latencylab.runtime.clock_files import ServerClocks
from latencylab.runtime.launch import build_launch
from latencylab.traces import open_capture

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for their annotations
    spec.loader.exec_module(module)
    return module


ledger, faults = _load("ledger"), _load("faults")


# Runs


class Bench:
    """`benchmarks/ledger.py run` in a folder, where servers are fakes."""

    def __init__(self, tmp_path: Path) -> None:
        launches = [
            build_launch("nextn", shape="tp4-rank", workdir=tmp_path, overrides=overrides, find=lambda: None)
            for overrides in ({}, {"all": False})
        ]
        flags = {word for launch in launches for word in launch.argv if word.startswith("--")}
        install_fake_sglang(tmp_path / "site", flags)
        self.site = str(tmp_path / "site")
        self.record = tmp_path / "record"
        self.record.touch()
        self.folder = tmp_path / "found"

    def start(self, *options: str, **behaviour: Any) -> subprocess.Popen[str]:
        env = {**os.environ, "PYTHONPATH": self.site}
        env |= environment(Behaviour(record=str(self.record), **behaviour))
        command = [sys.executable, str(BENCHMARKS / "ledger.py"), "run", str(self.folder), *options]
        command += ["--common", "--preset nextn --shape tp4-rank", "--first-port", str(_free_port())]
        command += ["--rounds", "3", "--warmup", "1", "--input-tokens", "6", "--output-tokens", "41"]
        command += ["--capture", "--input-tokens 6 --output-tokens 101 --requests 1 --warmup 0 --steps 10"]
        return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)

    def run(self, *options: str, **behaviour: Any) -> tuple[int, str]:
        process = self.start(*options, **behaviour)
        _, err = process.communicate(timeout=90)
        return process.returncode, err

    def found(self, number: int) -> dict[str, dict[str, Any]]:
        return {held["name"]: held for held in json.loads((self.folder / f"run-{number}.json").read_text())}

    def asked(self) -> list[list[Any]]:
        """What the launched fakes were asked: path, body, when (ns), and by which process it was served."""
        return [
            json.loads(line) for line in self.record.read_text().splitlines(keepends=True) if line[-1] == "\n"
        ]

    def living(self) -> set[int]:
        """The processes of all servers, and of anything else that the runs started."""
        found = set()
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdecimal() and self.site.encode() in (entry / "environ").read_bytes():
                    found.add(int(entry.name))
        return found


def _free_port() -> int:
    """Where some more are likely to be free, in steps of 50."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            if (port := int(probe.getsockname()[1])) < 60000:
                return port


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    for pid in bench.living():
        os.kill(pid, signal.SIGKILL)


def _raw(name: str, **behaviour: Any) -> str:
    return f"{name} raw 'FAKE_BEHAVIOUR={json.dumps(behaviour)}'"


def test_runs_of_several_servers(bench, capsys, monkeypatch):
    slow, dead = _raw("slow@1", chunk_ms=9), _raw("dead@0", dies_at_start=True)
    breaks = _raw("breaks@1", chunk_ms=3, fail_request=2, fail_how="close", fail_after=5)
    servers = [word for text in ("on@0", slow, dead, breaks) for word in ("--server", text)]
    code, err = bench.run(*servers, "--keep", "on", chunk_ms=3)
    assert code == 3, err
    assert "Traceback" not in err

    found = bench.found(1)
    assert list(found) == ["on", "slow", "dead", "breaks"]
    assert found["dead"]["failed"] == "ended: ValueError: no such model"
    assert found["dead"]["step_ms"] == []
    assert "broke off" in found["breaks"]["failed"]
    assert [value is None for value in found["breaks"]["step_ms"]] == [False, True]
    for name, least in (("on", 3), ("slow", 9)):
        assert found[name]["failed"] is None
        assert len(found[name]["step_ms"]) == 3
        assert all(value >= least for value in found[name]["step_ms"])
    assert "busy_us" not in found["on"], "what is kept is not profiled"
    assert len(found["slow"]["busy_us"]) > 3
    assert found["slow"]["busy_us"][1] == pytest.approx(found["slow"]["wall_us"][1] / 2, rel=0.2)

    told = json.loads((bench.folder / "on" / "server.json").read_text())
    assert bench.living() == {told["pid"]}
    assert [path.parent.name for path in bench.folder.glob("*/server.json")] == ["on"]
    profiled = [path for path, *_ in bench.asked() if path == "/start_profile"]
    assert profiled == []

    code, err = bench.run("--server", "on@0", "--server", "off@0 --without all", chunk_ms=3)
    assert code == 0, err
    assert bench.living() == set()
    found = bench.found(2)
    assert list(found) == ["on", "off"]
    assert found["on"]["start_s"] == 0 < found["off"]["start_s"]
    assert all(len(held["step_ms"]) == 3 and held["busy_us"] for held in found.values())
    started = [(pid, body) for path, body, _, pid in bench.asked() if path == "started"]
    assert len(started) == 2, "the server that was kept is not started again"
    assert started[0][0] == told["pid"]
    assert started[0][1] != started[1][1]

    assert _table(monkeypatch, bench.folder) == 0
    out = capsys.readouterr().out
    lines = {line.split("|")[1].strip(): line for line in out.splitlines() if line.startswith("| ")}
    assert {"on", "slow", "off"} <= set(lines)
    assert "dead" not in lines
    assert "\ndead failed: ended: ValueError: no such model\n" in out
    us = float(lines["slow"].split("|")[4].split("±")[0].replace(",", ""))
    assert 3000 < us < 9000


def test_what_an_earlier_run_left_is_not_taken_for_this_one(bench):
    code, err = bench.run(
        "--server", "on@0", "--server", _raw("x@0", chunk_ms=3), "--rounds", "1", chunk_ms=3
    )
    assert code == 0, err
    assert "busy_us" in bench.found(1)["x"]
    code, err = bench.run("--server", "on@0", "--server", _raw("x@0", dies_at_start=True), "--keep", "on")
    assert code == 3, err
    assert "busy_us" not in bench.found(2)["x"]
    assert "busy_us" not in bench.found(2)["on"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_server(bench, number):
    process = bench.start("--server", "on@0", "--server", _raw("x@0"), "--keep", "on", chunk_ms=50)
    until = time.monotonic() + 30
    while "/generate" not in [path for path, *_ in bench.asked()]:
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode != 0, err
    assert bench.living() == set()


@pytest.mark.parametrize(
    ("servers", "said"),
    [
        (["on"], "a server is NAME@GPUS and options"),
        (["@0"], "a server is NAME@GPUS and options"),
        (["on@0", "on@1"], "on"),
    ],
)
def test_servers_that_are_none(bench, servers, said):
    code, err = bench.run(*(word for text in servers for word in ("--server", text)))
    assert (code, err.count("\n")) == (3, 1)
    assert said in err
    assert bench.asked() == []


def _table(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> int:
    monkeypatch.setattr(sys, "argv", ["ledger.py", "table", *map(str, folders)])
    return int(ledger.main())
