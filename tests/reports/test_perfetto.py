"""The Perfetto trace, read back with Perfetto's own classes: everything once, exact, and well formed."""

from __future__ import annotations

import io
import zlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

import synth
from latencylab.analyzers.idle import DISPATCH, HOST, IN_GRAPH, LATENCY, UNKNOWN
from latencylab.analyzers.kernels import load_classes
from latencylab.analyzers.ranks import RankSet, join_ranks
from latencylab.analyzers.run_ahead import run_ahead
from latencylab.analyzers.view import RankView
from latencylab.model.trace import KERNEL, Thread, Trace
from latencylab.reports.format import clean
from latencylab.reports.names import short_name
from latencylab.reports.perfetto import write_perfetto
from latencylab.reports.perfetto_found import CAUSES
from latencylab.reports.perfetto_rank import nesting_lanes
from latencylab.reports.perfetto_recorded import thread_titles
from latencylab.reports.perfetto_wire import TraceWriter, varint
from latencylab.traces import open_capture, sample_path
from synth import ranks
from synth.strategies import decode_loops, programs

GPU = ("kernel", "memcpy", "memset")
HOST_TABLES = {"api": "api", "op": "ops", "span": "spans", "frame": "frames"}
few = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass
class Slice:
    """A slice as read back; times are absolute ns, `depth` counts the slices around it on its track."""

    track: int
    start: int
    name: str
    category: str
    args: dict[str, Any]
    flows: list[int]
    depth: int
    end: int = -1


@dataclass
class Read:
    """A trace as read back: descriptors by uuid, slices, and values of counters by track."""

    tracks: dict[int, Any] = field(default_factory=dict)
    slices: list[Slice] = field(default_factory=list)
    counts: dict[int, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))

    def of(self, *categories: str) -> list[Slice]:
        return [its for its in self.slices if its.category in categories]

    def group(self, track: int) -> str:
        return self.tracks[self.tracks[track].parent_uuid].process.process_name


class Sequence:
    """The state of one packet sequence: interned texts, clock, and slices that are open."""

    def __init__(self, packet: Any) -> None:
        assert packet.sequence_flags == proto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        assert packet.first_packet_on_sequence
        clocks = {clock.clock_id: clock for clock in packet.clock_snapshot.clocks}
        assert clocks[64].is_incremental
        assert clocks[64].timestamp == 0
        self.time = clocks[6].timestamp
        assert packet.trace_packet_defaults.timestamp_clock_id == 64
        self.track = packet.trace_packet_defaults.track_event_defaults.track_uuid
        self.texts: dict[str, dict[int, str]] = defaultdict(dict)
        self.open: list[Slice] = []

    def intern(self, data: Any) -> None:
        for table, entries in data.ListFields():
            for entry in entries:
                text = entry.name if hasattr(entry, "name") else entry.str.decode()
                assert entry.iid not in self.texts[table.name]
                self.texts[table.name][entry.iid] = text

    def value(self, annotation: Any) -> Any:
        which = annotation.WhichOneof("value")
        value = getattr(annotation, which)
        return self.texts["debug_annotation_string_values"][value] if which == "string_value_iid" else value


def read(data: bytes) -> Read:
    outer = proto.Trace()
    outer.ParseFromString(data)
    found, sequences, start = Read(), {}, None
    for batch in outer.packet:
        inner = proto.Trace()
        inner.ParseFromString(zlib.decompress(batch.compressed_packets))
        for packet in inner.packet:
            key = packet.trusted_packet_sequence_id
            assert key
            if packet.HasField("track_descriptor"):
                assert packet.track_descriptor.uuid not in found.tracks
                found.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
            elif packet.HasField("clock_snapshot") and start is None:
                clocks = {clock.clock_id: clock.timestamp for clock in packet.clock_snapshot.clocks}
                assert clocks[6] == 0
                start = clocks[1]
            elif packet.HasField("clock_snapshot"):
                assert key not in sequences
                sequences[key] = Sequence(packet)
            else:
                assert start is not None
                take(found, sequences[key], packet, start)
    assert not any(sequence.open for sequence in sequences.values())
    assert len({sequence.track for sequence in sequences.values()}) == len(sequences)
    return found


def take(found: Read, sequence: Sequence, packet: Any, start: int) -> None:
    assert packet.sequence_flags == proto.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
    sequence.time += packet.timestamp
    sequence.intern(packet.interned_data)
    event, time, texts = packet.track_event, sequence.time + start, sequence.texts
    assert sequence.track in found.tracks
    if event.type == proto.TrackEvent.TYPE_SLICE_BEGIN:
        names = texts["debug_annotation_names"]
        args = {names[one.name_iid]: sequence.value(one) for one in event.debug_annotations}
        (category,) = event.category_iids
        begun = Slice(
            sequence.track,
            time,
            texts["event_names"][event.name_iid],
            texts["event_categories"][category],
            args,
            list(event.flow_ids),
            len(sequence.open),
        )
        found.slices.append(begun)
        sequence.open.append(begun)
    elif event.type == proto.TrackEvent.TYPE_SLICE_END:
        sequence.open.pop().end = time
    else:
        assert event.type == proto.TrackEvent.TYPE_COUNTER
        found.counts[sequence.track].append((time, event.double_counter_value))


def view_of(trace: Trace) -> RankView:
    return RankView.of(trace, load_classes())


def export(views: tuple[RankView, ...], joined: RankSet | None = None, **options: Any) -> Read:
    file = io.BytesIO()
    write_perfetto(file, views, joined, **options)
    return read(file.getvalue())


@cache
def four_ranks() -> tuple[tuple[RankView, ...], RankSet]:
    late = ranks.Inject(rank=2, step=None, at=5, cause="python", ns=90_000)
    clocks = (ranks.Clock(), *(ranks.Clock(offset=o, ppb=900) for o in (3_000_000, -2_000_000, 71_000)))
    run = ranks.simulate(ranks.decode_ranks(ranks=4, steps=6, clocks=clocks, injects=(late,), gpu_jitter=900))
    views = tuple(view_of(trace) for trace in ranks.to_traces(run))
    joined = join_ranks(views)
    assert joined is not None
    return views, joined


@cache
def sample() -> RankView:
    return view_of(open_capture([sample_path("nextn-host-stall")]).traces[0])


def assert_whole(found: Read, view: RankView, align: Any, slices: list[Slice]) -> None:
    """These slices are this rank's GPU ops and host events, each once, to the ns."""
    trace = view.trace
    gpu = trace.gpu
    names = [clean(name) for name in trace.names]
    want = Counter(
        zip(
            align(gpu.start).tolist(),
            align(gpu.end).tolist(),
            [names[i] for i in gpu.name],
            gpu.stream.tolist(),
            gpu.correlation.tolist(),
            [view.classes[i] for i in view.op_class],
            [int(size) if size >= 0 else None for size in gpu.bytes],
            [int(node) if node > 0 else None for node in gpu.graph_node],
            [GPU[kind - KERNEL] for kind in gpu.kind],
            strict=True,
        )
    )
    keys = ("name", "stream", "correlation", "class", "bytes", "graph_node")
    ops = [its for its in slices if its.category in GPU]
    assert Counter((i.start, i.end, *map(i.args.get, keys), i.category) for i in ops) == want
    for op in ops:
        assert op.depth == 0
        assert op.name == short_name(op.args["name"])
        assert found.tracks[op.track].name == f"stream {op.args['stream']}"
    for category, table in HOST_TABLES.items():
        events = getattr(trace, table)
        titles = [clean(title) for title in thread_titles(trace.threads)]
        times = align(events.start).tolist(), align(events.end).tolist()
        host = [names[i] for i in events.name], [titles[i] for i in events.thread]
        seen = Counter(
            (i.start, i.end, i.name, found.tracks[i.track].name) for i in slices if i.category == category
        )
        assert seen == Counter(zip(*times, *host, strict=True))


def assert_flows(view: RankView, align: Any, slices: list[Slice]) -> None:
    """From each launch call to the first of its ops, and nothing else."""
    ends: dict[int, list[Slice]] = defaultdict(list)
    for its in slices:
        for flow in its.flows:
            ends[flow].append(its)
    launches = view.launches
    pairs = Counter()
    for its in ends.values():
        (call,) = [i for i in its if i.category == "api"]
        (op,) = [i for i in its if i.category in GPU]
        pairs[call.start, call.end, op.start, op.end] += 1
        latency_us = (op.start - call.start) / 1000
        assert op.args["launch_latency_us"] == pytest.approx(latency_us, rel=1e-4, abs=0.002)  # clocks drift
    first = launches.first_op
    times = [launches.start, launches.end, view.trace.gpu.start[first], view.trace.gpu.end[first]]
    assert pairs == Counter(zip(*(align(time).tolist() for time in times), strict=True))


def assert_idle(view: RankView, slices: list[Slice]) -> None:
    sums = Counter[str]()
    for its in slices:
        if its.category == "idle":
            sums[its.args["cause"]] += its.end - its.start
    pieces = view.pieces
    for cause in (IN_GRAPH, DISPATCH, LATENCY, HOST, UNKNOWN):
        assert sums[CAUSES[cause]] == int(pieces.length[pieces.cause == cause].sum())


@few
@given(programs(lost=True, polls=True))
def test_any_program(scenario: synth.Scenario) -> None:
    view = view_of(synth.to_trace(scenario))
    found = export((view,))
    assert_whole(found, view, lambda time: time, found.slices)
    assert_flows(view, lambda time: time, found.slices)
    assert_idle(view, found.slices)


@few
@given(decode_loops())
def test_any_decode_loop(loop: tuple[synth.Scenario, Any]) -> None:
    view = view_of(synth.to_trace(loop[0] if isinstance(loop, tuple) else loop))
    found = export((view,))
    assert_whole(found, view, lambda time: time, found.slices)
    steps = found.of("step")
    assert [(i.start, i.end) for i in steps] == list(
        zip(view.steps.start.tolist(), view.steps.end.tolist(), strict=True)
    )
    assert [i.args.get("left_out") for i in steps] == list(view.left_out)
    assert [i.args["steady"] for i in steps] == [cause is None for cause in view.left_out]


def test_the_sample() -> None:
    view = sample()
    found = export((view,))
    assert_whole(found, view, lambda time: time, found.slices)
    assert_flows(view, lambda time: time, found.slices)
    assert_idle(view, found.slices)
    assert {found.group(i.track) for i in found.slices} == {"rank 0 · NVIDIA H200"}
    assert sorted(i.start for i in found.of("leg")) == sorted(view.legs.start.tolist())
    calls = found.of("blocking")
    assert Counter(i.args["verdict"] for i in calls) == {"pinning": 30, "hidden": 30}
    assert {i.name for i in calls} == {"pinning cudaStreamSynchronize", "hidden cudaEventSynchronize"}
    names = [its.name for its in found.tracks.values()]
    order = ["steps", "legs", "stream 13", "idle: host late", "blocking calls", "run-ahead: draft"]
    assert [name for name in dict.fromkeys(names) if name in order] == order


def test_seams_add_up() -> None:
    view = sample()
    found = export((view,))
    gaps = [i for i in found.of("idle") if i.args["cause"] == "host"]
    for seam in found.of("seam")[:20]:
        inside = [gap for gap in gaps if seam.start <= gap.start < seam.end]
        assert seam.args["idle_host_us"] == pytest.approx(sum(g.end - g.start for g in inside) / 1000)


def test_run_ahead() -> None:
    view = sample()
    found = export((view,))
    legs, ahead = view.legs, run_ahead(view.legs)
    for uuid, values in found.counts.items():
        name = found.tracks[uuid].name.removeprefix("run-ahead: ")
        assert found.tracks[uuid].counter.unit_name == "µs"
        rows = [i for i in np.argsort(legs.start, kind="stable") if legs.name[i] == name]
        assert values == [(int(legs.start[i]), int(ahead[i]) / 1000) for i in rows]


def test_four_ranks_on_one_clock() -> None:
    views, joined = four_ranks()
    found = export(views, joined)
    for r, view in enumerate(views):
        mine = [i for i in found.slices if found.group(i.track).startswith(f"rank {r} ")]
        assert_whole(found, view, joined.clocks[r].align, mine)
        assert_flows(view, joined.clocks[r].align, mine)
        skew = joined.skew
        waited = joined.pairing.blocking & (skew.wait[:, r] > 0)
        start = skew.arrival[waited, r]
        want = Counter(zip(start.tolist(), (start + skew.wait[waited, r]).tolist(), strict=True))
        waits = [i for i in mine if i.category == "wait"]
        assert Counter((i.start, i.end) for i in waits) == want
        assert all(i.args["last_rank"] != r for i in waits)
    assert any(i.name == "for rank 2" for i in found.of("wait"))
    (uuid,) = [uuid for uuid, its in found.tracks.items() if its.name == "skew of collectives"]
    spread = joined.skew.spread[joined.pairing.blocking & ~joined.skew.trimmed]
    assert sorted(value for _, value in found.counts[uuid]) == sorted((spread / 1000).tolist())
    times = [time for time, _ in found.counts[uuid]]
    assert times == sorted(times)


def test_one_rank_of_four_keeps_its_waits() -> None:
    views, joined = four_ranks()
    alone, all_ranks = export(views[1:2], joined), export(views, joined)
    expected = [i for i in all_ranks.of("wait") if all_ranks.group(i.track).startswith("rank 1 ")]
    assert [(i.start, i.end, i.name) for i in alone.of("wait")] == [
        (i.start, i.end, i.name) for i in expected
    ]


def test_some_steps() -> None:
    view = sample()
    found = export((view,), steps=[np.array([10, 11])])
    steps = view.steps
    first, last = int(steps.host_start[10]), max(int(steps.end[11]), int(steps.host_end[11]))
    ops = found.of(*GPU)
    gpu = view.trace.gpu
    assert len(ops) == int(((gpu.start < last) & (gpu.end > first)).sum())
    assert {10, 11} <= {i.args["step"] for i in ops}
    assert all(i.start < last and i.end > first for i in found.slices)
    flows = Counter(flow for i in found.slices for flow in i.flows)
    assert set(flows.values()) == {2}


def test_names_from_anyone() -> None:
    launch = synth.Launch(dur=5_000, call_dur=3_000, latency=1_000, name="evil\x1b[31m\ud800<int>")
    view = view_of(synth.to_trace(synth.Scenario((synth.Program((launch,)),))))
    (op,) = export((view,)).of(*GPU)
    assert "\x1b" not in op.args["name"]
    assert op.end - op.start == 5_000


def test_titles_differ() -> None:
    threads = (Thread("1", "1", "python"), Thread("1", "2", "python"), Thread("3", "2"), Thread("4", "2"))
    titles = ["python 1", "python 2", "thread 2 of process 3", "thread 2 of process 4"]
    assert thread_titles(threads) == titles
    view = sample()
    found = export((view, view))
    groups = {found.group(i.track) for i in found.slices}
    title = "rank 0 · NVIDIA H200"
    assert groups == {f"{title} (clock not aligned)", f"{title} · trace 1 (clock not aligned)"}


def test_without_gpu_ops() -> None:
    view = view_of(synth.to_trace(synth.Scenario((synth.Program((synth.Span("s", (synth.Python(5),)),)),))))
    assert [i.category for i in export((view,)).slices] == ["span"]


@given(st.integers(-(1 << 63), (1 << 64) - 1))
def test_varint(value: int) -> None:
    field = "int_value" if value < 0 else "uint_value"
    tag = b"\x20" if value < 0 else b"\x18"
    assert tag + varint(value) == proto.DebugAnnotation(**{field: value}).SerializeToString()


def test_times_out_of_order_are_refused() -> None:
    track = TraceWriter(io.BytesIO(), 100).track(name="t")
    track.count(150, 1.0)
    with pytest.raises(ValueError, match="before"):
        track.count(149, 1.0)
    with pytest.raises(ValueError, match="before"):
        TraceWriter(io.BytesIO(), 100).track(name="t").count(99, 1.0)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=30))
def test_lanes_nest(boxes: list[tuple[int, int]]) -> None:
    boxes = sorted(((start, start + length) for start, length in boxes), key=lambda box: (box[0], -box[1]))
    start, end = (np.array([box[i] for box in boxes], np.int64) for i in (0, 1))
    lane = nesting_lanes(start, end).tolist()
    for i, (begin, until) in enumerate(boxes):
        for j in range(i):
            if lane[i] == lane[j]:
                assert boxes[j][1] <= begin or until <= boxes[j][1]
    assert not lane or set(lane) == set(range(max(lane) + 1))
