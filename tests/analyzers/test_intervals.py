"""Sets of intervals against sets of single nanoseconds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from latencylab.analyzers.intervals import Intervals, cut, exclusive

pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=12)
times = st.lists(st.integers(-5, 80), max_size=8)


def arrays(boxes: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    ordered = sorted((start, start + length) for start, length in boxes)
    start, end = np.array(ordered, np.int64).reshape(-1, 2).T
    return start, end


def points(boxes: list[tuple[int, int]]) -> set[int]:
    return {ns for start, length in boxes for ns in range(start, start + length)}


@given(pairs, times)
def test_unions(boxes: list[tuple[int, int]], at: list[int]) -> None:
    union, covered = Intervals.union(*arrays(boxes)), points(boxes)
    assert union.total == len(covered)
    assert (union.start[1:] > union.end[:-1]).all()
    moments = np.array(at, np.int64)
    assert union.holds(moments).tolist() == [time in covered for time in at]
    assert union.covered_before(moments).tolist() == [sum(ns < time for ns in covered) for time in at]


@given(pairs)
def test_exclusive_time_adds_up_to_the_union(boxes: list[tuple[int, int]]) -> None:
    own = exclusive(*arrays(boxes))
    assert (own >= 0).all()
    assert own.sum() == len(points(boxes))


@given(pairs, times)
def test_cutting_keeps_every_nanosecond(boxes: list[tuple[int, int]], at: list[int]) -> None:
    whole = Intervals.union(*arrays(boxes))
    start, end, row = cut(whole.start, whole.end, np.array(at, np.int64))
    assert (end > start).all()
    assert (end - start).sum() == whole.total
    assert (whole.start[row] <= start).all()
    assert (end <= whole.end[row]).all()
    inside = {time for time in at if any(s < time < e for s, e in zip(whole.start, whole.end, strict=True))}
    assert set(start.tolist()) == set(whole.start.tolist()) | inside
