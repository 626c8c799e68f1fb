"""The calibration of an analysis: the rank in front, by its own clock or by another capture's map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from latencylab.analyzers.calibrate import Model, Test, compare, fit_model, in_us, replay_at, summarise
from latencylab.analyzers.host_map_carry import carry
from latencylab.analyzers.leg_check import check_legs
from latencylab.analyzers.ranks import RankSet
from latencylab.analyzers.replay_build import PeerWaits
from latencylab.analyzers.shares import NO_SPAN
from latencylab.analyzers.syncs import summarise_syncs
from latencylab.analyzers.uneven import HOST_IDLE
from latencylab.analyzers.view import KindView
from latencylab.analyzers.what_if import (
    Change,
    even_changes,
    find_site,
    joint_outcome,
    made_even,
    possible_changes,
    predict,
    rank_fixes_by_replay,
    site_costs,
)
from latencylab.model.calibration import Calibration, Estimate, Prediction, Together
from latencylab.model.findings import Uneven
from latencylab.model.integrity import InputError
from latencylab.model.unprofiled import StepClock, Unprofiled

PEERS = (
    "this rank is replayed alone: what it waited for other ranks' hosts in the trace is left out, for the"
    " profiler slows those too; its waits for their GPUs stay as long"
)
NOT_MEASURED = "the capture has no part that was measured without the profiler"


@dataclass(frozen=True, slots=True, eq=False)
class Calibrated:
    """A calibration with the model behind it, to ask it what a change would give."""

    model: Model
    found: Calibration

    def predict(self, change: Change) -> Prediction:
        """What a change gives. Raises InputError where it names what the trace does not have."""
        sites = tuple(find_site(self.model, site) for site in change.sites)
        outcome = predict(self.model, (replace(change, sites=sites),))[0]
        notes = []
        if sites:
            notes.append("the wait alone is taken away: what the host does around it stays")
        if change.peers < 1 and not (self.model.program.wait > self.model.program.for_hosts).any():
            notes.append(
                "no wait for other ranks is known here: they are not in the capture, or were in time"
            )
        if self.found.status != "calibrated":
            notes.append(f"the calibration is {self.found.status}: {self.found.reason}")
        what = "; ".join((*(f"without {site}" for site in sites), *((change.what,) if change.what else ())))
        return Prediction(what, outcome.step_us, outcome.gain_us, tuple(notes))


def calibrate(
    view: KindView,
    unprofiled: Unprofiled | None,
    joined: RankSet | None,
    uneven: Sequence[Uneven] = (),
) -> Calibration:
    """The calibration of one kind of step of a rank; `uncalibrated`, with the reason, where there is none.

    `uneven` is what single ranks do beyond the others.
    """
    rank = view.rank.trace.rank
    profiled_us = None
    if view.by_step:
        profiled_us = float(np.median((view.rank.steps.end - view.rank.steps.start)[view.used])) / 1000
    try:
        found = calibrate_by_clock(view, unprofiled, joined, uneven).found
    except InputError as error:
        return Calibration("uncalibrated", str(error), rank, view.kind, profiled_us)
    return found


def calibrate_by_clock(
    view: KindView,
    unprofiled: Unprofiled | None,
    joined: RankSet | None,
    uneven: Sequence[Uneven] = (),
) -> Calibrated:
    """Calibrate by the capture's own step clock. Raises InputError, with the reason, where it cannot be."""
    clock = clock_of(view, unprofiled)
    model, test = fit_model(view, clock, wait_by_op(view, joined))
    return complete(model, test, clock, uneven)


def clock_of(view: KindView, unprofiled: Unprofiled | None) -> StepClock:
    """The step clock of a view's rank. Raises InputError where there is none, and says what there is."""
    if unprofiled is None or not (unprofiled.clocks or unprofiled.requests):
        raise InputError(NOT_MEASURED)
    rank = view.rank.trace.rank
    clock = unprofiled.clocks.get(rank)
    if clock is None:
        others = ", ".join(str(other) for other in sorted(unprofiled.clocks))
        there = (
            f"of the ranks only {others} has one" if others else "its client's timings alone say too little"
        )
        raise InputError(f"rank {rank} has no step clock: {there}")
    return clock


def calibrate_by_map(
    view: KindView,
    unprofiled: Unprofiled | None,
    joined: RankSet | None,
    source: Model,
    name: str,
) -> Calibrated:
    """Calibrate by the map of another capture, called `name`, and test it on the capture's own step clock
    where it has one. Raises InputError where nothing of the map fits."""
    model = carry(source, view, wait_by_op(view, joined))
    clock = unprofiled.clocks.get(view.rank.trace.rank) if unprofiled else None
    test = None if clock is None else compare(model, clock)
    done = complete(model, test, clock)
    return Calibrated(done.model, replace(done.found, map_from=name))


def complete(
    model: Model, test: Test | None, clock: StepClock | None = None, uneven: Sequence[Uneven] = ()
) -> Calibrated:
    """The whole calibration of a model; its legs are checked on this clock."""
    found = summarise(model, test)
    syncs = summarise_syncs(model.view)
    even = made_even(model, uneven)
    changes = (*possible_changes(model, syncs), *even_changes(model, uneven))
    outcomes = predict(model, (*changes, *even.values()))
    outcomes, sides = outcomes[: len(changes)], outcomes[len(changes) :]
    costs = site_costs(model, syncs, outcomes)
    step_us = found.predicted_step_us.value if found.predicted_step_us else 0.0
    pinning = frozenset(cost.site for cost in costs if cost.verdict in ("harmful", "pinning"))
    joint = joint_outcome(model, costs, step_us)
    if joint is not None:
        outcomes = (*outcomes, joint)
    fixes = rank_fixes_by_replay(outcomes, step_us, pinning, found.status == "calibrated")
    whole = replace(
        found,
        syncs=costs,
        together=None if joint is None else Together(joint.change.sites, joint.gain_us),
        fixes=fixes,
        even_us={side: its.gain_us for side, its in zip(even, sides, strict=True)},
        run_ahead_us=_run_ahead(model),
        legs=() if clock is None else check_legs(model, clock),
        notes=_notes(model),
    )
    return Calibrated(model, whole)


def _notes(model: Model) -> tuple[str, ...]:
    """What the figures leave out, or rest on less than others do."""
    notes = [PEERS] if model.program.wait.any() else []
    if model.unmarked:
        where = ", ".join(sorted(span or NO_SPAN for span in model.unmarked))
        notes.append(
            f"the step clock has no row of waits in {where}: the host's speed is read from how long"
            " the steps' spans last"
        )
    return tuple(notes)


def _run_ahead(model: Model) -> dict[str, Estimate]:
    """By how much the host is ahead at each leg's first op, the median over steps, without the profiler."""
    speeds = model.stretches.speeds()
    _, times = replay_at(model, speeds)
    program, stretches = model.program, model.stretches
    counted = np.isin(program.step, model.steps)
    ahead = {}
    for row, name in enumerate(program.seams):
        items = np.flatnonzero((program.leg == row) & counted)
        if len(items):
            ns = np.median(np.maximum(times.start[items] - times.end[items], 0), axis=0)
            ahead[name] = in_us(stretches.median(stretches.at(speeds, ns)))
    return ahead


def wait_by_op(view: KindView, joined: RankSet | None) -> PeerWaits | None:
    """What the rank's GPU ops waited for the last rank, or None for a rank alone."""
    if joined is None:
        return None
    place = next(i for i, one in enumerate(joined.views) if one is view.rank)
    row = joined.pairing.row[:, place]
    waited = np.where(joined.pairing.blocking & ~joined.skew.trimmed, joined.skew.wait[:, place], 0)
    for_hosts = np.rint(waited * joined.causes.share_of(len(row), HOST_IDLE)).astype(np.int64)
    ops, paired = joined.ranks[place].op[row[row >= 0]], row >= 0
    by_op = np.zeros((2, len(view.rank.trace.gpu)), np.int64)
    by_op[:, ops] = waited[paired], for_hosts[paired]
    return PeerWaits(*by_op)
