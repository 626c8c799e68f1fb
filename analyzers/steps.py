"""Find the steps: one iteration of the engine's loop each, on the host and on the GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from latencylab.analyzers.intervals import holder
from latencylab.analyzers.launches import Launches
from latencylab.analyzers.marks import STEP
from latencylab.model.trace import I64, HostEvents, Trace

RUN_BATCH = re.compile(r"^scheduler\.run_batch$")
LEG_SPAN = re.compile(r"^(?:(?:draft|verify|draft_extend|extend|decode)$|step\[)")
CONTINUES = re.compile(r"^(?:verify|draft_extend|extend|step\[\s*(?:TARGET_VERIFY|VERIFY|DRAFT_EXTEND))")
DRAFTS = re.compile(r"^(?:draft$|step\[\s*DRAFT\b)")
MODE = re.compile(r"^step\[\s*(\w+)")
PROFILER_STEP = re.compile(r"^ProfilerStep#")
EXECUTE = re.compile(r"^execute_")
EXECUTE_TOKENS = re.compile(r"context_(\d+).*generation_(\d+)")

MIN_REPEATS = 3  # of a pattern of graph launches, to call it a step


@dataclass(frozen=True, slots=True, eq=False)
class StepTable:
    """Steps in order of time, each with at least one GPU op.

    `host_start`..`host_end` is the host's interval: what is launched within it belongs to the step.
    `start`..`end` is the step on the GPU: from its first op's start to the next step's, the last one to
    its last op's end. `source` says what marked them, `thread` which host thread; `kind` is a word a step.
    """

    host_start: I64
    host_end: I64
    start: I64
    end: I64
    kind: tuple[str, ...]
    thread: int
    source: str

    def __len__(self) -> int:
        return len(self.start)

    def of_host(self, time: I64) -> I64:
        """The step whose host interval holds each time, or -1."""
        return holder(self.host_start, self.host_end, time)

    def of_gpu(self, time: I64) -> I64:
        """The step that each time on the GPU belongs to, or -1."""
        return holder(self.start, self.end, time)


def find_steps(trace: Trace, launches: Launches, step_span: re.Pattern[str] | None = None) -> StepTable:
    """Find the steps by the first of these that yields one with GPU work:

    the spans in whose name `step_span` is found, and nothing else where it is given;
    our runtime's `ll.step`; `scheduler.run_batch`; the span that opens the cycle of `draft`, `step[…]` and
    `draft_extend`; `ProfilerStep#`; vLLM's `execute_…`; the repeating pattern of graph launches.
    """
    for source, starts, thread in _candidates(trace, launches, step_span):
        table = _on_gpu(trace, launches, starts, thread, source)
        if len(table):
            return table
    none = np.zeros(0, np.int64)
    return StepTable(none, none, none, none, (), -1, "none")


def _candidates(
    trace: Trace, launches: Launches, step_span: re.Pattern[str] | None
) -> Iterator[tuple[str, I64, int]]:
    spans = trace.spans
    if step_span is not None:
        chosen = trace.matching(step_span)[spans.name]
        yield step_span.pattern, *_starts(spans, chosen & outermost(spans, chosen))
        return
    # Several threads may each drive a device: this one's steps are those of the threads that launch on it.
    launching = np.isin(spans.thread, launches.thread)
    if launching.any():
        spans = spans.take(launching)
    yield "ll.step", *_starts(spans, trace.matching(STEP)[spans.name])
    yield "scheduler.run_batch", *_starts(spans, trace.matching(RUN_BATCH)[spans.name])
    drafts = trace.matching(DRAFTS)[spans.name]
    legs = trace.matching(LEG_SPAN)[spans.name]
    opening = legs & ~trace.matching(CONTINUES)[spans.name] if drafts.any() else legs
    yield "leg spans", *_starts(spans, opening & outermost(spans, legs))
    yield "ProfilerStep#", *_starts(spans, trace.matching(PROFILER_STEP)[spans.name])
    yield "execute_ spans", *_starts(spans, trace.matching(EXECUTE)[spans.name])
    yield "pattern of graph launches", *_graph_pattern(launches)


def _starts(spans: HostEvents, chosen: np.ndarray) -> tuple[I64, int]:
    """The chosen spans' starts on the thread that has most of them."""
    if not chosen.any():
        return np.zeros(0, np.int64), -1
    thread = int(np.bincount(spans.thread[chosen]).argmax())
    return np.unique(spans.start[chosen & (spans.thread == thread)]), thread


def outermost(events: HostEvents, chosen: np.ndarray) -> np.ndarray:
    """Those of the chosen events that lie in no other chosen event of their thread, as a mask."""
    mask = np.zeros(len(events), bool)
    for thread in np.unique(events.thread[chosen]):
        rows = np.flatnonzero(chosen & (events.thread == thread))
        ends = np.maximum.accumulate(events.end[rows])
        mask[rows[np.append(True, events.start[rows][1:] >= ends[:-1])]] = True
    return mask


def _graph_pattern(launches: Launches) -> tuple[I64, int]:
    """The first launch of each repetition of the shortest pattern that the graph launches follow throughout.

    Launches are told apart by their number of ops; nine of ten must agree with the one a period before.
    """
    rows = np.flatnonzero(launches.graph)
    if len(rows):
        thread = int(np.bincount(launches.thread[rows]).argmax())
        rows = rows[launches.thread[rows] == thread]
        size = launches.ops[rows]
        for period in range(1, len(rows) // MIN_REPEATS + 1):
            if (size[period:] == size[:-period]).mean() >= 0.9:
                return launches.start[rows[::period]], thread
    return np.zeros(0, np.int64), -1


def _on_gpu(trace: Trace, launches: Launches, starts: I64, thread: int, source: str) -> StepTable:
    """Place the steps that begin at these host times on the GPU; those that launch nothing are none."""
    past = max(int(trace.api.end.max(initial=0)), int(launches.start.max(initial=0))) + 1
    ends = np.append(starts[1:], past)
    step = holder(starts, ends, launches.start)
    first = np.full(len(starts), np.iinfo(np.int64).max)
    last = np.full(len(starts), np.iinfo(np.int64).min)
    inside = step >= 0
    np.minimum.at(first, step[inside], trace.gpu.start[launches.first_op[inside]])
    np.maximum.at(last, step[inside], launches.done[inside])
    kept = np.flatnonzero(last >= first)
    gpu_start = np.maximum.accumulate(first[kept])
    gpu_end = np.append(gpu_start[1:], max(last[kept[-1]], gpu_start[-1])) if len(kept) else gpu_start
    return StepTable(
        starts[kept], ends[kept], gpu_start, gpu_end, _kinds(trace, starts[kept], ends[kept]), thread, source
    )


def _kinds(trace: Trace, host_start: I64, host_end: I64) -> tuple[str, ...]:
    """Each step's kind, from the spans that begin within its host interval."""
    found: list[set[str]] = [set() for _ in host_start]
    for row, step in enumerate(holder(host_start, host_end, trace.spans.start)):
        if step >= 0:
            found[step].add(trace.names[trace.spans.name[row]])
    return tuple(kind_of(names) for names in found)


def kind_of(spans: set[str]) -> str:
    """The kind of step that has these spans: prefill, decode, NEXTN, DSpark, verify, mixed or step."""
    if said := {its["kind"] for its in map(STEP.match, spans) if its and its["kind"]}:
        return said.pop() if len(said) == 1 else "mixed"
    modes = {m.group(1).upper() for m in map(MODE.match, spans) if m}
    prefill = bool(modes & {"EXTEND", "PREFILL", "SPLIT_PREFILL"})
    decode = bool(modes & {"DECODE", "VERIFY", "TARGET_VERIFY", "DRAFT"})
    if "MIXED" in modes or (prefill and decode):
        return "mixed"
    if prefill:
        return "prefill"
    if modes & {"VERIFY", "TARGET_VERIFY"}:
        return "NEXTN" if "draft" in spans else "DSpark" if "DRAFT" in modes else "verify"
    if decode:
        return "decode"
    for tokens in map(EXECUTE_TOKENS.search, spans):
        if tokens:
            context, generation = int(tokens.group(1)) > 0, int(tokens.group(2)) > 0
            return "mixed" if context and generation else "prefill" if context else "decode"
    return "step"
