"""The trace files that a profiled process writes: waiting until they are whole, and telling their ranks."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from isal import isal_zlib

from latencylab.model.integrity import InputError
from latencylab.traces.header import Header, NoTraceError, find_head
from latencylab.traces.inflate import MAX_BYTES, read_blocks

POLL_S = 0.2
QUIET_S = 5.0  # where the number of ranks is not known: nothing new for so long means that all have come
_PIECE = 1 << 20
_NAMED = (re.compile(r"-TP-(\d{1,6})(?=[-.])"), re.compile(r"rank[-_.]?(\d{1,6})"))
Stat = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Found:
    """The trace file of each rank; `cut` names the ranks whose file is not whole."""

    files: dict[int, Path]
    cut: tuple[int, ...] = ()


def wait_for_traces(
    folder: Path,
    ranks: int | None,
    timeout_s: float,
    check_alive: Callable[[], None],
) -> Found:
    """All trace files in `folder`, as soon as `ranks` of them are whole, or what is there after the timeout.

    A file is whole when it stopped growing and its gzip stream ends; merged files of several ranks are left
    out. `check_alive` is called while waiting, and raises where nothing more can come.
    """
    deadline = time.monotonic() + timeout_s
    seen: dict[Path, Stat] = {}
    whole: dict[Path, Stat] = {}
    changed = time.monotonic()
    while True:
        now = {path: _stat(path) for path in _traces(folder)}
        if now != seen:
            changed = time.monotonic()
        for path, stat in now.items():
            if seen.get(path) == stat and whole.get(path) != stat and is_whole(path):
                whole[path] = stat
        seen = now
        done = [path for path, stat in now.items() if whole.get(path) == stat]
        quiet = time.monotonic() - changed > QUIET_S
        if done and len(done) == len(now) and (len(done) >= ranks if ranks else quiet):
            return _by_rank(done, set())
        if time.monotonic() > deadline:
            return _by_rank(list(now), set(now) - set(done))
        if len(done) < (ranks or 1):
            check_alive()
        time.sleep(POLL_S)


def is_whole(path: Path) -> bool:
    """Whether a gzip stream reaches its end; a plain file counts as whole where it ends as JSON does."""
    with path.open("rb") as file:
        if file.read(2) != b"\x1f\x8b":
            file.seek(max(0, path.stat().st_size - 64))
            return file.read().rstrip().endswith((b"}", b"]"))
        file.seek(0)
        stream = isal_zlib.decompressobj(31)
        try:
            while piece := file.read(_PIECE):
                while piece and not stream.eof:
                    stream.decompress(piece, _PIECE)  # in parts, so that memory stays bounded
                    piece = stream.unconsumed_tail
            while not stream.eof and stream.decompress(b"", _PIECE):
                pass  # what the last pieces inflate to, beyond one part
        except isal_zlib.error:  # type: ignore[misc]  # the stub is wrong
            return False
        return bool(stream.eof)


def rank_of(path: Path) -> int | None:
    """The rank that a trace names, or its file's name; None where neither does."""
    notes: Counter[str] = Counter()
    text = b""
    try:
        for block in read_blocks(path, MAX_BYTES, notes):
            text += block
            head = find_head(text, notes)
            if head is not None:
                rank = Header.of(head.keys, notes).rank
                if rank is not None:
                    return rank
            if head is not None or len(text) > 8 * _PIECE:
                break
    except (InputError, NoTraceError):
        pass
    named = next((match for pattern in _NAMED if (match := pattern.search(path.name))), None)
    return int(named[1]) if named else None


def _by_rank(paths: list[Path], cut: set[Path]) -> Found:
    """Two files that claim one rank, or claim none, take the first free ranks, in order of name."""
    files: dict[int, Path] = {}
    homeless = []
    for path in sorted(paths):
        rank = rank_of(path)
        if rank is None or rank in files:
            homeless.append(path)
        else:
            files[rank] = path
    for path in homeless:
        files[next(rank for rank in range(len(paths)) if rank not in files)] = path
    return Found(dict(sorted(files.items())), tuple(sorted(r for r, path in files.items() if path in cut)))


def _traces(folder: Path) -> list[Path]:
    """The files there, in SGLang's and in our own form of name."""
    return [
        path
        for path in (folder.iterdir() if folder.is_dir() else ())
        if path.name.endswith((".trace.json", ".trace.json.gz")) and not path.name.startswith("merged-")
    ]


def _stat(path: Path) -> Stat:
    try:
        stat = path.stat()
    except FileNotFoundError:  # renamed meanwhile
        return (-1, -1)
    return stat.st_size, stat.st_mtime_ns
