"""Scenarios made from scenarios: a slower host, a profiler that gets in the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from synth.actions import (
    Action,
    EventRecord,
    EventSync,
    FrameworkOp,
    GraphLaunch,
    Launch,
    Overhead,
    Python,
    Scenario,
    Span,
    StreamSync,
    StreamWait,
)


def rewritten(scenario: Scenario, rule: Callable[[Action], Iterable[Action]]) -> Scenario:
    """The scenario with each action replaced by what `rule` makes of it; bodies first."""

    def walk(actions: Iterable[Action]) -> tuple[Action, ...]:
        out: list[Action] = []
        for action in actions:
            if isinstance(action, Span | FrameworkOp):
                action = replace(action, body=walk(action.body))
            out += rule(action)
        return tuple(out)

    return replace(scenario, programs=tuple(replace(p, actions=walk(p.actions)) for p in scenario.programs))


def slowed(scenario: Scenario, factor: float, calls: float | None = None) -> Scenario:
    """A host slower by `factor`, its API calls by `calls` (the same where not given). The GPU is as fast."""
    calls = factor if calls is None else calls

    def rule(action: Action) -> list[Action]:
        if isinstance(action, Span | FrameworkOp | Overhead):
            return [action]
        by = factor if isinstance(action, Python) or type(action).__name__ == "Gc" else calls
        names = ("call_dur",) if hasattr(action, "call_dur") else ("dur",)
        change: dict[str, Any] = {n: round(getattr(action, n) * by) for n in names}
        return [replace(action, **change)]  # type: ignore[type-var]

    return rewritten(scenario, rule)


def with_profiler_overhead(scenario: Scenario, dur: int, every: int = 10, inside: bool = False) -> Scenario:
    """Profiler buffer work of `dur` ns at every so many launches: before the call, or `inside` it."""
    count = 0

    def rule(action: Action) -> list[Action]:
        nonlocal count
        if not isinstance(action, Launch | GraphLaunch):
            return [action]
        count += 1
        if count % every:
            return [action]
        if inside:
            return [replace(action, overhead=action.overhead + dur)]
        return [Python(1), Overhead(dur), Python(1), action]

    return rewritten(scenario, rule)


def with_marks(scenario: Scenario, *, streams: bool = True) -> Scenario:
    """The spans that our runtime adds: `ll.step` around each run_batch, `ll.replay` around each graph launch,
    and marks around the calls of events and, with `streams`, streams. Kinds are those of the scenario."""
    events: dict[str, int] = {}
    steps = 0
    words = {"nextn": "NEXTN", "dspark": "DSpark"}

    def rule(action: Action) -> list[Action]:
        nonlocal steps
        match action:
            case Span("scheduler.run_batch"):
                kind = words.get(scenario.kinds[steps], scenario.kinds[steps])
                steps += 1
                return [Span(f"ll.step[{steps - 1} {kind}]", (Python(1), action, Python(1)))]
            case GraphLaunch(nodes):
                leg = nodes[0].name.rsplit("_", 1)[0]
                return [Span(f"ll.replay[{'extend' if leg == 'draft_extend' else leg}]", (action,))]
            case EventRecord(event, stream):
                number = events.setdefault(event, len(events))
                return [Span(f"ll.event_record[event={number} stream={stream} step={steps}]", (action,))]
            case EventSync(event):
                number = events.setdefault(event, len(events))
                return [Span(f"ll.wait.event_synchronize[event={number} step={steps}]", (action,))]
            case StreamWait(event, stream):
                number = events.setdefault(event, len(events))
                return [Span(f"ll.stream_wait[event={number} stream={stream} step={steps}]", (action,))]
            case StreamSync(stream) if streams:
                return [Span(f"ll.wait.stream_synchronize[stream={stream} step={steps}]", (action,))]
        return [action]

    return rewritten(scenario, rule)
