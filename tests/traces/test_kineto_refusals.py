"""What is no trace with GPU work is refused in one line that names the file and the cause."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import sqlite3
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from latencylab.model.integrity import InputError
from latencylab.traces import decode
from latencylab.traces.kineto import read_kineto

if TYPE_CHECKING:
    from conftest import Kineto

META = {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0, "args": {"name": "p"}}


def refusal(path: Path, **options: int) -> str:
    with pytest.raises(InputError) as refused:
        read_kineto(path, **options)
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"  \n", "is no trace"),
        (b"hello", "is not JSON"),
        (b"\x00\x01\x02" * 50, "is not JSON"),
        (b'"text"', "is not JSON"),
        (b"{}", "is JSON, but no trace: it has no traceEvents"),
        (b'{"a": [1, 2]}', "is JSON, but no trace"),
        (b'{"traceEvents": 5}', "is JSON, but no trace"),
        (b'{"traceEvents": {"a": 1}}', "is JSON, but no trace"),
        (b'{"a": {"traceEvents"', "is no trace: no traceEvents in it, and its JSON is damaged or cut off"),
        (b"[]", "no GPU activity: traceEvents is empty"),
        (b"[1, 2, 3]", "no GPU activity: no event in traceEvents can be read"),
        (b'[{"a": 1}, {"b": 2}]', "no GPU activity: no event in traceEvents can be read"),
        (b'{"traceEvents": []}', "no GPU activity: traceEvents is empty"),
        (b'{"traceEvents": [', "no GPU activity: the file is cut off"),
        (b"[" * 100_000, "no GPU activity"),
        (b'{"a":' * 100_000, "is no trace"),
        (json.dumps([META]).encode(), "no GPU activity: metadata alone"),
        (b"\xfd7zXZ\0....", "is xz-compressed"),
        (b"\x28\xb5\x2f\xfd....", "is zstd-compressed"),
        (b"PK\x03\x04....", "is a zip archive"),
        (b"\x1f\x8b", "is no trace"),
        (b"\x1f\x8bjunk that is no gzip at all", "is no trace"),
        (gzip.compress(b"", mtime=0), "is no trace"),
        (gzip.compress(b"hello", mtime=0), "is not JSON"),
        (gzip.compress(gzip.compress(b"{}", mtime=0), mtime=0), "is not JSON"),
    ],
)
def test_contents(kineto: Kineto, content: bytes, words: str) -> None:
    assert words in refusal(kineto.write(content))


def test_activity_that_lacks(kineto: Kineto) -> None:
    calls = [e for e in kineto.base() if e["cat"] == "cuda_runtime"]
    ops = [e for e in kineto.base() if e["cat"] == "cpu_op"]
    assert "CUDA API calls but no kernel" in refusal(kineto.write(kineto.document(calls)))
    assert "host events alone" in refusal(kineto.write(kineto.document(ops)))
    cut = kineto.document(ops)[:-900]
    assert "cut off or damaged, and no whole kernel is left" in refusal(kineto.write(cut))


def test_missing_and_folders(kineto: Kineto, tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.json") == "no such file"
    assert refusal(tmp_path / ("x" * 300)).startswith("cannot be read")
    assert refusal(tmp_path) == "is a directory, not a trace file"
    file = kineto.write("{}", "file.json")
    assert refusal(file / "below.json").startswith("cannot be read")


def test_pipe_is_not_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert refusal(pipe) == "is no regular file"


def test_unreadable(kineto: Kineto, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = kineto.write("{}")
    monkeypatch.setattr(Path, "open", deny)
    assert refusal(path) == "permission denied"


def test_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE StringIds (id INTEGER)")
    connection.close()
    assert refusal(path) == "is an SQLite database (an Nsight Systems export?), no Kineto trace"


def test_gzip_bomb_is_never_held(kineto: Kineto) -> None:
    path = kineto.write(gzip.compress(b'{"traceEvents": [' + b" " * (200 << 20)))
    tracemalloc.start()
    message = refusal(path, max_bytes=20 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "inflates beyond 0.0195 GiB" in message
    assert peak < 150 << 20


def test_limit_can_be_lifted(kineto: Kineto) -> None:
    path = kineto.write(gzip.compress(kineto.document(kineto.base()).encode() + b" " * 100_000))
    assert "raise the limit" in refusal(path, max_bytes=50_000)
    assert len(read_kineto(path, max_bytes=200_000)[0].gpu) == 20


def test_stretch_without_events_is_not_held(kineto: Kineto, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_MAX_HELD", 8 << 20)
    assert "is no trace" in refusal(kineto.write(b"{" + b" " * (20 << 20)))
    trace = kineto.one(kineto.document(kineto.base()).encode()[:-2] + b"," + b" " * (20 << 20) + b"]}")
    assert len(trace.gpu) == 20


def test_damage_beyond_repair(kineto: Kineto) -> None:
    assert "beyond repair" in refusal(kineto.write(b"[" + b'{"ph" ,' * 30_000))


def test_failing_disk(kineto: Kineto, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(io.BytesIO):
        def read(self, *_: object) -> bytes:
            raise OSError(5, "Input/output error")

    path = kineto.write("{}")
    monkeypatch.setattr(Path, "open", lambda *_: Failing())
    assert refusal(path) == "cannot be read: Input/output error"


@pytest.mark.parametrize(
    ("tail", "code"),
    [
        (b"junk", "trailing_data"),
        (b'[{"ph": "X"}]', "stray_text"),
        (b"\n  \n", None),
    ],
)
def test_after_an_array(kineto: Kineto, tail: bytes, code: str | None) -> None:
    trace = kineto.one(json.dumps(kineto.base()).encode() + tail)
    assert len(trace.gpu) == 20
    assert (code in kineto.issues(trace)) == (code is not None)


@pytest.mark.parametrize(("tail", "codes"), [(b"\0" * 512, set()), (b"junk", {"trailing_data"})])
def test_after_gzip(kineto: Kineto, tail: bytes, codes: set[str]) -> None:
    trace = kineto.one(gzip.compress(kineto.document(kineto.base()).encode()) + tail)
    assert len(trace.gpu) == 20
    assert set(kineto.issues(trace)) == codes


def test_gzip_gives_all_up_to_its_damage(kineto: Kineto) -> None:
    rng = random.Random(1)
    events = [e | {"name": rng.randbytes(40).hex()} for i in range(40) for e in kineto.base(1e12 + 200.5 * i)]
    packed = bytearray(gzip.compress(kineto.document(events).encode()))
    assert len(packed) > 5 * 16384
    at = len(packed) // 2
    packed[at : at + 64] = b"\xff" * 64
    trace = kineto.one(bytes(packed))
    assert kineto.issues(trace)["corrupt_gzip"] == ("warning", 1)
    assert 380 < len(trace.gpu) < 800


def test_damaged_keys_after_the_events(kineto: Kineto) -> None:
    events = json.dumps(kineto.base())
    keys = json.dumps(kineto.header)[1:]
    for damaged, code in ((keys.replace('"nccl"', "nccl"), "damaged_header"), (keys[:-9], "truncated")):
        trace = kineto.one(f'{{"traceEvents": {events}, {damaged}')
        assert kineto.issues(trace)[code] == ("warning", 1)
        assert trace.device_name == "NVIDIA H200"
        assert trace.gpu.start[0] > kineto.base_ns or "truncated" in kineto.issues(trace)


def test_damaged_keys_before_the_events(kineto: Kineto) -> None:
    text = kineto.document(kineto.base()).replace('"schemaVersion": 1,', '"schemaVersion": 1, "rank" 5,')
    trace = kineto.one(text)
    assert kineto.issues(trace) == {"damaged_header": ("warning", 1)}
    assert trace.gpu.start[0] > kineto.base_ns


def test_events_after_a_bracket_too_many(kineto: Kineto) -> None:
    events = [json.dumps(e) for e in kineto.base()]
    text = json.dumps(kineto.header)[:-1] + ', "traceEvents": [' + ",".join(events[:30]) + "]},"
    trace = kineto.one(text + ",".join(events[30:]) + "]}")
    assert len(trace.gpu) == 20
    assert {i.severity for i in trace.issues} == {"warning"}
