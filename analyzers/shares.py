"""Where the idle and the busy time of a step went: host by doing and by blame, GPU by cause and kernel."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from latencylab.analyzers.host import FIXED, SPAN
from latencylab.analyzers.idle import DISPATCH, HOST, IN_GRAPH, LATENCY
from latencylab.analyzers.view import KindView
from latencylab.model.findings import Doing, GpuIdle, Kernel, KernelClass
from latencylab.model.trace import I64

NO_SPAN = "(no span)"


def host_doing(view: KindView) -> Doing:
    """What the launching thread did during the host's idle, µs per step."""
    rank = view.rank
    chosen = view.pieces & (rank.pieces.cause == HOST)
    sums = _sums(rank.pieces.doing[chosen], rank.pieces.length[chosen])
    fixed = {name: view.mean_us(sums.get(code, 0)) for code, name in enumerate(FIXED)}
    spans = {
        rank.pieces.spans[code - SPAN] or NO_SPAN: view.mean_us(ns)
        for code, ns in sorted(sums.items(), key=lambda item: -item[1])
        if code >= SPAN
    }
    return Doing(span=spans, **fixed)


def host_blame(view: KindView) -> dict[str, float]:
    """The host's idle by the blocking site that it is owed to, or else by doing; µs per step, most first."""
    rank = view.rank
    chosen = view.pieces & (rank.pieces.cause == HOST)
    length = rank.pieces.length
    blame: dict[str, float] = defaultdict(float)
    owed = chosen & (rank.pieces.site >= 0)
    for site, ns in _sums(rank.pieces.site[owed], length[owed]).items():
        blame[str(rank.waits.sites[site])] += view.mean_us(ns)
    rest = chosen & (rank.pieces.site < 0)
    for code, ns in _sums(rank.pieces.doing[rest], length[rest]).items():
        blame[doing_name(code, rank.pieces.spans)] += view.mean_us(ns)
    return dict(sorted(blame.items(), key=lambda item: -item[1]))


def doing_name(code: int, spans: tuple[str, ...]) -> str:
    """A label of `Pieces.doing` in words: "api", or "span scheduler.run_batch"."""
    return FIXED[code] if code < SPAN else f"span {spans[code - SPAN] or NO_SPAN}"


def gpu_idle(view: KindView) -> GpuIdle:
    """The GPU's own idle by cause, µs per step."""
    return GpuIdle(view.idle_us(IN_GRAPH), view.idle_us(DISPATCH), view.idle_us(LATENCY))


def kernel_classes(view: KindView) -> tuple[KernelClass, ...]:
    """Exclusive µs per step of each kernel class, most first; they add up to busy."""
    rank = view.rank
    times = _sums(rank.op_class[rank.work.op[view.work]], rank.work.length[view.work])
    ops = _ops(view)
    counts = np.bincount(rank.op_class[ops], minlength=len(rank.classes))
    return tuple(
        KernelClass(rank.classes[row], view.mean_us(times.get(row, 0)), int(counts[row]) / view.units)
        for row in sorted(
            {*np.flatnonzero(counts).tolist(), *times}, key=lambda row: (-times.get(row, 0), row)
        )
    )


def top_kernels(view: KindView) -> tuple[Kernel, ...]:
    """Exclusive µs per step of each kernel or copy by name, most first."""
    rank = view.rank
    names = rank.trace.gpu.name.astype(np.int64)
    times = _sums(names[rank.work.op[view.work]], rank.work.length[view.work])
    ops = _ops(view)
    counts = np.bincount(names[ops], minlength=len(rank.trace.names))
    kernel_class = np.zeros(len(rank.trace.names), np.int64)
    kernel_class[names] = rank.op_class
    rows = [
        Kernel(
            rank.trace.names[name],
            rank.classes[kernel_class[name]],
            view.mean_us(times.get(name, 0)),
            int(counts[name]) / view.units,
        )
        for name in {*np.flatnonzero(counts).tolist(), *times}
    ]
    return tuple(sorted(rows, key=lambda kernel: (-kernel.us, kernel.name)))


def _ops(view: KindView) -> I64:
    """The ops that start within the steps that count; one that began before still has time there."""
    return np.flatnonzero(view.counts(view.rank.steps.of_gpu(view.rank.trace.gpu.start)))


def _sums(key: I64, ns: I64) -> dict[int, int]:
    keys, row = np.unique(key, return_inverse=True)
    return dict(zip(keys.tolist(), np.bincount(row, ns, len(keys)).astype(np.int64).tolist(), strict=True))
