"""Tensor-parallel decodes: every rank runs the same loop of a NEXTN step's three legs.

A leg is a graph of (kernel, all-reduce) pairs, a seam some eager kernels and all-reduces. A step begins with
host broadcasts and ends with a copy of its result, which the host reads one step later.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from synth.actions import (
    Action,
    Copy,
    EventRecord,
    EventSync,
    FrameworkOp,
    Gc,
    GraphLaunch,
    Launch,
    Node,
    Program,
    Python,
    Span,
    StreamSync,
    StreamWait,
)
from synth.ranks_actions import (
    Capture,
    Cause,
    Clock,
    Collective,
    CollectiveNode,
    Comm,
    Follower,
    HostCollective,
    Late,
    RankScenario,
    rank_scenarios,
)

COPY_STREAM = 13
WORKER = 1  # the thread that carries out the collectives of the hosts
KERNELS = ("qkv_gemm", "kda_recurrent", "o_gemm", "moe_gemm")
LEGS = ("draft", "step[VERIFY bs=1]", "draft_extend")


@dataclass(frozen=True, slots=True)
class Inject:
    """Lateness to put in before the `at`-th GPU collective of a step (None: of all) of `step` (None: all).

    A host's lateness goes before the launch that holds the collective. `inherited` needs a `subgroup` of
    which `rank` is a member: another member is late for its collective in that leg, and so both for the next.
    """

    rank: int
    step: int | None
    at: int | None
    cause: Cause
    ns: int
    name: str = "sampler.python"


@dataclass(frozen=True, slots=True)
class Decode:
    """Sizes, ns. `compute` is a kernel's, `transfer` a collective's from the last arrival to its end.

    Of three all-reduces in a graph two start `pdl` before their predecessor has ended. With `waits_along`
    the kernel after an all-reduce starts with it and waits along. `subgroup` has a `push` all-reduce of its
    own before the last of each leg. `drain` makes each step begin with a sync, so that the host is never
    ahead; with few collectives a leg the host is the slow one anyway. Jitter is drawn for each piece of work.
    `starts` are the ns after the origin at which the ranks begin (and their profilers with them).
    """

    ranks: int = 4
    steps: int = 10
    per_leg: int = 15
    legs: tuple[str, ...] = LEGS
    seams: int = 1
    kind: str = "one_shot"
    seam_kind: str = "nccl"
    subgroup: tuple[int, ...] = ()
    sub_kind: str = "push"
    broadcasts: int = 2
    compute: int = 12_000
    transfer: int = 4_000
    gap: int = 500
    pdl: int = 0
    waits_along: bool = False
    host: int = 4_000
    call: int = 3_000
    graph_call: int = 12_000
    drain: bool = False
    host_jitter: int = 0
    gpu_jitter: int = 0
    starts: tuple[int, ...] = ()
    injects: tuple[Inject, ...] = ()
    clocks: tuple[Clock, ...] = ()
    captures: tuple[Capture, ...] = ()
    noise: int = 600
    seed: int = 0

    @property
    def leg_size(self) -> int:
        """Places in a leg's graph."""
        return self.per_leg + bool(self.subgroup)

    @property
    def step_size(self) -> int:
        """Places in a step: GPU collectives of any group."""
        return len(self.legs) * (self.leg_size + self.seams)


def decode_ranks(decode: Decode | None = None, **changes: object) -> RankScenario:
    """The scenario of all ranks."""
    d = replace(decode or Decode(), **changes)  # type: ignore[arg-type]
    builders = [_Builder(d, r) for r in range(d.ranks)]
    programs = [(b.program(), Program((), 101, name="pt_gloo_runner")) for b in builders]
    lates = tuple(sorted((x for b in builders for x in b.lates), key=lambda x: (x.place, x.rank)))
    for inject in d.injects:
        if not any(inject in b.used for b in builders):
            raise ValueError(f"no place for {inject}")
    groups = (("sub", d.subgroup),) if d.subgroup else ()
    ranks = tuple(
        replace(s, kinds=("nextn",) * d.steps if d.legs == LEGS else ()) for s in rank_scenarios(*programs)
    )
    return RankScenario(ranks, groups, d.clocks, d.captures, d.noise, d.seed, lates)


class _Builder:
    """One rank's program."""

    def __init__(self, decode: Decode, rank: int) -> None:
        self.d, self.rank = decode, rank
        self.rng = random.Random(decode.seed * 1_009 + rank)
        self.step = self.at = 0
        self.lates: list[Late] = []
        self.used: set[Inject] = set()

    def program(self) -> Program:
        actions: list[Action] = []
        for step in range(self.d.steps):
            actions += self._step(step)
        actions += [self._result(self.d.steps - 1), Python(1_000)]
        starts = self.d.starts
        start = starts[self.rank] if self.rank < len(starts) else 0
        return Program(tuple(actions), 100, start, "scheduler")

    def _host(self, factor: float = 1) -> Python:
        return Python(max(2, round(self.d.host * factor)) + self.rng.randint(0, self.d.host_jitter))

    def _compute(self) -> int:
        return self.d.compute + self.rng.randint(0, self.d.gpu_jitter)

    def _step(self, i: int) -> list[Action]:
        self.step, self.at = i, 0
        d = self.d
        receive: list[Action] = [self._host(0.2)]
        for _ in range(d.broadcasts):
            receive += [
                HostCollective(comm=Comm("gloo_broadcast", "cpu", 8), worker=WORKER),
                self._host(0.2),
            ]
        body: list[Action] = [self._host()]
        if d.drain:
            body += [StreamSync(dur=6_000, return_delay=3_000), self._host(0.2)]
        for leg in d.legs:
            body += [*self._leg(leg), self._host(0.3), *self._seam(leg)]
        body += [self._host(), self._copy(), self._host()]
        out: list[Action] = [
            Span("scheduler.recv_requests", tuple(receive)),
            Span("scheduler.get_next_batch_to_run", (self._host(),)),
            Python(200),
            Span("scheduler.run_batch", tuple(body)),
            Python(200),
        ]
        return [*out, self._result(i - 1), Python(200)] if i else out

    def _place(self) -> tuple[int, int]:
        self.at += 1
        return self.step, self.at - 1

    def _leg(self, span: str) -> list[Action]:
        first = self.at
        nodes: list[Node] = []
        for n in range(self.d.per_leg):
            if n == self.d.per_leg - 1 and self.d.subgroup:
                nodes += self._pair(self._place(), self.d.sub_kind, "sub", n + 1)
            nodes += self._pair(self._place(), self.d.kind, "tp", n)
        outside = self.d.per_leg == 1 and bool(self.d.subgroup) and self.rank not in self.d.subgroup
        late = self._late_host(range(first, self.at), first + outside)
        graph = GraphLaunch(tuple(nodes), call_dur=self.d.graph_call)
        return [Span(span, (self._host(0.5), *late, graph, self._host(0.2)))]

    def _pair(self, place: tuple[int, int], kind: str, group: str, n: int) -> list[Node]:
        d, name = self.d, KERNELS[n % len(KERNELS)]
        mine = group == "tp" or self.rank in d.subgroup
        dur = self._compute() + (self._late_gpu(place, group, name) if mine else 0)
        early = d.pdl if d.pdl and n % 3 else -d.gap
        along = d.waits_along and n > 0
        kernel = Follower(dur, d.gap, name) if along else Node(dur, d.gap, name)
        if not mine:
            return [kernel, Node(d.transfer, d.gap, "local_reduce")]
        comm = Comm(kind, group, 5_120, place=place)
        return [kernel, CollectiveNode(d.transfer, -early, comm=comm)]

    def _seam(self, leg: str) -> list[Action]:
        d, out = self.d, list[Action]()
        for n in range(d.seams):
            place, name = self._place(), f"seam_{KERNELS[n % len(KERNELS)]}"
            out += self._late_host(range(place[1], place[1] + 1), place[1])
            dur = self._compute() // 4 + self._late_gpu(place, "tp", name)
            kernel = Launch(dur, name=name, call_dur=d.call, gap=d.gap)
            reduce = Collective(d.transfer, call_dur=d.call, gap=d.gap, comm=Comm(d.seam_kind, place=place))
            out += [
                FrameworkOp("aten::mm", (self._host(0.2), kernel, self._host(0.1))),
                FrameworkOp("c10d::allreduce_", (self._host(0.2), reduce, self._host(0.1))),
                self._host(0.2),
            ]
        return out

    def _note(self, inject: Inject, late: Late) -> None:
        self.used.add(inject)
        self.lates.append(late)

    def _mine(self, places: range) -> list[tuple[Inject, int]]:
        """What is injected into this step of this rank, with the place it is for."""
        return [
            (x, at)
            for x in self.d.injects
            if x.step in (None, self.step)
            for at in places
            if x.at in (None, at)
        ]

    def _late_host(self, places: range, first: int) -> list[Action]:
        """The host's lateness before the launch of these places: it shows at the first that is its own."""
        out: list[Action] = []
        found = {x: at for x, at in self._mine(places) if x.rank == self.rank}
        for x in found:
            actions: dict[str, Action] = {
                "python": Span(x.name, (Python(x.ns),)),
                "blocking": StreamSync(dur=6_000, return_delay=x.ns),
                "gc": Gc(x.ns),
            }
            if x.cause in actions:
                out += [Python(100), actions[x.cause], Python(100)]
                self._note(x, Late(self.rank, (self.step, first), x.cause, x.ns, x.name))
        return out

    def _late_gpu(self, place: tuple[int, int], group: str, kernel: str) -> int:
        """What the kernel before the collective at this place takes longer."""
        extra = 0
        for x, _ in self._mine(range(place[1], place[1] + 1)):
            if x.cause == "kernel" and x.rank == self.rank:
                extra += x.ns
                self._note(x, Late(self.rank, place, "kernel", x.ns, kernel))
        for x, _ in self._mine(range(place[1] + 1, place[1] + 2)) if group == "sub" else ():
            if x.cause != "inherited" or self.rank not in self.d.subgroup:
                continue
            if x.rank not in self.d.subgroup:
                raise ValueError(f"rank {x.rank} is not in the sub-group")
            partner = next(r for r in self.d.subgroup if r != x.rank)
            if self.rank == partner:
                extra += x.ns
                self._note(x, Late(partner, place, "kernel", x.ns, kernel))
            elif self.rank == x.rank:
                self.lates.append(
                    Late(x.rank, (place[0], place[1] + 1), "inherited", x.ns, f"rank {partner}")
                )
        return extra

    def _copy(self) -> Span:
        i, d = self.step, self.d
        copy = Copy("DtoH", 64, "Pinned", 1_500, COPY_STREAM, d.call)
        body = (
            self._host(0.1), EventRecord(f"ready{i}"), StreamWait(f"ready{i}", COPY_STREAM), copy,
            EventRecord(f"copied{i}", COPY_STREAM), self._host(0.1),
        )  # fmt: skip
        return Span("copy_result_to_cpu", body)

    def _result(self, i: int) -> Span:
        wait = EventSync(f"copied{i}", 6_000, 3_000)
        return Span("scheduler.process_batch_result", (self._host(0.2), wait, self._host(0.5)))
