"""Simulated decodes of several tensor-parallel ranks, whose truth is known on the true clock.

    from synth import ranks

    clocks = (ranks.Clock(), ranks.Clock(offset=3_000_000, ppb=20_000))
    late = ranks.Inject(rank=1, step=2, at=4, cause="kernel", ns=50_000)
    run = ranks.simulate(ranks.decode_ranks(ranks=2, steps=5, clocks=clocks, injects=(late,)))
    truth, traces, docs = ranks.find(run), ranks.to_traces(run), ranks.to_docs(run)

    truth.instances[0].members[1].wait         # ns until the last rank arrived
    truth.lates[0].instance.last               # 1: the rank that was made late
    truth.rows[1]                              # instance of each GPU row of traces[1], -1 for all other rows
    truth.relative(1, 0, t)                    # (offset, drift in ppb) of rank 1 against rank 0
    truth.clocks[1].true(traces[1].gpu.start[0])

Smaller cases are written by hand: `Collective` among the actions, `CollectiveNode` in graphs,
`HostCollective` on hosts, `rank_scenarios` to give each rank its programs, `RankScenario` to join them.
`many` makes the traces of long runs at once, for tests of speed. Kinds of collectives are in `KINDS`;
random runs in `synth.rank_strategies`.

Limits: collectives of one group must be launched in one order on all ranks; a rank that misses one hangs
the run, which raises ValueError. Streams of graph branches should belong to that graph alone.
"""

from __future__ import annotations

from synth.ranks_actions import (
    KINDS,
    START_NS,
    Capture,
    Cause,
    Clock,
    Collective,
    CollectiveNode,
    Comm,
    Follower,
    HostCollective,
    Kind,
    Late,
    RankScenario,
    rank_scenarios,
)
from synth.ranks_decode import Decode, Inject, decode_ranks
from synth.ranks_emit import local_run, to_docs, to_traces
from synth.ranks_engine import RankRun, simulate
from synth.ranks_faults import SPIN, sleeping, spinning, with_hosts
from synth.ranks_joint import Joint
from synth.ranks_many import Many, many
from synth.ranks_truth import Instance, LateTruth, Member, RankTruth, Totals, effect, find

__all__ = [
    "KINDS",
    "SPIN",
    "START_NS",
    "Capture",
    "Cause",
    "Clock",
    "Collective",
    "CollectiveNode",
    "Comm",
    "Decode",
    "Follower",
    "HostCollective",
    "Inject",
    "Instance",
    "Joint",
    "Kind",
    "Late",
    "LateTruth",
    "Many",
    "Member",
    "RankRun",
    "RankScenario",
    "RankTruth",
    "Totals",
    "decode_ranks",
    "effect",
    "find",
    "local_run",
    "many",
    "rank_scenarios",
    "simulate",
    "sleeping",
    "spinning",
    "to_docs",
    "to_traces",
    "with_hosts",
]
