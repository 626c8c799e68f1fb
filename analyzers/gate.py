"""The gate: did these runs get worse than those? A pure decision on what runs keep of their captures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from latencylab.analyzers.comparable import changed, conflicts, name_mismatches
from latencylab.analyzers.gate_metrics import few_runs, judge_metrics
from latencylab.analyzers.gate_runs import run_of
from latencylab.analyzers.gate_sites import judge_sites
from latencylab.model.comparison import LEAST_US, Change, Mismatch, percents, signed_percent
from latencylab.model.gate import Decision, GateResult, MetricVerdict, Policy, Run, SiteVerdict

__all__ = ["judge", "run_of"]


def judge(base: Sequence[Run], head: Sequence[Run], policy: Policy | None = None) -> GateResult:
    """Decide whether the runs `head` are worse than the runs `base`, at least one of each.

    A regression is a new blocking site that pins (see `judge_sites`), or one in a metric that decides: the
    step without the profiler, and what the policy lists. Runs that must not be compared are incomparable.
    """
    policy = policy or Policy()
    given = len(base) + len(head)
    base, head = _distinct(base), _distinct(head)
    repeated = given - len(base) - len(head)
    conflicting = _mismatches(base, head)
    metrics: tuple[MetricVerdict, ...] = ()
    sites: tuple[SiteVerdict, ...] = ()
    if not conflicting:
        metrics, sites = judge_metrics(base, head, policy), judge_sites(base, head, policy)
        conflicting = tuple(_nothing_judged(base, head, metrics[0]))
    verdict = _overall(metrics, sites, conflicting)
    warnings = () if conflicting else tuple(_warnings(base, head, metrics, sites, repeated))
    return GateResult(
        verdict=verdict,
        headline=_headline(verdict, metrics, sites, conflicting, policy),
        base=tuple(run.label for run in base),
        head=tuple(run.label for run in head),
        metrics=metrics,
        sites=sites,
        changes=_changes(base[0], head),
        mismatches=conflicting,
        warnings=warnings,
        policy=policy,
    )


def _distinct(runs: Sequence[Run]) -> list[Run]:
    """The runs without those that are another one again, which would be taken for runs that agree."""
    kept: list[Run] = []
    for run in runs:
        if not any(_is_same(run, other) for other in kept):
            kept.append(run)
    return kept


def _is_same(run: Run, other: Run) -> bool:
    """Whether two runs hold one measurement, under whatever name."""
    return (run.requests_step_ms, run.metrics, run.sites) == (
        other.requests_step_ms,
        other.metrics,
        other.sites,
    )


def _mismatches(base: Sequence[Run], head: Sequence[Run]) -> tuple[Mismatch, ...]:
    """In what any run differs from the first of the base; of a field the first such run is named."""
    found: dict[str, Mismatch] = {}
    sides = [_integrity(side) for side in (base, head)]
    if sides != ["ok", "ok"]:
        found["integrity"] = Mismatch("integrity", *sides)
    for run in (*head, *base[1:]):
        for one in conflicts(base[0].conditions, run.conditions):
            found.setdefault(one.field, one)
    return tuple(found.values())


def _integrity(runs: Sequence[Run]) -> str:
    """What makes any of the runs unusable, or `ok`."""
    for run in runs:
        if run.integrity == "unusable":
            return f"unusable ({run.unusable})" if run.unusable else "unusable"
    return "ok"


def _nothing_judged(base: Sequence[Run], head: Sequence[Run], step: MetricVerdict) -> Iterator[Mismatch]:
    """Where neither a time nor a site can be judged, nothing was compared."""
    has_sites = any(run.steps for run in base) and any(run.steps for run in head)
    if step.verdict == "incomparable" and not has_sites:
        sides = [
            "some" if any(run.steps or run.requests_step_ms for run in one) else "none"
            for one in (base, head)
        ]
        yield Mismatch("unprofiled requests or steady steps", *sides)


def _changes(base: Run, head: Sequence[Run]) -> tuple[Change, ...]:
    """What was changed from the first run of the base to any of the head."""
    found: dict[str, Change] = {}
    for run in head:
        for one in changed(base.circumstances, run.circumstances, {*base.recorded} & {*run.recorded}):
            found.setdefault(one.field, one)
    return tuple(found.values())


def _overall(
    metrics: Sequence[MetricVerdict], sites: Sequence[SiteVerdict], mismatches: Sequence[Mismatch]
) -> Decision:
    """The worst of what decides; sites alone decide where no time can be judged."""
    if mismatches:
        return "incomparable"
    decisions = [one.verdict for one in metrics if one.judged] + [one.decision for one in sites]
    for decision in ("regression", "inconclusive", "improvement"):
        if decision in decisions:
            return decision
    return "unchanged"


def _headline(
    verdict: Decision,
    metrics: Sequence[MetricVerdict],
    sites: Sequence[SiteVerdict],
    mismatches: Sequence[Mismatch],
    policy: Policy,
) -> str:
    """The decision in one line: what broke and what it costs, or why nothing did."""
    if mismatches:
        return f"Not comparable: {name_mismatches(mismatches)}"
    failed = [one for one in sites if one.decision == "regression"]
    slower = [one for one in metrics if one.judged and one.verdict == "regression"]
    step = metrics[0]
    if failed:
        more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        first = failed[0]
        also = "; ".join(_change(one, policy) for one in slower) or _change(step, policy)
        return f"Regression: new blocking site{more}: {first.site}: {first.verdict}, {cost(first)}; {also}"
    if slower:
        return "Regression: " + "; ".join(_change(one, policy) for one in slower)
    if step.verdict == "incomparable":
        return f"No new blocking site fails; {step.reason}"
    names = {
        "improvement": "Better",
        "inconclusive": "Inconclusive, passed with a warning",
        "unchanged": "No regression",
    }
    return f"{names.get(verdict, verdict)}: {_change(step, policy)}; no new blocking site fails"


def cost(site: SiteVerdict) -> str:
    """What a site costs, and how that is known."""
    if site.calibrated:
        more = ""
        if site.together_us is not None:
            more = f", {site.together_us:,.1f} with those that wait in its place"
        return f"costs {site.cost_us:,.1f} µs a step{more}, without the profiler (calibrated)"
    if site.cost_us < LEAST_US:
        return "its cost not calibrated (the trace, with its slow host, shows none)"
    return f"costs at least {site.cost_us:,.1f} µs a step (lower bound from the trace, not calibrated)"


def _change(one: MetricVerdict, policy: Policy) -> str:
    """From what to what a metric changed, what that is called, and where it cannot be told, why."""
    if one.change_pct is None or one.base is None or one.head is None:
        return one.reason
    said: str = one.verdict
    if one.verdict == "inconclusive":
        is_few = min(one.base_runs, one.head_runs) < policy.min_runs
        if is_few:
            said += f": {few_runs(one.base_runs, one.head_runs, policy)}"
        elif one.interval_pct is not None:
            said += f": {percents(one.interval_pct)} is possible"
    change = signed_percent(one.change_pct)
    return f"{one.title} {one.base:,.3f} to {one.head:,.3f} {one.unit} ({change}, {said})"


def _warnings(
    base: Sequence[Run],
    head: Sequence[Run],
    metrics: Sequence[MetricVerdict],
    sites: Sequence[SiteVerdict],
    repeated: int,
) -> Iterator[str]:
    for one in metrics:
        if one.judged and one.verdict in ("inconclusive", "incomparable"):
            yield f"{one.title}: {one.reason}"
    for site in sites:
        if site.decision == "inconclusive":
            yield f"blocking site {site.site} ({site.verdict}): {site.reason}"
    for name, side in (("base", base), ("head", head)):
        commits = {run.commit for run in side if run.commit}
        if len(commits) > 1:
            yield f"the runs of the {name} are of {len(commits)} commits: {', '.join(sorted(commits))}"
        stepless = [run.label for run in side if not run.steps]
        if stepless:
            yield f"no steady step in the trace of {', '.join(stepless)}: its blocking sites are not judged"
    if repeated:
        yield f"{repeated} of the runs were given more than once on one side: a run counts once"
    if any(_is_same(ours, theirs) for ours in base for theirs in head):
        yield "a run stands on both sides: it says nothing of a change"
