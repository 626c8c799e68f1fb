"""Simulated decode traces whose truth is known: the yardstick that analyses are tested against.

A `Scenario` is a set of host threads, each a `Program` of actions (Python, Span, FrameworkOp, Launch,
GraphLaunch, Copy, events, syncs, Gc, Overhead; see `actions`). `simulate` plays it; `find` tells what is
true of it in exact ns; `to_doc`, `to_json` and `to_trace` write it down. `decode_loop` builds scenarios that
look like an engine's loop; `synth.strategies` draws random ones for hypothesis.

    from synth import Launch, Program, Python, Scenario, Span, StreamSync, find, to_doc, to_json, to_trace

    actions = (
        Launch(dur=5_000, call_dur=3_000, latency=1_000),          # the GPU runs from 4 to 9 µs
        StreamSync(dur=2_000, return_delay=1_500),                 # called at 3, returns at 10.5 µs
        Span("prepare", (Python(4_000), Launch(dur=2_000, call_dur=3_000, latency=1_000))),
    )
    truth = find(Scenario((Program(actions),)))
    truth.window.host                  # 8_500 ns, of them 3_000 inside the launch call
    truth.window.doing                 # sync_tail 1_500, span:prepare 4_000, api 3_000
    truth.syncs[0].blocked             # 6_000: the op ended 6 µs after the call began
    truth.window.blame                 # {correlation of the sync: 6_000}; blame_rest holds 2_500
    trace, data = to_trace(truth.run), to_json(to_doc(truth.run))

    truth = find(decode_loop(["prefill"] + ["nextn"] * 5, Shape(stall=True)))
    truth.steps[2].parts, truth.steps[2].legs, truth.syncs, truth.parts(lo, hi)

Keys of `doing`: "sync" (in a blocking call, until the waited-for op ended), "sync_tail" (the rest of such a
call), "api", "framework", "gc", "profiler", "span:NAME" ("span:" is outside all spans). `fold` merges the
tail into "api", or into "sync". All instants are absolute ns, as in `Trace`.
"""

from __future__ import annotations

from synth.actions import (
    KERNEL,
    MEMCPY,
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
from synth.columns import to_trace
from synth.emit import Us, permuted, shifted, to_doc, to_json
from synth.engine import Call, Mark, Op, Run, Wait, simulate
from synth.pieces import Parts, Piece, fold
from synth.steps import Extra, Leg, Shape, decode_loop, pauses
from synth.transform import rewritten, slowed, with_marks, with_profiler_overhead
from synth.truth import LegTruth, StepTruth, SyncTruth, Truth, find

__all__ = [
    "KERNEL",
    "MEMCPY",
    "MEMSET",
    "Action",
    "Api",
    "Call",
    "Copy",
    "DeviceSync",
    "EventQueryLoop",
    "EventRecord",
    "EventSync",
    "Extra",
    "FrameworkOp",
    "Gc",
    "GraphLaunch",
    "Launch",
    "Leg",
    "LegTruth",
    "Mark",
    "Node",
    "Op",
    "Overhead",
    "Parts",
    "Piece",
    "Program",
    "Python",
    "Run",
    "Scenario",
    "Shape",
    "Span",
    "StepTruth",
    "StreamSync",
    "StreamWait",
    "SyncTruth",
    "Truth",
    "Us",
    "Wait",
    "decode_loop",
    "find",
    "fold",
    "pauses",
    "permuted",
    "rewritten",
    "shifted",
    "simulate",
    "slowed",
    "to_doc",
    "to_json",
    "to_trace",
    "with_marks",
    "with_profiler_overhead",
]
