"""What was found in a rank, as Perfetto tracks: steps, legs, waits, idle with its blame, blocking calls."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from latencylab.analyzers.host import API, FRAMEWORK, GC, PROFILER, SYNC, WAITING
from latencylab.analyzers.idle import DISPATCH, HOST, IN_GRAPH, LATENCY, UNKNOWN
from latencylab.analyzers.run_ahead import least_run_ahead, run_ahead
from latencylab.analyzers.shares import doing_name
from latencylab.analyzers.syncs import summarise_syncs
from latencylab.analyzers.timeline import lanes
from latencylab.analyzers.view import KindView, step_sums
from latencylab.model.trace import I64
from latencylab.reports.format import clean
from latencylab.reports.names import short_name
from latencylab.reports.perfetto_rank import Rank
from latencylab.reports.perfetto_wire import TraceWriter, Value


class Box(NamedTuple):
    """A slice to write: aligned times in ns."""

    start: int
    end: int
    name: str
    category: str
    args: dict[str, Value]


CAUSES = {
    IN_GRAPH: "in graph",
    DISPATCH: "dispatch",
    LATENCY: "launch latency",
    HOST: "host",
    UNKNOWN: "launch unknown",
}
TITLES = {SYNC: "in a sync", API: "in an API call", FRAMEWORK: "in a framework op", GC: "in GC"}
TITLES |= {WAITING: "waiting", PROFILER: "in the profiler"}
IDLE_TRACKS = (
    ("idle: host late", (HOST,), "the GPU waits for the host: named by what is to blame"),
    ("idle: GPU's own", (IN_GRAPH, DISPATCH, LATENCY), "the launch was there in time"),
    ("idle: unknown", (UNKNOWN,), "no launch is known"),
)


def write_steps(writer: TraceWriter, rank: Rank) -> None:
    """The steps, their legs, and the waits for other ranks."""
    _write_boxes(writer, rank, "steps", _steps(rank), "on the GPU, with why a step is left out")
    legs = "from a leg's first GPU op to its last one's end; the seams between, with the host's part of each"
    _write_boxes(writer, rank, "legs", sorted(_legs(rank) + _seams(rank), key=attrgetter("start")), legs)
    _write_boxes(writer, rank, "collective waits", _waits(rank), "from arrival to the last arrival")


def write_idle(writer: TraceWriter, rank: Rank) -> None:
    """The GPU's idle by whose fault it was, and the blocking calls."""
    for name, causes, description in IDLE_TRACKS:
        _write_boxes(writer, rank, name, _gaps(rank, causes), description)
    _write_boxes(writer, rank, "blocking calls", _calls(rank), "with the verdict on their site")


def _write_boxes(writer: TraceWriter, rank: Rank, name: str, boxes: list[Box], description: str) -> None:
    """Boxes in order of start; those that overlap go on further tracks of the name, which the UI joins."""
    start = np.array([box.start for box in boxes], np.int64)
    end = np.array([box.end for box in boxes], np.int64)
    lane = lanes(start, end, np.zeros(len(boxes), np.int64))
    for its in range(int(lane.max(initial=-1)) + 1):
        track = rank.track(writer, name, description)
        for at in np.flatnonzero(lane == its).tolist():
            track.slice(*boxes[at])
        track.close()


def _steps(rank: Rank) -> list[Box]:
    view = rank.view
    steps = view.steps
    start, end = rank.align(steps.start), rank.align(steps.end)
    sums = step_sums(view)
    if rank.joined is not None:
        sums["collective_wait"] = rank.joined.wait_alone[rank.number]
    least = least_run_ahead(view.legs, steps)
    boxes: list[Box] = []
    for row in np.flatnonzero(rank.shows(start, end)).tolist():
        cause = view.left_out[row]
        args: dict[str, Value] = {"step": row, "kind": steps.kind[row], "steady": cause is None}
        if cause is not None:
            args["left_out"] = cause
        args |= {f"{name}_us": int(column[row]) / 1000 for name, column in sums.items()}
        if least[row] >= 0:
            args["least_run_ahead_us"] = int(least[row]) / 1000
        name = f"{steps.kind[row]} {row}" if cause is None else f"{steps.kind[row]} {row} ({cause})"
        boxes.append(Box(int(start[row]), int(end[row]), name, "step", args))
    return boxes


def _legs(rank: Rank) -> list[Box]:
    legs = rank.view.legs
    start, end = rank.align(legs.start), rank.align(legs.end)
    ahead = run_ahead(legs)
    boxes: list[Box] = []
    for row in _by_start(rank, start, end):
        args: dict[str, Value] = {
            "step": int(legs.step[row]),
            "gpu_ops": int(legs.ops[row]),
            "graph_launches": int(legs.launches[row]),
            "run_ahead_us": int(ahead[row]) / 1000,
        }
        if legs.seam_start[row] >= 0:
            args["seam_before_us"] = max(int(legs.start[row] - legs.seam_start[row]), 0) / 1000
        boxes.append(Box(int(start[row]), int(end[row]), clean(legs.name[row]), "leg", args))
    return boxes


def _seams(rank: Rank) -> list[Box]:
    """What lies before each leg, named by the host's idle in it and the most of its blame."""
    legs = rank.view.legs
    start, end = rank.align(legs.seam_start), rank.align(legs.start)
    gaps = _gaps(rank, (HOST,))
    starts = [gap.start for gap in gaps]
    boxes: list[Box] = []
    for row in _by_start(rank, start, end):
        since, until = int(start[row]), int(end[row])
        if legs.seam_start[row] < 0 or until <= since:
            continue
        blame = Counter[str]()
        for gap in gaps[bisect_left(starts, since) : bisect_left(starts, until)]:
            blame[gap.name] += gap.end - gap.start
        host = blame.total()
        args: dict[str, Value] = {"before": clean(legs.name[row]), "idle_host_us": host / 1000}
        args |= {f"idle_host_us: {title}": ns / 1000 for title, ns in blame.most_common()}
        name = f"seam: host {host / 1000:,.0f} µs, most {blame.most_common(1)[0][0]}" if host else "seam"
        boxes.append(Box(since, until, name, "seam", args))
    return boxes


def _by_start(rank: Rank, start: I64, end: I64) -> list[int]:
    """The rows that are shown, in order of start."""
    rows = np.flatnonzero(rank.shows(start, end))
    ordered: list[int] = rows[np.argsort(start[rows], kind="stable")].tolist()
    return ordered


def _gaps(rank: Rank, causes: tuple[int, ...]) -> list[Box]:
    """Idle of these causes, pieces that say the same as one."""
    view, pieces = rank.view, rank.view.pieces
    api, names = view.trace.api, view.trace.names
    start, end = rank.align(pieces.start), rank.align(pieces.end)
    rows = np.flatnonzero(np.isin(pieces.cause, causes) & rank.shows(start, end))
    labels = np.stack([pieces.cause, pieces.in_launch, pieces.op, pieces.doing, pieces.site, pieces.step])[
        :, rows
    ]
    joins = (start[rows][1:] == end[rows][:-1]) & (labels[:, 1:] == labels[:, :-1]).all(axis=0)
    heads = np.append(np.ones(min(len(rows), 1), bool), ~joins)
    until = end[rows[np.append(heads[1:], np.ones(min(len(rows), 1), bool))]]
    doings = {code: clean(doing_name(code, pieces.spans)) for code in np.unique(pieces.doing[rows]).tolist()}
    sites = [clean(str(site)) for site in view.waits.sites]
    boxes: list[Box] = []
    for at, to, (cause, in_launch, op, doing, site, step) in zip(
        start[rows[heads]].tolist(), until.tolist(), labels[:, heads].T.tolist(), strict=True
    ):
        title = CAUSES[cause]
        args: dict[str, Value] = {"cause": title, "step": step}
        args["ended_by"] = short_name(names[view.trace.gpu.name[op]])
        if cause == HOST:
            launched_by = names[api.name[view.launches.call[op]]]
            title = f"in {launched_by}" if in_launch else TITLES.get(doing, "")
            title = title or f"in {doings[doing].removeprefix('span ')}"
            args |= {"doing": doings[doing], "in_launch": bool(in_launch), "launched_by": clean(launched_by)}
            args["blame"] = sites[site] if site >= 0 else doings[doing]
            if site >= 0:
                title = f"owed to {view.waits.sites[site].api}"
        boxes.append(Box(at, to, clean(title), "idle", args))
    return boxes


def _waits(rank: Rank) -> list[Box]:
    """From this rank's arrival at a collective to the last rank's, where that waits for all."""
    if rank.joined is None:
        return []
    joined, r = rank.joined, rank.number
    skew, pairing = joined.skew, joined.pairing
    start = skew.arrival[:, r]
    end = start + skew.wait[:, r]
    waited = skew.there[:, r] & pairing.blocking & (skew.wait[:, r] > 0)
    causes = joined.causes.main_cause(len(pairing))
    boxes: list[Box] = []
    for row in _by_start(rank, start, end):
        if not waited[row]:
            continue
        last = joined.views[int(skew.last[row])].trace.rank
        args: dict[str, Value] = {
            "collective": clean(pairing.tokens[int(pairing.token[row])]),
            "last_rank": last,
            "spread_us": int(skew.spread[row]) / 1000,
            "transfer_us": int(skew.transfer[row, r]) / 1000,
            "resolved": bool(skew.resolved[row]),
        }
        if causes[row]:
            args["late_by"] = clean(causes[row])
        name = f"for rank {last}"
        if skew.trimmed[row]:
            name = f"for rank {last}'s profiler"
        elif not skew.resolved[row]:
            name = "not resolved"
        boxes.append(Box(int(start[row]), int(end[row]), name, "wait", args))
    return boxes


def _calls(rank: Rank) -> list[Box]:
    """The blocking calls, on the host's time."""
    view, waits, calls = rank.view, rank.view.waits, rank.view.waits.calls
    start, end = rank.align(calls.start), rank.align(calls.end)
    step = view.steps.of_host(calls.start)
    verdicts = _verdicts(rank)
    boxes: list[Box] = []
    for row in _by_start(rank, start, end):
        site = waits.sites[int(waits.site[row])]
        kind = view.steps.kind[int(step[row])] if step[row] >= 0 else None
        verdict = verdicts.get((kind, str(site)), "")
        args: dict[str, Value] = {"site": clean(str(site)), "step": int(step[row])}
        if verdict:
            args["verdict"] = verdict
        args |= {"evidence": waits.evidence[row], "blocked_us": int(waits.blocked[row]) / 1000}
        if waits.op[row] >= 0:
            args["waits_for"] = short_name(view.trace.names[view.trace.gpu.name[waits.op[row]]])
        for name, ns in (("behind", waits.behind), ("queued", waits.queued), ("need", waits.need)):
            if ns[row] >= 0:
                args[f"{name}_us"] = int(ns[row]) / 1000
        name = f"{verdict} {calls.api[row]}".strip()
        boxes.append(Box(int(start[row]), int(end[row]), name, "blocking", args))
    return boxes


def _verdicts(rank: Rank) -> dict[tuple[str | None, str], str]:
    """The verdict on each site in the steps of each kind."""
    view = rank.view
    is_steady = np.array([cause is None for cause in view.left_out], bool)
    verdicts: dict[tuple[str | None, str], str] = {}
    for kind in dict.fromkeys(view.steps.kind):
        rows = np.array([i for i, its in enumerate(view.steps.kind) if its == kind], np.int64)
        for sync in summarise_syncs(KindView(view, kind, rows, rows[is_steady[rows]])):
            verdicts[kind, sync.site] = sync.verdict
    return verdicts


def write_run_ahead(writer: TraceWriter, rank: Rank) -> None:
    """Per leg a counter of how far the host was ahead at its first op."""
    legs = rank.view.legs
    start = rank.align(legs.start)
    ahead = run_ahead(legs)
    rows = _by_start(rank, start, rank.align(legs.end))
    for name in dict.fromkeys(legs.name[row] for row in rows):
        track = rank.track(
            writer,
            f"run-ahead: {name}",
            "first op's start minus launch call's end",
            counter={"unit_name": "µs"},
        )
        for row in rows:
            if legs.name[row] == name:
                track.count(int(start[row]), int(ahead[row]) / 1000)
