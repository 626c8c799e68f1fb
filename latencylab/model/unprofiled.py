"""What was measured of a run while no profiler was on: the requests, and the step clock of each rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from latencylab.model.trace import I64

# The spans of the rows that stand for a step itself: ours, and SGLang's own.
STEP_SPANS = ("ll.step", "scheduler.run_batch")
# The span of a loop of fixed work, which tells the host's speed.
PROBE = "ll.probe"


@dataclass(frozen=True, slots=True)
class Request:
    """One request as its client saw it.

    `start_ns` is when it was sent (epoch ns), `chunks` holds (ns since then, completion tokens so far) of
    each arrival, `accept_length` is tokens per chunk after the first.
    """

    ttft_ms: float | None
    tpot_ms: float | None
    accept_length: float | None
    chunks: tuple[tuple[int, int], ...] = ()
    start_ns: int | None = None

    @classmethod
    def of(cls, start_ns: int | None, chunks: Iterable[Sequence[int]]) -> Request:
        """The request with its figures computed; TPOT = (latency - TTFT) / (tokens - 1), from 2 chunks on."""
        seen = tuple((at, tokens) for at, tokens in chunks)
        if not seen:
            return cls(None, None, None, (), start_ns)
        (first, before), (last, tokens) = seen[0], seen[-1]
        tpot = (last - first) / (tokens - 1) / 1e6 if len(seen) > 1 and tokens > 1 else None
        accept = (tokens - before) / (len(seen) - 1) if len(seen) > 1 else None
        return cls(first / 1e6, tpot, accept, seen, start_ns)

    @property
    def step_ms(self) -> float | None:
        """Mean ms per step: the time between the first chunk and the last, over the chunks after the first.

        A step gives one chunk, so this does not depend on how many tokens were accepted. None below 2 chunks.
        """
        if len(self.chunks) < 2:
            return None
        return (self.chunks[-1][0] - self.chunks[0][0]) / (len(self.chunks) - 1) / 1e6


@dataclass(frozen=True, slots=True, eq=False)
class StepClock:
    """The step clock of one rank: a row for each span measured, in the order in which they ended.

    Every column has one length. `start_ns` and `end_ns` are epoch ns of the host; `step` counts the steps of
    the process from 0, and `request` its requests. `waiting_ns` is the part of a blocking call in which its
    work was not yet done, `cpu_ns` the thread's CPU time, `gpu_start_ns` when the GPU came to the span's
    start, on the host's clock. A missing integer is -1, a missing text "". Spans have the names that they
    have in a trace, without what stands in brackets; the row of the step itself is one of `STEP_SPANS`.
    """

    step: I64
    span: tuple[str, ...]
    start_ns: I64
    end_ns: I64
    waiting_ns: I64
    cpu_ns: I64
    gpu_start_ns: I64
    kind: tuple[str, ...]
    request: I64

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True, slots=True, eq=False)
class Unprofiled:
    """The requests in the order in which they were sent, and the step clock of each rank that has one."""

    requests: tuple[Request, ...] = ()
    clocks: Mapping[int, StepClock] = field(default_factory=dict)
