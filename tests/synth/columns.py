"""A run as the columns that a reader would make of its document."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np

from latencylab.model.trace import (
    I32,
    I64,
    ApiCalls,
    GpuOps,
    HostEvents,
    Overhead,
    SyncRecords,
    Thread,
    Trace,
)
from synth.actions import Scenario
from synth.emit import recorded_waits, wait_name, window_of
from synth.engine import Call, Mark, Run, Wait, simulate

Timed = TypeVar("Timed", Call, Mark, Wait)


class _Names:
    def __init__(self) -> None:
        self.index: dict[str, int] = {}

    def column(self, names: Iterable[str]) -> I32:
        return np.array([self.index.setdefault(n, len(self.index)) for n in names], np.int32)


def _i64(values: Iterable[int]) -> I64:
    return np.array(list(values), np.int64)


def _ordered(rows: Iterable[Timed]) -> list[Timed]:
    return sorted(rows, key=lambda r: (r.start, -r.end))


def _times(rows: Iterable[Any]) -> tuple[I64, I64]:
    rows = list(rows)
    return _i64(r.start for r in rows), _i64(r.end for r in rows)


def _host_events(rows: list[Mark], names: _Names) -> HostEvents:
    thread = np.array([m.thread for m in rows], np.int32)
    return HostEvents(*_times(rows), thread, names.column(m.name for m in rows))


def _gpu(run: Run, names: _Names) -> GpuOps:
    ops = sorted(run.ops, key=lambda o: o.key)
    return GpuOps(
        *_times(ops),
        stream=_i64(o.stream for o in ops),
        correlation=_i64(o.call.correlation for o in ops),
        kind=np.array([o.kind for o in ops], np.uint8),
        name=names.column(o.name for o in ops),
        bytes=_i64(o.bytes for o in ops),
        graph_node=_i64(o.node for o in ops),
        group=np.full(len(ops), -1, np.int32),
    )


def _api(run: Run, names: _Names) -> ApiCalls:
    calls = _ordered(c for c in run.calls if not c.lost)
    return ApiCalls(
        *_times(calls),
        thread=np.array([c.thread for c in calls], np.int32),
        correlation=_i64(c.correlation for c in calls),
        name=names.column(c.name for c in calls),
    )


def _syncs(run: Run, names: _Names) -> SyncRecords:
    waits = _ordered(recorded_waits(run))
    return SyncRecords(
        *_times(waits),
        correlation=_i64(w.call.correlation for w in waits),
        stream=_i64(run.event_streams.get(w.record, w.stream) for w in waits),
        record_correlation=_i64(w.record for w in waits),
        name=names.column(wait_name(w) for w in waits),
    )


def _overhead(run: Run, names: _Names) -> Overhead:
    rows = _ordered(m for m in run.marks if m.layer == "profiler")
    return Overhead(*_times(rows), names.column(m.name for m in rows))


def to_trace(source: Scenario | Run) -> Trace:
    """The trace of a scenario or run, without a document between."""
    run = source if isinstance(source, Run) else simulate(source)
    s, names = run.scenario, _Names()
    gpu, api, syncs, overhead = _gpu(run, names), _api(run, names), _syncs(run, names), _overhead(run, names)
    ops = _host_events(_ordered(m for m in run.marks if m.layer == "framework"), names)
    spans = _host_events(_ordered(m for m in run.marks if m.layer in ("span", "gc")), names)
    frames = _host_events([], names)
    threads = tuple(Thread(str(s.pid), str(p.tid), f"thread {p.tid} ({p.name})") for p in s.programs)
    return Trace(
        rank=s.rank,
        device=s.device,
        names=tuple(names.index),
        threads=threads,
        gpu=gpu,
        api=api,
        ops=ops,
        spans=spans,
        frames=frames,
        syncs=syncs,
        overhead=overhead,
        device_name="NVIDIA H200",
        world_size=s.world_size,
        window=window_of(run),
    )
