"""The history: one run of each capture that was added, kept on disk for the gate and the site.

A history is a folder. `runs/` holds one file a run: a zip of `run.json` (what the run is and its figures),
`analysis.json` (the analysis by the output contract) and `report.html`; `assets/` holds each plotly.js that
a report asks for, once. There is no index: what is in `runs/` is the history.

A run's file is written under another name and then linked to its own, which is made of what was measured. So
it is there whole or not at all, whatever happens meanwhile; runs added at the same time do not meet; and a
capture that is there already is found to be.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import math
import os
import secrets
import statistics
import time
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np

from latencylab.model.capture import Capture
from latencylab.model.gate import Run, run_from_dict, run_to_dict
from latencylab.model.integrity import InputError, OutputError

SCHEMA = "latencylab.history/1"
_RUNS, _ASSETS = "runs", "assets"
_SUFFIX, _UNFINISHED = ".zip", ".tmp"
_RUN, _ANALYSIS, _REPORT = "run.json", "analysis.json", "report.html"
_LEFTOVER_S = 3600.0  # an unfinished file this old belongs to no living writer
_ID_DIGITS = 16
# What a file system says that has no hard links.
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
# A member larger than this was not written by `add`.
_MOST_BYTES = 64_000_000
# The robust spread of neighbours: three quarters of a normal distribution lie within so many standard
# deviations. A quantile above the median wastes less of few runs, and still bears one odd pair in five.
_SHARE, _WITHIN = 0.75, statistics.NormalDist().inv_cdf(0.875)
_FEWEST_NEIGHBOURS = 8
_FEWEST_REPEATS = 8  # runs of a commit after its first, over all commits


@dataclass(frozen=True, slots=True)
class Record:
    """One run of the history.

    `id` is made of what was measured (see `fingerprint`). `date` is the commit's time, else that of the
    capture, else that of adding, ISO 8601; `added_ns` is epoch ns. `front` is the number of the rank that
    the verdict speaks of. `calibration` is the analysis's, by the output contract. `plotly` names the file
    of plotly.js that the report asks for.
    """

    id: str
    config: str
    commit: str | None
    message: str
    date: str
    added_ns: int
    run: Run
    verdict: str = ""
    confidence: str = ""
    gpu: str = ""
    front: int = 0
    calibration: dict[str, Any] | None = None
    plotly: str = ""

    @property
    def step_ms(self) -> float | None:
        """Mean ms per step over the unprofiled requests, the geometric one; None without requests."""
        values = self.run.requests_step_ms
        return statistics.geometric_mean(values) if values else None


@dataclass(frozen=True, slots=True)
class History:
    """The runs in one folder."""

    folder: Path

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The history that is there. Raises InputError where there is none."""
        if not (folder / _RUNS).is_dir():
            raise InputError(f"{folder}: no history of runs; 'latencylab site add' begins one")
        return cls(folder)

    @classmethod
    def create(cls, folder: Path) -> Self:
        """The history in this folder, which is made where there is none. Raises OutputError."""
        with _writing(folder):
            for name in (_RUNS, _ASSETS):
                (folder / name).mkdir(parents=True, exist_ok=True)
        return cls(folder)

    def find(self, run_id: str) -> Record | None:
        """The run of this id, or None. Raises InputError where it cannot be read."""
        path = self._place(run_id)
        return _read(path) if path.exists() else None

    def add(
        self, record: Record, analysis: dict[str, Any], report: str, *, plotly: str, replacing: bool = False
    ) -> bool:
        """Store a run with its analysis and report; `plotly` is the text of `record.plotly`.

        False where the capture is there already: that run stays as it was, unless `replacing`. Raises
        InputError where it could not be read again, or OutputError; then the run is not there.
        """
        place = self._place(record.id)
        members = _members(record, analysis, report)
        with _writing(place):
            self._sweep()
            self._keep_asset(record.plotly, plotly)
            unfinished = self._unfinished(place)
            try:
                _write(unfinished, members)
                if replacing:
                    unfinished.replace(place)
                else:
                    _move_new(unfinished, place)
            except FileExistsError:
                return False
            finally:
                unfinished.unlink(missing_ok=True)
            _settle(place.parent)
        return True

    def runs(self, config: str | None = None) -> tuple[Record, ...]:
        """All runs, or those of one configuration, in order of the commits' time, then of adding.

        Raises InputError where one cannot be read or is of another schema.
        """
        try:
            paths = [p for p in (self.folder / _RUNS).iterdir() if p.suffix == _SUFFIX]
        except OSError as error:
            raise InputError(f"{self.folder}: {error.strerror or error}") from None
        records = [_read(path) for path in paths]
        chosen = [r for r in records if config is None or r.config == config]
        return tuple(sorted(chosen, key=lambda r: (datetime.fromisoformat(r.date), r.added_ns, r.id)))

    def spread_pct(self, config: str) -> float | None:
        """How much ms per step differs from run to run where nothing was changed: a standard deviation in %.

        Between runs of one commit, pooled over all commits that have several, where there are enough of
        these repeats: a few that happen to agree would mislead. Else from the differences of neighbouring
        runs (von Neumann, 1941, "Distribution of the ratio of the mean square successive difference to the
        variance"), by a quantile, so that a few commits that changed something hardly count. None where
        there are too few runs to tell.
        """
        return spread_pct(self.runs(config))

    def analysis(self, record: Record) -> dict[str, Any]:
        """A run's analysis by the output contract. Raises InputError."""
        path = self._place(record.id)
        found = _json(str(path), _member(path, _ANALYSIS))
        if not isinstance(found, dict):
            raise InputError(f"{path}: its analysis is no JSON object")
        return found

    def report(self, record: Record) -> bytes:
        """A run's report, as UTF-8 HTML. Raises InputError."""
        return _member(self._place(record.id), _REPORT)

    def asset(self, name: str) -> bytes:
        """A file that reports ask for. Raises InputError."""
        path = self.folder / _ASSETS / _plain_name(name)
        try:
            return path.read_bytes()
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}") from None

    def _place(self, run_id: str) -> Path:
        return self.folder / _RUNS / (_plain_name(run_id) + _SUFFIX)

    def _keep_asset(self, name: str, text: str) -> None:
        place = self.folder / _ASSETS / _plain_name(name)
        if place.exists():
            return
        unfinished = self._unfinished(place)
        try:
            _write_durably(unfinished, text.encode())
            unfinished.replace(place)
        finally:
            unfinished.unlink(missing_ok=True)
        _settle(place.parent)

    @staticmethod
    def _unfinished(place: Path) -> Path:
        return place.with_name(f"{place.name}.{os.getpid()}-{secrets.token_hex(4)}{_UNFINISHED}")

    def _sweep(self) -> None:
        """Remove what writers left that were killed."""
        oldest = time.time() - _LEFTOVER_S
        for path in itertools.chain.from_iterable(
            (self.folder / name).glob(f"*{_UNFINISHED}") for name in (_RUNS, _ASSETS)
        ):
            try:
                if path.stat().st_mtime < oldest:
                    path.unlink()
            except FileNotFoundError:  # another process swept it
                continue


def fingerprint(capture: Capture) -> str:
    """An id of what a capture measured: the same wherever it lies and however its files were packed."""
    digest = hashlib.sha256()
    for trace in capture.traces:
        digest.update(f"rank {trace.rank} device {trace.device}".encode())
        for column in (trace.gpu.start, trace.gpu.end, trace.api.start, trace.api.end):
            digest.update(len(column).to_bytes(8, "little"))
            digest.update(np.ascontiguousarray(column, "<i8").tobytes())
    for request in capture.unprofiled.requests if capture.unprofiled else ():
        digest.update(repr((request.start_ns, request.chunks)).encode())
    return digest.hexdigest()[:_ID_DIGITS]


def spread_pct(records: tuple[Record, ...]) -> float | None:
    """What `History.spread_pct` says, of these runs of one configuration, in their order."""
    logs: dict[str, list[float]] = defaultdict(list)
    order: list[float] = []
    for record in records:
        if record.step_ms is not None:
            order.append(math.log(record.step_ms))
            if record.commit is not None:
                logs[record.commit].append(order[-1])
    repeats = sum(len(values) - 1 for values in logs.values())
    if repeats >= _FEWEST_REPEATS:
        squares = sum((value - statistics.fmean(its)) ** 2 for its in logs.values() for value in its)
        return 100 * math.sqrt(squares / repeats)
    steps = [abs(after - before) for before, after in itertools.pairwise(order)]
    if len(steps) < _FEWEST_NEIGHBOURS:
        return None
    return 100 * float(np.quantile(steps, _SHARE)) / _WITHIN / math.sqrt(2)


class _Stored(msgspec.Struct, kw_only=True):
    """`run.json`; more keys are allowed."""

    id: str
    config: str
    commit: str | None
    message: str
    date: str
    added_ns: int
    run: dict[str, Any]
    verdict: str
    confidence: str
    gpu: str
    front: int
    calibration: dict[str, Any] | None
    plotly: str


def _members(record: Record, analysis: dict[str, Any], report: str) -> dict[str, bytes]:
    """What a run's file holds. Raises InputError where it could not be read again."""
    plain = {"schema": SCHEMA, **msgspec.to_builtins(record), "run": run_to_dict(record.run)}
    try:
        members = {_RUN: _to_json(plain), _ANALYSIS: _to_json(analysis)}
    except ValueError as error:  # a NaN
        raise InputError(f"run {record.id} cannot be stored: {error}") from None
    _decoded(members[_RUN], f"run {record.id} cannot be stored")
    return {**members, _REPORT: report.encode("utf-8", "backslashreplace")}


def _write(path: Path, members: dict[str, bytes]) -> None:
    with path.open("xb") as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as packed:
            for name, data in members.items():
                packed.writestr(name, data)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path) -> Record:
    record = _decoded(_member(path, _RUN), str(path))
    if record.id != path.stem:
        raise InputError(f"{path}: holds the run {record.id!r}, not that of its name")
    return record


def _decoded(text: bytes, what: str) -> Record:
    """The record in a `run.json`. Raises InputError, which says what it is."""
    data = _json(what, text)
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise InputError(
            f"{what}: a run of schema {schema!r} is not known to this version, which reads {SCHEMA!r}"
        )
    try:
        stored = msgspec.convert(data, _Stored)
        record = Record(**{**msgspec.structs.asdict(stored), "run": run_from_dict(stored.run)})
        when = datetime.fromisoformat(record.date)
        _plain_name(record.plotly)
    except (InputError, ValueError) as error:
        raise InputError(f"{what}: {error}") from None
    return record if when.tzinfo else replace(record, date=when.replace(tzinfo=UTC).isoformat())


def _member(path: Path, name: str) -> bytes:
    """One member of a run's file; its checksum is compared."""
    try:
        with zipfile.ZipFile(path) as packed:
            if packed.getinfo(name).file_size > _MOST_BYTES:
                raise InputError(f"{path}: its {name} is larger than {_MOST_BYTES:,} bytes")
            return packed.read(name)
    except KeyError:
        raise InputError(f"{path}: no {name} in it") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise InputError(f"{path}: not a run of a history, or damaged: {error}") from None


def _json(what: str, data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what}: {error}") from None


def _to_json(data: dict[str, Any]) -> bytes:
    return json.dumps(data, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace")


def _plain_name(name: str) -> str:
    """The name, which must be a file's and lead nowhere. Raises InputError."""
    if not name or name.startswith(".") or name != Path(name).name or "\0" in name or "\\" in name:
        raise InputError(f"{name!r} is no name of a file in a history")
    return name


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _move_new(unfinished: Path, place: Path) -> None:
    """Give a file its own name, unless another has it. Raises FileExistsError."""
    try:
        os.link(unfinished, place)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if place.exists():
            raise FileExistsError from None
        unfinished.replace(place)  # who comes second here replaces a capture with itself


def _settle(folder: Path) -> None:
    """Let a folder's new names outlive a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _writing(what: object) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {what}: {error.strerror or error}") from error
