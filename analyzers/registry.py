"""Every analysis of the steps of one kind: the field of `KindFindings` it fills, and what it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from latencylab.analyzers.run_ahead import summarise_legs, summarise_run_ahead
from latencylab.analyzers.shares import gpu_idle, host_blame, host_doing, kernel_classes, top_kernels
from latencylab.analyzers.syncs import summarise_syncs
from latencylab.analyzers.view import KindView
from latencylab.model.findings import Doing, GpuIdle


class Need(Enum):
    """Data that an analysis cannot do without; the value says what a trace lacks that has none."""

    LAUNCHES = "no GPU op can be joined to the API call that launched it"
    LEGS = "no leg: no graph launch in a leg span, and none of 32 ops or more"
    CALLS = "no runtime or driver API calls"


@dataclass(frozen=True, slots=True)
class Entry:
    """One analysis; it abstains with `empty` where the data lacks one of its needs."""

    field: str
    run: Callable[[KindView], Any]
    empty: Any = ()
    needs: tuple[Need, ...] = ()


REGISTRY = (
    Entry("idle_host_doing_us", host_doing, Doing(), (Need.LAUNCHES,)),
    Entry("idle_host_blame_us", host_blame, {}, (Need.LAUNCHES,)),
    Entry("idle_gpu_us", gpu_idle, GpuIdle(0.0, 0.0, 0.0), (Need.LAUNCHES,)),
    Entry("legs", summarise_legs, (), (Need.LAUNCHES, Need.LEGS)),
    Entry("run_ahead_us", summarise_run_ahead, None, (Need.LAUNCHES, Need.LEGS)),
    Entry("syncs", summarise_syncs, (), (Need.CALLS, Need.LAUNCHES)),
    Entry("kernels", kernel_classes),
    Entry("top_kernels", top_kernels),
)


def run_all(view: KindView) -> dict[str, Any]:
    """Each analysis's result by field, and under `abstained` what each one that did not run lacked."""
    has = {
        Need.LAUNCHES: len(view.rank.launches) > 0,
        Need.LEGS: bool(view.legs.any()),
        Need.CALLS: len(view.rank.trace.api) > 0,
    }
    results: dict[str, Any] = {}
    abstained: dict[str, str] = {}
    for entry in REGISTRY:
        lacking = next((need for need in entry.needs if not has[need]), None)
        if lacking is None:
            results[entry.field] = entry.run(view)
        else:
            results[entry.field] = entry.empty
            abstained[entry.field] = lacking.value
    return {**results, "abstained": abstained}
