"""Blocking sites with their verdict: does the host wait for an old result, or does it drain the queue?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from latencylab.analyzers.host import Paths
from latencylab.analyzers.view import KindView
from latencylab.analyzers.waits import Site, Waits
from latencylab.model.calibration import Calibration, SyncVerdict
from latencylab.model.findings import Evidence, Sync
from latencylab.model.trace import I64

EVIDENCE: tuple[Evidence, ...] = ("recorded", "blocked", "eliminated", "unknown")  # best first
HARM_US = 20.0  # of idle owned a step that make a pinning site harmful, or
HARM_SHARE = 0.01  # this share of the step, whichever is less
UNCALIBRATED_NEED = 0.5  # the profiler slows the host, so its need in truth is about half of what it shows
FRAMES = 6  # innermost Python frames shown


def summarise_syncs(view: KindView) -> tuple[Sync, ...]:
    """Each site at which the steps block, the worst first."""
    waits, pieces = view.rank.waits, view.rank.pieces
    length = pieces.length
    host_us = {
        site: view.mean_us(int(length[view.pieces & (pieces.site == site)].sum()))
        for site in np.unique(pieces.site[view.pieces]).tolist()
    }
    steps = view.rank.steps
    wall_us = view.mean_us(int((steps.end - steps.start)[view.used].sum())) if view.by_step else np.inf
    frames = Paths(view.rank.trace.frames, view.rank.trace.names)
    found = [
        _summarise(
            view,
            waits.sites[site],
            np.flatnonzero(view.calls & (waits.site == site)),
            host_us.get(site, 0.0),
            wall_us,
            frames,
        )
        for site in np.unique(waits.site[view.calls]).tolist()
    ]
    return _worst_first(found)


def calibrated_syncs(syncs: Iterable[Sync], calibration: Calibration | None) -> tuple[Sync, ...]:
    """The sites, the worst first: as without the profiler where that is calibrated, else as in the trace."""
    costs = {}
    if calibration is not None and calibration.status == "calibrated":
        costs = {cost.site: cost for cost in calibration.syncs}
    found = []
    for sync in syncs:
        cost = costs.get(sync.site)
        if cost is not None:
            sync = replace(
                sync,
                need_us=cost.need_us,
                verdict=cost.verdict,
                unprofiled_blocked_us=cost.blocked_us.value,
                cost_us=max(cost.cost_us.value, 0.0),
            )
        found.append(sync)
    return _worst_first(found)


def _worst_first(syncs: Iterable[Sync]) -> tuple[Sync, ...]:
    order = ("harmful", "pinning", "unclear", "hidden")
    return tuple(
        sorted(
            syncs,
            key=lambda s: (order.index(s.verdict), -(s.cost_us or 0.0), -s.idle_us, -s.blocked_us, s.site),
        )
    )


def _summarise(view: KindView, site: Site, calls: I64, idle_us: float, wall_us: float, frames: Paths) -> Sync:
    rank, waits = view.rank, view.rank.waits
    evidence = min((waits.evidence[i] for i in calls), key=EVIDENCE.index)
    behind_us = _median_us(waits.behind[calls])
    need_us = _median_us(waits.need[calls])
    if need_us is not None:
        need_us *= UNCALIBRATED_NEED
    first = int(calls[0])
    known = calls[waits.op[calls] >= 0]
    waits_for = ""
    if len(known):
        waited = rank.trace.gpu.name[waits.op[known]]
        waits_for = rank.trace.names[int(np.bincount(waited).argmax())]
    thread, time = int(waits.calls.thread[first]), int(waits.calls.start[first])
    return Sync(
        site=str(site),
        api=site.api,
        kind=site.kind,
        span=site.span,
        op=site.op,
        direction=site.direction,
        bytes=site.bytes,
        seam=site.seam,
        frames=frames.at(thread, time)[-FRAMES:],
        waits_for=waits_for,
        calls=len(calls),
        per_step=len(calls) / view.units,
        call_us=float(np.median((waits.calls.end - waits.calls.start)[calls])) / 1000,
        blocked_us=view.mean_us(int(waits.blocked[calls].sum())),
        idle_us=idle_us,
        behind_us=behind_us,
        need_us=need_us,
        queued_us=_median_us(waits.queued[calls]),
        evidence=evidence,
        shown=sum(waits.evidence[i] in ("recorded", "blocked") for i in calls),
        verdict=verdict_of(behind_us, need_us, is_shown(view, waits, calls), idle_us, wall_us),
    )


def _median_us(ns: I64) -> float | None:
    """The median of those that are known (not negative), in µs."""
    known = ns[ns >= 0]
    return float(np.median(known)) / 1000 if len(known) else None


def is_shown(view: KindView, waits: Waits, calls: I64) -> bool:
    """Whether what the calls wait for is shown: recorded, blocked once, or an op of the legs' streams."""
    if any(waits.evidence[i] in ("recorded", "blocked") for i in calls):
        return True
    known = waits.op[calls][waits.op[calls] >= 0]
    return bool(np.isin(view.rank.trace.gpu.stream[known], view.rank.legs.stream).any())


def verdict_of(
    behind_us: float | None, need_us: float | None, shown: bool, idle_us: float, wall_us: float
) -> SyncVerdict:
    """The rule: newer work than the host needs time for hides the wait; else it resets run-ahead."""
    if behind_us is None or need_us is None:
        return "unclear"
    if behind_us >= need_us:
        return "hidden"
    if not shown:
        return "unclear"
    return "harmful" if idle_us > min(HARM_US, HARM_SHARE * wall_us) else "pinning"
