"""The shapes a healthy trace may have: roots, clocks, ranks, devices and categories."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from latencylab.model.trace import KERNEL, MEMCPY, MEMSET
from latencylab.traces import decode
from latencylab.traces.digits import ABSENT, LIMIT, OK, QUOTED, UNREADABLE, parse_us
from latencylab.traces.kineto import read_kineto

if TYPE_CHECKING:
    from conftest import Kineto


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(-LIMIT, LIMIT), st.integers(0, 3)), max_size=20))
def test_digits_are_exact(values: list[tuple[int, int]]) -> None:
    texts = []
    for ns, form in values:
        us = Decimal(ns) / 1000
        text = (f"{us:.3f}", f"{us.normalize():f}", f"{us:.6f}", f"{us:E}")[form]
        texts.append(Raw(text.encode()))
    found, states = parse_us(texts)
    assert found.tolist() == [ns for ns, _ in values]
    assert not states.any()


@pytest.mark.parametrize(
    ("text", "ns", "state"),
    [
        ("1.0005", 1001, OK),
        ("1.00049", 1000, OK),
        ("-0.001", -1, OK),
        ("-0", 0, OK),
        ("1e3", 1_000_000, OK),
        ('"12.5"', 12_500, QUOTED),
        ("", 0, ABSENT),
        *(
            (text, 0, UNREADABLE)
            for text in (
                "null",
                '"a,b"',
                "[1,2]",
                "{}",
                "NaN",
                "true",
                "1" * 17,
                "9" * 400,
                "1e999",
                '"1e400"',
            )
        ),
    ],
)
def test_digits_of_odd_texts(text: str, ns: int, state: int) -> None:
    found, states = parse_us([Raw(b"7.25"), Raw(text.encode()), Raw(b"8")])
    assert found.tolist() == [7_250, ns, 8_000]
    assert states.tolist() == [OK, state, OK]


@pytest.mark.parametrize(
    "start_ns",
    [4_909_914_216_204_635, 4_398_046_511_104_357, 4_503_999_999_999_999, 9_007_199_254_740_993, 1],
)
def test_times_relative_to_the_base(kineto: Kineto, start_ns: int) -> None:
    trace = kineto.one(kineto.digits(start_ns))
    first = kineto.base_ns + start_ns
    assert trace.ops.start.tolist() == [first + 10_000 * i for i in range(20)]
    assert trace.api.end.tolist() == [first + 10_000 * i + 5_100 for i in range(20)]
    assert trace.gpu.end.tolist() == [first + 10_000 * i + 8_450 for i in range(20)]


@pytest.mark.parametrize("start_ns", [1_712_195_495_519_689_047, 1_712_195_495_519_690_000])
def test_times_since_1970_take_no_base(kineto: Kineto, start_ns: int) -> None:
    trace = kineto.one(kineto.digits(start_ns))
    assert trace.gpu.start.tolist() == [start_ns + 10_000 * i + 6_200 for i in range(20)]


def test_base_may_follow_the_events(kineto: Kineto) -> None:
    text = json.dumps({"traceEvents": kineto.base(), **kineto.header, "INFO": ["]}", {"id": [{"ph": 1}]}]})
    assert kineto.one(text).gpu.start[0] // 10**12 == (kineto.base_ns + 4_909_914_216_210_835) // 10**12
    assert kineto.one(text).device_name == "NVIDIA H200"


@pytest.mark.parametrize("opening", ["", "\ufeff", " \n\t"])
@pytest.mark.parametrize("indent", [None, 1, 4])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("root", ["object", "array"])
def test_roots_and_packing(kineto: Kineto, opening: str, indent: int | None, packed: bool, root: str) -> None:
    document: Any = kineto.base() if root == "array" else {**kineto.header, "traceEvents": kineto.base()}
    data = (opening + json.dumps(document, indent=indent)).encode()
    # The name says the opposite of the content.
    name = "trace.json" if packed else "trace.json.gz"
    trace = kineto.one(gzip.compress(data[:999]) + gzip.compress(data[999:]) if packed else data, name)
    assert (len(trace.gpu), len(trace.api), len(trace.ops)) == (20, 20, 20)
    assert {i.severity for i in trace.issues} <= {"info"}


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.trace.json", 3),
        ("1795957504.2393806-TP-2.trace.json", 2),
        ("worker5_step_12.1694128201549.pt.trace.json", 5),
        ("dp0_pp0_tp0_dcp0_ep0_rank7.177.json", 7),
        ("http-99.json", 0),
    ],
)
def test_rank_of_the_file_name(kineto: Kineto, name: str, rank: int) -> None:
    trace = kineto.one(json.dumps(kineto.base()), name)
    assert trace.rank == rank
    assert kineto.issues(trace)["rank_guessed"] == ("info", 1)


def labelled(kineto: Kineto, *labels: str) -> list[dict[str, Any]]:
    return [e | {"pid": f"[{label}] {e['pid']}"} for label in labels for e in kineto.base()]


def test_merged_ranks(kineto: Kineto) -> None:
    info = {"rank": 0, "world_size": 4}
    traces = kineto.read(
        kineto.document(labelled(kineto, "TP03", "TP01", "TP00", "TP02"), distributedInfo=info)
    )
    assert [t.rank for t in traces] == [0, 1, 2, 3]
    assert [len(t.api) for t in traces] == [20] * 4
    assert kineto.issues(*traces) == {}


def test_ranks_by_the_part_that_tells_them_apart(kineto: Kineto) -> None:
    events = labelled(kineto, "DP00-TP01", "DP01-TP01")
    assert [t.rank for t in kineto.read(kineto.document(events))] == [0, 1]


def test_ranks_of_two_parts_are_numbered(kineto: Kineto) -> None:
    events = labelled(kineto, "DP00-TP00", "DP00-TP01", "DP01-TP00", "DP01-TP01")
    traces = kineto.read(kineto.document(events, distributedInfo={"rank": 0, "world_size": 4}))
    assert [t.rank for t in traces] == [0, 1, 2, 3]
    assert "rank_guessed" in kineto.issues(*traces)


def test_world_size_that_the_rank_contradicts(kineto: Kineto) -> None:
    trace = kineto.one(kineto.document(kineto.base(), distributedInfo={"rank": 4, "world_size": 4}))
    assert (trace.rank, trace.world_size) == (4, 4)
    assert kineto.issues(trace) == {"world_size": ("warning", 1)}


def test_devices_share_their_host(kineto: Kineto) -> None:
    events = kineto.base()
    for event in events[2::6]:
        event["args"]["device"] = 3
    names = [{"id": 0, "name": "A"}, {"id": 3, "name": "B"}]
    first, second = kineto.read(kineto.document(events, deviceProperties=names))
    assert [(t.rank, t.device, t.device_name, len(t.gpu)) for t in (first, second)] == [
        (0, 0, "A", 10),
        (0, 3, "B", 10),
    ]
    assert np.array_equal(first.api.start, second.api.start)
    assert first.threads == second.threads


def test_kinds_of_events(kineto: Kineto) -> None:
    at = 4_909_914_216_500.125
    kernel = kineto.kernel("k", at, 2, 5, **{"graph node id": 8})
    host = kineto.op("o", at, 2)
    events = [
        *kineto.base(),
        kernel | {"cat": "gpu_memcpy", "args": {**kernel["args"], "bytes": 64}},
        kernel | {"cat": "gpu_memset", "name": "m"},
        kernel | {"name": "last", "ts": at + 9},
        host | {"cat": "cuda_driver", "name": "cuLaunchKernel", "args": {"correlation": 8}},
        host | {"cat": "user_annotation", "name": "step", "tid": 9},
        host | {"cat": "python_function", "name": "f"},
        host | {"cat": "overhead", "name": "Buffer Flush", "pid": -1, "tid": 0},
        host | {"cat": "fwdbwd", "ph": "s"},
        host | {"cat": "cpu_instant_event", "ph": "i"},
        host | {"cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler"},
        {
            "ph": "M",
            "name": "thread_name",
            "pid": 100,
            "tid": 9,
            "ts": 0,
            "args": {"name": "thread 9 (worker)"},
        },
    ]
    trace = kineto.one(kineto.document(events, cupti_version=28, with_stack=0))
    assert kineto.issues(trace) == {}
    assert trace.gpu.kind[-3:].tolist() == [MEMCPY, MEMSET, KERNEL]
    assert trace.gpu.bytes[-3:].tolist() == [64, -1, -1]
    assert trace.gpu.graph_node[-3:].tolist() == [8, 8, 8]
    assert (len(trace.api), len(trace.ops), len(trace.spans), len(trace.frames)) == (21, 20, 1, 1)
    assert trace.names[trace.overhead.name[0]] == "Buffer Flush"
    thread = trace.threads[trace.spans.thread[0]]
    assert (thread.process, thread.thread, thread.name) == ("100", "9", "thread 9 (worker)")
    assert trace.window == (kineto.base_ns + 4_909_914_216_500_125, kineto.base_ns + 4_909_914_216_502_125)
    assert trace.versions == {"cupti_version": "28"}
    assert (trace.stacks, trace.shapes, trace.world_size) == (True, False, 1)


def test_window_of_the_marks(kineto: Kineto) -> None:
    mark = {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 4_909_914_216_900.5}
    trace = kineto.one(kineto.document([*kineto.base(), mark]))
    assert trace.window == (int(trace.gpu.start[0]), kineto.base_ns + 4_909_914_216_900_500)


def test_shapes(kineto: Kineto) -> None:
    events = kineto.base()
    events[0]["args"]["Input Dims"] = [[1, 2], []]
    trace = kineto.one(kineto.document(events))
    assert (trace.stacks, trace.shapes) == (False, True)


def test_what_syncs_waited_for(kineto: Kineto) -> None:
    def sync(name: str, **args: int) -> dict[str, Any]:
        event = kineto.op(name, 4_909_914_216_600.5 + len(name), 3)
        return event | {
            "cat": "cuda_sync",
            "pid": 0,
            "tid": 1_000_007,
            "args": {"device": 0, "correlation": 7, **args},
        }

    events = [
        sync("Stream Sync", stream=13),
        sync("Context Sync", stream=-1),
        sync("Event Sync", stream=4, wait_on_stream=13, wait_on_cuda_event_record_corr_id=55),
        sync("Stream Wait Event", stream=4, wait_on_stream=-1, wait_on_cuda_event_record_corr_id=-1),
        sync("Device Synchronize", stream=(1 << 32) - 1),
    ]
    trace = kineto.one(kineto.document([*kineto.base(), *events]))
    found = {
        trace.names[n]: (s, r)
        for n, s, r in zip(trace.syncs.name, trace.syncs.stream, trace.syncs.record_correlation, strict=True)
    }
    assert found == {
        "Stream Sync": (13, -1),
        "Context Sync": (-1, -1),
        "Event Sync": (13, 55),
        "Stream Wait Event": (-1, -1),
        "Device Synchronize": (-1, -1),
    }


def test_long_ops_in_one_graph_are_not_clipped(kineto: Kineto) -> None:
    at = 4_909_914_217_000.5
    graph = [kineto.kernel("long", at, 5_000, 77)]
    graph += [kineto.kernel("short", at + 1 + i, 0.5, 77) for i in range(9)]
    trace = kineto.one(kineto.document([*kineto.base(), *graph, kineto.kernel("next", at + 5_000.25, 1, 78)]))
    assert kineto.issues(trace) == {}
    assert (trace.gpu.end - trace.gpu.start).max() == 5_000_000


def test_equal_ops_in_whole_microseconds_are_kept(kineto: Kineto) -> None:
    ops = [kineto.kernel("k", 1_712_195_495_519_689, 0, 7) for _ in range(3)]
    assert len(kineto.one(kineto.document(ops)).gpu) == 3


def test_far_timestamps_are_left_out(kineto: Kineto) -> None:
    events = [*kineto.base(), kineto.kernel("k", 909_914_216_204.5, 2, 7), kineto.op("o", 0, 5.5)]
    trace = kineto.one(kineto.document(events))
    assert kineto.issues(trace) == {"far_timestamp": ("warning", 2)}
    assert (len(trace.gpu), len(trace.ops)) == (20, 20)


def test_one_bad_event_in_many(kineto: Kineto) -> None:
    # Several slices, so that the others take the fast way.
    events = [e for i in range(2_000) for e in kineto.base(4_909_914_216_204.625 + 200 * i)]
    text = kineto.document(events).encode()
    middle = text.index(b'"gemm"', len(text) // 2)
    trace = kineto.one(text[:middle] + b'"ge\xff' + text[middle + 3 :])
    assert kineto.issues(trace) == {"bad_utf8": ("warning", 1)}
    assert kineto.busy(trace) == kineto.busy(kineto.one(text))
    assert len(trace.gpu) == 40_000


def test_reading_leaves_the_file_alone(kineto: Kineto) -> None:
    path = kineto.write(kineto.document(kineto.base()))
    before = path.read_bytes()
    assert read_kineto(path)[0].path == str(path)
    assert path.read_bytes() == before


def test_a_wait_on_no_stream_is_no_damage(kineto: Kineto) -> None:
    """Kineto writes stream -1 there; taken for damage, it would send half of a trace the slow way."""
    sync = kineto.kernel("Event Sync", 4_909_914_216_450.75, 2.5, 91, stream=-1) | {"tid": 7}
    text = json.dumps([sync])[1:-1].encode()
    assert decode._decode_slice(text) is not None
    assert decode._decode_slice(text.replace(b'"stream": -1', b'"stream": -1, "stream": 7')) is None
