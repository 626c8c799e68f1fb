"""The calibration in words: what the step is without the profiler, and how far that can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from latencylab.model.calibration import Calibration, Estimate, SiteCost, Together
from latencylab.model.findings import Analysis, Sync
from latencylab.reports import format as fmt

_WORTH_US = 1.0  # of a site's cost, below which the first screen leaves it out
STATUS_STYLE = {"calibrated": "green", "untrusted": "yellow", "uncalibrated": "dim"}
HOST_MEANS = {
    "calibrated": "as in the trace; without the profiler: see Calibration",
    "untrusted": "as in the trace, an upper bound; its calibration is not trusted",
    "uncalibrated": "uncalibrated: an upper bound",
}


def status(analysis: Analysis) -> str:
    """The status that every host figure carries."""
    return analysis.calibration.status if analysis.calibration else "uncalibrated"


def word(analysis: Analysis) -> str:
    """The status in the fewest words, beside host figures of the trace."""
    its = status(analysis)
    return its if its == "uncalibrated" else "as in the trace"


def shown(analysis: Analysis) -> bool:
    """Whether there is more to show of the calibration than its status."""
    found = analysis.calibration
    return found is not None and found.predicted_step_us is not None


def host_note(analysis: Analysis) -> str:
    """What to put beside host figures of the trace."""
    return HOST_MEANS[status(analysis)]


def between(estimate: Estimate) -> str:
    """The interval of an estimate in µs: `5,890 to 6,462`."""
    return f"{fmt.us(estimate.low)} to {fmt.us(estimate.high)}"


def lines(found: Calibration, traced_host_us: float | None) -> list[tuple[str, str]]:
    """What was found, as (topic, sentence): steps, idle, factors, the sites whose waits cost something."""
    rows: list[tuple[str, str]] = []
    if found.reason:
        rows.append(("why", found.reason))
    if found.predicted_step_us is None:
        return rows
    rows.append(("step", _step(found, found.predicted_step_us)))
    if found.idle_host_us is not None:
        shown = "" if traced_host_us is None else f", where the trace shows {fmt.us(traced_host_us)}"
        rows.append(
            ("host idle", f"{fmt.us(found.idle_host_us.value)} µs ({between(found.idle_host_us)}){shown}")
        )
    rows.append(("factors", _factors(found)))
    if found.run_ahead_us:
        ahead = ", ".join(f"{leg} {fmt.us(its.value)}" for leg, its in found.run_ahead_us.items())
        rows.append(("run-ahead", f"{ahead} µs at the legs"))
    if found.legs:
        off = ", ".join(f"{its.leg} {percent(its.error_pct)}" for its in found.legs)
        rows.append(("GPU legs", f"from leg to leg the replay is off the clock by: {off}"))
    rows += [("wait", _site(site)) for site in found.syncs if matters(site)]
    if found.together is not None:
        rows.append(("together", _together(found.together)))
    return rows + [("note", note) for note in found.notes]


def percent(value: float) -> str:
    """An error with its sign: `+0.8 %`."""
    return f"{round(value, 1) + 0.0:+.1f} %"


def matters(site: SiteCost) -> bool:
    """Whether a site's wait holds the step up without the profiler."""
    return site.verdict in ("harmful", "pinning") or site.cost_us.value >= _WORTH_US


def _step(found: Calibration, step_us: Estimate) -> str:
    predicted = f"predicted {fmt.us(step_us.value)} µs ({between(step_us)})"
    with_profiler = (
        "" if found.profiled_step_us is None else f"; with the profiler {fmt.us(found.profiled_step_us)}"
    )
    if found.unprofiled_step_us is None or found.error_pct is None:
        return f"{predicted}, not measured{with_profiler}"
    measured = f"measured {fmt.us(found.unprofiled_step_us.value)} µs ({between(found.unprofiled_step_us)})"
    return f"{measured}, {predicted}, {percent(found.error_pct)}{with_profiler}"


def _factors(found: Calibration) -> str:
    if found.host_factor is None:
        host = "the host's factor is not identified: the step does not depend on the host"
    else:
        its = found.host_factor
        host = f"host work takes {its.value:.2f} ({its.low:.2f} to {its.high:.2f}) of its time in the trace"
    gpu = (
        "the GPU's is not identified, 1 was used"
        if found.gpu_factor is None
        else f"GPU work {found.gpu_factor:.3f}"
    )
    return f"{host}; {gpu}"


def _site(site: SiteCost) -> str:
    blocks = (
        f"blocks {fmt.us(site.blocked_us.value)} µs a step, {fmt.us(site.profiled_blocked_us)} in the trace"
    )
    shorter = f"{fmt.us(site.cost_us.value)} µs ({between(site.cost_us)})"
    gain = f"without the wait steps are {shorter} shorter"
    return f"{site.site}: {blocks}; {gain}; {site.verdict}"


def _together(its: Together) -> str:
    shorter = f"{fmt.us(its.cost_us.value)} µs ({between(its.cost_us)}) shorter"
    return (
        f"without these {len(its.sites)} waits steps are {shorter}; with one gone the host waits in another:"
        f" {its.names}"
    )


def in_truth(analysis: Analysis) -> str:
    """Beside the host idle of a trace: its status, and what is left of it without the profiler."""
    found = analysis.calibration
    if found is None or found.status != "calibrated" or found.idle_host_us is None:
        return word(analysis)
    return f"{word(analysis)}; {fmt.us_unit(found.idle_host_us.value)} without the profiler"


def step_in_truth(analysis: Analysis) -> str:
    """The step without the profiler, where that is calibrated; else nothing."""
    found = analysis.calibration
    if found is None or found.status != "calibrated" or found.predicted_step_us is None:
        return ""
    return f"{fmt.us_unit(found.predicted_step_us.value)} without the profiler"


def of_site(sync: Sync) -> str:
    """What a site does without the profiler; nothing where that is not calibrated."""
    if sync.unprofiled_blocked_us is None or sync.cost_us is None:
        return ""
    blocks = f"without the profiler it blocks {fmt.us_unit(sync.unprofiled_blocked_us)} a step"
    return f"{blocks}, and steps are {fmt.us_unit(sync.cost_us)} shorter without its wait"


def need_note(syncs: Sequence[Sync]) -> str:
    """How the need of these sites was found."""
    if any(sync.cost_us is not None for sync in syncs):
        return "need and verdict as without the profiler, the other figures as in the trace"
    return "need: half of what the trace shows, for the profiler slows the host"


def headline(found: Calibration) -> str:
    """The status with what it rests on."""
    if not found.steps:
        return found.status
    rests = f"{fmt.count(found.requests, 'request')}, {fmt.count(found.steps, 'step')} without the profiler"
    rests += "; intervals are of 95 %"
    carried = f"; map of {found.map_from}" if found.map_from else ""
    return f"{found.status} ({rests}{carried})"


def to_contract(found: Calibration) -> dict[str, Any]:
    """The calibration as the contract has it; intervals of the figures stand in `interval_us`."""

    def value(estimate: Estimate | None) -> float | None:
        return None if estimate is None else estimate.value

    def interval(estimate: Estimate | None) -> list[float] | None:
        return None if estimate is None else [estimate.low, estimate.high]

    return {
        "status": found.status,
        "reason": found.reason,
        "rank": found.rank,
        "kind": found.kind,
        "profiled_step_us": found.profiled_step_us,
        "unprofiled_step_us": value(found.unprofiled_step_us),
        "predicted_step_us": value(found.predicted_step_us),
        "error_pct": found.error_pct,
        "blind_error_pct": found.blind_error_pct,
        "replay_error_pct": found.replay_error_pct,
        "idle_host_us": value(found.idle_host_us),
        "idle_gpu_us": value(found.idle_gpu_us),
        "interval_us": {
            "unprofiled_step": interval(found.unprofiled_step_us),
            "predicted_step": interval(found.predicted_step_us),
            "idle_host": interval(found.idle_host_us),
            "idle_gpu": interval(found.idle_gpu_us),
        },
        "idle_host_blame_us": {name: its.value for name, its in found.idle_host_blame_us.items()},
        "run_ahead_us": {name: its.value for name, its in found.run_ahead_us.items()},
        "syncs": [
            {
                "site": site.site,
                "profiled_blocked_us": site.profiled_blocked_us,
                "blocked_us": site.blocked_us.value,
                "cost_us": site.cost_us.value,
                "cost_interval_us": interval(site.cost_us),
                "behind_us": site.behind_us,
                "need_us": site.need_us,
                "verdict": site.verdict,
            }
            for site in found.syncs
        ],
        "together": None
        if found.together is None
        else {
            "sites": list(found.together.sites),
            "cost_us": found.together.cost_us.value,
            "cost_interval_us": interval(found.together.cost_us),
        },
        "spans": [
            {
                "span": its.span,
                "profiled_us": its.profiled_us,
                "unprofiled_us": its.unprofiled_us.value,
                "factor": its.factor.value,
                "factor_interval": interval(its.factor),
            }
            for its in found.spans
        ],
        "even_us": {side: its.value for side, its in found.even_us.items()},
        "even_interval_us": {side: interval(its) for side, its in found.even_us.items()},
        "legs": [
            {"leg": its.leg, "predicted_us": its.predicted_us, "measured_us": its.measured_us}
            for its in found.legs
        ],
        "notes": list(found.notes),
        "host_factor": value(found.host_factor),
        "host_factor_interval": interval(found.host_factor),
        "gpu_factor": found.gpu_factor,
        "requests": found.requests,
        "steps": found.steps,
        "map_from": found.map_from or None,
    }
