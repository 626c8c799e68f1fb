"""The gate's verdict on each metric.

Runs are the unit of replication (Kalibera and Jones, 2013, "Rigorous benchmarking in reasonable time"): a new
start of the engine may settle in another state, and requests or steps of one process, correlated as they are,
tell nothing of that. So a run counts as one value, the mean of its requests, and the test is on the runs'
values: `compare_means`, with a spread that is usual or known from history beside the few measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from latencylab.model.comparison import percents, signed_percent
from latencylab.model.gate import METRICS, SECONDARY, STEP, TRACED_STEP, Metric, MetricVerdict, Policy, Run
from latencylab.stats import Difference, compare_means

# How many degrees of freedom an assumed spread counts for; the usual one always for fewer than were measured.
USUAL_WEIGHT = 8.0
KNOWN_WEIGHT = 10.0
PERCENT = 100.0


def judge_metrics(base: Sequence[Run], head: Sequence[Run], policy: Policy) -> tuple[MetricVerdict, ...]:
    """The primary metric first; of the others those that any run has."""
    found = [judge_step(base, head, policy)]
    for metric in SECONDARY:
        ours, theirs = _values(base, metric), _values(head, metric)
        if ours or theirs:
            found.append(_judge_secondary(metric, ours, theirs, _step_us(base, metric), policy))
    return tuple(found)


def judge_step(base: Sequence[Run], head: Sequence[Run], policy: Policy) -> MetricVerdict:
    """The verdict on ms per step of the unprofiled requests, the one metric that decides by itself."""
    blank = _blank(STEP, judged=True)
    timed = [[run for run in side if run.requests_step_ms] for side in (base, head)]
    if not all(timed):
        lacks = "neither side has" if not any(timed) else f"the {'head' if timed[0] else 'base'} has no"
        return replace(blank, reason=f"no time is judged: {lacks} unprofiled requests")
    values = [[math.log(value) for value in side] for side in _run_means(*timed)]
    found = replace(
        blank,
        base=math.exp(_mean(values[0])),
        head=math.exp(_mean(values[1])),
        base_runs=len(timed[0]),
        head_runs=len(timed[1]),
        change_pct=PERCENT * math.expm1(_mean(values[1]) - _mean(values[0])),
    )
    if min(len(side) for side in values) < policy.min_runs:
        return _judge_few(found, timed, policy)
    return _judge_many(STEP, found, _compare(values[0], values[1], policy), policy)


def _run_means(base: Sequence[Run], head: Sequence[Run]) -> tuple[list[float], list[float]]:
    """The mean ms per step of each run; over the requests that all have, where seeds tell which is which."""
    runs = [*base, *head]
    shared = set(runs[0].request_keys).intersection(*(run.request_keys for run in runs[1:]))

    def mean(run: Run) -> float:
        if not shared:
            return _mean(run.requests_step_ms)
        keyed = zip(run.request_keys, run.requests_step_ms, strict=True)
        return _mean([ms for key, ms in keyed if key in shared])

    return [mean(run) for run in base], [mean(run) for run in head]


def _compare(base: Sequence[float], head: Sequence[float], policy: Policy) -> Difference:
    """The test of the runs' logarithms; the spread known from history goes before the usual one."""
    if policy.known_spread_pct > 0:
        return compare_means(base, head, policy.known_spread_pct / PERCENT, KNOWN_WEIGHT)
    return _compare_usual(base, head, policy)


def _compare_usual(base: Sequence[float], head: Sequence[float], policy: Policy) -> Difference:
    weight = min(USUAL_WEIGHT, len(base) + len(head) - 3)
    return compare_means(base, head, policy.usual_spread_pct / PERCENT, weight)


def _judge_many(
    metric: Metric, found: MetricVerdict, difference: Difference, policy: Policy, *, logs: bool = True
) -> MetricVerdict:
    """The verdict where both sides have enough runs. A change above 0 is a higher value."""
    percent = _percent if logs else _plain_percent
    low, high = difference.interval(policy.alpha)
    interval = percent(low), percent(high)
    worse = difference if metric.good != "higher" else replace(difference, change=-difference.change)
    p_worse = worse.p_greater()
    found = replace(found, interval_pct=interval, p_value=p_worse, spread_pct=PERCENT * difference.sd)
    change = found.change_pct or 0.0
    is_real = p_worse < policy.alpha or 1 - p_worse < policy.alpha
    shown = f"change {signed_percent(change, 2)}"
    if is_real and abs(change) > policy.min_effect_pct:
        if metric.good == "none":
            return replace(found, verdict="inconclusive", reason=f"{shown}: neither way is better")
        return replace(
            found,
            verdict="regression" if worse.change > 0 else "improvement",
            reason=f"{shown}, beyond {policy.min_effect_pct:g} % and beyond chance (alpha {policy.alpha:g})",
        )
    limit = policy.unchanged_within_pct
    if max(abs(interval[0]), abs(interval[1])) < limit:
        small = f", below the minimum effect of {policy.min_effect_pct:g} %" if is_real else ""
        return replace(
            found, verdict="unchanged", reason=f"{shown}{small}; a change of {limit:g} % or more is ruled out"
        )
    return replace(
        found,
        verdict="inconclusive",
        reason=f"{shown}, but {percents(interval)} is possible: runs of one side"
        f" spread by {PERCENT * difference.sd:.1f} %; more runs would tell",
    )


def _judge_few(found: MetricVerdict, timed: Sequence[Sequence[Run]], policy: Policy) -> MetricVerdict:
    """The verdict with too few runs to know their spread: only a change far beyond a known one is told."""
    change = found.change_pct or 0.0
    shown = f"change {signed_percent(change, 2)}"
    found = replace(found, interval_pct=_within(found, timed))
    few = few_runs(found.base_runs, found.head_runs, policy)
    spread = policy.known_spread_pct
    if spread <= 0:
        return replace(
            found,
            verdict="inconclusive",
            reason=f"{shown}, but {few}: how much runs of one commit differ is not known",
        )
    of_difference = math.sqrt(1 / found.base_runs + 1 / found.head_runs)
    limit = max(policy.few_runs_factor * spread * max(1.0, of_difference), policy.min_effect_pct)
    if abs(change) > limit:
        return replace(
            found,
            verdict="regression" if change > 0 else "improvement",
            spread_pct=spread,
            reason=f"{shown}, beyond {limit:.2f} %, {policy.few_runs_factor:g} times what"
            f" runs are known to spread by ({spread:g} %); {few}",
        )
    return replace(
        found,
        verdict="inconclusive",
        spread_pct=spread,
        reason=f"{shown}, within {limit:.2f} % that the known spread allows; {few}",
    )


def few_runs(base: int, head: int, policy: Policy) -> str:
    """How many runs there are and should be, in words."""
    return f"{base} against {head} runs where {policy.min_runs} a side are needed"


def _within(found: MetricVerdict, timed: Sequence[Sequence[Run]]) -> tuple[float, float] | None:
    """The 95 % interval of the change as far as steps within the runs tell it, in %."""
    square = 0.0
    for side in timed:
        widths = [_relative_error(run) for run in side]
        if any(width is None for width in widths):
            return None
        square += math.fsum(width**2 for width in widths if width is not None) / len(side) ** 2
    change = math.log1p((found.change_pct or 0.0) / PERCENT)
    reach = 1.96 * math.sqrt(square)
    return _percent(change - reach), _percent(change + reach)


def _relative_error(run: Run) -> float | None:
    if run.step_interval_ms is None:
        return None
    low, high = run.step_interval_ms
    return (high - low) / (2 * 1.96) / _mean(run.requests_step_ms)


def _judge_secondary(
    metric: Metric, base: Sequence[float], head: Sequence[float], step_us: float | None, policy: Policy
) -> MetricVerdict:
    """The verdict on a metric that explains; it decides only where the policy lists it."""
    found = _blank(metric, judged=metric.name in policy.judge)
    found = replace(found, base_runs=len(base), head_runs=len(head))
    if not base or not head:
        return replace(found, reason="one side does not have it")
    found = replace(found, base=_mean(base), head=_mean(head))
    if metric.count:
        return _judge_count(metric, found, base, head)
    logs = metric.relative == "itself"
    if logs:
        base, head = [math.log(value) for value in base], [math.log(value) for value in head]
        found = replace(found, base=math.exp(_mean(base)), head=math.exp(_mean(head)))
    elif step_us:
        base, head = [value / step_us for value in base], [value / step_us for value in head]
    else:
        return replace(found, verdict="inconclusive", reason="no step to compare it with")
    change = _mean(head) - _mean(base)
    found = replace(found, change_pct=_percent(change) if logs else _plain_percent(change))
    if min(len(base), len(head)) < policy.min_runs:
        return replace(found, verdict="inconclusive", reason=few_runs(len(base), len(head), policy))
    return _judge_many(metric, found, _compare_usual(base, head, policy), policy, logs=logs)


def _judge_count(
    metric: Metric, found: MetricVerdict, base: Sequence[float], head: Sequence[float]
) -> MetricVerdict:
    """Counts are exact: a change is one where the sides do not overlap."""
    if min(head) > max(base) or max(head) < min(base):
        more_is_worse = metric.good == "lower"
        is_worse = (min(head) > max(base)) == more_is_worse
        return replace(
            found, verdict="regression" if is_worse else "improvement", reason="all runs of the head differ"
        )
    if len({*base, *head}) == 1:
        return replace(found, verdict="unchanged", reason="the same in all runs")
    return replace(found, verdict="inconclusive", reason="differs between runs of one side")


def _blank(metric: Metric, *, judged: bool) -> MetricVerdict:
    return MetricVerdict(
        metric=metric.name,
        title=metric.title,
        unit=metric.unit,
        verdict="incomparable",
        judged=judged,
        base=None,
        head=None,
        base_runs=0,
        head_runs=0,
    )


def _values(runs: Sequence[Run], metric: Metric) -> list[float]:
    found = [run.metrics[metric.name] for run in runs if metric.name in run.metrics]
    return [value for value in found if metric.relative != "itself" or metric.count or value > 0]


def _step_us(runs: Sequence[Run], metric: Metric) -> float | None:
    """The step that a metric's change is a share of: without the profiler, where that is known, or traced."""
    timed = [_mean(run.requests_step_ms) * 1000 for run in runs if run.requests_step_ms]
    steps = timed if metric.relative == "step" and timed else _values(runs, METRICS[TRACED_STEP.name])
    return _mean(steps) if steps else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _percent(log_change: float) -> float:
    return PERCENT * math.expm1(log_change)


def _plain_percent(share: float) -> float:
    return PERCENT * share
