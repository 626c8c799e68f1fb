"""The traces that ranks write: when they are whole, and whose they are."""

from __future__ import annotations

import gzip
import json
import threading
import time

from fake_server import kineto
from latencylab.runtime import trace_files
from latencylab.runtime.trace_files import is_whole, rank_of, wait_for_traces


def _trace(rank: int = 0, ranks: int = 2, *, header: bool = True) -> bytes:
    content = kineto([(1_000_000 * i, 1_000_000 * i + 900_000) for i in range(1, 9)], rank, ranks)
    if not header:
        del content["distributedInfo"]
    return gzip.compress(json.dumps(content).encode())


def test_whole_is_told_by_the_end_of_the_stream(tmp_path):
    data = _trace()
    path = tmp_path / "a.trace.json.gz"
    for size in (0, 1, 9, len(data) // 2, len(data) - 9, len(data) - 1):
        path.write_bytes(data[:size])
        assert not is_whole(path)
    path.write_bytes(data)
    assert is_whole(path)
    path.write_bytes(data[:20] + b"garbage" + data[27:])
    assert not is_whole(path)
    path.write_bytes(gzip.compress(b" " * (9 << 20) + b"}"))  # inflates a thousandfold
    assert is_whole(path)
    plain = tmp_path / "b.trace.json"
    plain.write_bytes(gzip.decompress(data))
    assert is_whole(plain)
    plain.write_bytes(gzip.decompress(data)[:-5])
    assert not is_whole(plain)


def test_rank_by_header_before_name(tmp_path):
    path = tmp_path / "17.5-TP-3-DP-0.trace.json.gz"
    path.write_bytes(_trace(rank=1))
    assert rank_of(path) == 1
    path.write_bytes(_trace(header=False))
    assert rank_of(path) == 3
    path.write_bytes(_trace(header=False)[:40])
    assert rank_of(path) == 3
    other = tmp_path / "x.trace.json"
    other.write_text("nonsense")
    assert rank_of(other) is None


def test_two_files_of_one_rank(tmp_path):
    for name in ("1-TP-0.trace.json.gz", "2-TP-0.trace.json.gz"):
        (tmp_path / name).write_bytes(_trace(header=False))
    (tmp_path / "merged-1.trace.json.gz").write_bytes(_trace())
    found = wait_for_traces(tmp_path, 2, 5, lambda: None)
    assert {rank: path.name for rank, path in found.files.items()} == {
        0: "1-TP-0.trace.json.gz",
        1: "2-TP-0.trace.json.gz",
    }


def test_waits_for_files_that_come_late_and_in_pieces(tmp_path):
    data = _trace()

    def write() -> None:
        for rank in (1, 0):
            time.sleep(0.5)
            with (tmp_path / f"1-TP-{rank}.trace.json.gz").open("wb") as file:
                for at in range(0, len(data), 100):
                    file.write(_trace(rank)[at : at + 100])
                    file.flush()
                    time.sleep(0.1)

    writer = threading.Thread(target=write)
    writer.start()
    found = wait_for_traces(tmp_path, 2, 30, lambda: None)
    writer.join(timeout=0.2)
    assert not writer.is_alive()
    assert (sorted(found.files), found.cut) == ([0, 1], ())


def test_unknown_number_of_ranks_ends_with_quiet(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_files, "QUIET_S", 0.5)
    (tmp_path / "1-TP-0.trace.json.gz").write_bytes(_trace())
    start = time.monotonic()
    assert sorted(wait_for_traces(tmp_path, None, 30, lambda: None).files) == [0]
    assert 0.5 <= time.monotonic() - start < 5
