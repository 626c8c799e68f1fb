"""The simulation: host threads advance by their own clocks, in order of time; ops start as soon as they may.

An op's start is known as soon as it is enqueued, for it depends on what was enqueued before it alone; so
one pass over the host's calls, in order of time, settles everything.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from synth.actions import (
    GC_NAME,
    MEMCPY,
    Action,
    Api,
    Copy,
    DeviceSync,
    EventQueryLoop,
    EventRecord,
    EventSync,
    FrameworkOp,
    Gc,
    GraphLaunch,
    Launch,
    Overhead,
    Program,
    Python,
    Scenario,
    Span,
    StreamSync,
    StreamWait,
)

COMMIT, START = 0, 1  # at one instant, calls that end take effect before calls that start
POLLS = 3  # this many queries in a row make a polling loop


@dataclass(slots=True)
class Call:
    """An API call. `spans` and `ops` are the paths it stands in, outermost first.

    A `lost` call is not in the trace: it leaves no mark and counts as no wait.
    """

    correlation: int
    name: str
    thread: int
    start: int
    end: int
    spans: tuple[str, ...]
    ops: tuple[str, ...]
    span_ids: tuple[int, ...]  # rows of `Run.marks`, as `spans`
    graph: bool = False
    lost: bool = False


@dataclass(slots=True)
class Op:
    """A GPU op; `index` counts in order of enqueueing. `node` is -1 outside graphs."""

    index: int
    name: str
    kind: int
    stream: int
    start: int
    end: int
    call: Call
    node: int = -1
    bytes: int = -1
    direction: str = ""

    @property
    def key(self) -> tuple[int, int, int, int]:
        """The order of ops: by start; ties by stream, correlation, graph node."""
        return self.start, self.stream, self.call.correlation, self.node


@dataclass(slots=True)
class Mark:
    """What a thread was doing from `start` to `end`: layer `span`, `framework`, `gc`, `profiler` or `call`.

    Profiler work in the background is on thread -1.
    """

    layer: str
    name: str
    thread: int
    start: int
    end: int
    depth: int
    call: Call | None = None


@dataclass(slots=True)
class Wait:
    """A call that blocks, or a loop of queries, and the op that it waits for by the program's meaning."""

    call: Call
    kind: str  # explicit, copy, alloc, poll
    start: int
    end: int
    waited: Op | None
    stream: int = -1
    record: int = -1  # correlation of the call that recorded the event
    calls: tuple[Call, ...] = ()


@dataclass(slots=True)
class Run:
    """All that happened, in absolute ns."""

    scenario: Scenario
    ops: list[Op] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    stream_waits: list[Wait] = field(default_factory=list)  # cudaStreamWaitEvent: no wait of the host
    event_streams: dict[int, int] = field(default_factory=dict)  # by correlation of the recording call

    @property
    def end(self) -> int:
        """The last instant of anything."""
        ends = [o.end for o in self.ops] + [m.end for m in self.marks]
        return max(ends, default=self.scenario.base + self.scenario.origin)


@dataclass(slots=True)
class _Tail:
    """Where a stream or an event stands: done at `time`, because of `op`."""

    time: int = -1
    op: Op | None = None
    record: int = -1
    stream: int = -1


@dataclass(slots=True)
class _Stream:
    last_start: int = -1
    last_end: int = -1  # running maximum over its ops
    before_end: int = -1  # the same without the newest op: PDL looks one op back only
    tail: _Tail = field(default_factory=_Tail)  # its own ops, and events it waits for
    hold: int = -1  # the next op starts no earlier, for an event


class Engine:
    """One run of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.run = Run(scenario)
        self.streams: dict[int, _Stream] = {}
        self.events: dict[str, _Tail] = {}
        self.correlation = 1_000

    def simulate(self) -> Run:
        t0 = self.run.scenario.base + self.run.scenario.origin
        for at, dur in self.run.scenario.background:
            self.run.marks.append(Mark("profiler", "Buffer Flush", -1, t0 + at, t0 + at + dur, 0))
        threads = [_Thread(self, i, p, t0 + p.start) for i, p in enumerate(self.run.scenario.programs)]
        heap: list[tuple[int, int, int]] = []
        routines = [t.perform(t.program.actions) for t in threads]
        for i, thread in enumerate(threads):
            heapq.heappush(heap, (thread.clock, START, i))
        while heap:
            _, _, i = heapq.heappop(heap)
            phase = next(routines[i], None)
            if phase is not None:
                heapq.heappush(heap, (threads[i].clock, phase, i))
        return self.run

    def stream(self, number: int) -> _Stream:
        return self.streams.setdefault(number, _Stream())

    def enqueue(
        self, op: Launch | Copy, call: Call, ready: int, name: str, kind: int, direction: str = ""
    ) -> Op:
        """One eager op: behind its stream's running end, or over its predecessor's by PDL."""
        s = self.stream(op.stream)
        start = max(ready, s.hold, s.last_end + op.gap, s.before_end, s.last_start)
        new = Op(
            len(self.run.ops), name, kind, op.stream, start, start + op.dur, call, -1, op.bytes, direction
        )
        self._append(s, [new])
        return new

    def enqueue_graph(self, graph: GraphLaunch, call: Call, ready: int) -> None:
        """All nodes of a graph, each after the node it depends on."""
        s = self.stream(graph.stream)
        placed: list[Op] = []
        for i, node in enumerate(graph.nodes):
            if i == 0:
                start = max(ready, s.hold, s.last_end + max(node.gap, 0))
            else:
                dep = placed[i - 1 if node.after is None else node.after]
                start = max(dep.start, dep.end + node.gap)
            stream = graph.stream if node.stream is None else node.stream
            index = len(self.run.ops) + i
            op = Op(index, node.name, node.kind, stream, start, start + node.dur, call, i, node.bytes)
            op.direction = "DtoD" if node.kind == MEMCPY else ""
            placed.append(op)
        if placed:
            self._append(s, placed)

    def _append(self, s: _Stream, ops: Sequence[Op]) -> None:
        self.run.ops.extend(ops)
        s.before_end = max([s.last_end, *(o.end for o in ops[:-1])])
        s.last_start = max([s.last_start, *(o.start for o in ops)])
        s.last_end = max([s.last_end, *(o.end for o in ops)])
        for op in ops:
            if op.end >= s.tail.time:
                s.tail = _Tail(op.end, op)


class _Thread:
    """One host thread: its clock and where in its program it stands."""

    def __init__(self, engine: Engine, index: int, program: Program, clock: int) -> None:
        self.engine, self.index, self.program, self.clock = engine, index, program, clock
        self.spans: list[str] = []
        self.span_ids: list[int] = []
        self.ops: list[str] = []

    def perform(self, actions: Sequence[Action]) -> Iterator[int]:
        """Run actions; each yield hands over until the other threads have reached this clock."""
        for action in actions:
            match action:
                case Python(dur):
                    self.clock += dur
                case Span(name, body):
                    self.spans.append(name)
                    yield from self._within(self._mark("span", name), body)
                    self.spans.pop()
                case FrameworkOp(name, body):
                    self.ops.append(name)
                    yield from self._within(self._mark("framework", name), body)
                    self.ops.pop()
                case Gc(dur):
                    self._solid("gc", GC_NAME, dur)
                case Overhead(dur, name):
                    self._solid("profiler", name, dur)
                case _:
                    yield from self._call(action)

    def _within(self, mark: Mark, body: Sequence[Action]) -> Iterator[int]:
        row = len(self.engine.run.marks) - 1
        if mark.layer == "span":
            self.span_ids.append(row)
        yield from self.perform(body)
        mark.end = self.clock
        if mark.layer == "span":
            self.span_ids.pop()

    def _mark(self, layer: str, name: str, call: Call | None = None) -> Mark:
        depth = len(self.spans) + len(self.ops)
        mark = Mark(layer, name, self.index, self.clock, self.clock, depth, call)
        self.engine.run.marks.append(mark)
        return mark

    def _solid(self, layer: str, name: str, dur: int) -> None:
        mark = self._mark(layer, name)
        self.clock += dur
        mark.end = self.clock

    def _open(self, name: str, lost: bool = False) -> Call:
        self.engine.correlation += 1
        spans, ops, ids = tuple(self.spans), tuple(self.ops), tuple(self.span_ids)
        t = self.clock
        call = Call(self.engine.correlation, name, self.index, t, t, spans, ops, ids, lost=lost)
        self.engine.run.calls.append(call)
        return call

    def _close(self, call: Call, end: int) -> None:
        call.end = self.clock = end
        if call.lost:
            return
        mark = Mark("call", call.name, self.index, call.start, end, 0, call)
        self.engine.run.marks.append(mark)

    def _call(self, action: Action) -> Iterator[int]:
        yield START
        match action:
            case Api(name, dur):
                self._close(self._open(name), self.clock + dur)
            case Launch() | GraphLaunch():
                yield from self._launch(action)
            case Copy():
                yield from self._copy(action)
            case EventRecord() | StreamWait():
                yield from self._event(action)
            case StreamSync() | EventSync() | DeviceSync():
                self._sync(action)
            case EventQueryLoop():
                yield from self._poll(action)
            case _:
                raise TypeError(f"no such action: {action!r}")

    def _launch(self, action: Launch | GraphLaunch) -> Iterator[int]:
        call = self._open(action.api, action.lost)
        call.graph = isinstance(action, GraphLaunch)
        self._close(call, self.clock + action.call_dur + action.overhead)
        if action.overhead:
            t = call.start + action.call_dur // 2  # inside the call, no event of the thread at its ends
            mark = Mark("profiler", "Activity Buffer Request", self.index, t, t + action.overhead, 0)
            self.engine.run.marks.append(mark)
        yield COMMIT
        ready = max(call.start, call.end + action.latency)
        if isinstance(action, GraphLaunch):
            self.engine.enqueue_graph(action, call, ready)
        else:
            self.engine.enqueue(action, call, ready, action.name, action.kind)

    def _copy(self, action: Copy) -> Iterator[int]:
        call = self._open("cudaMemcpy" if action.blocking else "cudaMemcpyAsync", action.lost)
        self.clock += action.call_dur
        issued = self.clock
        yield COMMIT
        text = action.op_name.split("(")[1].rstrip(")").split(" -> ")
        host = text[1] if action.direction == "DtoH" else text[0]
        direction = f"{action.direction} {host.lower()}"
        ready = max(call.start, issued + action.latency)
        op = self.engine.enqueue(action, call, ready, action.op_name, MEMCPY, direction)
        end = max(issued, op.end + action.return_delay) if action.waits else issued
        self._close(call, end)
        if action.waits:
            self._waited(call, "copy", _Tail(op.end, op, stream=op.stream))

    def _event(self, action: EventRecord | StreamWait) -> Iterator[int]:
        call = self._open(action.api if isinstance(action, EventRecord) else "cudaStreamWaitEvent")
        self._close(call, self.clock + action.dur)
        yield COMMIT
        stream = self.engine.stream(action.stream)
        if isinstance(action, EventRecord):
            tail = stream.tail
            self.engine.run.event_streams[call.correlation] = action.stream
            self.engine.events[action.event] = _Tail(tail.time, tail.op, call.correlation, action.stream)
            return
        event = self.engine.events.get(action.event, _Tail())
        stream.hold = max(stream.hold, event.time)
        if event.time > stream.tail.time:
            stream.tail = _Tail(event.time, event.op)
        wait = Wait(call, "stream", call.start, call.end, event.op, action.stream, event.record)
        self.engine.run.stream_waits.append(wait)

    def _sync(self, action: StreamSync | EventSync | DeviceSync) -> None:
        kind = "explicit"
        if isinstance(action, StreamSync):
            name, tail = "cudaStreamSynchronize", self.engine.stream(action.stream).tail
            tail = _Tail(tail.time, tail.op, stream=action.stream)
        elif isinstance(action, EventSync):
            name, tail = "cudaEventSynchronize", self.engine.events.get(action.event, _Tail())
        else:
            name, kind = action.api, "explicit" if "Synchronize" in action.api else "alloc"
            last = max(self.engine.run.ops, key=lambda o: (o.end, o.index), default=None)
            tail = _Tail(last.end, last) if last else _Tail()
        call = self._open(name)
        self._close(call, max(self.clock + action.dur, tail.time + action.return_delay))
        self._waited(call, kind, tail)

    def _waited(self, call: Call, kind: str, tail: _Tail) -> None:
        if call.lost:
            return
        wait = Wait(call, kind, call.start, call.end, tail.op, tail.stream, tail.record, (call,))
        self.engine.run.waits.append(wait)

    def _poll(self, action: EventQueryLoop) -> Iterator[int]:
        event = self.engine.events.get(action.event, _Tail())
        calls: list[Call] = []
        while True:
            done = event.time <= self.clock
            calls.append(self._open("cudaEventQuery"))
            self._close(calls[-1], self.clock + action.dur)
            if done:
                break
            self.clock += action.pause
            yield START
        if len(calls) >= POLLS:
            first, last = calls[0], calls[-1]
            wait = Wait(first, "poll", first.start, last.end, event.op, event.stream, event.record)
            wait.calls = tuple(calls)
            self.engine.run.waits.append(wait)


def simulate(scenario: Scenario) -> Run:
    """Play the scenario and return all that happened."""
    return Engine(scenario).simulate()
