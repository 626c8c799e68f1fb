"""What in a trace limits how far its numbers can be trusted, beyond what the reader repaired."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from latencylab.analyzers.blocking import CLOCK_NS
from latencylab.analyzers.launches import Launches
from latencylab.model.integrity import Issue
from latencylab.model.trace import KERNEL, Trace

KERNEL_LAUNCH = re.compile(r"LaunchKernel|GraphLaunch|LaunchCooperative")


def capture_issues(manifest: Mapping[str, Any] | None) -> Iterable[Issue]:
    """What was wrong with a capture when it was taken, as its manifest says."""
    reason = (manifest or {}).get("unusable")
    if reason:
        yield Issue("capture_unusable", "error", 1, f"the capture was marked unusable: {reason}")


def find_issues(trace: Trace, launches: Launches) -> Iterable[Issue]:
    """The issues of one rank."""
    unjoined = int((launches.call < 0).sum())
    if unjoined:
        yield Issue(
            "no_launch",
            "warning",
            unjoined,
            "GPU ops without the API call that launched them: the idle before them has no known cause",
        )
    early = trace.gpu.start[launches.first_op] < launches.start - CLOCK_NS
    if early.any():
        yield Issue(
            "clock_order",
            "warning",
            int(early.sum()),
            "GPU ops that start before their launch does: the host's and the GPU's clocks disagree",
        )
    lost = _launches_without_ops(trace, launches)
    if lost:
        yield Issue(
            "launch_without_op",
            "info",
            lost,
            "kernel launches in mid-trace whose kernels were not recorded: idle may be overstated",
        )
    if trace.stacks:
        yield Issue(
            "stacks_on",
            "warning",
            1,
            "Python stacks were recorded, which slows the host severalfold: host idle is overstated",
        )
    if trace.shapes:
        yield Issue(
            "shapes_on",
            "warning",
            1,
            "tensor shapes were recorded, which slows the host: its idle is overstated",
        )


def _launches_without_ops(trace: Trace, launches: Launches) -> int:
    """Kernel launches without an op, after the first launch that has one and before the last.

    (Before the profiler's window opens and after it closes, launches without ops are nothing unusual.)
    """
    if not len(launches) or not (trace.gpu.kind == KERNEL).any():
        return 0
    calls = np.flatnonzero(trace.matching(KERNEL_LAUNCH)[trace.api.name] & (trace.api.correlation >= 0))
    start = trace.api.start[calls]
    inside = (start > launches.start[0]) & (start < launches.start[-1])
    return int(np.isin(trace.api.correlation[calls[inside]], trace.gpu.correlation, invert=True).sum())
