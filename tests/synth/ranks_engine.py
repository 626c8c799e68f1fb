"""The simulation of several ranks: host threads of all ranks advance in order of true time.

What a thread enqueues goes to the queue of its stream. A queue stands still at a collective until all whom it
waits for have arrived, or at an event whose record is not settled; a thread stands still only where it waits
for the GPU or for other hosts. Without collectives a rank's run is that of `engine.simulate`.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from synth.actions import (
    MEMCPY,
    Action,
    Copy,
    DeviceSync,
    EventRecord,
    EventSync,
    GraphLaunch,
    Launch,
    Program,
    Scenario,
    StreamSync,
    StreamWait,
)
from synth.engine import COMMIT, START, Call, Engine, Mark, Op, Run, Wait, _Tail, _Thread
from synth.ranks_actions import Collective, CollectiveNode, Comm, Follower, HostCollective, RankScenario
from synth.ranks_joint import Cell, Joint, Queued, Record

BLOCKED = 2
NEVER = 1 << 62
T = TypeVar("T")


@dataclass(slots=True)
class RankRun:
    """All that happened on all ranks, on the true clock; `joints` in order of their last arrivals."""

    scenario: RankScenario
    runs: tuple[Run, ...]
    joints: tuple[Joint, ...]


class World:
    """What the ranks share: the order of time, and the collectives."""

    def __init__(self, scenario: RankScenario) -> None:
        self.scenario = scenario
        self.heap: list[tuple[int, int, int, int]] = []
        self.ready: deque[Callable[[], None]] = deque()
        self.joints: dict[tuple[str, tuple[int, ...], int], Joint] = {}
        self.counts: Counter[tuple[int, str, tuple[int, ...]]] = Counter()
        self.group_numbers: dict[tuple[str, tuple[int, ...]], int] = {}
        self.engines = [RankEngine(s, self, r) for r, s in enumerate(scenario.ranks)]
        self.threads = [
            [RankThread(e, i, p, e.t0 + p.start) for i, p in enumerate(e.run.scenario.programs)]
            for e in self.engines
        ]

    def simulate(self) -> RankRun:
        routines = [[t.perform(t.program.actions) for t in own] for own in self.threads]
        for own in self.threads:
            for thread in own:
                self.wake(thread)
        left = len(self.heap)
        while self.heap:
            _, _, r, i = heapq.heappop(self.heap)
            phase = next(routines[r][i], None)
            left -= phase is None
            if phase is not None and phase != BLOCKED:
                heapq.heappush(self.heap, (self.threads[r][i].clock, phase, r, i))
        if left or any(q for e in self.engines for q in e.queues.values()):
            raise ValueError(f"the ranks hang: {self._stuck()}")
        runs = tuple(e.finished() for e in self.engines)
        order = sorted(self.joints.values(), key=lambda j: (max(j.arrivals.values()), j.number, j.seeds))
        return RankRun(self.scenario, runs, tuple(order))

    def _stuck(self) -> str:
        missing = [
            f"{j.comm.kind} {j.number} of {j.comm.group} misses {sorted(set(j.ranks) - set(j.arrivals))}"
            for j in self.joints.values()
            if not j.free
        ]
        return "; ".join(missing[:3]) or "an event is never recorded"

    def wake(self, thread: RankThread) -> None:
        heapq.heappush(self.heap, (thread.clock, START, thread.rank, thread.index))

    def settle(self, cell: Cell[T], value: T) -> None:
        cell.value = value
        self.ready += cell.waiters
        cell.waiters.clear()

    def drain(self) -> None:
        while self.ready:
            self.ready.popleft()()

    def joint(self, comm: Comm, rank: int) -> Joint:
        """The next collective of this group on this rank."""
        ranks = self.scenario.group(comm.group)
        if comm.way.sync == "pair":
            ranks = tuple(sorted((rank, rank if comm.peer is None else comm.peer)))
        if rank not in ranks:
            raise ValueError(f"rank {rank} is not in group {comm.group!r}")
        n = self.counts[rank, comm.group, ranks]
        self.counts[rank, comm.group, ranks] += 1
        number = self.group_numbers.setdefault((comm.group, ranks), len(self.group_numbers))
        key = comm.group, ranks, n
        if key not in self.joints:
            seeds = self.scenario.seed, number, n
            self.joints[key] = Joint(replace(comm, peer=None), ranks, n, seeds, self.scenario.noise)
        joint = self.joints[key]
        if joint.comm != replace(comm, peer=None):
            raise ValueError(f"rank {rank} brings {comm}, the others {joint.comm}")
        return joint


class RankEngine(Engine):
    """One rank's GPU: a queue for each stream."""

    def __init__(self, scenario: Scenario, world: World, rank: int) -> None:
        super().__init__(scenario)
        self.world, self.rank = world, rank
        self.t0 = scenario.base + scenario.origin
        self.queues: dict[int, deque[Queued]] = {}
        self.ends: dict[int, int] = {}  # running end of each stream
        self.placed: list[tuple[int, Op]] = []  # with the number of what enqueued it
        self.commits = 0
        for at, dur in scenario.background:
            start = self.t0 + at
            self.run.marks.append(Mark("profiler", "Buffer Flush", -1, start, start + dur, 0))

    def finished(self) -> Run:
        """The run, its ops in order of enqueueing."""
        ops = [op for _, op in sorted(self.placed, key=lambda p: (p[0], p[1].node))]
        for i, op in enumerate(ops):
            op.index = i
        self.run.ops[:] = ops
        return self.run

    def submit(self, stream: int, work: Queued) -> None:
        queue = self.queues.setdefault(stream, deque())
        queue.append(work)
        if len(queue) == 1:
            self.world.ready.append(partial(self.pump, stream))
            self.world.drain()

    def pump(self, stream: int) -> None:
        """Let the stream go on as far as it can."""
        queue = self.queues[stream]
        while queue:
            cell = next(queue[0], None)
            if cell is not None:
                cell.waiters.append(partial(self.pump, stream))
                return
            queue.popleft()

    def commit(self) -> int:
        self.commits += 1
        return self.commits

    def _place(self, op: Op, commit: int) -> None:
        self.placed.append((commit, op))
        self.ends[op.stream] = max(self.ends.get(op.stream, -1), op.end)

    def join(self, joint: Joint, op: Op, dur: int) -> Iterator[Cell[bool]]:
        """Arrive, wait for those that are waited for, and leave."""
        joint.arrive(self.rank, op, max(op.start, self.ends.get(op.stream, -1)))
        if not joint.free:
            yield joint.cell
        elif joint.cell.value is None:
            self.world.settle(joint.cell, True)
        op.end = joint.leave(self.rank, dur)

    def eager(self, action: Launch | Copy, call: Call, ready: int) -> Cell[_Tail]:
        """Enqueue one op; the cell is settled by its end."""
        joint = self.world.joint(action.comm, self.rank) if isinstance(action, Collective) else None
        done: Cell[_Tail] = Cell()
        self.submit(action.stream, self._eager(action, call, ready, joint, (self.commit(), done)))
        return done

    def _eager(
        self,
        action: Launch | Copy,
        call: Call,
        ready: int,
        joint: Joint | None,
        commit: tuple[int, Cell[_Tail]],
    ) -> Queued:
        s = self.stream(action.stream)
        if joint is not None:
            way = joint.comm.way
            start = max(ready, s.hold, s.last_end + action.gap, s.before_end, s.last_start)
            op = Op(0, way.kernel, way.op, action.stream, start, start, call, -1, joint.bytes)
            yield from self.join(joint, op, action.dur)
            self._append(s, [op])
        elif isinstance(action, Copy):
            op = self.enqueue(action, call, ready, action.op_name, MEMCPY, copy_direction(action))
        else:
            op = self.enqueue(action, call, ready, action.name, action.kind)
        self._place(op, commit[0])
        self.world.settle(commit[1], _Tail(op.end, op, stream=op.stream))

    def graph(self, graph: GraphLaunch, call: Call, ready: int) -> None:
        """Enqueue all nodes of a graph."""
        joints = [
            self.world.joint(n.comm, self.rank) if isinstance(n, CollectiveNode) else None
            for n in graph.nodes
        ]
        self.submit(graph.stream, self._graph(graph, call, ready, joints, self.commit()))

    def _graph(
        self, graph: GraphLaunch, call: Call, ready: int, joints: list[Joint | None], commit: int
    ) -> Queued:
        s, placed = self.stream(graph.stream), list[Op]()
        for i, (node, joint) in enumerate(zip(graph.nodes, joints, strict=True)):
            stream = graph.stream if node.stream is None else node.stream
            if i == 0:
                start = max(ready, s.hold, s.last_end + max(node.gap, 0))
                end = start + node.dur
            else:
                dep = placed[i - 1 if node.after is None else node.after]
                start = max(dep.start, dep.end + node.gap)
                end = start + node.dur
                if isinstance(node, Follower):
                    start = dep.start + max(node.gap, 0)
                    end = max(start, dep.end) + node.dur
            op = Op(0, node.name, node.kind, stream, start, end, call, i, node.bytes)
            if joint is not None:
                op.name, op.kind, op.bytes = joint.comm.way.kernel, joint.comm.way.op, joint.bytes
                yield from self.join(joint, op, node.dur)
            op.direction = "DtoD" if op.kind == MEMCPY else ""
            placed.append(op)
            self._place(op, commit)
        if placed:
            self._append(s, placed)

    def record(self, event: str, stream: int, correlation: int) -> None:
        """Enqueue the record of an event."""
        record = Record(NEVER, None, correlation, stream)
        self.events[event] = record
        self.run.event_streams[correlation] = stream

        def settle() -> Queued:
            tail = self.stream(stream).tail
            record.time, record.op = tail.time, tail.op
            self.world.settle(record.cell, tail)
            yield from ()

        self.commit()
        self.submit(stream, settle())

    def hold(self, event: str, stream: int, call: Call) -> None:
        """Make a stream wait for an event."""
        record = self.events.get(event, _Tail())

        def settle() -> Queued:
            if isinstance(record, Record) and record.cell.value is None:
                yield record.cell
            s = self.stream(stream)
            s.hold = max(s.hold, record.time)
            if record.time > s.tail.time:
                s.tail = _Tail(record.time, record.op)
            wait = Wait(call, "stream", call.start, call.end, record.op, stream, record.record)
            self.run.stream_waits.append(wait)

        self.commit()
        self.submit(stream, settle())

    def reached(self, stream: int) -> Cell[_Tail]:
        """A cell that is settled once the stream has come to where it is filled now."""
        cell: Cell[_Tail] = Cell()

        def settle() -> Queued:
            tail = self.stream(stream).tail
            self.world.settle(cell, _Tail(tail.time, tail.op, stream=stream))
            yield from ()

        self.submit(stream, settle())
        return cell

    def last_of(self, commits: int) -> _Tail:
        """The last op to end of those enqueued by so many commits."""
        ops = [(op.end, commit, op.node, op) for commit, op in self.placed if commit <= commits]
        last = max(ops, key=lambda o: o[:3], default=None)
        return _Tail(last[0], last[3]) if last else _Tail()


def copy_direction(action: Copy) -> str:
    """As the single-rank engine words it: the direction and the host's memory."""
    text = action.op_name.split("(")[1].rstrip(")").split(" -> ")
    return f"{action.direction} {(text[1] if action.direction == 'DtoH' else text[0]).lower()}"


class RankThread(_Thread):
    """One host thread of a rank."""

    engine: RankEngine

    def __init__(self, engine: RankEngine, index: int, program: Program, clock: int) -> None:
        super().__init__(engine, index, program, clock)
        self.world, self.rank = engine.world, engine.rank

    def _until(self, cell: Cell[T]) -> Iterator[int]:
        if cell.value is None:
            cell.waiters.append(partial(self.world.wake, self))
            yield BLOCKED

    def _call(self, action: Action) -> Iterator[int]:
        if isinstance(action, StreamSync | EventSync | DeviceSync):
            yield START
            yield from self._await(action)
        elif isinstance(action, HostCollective):
            yield START
            yield from self._host(action)
        else:
            yield from super()._call(action)

    def _host(self, action: HostCollective) -> Iterator[int]:
        joint = self.world.joint(action.comm, self.rank)
        if action.worker < 0:
            mark = self._mark("framework", joint.comm.way.kernel)
        else:
            self._solid("framework", f"c10d::{joint.comm.way.kernel.removeprefix('gloo:')}_", action.issue)
            mark = Mark("span", joint.comm.way.kernel, action.worker, self.clock, self.clock, 0)
            self.engine.run.marks.append(mark)
        joint.arrive(self.rank, mark, self.clock)
        if not joint.free:
            yield from self._until(joint.cell)
        elif joint.cell.value is None:
            self.world.settle(joint.cell, True)
            self.world.drain()
        self.clock = mark.end = joint.leave(self.rank, action.dur)

    def _launch(self, action: Launch | GraphLaunch) -> Iterator[int]:
        call = self._open(action.api, action.lost)
        call.graph = isinstance(action, GraphLaunch)
        self._close(call, self.clock + action.call_dur + action.overhead)
        if action.overhead:
            t = call.start + action.call_dur // 2
            mark = Mark("profiler", "Activity Buffer Request", self.index, t, t + action.overhead, 0)
            self.engine.run.marks.append(mark)
        yield COMMIT
        ready = max(call.start, call.end + action.latency)
        if isinstance(action, GraphLaunch):
            self.engine.graph(action, call, ready)
        else:
            self.engine.eager(action, call, ready)

    def _copy(self, action: Copy) -> Iterator[int]:
        call = self._open("cudaMemcpy" if action.blocking else "cudaMemcpyAsync", action.lost)
        self.clock += action.call_dur
        issued = self.clock
        yield COMMIT
        done = self.engine.eager(action, call, max(call.start, issued + action.latency))
        if not action.waits:
            self._close(call, issued)
            return
        yield from self._until(done)
        tail = done.value or _Tail()
        self._close(call, max(issued, tail.time + action.return_delay))
        self._waited(call, "copy", tail)

    def _event(self, action: EventRecord | StreamWait) -> Iterator[int]:
        call = self._open(action.api if isinstance(action, EventRecord) else "cudaStreamWaitEvent")
        self._close(call, self.clock + action.dur)
        yield COMMIT
        if isinstance(action, EventRecord):
            self.engine.record(action.event, action.stream, call.correlation)
        else:
            self.engine.hold(action.event, action.stream, call)

    def _await(self, action: StreamSync | EventSync | DeviceSync) -> Iterator[int]:
        kind, engine = "explicit", self.engine
        if isinstance(action, StreamSync):
            call = self._open("cudaStreamSynchronize")
            cell = engine.reached(action.stream)
            yield from self._until(cell)
            tail = cell.value or _Tail()
        elif isinstance(action, EventSync):
            call = self._open("cudaEventSynchronize")
            tail = engine.events.get(action.event, _Tail())
            if isinstance(tail, Record):
                yield from self._until(tail.cell)
        else:
            kind = "explicit" if "Synchronize" in action.api else "alloc"
            call, commits = self._open(action.api), engine.commits
            for cell in [engine.reached(s) for s in list(engine.queues)]:
                yield from self._until(cell)
            tail = engine.last_of(commits)
        self._close(call, max(self.clock + action.dur, tail.time + action.return_delay))
        self._waited(call, kind, tail)


def simulate(scenario: RankScenario) -> RankRun:
    """Play all ranks and return all that happened."""
    return World(scenario).simulate()
