"""`latencylab gate`: what passes, what fails and with which exit code, in each format."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from latencylab.analyzers import analyze
from latencylab.analyzers.gate import run_of
from latencylab.cli._policy import documented_policy, parse_policy
from latencylab.model.gate import Policy
from latencylab.model.integrity import InputError
from latencylab.traces import open_capture, read_client, sample_path, write_client
from latencylab.traces.history import History, Record

STALL, CLEAN = "sample:nextn-host-stall", "sample:nextn"
SITE = "cudaStreamSynchronize in scheduler.run_batch > ll.resolve_seq_lens"


@pytest.fixture(autouse=True)
def no_summary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.chdir(tmp_path)


def slower(name: str, folder: Path, factor: float) -> Path:
    """A sample whose requests took that many times as long, as another run."""
    shutil.copytree(sample_path(name), folder, ignore=shutil.ignore_patterns(".*"))
    requests = read_client(folder)
    assert requests is not None
    changed = [
        dataclasses.replace(one, chunks=tuple((int(at * factor), tokens) for at, tokens in one.chunks))
        for one in requests
    ]
    write_client(folder, changed)
    return folder


def test_the_stall_fails_and_the_first_line_names_it(latencylab: Any) -> None:
    result = latencylab("gate", STALL, "--baseline", CLEAN)
    assert (result.code, result.err) == (1, "")
    first = result.out.split("\n")[0]
    assert first.startswith(f"Regression: new blocking site: {SITE}")
    assert ": harmful, costs" in first
    assert "µs a step" in first
    assert "16 B DtoH Pinned" in first
    assert "(calibrated)" in first
    assert "+17.8 %" in first
    assert "fault kda-cpu-seq-lens" in result.out
    assert "ledger kda-no-host-lengths" in result.out


def test_a_run_against_itself_passes(latencylab: Any) -> None:
    result = latencylab("gate", CLEAN, "--baseline", CLEAN)
    assert (result.code, result.err) == (0, "")
    assert "warning: " in result.out


def test_another_kind_of_step_is_not_comparable(latencylab: Any) -> None:
    result = latencylab("gate", "sample:dspark", "--baseline", CLEAN, "--format", "json")
    assert result.code == 3
    assert "latencylab: error: Not comparable: " in result.err
    assert "NEXTN" in result.err
    assert "DSpark" in result.err
    assert json.loads(result.out)["verdict"] == "incomparable"


def test_bare_traces_are_judged_by_counts_alone(latencylab: Any, tmp_path: Path) -> None:
    paths = {}
    for name in ("nextn", "nextn-host-stall", "dspark"):
        paths[name] = tmp_path / name / "t.json.gz"
        paths[name].parent.mkdir()
        shutil.copy(sample_path(name) / "rank0.trace.json.gz", paths[name])
    result = latencylab("gate", paths["nextn-host-stall"], "--baseline", paths["nextn"], "--no-cache")
    assert result.code == 1
    first = result.out.split("\n")[0]
    assert first.startswith(f"Regression: new blocking site: {SITE}")
    assert "its cost not calibrated" in first
    assert "no time is judged" in first
    same = latencylab("gate", paths["nextn"], "--baseline", paths["nextn"], "--no-cache")
    assert same.code == 0
    assert "no time is judged" in same.out.split("\n")[0]
    assert latencylab("gate", paths["dspark"], "--baseline", paths["nextn"], "--no-cache").code == 3


def test_runs_on_both_sides(latencylab: Any, tmp_path: Path) -> None:
    base = [slower("nextn", tmp_path / f"base{i}", 1 + i / 1000) for i in range(3)]
    head = [slower("nextn", tmp_path / f"head{i}", 1.04 + i / 1000) for i in range(3)]
    options = [part for path in base for part in ("--baseline", path)]
    result = latencylab("gate", *head, *options, "--format", "json", "--no-cache")
    assert result.code == 1
    step = json.loads(result.out)["metrics"][0]
    assert (step["verdict"], step["base_runs"], step["head_runs"]) == ("regression", 3, 3)
    assert step["change_pct"] == pytest.approx(4.0, abs=0.05)
    assert json.loads(result.out)["sites"] == []


def test_the_policy_of_the_working_folder_holds(latencylab: Any, tmp_path: Path) -> None:
    (tmp_path / "latencylab.toml").write_text("[gate]\nfail_on_new_sites = false\n")
    result = latencylab("gate", STALL, "--baseline", CLEAN)
    assert result.code == 0
    assert f"warning: blocking site {SITE}" in result.out


def test_formats(latencylab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("gate", STALL, "--baseline", CLEAN, "--format")
    junit = latencylab(*arguments, "junit", "-o", tmp_path / "gate.xml")
    assert junit.code == 1
    assert "latencylab: warning: step" in junit.err
    assert ET.parse(tmp_path / "gate.xml").getroot().get("failures") == "1"
    bare = latencylab(*arguments, "github")
    assert bare.out.startswith("::error ")
    assert "\n## " in bare.out
    summary = tmp_path / "summary.md"
    summary.write_text("# Before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    own = latencylab(*arguments, "github")
    assert own.code == 1
    assert own.out.startswith("::error ")
    assert all(line.startswith("::") for line in own.out.splitlines())
    assert summary.read_text().startswith("# Before\n## ")
    assert SITE.split()[0] in summary.read_text()
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "no" / "folder"))
    assert latencylab(*arguments, "github").code == 4
    assert latencylab(*arguments, "json", "-o", tmp_path / "gate.xml").code == 4


@pytest.mark.parametrize(
    "arguments",
    [
        [STALL],
        ["--baseline", CLEAN],
        [STALL, "--baseline", CLEAN, "--baseline-from-history", "x"],
        [STALL, "--baseline", CLEAN, "--config", "x"],
        [STALL, "--baseline", CLEAN, "--baseline-commit", "x"],
        [STALL, "--baseline", CLEAN, "--format", "html"],
    ],
)
def test_wrong_usage(latencylab: Any, arguments: list[str]) -> None:
    assert latencylab("gate", *arguments).code == 2


def test_missing_input(latencylab: Any) -> None:
    assert latencylab("gate", STALL, "--baseline", "none").code == 3
    assert latencylab("gate", "none", "--baseline", STALL).code == 3
    assert latencylab("gate", STALL, "--baseline-from-history", "none").code == 3
    assert latencylab("gate", STALL, "--baseline", CLEAN, "--policy", "none.toml").code == 3


def _history(folder: Path, commits: Sequence[str]) -> Path:
    """A history of runs like the sample's, one of each commit; they spread by 0.2 %."""
    capture = open_capture([sample_path("nextn")])
    run = run_of(capture, analyze(capture))
    history = History.create(folder)
    for place, commit in enumerate(commits):
        own = dataclasses.replace(
            run,
            label=commit,
            commit=commit,
            requests_step_ms=tuple(
                ms * (1 + 0.002 * (place % 3 - 1) + place / 1e6) for ms in run.requests_step_ms
            ),
        )
        date = f"2026-01-{place + 1:02d}T00:00:00+00:00"
        record = Record(f"{place:016x}", "NEXTN", commit, "", date, place, own, plotly="plotly.js")
        assert history.add(record, {}, "", plotly="")
    return folder


def test_from_history(latencylab: Any, tmp_path: Path) -> None:
    head = slower("nextn", tmp_path / "head", 1.05)
    options = ("--baseline-from-history", _history(tmp_path / "h", "aaaaaabbbbbb"), "--no-cache")
    result = latencylab("gate", head, *options, "--format", "json")
    found = json.loads(result.out)
    assert (result.code, found["base"]) == (1, ["b"] * 6)
    assert found["policy"]["known_spread_pct"] == pytest.approx(0.18, abs=0.03)
    assert found["headline"].startswith("Regression: step without the profiler")
    assert latencylab("gate", head, *options, "--baseline-commit", "a").code == 1
    missing = latencylab("gate", head, *options, "--baseline-commit", "c")
    assert missing.code == 3
    assert "no run of commit c" in missing.err
    assert latencylab("gate", head, *options, "--config", "other").code == 3


def test_a_commit_that_several_have_is_refused(latencylab: Any, tmp_path: Path) -> None:
    folder = _history(tmp_path / "h", ["ab1", "ab2"])
    options = ("--baseline-from-history", folder, "--no-cache", "--baseline-commit", "ab")
    result = latencylab("gate", slower("nextn", tmp_path / "head", 1.05), *options)
    assert result.code == 3
    assert "may be any of the commits ab1, ab2" in result.err


def test_a_short_history_does_not_tell_the_spread(latencylab: Any, tmp_path: Path) -> None:
    options = ("--baseline-from-history", _history(tmp_path / "h", "aaab"), "--no-cache", "--format", "json")
    result = latencylab("gate", slower("nextn", tmp_path / "head", 1.05), *options)
    assert result.code == 0
    assert json.loads(result.out)["policy"]["known_spread_pct"] == 0


def test_the_help_says_what_decides_and_is_quick_to_import(latencylab: Any, script: Any) -> None:
    result: subprocess.CompletedProcess[str] = script("gate", "--help")
    assert result.returncode == 0
    assert "Exit codes" in result.stdout
    assert "latencylab.toml" in result.stdout


# The policy


def test_the_documented_policy_is_the_default() -> None:
    table = tomllib.loads(documented_policy())
    assert list(table) == ["gate"]
    assert list(table["gate"]) == [field.name for field in dataclasses.fields(Policy)]
    assert parse_policy(documented_policy(), "policy.toml") == Policy()


def test_the_documented_policy_explains_every_key() -> None:
    lines = documented_policy().split("\n")
    for field in dataclasses.fields(Policy):
        place = next(i for i, line in enumerate(lines) if line.startswith(f"{field.name} ="))
        assert lines[place - 1].startswith("# ")


def test_print_policy(latencylab: Any) -> None:
    result = latencylab("gate", "--print-policy")
    assert (result.code, result.out) == (0, documented_policy())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[gate]\nalhpa = 0.01", "unknown key 'gate.alhpa'"),
        ("alpha = 0.01", "unknown key 'alpha'"),
        ("[gates]\n", "unknown key 'gates'"),
        ("gate = 5", "gate is no table"),
        ("[gate]\nalpha = 'low'", "gate.alpha"),
        ("[gate]\nalpha = 0.5", "gate.alpha must lie"),
        ("[gate]\nalpha = nan", "gate.alpha must lie"),
        ("[gate]\nmin_effect_pct = -1", "gate.min_effect_pct must be a number"),
        ("[gate]\nknown_spread_pct = inf", "gate.known_spread_pct must be a number"),
        ("[gate]\nmin_runs = 1", "gate.min_runs must be"),
        ("[gate]\nsite_share = 1", "gate.site_share must be"),
        ("[gate]\nsite_verdicts = ['bad']", "gate.site_verdicts"),
        ("[gate]\njudge = ['step']", "'step' cannot decide"),
        ("[gate]\njudge = ['accept_length']", "'accept_length' cannot decide"),
        ("[gate", "policy.toml: "),
    ],
)
def test_a_policy_that_is_wrong_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(InputError, match=r"policy\.toml") as refused:
        parse_policy(text, "policy.toml")
    assert said in str(refused.value)


def test_a_wrong_policy_gives_one_line_and_code_3(latencylab: Any, tmp_path: Path) -> None:
    (tmp_path / "latencylab.toml").write_text("[gate]\nalhpa = 1\n")
    result = latencylab("gate", STALL, "--baseline", CLEAN)
    assert (result.code, result.out, result.err.count("\n")) == (3, "", 1)
    assert "gate.alhpa" in result.err
    (tmp_path / "latencylab.toml").write_bytes(b"\xff\xfe")
    assert latencylab("gate", STALL, "--baseline", CLEAN).code == 3


def test_a_policy_may_say_little() -> None:
    assert parse_policy("", "p") == Policy()
    assert parse_policy("[gate]\nmin_runs = 5\njudge = ['tpot']", "p") == Policy(min_runs=5, judge=("tpot",))


def test_a_refusal_and_no_more_needs_no_calibration(latencylab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrated: list[str] = []
    module = sys.modules[analyze.__module__]
    real = module.calibrate

    def calibrate(*arguments: Any) -> Any:
        calibrated.append("one")
        return real(*arguments)

    monkeypatch.setattr(module, "calibrate", calibrate)
    assert latencylab("gate", "sample:dspark", CLEAN, "--baseline", CLEAN).code == 3
    assert latencylab("diff", "sample:dspark", CLEAN).code == 3
    assert calibrated == []
    assert latencylab("diff", CLEAN, CLEAN).code == 0
    assert len(calibrated) == 2
