"""The collectives of one rank: which GPU ops they are, what kind of exchange, and when the rank arrived."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from latencylab.analyzers.intervals import running_end
from latencylab.analyzers.view import RankView
from latencylab.model.trace import I64, KERNEL, Trace

COLLECTIVE = re.compile(
    r"nccl|rccl|hccl|cross_device_reduce|all_?reduce|all_?gather|reduce_?scatter|multimem|(?:one|two)_shot",
    re.IGNORECASE,
)
MEANINGLESS = re.compile(r"<.*|\(.*", re.DOTALL)  # of a kernel's name: its template arguments and parameters
# Everyone's data goes to everyone, so nobody leaves before the last arrives. A send and receive joins two
# ranks, a broadcast or reduce goes one way, and a kernel that only pushes or copies waits for nobody.
BLOCKING = re.compile(
    r"all_?reduce|cross_device_reduce|multimem|all_?gather|reduce_?scatter|all_?to_?all", re.IGNORECASE
)
NOT_BLOCKING = re.compile(r"sendrecv|send_recv|broadcast|push_only|copy|memcpy|one_?sided", re.IGNORECASE)
BARRIER_AT_END = re.compile(r"2stage|two_?shot|twoshot", re.IGNORECASE)  # all ranks leave together
ONE_SHOT = re.compile(r"1stage|one_?shot|fusion|lamport", re.IGNORECASE)
PUSH = re.compile(r"push", re.IGNORECASE)


@dataclass(frozen=True, slots=True, eq=False)
class RankCollectives:
    """One rank's collectives in order of their start.

    `op`: rows of the GPU ops; `token`: kind, group and size as one string, a row of `tokens`; `arrival`: when
    the rank was there, which is its start, or later where an op before it on its stream still ran (under
    programmatic dependent launch a kernel may start before its predecessor ends); `step`: the step that
    launched it, or -1. All times on the rank's own clock.
    """

    op: I64
    start: I64
    end: I64
    arrival: I64
    token: I64
    tokens: tuple[str, ...]
    step: I64

    def __len__(self) -> int:
        return len(self.op)


def kind_of_kernel(name: str) -> str:
    """A collective kernel's name without template arguments and parameters."""
    return MEANINGLESS.sub("", name.removeprefix("void ").replace("(anonymous namespace)::", "")).strip()


def find_collectives(view: RankView) -> RankCollectives:
    """The collectives of a rank."""
    trace, gpu = view.trace, view.trace.gpu
    ops = np.flatnonzero(trace.matching(COLLECTIVE)[gpu.name] & (gpu.kind == KERNEL))
    tokens: dict[str, int] = {}
    of_name = {
        name: tokens.setdefault(kind_of_kernel(trace.names[name]), len(tokens))
        for name in np.unique(gpu.name[ops]).tolist()
    }
    launch = view.launches.of_op[ops]
    launched = np.where(launch >= 0, view.launches.start[launch] if len(view.launches) else 0, 0)
    return RankCollectives(
        op=ops,
        start=gpu.start[ops],
        end=gpu.end[ops],
        arrival=_arrivals(trace)[ops],
        token=np.array([of_name[name] for name in gpu.name[ops].tolist()], np.int64),
        tokens=tuple(tokens),
        step=np.where(launch >= 0, view.steps.of_host(launched), -1),
    )


def _arrivals(trace: Trace) -> I64:
    """Per GPU op its start, or the running end of its stream before it where that is later."""
    gpu = trace.gpu
    arrival = gpu.start.copy()
    for stream in np.unique(gpu.stream):
        rows = np.flatnonzero(gpu.stream == stream)
        arrival[rows] = np.maximum(gpu.start[rows], running_end(gpu.end[rows]))
    return np.minimum(arrival, gpu.end)
