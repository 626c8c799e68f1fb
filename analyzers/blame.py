"""Every piece of idle with its cause, what the launching thread did meanwhile, and why it was late."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latencylab.analyzers.host import SPAN, Activity, thread_activity
from latencylab.analyzers.idle import HOST, Idle
from latencylab.analyzers.intervals import Intervals
from latencylab.analyzers.launches import Launches
from latencylab.analyzers.steps import StepTable
from latencylab.analyzers.waits import Waits
from latencylab.model.trace import I64, MISSING, U8, Bool, Trace


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """All idle of the window in disjoint pieces, none across two steps, in order of time.

    `cause` as in `idle`; `op` ended the gap; `in_launch` lies in that op's launch call. For host pieces
    `doing` is a label (below `host.SPAN` fixed, from there on a row of `spans`) of what the op's thread
    did, and `site` the blocking site whose debt it draws on, or -1; elsewhere both are -1. `step` is the
    step whose GPU time it lies in, or -1.
    """

    start: I64
    end: I64
    cause: U8
    op: I64
    in_launch: Bool
    doing: I64
    site: I64
    step: I64
    spans: tuple[str, ...]

    @property
    def length(self) -> I64:
        return self.end - self.start

    def __len__(self) -> int:
        return len(self.start)


def attribute(trace: Trace, launches: Launches, idle: Idle, waits: Waits, steps: StepTable) -> Pieces:
    """Say of each host piece what its thread did (`doing`) and which blocking call's debt it draws on.

    Each blocking call puts the time it was blocked on its thread's debt at the moment its op was done; every
    later host piece of that thread draws on the debt, newest first, from the piece's beginning on. (The
    queue hides the first launches after a wait, so the gap comes later than the wait.)
    """
    threads = np.unique(_thread(trace, launches, idle)).tolist()
    calls = waits.calls
    activities: dict[int, Activity] = {}
    drawn: list[tuple[int, int, int]] = []
    for one in threads:
        if one == MISSING:
            continue
        mine = calls.thread == one
        blocked = Intervals.union(calls.start[mine], calls.start[mine] + waits.blocked[mine])
        activities[one] = thread_activity(trace, one, blocked)
        host = _thread(trace, launches, idle) == one
        debt = np.flatnonzero(mine & (waits.blocked > 0))
        since = calls.start[debt] + waits.blocked[debt]
        drawn += draw_on_debt(idle.start[host], idle.end[host], since, waits.blocked[debt], waits.site[debt])
    drawn_start, drawn_end, drawn_site = np.array(sorted(drawn), np.int64).reshape(-1, 3).T
    edges = [steps.start, steps.end, drawn_start, drawn_end]
    # A piece's labels are read at its start alone, so cutting at every thread's edges is harmless.
    pieces = idle.cut_at(np.concatenate(edges + [activity.time for activity in activities.values()]))
    doing = np.full(len(pieces), MISSING, np.int64)
    thread = _thread(trace, launches, pieces)
    names: dict[str, int] = {}
    for one, activity in activities.items():
        rows = np.flatnonzero(thread == one)
        label = activity.at(pieces.start[rows])
        shared = np.array([names.setdefault(name, len(names)) for name in activity.spans], np.int64)
        doing[rows] = np.where(label >= SPAN, SPAN + shared[np.maximum(label - SPAN, 0)], label)
    site = np.full(len(pieces), MISSING, np.int64)
    inside = Intervals.disjoint(drawn_start, drawn_end).holds(pieces.start) & (pieces.cause == HOST)
    site[inside] = drawn_site[np.searchsorted(drawn_start, pieces.start[inside], side="right") - 1]
    return Pieces(
        pieces.start,
        pieces.end,
        pieces.cause,
        pieces.op,
        pieces.in_launch,
        doing,
        site,
        steps.of_gpu(pieces.start),
        tuple(names),
    )


def _thread(trace: Trace, launches: Launches, idle: Idle) -> I64:
    """Per piece the thread whose launch ended a host gap, or -1."""
    thread = np.full(len(idle), MISSING, np.int64)
    host = idle.cause == HOST
    thread[host] = trace.api.thread[launches.call[idle.op[host]]]
    return thread


def draw_on_debt(start: I64, end: I64, since: I64, blocked: I64, site: I64) -> list[tuple[int, int, int]]:
    """Draw one thread's host pieces, in order of time, on the debt of its blocking calls.

    Each call was `blocked` so many ns until `since`. Returns the parts so charged as (start, end, site).
    """
    order = np.argsort(since, kind="stable")
    columns = (column[order].tolist() for column in (since, blocked, site))
    coming = list(zip(*columns, strict=True))[::-1]
    debts: list[list[int]] = []  # what is left, and the site; the newest last
    parts = []
    for at, until in zip(start.tolist(), end.tolist(), strict=True):
        while coming and coming[-1][0] <= at:
            _, left, its_site = coming.pop()
            debts.append([left, its_site])
        while debts and at < until:
            spent = min(debts[-1][0], until - at)
            parts.append((at, at + spent, debts[-1][1]))
            at += spent
            debts[-1][0] -= spent
            if not debts[-1][0]:
                debts.pop()
    return parts
