"""Blocking sites that one side of the gate has and the other has not: counts, which are exact."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from latencylab.analyzers.gate_runs import VERDICTS
from latencylab.analyzers.syncs import EVIDENCE
from latencylab.model.gate import Decision, Policy, Run, RunSite, SiteVerdict


def judge_sites(base: Sequence[Run], head: Sequence[Run], policy: Policy) -> tuple[SiteVerdict, ...]:
    """Each site that is new, worse, or gone, what fails first.

    A new one, absent in every run of the base, fails where the head's runs show it to pin: in more than
    `site_share` of them, with a verdict and evidence that the policy names. One that the base has as well but
    as harmless rests on times, and is only told. Runs whose trace shows no step say nothing of absence.
    """
    base = [run for run in base if run.steps]
    head = [run for run in head if run.steps]
    if not base or not head:
        return ()
    before, after = _by_site(base), _by_site(head)
    found = [_judge_one(site, before.get(site, []), its, len(head), policy) for site, its in after.items()]
    verdicts = [one for one in found if one is not None]
    verdicts += [
        _told(site, its, len(base), "improvement", f"gone: none of the head's {len(head)} has it")
        for site, its in before.items()
        if site not in after and _failing(its, policy)
    ]
    order: tuple[Decision, ...] = ("regression", "inconclusive", "improvement")

    def first(one: SiteVerdict) -> tuple[int, float, str]:
        return order.index(one.decision), -max(one.cost_us, one.together_us or 0.0), one.site

    return tuple(sorted(verdicts, key=first))


def _by_site(runs: Sequence[Run]) -> dict[str, list[RunSite]]:
    found: dict[str, list[RunSite]] = {}
    for run in runs:
        for site in run.sites:
            found.setdefault(site.site, []).append(site)
    return found


def _failing(sites: Sequence[RunSite], policy: Policy) -> list[RunSite]:
    """Those that fail: often enough, with such a verdict and such evidence."""
    return [
        site
        for site in sites
        if site.verdict in policy.site_verdicts
        and site.evidence in policy.site_evidence
        and site.per_step >= policy.site_per_step
    ]


def _judge_one(
    site: str, before: Sequence[RunSite], after: Sequence[RunSite], runs: int, policy: Policy
) -> SiteVerdict | None:
    """The verdict on a site of the head, or None where there is nothing to say."""
    shown = _failing(after, policy)
    if before:
        if (
            not shown
            or _failing(before, policy)
            or any(one.verdict in policy.site_verdicts for one in before)
        ):
            return None
        return _told(site, shown, runs, "inconclusive", "the base has it too, but not as one that pins")
    if shown:
        if len(shown) <= policy.site_share * runs:
            return _told(site, shown, runs, "inconclusive", "new, but in too few of the head's runs")
        decision: Decision = "regression" if policy.fail_on_new_sites else "inconclusive"
        return _told(site, shown, runs, decision, "new: no run of the base has it")
    worst = [one for one in after if one.verdict in policy.site_verdicts]
    if worst:
        return _told(site, worst, runs, "inconclusive", _doubt(worst, policy))
    return None


def _doubt(sites: Sequence[RunSite], policy: Policy) -> str:
    """Why a new site with a verdict that fails does not."""
    often = max(site.per_step for site in sites)
    if often < policy.site_per_step:
        return f"new, but met only {often:.2g} times a step"
    return f"new, but its evidence is {min((site.evidence for site in sites), key=EVIDENCE.index)}"


def _told(site: str, runs: Sequence[RunSite], of: int, decision: Decision, reason: str) -> SiteVerdict:
    costs = [one.cost_us for one in runs if one.cost_us is not None]
    together = [one.together_us for one in runs if one.together_us is not None]
    return SiteVerdict(
        site=site,
        decision=decision,
        verdict=min((one.verdict for one in runs), key=VERDICTS.index),
        evidence=min((one.evidence for one in runs), key=EVIDENCE.index),
        runs=len(runs),
        of=of,
        cost_us=median(costs) if costs else median(one.idle_us for one in runs),
        calibrated=bool(costs),
        reason=reason,
        together_us=median(together) if together else None,
    )
