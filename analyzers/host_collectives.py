"""Collectives of the hosts (gloo): for which rank did each host wait?"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from latencylab.analyzers.clocks import Clock
from latencylab.analyzers.collectives import RankCollectives
from latencylab.analyzers.host import host_collectives
from latencylab.analyzers.intervals import holder
from latencylab.analyzers.pairing import Pairing
from latencylab.analyzers.view import RankView
from latencylab.model.trace import I64

RELEASED_NS = 50_000  # a host leaves this long after the peer came that it waited for, at most


@dataclass(frozen=True, slots=True, eq=False)
class HostWaits:
    """One rank's host collectives in order of start, on its own clock: name (a row of the trace's names),
    and `rank`, the index of the rank whose arrival ended the wait, or -1 where it did not wait for one.
    """

    start: I64
    end: I64
    name: I64
    rank: I64

    def at(self, time: I64) -> I64:
        """The row that holds each time, or -1."""
        return holder(self.start, self.end, time)


def find_host_waits(
    views: tuple[RankView, ...],
    ranks: tuple[RankCollectives, ...],
    pairing: Pairing,
    clocks: tuple[Clock, ...],
) -> tuple[HostWaits, ...]:
    """Pair the hosts' collectives of all ranks: the n-th of a name in a step, by the steps that the GPUs'
    paired collectives tie together. A host waited for the last of its peers to come before it left.
    """
    events, keys = [], []
    for r, view in enumerate(views):
        events.append(host_collectives(view.trace))
        step = view.steps.of_host(events[r].start)
        keys.append(_places(events[r].name, step - _shift(ranks, pairing, r), step >= 0, view.trace.names))
    arrivals: dict[tuple[str, int, int], dict[int, int]] = defaultdict(dict)
    for r, its in enumerate(events):
        for key, time in zip(keys[r], clocks[r].align(its.start).tolist(), strict=True):
            if key is not None:
                arrivals[key][r] = time
    waits = []
    for r, its in enumerate(events):
        start, end = clocks[r].align(its.start), clocks[r].align(its.end)
        awaited = []
        for key, came, left in zip(keys[r], start.tolist(), end.tolist(), strict=True):
            peers = arrivals[key] if key is not None else {}
            later = {time: peer for peer, time in peers.items() if came < time <= left + RELEASED_NS}
            awaited.append(later[max(later)] if later else -1)
        waits.append(HostWaits(its.start, its.end, its.name.astype(np.int64), np.array(awaited, np.int64)))
    return tuple(waits)


def _shift(ranks: tuple[RankCollectives, ...], pairing: Pairing, r: int) -> int:
    """By how many steps rank r counts ahead of the first rank."""
    both = (pairing.row[:, 0] >= 0) & (pairing.row[:, r] >= 0)
    ours = ranks[r].step[pairing.row[both, r]]
    theirs = ranks[0].step[pairing.row[both, 0]]
    known = (ours >= 0) & (theirs >= 0)
    return round(float(np.median(ours[known] - theirs[known]))) if known.any() else 0


def _places(
    name: np.ndarray, step: I64, known: np.ndarray, names: tuple[str, ...]
) -> list[tuple[str, int, int] | None]:
    """The place of each: its name, its step, and which of that name in the step it is; None outside steps."""
    seen: dict[tuple[str, int], int] = defaultdict(int)
    places: list[tuple[str, int, int] | None] = []
    for which, its_step, inside in zip(name.tolist(), step.tolist(), known.tolist(), strict=True):
        if not inside:
            places.append(None)
            continue
        key = (names[which], its_step)
        places.append((*key, seen[key]))
        seen[key] += 1
    return places
