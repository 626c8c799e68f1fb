"""What differs between two captures, base and head: plain frozen data that the passes of `diff` fill.

Every difference is head minus base, in µs per step unless its name says otherwise; what one side lacks is
None, never zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from latencylab.model.calibration import SyncVerdict
from latencylab.model.findings import Step
from latencylab.model.integrity import Status
from latencylab.model.timeline import Timeline

SiteHow = Literal["appeared", "vanished", "verdict", "same"]
KernelHow = Literal["same", "renamed", "fused", "split", "replaced", "appeared", "vanished"]

LEAST_US = 0.05  # a difference below it is rounding
_AS_FACTOR = 900.0  # %


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A field in which two captures differ so that their times say nothing of each other."""

    field: str
    base: str
    head: str


@dataclass(frozen=True, slots=True)
class Change:
    """Something that was changed between two captures: what their comparison is about.

    None stands for a side that does not have it.
    """

    field: str
    base: str | None
    head: str | None


@dataclass(frozen=True, slots=True)
class Unknown:
    """A field that could tell the captures apart, and which side ("base", "head" or "both") lacks it."""

    field: str
    lacking: str


@dataclass(frozen=True, slots=True)
class Delta:
    """A quantity on both sides, head minus base, and the interval in which that difference lies.

    The interval (95 %) says how far the noise of the steps within the two captures moves the difference; see
    `analyzers.diff_bootstrap` for what it leaves out. It is None where there is nothing to resample.
    """

    base: float | None
    head: float | None
    interval: tuple[float, float] | None = None

    @property
    def change(self) -> float | None:
        """Head minus base; None where either side has no such quantity."""
        return None if self.base is None or self.head is None else self.head - self.base

    @property
    def resolved(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.interval is not None and (self.interval[0] > 0 or self.interval[1] < 0)


@dataclass(frozen=True, slots=True)
class Row:
    """One named part of a sum."""

    name: str
    us: Delta


@dataclass(frozen=True, slots=True)
class SiteChange:
    """One blocking site: `how` it changed, its verdict on each side ("" where it is not), and its times.

    `idle_us` is the GPU idle that it owns in the trace, `blocked_us` what it waited.
    """

    site: str
    how: SiteHow
    base_verdict: SyncVerdict | Literal[""]
    head_verdict: SyncVerdict | Literal[""]
    per_step: Delta
    blocked_us: Delta
    idle_us: Delta


@dataclass(frozen=True, slots=True)
class LegChange:
    """One leg and the seam before it; a side that has no such leg has None in every quantity."""

    name: str
    gpu_us: Delta
    busy_us: Delta
    seam_us: Delta
    seam_idle_host_us: Delta
    ops: Delta
    run_ahead_us: Delta  # means over steps


@dataclass(frozen=True, slots=True)
class KernelChange:
    """Ops at the same places of one leg or seam: exclusive µs per step and their number.

    `base` and `head` are the names that stand at one such place: one each where it is the same kernel or a
    renamed one, several where kernels were fused or split, none where it appeared or vanished.
    """

    segment: str  # "draft", or "seam before draft"
    kernel_class: str
    how: KernelHow
    base: tuple[str, ...]
    head: tuple[str, ...]
    us: Delta
    ops: Delta


@dataclass(frozen=True, slots=True)
class KindChange:
    """The steps of one kind of one rank, on both sides; `main` where it fills most of both windows.

    The rows of `parts` are wall, busy and the parts of idle, `wall = busy + idle`; `blame` adds up to
    idle_host, `gpu_idle` to idle_gpu, `classes` and `kernels` each to busy, in every column and in the
    changes alike.
    """

    rank: int
    kind: str
    main: bool
    base_steps: int  # that the means are over
    head_steps: int
    parts: tuple[Row, ...]
    median_wall: Delta
    blame: tuple[Row, ...]
    gpu_idle: tuple[Row, ...]
    classes: tuple[Row, ...]
    kernels: tuple[KernelChange, ...]
    legs: tuple[LegChange, ...]
    sites: tuple[SiteChange, ...]
    run_ahead_least: Delta  # mean over steps of the least run-ahead of a step's legs

    def part(self, name: str) -> Delta:
        """One of the parts by its name, such as "idle_host"."""
        return next(row.us for row in self.parts if row.name == name)


@dataclass(frozen=True, slots=True)
class CollectivesChange:
    """Where several ranks are joined: mean µs per step over ranks, and who is late (`wait_us` caused)."""

    wait: Delta
    transfer: Delta
    kinds: tuple[Row, ...]  # the wait in each kind of collective
    skews: tuple[Row, ...]  # the median spread of arrivals of each kind
    late: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class UnprofiledChange:
    """ms per step without the profiler: the median over requests, whose number and range stand beside it."""

    step_ms: Delta
    base_requests: int
    head_requests: int
    base_range: tuple[float, float] | None
    head_range: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class CalibrationChange:
    """What calibration says of each side, without the profiler; a status is "" where an analysis has none.

    `sites` are the blocking sites with what removing each wait gives.
    """

    base_status: str
    head_status: str
    profiled_step_us: Delta
    unprofiled_step_us: Delta
    predicted_step_us: Delta
    error_pct: Delta
    idle_host_us: Delta
    idle_gpu_us: Delta
    blame: tuple[Row, ...]
    sites: tuple[Row, ...]

    @property
    def calibrated(self) -> bool:
        """Whether both sides are."""
        return self.base_status == self.head_status == "calibrated"


@dataclass(frozen=True, slots=True)
class SideFacts:
    """What a comparison says of one of its captures."""

    path: str
    manifest: dict[str, Any] | None
    integrity: Status
    device: str
    kind: str


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """The median step of one side, to be drawn with the other side's on one time axis.

    `classes` are its kernel classes, most time first; `verdicts` those of its blocking sites.
    """

    step: Step
    line: Timeline
    classes: tuple[str, ...]
    verdicts: dict[str, SyncVerdict]


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that differs between two captures; `headline` says in words what changed most, and why.

    `kinds` lists those of the rank in front first. `mismatches` is empty unless the comparison was forced.
    """

    version: str
    base: SideFacts
    head: SideFacts
    headline: str
    mismatches: tuple[Mismatch, ...]
    unknowns: tuple[Unknown, ...]
    changes: tuple[Change, ...]
    kinds: tuple[KindChange, ...]
    collectives: CollectivesChange | None
    unprofiled: UnprofiledChange | None
    calibration: CalibrationChange | None
    notes: tuple[str, ...] = ()  # what could not be compared, and why
    drawn: tuple[Drawn, Drawn] | None = field(default=None, compare=False, repr=False)


def by_effect(us: Callable[[Any], Delta]) -> Callable[[Any], tuple[float, float]]:
    """A key that sorts what has a delta by its effect, the largest first, then by its size."""

    def key(one: Any) -> tuple[float, float]:
        delta = us(one)
        return -abs((delta.head or 0.0) - (delta.base or 0.0)), -max(delta.head or 0.0, delta.base or 0.0)

    return key


def signed_percent(value: float, digits: int = 1) -> str:
    """A change in % with its sign: `+3.1 %`; a factor where that is easier to grasp: `× 115`."""
    if value >= _AS_FACTOR:
        return f"× {1 + value / 100:,.0f}"
    text = f"{abs(value):,.{digits}f} %"
    if not text.strip("0., %"):
        return text
    return f"+{text}" if value > 0 else f"\N{MINUS SIGN}{text}"


def percents(interval: tuple[float, float], digits: int = 1) -> str:
    """An interval of changes in %: `−1.2 to +4.1 %`."""
    low, high = (signed_percent(edge, digits) for edge in interval)
    return f"{low.removesuffix(' %') if high.endswith('%') else low} to {high}"
