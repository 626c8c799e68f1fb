"""What calibration found, as plain frozen data: the step without the profiler, and what each fix gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

SyncVerdict = Literal["hidden", "pinning", "harmful", "unclear"]
Bound = Literal["upper", "lower", "estimate"]
CalibrationStatus = Literal["calibrated", "untrusted", "uncalibrated"]


@dataclass(frozen=True, slots=True)
class Fix:
    """Something to do, and the µs per step that the trace charges to it.

    `bound` says on which side of the truth that lies: host idle is an "upper" bound, for the profiler slows
    the host; the cost of a blocking call a "lower" one, for a slowed host finds the GPU drained and waits
    less; the GPU's own idle, and what it works beyond the other ranks', is an "estimate".
    """

    what: str
    us_per_step: float
    calibrated: bool = False
    bound: Bound = "upper"
    site: str = ""  # the blocking site that it is about


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure, and the 95 % interval that the spread between requests leaves."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class SpanTime:
    """Host time per step in a span and in no inner one that was measured, µs, waiting left out: with the
    profiler, and without it."""

    span: str
    profiled_us: float
    unprofiled_us: Estimate
    factor: Estimate


@dataclass(frozen=True, slots=True)
class SiteCost:
    """A blocking site without the profiler, µs per step: how long it blocks, and what removing it gives.

    `need_us` is as in `Sync`, but replayed without the profiler; so is the verdict.
    """

    site: str
    profiled_blocked_us: float
    blocked_us: Estimate
    cost_us: Estimate
    behind_us: float | None
    need_us: float | None
    verdict: SyncVerdict


@dataclass(frozen=True, slots=True)
class Together:
    """Blocking sites that pin the host, or may, and wait one in another's place, and what removing all of
    their waits gives, µs per step: more than what each of them alone gives adds up to."""

    sites: tuple[str, ...]
    cost_us: Estimate

    @property
    def names(self) -> str:
        return names_together(self.sites)


def names_together(sites: Sequence[str]) -> str:
    """Several sites as one text; of those in one place, the calls and then the place:
    `cudaMemcpyAsync and cudaStreamSynchronize in scheduler.run_batch, 4 B DtoH Pageable; …`."""
    places: dict[str, list[str]] = {}
    for site in sites:
        call = site.replace(",", " ").split(" ", 1)[0]
        places.setdefault(site.removeprefix(call), []).append(call)
    return "; ".join(" and ".join(calls) + place for place, calls in places.items())


@dataclass(frozen=True, slots=True)
class LegTime:
    """GPU time from where it comes to a leg's span to where it comes to the next leg or step, the median in
    µs: replayed, and measured by the step clock without any profiler."""

    leg: str
    predicted_us: float
    measured_us: float

    @property
    def error_pct(self) -> float:
        return 100 * (self.predicted_us / self.measured_us - 1)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The median step with a change made to it, and by how much that is shorter, µs."""

    what: str
    step_us: Estimate
    gain_us: Estimate
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a step would be without the profiler, by a replay of the trace of the rank in front.

    `reason` says why the status is no better, or nothing. `unprofiled_step_us` is the measured median,
    `predicted_step_us` the replayed one; `error_pct` compares them, each request predicted by a map fitted on
    the other half of the requests; `blind_error_pct` does so without knowing the host's speed in the request
    predicted. `host_factor` is None where the step does not depend on the host, `gpu_factor` where no step
    shows it. Idle is mean µs per step, blame by site or doing. `together` is None where no waits hide behind
    each other. `fixes` says what each change alone gives,
    `even_us` by how much the step is shorter where this rank's "host" or "gpu" does no more than the other
    ranks' (where it does more, and the replay has all of that), `notes` what the replay leaves out.
    """

    status: CalibrationStatus
    reason: str = ""
    rank: int = 0
    kind: str | None = None
    profiled_step_us: float | None = None
    unprofiled_step_us: Estimate | None = None
    predicted_step_us: Estimate | None = None
    error_pct: float | None = None
    blind_error_pct: float | None = None
    replay_error_pct: float | None = None
    idle_host_us: Estimate | None = None
    idle_gpu_us: Estimate | None = None
    idle_host_blame_us: dict[str, Estimate] = field(default_factory=dict)
    run_ahead_us: dict[str, Estimate] = field(default_factory=dict)
    syncs: tuple[SiteCost, ...] = ()
    together: Together | None = None
    spans: tuple[SpanTime, ...] = ()
    host_factor: Estimate | None = None
    gpu_factor: float | None = None
    requests: int = 0
    steps: int = 0
    map_from: str = ""
    legs: tuple[LegTime, ...] = ()
    notes: tuple[str, ...] = ()
    fixes: tuple[Fix, ...] = ()
    even_us: dict[str, Estimate] = field(default_factory=dict)
