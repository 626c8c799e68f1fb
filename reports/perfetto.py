"""One Perfetto trace of all ranks on one clock: what the profilers recorded, and what was found in it.

A process per rank: steps, legs, collective waits, GPU streams, idle, blocking calls, host threads, and
counters of run-ahead; and for all ranks a counter of the skew of each collective.

Host threads are plain tracks of the process, not Perfetto's threads, which the UI puts before all else: so
the tracks stay in the order of the questions that one asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from latencylab.analyzers.intervals import Intervals
from latencylab.analyzers.ranks import RankSet
from latencylab.analyzers.view import RankView
from latencylab.model.trace import I64
from latencylab.reports.perfetto_found import write_idle, write_run_ahead, write_steps
from latencylab.reports.perfetto_rank import Rank
from latencylab.reports.perfetto_recorded import write_host, write_overhead, write_streams
from latencylab.reports.perfetto_wire import TraceWriter


def write_perfetto(
    file: BinaryIO,
    views: Sequence[RankView],
    joined: RankSet | None,
    steps: Sequence[I64] | None = None,
) -> None:
    """Write these ranks as one native Perfetto trace.

    `joined` aligns their clocks, and may hold more ranks than are written; without it each clock is taken as
    it is. `steps` gives for each of `views` the rows of the steps to write, with all that overlaps their
    time on the GPU or on the host; without it everything is written.
    """
    ranks = [_rank(place, view, joined, steps) for place, view in enumerate(views)]
    writer = TraceWriter(file, min((rank.earliest for rank in ranks), default=0))
    if joined is not None and len(ranks) > 1:
        _write_skew(writer, joined, ranks)
    for rank, title in zip(ranks, _titles(ranks), strict=True):
        rank.uuid = writer.process(title, rank.place + 1)
        write_steps(writer, rank)
        write_streams(writer, rank)
        write_idle(writer, rank)
        write_host(writer, rank)
        write_run_ahead(writer, rank)
        write_overhead(writer, rank)
    writer.flush()


def _titles(ranks: Sequence[Rank]) -> list[str]:
    """A title for each rank, all different, since the UI joins groups of one name; with leading zeros, since
    it sorts them by name.
    """
    digits = len(str(max((rank.view.trace.rank for rank in ranks), default=0)))
    titles: list[str] = []
    for rank in ranks:
        title = f"rank {rank.view.trace.rank:0{digits}} · {rank.device}"
        if title in titles:
            title += f" · trace {rank.place}"
        titles.append(title)
    return [
        title if rank.is_aligned or len(ranks) == 1 else f"{title} (clock not aligned)"
        for rank, title in zip(ranks, titles, strict=True)
    ]


def _rank(place: int, view: RankView, joined: RankSet | None, steps: Sequence[I64] | None) -> Rank:
    number = joined.views.index(view) if joined else -1
    rank = Rank(place, view, joined, number)
    if steps is not None:
        rank.shown = _windows(rank, steps[place])
    return rank


def _windows(rank: Rank, rows: I64) -> Intervals:
    """The aligned time of these steps, from the start of launching to the end on the GPU."""
    table = rank.view.steps
    end = np.maximum(table.end, np.minimum(table.host_end, rank.view.window[1]))[rows]
    return Intervals.union(rank.align(np.minimum(table.start, table.host_start)[rows]), rank.align(end))


def _write_skew(writer: TraceWriter, joined: RankSet, ranks: Sequence[Rank]) -> None:
    """The skew of each collective, at its last arrival."""
    skew = joined.skew
    rows = np.flatnonzero(joined.pairing.blocking & ~skew.trimmed)
    time = np.where(skew.there, skew.arrival, np.iinfo(np.int64).min).max(axis=1)[rows]
    seen = np.zeros(len(rows), bool)
    for rank in ranks:
        seen |= rank.shows(time, time)
    order = np.flatnonzero(seen)[np.argsort(time[seen], kind="stable")]
    if not len(order):
        return
    track = writer.track(name="skew of collectives", counter={"unit_name": "µs"})
    for at, ns in zip(time[order].tolist(), skew.spread[rows[order]].tolist(), strict=True):
        track.count(at, ns / 1000)
