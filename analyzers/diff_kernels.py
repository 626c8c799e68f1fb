"""Kernels on both sides, matched by leg, place and normalised name: the same, renamed, fused, split, new.

Each segment's two sequences of kernels are aligned as texts are (Ratcliff and Metzener, "Pattern matching:
the gestalt approach", 1988, as in difflib), so that what a fusion leaves out in every layer is found in every
layer. What stands between two stretches that agree was put in the place of each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np

from latencylab.analyzers.diff_bootstrap import Resampled
from latencylab.analyzers.diff_places import Place, Segment, lay_out, normal_name
from latencylab.analyzers.diff_steps import Units
from latencylab.analyzers.view import KindView
from latencylab.model.comparison import KernelChange, KernelHow, by_effect
from latencylab.model.trace import I64

Pair = tuple[KernelHow, Sequence[Place], Sequence[Place]]
Key = tuple[str, KernelHow, tuple[str, ...], tuple[str, ...]]
_MOST_FUSED = 8  # kernels that one may take the place of


@dataclass(slots=True, eq=False)
class _Sums:
    """All places of one key together."""

    base: Sequence[Place]  # those of the first pair met, for their names
    head: Sequence[Place]
    ns: tuple[I64, I64]
    ops: tuple[I64, I64]


def compare_kernels(base: KindView, head: KindView, resampled: Resampled) -> tuple[KernelChange, ...]:
    """Every kernel of a step, by effect; the rows add up to busy on both sides."""
    ours, theirs = lay_out(base), lay_out(head)
    sizes = (Units(base).count, Units(head).count)
    sums: dict[Key, _Sums] = {}
    for segment in dict.fromkeys((*theirs, *ours)):
        for how, before, after in _pairs(ours.get(segment, Segment()), theirs.get(segment, Segment())):
            names = tuple(tuple(normal_name(place.name) for place in side) for side in (before, after))
            its = sums.setdefault(
                (segment, how, names[0], names[1]), _Sums(before, after, _zeros(sizes), _zeros(sizes))
            )
            for side, places in enumerate((before, after)):
                for place in places:
                    its.ns[side][:] += place.ns
                    its.ops[side][:] += place.ops
    rows = list(sums.items())
    times = resampled.deltas([its.ns[0] for _, its in rows], [its.ns[1] for _, its in rows])
    counts = resampled.deltas([its.ops[0] * 1000 for _, its in rows], [its.ops[1] * 1000 for _, its in rows])
    found = [
        KernelChange(
            segment=key[0],
            kernel_class=_classes(its),
            how=key[1],
            base=tuple(place.name for place in its.base),
            head=tuple(place.name for place in its.head),
            us=us,
            ops=ops,
        )
        for (key, its), us, ops in zip(rows, times, counts, strict=True)
    ]
    return tuple(sorted(found, key=by_effect(lambda row: row.us)))


def _zeros(sizes: tuple[int, int]) -> tuple[I64, I64]:
    return np.zeros(sizes[0], np.int64), np.zeros(sizes[1], np.int64)


def _classes(its: _Sums) -> str:
    """The class of base's kernels and, where it is another, of head's."""
    sides = [" + ".join(dict.fromkeys(p.kernel_class for p in side)) for side in (its.base, its.head)]
    return " → ".join(dict.fromkeys(side for side in sides if side))


def _pairs(base: Segment, head: Segment) -> Iterator[Pair]:
    """What of one segment stands in the place of what; each place is in one pair."""
    ours, theirs = base.places, head.places
    names = [[normal_name(place.name) for place in side] for side in (ours, theirs)]
    for tag, i, j, k, m in _opcodes(*names):
        if tag == "equal":
            yield from (("same", [one], [other]) for one, other in zip(ours[i:j], theirs[k:m], strict=True))
        else:
            yield from _replaced(ours[i:j], theirs[k:m])
    # What stood there in some steps only counts as the kernel of its name.
    by_name = {normal_name(place.name) for place in (*ours, *theirs)}
    for name in dict.fromkeys((*base.others, *head.others)):
        one, other = base.others.get(name), head.others.get(name)
        if name in by_name or (one is not None and other is not None):
            how: KernelHow = "same"
        else:
            how = "appeared" if one is None else "vanished"
        yield how, [one] if one else [], [other] if other else []


def _replaced(base: Sequence[Place], head: Sequence[Place]) -> Iterator[Pair]:
    """The pairs of two stretches that do not agree in any name."""
    if not base or not head:
        yield from _alone(base, head)
    elif len(base) == len(head):
        for one, other in zip(base, head, strict=True):
            yield ("renamed" if one.kernel_class == other.kernel_class else "replaced"), [one], [other]
    elif min(len(base), len(head)) == 1:
        if max(len(base), len(head)) <= _MOST_FUSED:
            yield ("fused" if len(head) == 1 else "split"), base, head
        else:
            yield from _alone(base, head)
    else:
        codes = _opcodes([p.kernel_class for p in base], [p.kernel_class for p in head])
        if all(tag != "equal" for tag, *_ in codes):
            yield from _alone(base, head)
            return
        for tag, i, j, k, m in codes:
            # Stretches of one class are paired off; what lies between them is judged by itself.
            whole = tag == "equal" or (i < j and k < m)
            yield from (_replaced if whole else _alone)(base[i:j], head[k:m])


def _alone(base: Sequence[Place], head: Sequence[Place]) -> Iterator[Pair]:
    yield from (("vanished", [one], []) for one in base)
    yield from (("appeared", [], [other]) for other in head)


def _opcodes(base: Sequence[str], head: Sequence[str]) -> Sequence[tuple[str, int, int, int, int]]:
    return SequenceMatcher(None, base, head, autojunk=False).get_opcodes()
