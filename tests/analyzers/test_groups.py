"""Collectives whose kernels say of which group and size they are are paired by it."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from latencylab.analyzers.collectives import find_collectives, kind_of_token
from latencylab.analyzers.kernels import load_classes
from latencylab.analyzers.pairing import Pairing, pair_collectives
from latencylab.analyzers.ranks import join_ranks
from latencylab.analyzers.view import RankView
from latencylab.model.trace import Trace
from synth import Launch, Program, Python, Span, ranks
from synth.actions import Action

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
Groups = tuple[tuple[str, tuple[int, ...]], ...]


def reduce(group: str = "tp", size: int = 8_192, kind: str = "nccl") -> ranks.Collective:
    return ranks.Collective(4_000, comm=ranks.Comm(kind, group, size))


def run_of(own: dict[int, tuple[Action, ...]], groups: Groups = (), **scenario: object) -> ranks.RankTruth:
    """40 steps of some work and these collectives on each rank."""
    rng = random.Random(5)

    def step(actions: tuple[Action, ...]) -> Span:
        work = (Python(rng.randint(3_000, 9_000)), Launch(rng.randint(8_000, 12_000), name="gemm"))
        return Span("scheduler.run_batch", (*work, *actions))

    programs = [(Program(tuple(step(actions) for _ in range(40))),) for actions in own.values()]
    clocks = tuple(ranks.Clock(offset=r * 1_700_000, ppb=r * 9_000) for r in own)
    return ranks.find(
        ranks.RankScenario(ranks.rank_scenarios(*programs), groups, clocks, **scenario)  # type: ignore[arg-type]
    )


def views_of(traces: tuple[Trace, ...]) -> tuple[RankView, ...]:
    return tuple(RankView.of(trace, load_classes()) for trace in traces)


def paired(traces: tuple[Trace, ...], truth: ranks.RankTruth) -> tuple[Pairing, list[set[int]]]:
    """The pairing, and per paired collective the true instances of its rows."""
    own = tuple(find_collectives(view) for view in views_of(traces))
    pairing = pair_collectives(own)
    found = [
        {int(truth.rows[r][own[r].op[row]]) for r, row in enumerate(rows) if row >= 0}
        for rows in pairing.row.tolist()
    ]
    return pairing, found


def rank_sets(pairing: Pairing) -> dict[str, set[tuple[int, ...]]]:
    """The ranks that meet in the collectives of each token."""
    sets: dict[str, set[tuple[int, ...]]] = {}
    for token, there in zip(pairing.token.tolist(), pairing.row >= 0, strict=True):
        sets.setdefault(pairing.tokens[token], set()).add(tuple(np.flatnonzero(there).tolist()))
    return sets


@pytest.mark.parametrize(
    ("groups", "shown"),
    [
        ((("a", (0, 1)), ("b", (2, 3))), ("ranks 0, 1", "ranks 2, 3")),
        ((("a", (0, 1, 2)), ("b", (1, 2, 3))), ("ranks 0-2", "ranks 1-3")),
        ((("a", (0, 1)), ("b", (1, 2, 3))), ("ranks 0, 1", "ranks 1-3")),
    ],
    ids=["disjoint", "overlapping", "one in both"],
)
def test_groups_of_one_kernel_are_kept_apart(groups: Groups, shown: tuple[str, str]) -> None:
    own = {r: (reduce(), *(reduce(name) for name, its in groups if r in its), reduce()) for r in range(4)}
    truth = run_of(own, groups)
    pairing, found = paired(ranks.to_traces(truth.run), truth)
    assert all(len(its) == 1 for its in found)
    assert len(found) == len(truth.instances)
    assert pairing.unpaired == (0, 0, 0, 0)
    assert rank_sets(pairing) == {
        f"{ALL_REDUCE} · group 0 · 8 KiB": {(0, 1, 2, 3)},
        f"{ALL_REDUCE} · group 1 ({shown[0]}) · 8 KiB": {groups[0][1]},
        f"{ALL_REDUCE} · group 2 ({shown[1]}) · 8 KiB": {groups[1][1]},
    }


@pytest.mark.parametrize("one_name", [False, True])
def test_replicas_that_share_no_group_are_never_paired(one_name: bool) -> None:
    groups: Groups = (("a", (0, 1)), ("b", (2, 3)))
    truth = run_of({r: (reduce("ab"[r // 2]),) for r in range(4)}, groups)
    traces = ranks.to_traces(truth.run)
    if one_name:  # as of groups that were split off at once
        names = [tuple("1" if name == "2" else name for name in trace.names) for trace in traces]
        members = [{"1": trace.groups[str(1 + r // 2)]} for r, trace in enumerate(traces)]
        traces = tuple(
            replace(trace, names=n, groups=g) for trace, n, g in zip(traces, names, members, strict=True)
        )
    pairing, found = paired(traces, truth)
    assert all(len(its) == 1 for its in found)
    assert rank_sets(pairing) == {f"{ALL_REDUCE} · group 1 (ranks 0, 1) · 8 KiB": {(0, 1)}}
    assert pairing.unpaired == (0, 0, 40, 40)
    joined = join_ranks(views_of(traces))
    assert joined is not None
    assert [clock.points for clock in joined.clocks] == [40, 40, 0, 0]


def test_sizes_of_one_kernel_are_kept_apart() -> None:
    sizes = (8_192, 3 << 20, 50_272)
    captures = (ranks.Capture(), ranks.Capture(lost=(31, 62, 63)), ranks.Capture())
    truth = run_of({r: tuple(reduce(size=s) for s in sizes) for r in range(3)}, captures=captures)
    traces = ranks.to_traces(truth.run)
    pairing, found = paired(traces, truth)
    assert all(len(its) == 1 for its in found)
    assert len(found) == 120
    assert pairing.tokens == tuple(
        f"{ALL_REDUCE} · group 0 · {its}" for its in ("8 KiB", "50,272 B", "3 MiB")
    )
    assert {kind_of_token(token) for token in pairing.tokens} == {ALL_REDUCE}
    assert pairing.blocking.all()


def test_what_ranks_may_send_unequally_is_not_told_by_size() -> None:
    own = {r: (reduce(), reduce(kind="nccl_broadcast", size=1_000), reduce()) for r in range(2)}
    truth = run_of(own)
    traces = tuple(
        replace(trace, gpu=replace(trace.gpu, bytes=np.where(trace.gpu.bytes == 1_000, 1_000 + r, 8_192)))
        for r, trace in enumerate(ranks.to_traces(truth.run))
    )
    pairing, found = paired(traces, truth)
    assert all(len(its) == 1 for its in found)
    assert pairing.unpaired == (0, 0)
    assert "ncclDevKernel_Broadcast_RING_LL · group 0" in pairing.tokens


def test_kernels_that_say_nothing_are_told_by_their_kind() -> None:
    truth = run_of({r: (reduce(kind="one_shot"), reduce()) for r in range(2)})
    named, plain = ranks.to_traces(truth.run)
    none = np.full(len(plain.gpu), -1)
    plain = replace(plain, gpu=replace(plain.gpu, bytes=none, group=none.astype(np.int32)), groups={})
    assert {*find_collectives(views_of((plain,))[0]).tokens} == {
        "sglang::cross_device_reduce_1stage",
        ALL_REDUCE,
    }
    assert f"{ALL_REDUCE} · group 0 · 8 KiB" in find_collectives(views_of((named,))[0]).tokens


def test_groups_read_well() -> None:
    truth = run_of({0: (reduce(),), 1: (reduce(),)})
    trace = ranks.to_traces(truth.run)[0]
    shown = {
        "3": (1, 5, 9, 13),
        "tp": (7,),
        "0123456789abcdef" * 2 + "01234567": (0, 1),
        "4": (0, 3, 5),
        "5": None,
        "6": (2, 3, 4),
    }
    tokens = []
    for name, members in shown.items():
        names = tuple(name if its == "0" else its for its in trace.names)
        groups = {} if members is None else {name: members}
        (view,) = views_of((replace(trace, names=names, groups=groups, world_size=16),))
        tokens += find_collectives(view).tokens
    assert [token.split(" · ")[1] for token in tokens] == [
        "group 3 (ranks 1, 5, … 13)",
        "group tp (rank 7)",
        "group 01234567 (ranks 0, 1)",
        "group 4 (ranks 0, 3, 5)",
        "group 5",
        "group 6 (ranks 2-4)",
    ]


def test_no_collective_at_all() -> None:
    truth = run_of({0: ()})
    assert len(find_collectives(views_of(ranks.to_traces(truth.run))[0])) == 0
