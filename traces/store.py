"""The column store: what a reader made of one source file, kept as Parquet for the next opening.

Where: `.latencylab/` in the source file's folder, and where that takes no file, a folder of its own under
`$XDG_CACHE_HOME/latencylab` (or `~/.cache/latencylab`). Both are searched, in this order.

An entry's name holds three digests: of the source's file name (a rank may come from it), of the source's
bytes together with the reader's code, and of the entry's own bytes. So an entry of other contents, of
another reader or with a damaged byte is never used, and no lock is needed: entries are written beside
their place and moved there, and whoever comes second replaces it with the same.

Sources under `MIN_BYTES` are not stored: reading them takes no longer than importing pyarrow.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from latencylab.model import integrity, trace
from latencylab.model.integrity import Issue
from latencylab.model.trace import ApiCalls, GpuOps, HostEvents, Overhead, SyncRecords, Table, Thread, Trace

MIN_BYTES = 4 << 20
FOLDER = ".latencylab"
TABLES: dict[str, type[Table]] = {
    "gpu": GpuOps,
    "api": ApiCalls,
    "ops": HostEvents,
    "spans": HostEvents,
    "frames": HostEvents,
    "syncs": SyncRecords,
    "overhead": Overhead,
}
_DIGITS = 32
_LEFTOVER_S = 3600.0  # a temporary file this old belongs to no living writer


@dataclass(frozen=True, slots=True)
class Entry:
    """The place of one source in the store, and the size and mtime it had when its contents were hashed."""

    source: Path
    name: str
    key: str
    state: tuple[int, int]


def entry_of(source: Path) -> Entry | None:
    """The entry for these contents of `source`; None where it is not to be stored or cannot be read."""
    try:
        if not source.is_file() or source.stat().st_size < MIN_BYTES:
            return None
        state = _state(source)
        with source.open("rb") as file:
            contents = hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return None
    return Entry(source, _digest(source.name.encode())[:8], _digest(_reader_version() + contents), state)


def load(entry: Entry) -> tuple[Trace, ...] | None:
    """The stored traces, exactly as the reader made them, or None where there is no sound entry."""
    for place in _places(entry.source):
        for path in place.glob(f"{entry.name}-{entry.key}-*.parquet"):
            try:
                data = path.read_bytes()
            except OSError:  # another process just replaced it, or it is not ours to read
                continue
            if path.stem.rpartition("-")[2] == _digest(data):
                return _decode(data, str(entry.source))
    return None


def save(entry: Entry, traces: tuple[Trace, ...]) -> None:
    """Store what the reader made of the entry's source; a store that cannot be written is no error."""
    try:
        if _state(entry.source) != entry.state:  # rewritten while it was read: whose contents are these?
            return
    except OSError:
        return
    data = _encode(traces)
    for place in _places(entry.source):
        try:
            _write(place, entry, data)
        except OSError:
            continue
        return


def _state(source: Path) -> tuple[int, int]:
    stat = source.stat()
    return stat.st_size, stat.st_mtime_ns


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGITS]


@cache
def _reader_version() -> bytes:
    """A digest of the code that makes entries, so that nobody has to remember to raise a number."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for path in (*sorted(here.glob("*.py")), Path(trace.__file__), Path(integrity.__file__)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.digest()


def _places(source: Path) -> Iterator[Path]:
    folder = source.absolute().parent
    yield folder / FOLDER
    root = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(root) if Path(root).is_absolute() else Path.home() / ".cache"
    except RuntimeError:  # no home folder
        return
    yield base / "latencylab" / _digest(os.fsencode(folder))


def _write(place: Path, entry: Entry, data: bytes) -> None:
    place.mkdir(parents=True, exist_ok=True)
    ignore = place / ".gitignore"
    if not ignore.exists():  # a store inside a repository is never part of a commit
        ignore.write_bytes(b"*\n")
    final = place / f"{entry.name}-{entry.key}-{_digest(data)}.parquet"
    handle, name = tempfile.mkstemp(prefix=f"{entry.name}-", suffix=".tmp", dir=place)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        temporary.replace(final)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _remove_stale(place, entry.name, final)


def _remove_stale(place: Path, name: str, keep: Path) -> None:
    """Remove older entries of the same source file, and what a killed writer left."""
    for path in place.glob(f"{name}-*"):
        try:
            if path == keep or (path.suffix == ".tmp" and time.time() - path.stat().st_mtime < _LEFTOVER_S):
                continue
            path.unlink()
        except OSError:  # another process was faster
            continue


def _encode(traces: tuple[Trace, ...]) -> bytes:
    """Parquet of one row a trace: a list for each column of each table, and one JSON text for the rest."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {"meta": pa.array([_meta(trace) for trace in traces], pa.large_string())}
    for table, kind in TABLES.items():
        for column in (f.name for f in fields(kind)):
            parts = [np.ascontiguousarray(getattr(getattr(trace, table), column)) for trace in traces]
            offsets = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
            values = np.concatenate(parts) if parts else np.empty(0, np.int64)
            columns[f"{table}.{column}"] = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values))
    sink = pa.BufferOutputStream()
    # Of lz4, snappy and zstd with every encoding, zstd over deltas was the smallest (5 % of the columns) and
    # read as fast as any; dictionaries and statistics cost time and serve nobody here.
    pq.write_table(
        pa.table(columns),
        sink,
        compression="zstd",
        compression_level=3,
        use_dictionary=False,
        write_statistics=False,
        column_encoding={f"{name}.list.element": "DELTA_BINARY_PACKED" for name in columns if name != "meta"},
    )
    return bytes(sink.getvalue())


def _meta(trace: Trace) -> str:
    meta = {
        f.name: getattr(trace, f.name) for f in fields(Trace) if f.name not in TABLES and f.name != "path"
    }
    meta["threads"] = [(t.process, t.thread, t.name) for t in trace.threads]
    meta["issues"] = [(i.code, i.severity, i.count, i.detail) for i in trace.issues]
    return json.dumps(meta)  # ASCII with escapes, so that lone surrogates in names survive


def _decode(data: bytes, path: str) -> tuple[Trace, ...] | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Not pq.read_table: a process that ends soon after its threads did may abort (pyarrow 26).
        rows = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False).combine_chunks()
        return tuple(_trace(rows, row, path) for row in range(rows.num_rows))
    except (
        pa.ArrowException,
        KeyError,
        TypeError,
        ValueError,
    ):  # written by a pyarrow that this one cannot read
        return None


def _trace(rows: Any, row: int, path: str) -> Trace:
    meta = json.loads(rows["meta"][row].as_py())
    meta["names"] = tuple(meta["names"])
    meta["threads"] = tuple(Thread(*thread) for thread in meta["threads"])
    meta["issues"] = tuple(Issue(*issue) for issue in meta["issues"])
    meta["groups"] = {name: tuple(ranks) for name, ranks in meta["groups"].items()}
    meta["window"] = tuple(meta["window"]) if meta["window"] else None
    tables: dict[str, Any] = {
        table: kind(**{f.name: rows[f"{table}.{f.name}"][row].values.to_numpy() for f in fields(kind)})
        for table, kind in TABLES.items()
    }
    return Trace(path=path, **tables, **meta)
