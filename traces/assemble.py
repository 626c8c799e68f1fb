"""Joined columns to one `Trace` per device, with the repairs that need whole columns."""

from __future__ import annotations

from collections import Counter

import numpy as np

from latencylab.model.trace import (
    I64,
    MISSING,
    ApiCalls,
    Bool,
    GpuOps,
    HostEvents,
    Overhead,
    SyncRecords,
    Thread,
    Trace,
)
from latencylab.traces.columns import DAY, RankEvents
from latencylab.traces.header import Header
from latencylab.traces.issues import to_issues

Columns = dict[str, I64]
_GPU = ("start", "end", "stream", "correlation", "kind", "name", "bytes", "graph_node", "group", "device")
_HOST = ("start", "end", "thread", "name")
_TABLES = {
    "gpu": _GPU,
    "api": (*_HOST, "correlation"),
    "ops": _HOST,
    "spans": _HOST,
    "frames": _HOST,
    "syncs": ("start", "end", "correlation", "stream", "record_correlation", "name", "device"),
    "overhead": ("start", "end", "name"),
}
_EPOCH_NS = 10**18  # September 2001; times relative to a base, which is at most 91 days old, are far below
_MAX_OVERLAP = 1_000_000  # ns by which an op may outlast the next launch on its stream


def assemble(
    events: RankEvents,
    rank: int,
    header: Header,
    names: tuple[str, ...],
    path: str,
    details: dict[str, str],
) -> list[Trace]:
    """The rank's traces in order of device; empties `events`. `details` adds words to issues, by code.

    Repairs of host tables are noted on the first trace alone, those of GPU ops on that of their device.
    """
    notes = events.notes
    stacks = header.stacks or "frames" in events.tables
    tables = {name: _join(events, name) for name in _TABLES}
    gpu = tables.pop("gpu")
    middle = int(np.median(gpu["start"]))
    base = 0 if middle >= _EPOCH_NS else header.base
    if base is None:
        base = 0
        notes["no_base_time"] += 1
    window = None
    if events.spans_end is not None:
        begin = int(gpu["start"].min()) if events.spans_start is None else events.spans_start
        window = (begin + base, events.spans_end + base)
    # Traces in whole microseconds hold rows that differ in truth and are equal as written.
    fine = bool(np.any(gpu["start"] % 1000))
    for name, table in tables.items():
        table = _near(table, middle, notes)
        order = np.lexsort((-table["end"], table["start"]))
        table = {key: column[order] for key, column in table.items()}
        if fine:
            table = _without(table, _repeated(table), notes, "duplicate_event")
        tables[name] = _moved(table, base)
    threads = tuple(Thread(*key, events.thread_names.get(key, "")) for key in events.threads)
    traces = []
    devices = np.unique(gpu["device"]).tolist()
    for device in devices:
        own = notes if device == devices[0] else Counter[str]()
        rows = {key: column[gpu["device"] == device] for key, column in gpu.items()}
        rows = _moved(_clean_gpu(_near(rows, middle, own), fine, own), base)
        traces.append(
            Trace(
                rank=rank,
                device=device,
                names=names,
                threads=threads,
                gpu=_gpu_ops(rows),
                api=_api_calls(tables["api"]),
                ops=_host_events(tables["ops"]),
                spans=_host_events(tables["spans"]),
                frames=_host_events(tables["frames"]),
                syncs=_sync_records(tables["syncs"], device),
                overhead=Overhead(*_times(tables["overhead"]), tables["overhead"]["name"].astype(np.int32)),
                device_name=header.devices.get(device, ""),
                world_size=header.world_size,
                stacks=stacks,
                shapes=header.shapes or events.shapes,
                path=path,
                versions=header.versions,
                issues=to_issues(own, details),
                window=window,
                groups={name: ranks for name, ranks in header.groups.items() if rank in ranks},
            )
        )
    return traces


def _join(events: RankEvents, name: str) -> Columns:
    pieces = events.tables.pop(name, {})
    return {key: np.concatenate((np.empty(0, np.int64), *pieces.pop(key, []))) for key in _TABLES[name]}


def _without(columns: Columns, rows: Bool, notes: Counter[str], code: str) -> Columns:
    if not rows.any():
        return columns
    notes[code] += int(rows.sum())
    return {key: column[~rows] for key, column in columns.items()}


def _near(columns: Columns, middle: int, notes: Counter[str]) -> Columns:
    return _without(columns, np.abs(columns["start"] - middle) > DAY, notes, "far_timestamp")


def _moved(columns: Columns, base: int) -> Columns:
    return columns | {key: columns[key] + base for key in ("start", "end")}


def _repeated(columns: Columns) -> Bool:
    """True for rows that equal an earlier one in all columns, given rows sorted by start."""
    repeated = np.zeros(len(columns["start"]), np.bool_)
    tied = columns["start"][1:] == columns["start"][:-1]
    rows = np.flatnonzero(np.concatenate((tied, [False])) | np.concatenate(([False], tied)))
    if len(rows):
        values = np.stack([column[rows] for column in columns.values()])
        order = np.lexsort(values[::-1])  # stable: the first of equals stays first
        same = np.all(values[:, order[1:]] == values[:, order[:-1]], axis=0)
        repeated[rows[order[1:][same]]] = True
    return repeated


def _clean_gpu(columns: Columns, fine: bool, notes: Counter[str]) -> Columns:
    """Sorted, without exact duplicates, no op lasting far beyond the next launch on its stream."""
    order = np.lexsort([columns[key] for key in ("graph_node", "correlation", "stream", "start")])
    columns = {key: column[order] for key, column in columns.items()}
    repeated = _repeated(columns)
    if not fine:
        repeated &= columns["end"] > columns["start"]
    columns = _without(columns, repeated, notes, "duplicate_op")
    order = np.lexsort((columns["start"], columns["stream"]))
    start, stream, correlation = (columns[key][order] for key in ("start", "stream", "correlation"))
    # Ops of one graph launch may run side by side on one stream number; launches follow one another.
    turns = (stream[1:] != stream[:-1]) | (correlation[1:] != correlation[:-1]) | (correlation[1:] == MISSING)
    turns_at = np.append(np.flatnonzero(turns) + 1, len(order))
    follower = turns_at[np.searchsorted(turns_at, np.arange(len(order)), side="right")]
    has_next = follower < len(order)
    follower = np.minimum(follower, len(order) - 1)
    has_next &= stream[follower] == stream
    # Under programmatic dependent launch the next one may start long before this one ends, while a collective
    # waits for a peer, but it cannot end long before.
    end = columns["end"][order]
    over = has_next & (end > end[follower] + _MAX_OVERLAP)
    if over.any():
        notes["clipped_duration"] += int(over.sum())
        columns["end"][order[over]] = start[follower[over]]
    return columns


def _times(columns: Columns) -> tuple[I64, I64]:
    return columns["start"], columns["end"]


def _gpu_ops(columns: Columns) -> GpuOps:
    return GpuOps(
        *_times(columns),
        stream=columns["stream"],
        correlation=columns["correlation"],
        kind=columns["kind"].astype(np.uint8),
        name=columns["name"].astype(np.int32),
        bytes=columns["bytes"],
        graph_node=columns["graph_node"],
        group=columns["group"].astype(np.int32),
    )


def _api_calls(columns: Columns) -> ApiCalls:
    return ApiCalls(
        *_times(columns),
        thread=columns["thread"].astype(np.int32),
        correlation=columns["correlation"],
        name=columns["name"].astype(np.int32),
    )


def _host_events(columns: Columns) -> HostEvents:
    return HostEvents(
        *_times(columns), thread=columns["thread"].astype(np.int32), name=columns["name"].astype(np.int32)
    )


def _sync_records(columns: Columns, device: int) -> SyncRecords:
    """Those of this device, and those that name none."""
    rows = (columns["device"] == device) | (columns["device"] == MISSING)
    return SyncRecords(
        columns["start"][rows],
        columns["end"][rows],
        correlation=columns["correlation"][rows],
        stream=columns["stream"][rows],
        record_correlation=columns["record_correlation"][rows],
        name=columns["name"][rows].astype(np.int32),
    )
