"""Make the discrete-event model of a rank out of its trace."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from latencylab.analyzers.host import API, SPAN, innermost, thread_activity
from latencylab.analyzers.intervals import Intervals, cut
from latencylab.analyzers.replay import F64, Program, Sort
from latencylab.analyzers.replay_order import stream_waits
from latencylab.analyzers.view import RankView
from latencylab.analyzers.waits import BRACKETED
from latencylab.model.trace import I64, MISSING, Bool, Trace

REPLAY = re.compile(r"^ll\.replay\[(\w+)\]$")
FEWEST_STEPS = 4
MOST_ORPHANS = 0.1  # of the ops, without a launch on record: with more, the host is not known


@dataclass(frozen=True, slots=True, eq=False)
class PeerWaits:
    """Per GPU op the ns that it waited for peers in a collective, and how many of them for a peer's host."""

    ns: I64
    for_hosts: I64


def build_program(
    view: RankView, peers: PeerWaits | None = None, clocked: frozenset[str] = frozenset()
) -> Program | None:
    """The model of a rank, or None where its trace has too few steps, or too few of the launches.

    `peers` is what its ops waited for other ranks; `clocked` names spans that a step clock has.
    """
    trace, launches = view.trace, view.launches
    orphans = np.flatnonzero(launches.call < 0)
    if len(view.steps) < FEWEST_STEPS or len(orphans) > MOST_ORPHANS * len(trace.gpu):
        return None
    items = _items(view, orphans)
    thread_of = items.thread
    sorts: dict[Sort, int] = {}
    gap = np.zeros((len(items), 0))
    own_sort = np.zeros(len(items), np.int64)
    own_ns = np.zeros(len(items))
    for thread in np.unique(thread_of[thread_of != MISSING]).tolist():
        gap = _host_time(view, items, thread, clocked, sorts, gap, own_sort, own_ns)
    launch_item = np.full(len(launches), MISSING, np.int64)
    has = items.launch >= 0
    launch_item[items.launch[has]] = np.flatnonzero(has)
    awaits, tail, own_ns, site = _waiting(view, items, launch_item, own_ns)
    events = {
        int(launch_item[launch]): tuple(int(launch_item[other]) for other in others)
        for launch, others in stream_waits(trace, launches).items()
    }
    begin = trace.gpu.start[np.maximum(items.op, 0)]
    done = np.where(has, launches.done[np.maximum(items.launch, 0)], trace.gpu.end[np.maximum(items.op, 0)])
    on_gpu = items.op >= 0
    stream = np.where(on_gpu, trace.gpu.stream[np.maximum(items.op, 0)], MISSING)
    latency, after, free_since = _bounds(view, items, stream, begin, done, events, own_ns)
    work = np.where(on_gpu, done - begin, 0).astype(np.float64)
    inside, waited, for_hosts = _within(view, items, peers)
    step = view.steps.of_host(items.start)
    seam, leg, seams = _seams(view, items)
    return Program(
        origin=view.window[0],
        sorts=tuple(sorts),
        thread=thread_of,
        gap=gap,
        own=own_ns,
        own_sort=own_sort,
        stream=stream.astype(np.int64),
        latency=latency,
        after=after,
        work=work - waited,
        inside=inside,
        wait=waited,
        for_hosts=for_hosts,
        events=events,
        awaits=awaits,
        tail=tail,
        site=site,
        step=step,
        seam=seam,
        seams=seams,
        leg=leg,
        edges=_edges(view, items),
        op=items.op,
        start=(items.start - view.window[0]).astype(np.float64),
        free_since=free_since,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Items:
    """Items in order of start: host interval, thread (-1 for ops whose launch is not on record), launch,
    first op, blocking call and the API call (each a row, or -1), and for edges of a step's span their number:
    2 * step for its beginning, one more for its end."""

    start: I64
    end: I64
    thread: I64
    launch: I64
    op: I64
    wait: I64
    row: I64
    edge: I64

    def __len__(self) -> int:
        return len(self.start)


def _items(view: RankView, orphans: I64) -> _Items:
    launches, calls = view.launches, view.waits.calls
    wait_of_row = {int(row): i for i, row in enumerate(calls.row)}
    columns: list[tuple[int, int, int, int, int, int, int, int]] = []
    rows = zip(
        launches.start.tolist(),
        launches.end.tolist(),
        launches.thread.tolist(),
        launches.first_op.tolist(),
        launches.row.tolist(),
        strict=True,
    )
    for i, (start, end, thread, op, row) in enumerate(rows):
        columns.append((start, end, thread, i, op, wait_of_row.pop(row, MISSING), row, MISSING))
    for row, i in wait_of_row.items():
        columns.append((int(calls.start[i]), int(calls.end[i]), int(calls.thread[i]), -1, -1, i, row, -1))
    for op in orphans.tolist():
        start = int(view.trace.gpu.start[op])
        columns.append((start, start, MISSING, -1, op, -1, -1, -1))
    for edge, time in _edge_times(view):
        columns.append((time, time, view.steps.thread, -1, -1, -1, -1, edge))
    # Of an edge and a call at one instant, the beginning of a step comes first and its end last.
    columns.sort(key=lambda c: (c[0], c[7] % 2 if c[7] >= 0 else 0.5, -c[1]))
    start, end, thread, launch, op, wait, row, edge = np.array(columns, np.int64).T
    return _Items(start, end, thread, launch, op, wait, row, edge)


def _edge_times(view: RankView) -> list[tuple[int, int]]:
    """The beginning of each step, and the end of the span that marks it where there is one."""
    steps, spans = view.steps, view.trace.spans
    mine = np.flatnonzero(spans.thread == steps.thread)
    at = np.searchsorted(spans.start[mine], steps.host_start)  # spans that start together: the longest first
    times = []
    for step, (row, start) in enumerate(zip(at.tolist(), steps.host_start.tolist(), strict=True)):
        times.append((2 * step, start))
        if row < len(mine) and spans.start[mine[row]] == start:
            times.append((2 * step + 1, min(int(spans.end[mine[row]]), int(steps.host_end[step]))))
    return times


def _edges(view: RankView, items: _Items) -> I64:
    edges = np.full(2 * len(view.steps), MISSING, np.int64)
    rows = np.flatnonzero(items.edge >= 0)
    edges[items.edge[rows]] = rows
    return edges.reshape(-1, 2)


def _host_time(
    view: RankView,
    items: _Items,
    thread: int,
    clocked: frozenset[str],
    sorts: dict[Sort, int],
    gap: F64,
    own_sort: I64,
    own: F64,
) -> F64:
    """Fill in the own time of one thread's items and its sort; returns the gaps by sort, with those of this
    thread added."""
    trace = view.trace
    mine = np.flatnonzero(items.thread == thread)
    reach = np.maximum.accumulate(items.end[mine])
    free = np.append(items.start[mine[0]], reach[:-1])
    begin = np.maximum(items.start[mine], free)
    own[mine] = np.maximum(items.end[mine] - begin, 0)
    activity = thread_activity(trace, thread, Intervals.union(items.start[:0], items.start[:0]))
    of_span, of_clocked = Spans.of(trace, thread), Spans.of(trace, thread, clocked)

    def sort_of(doing: int, span: int, known: int, api: str = "") -> int:
        sort = Sort(of_span.name(span), min(doing, SPAN), api, of_clocked.name(known))
        return sorts.setdefault(sort, len(sorts))

    spans, known = of_span.at(begin).tolist(), of_clocked.at(begin).tolist()
    for i, item in enumerate(mine.tolist()):
        api = trace.names[trace.api.name[items.row[item]]] if items.row[item] >= 0 else ""
        own_sort[item] = sort_of(API if api else SPAN, spans[i], known[i], api)
    edges = np.concatenate([activity.time, of_span.time, of_clocked.time])
    start, end, of = cut(free, begin, edges)
    labels = np.stack([activity.at(start), of_span.at(start), of_clocked.at(start)])
    kinds, at = np.unique(labels, axis=1, return_inverse=True)
    columns = np.array([sort_of(doing, span, its) for doing, span, its in kinds.T.tolist()], np.int64)
    wider = np.zeros((len(items), len(sorts)))
    wider[:, : gap.shape[1]] = gap
    np.add.at(wider, (mine[of], columns[at.ravel()]), end - start)
    return wider


def clock_name(span: str) -> str:
    """A span's name as step clocks have it: without brackets, save that replays are told apart."""
    return REPLAY.sub(r"ll.replay.\1", span) if REPLAY.match(span) else BRACKETED.sub("", span)


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """The innermost span of a thread over time, by its name without brackets."""

    time: I64
    label: I64
    names: tuple[str, ...]

    @classmethod
    def of(cls, trace: Trace, thread: int, only: frozenset[str] | None = None) -> Spans:
        names = tuple(clock_name(name) for name in trace.names)  # before `innermost` drops all brackets
        trace = replace(trace, names=names)
        if only is not None:
            chosen = np.array([name in only for name in names], bool)
            trace = replace(trace, spans=trace.spans.take(chosen[trace.spans.name]))
        return cls(*innermost(trace, thread))

    def at(self, time: I64) -> I64:
        return self.label[np.maximum(np.searchsorted(self.time, time, side="right") - 1, 0)]

    def name(self, label: int) -> str:
        return self.names[label - SPAN]


def _waiting(view: RankView, items: _Items, launch_item: I64, own: F64) -> tuple[I64, F64, F64, I64]:
    """Per item: the item it waits for, the ns from that one's end to its return, its own time apart from
    waiting, and its site.

    A call that did not wait shows its own time, one that did the way back from the op's end; what a call
    does not show is what the others of its site do, at most what it leaves room for.
    """
    waits, launches = view.waits, view.launches
    awaits, site = np.full(len(items), MISSING, np.int64), np.full(len(items), MISSING, np.int64)
    tail, own = np.zeros(len(items)), own.copy()
    rows = np.flatnonzero(items.wait >= 0)
    call = items.wait[rows]
    site[rows] = waits.site[call]
    shown = np.isin(np.array(waits.evidence), ("recorded", "blocked"))[call]
    op = waits.op[call]
    launch = np.where(op >= 0, launches.of_op[np.maximum(op, 0)], MISSING)
    # What is only known to be done at every return may be newer than what is waited for: the copy read is it.
    launch = np.where(~shown & (waits.reads[call] >= 0), waits.reads[call], launch)
    known = launch >= 0
    rows, call, launch = rows[known], call[known], launch[known]
    awaits[rows] = launch_item[launch]
    ended = launches.done[launch]
    blocked = np.clip(ended - items.start[rows], 0, items.end[rows] - items.start[rows])
    held = blocked > 0
    for its in np.unique(site[rows]).tolist():
        here = site[rows] == its
        waited, free = rows[here & held], rows[here & ~held]
        way_back = items.end[waited] - ended[here & held]
        alone = float(np.median(own[free])) if len(free) else None
        usual = float(np.median(way_back)) if len(waited) else (alone or 0.0) / 2
        tail[waited] = way_back
        own[waited] = np.minimum(own[waited], usual if alone is None else alone)
        tail[free] = np.minimum(usual, items.end[free] - ended[here & ~held])
    return awaits, tail, own, site


def _bounds(
    view: RankView,
    items: _Items,
    stream: I64,
    begin: I64,
    done: I64,
    events: dict[int, tuple[int, ...]],
    own: F64,
) -> tuple[F64, F64, dict[int, float]]:
    """Per item: its op's latency from its call, its place after the work before it, and per stream when it
    was free before the record."""
    free = np.full(len(items), np.iinfo(np.int64).min)
    ready: dict[int, int] = {}
    for i, its in enumerate(stream.tolist()):
        if its == MISSING:
            continue
        before = [ready[its]] if its in ready else []
        before += [int(done[event]) for event in events.get(i, ()) if event < i]
        if before:
            free[i] = max(before)
        ready[its] = max(ready.get(its, int(done[i])), int(done[i]))
    ops = np.flatnonzero(stream != MISSING)
    orphan = items.thread[ops] == MISSING
    back = items.start[ops] + np.rint(own[ops]).astype(np.int64)
    first = free[ops] == np.iinfo(np.int64).min
    late = ~orphan & (first | (back > free[ops]))
    latency, after = np.zeros(len(items)), np.zeros(len(items))
    shown_latency = (begin[ops] - back).astype(np.float64)
    shown_after = np.where(first, 0, begin[ops] - np.where(first, begin[ops], free[ops])).astype(np.float64)
    name = view.trace.gpu.name[items.op[ops]].astype(np.int64)
    latency[ops] = np.where(late, shown_latency, np.minimum(_usual(shown_latency, late, name), shown_latency))
    queued = ~late & ~first
    after[ops] = np.where(late, np.minimum(_usual(shown_after, queued, name), shown_after), shown_after)
    free_since = {int(stream[op]): float(begin[op] - view.window[0]) for op in ops[first & orphan].tolist()}
    return latency, after, free_since


def _usual(shown: F64, known: Bool, name: I64) -> F64:
    """What is usual for ops of each name, by the median over those where it is known; else over all."""
    overall = float(np.median(shown[known])) if known.any() else 0.0
    usual = np.full(len(shown), overall)
    for its in np.unique(name[known]).tolist():
        usual[name == its] = np.median(shown[known & (name == its)])
    return usual


def _within(view: RankView, items: _Items, peers: PeerWaits | None) -> tuple[F64, F64, F64]:
    """Per item the idle inside its launch's ops, the wait for peers inside them, and the part of that for
    their hosts."""
    launches, gpu = view.launches, view.trace.gpu
    inside, waited, for_hosts = (np.zeros(len(items)) for _ in range(3))
    order = np.argsort(launches.of_op, kind="stable")
    of_op = launches.of_op[order]
    for item in np.flatnonzero(items.launch >= 0).tolist():
        launch = int(items.launch[item])
        if launches.ops[launch] == 1 and peers is None:
            continue
        rows = order[np.searchsorted(of_op, launch) : np.searchsorted(of_op, launch + 1)]
        busy = Intervals.union(gpu.start[rows], gpu.end[rows]).total
        inside[item] = launches.done[launch] - gpu.start[launches.first_op[launch]] - busy
        if peers is not None:
            waited[item] = min(int(peers.ns[rows].sum()), busy)
            for_hosts[item] = min(int(peers.for_hosts[rows].sum()), waited[item])
    return inside, waited, for_hosts


def _seams(view: RankView, items: _Items) -> tuple[I64, I64, tuple[str, ...]]:
    """Per item the leg that its thread launches next and the one that it is the first launch of itself (each
    -1 for none), and the names of the legs. After the last leg of the record its cycle goes on."""
    legs = view.legs
    names = {name: row for row, name in enumerate(dict.fromkeys(legs.name))}
    seam, leg = (np.full(len(items), MISSING, np.int64) for _ in range(2))
    for thread in np.unique(legs.thread).tolist():
        mine = np.flatnonzero(legs.thread == thread)
        rows = np.flatnonzero(items.thread == thread)
        code = np.array([names[legs.name[row]] for row in mine.tolist()], np.int64)
        at = np.searchsorted(legs.launch_start[mine], items.start[rows])
        own = np.isin(items.start[rows], legs.launch_start[mine]) & (items.launch[rows] >= 0)
        following = np.append(code, code[0])[at]
        leg[rows[own]] = following[own]
        seam[rows[~own]] = following[~own]
    return seam, leg, tuple(names)
