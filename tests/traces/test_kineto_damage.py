"""Damage at random: never an exception but InputError, and never other numbers without a word.

What can be told is told: whatever is no valid JSON, names a field twice, repeats an event, lacks a field
or has one of a wrong type. A changed digit within a valid number cannot be.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latencylab.model.integrity import InputError
from latencylab.model.trace import Table, Trace
from latencylab.traces import inflate

if TYPE_CHECKING:
    from conftest import Kineto

Fields = dict[str, Any]
Rows = list[tuple[Any, ...]]
EXAMPLES = settings(max_examples=100, deadline=None)
STRUCTURE = '{}[]",:\\'
NUMBERS = ("ts", "dur")
ODD: tuple[Any, ...] = (
    None,
    True,
    [],
    {},
    [1, {"a": 2}],
    "not a number",
    float("nan"),
    float("-inf"),
    10**30,
    -(10**400),
)
ODD_TEXT: tuple[Any, ...] = (None, True, 5, [], {}, 10**30, float("nan"))


def rows_of(traces: tuple[Trace, ...]) -> Rows:
    """All rows of all tables with names and threads spelt out, in one order."""
    found: Rows = []
    for trace in traces:
        for table in ("gpu", "api", "ops", "spans", "frames", "syncs", "overhead"):
            columns: Table = getattr(trace, table)
            for i in range(len(columns)):
                row: list[Any] = [trace.rank, trace.device, table]
                for field in columns.__dataclass_fields__:
                    value = int(getattr(columns, field)[i])
                    if field == "name":
                        row.append(trace.names[value])
                    elif field == "thread":
                        row += (trace.threads[value].process, trace.threads[value].thread)
                    else:
                        row.append(value)
                found.append(tuple(row))
    return sorted(found, key=repr)


def sample(kineto: Kineto) -> list[Fields]:
    """A few of every kind of event."""
    events: list[Fields] = []
    for kind, event in (("process_name", "python"), ("thread_name", "main")):
        events.append(
            {"ph": "M", "name": kind, "pid": 100, "tid": 7, "ts": 4909914216204.0, "args": {"name": event}}
        )
    for i in range(6):
        at = 4_909_914_216_300.125 + 20 * i
        flow = {"ph": "s", "id": 50 + i, "pid": 100, "tid": 7, "ts": at, "cat": "ac2g", "name": "ac2g"}
        events.append(kineto.op("aten::add", at, 9.5))
        events.append(kineto.op(f"step[{i}]", at - 1.25, 15.5) | {"cat": "user_annotation"})
        events.append(kineto.op("run(12)", at - 1.5, 15.75) | {"cat": "python_function"})
        events.append(kineto.call("cudaLaunchKernel", at + 1, 3.25, 50 + i))
        events.append(flow)
        events.append(
            kineto.kernel(f"gemm<{i}>", at + 6, 4.5, 50 + i, **{"graph node id": 3, "grid": [1, 2]})
        )
        events.append(flow | {"ph": "f", "pid": 0, "ts": at + 6, "bp": "e"})
    copy = kineto.kernel("Memcpy DtoH (Device -> Pinned)", 4_909_914_216_450.5, 1.25, 90, bytes=16)
    events.append(copy | {"cat": "gpu_memcpy"})
    sync = kineto.kernel("Event Sync", 4_909_914_216_450.75, 2.5, 91, wait_on_stream=7)
    events.append(sync | {"cat": "cuda_sync", "tid": 1000007})
    events.append(kineto.op("Buffer Flush", 4_909_914_216_460.5, 8.5) | {"cat": "overhead", "pid": -1})
    return events


class Clean:
    def __init__(self, events: list[Fields], text: str, rows: Rows) -> None:
        self.events, self.text, self.rows = events, text, rows

    def __repr__(self) -> str:
        return "clean"  # a failing example would show all of it


@pytest.fixture(scope="module")
def clean(kineto: Kineto) -> Clean:
    events = sample(kineto)
    text = kineto.document(events)
    traces = kineto.read(text)
    assert kineto.issues(*traces) == {}
    return Clean(events, text, rows_of(traces))


def difference(found: Rows, wanted: Rows) -> list[str]:
    """The first few rows of either that the other lacks."""
    more, less = Counter(found), Counter(wanted)
    return [f"more: {row}" for row in (more - less)][:3] + [f"less: {row}" for row in (less - more)][:3]


def check(kineto: Kineto, text: str | bytes, rows: Rows, told: bool = True) -> None:
    """Reads a damaged file; where damage can be told, other rows need an issue."""
    for block in (inflate.BLOCK, 900):  # a small one cuts between and within events
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(inflate, "BLOCK", block)
            try:
                traces = kineto.read(text)
            except InputError:
                continue
        if told and not kineto.issues(*traces):
            assert difference(rows_of(traces), rows) == []


def is_json(text: bytes) -> bool:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    def unique(pairs: list[tuple[str, Any]]) -> Fields:
        if len(dict(pairs)) < len(pairs):
            raise ValueError(pairs)
        return dict(pairs)

    try:
        json.loads(text.decode(), parse_constant=refuse, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        return False
    return True


def flip(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def overwrite(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] = rng.randrange(256)


def delete(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 1, 2, 10, 100, 1000))]


def insert(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    data[at:at] = rng.choice((b"\x00", b"\xff", rng.choice(STRUCTURE).encode(), b"NaN", rng.randbytes(20)))


def repeat(data: bytearray, rng: random.Random) -> None:
    at, length = rng.randrange(len(data)), rng.choice((1, 5, 50, 500))
    data[at:at] = data[at : at + length]


def swap(data: bytearray, rng: random.Random) -> None:
    a, b = sorted(rng.randrange(len(data)) for _ in range(2))
    length = rng.randint(1, 60)
    data[a : a + length], data[b : b + length] = data[b : b + length], data[a : a + length]


DAMAGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    flip,
    overwrite,
    delete,
    insert,
    repeat,
    swap,
)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__)
@EXAMPLES
@given(seed=st.integers(0, 2**32), times=st.integers(1, 3))
def test_bytes(kineto: Kineto, clean: Clean, damage: Any, seed: int, times: int) -> None:
    text, rows = clean.text, clean.rows
    data, rng = bytearray(text.encode()), random.Random(seed)
    for _ in range(times):
        damage(data, rng)
    check(kineto, bytes(data), rows, told=not is_json(bytes(data)))


@EXAMPLES
@given(share=st.floats(0, 1))
def test_truncation(kineto: Kineto, clean: Clean, share: float) -> None:
    text, rows = clean.text, clean.rows
    check(kineto, text[: int(len(text) * share)], rows)


@EXAMPLES
@given(data=st.data())
def test_gzip(kineto: Kineto, clean: Clean, data: st.DataObject) -> None:
    text, rows = clean.text, clean.rows
    packed = bytearray(gzip.compress(text.encode(), mtime=0))
    if data.draw(st.booleans()):
        del packed[data.draw(st.integers(0, len(packed) - 1)) :]
    else:
        packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    check(kineto, bytes(packed), rows)


@EXAMPLES
@given(data=st.data())
def test_fields_of_odd_types(kineto: Kineto, clean: Clean, data: st.DataObject) -> None:
    events, rows = clean.events, clean.rows
    changed = [dict(event) for event in events]
    for event in data.draw(st.lists(st.sampled_from(changed), min_size=1, max_size=3, unique_by=id)):
        if "args" in event and data.draw(st.booleans()):
            key = data.draw(st.sampled_from(sorted(event["args"])))
            event["args"] = event["args"] | {key: data.draw(st.sampled_from(ODD))}
        else:
            key = data.draw(st.sampled_from(sorted(event)))
            values = ODD if key in NUMBERS else ODD_TEXT
            legal = {"pid": 5, "tid": 5, "args": {}}.get(key, values)
            event[key] = data.draw(st.sampled_from([v for v in values if v != legal]))
    check(kineto, kineto.document(changed), rows)


@EXAMPLES
@given(data=st.data())
def test_missing_fields(kineto: Kineto, clean: Clean, data: st.DataObject) -> None:
    events, rows = clean.events, clean.rows
    changed = [dict(event) for event in events]
    event = data.draw(st.sampled_from(changed))
    # Without its arguments a call launches nothing, which is for the analysis to say.
    keys = sorted(event.keys() - ({"args"} if event.get("cat") in ("cuda_runtime", "cuda_sync") else set()))
    del event[data.draw(st.sampled_from(keys))]
    check(kineto, kineto.document(changed), rows)


@EXAMPLES
@given(data=st.data())
def test_fields_named_twice(kineto: Kineto, clean: Clean, data: st.DataObject) -> None:
    events, rows = clean.events, clean.rows
    lines = [json.dumps(event) for event in events]
    i = data.draw(st.integers(0, len(lines) - 1))
    key = data.draw(st.sampled_from(NUMBERS))
    value = data.draw(st.sampled_from(("1.5", "null", '"a"', "4909914216300.125")))
    lines[i] = lines[i].replace('"name"', f'"{key}": {value}, "name"', 1)
    if data.draw(st.booleans()):
        lines[i] = lines[i][:-1] + f', "{key}": {value}}}'
    check(kineto, json.dumps(kineto.header)[:-1] + ', "traceEvents": [' + ",".join(lines) + "]}", rows)


@EXAMPLES
@given(data=st.data())
def test_repeated_events(kineto: Kineto, clean: Clean, data: st.DataObject) -> None:
    events, rows = clean.events, clean.rows
    again = data.draw(st.lists(st.sampled_from(events), min_size=1, max_size=5))
    text = kineto.document([*events, *again])
    check(kineto, text, rows)
    # What is repeated exactly is left out again.
    assert difference(rows_of(kineto.read(text)), rows) == []


@EXAMPLES
@given(data=st.data())
def test_order_means_nothing(kineto: Kineto, clean: Clean, data: st.DataObject) -> None:
    events, rows = clean.events, clean.rows
    order = data.draw(st.permutations(events))
    keys = data.draw(st.permutations(["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"]))
    text = kineto.document({k: e[k] for k in keys if k in e} for e in order)
    assert kineto.issues(*kineto.read(text)) == {}
    check(kineto, text, rows)


@EXAMPLES
@given(
    data=st.data(),
    junk=st.sampled_from(
        ["5", "null", '"text"', "[]", "{}", '{"a": {"b": [{"ph": "X"}]}}', "[[{}]]", "[" * 5000]
    ),
)
def test_junk_between_events(kineto: Kineto, clean: Clean, data: st.DataObject, junk: str) -> None:
    events, rows = clean.events, clean.rows
    lines = [json.dumps(event) for event in events]
    lines.insert(data.draw(st.integers(0, len(lines))), junk)
    text = json.dumps(kineto.header)[:-1] + ', "traceEvents": [' + ",".join(lines) + "]}"
    traces = kineto.read(text)
    assert kineto.issues(*traces)
    assert difference(rows_of(traces), rows) == []


@EXAMPLES
@given(st.binary(max_size=300))
def test_any_bytes(kineto: Kineto, content: bytes) -> None:
    check(kineto, content, [])
    check(kineto, b'{"traceEvents": [' + content, [], told=False)
