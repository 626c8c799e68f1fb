"""Opening captures: what is taken for what, how ranks are told, and how it fails."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latencylab.model.integrity import InputError, Integrity
from latencylab.model.trace import Trace
from latencylab.traces import open_capture, store, workers, write_manifest


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MIN_BYTES", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))


def _write(path: Path, rank: int | None = 0, world: int = 1, ops: int = 5) -> Path:
    rows: list[dict[str, Any]] = []
    for i in range(ops):
        host = {"pid": 9, "tid": 9, "ts": 100 + 10 * i, "dur": 3, "args": {"correlation": i}}
        gpu = {"pid": 0, "tid": 7, "ts": 104 + 10 * i, "dur": 2.25}
        rows.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **host})
        rows.append(
            {"ph": "X", "cat": "kernel", "name": f"k{rank}", **gpu}
            | {"args": {"device": 0, "stream": 7, "correlation": i}}
        )
    header: dict[str, Any] = {"schemaVersion": 1, "baseTimeNanoseconds": 10**18}
    if rank is not None:
        header["distributedInfo"] = {"rank": rank, "world_size": world}
    path.write_text(json.dumps({**header, "traceEvents": rows}))
    return path


def _capture(folder: Path, ranks: int = 2) -> Path:
    folder.mkdir()
    for rank in range(ranks):
        _write(folder / f"rank{rank}.json", rank, ranks)
    write_manifest(folder, {"files": {rank: f"rank{rank}.json" for rank in range(ranks)}})
    return folder


def _issues(traces: tuple[Trace, ...]) -> dict[str, str]:
    return {issue.code: issue.severity for trace in traces for issue in trace.issues}


def _kernels(traces: tuple[Trace, ...]) -> list[str]:
    return [trace.names[trace.gpu.name[0]] for trace in traces]


def test_capture_folder(tmp_path: Path) -> None:
    folder = _capture(tmp_path / "capture")
    capture = open_capture([folder])
    assert (capture.path, capture.folder) == (str(folder), folder)
    assert capture.manifest is not None
    assert capture.manifest["files"] == {"0": "rank0.json", "1": "rank1.json"}
    assert [trace.rank for trace in capture.traces] == [0, 1]
    assert Integrity.of(i for t in capture.traces for i in t.issues).status == "ok"


def test_folder_without_manifest_keeps_to_traces(tmp_path: Path) -> None:
    for rank in (0, 1, 2, 10):
        _write(tmp_path / f"1-TP-{rank}.trace.json", None)
    _write(tmp_path / "merged-1.trace.json", 77)
    (tmp_path / "client.json").write_text("{}")
    capture = open_capture(tmp_path)
    assert (capture.folder, capture.manifest) == (None, None)
    assert [Path(trace.path).name for trace in capture.traces] == [
        f"1-TP-{r}.trace.json" for r in (0, 1, 2, 10)
    ]
    assert [trace.rank for trace in capture.traces] == [0, 1, 2, 10]


def test_files_and_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (_write(tmp_path / f"r{rank}.json", rank, 2) for rank in (0, 1))
    assert len(open_capture(one).traces) == 1
    assert len(open_capture([two, one, one]).traces) == 2
    capture = open_capture([str(tmp_path / "r*.json")])
    assert [trace.rank for trace in capture.traces] == [0, 1]
    assert capture.path == str(tmp_path / "r*.json")
    monkeypatch.chdir(tmp_path)
    assert open_capture(["r[1].json"]).traces[0].path == "r1.json"
    _write(tmp_path / "r[1].json", 5)  # exists: no pattern
    assert open_capture(["r[1].json"]).traces[0].rank == 5
    _capture(tmp_path / "folder")
    assert open_capture(["fold*"]).folder == Path("folder")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda _: [], "no capture given"),
        (lambda t: [t / "missing"], "no such file or folder"),
        (lambda t: [t / "a.json" / "b"], "no such file or folder"),
        (lambda t: [str(t / "x*.json")], "the pattern matches nothing"),
        (lambda t: [t / "empty"], "neither a manifest.json nor a trace file"),
        (lambda t: [t / "a.json", t / "empty"], "a folder among several"),
        (lambda t: [t / ("long" * 100)], "File name too long"),
        (lambda t: [str(t / "a\0b")], "null"),
        (lambda t: [t / "void.json"], "empty"),
        (lambda t: [t / "none.json"], r"none\.json"),
        (lambda t: [t / "a.json", t / "none.json"], r"none\.json"),
        (lambda t: [t / "a.json", t / "missing.json"], r"missing\.json: no such"),
        (lambda t: [t / "capture"], "not known to this version"),
    ],
)
def test_one_line_for_what_cannot_be_opened(
    tmp_path: Path, make: Callable[[Path], list[str | Path]], said: str
) -> None:
    _write(tmp_path / "a.json")
    (tmp_path / "empty").mkdir()
    (tmp_path / "void.json").write_text("")
    (tmp_path / "none.json").write_text('{"traceEvents": []}')
    (tmp_path / "capture").mkdir()
    (tmp_path / "capture" / "manifest.json").write_text('{"schema": "latencylab.capture/9"}')
    with pytest.raises(InputError, match=said) as caught:
        open_capture(make(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tmp_path: Path) -> None:
    folder = _capture(tmp_path / "capture")
    folder.chmod(0)
    try:
        with pytest.raises(InputError, match="ermission denied"):
            open_capture(folder)
    finally:
        folder.chmod(0o700)


def test_clash_of_ranks_is_named_and_never_mixed(tmp_path: Path) -> None:
    files = [_write(tmp_path / f"{n}.json", rank, 3, ops=n) for n, rank in ((1, 0), (2, 0), (3, 1))]
    traces = open_capture(files).traces
    assert [(trace.rank, len(trace.gpu)) for trace in traces] == [(0, 1), (1, 3), (2, 2)]
    (issue,) = traces[2].issues
    assert (issue.code, issue.severity) == ("rank_clash", "warning")
    assert issue.detail == "2.json: rank 0 is also in 1.json; shown as rank 2"
    assert not traces[0].issues


def test_missing_ranks(tmp_path: Path) -> None:
    files = [_write(tmp_path / f"{rank}.json", rank, 4) for rank in (0, 1, 3)]
    traces = open_capture(files).traces
    (issue,) = traces[0].issues
    assert (issue.code, issue.severity, issue.count, issue.detail) == (
        "rank_missing",
        "warning",
        1,
        "no trace of rank 2 of 4",
    )
    assert _issues(open_capture(files[2]).traces) == {"rank_missing": "info"}


@pytest.mark.parametrize(
    "form",
    [
        "1795957504.2393806-TP-{}.trace.json.gz",
        "1795957504.2393806-TP-{0}-EP-{0}-DECODE.trace.json.gz",
        "h200-tp4-rank9-1795957504.2393806-TP-{}.trace.json.gz",  # a prefix of the user's
        "dp0_pp0_tp{0}_dcp0_ep{0}_rank{0}.1767189312.pt.trace.json.gz",
        "dp0_pp0_tp{}_dcp0_ep0.trace.json",
        "rank{}.json",
        "vllm-rank-{}.1767189312.pt.trace.json.gz",
        "worker{}_step_12.1694128201554.pt.trace.json",
    ],
)
@pytest.mark.parametrize("named", [False, True])
def test_ranks_of_one_job(tmp_path: Path, form: str, named: bool) -> None:
    """By what the trace says where it says so, else by the file's name; gaps are named in any case."""
    for place, rank in enumerate((0, 1, 3)):
        told = 3 - rank if named else None  # not what the name says
        _write(tmp_path / form.format(rank), told, 4, ops=place + 1)
    traces = open_capture(tmp_path).traces
    found = [(t.rank, len(t.gpu)) for t in traces]
    assert found == ([(0, 3), (2, 2), (3, 1)] if named else [(0, 1), (1, 2), (3, 3)])
    details = {issue.code: issue.detail for trace in traces for issue in trace.issues}
    assert details.pop("rank_missing") == f"no trace of rank {1 if named else 2} of 4"
    if not named:
        assert details.pop("rank_guessed") == "the trace does not name its rank: 3, from the file's name"
    assert {*details} <= {"no_base_time"}


@pytest.mark.parametrize(
    ("form", "others", "by"),
    [
        ("1795957504.2393806-TP-{1}-DP-{0}-PP-0-EP-{1}.trace.json.gz", "DP1", "TP"),
        ("1795957504.2393806-TP-{1}-PP-{0}.trace.json.gz", "PP1", "TP"),
        ("dp{0}_pp0_tp{1}_dcp0_ep{1}_rank{1}.1767189312.pt.trace.json.gz", "DP1", "rank"),
        ("dp{0}_pp{0}_tp{1}.trace.json", "DP1 PP1", "tp"),
    ],
)
def test_names_that_tell_one_dimension_of_several(tmp_path: Path, form: str, others: str, by: str) -> None:
    files = [_write(tmp_path / form.format(n // 2, n % 2), None, ops=n + 1) for n in range(4)]
    traces = open_capture(files).traces
    assert [(t.rank, len(t.gpu)) for t in traces] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    details = [{issue.code: issue.detail for issue in trace.issues} for trace in traces]
    assert details[1]["rank_guessed"].endswith("1, from the file's name")
    assert details[3]["rank_guessed"].endswith(
        f"1, from the file's name by {by} alone, though it is {others} too"
    )
    for n, rank in ((2, 0), (3, 1)):
        assert details[n]["rank_clash"].endswith(
            f": rank {rank} is also in {files[rank].name}; shown as rank {n}"
        )
    assert "rank_clash" not in details[0] | details[1]
    # one alone says as much
    (alone,) = open_capture(files[3]).traces
    assert (alone.rank, "though it is" in alone.issues[0].detail) == (1, True)


def test_a_stage_is_no_part_of_a_rank_that_counts_over_stages(tmp_path: Path) -> None:
    file = _write(tmp_path / "dp0_pp1_tp1_dcp0_ep1_rank3.1767189312.pt.trace.json", None)
    (trace,) = open_capture(file).traces
    assert trace.rank == 3
    (guess,) = [issue for issue in trace.issues if issue.code == "rank_guessed"]
    assert guess.detail.endswith(": 3, from the file's name")


def test_a_rank_that_the_trace_names_is_kept_before_one_of_a_name(tmp_path: Path) -> None:
    files = [_write(tmp_path / "a-TP-1.trace.json", None), _write(tmp_path / "b-TP-0.trace.json", 1, 2)]
    first, second = open_capture(files).traces
    assert [(t.rank, Path(t.path).name) for t in (first, second)] == [
        (0, "a-TP-1.trace.json"),
        (1, "b-TP-0.trace.json"),
    ]
    assert _issues((first,))["rank_clash"] == "warning"
    assert "rank_clash" not in _issues((second,))


def _merged(path: Path, *labels: str) -> Path:
    """A file of several ranks as SGLang writes it; rank n has n + 1 kernels."""
    rows = []
    for n, label in enumerate(labels):
        rows += json.loads(_write(path, None, ops=n + 1).read_text())["traceEvents"][-2 * n - 2 :]
        for row in rows[-2 * n - 2 :]:
            row["pid"] = f"[{label}] {row['pid']}"
    info = {"rank": 0, "world_size": len(labels)}
    path.write_text(json.dumps({"distributedInfo": info, "baseTimeNanoseconds": 10**18, "traceEvents": rows}))
    return path


@pytest.mark.parametrize(
    ("labels", "ranks", "said"),
    [
        (("TP00", "TP01", "TP02", "TP03"), [0, 1, 2, 3], ""),
        (("TP03", "TP02", "TP01", "TP00"), [3, 2, 1, 0], ""),
        (("TP00-EP00", "TP01-EP00", "TP02-EP01", "TP03-EP01"), [0, 1, 2, 3], ""),
        (
            ("TP00-DP00", "TP01-DP00", "TP02-DP01", "TP03-DP01"),
            [0, 1, 2, 3],
            "numbered by TP, though not all",
        ),
        (("TP00-PP00", "TP00-PP01", "TP01-PP00", "TP01-PP01"), [0, 2, 1, 3], "were numbered in this order"),
    ],
)
def test_ranks_of_a_merged_file(tmp_path: Path, labels: tuple[str, ...], ranks: list[int], said: str) -> None:
    traces = open_capture(_merged(tmp_path / "merged-1.trace.json", *labels)).traces
    found = {len(trace.gpu) - 1: trace.rank for trace in traces}
    assert [found[n] for n in range(4)] == ranks
    details = [issue.detail for issue in traces[0].issues if issue.code == "rank_guessed"]
    assert (len(details), all(said in detail for detail in details)) == (bool(said), True)


def test_a_gap_in_a_merged_file(tmp_path: Path) -> None:
    traces = open_capture(_merged(tmp_path / "merged-1.trace.json", "TP00", "TP01", "TP03")).traces
    assert [trace.rank for trace in traces] == [0, 1, 3]
    assert "no trace of rank 2 of 4" in {issue.detail for issue in traces[0].issues}


def test_rank_of_the_manifest(tmp_path: Path) -> None:
    for name, rank in (("a", None), ("b", 0)):
        _write(tmp_path / f"{name}.json", rank)
    write_manifest(tmp_path, {"files": {1: "a.json", 0: "b.json"}})
    traces = open_capture(tmp_path).traces
    assert _kernels(traces) == ["k0", "kNone"]
    assert "rank_clash" not in _issues(traces)
    write_manifest(tmp_path, {"files": {0: "a.json", 1: "b.json"}})
    traces = open_capture(tmp_path).traces
    assert _kernels(traces) == ["kNone", "k0"]
    assert _issues(traces)["rank_clash"] == "warning"


def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)


@pytest.mark.parametrize("jobs", [None, 1, 2])
def test_same_result_from_workers_and_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int | None
) -> None:
    _apart(monkeypatch)
    folder = _capture(tmp_path / "capture", 5)
    plain = open_capture(folder, cache=False, jobs=1).traces
    assert not (folder / store.FOLDER).exists()
    lines: list[str] = []
    first = open_capture(folder, jobs=jobs, progress=lines.append).traces
    second = open_capture(folder, progress=lines.append).traces
    assert len(list((folder / store.FOLDER).glob("*.parquet"))) == 5
    assert [line.split(" ", 1)[1] for line in lines] == [f"({n} of 5)" for n in (1, 2, 3, 4, 5)] * 2
    for traces in (first, second):
        assert _kernels(traces) == _kernels(plain)
        for a, b in zip(plain, traces, strict=True):
            assert (a.rank, a.path, a.issues) == (b.rank, b.path, b.issues)
            np.testing.assert_array_equal(a.gpu.start, b.gpu.start)
            with pytest.raises(ValueError, match="read-only"):
                b.gpu.start[0] = 0


def test_damaged_store_is_read_again(tmp_path: Path) -> None:
    file = _write(tmp_path / "a.json")
    open_capture(file)
    (entry,) = (tmp_path / store.FOLDER).glob("*.parquet")
    sound = entry.read_bytes()
    rng = random.Random(2)
    for _ in range(20):
        at = rng.randrange(len(sound))
        entry.write_bytes(sound[:at] + rng.randbytes(8) + sound[at + 8 :])
        assert len(open_capture(file).traces[0].gpu) == 5
    assert entry.read_bytes() == sound


def test_unreadable_among_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _apart(monkeypatch)
    files = [_write(tmp_path / f"{rank}.json", rank) for rank in range(4)]
    files[2].write_text("no trace")
    with pytest.raises(InputError, match=r"2\.json"):
        open_capture(files)


def test_worker_that_dies_or_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _apart(monkeypatch)
    files = [_write(tmp_path / f"{rank}.json", rank) for rank in range(3)]
    monkeypatch.setattr(workers, "_CODE", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(InputError, match=r"json: the process reading it ended with status -9"):
        open_capture(files)
    broken = (
        "import sys; from latencylab.traces import workers, kineto; kineto.read_kineto = 5; print('noise'); "
    )
    monkeypatch.setattr(workers, "_CODE", broken + "workers.serve(sys.argv[1])")
    with pytest.raises(TypeError, match="not callable") as caught:
        open_capture(files)
    assert "Traceback" in caught.value.__notes__[0]


def _run(code: str, folder: Path) -> subprocess.Popen[str]:
    script = folder / "script.py"
    script.write_text(code)
    return subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_scripts_without_main_guard_and_at_once(tmp_path: Path) -> None:
    folder = _capture(tmp_path / "capture", 3)
    code = f"""
import os
os.cpu_count = lambda: 2
from latencylab.traces import open_capture, store
store.MIN_BYTES = 0
for _ in range(5):
    print(len(open_capture({str(folder)!r}).traces))
"""
    both = [_run(code, tmp_path) for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=60)
        assert (out, err, process.returncode) == ("3\n" * 5, "", 0)


def _pids(folder: Path) -> list[int]:
    """The process ids that two workers left as names of files."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if len(pids := [int(path.stem) for path in folder.glob("*.pid")]) == 2:
            return pids
        time.sleep(0.01)
    pytest.fail("the workers did not start")


def test_interrupt_ends_the_workers(tmp_path: Path) -> None:
    folder = _capture(tmp_path / "capture", 3)
    sleeper = "import os, time; open(f'{os.getpid()}.pid', 'w').close(); time.sleep(60)"
    code = f"""
import os
os.cpu_count = lambda: 2
os.chdir({str(tmp_path)!r})
from latencylab.traces import open_capture, workers
workers._CODE = {sleeper!r}
try:
    open_capture({str(folder)!r}, cache=False)
except KeyboardInterrupt:
    raise SystemExit(130)
"""
    process = _run(code, tmp_path)
    pids = _pids(tmp_path)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert (out, err, process.returncode) == ("", "", 130)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_killed_opening_leaves_no_worker(tmp_path: Path) -> None:
    folder = _capture(tmp_path / "capture", 3)
    slow = (
        "import sys, os, time; from latencylab.traces import workers\n"
        "def read(*_): open(f'{os.getpid()}.pid', 'w').close(); time.sleep(60)\n"
        "workers._read_file = read; workers.serve(sys.argv[1])"
    )
    code = f"""
import os
os.cpu_count = lambda: 2
os.chdir({str(tmp_path)!r})
from latencylab.traces import open_capture, workers
workers._CODE = {slow!r}
open_capture({str(folder)!r}, cache=False)
"""
    process = _run(code, tmp_path)
    pids = _pids(tmp_path)
    process.kill()
    process.communicate(timeout=10)
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
