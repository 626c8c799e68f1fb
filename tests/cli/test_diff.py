"""`diff` as a command: what it takes, what it refuses, and what it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from latencylab.traces import sample_path

SAMPLES = ("nextn", "nextn-host-stall", "dspark")


def bare(name: str) -> Path:
    (path,) = sample_path(name).glob("rank0.trace*")
    return path


@pytest.fixture
def other(trace: Path, tmp_path: Path) -> Path:
    """The trace with a slower second kernel in each step."""
    slower = json.loads(trace.read_text())
    for event in slower["traceEvents"]:
        if event["cat"] == "kernel" and event["args"]["correlation"] % 10 == 2:
            event["dur"] += 40
    path = tmp_path / "other" / "rank0.trace.json"
    path.parent.mkdir()
    path.write_text(json.dumps(slower))
    return path


@pytest.mark.parametrize("source", ["sample", "bare"])
def test_the_sample_with_a_stall(latencylab: Any, source: str) -> None:
    names = [f"sample:{name}" if source == "sample" else bare(name) for name in SAMPLES]
    result = latencylab("diff", "--no-cache", names[0], names[1])
    assert (result.code, result.err) == (0, "")
    first = " ".join(result.out.partition("\nbase: ")[0].split())
    for part in (
        "A blocking call appeared: cudaStreamSynchronize in ",
        "scheduler.run_batch",
        "16 B DtoH",
        "harmful" if source == "sample" else "pinning",
    ):
        assert part in first
    assert ("without the profiler a step takes" in first) == (source == "sample")


@pytest.mark.parametrize("source", ["sample", "bare"])
def test_another_engine_is_refused(latencylab: Any, source: str) -> None:
    names = [f"sample:{name}" if source == "sample" else bare(name) for name in SAMPLES]
    result = latencylab("diff", "--no-cache", names[0], names[2])
    assert (result.code, result.out) == (3, "")
    assert result.err.count("\n") == 1
    assert "kind of step: NEXTN against DSpark" in result.err
    assert "legs: " in result.err
    forced = latencylab("diff", "--no-cache", names[0], names[2], "--force")
    assert forced.code == 0
    assert forced.out.startswith("NOT COMPARABLE, compared by --force: kind of step")


def test_a_sample_against_itself(latencylab: Any) -> None:
    found = json.loads(latencylab("diff", "sample:nextn", "sample:nextn", "--format", "json").out)
    assert found["headline"] == "Nothing changed: every difference is zero."
    assert found["changes"] == []
    for kind in found["kinds"]:
        assert {delta["change"] for delta in kind["step_us"].values()} == {0}
        assert {kernel["how"] for kernel in kind["kernels"]} == {"same"}


def test_a_slower_kernel(latencylab: Any, trace: Path, other: Path) -> None:
    found = json.loads(latencylab("diff", trace, other, "--format", "json").out)
    assert found["schema"] == "latencylab.diff/1"
    busy = found["kinds"][0]["step_us"]["busy"]
    assert busy["change"] == pytest.approx(40)
    assert (found["base"]["path"], found["head"]["path"]) == (str(trace), str(other))


def test_a_folder_or_a_pattern_is_a_capture(latencylab: Any, trace: Path, other: Path) -> None:
    for given in (trace.parent, trace.parent / "*.json"):
        assert latencylab("diff", given, other).code == 0


def test_file_is_what_stdout_gets(latencylab: Any, trace: Path, other: Path, out: Path) -> None:
    for form in ("text", "json", "html"):
        path = out / form
        assert latencylab("diff", trace, other, "--format", form, "-o", path).code == 0
        assert path.read_text(encoding="utf-8") == latencylab("diff", trace, other, "--format", form).out
    assert (out / "html").read_text().startswith("<!doctype html>")


def test_an_existing_file_is_kept_unless_forced(latencylab: Any, trace: Path, other: Path, out: Path) -> None:
    path = out / "d"
    path.write_text("mine")
    result = latencylab("diff", trace, other, "-o", path)
    assert result.code == 4
    assert "--force" in result.err
    assert path.read_text() == "mine"
    assert latencylab("diff", trace, other, "-o", path, "--force").code == 0
    assert "mine" not in path.read_text()


def test_steps_narrow_both(latencylab: Any, trace: Path, other: Path) -> None:
    found = json.loads(latencylab("diff", trace, other, "--steps", "1:4", "--format", "json").out)
    assert found["kinds"][0]["steps"] == {"base": 3, "head": 3}


@pytest.mark.parametrize("count", [1, 3])
def test_two_captures_it_must_be(latencylab: Any, trace: Path, count: int) -> None:
    result = latencylab("diff", *[trace] * count)
    assert result.code == 2
    assert "two captures, BASE and HEAD" in result.err


def test_a_missing_capture(latencylab: Any, trace: Path, tmp_path: Path) -> None:
    result = latencylab("diff", trace, tmp_path / "nowhere")
    assert result.code == 3
    assert result.err.count("\n") == 1
    assert "nowhere" in result.err


def test_help_names_both(latencylab: Any) -> None:
    assert "diff [OPTIONS] BASE HEAD" in latencylab("diff", "--help").out
