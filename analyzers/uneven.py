"""What one rank does in each step that the others do not, on its host and on its GPU, wherever that hides.

Waits show who came last, not who does more: a host that the profiler slows is late by all its work, though
the others' hosts do as much of it and are only further ahead; and work of one GPU alone makes nobody wait
where that GPU would have idled for its host. So the ranks' steps are held against each other directly.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from latencylab.analyzers.collectives import RankCollectives, kind_of_kernel
from latencylab.analyzers.host import PROFILER, SYNC, WAITING, thread_activity
from latencylab.analyzers.intervals import Intervals, cut
from latencylab.analyzers.kernels import COLLECTIVE
from latencylab.analyzers.pairing import Pairing
from latencylab.analyzers.shares import doing_name
from latencylab.analyzers.view import KindView, RankView
from latencylab.model.trace import I64

F64 = npt.NDArray[np.float64]

HOST_IDLE = "host idle: "
MEETING = "waiting in "
BEYOND = "longer than the others' in the trace"  # in every note
COMMON = "host time that the other hosts take as well, further ahead"
FEWEST = 5  # steps that tell what is usual from what is not
SURE = 5  # standard errors from which a difference is one: of some hundred causes none is by chance
WORTH = 0.005  # of the step, below which a difference is left out


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """The ns of each of `names` in each step of a rank: an array (steps, names)."""

    names: tuple[str, ...]
    ns: I64


@dataclass(frozen=True, slots=True)
class Excess:
    """What a rank does longer than the mean of the others: `us` more in each step, `within` (two standard
    errors), of `own_us`. `what` is a kernel's name, or what the host does as in `shares.doing_name`.
    """

    what: str
    us: float
    within: float
    own_us: float


@dataclass(frozen=True, slots=True)
class Uneven:
    """What the host of a rank, or its GPU, does in each step beyond the others, largest first."""

    rank: int
    on_gpu: bool
    parts: tuple[Excess, ...]

    @property
    def us(self) -> float:
        return sum(part.us for part in self.parts)

    def named(self, top: int = 1) -> str:
        """`at::cuda::spin_kernel`, `in span scheduler.run_batch`: the largest parts in words."""
        words = [kind_of_kernel(part.what) if self.on_gpu else in_words(part.what) for part in self.parts]
        return ", ".join(words[:top]) + (f" and {len(words) - top} more" if len(words) > top else "")

    def fix(self, part: Excess) -> str:
        """What to do about one part of it."""
        if self.on_gpu:
            return f"as little work in {kind_of_kernel(part.what)} on rank {self.rank} as on the others"
        return f"as little host work {in_words(part.what)} on rank {self.rank} as on the others"

    def note(self) -> str:
        """The sentence for a list of notes, in µs."""
        does = "GPU works" if self.on_gpu else "host takes"
        told = [
            f"{kind_of_kernel(part.what) if self.on_gpu else in_words(part.what)} {part.us:,.1f}"
            f" ± {part.within:,.1f}"
            for part in self.parts[:3]
        ]
        more = f"; {len(self.parts) - 3} smaller" if len(self.parts) > 3 else ""
        return (
            f"rank {self.rank}'s {does} {self.us:,.1f} µs a step {BEYOND}, whether they wait for it there or"
            f" not: {', '.join(told)}{more}"
        )


def in_words(doing: str) -> str:
    """What a host does as it stands after "takes longer"."""
    if doing.startswith("span "):
        return f"in {doing} (Python or untraced)"
    words = {"api": "in launch and other API calls", "gc": "in garbage collection"}
    return words.get(doing, f"in {doing} ops")


def matched_steps(ranks: tuple[RankCollectives, ...], pairing: Pairing) -> I64:
    """The steps of all ranks that share most of their collectives: an array (steps of the first rank, ranks),
    -1 where a rank shares none.
    """
    launched = np.stack(
        [
            np.where(row >= 0, rank.step[np.maximum(row, 0)] if len(rank) else -1, -1)
            for rank, row in zip(ranks, pairing.row.T, strict=True)
        ],
        axis=1,
    )
    first = np.unique(launched[:, 0])
    first = first[first >= 0]
    matched = np.full((len(first), len(ranks)), -1, np.int64)
    matched[:, 0] = first
    for r in range(1, len(ranks)):
        both = launched[(launched[:, [0, r]] >= 0).all(axis=1)][:, [0, r]]
        pairs, count = np.unique(both, axis=0, return_counts=True)
        pairs = pairs[np.argsort(count, kind="stable")]  # of several the last one written counts
        matched[np.searchsorted(first, pairs[:, 0]), r] = pairs[:, 1]
    return matched


def find_uneven(
    kinds: Sequence[KindView | None], steps: I64, hosts: Sequence[StepTimes]
) -> tuple[Uneven, ...]:
    """What each rank does beyond the mean of the others in the steps of a kind that all share, most first.

    `kinds` is each rank's view of that kind, `steps` the matched steps, `hosts` each rank's host times.
    Nothing where a rank has no such steps, or where they share too few.
    """
    views = [kind for kind in kinds if kind is not None and kind.by_step]
    if len(views) < len(kinds):
        return ()
    shared = np.all([np.isin(steps[:, r], view.used) for r, view in enumerate(views)], axis=0)
    steps = steps[shared]
    if len(steps) < FEWEST:
        return ()
    wall = float(np.mean((views[0].rank.steps.end - views[0].rank.steps.start)[steps[:, 0]]))
    found = []
    for on_gpu, tables in ((False, hosts), (True, [_gpu_times(view.rank) for view in views])):
        names, ns = _stacked(tables, steps)
        for r, view in enumerate(views):
            more = ns[r] - np.delete(ns, r, axis=0).mean(axis=0)
            mean, error = more.mean(axis=0), more.std(axis=0, ddof=1) / np.sqrt(len(steps))
            chosen = np.flatnonzero((mean > WORTH * wall) & (mean > SURE * error))
            parts = tuple(
                Excess(names[i], mean[i] / 1000, 2 * error[i] / 1000, ns[r][:, i].mean() / 1000)
                for i in chosen[np.argsort(-mean[chosen], kind="stable")].tolist()
            )
            if parts:
                found.append(Uneven(view.rank.trace.rank, on_gpu, parts))
    return tuple(sorted(found, key=lambda its: -its.us))


def host_excess(hosts: Sequence[StepTimes], steps: I64, place: int, its: I64) -> dict[str, float]:
    """By doing, the ns that a rank's host took longer than the mean of the others' in these of its steps, all
    together; empty where the others share none of them.
    """
    rows = steps[np.isin(steps[:, place], its) & ((steps >= 0).sum(axis=1) > 1)]
    excess: dict[str, float] = {}
    for r, table in enumerate(hosts):
        here = rows[:, r] >= 0
        others = (rows[here] >= 0).sum(axis=1) - 1
        weight = np.ones(len(others)) if r == place else -1.0 / others
        sums = weight @ table.ns[rows[here, r]]
        for name, ns in zip(table.names, sums.tolist(), strict=True):
            excess[name] = excess.get(name, 0.0) + ns
    return excess if len(rows) else {}


def owed_to_excess(
    causes: Mapping[str, float], excess: Mapping[str, float], sustained: Collection[str]
) -> dict[str, float]:
    """A late rank's causes with its host's idle charged to what its host did beyond the others', and what is
    left to COMMON; both in ns.

    What the host does longer in step after step (`sustained`) is charged first, even where the idle came
    later than it, in something else: the queue hides a delay until it is spent. Of all else no more is
    charged than idled in it. Collectives of the hosts in which nobody is waited for take all alike.
    """
    alike = {name for name in causes if name.startswith(HOST_IDLE + MEETING) and " for rank " not in name}
    host = {name: causes[name] for name in causes if name.removeprefix(HOST_IDLE) in excess or name in alike}
    left = sum(host.values())
    if left <= 0 or not excess:
        return dict(causes)
    charged: dict[str, float] = {}
    for doing in sorted(sustained, key=lambda doing: -excess.get(doing, 0.0)):
        charged[HOST_IDLE + doing] = min(max(excess.get(doing, 0.0), 0.0), left)
        left -= charged[HOST_IDLE + doing]
    beyond = {name: min(ns, excess.get(name.removeprefix(HOST_IDLE), 0.0)) for name, ns in host.items()}
    beyond = {name: ns for name, ns in beyond.items() if name not in charged and ns > 0}
    scale = min(1.0, left / sum(beyond.values())) if beyond else 0.0
    charged |= {name: ns * scale for name, ns in beyond.items()}
    charged[COMMON] = left - scale * sum(beyond.values())
    rest = {name: ns for name, ns in causes.items() if name not in host}
    return rest | {name: ns for name, ns in charged.items() if ns > 0}


def _stacked(tables: Sequence[StepTimes], steps: I64) -> tuple[list[str], F64]:
    """The ranks' tables under common names: an array (ranks, shared steps, names)."""
    names = list(dict.fromkeys(name for table in tables for name in table.names))
    place = {name: i for i, name in enumerate(names)}
    stacked = np.zeros((len(tables), len(steps), len(names)))
    for r, table in enumerate(tables):
        stacked[r][:, [place[name] for name in table.names]] = table.ns[steps[:, r]]
    return names, stacked


def host_times(view: RankView) -> StepTimes:
    """What the host did of its own in each step, on the thread that launches them, by names as in
    `shares.doing_name`. Waiting of any kind and the profiler's own work are left out.
    """
    if not len(view.steps):
        return StepTimes((), np.zeros((0, 0), np.int64))
    thread, calls, steps = view.steps.thread, view.waits.calls, view.steps
    mine = calls.thread == thread
    blocked = Intervals.union(calls.start[mine], calls.start[mine] + view.waits.blocked[mine])
    activity = thread_activity(view.trace, thread, blocked)
    start, end, step = cut(steps.host_start, steps.host_end, activity.time)
    label = activity.at(start)
    labels = [code for code in np.unique(label).tolist() if code not in (SYNC, WAITING, PROFILER)]
    ns = np.zeros((len(steps), len(labels)), np.int64)
    for i, code in enumerate(labels):
        chosen = label == code
        np.add.at(ns[:, i], step[chosen], (end - start)[chosen])
    return StepTimes(tuple(doing_name(code, activity.spans) for code in labels), ns)


def _gpu_times(view: RankView) -> StepTimes:
    """The kernels and copies of each step that are no collectives, by name."""
    work, trace = view.work, view.trace
    is_collective = np.array([name == COLLECTIVE for name in view.classes], bool)
    own = np.flatnonzero((work.step >= 0) & ~is_collective[view.op_class[work.op]])
    kernels, row = np.unique(trace.gpu.name[work.op[own]], return_inverse=True)
    ns = np.zeros((len(view.steps), len(kernels)), np.int64)
    np.add.at(ns, (work.step[own], row), work.length[own])
    return StepTimes(tuple(trace.names[kernel] for kernel in kernels.tolist()), ns)
