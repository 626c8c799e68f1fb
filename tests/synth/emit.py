"""A run written as a Kineto document, and documents as JSON with exact digits."""

from __future__ import annotations

import json
import random
from typing import Any

from synth.actions import KERNEL, MEMCPY, Scenario
from synth.engine import Mark, Run, Wait, simulate

Doc = dict[str, Any]

CATEGORIES = {KERNEL: "kernel", MEMCPY: "gpu_memcpy"}  # anything else is a memset


class Us(float):
    """Microseconds that remember their ns: json.dumps prints a double, `to_json` the exact digits."""

    ns: int

    def __new__(cls, ns: int) -> Us:
        self = super().__new__(cls, ns / 1000)
        self.ns = ns
        return self

    def __reduce__(self) -> tuple[type[Us], tuple[int]]:
        return Us, (self.ns,)

    @property
    def text(self) -> str:
        sign, ns = ("-", -self.ns) if self.ns < 0 else ("", self.ns)
        return f"{sign}{ns // 1000}.{ns % 1000:03d}"


def to_json(doc: Doc | list[Any]) -> bytes:
    """The document as Kineto prints it: times as `us.nnn`, exact to the ns."""
    return _text(doc).encode()


def _text(value: Any) -> str:
    if isinstance(value, Us):
        return value.text
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)}: {_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",\n".join(_text(v) for v in value) + "]"
    return json.dumps(value)


def to_doc(source: Scenario | Run, *, flows: bool = False, extras: bool = True) -> Doc:
    """A Kineto-like document: `flows` adds the ac2g arrows, `extras` rows that are no work of anybody
    (gpu_user_annotation, the profiler's own span, metadata).
    """
    run = source if isinstance(source, Run) else simulate(source)
    s = run.scenario
    events = [*(_host_row(run, m) for m in run.marks), *_gpu_rows(run)]
    events += [_sync_row(run, w) for w in recorded_waits(run)]
    if flows:
        events += _flow_rows(run)
    if extras:
        events = [*_metadata_rows(run), *events, *_extra_rows(run)]
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": s.device, "name": "NVIDIA H200"}],
        "distributedInfo": {"backend": "nccl", "rank": s.rank, "world_size": s.world_size},
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": s.base,
        "traceEvents": events,
    }


def _row(cat: str, name: str, pid: Any, tid: Any, start: Us, dur: int, args: Doc) -> Doc:
    where: Doc = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid}
    return {**where, "ts": start, "dur": Us(dur), "args": args}


def _overhead_row(s: Scenario, name: str, start: int, dur: int) -> Doc:
    row = _row("overhead", name, -1, 0, Us(start - s.base), dur, {})
    del row["args"]
    return row


def _host_row(run: Run, m: Mark) -> Doc:
    s = run.scenario
    if m.layer == "profiler":
        return _overhead_row(s, m.name, m.start, m.end - m.start)
    cat, args = {"framework": "cpu_op", "call": "cuda_runtime"}.get(m.layer, "user_annotation"), {}
    if m.call is not None:
        cat = "cuda_driver" if m.name.startswith("cu") and not m.name.startswith("cuda") else cat
        args = {"cbid": 0, "correlation": m.call.correlation}
    tid = s.programs[m.thread].tid
    return _row(cat, m.name, s.pid, tid, Us(m.start - s.base), m.end - m.start, args)


def _gpu_rows(run: Run) -> list[Doc]:
    s, rows = run.scenario, []
    for o in run.ops:
        args: Doc = {"device": s.device, "context": 1, "stream": o.stream, "correlation": o.call.correlation}
        if o.bytes >= 0:
            args["bytes"] = o.bytes
        if o.node >= 0:
            args |= {"graph id": 1, "graph node id": o.node}
        cat = CATEGORIES.get(o.kind, "gpu_memset")
        rows.append(_row(cat, o.name, s.device, o.stream, Us(o.start - s.base), o.end - o.start, args))
    return rows


def recorded_waits(run: Run) -> list[Wait]:
    """The waits of which CUPTI keeps a record: not copies, not polling."""
    if not run.scenario.sync_records:
        return []
    return [*(w for w in run.waits if w.kind in ("explicit", "alloc")), *run.stream_waits]


def wait_name(w: Wait) -> str:
    if w.kind == "stream":
        return "Stream Wait Event"
    names = {"cudaEventSynchronize": "Event Sync", "cudaStreamSynchronize": "Stream Sync"}
    return names.get(w.call.name, "Context Sync")


def _sync_row(run: Run, w: Wait) -> Doc:
    """A `cuda_sync` row. Its `stream` waits, or is waited for; it is -1 for events and the device."""
    s, name = run.scenario, wait_name(w)
    stream = -1 if name == "Event Sync" else w.stream
    args: Doc = {"cuda_sync_kind": name, "stream": stream, "correlation": w.call.correlation}
    if name in ("Stream Wait Event", "Event Sync"):
        args["wait_on_stream"] = run.event_streams.get(w.record, -1)
        args["wait_on_cuda_event_record_corr_id"] = w.record
        args["wait_on_cuda_event_id"] = 1
    args |= {"device": s.device, "context": 1}
    tid = stream + 1_000_000 if stream >= 0 else stream
    return _row("cuda_sync", name, s.device, tid, Us(w.start - s.base), w.end - w.start, args)


def _arrow(phase: str, correlation: int, pid: int, tid: int, ts: Us) -> Doc:
    where: Doc = {"ph": phase, "id": correlation, "pid": pid, "tid": tid, "ts": ts}
    return {**where, "cat": "ac2g", "name": "ac2g"}


def _flow_rows(run: Run) -> list[Doc]:
    s, rows = run.scenario, []
    for o in run.ops:
        at = Us(o.start - s.base)
        rows.append(_arrow("f", o.call.correlation, s.device, o.stream, at) | {"bp": "e"})
    for c in {o.call.correlation: o.call for o in run.ops if not o.call.lost}.values():
        tid = s.programs[c.thread].tid
        rows.append(_arrow("s", c.correlation, s.pid, tid, Us(c.start - s.base)))
    return rows


def _metadata_rows(run: Run) -> list[Doc]:
    s, ts = run.scenario, Us(run.scenario.origin)
    rows: list[Doc] = [
        {"ph": "M", "name": "process_name", "pid": s.pid, "tid": 0, "ts": ts, "args": {"name": "python"}}
    ]
    for p in s.programs:
        name = f"thread {p.tid} ({p.name})"
        rows.append(
            {"ph": "M", "name": "thread_name", "pid": s.pid, "tid": p.tid, "ts": ts, "args": {"name": name}}
        )
    return rows


def window_of(run: Run) -> tuple[int, int]:
    """The profiler's own span: from 1 µs before the origin to 1 µs after the last event."""
    return run.scenario.base + run.scenario.origin - 1_000, run.end + 1_000


def _extra_rows(run: Run) -> list[Doc]:
    s = run.scenario
    rows = [
        _row("gpu_user_annotation", m.name, s.device, 7, Us(m.start - s.base), m.end - m.start, {})
        for m in run.marks
        if m.layer == "span"
    ]
    lo, hi = window_of(run)
    name = "PyTorch Profiler (0)"
    rows.append(_row("Trace", name, "Spans", "PyTorch Profiler", Us(lo - s.base), hi - lo, {"Op count": 0}))
    return rows


def permuted(doc: Doc, rng: random.Random) -> Doc:
    """The same document with its events in another order."""
    events = list(doc["traceEvents"])
    rng.shuffle(events)
    return {**doc, "traceEvents": events}


def shifted(doc: Doc, ns: int) -> Doc:
    """The same document with every time `ns` later (its base stays)."""
    events = [{**e, "ts": Us(e["ts"].ns + ns)} for e in doc["traceEvents"]]
    return {**doc, "traceEvents": events}
