"""Cutting a capture down to some of its steps, and clearing it of what should not be shared.

Events are copied as text, so every digit stays as it was: a double holds less than what a timestamp says.
Only strings in which a path occurs are rewritten.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw

from latencylab.model.capture import Capture
from latencylab.model.integrity import InputError, OutputError
from latencylab.traces import bundle, events
from latencylab.traces.digits import parse_us
from latencylab.traces.header import Header
from latencylab.traces.inflate import MAX_BYTES, read_blocks

Window = tuple[int, int]

# Of a header, numbers, versions and these are kept; what else it holds may name a host or a user.
_HEADER = {"deviceProperties", "distributedInfo", "displayTimeUnit"}
_BASE = {"baseTimeNanoseconds"}
_NUMBER = re.compile(rb'"?-?\d[\d.eE+-]*"?|true|false|null')
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_FRAME = re.compile(r".*[/\\](?=[^/\\]+\(\d+\): )", re.DOTALL)
_PATH = re.compile(r"(?<![\w./\\>-])(?:~\w*|[A-Za-z]:)?(?:[/\\]+[^\s/\\\"'()<>|,;:=*?]+){2,}[/\\]?")
_HOME = re.compile(r"(?:[A-Za-z]:)?[/\\]+(?:home|Users)[/\\]+[^/\\]+[/\\]?|~\w+[/\\]?", re.IGNORECASE)
_PRIVATE = re.compile(
    r"(?:\A|.*[_-])(?:(?:api|secret|access|private|watermark)_key(?:_(?:id|b))?|tokens?|secrets?"
    r"|passw(?:or)?ds?|credentials?|users?|username|logname|home|pwd|hosts?|hostname|nodename|nodelist"
    r"|connection|endpoints?|urls?|proxy|ps1|ip|addr|address|run_id)"
    r"(?:\Z|[_-](?:key|id)\Z)",
    re.IGNORECASE,
)
# A variable of an environment that names places: what it says holds on one machine only.
_PLACES = re.compile(r"(?:\A|[:;,=])\s*(?:~|[A-Za-z]:\\|[/\\])")


def trim_capture(
    capture: Capture,
    windows: Mapping[int, Window],
    out: Path,
    *,
    about: Mapping[str, Any] | None = None,
    force: bool = False,
) -> None:
    """Write a small capture that can be shared: of each rank what `trim_file` keeps of its window.

    `windows` holds the host's interval (start and end, absolute ns) of each rank to keep; other ranks are
    left out. `about` is added to the manifest, to say which steps these are. The manifest and the unprofiled
    part come along, cleared of paths, host and user names. `out` appears whole or not at all, and an existing
    capture is replaced only with `force`.

    Raises InputError for a source that cannot be read or holds several ranks, OutputError where `out` exists
    or cannot be written.
    """
    sources = _sources(capture, windows)
    if any(source.resolve().is_relative_to(out.resolve()) for source in sources.values()):
        raise OutputError(f"{out}: holds what is trimmed; write to another folder")
    with _new_folder(out, force) as folder:
        files = {rank: f"rank{rank}.trace.json.gz" for rank in sources}
        for rank, source in sources.items():
            trim_file(source, folder / files[rank], windows[rank])
        manifest = cleared_manifest(capture.manifest or {})
        bundle.write_manifest(folder, {**manifest, **(about or {}), "files": files})
        if capture.folder is not None:
            _copy_unprofiled(capture.folder, folder, files)


def _sources(capture: Capture, windows: Mapping[int, Window]) -> dict[int, Path]:
    sources: dict[int, Path] = {}
    for trace in capture.traces:
        if trace.rank in windows:
            sources[trace.rank] = Path(trace.path)
    shared = Counter(trace.path for trace in {(t.rank, t.path): t for t in capture.traces}.values())
    if merged := [path for path in sources.values() if shared[str(path)] > 1]:
        raise InputError(f"{merged[0]}: holds several ranks; trim the file of each rank")
    if missing := sorted(set(windows) - set(sources)):
        raise InputError(f"{capture.path}: no trace of rank {missing[0]}")
    if not sources:
        raise InputError(f"{capture.path}: no rank to keep")
    return dict(sorted(sources.items()))


def _copy_unprofiled(source: Path, target: Path, ranks: Mapping[int, str]) -> None:
    if (requests := bundle.read_client(source)) is not None:
        bundle.write_client(target, requests)
    for rank in ranks:
        if (clock := bundle.read_clock(source, rank)) is not None:
            bundle.write_clock(target, rank, clock)


def cleared_manifest(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest that can be shared: `cleared`, and without variables that hold paths."""
    env = {name: text for name, text in (manifest.get("env") or {}).items() if not _PLACES.search(str(text))}
    whole: dict[str, Any] = cleared({**manifest, "env": env} if "env" in manifest else manifest)
    return whole


def cleared(value: Any) -> Any:
    """Plain data without paths in its strings, and without entries whose key speaks of a host, a user or a
    secret.
    """
    if isinstance(value, str):
        return clear_text(value)
    if isinstance(value, Mapping):
        return {
            k: cleared(v)
            for k, v in value.items()
            if not (isinstance(v, str | list | Mapping) and _PRIVATE.fullmatch(k))
        }
    if isinstance(value, list | tuple):
        return [cleared(item) for item in value]
    return value


def clear_text(text: str) -> str:
    """The text with each path cut to its last part, or to `~` where that names a user; a Python frame's also
    where it is relative.
    """
    text = _FRAME.sub("", text, count=1) if _FRAME.match(text) else text
    return _PATH.sub(_last_part, text)


def _last_part(path: re.Match[str]) -> str:
    return "~" if _HOME.fullmatch(path[0]) else re.split(r"[/\\]", path[0].rstrip("/\\"))[-1]


def trim_file(source: Path, target: Path, window: Window | None, *, level: int = 6) -> int:
    """Write the part of a Kineto trace that belongs to an interval of the host, and return its events.

    Kept are host events that start within [start, end), absolute ns; GPU ops whose launch is kept, and the
    flows between both; annotations of the GPU that start while kept ops run; names of processes and threads.
    All is kept where `window` is None. `level` is gzip's.

    Raises InputError and OutputError.
    """
    header, rows = _parse(source)
    if window is not None:
        base = Header.of(
            {key: msgspec.json.decode(header[key]) for key in _BASE & set(header)}, Counter()
        ).base
        rows = _pick(source, rows, window[0] - (base or 0), window[1] - (base or 0))
    kept = {key: value for key, value in header.items() if _is_harmless(key, value)}
    head = b"".join(json.dumps(key).encode() + b": " + _clear(value) + b",\n" for key, value in kept.items())
    try:
        with target.open("xb") as raw, gzip.GzipFile("", "wb", level, raw, mtime=0) as file:
            file.write(b"{\n" + head + b'"traceEvents": [\n')
            file.write(b",\n".join(_clear(row) for row in rows))
            file.write(b"\n]}\n")
    except OSError as error:
        raise OutputError(f"{target}: {error.strerror or error}") from None
    return len(rows)


def _is_harmless(key: str, value: Raw) -> bool:
    return key in _HEADER or key.endswith("_version") or _NUMBER.fullmatch(bytes(value).strip()) is not None


def _parse(source: Path) -> tuple[dict[str, Raw], list[Raw]]:
    """The header's entries and the events, as text."""
    text = b"".join(read_blocks(source, MAX_BYTES, Counter()))
    try:
        header = msgspec.json.decode(text, type=dict[str, Raw] | list[Raw])
        if isinstance(header, list):  # the array form has no header
            return {}, header
        return header, msgspec.json.decode(header.pop("traceEvents", Raw(b"[]")), type=list[Raw])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{source}: damaged, so it cannot be trimmed: {error}") from None


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    ts: Raw = events.ABSENT
    dur: Raw = events.ABSENT
    id: int | str = ""
    args: dict[str, Raw] = {}

    def correlation(self) -> str:
        """The launch it belongs to, as digits; empty for none."""
        if self.ph in "stf":
            return str(self.id)
        return bytes(self.args.get("correlation", b"")).decode().strip('" ')


def _pick(source: Path, rows: list[Raw], start: int, end: int) -> list[Raw]:
    """The events of a window given in ns on the file's own clock, in the file's order."""
    decoder = msgspec.json.Decoder(_Event)
    try:
        seen = [decoder.decode(row) for row in rows]
    except msgspec.MsgspecError as error:
        raise InputError(f"{source}: an event of an odd form, so it cannot be trimmed: {error}") from None
    begin = parse_us([event.ts for event in seen])[0]
    finish = begin + parse_us([event.dur for event in seen])[0]
    category = np.array([event.cat.lower() for event in seen])
    launch = np.array([event.correlation() for event in seen])
    metadata = np.array([event.ph == "M" for event in seen])
    flow = np.array([event.ph in ("s", "t", "f") for event in seen])
    gpu = np.isin(category, list(events.GPU))
    annotation = category == "gpu_user_annotation"
    keep = (begin >= start) & (begin < end) & ~(gpu | annotation | flow | metadata | (category == "trace"))
    launched = np.unique(launch[keep & np.isin(category, list(events.API)) & (launch != "")])
    follows = np.isin(launch, launched)
    ops = gpu & follows
    keep |= metadata | ops | (flow & follows & np.isin(category, ["ac2g", "async_cpu_to_gpu"]))
    if ops.any():
        keep |= annotation & (begin >= begin[ops].min()) & (begin < finish[ops].max())
    return [rows[index] for index in np.flatnonzero(keep)]


def _clear(text: Raw) -> bytes:
    """JSON text with its strings cleared; numbers keep their digits."""
    data = bytes(text)
    return _STRING.sub(_clear_string, data) if b"/" in data or b"\\" in data else data


def _clear_string(match: re.Match[bytes]) -> bytes:
    if b"/" not in match[0] and b"\\" not in match[0]:
        return match[0]
    text: str = json.loads(match[0])
    clear = clear_text(text)
    return match[0] if clear == text else json.dumps(clear).encode()


@contextmanager
def _new_folder(out: Path, force: bool) -> Iterator[Path]:
    """A folder whose files are moved to `out` when all went well, and that vanishes otherwise.

    With `force`, files of the same names in an existing capture are replaced one by one, and others kept.
    """
    if out.exists() or out.is_symlink():
        if not force:
            raise OutputError(f"{out}: exists already")
        if not (out.is_dir() and ((out / bundle.MANIFEST).is_file() or not any(out.iterdir()))):
            raise OutputError(f"{out}: is no capture, so it is not replaced")
    folder = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        made = folder / "capture"
        made.mkdir()  # with the usual permissions; mkdtemp's are for us alone
        yield made
        if not out.exists():
            made.rename(out)
        else:
            for file in sorted(path for path in made.rglob("*") if path.is_file()):
                target = out / file.relative_to(made)
                target.parent.mkdir(exist_ok=True)
                file.replace(target)
    except OutputError as error:  # names a file of the temporary folder
        raise OutputError(f"{out}: {str(error).rpartition(': ')[2]}") from None
    except OSError as error:
        raise OutputError(f"{out}: {error.strerror or error}") from None
    finally:
        if folder is not None:
            with suppress(OSError):
                shutil.rmtree(folder)
