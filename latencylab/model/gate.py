"""The gate between two commits, as plain frozen data: a run, the policy, and what was decided of them.

A run is one capture: one start of the engine, its requests without the profiler, and its trace. A run keeps
what the gate needs of a capture and no more, so that it can be stored and compared long after.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from latencylab.model.calibration import CalibrationStatus, SyncVerdict
from latencylab.model.comparison import Change, Mismatch
from latencylab.model.findings import Evidence
from latencylab.model.integrity import InputError, Status

RUN_SCHEMA = "latencylab.run/1"
GATE_SCHEMA = "latencylab.gate/1"

Decision = Literal["regression", "improvement", "unchanged", "inconclusive", "incomparable"]
Source = Literal["unprofiled", "trace"]
Relative = Literal["itself", "step", "traced step"]
Sign = Literal["lower", "higher", "none"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure that runs are compared by.

    `good` says which way is better; "none" only explains. `relative` says of what its change is a share: of
    its own value, or, where that may be next to nothing, of the step without the profiler or in the trace.
    A `count` is exact.
    """

    name: str
    title: str
    unit: str
    source: Source
    good: Sign = "lower"
    relative: Relative = "itself"
    count: bool = False


STEP = Metric("step", "step without the profiler", "ms", "unprofiled")
TRACED_STEP = Metric("traced_step", "step in the trace", "µs", "trace", good="none")
SECONDARY = (
    Metric("tpot", "time per output token", "ms", "unprofiled"),
    Metric("ttft", "time to the first token", "ms", "unprofiled"),
    Metric("accept_length", "accept length", "tokens", "unprofiled", good="none"),
    TRACED_STEP,
    Metric("busy", "GPU busy", "µs/step", "trace", relative="traced step"),
    Metric("idle_host", "host idle in the trace (upper bound)", "µs/step", "trace", relative="traced step"),
    Metric("idle_host_calibrated", "host idle, calibrated", "µs/step", "trace", relative="step"),
    Metric("wait", "wait in collectives", "µs/step", "trace", relative="traced step"),
    Metric("run_ahead", "least run-ahead", "µs", "trace", good="higher", relative="traced step"),
    Metric("pinning_sites", "sites that pin the host", "sites", "trace", count=True),
)
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in (STEP, *SECONDARY)}


@dataclass(frozen=True, slots=True)
class RunSite:
    """A site at which the host blocks, over all ranks: the worst verdict and the best evidence of any.

    `idle_us` is what the trace charges to it per step, a lower bound where it pins; `cost_us` what
    calibration says that it costs without the profiler, None where nothing calibrates it, and `together_us`
    what it costs with the sites that wait in its place.
    """

    site: str
    verdict: SyncVerdict
    evidence: Evidence
    per_step: float
    idle_us: float
    cost_us: float | None = None
    together_us: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One capture as the gate sees it.

    `requests_step_ms` are the ms per step of each unprofiled request; `request_keys`, where the workload's
    seeds are known, tell which request is which and have the same length. `step_interval_ms` is the 95 %
    interval of their mean as far as steps within the run tell it; it says nothing of other runs. `metrics`
    has the secondary figures by name (see `SECONDARY`), what is not known being absent. `steps` are the
    steady steps of the trace's main kind, of the rank that has fewest. `unusable` says why `integrity` is
    that. `conditions` must agree between runs, and `circumstances` is what a commit may change, `recorded`
    the groups of them that are known at all.
    """

    label: str
    commit: str | None = None
    created: str | None = None
    requests_step_ms: tuple[float, ...] = ()
    request_keys: tuple[str, ...] = ()
    step_interval_ms: tuple[float, float] | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    kind: str | None = None
    steps: int = 0
    sites: tuple[RunSite, ...] = ()
    calibration: CalibrationStatus = "uncalibrated"
    integrity: Status = "ok"
    unusable: str = ""
    conditions: dict[str, str] = field(default_factory=dict)
    circumstances: dict[str, str] = field(default_factory=dict)
    recorded: tuple[str, ...] = ()


def run_to_dict(run: Run) -> dict[str, Any]:
    """The run as JSON has it, with its schema."""
    plain: dict[str, Any] = msgspec.to_builtins(run)
    return {"schema": RUN_SCHEMA, **plain}


def run_from_dict(data: Any) -> Run:
    """The run that `run_to_dict` wrote; keys that are not known are passed over. Raises InputError."""
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != RUN_SCHEMA:
        raise InputError(
            f"a run of schema {schema!r} is not known to this version, which reads {RUN_SCHEMA!r}"
        )
    try:
        run = msgspec.convert(data, Run)
    except msgspec.ValidationError as error:
        raise InputError(f"not a run: {error}") from None
    if run.request_keys and len(run.request_keys) != len(run.requests_step_ms):
        raise InputError("not a run: it has not one key a request")
    if any(not 0 < ms < float("inf") for ms in run.requests_step_ms):
        raise InputError("not a run: ms per step must be above 0")
    if not all(math.isfinite(value) for value in run.metrics.values()):
        raise InputError("not a run: a metric is no number")
    return run


@dataclass(frozen=True, slots=True)
class Policy:
    """What the gate lets pass; `latencylab/policy.toml` says what each means."""

    alpha: float = 0.008
    min_effect_pct: float = 1.5
    unchanged_within_pct: float = 3.0
    min_runs: int = 3
    usual_spread_pct: float = 1.0
    known_spread_pct: float = 0.0
    few_runs_factor: float = 3.0
    fail_on_new_sites: bool = True
    site_verdicts: tuple[SyncVerdict, ...] = ("harmful", "pinning")
    site_evidence: tuple[Evidence, ...] = ("recorded", "blocked")
    site_share: float = 0.5
    site_per_step: float = 0.1
    judge: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MetricVerdict:
    """What is said of one metric; None stands for what is not known.

    `base` and `head` are geometric means over runs (means where a change is relative to the step).
    `interval_pct` has the policy's alpha of chance outside at either end; with few runs it is the 95 %
    interval that steps within the runs give. `judged` tells whether the metric decides.
    """

    metric: str
    title: str
    unit: str
    verdict: Decision
    judged: bool
    base: float | None
    head: float | None
    base_runs: int
    head_runs: int
    change_pct: float | None = None
    interval_pct: tuple[float, float] | None = None
    p_value: float | None = None
    spread_pct: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SiteVerdict:
    """What is said of one blocking site that not all runs of both sides agree on.

    `runs` of the head's `of` runs have it, with this verdict and evidence at worst. `cost_us` is its cost per
    step: calibration's word where `calibrated`, else the lower bound that the trace gives. `together_us` is
    what it costs with the sites that wait in its place, where there are such.
    """

    site: str
    decision: Decision
    verdict: SyncVerdict
    evidence: Evidence
    runs: int
    of: int
    cost_us: float
    calibrated: bool
    reason: str
    together_us: float | None = None


@dataclass(frozen=True, slots=True)
class GateResult:
    """The decision, in one line first, and all that led to it."""

    verdict: Decision
    headline: str
    base: tuple[str, ...]
    head: tuple[str, ...]
    metrics: tuple[MetricVerdict, ...]
    sites: tuple[SiteVerdict, ...]
    changes: tuple[Change, ...]
    mismatches: tuple[Mismatch, ...]
    warnings: tuple[str, ...]
    policy: Policy = field(default_factory=Policy)

    @property
    def exit_code(self) -> int:
        """0 fine, an inconclusive gate included; 1 a regression; 3 not comparable."""
        return {"regression": 1, "incomparable": 3}.get(self.verdict, 0)
