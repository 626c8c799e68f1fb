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

# What names a rank in a file's name, the surest first: SGLang's own form may follow a prefix of the user's.
_IN_NAME = (
    re.compile(r"-(TP)-(\d{1,6})(?=[-.])"),
    re.compile(r"(rank)[-_.]?(\d{1,6})", re.IGNORECASE),
    re.compile(r"(?<![a-z])(tp)[-_]?(\d{1,6})", re.IGNORECASE),
    re.compile(r"(worker)[-_]?(\d{1,6})", re.IGNORECASE),
)
_NOT_FIRST = re.compile(r"(?<![a-z])(dp|pp)[-_]?0*([1-9]\d{0,5})", re.IGNORECASE)  # a replica or stage
_PART = re.compile(r"([A-Z]+)(\d{1,6})")
_OUTERMOST_FIRST = ("PP", "DP", "TP")


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
    traces = [trace for trace in traces if len(trace.gpu)]
    if not traces:
        raise InputError(f"{path}: no GPU activity whose times can be used")
    return tuple(traces)


def _rank_numbers(
    labels: list[str], header: Header, path: Path, notes: Counter[str], details: dict[str, str]
) -> dict[str, int]:
    """The rank of each label of pids: by the part of it that tells them apart, "TP01" before others."""
    numbers: dict[str, int] = {}
    if "" in labels:
        rank = header.rank
        if rank is None:
            rank, why = _rank_in_name(path.name)
            notes["rank_guessed"] += 1
            details["rank_guessed"] = f": {rank}, {why}"
        numbers[""] = rank
    parts = {label: dict(_PART.findall(label)) for label in labels if label}
    for kind in ("TP", *sorted({kind for found in parts.values() for kind in found} - {"TP"})):
        by_kind = {label: int(found.get(kind, 0)) for label, found in parts.items()}
        if len({*by_kind.values(), *numbers.values()}) < len(labels):
            continue
        others = [k for k in _OUTERMOST_FIRST if k != kind and any(int(p.get(k, 0)) for p in parts.values())]
        if others:
            notes["rank_guessed"] += 1
            details["rank_guessed"] = f": numbered by {kind}, though not all are 0 in {' and '.join(others)}"
        return numbers | by_kind
    order = sorted(parts, key=lambda label: [int(parts[label].get(kind, 0)) for kind in _OUTERMOST_FIRST])
    notes["rank_guessed"] += 1
    details["rank_guessed"] = f": {', '.join(order)} were numbered in this order"
    free = (n for n in range(len(labels) + 1) if n not in numbers.values())
    return numbers | {label: next(free) for label in order}


def _rank_in_name(name: str) -> tuple[int, str]:
    """The rank that a file's name tells, and where from. In a job of several dimensions that may be the place
    in one of them alone.
    """
    found = next((all_[-1] for pattern in _IN_NAME if (all_ := [*pattern.finditer(name)])), None)
    if found is None:
        return 0, "for want of any"
    others = [m[1].upper() + m[2] for m in _NOT_FIRST.finditer(name)]
    if found[1].lower() != "tp":  # counted over the stages of a pipeline too
        others = [part for part in others if not part.startswith("PP")]
    also = f" by {found[1]} alone, though it is {' '.join(others)} too" if others else ""
    return int(found[2]), f"from the file's name{also}"


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
