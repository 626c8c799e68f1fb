"""Which GPU op each blocking call waited for, how sure that is, and where in the program it stands."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from latencylab.analyzers.blocking import CLOCK_NS, TO_HOST, WHOLE_DEVICE, BlockingCalls
from latencylab.analyzers.host import Paths
from latencylab.analyzers.intervals import Intervals
from latencylab.analyzers.launches import Launches
from latencylab.analyzers.legs import LegTable
from latencylab.analyzers.marks import MARK, STEP, marked_waits
from latencylab.analyzers.steps import StepTable
from latencylab.model.findings import Evidence, SyncKind
from latencylab.model.trace import I64, MEMCPY, MISSING, Bool, Trace

WAITED_NS = 20_000  # a call longer than this waited: one that need not still takes 6 to 10 µs under CUPTI
RETURN_NS = 15_000  # a waiting call returns within this time of the end of what it waited for
BRACKETED = re.compile(r"\s*(?:\[[^\[\]()]*\]|\([^\[\]()]*\))")
STREAM_SYNC = re.compile(r"StreamSynchronize")
COUNTED = re.compile(r"^(?:ProfilerStep#|execute_)")  # names with a number of the step or of its tokens
COPY_NAME = re.compile(r"(\w+to\w)\w*\s*\(.*->\s*(\w+)\)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Site:
    """Where in the program a call blocks; equal from run to run, so that runs compare by it."""

    api: str
    kind: SyncKind
    span: str  # span path, outermost first, bracketed text and step counts removed
    op: str  # path of framework ops, its own or else that of the copy it reads
    direction: str  # of the copy it reads, such as "DtoH Pinned"
    bytes: int | None
    seam: str  # the leg launched next

    def __str__(self) -> str:
        where = f" in {self.span}" if self.span else ""
        through = f" ({self.op})" if self.op else ""
        size = "" if self.bytes is None else f"{self.bytes} B "
        reads = f", {size}{self.direction}" if self.direction else ""
        seam = f", before {self.seam}" if self.seam else ""
        return f"{self.api}{where}{through}{reads}{seam}"


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Per blocking call: the `op` waited for (a row of the GPU ops, or -1) and its `evidence`; `blocked`,
    the ns it waited for that op; `behind`, the ns of GPU work launched after that op and before the call
    (-1 where unknown); `queued`, the ns of GPU work still to be done at its return; `need`, the ns from its
    return until the next leg's launch returns (-1 where none follows); its `site`, a row of `sites`; and
    `reads`, the launch of the device-to-host copy that it reads, or -1.
    """

    calls: BlockingCalls
    op: I64
    evidence: tuple[Evidence, ...]
    blocked: I64
    behind: I64
    queued: I64
    need: I64
    site: I64
    sites: tuple[Site, ...]
    reads: I64


def resolve_waits(
    trace: Trace, launches: Launches, calls: BlockingCalls, steps: StepTable, legs: LegTable
) -> Waits:
    """Find what each call waited for, by the best evidence there is.

    recorded: a synchronization record, our runtime's marks of the event, the copy that the call itself is,
    or a wait for the whole device;
    blocked: the last op that ended within 15 µs before the return of a call of over 20 µs;
    eliminated: the newest launch, by its place before the call, that was complete at every return of the
    site (for the steps of one kind). An allocation is charged with a wait only where it blocked.
    """
    spans, ops = _paths(trace, calls)
    step = steps.of_host(calls.start)
    kinds = [steps.kind[i] if i >= 0 else "" for i in step]
    seams = _seams(calls, legs)
    alike: list[Hashable] = list(zip(calls.api, spans, ops, seams, kinds, strict=True))
    op, evidence = calls.op.copy(), np.where(calls.op >= 0, "recorded", "unknown").astype("<U10")
    _recorded(trace, launches, calls, op, evidence)
    copies = _copies_read(trace, launches, calls, alike, ops, op)
    for rows in _groups(alike):
        rows = rows[evidence[rows] != "recorded"]
        if len(rows):
            _infer(launches, calls, rows, op, evidence)
    known = op >= 0
    ended = np.where(known, trace.gpu.end[op] if len(trace.gpu) else 0, 0)
    # An op inferred by elimination may seem to end after the call's return, by the error of the clocks: then
    # nothing shows that the call waited.
    shows = known & ~((evidence == "eliminated") & (ended > calls.end))
    blocked = np.where(shows, np.clip(ended - calls.start, 0, calls.end - calls.start), 0)
    behind, queued = _work_behind(trace, launches, calls, op)
    site, sites = _sites(trace, launches, calls, spans, ops, copies, seams)
    return Waits(
        calls,
        op,
        tuple(evidence.tolist()),
        blocked,
        behind,
        queued,
        _need(launches, calls, legs),
        site,
        sites,
        copies,
    )


def _paths(trace: Trace, calls: BlockingCalls) -> tuple[list[str], list[str]]:
    of_spans, of_ops = Paths(trace.spans, trace.names), Paths(trace.ops, trace.names)
    spans, ops = [], []
    for thread, time in zip(calls.thread.tolist(), calls.start.tolist(), strict=True):
        spans.append(" > ".join(map(_stable, _places(of_spans.at(thread, time)))))
        ops.append(" > ".join(of_ops.at(thread, time)))
    return spans, ops


def _places(spans: tuple[str, ...]) -> tuple[str, ...]:
    """The spans that say where a call stands: not those that mark the call itself, and of a step's two, ours
    around the engine's own, the engine's."""
    places = tuple(span for span in spans if not MARK.match(span))
    return places[1:] if len(places) > 1 and STEP.match(places[0]) else places


def _stable(span: str) -> str:
    """A span's name without what changes from step to step."""
    name = span
    while (shorter := BRACKETED.sub("", name)) != name:  # brackets within brackets go from the inside out
        name = shorter
    return re.sub(r"\d+", "N", name) if COUNTED.match(name) else name


def _groups(keys: list[Hashable]) -> list[I64]:
    rows: dict[Hashable, list[int]] = defaultdict(list)
    for row, key in enumerate(keys):
        rows[key].append(row)
    return [np.array(group, np.int64) for group in rows.values()]


def _recorded(trace: Trace, launches: Launches, calls: BlockingCalls, op: I64, evidence: np.ndarray) -> None:
    """Fill in what synchronization records and marks say, and waits for the whole device."""
    api, syncs = trace.api, trace.syncs
    record_of = {int(c): i for i, c in enumerate(syncs.correlation) if c >= 0}
    call_of = {int(c): i for i, c in enumerate(api.correlation) if c >= 0} if record_of else {}
    stream = trace.gpu.stream[launches.first_op]
    marked = marked_waits(trace, calls.thread, calls.start)
    for i, row in enumerate(calls.row.tolist()):
        if evidence[i] == "recorded":
            continue
        before = calls.start[i]
        record = record_of.get(int(api.correlation[row]))
        if WHOLE_DEVICE.search(calls.api[i]):
            candidates = np.arange(int(launches.before(before)))
        elif marked.stream[i] >= 0:
            count = int(launches.before(marked.before[i]))
            candidates = _newest_on(stream, int(marked.stream[i]), count)
        elif record is not None and syncs.stream[record] >= 0:
            recorded_by = call_of.get(int(syncs.record_correlation[record]))
            if recorded_by is not None:
                before = api.start[recorded_by]
            elif "Event" in calls.api[i]:
                continue  # the record does not say where the event was recorded
            candidates = _newest_on(stream, int(syncs.stream[record]), int(launches.before(before)))
        else:
            continue
        if len(candidates):
            op[i] = launches.last_op[candidates[np.argmax(launches.done[candidates])]]
            evidence[i] = "recorded"


def _newest_on(stream: I64, wanted: int, count: int) -> I64:
    """Of the first `count` launches the newest on a stream, as an array of one or none."""
    return np.flatnonzero(stream[:count] == wanted)[-1:]


def _place(done: I64, newest: I64, returned: I64) -> int | None:
    """The smallest p such that item `newest - p` was done at every call's return, or None.

    Calls with fewer than p items before them have nothing to say.
    """
    for p in range(1, int(newest.max(initial=0)) + 1):
        asked = newest >= p
        if (done[newest[asked] - p] <= returned[asked] + CLOCK_NS).all():
            return p
    return None


def _infer(launches: Launches, calls: BlockingCalls, rows: I64, op: I64, evidence: np.ndarray) -> None:
    """Fill in the op waited for by the calls of one place in the program, by `blocked` and `eliminated`."""
    newest = launches.before(calls.start[rows])
    place = _place(launches.done, newest, calls.end[rows])
    if place is None:
        return
    by_end = np.argsort(launches.done, kind="stable")
    ends = launches.done[by_end]
    for i, count in zip(rows.tolist(), newest.tolist(), strict=True):
        if count < place:
            continue
        if calls.end[i] - calls.start[i] > WAITED_NS:
            since = max(calls.end[i] - RETURN_NS, calls.start[i])
            first, stop = np.searchsorted(ends, [since, calls.end[i] + CLOCK_NS], side="right")
            recent = by_end[first:stop]
            # An event can only stand behind a whole launch, and none newer than `place` can be it.
            recent = recent[recent <= count - place]
            if len(recent):
                op[i], evidence[i] = launches.last_op[recent[-1]], "blocked"
                continue
        if calls.kind[i] != "alloc":
            op[i], evidence[i] = launches.last_op[count - place], "eliminated"


def _copies_read(
    trace: Trace,
    launches: Launches,
    calls: BlockingCalls,
    alike: list[Hashable],
    ops: Sequence[str],
    op: I64,
) -> I64:
    """Per call the device-to-host copy that it reads, as a launch, or -1. `ops` are the framework ops that
    calls stand in, `op` the GPU ops that they are known to wait for.

    A copy that blocks is its own, and that of the synchronisation which comes next, as torch has it for
    pageable memory, where both stand in one framework op or are known to wait for it. Otherwise it is the
    newest copy to the host of the calling thread, by its place, that was complete at every return of the
    calls alike. The calls nearest to their copies choose first: what one wait has read is not what a later
    one waits for.
    """
    first = launches.first_op
    to_host = (trace.gpu.kind[first] == MEMCPY) & trace.matching(TO_HOST)[trace.gpu.name[first]]
    read = np.where(calls.op >= 0, launches.of_op[calls.op] if len(trace.gpu) else MISSING, MISSING)
    to_host_calls = np.flatnonzero((read >= 0) & to_host[np.maximum(read, 0)]) if len(launches) else read[:0]
    to_host[read[read >= 0]] = False
    for copy, sync in _synchronised(launches, calls, read, to_host_calls):
        known = op[sync] == launches.last_op[read[copy]]
        if known or (op[sync] == MISSING and ops[copy] == ops[sync]):
            read[sync] = read[copy]
    waiting = []
    for group in _groups(alike):
        rows = group[read[group] < 0]
        if len(rows) and calls.kind[rows[0]] == "explicit" and not WHOLE_DEVICE.search(calls.api[rows[0]]):
            waiting.append(rows)
    while waiting:
        offers = [(rows, _newest_done(launches, calls, rows, to_host)) for rows in waiting]
        offers = [(rows, copies) for rows, copies in offers if (copies >= 0).any()]
        if not offers:
            break
        nearest, copies = min(offers, key=lambda offer: _distance(launches, calls, *offer))
        read[nearest] = copies
        to_host[copies[copies >= 0]] = False
        waiting = [rows for rows, _ in offers if rows is not nearest]
    return read


def _synchronised(
    launches: Launches, calls: BlockingCalls, read: I64, copies: I64
) -> Iterator[tuple[int, int]]:
    """Each of these copies that block, with the next blocking call of its thread where that synchronises a
    stream and nothing was launched between."""
    for thread in np.unique(calls.thread[copies]).tolist():
        mine = np.flatnonzero(calls.thread == thread)
        launched = launches.start[launches.thread == thread]
        for copy in copies[calls.thread[copies] == thread].tolist():
            after = mine[np.searchsorted(calls.start[mine], calls.end[copy]) :][:1]
            if not len(after) or not STREAM_SYNC.search(calls.api[after[0]]):
                continue
            since = np.searchsorted(
                launched, (launches.start[read[copy]], calls.start[after[0]]), side="right"
            )
            if since[0] == since[1]:
                yield copy, int(after[0])


def _newest_done(launches: Launches, calls: BlockingCalls, rows: I64, chosen: Bool) -> I64:
    """For calls alike, each one's newest chosen launch of its thread that place proves done, or -1."""
    candidates = np.flatnonzero(chosen & (launches.thread == calls.thread[rows[0]]))
    newest = np.searchsorted(launches.start[candidates], calls.start[rows])
    place = _place(launches.done[candidates], newest, calls.end[rows])
    found = np.full(len(rows), MISSING, np.int64)
    if place is not None:
        there = newest >= place
        found[there] = candidates[newest[there] - place]
    return found


def _distance(launches: Launches, calls: BlockingCalls, rows: I64, copies: I64) -> float:
    """The median ns from the launch of the copy to the call."""
    there = copies >= 0
    return float(np.median(calls.start[rows[there]] - launches.start[copies[there]]))


def _work_behind(trace: Trace, launches: Launches, calls: BlockingCalls, op: I64) -> tuple[I64, I64]:
    """Per call the ns of GPU work launched after its op and before it, and the ns not done at its return."""
    order = np.argsort(launches.of_op, kind="stable")
    of_op = launches.of_op[order]
    reach = np.maximum.accumulate(launches.done) if len(launches) else launches.done
    behind = np.full(len(calls), MISSING, np.int64)
    queued = np.zeros(len(calls), np.int64)

    def work(first: int, stop: int, since: int) -> int:
        rows = order[np.searchsorted(of_op, first) : np.searchsorted(of_op, stop)]
        return Intervals.union(np.maximum(trace.gpu.start[rows], since), trace.gpu.end[rows]).total

    never = np.iinfo(np.int64).min
    for i, count in enumerate(launches.before(calls.start).tolist()):
        if op[i] >= 0:
            behind[i] = work(int(launches.of_op[op[i]]) + 1, count, never)
        pending = int(np.searchsorted(reach[:count], calls.end[i], side="right"))
        queued[i] = work(pending, count, int(calls.end[i]))
    return behind, queued


def _need(launches: Launches, calls: BlockingCalls, legs: LegTable) -> I64:
    """Per call the ns from its return until the next leg's launch returns; where the trace has no legs, the
    next launch of any kind."""
    start, end, thread = launches.start, launches.end, launches.thread
    if len(legs):
        start, end, thread = legs.launch_start, legs.launch_end, legs.thread
    need = np.full(len(calls), MISSING, np.int64)
    for its_thread in np.unique(calls.thread):
        rows = np.flatnonzero(calls.thread == its_thread)
        mine = np.flatnonzero(thread == its_thread)
        following = np.searchsorted(start[mine], calls.end[rows])
        there = following < len(mine)
        need[rows[there]] = end[mine[following[there]]] - calls.end[rows[there]]
    return need


def _sites(
    trace: Trace,
    launches: Launches,
    calls: BlockingCalls,
    spans: list[str],
    ops: list[str],
    copies: I64,
    seams: list[str],
) -> tuple[I64, tuple[Site, ...]]:
    places = list(zip(calls.api, spans, ops, seams, strict=True))
    paths = Paths(trace.ops, trace.names)
    reads = [_copy_read(trace, launches, paths, copy) if copy >= 0 else None for copy in copies.tolist()]
    usual: dict[Hashable, Counter[_Read]] = defaultdict(Counter)
    for place, read in zip(places, reads, strict=True):
        if read is not None:
            usual[place][read] += 1
    rows: dict[Site, int] = {}
    site = np.zeros(len(calls), np.int64)
    for i, (place, read) in enumerate(zip(places, reads, strict=True)):
        # A call whose copy was launched before the record began reads what the others of its place read.
        read = read or (usual[place].most_common(1)[0][0] if usual[place] else _Read("", None, ""))
        op = ops[i] or read.op
        key = Site(calls.api[i], calls.kind[i], spans[i], op, read.direction, read.bytes, seams[i])
        site[i] = rows.setdefault(key, len(rows))
    return site, tuple(rows)


@dataclass(frozen=True, slots=True)
class _Read:
    """A copy that a call reads: direction and memory, bytes, and the framework ops that launched it."""

    direction: str
    bytes: int | None
    op: str


def _copy_read(trace: Trace, launches: Launches, paths: Paths, copy: int) -> _Read:
    first = launches.first_op[copy]
    size = int(trace.gpu.bytes[first])
    thread, time = int(launches.thread[copy]), int(launches.start[copy])
    return _Read(
        _direction(trace.names[trace.gpu.name[first]]),
        size if size >= 0 else None,
        " > ".join(paths.at(thread, time)),
    )


def _direction(copy: str) -> str:
    """Direction and memory, such as DtoH Pinned; the copy's name itself where it is built otherwise."""
    found = COPY_NAME.search(copy)
    return f"{found.group(1)} {found.group(2)}" if found else copy


def _seams(calls: BlockingCalls, legs: LegTable) -> list[str]:
    """The leg that each call's thread launches next; after its last, what mostly follows the one before."""
    seams = [""] * len(calls)
    for thread in np.unique(calls.thread).tolist():
        mine = np.flatnonzero(legs.thread == thread)
        names = [legs.name[row] for row in mine.tolist()]
        follows = Counter(pairwise(names))
        likely = max(
            (pair for pair in follows if pair[0] == names[-1]), key=lambda p: follows[p], default=("", "")
        )
        rows = np.flatnonzero(calls.thread == thread)
        following = np.searchsorted(legs.launch_start[mine], calls.start[rows])
        for row, leg in zip(rows.tolist(), following.tolist(), strict=True):
            seams[row] = names[leg] if leg < len(names) else likely[1]
    return seams
