"""Every way to fail has its exit code, one line on stderr, and leaves no file behind."""

from __future__ import annotations

import gzip
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from latencylab.cli import _exit

HEAVY = {"numpy", "pandas", "pyarrow", "plotly", "jinja2", "msgspec", "rich"}


def _is_one_line(text: str) -> bool:
    return text.startswith("latencylab: error: ") and text.count("\n") == 1 and text.endswith("\n")


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# Usage


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["analyze"],
        ["analyze", "--no-such-option", "x"],
        ["analyze", "x", "--format", "yaml"],
        ["analyze", "x", "--format", "csv"],
        ["analyze", "x", "--steps", "7"],
        ["analyze", "x", "--step-span", ""],
        ["calibrate", "x", "--without", ""],
        ["gate", "x", "--baseline-from-history", "h", "--baseline-commit", ""],
        *(
            ["bench", "--url", "http://127.0.0.1:9", "--timeout", text]
            for text in ("nan", "inf", "1e300", "0")
        ),
        ["analyze", "x", "--steps", "9:3"],
        ["analyze", "x", "--rank", "-1"],
        ["analyze", "x", "--jobs", "0"],
        ["analyze", "x", "--max-bytes", "lots"],
        ["analyze", "x", "--max-bytes", "0"],
        ["analyze", "x", "--max-bytes", "1G", "--no-limit"],
        ["report", "x"],
        ["trim", "x", "-o", "y"],
    ],
)
def test_wrong_usage(latencylab, arguments):
    result = latencylab(*arguments)
    assert result.code == 2
    assert _is_one_line(result.err)
    assert "--help'" in result.err
    assert result.out == ""


def test_no_arguments_show_the_help(latencylab):
    result = latencylab()
    assert result.code == 2
    assert "analyze" in result.err


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["analyze", "--help"], ["trim", "--help"]])
def test_help_is_fine(latencylab, arguments):
    result = latencylab(*arguments)
    assert (result.code, result.err) == (0, "")
    assert "latencylab" in result.out


def test_help_imports_nothing_heavy():
    show = "import sys; from latencylab.cli import run; run(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stderr.split())


# Input


@pytest.mark.parametrize("command", ["analyze", "report", "trim"])
@pytest.mark.parametrize(
    "case", ["missing", "empty file", "empty folder", "no match", "below a file", "not JSON"]
)
def test_input_that_is_no_capture(latencylab, tmp_path, out, trace, command, case):
    (tmp_path / "empty.json").touch()
    (tmp_path / "text.json").write_text("hello")
    (tmp_path / "folder").mkdir()
    given = {
        "missing": tmp_path / "nothing.json",
        "empty file": tmp_path / "empty.json",
        "empty folder": tmp_path / "folder",
        "no match": tmp_path / "*.trace.json.gz",
        "below a file": trace / "rank0.json",
        "not JSON": tmp_path / "text.json",
    }[case]
    options = {
        "analyze": ["-o", out / "r"],
        "report": ["-o", out / "r"],
        "trim": ["--steps", "0:2", "-o", out / "r"],
    }
    result = latencylab(command, given, *options[command])
    assert result.code == 3, result.err
    assert _is_one_line(result.err)
    assert _files(out) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_input_without_permission(latencylab, trace):
    trace.chmod(0)
    assert latencylab("analyze", trace).code == 3


def test_unknown_sample(latencylab):
    result = latencylab("analyze", "sample:nothing")
    assert result.code == 3
    assert _is_one_line(result.err)


def test_a_limit_on_size(latencylab, trace):
    packed = trace.with_name("rank0.trace.json.gz")
    packed.write_bytes(gzip.compress(trace.read_bytes()))
    for size, code in (("1K", 3), ("1000", 3), ("1.5MiB", 0), ("2 gb", 0)):
        assert latencylab("analyze", packed, "--max-bytes", size).code == code
    assert latencylab("analyze", packed, "--no-limit").code == 0


@pytest.mark.parametrize("options", [["--rank", "7"], ["--steps", "100:"], ["--kind", "nothing"]])
def test_no_such_part(latencylab, trace, options):
    result = latencylab("analyze", trace, *options)
    assert result.code == 3, result.err
    assert _is_one_line(result.err)


def test_missing_classes(latencylab, trace, tmp_path):
    result = latencylab("analyze", trace, "--classes", tmp_path / "none.toml")
    assert result.code == 3
    assert _is_one_line(result.err)


def test_a_message_is_one_printable_line(latencylab, tmp_path):
    result = latencylab("analyze", tmp_path / "a\nb\x1b[31m.json")
    assert result.code == 3
    assert _is_one_line(result.err)
    assert "\x1b" not in result.err


# Output


@pytest.mark.parametrize("command", ["analyze", "report"])
def test_output_that_cannot_be_written(latencylab, trace, out, command):
    (out / "file").touch()
    before = _files(out)
    for target in (out / "none" / "r.html", out / "file" / "r.html", out, Path("/dev/full")):
        result = latencylab(command, trace, "-o", target, "--force")
        assert result.code == 4, result.err
        assert _is_one_line(result.err)
    assert _files(out) == before


def test_full_stdout(script, trace):
    for arguments in (["--help"], ["analyze", trace], ["analyze", trace, "--format", "json"]):
        with Path("/dev/full").open("w") as full:
            done = script(*arguments, stdout=full)
        assert done.returncode == 4
        assert _is_one_line(done.stderr)


def test_disk_that_takes_no_more(script, trace, out):
    """The limit on the size of a file stands in for a full disk."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    for arguments in (
        ["analyze", trace, "-o", out / "r.txt"],
        ["report", trace, "-o", out / "r.html"],
        ["analyze", trace, "--format", "csv", "-o", out / "tables"],
        ["trim", trace, "--steps", "0:4", "-o", out / "small"],
    ):
        done = script(*arguments, preexec_fn=limit)
        assert done.returncode == 4, done.stderr
        assert _is_one_line(done.stderr)
        assert _files(out) == []


def test_closed_stdout(trace):
    command = f"{sys.executable} -m latencylab analyze '{trace}' >&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert _is_one_line(done.stderr)


def test_reader_that_goes_away_is_no_error(trace):
    command = (
        f"{sys.executable} -m latencylab analyze '{trace}' --format json | true; exit ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 141
    assert done.stderr == ""


# Interruption

HANG_WHILE_WRITING = """
import os, sys, time
def hang(descriptor):
    print("ready", flush=True)
    time.sleep(100)
os.fsync = hang
from latencylab.cli import main
main()
"""
HANG_WHILE_READING = """
import sys, time
import latencylab.traces
def hang(*args, **kwargs):
    print("ready", flush=True)
    time.sleep(100)
latencylab.traces.open_capture = hang
from latencylab.cli import main
main()
"""


@pytest.mark.parametrize("program", [HANG_WHILE_WRITING, HANG_WHILE_READING])
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interruption_leaves_nothing(trace, out, program, signum, code):
    process = subprocess.Popen(
        [sys.executable, "-c", program, "report", trace, "-o", out / "r.html"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signum)
        _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert err.count("\n") == 1
    assert err.startswith("latencylab: ")
    assert _files(out) == []


# Bugs


@pytest.fixture
def broken(monkeypatch):
    def fail(*_args: object, **_options: object) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr("latencylab.traces.open_capture", fail)


@pytest.mark.usefixtures("broken")
def test_a_bug_is_called_a_bug(latencylab):
    result = latencylab("analyze", "x")
    assert result.code == _exit.BUG
    assert _is_one_line(result.err)
    assert "KeyError" in result.err


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("arguments", [["--debug", "analyze", "x"], ["analyze", "x", "--debug"]])
def test_debug_shows_the_traceback(latencylab, arguments):
    result = latencylab(*arguments)
    assert result.code == _exit.BUG
    assert "Traceback (most recent call last)" in result.err


def test_debug_shows_the_traceback_of_a_known_error(latencylab, tmp_path):
    result = latencylab("analyze", tmp_path / "nothing", "--debug")
    assert result.code == 3
    assert "Traceback" in result.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MemoryError(), 3),
        (OSError(28, "No space left on device"), 4),
        (PermissionError(13, "Permission denied"), 70),
    ],
)
def test_errors_of_the_system(error, code):
    def fail(_settings: object) -> None:
        raise error

    assert _exit.run_guarded(fail) == code
