"""Decode loops: programs shaped after an overlapped scheduler's, one `scheduler.run_batch` a step.

The thread launches step i, then reads the result of step i - 1 (`cudaEventSynchronize` on its copy, hidden
behind the newer work). `Shape` sets the sizes; `decode_loop` builds a scenario of one thread from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from synth.actions import (
    MAIN_STREAM,
    Action,
    Copy,
    EventRecord,
    EventSync,
    FrameworkOp,
    Gc,
    GraphLaunch,
    Launch,
    Memory,
    Node,
    Overhead,
    Program,
    Python,
    Scenario,
    Span,
    StreamSync,
    StreamWait,
)

Kind = Literal["nextn", "dspark", "decode", "prefill"]

COPY_STREAM = 13  # the result's copy
SIDE_STREAM = 17  # the injected stall's copy


@dataclass(frozen=True, slots=True)
class Leg:
    """One leg: its span, its graph's nodes, and the eager kernels of the seam after it."""

    span: str
    nodes: int = 4
    node_dur: int = 20_000
    node_gap: int = 500  # negative: PDL
    seam_kernels: int = 2
    metadata_graph: int = 0  # nodes of a small graph in the seam after it, outside the leg span


NEXTN = (
    Leg("draft", nodes=3, metadata_graph=2),
    Leg("step[VERIFY bs=1]", nodes=6),
    Leg("draft_extend", nodes=2, seam_kernels=1),
)
DSPARK = (Leg("step[DRAFT bs=1]", nodes=3, metadata_graph=2), Leg("step[VERIFY bs=1]", nodes=6))
DECODE = (Leg("step[DECODE bs=1]", nodes=6),)
PREFILL_SPAN = "step[EXTEND bs=1]"
LEGS: dict[Kind, tuple[Leg, ...]] = {"nextn": NEXTN, "dspark": DSPARK, "decode": DECODE, "prefill": ()}


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a loop, ns. `host` is each stretch of Python; `legs` replaces the legs of every kind but
    prefill, which launches `prefill_kernels` eager kernels.

    `stall` makes each run_batch begin with a 16-byte copy to pinned memory on a side stream and a
    cudaStreamSynchronize on it. The copy waits for the last step's result, which is there before the
    draft extend leg (of kinds without one: at the end of the last leg). To memory that is `Pageable` the copy
    itself blocks, and the synchronisation after it finds nothing more to wait for.
    """

    host: int = 10_000
    call_dur: int = 3_000
    graph_call_dur: int = 12_000
    latency: int = 1_500
    kernel_dur: int = 2_000
    kernel_gap: int = 700
    prefill_kernels: int = 6
    prefill_dur: int = 60_000
    legs: tuple[Leg, ...] | None = None
    stall: bool = False
    stall_memory: Memory = "Pinned"
    stall_ops: int = 3  # framework ops after it
    sync_dur: int = 6_000
    return_delay: int = 3_000


@dataclass(frozen=True, slots=True)
class Extra:
    """Something in one step only, just before its run_batch's first leg."""

    step: int
    action: Action


def decode_loop(
    kinds: Sequence[Kind], shape: Shape | None = None, extras: Sequence[Extra] = (), **scenario: object
) -> Scenario:
    """A scenario of one thread that runs one step of each of `kinds`, and reads the last result."""
    builder = _Loop(shape or Shape())
    actions: list[Action] = []
    for i, kind in enumerate(kinds):
        own = tuple(e.action for e in extras if e.step == i)
        actions += builder.step(i, kind, own)
    actions += [builder.result(len(kinds) - 1), Python(1_000)]
    program = Program(tuple(actions), name="scheduler")
    return replace(Scenario((program,), kinds=tuple(kinds)), **scenario)  # type: ignore[arg-type]


def pauses(every: int, steps: int, gc: int = 0, overhead: int = 0) -> tuple[Extra, ...]:
    """A GC pause and / or profiler buffer work in every so many steps."""
    actions: list[Action] = [Gc(gc)] if gc else []
    actions += [Overhead(overhead)] if overhead else []
    return tuple(Extra(i, a) for i in range(0, steps, every) for a in (Python(10), *actions, Python(10)))


class _Loop:
    def __init__(self, shape: Shape) -> None:
        self.s = shape

    def step(self, i: int, kind: Kind, extras: tuple[Action, ...]) -> list[Action]:
        body: list[Action] = [self.host()]
        if self.s.stall:
            body += self.stall(i)
        body += [*extras, *self.eager("prepare", 1)]
        body += self.prefill(i) if kind == "prefill" else self.legs(i, self.s.legs or LEGS[kind])
        body += [self.host(), self.copy_result(i), self.host()]
        out: list[Action] = [
            Span("scheduler.get_next_batch_to_run", (self.host(),)),
            Python(200),
            Span("scheduler.run_batch", tuple(body)),
            Python(200),
        ]
        if i > 0:
            out += [self.result(i - 1), Python(200)]
        return out

    def host(self, factor: float = 1) -> Python:
        return Python(max(2, round(self.s.host * factor)))

    def kernel(self, name: str, dur: int | None = None) -> Launch:
        s = self.s
        dur = s.kernel_dur if dur is None else dur
        return Launch(dur, MAIN_STREAM, name, s.call_dur, s.latency, s.kernel_gap)

    def eager(self, name: str, count: int) -> list[Action]:
        """Framework ops with one kernel each, Python between."""
        out: list[Action] = []
        for n in range(count):
            body = (self.host(0.2), self.kernel(f"{name}_kernel_{n}"), self.host(0.1))
            out += [FrameworkOp(f"aten::{name}", body), self.host(0.2)]
        return out

    def replay(self, name: str, count: int, dur: int, gap: int) -> GraphLaunch:
        s = self.s
        nodes = tuple(Node(dur, 0 if n == 0 else gap, f"{name}_{n}") for n in range(count))
        return GraphLaunch(nodes, MAIN_STREAM, s.graph_call_dur, s.latency)

    def legs(self, i: int, legs: Sequence[Leg]) -> list[Action]:
        out: list[Action] = []
        for leg in legs:
            name = leg.span.replace("step[", "").split(" ")[0].lower()
            if leg.span == "draft_extend":
                out += self.publish(i)
            graph = self.replay(name, leg.nodes, leg.node_dur, leg.node_gap)
            out.append(Span(leg.span, (self.host(0.5), graph, self.host(0.2))))
            out.append(self.host(0.3))
            out += self.eager(f"{name}_seam", leg.seam_kernels)
            if leg.metadata_graph:
                out += [self.replay("metadata", leg.metadata_graph, self.s.kernel_dur, 300), self.host(0.1)]
        if not any(leg.span == "draft_extend" for leg in legs):
            out += self.publish(i)
        return out

    def prefill(self, i: int) -> list[Action]:
        body: list[Action] = []
        for n in range(self.s.prefill_kernels):
            body += [self.host(0.1), self.kernel(f"prefill_{n}", self.s.prefill_dur)]
        return [Span(PREFILL_SPAN, (*body, self.host(0.1))), self.host(0.1), *self.publish(i)]

    def publish(self, i: int) -> list[Action]:
        """Marks the instant at which the step's result is on the device."""
        return [EventRecord(f"accept{i}")] if self.s.stall else []

    def stall(self, i: int) -> list[Action]:
        """The blocking read: nothing to wait for in the first step, but read all the same."""
        s = self.s
        copy = Copy("DtoH", 16, s.stall_memory, 1_500, SIDE_STREAM, s.call_dur, s.latency)
        wait = StreamSync(SIDE_STREAM, s.sync_dur, s.return_delay)
        out: list[Action] = [StreamWait(f"accept{i - 1}", SIDE_STREAM), copy, Python(500), wait]
        for _ in range(s.stall_ops):
            out += [FrameworkOp("aten::to", (self.host(0.1),)), self.host(0.1)]
        return out

    def copy_result(self, i: int) -> Span:
        copy = Copy("DtoH", 64, "Pinned", 1_500, COPY_STREAM, self.s.call_dur, self.s.latency)
        body = (
            self.host(0.1), EventRecord(f"ready{i}"), StreamWait(f"ready{i}", COPY_STREAM), copy,
            EventRecord(f"copied{i}", COPY_STREAM), self.host(0.1),
        )  # fmt: skip
        return Span("copy_result_to_cpu", body)

    def result(self, i: int) -> Span:
        wait = EventSync(f"copied{i}", self.s.sync_dur, self.s.return_delay)
        return Span("scheduler.process_batch_result", (self.host(0.2), wait, self.host(0.5)))
