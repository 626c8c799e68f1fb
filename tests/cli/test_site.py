"""`latencylab site`: what goes into the history, and what comes out as a site."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from latencylab.model.gate import run_from_dict
from latencylab.traces import bundle, sample_path
from latencylab.traces.history import History, Record


@pytest.fixture
def history(tmp_path: Path) -> Path:
    return tmp_path / "history"


@pytest.fixture
def bundled(trace: Path) -> Path:
    """The trace as a capture with a manifest."""
    manifest = {"files": {0: trace.name}, "commit": "from-manifest", "created": "2026-05-01T12:00:00+02:00"}
    bundle.write_manifest(trace.parent, manifest)
    return trace.parent


def runs(folder: Path) -> tuple[Record, ...]:
    return History.open(folder).runs()


def test_add_stores_a_run(latencylab: Any, bundled: Path, history: Path) -> None:
    result = latencylab("site", "add", bundled, "--history", history)
    assert (result.code, result.out) == (0, "")
    assert result.err.count("\n") == 1
    (run,) = runs(history)
    assert run.id in result.err
    assert (run.commit, run.date, run.message) == ("from-manifest", "2026-05-01T10:00:00+00:00", "")
    assert run.run.commit == run.run.label == "from-manifest"
    assert run.run.metrics["busy"] > 0
    there = History.open(history)
    assert there.analysis(run)["schema"] == "latencylab.analysis/1"
    assert there.report(run).startswith(b"<!doctype html>")
    with zipfile.ZipFile(history / "runs" / f"{run.id}.zip") as packed:
        stored = json.loads(packed.read("run.json"))
    assert run_from_dict(stored["run"]) == run.run


def test_options_say_more_than_the_manifest(latencylab: Any, bundled: Path, history: Path) -> None:
    options = ["--commit", "abc", "--message", "Fuse\nthe rest", "--config", "tp4"]
    options += ["--date", "2026-05-03T01:30:00+02:00"]
    assert latencylab("site", "add", bundled, "--history", history, *options).code == 0
    (run,) = runs(history)
    assert (run.commit, run.message, run.config) == ("abc", "Fuse", "tp4")
    assert run.date == "2026-05-02T23:30:00+00:00"
    assert run.run.commit == "abc"


def test_a_bare_trace_has_no_commit(latencylab: Any, trace: Path, history: Path) -> None:
    assert latencylab("site", "add", trace, "--history", history).code == 0
    (run,) = runs(history)
    assert (run.commit, run.step_ms) == (None, None)


def test_the_same_capture_is_added_once(
    latencylab: Any, bundled: Path, history: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(bundled, copy)
    assert latencylab("site", "add", bundled, "--history", history).code == 0
    again = latencylab("site", "add", copy, "--history", history, "--commit", "other")
    assert again.code == 0
    assert "already" in again.err
    assert "from-manifest" in again.err
    assert [run.commit for run in runs(history)] == ["from-manifest"]
    assert latencylab("site", "add", copy, "--history", history, "--commit", "other", "--force").code == 0
    assert [run.commit for run in runs(history)] == ["other"]


def test_a_sample_with_its_requests(latencylab: Any, history: Path, tmp_path: Path) -> None:
    """The two captures of one configuration: the blocking read costs over a fifth of the step."""
    for name, day in (("nextn", "2026-05-01"), ("nextn-host-stall", "2026-05-02")):
        result = latencylab("site", "add", sample_path(name), "--history", history, "--date", day)
        assert result.code == 0, result.err
    before, after = runs(history)
    assert before.config == after.config == "NEXTN"
    assert before.step_ms is not None
    assert after.step_ms is not None
    assert 5.7 < before.step_ms < 6.3
    assert 1.15 < after.step_ms / before.step_ms < 1.35
    result = latencylab("site", "build", "--history", history, "-o", tmp_path / "site")
    assert result.code == 0
    page = (tmp_path / "site" / "index.html").read_text("utf-8")
    assert f"{after.step_ms:.3f}" in page
    (diff,) = (tmp_path / "site" / "diffs").iterdir()
    assert diff.name == f"{before.id}-{after.id}.html"
    assert "cudaStreamSynchronize" in diff.read_text("utf-8")


def test_build_keeps_a_folder_that_is_not_empty(
    latencylab: Any, bundled: Path, history: Path, out: Path
) -> None:
    latencylab("site", "add", bundled, "--history", history)
    (out / "mine.txt").write_text("mine")
    command = ["site", "build", "--history", history, "-o", out]
    result = latencylab(*command)
    assert result.code == 4
    assert "--force" in result.err
    assert [p.name for p in out.iterdir()] == ["mine.txt"]
    assert latencylab(*command, "--force").code == 0
    assert {p.name for p in out.iterdir()} == {"mine.txt", "index.html", "assets", "reports"}
    assert latencylab(*command, "--force").code == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["build", "-o", "site", "--history", "missing"], 3),
        (["build", "--history", "missing"], 2),
        (["add", "missing.json"], 3),
        (["add"], 2),
        (["add", "t.json", "--date", "yesterday"], 2),
        (["add", "t.json", "--commit", " "], 2),
        (["frobnicate"], 2),
        ([], 2),
    ],
)
def test_bad_command_lines(
    latencylab: Any, out: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int
) -> None:
    monkeypatch.chdir(out)
    result = latencylab("site", *arguments)
    assert result.code == code
    assert result.out == ""
    if arguments:
        assert result.err.count("\n") == 1
        assert result.err.startswith("latencylab: error: ")
    assert not (out / "latencylab-history").exists()


def test_a_history_that_cannot_be_read(latencylab: Any, bundled: Path, history: Path, out: Path) -> None:
    latencylab("site", "add", bundled, "--history", history)
    (path,) = (history / "runs").iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    for arguments in (["build", "-o", out / "site"], ["add", bundled]):
        result = latencylab("site", *arguments, "--history", history)
        assert result.code == 3
        assert path.name in result.err
        assert result.err.count("\n") == 1
    assert not (out / "site").exists()
    assert latencylab("site", "add", bundled, "--history", history, "--force").code == 0
    assert len(runs(history)) == 1


def test_an_empty_history_makes_no_site(latencylab: Any, history: Path, out: Path) -> None:
    History.create(history)
    result = latencylab("site", "build", "--history", history, "-o", out / "site")
    assert (result.code, (out / "site").exists()) == (3, False)
    assert "no runs" in result.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_history_that_cannot_be_written(latencylab: Any, bundled: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        assert latencylab("site", "add", bundled, "--history", tmp_path / "history").code == 4
    finally:
        tmp_path.chmod(0o700)


def test_a_file_in_place_of_the_history(latencylab: Any, bundled: Path, history: Path) -> None:
    history.write_text("mine")
    assert latencylab("site", "add", bundled, "--history", history).code == 4
    assert history.read_text() == "mine"


def test_two_commands_at_once(bundled: Path, history: Path, tmp_path: Path) -> None:
    """Two captures and one of them twice, all added at the same time."""
    other = tmp_path / "other"
    shutil.copytree(bundled, other)
    text = (other / "rank0.trace.json").read_text().replace('"dur": 200', '"dur": 150')
    (other / "rank0.trace.json").write_text(text)
    command = [sys.executable, "-m", "latencylab", "site", "add", "--history", str(history)]
    started = [
        subprocess.Popen([*command, str(folder)], stderr=subprocess.PIPE, text=True)
        for folder in (bundled, other, bundled)
    ]
    said = [process.communicate(timeout=100)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0]
    assert len(runs(history)) == 2
    assert sum("added run" in line for line in said) == 2
    assert sum("already" in line for line in said) == 1


def test_a_capture_that_is_unusable_is_not_added(latencylab: Any, bundled: Path, history: Path) -> None:
    manifest = {**(bundle.read_manifest(bundled) or {}), "unusable": "rank 1 wrote no trace"}
    bundle.write_manifest(bundled, manifest)
    result = latencylab("site", "add", bundled, "--history", history)
    assert result.code == 3
    assert "unusable: rank 1 wrote no trace" in result.err
    assert runs(history) == ()
