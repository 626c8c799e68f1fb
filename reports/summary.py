"""What several renderers show alike: which rank stands in front, in what order, and where a step goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from latencylab.analyzers.uneven import COMMON
from latencylab.model.calibration import Fix
from latencylab.model.findings import (
    Analysis,
    Doing,
    GpuIdle,
    KindFindings,
    RankFindings,
    Step,
    StepParts,
    Sync,
    WindowParts,
)
from latencylab.reports.format import amount, bounded_us, count, finite, us
from latencylab.reports.names import short_name

Role = Literal["wall", "busy", "wait", "host", "gpu", "unknown"]

VERDICT_ORDER = {"harmful": 0, "pinning": 1, "unclear": 2, "hidden": 3}
VERDICT_MEANS = {
    "harmful": "resets run-ahead and makes the GPU idle",
    "pinning": "resets run-ahead; what it costs without the profiler is calibration's to say",
    "unclear": "too little work behind it, but no evidence that it waits for this step",
    "hidden": "reads an older result while enough newer work is queued",
}
_BOUND_SIGN = {"upper": "≤", "lower": "≥", "estimate": "≈"}
_BOUND_MEANS = {
    "upper": "≤ upper bound: the profiler slows the host",
    "lower": "≥ lower bound: a host slowed by the profiler finds the GPU drained and waits less",
    "estimate": "≈ estimate",
}
# What follows them is short, and in the CSV and JSON output in any case.
KERNELS_SHOWN = 20
# More bars than that cannot be told apart, and make the page heavy.
STEPS_DRAWN = 600
# µs per step: below it, a cause is rounding.
_TOO_SMALL = 0.05
NO_SPAN = "(no span)"
_DOING = {
    "sync": "waiting in a blocking call",
    "api": "in launch and other API calls",
    "framework": "in framework ops",
    "gc": "in garbage collection",
    "waiting": "waiting for a request or a peer",
    "profiler": "in the profiler's own overhead",
}
_GPU_IDLE = {
    "in_graph": "between the ops of one graph",
    "dispatch": "queued in time, started late",
    "launch_latency": "from the launch call's return to the op's start",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of the waterfall: `us` long, starting at `start_us` of the step; `depth` 1 is a part of the
    row above it.
    """

    label: str
    role: Role
    us: float | None
    start_us: float
    depth: int = 0


def focus(analysis: Analysis) -> RankFindings | None:
    """The rank shown first: the one that the verdict and the fixes speak of."""
    return analysis.ranks[analysis.front] if analysis.ranks else None


def step_parts(rank: RankFindings) -> WindowParts:
    """Where a step of the main kind goes; the whole window where no steps were found."""
    return rank.main.step_us or rank.window_us


def sentences(analysis: Analysis) -> tuple[str, ...]:
    """The verdict's, with the kernel that a rank is late for by its short name."""
    late = analysis.collectives.late if analysis.collectives else ()
    names = {f": {name}.": f": {difference(name)}." for name in (late[0].causes if late else ())}
    return tuple(_shortened(sentence, names) for sentence in analysis.verdict.sentences)


def _shortened(sentence: str, names: Mapping[str, str]) -> str:
    for name, short in names.items():
        sentence = sentence.replace(name, short)
    return sentence


def working(parts: WindowParts) -> float:
    """Busy without what was waiting in collectives."""
    return max(0.0, amount(parts.busy) - waiting(parts))


def waiting(parts: WindowParts) -> float:
    """The part of busy that was waiting in collectives, 0 where ranks were not aligned."""
    return amount(parts.collective_wait) if isinstance(parts, StepParts) else 0.0


def unit(kind: KindFindings) -> str:
    """What the times of a kind are per."""
    return "step" if kind.step_us is not None else "window"


def basis(kind: KindFindings) -> str:
    """What the times of a kind are means of."""
    if kind.step_us is None:
        return "the whole window as one unit: no steps found"
    if not kind.steps.steady:
        return f"mean of all {count(kind.steps.found, 'step')} found, none of them steady"
    if kind.steps.steady < kind.steps.found:
        return f"mean of the {count(kind.steps.steady, 'steady step')} of {kind.steps.found:,} found"
    return f"mean of all {count(kind.steps.steady, 'step')} found, all steady"


def blame_rows(kind: KindFindings, idle_host: float | None, top: int) -> list[tuple[str, float]]:
    """The host idle by its cause, largest first: the `top` largest, and the rest as one row."""
    known = {
        cause(name): value for name, v in kind.idle_host_blame_us.items() if (value := finite(v)) is not None
    }
    rows = sorted(((n, v) for n, v in known.items() if v >= _TOO_SMALL), key=lambda r: (-r[1], r[0]))
    if len(rows) > top:
        rest = rows[top:]
        rows = [*rows[:top], (count(len(rest), "smaller cause"), sum(v for _, v in rest))]
    left = amount(idle_host) - sum(known.values())
    # Rounding of the parts is no cause of its own.
    if left > max(_TOO_SMALL, 0.001 * amount(idle_host)):
        rows.append(("not attributed", left))
    return rows


def doing_rows(doing: Doing) -> list[tuple[str, float]]:
    """What the launching thread did while the GPU waited, largest first, without the zeros."""
    named = {
        "sync": doing.sync,
        "api": doing.api,
        "framework": doing.framework,
        "gc": doing.gc,
        "waiting": doing.waiting,
        "profiler": doing.profiler,
    }
    rows = [(_DOING[n], v) for n, v in named.items()]
    rows += [(cause(f"span {name}"), v) for name, v in doing.span.items()]
    return sorted(((n, v) for n, v in rows if amount(v) > 0), key=lambda row: (-row[1], row[0]))


def gpu_idle_rows(idle: GpuIdle) -> list[tuple[str, float]]:
    """The GPU's own idle by its reason."""
    return [
        (f"{_GPU_IDLE['in_graph']} (in_graph)", idle.in_graph),
        (f"{_GPU_IDLE['dispatch']} (dispatch)", idle.dispatch),
        (f"{_GPU_IDLE['launch_latency']} (launch_latency)", idle.launch_latency),
    ]


def waterfall(parts: WindowParts) -> list[Bar]:
    """Wall, then its parts one after the other, so that their bars add up to the wall's."""
    busy, host, gpu = amount(parts.busy), amount(parts.idle_host), amount(parts.idle_gpu)
    bars = [Bar("wall", "wall", parts.wall, 0.0), Bar("busy", "busy", parts.busy, 0.0)]
    wait = parts.collective_wait if isinstance(parts, StepParts) else None
    if wait is not None:
        bars.append(Bar("waits in collectives", "wait", wait, max(0.0, busy - amount(wait)), 1))
    bars.append(Bar("idle, host late", "host", parts.idle_host, busy))
    if amount(parts.idle_host_in_launch) > 0:
        bars.append(Bar("inside launch calls", "host", parts.idle_host_in_launch, busy, 1))
    bars.append(Bar("idle, GPU's own", "gpu", parts.idle_gpu, busy + host))
    if amount(parts.idle_unknown) > 0 or finite(parts.idle_unknown) is None:
        bars.append(Bar("idle, unknown", "unknown", parts.idle_unknown, busy + host + gpu))
    return bars


def ordered_syncs(kind: KindFindings) -> list[Sync]:
    """Blocking sites: the worst verdict first, then by the idle they own, then by how long they block."""
    return sorted(
        kind.syncs,
        key=lambda s: (VERDICT_ORDER[s.verdict], -amount(s.idle_us), -amount(s.blocked_us), s.site),
    )


def verdict_counts(kind: KindFindings) -> str:
    """`1 harmful, 2 hidden`."""
    verdicts = [s.verdict for s in kind.syncs]
    found = [(v, verdicts.count(v)) for v in VERDICT_ORDER if v in verdicts]
    return ", ".join(f"{n} {v}" for v, n in found) or "none"


def left_out(kind: KindFindings) -> str:
    """`first 1, last 1, outlier 2`, by number."""
    causes = sorted(kind.steps.left_out.items(), key=lambda c: (-c[1], c[0]))
    return ", ".join(f"{name} {n:,}" for name, n in causes)


def own_steps(rank: RankFindings, kind: KindFindings) -> list[Step]:
    """The steps of one kind, in order."""
    return [s for s in rank.steps if s.kind == kind.kind]


def slowest(rank: RankFindings, kind: KindFindings) -> Step | None:
    """The slowest step of a kind, of the steady ones and the outliers: those cut off at the window's ends
    or disturbed by the profiler would explain nothing.
    """
    steps = [s for s in own_steps(rank, kind) if s.left_out in (None, "outlier")]
    return max(steps, key=lambda s: amount(s.parts.wall), default=None)


def kinds(rank: RankFindings) -> list[KindFindings]:
    """All kinds of step of a rank, the main one first."""
    return [rank.main, *rank.other_kinds]


def gain(fix: Fix) -> str:
    """What a fix would give, µs per step: `≤ 3,190.0` where that is a bound."""
    return bounded_us(fix.us_per_step, "" if fix.calibrated else _BOUND_SIGN[fix.bound])


def unseen(fix: Fix, kind: KindFindings) -> str:
    """What a trace cannot show of a wait's cost: it shortens the run-ahead that host idle is missing."""
    idle = kind.step_us.idle_host if kind.step_us else None
    if (
        fix.bound != "lower"
        or fix.calibrated
        or site_of(fix, kind) is None
        or amount(idle) <= fix.us_per_step
    ):
        return ""
    return (
        "so much it waited in this trace; it also takes away the host's run-ahead, and so is behind some of"
        f" the {us(idle)} µs/step that the GPU waits for the host"
    )


def bounds(fixes: Sequence[Fix]) -> str:
    """What the signs before the fixes' µs mean; nothing where all are calibrated."""
    used = {f.bound for f in fixes if not f.calibrated}
    meant = [meaning for bound, meaning in _BOUND_MEANS.items() if bound in used]
    return f"uncalibrated: {'; '.join(meant)}" if meant else ""


def cause(name: str) -> str:
    """The cause of host idle in words: a site as it is, what the thread did as in the table of doings."""
    if name == f"span {NO_SPAN}":
        return "outside all spans (Python or untraced)"
    if name.startswith("span "):
        return f"in span {name.removeprefix('span ')} (Python or untraced)"
    return _DOING.get(name, name)


def difference(what: str) -> str:
    """A part in which steps or ranks differ, in words: `busy: MoE GEMM`, `GPU work: ` and a kernel,
    `GPU idle: in_graph`, `host idle: api`.
    """
    kind, _, part = what.partition(": ")
    if kind == "busy":
        return f"GPU busy: {part}"
    if kind == "GPU work":
        return f"GPU work: {short_name(part)}"
    if kind == "GPU idle":
        return f"GPU idle: {_GPU_IDLE.get(part, part)}"
    if what == COMMON:
        return f"host late: {part}"
    if kind == "host idle":
        held = part not in _DOING and not part.startswith(("span ", "waiting in "))
        return f"host late: {'held up by ' if held else ''}{cause(part)}"
    return what


def site_of(fix: Fix, kind: KindFindings) -> int | None:
    """Which of the ordered blocking sites a fix is about."""
    named = [i for i, sync in enumerate(ordered_syncs(kind)) if sync.site == fix.site]
    return named[0] if named else None
