"""Which steps are steady, and the named cause of each one that is not."""

from __future__ import annotations

import numpy as np

from latencylab.analyzers.host import GC_SPAN, owned_overhead
from latencylab.analyzers.intervals import Intervals
from latencylab.analyzers.steps import StepTable
from latencylab.model.trace import Trace

FIRST, LAST, PROFILER, GC, OUTLIER = "first", "last", "profiler", "gc", "outlier"
OUTLIER_TIMES = 3  # the median of the other steps of the kind


def left_out(trace: Trace, steps: StepTable) -> tuple[str | None, ...]:
    """Per step the cause for which it is set aside, or None for a steady one.

    The window's first and last step, those in which the launching thread did the profiler's buffer work or
    ran a garbage collection, and those over three times the median duration of the rest of their kind.
    """
    causes: list[str | None] = [None] * len(steps)
    gc = trace.matching(GC_SPAN)[trace.spans.name] & (trace.spans.thread == steps.thread)
    collections = Intervals.union(trace.spans.start[gc], trace.spans.end[gc])
    for name, cover in ((GC, collections), (PROFILER, owned_overhead(trace, steps.thread))):
        for row in np.flatnonzero(cover.within(steps.host_start, steps.host_end) > 0).tolist():
            causes[row] = name
    if causes:
        causes[0], causes[-1] = FIRST, LAST
    wall = steps.end - steps.start
    for kind in set(steps.kind):
        rows = [i for i, its in enumerate(steps.kind) if its == kind and causes[i] is None]
        if rows:
            limit = OUTLIER_TIMES * np.median(wall[rows])
            for row in rows:
                if wall[row] > limit:
                    causes[row] = OUTLIER
    return tuple(causes)
