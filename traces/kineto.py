"""Kineto traces (PyTorch profiler) as `Trace` columns.

Timestamps become absolute int64 ns, exactly as written. Layout of the files: Kineto's `output_json.cpp`
and `CuptiActivity.cpp`; merged files of several ranks as SGLang writes them, pids labelled "[TP00] 4000".
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from latencylab.model.integrity import InputError
from latencylab.model.trace import Trace
from latencylab.traces.assemble import assemble
from latencylab.traces.columns import Collector
from latencylab.traces.decode import EventReader
from latencylab.traces.header import Header, NoTraceError
from latencylab.traces.inflate import MAX_BYTES, read_blocks

_IN_NAME = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (r"rank[-_.]?(\d{1,6})", r"(?<![a-z])tp[-_]?(\d{1,6})", r"worker[-_]?(\d{1,6})")
)
_PART = re.compile(r"([A-Z]+)(\d{1,6})")


def read_kineto(path: Path, *, max_bytes: int = MAX_BYTES) -> tuple[Trace, ...]:
    """One Trace per rank and device in the file, sorted by both; gzip is told by its magic bytes.

    Damage is repaired where it can be and reported in `Trace.issues`: of the file as a whole on the first
    trace, else on the trace concerned. Gzip that inflates to over `max_bytes` is refused. Raises InputError
    with one line for whatever holds no trace with GPU activity.
    """
    notes: Counter[str] = Counter()
    collector = Collector()
    reader = EventReader(read_blocks(path, max_bytes, notes), notes)
    try:
        for events in reader:
            collector.add(events)
    except NoTraceError as error:
        raise InputError(f"{path}: {error}") from None
    header = Header.of(reader.keys, notes)
    active = {label: rank for label, rank in collector.ranks.items() if "gpu" in rank.tables}
    if not active:
        raise InputError(f"{path}: no GPU activity: {_what_lacks(collector, notes)}")
    details: dict[str, str] = {}
    numbers = _rank_numbers(sorted(active), header, path, notes, details)
    labels = sorted(active, key=numbers.__getitem__)
    world = header.world_size
    if world is not None and (len(labels) > world or numbers[labels[-1]] >= world):
        notes["world_size"] += 1
        details["world_size"] = f": {len(labels)} in the file, up to rank {numbers[labels[-1]]}, of {world}"
    first = active[labels[0]].notes
    first += notes
    for label, rank in collector.ranks.items():
        if label not in active:
            first += rank.notes
    names = tuple(collector.names)
    traces: list[Trace] = []
    for label in labels:
        traces += assemble(active.pop(label), numbers[label], header, names, str(path), details)
    return tuple(traces)


def _rank_numbers(
    labels: list[str], header: Header, path: Path, notes: Counter[str], details: dict[str, str]
) -> dict[str, int]:
    """The rank of each label of pids: by the part of it that tells them apart, as "TP01" does."""
    numbers: dict[str, int] = {}
    if "" in labels:
        rank = header.rank
        if rank is None:
            named = next((m for pattern in _IN_NAME if (m := pattern.search(path.name))), None)
            rank = int(named[1]) if named else 0
            notes["rank_guessed"] += 1
            details["rank_guessed"] = f": {rank}, " + ("from the file's name" if named else "for want of any")
        numbers[""] = rank
    parts = {label: dict(_PART.findall(label)) for label in labels if label}
    kinds = {kind for found in parts.values() for kind in found}
    varying = [kind for kind in sorted(kinds) if len({found.get(kind) for found in parts.values()}) > 1]
    kind = varying[0] if varying else "TP"
    by_kind = {label: int(found.get(kind, 0)) for label, found in parts.items()}
    if len({*by_kind.values(), *numbers.values()}) == len(labels):
        return numbers | by_kind
    notes["rank_guessed"] += 1
    details["rank_guessed"] = f": {', '.join(parts)} were numbered in this order"
    free = (n for n in range(len(labels) + 1) if n not in numbers.values())
    return numbers | {label: next(free) for label in parts}


def _what_lacks(collector: Collector, notes: Counter[str]) -> str:
    """Why there is no GPU op, in words that say what to do about it."""
    tables = {name for rank in collector.ranks.values() for name in rank.tables}
    damage = notes + sum((rank.notes for rank in collector.ranks.values()), Counter())
    if damage["truncated"] or damage["corrupt_gzip"] or damage["dropped_event"]:
        return "the file is cut off or damaged, and no whole kernel is left"
    if "api" in tables:
        return "CUDA API calls but no kernel: recorded without CUDA activity on the GPU"
    if tables:
        return "host events alone: recorded without CUDA activity (ProfilerActivity.CUDA)"
    if collector.ranks and not damage["not_an_event"]:
        return "metadata alone"
    return "traceEvents is empty" if not damage else "no event in traceEvents can be read"
