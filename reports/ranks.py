"""What is said of several ranks: who is late and why, how sure that is, and how well the clocks are known.

A figure that compares ranks carries an uncertainty: the precision of the clocks (the largest residual) once
for each collective that it adds up.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from latencylab.analyzers.uneven import in_words, unprofiled_cost
from latencylab.model.findings import (
    Alignment,
    Analysis,
    CollectiveKind,
    Late,
    RankClock,
    RankFindings,
    Uneven,
)
from latencylab.model.integrity import Issue
from latencylab.reports import calibration, summary
from latencylab.reports import format as fmt
from latencylab.reports.names import short_name

# Issues that are about the set of ranks.
CODES = ("rank_alone", "rank_missing", "rank_clash", "rank_guessed", "ranks_not_paired", "mixed_jobs")

Role = Literal["busy", "host", "gpu", "unknown", "wait"]

# How a cause begins, what causes of that kind are together, and how that ends "because of".
_GROUPS: dict[str, tuple[str, Role, str]] = {
    "GPU work": ("more GPU work", "busy", "more GPU work"),
    "host idle": ("host late", "host", "its late host"),
    "GPU idle": ("more idle of the GPU's own", "gpu", "more idle of the GPU's own"),
    "idle with no known launch": (
        "idle with no launch on record",
        "unknown",
        "idle with no launch on record",
    ),
    "inherited from another collective": ("inherited from another collective", "wait", "another collective"),
}
CAUSES_MEAN = (
    "Causes count what it did beyond the mean of the others: its GPU since the collective before, its host in"
    " the same steps; what is left of the host's idle is work that the other hosts do as well"
)
_TOP_PARTS = 3
_SMALL = 0.05  # µs per step below which a cause is rounding
_MOSTLY = 0.5  # share of the wait from which one rank is the late one


@dataclass(frozen=True, slots=True)
class Group:
    """Causes of one kind: what they add up to in µs per step, and each of them in words, largest first."""

    label: str
    role: Role
    because: str
    us: float
    causes: tuple[tuple[str, float], ...]

    def text(self, top: int) -> str:
        """`more GPU work 63.3: qkv_gemm 60.8, moe_gemm 0.8; 2 smaller`."""
        head = f"{self.label} {fmt.us(self.us) if self.us > 0 else fmt.signed_us(self.us)}"
        if not self.causes or self.causes[0][0] == self.label:
            return head
        shown = ", ".join(f"{name} {fmt.us(us)}" for name, us in self.causes[:top])
        more = len(self.causes) - top
        return f"{head}: {shown}" + (f"; {more} smaller" if more > 0 else "")


def groups(late: Late) -> list[Group]:
    """Why a rank was late, by kind of cause, largest first, without what is rounding. All but that adds up
    to its wait.
    """
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for name, us in late.causes.items():
        begins = name.partition(": ")[0]
        found[begins][_part(name)] += fmt.amount(us)
    made = []
    for begins, parts in found.items():
        label, role, because = _GROUPS.get(begins, (fmt.clean(begins), "unknown", fmt.clean(begins)))
        total = sum(parts.values())
        if abs(total) >= _SMALL:
            ordered = sorted(((n, us) for n, us in parts.items() if us >= _SMALL), key=lambda c: -c[1])
            made.append(Group(label, role, because, total, tuple(ordered)))
    return sorted(made, key=lambda group: -group.us)


def _part(name: str) -> str:
    """A cause in words without what its group says already."""
    words = summary.difference(name)
    for begins in ("GPU work: ", "GPU idle: ", "host late: "):
        words = words.removeprefix(begins)
    return words


def several(analysis: Analysis) -> bool:
    """Whether there is more than one rank to speak of, though perhaps only one is looked at."""
    return len(analysis.ranks) > 1 or (bool(analysis.ranks) and analysis.alignment is not None)


def issues(analysis: Analysis) -> list[Issue]:
    """What was wrong with the set of ranks."""
    return [issue for issue in analysis.integrity.issues if issue.code in CODES]


def precision(analysis: Analysis) -> float:
    """The largest residual of the clocks, µs: what one arrival may be off against another."""
    clocks = analysis.alignment.ranks if analysis.alignment else ()
    return max((fmt.amount(clock.residual_us) for clock in clocks), default=0.0)


def plus_minus(value: float | None, uncertainty: float) -> str:
    """`63.7 ± 0.8`."""
    return fmt.MISSING if fmt.finite(value) is None else f"{fmt.us(value)} ± {fmt.us(uncertainty)}"


def per_step(analysis: Analysis, late: Late) -> float:
    """How many collectives a step a rank was late for."""
    # A rank that is not looked at has as many steps as those that are, or nearly so.
    rank = next((r for r in analysis.ranks if r.rank == late.rank), analysis.ranks[0])
    return late.count / _units(rank)


def _units(rank: RankFindings) -> int:
    steps = rank.main.steps
    return max(steps.steady or steps.found, 1)


def late_us(analysis: Analysis, late: Late) -> str:
    """The wait that a rank caused, µs per step, with its uncertainty."""
    return plus_minus(late.wait_us, precision(analysis) * per_step(analysis, late))


def each_us(analysis: Analysis, late: Late) -> float | None:
    """The wait that a rank caused per collective that it was late for, µs."""
    return fmt.share(late.wait_us, per_step(analysis, late))


def rests_on_fit(analysis: Analysis, late: Late) -> bool:
    """Whether causality alone does not show of any other rank that this one was later."""
    return fmt.amount(each_us(analysis, late)) <= open_us(analysis, late.rank)[0]


def open_us(analysis: Analysis, rank: int) -> tuple[float, float]:
    """By how much the guaranteed intervals leave open when a rank arrived after another, µs: against the rank
    whose interval says most, and against the one whose says least. Infinite where nothing is guaranteed.
    """
    clocks = analysis.alignment.ranks if analysis.alignment else ()
    above = [_bounds(clock)[1] - _applied(clock) for clock in clocks if clock.rank == rank]
    below = [_applied(clock) - _bounds(clock)[0] for clock in clocks if clock.rank != rank]
    if not above or not below:
        return math.inf, math.inf
    return max(0.0, above[0] + min(below)), max(0.0, above[0] + max(below))


def _bounds(clock: RankClock) -> tuple[float, float]:
    """The interval that causality guarantees, of which an end may be open."""
    low, high = clock.bound_us or (None, None)
    low, high = fmt.finite(low), fmt.finite(high)
    return -math.inf if low is None else low, math.inf if high is None else high


def _applied(clock: RankClock) -> float:
    """The offset that its times were shifted by, µs."""
    return clock.offset_us if clock.shifted else 0.0


def wait_text(analysis: Analysis) -> str:
    """`Ranks wait 73.3 ± 9.6 µs of a step in collectives (7.8 %)`, a mean over ranks."""
    found, front = analysis.collectives, summary.focus(analysis)
    if found is None or front is None:
        return ""
    count = sum(fmt.amount(kind.count) for kind in found.kinds)
    wait = plus_minus(found.step_us.wait, precision(analysis) * count)
    share = fmt.percent(fmt.share(found.step_us.wait, summary.step_parts(front).wall))
    return f"Ranks wait {wait} µs ({share}) of a {summary.unit(front.main)} in collectives"


def answer(analysis: Analysis) -> str:
    """One line: who is late, by how much and why."""
    found = analysis.collectives
    if found is None:
        return "Clocks are not aligned, so whether a rank was late cannot be told."
    if not found.late:
        return "No rank is late by more than the clocks can tell: no collective is resolved."
    first = found.late[0]
    if fmt.amount(first.share) < _MOSTLY:
        shares = ", ".join(f"rank {its.rank} {fmt.percent(its.share)}" for its in found.late[:4])
        return f"No rank in particular is late: {shares} of the waits that are resolved."
    unit, why = summary.unit(analysis.ranks[0].main), groups(first)
    named = f", most of it because of {_because(why[0])}" if why and why[0].us > 0 else ""
    return (
        f"Rank {first.rank} is late: the others wait {late_us(analysis, first)} µs a {unit} for it,"
        f" {fmt.percent(first.share)} of the waits that are resolved{named}."
    )


def _because(group: Group) -> str:
    """`more GPU work (qkv_gemm)`."""
    if group.causes and group.causes[0][0] != group.label:
        return f"{group.because} ({group.causes[0][0]})"
    return group.because


def uneven_text(analysis: Analysis, its: Uneven) -> str:
    """`Rank 1's host takes 143.8 µs a step longer than the others' in the trace, …`: what it does more, with
    95 % intervals, and what that costs without the profiler.
    """
    told = ", ".join(
        f"{short_name(part.what) if its.on == 'gpu' else in_words(part.what)} {fmt.us(part.us)}"
        f" ({fmt.us(part.interval_us[0])} to {fmt.us(part.interval_us[1])})"
        for part in its.parts[:_TOP_PARTS]
    )
    more = len(its.parts) - _TOP_PARTS
    told += f"; {more} smaller" if more > 0 else ""
    cost = unprofiled_cost(its, analysis.calibration)
    if cost is not None:
        told += f"; without the profiler that costs {fmt.us(cost.value)} µs ({calibration.between(cost)})"
    elif its.on == "host":
        told += "; what that costs without the profiler is not known"
    return (
        f"Rank {its.rank}'s {'GPU works' if its.on == 'gpu' else 'host takes'} {fmt.us(its.us)} µs a step"
        f" longer than the others' in the trace, whether they wait for it there or not: {told}"
    )


def sureness(analysis: Analysis, late: Late) -> str:
    """What a rank's lateness is worth beside what causality alone leaves open."""
    least, most = open_us(analysis, late.rank)
    each = fmt.amount(each_us(analysis, late))
    if not math.isfinite(least):
        return "rests on the clocks' fit: causality alone bounds nothing"
    if each <= least:
        return f"rests on the clocks' fit: less each than the {fmt.us(least)} µs that causality leaves open"
    if each <= most:
        return f"causality alone shows it of some ranks: it leaves open {fmt.us(least)} to {fmt.us(most)} µs"
    return f"causality alone shows it: more each than the {fmt.us(most)} µs that it leaves open"


def resolved_text(analysis: Analysis) -> str:
    """How many collectives say something, and of the others that they do not."""
    found = analysis.collectives
    if found is None:
        return ""
    return (
        f"{found.resolved:,} of {fmt.count(found.paired, 'collective')} resolved; in the others arrivals are"
        " spread by less than three residuals, or the noise of one end: not resolved"
    )


def bound_text(clock: RankClock) -> str:
    """`−1,011.6 to −1,003.6`; nothing where there is no bound."""
    low, high = _bounds(clock)
    if not math.isfinite(low) and not math.isfinite(high):
        return "none"
    return f"{_signed(low)} to {_signed(high)}"


def offset_text(clock: RankClock) -> str:
    """`−1,007.6 ± 0.2`, and that it was not shifted where it was not."""
    if not clock.points:
        return "not aligned"
    text = f"{fmt.signed_us(clock.offset_us)} ± {fmt.us(clock.residual_us)}"
    return text if clock.shifted else f"{text}, not shifted"


def clocks_line(alignment: Alignment) -> str:
    """All clocks in one line."""
    others = [clock for clock in alignment.ranks if clock.rank != alignment.reference]
    told = "; ".join(
        f"rank {clock.rank} {offset_text(clock)}" + (f" ({bound_text(clock)})" if clock.points else "")
        for clock in others
    )
    return f"clocks against rank {alignment.reference}, µs (guaranteed interval): {told}"


def skew_text(analysis: Analysis, kind: CollectiveKind) -> str:
    """The median spread of arrivals of a kind of collective, with its uncertainty."""
    return plus_minus(kind.skew_us, precision(analysis))


def resolved_of(kind: CollectiveKind) -> str:
    """How many of a kind of collective are resolved, or why none is."""
    if not fmt.amount(kind.count):
        return "not counted"
    return f"{kind.resolved:,}" if kind.resolved else "not resolved"


def unpaired_text(analysis: Analysis) -> str:
    """`unpaired: rank 3 156`; nothing where all are paired."""
    found = analysis.collectives
    if found is None or not found.unpaired:
        return ""
    told = ", ".join(f"rank {rank} {count:,}" for rank, count in found.unpaired_by_rank.items() if count)
    return f"{found.unpaired:,} collectives that no other rank has: {told}"


def _signed(value: float) -> str:
    return fmt.signed_us(value) if math.isfinite(value) else "…"
