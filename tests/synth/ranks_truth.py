"""What is true of a run of several ranks, in exact ns of the true clock.

Arrivals are found anew from the rows, as their definition says: max(start, running end of the stream before
it), where "before" is the order of a trace's rows.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from latencylab.model.trace import I64
from synth.engine import Op, Run
from synth.ranks_actions import Clock, Late, RankScenario
from synth.ranks_emit import kept_ops
from synth.ranks_engine import RankRun, simulate
from synth.ranks_joint import Joint


@dataclass(frozen=True, slots=True)
class Member:
    """One rank in a collective. `op` is the index of its op in the run, -1 of a host's.

    `wait` is until the last arrival (of the root, where all wait for it alone; 0 where nobody waits), and
    `transfer` from then to the end. `alone` is the part of the wait in which no other stream of the rank ran
    anything (later ops of its own stream may wait along). `recorded` says that the rank's trace holds it
    under its own name.
    """

    rank: int
    op: int
    start: int
    end: int
    arrival: int
    wait: int
    transfer: int
    alone: int
    recorded: bool


@dataclass(frozen=True, slots=True)
class Instance:
    """One collective across its ranks. `last` is the first of the ranks that arrived last.

    `step` and `at` are its place where a builder knew it, else -1.
    """

    id: int
    kind: str
    group: str
    size: int
    sync: str
    host: bool
    step: int
    at: int
    last: int
    last_arrival: int
    members: dict[int, Member]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(self.members)

    @property
    def caused(self) -> int:
        """The waits of all ranks: what the last one costs."""
        return sum(m.wait for m in self.members.values())

    @property
    def margin(self) -> int:
        """How much later the last arrived than the one before it."""
        arrivals = sorted(m.arrival for m in self.members.values())
        return arrivals[-1] - arrivals[-2] if len(arrivals) > 1 else 0


@dataclass(slots=True)
class Totals:
    """Of GPU collectives, ns."""

    wait: int = 0
    transfer: int = 0
    alone: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class LateTruth:
    """An injected lateness and the collective before which it was put."""

    late: Late
    instance: Instance

    @property
    def wait(self) -> int:
        """What the others waited there, on average."""
        others = [m.wait for m in self.instance.members.values() if m.rank != self.late.rank]
        return sum(others) // max(len(others), 1)


@dataclass(frozen=True, slots=True)
class RankTruth:
    """`rows[r]` is aligned with the GPU rows of rank r's trace: the instance of each, else -1.

    `totals` are by (step, rank), step -1 where no builder knew; `caused` is the wait owed to each rank as
    the last, summed over all members of GPU collectives.
    """

    run: RankRun
    instances: tuple[Instance, ...]
    lates: tuple[LateTruth, ...]
    totals: dict[tuple[int, int], Totals]
    caused: dict[int, int]
    rows: tuple[I64, ...]

    @property
    def clocks(self) -> tuple[Clock, ...]:
        return tuple(self.run.scenario.clock(r) for r in range(len(self.run.runs)))

    def of(self, kind: str | None = None, group: str | None = None, host: bool = False) -> list[Instance]:
        """The instances of a kind and group, of GPUs or of hosts."""
        return [
            i
            for i in self.instances
            if i.host == host and kind in (None, i.kind) and group in (None, i.group)
        ]

    def at(self, step: int, at: int) -> Instance:
        """The GPU collective at that place."""
        return next(i for i in self.instances if (i.step, i.at) == (step, at) and not i.host)

    def relative(self, rank: int, reference: int, t: int) -> tuple[int, int]:
        """(offset in ns, drift in ppb) of a rank against another at the true time t."""
        mine, other = self.clocks[rank], self.clocks[reference]
        return mine.local(t) - other.local(t), mine.rate(t) - other.rate(t)


def arrivals_of(run: Run) -> dict[int, int]:
    """Of each op, by its index: max(start, running end of its stream before it)."""
    ends: dict[int, int] = {}
    out: dict[int, int] = {}
    for op in sorted(run.ops, key=lambda o: o.key):
        before = ends.get(op.stream, op.start)
        out[op.index] = max(op.start, before)
        ends[op.stream] = max(before, op.end)
    return out


class _Others:
    """How long any stream but one runs, of one rank."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.unions: dict[int, list[tuple[int, int, int]]] = {}

    def _union(self, stream: int) -> list[tuple[int, int, int]]:
        """(start, end, length of all before) of the stretches in which another stream runs."""
        if stream not in self.unions:
            merged: list[tuple[int, int, int]] = []
            for o in sorted((o for o in self.run.ops if o.stream != stream), key=lambda o: o.key):
                if merged and o.start <= merged[-1][1]:
                    merged[-1] = merged[-1][0], max(merged[-1][1], o.end), merged[-1][2]
                else:
                    done = merged[-1][2] + merged[-1][1] - merged[-1][0] if merged else 0
                    merged.append((o.start, o.end, done))
            self.unions[stream] = merged
        return self.unions[stream]

    def before(self, stream: int, t: int) -> int:
        union = self._union(stream)
        i = bisect_right(union, (t, 1 << 62, 0)) - 1
        return 0 if i < 0 else union[i][2] + min(t, union[i][1]) - union[i][0]

    def within(self, stream: int, lo: int, hi: int) -> int:
        return self.before(stream, hi) - self.before(stream, lo)


def _instance(
    number: int,
    joint: Joint,
    arrivals: list[dict[int, int]],
    kept: list[set[int]],
    others: list[_Others],
) -> Instance:
    comm = joint.comm
    way = comm.way
    rows = {r: joint.rows[r] for r in joint.ranks if r in joint.rows}
    at = {r: arrivals[r][row.index] if isinstance(row, Op) else row.start for r, row in rows.items()}
    last = comm.root if way.sync == "root" else max(at, key=lambda r: at[r])
    members: dict[int, Member] = {}
    for r, row in rows.items():
        op = row.index if isinstance(row, Op) else -1
        until = at[r] if way.sync == "none" else max(at[r], at[last])
        there = op < 0 or op in kept[r]
        wait = until - at[r]
        alone = wait - others[r].within(row.stream, at[r], until) if isinstance(row, Op) else 0
        members[r] = Member(r, op, row.start, row.end, at[r], wait, row.end - until, alone, there)
    step, place = comm.place or (-1, -1)
    return Instance(
        number, comm.kind, comm.group, comm.size, way.sync, way.host, step, place, last, at[last], members
    )


def find(source: RankRun | RankScenario) -> RankTruth:
    """The truth of a run, or of a scenario's run."""
    run = source if isinstance(source, RankRun) else simulate(source)
    arrivals = [arrivals_of(r) for r in run.runs]
    kept = [kept_ops(run, r) for r in range(len(run.runs))]
    own = [{k.op.index for k in rows if k.name is None} for rows in kept]
    others = [_Others(r) for r in run.runs]
    instances = tuple(_instance(i, j, arrivals, own, others) for i, j in enumerate(run.joints))
    totals: dict[tuple[int, int], Totals] = {}
    caused = dict.fromkeys(range(len(run.runs)), 0)
    of_op: dict[tuple[int, int], int] = {}
    for inst in instances:
        for m in inst.members.values():
            if inst.host:
                continue
            of_op[m.rank, m.op] = inst.id
            total = totals.setdefault((inst.step, m.rank), Totals())
            total.wait, total.transfer = total.wait + m.wait, total.transfer + m.transfer
            total.alone, total.count = total.alone + m.alone, total.count + 1
            caused[inst.last] += m.wait
    rows = tuple(
        np.array([of_op.get((r, k.op.index), -1) if k.name is None else -1 for k in kept[r]], np.int64)
        for r in range(len(run.runs))
    )
    places = {(i.step, i.at): i for i in instances if not i.host}
    lates = tuple(LateTruth(late, places[late.place]) for late in run.scenario.lates)
    return RankTruth(run, instances, lates, totals, caused, rows)


def effect(scenario: RankScenario, without: RankScenario, late: Late) -> int:
    """How much later the rank arrived at the place of `late` than it does in the scenario without it."""
    had, has_not = (find(s).at(*late.place).members[late.rank].arrival for s in (scenario, without))
    return had - has_not
