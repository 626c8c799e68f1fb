"""The collectives of one rank: which GPU ops they are, what kind of exchange, and when the rank arrived."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from latencylab.analyzers.intervals import running_end
from latencylab.analyzers.kernels import COLLECTIVE
from latencylab.analyzers.view import RankView
from latencylab.model.trace import I64, KERNEL, Trace

MEANINGLESS = re.compile(r"<.*|\(.*", re.DOTALL)  # of a kernel's name: its template arguments and parameters
# Everyone's data goes to everyone, so nobody leaves before the last arrives. A send and receive joins two
# ranks, a broadcast or reduce goes one way, and a kernel that only pushes or copies waits for nobody.
BLOCKING = re.compile(
    r"all_?reduce|cross_device_reduce|multimem|all_?gather|reduce_?scatter|all_?to_?all", re.IGNORECASE
)
NOT_BLOCKING = re.compile(r"sendrecv|send_recv|broadcast|push_only|copy|memcpy|one_?sided", re.IGNORECASE)
# All ranks leave together: peers read a rank's memory, which it must not write again before they have. Who
# pushes waits for the data of the others alone, in two steps of a two-shot one.
BARRIER_AT_END = re.compile(r"2stage|(?:2|two)_?shot(?!_?push)|shot_?pull", re.IGNORECASE)
ONE_SHOT = re.compile(r"1stage|(?:1|one)_?shot|fusion", re.IGNORECASE)
PUSH = re.compile(r"push|lamport", re.IGNORECASE)  # who polls for the data of others has them pushed
TWO_SHOT_PUSH = re.compile(r"(?:2|two)_?shot_?push", re.IGNORECASE)
# All ranks put in as much; what each sends to single others, or broadcasts in turn, may differ in size.
SAME_SIZE = re.compile(r"all_?reduce|all_?gather|reduce_?scatter", re.IGNORECASE)
HASHED = re.compile(r"[0-9a-f]{32,}")  # a group's name that PyTorch made of its ranks
SEPARATOR = " · "


@dataclass(frozen=True, slots=True, eq=False)
class RankCollectives:
    """One rank's collectives in order of their start.

    `op`: rows of the GPU ops; `token`: kind, and group and size where known, as one string, a row of
    `tokens`, equal on all ranks that may meet in it; `arrival`: when the rank was there, which is its start,
    or later where an op before it on its stream still ran (under programmatic dependent launch a kernel may
    start before its predecessor ends); `step`: the step that launched it, or -1. All times on the rank's own
    clock.
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
    """The collectives of a rank: the kernels of that class."""
    trace, gpu = view.trace, view.trace.gpu
    is_collective = np.array([name == COLLECTIVE for name in view.classes], bool)
    ops = np.flatnonzero(is_collective[view.op_class] & (gpu.kind == KERNEL))
    token, tokens = _tokens(trace, ops)
    launch = view.launches.of_op[ops]
    launched = np.where(launch >= 0, view.launches.start[launch] if len(view.launches) else 0, 0)
    return RankCollectives(
        op=ops,
        start=gpu.start[ops],
        end=gpu.end[ops],
        arrival=_arrivals(trace)[ops],
        token=token,
        tokens=tokens,
        step=np.where(launch >= 0, view.steps.of_host(launched), -1),
    )


def kind_of_token(token: str) -> str:
    """The token without group and size."""
    return token.partition(SEPARATOR)[0]


def _tokens(trace: Trace, ops: I64) -> tuple[I64, tuple[str, ...]]:
    """The token of each of these GPU ops, as rows of the tokens."""
    gpu = trace.gpu
    sizes, of_size = np.unique(gpu.bytes[ops], return_inverse=True)
    said = gpu.name[ops].astype(np.int64) * (len(trace.names) + 1) + gpu.group[ops] + 1
    _, first, which = np.unique(said * max(len(sizes), 1) + of_size, return_index=True, return_inverse=True)
    tokens: dict[str, int] = {}
    rows = []
    for op in ops[first].tolist():
        name, group, size = int(gpu.name[op]), int(gpu.group[op]), int(gpu.bytes[op])
        parts = [kind_of_kernel(trace.names[name])]
        if group >= 0:
            parts.append(_group(trace, trace.names[group]))
        if size >= 0 and SAME_SIZE.search(parts[0]):
            parts.append(_size(size))
        rows.append(tokens.setdefault(SEPARATOR.join(parts), len(tokens)))
    return np.array(rows, np.int64)[which], tuple(tokens)


def _group(trace: Trace, name: str) -> str:
    """A process group by its name, and by its ranks where it is known not to be of all: PyTorch gives groups
    split off at once one name.
    """
    ranks = trace.groups.get(name)
    shown = f"group {name[:8] if HASHED.fullmatch(name) else name}"
    return shown if ranks is None or len(ranks) == trace.world_size else f"{shown} ({_ranks(ranks)})"


def _ranks(ranks: tuple[int, ...]) -> str:
    first, last = ranks[0], ranks[-1]
    step = ranks[1] - first if len(ranks) > 1 else 1
    if len(ranks) > 2 and ranks == tuple(range(first, last + 1, step)):
        return f"ranks {first}-{last}" if step == 1 else f"ranks {first}, {first + step}, … {last}"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _size(size: int) -> str:
    """Exact, so that different sizes are never shown alike."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size and size % unit == 0:
            return f"{size // unit:,} {name}"
    return f"{size:,} B"


def _arrivals(trace: Trace) -> I64:
    """Per GPU op its start, or the running end of its stream before it where that is later."""
    gpu = trace.gpu
    arrival = gpu.start.copy()
    for stream in np.unique(gpu.stream):
        rows = np.flatnonzero(gpu.stream == stream)
        arrival[rows] = np.maximum(gpu.start[rows], running_end(gpu.end[rows]))
    return np.minimum(arrival, gpu.end)
