"""Hypothesis strategies: small random scenarios, each of them valid and free of ties that nobody can judge.

Bodies begin and end with a little Python, so no two host events of a thread have the same extent; profiler
work stands alone on its thread, and only where there is one thread, for its row names none.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from synth.actions import (
    KERNEL,
    MAIN_STREAM,
    MEMSET,
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
    Node,
    Overhead,
    Program,
    Python,
    Scenario,
    Span,
    StreamSync,
    StreamWait,
)
from synth.steps import LEGS, Extra, Kind, Leg, Shape, decode_loop
from synth.transform import slowed, with_profiler_overhead

STREAMS = (MAIN_STREAM, 13)
EVENTS = ("e", "f")
BRANCH = 101  # streams of graph branches: of no other op

short = st.integers(1, 30)
op_dur = st.one_of(st.just(0), st.integers(1, 60))
streams = st.sampled_from(STREAMS)
events = st.sampled_from(EVENTS)
latencies = st.integers(0, 20)
gaps = st.integers(-20, 10)
names = st.sampled_from(("gemm", "norm", "rope", "topk"))


@st.composite
def launches(draw: st.DrawFn, early: bool = True, lost: bool = False) -> Launch:
    """A kernel or memset, at times with PDL, at times begun before its call returns."""
    call_dur = draw(short)
    kind = draw(st.sampled_from((KERNEL, KERNEL, KERNEL, MEMSET)))
    return Launch(
        dur=draw(op_dur),
        stream=draw(streams),
        name=draw(names) if kind == KERNEL else "Memset (Device)",
        call_dur=call_dur,
        latency=draw(st.integers(-call_dur, 20) if early else latencies),
        gap=draw(gaps),
        kind=kind,
        bytes=4 if kind == MEMSET else -1,
        api="cudaLaunchKernel" if kind == KERNEL else "cudaMemsetAsync",
        lost=lost and draw(st.integers(0, 5)) == 0,
    )


@st.composite
def graphs(draw: st.DrawFn, early: bool = True, lost: bool = False) -> GraphLaunch:
    """A replay of one to five nodes, at times with branches."""
    nodes: list[Node] = []
    for i in range(draw(st.integers(1, 5))):
        branch = i > 0 and draw(st.integers(0, 3)) == 0
        nodes.append(
            Node(
                dur=draw(op_dur),
                gap=0 if i == 0 else draw(gaps),
                name=draw(names),
                stream=BRANCH + i if branch else None,
                after=draw(st.integers(0, i - 1)) if branch else None,
            )
        )
    call_dur = draw(short)
    latency = draw(st.integers(-call_dur, 20) if early else latencies)
    is_lost = lost and draw(st.integers(0, 5)) == 0
    return GraphLaunch(tuple(nodes), draw(streams), call_dur, latency, lost=is_lost)


copies = st.builds(
    Copy,
    direction=st.sampled_from(("DtoH", "HtoD")),
    bytes=st.sampled_from((4, 16, 4096)),
    memory=st.sampled_from(("Pinned", "Pageable")),
    dur=op_dur,
    stream=streams,
    call_dur=short,
    latency=latencies,
    gap=st.integers(0, 5),
    blocking=st.booleans(),
    return_delay=st.integers(0, 10),
)
waits = st.one_of(
    st.builds(StreamSync, streams, short, st.integers(0, 10)),
    st.builds(EventSync, events, short, st.integers(0, 10)),
    st.builds(DeviceSync, short, st.integers(0, 10)),
    st.builds(DeviceSync, short, st.integers(0, 10), st.just("cudaFree")),
)
marks = st.one_of(
    st.builds(EventRecord, events, streams, short), st.builds(StreamWait, events, streams, short)
)
quiet = st.one_of(
    st.builds(Python, st.integers(0, 60)),
    st.builds(Api, st.sampled_from(("cudaGetDevice", "cudaFuncSetAttribute")), short),
    st.builds(Gc, short),
)


@st.composite
def loops(draw: st.DrawFn) -> list[Action]:
    """A polling loop, with other API calls around it so that its queries alone are in a row."""
    fence = Api("cudaGetDevice", 2)
    return [fence, EventQueryLoop(draw(events), draw(short), draw(st.integers(0, 10))), fence]


@st.composite
def bodies(
    draw: st.DrawFn, depth: int, early: bool, lost: bool, polls: bool, overhead: bool
) -> tuple[Action, ...]:
    kinds = ["launch"] * 4 + ["graph", "graph", "copy", "wait", "mark", "mark", "quiet", "quiet"]
    kinds += ["nest", "nest"] * (depth > 0) + ["poll"] * polls + ["overhead"] * overhead
    out: list[Action] = []
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=8)):
        if kind == "poll":
            out += draw(loops())
        elif kind == "overhead":
            out += [Python(1), Overhead(draw(short)), Python(1)]
        elif kind == "nest":
            body = draw(bodies(depth - 1, early, lost, polls, overhead))
            inner = (Python(draw(short)), *body, Python(draw(short)))
            name = draw(st.sampled_from(("a", "b")))
            out.append(draw(st.sampled_from((Span(name, inner), FrameworkOp(f"aten::{name}", inner)))))
        else:
            choice: dict[str, st.SearchStrategy[Action]] = {
                "launch": launches(early, lost), "graph": graphs(early, lost), "copy": copies,
                "wait": waits, "mark": marks, "quiet": quiet,
            }  # fmt: skip
            out.append(draw(choice[kind]))
    return tuple(out)


@st.composite
def programs(
    draw: st.DrawFn,
    max_threads: int = 2,
    early: bool = True,
    lost: bool = False,
    polls: bool = False,
    overhead: bool = True,
) -> Scenario:
    """Any small program of one or more threads, with one GPU op at least. No steps, no legs.

    `early` lets ops start within their launch calls; `lost` loses some launch records; `polls` adds
    cudaEventQuery loops; `overhead` profiler work, where there is one thread.
    """
    count = draw(st.integers(1, max_threads))
    made: list[Program] = []
    for i in range(count):
        body = draw(bodies(2, early, lost, polls, overhead and count == 1))
        if i == 0:
            body = (*draw(st.sampled_from(((), (Python(5),)))), draw(launches(early)), *body)
        made.append(Program(body, tid=100 + i, start=draw(st.integers(0, 50)), name=f"t{i}"))
    return Scenario(tuple(made), sync_records=draw(st.booleans()))


@st.composite
def legs_for(draw: st.DrawFn, kind: Kind) -> tuple[Leg, ...]:
    """The legs of a kind, of other sizes."""
    return tuple(
        replace(
            leg,
            nodes=draw(st.integers(1, 4)),
            node_dur=draw(st.integers(1, 400)),
            node_gap=draw(st.integers(-20, 30)),
            seam_kernels=draw(st.integers(0, 2)),
        )
        for leg in LEGS[kind]
    )


@st.composite
def shapes(draw: st.DrawFn, kind: Kind | None = None, stall: bool | None = None) -> Shape:
    """A loop's sizes: from GPU bound to host bound."""
    size = st.integers(2, 60)
    return Shape(
        host=draw(st.integers(5, 200)),
        call_dur=draw(size),
        graph_call_dur=draw(size),
        latency=draw(latencies),
        kernel_dur=draw(st.integers(0, 40)),
        kernel_gap=draw(st.integers(-10, 10)),
        prefill_kernels=draw(st.integers(1, 4)),
        prefill_dur=draw(st.integers(0, 300)),
        legs=draw(legs_for(kind)) if kind else None,
        stall=draw(st.booleans()) if stall is None else stall,
        stall_ops=draw(st.integers(0, 2)),
        sync_dur=draw(size),
        return_delay=draw(st.integers(0, 10)),
    )


@st.composite
def decode_loops(
    draw: st.DrawFn, max_steps: int = 4, mixed: bool = False, stall: bool | None = None, pauses: bool = True
) -> Scenario:
    """A decode loop of one kind (at times a prefill first), or of any kinds where `mixed`.

    `pauses` puts GC and profiler work into some steps, or slows the host, in some of the loops.
    """
    kind: Kind = draw(st.sampled_from(("nextn", "dspark", "decode")))
    count = draw(st.integers(1, max_steps))
    any_kind: st.SearchStrategy[Kind] = st.sampled_from(("nextn", "dspark", "decode", "prefill"))
    kinds = [draw(any_kind) for _ in range(count)] if mixed else [kind] * count
    if not mixed and draw(st.booleans()):
        kinds[0] = "prefill"
    extras: list[Extra] = []
    if pauses and draw(st.booleans()):
        action: Action = draw(st.sampled_from((Gc(90), Overhead(120))))
        step = draw(st.integers(0, count - 1))
        extras = [Extra(step, a) for a in (Python(3), action, Python(3))]
    scenario = decode_loop(kinds, draw(shapes(None if mixed else kind, stall)), extras)
    if pauses and draw(st.integers(0, 3)) == 0:
        scenario = with_profiler_overhead(slowed(scenario, 1.5, 2.5), 70, 7, draw(st.booleans()))
    return scenario
