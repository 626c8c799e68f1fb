"""Blocking sites on both sides: which appeared, vanished, or are judged otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latencylab.analyzers.diff_bootstrap import Resampled
from latencylab.analyzers.diff_steps import Units
from latencylab.analyzers.view import KindView
from latencylab.model.calibration import SyncVerdict
from latencylab.model.comparison import SiteChange, SiteHow
from latencylab.model.findings import Sync
from latencylab.model.trace import I64

BAD: tuple[SyncVerdict, ...] = ("harmful", "pinning")
_ORDER: tuple[SiteHow, ...] = ("appeared", "vanished", "verdict", "same")


def compare_sites(
    base: KindView,
    head: KindView,
    base_syncs: Sequence[Sync],
    head_syncs: Sequence[Sync],
    resampled: Resampled,
) -> tuple[SiteChange, ...]:
    """Sites by name, which is stable from run to run: what appeared first, what is the same last.

    Where a side lacks a site, its quantities are 0 there: it has no such call. `pinning` and `harmful` differ
    by the cost, which a trace alone shows too small: where but one side is calibrated, that is no change.
    """
    ours, theirs = _Side.of(base, base_syncs), _Side.of(head, head_syncs)
    found = []
    for site in dict.fromkeys((*theirs.verdicts, *ours.verdicts)):
        per_step, blocked, idle = resampled.deltas(ours.columns(site), theirs.columns(site))
        before, after = ours.verdicts.get(site), theirs.verdicts.get(site)
        alike = (site in ours.calibrated) == (site in theirs.calibrated)
        same = before == after or (not alike and before in BAD and after in BAD)
        how: SiteHow = "same" if same else "verdict"
        how = "appeared" if before is None else "vanished" if after is None else how
        found.append(SiteChange(site, how, before or "", after or "", per_step, blocked, idle))
    return tuple(sorted(found, key=_weight))


def _weight(change: SiteChange) -> tuple[bool, int, bool, str]:
    is_bad = change.base_verdict in BAD or change.head_verdict in BAD
    return change.how == "same", _ORDER.index(change.how), not is_bad, change.site


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """One side's sites: verdict of each, which verdicts are by calibration, and the rows of a site among the
    calls and the pieces of idle."""

    view: KindView
    verdicts: dict[str, SyncVerdict]
    calibrated: frozenset[str]

    @classmethod
    def of(cls, view: KindView, syncs: Sequence[Sync]) -> _Side:
        calibrated = frozenset(sync.site for sync in syncs if sync.cost_us is not None)
        return cls(view, {sync.site: sync.verdict for sync in syncs}, calibrated)

    def columns(self, site: str) -> list[I64]:
        """Calls (thousandfold, as means turn ns to µs), ns blocked and ns of idle owned, of each step."""
        waits, pieces, units = self.view.rank.waits, self.view.rank.pieces, Units(self.view)
        rows = [row for row, its in enumerate(waits.sites) if str(its) == site]
        calls = np.isin(waits.site, rows)
        step = self.view.rank.steps.of_host(waits.calls.start)
        return [
            units.sums(step, np.full(len(calls), 1000, np.int64), calls),
            units.sums(step, waits.blocked, calls),
            units.sums(pieces.step, pieces.length, np.isin(pieces.site, rows)),
        ]
