"""Opening a capture: a folder with a manifest, a folder of traces, trace files or a glob."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from latencylab.model.capture import Capture
from latencylab.model.integrity import InputError, Issue
from latencylab.model.trace import Table, Trace
from latencylab.traces import bundle, store
from latencylab.traces.workers import read_files

A = TypeVar("A")
B = TypeVar("B")
Progress = Callable[[str], None]


def open_capture(
    paths: Sequence[str | Path] | str | Path,
    *,
    max_bytes: int | None = None,
    cache: bool = True,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Capture:
    """Read every rank of a capture; the traces' columns are read-only.

    `paths` is one capture folder (with a manifest.json), one folder of trace files, one or more trace files,
    or glob patterns. `max_bytes` bounds the JSON text of one file (None: as the reader does), `cache` uses
    and keeps the column store, `jobs` bounds the reading processes (None: 4, and one a core), and `progress`
    is called with one line as each file is done.

    Where several files claim one rank, each keeps its traces under a rank of its own, and the moved ones
    carry the warning `rank_clash`; a file whose trace names the rank keeps it before one whose name does.
    Ranks that are not there are the issue `rank_missing` of the first trace.

    Raises InputError, one line, where any part is missing, unreadable or not what it should be.
    """
    source = _resolve([paths] if isinstance(paths, str | Path) else list(paths))
    per_file = _read(source.files, max_bytes, cache, jobs, progress)
    traces = _note_missing(source, _assign_ranks(source, per_file))
    for trace in traces:
        _freeze(trace)
    ranks = sorted({trace.rank for trace in traces})
    unprofiled = bundle.read_unprofiled(source.folder, ranks) if source.folder is not None else None
    return Capture(source.path, source.folder, source.manifest, traces, unprofiled)


def read_text(path: str | Path) -> str:
    """The text of a small UTF-8 file, such as a table of kernel classes. Raises InputError, one line."""
    try:
        if not Path(path).is_file():
            raise InputError(f"{path}: no such file")
        return Path(path).read_text("utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise InputError(f"{path}: not UTF-8 text: {error}") from None


@dataclass(frozen=True, slots=True)
class _Source:
    """The files to read, in order of rank or of name, and the ranks that a manifest gives them."""

    path: str
    folder: Path | None
    manifest: dict[str, Any] | None
    files: tuple[Path, ...]
    ranks: tuple[int, ...] | None


def _resolve(paths: list[str | Path]) -> _Source:
    if not paths:
        raise InputError("no capture given")
    shown = ", ".join(str(p) for p in paths)
    found = [path for given in paths for path in _expand(given)]
    folders = [path for path in found if path.is_dir()]
    if folders and len(found) > 1:
        raise InputError(f"{folders[0]}: a folder among several inputs; give one folder, or trace files")
    if not folders:
        unique = {path.absolute(): path for path in found}
        return _Source(shown, None, None, tuple(sorted(unique.values(), key=_natural)), None)
    folder = folders[0]
    manifest = bundle.read_manifest(folder)
    if manifest is None:
        return _Source(shown, None, None, trace_files(folder), None)
    files = bundle.files_of(folder, manifest)
    return _Source(shown, folder, manifest, tuple(files.values()), tuple(files))


def _expand(given: str | Path) -> list[Path]:
    """The files or folders that one argument stands for; a path that exists is never taken as a pattern."""
    if not str(given):
        raise InputError("an empty name is no capture")
    path = Path(given)
    try:
        path = path.expanduser()
        path.stat()
        return [path]
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError, RuntimeError) as error:  # no permission, a name too long, no such user
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if not glob.has_magic(str(path)):
        raise InputError(f"{path}: no such file or folder")
    # Path.glob takes no absolute pattern.
    matches = [Path(match) for match in glob.glob(str(path), recursive=True)]  # noqa: PTH207
    if not matches:
        raise InputError(f"{path}: the pattern matches nothing")
    return matches


def trace_files(folder: Path) -> tuple[Path, ...]:
    """The trace files of a folder without a manifest: all `*.trace.json[.gz]`, or else all `*.json[.gz]`.

    SGLang's merged file repeats what the files of the ranks hold, so it counts only where it is alone.
    """
    try:
        files = [path for path in folder.iterdir() if path.name.endswith((".json", ".json.gz"))]
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror or error}") from None
    files = [p for p in files if p.name.endswith((".trace.json", ".trace.json.gz"))] or files
    files = [p for p in files if not p.name.startswith("merged-")] or files
    if not files:
        raise InputError(f"{folder}: neither a manifest.json nor a trace file (*.json, *.json.gz) in it")
    return tuple(sorted(files, key=_natural))


def _natural(path: Path) -> tuple[list[tuple[int, str]], str]:
    """A key that sorts rank2 before rank10."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if i % 2 else (-1, part) for i, part in enumerate(parts)], str(path)


def _read(
    files: tuple[Path, ...], max_bytes: int | None, cache: bool, jobs: int | None, progress: Progress | None
) -> list[tuple[Trace, ...]]:
    """The traces of each file, from the column store where it has them."""
    done: dict[Path, tuple[Trace, ...]] = {}

    def take(path: Path, traces: tuple[Trace, ...]) -> None:
        done[path] = traces
        if progress is not None:
            progress(f"{path.name} ({len(done)} of {len(files)})")

    entries = {e.source: e for e in _in_threads(store.entry_of, files) if e is not None} if cache else {}
    for source, stored in zip(entries, _in_threads(store.load, list(entries.values())), strict=True):
        if stored is not None:
            take(source, stored)
    for path, traces in read_files([path for path in files if path not in done], max_bytes, jobs):
        if path in entries:
            store.save(entries[path], traces)
        take(path, traces)
    return [done[path] for path in files]


def _in_threads(function: Callable[[A], B], arguments: Sequence[A]) -> list[B]:
    """The results in order; hashing and decoding Parquet release the interpreter's lock."""
    if len(arguments) < 2:
        return [function(argument) for argument in arguments]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(function, arguments))


def _assign_ranks(source: _Source, per_file: list[tuple[Trace, ...]]) -> list[Trace]:
    """The manifest's rank for each file, or else the file's own, moved where another file has it already."""
    owner: dict[int, str] = {}
    wanted = {trace.rank for traces in per_file for trace in traces}
    placed: list[Trace] = []
    for number in sorted(range(len(per_file)), key=lambda number: _is_guessed(per_file[number])):
        path, traces = source.files[number], per_file[number]
        own = sorted({trace.rank for trace in traces})
        moves: dict[int, tuple[int, Issue | None]] = {}
        for rank in own:
            if source.ranks is not None and len(own) == 1:
                moves[rank] = _by_manifest(path, rank, source.ranks[number], traces)
            elif rank in owner:
                free = next(r for r in itertools.count() if r not in owner and r not in wanted)
                detail = f"{path.name}: rank {rank} is also in {owner[rank]}; shown as rank {free}"
                moves[rank] = free, Issue("rank_clash", "warning", 1, detail)
                wanted.add(free)
            else:
                moves[rank] = rank, None
        owner |= {rank: path.name for rank, _ in moves.values()}
        placed += [_placed(trace, *moves[trace.rank]) for trace in traces]
    return sorted(placed, key=lambda trace: (trace.rank, trace.device))


def _by_manifest(path: Path, own: int, given: int, traces: tuple[Trace, ...]) -> tuple[int, Issue | None]:
    if own == given or _is_guessed(traces):
        return given, None
    detail = f"{path.name}: the manifest says rank {given}, the trace itself rank {own}"
    return given, Issue("rank_clash", "warning", 1, detail)


def _is_guessed(traces: tuple[Trace, ...]) -> bool:
    return any(issue.code == "rank_guessed" for trace in traces for issue in trace.issues)


def _placed(trace: Trace, rank: int, issue: Issue | None) -> Trace:
    return replace(trace, rank=rank, issues=trace.issues if issue is None else (*trace.issues, issue))


def _note_missing(source: _Source, traces: list[Trace]) -> tuple[Trace, ...]:
    """Ranks below the highest, or below the world's size, that no file holds.

    One file alone is often opened on purpose; then it is worth a note and no more.
    """
    present = {trace.rank for trace in traces}
    size = max([*present, *(trace.world_size - 1 for trace in traces if trace.world_size)], default=-1) + 1
    count = size - len(present)
    if not count:
        return tuple(traces)
    missing = list(itertools.islice((rank for rank in range(size) if rank not in present), 9))
    alone = len(source.files) == 1 and source.manifest is None
    listed = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
    detail = f"no trace of rank {listed} of {size}"
    issue = Issue("rank_missing", "info" if alone else "warning", count, detail)
    return (replace(traces[0], issues=(*traces[0].issues, issue)), *traces[1:])


def _freeze(trace: Trace) -> None:
    """Columns from the store are read-only by nature; so are all, lest code work on a first opening only."""
    for table in (getattr(trace, f.name) for f in fields(trace)):
        if isinstance(table, Table):
            for column in fields(table):
                getattr(table, column.name).flags.writeable = False
