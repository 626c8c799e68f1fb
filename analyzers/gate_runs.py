"""What the gate keeps of a capture: its requests, its blocking sites, and what explains them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from latencylab.analyzers.comparable import circumstances, conditions, recorded, unusable_because
from latencylab.analyzers.syncs import EVIDENCE
from latencylab.model.calibration import CalibrationStatus, SyncVerdict
from latencylab.model.capture import Capture
from latencylab.model.findings import Analysis, RankFindings, Sync
from latencylab.model.gate import Run, RunSite
from latencylab.model.unprofiled import Request
from latencylab.stats import bootstrap_mean

VERDICTS: tuple[SyncVerdict, ...] = ("harmful", "pinning", "unclear", "hidden")  # worst first


def run_of(capture: Capture, analysis: Analysis) -> Run:
    """The run that a capture is, with the analysis of that capture."""
    manifest = capture.manifest or {}
    requests = capture.unprofiled.requests if capture.unprofiled else ()
    timed = [(place, request) for place, request in enumerate(requests) if is_timed(request)]
    unusable = unusable_because(analysis)
    keys = _keys(manifest.get("workload"), [place for place, _ in timed])
    return Run(
        label=capture.path,
        commit=_text(manifest.get("commit")),
        created=_text(manifest.get("created")),
        requests_step_ms=tuple(steps_ms(requests)),
        request_keys=keys,
        step_interval_ms=bootstrap_mean([_gaps_ms(request) for _, request in timed]),
        metrics=dict(_metrics(requests, analysis)),
        kind=analysis.ranks[analysis.front].main.kind if analysis.ranks else None,
        steps=min((rank.main.steps.steady for rank in analysis.ranks), default=0),
        sites=_sites(analysis),
        calibration=_status(analysis),
        integrity="unusable" if unusable else analysis.integrity.status,
        unusable=unusable,
        conditions=conditions(analysis),
        circumstances=circumstances(analysis),
        recorded=recorded(analysis),
    )


def is_timed(request: Request) -> bool:
    """Whether its chunks tell the time of a step, as they do where their clock runs on."""
    return request.step_ms is not None and request.step_ms > 0


def steps_ms(requests: Sequence[Request]) -> list[float]:
    """Ms per step of each request that tells it."""
    return [request.step_ms for request in requests if request.step_ms is not None and is_timed(request)]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _status(analysis: Analysis) -> CalibrationStatus:
    return analysis.calibration.status if analysis.calibration else "uncalibrated"


def _keys(workload: Any, places: Sequence[int]) -> tuple[str, ...]:
    """Which request each is, where the workload has a seed for all or one for each; else ()."""
    if not isinstance(workload, dict):
        return ()
    seeds = workload.get("seeds")
    if isinstance(seeds, list) and all(place < len(seeds) for place in places):
        return tuple(f"{seeds[place]}/{place}" for place in places)
    seed = workload.get("seed")
    return () if seed is None else tuple(f"{seed}/{place}" for place in places)


def _gaps_ms(request: Request) -> Any:
    return np.diff([at for at, _ in request.chunks]) / 1e6


def _metrics(requests: Sequence[Request], analysis: Analysis) -> Iterator[tuple[str, float]]:
    """The secondary figures that are known: means over requests, and over ranks of what a trace shows."""
    for name, values in (
        ("tpot", [request.tpot_ms for request in requests]),
        ("ttft", [request.ttft_ms for request in requests]),
        ("accept_length", [request.accept_length for request in requests]),
    ):
        known = [value for value in values if value is not None and math.isfinite(value) and value > 0]
        if known:
            yield name, math.fsum(known) / len(known)
    ranks = [rank for rank in analysis.ranks if rank.main.step_us is not None]
    if not ranks:
        return
    parts: tuple[tuple[str, Callable[[RankFindings], float | None]], ...] = (
        ("traced_step", lambda rank: rank.main.step_us.wall if rank.main.step_us else None),
        ("busy", lambda rank: rank.main.step_us.busy if rank.main.step_us else None),
        ("idle_host", lambda rank: rank.main.step_us.idle_host if rank.main.step_us else None),
        ("wait", lambda rank: rank.main.step_us.collective_wait if rank.main.step_us else None),
        ("run_ahead", lambda rank: rank.main.run_ahead_us.p10 if rank.main.run_ahead_us else None),
    )
    for name, value in parts:
        found = [its for rank in ranks if (its := value(rank)) is not None]
        if found:
            yield name, math.fsum(found) / len(found)
    calibration = analysis.calibration
    if calibration and calibration.status == "calibrated" and calibration.idle_host_us is not None:
        yield "idle_host_calibrated", calibration.idle_host_us.value
    yield "pinning_sites", sum(site.verdict in ("harmful", "pinning") for site in _sites(analysis))


def _sites(analysis: Analysis) -> tuple[RunSite, ...]:
    """The blocking sites of the main kind of step, over all ranks."""
    costs = {fix.site: fix.us_per_step for fix in analysis.fixes if fix.site and fix.calibrated}
    calibration = analysis.calibration
    together = calibration.together if calibration and calibration.status == "calibrated" else None
    by_site: dict[str, list[Sync]] = {}
    for rank in analysis.ranks:
        for sync in rank.main.syncs:
            by_site.setdefault(sync.site, []).append(sync)
    return tuple(
        RunSite(
            site=site,
            verdict=min((sync.verdict for sync in syncs), key=VERDICTS.index),
            evidence=min((sync.evidence for sync in syncs), key=EVIDENCE.index),
            per_step=max(sync.per_step for sync in syncs),
            idle_us=max(sync.idle_us for sync in syncs),
            cost_us=costs.get(site),
            together_us=together.cost_us.value if together and site in together.sites else None,
        )
        for site, syncs in by_site.items()
    )
