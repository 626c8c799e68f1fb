"""What the analyses found, as plain frozen data; the names follow the output contract.

Times are in µs. Means over steps are summed in integer ns before they are divided, so
wall = busy + idle and idle = host + gpu + unknown hold to float precision.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal

from latencylab.model.calibration import Calibration, Fix, SyncVerdict
from latencylab.model.integrity import Integrity
from latencylab.model.rank_timeline import RankTimeline
from latencylab.model.timeline import Timeline

SyncKind = Literal["explicit", "copy", "alloc"]
Evidence = Literal["recorded", "blocked", "eliminated", "unknown"]
Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The sentences at the top of the page, the first of which says most, how sure they are, and why they are
    not surer."""

    sentences: tuple[str, ...]
    confidence: Confidence
    reasons: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All sentences in one line."""
        return " ".join(self.sentences)


@dataclass(frozen=True, slots=True)
class WindowParts:
    """Totals from the first GPU op's start to the last one's end."""

    wall: float
    busy: float
    idle: float
    idle_host: float
    idle_host_in_launch: float
    idle_gpu: float
    idle_unknown: float


@dataclass(frozen=True, slots=True)
class StepParts(WindowParts):
    """Means over steady steps. `collective_wait`, a part of busy, is None where ranks were not aligned."""

    collective_wait: float | None = None


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    p10: float
    p90: float


@dataclass(frozen=True, slots=True)
class Steps:
    """How many steps of this kind were found, how many are steady, and why the others are not.

    `modes_us` holds the two centres where the steady steps' durations fall into two modes.
    """

    found: int
    steady: int
    source: str
    left_out: dict[str, int]
    wall_us: Spread | None
    modes_us: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Doing:
    """What the launching thread did while the GPU waited for it, µs per step; adds up to idle_host."""

    sync: float = 0.0
    api: float = 0.0
    framework: float = 0.0
    span: dict[str, float] = field(default_factory=dict)
    gc: float = 0.0
    waiting: float = 0.0
    profiler: float = 0.0


@dataclass(frozen=True, slots=True)
class GpuIdle:
    in_graph: float
    dispatch: float
    launch_latency: float


@dataclass(frozen=True, slots=True)
class Leg:
    """One graph-launched part of a step: µs per step from its first op's start to its last op's end.

    `seam_us` is the time from the last leg's last op to this leg's first; `seam_idle_host_us` its host idle.
    """

    name: str
    gpu_us: float
    busy_us: float
    ops: float
    launches: float
    run_ahead_us: float | None
    seam_us: float | None
    seam_idle_host_us: float | None


@dataclass(frozen=True, slots=True)
class RunAhead:
    """Median over all legs' first ops, and the 10th percentile of the steps' least."""

    median: float
    p10: float


@dataclass(frozen=True, slots=True)
class Sync:
    """One site at which the host blocks, over all steady steps.

    Times are µs per step, or medians per call where they belong to a call (`call_us`, `behind_us`, `need_us`,
    `queued_us`). `need_us` is half of what the trace shows, since the profiler slows the host. Where the step
    is calibrated, need and verdict are those without the profiler, and so are `unprofiled_blocked_us` and
    `cost_us`: how long the site blocks, and by how much the step is shorter without its wait.
    """

    site: str
    api: str
    kind: SyncKind
    span: str  # span path, outermost first, " > " between
    op: str  # framework op path, of the copy it reads where it has none
    direction: str  # of the copy it reads: "DtoH pinned", or ""
    bytes: int | None
    seam: str  # the leg whose seam it stands in, or ""
    frames: tuple[str, ...]
    waits_for: str  # name of the op waited for, or ""
    calls: int
    per_step: float
    call_us: float
    blocked_us: float
    idle_us: float
    behind_us: float | None
    need_us: float | None
    queued_us: float | None
    evidence: Evidence  # the best of any call
    verdict: SyncVerdict
    shown: int = 0  # calls whose own evidence is recorded or blocked; of the others it is inferred
    unprofiled_blocked_us: float | None = None
    cost_us: float | None = None


@dataclass(frozen=True, slots=True)
class KernelClass:
    """Exclusive µs per step: where ops overlap, the earlier one has the time, so classes add up to busy."""

    name: str
    us: float
    ops: float


@dataclass(frozen=True, slots=True)
class Kernel:
    name: str
    kernel_class: str
    us: float
    ops: float


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing in which a step differs from the median step, in µs (positive: this step spent more)."""

    what: str
    us: float


@dataclass(frozen=True, slots=True)
class Step:
    """One step: `index` counts all steps found from 0; `left_out` is None for a steady one.

    `slower_by` lists where its time over the median step of its kind went, largest first.
    """

    index: int
    kind: str
    start_ns: int
    end_ns: int
    left_out: str | None
    parts: StepParts
    run_ahead_us: float | None
    slower_by: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True)
class KindFindings:
    """The findings of all steps of one kind; of the whole window, as one unit, where `steps.found` is 0.

    `abstained` names each analysis that lacked its data, with what it lacked.
    """

    kind: str | None
    steps: Steps
    step_us: StepParts | None
    idle_host_doing_us: Doing
    idle_host_blame_us: dict[str, float]
    idle_gpu_us: GpuIdle
    legs: tuple[Leg, ...]
    run_ahead_us: RunAhead | None
    syncs: tuple[Sync, ...]
    kernels: tuple[KernelClass, ...]
    top_kernels: tuple[Kernel, ...]
    abstained: dict[str, str]


@dataclass(frozen=True, slots=True)
class Tracing:
    """Which of the profiler's costly records were on, and the software `versions` that the trace names.

    `sync_events` is None where nothing would show whether they were on. `leg_spans` are the legs of which the
    runtime's plugin put spans in the trace, be they launched as graphs or not.
    """

    stacks: bool = False
    shapes: bool = False
    sync_events: bool | None = None
    versions: dict[str, str] = field(default_factory=dict)
    leg_spans: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RankFindings:
    """One rank on one device; `main` is the kind that fills most of the window.

    `timelines` are of some steps, those first that say most: of each kind the median one leads.
    """

    rank: int
    device: int
    device_name: str
    window_us: WindowParts
    gpu_ops: int
    launches: int
    main: KindFindings
    other_kinds: tuple[KindFindings, ...]
    steps: tuple[Step, ...]
    timelines: tuple[Timeline, ...] = field(default=(), compare=False, repr=False)
    tracing: Tracing = Tracing()


@dataclass(frozen=True, slots=True)
class RankClock:
    """A rank's clock against the reference's: local = aligned + offset + drift * (aligned - t0).

    `bound_us` is the interval that causality guarantees for the offset, None where it leaves none or says
    nothing; `residual_us` the precision, None where nothing is paired with the reference. `shifted` is False
    where the evidence for an offset is no better than that, and nothing was shifted; `note` says what is odd
    about it, or nothing.
    """

    rank: int
    offset_us: float
    drift_ppm: float
    bound_us: tuple[float, float] | None
    residual_us: float | None
    points: int
    shifted: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class Alignment:
    """The clocks of all ranks; `reference` is the rank whose clock counts."""

    reference: int
    ranks: tuple[RankClock, ...]


@dataclass(frozen=True, slots=True)
class Late:
    """How often a rank was the last to arrive in steps of one kind, and what that cost the others.

    `wait_us`: the mean wait of the other ranks that it caused, per step; `share`: of all resolved waits of
    the kind; `count`: collectives per capture; `causes`: µs per step by cause, which add up to `wait_us`.
    """

    rank: int
    kind: str
    wait_us: float
    share: float
    count: int
    causes: dict[str, float]


@dataclass(frozen=True, slots=True)
class Excess:
    """What a rank does longer than the median of the others: `us` more in each step, of `own_us`; the mean of
    further steps like these lies in `interval_us`, at 95 %.

    `what` is a kernel's name, or what the host does: "api", or "span scheduler.run_batch".
    """

    what: str
    us: float
    interval_us: tuple[float, float]
    own_us: float


@dataclass(frozen=True, slots=True)
class Uneven:
    """What the host of a rank, or its GPU, does in each step of a kind beyond the others, in the trace:
    `us` per step in all, of which the parts are the largest first.
    """

    rank: int
    kind: str
    on: Literal["host", "gpu"]
    us: float
    parts: tuple[Excess, ...]


@dataclass(frozen=True, slots=True)
class CollectiveKind:
    """One kind of collective: µs per step, mean over ranks; `skew_us` is the median spread of arrivals."""

    name: str
    count: float
    wait_us: float
    transfer_us: float
    skew_us: float
    resolved: int


@dataclass(frozen=True, slots=True)
class CollectiveTotals:
    """Mean over ranks, µs per step."""

    wait: float
    transfer: float


@dataclass(frozen=True, slots=True)
class Collectives:
    """Collectives paired across ranks.

    `unpaired` counts collectives that no other rank has, `unpaired_by_rank` likewise; `resolved` and
    `unresolved` count those whose skew exceeds three residuals, or does not. `notes` says where ranks
    diverge and what was trimmed, and why. `uneven` is what single ranks do beyond the others, most first,
    whether they wait for it there or not.
    """

    paired: int
    unpaired: int
    unpaired_by_rank: dict[int, int]
    resolved: int
    unresolved: int
    step_us: CollectiveTotals
    late: tuple[Late, ...]
    kinds: tuple[CollectiveKind, ...]
    notes: tuple[str, ...]
    uneven: tuple[Uneven, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Analysis:
    """Everything found in one capture; `front` is the place of the rank that verdict and fixes speak of."""

    capture_path: str
    manifest: dict[str, Any] | None
    version: str
    verdict: Verdict
    fixes: tuple[Fix, ...]
    integrity: Integrity
    ranks: tuple[RankFindings, ...]
    front: int = 0
    alignment: Alignment | None = None
    collectives: Collectives | None = None
    rank_timeline: RankTimeline | None = field(default=None, compare=False)
    calibration: Calibration | None = None

    def __repr__(self) -> str:
        lines = [f"Analysis of {self.capture_path}, confidence {self.verdict.confidence}", self.verdict.text]
        for rank in self.ranks:
            parts = rank.main.step_us or rank.window_us
            lines.append(
                f"rank {rank.rank}: {rank.main.kind or 'window'}, {rank.main.steps.steady} of"
                f" {rank.main.steps.found} steps steady; wall {parts.wall:,.1f} µs = busy {parts.busy:,.1f}"
                f" + host {parts.idle_host:,.1f} + GPU {parts.idle_gpu:,.1f}"
                f" + unknown {parts.idle_unknown:,.1f}"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        head, verdict, *ranks = (escape(line) for line in repr(self).split("\n"))
        items = "".join(f"<li>{rank}</li>" for rank in ranks)
        fixes = "".join(
            f"<tr><td>{fix.us_per_step:,.1f}</td><td style='text-align:left'>{escape(fix.what)}</td></tr>"
            for fix in self.fixes
        )
        table = f"<table><tr><th>µs/step</th><th>what to do first</th></tr>{fixes}</table>" if fixes else ""
        return f"<p><b>{verdict}</b><br>{head}</p><ul>{items}</ul>{table}"
