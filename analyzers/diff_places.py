"""Where in a step each GPU op stands: its leg or seam, and its place there in the order of launching.

Places are what remains when a kernel is renamed, and what is missing when two were fused.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import pairwise

import numpy as np

from latencylab.analyzers.diff_steps import Units, leg_names
from latencylab.analyzers.view import KindView
from latencylab.model.trace import I64, Bool, Trace

MOST_PLACES = 4000  # of one segment: beyond, ops are told apart by their names alone

_NOISE = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\{anonymous\}::|\s+")
_NUMBERED = re.compile(r"(\{lambda.*?)#\d+\}")
_HASH = re.compile(r"_(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}(?=_|$|\W)")
_SPECIALISED = re.compile(r"_(?:\d+(?:de|d|c))+$")  # Triton's mark of divisible and constant arguments
_INDUCTOR = re.compile(r"^(triton_.*?)_\d+$")


Order = tuple[int, ...]  # normalised names, as numbers


@lru_cache(maxsize=8192)
def normal_name(kernel: str) -> str:
    """A kernel's name without what differs from build to build: hashes, numbers of lambdas and variants.

    Template arguments stay: they say which tile sizes or types a kernel has.
    """
    name = _NUMBERED.sub(r"\1}", _NOISE.sub("", kernel))
    return _INDUCTOR.sub(r"\1", _SPECIALISED.sub("", _HASH.sub("", name)))


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """One place of a segment, or all ops of one name that have none: ns and number of ops of each step."""

    name: str  # as the trace has it
    kernel_class: str
    ns: I64
    ops: I64


@dataclass(slots=True, eq=False)
class Segment:
    """A leg or seam: its places in order, and by name what stood there in some steps only."""

    places: list[Place] = field(default_factory=list)
    others: dict[str, Place] = field(default_factory=dict)


def lay_out(view: KindView) -> dict[str, Segment]:
    """The segments of a step in the order in which they come, with all busy time of the steps that count.

    The order of a segment's ops is that of most of its instances in those steps; an instance of another order
    is aligned with it.
    """
    rank, units = view.rank, Units(view)
    segment, instance = _segments(view)
    row_of = np.full(len(rank.trace.gpu), -1, np.int64)
    kept: list[tuple[str, int | None, int]] = []  # segment, place, an op that stands there
    order = np.lexsort((rank.trace.gpu.start, _launched(view), instance))
    edges = np.flatnonzero(np.diff(instance[order], prepend=-1))
    runs: dict[str, list[I64]] = defaultdict(list)
    for ops in np.split(order, edges[1:]) if len(order) else []:
        runs[segment[int(ops[0])]].append(ops)
    counted = view.counts(rank.steps.of_gpu(rank.trace.gpu.start))
    words = _words(rank.trace)
    for name, members in runs.items():
        _assign(name, members, words, counted, row_of, kept)
    work, gpu = rank.work, rank.trace.gpu
    ns = np.zeros((len(kept), units.count), np.int64)
    unit = units.of_step[work.step]
    np.add.at(ns, (row_of[work.op[unit >= 0]], unit[unit >= 0]), work.length[unit >= 0])
    ops_of = np.zeros((len(kept), units.count), np.int64)
    op_unit = units.of_step[rank.steps.of_gpu(gpu.start)]
    np.add.at(ops_of, (row_of[op_unit >= 0], op_unit[op_unit >= 0]), 1)
    found: dict[str, Segment] = {}
    for row, (name, place, op) in enumerate(kept):
        its = found.setdefault(name, Segment())
        kernel, kernel_class = rank.trace.names[gpu.name[op]], rank.classes[rank.op_class[op]]
        made = Place(kernel, kernel_class, ns[row], ops_of[row])
        if place is not None:
            its.places.append(made)
        elif made.ns.any() or made.ops.any():
            its.others[normal_name(kernel)] = made
    return found


def _words(trace: Trace) -> I64:
    """Each op's normalised name, as a number."""
    numbers: dict[str, int] = {}
    of_name = np.zeros(len(trace.names), np.int64)
    for name in np.unique(trace.gpu.name).tolist():
        of_name[name] = numbers.setdefault(normal_name(trace.names[name]), len(numbers))
    return of_name[trace.gpu.name]


def _assign(
    name: str,
    members: list[I64],
    words: I64,
    counted: Bool,
    row_of: I64,
    kept: list[tuple[str, int | None, int]],
) -> None:
    """Give each op of a segment's instances its row of `kept`, which grows by the segment's rows."""
    orders = [tuple(words[ops].tolist()) for ops in members]
    usual = Counter(
        order for order, ops in zip(orders, members, strict=True) if counted[ops].any()
    ) or Counter(orders)
    model = usual.most_common(1)[0][0]
    model = model if len(model) <= MOST_PLACES else ()
    first = len(kept)
    seen = members[orders.index(model)] if model else np.zeros(0, np.int64)
    kept += [(name, place, op) for place, op in enumerate(seen.tolist())]
    others: dict[int, int] = {}
    known: dict[Order, list[int]] = {model: list(range(len(model)))}
    for order, ops in zip(orders, members, strict=True):
        if order not in known:
            known[order] = _places(model, order)
        places = np.array(known[order], np.int64)
        row_of[ops] = first + places
        for at in np.flatnonzero(places < 0).tolist():
            op, word = int(ops[at]), order[at]
            if word not in others:
                others[word] = len(kept)
                kept.append((name, None, op))
            row_of[op] = others[word]


def _places(model: Order, order: Order) -> list[int]:
    """For each op of this order its place in the model's, or -1."""
    places = [-1] * len(order)
    if model:
        for block in SequenceMatcher(None, model, order, autojunk=False).get_matching_blocks():
            for n in range(block.size):
                places[block.b + n] = block.a + n
    return places


def _launched(view: KindView) -> I64:
    """When each op was launched: the start of its call, or its own start where that is not known."""
    launches, gpu = view.rank.launches, view.rank.trace.gpu
    if not len(launches):
        return gpu.start
    return np.where(launches.of_op >= 0, launches.start[launches.of_op], gpu.start)


def _segments(view: KindView) -> tuple[list[str], I64]:
    """Each op's segment by name, and a number that ops of one instance of it share.

    A leg has the ops of its graph launches; all others belong to the seam before the next leg launched.
    Without legs a step is one segment.
    """
    rank = view.rank
    gpu, launches, legs = rank.trace.gpu, rank.launches, rank.legs
    if not len(legs):
        step = rank.steps.of_gpu(gpu.start)
        return ["step" if view.by_step else "window"] * len(gpu), step - step.min(initial=0)
    names = leg_names(view)
    last = np.searchsorted(legs.launch_start, _launched(view), side="right") - 1
    is_graph = (launches.of_op >= 0) & launches.graph[launches.of_op]
    in_leg = (last >= 0) & is_graph & (gpu.end <= legs.end[np.maximum(last, 0)])
    instance = np.where(in_leg, 2 * last + 1, 2 * (last + 1))
    # After the window's last leg comes the seam of the leg that else follows one of its name.
    follower = dict(pairwise(names))
    seams = [f"seam before {name}" for name in (*names, follower.get(names[-1], names[0]))]
    return [seams[one // 2] if one % 2 == 0 else names[one // 2] for one in instance.tolist()], instance
