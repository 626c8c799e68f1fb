"""The history: nothing half written is ever read, nothing is lost, and nothing is misread."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import synth
from latencylab.model.capture import Capture
from latencylab.model.gate import Run, RunSite
from latencylab.model.integrity import InputError, OutputError
from latencylab.model.unprofiled import Request, Unprofiled
from latencylab.traces import history
from latencylab.traces.history import History, Record, fingerprint, spread_pct

ANALYSIS = {"schema": "latencylab.analysis/1", "ranks": []}


def record(run_id: str = "ab12", step_ms: float | None = 5.9, **changes: Any) -> Record:
    run = Run(
        "nextn",
        "0123abcd",
        requests_step_ms=() if step_ms is None else (step_ms * 0.99, step_ms * 1.01),
        metrics={"tpot": 1.9},
        sites=(RunSite("cudaFree", "pinning", "blocked", 1.0, 3.2),),
        conditions={"GPU": "NVIDIA H200"},
    )
    made = Record(
        run_id, "nextn", "0123abcd", "Fuse µ \udcff <b>", "2026-05-01T10:00:00+00:00", 7, run, "verdict"
    )
    known: dict[str, Any] = {"plotly": "plotly-1.min.js", "calibration": {"error_pct": 2.5}}
    return replace(made, **(known | changes))


def add(there: History, what: Record, **options: Any) -> bool:
    return there.add(what, ANALYSIS, "<p>µ</p>", plotly="var Plotly;", **options)


@pytest.fixture
def there(tmp_path: Path) -> History:
    return History.create(tmp_path / "history")


def names(there: History) -> set[str]:
    return {path.name for path in (there.folder / "runs").iterdir()}


def rewrite(there: History, run_id: str, edit: Callable[[dict[str, Any]], object]) -> Path:
    """Change a run's run.json in place."""
    path = there.folder / "runs" / f"{run_id}.zip"
    with zipfile.ZipFile(path) as packed:
        members = {name: packed.read(name) for name in packed.namelist()}
    data = json.loads(members["run.json"])
    edit(data)
    members["run.json"] = json.dumps(data).encode()
    with zipfile.ZipFile(path, "w") as packed:
        for name, member in members.items():
            packed.writestr(name, member)
    return path


def test_a_run_is_read_as_it_was_added(there: History) -> None:
    assert add(there, record())
    (read,) = History.open(there.folder).runs()
    assert read == record()
    assert there.find("ab12") == read
    assert there.find("cd") is None
    assert there.analysis(read) == ANALYSIS
    assert there.report(read).decode() == "<p>µ</p>"
    assert there.asset(read.plotly) == b"var Plotly;"
    assert read.step_ms == pytest.approx(5.9, rel=1e-3)
    assert record(step_ms=None).step_ms is None


def test_a_capture_is_stored_once(there: History) -> None:
    assert add(there, record(message="first"))
    assert not add(there, record(message="second"))
    assert [r.message for r in there.runs()] == ["first"]
    assert add(there, record(message="third"), replacing=True)
    assert [r.message for r in there.runs()] == ["third"]
    assert names(there) == {"ab12.zip"}


def test_without_hard_links_it_is_stored_once_too(there: History, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert add(there, record(message="first"))
    assert not add(there, record(message="second"))
    assert [r.message for r in there.runs()] == ["first"]
    assert names(there) == {"ab12.zip"}


def test_runs_come_by_time_of_the_commit_then_of_adding(there: History) -> None:
    dates = {
        "a": "2026-05-02T00:00:00+00:00",
        "b": "2026-05-01T23:00:00-02:00",  # later than a in UTC
        "c": "2026-05-01T00:00:00",
        "d": "2026-05-02T00:00:00+00:00",
    }
    for number, (run_id, date) in enumerate(reversed(dates.items())):
        assert add(there, record(run_id, date=date, added_ns=number, config="b" if run_id == "c" else "a"))
    assert [r.id for r in there.runs()] == ["c", "d", "a", "b"]
    assert [r.id for r in there.runs("a")] == ["d", "a", "b"]
    assert there.runs("nobody") == ()


@pytest.mark.parametrize(
    "change",
    [
        {"run": Run("nextn", requests_step_ms=(-1.0,))},
        {"run": Run("nextn", metrics={"tpot": float("nan")})},
        {"date": "yesterday"},
        {"calibration": {"error_pct": float("inf")}},
        {"plotly": "../x"},
    ],
)
def test_what_could_not_be_read_again_is_not_stored(there: History, change: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        add(there, record(**change))
    assert names(there) == set()
    assert add(there, record())
    assert len(there.runs()) == 1


# The spread


def series(values: list[float | None], commits: list[str | None]) -> tuple[Record, ...]:
    return tuple(
        record(str(i), value, commit=commit)
        for i, (value, commit) in enumerate(zip(values, commits, strict=True))
    )


def test_spread_between_runs_of_one_commit_is_pooled(there: History) -> None:
    values = [5.0, 5.1, 5.05, 5.02, 6.0, 6.06, 6.03, 6.01, 6.04, 6.02, 9.0]
    commits = [*"aaaabbbbbbc"]
    for number, its in enumerate(series(list(values), list(commits))):
        add(there, replace(its, added_ns=number))
    logs = np.log(values)
    squares = ((logs[:4] - logs[:4].mean()) ** 2).sum() + ((logs[4:10] - logs[4:10].mean()) ** 2).sum()
    assert there.spread_pct("nextn") == pytest.approx(100 * np.sqrt(squares / 8))
    assert there.spread_pct("nobody") is None


def test_spread_between_neighbours_forgets_what_commits_changed() -> None:
    noise = np.random.default_rng(5).standard_normal(400)
    values = 6.0 * (1 + 0.01 * noise)
    values[100:] *= 1.2
    values[200:] *= 0.9
    found = spread_pct(series(list(values), [str(i) for i in range(400)]))
    assert found == pytest.approx(1.0, rel=0.15)


def test_a_few_repeats_that_agree_do_not_tell_the_spread() -> None:
    twins = [6.0, 6.0, *([6.0, 6.12] * 10)]
    apart = [str(i) for i in range(20)]
    found = spread_pct(series(list(twins), ["a", "a", *apart]))
    assert found is not None
    assert found > 0.8  # that of the neighbours, not that of the two
    assert spread_pct(series([6.0] * 8, ["a"] * 8)) is None
    assert spread_pct(series([6.0] * 9, ["a"] * 9)) == 0.0


def test_spread_is_not_known_from_few_runs() -> None:
    assert spread_pct(series([5.0, 5.1] * 4, list("abcdefgh"))) is None
    assert spread_pct(series([5.0, 5.1] * 5, list("abcdefghij"))) is not None
    assert spread_pct(series([None] * 9, ["a"] * 9)) is None
    assert spread_pct(series([5.0, 5.1], [None, None])) is None
    assert spread_pct(()) is None


# What must not be read


@pytest.mark.parametrize("schema", ["latencylab.history/0", "latencylab.history/2", None, 1])
def test_another_schema_is_refused_in_one_line(there: History, schema: object) -> None:
    add(there, record())
    path = rewrite(there, "ab12", lambda data: data.update(schema=schema))
    with pytest.raises(InputError) as caught:
        there.runs()
    assert str(path) in str(caught.value)
    assert "latencylab.history/1" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_of_another_schema_within_it_is_refused(there: History) -> None:
    add(there, record())
    rewrite(there, "ab12", lambda data: data["run"].update(schema="latencylab.run/9"))
    with pytest.raises(InputError, match=r"ab12\.zip.*latencylab\.run/9"):
        there.runs()


@pytest.mark.parametrize(
    "change",
    [
        {"added_ns": "soon"},
        {"date": "yesterday"},
        {"commit": 5},
        {"plotly": "../../etc/passwd"},
        {"id": "other"},
        {"calibration": []},
        {"run": None},
    ],
)
def test_odd_values_are_refused(there: History, change: dict[str, Any]) -> None:
    add(there, record())
    rewrite(there, "ab12", lambda data: data.update(change))
    with pytest.raises(InputError, match=r"ab12\.zip"):
        there.runs()


def test_what_a_later_version_adds_is_passed_over(there: History) -> None:
    add(there, record())
    rewrite(there, "ab12", lambda data: data.update(more={"x": 1}))
    assert there.runs() == (record(),)


@pytest.mark.parametrize("keep", [0, 1, 40, 0.5, 0.97, -1])
def test_a_damaged_file_is_refused(there: History, keep: float) -> None:
    add(there, record())
    path = there.folder / "runs" / "ab12.zip"
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    with pytest.raises(InputError, match=r"ab12\.zip"):
        there.runs()


def test_a_flipped_byte_is_noticed(there: History) -> None:
    add(there, record())
    path = there.folder / "runs" / "ab12.zip"
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as packed:
        start = packed.getinfo("run.json").header_offset + 30 + len("run.json")
    data[start + 20] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"ab12\.zip"):
        there.runs()


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "..", ".hidden", "a\0b", "a\\b"])
def test_names_lead_nowhere(there: History, name: str) -> None:
    with pytest.raises(InputError):
        add(there, record(name))
    with pytest.raises(InputError):
        add(there, replace(record(), plotly=name))
    assert names(there) == set()


def test_a_folder_without_a_history(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError, match="no history"):
            History.open(folder)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError):
        History.create(tmp_path / "file")
    with pytest.raises(OutputError):
        History.create(tmp_path / "file" / "below")


# Many at once, and killed


def test_what_a_killed_writer_left_is_never_read(there: History) -> None:
    add(there, record())
    fresh = there.folder / "runs" / "cd34.zip.99-aa.tmp"
    old = there.folder / "runs" / "ef56.zip.98-bb.tmp"
    for path in (fresh, old):
        path.write_bytes(b"PK half")
    hours_ago = time.time() - 3 * 3600
    os.utime(old, (hours_ago, hours_ago))
    assert [r.id for r in there.runs()] == ["ab12"]
    assert add(there, record("gh78"))
    assert names(there) == {"ab12.zip", "gh78.zip", fresh.name}


WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from latencylab.model.gate import Run
from latencylab.traces.history import History, Record
folder, prefix, count = sys.argv[1:]
there = History.create(Path(folder))
report = "<p>" + "report " * 200_000
sys.stdin.readline()
for number in range(int(count)):
    run_id = "same" if number == 0 else f"{prefix}-{number}"
    run = Run("nextn", "c", requests_step_ms=(5.9,))
    record = Record(run_id, "nextn", "c", prefix, "2026-05-01T00:00:00+00:00", number, run, plotly="p.js")
    print(there.add(record, {"by": prefix}, report, plotly="x" * 3_000_000), flush=True)
"""


def writer(folder: Path, prefix: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(folder), prefix, str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_eight_processes_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    writers = [writer(folder, f"w{i}", 4) for i in range(8)]
    said = []
    for process in writers:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in writers:
        out, _ = process.communicate(timeout=100)
        assert process.returncode == 0
        said.append(out.split())
    there = History.open(folder)
    runs = there.runs()
    assert {r.id for r in runs} == {"same"} | {f"w{i}-{n}" for i in range(8) for n in (1, 2, 3)}
    assert sum(lines[0] == "True" for lines in said) == 1
    assert all(lines[1:] == ["True"] * 3 for lines in said)
    assert all(there.analysis(r) == {"by": r.message} for r in runs)
    assert names(there) == {f"{r.id}.zip" for r in runs}
    assert {path.name for path in (folder / "assets").iterdir()} == {"p.js"}


def test_killed_at_any_moment(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    chance = random.Random(3)
    told = 0
    for number in range(12):
        process = writer(folder, f"k{number}", 1000)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        process.stdout.readline()
        time.sleep(chance.uniform(0, 0.12))
        process.send_signal(signal.SIGKILL)
        told += process.stdout.read().count("True")
        process.wait()
        process.stdin.close()
        process.stdout.close()
        there = History.open(folder)
        for run in there.runs():
            assert there.report(run).startswith(b"<p>report")
            assert there.analysis(run) == {"by": run.message}
        assert there.asset("p.js") == b"x" * 3_000_000
    assert len(there.runs()) >= told > 0  # what was said to be stored is
    assert add(there, record("next"))
    assert "next" in {r.id for r in there.runs()}


# What makes a capture the same


@pytest.fixture(scope="module")
def capture() -> Capture:
    loop = synth.decode_loop(["nextn"] * 6, synth.Shape(host=60_000))
    requests = (Request.of(100, [(5, 1), (9, 4)]),)
    return Capture("a", None, None, (synth.to_trace(synth.find(loop).run),), Unprofiled(requests))


def test_a_fingerprint_is_of_what_was_measured(capture: Capture) -> None:
    own = fingerprint(capture)
    elsewhere = replace(capture, path="b", folder=Path("b"), manifest={"commit": "c"})
    assert fingerprint(elsewhere) == own
    (trace,) = capture.traces
    later = replace(trace, gpu=replace(trace.gpu, end=trace.gpu.end + 1))
    others = (
        replace(capture, traces=(later,)),
        replace(capture, traces=(replace(trace, rank=1),)),
        replace(capture, traces=(trace, replace(trace, rank=1))),
        replace(capture, unprofiled=None),
        replace(capture, unprofiled=Unprofiled((Request.of(101, [(5, 1), (9, 4)]),))),
    )
    assert len({own, *map(fingerprint, others)}) == 6


def test_the_schema_is_written(there: History) -> None:
    add(there, record())
    with zipfile.ZipFile(there.folder / "runs" / "ab12.zip") as packed:
        assert json.loads(packed.read("run.json"))["schema"] == history.SCHEMA
