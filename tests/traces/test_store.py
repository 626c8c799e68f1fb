"""The column store: exact, and never in the way."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latencylab.model.integrity import Issue
from latencylab.model.trace import Table, Thread, Trace
from latencylab.traces import store


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MIN_BYTES", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "capture" / "rank[0].json"
    path.parent.mkdir()
    path.write_text("what the reader would read")
    return path


def _table(kind: type[Table], rows: int, seed: int) -> Table:
    rng = np.random.default_rng(seed)
    types: dict[str, Any] = {"name": np.int32, "thread": np.int32, "group": np.int32, "kind": np.uint8}
    columns = {}
    for field in fields(kind):
        dtype = types.get(field.name, np.int64)
        info = np.iinfo(dtype)
        columns[field.name] = rng.integers(info.min, info.max, rows, dtype, endpoint=True)
    return kind(**columns)


def _trace(path: Path, rank: int = 3, rows: int = 1000) -> Trace:
    tables = {name: _table(kind, rows + i, i) for i, (name, kind) in enumerate(store.TABLES.items())}
    return Trace(
        rank=rank,
        device=1,
        names=("gemm<1>", "", "µ\ud800 '\"\0\n", "aten::add"),
        threads=(Thread("1", "2", "main"), Thread("[TP00] 1", "-3")),
        device_name="NVIDIA H200",
        world_size=None,
        stacks=True,
        path=str(path),
        versions={"cuda_runtime": "13000"},
        issues=(Issue("clock_order", "warning", 2, "näher"), Issue("x", "info", 1, "")),
        window=(1_790_857_026_000_000_001, 1_790_857_026_000_000_002),
        groups={"0": (0, 1, 2, 3), "tp": (3,)},
        **tables,  # type: ignore[arg-type]
    )


def _same(a: Trace, b: Trace) -> None:
    for field in fields(Trace):
        x, y = getattr(a, field.name), getattr(b, field.name)
        assert type(x) is type(y), field.name
        if not isinstance(x, Table):
            assert x == y, field.name
            continue
        for column in fields(x):
            left, right = getattr(x, column.name), getattr(y, column.name)
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right)


def _entry(source: Path) -> store.Entry:
    entry = store.entry_of(source)
    assert entry is not None
    return entry


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))


@pytest.mark.parametrize("rows", [0, 1, 5000])
def test_round_trip_of_every_field(source: Path, rows: int) -> None:
    other = replace(
        _trace(source, 4, 0), window=None, world_size=8, issues=(), names=(), threads=(), shapes=True
    )
    traces = (_trace(source, 3, rows), other, _trace(source, 5, 7))
    store.save(_entry(source), traces)
    stored = store.load(_entry(source))
    assert stored is not None
    assert len(stored) == 3
    for before, after in zip(traces, stored, strict=True):
        _same(before, after)


def test_moved_file_gets_its_new_path(source: Path) -> None:
    store.save(_entry(source), (_trace(source),))
    moved = source.parent.rename(source.parent.with_name("elsewhere")) / source.name
    stored = store.load(_entry(moved))
    assert stored is not None
    assert stored[0].path == str(moved)


def test_other_contents_name_or_reader_miss(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(_entry(source), (_trace(source),))
    copy = source.with_name("rank1.json")
    copy.write_bytes(source.read_bytes())
    assert store.load(_entry(copy)) is None
    state = source.stat()
    text = source.read_text()
    source.write_text(text[::-1])  # same size and time
    os.utime(source, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert store.load(_entry(source)) is None
    source.write_text(text)
    assert store.load(_entry(source)) is not None
    monkeypatch.setattr(store, "_reader_version", lambda: b"another")
    assert store.load(_entry(source)) is None


def test_a_new_entry_replaces_the_old_one(source: Path) -> None:
    store.save(_entry(source), (_trace(source, 0),))
    source.write_text("new contents")
    store.save(_entry(source), (_trace(source, 1),))
    assert len(_entries(source.parent)) == 1
    stored = store.load(_entry(source))
    assert stored is not None
    assert stored[0].rank == 1


def test_source_that_changes_while_it_is_read_is_not_stored(source: Path) -> None:
    entry = _entry(source)
    source.write_text("longer than what was hashed before")
    store.save(entry, (_trace(source),))
    source.unlink()
    store.save(entry, (_trace(source),))
    assert not _entries(source.parent)


def test_any_damage_is_a_miss(source: Path) -> None:
    store.save(_entry(source), (_trace(source, rows=50),))
    (path,) = _entries(source.parent)
    sound = path.read_bytes()
    rng = random.Random(1)
    for _ in range(200):
        damaged = bytearray(sound)
        damaged[rng.randrange(len(sound))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        assert store.load(_entry(source)) is None
    for size in (0, 1, len(sound) // 2, len(sound) - 1):
        path.write_bytes(sound[:size])
        assert store.load(_entry(source)) is None
    store.save(_entry(source), (_trace(source, rows=50),))
    assert store.load(_entry(source)) is not None


def test_parquet_that_is_not_an_entry_is_a_miss(source: Path) -> None:
    entry = _entry(source)
    for data in (b"PAR1", store._encode(())[:-5]):
        place = source.parent / store.FOLDER
        place.mkdir(exist_ok=True)
        (place / f"{entry.name}-{entry.key}-{store._digest(data)}.parquet").write_bytes(data)
    assert store.load(entry) is None


def test_falls_back_to_the_user_cache(source: Path, tmp_path: Path) -> None:
    (source.parent / store.FOLDER).write_text("in the way")
    store.save(_entry(source), (_trace(source),))
    assert len(_entries(tmp_path / "user-cache" / "latencylab")) == 1
    assert store.load(_entry(source)) is not None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_folder(source: Path, tmp_path: Path) -> None:
    source.parent.chmod(0o500)
    store.save(_entry(source), (_trace(source),))
    source.parent.chmod(0o700)
    assert len(_entries(tmp_path / "user-cache" / "latencylab")) == 1


def test_nowhere_to_write(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, f"{path} {target}")

    monkeypatch.setattr(Path, "replace", full)
    store.save(_entry(source), (_trace(source),))
    assert not list(tmp_path.rglob("*.parquet"))
    assert not list(tmp_path.rglob("*.tmp"))
    assert store.load(_entry(source)) is None


def test_no_home_folder(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    (source.parent / store.FOLDER).write_text("in the way")
    store.save(_entry(source), (_trace(source),))
    assert store.load(_entry(source)) is None


def test_what_is_not_stored(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store.entry_of(tmp_path) is None
    assert store.entry_of(tmp_path / "missing") is None
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert store.entry_of(pipe) is None
    monkeypatch.setattr(store, "MIN_BYTES", 1000)
    assert store.entry_of(source) is None


def test_writer_killed_half_way(source: Path) -> None:
    code = f"""
import os, signal, sys
from pathlib import Path
from latencylab.traces import store
store.MIN_BYTES = 0
half = lambda self, target: (os.truncate(self, 100), os.kill(os.getpid(), signal.SIGKILL))
Path.replace = half
store.save(store.entry_of(Path({str(source)!r})), ())
"""
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -9
    (left,) = (source.parent / store.FOLDER).glob("*.tmp")
    assert store.load(_entry(source)) is None
    store.save(_entry(source), (_trace(source),))
    assert store.load(_entry(source)) is not None
    assert left.exists()  # so young that its writer might still live
    os.utime(left, (time.time() - 7200, time.time() - 7200))
    store.save(_entry(source), (_trace(source),))
    assert not left.exists()


def _racers(source: Path) -> Iterator[subprocess.Popen[bytes]]:
    code = f"""
from pathlib import Path
from latencylab.traces import store
store.MIN_BYTES = 0
source = Path({str(source)!r})
for _ in range(60):
    entry = store.entry_of(source)
    stored = store.load(entry)
    assert stored is None or len(stored) == 0
    store.save(entry, ())
assert store.load(entry) == ()
"""
    for _ in range(3):
        yield subprocess.Popen([sys.executable, "-c", code])


def test_race(source: Path) -> None:
    racers = list(_racers(source))
    assert [racer.wait(60) for racer in racers] == [0, 0, 0]
    assert len(_entries(source.parent)) == 1
    assert not list(source.parent.rglob("*.tmp"))
    assert (source.parent / store.FOLDER / ".gitignore").read_text() == "*\n"
