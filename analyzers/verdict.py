"""The sentences at the top of the page, how sure they are, and what to do first."""

from __future__ import annotations

from collections.abc import Sequence

from latencylab.analyzers.calibration import NOT_MEASURED
from latencylab.analyzers.collectives import kind_of_kernel
from latencylab.analyzers.kernels import COLLECTIVE
from latencylab.analyzers.skew import INHERITED
from latencylab.analyzers.uneven import COMMON, named, unprofiled_cost, what_to_do
from latencylab.model.calibration import Calibration, Fix
from latencylab.model.findings import (
    Collectives,
    Confidence,
    KindFindings,
    RankFindings,
    Sync,
    Uneven,
    Verdict,
)
from latencylab.model.integrity import Integrity

SMALL = 0.03  # a share of the step below which a part is not worth the headline
FEW_STEPS = 5
MOSTLY = 0.5  # of the wait, caused by one rank, or of a class, in one kernel, to name it
WORTH = 0.01  # of the step, from which what one rank does beyond the others is worth a sentence, or a fix is
LEAST_US = 10.0  # what two decimals of a ms show
DOING = {
    "sync": "the blocking calls themselves",
    "api": "launch and other API calls",
    "framework": "framework ops",
    "gc": "garbage collection",
    "waiting": "waiting for a request or a peer",
    "profiler": "the profiler's own work",
}
GPU_IDLE = {
    "in_graph": "gaps between kernels inside graphs",
    "dispatch": "dispatch gaps before work that was queued in time",
    "launch_latency": "launch latency",
}
GPU_FIX = {
    "in_graph": "close the gaps inside graphs: programmatic dependent launch, or fewer and fused kernels",
    "dispatch": "fuse the small kernels queued one by one, or capture them in a graph",
    "launch_latency": "launch earlier: the GPU waits for each launch to arrive",
}


def front_rank(ranks: Sequence[RankFindings], uneven: Sequence[Uneven] = ()) -> int:
    """The place of the rank that speaks for all.

    One whose host blocks where it must not; of these, or else of all, the one that does most beyond the
    others in each step; where none does, the one whose GPU idles longest for its host.
    """

    def weight(place: int) -> tuple[bool, float, float]:
        rank = ranks[place]
        more = sum(its.us for its in uneven if its.rank == rank.rank and its.us > WORTH * _parts(rank)[0])
        return _worst(rank.main) is not None, more, _parts(rank)[2]

    return max(range(len(ranks)), key=lambda place: (*weight(place), -place))


def judge(
    ranks: Sequence[RankFindings],
    front: int,
    integrity: Integrity,
    collectives: Collectives | None = None,
    calibration: Calibration | None = None,
) -> Verdict:
    """The verdict on the rank in front, on what single ranks do beyond the others, on who keeps the others
    waiting, and on what remains of the host's idle without the profiler."""
    rank = ranks[front]
    main = rank.main
    reasons = tuple(_doubts(main, integrity, calibration))
    where = f"Rank {rank.rank}: " if len(ranks) > 1 or collectives else ""
    wall = _parts(rank)[0]
    first, *more = _sentences(rank, calibration, alone=_makes_it_alone(ranks, front))
    if collectives:
        dear, cheap = _uneven(collectives.uneven, wall, calibration)
        known = _worst(rank.main) if [late.rank for late in collectives.late[:1]] == [rank.rank] else None
        # Where several calls are told together, "that call" would be any of them.
        site = known.site if known and not (calibration and calibration.together) else ""
        late = _late(collectives, wall, len(collectives.unpaired_by_rank), site, in_trace=_holds(calibration))
        more = [*dear, *more, *cheap, *late]
    return Verdict((where + first, *more), _confidence(rank, integrity, calibration), reasons)


def _makes_it_alone(ranks: Sequence[RankFindings], front: int) -> bool:
    """Whether of several ranks the one in front alone makes the call that pins it: every other one has
    blocking calls on record, and none of that name."""
    worst = _worst(ranks[front].main)
    others = [{sync.api for sync in rank.main.syncs} for i, rank in enumerate(ranks) if i != front]
    return worst is not None and bool(others) and all(its and worst.api not in its for its in others)


def _holds(calibration: Calibration | None) -> bool:
    return calibration is not None and calibration.status == "calibrated"


def _in_truth(
    rank: RankFindings, calibration: Calibration, step_us: float, idle_us: float, alone: str
) -> list[str]:
    """What the step is without the profiler, and then what the trace shows of it."""
    main = rank.main
    wall, _, host, _, _ = _parts(rank)
    step = f"{step_us / 1000:.2f} ms {_kind(main)}step"
    traced = f"{_share(host, wall)} of each {wall / 1000:.2f} ms step"
    worst = _worst(main)
    cost = next((its.cost_us.value for its in calibration.syncs if worst and its.site == worst.site), 0.0)
    waits = f"The GPU waits {_share(idle_us, step_us)} of the step for the host"
    waits = f"{waits}; in the trace, which the profiler slows, {traced}."
    together = _together(calibration, step, step_us, alone)
    if worst is not None and cost >= SMALL * step_us:
        costs = (
            f"A blocking call costs {cost / 1000:.2f} ms of the {step}: {worst.site}{alone},"
            f" {_times(worst.per_step)}, {_behind(worst)}."
        )
        return [costs, waits, *([together] if together else [])]
    if together:
        return [together, waits]
    pinned = []
    if worst is not None:
        site = f"{worst.site}{alone}," if alone else worst.site
        pinned = [f"{site} keeps the host from running ahead, which costs little here."]
    if idle_us < SMALL * step_us:
        shown = f"The {traced} that the GPU waits in the trace are the profiler's."
        heaviest = f"; the GPU works longest in {_heaviest(main)}" if main.kernels else ""
        return [
            f"GPU bound: the {step} hardly waits for the host without the profiler{heaviest}.",
            *([shown] if host > SMALL * wall else []),
            *pinned,
        ]
    blame = calibration.idle_host_blame_us
    during = f", most of it during {_named(max(blame, key=lambda name: blame[name].value))}" if blame else ""
    blocking = "" if pinned else f"; {_blocking(main)}"
    return [
        f"The GPU waits {_share(idle_us, step_us)} of the {step} for the host{during}{blocking}.",
        f"In the trace, which the profiler slows, the GPU waits {traced}.",
        *pinned,
    ]


def _together(calibration: Calibration, step: str, step_us: float, alone: str) -> str:
    """What waits cost that hide behind each other, and which they are; "" where that is little."""
    its = calibration.together
    if its is None or its.cost_us.value < SMALL * step_us:
        return ""
    return (
        f"{len(its.sites)} blocking calls together cost {_ms(its.cost_us.value)} of the {step}, and with one"
        f" of them gone the host waits in another: {its.names}{alone}."
    )


def _behind(sync: Sync) -> str:
    """How little is queued behind what a call waits for."""
    behind, need = sync.behind_us or 0.0, sync.need_us or 0.0
    return f"with {behind:,.0f} µs of GPU work queued behind it where {need:,.0f} are needed"


def _kind(main: KindFindings) -> str:
    """The kind of step as a word before it."""
    return "" if main.kind in (None, "step") else f"{main.kind} "


def _uneven(
    uneven: Sequence[Uneven], wall: float, calibration: Calibration | None
) -> tuple[list[str], list[str]]:
    """What single ranks do beyond the others, where that is worth a sentence: what is known to cost much
    without the profiler, and the rest."""
    dear: list[str] = []
    cheap: list[str] = []
    step = calibration.predicted_step_us if calibration else None
    for its in uneven:
        if its.us <= WORTH * wall:
            continue
        cost = unprofiled_cost(its, calibration)
        costs_much = cost is not None and step is not None and cost.value >= SMALL * step.value
        (dear if costs_much else cheap).append(
            f"In the trace rank {its.rank}'s {'GPU works' if its.on == 'gpu' else 'host takes'} {_ms(its.us)}"
            f" longer in each step than {'the others' if its.on == 'gpu' else 'the other hosts'}:"
            f" {named(its)}{_in_truth_costs(its, calibration)}."
        )
    return dear, cheap


def _in_truth_costs(its: Uneven, calibration: Calibration | None) -> str:
    """What that costs without the profiler. Where it is not known, that is said of hosts: those it slows."""
    cost = unprofiled_cost(its, calibration)
    if cost is not None:
        figure = _ms(cost.value) if cost.value >= LEAST_US else f"less than {_ms(LEAST_US)}"
        return f"; without the profiler that costs {figure}"
    return "" if its.on == "gpu" else "; what that costs without the profiler is not known"


def _late(collectives: Collectives, wall: float, ranks: int, told: str, *, in_trace: bool) -> list[str]:
    """Who keeps the others waiting in collectives and why, where that is worth a sentence; `told` is the
    site of the late rank that was named before, `in_trace` says that the first sentence is of the step
    without the profiler.
    """
    if not collectives.late or collectives.step_us.wait < SMALL * wall:
        return []
    late = collectives.late[0]
    who = "In the trace ranks" if in_trace else "Ranks"
    waits = f"{who} wait {_share(collectives.step_us.wait, wall)} of a step in collectives"
    # What a rank caused is a mean over the others; of all waits, resolved or not, it is this share.
    share = late.wait_us * (ranks - 1) / ranks / collectives.step_us.wait
    if share < MOSTLY:
        return [f"{waits}, for no rank in particular."]
    cause = next((name for name, us in late.causes.items() if us > 0), "")
    return [f"{waits}, {min(share, 1):.0%} of that for rank {late.rank}{why_late(cause, told)}."]


def why_late(cause: str, told: str = "") -> str:
    """What keeps a rank from its collectives, as words after its name; the site `told` has been named."""
    kind, _, part = cause.partition(": ")
    if cause == COMMON:
        return ", whose host is behind, mostly with work that the other hosts do as well"
    if kind == "host idle":
        because = "that call" if part == told else _named(part)
        return f", whose host is behind, most of all because of {because}"
    if kind == "GPU work":
        return f", whose GPU works longer, most of all in {kind_of_kernel(part)}"
    if kind == "GPU idle":
        return f", whose GPU idles longer by itself, most of all for {GPU_IDLE.get(part, part)}"
    if cause == INHERITED:
        return ", which another collective kept"
    return f", which is late because of: {cause}" if cause else ""


def _parts(rank: RankFindings) -> tuple[float, float, float, float, float]:
    """Wall, busy, and idle of host, GPU and unknown: of a main step, or of the window without steps."""
    parts = rank.main.step_us or rank.window_us
    return parts.wall, parts.busy, parts.idle_host, parts.idle_gpu, parts.idle_unknown


def _host_share(findings: KindFindings) -> float:
    parts = findings.step_us
    return parts.idle_host / parts.wall if parts and parts.wall else 0.0


def _sentences(rank: RankFindings, calibration: Calibration | None, *, alone: bool) -> list[str]:
    """What is true of the rank in front; `alone` says that no other rank makes the call that pins it."""
    whose = f", which rank {rank.rank} alone calls" if alone else ""
    if calibration is not None and _holds(calibration):
        predicted, idle = calibration.predicted_step_us, calibration.idle_host_us
        if predicted is not None and idle is not None:
            return _in_truth(rank, calibration, predicted.value, idle.value, whose)
    return [_in_trace(rank, whose)]


def _in_trace(rank: RankFindings, alone: str) -> str:
    """The same as the trace shows it."""
    main = rank.main
    wall, busy, host, gpu, unknown = _parts(rank)
    of_step = f"of the {wall / 1000:.2f} ms window"
    if main.step_us:
        of_step = f"of each {wall / 1000:.2f} ms {_kind(main)}step"
    worst = _worst(main)
    if worst is not None:
        return (
            f"The host blocks {_times(worst.per_step)} in {worst.site}{alone}, {_behind(worst)}, so it cannot"
            f" run ahead: the GPU waits {_share(host, wall)} {of_step} for the host."
        )
    if unknown > SMALL * wall and unknown >= max(host, gpu):
        return (
            f"The GPU idles {_share(unknown, wall)} {of_step} with no launch on record, so the trace cannot"
            " say whose fault that is: record CUDA activity and runtime calls together."
        )
    if host > SMALL * wall and host >= gpu:
        return (
            f"The GPU waits {_share(host, wall)} {of_step} for the host, most of it during"
            f" {_during(main)}; {_blocking(main)}."
        )
    if gpu > SMALL * wall:
        cause = GPU_IDLE[max(GPU_IDLE, key=lambda name: getattr(main.idle_gpu_us, name))]
        return f"GPU bound: busy {_share(busy, wall)} {of_step}; {_share(gpu, wall)} goes to {cause}."
    heaviest = f", longest in {_heaviest(main)}" if main.kernels else ""
    return f"GPU bound: busy {_share(busy, wall)} {of_step}{heaviest}."


def _heaviest(main: KindFindings) -> str:
    """The class of kernels that works longest, waiting for other ranks being no work; and in brackets the
    kernel, where that is one mostly."""
    waited = (main.step_us.collective_wait or 0.0) if main.step_us else 0.0
    longest = max(main.kernels, key=lambda its: its.us - waited * (its.name == COLLECTIVE))
    kernel = next((its for its in main.top_kernels if its.kernel_class == longest.name), None)
    if kernel is None or kernel.us < MOSTLY * longest.us:
        return longest.name
    return f"{longest.name} ({kind_of_kernel(kernel.name)})"


def _worst(findings: KindFindings) -> Sync | None:
    """The first site that pins; sites come with the worst first."""
    return next((sync for sync in findings.syncs if sync.verdict in ("harmful", "pinning")), None)


def _blocking(findings: KindFindings) -> str:
    """What the blocking calls have to do with it, where none is shown to pin."""
    unclear = next(
        (sync for sync in findings.syncs if sync.verdict == "unclear" and sync.behind_us is not None), None
    )
    if unclear is not None:
        return f"whether {unclear.site} resets its run-ahead this trace cannot tell (record CUDA sync events)"
    return "no blocking call is to blame" if findings.syncs else "it blocks nowhere"


def _times(per_step: float) -> str:
    return "once a step" if abs(per_step - 1) < 0.05 else f"{per_step:.2g} times a step"


def _share(part: float, whole: float) -> str:
    return f"{_ms(part)} ({part / whole:.0%})" if whole else _ms(part)


def _ms(us: float) -> str:
    return f"{us / 1000:.2f} ms"


def _during(findings: KindFindings) -> str:
    blame = findings.idle_host_blame_us
    return _named(max(blame, key=lambda name: blame[name])) if blame else "untraced work"


def _named(blame: str) -> str:
    if blame.startswith("span "):
        return f"Python or untraced work in {blame[5:]}"
    return DOING.get(blame, blame)


def _doubts(main: KindFindings, integrity: Integrity, calibration: Calibration | None) -> list[str]:
    """Why the verdict is not surer."""
    doubts = []
    if main.step_us is None:
        doubts.append("no steps found: figures are of the whole window")
    elif not main.steps.steady:
        doubts.append(f"no steady step: figures are of all {main.steps.found} found")
    elif main.steps.steady < FEW_STEPS:
        doubts.append(f"only {main.steps.steady} steady steps")
    if calibration is not None and calibration.status == "untrusted":
        doubts.append(f"calibration is not trusted: {calibration.reason}; host idle is an upper bound")
    elif _host_share(main) > SMALL and not _holds(calibration):
        refused = calibration is not None and calibration.reason not in ("", NOT_MEASURED)
        why = f" ({calibration.reason})" if calibration is not None and refused else ""
        doubts.append(f"not calibrated{why}: the profiler slows the host, so host idle is an upper bound")
    worst = _worst(main)
    if worst is not None and worst.shown < worst.calls:
        doubts.append(
            f"what the blocking call waits for is shown by {worst.shown} of its {worst.calls} calls,"
            " and inferred for the others"
        )
    doubts += [issue.detail for issue in integrity.issues if issue.severity != "info"]
    return doubts


def _confidence(rank: RankFindings, integrity: Integrity, calibration: Calibration | None) -> Confidence:
    main = rank.main
    wall, _, host, _, unknown = _parts(rank)
    if integrity.status == "unusable" or main.step_us is None or unknown > SMALL * wall:
        return "low"
    slowed = any(issue.code in ("stacks_on", "shapes_on") for issue in integrity.issues)
    worst = _worst(main)
    if main.steps.steady < FEW_STEPS or (slowed and host > SMALL * wall):
        return "low"
    if worst is not None:
        is_sure = worst.shown == worst.calls and integrity.status == "ok" and _holds(calibration)
        return "high" if is_sure else "medium"
    upper_bound = host > SMALL * wall and not _holds(calibration)
    return "medium" if upper_bound or integrity.status != "ok" else "high"


def rank_fixes(
    rank: RankFindings, calibration: Calibration | None = None, uneven: Sequence[Uneven] = ()
) -> tuple[Fix, ...]:
    """What to do, worst first: what each fix alone gives where that is calibrated, else the µs per step that
    the trace charges to it, or that a rank does beyond the others.

    Sites that pin come before all else: the trace hides what they cost, since a host slowed by the profiler
    finds the GPU drained and does not wait. Parts under 1 % of the step are left out.
    """
    if calibration is not None and _holds(calibration):
        return calibration.fixes
    main = rank.main
    wall = _parts(rank)[0]
    sites = [
        Fix(f"remove the wait: {sync.site} ({sync.verdict})", sync.idle_us, bound="lower", site=sync.site)
        for sync in main.syncs
        if sync.verdict in ("harmful", "pinning")
    ]
    owners = {sync.site for sync in main.syncs}
    others = [
        Fix(f"shorten {_named(name)}", us)
        for name, us in main.idle_host_blame_us.items()
        if name not in owners and name != "profiler"
    ]
    others += [
        Fix(
            f"reach {sync.site} later, or with more work queued ({sync.verdict})",
            sync.idle_us,
            site=sync.site,
        )
        for sync in main.syncs
        if sync.verdict in ("hidden", "unclear")
    ]
    others += [Fix(text, getattr(main.idle_gpu_us, name), bound="estimate") for name, text in GPU_FIX.items()]
    others += [
        Fix(what_to_do(its, part), part.us, bound="estimate" if its.on == "gpu" else "upper")
        for its in uneven
        for part in (its.parts if its.rank == rank.rank else ())
    ]
    others = [fix for fix in others if fix.us_per_step > WORTH * wall]
    return tuple(sites + sorted(others, key=lambda fix: -fix.us_per_step))
