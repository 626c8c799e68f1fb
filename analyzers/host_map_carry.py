"""Carry a host map from the capture in which it was measured to another capture of the same software.

The times of a span of the same name with the same work in it are absolute: without the profiler they are
what they are in the capture that measured them. Everything else has that capture's factor, divided by how
many times slower the matched host time is in the other trace: speed ratio = sum of the matched host time in
this trace / the same sum in that one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from latencylab.analyzers.calibrate import Model, program_of
from latencylab.analyzers.host import PROFILER, WAITING
from latencylab.analyzers.host_map import HostMap, curves, host_time, paces
from latencylab.analyzers.replay import Program
from latencylab.analyzers.replay_build import PeerWaits, Spans
from latencylab.analyzers.view import KindView
from latencylab.model.integrity import InputError
from latencylab.model.trace import I64

# Of a manifest, what makes another software or another kind of machine: its host times say nothing here.
# Another host of the kind is one speed more, which the ratio of matched calls takes out.
SAME = ("gpu", "driver")
SAME_ARGS = (
    "tp_size",
    "dp_size",
    "pp_size",
    "ep_size",
    "model_path",
    "attention_backend",
    "disable_overlap_schedule",
)


def refuse_other_software(source: Mapping[str, Any] | None, target: Mapping[str, Any] | None) -> None:
    """Raise InputError, naming the first difference, where two manifests are not of one software on one kind
    of machine. What only one of them says is no difference."""
    for what, ours, theirs in _compared(source or {}, target or {}):
        if ours is not None and theirs is not None and ours != theirs:
            raise InputError(f"the map is of another configuration: {what} is {ours} there and {theirs} here")


def _compared(source: Mapping[str, Any], target: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    found = [(key, source.get(key), target.get(key)) for key in SAME]
    packages = [manifest.get("packages") or {} for manifest in (source, target)]
    found += [
        (f"package {name}", packages[0].get(name), packages[1].get(name))
        for name in sorted(packages[0].keys() - {"latencylab"})
    ]
    arguments = [manifest.get("server_args") or {} for manifest in (source, target)]
    found += [(f"server_args {name}", arguments[0].get(name), arguments[1].get(name)) for name in SAME_ARGS]
    workloads = [manifest.get("workload") or {} for manifest in (source, target)]
    return [*found, ("model", workloads[0].get("model"), workloads[1].get("model"))]


def carry(source: Model, view: KindView, peers: PeerWaits | None) -> Model:
    """The model of a trace by the map of another capture's. Raises InputError where nothing of it matches."""
    clocked = frozenset(sort.clocked for sort in source.program.sorts)
    program, steps = program_of(view, peers, clocked)
    there, here = _span_times(source.program, source.steps), _span_times(program, steps)
    work_there, work_here = _span_work(source.view), _span_work(view)
    matched = tuple(
        span
        for span in here
        if span in there and work_here.get(span) == work_there.get(span) and there[span] > 0
    )
    total_there, total_here = sum(there[s] for s in matched), sum(here[s] for s in matched)
    if not total_there or not total_here:
        raise InputError("the map cannot be carried over: no span has the same calls in it in both captures")
    ratio = total_here / total_there
    relative = np.ones(len(program.sorts))
    factor_of = _factors(source)
    for row, sort in enumerate(program.sorts):
        factor = factor_of.get(
            (sort.span, sort.clocked), factor_of.get(("", sort.clocked), factor_of["", ""])
        )
        relative[row] = factor * (there[sort.span] / here[sort.span] if sort.span in matched else 1 / ratio)
    host_map = HostMap(relative, paces(program, steps), source.host_map.gpu, source.host_map.gpu_known)
    stretches = replace(source.stretches, length=np.zeros(len(source.stretches.speed)))
    shape = curves(program, [host_map], steps)[0]
    return Model(view, program, host_map, shape, stretches, steps, source.unmarked)


def _factors(source: Model) -> dict[tuple[str, str], float]:
    """The source's relative factor of each span, weighted by its host time: by span and clocked span, by
    clocked span, and of all."""
    sums: dict[tuple[str, str], list[float]] = {}
    traced = host_time(source.program, source.steps)
    for sort, ns, factor in zip(
        source.program.sorts, traced.tolist(), source.host_map.relative.tolist(), strict=True
    ):
        if sort.doing in (WAITING, PROFILER):
            continue
        for key in {(sort.span, sort.clocked), ("", sort.clocked), ("", "")}:
            its = sums.setdefault(key, [0.0, 0.0])
            its[0] += ns * factor
            its[1] += ns
    return {key: scaled / max(ns, 1.0) for key, (scaled, ns) in sums.items() if ns > 0}


def _span_times(program: Program, steps: I64) -> dict[str, float]:
    """The host ns per step in each span and in none within it."""
    times: dict[str, float] = {}
    for sort, ns in zip(program.sorts, host_time(program, steps).tolist(), strict=True):
        if sort.doing not in (WAITING, PROFILER):
            times[sort.span] = times.get(sort.span, 0.0) + ns
    return times


def _span_work(view: KindView) -> dict[str, tuple[int, int]]:
    """The API calls and framework ops of the median step in each span and in none within it."""
    trace, steps = view.rank.trace, view.rank.steps
    counts: dict[str, list[list[int]]] = {}
    spans = Spans.of(trace, steps.thread)
    tables = ((trace.api.thread, trace.api.start), (trace.ops.thread, trace.ops.start))
    for column, (thread, start) in enumerate(tables):
        mine = start[thread == steps.thread]
        label, step = spans.at(mine), steps.of_host(mine)
        counted = np.isin(step, view.used)
        for (code, its), n in Counter(
            zip(label[counted].tolist(), step[counted].tolist(), strict=True)
        ).items():
            per_step = counts.setdefault(spans.name(code), [[0] * len(steps), [0] * len(steps)])
            per_step[column][its] += n
    return {
        name: (int(np.median(np.array(api)[view.used])), int(np.median(np.array(ops)[view.used])))
        for name, (api, ops) in counts.items()
    }
