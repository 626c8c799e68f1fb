"""What all analyses of one rank share, worked out once: `RankView`, and the steps of one kind in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from latencylab.analyzers.blame import Pieces, attribute
from latencylab.analyzers.blocking import find_blocking
from latencylab.analyzers.idle import DISPATCH, HOST, IN_GRAPH, LATENCY, UNKNOWN, split_idle
from latencylab.analyzers.intervals import cut, exclusive
from latencylab.analyzers.kernels import ClassTable, classify
from latencylab.analyzers.launches import Launches, join_launches
from latencylab.analyzers.legs import LegTable, find_legs
from latencylab.analyzers.steady import left_out
from latencylab.analyzers.steps import StepTable, find_steps
from latencylab.analyzers.waits import Waits, resolve_waits
from latencylab.model.findings import StepParts
from latencylab.model.trace import I64, Bool, Trace

GPU_CAUSES = (IN_GRAPH, DISPATCH, LATENCY)


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """The busy time of the window in disjoint pieces, none across two steps, each with the op that has it.

    Where ops overlap, the earlier one has the time.
    """

    start: I64
    end: I64
    op: I64
    step: I64

    @property
    def length(self) -> I64:
        return self.end - self.start


@dataclass(frozen=True, slots=True, eq=False)
class RankView:
    """One rank's trace with the passes that the analyses build on."""

    trace: Trace
    launches: Launches
    steps: StepTable
    left_out: tuple[str | None, ...]
    legs: LegTable
    waits: Waits
    pieces: Pieces
    work: Work
    op_class: I64  # per GPU op, a row of `classes`
    classes: tuple[str, ...]

    @classmethod
    def of(cls, trace: Trace, table: ClassTable, step_span: re.Pattern[str] | None = None) -> RankView:
        """Run the passes; `table` holds the kernel classes, and spans that match `step_span` mark steps."""
        launches = join_launches(trace)
        steps = find_steps(trace, launches, step_span)
        legs = find_legs(trace, launches, steps)
        waits = resolve_waits(trace, launches, find_blocking(trace, launches), steps, legs)
        pieces = attribute(trace, launches, split_idle(trace, launches), waits, steps)
        op_class, classes = classify(trace, table)
        return cls(
            trace=trace,
            launches=launches,
            steps=steps,
            left_out=left_out(trace, steps),
            legs=legs,
            waits=waits,
            pieces=pieces,
            work=_work(trace, steps),
            op_class=op_class,
            classes=classes,
        )

    @property
    def window(self) -> tuple[int, int]:
        """The first op's start and the last one's end, ns."""
        return int(self.trace.gpu.start[0]), int(self.trace.gpu.end.max())


def _work(trace: Trace, steps: StepTable) -> Work:
    own = exclusive(trace.gpu.start, trace.gpu.end)
    ops = np.flatnonzero(own)
    ends = trace.gpu.end[ops]
    start, end, row = cut(ends - own[ops], ends, np.concatenate([steps.start, steps.end]))
    return Work(start, end, ops[row], steps.of_gpu(start))


@dataclass(frozen=True)
class KindView:
    """The steps of one kind of a rank: `rows` of the step table, and of these the steady ones.

    Means are taken over the steady steps; where none is steady over all that were found; where none were
    found the window is the one unit.
    """

    rank: RankView
    kind: str | None
    rows: I64
    steady: I64

    @property
    def used(self) -> I64:
        """The steps that means are taken over."""
        return self.steady if len(self.steady) else self.rows

    @property
    def by_step(self) -> bool:
        """Whether the unit is the step, not the window."""
        return len(self.rows) > 0

    @property
    def units(self) -> int:
        return max(len(self.used), 1)

    def counts(self, step: I64) -> Bool:
        """Of things lying in these steps (-1: in none), those that count: of a step that is used, or all."""
        if not self.by_step:
            return np.ones(len(step), bool)
        is_used = np.zeros(len(self.rank.steps) + 1, bool)
        is_used[self.used] = True
        return is_used[step]

    @cached_property
    def pieces(self) -> Bool:
        """Which idle pieces count."""
        return self.counts(self.rank.pieces.step)

    @cached_property
    def work(self) -> Bool:
        """Which pieces of busy time count."""
        return self.counts(self.rank.work.step)

    @cached_property
    def calls(self) -> Bool:
        """Which blocking calls count."""
        return self.counts(self.rank.steps.of_host(self.rank.waits.calls.start))

    @cached_property
    def legs(self) -> Bool:
        """Which legs count."""
        return self.counts(self.rank.legs.step)

    def mean_us(self, ns: int | float) -> float:
        """A sum of ns over the units as µs of one."""
        return float(ns) / self.units / 1000

    def idle_us(self, *causes: int) -> float:
        """The mean idle of these causes."""
        pieces = self.rank.pieces
        return self.mean_us(int(pieces.length[self.pieces & np.isin(pieces.cause, causes)].sum()))


def step_sums(rank: RankView) -> dict[str, I64]:
    """Per step, in ns: wall, busy, idle and the parts of idle, named as in `StepParts`."""
    n = len(rank.steps)

    def per_step(step: I64, length: I64, chosen: npt.NDArray[np.bool_]) -> I64:
        chosen = chosen & (step >= 0)
        return np.bincount(step[chosen], length[chosen], n).astype(np.int64)

    pieces, work = rank.pieces, rank.work
    host = pieces.cause == HOST
    return {
        "wall": rank.steps.end - rank.steps.start,
        "busy": per_step(work.step, work.length, np.ones(len(work.step), bool)),
        "idle": per_step(pieces.step, pieces.length, np.ones(len(pieces), bool)),
        "idle_host": per_step(pieces.step, pieces.length, host),
        "idle_host_in_launch": per_step(pieces.step, pieces.length, pieces.in_launch),
        "idle_gpu": per_step(pieces.step, pieces.length, np.isin(pieces.cause, GPU_CAUSES)),
        "idle_unknown": per_step(pieces.step, pieces.length, pieces.cause == UNKNOWN),
    }


def step_parts(sums: dict[str, I64], rows: I64) -> StepParts:
    """The mean over these steps, in µs."""
    return StepParts(**{name: int(column[rows].sum()) / len(rows) / 1000 for name, column in sums.items()})
