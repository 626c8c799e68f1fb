"""What changed most between two captures, and why, as one sentence for the top of every report."""

from __future__ import annotations

from collections.abc import Sequence

from latencylab.analyzers.diff_sites import BAD
from latencylab.model.comparison import (
    LEAST_US,
    CalibrationChange,
    Delta,
    KernelChange,
    KindChange,
    SiteChange,
    UnprofiledChange,
)

MEANS = {
    "harmful": "it resets run-ahead and owns idle GPU time",
    "pinning": "it resets run-ahead",
    "unclear": "what it waits for is not shown",
    "hidden": "enough newer work hides it",
}


def headline(
    kinds: Sequence[KindChange],
    unprofiled: UnprofiledChange | None,
    calibration: CalibrationChange | None = None,
) -> str:
    """The change of a blocking site that pins the host, else the largest part of the step that changed."""
    main = kinds[0]
    if is_unchanged(kinds) and (unprofiled is None or not unprofiled.step_ms.change):
        lacking = _unmeasured(unprofiled)
        return f"Nothing changed{' in the trace' if lacking else ''}: every difference is zero{lacking}."
    sites = [told for one in main.sites if (told := _site(one, calibration))]
    if sites:
        return f"{'; '.join(sites[:2])}; {how_much(main, unprofiled)}."
    cause = _largest(main)
    wall = main.part("wall")
    if cause is None and not wall.resolved:
        return f"No change beyond the noise of steps: {how_much(main, unprofiled)}."
    said = how_much(main, unprofiled)
    return f"{said[0].upper()}{said[1:]}{f': {cause}' if cause else ''}."


def _unmeasured(unprofiled: UnprofiledChange | None) -> str:
    """Which side alone was not measured without the profiler."""
    if unprofiled is None or unprofiled.step_ms.change is not None:
        return ""
    lacks = "base" if unprofiled.step_ms.base is None else "head"
    return f"; without the profiler the {lacks} was not measured"


def is_unchanged(kinds: Sequence[KindChange]) -> bool:
    """Whether every part, site and kernel of every kind is the same on both sides."""
    return (
        all(not row.us.change for kind in kinds for row in (*kind.parts, *kind.blame, *kind.gpu_idle))
        and all(one.how == "same" and not one.us.change for kind in kinds for one in kind.kernels)
        and all(one.how == "same" for kind in kinds for one in kind.sites)
    )


def how_much(main: KindChange, unprofiled: UnprofiledChange | None) -> str:
    """The change of a step without the profiler, where both sides have one, and in the trace."""
    said = []
    if unprofiled is not None and (ms := unprofiled.step_ms.change) is not None:
        said.append(
            f"without the profiler a step takes {abs(ms):,.2f} ms {'more' if ms >= 0 else 'less'}"
            f" ({unprofiled.step_ms.base:,.2f} ms to {unprofiled.step_ms.head:,.2f} ms)"
        )
    wall, unit = main.part("wall"), "step" if main.base_steps and main.head_steps else "window"
    change = wall.change or 0.0
    trace = f"{_size(change)} {'more' if change > 0 else 'less'} ({_size(wall.base)} to {_size(wall.head)})"
    if abs(change) < LEAST_US:
        trace = f"as long as before ({_size(wall.head)})"
    said.append(f"in the trace {trace}" if said else f"in the trace a {unit} takes {trace}")
    return ", ".join(said) + _shares(main)


def _shares(main: KindChange) -> str:
    """Which parts of the step the change in the trace lies in, the larger ones first."""
    wall = abs(main.part("wall").change or 0.0)
    names = {
        "busy": "GPU busy",
        "idle_host": "idle with the host late",
        "idle_gpu": "the GPU's own idle",
        "idle_unknown": "idle of unknown cause",
    }
    parts = [(name, main.part(key)) for key, name in names.items()]
    telling = [(name, us) for name, us in parts if us.resolved and abs(us.change or 0.0) >= 0.2 * wall]
    telling.sort(key=lambda one: -abs(one[1].change or 0.0))
    said = " and ".join(f"{_signed(us)} {name}" for name, us in telling[:2])
    return f", of it {said}" if said else ""


def _site(change: SiteChange, calibration: CalibrationChange | None) -> str:
    """What is to be said of a site that began or ceased to hold the host up, or "".

    One that was hidden is not worth it; from "unclear" to "pinning" only the evidence is better.
    """
    verdicts = (change.base_verdict, change.head_verdict)
    verdict = change.head_verdict or change.base_verdict
    if not verdict or change.how == "same":
        return ""
    if change.how == "verdict" and ("hidden" not in verdicts or not set(verdicts) & set(BAD)):
        return ""
    if change.how != "verdict" and verdict == "hidden":
        return ""
    means = MEANS[verdict]
    cost = (
        next((row.us for row in calibration.sites if row.name == change.site), None) if calibration else None
    )
    if calibration and calibration.calibrated and cost is not None:
        worth = cost.base if change.how == "vanished" else cost.head
        means += f", and calibration charges {_size(worth)} a step to it"
    if change.how == "appeared":
        return f"A blocking call appeared: {change.site} ({verdict}: {means})"
    if change.how == "vanished":
        return f"A blocking call is gone: {change.site} ({verdict}: {means.replace('resets', 'reset')})"
    return f"A blocking call is now {change.head_verdict}, not {change.base_verdict}: {change.site}"


def _largest(main: KindChange) -> str | None:
    """The part of the step that changed most, in words; None where none did beyond the noise."""
    parts: list[tuple[Delta, str]] = [(one.us, kernel_words(one)) for one in main.kernels]
    parts += [(row.us, f"of the GPU's own idle ({row.name})") for row in main.gpu_idle]
    parts += [(row.us, f"of idle with the host late ({row.name})") for row in main.blame]
    told = [one for one in parts if one[0].resolved and abs(one[0].change or 0.0) >= LEAST_US]
    if not told:
        structural = [one for one in main.kernels if one.how != "same"]
        return kernel_words(structural[0]) if structural else None
    # Of what outweighs each other (a slower kernel that the host no longer waits behind), what made it so.
    us, words = max(told, key=lambda one: round(abs(one[0].change or 0.0), 1))
    return f"the most {_signed(us)} {words}"


def kernel_words(one: KernelChange) -> str:
    """A kernel's change in words, such as `where a + b of verify were fused into c`."""
    before, after = " + ".join(one.base), " + ".join(one.head)
    where = f"of the {one.segment}" if one.segment.startswith("seam") else f"of {one.segment}"
    return {
        "same": f"in kernel {after or before} {where}",
        "renamed": f"where {before} {where} was renamed or replaced by {after}",
        "replaced": f"where {before} {where} was replaced by {after}",
        "fused": f"where {before} {where} were fused into {after}",
        "split": f"where {before} {where} was split into {after}",
        "appeared": f"for the new kernel {after} {where}",
        "vanished": f"where the kernel {before} {where} is gone",
    }[one.how]


def _size(us: float | None) -> str:
    """µs in the unit in which people speak of them."""
    size = abs(us or 0.0)
    return f"{size / 1000:.2f} ms" if size >= 999.95 else f"{size:.1f} µs"


def _signed(us: Delta) -> str:
    change = us.change or 0.0
    return f"{'+' if change >= 0 else '−'}{_size(change)}"
