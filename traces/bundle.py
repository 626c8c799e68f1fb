"""The capture bundle: its manifest, and what was measured before the profiler was switched on.

A capture folder holds `manifest.json` (what was run, where, and the trace file of each rank), the traces,
`unprofiled/clock-rank0.parquet` (the step clock of each rank) and `unprofiled/client.json` (the requests as
the client saw them).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from latencylab.model.integrity import InputError, OutputError
from latencylab.model.trace import MISSING
from latencylab.model.unprofiled import Request, StepClock, Unprofiled

SCHEMA = "latencylab.capture/1"
MANIFEST = "manifest.json"
MOST_NESTED = 100  # levels of a manifest: it is printed again, and printers go only so deep
CLOCK_COLUMNS = (
    "step",
    "span",
    "start_ns",
    "end_ns",
    "waiting_ns",
    "cpu_ns",
    "gpu_start_ns",
    "kind",
    "request",
)
_TEXT_COLUMNS = {"span", "kind"}
_NEVER_NULL = {"step", "start_ns", "end_ns"}
MOST_TOKENS = 10**9  # of a request
LONGEST_NS = 10**15  # of a request or a span: eleven days


class Manifest(msgspec.Struct, kw_only=True):
    """What a manifest may say; more keys are allowed and kept. Null or absent means not known."""

    schema: str
    files: dict[str, str]  # rank: file name, inside the folder
    commit: str | None = None  # of the code that ran
    created: str | None = None  # ISO 8601
    host: str | None = None
    gpu: str | None = None
    driver: str | None = None
    packages: dict[str, str] = {}
    server_args: dict[str, Any] = {}
    env: dict[str, str] = {}
    faults: dict[str, Any] = {}  # what was made worse on purpose
    ledger: dict[str, Any] | list[Any] | None = None  # the state of each optimisation
    workload: dict[str, Any] | None = None


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The checked manifest of a capture folder, or None where the folder has none.

    Raises InputError where it is unreadable, of another schema, or names a file that is missing or outside.
    """
    path = folder / MANIFEST
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: is no file")
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    try:
        manifest = json.loads(text)
        _check(manifest)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise InputError(f"{path}: {error}") from None
    for name in manifest["files"].values():
        file = _inside(folder, name)
        if file is None:
            raise InputError(f"{path}: the file {name!r} lies outside the capture")
        if not file.is_file():
            raise InputError(f"{path}: the file {name!r} is missing")
    return dict(manifest)


def files_of(folder: Path, manifest: Mapping[str, Any]) -> dict[int, Path]:
    """The trace file of each rank, in order of rank."""
    return {
        int(rank): folder / name for rank, name in sorted(manifest["files"].items(), key=lambda f: int(f[0]))
    }


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write manifest.json; `schema` is added, ranks may be integers.

    Raises ValueError for a bad manifest and OutputError where it cannot be written.
    """
    files = {str(rank): name for rank, name in manifest["files"].items()}
    whole = {"schema": SCHEMA, **manifest, "files": files}
    _check(whole)
    _write(folder / MANIFEST, json.dumps(whole, indent=1, ensure_ascii=False) + "\n")


def _check(manifest: Any) -> None:
    if not isinstance(manifest, dict):
        raise ValueError("not a JSON object")
    if not _is_shallow(manifest, MOST_NESTED):
        raise ValueError(f"nested more than {MOST_NESTED} deep")
    schema = manifest.get("schema")
    if schema != SCHEMA:
        raise ValueError(f"schema {schema!r} is not known to this version, which reads {SCHEMA!r}")
    files = msgspec.convert(manifest, Manifest).files
    if not files:
        raise ValueError("it lists no trace files")
    for rank in files:
        if not (rank.isascii() and rank.isdecimal() and str(int(rank)) == rank):
            raise ValueError(f"{rank!r} is not a rank")
    if len(set(files.values())) < len(files):
        raise ValueError("it lists one file for two ranks")


def _is_shallow(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_is_shallow(its, levels - 1) for its in inner)


def _inside(folder: Path, name: str) -> Path | None:
    """The file of that name, unless the name or a symbolic link leads out of the folder."""
    try:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            return None
        return folder / name if (folder / name).resolve().is_relative_to(folder.resolve()) else None
    except (OSError, RuntimeError, ValueError):  # a loop of links, a null byte
        return None


class _Client(msgspec.Struct):
    requests: tuple[Request, ...]


def read_client(folder: Path) -> tuple[Request, ...] | None:
    """The unprofiled requests of a capture, or None where it has no record of them. Raises InputError."""
    path = folder / "unprofiled" / "client.json"
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: is no file")
        requests = msgspec.json.decode(path.read_bytes(), type=_Client).requests
        return tuple(_checked(number, request) for number, request in enumerate(requests))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(f"{path}: {error}") from None


def _checked(number: int, request: Request) -> Request:
    """The request with its figures computed anew from its chunks, where it has any. Raises ValueError."""
    at = [time for time, _ in request.chunks]
    if at != sorted(at) or not all(0 <= time <= LONGEST_NS for time in at):
        raise ValueError(f"request {number}: chunks at impossible times")
    tokens = [count for _, count in request.chunks]
    if tokens != sorted(tokens) or not all(0 <= count <= MOST_TOKENS for count in tokens):
        raise ValueError(f"request {number}: impossible numbers of tokens")
    if request.chunks:
        return Request.of(request.start_ns, request.chunks)
    figures = (request.ttft_ms, request.tpot_ms, request.accept_length)
    if any(figure is not None and not figure >= 0 for figure in figures):
        raise ValueError(f"request {number}: a negative figure")
    return request


def write_client(folder: Path, requests: Iterable[Request]) -> None:
    """Write unprofiled/client.json. Raises OutputError."""
    rows = [json.dumps(asdict(request)) for request in requests]
    _write(folder / "unprofiled" / "client.json", '{"requests": [\n' + ",\n".join(rows) + "\n]}\n")


def read_clock(folder: Path, rank: int) -> StepClock | None:
    """The step clock of one rank, or None where there is none. Raises InputError."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    path = _clock_path(folder, rank)
    try:
        table = pq.ParquetFile(pa.BufferReader(path.read_bytes())).read(use_threads=False)
    except FileNotFoundError:
        return None
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: {str(error).splitlines()[0]}") from None
    if missing := [name for name in CLOCK_COLUMNS if name not in table.column_names]:
        raise InputError(f"{path}: no column {missing[0]!r}")
    try:
        table = table.select(CLOCK_COLUMNS).cast(_clock_schema())
        table.validate(full=True)
    except (pa.ArrowException, KeyError) as error:
        raise InputError(f"{path}: {str(error).splitlines()[0]}") from None
    if nulls := [name for name in sorted(_NEVER_NULL) if table[name].null_count]:
        raise InputError(f"{path}: a null in column {nulls[0]!r}")
    columns: dict[str, Any] = {
        name: tuple(pc.fill_null(table[name], "").to_pylist())
        if name in _TEXT_COLUMNS
        else pc.fill_null(table[name], MISSING).to_numpy()
        for name in CLOCK_COLUMNS
    }
    clock = StepClock(**columns)
    took = clock.end_ns - clock.start_ns
    if (clock.start_ns < 0).any() or (took < 0).any() or (took > LONGEST_NS).any():
        raise InputError(f"{path}: spans at impossible times")
    if (clock.waiting_ns < MISSING).any() or (clock.waiting_ns > took).any():
        raise InputError(f"{path}: waits that are longer than their calls, or negative")
    return clock


def write_clock(folder: Path, rank: int, clock: StepClock) -> None:
    """Write the step clock of one rank; what is missing becomes null. Raises OutputError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _clock_schema()
    columns = [
        pa.array([text or None for text in getattr(clock, name)], schema.field(name).type)
        if name in _TEXT_COLUMNS
        else pa.array(
            getattr(clock, name), mask=(getattr(clock, name) == MISSING) & (name not in _NEVER_NULL)
        )
        for name in CLOCK_COLUMNS
    ]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, schema=schema), sink, compression="zstd", compression_level=9)
    _write(_clock_path(folder, rank), bytes(sink.getvalue()))


def read_unprofiled(folder: Path, ranks: Iterable[int]) -> Unprofiled | None:
    """The unprofiled part of a capture, or None where it has none. Raises InputError."""
    requests = read_client(folder)
    clocks = {rank: clock for rank in ranks if (clock := read_clock(folder, rank)) is not None}
    if requests is None and not clocks:
        return None
    return Unprofiled(requests or (), clocks)


def _clock_path(folder: Path, rank: int) -> Path:
    return folder / "unprofiled" / f"clock-rank{rank}.parquet"


def _clock_schema() -> Any:
    import pyarrow as pa

    return pa.schema([(name, pa.string() if name in _TEXT_COLUMNS else pa.int64()) for name in CLOCK_COLUMNS])


def _write(path: Path, data: str | bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}") from None
