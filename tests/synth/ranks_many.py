"""Long runs of many ranks, made as columns at once: for tests of speed, and of precision over minutes.

One stream a rank. A collective follows `kernels` kernels; every `per_graph` of them make a replay, and every
`per_step` replays a step, each begun by the host after a little idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from latencylab.model.trace import (
    I64,
    KERNEL,
    ApiCalls,
    GpuOps,
    HostEvents,
    Overhead,
    SyncRecords,
    Thread,
    Trace,
)
from synth.ranks_actions import KINDS, START_NS, Clock

NAMES = ("qkv_gemm", "moe_gemm", "cudaGraphLaunch", "scheduler.run_batch", "collective")


@dataclass(frozen=True, slots=True, eq=False)
class Many:
    """Arrays are of shape (ranks, collectives), on the true clock; `rows` are rows of a rank's GPU table."""

    traces: tuple[Trace, ...]
    clocks: tuple[Clock, ...]
    rows: I64
    start: I64
    end: I64
    arrival: I64
    wait: I64
    last: I64  # of each collective


def many(
    ranks: int = 8,
    collectives: int = 27_000,
    kernels: int = 2,
    per_graph: int = 40,
    per_step: int = 3,
    *,
    kind: str = "one_shot",
    transfer: int = 4_000,
    work: tuple[int, int] = (8_000, 20_000),
    idle: int = 20_000,
    spread: int = 1_500,
    noise: int = 600,
    clocks: Sequence[Clock] = (),
    late: Sequence[tuple[int, int, int]] = (),
    seed: int = 0,
) -> Many:
    """A run. `work` is the range of the work before a collective, the same on all ranks but for up to
    `spread` ns; `idle` the gap before each replay, likewise. `late` adds ns of work: (rank, collective, ns).
    """
    rng = np.random.default_rng(seed)
    shape = ranks, collectives
    busy: I64 = rng.integers(*work, collectives) + rng.integers(0, spread + 1, shape)
    for rank, n, ns in late:
        busy[rank, n] += ns
    gaps: I64 = np.zeros(shape, np.int64)
    firsts = np.arange(0, collectives, per_graph)
    gaps[:, firsts] = idle + rng.integers(0, spread + 1, (ranks, len(firsts)))
    arrival, end = _times(busy + gaps, rng.integers(0, noise + 1, shape), kind, transfer, rng)
    clocks = [*clocks, *(Clock() for _ in range(ranks - len(clocks)))]
    begin: I64 = arrival - busy
    traces = tuple(
        _trace(r, ranks, clocks[r], kernels, per_graph, per_step, kind, begin[r], arrival[r], end[r])
        for r in range(ranks)
    )
    rows = np.broadcast_to(np.arange(1, collectives + 1, dtype=np.int64) * (kernels + 1) - 1, shape)
    last = arrival.argmax(axis=0)
    return Many(traces, tuple(clocks), rows, arrival, end, arrival, arrival.max(axis=0) - arrival, last)


def _times(own: I64, noise: I64, kind: str, transfer: int, rng: np.random.Generator) -> tuple[I64, I64]:
    """(arrivals, ends): each rank does its own work, then meets the others."""
    way = KINDS[kind]
    if way.sync != "all":
        raise ValueError(f"{kind} does not join all ranks")
    ranks, count = len(own), len(own[0])
    early = rng.integers(way.early, way.early + way.spread + 1, count)
    arrival: I64 = np.empty((count, ranks), np.int64)
    end: I64 = np.empty_like(arrival)
    now = np.full(ranks, START_NS, np.int64)
    after = transfer + noise.T
    for n in range(count):
        at = arrival[n] = now + own[:, n]
        order = at.argsort()
        other = np.full(ranks, at[order[-1]] + early[n])
        if ranks > 1:
            other[order[-1]] = at[order[-2]] + early[n]
        now = end[n] = np.maximum(at, other) + after[n]
    return arrival.T, end.T


def _trace(
    rank: int,
    world: int,
    clock: Clock,
    kernels: int,
    per_graph: int,
    per_step: int,
    kind: str,
    begin: I64,
    arrival: I64,
    end: I64,
) -> Trace:
    count, width = len(begin), kernels + 1
    cuts = begin[:, None] + (arrival - begin)[:, None] * np.arange(width)[None, :] // max(kernels, 1)
    starts, ends = cuts.copy(), np.empty_like(cuts)
    ends[:, :-1], ends[:, -1] = cuts[:, 1:], end
    starts[:, -1] = arrival
    graph = np.arange(count) // per_graph
    node = (np.arange(count) % per_graph)[:, None] * width + np.arange(width)
    name = np.broadcast_to(np.where(np.arange(width) == kernels, 4, np.arange(width) % 2), cuts.shape)
    gpu = GpuOps(
        start=clock.locals(starts.ravel()),
        end=clock.locals(ends.ravel()),
        stream=np.full(cuts.size, 7, np.int64),
        correlation=np.repeat(graph + 1_000, width).astype(np.int64),
        kind=np.full(cuts.size, KERNEL, np.uint8),
        name=name.ravel().astype(np.int32),
        bytes=np.full(cuts.size, -1, np.int64),
        graph_node=node.ravel().astype(np.int64),
        group=np.full(cuts.size, -1, np.int32),
    )
    first = begin[::per_graph]
    zero: npt.NDArray[np.int32] = np.zeros(len(first), np.int32)
    calls = clock.locals(first - 12_000), clock.locals(first - 1_500)
    api = ApiCalls(*calls, zero, np.arange(len(first), dtype=np.int64) + 1_000, zero + np.int32(2))
    tops = first[::per_step]
    bounds = np.append(tops[1:] - 16_000, end[-1] + 5_000)
    steps = zero[: len(tops)]
    spans = HostEvents(clock.locals(tops - 15_000), clock.locals(bounds), steps, steps + np.int32(3))
    none, no_name = np.zeros(0, np.int64), np.zeros(0, np.int32)
    events = HostEvents(none, none, no_name, no_name)
    return Trace(
        rank=rank,
        device=rank,
        names=(*NAMES[:-1], KINDS[kind].kernel),
        threads=(Thread(str(4_000 + rank), "100", "thread 100 (scheduler)"),),
        gpu=gpu,
        api=api,
        ops=events,
        spans=spans,
        frames=events,
        syncs=SyncRecords(none, none, none, none, none, no_name),
        overhead=Overhead(none, none, no_name),
        device_name="NVIDIA H200",
        world_size=world,
        window=(clock.local(int(first[0]) - 20_000), clock.local(int(end[-1]) + 10_000)),
    )
