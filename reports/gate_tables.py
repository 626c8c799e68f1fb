"""What the gate's renderers show alike: figures in words, and in which order."""

from __future__ import annotations

from latencylab.model.comparison import LEAST_US, percents, signed_percent
from latencylab.model.gate import METRICS, GateResult, MetricVerdict, SiteVerdict
from latencylab.reports.format import MISSING, clean, finite

DECIDES = {True: "decides", False: "explains"}


def figure(value: float | None) -> str:
    """A value with digits enough to tell 0.1 % from none: `6.309`, `5,619.6`; whole where it is whole."""
    number = finite(value)
    if number is None:
        return MISSING
    if number == round(number):
        return f"{number:,.0f}"
    return f"{number:,.1f}" if abs(number) >= 100 else f"{number:,.3f}"


def change(one: MetricVerdict) -> str:
    """The change in % with its sign, of the step where not of itself; nothing where it is not known."""
    number = finite(one.change_pct)
    if number is None:
        return MISSING
    of = "" if METRICS[one.metric].relative == "itself" else " of the step"
    return f"{signed_percent(number, 2)}{of}"


def interval(one: MetricVerdict) -> str:
    """What the change lies in."""
    if one.interval_pct is None:
        return MISSING
    return percents(one.interval_pct, 2)


def site_cost(site: SiteVerdict) -> str:
    """What a site costs a step, with the side on which that lies."""
    if site.calibrated:
        together = "" if site.together_us is None else f", together {site.together_us:,.1f}"
        return f"{site.cost_us:,.1f}{together} µs"
    return f"≥ {site.cost_us:,.1f} µs (not calibrated)" if site.cost_us >= LEAST_US else "not calibrated"


def site_runs(site: SiteVerdict) -> str:
    """In how many runs it was found."""
    return f"{site.runs} of {site.of}"


def changes(result: GateResult) -> list[tuple[str, str, str]]:
    """What was changed between the sides, in words."""
    return [
        (clean(one.field), clean(one.base) if one.base else MISSING, clean(one.head) if one.head else MISSING)
        for one in result.changes
    ]
