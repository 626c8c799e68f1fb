"""The benchmarks of optimisations and faults on fake servers, and the table against numbers by hand."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fake_server import Behaviour, environment, install_fake_sglang, serving
from latencylab.runtime.bench import Workload
from latencylab.runtime.client import HttpTarget
from latencylab.runtime.launch import build_launch
from latencylab.runtime.provenance import read_states
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


ledger, ledger_table, faults = map(_load, ("ledger", "ledger_table", "faults"))


# Runs


class Bench:
    """`benchmarks/ledger.py` in a folder, where servers are fakes."""

    def __init__(self, tmp_path: Path) -> None:
        self.launches = [
            build_launch("nextn", shape="tp4-rank", workdir=tmp_path, overrides=overrides, find=lambda: None)
            for overrides in ({}, {"all": False})
        ]
        install_fake_sglang(tmp_path / "site", set().union(*(_flags(each.argv) for each in self.launches)))
        self.site = str(tmp_path / "site")
        self.record = tmp_path / "record"
        self.record.touch()
        self.folder = tmp_path / "found"

    def start(self, *servers: str, options: Sequence[str] = (), **behaviour: Any) -> subprocess.Popen[str]:
        env = {**os.environ, "PYTHONPATH": self.site}
        env |= environment(Behaviour(record=str(self.record), **behaviour))
        command = [sys.executable, str(BENCHMARKS / "ledger.py"), str(self.folder)]
        command += [word for text in servers for word in ("--server", text)]
        command += ["--common", "--preset nextn --shape tp4-rank", "--first-port", str(_free_port())]
        command += ["--rounds", "3", "--warmup", "1", "--input-tokens", "6", "--output-tokens", "41"]
        command += ["--capture", "--input-tokens 6 --output-tokens 101 --requests 1 --warmup 0 --steps 10"]
        return subprocess.Popen([*command, *options], env=env, stderr=subprocess.PIPE, text=True)

    def run(self, *servers: str, options: Sequence[str] = (), **behaviour: Any) -> tuple[int, str]:
        process = self.start(*servers, options=options, **behaviour)
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


def _flags(words: Sequence[str]) -> set[str]:
    return {word for word in words if word.startswith("--")}


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
    code, err = bench.run("on@0", slow, dead, breaks, options=("--keep", "on"), chunk_ms=3)
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
        assert all(value > least / 2 for value in found[name]["step_ms"])  # chunks may be read together
    assert "busy_us" not in found["on"], "what is kept is not profiled"
    assert len(found["slow"]["busy_us"]) > 3
    for busy, wall in zip(found["slow"]["busy_us"], found["slow"]["wall_us"], strict=True):
        assert 4500 <= busy < wall  # its kernel takes half of a step

    kept = json.loads((bench.folder / "on" / "server.json").read_text())["pid"]
    assert bench.living() == {kept}
    assert [path.parent.name for path in bench.folder.glob("*/server.json")] == ["on"]
    assert "/start_profile" not in [path for path, *_ in bench.asked()]

    code, err = bench.run("off@0 --without all", "on@0", chunk_ms=3)
    assert code == 0, err
    assert bench.living() == set()
    assert not list(bench.folder.glob("*/server.json"))
    found = bench.found(2)
    assert list(found) == ["off", "on"]
    assert all(len(held["step_ms"]) == 3 and held["busy_us"] for held in found.values())
    assert found["on"]["start_s"] == 0 < found["off"]["start_s"]
    started = [(pid, _flags(body)) for path, body, _, pid in bench.asked() if path == "started"]
    assert started[0] == (kept, _flags(bench.launches[0].argv)), "what was kept is not started again"
    assert [flags for _, flags in started[1:]] == [_flags(bench.launches[1].argv)]
    assert started[0][1] != started[1][1]

    _print_table(bench.folder)
    out = capsys.readouterr().out
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines() if "|" in line]
    head, _, *lines = cells
    assert [line[0] for line in lines] == ["on", "slow", "off", "on"]
    slower = lines[1][head.index("against on, µs")]
    assert float(slower.split(" ")[0].replace(",", "")) > 1000
    assert "\ndead failed: ended: ValueError: no such model\n" in out
    assert "\nbreaks failed: " in out


def test_what_an_earlier_run_left_is_not_taken_for_this_one(bench):
    code, err = bench.run("on@0", _raw("x@0", chunk_ms=3), chunk_ms=3)
    assert code == 0, err
    assert bench.found(1)["x"]["busy_us"]
    code, err = bench.run("on@0", _raw("x@0", dies_at_start=True), options=("--keep", "on"))
    assert code == 3, err
    assert [("busy_us" in held) for held in bench.found(2).values()] == [False, False]


def test_nobody_waits_for_the_state_of_a_server_that_died(bench):
    code, err = bench.run("on@0", options=("--rounds", "1"), chunk_ms=3, fail_request=1, fail_how="die")
    assert code == 3, err
    (held,) = bench.found(1).values()
    assert (held["step_ms"], "busy_us" in held) == ([None], False)
    assert float(err.splitlines()[-1].split()[2]) < 20


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_no_server(bench, number, code):
    process = bench.start("on@0", _raw("x@0"), chunk_ms=50)
    until = time.monotonic() + 30
    while "/generate" not in [path for path, *_ in bench.asked()]:
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == code
    assert bench.living() == set()


@pytest.mark.parametrize(
    ("servers", "said"),
    [
        (["on"], "'on': a server is NAME@GPUS and options"),
        (["@0"], "'@0': a server is NAME@GPUS and options"),
        (["on@0", "x@0", "on@1"], "on: two servers have this name"),
    ],
)
def test_servers_that_are_none(monkeypatch, capsys, tmp_path, servers, said):
    words = [word for text in servers for word in ("--server", text)]
    monkeypatch.setattr(sys, "argv", ["ledger.py", str(tmp_path / "new"), *words])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert ledger.main() == 3
    assert capsys.readouterr().err == f"ledger: error: {said}\n"
    assert not (tmp_path / "new").exists()


@pytest.fixture
def bystander():
    """A process in a group of its own, and when it was born."""
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield process, ledger.birth(process.pid)
    process.kill()
    process.wait()


def _told(folder: Path, **told: Any) -> None:
    folder.mkdir()
    (folder / "server.json").write_text(json.dumps(told))


def test_a_process_that_only_has_the_number_is_left_alone(tmp_path, bystander):
    process, _ = bystander
    _told(tmp_path / "on", port=1, pid=process.pid, born="1", kept=True)
    assert ledger.adopt([], tmp_path, 31000) == []
    assert process.poll() is None
    assert not (tmp_path / "on" / "server.json").exists()


@pytest.mark.parametrize(("name", "kept"), [("on", False), ("other", True)])
def test_what_is_not_kept_or_not_asked_for_is_stopped(tmp_path, bystander, name, kept):
    """One that a killed run left may have been profiled."""
    process, born = bystander
    with serving() as fake:
        _told(tmp_path / name, port=HttpTarget(fake.url).port, pid=process.pid, born=born, kept=kept)
        server = ledger.Server.parse("on@0", tmp_path)
        assert ledger.adopt([server], tmp_path, 31000) == [server]
    assert ledger._ended(process.pid)
    assert server.pid == 0
    assert server.port >= 31000


def test_one_is_measured_while_the_others_are_stopped(monkeypatch, tmp_path):
    servers = [ledger.Server.parse(text, tmp_path) for text in ("a@0", "b@0", "c@1")]
    stopped: set[str] = set()
    sent: list[tuple[int, str, int]] = []

    def signalled(server: Any, number: int) -> None:
        (stopped.add if number == signal.SIGSTOP else stopped.discard)(server.name)

    def send(server: Any, number: int, _workload: Workload) -> float | None:
        assert server.name not in stopped
        sent.append((number, server.name, len(stopped)))
        if (server.name, number) == ("c", 1):
            server.failed = "gone"
            return None
        return 10.0

    monkeypatch.setattr(ledger.Server, "signal", signalled)
    monkeypatch.setattr(ledger.Server, "send", send)
    ledger.measure(servers, Workload(6, 41, 3, 2))
    assert sorted(sent[:6]) == [(number, name, 0) for number in (-2, -1) for name in "abc"]
    rounds = [(0, "abc"), (1, "bca"), (2, "ab")]  # each begins with another, and c has failed
    assert sent[6:] == [(number, name, 2) for number, names in rounds for name in names]
    assert [server.ms for server in servers] == [[10.0] * 3, [10.0] * 3, [10.0, None]]
    assert not stopped


def test_captures_share_no_gpu(monkeypatch, tmp_path):
    servers = [ledger.Server.parse(text, tmp_path) for text in ("a@0", "b@0,1", "c@2", "d@1", "e@12")]
    groups = [{server.name for server in group} for group in ledger.sharing(servers)]
    assert groups == [{"c"}, {"a", "b", "d"}, {"e"}]

    signals: list[tuple[str, int]] = []
    running: set[str] = set()
    together: set[frozenset[str]] = set()

    def capture(server: Any, _options: Any) -> None:
        running.add(server.name)
        time.sleep(0.1)
        together.add(frozenset(running))
        running.remove(server.name)

    monkeypatch.setattr(ledger.Server, "signal", lambda server, number: signals.append((server.name, number)))
    monkeypatch.setattr(ledger, "capture", capture)
    ledger.capture_all([servers[0], servers[1], servers[2]], servers, ())
    assert together
    assert not any({"a", "b"} <= names for names in together)
    assert any("c" in names and len(names) > 1 for names in together)
    stopped = [name for name, number in signals if number == signal.SIGSTOP]
    assert sorted(stopped) == ["a", "b", "d", "d"]  # d holds a GPU of theirs, and has no capture


# The table, against numbers computed by hand


def _held(name: str, *step_ms: float | None, gpus: str = "0", **more: Any) -> dict[str, Any]:
    return {"name": name, "gpus": gpus, "options": [], "failed": None, "step_ms": step_ms, **more}


def _rows(*runs: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    columns = ("ms", "least", "slower", "busy", "busier", "proven")
    return {name: dict(zip(columns, cells, strict=True)) for name, *cells in ledger_table.rows(runs)}


ON = _held("on", 10.0, 10.1, 9.9, 10.0)
# Slower by 490, 510, 500 and 500 us: the deviation is sqrt(200 / 3) = 8.16, that of the mean 4.08, and t for
# 3 degrees of freedom 3.182, so that the interval reaches 12.99 us.
SLOW = _held("slow", 10.49, 10.61, 10.4, 10.5)
# By 10, -10, 20 and -16: mean 1, deviation sqrt(852 / 3) = 16.85, and 8.43 * 3.182 = 26.8.
NOISE = _held("noise", 10.01, 10.09, 9.92, 9.984)


def test_a_known_difference_is_resolved_and_noise_is_not():
    rows = _rows([ON, SLOW, NOISE])
    assert rows["on"] | {"busy": ""} == dict.fromkeys(rows["on"], "") | {"ms": "10.000", "least": "9.900"}
    assert (rows["slow"]["ms"], rows["slow"]["least"]) == ("10.500", "10.400")
    assert rows["slow"]["slower"] == "+500 ± 13"
    assert rows["noise"]["slower"] == "+1 ± 27 (not resolved)"


def test_servers_alike_widen_the_interval():
    """One that differs by 40 us: 12.71 * 40 = 508.2, and with 12.99 that is 508.4."""
    rows = _rows([ON, SLOW, _held("on.2", 10.04, 10.14, 9.94, 10.04)])
    assert rows["slow"]["slower"] == "+500 ± 508 (not resolved)"
    assert rows["on.2"]["slower"] == "+40 ± 508 (not resolved)"


def test_two_servers_alike_of_two_runs():
    """By 3 and -4 us: their root mean square is 3.536, t for 2 degrees 4.303, and with 12.99 that is 20.0."""
    second = [_held("on", 11.0, 11.0), _held("on.3", 10.996, 10.996)]
    rows = _rows([ON, SLOW, _held("on.2", 10.003, 10.103, 9.903, 10.003)], second)
    assert rows["slow"]["slower"] == "+500 ± 20"


def test_each_server_is_held_against_the_reference_of_its_run():
    rows = _rows([ON, SLOW], [_held("on", 20.0, 20.0), _held("fast", 19.0, 19.0)])
    assert (rows["slow"]["slower"], rows["fast"]["slower"]) == ("+500 ± 13", "-1,000 ± 0")


def test_rounds_that_only_one_has_are_left_out():
    rows = _rows([ON, _held("broke", 10.49, 10.61, None), _held("once", 12.0, None), _held("never")])
    assert rows["broke"]["slower"] == "+500 ± 127"  # deviation 14.14, of the mean 10, and t for 1 is 12.71
    assert rows.keys() == {"on", "broke"}
    assert _rows([SLOW]) == {}  # without a reference


def test_busy_time_of_one_reference():
    """Means 100 and 150, each with 1 us of its mean: the interval joins 12.71 and 12.71."""
    on, x = ({**each, "busy_us": steps} for each, steps in ((ON, [99, 101]), (SLOW, [149, 151])))
    rows = _rows([on, x])
    assert (rows["on"]["busy"], rows["on"]["busier"]) == ("100", "")
    assert (rows["slow"]["busy"], rows["slow"]["busier"]) == ("150", "+50 ± 18")
    rows = _rows([on, {**SLOW, "busy_us": [109, 111]}])
    assert rows["slow"]["busier"] == "+10 ± 18 (not resolved)"


def test_busy_time_of_servers_alike():
    """Means 100 and 104: the deviation is 2.828, of a difference to their mean 3.464, times 12.71 is 44.0.

    What comes over steps is 1.155 / 2 * 3.182 = 1.84.
    """
    on, other = {**ON, "busy_us": [99, 101]}, _held("on.2", 10.0, 10.0, busy_us=[103, 105])
    rows = _rows([on, {**SLOW, "busy_us": [149, 151, 149, 151]}], [ON, other])
    assert rows["slow"]["busier"] == "+48 ± 44"
    rows = _rows([on, {**SLOW, "busy_us": [139, 141, 139, 141]}], [ON, other])
    assert rows["slow"]["busier"] == "+38 ± 44 (not resolved)"


def test_busy_time_is_held_against_the_same_gpu():
    on = {**ON, "busy_us": [99, 101]}
    elsewhere = _held("slow", 10.5, 10.5, gpus="1", busy_us=[149, 151])
    assert _rows([on, elsewhere])["slow"]["busier"] == ""
    there = _held("on.2", 10.0, 10.0, gpus="1", busy_us=[148, 150])
    assert _rows([on, elsewhere, there])["slow"]["busier"] == "+1 ± 18 (not resolved)"


def test_a_capture_of_one_step_says_nothing():
    rows = _rows([{**ON, "busy_us": [100]}, {**SLOW, "busy_us": [150, 151]}, {**NOISE, "busy_us": [7]}])
    assert (rows["slow"]["busier"], rows["noise"]["busier"]) == ("", "")


@pytest.mark.parametrize(
    ("options", "told", "said"),
    [
        ("", {"pdl": "on (x)"}, ""),
        ("--without pdl", {"pdl": "off (x)"}, "yes"),
        ("--without pdl", {"pdl": "on (x)"}, "no: pdl"),
        ("--without pdl", {"pdl": "unknown (x)"}, "yes"),
        ("--with pdl", {"pdl": "off (x)", "gc-freeze": "on (x)"}, "no: pdl"),
        ("--without all", {"pdl": "off (x)", "gc-freeze": "on (x)"}, "no: gc-freeze"),
        ("--without all --with gc-freeze", {"pdl": "off (x)", "gc-freeze": "on (x)"}, "yes"),
        ("--without pdl", None, ""),
        ("raw --some-flag", None, ""),
    ],
)
def test_what_servers_prove_of_their_optimisations(options, told, said):
    held = {**SLOW, "options": options.split(), "ledger": told}
    assert _rows([ON, held])["slow"]["proven"] == said


def test_a_folder_without_runs(capsys, tmp_path):
    assert ledger_table.table([tmp_path]) == 3
    assert capsys.readouterr().err == f"ledger_table: error: no run-*.json in {tmp_path}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no run of ledger.py"),
        ('["on"]', "no run of ledger.py"),
        ('[{"name": "on", "gpus": "0", "options": [], "step_ms": [1, 2]}]', "no run of ledger.py"),
        (
            '[{"name": "on", "gpus": "0", "options": [], "failed": null, "step_ms": ["x"]}]',
            "no run of ledger.py",
        ),
        (
            json.dumps([_held("off", 1.0, 2.0)]),
            "off of run 1 has no two rounds with on in them",
        ),
        (json.dumps([_held("on", 1.0)]), "on of run 1 has no two rounds with on in them"),
        (json.dumps([ON, _held("off", None, None)]), "off of run 1 has no two rounds"),
        (
            '[{"name": "on", "gpus": "0", "options": [], "failed": null, "step_ms": [NaN, 1, 2]}]',
            "| on | 1.500",
        ),
        (json.dumps([{**ON, "busy_us": None}, _held("off", 11.0, 12.0)]), "| off | 11.500"),
    ],
)
def test_what_is_in_no_table_is_told(capsys, tmp_path, text, said):
    (tmp_path / "run-1.json").write_text(text)
    code = ledger_table.table([tmp_path])
    out, err = capsys.readouterr()
    assert said in (err if code else out)
    assert code == (3 if "no run of" in said else 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--server", "../esc@0"], "a server is NAME@GPUS"),
        (["--server", "on@0 'x"], "no closing quotation"),
        (["--server", "on@0", "--keep", "off"], "--keep off: no server has this name"),
        (["--server", "on@0", "--first-port", "70000"], "leaves no room for ports"),
        (["--server", "on@0", "--common", "'"], "no closing quotation"),
    ],
)
def test_arguments_are_refused_before_anything_starts(monkeypatch, capsys, tmp_path, options, said):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["ledger.py", str(tmp_path / "new"), *options])
    assert ledger.main() == 3
    assert said in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def _print_table(*folders: Path) -> None:
    assert ledger_table.table(folders) == 0


# Captures of faults


def _record_faults(monkeypatch: pytest.MonkeyPatch, folder: Path, url: str, home: Path, *cases: str) -> int:
    words = ["faults.py", str(folder), "--url", url, "--server-dir", str(home)]
    words += [word for case in cases for word in ("--case", case)]
    words += ["--requests", "2", "--warmup", "1", "--steps", "10", "--input-tokens", "6"]
    monkeypatch.setattr(sys, "argv", [*words, "--output-tokens", "101"])
    return int(faults.main())


def test_a_capture_of_each_case(monkeypatch, capsys, tmp_path):
    home = tmp_path / "ll"
    cases = ("clean=", "late=sleep:us=300,rank=1", "both=item;gc:every=5")
    with serving(folder=home, ranks=2) as fake:
        assert _record_faults(monkeypatch, tmp_path / "out", fake.url, home, *cases) == 0
    assert capsys.readouterr().err == ""
    assert {state["world_size"] for state in read_states(home).values()} == {2}
    assert [state["faults"] for state in read_states(home).values()] == [{}, {}]

    paths = [path for path, _ in fake.asked]
    generated = [place for place, path in enumerate(paths) if path == "/generate"]
    assert len(generated) == 3 * 3 + 3
    assert generated[8] < paths.index("/start_profile"), "all cases are measured before the first profile"
    assert paths.count("/start_profile") == 3

    wanted = {
        "clean": {},
        "late": {"sleep": {"us": 300, "rank": 1, "busy": 1, "ranks": [1]}},
        "both": {"item": {"rank": -1, "ranks": [0, 1]}, "gc": {"every": 5, "rank": -1, "ranks": [0, 1]}},
    }
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(wanted)
    for name, injected in wanted.items():
        capture = open_capture(tmp_path / "out" / name, cache=False)
        assert capture.manifest["faults"] == injected
        assert [trace.rank for trace in capture.traces] == [0, 1]
        assert [len(clock) for clock in capture.unprofiled.clocks.values()] == [2 * 51, 2 * 51]
        assert len(capture.unprofiled.requests) == 2
        assert capture.manifest["clocks"]["0"]["stopped_by"] is None


def test_no_fault_stays_after_a_failure(monkeypatch, capsys, tmp_path):
    home = tmp_path / "ll"
    with serving(folder=home, profile_fails=True) as fake:
        assert _record_faults(monkeypatch, tmp_path / "out", fake.url, home, "a=item", "b=") == 3
    err = capsys.readouterr().err
    assert err.startswith("faults: error: ")
    assert "start_profile: HTTP 500" in err
    assert err.count("\n") == 1
    assert read_states(home)[0]["faults"] == {}


@pytest.mark.parametrize(
    ("cases", "said"),
    [
        (("a=", "b=nonsense"), "fault 'nonsense': not known"),
        (("a=", "a=item"), "case a: given twice"),
        (("old=",), "old: is there already"),
    ],
)
def test_cases_that_cannot_be_recorded_are_refused_before_anything_is(
    monkeypatch, capsys, tmp_path, cases, said
):
    (tmp_path / "out" / "old").mkdir(parents=True)
    with serving(folder=tmp_path / "ll") as fake:
        assert _record_faults(monkeypatch, tmp_path / "out", fake.url, tmp_path / "ll", *cases) == 3
    assert said in capsys.readouterr().err
    assert fake.asked == []
    assert not (tmp_path / "ll" / "control.json").exists()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["old"]


# All of it on a GPU host


@pytest.mark.parametrize(
    ("part", "code", "said"),
    [
        ("nonsense", 2, "no part is named nonsense"),
        ("few", 3, "defaults failed: ended: ValueError: no such model"),
    ],
)
def test_the_script_that_reproduces(tmp_path, part, code, said):
    """With servers that end at their start: each was given what it can be started with."""
    flags = _flags(build_launch("nextn", shape="tp4-rank", workdir=tmp_path, find=lambda: None).argv)
    flags |= {"--enable-fp32-lm-head", "--max-total-tokens", "--mem-fraction-static"}
    install_fake_sglang(tmp_path / "site", flags)
    env = {**os.environ, **environment(Behaviour(dies_at_start=True)), "PYTHON": sys.executable}
    command = ["bash", str(BENCHMARKS / "reproduce.sh"), str(tmp_path / "work"), part]
    env |= {"PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr
    assert done.stdout.count("failed: ended: ValueError: no such model") == (4 if part == "few" else 0)


@pytest.mark.parametrize("name", ["", "a/b", "../out", "-x", "."])
def test_a_case_is_named_so_that_its_capture_stays_in_the_folder(tmp_path, name):
    with pytest.raises(faults.InputError, match="a name has letters"):
        faults.read_cases(tmp_path, [f"{name}=item"])
