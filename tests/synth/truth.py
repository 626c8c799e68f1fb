"""What is true of a run: its window, steps, legs and blocking calls, in exact ns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from synth.actions import Scenario
from synth.engine import Call, Mark, Op, Run, Wait, simulate
from synth.pieces import Parts, Piece, add_up, blocked_until, counts_for, judge, lay_blame, union_ns

STEP_SPAN = "scheduler.run_batch"
BIG_GRAPH = 32  # without leg spans, a replay of so many ops is a leg


@dataclass(frozen=True, slots=True)
class LegTruth:
    """What one leg span launched as graphs. `seam` is the signed time since the last leg's last op."""

    name: str
    span: str
    calls: tuple[Call, ...]
    ops: tuple[Op, ...]
    start: int
    end: int
    run_ahead: int
    seam: int | None
    seam_host: int | None


@dataclass(frozen=True, slots=True)
class StepTruth:
    """One step. `host` is its interval on the host: from its run_batch's start to the next one's."""

    index: int
    start: int
    end: int
    host: tuple[int, int]
    ops: tuple[Op, ...]
    legs: tuple[LegTruth, ...]
    parts: Parts
    kind: str | None
    gc: bool  # a collection began in the host interval, on the thread of the step's span
    profiler: bool  # likewise profiler work

    @property
    def run_ahead(self) -> int | None:
        """The least of its legs' run-ahead."""
        return min((leg.run_ahead for leg in self.legs), default=None)


@dataclass(frozen=True, slots=True)
class SyncTruth:
    """A blocking call. `blocked`, `behind`, `queued` and `need` are ns; see `sync_truth`."""

    wait: Wait
    waited: Op | None
    blocked: int
    behind_ops: tuple[Op, ...]
    behind: int
    queued: int
    need: int | None
    step: int | None

    @property
    def api(self) -> str:
        return self.wait.call.name

    @property
    def correlation(self) -> int:
        return self.wait.call.correlation


@dataclass(frozen=True, slots=True)
class Truth:
    run: Run
    start: int
    end: int
    pieces: tuple[Piece, ...]
    window: Parts
    steps: tuple[StepTruth, ...]
    legs: tuple[LegTruth, ...]
    syncs: tuple[SyncTruth, ...]
    run_ahead: dict[int, int]  # of every launch that is known: correlation -> ns, at its first op

    def parts(self, lo: int, hi: int) -> Parts:
        """The parts of any stretch [lo, hi), by pieces cut at its ends."""
        return add_up(self.pieces, lo, hi)


def leg_name(span: str) -> str | None:
    """The leg that a span stands for, or None."""
    if span == "draft" or span.startswith("step[DRAFT "):
        return "draft"
    if span == "draft_extend" or span.startswith("step[EXTEND "):
        return "extend"
    if span.startswith("step[VERIFY "):
        return "verify"
    return "decode" if span.startswith("step[DECODE ") else None


def ops_of(run: Run, call: Call) -> list[Op]:
    return [o for o in run.ops if o.call is call]


def _leg_calls(run: Run) -> list[tuple[str, str, list[Call]]]:
    """(leg, span, graph launches) of each leg span that launched a graph, in order of the first launch."""
    known = any(leg_name(s) for c in run.calls for s in c.spans)
    found: dict[object, tuple[str, str, list[Call]]] = {}
    for call in sorted(run.calls, key=lambda c: c.correlation):
        if not call.graph or call.lost or not ops_of(run, call):
            continue
        if not known:
            if len(ops_of(run, call)) >= BIG_GRAPH:
                found[("replay", call.correlation)] = ("graph", "", [call])
            continue
        for row, span in zip(call.span_ids, call.spans, strict=True):
            name = leg_name(span)
            if name is not None:
                found.setdefault(row, (name, span, []))[2].append(call)
                break
    return list(found.values())


def legs_of(run: Run, pieces: Sequence[Piece]) -> tuple[LegTruth, ...]:
    legs: list[LegTruth] = []
    for name, span, calls in _leg_calls(run):
        ops = [o for c in calls for o in ops_of(run, c)]
        first = min(ops, key=lambda o: o.key)
        end = max(o.end for o in ops)
        seam = first.start - legs[-1].end if legs else None
        host = add_up(pieces, legs[-1].end, first.start).host if legs else None
        ahead = max(0, first.start - first.call.end)
        legs.append(LegTruth(name, span, tuple(calls), tuple(ops), first.start, end, ahead, seam, host))
    return tuple(legs)


def step_spans(run: Run) -> list[Mark]:
    return sorted((m for m in run.marks if m.layer == "span" and m.name == STEP_SPAN), key=lambda m: m.start)


def steps_of(run: Run, pieces: Sequence[Piece], legs: Sequence[LegTruth]) -> tuple[StepTruth, ...]:
    """Steps by the launches that fall between one run_batch's start and the next one's, on any thread.

    A span whose interval launched nothing is no step: what came before goes on.
    """
    marks = step_spans(run)
    starts = [m.start for m in marks]
    found: list[tuple[int, Mark, tuple[int, int], list[Op]]] = []
    for i, mark in enumerate(marks):
        host = (mark.start, starts[i + 1] if i + 1 < len(starts) else run.end + 1)
        ops = [o for o in run.ops if not o.call.lost and host[0] <= o.call.start < host[1]]
        if ops:
            found.append((i, mark, host, ops))
    steps: list[StepTruth] = []
    for n, (i, mark, host, ops) in enumerate(found):
        lo = min(o.start for o in ops)
        hi = min(o.start for o in found[n + 1][3]) if n + 1 < len(found) else max(o.end for o in ops)
        mine = tuple(leg for leg in legs if host[0] <= leg.calls[0].start < host[1])
        kinds = run.scenario.kinds
        kind = kinds[i] if i < len(kinds) else None
        begun = [m for m in run.marks if host[0] <= m.start < host[1]]
        layers = {m.layer for m in begun if counts_for(run.marks, m, mark.thread)}
        flags = "gc" in layers, "profiler" in layers
        parts = add_up(pieces, lo, hi)
        steps.append(StepTruth(n, lo, hi, host, tuple(ops), mine, parts, kind, *flags))
    return tuple(steps)


def syncs_of(run: Run, legs: Sequence[LegTruth], steps: Sequence[StepTruth]) -> tuple[SyncTruth, ...]:
    ordered = sorted(run.waits, key=lambda w: (w.start, w.call.correlation))
    return tuple(sync_truth(run, w, legs, steps) for w in ordered)


def sync_truth(run: Run, wait: Wait, legs: Sequence[LegTruth], steps: Sequence[StepTruth]) -> SyncTruth:
    """Of one blocking call: the time blocked; the work `behind` (launched by a call that began after the
    launch of the waited-for op and before this call); the work `queued` at its return (launched before the
    call, not yet done); and the `need`, from its return to the return of its thread's next graph launch that
    belongs to a leg.
    """
    call, waited = wait.call, wait.waited
    before = [o for o in run.ops if o.call.correlation < call.correlation]
    after = waited.call.correlation if waited is not None else call.correlation
    behind = tuple(o for o in before if o.call.correlation > after)
    launches = [c for leg in legs for c in leg.calls if c.thread == call.thread and c.start >= wait.end]
    need = min((c.end - wait.end for c in launches), default=None)
    step = next((s.index for s in steps if s.host[0] <= wait.start < s.host[1]), None)
    queued = union_ns(before, wait.end)
    blocked = blocked_until(wait) - wait.start
    return SyncTruth(wait, waited, blocked, behind, union_ns(behind), queued, need, step)


def find(source: Scenario | Run) -> Truth:
    """The truth of a scenario, or of a run of one."""
    run = source if isinstance(source, Run) else simulate(source)
    if not run.ops:
        raise ValueError("a run without GPU ops has no window")
    pieces = tuple(lay_blame(run, judge(run)))
    lo, hi = min(o.start for o in run.ops), max(o.end for o in run.ops)
    legs = legs_of(run, pieces)
    steps = steps_of(run, pieces, legs)
    syncs = syncs_of(run, legs, steps)
    ahead: dict[int, int] = {}
    for call in run.calls:
        mine = [o for o in run.ops if o.call is call]
        if mine and not call.lost:
            ahead[call.correlation] = max(0, min(o.start for o in mine) - call.end)
    return Truth(run, lo, hi, pieces, add_up(pieces, lo, hi), steps, legs, syncs, ahead)
