"""What a change would give before it is made: the calibrated model edited and replayed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from latencylab.analyzers.calibrate import Model, in_us, scenarios_at
from latencylab.analyzers.host import PROFILER, WAITING, Paths
from latencylab.analyzers.kernels import COLLECTIVE
from latencylab.analyzers.replay import F64, Scenarios, Times, joined, replay, step_starts
from latencylab.analyzers.replay_build import clock_name
from latencylab.analyzers.shares import NO_SPAN
from latencylab.analyzers.syncs import is_shown, verdict_of
from latencylab.analyzers.uneven import what_to_do
from latencylab.model.calibration import Estimate, Fix, SiteCost, names_together
from latencylab.model.findings import Excess, Sync, Uneven
from latencylab.model.integrity import InputError
from latencylab.model.trace import MISSING, Bool

WORTH = 0.01  # of the step, below which a change is not listed
MOST_SITES = 12  # with more, those that hide behind each other are not parted from the rest, a replay each
NOTHING = 1e-6  # of a kernel's time, where all of it goes
HALF = 0.5  # of what work takes now, in the list of changes; waits and gaps there go altogether


@dataclass(frozen=True, slots=True)
class Change:
    """Parts of a step made cheaper: waits taken away (`sites`), host time in spans and all within them times
    `spans`, host time in the seams before legs times `seams`, kernels (classes, or names that hold a text)
    so many times faster, waiting for peers taken away, and gaps inside graphs or between queued ops times
    `in_graph` and `dispatch`.
    """

    what: str
    sites: tuple[str, ...] = ()
    spans: tuple[tuple[str, float], ...] = ()
    own_spans: tuple[tuple[str, float], ...] = ()  # host time in a span and in no inner one
    seams: tuple[tuple[str, float], ...] = ()
    kernels: tuple[tuple[str, float], ...] = ()
    peers: float = 1.0
    in_graph: float = 1.0
    dispatch: float = 1.0

    def __bool__(self) -> bool:
        return replace(self, what="") != Change("")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The median step with a change, and by how much that is shorter, µs."""

    change: Change
    step_us: Estimate
    gain_us: Estimate


def predict(model: Model, changes: Sequence[Change]) -> tuple[Outcome, ...]:
    """Replay each change alone, at the speeds that the host has without the profiler.

    Raises InputError where a change names what the trace does not have.
    """
    speeds = model.stretches.speeds()
    count = len(speeds)
    edits = [_edited(model, Change("nothing"), speeds), *(_edited(model, its, speeds) for its in changes)]
    times = replay(model.program, joined(edits))
    lengths = np.diff(step_starts(model.program, times), axis=0)[model.steps]
    middle = np.median(lengths, axis=0).reshape(-1, count)
    stretches, unchanged = model.stretches, model.predicted()
    shift = unchanged - stretches.at(speeds, middle[0])  # the curve is finer than these few speeds
    changed = [stretches.at(speeds, row) + shift for row in middle[1:]]
    return tuple(
        Outcome(change, in_us(stretches.median(its)), in_us(stretches.median(unchanged, less=its)))
        for change, its in zip(changes, changed, strict=True)
    )


def _edited(model: Model, change: Change, speeds: F64) -> Scenarios:
    program, count = model.program, len(speeds)
    base = scenarios_at(model, speeds)
    host, gap = base.host, np.ones((len(program), count)) if base.gap is None else base.gap.copy()
    nesting = _nesting(model) if change.spans else {}
    for span, factor in change.spans:
        rows = [i for i, sort in enumerate(program.sorts) if span in nesting.get(sort.span, {sort.span})]
        host = _scaled(model, host, rows, factor, f"span {span!r}")
    for span, factor in change.own_spans:
        rows = [i for i, sort in enumerate(program.sorts) if sort.span == span and not sort.api]
        host = _scaled(model, host, rows, factor, f"span {span!r}")
    for seam, factor in change.seams:
        if seam not in program.seams:
            raise InputError(
                f"no seam before {seam!r}; there are those before {', '.join(program.seams) or 'none'}"
            )
        gap[program.seam == program.seams.index(seam)] *= factor
    work = np.ones(len(program))
    for kernel, speedup in change.kernels:
        work -= _kernel_share(model, kernel) * (1 - 1 / speedup)
    inside = np.divide(program.inside, program.work, out=np.zeros(len(program)), where=program.work > 0)
    work -= inside * (1 - change.in_graph)
    keeps = np.ones((max(len(model.sites), 1), count), bool)
    for site in change.sites:
        keeps[model.sites.index(find_site(model, site))] = False
    return Scenarios(
        host=host,
        gpu=base.gpu,
        work=np.repeat(np.maximum(work, 0)[:, None], count, axis=1),
        gap=gap,
        keeps=keeps,
        peers=np.full(count, change.peers),
        hosts=base.hosts,
        dispatch=np.full(count, change.dispatch),
    )


def _scaled(model: Model, host: F64, rows: list[int], factor: float, what: str) -> F64:
    rows = [row for row in rows if model.program.sorts[row].doing not in (WAITING, PROFILER)]
    if not rows:
        raise InputError(f"no host time in {what}")
    scaled = host.copy()
    scaled[rows] *= factor
    return scaled


def _nesting(model: Model) -> dict[str, set[str]]:
    """Each span's name with those of the spans around it, brackets removed, where it first stands."""
    trace = model.view.rank.trace
    paths = Paths(trace.spans, trace.names)
    around: dict[str, set[str]] = {}
    for row, name in enumerate(trace.spans.name.tolist()):
        plain = clock_name(trace.names[name])
        if plain not in around:
            path = paths.at(int(trace.spans.thread[row]), int(trace.spans.start[row]))
            around[plain] = {plain, *(clock_name(one) for one in path)}
    return around


def _kernel_share(model: Model, kernel: str) -> F64:
    """Per item the share of its work that these kernels have to themselves, waiting for peers left out."""
    rank, program = model.view.rank, model.program
    trace = rank.trace
    if kernel in rank.classes:
        mine = rank.op_class == rank.classes.index(kernel)
    else:
        mine = trace.matching(re.compile(re.escape(kernel)))[trace.gpu.name]
    if not mine.any():
        there = ", ".join(dict.fromkeys(rank.classes[i] for i in rank.op_class.tolist()))
        raise InputError(f"no kernel's class or name has {kernel!r}; classes: {there}")
    meets = np.array([name == COLLECTIVE for name in rank.classes], bool)[rank.op_class]
    its, met, its_met = (_by_launch(model, chosen) for chosen in (mine, meets, mine & meets))
    on_gpu = np.flatnonzero(program.op >= 0)
    launch = rank.launches.of_op[program.op[on_gpu]]
    share, row = np.zeros(len(program)), np.maximum(launch, 0)
    waited = program.wait[on_gpu] * np.divide(its_met, met, out=np.zeros(len(met)), where=met > 0)[row]
    ns = np.where(launch >= 0, np.maximum(its[row] - waited, 0), 0)
    share[on_gpu] = np.minimum(ns / np.maximum(program.work[on_gpu], 1.0), 1.0)
    return share


def _by_launch(model: Model, chosen: Bool) -> F64:
    """Per launch the ns that these of its GPU ops have to themselves."""
    rank = model.view.rank
    own = chosen[rank.work.op] & (rank.launches.of_op[rank.work.op] >= 0)
    launch = rank.launches.of_op[rank.work.op[own]]
    return np.bincount(launch, rank.work.length[own], max(len(rank.launches), 1)).astype(np.float64)


def find_site(model: Model, text: str) -> str:
    """The one blocking site that this text names, or is a part of. Raises InputError for none or several."""
    rows = np.unique(model.program.site)
    there: list[str] = list(dict.fromkeys(model.sites[row] for row in rows[rows != MISSING].tolist()))
    found = [site for site in there if site == text] or [site for site in there if text in site]
    if len(found) != 1:
        listed = "; ".join(there) or "none"
        raise InputError(
            f"{'no' if not found else 'more than one'} blocking site has {text!r}; sites: {listed}"
        )
    return found[0]


def possible_changes(model: Model, syncs: Sequence[Sync]) -> tuple[Change, ...]:
    """Each blocking site, the host time of each seam and span, each class of kernels, the GPU's own gaps and
    the waiting for peers."""
    rank, program = model.view.rank, model.program
    changes = [
        Change(f"remove the wait: {sync.site}", sites=(sync.site,))
        for sync in syncs
        if sync.site in model.sites
    ]
    changes += [
        Change(f"halve the host's time in the seam before {name}", seams=((name, HALF),))
        for name in program.seams
    ]
    spans = dict.fromkeys(s.span for s in program.sorts if not s.api and s.doing not in (WAITING, PROFILER))
    changes += [
        Change(f"halve host work in span {span or NO_SPAN}", own_spans=((span, HALF),)) for span in spans
    ]
    used = np.unique(rank.op_class[rank.work.op[model.view.work]]).tolist()
    changes += [
        Change(f"make {rank.classes[i]} kernels twice as fast", kernels=((rank.classes[i], 1 / HALF),))
        for i in used
    ]
    changes.append(
        Change(
            "close the gaps inside graphs: programmatic dependent launch, or fewer and fused kernels",
            in_graph=0.0,
        )
    )
    changes.append(
        Change(
            "close the gaps between kernels queued one by one: fuse them, or capture them in a graph",
            dispatch=0.0,
        )
    )
    if (program.wait > program.for_hosts).any():
        changes.append(Change("no rank waits for another in collectives", peers=0.0))
    return tuple(changes)


def even_changes(model: Model, uneven: Sequence[Uneven]) -> tuple[Change, ...]:
    """Each part of what this rank does beyond the others brought down to what they do, where the model has it
    alone."""
    changes = [_evened(model, its, part) for its in _of_model(model, uneven) for part in its.parts]
    return tuple(change for change in changes if change is not None)


def made_even(model: Model, uneven: Sequence[Uneven]) -> dict[str, Change]:
    """By side, "host" or "gpu", all of that together, where the model has all of it."""
    whole: dict[str, Change] = {}
    for its in _of_model(model, uneven):
        parts = [_evened(model, its, part) for part in its.parts]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            whole[its.on] = Change(
                f"as little work on rank {its.rank}'s {its.on} as on the others",
                own_spans=tuple(one for part in known for one in part.own_spans),
                kernels=tuple(one for part in known for one in part.kernels),
            )
    return whole


def _of_model(model: Model, uneven: Sequence[Uneven]) -> list[Uneven]:
    """What the model's rank does more in the model's kind of step."""
    view = model.view
    return [its for its in uneven if (its.rank, its.kind) == (view.rank.trace.rank, view.kind)]


def _evened(model: Model, its: Uneven, part: Excess) -> Change | None:
    left = max(1 - part.us / part.own_us, 0.0)
    if its.on == "gpu":
        return Change(what_to_do(its, part), kernels=((part.what, 1 / max(left, NOTHING)),))
    span = part.what.removeprefix("span ").replace(NO_SPAN, "")
    own = {s.span for s in model.program.sorts if not s.api and s.doing not in (WAITING, PROFILER)}
    if part.what.startswith("span ") and span in own:
        return Change(what_to_do(its, part), own_spans=((span, left),))
    return None


def rank_fixes_by_replay(
    outcomes: Sequence[Outcome], step_us: float, pinning: frozenset[str], calibrated: bool
) -> tuple[Fix, ...]:
    """Changes worth 1 % of the step and more, the one that gives most first; before them sites that pin, for
    their wait is waste, while kernels and host work can be made cheaper only so far. Sites that pin are named
    last where they are worth less.
    """

    def order(its: Outcome) -> tuple[bool, float]:
        pins = not pinning.isdisjoint(its.change.sites)
        return not pins or its.gain_us.value <= WORTH * step_us, -its.gain_us.value

    return tuple(
        Fix(
            its.change.what,
            max(its.gain_us.value, 0.0),
            calibrated=calibrated,
            bound="estimate",
            site=its.change.sites[0] if len(its.change.sites) == 1 else "",
        )
        for its in sorted(outcomes, key=order)
        if its.gain_us.value > WORTH * step_us or pinning.intersection(its.change.sites)
    )


def joint_outcome(model: Model, costs: Sequence[SiteCost], step_us: float) -> Outcome | None:
    """What removing the waits of several sites gives that pin the host, or may, where that is clearly more
    than each of them alone adds up to: a copy to pageable memory and the synchronisation after it wait for
    the same work, so with one of them gone the other waits instead.
    """
    costs = [cost for cost in costs if cost.verdict != "hidden"]
    alone = {cost.site: max(cost.cost_us.value, 0.0) for cost in costs}
    if len(alone) < 2 or all(cost.verdict == "unclear" for cost in costs):
        return None
    sites = tuple(alone)
    (whole,) = predict(model, [_removed(sites)])
    if whole.gain_us.value - sum(alone.values()) <= WORTH * step_us:
        return None
    if len(sites) > MOST_SITES:
        return whole
    others = predict(model, [_removed(_without(sites, one)) for one in sites])
    # Of a site that none of the others waits for, the others without it give all but what it gives alone.
    hiding = tuple(
        site
        for site, rest in zip(sites, others, strict=True)
        if whole.gain_us.value - rest.gain_us.value - alone[site] > WORTH * step_us
    )
    if len(hiding) < 2:
        return None
    joint = whole if hiding == sites else predict(model, [_removed(hiding)])[0]
    more = joint.gain_us.value - sum(alone[site] for site in hiding)
    return joint if more > WORTH * step_us else None


def _without(sites: tuple[str, ...], site: str) -> tuple[str, ...]:
    return tuple(other for other in sites if other != site)


def _removed(sites: tuple[str, ...]) -> Change:
    return Change(f"remove {len(sites)} waits together: {names_together(sites)}", sites=sites)


def site_costs(model: Model, syncs: Sequence[Sync], outcomes: Sequence[Outcome]) -> tuple[SiteCost, ...]:
    """What each site's wait costs without the profiler, the dearest first."""
    gains = {its.change.sites[0]: its for its in outcomes if its.change.sites}
    speeds = model.stretches.speeds()
    times = replay(model.program, scenarios_at(model, speeds))
    found = [_site_cost(model, sync, gains[sync.site], speeds, times) for sync in syncs if sync.site in gains]
    return tuple(sorted(found, key=lambda cost: -cost.cost_us.value))


def _site_cost(model: Model, sync: Sync, outcome: Outcome, speeds: F64, times: Times) -> SiteCost:
    program, stretches, view = model.program, model.stretches, model.view
    items = np.flatnonzero(program.site == model.sites.index(sync.site))
    items = items[np.isin(program.step[items], model.steps)]
    blocked = times.blocked[items].sum(axis=0) / max(len(model.steps), 1)
    legs = np.flatnonzero(program.leg >= 0)
    at = np.searchsorted(legs, items)
    follows = at < len(legs)
    need_us = sync.need_us
    if follows.any():
        need = np.median(times.end[legs[at[follows]]] - times.end[items[follows]], axis=0)
        need_us = stretches.median(stretches.at(speeds, need)).value / 1000
    calls = np.flatnonzero(view.calls & (view.rank.waits.site == model.sites.index(sync.site)))
    return SiteCost(
        site=sync.site,
        profiled_blocked_us=sync.blocked_us,
        blocked_us=in_us(stretches.mean(stretches.at(speeds, blocked))),
        cost_us=outcome.gain_us,
        behind_us=sync.behind_us,
        need_us=need_us,
        verdict=verdict_of(
            sync.behind_us,
            need_us,
            is_shown(view, view.rank.waits, calls),
            outcome.gain_us.value,
            outcome.step_us.value,
        ),
    )
