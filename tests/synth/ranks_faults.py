"""Faults of single ranks in every step, as the runtime injects them, and hosts that a profiler slows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from synth.actions import Action, Launch, Python, Span
from synth.ranks_actions import RankScenario
from synth.transform import rewritten, slowed

SPIN = "void at::cuda::(anonymous namespace)::spin_kernel(long)"
RUN_BATCH, FIRST_LEG = "scheduler.run_batch", "draft"


def sleeping(scenario: RankScenario, rank: int, ns: int) -> RankScenario:
    """The same with so much Python at the start of each `scheduler.run_batch` of a rank."""
    return _changed(scenario, rank, RUN_BATCH, lambda span: (replace(span, body=(Python(ns), *span.body)),))


def spinning(scenario: RankScenario, rank: int, ns: int) -> RankScenario:
    """The same with a kernel that spins so long before the first leg of each step of a rank."""
    spin = Launch(ns, name=SPIN, gap=500)
    return _changed(scenario, rank, FIRST_LEG, lambda span: (spin, Python(500), span))


def with_hosts(scenario: RankScenario, factor: float) -> RankScenario:
    """The same with all hosts so many times as slow."""
    return replace(scenario, ranks=tuple(slowed(own, factor) for own in scenario.ranks))


def _changed(
    scenario: RankScenario, rank: int, name: str, change: Callable[[Span], tuple[Action, ...]]
) -> RankScenario:
    def rule(action: Action) -> tuple[Action, ...]:
        return change(action) if isinstance(action, Span) and action.name == name else (action,)

    its = rewritten(scenario.ranks[rank], rule)
    return replace(scenario, ranks=(*scenario.ranks[:rank], its, *scenario.ranks[rank + 1 :]))
