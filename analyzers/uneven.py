"""What one rank does in each step that the others do not, on its host and on its GPU, wherever that hides.

Waits show who came last, not who does more: a host that the profiler slows is late by all its work, though
the others' hosts do as much of it and are only further ahead; and work of one GPU alone makes nobody wait
where that GPU would have idled for its host. So the ranks' steps are held against each other directly.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from latencylab.analyzers.collectives import RankCollectives, kind_of_kernel
from latencylab.analyzers.host import PROFILER, SYNC, WAITING, thread_activity
from latencylab.analyzers.intervals import Intervals, cut
from latencylab.analyzers.kernels import COLLECTIVE
from latencylab.analyzers.pairing import Pairing
from latencylab.analyzers.shares import NO_SPAN, doing_name
from latencylab.analyzers.view import KindView, RankView
from latencylab.model.calibration import Calibration, Estimate
from latencylab.model.findings import Excess, Uneven
from latencylab.model.trace import I64, Bool
from latencylab.stats import bootstrap_mean

F64 = npt.NDArray[np.float64]

HOST_IDLE = "host idle: "
MEETING, FOR_RANK = "waiting in ", " for rank "
COMMON = f"{HOST_IDLE}work that the other hosts do as well"
FEWEST = 5  # steps that tell what is usual from what is not
WORTH = 0.005  # of the step, below which a difference is left out
RENAMED = 0.5  # of the time of work: what else differs by no more than that may be the same by another name
# A slow host: so many parts and more, most of which (by time) are slower by no more than half off the whole.
MANY, MOST, ALIKE = 5, 0.75, 0.5
# How far above 0 a mean must lie, so that of some hundred causes none does by chance: in standard errors as
# if steps were independent, quickly told, which rules most out; and times as far as its interval reaches
# down, which is as many standard errors of steps that hang together.
SURE_ERRORS = 5.0
SURE_REACH = 2.5


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """The ns of each of `names` in each step of a rank: an array (steps, names)."""

    names: tuple[str, ...]
    ns: I64


def named(its: Uneven) -> str:
    """`at::cuda::spin_kernel`, `in span scheduler.run_batch (Python or untraced) and 2 more`, or `in nearly
    all it does, 1.23 times as long`."""
    if (times := pace(its)) is not None:
        return f"in nearly all it does, {times:.2f} times as long"
    what = its.parts[0].what
    more = f" and {len(its.parts) - 1} more" if len(its.parts) > 1 else ""
    return (kind_of_kernel(what) if its.on == "gpu" else in_words(what)) + more


def pace(its: Uneven) -> float | None:
    """How many times as long as the others a host takes for its parts together, where these are many and most
    of them take longer alike: a slow core rather than more work.
    """
    if its.on != "host" or len(its.parts) < MANY:
        return None
    own = np.array([part.own_us for part in its.parts])
    others = own - np.array([part.us for part in its.parts])
    if (others <= 0).any():
        return None
    times = float(own.sum() / others.sum())
    alike = np.abs(own / others - times) <= ALIKE * (times - 1)
    return times if own[alike].sum() >= MOST * own.sum() else None


def what_to_do(its: Uneven, part: Excess) -> str:
    """The fix of one part of it."""
    if its.on == "gpu":
        return f"as little work in {kind_of_kernel(part.what)} on rank {its.rank} as on the others"
    return f"as little host work {in_words(part.what)} on rank {its.rank} as on the others"


def unprofiled_cost(its: Uneven, calibration: Calibration | None) -> Estimate | None:
    """By how much the step without the profiler is longer for it, µs; None where that was not replayed, or
    where the replay is not trusted.
    """
    if calibration is None or calibration.status != "calibrated":
        return None
    if (calibration.rank, calibration.kind) != (its.rank, its.kind):
        return None
    return calibration.even_us.get(its.on)


def in_words(doing: str) -> str:
    """What a host does as it stands after "takes longer"."""
    if doing == f"span {NO_SPAN}":
        return "outside all spans (Python or untraced)"
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
    """What each rank does beyond the others in the steps of a kind that all share, most first.

    The others are their median in each step: of many ranks that do more than a few, none stands out.

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
    sides: tuple[tuple[Literal["host", "gpu"], Sequence[StepTimes]], ...] = (
        ("host", hosts),
        ("gpu", [_gpu_times(view.rank) for view in views]),
    )
    found = []
    for on, tables in sides:
        names, ns = _stacked(tables, steps)
        for r, view in enumerate(views):
            parts = beyond(names, ns[r], np.median(np.delete(ns, r, axis=0), axis=0), WORTH * wall)
            if parts:
                us = sum(part.us for part in parts)
                found.append(Uneven(view.rank.trace.rank, view.kind or "", on, us, parts))
    return tuple(sorted(found, key=lambda its: -its.us))


def beyond(names: Sequence[str], own: F64, others: F64, worth_ns: float) -> tuple[Excess, ...]:
    """What of these a rank surely does longer than the others, largest first; arrays (steps, names), ns.

    Work under another name than theirs, as of a kernel that was chosen anew, is held against what it stands
    for. What only this rank does counts where it does more in all.
    """
    more = own - others
    alone, lacking = (others == 0).all(axis=0), (own == 0).all(axis=0)
    _hold_renamed(more, alone, lacking)
    in_all = _surely_more(more.sum(axis=1), worth_ns)
    mean = more.mean(axis=0)
    parts = []
    for i in np.argsort(-mean, kind="stable").tolist():
        if mean[i] <= worth_ns:
            break
        interval = _surely_more(more[:, i], worth_ns) if in_all or not alone[i] else None
        if interval is not None:
            parts.append(Excess(names[i], float(mean[i]) / 1000, interval, float(own[:, i].mean()) / 1000))
    return tuple(parts)


def _hold_renamed(more: F64, alone: Bool, lacking: Bool) -> None:
    """Move what the others alone do (`lacking` here) to what this rank does `alone` in about that time."""
    mean = more.mean(axis=0)
    here, there = np.flatnonzero(alone & (mean > 0)), np.flatnonzero(lacking & (mean < 0))
    rest = np.abs(mean[here][:, None] + mean[there])
    rest[rest > RENAMED * mean[here][:, None]] = np.inf
    while rest.size and np.isfinite(rest.min()):  # the most alike first
        i, j = np.unravel_index(rest.argmin(), rest.shape)
        more[:, here[i]] += more[:, there[j]]
        more[:, there[j]] = 0
        rest[i], rest[:, j] = np.inf, np.inf


def _surely_more(ns: F64, worth_ns: float) -> tuple[float, float] | None:
    """The interval of the mean of steps, µs, where that is surely above 0 and worth it; else None.

    Steps hang together, a slow one with the next, so it is that of a bootstrap of blocks of steps.
    """
    mean, error = float(ns.mean()), float(ns.std(ddof=1)) / np.sqrt(len(ns))
    if mean <= worth_ns or mean <= SURE_ERRORS * error:
        return None
    low, high = bootstrap_mean([ns / 1000]) or (mean / 1000, mean / 1000)
    return (low, high) if mean / 1000 > SURE_REACH * (mean / 1000 - low) else None


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
    rank: int, causes: Mapping[str, float], excess: Mapping[str, float], sustained: Collection[str]
) -> dict[str, float]:
    """The causes of a late rank with its host's idle charged to what its host did beyond the others', and
    what is left to COMMON; both in ns.

    What the host does longer in step after step (`sustained`) is charged first, even where the idle came
    later than it, in something else: the queue hides a delay until it is spent. Of all else no more is
    charged than idled in it. Collectives of the hosts in which nobody is waited for take all alike; and while
    the others waited there for this rank, it did what they had done before.
    """
    meetings = {name for name in causes if name.startswith(HOST_IDLE + MEETING)}
    alike = {name for name in meetings if FOR_RANK not in name or name.endswith(f"{FOR_RANK}{rank}")}
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
