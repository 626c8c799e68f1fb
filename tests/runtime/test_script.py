"""Captures of programs, with a stand-in for torch that writes a trace as Kineto would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from latencylab.cli import run
from latencylab.model.integrity import InputError
from latencylab.runtime import script
from latencylab.runtime.program import bootstrapped
from latencylab.traces import open_capture

# The steps of a stand-in profile lie between its start and its stop.
TORCH = """
import gzip, json, os, sys, time, types
sys.path.append({fakes!r})
from fake_server import kineto
__version__ = "9.9"
version = types.SimpleNamespace(cuda="13.0")
HAS_GPU = os.environ.get("FAKE_GPU") == "1"

class profile:
    def __init__(self, activities, experimental_config=None):
        self.activities = activities
    def start(self):
        self.begin = time.time_ns()
    def stop(self):
        self.end = time.time_ns()
    def export_chrome_trace(self, path):
        length = (self.end - self.begin) // 8
        steps = [(self.begin + i * length, self.begin + (i + 1) * length) for i in range(8)]
        rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD", 1))
        trace = kineto(steps, rank, ranks, kernels="CUDA" in self.activities)
        open(path, "wb").write(gzip.compress(json.dumps(trace).encode()))

profiler = types.SimpleNamespace(
    profile=profile, ProfilerActivity=types.SimpleNamespace(CPU="CPU", CUDA="CUDA")
)
cuda = types.SimpleNamespace(
    is_available=lambda: HAS_GPU, synchronize=lambda: None, get_device_name=lambda: "Fake GPU",
    profiler=types.SimpleNamespace(start=lambda: None, stop=lambda: None),
)
"""


class Program:
    """Runs `latencylab capture -- ...` in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "captures" / "c"
        self.tmp = folder / "tmp"
        for path in (self.out.parent, self.tmp, folder / "site"):
            path.mkdir()
        self.site = folder / "site"
        (self.site / "torch.py").write_text(TORCH.format(fakes=str(Path(__file__).parent)))
        self.path = folder / "program.py"

    def start(self, text: str, *arguments: str, options: tuple[str, ...] = (), **env: str):
        self.path.write_text(text)
        command = [sys.executable, "-m", "latencylab", "capture", "-o", str(self.out), *options, "--"]
        return subprocess.Popen(
            [*command, *(arguments or (sys.executable, str(self.path)))],
            env={**os.environ, "PYTHONPATH": str(self.site), "TMPDIR": str(self.tmp), "FAKE_GPU": "1", **env},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, text: str, *arguments: str, **given):
        process = self.start(text, *arguments, **given)
        output, error = process.communicate(timeout=60)
        assert not list(self.tmp.iterdir())
        assert {path.name for path in self.out.parent.iterdir()} <= {"c"}
        return process.returncode, output, error


@pytest.fixture
def program(tmp_path):
    return Program(tmp_path)


SLEEP = "import time; time.sleep(0.1)\n"


def test_a_program_runs_as_it_would_alone(program):
    text = SLEEP + "import sys, os; print(__name__, sys.argv[1:], sys.path[0])\n"
    text += "print([name for name in os.environ if name.startswith('LATENCYLAB_')])"
    code, output, error = program.run(text, sys.executable, "-u", str(program.path), "--x", "1")
    assert (code, error) == (0, "")
    assert output == f"__main__ ['--x', '1'] {program.folder}\n[]\n"
    capture = open_capture(program.out, cache=False)
    assert len(capture.traces[0].gpu) == 8
    assert capture.unprofiled is None
    assert capture.manifest["packages"]["torch"] == "9.9"
    assert capture.manifest["gpu"] == "Fake GPU"
    assert capture.manifest["workload"]["program"][-2:] == ["--x", "1"]


def test_a_program_without_a_gpu(program):
    code, _, error = program.run(SLEEP, FAKE_GPU="0")
    assert code == 0
    assert error.startswith("latencylab: unusable: rank 0 gave no kernels")
    assert error.count("\n") == 1
    assert "no kernels" in json.loads((program.out / "manifest.json").read_text())["unusable"]


def test_a_module(program):
    (program.site / "package").mkdir()
    (program.site / "package" / "thing.py").write_text(SLEEP + "print(__name__)")
    code, output, _ = program.run("", sys.executable, "-m", "package.thing")
    assert (code, output) == (0, "__main__\n")
    assert open_capture(program.out, cache=False).traces[0].rank == 0


def test_every_rank_that_a_launcher_starts(program):
    launcher = program.folder / "torchrun"
    launcher.write_text(
        f"#!{sys.executable}\n"
        "import os, subprocess, sys\n"
        "def start(rank):\n"
        "    env = {**os.environ, 'RANK': str(rank), 'WORLD': '2'}\n"
        "    return subprocess.Popen([sys.executable, *sys.argv[1:]], env=env)\n"
        "children = [start(rank) for rank in range(2)]\n"
        "sys.exit(max(child.wait() for child in children))\n"
    )
    launcher.chmod(0o755)
    code, _, error = program.run(SLEEP, str(launcher), str(program.path))
    assert (code, error) == (0, "")
    assert [trace.rank for trace in open_capture(program.out, cache=False).traces] == [0, 1]


def test_a_program_that_fails_leaves_its_trace(program):
    code, _, error = program.run(SLEEP + "raise SystemExit(5)")
    assert code == 3
    assert error.splitlines()[-1].endswith("ended with exit code 5; its capture was kept")
    assert len(open_capture(program.out, cache=False).traces) == 1
    assert "unusable" not in json.loads((program.out / "manifest.json").read_text())


def test_a_range_of_the_program(program):
    text = (
        "import time, torch\ntime.sleep(0.5)\ntorch.cuda.profiler.start()\ntime.sleep(0.2)\n"
        "torch.cuda.profiler.stop()\ntime.sleep(0.5)\n"
    )
    code, _, error = program.run(text, options=("--capture-range",))
    assert (code, error) == (0, "")
    gpu = open_capture(program.out, cache=False).traces[0].gpu
    assert gpu.end.max() - gpu.start.min() < 0.35e9


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (SLEEP, ("--capture-range",), "it never called torch.cuda.profiler.start()"),
        ("import os; os._exit(0)", (), "exit code 0 and left no trace"),
    ],
)
def test_a_program_without_a_trace(program, text, options, said):
    code, _, error = program.run(text, options=options)
    assert code == 3
    assert said in error
    assert not program.out.exists()


def test_a_program_that_is_killed(program):
    code, _, error = program.run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert code == 3
    assert "the program ended with signal 9 and left no trace" in error


def test_a_program_that_is_not_there(capsys, tmp_path):
    command = [sys.executable, str(tmp_path / "no.py")]
    assert run(["capture", "-o", str(tmp_path / "c"), "--", *command]) == 3
    assert capsys.readouterr().err == f"latencylab: error: {tmp_path / 'no.py'}: no such program\n"
    assert not (tmp_path / "c").exists()


def test_a_python_without_torch(program):
    (program.site / "torch.py").unlink()
    if _has_torch():
        pytest.skip("this Python has torch")
    code, _, error = program.run(SLEEP)
    assert code == 3
    assert "has no torch" in error
    assert not program.out.exists()


def _has_torch() -> bool:
    return (
        subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, check=False).returncode
        == 0
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(program, number):
    ready = program.folder / "ready"
    text = f"import os, time\nopen({str(ready)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    process = program.start(text)
    while not (ready.exists() and ready.read_text()):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    _, error = process.communicate(timeout=30)
    assert process.returncode == (130 if number == signal.SIGINT else 143)
    with pytest.raises(ProcessLookupError):
        os.kill(int(ready.read_text()), 0)
    assert not list(program.tmp.iterdir())
    assert not list(program.out.parent.iterdir())
    assert error.splitlines()[-1].startswith("latencylab: ")


FILE = str(Path(script.__file__).resolve())


@pytest.mark.parametrize(
    ("command", "place"),
    [
        (["python", "x.py", "-m", "y"], 1),
        (["python", "-u", "-m", "pkg.mod", "config.py"], 2),
        (["torchrun", "--nproc-per-node", "2", "x.py"], 3),
        (["torchrun", "--nproc-per-node", "2", "-m", "pkg"], 3),
        (["python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "x.py"], 5),
    ],
)
def test_where_our_file_goes(command, place):
    assert bootstrapped(command) == [*command[:place], FILE, *command[place:]]


@pytest.mark.parametrize("command", [["ls"], ["python", "-c", "1"], ["python", "-m"], ["./x.py"]])
def test_no_python_program(command):
    with pytest.raises(InputError, match="no Python program"):
        bootstrapped(command)
