"""The benchmarks run, on next to nothing and without the other tools."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
# The others are but more of the same tasks.
ONLY = ("ranks", "collectives", "large", "tracelens")


def test_they_run_without_other_tools(tmp_path: Path) -> None:
    raw = tmp_path / "raw.json"
    sizes = ["--rounds", "1", "--events", "1600", "--collectives", "240", "--large-mb", "2"]
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "run.py", tmp_path / "work", *sizes, "--raw", raw, "--only", *ONLY],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "| open and analyse |" in done.stdout
    assert "not asked for" in done.stdout
    runs = {run["name"]: run for run in json.loads(raw.read_text())}
    assert set(runs) == {"imports", "inflate", "parse", "store", "analyse", "report", "join"}
    assert all(run["seconds"] > 0 and not run["over"] for run in runs.values())
    assert runs["store"]["told"]["traces"] == 4
    assert runs["report"]["pss"] > 0


def test_a_command_is_ended_at_its_limit(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from measure import run;"
        " done = run([sys.executable, '-c', 'while True: pass'], limit=0.2);"
        " assert done.over and done.seconds < 60"
    )
    subprocess.run([sys.executable, "-c", code, BENCHMARKS], check=True)


def test_the_same_options_make_the_same_traces(tmp_path: Path) -> None:
    for name in ("one", "two"):
        making = [sys.executable, BENCHMARKS / "make_traces.py", tmp_path / name, "--events", "800"]
        subprocess.run(making, check=True)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == [f"rank{rank}.trace.json.gz" for rank in range(4)]
    for name in files:
        # The JSON alone: how isal deflates it may differ from run to run.
        one, two = (gzip.decompress((tmp_path / folder / name).read_bytes()) for folder in ("one", "two"))
        assert one == two
