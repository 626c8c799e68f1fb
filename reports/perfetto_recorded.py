"""What the profiler recorded of a rank, as Perfetto tracks: GPU streams, host threads, its own overhead."""

from __future__ import annotations

from collections import Counter

import numpy as np

from latencylab.analyzers.timeline import lanes
from latencylab.model.trace import I64, KERNEL, MEMCPY, MEMSET, MISSING, ApiCalls, HostEvents, Thread
from latencylab.reports.format import clean
from latencylab.reports.names import short_name
from latencylab.reports.perfetto_rank import Rank, nesting_lanes
from latencylab.reports.perfetto_wire import TraceWriter, Track, Value

GPU_CATEGORIES = {KERNEL: "kernel", MEMCPY: "memcpy", MEMSET: "memset"}
FRAME, SPAN, OP, API = range(4)  # of events that span the same time the first one is the outer one
HOST_CATEGORIES = ("frame", "span", "op", "api")
FLOWS_PER_RANK = 1 << 32  # flow ids are unique in the whole trace


def write_streams(writer: TraceWriter, rank: Rank) -> None:
    """The GPU ops by stream. Ops that overlap lie on further tracks of the same name, which the UI shows as
    one: on a single track only nested slices survive, and programmatic dependent launch makes ops overlap.
    """
    gpu = rank.view.trace.gpu
    rows, start, end = rank.aligned(gpu)
    of_stream = gpu.stream[rows]
    for stream in np.unique(of_stream).tolist():
        mine = np.flatnonzero(of_stream == stream)
        lane = lanes(start[mine], end[mine], np.zeros(len(mine), np.int64))
        for its in range(int(lane.max()) + 1):
            chosen = mine[lane == its]
            track = rank.track(writer, f"stream {stream}", "GPU ops; those that overlap lie below each other")
            _write_ops(track, rank, rows[chosen], start[chosen], end[chosen])
            track.close()


def _write_ops(track: Track, rank: Rank, rows: I64, start: I64, end: I64) -> None:
    view = rank.view
    gpu, launches = view.trace.gpu, view.launches
    kinds, which = np.unique(gpu.name[rows], return_inverse=True)
    names = [clean(view.trace.names[kind]) for kind in kinds.tolist()]
    short = [short_name(name) for name in names]
    launch = np.where(_leads(rank)[rows], launches.of_op[rows], MISSING)
    latency = np.zeros(len(rows), np.int64)
    latency[launch >= 0] = gpu.start[rows[launch >= 0]] - launches.start[launch[launch >= 0]]
    columns = (
        start,
        end,
        which,
        gpu.kind[rows],
        view.op_class[rows],
        gpu.stream[rows],
        gpu.correlation[rows],
        view.steps.of_gpu(gpu.start[rows]),
        gpu.graph_node[rows],
        gpu.bytes[rows],
        launch,
        latency,
        _flows(rank)[launch],
    )
    for at, until, name, kind, its_class, stream, correlation, step, node, size, led, waited, flow in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        args: dict[str, Value] = {
            "name": names[name],
            "class": view.classes[its_class],
            "stream": stream,
            "correlation": correlation,
            "step": step,
        }
        if node > 0:
            args["graph_node"] = node
        if size >= 0:
            args["bytes"] = size
        if led >= 0:
            args["launch_latency_us"] = waited / 1000
        track.slice(at, until, short[name], GPU_CATEGORIES[kind], args, flow)


def _leads(rank: Rank) -> np.ndarray:
    """Which GPU ops are the first of a launch."""
    leads = np.zeros(len(rank.view.trace.gpu), bool)
    leads[rank.view.launches.first_op] = True
    return leads


def _flows(rank: Rank) -> I64:
    """Per launch the number of the arrow from its call to its first op; 0 where one of the two is not shown.

    One more 0 stands at the end, for the launch -1.
    """
    gpu, launches = rank.view.trace.gpu, rank.view.launches
    numbers = np.arange(1, len(launches) + 2) + rank.place * FLOWS_PER_RANK
    first = launches.first_op
    both = rank.shows(rank.align(launches.start), rank.align(launches.end))
    both &= rank.shows(rank.align(gpu.start[first]), rank.align(gpu.end[first]))
    return np.where(np.append(both, False), numbers, 0)


def write_host(writer: TraceWriter, rank: Rank) -> None:
    """Each host thread's Python frames, spans, framework ops and API calls, nested; busy threads first."""
    trace = rank.view.trace
    tables: tuple[HostEvents | ApiCalls, ...] = (trace.frames, trace.spans, trace.ops, trace.api)
    parts = [rank.aligned(table) for table in tables]
    row, start, end = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    layer = np.repeat(np.arange(len(tables)), [len(rows) for rows, _, _ in parts])
    thread, name = (
        np.concatenate(
            [getattr(table, column)[rows] for table, (rows, _, _) in zip(tables, parts, strict=True)]
        )
        for column in ("thread", "name")
    )
    order = np.lexsort([layer, -end, start])
    threads, events = np.unique(thread, return_counts=True)
    for its in threads[np.argsort(-events, kind="stable")].tolist():
        mine = order[thread[order] == its]
        _write_thread(writer, rank, its, row[mine], start[mine], end[mine], layer[mine], name[mine])


def thread_titles(threads: tuple[Thread, ...]) -> list[str]:
    """A title for each thread, all different: the UI joins tracks of one name."""
    titles = []
    for its in threads:
        name = its.name or "thread"
        titles.append(name if its.thread in name else f"{name} {its.thread}")
    many = {title for title, count in Counter(titles).items() if count > 1}
    return [
        f"{title} of process {its.process}" if title in many else title
        for title, its in zip(titles, threads, strict=True)
    ]


def _write_thread(
    writer: TraceWriter, rank: Rank, thread: int, row: I64, start: I64, end: I64, layer: I64, name: I64
) -> None:
    """One thread's events; what does not nest in the others goes on further tracks of the name."""
    threads = rank.view.trace.threads
    title, process = thread_titles(threads)[thread], threads[thread].process
    lane = nesting_lanes(start, end)
    for number in range(int(lane.max()) + 1):
        track = rank.track(writer, title, f"process {process}")
        at = lane == number
        _write_events(track, rank, row[at], start[at], end[at], layer[at], name[at])
        track.close()


def _write_events(track: Track, rank: Rank, row: I64, start: I64, end: I64, layer: I64, name: I64) -> None:
    trace, launches = rank.view.trace, rank.view.launches
    launch_of = np.full(len(trace.api) + 1, MISSING, np.int64)
    launch_of[launches.row] = np.arange(len(launches))
    flows = _flows(rank)
    for its, at, until, kind, which in zip(
        row.tolist(), start.tolist(), end.tolist(), layer.tolist(), name.tolist(), strict=True
    ):
        args: dict[str, Value] = {}
        flow = 0
        if kind == API:
            launch = int(launch_of[its])
            args["correlation"] = int(trace.api.correlation[its])
            if launch >= 0:
                args["gpu_ops"] = int(launches.ops[launch])
                flow = int(flows[launch])
        track.slice(at, until, clean(trace.names[which]), HOST_CATEGORIES[kind], args, flow)


def write_overhead(writer: TraceWriter, rank: Rank) -> None:
    """The profiler's own work."""
    trace = rank.view.trace
    rows, start, end = rank.aligned(trace.overhead)
    lane = lanes(start, end, np.zeros(len(rows), np.int64))
    for its in range(int(lane.max(initial=-1)) + 1):
        track = rank.track(writer, "profiler overhead", "the profiler's own, on no known thread")
        for at in np.flatnonzero(lane == its).tolist():
            name = clean(trace.names[trace.overhead.name[rows[at]]])
            track.slice(int(start[at]), int(end[at]), name, "overhead", {})
        track.close()
