"""Hypothesis strategies of several ranks: small programs that never hang, clocks, captures and decodes.

All ranks of a program follow one list of collectives, each with work of its own before every one. Sizes are
a few ns, so that anything may come before or after anything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from synth.actions import (
    MAIN_STREAM,
    Action,
    DeviceSync,
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
from synth.ranks import (
    KINDS,
    START_NS,
    Capture,
    Cause,
    Clock,
    Collective,
    CollectiveNode,
    Comm,
    Decode,
    Follower,
    HostCollective,
    Inject,
    RankScenario,
    decode_ranks,
    rank_scenarios,
)

SIDE_STREAM = 13
GPU_KINDS = tuple(k for k, way in KINDS.items() if not way.host)
HOST_KINDS = tuple(k for k, way in KINDS.items() if way.host)

work = st.integers(0, 60)
short = st.integers(1, 20)
gaps = st.integers(-20, 10)


@dataclass(frozen=True, slots=True)
class _Meeting:
    """One collective of the list: what, who, how launched."""

    comm: Comm
    ranks: tuple[int, ...]
    form: str  # eager, graph, host
    stream: int = MAIN_STREAM


@st.composite
def clocks(draw: st.DrawFn, max_offset: int = 5_000_000, max_ppb: int = 50_000, knees: bool = True) -> Clock:
    """A rank's clock: now and then seconds off, now and then with a change of rate."""
    far = 3_000_000_000 if draw(st.integers(0, 5)) == 0 else max_offset
    rates = st.integers(-max_ppb, max_ppb)
    bend = ((draw(st.integers(1, 1_000_000)), draw(rates)),) if knees and draw(st.booleans()) else ()
    return Clock(draw(st.integers(-far, far)), draw(rates), START_NS, bend)


@st.composite
def _meetings(draw: st.DrawFn, world: int, sub: tuple[int, ...]) -> list[_Meeting]:
    out: list[_Meeting] = []
    everyone = tuple(range(world))
    for n in range(draw(st.integers(1, 8))):
        form = draw(st.sampled_from(("eager", "graph", "graph", "host")))
        kind = draw(st.sampled_from(HOST_KINDS if form == "host" else GPU_KINDS))
        group, ranks = draw(st.sampled_from((("tp", everyone), ("tp", everyone), ("sub", sub))))
        root = draw(st.sampled_from(ranks))
        early = draw(st.one_of(st.none(), st.integers(0, 30)))
        comm = Comm(kind, group, 8 * draw(short), root, early=early, place=(0, n))
        if kind == "send_recv":
            ranks = tuple(draw(st.lists(st.sampled_from(ranks), min_size=2, max_size=2, unique=True)))
        stream = draw(st.sampled_from((MAIN_STREAM, MAIN_STREAM, SIDE_STREAM)))
        out.append(_Meeting(comm, ranks, form, stream))
    return out


@st.composite
def _filler(draw: st.DrawFn) -> list[Action]:
    """Work of a rank's own."""
    stream = draw(st.sampled_from((MAIN_STREAM, SIDE_STREAM)))
    choices: dict[str, Action] = {
        "python": Python(draw(work)),
        "span": Span("a", (Python(draw(short)), Launch(draw(work), stream, gap=draw(gaps)), Python(1))),
        "op": FrameworkOp("aten::a", (Python(draw(short)), Launch(draw(work), stream), Python(1))),
        "gc": Gc(draw(short)),
        "sync": draw(st.sampled_from((StreamSync(stream, 3, 2), EventSync("e", 3, 2), DeviceSync(3, 2)))),
        "record": EventRecord("e", stream, 2),
        "wait": StreamWait("e", stream, 2),
    }
    kinds = draw(st.lists(st.sampled_from(sorted(choices)), max_size=3))
    return [choices[k] for k in kinds]


@st.composite
def _attend(draw: st.DrawFn, m: _Meeting, rank: int) -> Action:
    """One rank's way into a collective."""
    comm = m.comm
    if comm.way.sync == "pair":
        comm = replace(comm, peer=next(r for r in m.ranks if r != rank))
    if m.form == "host":
        return HostCollective(draw(short), comm)
    call = draw(short)
    if m.form == "eager":
        return Collective(
            draw(short), m.stream, call_dur=call, latency=draw(st.integers(0, 9)), gap=draw(gaps), comm=comm
        )
    nodes: list[Node] = [Node(draw(work), 0, "gemm") for _ in range(draw(st.integers(0, 2)))]
    nodes.append(CollectiveNode(draw(short), draw(gaps), comm=comm))
    nodes += [draw(st.sampled_from((Node, Follower)))(draw(work), draw(gaps), "norm")] * draw(
        st.integers(0, 2)
    )
    return GraphLaunch(tuple(nodes), m.stream, call, draw(st.integers(0, 9)))


@st.composite
def rank_programs(draw: st.DrawFn, max_ranks: int = 4, with_clocks: bool = True) -> RankScenario:
    """Any small program of two or more ranks that meet in any kinds of collectives."""
    world = draw(st.integers(2, max_ranks))
    first = draw(st.integers(0, world - 2))
    sub = tuple(range(first, draw(st.integers(first + 2, world))))
    meetings = draw(_meetings(world, sub))
    made: list[tuple[Program, ...]] = []
    for rank in range(world):
        actions: list[Action] = [Launch(draw(short), call_dur=2, latency=1)]
        for m in meetings:
            actions += draw(_filler())
            if rank in m.ranks:
                actions.append(draw(_attend(m, rank)))
        made.append((Program(tuple(actions), start=draw(st.integers(0, 200))),))
    own = tuple(draw(clocks()) for _ in range(world)) if with_clocks else ()
    noise = draw(st.sampled_from((0, 0, 6)))
    return RankScenario(rank_scenarios(*made), (("sub", sub),), own, (), noise, draw(st.integers(0, 99)))


@st.composite
def captures(draw: st.DrawFn, count: int) -> Capture:
    """What a profiler may miss of so many collectives; most miss nothing."""
    skip = draw(st.sampled_from((0, 0, 1, 2, 5)))
    lost = draw(st.sampled_from(((), (), (count // 2,), (count // 3, count // 3 + 1))))
    diverge = draw(st.sampled_from((None, None, None, 2 * count // 3)))
    stop = draw(st.sampled_from((None, None, count - 1)))
    return Capture(min(skip, count // 2), stop, lost, diverge)


@st.composite
def injects(draw: st.DrawFn, ranks: int, steps: int, step_size: int) -> Inject:
    """Lateness of its own of one of so many ranks, at one place."""
    causes: tuple[Cause, ...] = ("python", "blocking", "gc", "kernel")
    step, at = draw(st.integers(0, steps - 1)), draw(st.integers(0, step_size - 1))
    rank, ns = draw(st.integers(0, ranks - 1)), draw(st.integers(20_000, 400_000))
    return Inject(rank, step, at, draw(st.sampled_from(causes)), ns)


@st.composite
def decodes(
    draw: st.DrawFn, max_ranks: int = 4, max_steps: int = 4, with_captures: bool = False, late: bool = True
) -> Decode:
    """A small decode, GPU or host bound, with clocks and at times with lateness or odd captures."""
    ranks = draw(st.integers(2, max_ranks))
    d = Decode(
        ranks=ranks,
        steps=draw(st.integers(1, max_steps)),
        per_leg=draw(st.integers(1, 6)),
        seams=draw(st.integers(0, 2)),
        kind=draw(st.sampled_from(("one_shot", "two_shot", "nccl", "fused", "multimem", "push"))),
        seam_kind=draw(st.sampled_from(("nccl", "two_shot", "push"))),
        subgroup=draw(st.sampled_from(((), (), (0, 1)))),
        broadcasts=draw(st.integers(0, 2)),
        compute=draw(st.integers(500, 30_000)),
        transfer=draw(st.integers(1_500, 8_000)),
        pdl=draw(st.sampled_from((0, 1_000, 5_000))),
        waits_along=draw(st.booleans()),
        drain=draw(st.booleans()),
        host_jitter=draw(st.sampled_from((0, 2_000))),
        gpu_jitter=draw(st.sampled_from((0, 1_500))),
        clocks=tuple(draw(clocks()) for _ in range(ranks)),
        noise=draw(st.sampled_from((0, 600))),
        seed=draw(st.integers(0, 99)),
    )
    if late and draw(st.booleans()):
        d = replace(d, injects=(draw(injects(2 if d.subgroup else ranks, d.steps, d.step_size)),))
        if draw(st.booleans()) and d.subgroup:  # before the last all-reduce of the first leg
            extra = Inject(draw(st.sampled_from(d.subgroup)), 0, d.per_leg, "inherited", 50_000)
            d = replace(d, injects=(*d.injects, extra))
    if with_captures:
        count = d.steps * (d.step_size - len(d.legs))  # of a rank outside the sub-group, at the least
        d = replace(d, captures=tuple(draw(captures(count)) for _ in range(ranks)))
    return d


@st.composite
def rank_decodes(draw: st.DrawFn, /, **options: bool | int) -> RankScenario:
    """The scenario of a small decode."""
    return decode_ranks(draw(decodes(**options)))  # type: ignore[arg-type]
