"""Makes the traces that the benchmarks read: an SGLang NEXTN decode on several ranks, as Kineto writes it.

    python benchmarks/make_traces.py OUT                            # 4 ranks, 155 MB and 300,000 events each
    python benchmarks/make_traces.py OUT --ranks 1 --stacks-mb 600  # with Python stacks and tensor shapes

Each step launches four CUDA graphs (draft, metadata, verify, draft extend) and some eager kernels, with
their flows, spans and framework ops. Ranks meet in the collectives of the verify graph, and each has a
clock of its own. The same options give the same JSON. Sizes are those of the inflated JSON.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, cast

from isal import igzip

BASE_NS = 1_775_078_550_000_000_000
START_NS = 4_909_914_216_204_635  # after BASE_NS
GRAPHS = (("draft", 64, 0), ("metadata", 8, 0), ("verify", 246, 28), ("draft_extend", 20, 2))
EAGER = 14
PER_STEP = 760  # events, flows and host events included
STREAM, PID, TID = 13, 4000, 4000
REDUCE = "void cross_device_reduce_1stage<__nv_bfloat16, 4>(RankData*, RankSignals, Signal*, int, int)"
SHAPES = '"Input Dims": [[1, 2560], [2560, 768], []], "Input type": ["c10::BFloat16", "c10::BFloat16", ""], '
OCCUPANCY = (
    '"occupancy": {"activeBlocksPerMultiprocessor": 4, "limitingFactors": "REGS", "blockLimitRegs": 4, '
    '"blockLimitSharedMem": 182, "blockLimitWarps": 16, "blockLimitBlocks": 32, '
    '"blockLimitBarriers": 2147483647, "allocatedRegistersPerBlock": 16384, "allocatedSharedMem": 1280}'
)
TYPES = ("__nv_bfloat16", "float", "int", "c10::BFloat16")
SPANS = {"draft": "draft", "verify": "step[VERIFY bs=1]", "draft_extend": "draft_extend"}


def kernel_names(rng: random.Random) -> list[str]:
    """As many and as long as in real decodes: 20 to 400 characters."""
    stems = ("nvjet_tst", "_fused_moe_kernel", "rmsnorm_kernel", "void at::native::elementwise_kernel")
    names = []
    for i in range(150):
        stem = rng.choice(stems)
        inner = ", ".join(rng.choice(TYPES) for _ in range(rng.randint(0, 24)))
        names.append(f"{stem}_{i}<{inner}>" if inner else f"{stem}_{i}")
    return names


class RankWriter:
    """Writes one rank's events to its file; all times are ns after BASE_NS on the common clock."""

    def __init__(self, out: BinaryIO, rank: int, ranks: int, frames: int, seed: int) -> None:
        self.out = out
        self.rng = random.Random(f"{seed} {rank}")  # noqa: S311
        self.names = kernel_names(random.Random(seed))  # noqa: S311
        self.frames = frames  # Python frames a step; above 0 also tensor shapes
        self.clock = (0, 37_412, -118_903, 5_127)[rank % 4] * (1 + rank // 4)
        self.host = START_NS + rank * 11_000
        self.gpu = START_NS
        self.correlation = 23_000
        self.external = 0
        self.lines: list[str] = []
        self.first = True
        header = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks, "nccl_version": "2.27"},
            "cuda_driver_version": 13000,
            "cuda_runtime_version": 13000,
            "cupti_version": 130001,
            **({"with_stack": 1, "record_shapes": 1} if frames else {}),
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": BASE_NS,
        }
        out.write(json.dumps(header, indent=2)[:-2].encode() + b',\n  "traceEvents": [\n')

    def flush(self) -> None:
        if self.lines:
            self.out.write((b"" if self.first else b",\n") + ",\n".join(self.lines).encode())
            self.first = False
            self.lines.clear()

    def event(self, cat: str, name: str, pid: int, tid: int, start: int, end: int, args: str) -> None:
        start += self.clock
        dur = end + self.clock - start
        self.lines.append(
            f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
            f'    "ts": {start // 1000}.{start % 1000:03d}, "dur": {dur // 1000}.{dur % 1000:03d},\n'
            f'    "args": {{\n      {args}\n    }}\n  }}'
        )

    def flow(self, ph: str, pid: int, tid: int, at: int) -> None:
        at += self.clock
        end = ', "bp": "e"' if ph == "f" else ""
        self.lines.append(
            f'  {{\n    "ph": "{ph}", "id": {self.correlation}, "pid": {pid}, "tid": {tid}, '
            f'"ts": {at // 1000}.{at % 1000:03d},\n    "cat": "ac2g", "name": "ac2g"{end}\n  }}'
        )

    def host_event(self, cat: str, name: str, start: int, end: int) -> None:
        self.external += 1
        shapes = SHAPES if self.frames and cat == "cpu_op" else ""
        args = f'"External id": {self.external}, {shapes}"Record function id": 0, "Ev Idx": {self.external}'
        self.event(cat, name, PID, TID, start, end, args)

    def launch(self, name: str, cbid: int, took: int) -> None:
        """An API call now, under a new correlation id."""
        self.correlation += 3
        args = f'"cbid": {cbid}, "correlation": {self.correlation}'
        self.event("cuda_runtime", name, PID, TID, self.host, self.host + took, args)
        self.flow("s", PID, TID, self.host)
        self.host += took

    def kernel(self, name: str, node: int, start: int, end: int) -> None:
        grid = self.rng.randint(1, 264)
        args = (
            '"queued": 0, "device": 0, "context": 1,\n'
            f'      "stream": {STREAM}, "correlation": {self.correlation},\n'
            '      "registers per thread": 128,\n      "shared memory": 1024,\n'
            f'      "blocks per SM": {grid / 132},\n      "warps per SM": {grid / 33},\n'
            f'      "grid": [{grid}, 1, 1],\n      "block": [128, 1, 1],\n'
            f'      "est. achieved occupancy %": 0,\n      {OCCUPANCY},\n'
            f'      "graph id": {2 if node else 0}, "graph node id": {8589934592 + node if node else 0},\n'
            '      "channel": 3, "channel_type": 1'
        )
        self.event("kernel", name, 0, STREAM, start, end, args)
        self.flow("f", 0, STREAM, start)
        self.gpu = max(self.gpu, end)

    def stack(self, start: int, end: int) -> None:
        """Nested Python frames over a step."""
        deep = 40
        for i in range(self.frames):
            slot, depth = divmod(i, deep)
            name = f"sglang/python/sglang/srt/managers/scheduler.py({100 + depth}): _run_batch_{i % 97}"
            self.external += 1
            own = self.external
            args = f'"Python parent id": {own - 1}, "Python id": {own}, "Ev Idx": {own}'
            width = (end - start) * deep // (self.frames + deep)
            at = start + slot * width + depth * 5
            self.event("python_function", name, PID, TID, at, max(at, at + width - depth * 10), args)

    def close(self, start: int) -> None:
        took = self.gpu + 500_000 - start
        self.lines.append(
            f'  {{\n    "ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", '
            f'"tid": "PyTorch Profiler",\n    "ts": {start // 1000}.{start % 1000:03d}, '
            f'"dur": {took // 1000}.{took % 1000:03d},\n    "args": {{\n      "Op count": 0\n    }}\n  }}'
        )
        self.flush()
        self.out.write(b'\n  ],\n  "traceName": "/tmp/trace.json"\n}\n')


def seam(rank: RankWriter) -> Iterator[None]:
    """Small eager kernels, each in a framework op."""
    for i in range(EAGER):
        begin = rank.host
        rank.host += rank.rng.randint(1_500, 4_000)
        rank.launch("cudaLaunchKernel", 211, rank.rng.randint(2_500, 6_000))
        start = max(rank.gpu + 700, rank.host + 1_100)
        rank.kernel(rank.names[i], 0, start, start + rank.rng.randint(1_200, 3_000))
        name = ("aten::copy_", "aten::add", "aten::index_select")[i % 3]
        rank.host_event("cpu_op", name, begin, rank.host + 400)
        yield


def run_step(ranks: list[RankWriter]) -> None:
    """One step of all ranks, in lockstep at the collectives."""
    begins = [rank.host for rank in ranks]
    for rank in ranks:
        for _ in seam(rank):
            rank.host += rank.rng.randint(500, 2_000)
    for leg, ops, collectives in GRAPHS:
        started = []
        for rank in ranks:
            started.append(rank.host)
            rank.host += rank.rng.randint(20_000, 60_000)
            rank.launch("cudaGraphLaunch", 311, 40_000 + ops * 900)
            rank.gpu = max(rank.gpu + 1_500, rank.host - ops * 400)
        every = ops // collectives if collectives else ops + 1
        for node in range(1, ops + 1):
            if node % every == 0:
                starts = [rank.gpu + rank.rng.randint(300, 900) for rank in ranks]
                end = max(starts) + 5_200
                for rank, start in zip(ranks, starts, strict=True):
                    rank.kernel(REDUCE, node, start, end + rank.rng.randint(0, 300))
                continue
            for rank in ranks:
                start = rank.gpu + rank.rng.choice((320, 480, 640, -400))  # dependent launches overlap
                name = rank.names[node % len(rank.names)]
                rank.kernel(name, node, start, start + rank.rng.randint(1_000, 9_000))
        for rank, start in zip(ranks, started, strict=True):
            if leg in SPANS:
                rank.host_event("user_annotation", SPANS[leg], start, rank.host + 3_000)
    for rank, begin in zip(ranks, begins, strict=True):
        rank.host += 4_000
        rank.host_event("user_annotation", "scheduler.run_batch", begin, rank.host)
        rank.stack(begin, rank.host)
        rank.host = max(rank.host, rank.gpu - 900_000) + rank.rng.randint(60_000, 140_000)
        rank.launch("cudaEventSynchronize", 312, 8_000)
        rank.flush()


def _compressed(raw: BinaryIO) -> BinaryIO:
    return cast("BinaryIO", igzip.IGzipFile("", "wb", 1, raw, mtime=0))  # type: ignore[no-untyped-call]


def main() -> None:
    """Writes the files named by the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder for rank<N>.trace.json.gz")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--events", type=int, default=300_000, help="events a rank, without stacks")
    parser.add_argument("--stacks-mb", type=int, default=0, help="stacks and shapes, up to this size")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="write .json instead of .json.gz")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    steps = max(1, args.events // PER_STEP)
    frames = max(0, (args.stacks_mb * 1_000_000 - args.events * 528) // (steps * 290))
    with ExitStack() as files:
        ranks = []
        for rank in range(args.ranks):
            path = args.out / f"rank{rank}.trace.json{'' if args.plain else '.gz'}"
            # No name and no time in the gzip header: the same options give the same bytes.
            raw = files.enter_context(path.open("wb"))
            out = raw if args.plain else files.enter_context(_compressed(raw))
            ranks.append(RankWriter(out, rank, args.ranks, frames, args.seed))
        for _ in range(steps):
            run_step(ranks)
        for writer in ranks:
            writer.close(START_NS - 1_000_000)


if __name__ == "__main__":
    main()
