"""What several ranks do together: collectives, clocks, captures. All durations are ns.

A `Collective` among the actions of a program is launched by a call of its own; a `CollectiveNode` stands in a
graph; a `HostCollective` joins host threads. What the members agree on is their `Comm`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from latencylab.model.trace import I64
from synth.actions import BASE_NS, KERNEL, MEMCPY, ORIGIN_NS, Action, Launch, Node, Program, Scenario

Sync = Literal["all", "pair", "root", "none"]
Cause = Literal["python", "blocking", "gc", "kernel", "inherited"]

START_NS = BASE_NS + ORIGIN_NS
BILLION = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to communicate.

    `sync` says who waits for whom: all members for the last, two peers for each other, all for the root, or
    nobody. Data of a peer takes `early` to `early + spread` ns to fly in, so the last rank, which finds the
    others' data there, leaves so much earlier than they do. `collective` is Kineto's name of it, of NCCL
    kernels alone. `barrier` marks what ends in a barrier. With two `flights` each rank waits for what the
    others make of the data of all.
    """

    kernel: str
    sync: Sync = "all"
    early: int = 0
    spread: int = 0
    collective: str = ""
    op: int = KERNEL
    barrier: bool = False
    host: bool = False
    flights: int = 1


_ARGS = "(ncclDevKernelArgsStorage<4096ul>)"
_REDUCE = "(sglang::RankData*, sglang::RankSignals, sglang::Signal*, __nv_bfloat16*, int, int)"
_FUSION = "flashinfer::trtllm_allreduce_fusion"
_PUSH = "<__nv_bfloat16, 4u, true>(sglang::AllReducePushParams<4u>)"
_PULL = (
    "device::AlignedVector<__nv_bfloat162, 4u>, 4u, true>, __nv_bfloat16, 4u, true>"
    "(sglang::AllReducePullParams<4u>)"
)
KINDS: dict[str, Kind] = {
    "one_shot": Kind(f"void sglang::cross_device_reduce_1stage<__nv_bfloat16, 4>{_REDUCE}"),
    "two_shot": Kind(f"void sglang::cross_device_reduce_2stage<__nv_bfloat16, 4>{_REDUCE}", barrier=True),
    "nccl": Kind(f"ncclDevKernel_AllReduce_Sum_bf16_RING_LL{_ARGS}", collective="allreduce"),
    "fused": Kind(
        f"void {_FUSION}::allreduce_fusion_kernel_oneshot_lamport<__nv_bfloat16, 4, true>",
        early=1_000,
        spread=500,
    ),
    "multimem": Kind("void multimem_all_reduce_kernel<c10::BFloat16, 16, 4>", barrier=True),
    "push": Kind(f"void sglang::all_reduce_1shot_push_kernel{_PUSH}", early=1_000, spread=500),
    "push_2": Kind(f"void sglang::all_reduce_2shot_push_kernel{_PUSH}", early=1_000, spread=500, flights=2),
    "pull": Kind(f"void sglang::all_reduce_1shot_pull_kernel<sglang::LoadStoreImpl<{_PULL}", barrier=True),
    "pull_2": Kind(f"void sglang::all_reduce_2shot_pull_kernel<sglang::LoadStoreImpl<{_PULL}", barrier=True),
    "nccl_gather": Kind(f"ncclDevKernel_AllGather_RING_LL{_ARGS}", collective="_allgather_base"),
    "send_recv": Kind(f"ncclDevKernel_SendRecv{_ARGS}", "pair", collective="send"),
    "nccl_broadcast": Kind(f"ncclDevKernel_Broadcast_RING_LL{_ARGS}", "root", collective="broadcast"),
    "put": Kind("void all_gather_put_kernel<__nv_bfloat16>", "none"),
    "copy_gather": Kind("Memcpy PtoP (Device -> Device)", "none", op=MEMCPY),
    "gloo_broadcast": Kind("gloo:broadcast", "root", host=True),
    "gloo_all_reduce": Kind("gloo:all_reduce", "all", host=True),
}
ODD_ONE = f"ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL{_ARGS}"  # of no kind: of diverged captures


@dataclass(frozen=True, slots=True)
class Comm:
    """What the members of a collective agree on, but for the `peer`, which each has of its own.

    The n-th of a group on one rank meets the n-th of that group on the others; of a send and receive, the
    n-th of the two peers. `early` replaces the kind's, without spread. `place` is (step, order in the step)
    where a builder knows it, equal on all members.
    """

    kind: str = "one_shot"
    group: str = "tp"
    size: int = 8_192
    root: int = 0
    peer: int | None = None
    early: int | None = None
    place: tuple[int, int] | None = None

    @property
    def way(self) -> Kind:
        return KINDS[self.kind]


@dataclass(frozen=True, slots=True)
class Collective(Launch):
    """An eager collective. `dur` is from the last arrival to the end; the kind names the kernel."""

    comm: Comm = field(default_factory=Comm)


@dataclass(frozen=True, slots=True)
class CollectiveNode(Node):
    """A collective in a graph, likewise."""

    comm: Comm = field(default_factory=Comm)


@dataclass(frozen=True, slots=True)
class Follower(Node):
    """A node that PDL lets start `gap` after the *start* of the node it depends on, and which waits along:
    it ends `dur` after that node's end.
    """


@dataclass(frozen=True, slots=True)
class HostCollective(Action):
    """A collective of host threads, as a framework op that lasts until it is over for this rank.

    With a `worker`, the number of another thread of the process, the calling one only issues it, in a
    framework op of `issue` ns, and waits in silence; the worker records it, as gloo's do, as an annotation.
    """

    dur: int = 20_000
    comm: Comm = field(default_factory=lambda: Comm("gloo_broadcast", "cpu", 64))
    worker: int = -1
    issue: int = 2_000


@dataclass(frozen=True, slots=True)
class Clock:
    """A rank's clock against the true one: ahead by `offset` at `origin`, gaining `ppb` ns in a second.

    `knees` are (ns after the origin, ppb from there on), in order. Times are exact integers, rounded down.
    """

    offset: int = 0
    ppb: int = 0
    origin: int = START_NS
    knees: tuple[tuple[int, int], ...] = ()

    def ahead(self, t: int) -> int:
        """Local minus true at the true time t."""
        dt = t - self.origin
        total, rate = dt * self.ppb, self.ppb
        for at, ppb in self.knees:
            total, rate = total + max(dt - at, 0) * (ppb - rate), ppb
        return self.offset + total // BILLION

    def local(self, t: int) -> int:
        return t + self.ahead(t)

    def locals(self, t: I64) -> I64:
        """The same of a column."""
        dt = t - self.origin
        total, rate = dt * self.ppb, self.ppb
        for at, ppb in self.knees:
            total, rate = total + np.maximum(dt - at, 0) * (ppb - rate), ppb
        return t + self.offset + total // BILLION

    def true(self, local: int) -> int:
        """The first true instant at which this clock shows `local` or more."""
        t = local - self.offset
        for _ in range(4):
            t = local - self.ahead(t)
        while self.local(t) < local:
            t += 1
        while self.local(t - 1) >= local:
            t -= 1
        return t

    def rate(self, t: int) -> int:
        """The ppb at the true time t."""
        return [self.ppb, *(ppb for at, ppb in self.knees if at <= t - self.origin)][-1]


@dataclass(frozen=True, slots=True)
class Capture:
    """What a rank's trace holds of what happened; counts are of its GPU collectives in order of start.

    The profiler starts as collective `skip` starts, and stops before collective `stop` does. The records of
    `lost` are missing. From `diverge` on nothing meets the other ranks any more: of three collectives one
    is missing and two have the name of another kind. `base` replaces the document's base.
    """

    skip: int = 0
    stop: int | None = None
    lost: tuple[int, ...] = ()
    diverge: int | None = None
    base: int | None = None


@dataclass(frozen=True, slots=True)
class Late:
    """Lateness put into a run: on one rank, before the collective at `place` = (step, order in it).

    `python` is a span `name` with so much Python, `gc` a collection, `blocking` a stream sync that returns
    `ns` after the stream is drained, `kernel` the kernel `name` before the collective lasting `ns` longer;
    `inherited`: a peer was late in an earlier collective of another group, of which this rank is a member.
    """

    rank: int
    place: tuple[int, int]
    cause: Cause
    ns: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class RankScenario:
    """Each rank's own scenario, and what joins them.

    `groups` are (name, ranks); "tp" and "cpu" are of all ranks where not given. Ends of synchronising
    collectives are up to `noise` ns late, drawn anew for each rank and instance. `lates` are for the record:
    their effects are in the programs.
    """

    ranks: tuple[Scenario, ...]
    groups: tuple[tuple[str, tuple[int, ...]], ...] = ()
    clocks: tuple[Clock, ...] = ()
    captures: tuple[Capture, ...] = ()
    noise: int = 600
    seed: int = 0
    lates: tuple[Late, ...] = ()

    def group(self, name: str) -> tuple[int, ...]:
        known = dict(self.groups)
        if name not in known and name not in ("tp", "cpu"):
            raise ValueError(f"no group {name!r}")
        return known.get(name, tuple(range(len(self.ranks))))

    def clock(self, rank: int) -> Clock:
        return self.clocks[rank] if rank < len(self.clocks) else Clock()

    def capture(self, rank: int) -> Capture:
        return self.captures[rank] if rank < len(self.captures) else Capture()


def rank_scenarios(*programs: tuple[Program, ...]) -> tuple[Scenario, ...]:
    """One scenario a rank from the programs of each, with a process and a device of its own."""
    world = len(programs)
    return tuple(
        Scenario(own, rank=r, world_size=world, device=r, pid=4_000 + r) for r, own in enumerate(programs)
    )
