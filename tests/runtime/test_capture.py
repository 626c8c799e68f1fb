"""Captures of a server: what is in them, what is wrong with them, and that no half of one is ever left."""

from __future__ import annotations

import gzip
import json
import os
import platform
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fake_server import Behaviour, environment, install_fake_sglang, kineto, serving
from latencylab.cli import run
from latencylab.model.integrity import InputError
from latencylab.runtime.bench import Workload
from latencylab.runtime.capture import (
    Plan,
    check_capture,
    record,
)
from latencylab.runtime.client import EngineTarget, HttpTarget
from latencylab.runtime.provenance import (
    read_states,
)
from latencylab.traces import open_capture

OPTIONS = (
    "--input-tokens",
    "6",
    "--output-tokens",
    "101",
    "--requests",
    "3",
    "--warmup",
    "1",
    "--steps",
    "10",
)


def _manifest(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def _names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Where temporary folders go; none may stay."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    assert not list(folder.iterdir())


@pytest.fixture
def out(tmp_path):
    return tmp_path / "captures" / "c"


@pytest.fixture(autouse=True)
def beside(out):
    """The folder of captures; no temporary folder may stay in it."""
    out.parent.mkdir()
    yield
    assert {path.name for path in out.parent.iterdir()} <= {"c"}


# Of a server that runs


def test_capture_of_a_server_with_the_plugin(capsys, tmp_path, out):
    home = tmp_path / "ll"
    faults = {"sleep": {"us": 5, "rank": 1, "busy": 1, "active": True}}
    with serving(
        folder=home, ranks=2, traces_late_s=0.4, pieces=4, piece_s=0.3, faults=faults, chunk_ms=2
    ) as fake:
        code = run(
            [
                *("capture", "--url", fake.url, "--server-dir", str(home), "-o", str(out)),
                *("--fault", "sleep:us=5,rank=1", "--commit", "abc"),
                *OPTIONS,
            ]
        )
    assert (code, *capsys.readouterr()) == (0, "", "")
    assert _names(out) == [
        "manifest.json",
        "rank0.trace.json.gz",
        "rank1.trace.json.gz",
        "unprofiled/client.json",
        "unprofiled/clock-rank0.parquet",
        "unprofiled/clock-rank1.parquet",
    ]
    capture = open_capture(out, cache=False)
    assert [trace.rank for trace in capture.traces] == [0, 1]
    assert all(len(trace.gpu) == 10 for trace in capture.traces)

    # Unprofiled are the measured requests alone, and all of them came before the profiler.
    paths = [path for path, _ in fake.asked]
    assert paths.count("/generate") == 1 + 3 + 1
    assert paths.index("/start_profile") > [i for i, path in enumerate(paths) if path == "/generate"][-1]
    requests = capture.unprofiled.requests
    assert len(requests) == 3
    assert [request.chunks[-1][1] for request in requests] == [101, 101, 101]
    profiled_from = fake.steps[4 * 51 + 19][1]
    assert capture.traces[0].gpu.start.min() > profiled_from - 5e6
    clock = capture.unprofiled.clocks[1]
    first, last = requests[0].start_ns, requests[-1].start_ns + requests[-1].chunks[-1][0]
    assert len(clock) == 3 * 51
    assert first <= clock.start_ns.min() <= clock.start_ns.max() <= last

    manifest = _manifest(out)
    assert manifest["commit"] == "abc"
    assert (manifest["gpu"], manifest["driver"]) == ("Fake GPU", "1.2")
    assert manifest["server_args"] == {"tp_size": 2, "model_path": "/models/tiny"}  # and no key
    assert manifest["env"] == {"SGLANG_TEST": "1"}
    assert manifest["packages"]["torch"] == "2.14.1"
    assert manifest["faults"] == {"sleep": {"us": 5, "rank": 1, "busy": 1, "ranks": [0, 1]}}
    assert "unusable" not in manifest
    assert manifest["clocks"]["1"]["own_us_per_step"] == 12.5
    workload = manifest["workload"]
    assert (workload["input_tokens"], workload["output_tokens"], workload["requests"]) == (6, 101, 3)
    assert (workload["model"], workload["seed"], workload["profiled_steps"]) == ("tiny", 0, 10)


def test_capture_of_a_server_without_plugin(capsys, out):
    with serving(ranks=1) as fake:
        assert run(["capture", "--url", fake.url, "-o", str(out), *OPTIONS]) == 0
    assert capsys.readouterr().err == ""
    assert _names(out) == ["manifest.json", "rank0.trace.json.gz", "unprofiled/client.json"]
    assert _manifest(out)["packages"] == {"sglang": "0.5.23"}


def test_a_second_capture_has_no_clock(capsys, tmp_path, out):
    """Its process was profiled before, so nothing that it does now is unprofiled."""
    home = tmp_path / "ll"
    with serving(folder=home) as fake:
        options = ["capture", "--url", fake.url, "--server-dir", str(home), *OPTIONS]
        assert run([*options, "-o", str(tmp_path / "first")]) == 0
        capsys.readouterr()
        assert run([*options, "-o", str(out)]) == 0
    err = capsys.readouterr().err
    assert "no longer unprofiled when they were measured" in err
    assert "rank 0 has no step clock of the measured requests" in err
    assert "unprofiled/clock-rank0.parquet" not in _names(out)


def test_another_client_of_the_server(capsys, tmp_path, out):
    home = tmp_path / "ll"
    with serving(folder=home, strangers=5) as fake:
        assert run(["capture", "--url", fake.url, "--server-dir", str(home), "-o", str(out), *OPTIONS]) == 0
    assert "rank 0 ran 5 requests while 3 were measured" in capsys.readouterr().err


def test_two_captures_at_once(capsys, tmp_path, out):
    home = tmp_path / "ll"
    with serving(folder=home, chunk_ms=3) as fake:
        options = ["capture", "--url", fake.url, "--server-dir", str(home), *OPTIONS]
        command = [sys.executable, "-m", "latencylab", *options, "-o", str(out)]
        first = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(tmp_path / "tmp")})
        while "/generate" not in [path for path, _ in fake.asked]:
            time.sleep(0.02)
        assert run([*options, "-o", str(tmp_path / "second")]) == 3
        assert first.wait(30) == 0
    assert "another capture of this server is under way" in capsys.readouterr().err
    assert not (tmp_path / "second").exists()
    assert len(open_capture(out, cache=False).unprofiled.requests) == 3


def test_a_folder_of_another_server(capsys, tmp_path, out):
    home = tmp_path / "ll"
    with serving(folder=home), serving(info={"model_path": "/models/other"}) as other:
        assert run(["capture", "--url", other.url, "--server-dir", str(home), "-o", str(out), *OPTIONS]) == 3
    assert "its model_path is /models/tiny, and this one's /models/other" in capsys.readouterr().err


def test_a_folder_whose_server_is_gone(capsys, monkeypatch, tmp_path, out):
    """A server without the plugin runs in its place."""
    monkeypatch.setattr("latencylab.runtime.clock_files.OBEY_S", 0.3)
    home = tmp_path / "ll"
    with serving(folder=home, clock_deaf=True):
        pass
    with serving() as fake:
        assert run(["capture", "--url", fake.url, "--server-dir", str(home), "-o", str(out), *OPTIONS]) == 3
    assert "no rank obeyed within 0.3 s" in capsys.readouterr().err


def test_states_of_an_earlier_server_with_more_ranks(tmp_path):
    with serving(folder=tmp_path, ranks=4):
        pass
    with serving(folder=tmp_path, ranks=2):
        pass
    assert sorted(read_states(tmp_path)) == [0, 1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "Expecting"),
        ("[]", "no JSON object"),
        ('{"hooks": "no"}', "hooks is no"),
        ('{"env": 7}', "env is no"),
        ('{"faults": {"gc": 1}}', "faults is no"),
    ],
)
def test_a_state_that_is_none(tmp_path, text, said):
    (tmp_path / "plugin-rank0.json").write_text(text)
    with pytest.raises(InputError, match=f"plugin-rank0.json: {said}"):
        read_states(tmp_path)


def test_a_server_that_says_it_has_a_million_ranks(capsys, out):
    with serving(info={"tp_size": 1_000_000}) as fake:
        code = run(["capture", "--url", fake.url, "-o", str(out), "--trace-timeout", "1", *OPTIONS])
    assert code == 0
    err = capsys.readouterr().err
    assert err.count("\n") < 20
    assert "999983 more ranks wrote no trace" in err


def test_a_hook_that_is_missing_on_another_rank(capsys, tmp_path, out):
    home = tmp_path / "ll"
    with serving(folder=home, ranks=2, hooks={"Scheduler.run_batch": "missing: gone"}) as fake:
        assert run(["capture", "--url", fake.url, "--server-dir", str(home), "-o", str(out), *OPTIONS]) == 0
    said = "the plugin's hook on Scheduler.run_batch is missing: gone (rank 1)"
    assert capsys.readouterr().err == f"latencylab: warning: {said}\n"
    assert _manifest(out)["hooks"] == {"Scheduler.run_batch": "missing: gone (rank 1)"}


def test_the_folder_of_a_server_is_nothing_that_captures_differ_in(tmp_path, out):
    home = tmp_path / "ll"
    with serving(folder=home) as fake:
        state = json.loads((home / "plugin-rank0.json").read_text())
        state["server_args"] |= {"tokenizer_path": f"{home}/tp4-rank-x1", "port": 7}
        state["env"] |= {"LATENCYLAB_DIR": str(home)}
        (home / "plugin-rank0.json").write_text(json.dumps(state))
        assert run(["capture", "--url", fake.url, "--server-dir", str(home), "-o", str(out), *OPTIONS]) == 0
    manifest = _manifest(out)
    assert manifest["server_args"]["tokenizer_path"] == "tp4-rank-x1"
    assert "port" not in manifest["server_args"]
    assert manifest["env"] == {"SGLANG_TEST": "1"}


@pytest.mark.parametrize(
    ("behaviour", "said", "files"),
    [
        ({"no_kernels": (2,)}, "rank 2 gave no kernels", 4),
        ({"missing": (1,)}, "rank 1 wrote no trace within 1.5 s", 3),
        ({"cut": (3,)}, "the trace of rank 3 is cut short", 4),
    ],
)
def test_an_unusable_capture_is_kept_and_says_so(capsys, out, behaviour, said, files):
    with serving(ranks=4, **behaviour) as fake:
        code = run(["capture", "--url", fake.url, "-o", str(out), "--trace-timeout", "1.5", *OPTIONS])
    err = capsys.readouterr().err
    assert code == 0
    assert [line for line in err.splitlines() if line.startswith(f"latencylab: unusable: {said}")]
    assert said in _manifest(out)["unusable"]
    assert len(_manifest(out)["files"]) == files


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ({"fail_request": 0, "fail_how": "500"}, "warm-up 0"),
        ({"fail_request": 2, "fail_how": "stall", "fail_after": 5}, "request 1"),
        ({"fail_request": 4, "fail_how": "close", "fail_after": 25}, "broke off"),
        ({"fail_request": 4, "fail_how": "close", "fail_after": 3}, "broke off"),
        ({"profile_fails": True}, "start_profile: HTTP 500"),
        ({"missing": (0,)}, "no trace came within 1 s"),
    ],
)
def test_a_failure_leaves_nothing(capsys, out, behaviour, said):
    with serving(**behaviour) as fake:
        code = run(
            ["capture", "--url", fake.url, "-o", str(out), "--trace-timeout", "1", "--timeout", "1", *OPTIONS]
        )
        assert fake.profile is None  # no profiler stays on
        time.sleep(0.3)  # time for late files, which would make the folder anew
    result = capsys.readouterr()
    assert code == 3
    assert said in result.err
    assert result.err.count("\n") == 1
    assert not out.exists()


def test_a_request_too_short_to_profile(capsys, out):
    with serving(tokens_per_chunk=50) as fake:
        assert run(["capture", "--url", fake.url, "-o", str(out), *OPTIONS]) == 3
    assert "had 3 chunks" in capsys.readouterr().err
    with pytest.raises(InputError, match="fewer chunks"):
        Plan(Workload(output_tokens=20), after_chunk=20).check()


def test_a_request_that_ends_in_the_profile(capsys, out):
    with serving(chunk_ms=5) as fake:
        options = [*OPTIONS[:-1], "40"]  # 51 chunks, of which 31 come after the twentieth
        assert run(["capture", "--url", fake.url, "-o", str(out), *options]) == 0
    assert "about 31 steps after profiling began, of 40 wanted" in capsys.readouterr().err
    assert 25 <= len(open_capture(out, cache=False).traces[0].gpu) <= 31  # the engine runs on meanwhile


def test_faults_are_refused_where_the_server_has_none(capsys, tmp_path, out):
    home = tmp_path / "ll"
    with serving(folder=home, faults={"sleep": {"us": 9, "rank": -1, "busy": 1, "active": True}}) as fake:
        options = ["capture", "--url", fake.url, "-o", str(out), *OPTIONS]
        assert run([*options, "--fault", "item"]) == 3
        assert run([*options, "--server-dir", str(home), "--fault", "sleep:us=5"]) == 3
        assert run([*options, "--fault", "nonsense"]) == 3
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3
    assert all("injected when a server starts" in error for error in errors[:2])
    assert not out.exists()


def test_no_plugin_in_the_folder(capsys, tmp_path, out):
    with serving() as fake:
        options = ["capture", "--url", fake.url, "--server-dir", str(tmp_path / "no"), "-o", str(out)]
        assert run([*options, *OPTIONS]) == 3
    assert "no server with the plugin uses this folder" in capsys.readouterr().err


def test_an_existing_capture_is_kept(capsys, out):
    out.mkdir()
    (out / "mine").write_text("x")
    assert run(["capture", "--url", "http://127.0.0.1:9", "-o", str(out)]) == 4
    assert "not empty" in capsys.readouterr().err
    assert _names(out) == ["mine"]


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--url", "x", "--", "python", "x.py"],
        ["--url", "x", "--capture-range"],
        ["--fault", "item", "--", "python", "x.py"],
        ["--steps", "5", "--", "python", "x.py"],
        ["--input-tokens", "8192", "--", "python", "x.py"],
        ["--url", "x", "--no-plugin"],
        ["--url", "x", "--with", "pdl"],
        ["--url", "x", "--artefacts", "y"],
        ["--preset", "nextn"],
    ],
)
def test_wrong_usage(capsys, out, options):
    assert run(["capture", "-o", str(out), *options]) == 2


def test_what_stops_us_after_the_capture_is_complete(monkeypatch, out):
    """It is kept, and the interrupt is told all the same."""

    def interrupted(_folder):
        raise KeyboardInterrupt

    monkeypatch.setattr("latencylab.runtime.capture.check_capture", interrupted)
    with serving() as fake:
        assert run(["capture", "--url", fake.url, "-o", str(out), *OPTIONS]) == 130
    assert len(open_capture(out, cache=False).unprofiled.requests) == 3


class FakeEngine:
    """As much of `sglang.Engine` as a capture asks for; its trace is there at once."""

    def generate(self, *, sampling_params, **_given):
        for tokens in range(1, sampling_params["max_new_tokens"] + 1):
            yield {"meta_info": {"completion_tokens": tokens}}

    def flush_cache(self):
        pass

    def start_profile(self, *, output_dir, num_steps, **_given):
        steps = [(1000 * i, 1000 * i + 900) for i in range(1, num_steps + 1)]
        path = Path(output_dir) / "1-TP-0.trace.json.gz"
        path.write_bytes(gzip.compress(json.dumps(kineto(steps, 0, 1)).encode()))


def test_capture_of_an_engine_in_this_process(out):
    out.mkdir()
    plan = Plan(Workload(6, 64, 2, 1), steps=10)
    findings = record(
        out, EngineTarget(FakeEngine()), plan, ranks=1, server_dir=None, about={"commit": "abc"}
    )
    assert (findings, check_capture(out)) == ([], [])
    capture = open_capture(out, cache=False)
    assert (len(capture.traces[0].gpu), len(capture.unprofiled.requests)) == (10, 2)
    assert capture.manifest["commit"] == "abc"


# Of a server that is launched


class Launched:
    """`capture --preset` in a process of its own; the fake stands behind `sglang.launch_server`."""

    def __init__(self, tmp_path: Path, temporary: Path, out: Path) -> None:
        install_fake_sglang(tmp_path / "site")
        self.record = tmp_path / "record"
        self.record.touch()
        self.env = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "TMPDIR": str(temporary)}
        self.command = [sys.executable, "-m", "latencylab", "capture", "-o", str(out), *OPTIONS]
        self.command += ["--preset", "nextn", "--shape", "tp4-rank", "--tp", "2"]

    def start(self, *options: str, **behaviour) -> subprocess.Popen[str]:
        self.env |= environment(Behaviour(child=True, record=str(self.record), **behaviour))
        return subprocess.Popen(
            [*self.command, *options],
            env=self.env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def asked(self) -> list[str]:
        return [
            json.loads(line)[0]
            for line in self.record.read_text().splitlines(keepends=True)
            if line[-1] == "\n"
        ]

    def server_pids(self) -> set[int]:
        lines = [json.loads(line) for line in self.record.read_text().splitlines()]
        return {line[3] for line in lines}

    def assert_gone(self) -> None:
        """Neither the server nor the child in a session of its own that it started."""
        for pid in self.server_pids():
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        mine = f"FAKE_BEHAVIOUR={self.env['FAKE_BEHAVIOUR']}"
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                assert not (entry.name.isdecimal() and mine.encode() in (entry / "environ").read_bytes())


@pytest.fixture
def launched(tmp_path, temporary, out):
    return Launched(tmp_path, temporary, out)


def test_a_launched_capture(launched, out):
    process = launched.start("--fault", "sleep:us=100")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    capture = open_capture(out, cache=False)
    assert [trace.rank for trace in capture.traces] == [0, 1]
    assert sorted(capture.unprofiled.clocks) == [0, 1]
    manifest = capture.manifest
    assert manifest["workload"]["preset"] == "nextn"
    assert manifest["ledger"]["metadata-graph"] is True
    assert manifest["env"]["LATENCYLAB_FAULTS"].startswith("sleep:us=100")
    assert "LATENCYLAB_DIR" not in manifest["env"]
    assert manifest["packages"]["python"] == platform.python_version()
    assert "cores" in manifest["cpu"]
    launched.assert_gone()


def test_variables_that_nobody_asked_for_are_not_passed_on(launched, out):
    launched.env |= {"LATENCYLAB_FAULTS": "item", "LATENCYLAB_DIR": "/nowhere", "SGLANG_MINE": "1"}
    process = launched.start("--no-plugin")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    manifest = _manifest(out)
    assert not [name for name in manifest["env"] if name.startswith("LATENCYLAB_")]
    assert manifest["env"]["SGLANG_MINE"] == "1"
    assert "hooks" not in manifest


def test_a_launched_server_without_the_plugin(launched, out):
    process = launched.start(stateless=True)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert err.splitlines()[-1].startswith("latencylab: error: the server does not run our plugin")
    assert not out.exists()
    launched.assert_gone()


def test_a_log_that_cannot_be_written(launched, out):
    process = launched.start("--server-log", "/no/such/log")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 4
    assert err.splitlines()[-1] == "latencylab: error: cannot write /no/such/log: No such file or directory"


def test_a_launched_server_that_dies_in_the_profile(launched, out):
    process = launched.start(fail_request=4, fail_how="die", fail_after=25)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "the server had ended: exit code 9" in err.splitlines()[-1]
    assert not out.exists()
    launched.assert_gone()


MOMENTS = {
    "not yet ready": ("/health", 2, {"unhealthy_s": 60}),
    "warm-up": ("/generate", 1, {"chunk_ms": 20}),
    "measuring": ("/generate", 3, {"chunk_ms": 20}),
    "profiling": ("/start_profile", 1, {"chunk_ms": 10}),
    "waiting for traces": ("/start_profile", 1, {"traces_late_s": 30, "delay": 1.0}),
    "traces half written": ("/start_profile", 1, {"pieces": 20, "piece_s": 1, "delay": 2.0}),
    "server hangs": ("/generate", 2, {"fail_request": 1, "fail_how": "stall", "fail_after": 3}),
}


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        *((moment, signal.SIGINT) for moment in MOMENTS),
        ("not yet ready", signal.SIGTERM),
        ("traces half written", signal.SIGTERM),
    ],
)
def test_interrupted(launched, out, moment, number):
    path, count, behaviour = MOMENTS[moment]
    behaviour = dict(behaviour)
    delay = behaviour.pop("delay", 0.1)
    process = launched.start(**behaviour)
    until = time.monotonic() + 30
    while launched.asked().count(path) < count:
        assert time.monotonic() < until
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    time.sleep(delay)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == (130 if number == signal.SIGINT else 143)
    assert "Traceback" not in err
    assert not out.exists()
    launched.assert_gone()


@pytest.mark.parametrize("after", ["/generate", "/start_profile"])
def test_interrupted_beside_a_server_that_stays(temporary, out, after):
    with serving(chunk_ms=20) as fake:
        command = [sys.executable, "-m", "latencylab", "capture", "--url", fake.url, "-o", str(out), *OPTIONS]
        command += ["--requests", "1", "--steps", "25"]
        process = subprocess.Popen(
            command, env={**os.environ, "TMPDIR": str(temporary)}, stderr=subprocess.PIPE, text=True
        )
        while after not in [path for path, _ in fake.asked]:
            assert process.poll() is None
            time.sleep(0.02)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (130, "latencylab: interrupted\n")
        assert not out.exists()
        assert fake.profile is None
        time.sleep(1)  # nothing is written later either
        assert HttpTarget(fake.url).is_healthy()
    assert ("/stop_profile" in [path for path, _ in fake.asked]) == (after == "/start_profile")
