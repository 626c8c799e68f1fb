"""Sets of time intervals in int64 ns, as sorted disjoint half-open arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latencylab.model.trace import I64, Bool


def running_end(end: I64) -> I64:
    """For ops in order of start, the latest end among all before each one; int64 min before the first."""
    if not len(end):
        return end
    shifted = np.empty_like(end)
    shifted[0] = np.iinfo(np.int64).min
    np.maximum.accumulate(end[:-1], out=shifted[1:])
    return shifted


def exclusive(start: I64, end: I64) -> I64:
    """The time that each of these ops, in order of start, has to itself: the earlier one where ops overlap.

    The sum is the length of their union.
    """
    return np.maximum(end - np.maximum(start, running_end(end)), 0)


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """Disjoint intervals in order of time; `before` holds the ns covered before each one."""

    start: I64
    end: I64
    before: I64

    @classmethod
    def disjoint(cls, start: I64, end: I64) -> Intervals:
        """From arrays already sorted and disjoint."""
        before = np.zeros(len(start) + 1, np.int64)
        np.cumsum(end - start, out=before[1:])
        return cls(start, end, before)

    @classmethod
    def union(cls, start: I64, end: I64) -> Intervals:
        """The union of any intervals."""
        kept = end > start
        start, end = start[kept], end[kept]
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
        first = start > running_end(end)
        heads = np.flatnonzero(first)
        tails = np.append(heads[1:], len(start)) - 1
        return cls.disjoint(start[heads], np.maximum.accumulate(end)[tails] if len(end) else end)

    @property
    def total(self) -> int:
        return int(self.before[-1])

    def __len__(self) -> int:
        return len(self.start)

    def covered_before(self, time: I64) -> I64:
        """The ns covered before each time."""
        row = np.searchsorted(self.start, time, side="right") - 1
        inside = np.maximum(row, 0)
        if not len(self.start):
            return np.zeros_like(time)
        here = np.minimum(time, self.end[inside]) - self.start[inside]
        return np.where(row < 0, 0, self.before[inside] + here)

    def within(self, start: I64, end: I64) -> I64:
        """The ns covered within each [start, end)."""
        return self.covered_before(end) - self.covered_before(start)

    def holds(self, time: I64) -> Bool:
        """Whether each time lies in one of the intervals."""
        if not len(self.start):
            return np.zeros(len(time), bool)
        row = np.searchsorted(self.start, time, side="right") - 1
        return (row >= 0) & (time < self.end[np.maximum(row, 0)])


def cut(start: I64, end: I64, edges: I64) -> tuple[I64, I64, I64]:
    """Cut sorted disjoint intervals at each edge strictly inside one.

    Returns the pieces' start, end and the row of the interval that each is a part of.
    """
    row = np.searchsorted(start, edges, side="right") - 1
    inside = row >= 0
    row, edges = row[inside], edges[inside]
    inside = (edges > start[row]) & (edges < end[row])
    edges = np.unique(edges[inside])
    starts = np.sort(np.concatenate([start, edges]))
    rows = np.searchsorted(start, starts, side="right") - 1
    ends = end[rows]
    last_of_row = np.append(rows[1:] != rows[:-1], True) if len(rows) else np.zeros(0, bool)
    ends = np.where(last_of_row, ends, np.append(starts[1:], 0)) if len(rows) else ends
    return starts, ends, rows


def holder(start: I64, end: I64, time: I64) -> I64:
    """The row of the interval that holds each time, or -1; starts in order, intervals disjoint."""
    if not len(start):
        return np.full(len(time), -1, np.int64)
    row = np.searchsorted(start, time, side="right") - 1
    return np.where((row >= 0) & (time < end[np.maximum(row, 0)]), row, -1)
