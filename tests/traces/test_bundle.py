"""The capture bundle: what a manifest must be, and the unprofiled part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from latencylab.model.integrity import InputError, OutputError
from latencylab.model.unprofiled import Request, StepClock
from latencylab.traces import bundle


def _capture(folder: Path, **changes: Any) -> Path:
    (folder / "rank0.json").write_text("{}")
    manifest = {"schema": bundle.SCHEMA, "files": {"0": "rank0.json"}, **changes}
    (folder / bundle.MANIFEST).write_text(json.dumps(manifest))
    return folder


def test_manifest_round_trip(tmp_path: Path) -> None:
    for name in ("b.json", "a.json"):
        (tmp_path / name).write_text("{}")
    bundle.write_manifest(tmp_path, {"files": {10: "a.json", 2: "b.json"}, "env": {"X": "ü"}, "more": [1]})
    manifest = bundle.read_manifest(tmp_path)
    assert manifest == {
        "schema": bundle.SCHEMA,
        "files": {"10": "a.json", "2": "b.json"},
        "env": {"X": "ü"},
        "more": [1],
    }
    assert list(bundle.files_of(tmp_path, manifest).items()) == [
        (2, tmp_path / "b.json"),
        (10, tmp_path / "a.json"),
    ]


def test_no_manifest(tmp_path: Path) -> None:
    assert bundle.read_manifest(tmp_path) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema": "latencylab.capture/2"}, "not known to this version"),
        ({"schema": None}, "not known to this version"),
        ({"files": {}}, "no trace files"),
        ({"files": {"x": "rank0.json"}}, "not a rank"),
        ({"files": {"00": "rank0.json"}}, "not a rank"),
        ({"files": {"0": "rank0.json", "1": "rank0.json"}}, "two ranks"),
        ({"files": {"0": 5}}, "Expected `str`"),
        ({"env": {"A": 1}}, "Expected `str`"),
        ({"files": {"0": "rank1.json"}}, "missing"),
        ({"files": {"0": ""}}, "missing"),
        ({"files": {"0": "../rank0.json"}}, "outside"),
        ({"files": {"0": "a/../../rank0.json"}}, "outside"),
        ({"files": {"0": "/etc/passwd"}}, "outside"),
        ({"files": {"0": "a\0b"}}, "outside"),
        ({"files": {"0": "link.json"}}, "outside"),
        ({"files": {"0": "loop"}}, "loop"),
    ],
)
def test_bad_manifest(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    folder = tmp_path / "capture"
    folder.mkdir()
    (tmp_path / "rank0.json").write_text("{}")
    (folder / "link.json").symlink_to(tmp_path / "rank0.json")
    (folder / "loop").symlink_to(folder / "loop")
    with pytest.raises(InputError, match=said) as caught:
        bundle.read_manifest(_capture(folder, **changes))
    assert "\n" not in str(caught.value)
    assert str(folder / bundle.MANIFEST) in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\xff", "[" * 100_000])
def test_manifest_that_is_no_json_object(tmp_path: Path, text: str) -> None:
    (tmp_path / bundle.MANIFEST).write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError):
        bundle.read_manifest(tmp_path)


def test_link_within_the_capture_is_fine(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "rank0.json")
    assert bundle.read_manifest(_capture(tmp_path, files={"0": "link.json"})) is not None


def test_manifest_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        bundle.write_manifest(tmp_path / "file", {"files": {0: "a.json"}})
    with pytest.raises(ValueError, match="no trace files"):
        bundle.write_manifest(tmp_path, {"files": {}})


def test_clock_keeps_every_nanosecond_and_what_is_missing(tmp_path: Path) -> None:
    clock = StepClock(
        step=np.array([0, 1]),
        span=("scheduler.run_batch", "draft"),
        start_ns=np.array([1_795_957_490_752_271_675, 1_795_957_490_752_271_677]),
        end_ns=np.array([1_795_957_490_752_271_676, 1_795_957_490_752_271_699]),
        waiting_ns=np.array([-1, 5]),
        cpu_ns=np.array([-1, -1]),
        gpu_start_ns=np.array([7, -1]),
        kind=("prefill", ""),
        request=np.array([-1, 0]),
    )
    bundle.write_clock(tmp_path, 3, clock)
    read = bundle.read_clock(tmp_path, 3)
    assert read is not None
    assert len(read) == 2
    for name in bundle.CLOCK_COLUMNS:
        assert list(getattr(read, name)) == list(getattr(clock, name)), name
    stored = pq.read_table(tmp_path / "unprofiled" / "clock-rank3.parquet")
    assert stored["cpu_ns"].null_count == 2
    assert stored["kind"].to_pylist() == ["prefill", None]
    assert bundle.read_clock(tmp_path, 0) is None


def test_bad_clock(tmp_path: Path) -> None:
    path = tmp_path / "unprofiled" / "clock-rank0.parquet"
    path.parent.mkdir()
    path.write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match="clock-rank0"):
        bundle.read_clock(tmp_path, 0)
    pd.DataFrame({"step": [1]}).to_parquet(path)
    with pytest.raises(InputError, match="no column 'span'"):
        bundle.read_clock(tmp_path, 0)
    whole = pd.DataFrame({name: [1] for name in bundle.CLOCK_COLUMNS})
    whole.assign(end_ns=["late"]).to_parquet(path)
    with pytest.raises(InputError, match="clock-rank0"):
        bundle.read_clock(tmp_path, 0)
    whole.assign(end_ns=pd.array([None], "Int64")).to_parquet(path)
    with pytest.raises(InputError, match="a null in column 'end_ns'"):
        bundle.read_clock(tmp_path, 0)


def test_client(tmp_path: Path) -> None:
    request = Request.of(10**18, [(5_000_000, 1), (7_000_000, 4), (9_000_000, 5)])
    assert (request.ttft_ms, request.tpot_ms, request.accept_length) == (5.0, 1.0, 2.0)
    empty = Request.of(None, [])
    one = Request.of(1, [(5, 1)])
    assert (one.tpot_ms, one.accept_length) == (None, None)
    assert bundle.read_client(tmp_path) is None
    bundle.write_client(tmp_path, [request, empty, one])
    assert bundle.read_client(tmp_path) == (request, empty, one)
    (tmp_path / "unprofiled" / "client.json").write_text('{"requests": [{}]}')
    with pytest.raises(InputError, match=r"client\.json"):
        bundle.read_client(tmp_path)


@pytest.mark.parametrize(
    "request_",
    [
        {"chunks": [[5, 1], [3, 2]]},
        {"chunks": [[-5, 1], [3, 2]]},
        {"chunks": [[10**25, 1]]},
        {"chunks": [[10**17, 1]]},
        {"chunks": [[5, -1]]},
        {"chunks": [[5, 4], [6, 2]]},
        {"chunks": [[1, 1], [2, 10**400]]},
        {"tpot_ms": -1.0},
    ],
)
def test_impossible_requests_are_refused(tmp_path: Path, request_: dict[str, Any]) -> None:
    path = tmp_path / "unprofiled" / "client.json"
    path.parent.mkdir()
    whole = {"ttft_ms": None, "tpot_ms": None, "accept_length": None, **request_}
    path.write_text(json.dumps({"requests": [whole]}))
    with pytest.raises(InputError, match=r"client\.json"):
        bundle.read_client(tmp_path)


def test_figures_of_requests_are_those_of_their_chunks(tmp_path: Path) -> None:
    path = tmp_path / "unprofiled" / "client.json"
    path.parent.mkdir()
    claimed = {"ttft_ms": 1.0, "tpot_ms": 99.0, "accept_length": 9.0}
    path.write_text(json.dumps({"requests": [{**claimed, "chunks": [[5_000_000, 1], [9_000_000, 5]]}]}))
    (read,) = bundle.read_client(tmp_path) or ()
    assert (read.ttft_ms, read.tpot_ms, read.accept_length) == (5.0, 1.0, 4.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"end_ns": [5]},
        {"end_ns": [2**62]},
        {"waiting_ns": [-7]},
        {"waiting_ns": [11]},
        {"start_ns": [-10], "end_ns": [10]},
    ],
)
def test_impossible_clocks_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = tmp_path / "unprofiled" / "clock-rank0.parquet"
    path.parent.mkdir()
    whole = pd.DataFrame({name: [1] for name in bundle.CLOCK_COLUMNS}).assign(
        span="ll.step", kind="decode", start_ns=10, end_ns=20
    )
    whole.to_parquet(path)
    assert bundle.read_clock(tmp_path, 0) is not None
    whole.assign(**changes).to_parquet(path)
    with pytest.raises(InputError, match="clock-rank0"):
        bundle.read_clock(tmp_path, 0)


def test_odd_containers_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "unprofiled"
    folder.mkdir()
    (folder / "client.json").write_text('{"x": ' + "[" * 200_000)
    with pytest.raises(InputError, match=r"client\.json"):
        bundle.read_client(tmp_path)
    columns = {name: pa.array([1]) for name in bundle.CLOCK_COLUMNS}
    text = pa.array([b"\xff"]).cast(pa.binary()).view(pa.string())
    for names, arrays in (
        ((*columns, "step"), (*columns.values(), pa.array([1]))),
        (tuple(columns), tuple({**columns, "span": text, "kind": text}.values())),
    ):
        pq.write_table(pa.table(list(arrays), names=list(names)), folder / "clock-rank0.parquet")
        with pytest.raises(InputError, match="clock-rank0"):
            bundle.read_clock(tmp_path, 0)
