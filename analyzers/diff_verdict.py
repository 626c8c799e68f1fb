"""What changed most between two captures, and why, as one sentence for the top of every report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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

TELLING = 0.1  # of the change of a step: a part below it is not worth the first sentence
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
    known = calibration if calibration is not None and calibration.calibrated else None
    said = how_much(main, unprofiled, known)
    sites = [(told, _leads(one, known)) for one in main.sites if (told := _site(one, known))]
    leading = [told for told, leads in sites if leads]
    if leading:
        busy = _largest_of(_kernels(main)) if _tells_busy(main) else None
        return f"{'; '.join(leading[:2])}; {said}{f'; on the GPU {busy}' if busy else ''}."
    cause = _largest(main, known)
    wall = main.part("wall")
    if cause is None and not wall.resolved and not sites:
        return f"No change beyond the noise of steps: {said}."
    also = "".join(f"; {told[0].lower()}{told[1:]}" for told, _ in sites[:2])
    return f"{said[0].upper()}{said[1:]}{f': {cause}' if cause else ''}{also}."


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


def how_much(
    main: KindChange, unprofiled: UnprofiledChange | None, calibration: CalibrationChange | None
) -> str:
    """The change of a step without the profiler, where both sides have one, and in the trace.

    Which parts it lies in is told of the step without the profiler where both sides are calibrated.
    """
    said = []
    if unprofiled is not None and (ms := unprofiled.step_ms.change) is not None:
        said.append(
            f"without the profiler a step takes {abs(ms):,.2f} ms {'more' if ms >= 0 else 'less'}"
            f" ({unprofiled.step_ms.base:,.2f} ms to {unprofiled.step_ms.head:,.2f} ms)"
        )
        if calibration is not None:
            said[0] += _shares(calibration.predicted_step_us, _calibrated_parts(main, calibration))
    wall, unit = main.part("wall"), "step" if main.base_steps and main.head_steps else "window"
    change = wall.change or 0.0
    trace = f"{_size(change)} {'more' if change > 0 else 'less'} ({_size(wall.base)} to {_size(wall.head)})"
    if abs(change) < LEAST_US:
        trace = f"as long as before ({_size(wall.head)})"
    shares = "" if said and calibration is not None else _shares(wall, _traced_parts(main))
    return ", ".join([*said, f"in the trace {'' if said else f'a {unit} takes '}{trace}{shares}"])


def _traced_parts(main: KindChange) -> list[tuple[str, Delta]]:
    return [
        ("GPU busy", main.part("busy")),
        ("idle with the host late", main.part("idle_host")),
        ("the GPU's own idle", main.part("idle_gpu")),
        ("idle of unknown cause", main.part("idle_unknown")),
    ]


def _calibrated_parts(main: KindChange, calibration: CalibrationChange) -> list[tuple[str, Delta]]:
    """A profiler slows the host; kernels take as long without it."""
    return [
        ("GPU busy", main.part("busy")),
        ("idle with the host late", calibration.idle_host_us),
        ("the GPU's own idle", calibration.idle_gpu_us),
    ]


def _shares(whole: Delta, parts: Sequence[tuple[str, Delta]]) -> str:
    """Which parts a change lies in, the larger ones first."""
    least = TELLING * abs(whole.change or 0.0)
    telling = [(name, us) for name, us in parts if us.resolved and abs(us.change or 0.0) >= least]
    telling.sort(key=lambda one: -abs(one[1].change or 0.0))
    said = " and ".join(f"{_signed(us)} {name}" for name, us in telling[:2])
    return f", of it {said}" if said else ""


def _tells_busy(main: KindChange) -> bool:
    """Whether GPU busy time is a part of the change worth a word, beside what the host did."""
    busy, wall = main.part("busy"), main.part("wall")
    return busy.resolved and abs(busy.change or 0.0) >= TELLING * abs(wall.change or 0.0)


def _leads(change: SiteChange, calibration: CalibrationChange | None) -> bool:
    """Whether a site is what a comparison is about.

    It is not where calibration charges next to nothing to it: the host is late without the wait all the same.
    """
    cost = _cost(change, calibration)
    if calibration is None or cost is None:
        return True
    return max(cost.base or 0.0, cost.head or 0.0) >= TELLING * abs(
        calibration.predicted_step_us.change or 0.0
    )


def _cost(change: SiteChange, calibration: CalibrationChange | None) -> Delta | None:
    """What removing the wait of a site gives on either side, without the profiler."""
    sites = calibration.sites if calibration is not None else ()
    return next((row.us for row in sites if row.name == change.site), None)


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
    if (cost := _cost(change, calibration)) is not None:
        worth = cost.base if change.how == "vanished" else cost.head
        means += f", and calibration charges {_size(worth)} a step to it"
    if change.how == "appeared":
        return f"A blocking call appeared: {change.site} ({verdict}: {means})"
    if change.how == "vanished":
        return f"A blocking call is gone: {change.site} ({verdict}: {means.replace('resets', 'reset')})"
    return f"A blocking call is now {change.head_verdict}, not {change.base_verdict}: {change.site}"


def _kernels(main: KindChange) -> list[tuple[Delta, str]]:
    return [(one.us, kernel_words(one)) for one in main.kernels]


def _largest(main: KindChange, calibration: CalibrationChange | None) -> str | None:
    """The part of the step that changed most, in words; None where none did beyond the noise."""
    blame = main.blame if calibration is None else calibration.blame
    parts = _kernels(main)
    parts += [(row.us, f"of the GPU's own idle ({row.name})") for row in main.gpu_idle]
    parts += [(row.us, f"of idle with the host late ({row.name})") for row in blame]
    if (largest := _largest_of(parts)) is not None:
        return largest
    structural = [one for one in main.kernels if one.how != "same"]
    return kernel_words(structural[0]) if structural else None


def _largest_of(parts: Iterable[tuple[Delta, str]]) -> str | None:
    """The one that changed most, the earlier of equals; None where none did beyond the noise."""
    told = [one for one in parts if one[0].resolved and abs(one[0].change or 0.0) >= LEAST_US]
    if not told:
        return None
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
