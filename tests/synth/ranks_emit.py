"""A run of several ranks as traces in each rank's own clock, as its profiler captured them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from latencylab.model.trace import Trace
from synth.actions import KERNEL
from synth.columns import to_trace
from synth.emit import Doc, to_doc
from synth.engine import Call, Mark, Op, Run, Wait
from synth.ranks_actions import ODD_ONE, Capture, Clock, RankScenario
from synth.ranks_engine import RankRun, simulate
from synth.ranks_joint import Joint


@dataclass(frozen=True, slots=True)
class Kept:
    """A GPU op that the trace holds, in order of its rows; under another name, where `name` is one."""

    op: Op
    name: str | None = None


def collectives_of(run: RankRun, rank: int) -> list[Op]:
    """The rank's GPU collectives in order of start: what the counts of a `Capture` are about."""
    rows = [j.rows[rank] for j in run.joints if rank in j.rows]
    return sorted((r for r in rows if isinstance(r, Op)), key=lambda o: o.key)


def window(run: RankRun, rank: int) -> tuple[int, int]:
    """The true times between which the rank's profiler was on."""
    scenario, capture = run.scenario.ranks[rank], run.scenario.capture(rank)
    mine = collectives_of(run, rank) if capture.skip or capture.stop is not None else []
    lo = scenario.base + scenario.origin + min(p.start for p in scenario.programs)
    if capture.skip:
        lo = mine[capture.skip].start
    hi = run.runs[rank].end + 1
    if capture.stop is not None and capture.stop < len(mine):
        hi = mine[capture.stop].start
    return lo, hi


def kept_ops(run: RankRun, rank: int) -> list[Kept]:
    """The ops that the rank's trace holds, in the order of its rows."""
    capture = run.scenario.capture(rank)
    lo, hi = window(run, rank)
    changed = _changed(capture, collectives_of(run, rank)) if capture != Capture() else {}
    ops = [o for o in run.runs[rank].ops if lo <= o.start < hi and changed.get(o.index) != ""]
    kept = [Kept(o, changed.get(o.index)) for o in ops]
    clock = run.scenario.clock(rank)
    return sorted(kept, key=lambda k: (clock.local(k.op.start), *k.op.key[1:]))


def _changed(capture: Capture, mine: list[Op]) -> dict[int, str]:
    """Ops by index whose records are missing ("") or have another name."""
    out = {mine[n].index: "" for n in capture.lost}
    if capture.diverge is not None:
        for n, op in enumerate(mine[capture.diverge :]):
            out[op.index] = "" if n % 3 == 1 else ODD_ONE
    return out


class _Localised:
    """Rows of one rank rewritten to its own clock; rows that shared a call share its copy."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.calls: dict[int, Call] = {}

    def times(self, row: Op | Mark | Call | Wait) -> dict[str, int]:
        return {"start": self.clock.local(row.start), "end": self.clock.local(row.end)}

    def call(self, call: Call) -> Call:
        if id(call) not in self.calls:
            self.calls[id(call)] = replace(call, **self.times(call))  # type: ignore[arg-type]
        return self.calls[id(call)]

    def op(self, kept: Kept, index: int) -> Op:
        op, t = kept.op, self.times(kept.op)
        kind = op.kind if kept.name is None else KERNEL
        name = kept.name or op.name
        return replace(op, **t, index=index, name=name, kind=kind, call=self.call(op.call))  # type: ignore[arg-type]

    def mark(self, mark: Mark) -> Mark:
        call = None if mark.call is None else self.call(mark.call)
        return replace(mark, **self.times(mark), call=call)  # type: ignore[arg-type]

    def wait(self, wait: Wait) -> Wait:
        calls = tuple(self.call(c) for c in wait.calls)
        return replace(wait, **self.times(wait), call=self.call(wait.call), calls=calls)  # type: ignore[arg-type]


def local_run(run: RankRun, rank: int) -> Run:
    """What the rank's trace holds, in its own clock. Waits keep the op they waited for, on the true clock."""
    true, capture, clock = run.runs[rank], run.scenario.capture(rank), run.scenario.clock(rank)
    lo, hi = window(run, rank)
    base = true.scenario.base if capture.base is None else capture.base
    scenario = replace(true.scenario, base=base, origin=clock.local(lo) - base)
    to = _Localised(clock)
    out = Run(scenario, event_streams=dict(true.event_streams))
    out.ops = [to.op(k, i) for i, k in enumerate(kept_ops(run, rank))]
    out.marks = [to.mark(m) for m in true.marks if lo <= m.start < hi]
    out.calls = [to.call(c) for c in true.calls if lo <= c.start < hi]
    out.waits = [to.wait(w) for w in true.waits if lo <= w.start < hi]
    out.stream_waits = [to.wait(w) for w in true.stream_waits if lo <= w.start < hi]
    return out


def _run_of(source: RankRun | RankScenario) -> RankRun:
    return source if isinstance(source, RankRun) else simulate(source)


def to_traces(source: RankRun | RankScenario) -> tuple[Trace, ...]:
    """Each rank's trace in its own clock, with its process groups; eager NCCL kernels know what they are."""
    run = _run_of(source)
    return tuple(_trace(run, r) for r in range(len(run.runs)))


def _trace(run: RankRun, rank: int) -> Trace:
    trace = to_trace(local_run(run, rank))
    groups, names = group_names(run), {name: i for i, name in enumerate(trace.names)}
    gpu = replace(trace.gpu, bytes=trace.gpu.bytes.copy(), group=np.full(len(trace.gpu), -1, np.int32))
    for row, joint in _said(run, rank).items():
        gpu.bytes[row] = joint.comm.size // 2 * 2
        gpu.group[row] = names.setdefault(str(groups.index(joint.comm.group)), len(names))
    members = {str(i): run.scenario.group(g) for i, g in enumerate(groups)}
    mine = {name: ranks for name, ranks in members.items() if rank in ranks}
    return replace(trace, names=tuple(names), gpu=gpu, groups=mine)


def _said(run: RankRun, rank: int) -> dict[int, Joint]:
    """The rows of the rank's GPU ops that say what collective they are: eager NCCL kernels."""
    joints = {r.index: j for j in run.joints if isinstance(r := j.rows.get(rank), Op)}
    found = {row: (k, joints.get(k.op.index)) for row, k in enumerate(kept_ops(run, rank))}
    return {
        row: joint
        for row, (k, joint) in found.items()
        if joint is not None and joint.comm.way.collective and k.op.node < 0 and k.name is None
    }


def to_docs(source: RankRun | RankScenario, *, flows: bool = False, extras: bool = True) -> tuple[Doc, ...]:
    """Each rank's Kineto document, with its process groups; eager NCCL kernels say what they are."""
    run = _run_of(source)
    return tuple(_doc(run, r, flows, extras) for r in range(len(run.runs)))


def group_names(run: RankRun) -> list[str]:
    """All groups of GPU collectives; a group's name in a document is its place here."""
    used = sorted({j.comm.group for j in run.joints if not j.comm.way.host})
    return ["tp", *(g for g in used if g != "tp")]


def _doc(run: RankRun, rank: int, flows: bool, extras: bool) -> Doc:
    local = local_run(run, rank)
    doc = to_doc(local, flows=flows, extras=extras)
    names = group_names(run)
    members = {g: run.scenario.group(g) for g in names}
    mine = [g for g in names if rank in members[g]]
    config = [
        {
            "pg_name": str(names.index(g)),
            "pg_desc": g,
            "backend_config": "cuda:nccl",
            "pg_size": len(members[g]),
            "ranks": list(members[g]),
        }
        for g in mine
    ]
    doc["distributedInfo"] |= {"pg_count": len(mine), "pg_config": config, "nccl_version": "2.27.5"}
    rows = _gpu_events(doc)
    for row, joint in _said(run, rank).items():
        rows[row]["args"] |= _args(joint, names, members)
    return doc


def _gpu_events(doc: Doc) -> list[Doc]:
    return [e for e in doc["traceEvents"] if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]


def _args(joint: Joint, names: list[str], members: dict[str, tuple[int, ...]]) -> Doc:
    comm, ranks = joint.comm, members[joint.comm.group]
    gather = comm.kind == "nccl_gather"
    return {
        "Collective name": comm.way.collective,
        "In msg nelems": comm.size // 2,
        "Out msg nelems": comm.size // 2 * (len(ranks) if gather else 1),
        "Group size": len(ranks),
        "dtype": "BFloat16",
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": str(names.index(comm.group)),
        "Process Group Description": comm.group,
        "Process Group Ranks": str(list(ranks)),
    }
