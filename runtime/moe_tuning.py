"""Block sizes of the experts' kernels, tuned for the few tokens of batch-1 decoding.

SGLang looks for `configs/triton_<version>/E=<experts>,N=<width>,device_name=<GPU>.json` in the folder
SGLANG_MOE_CONFIG_DIR, by default beside its own code; a second file ending in `_down` holds the down
projection. Its keys are numbers of tokens, of which the nearest is taken. 0.5.23 has no file for this model
on an H200, and its tuner (in the repository under benchmark/kernels/fused_moe_triton) is not in the wheel.

The shared expert is fused as one expert more, so a rank of Ling-3.0-flash at TP4 has 513 experts of width 192
and 9 choices a token. The two projections are tuned one after the other, each timed within a whole call of
SGLang's `fused_experts`, which is replayed as a graph over many choices of experts: the weights of one choice
would stay in the L2 cache, where a model's do not.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from latencylab.model.integrity import InputError
from latencylab.runtime.shapes import model_config

Config = dict[str, int]
Pair = tuple[Config, Config]  # of the up and of the down projection
SIZES = (1, 6, 8, 9)  # plain and draft steps, NEXTN's verify, blocks of 8, DSpark's verify
PREFILL = (512, 2048, 8192)
BUDGET_S = 240.0
_SHARED_MEMORY = 227 * 1024  # of one block on sm_90
_BYTES = 2  # of bf16
_WON = 0.01  # a gain below this share is noise, and keeps SGLang's own sizes


@dataclass(frozen=True, slots=True)
class Shape:
    """What the kernels of one rank work on; the shared expert is counted in `experts` and `choices`."""

    experts: int
    width: int
    hidden: int
    choices: int

    @classmethod
    def of_rank(cls) -> Shape:
        """Of one rank of Ling-3.0-flash at TP4."""
        config = model_config(1)
        shared = int(config["num_shared_experts"])
        return cls(
            int(config["num_experts"]) + shared,
            int(config["moe_intermediate_size"]),
            int(config["hidden_size"]),
            int(config["num_experts_per_tok"]) + shared,
        )


class Bench(Protocol):
    """What can time a call of the experts."""

    def default(self, size: int) -> Config:
        """SGLang's own choice for a number of tokens."""

    def time_us(self, size: int, pair: Pair) -> float | None:
        """Time of one call in us; None where the kernel does not run or computes something else."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """For one number of tokens: SGLang's choice and ours, each timed in turns at the end."""

    size: int
    default: Config
    pair: Pair
    before_us: float
    after_us: float
    tried: int

    @property
    def improved(self) -> bool:
        return self.after_us < self.before_us * (1 - _WON)

    @property
    def kept(self) -> Pair:
        """What is written: ours only where it is faster."""
        return self.pair if self.improved else (self.default, self.default)


def candidates(depth: int, tokens_block: int = 16) -> list[Config]:
    """Block sizes worth trying for a projection that sums over `depth`, without those that cannot fit."""
    found = []
    widths = (16, 32, 64, 128, 256)
    for width, deep, warps, stages in itertools.product(widths, (64, 128, 256), (4, 8), (2, 3, 4, 5)):
        steps = -(-depth // deep)
        needed = stages * _BYTES * deep * (tokens_block + width)
        if needed > _SHARED_MEMORY or stages > max(2, steps + 1):
            continue
        found.append(_config(tokens_block, width, deep, 1, warps, stages))
    return found


def tune(
    bench: Bench,
    shape: Shape,
    sizes: Sequence[int] = SIZES,
    *,
    budget_s: float = BUDGET_S,
    seed: int = 0,
    clock: Callable[[], float] = time.monotonic,
    progress: Callable[[str], None] | None = None,
) -> list[Tuned]:
    """The best pair of block sizes for each number of tokens, found within `budget_s` seconds.

    The down projection comes first, as its sum is the shorter one and SGLang's choice fits it worst; each
    gets half of the time. A candidate is compiled once and timed for all sizes. Raises InputError where not
    even SGLang's own choice runs.
    """
    start = clock()
    defaults = {size: bench.default(size) for size in sizes}
    best: dict[int, Pair] = {size: (defaults[size], defaults[size]) for size in sizes}
    least: dict[int, float] = {size: _needed(bench.time_us(size, best[size]), size) for size in sizes}
    tried = 0
    for part, (name, depth) in enumerate((("down", shape.width), ("up", shape.hidden))):
        queue = candidates(depth)
        random.Random(seed + part).shuffle(queue)  # noqa: S311 - the order in which time runs out
        for number, config in enumerate(queue):
            if clock() - start > budget_s * (part + 1) / 2:
                break
            if progress is not None:
                progress(f"{name} projection, {number + 1} of {len(queue)} candidates")
            tried += 1
            for size in sizes:
                # Both projections share one sorting of tokens, and so one block of them.
                up, down = best[size]
                pair = (
                    ({**up, **_rows(config)}, config)
                    if name == "down"
                    else (config, {**down, **_rows(config)})
                )
                took = bench.time_us(size, pair)
                if took is not None and took < least[size]:
                    least[size], best[size] = took, pair
    return [_settled(bench, size, defaults[size], best[size], tried) for size in sizes]


def write_configs(
    folder: Path, names: tuple[str, str], version: str, tuned: Iterable[Tuned], guards: Mapping[int, Config]
) -> tuple[Path, Path]:
    """Write the files of both projections where SGLang looks with SGLANG_MOE_CONFIG_DIR=`folder`.

    `guards` are sizes that keep SGLang's choice: without them a prefill would take the nearest tuned size.
    Raises OSError.
    """
    place = folder / "configs" / f"triton_{version.replace('.', '_')}"
    place.mkdir(parents=True, exist_ok=True)
    kept = {each.size: each.kept for each in tuned}
    pairs = {size: (config, config) for size, config in guards.items() if size not in kept} | kept
    paths = []
    for part, name in enumerate(names):
        table = {str(size): pairs[size][part] for size in sorted(pairs)}
        path = place / name
        temporary = path.with_name(f".{name}.tmp")
        temporary.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
        paths.append(path)
    return paths[0], paths[1]


def guard_sizes(experts: int) -> tuple[int, ...]:
    """Numbers of tokens that keep SGLang's choice, which changes where tokens outnumber experts."""
    return (16, 64, experts, experts + 1, 8192)


class SglangBench:
    """Times SGLang's `fused_experts` on the GPU of this process, with random weights of a shape.

    Raises InputError where there is no GPU or no SGLang. Use as a context manager.
    """

    def __init__(self, shape: Shape, *, fused_swiglu: bool = True, calls: int = 16, replays: int = 7) -> None:
        self.shape, self.fused_swiglu, self.calls, self.replays = shape, fused_swiglu, calls, replays
        self._pair: Pair | None = None
        self._wanted: dict[int, object] = {}
        self._routes: dict[int, list[object]] = {}

    def __enter__(self) -> SglangBench:
        try:
            import torch
            from sglang.srt.layers.moe.moe_runner.base import MoeRunnerConfig
            from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe_triton_config
            from sglang.srt.runtime_context import get_context
        except ImportError as error:
            raise InputError(f"SGLang is needed to tune its kernels: {error}") from None
        if not torch.cuda.is_available():
            raise InputError("tuning needs a GPU, and torch sees none")

        self._torch, self._configs = torch, fused_moe_triton_config
        self.triton = str(fused_moe_triton_config.triton.__version__)  # of which SGLang names its folder
        self.gpu = str(torch.cuda.get_device_name())
        # A function of the package hides the module, hence not by `from ... import`.
        package = fused_moe_triton_config.__name__.rpartition(".")[0]
        self._module = cast("Any", import_module(f"{package}.fused_moe"))
        self._override = get_context().override_server_args()
        self._override.install()
        self._chosen = self._module.try_get_optimal_moe_config
        self._module.try_get_optimal_moe_config = self._choose
        shape = self.shape
        self._runner = MoeRunnerConfig(
            num_experts=shape.experts,
            num_local_experts=shape.experts,
            inplace=True,
            routed_scaling_factor=1.0,
        )
        torch.manual_seed(0)
        options = {"device": "cuda", "dtype": torch.bfloat16}
        self._up = torch.randn(shape.experts, 2 * shape.width, shape.hidden, **options).mul_(0.02)
        self._down = torch.randn(shape.experts, shape.hidden, shape.width, **options).mul_(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        self._module.try_get_optimal_moe_config = self._chosen
        self._override.restore()

    def names(self) -> tuple[str, str]:
        """The names of the files for up and down projection."""
        name = self._configs.get_config_file_name
        shape = self.shape
        return (name(shape.experts, shape.width, None), name(shape.experts, shape.width, None, down_moe=True))

    def default(self, size: int) -> Config:
        shape = self.shape
        chosen = self._configs.get_default_config(
            size, shape.experts, shape.width, shape.hidden, shape.choices, None, False
        )
        return dict(chosen)

    def time_us(self, size: int, pair: Pair) -> float | None:
        torch = self._torch
        self._pair = pair
        routes = self._routes.setdefault(size, [self._route(size, i) for i in range(self.calls)])
        try:
            if not self._computes_the_same(size, routes[0]):
                return None
            hidden = torch.randn(size, self.shape.hidden, device="cuda", dtype=torch.bfloat16)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for route in routes:
                    self._call(hidden, route)
            return self._median_us(graph) / self.calls
        except Exception:  # noqa: BLE001  # out of resources, a compiler's failure: no candidate
            torch.cuda.synchronize()
            return None

    def _median_us(self, graph: object) -> float:
        torch = self._torch
        took = []
        for number in range(self.replays + 1):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()  # type: ignore[attr-defined]
            end.record()
            end.synchronize()
            if number:  # the first one warms up
                took.append(start.elapsed_time(end) * 1000)
        return float(sorted(took)[len(took) // 2])

    def _computes_the_same(self, size: int, route: object) -> bool:
        """Whether the result is that of SGLang's own choice, which is asked first; this also compiles."""
        torch = self._torch
        hidden = torch.randn(
            size,
            self.shape.hidden,
            device="cuda",
            dtype=torch.bfloat16,
            generator=torch.Generator("cuda").manual_seed(size),
        )
        self._call(hidden, route)
        torch.cuda.synchronize()
        wanted = self._wanted.setdefault(size, hidden.clone())
        return bool(torch.allclose(hidden.float(), wanted.float(), rtol=0.05, atol=0.004))  # type: ignore[attr-defined]

    def _call(self, hidden: object, route: object) -> None:
        self._module.fused_experts(
            hidden, self._up, self._down, route, self._runner, fuse_swiglu_interleaved=self.fused_swiglu
        )

    def _route(self, size: int, number: int) -> object:
        """Even weights for random routed experts of each token, and for the shared one, which is the last."""
        torch = self._torch
        generator = torch.Generator("cuda").manual_seed(1000 * size + number)
        routed = self.shape.choices - 1
        scores = torch.rand(size, self.shape.experts - 1, device="cuda", generator=generator)
        chosen = scores.topk(routed, dim=-1).indices
        shared = torch.full((size, 1), self.shape.experts - 1, device="cuda")
        ids = torch.cat((chosen, shared), dim=1).to(torch.int32)
        weights = torch.full(ids.shape, 1 / self.shape.choices, device="cuda", dtype=torch.float32)
        return weights, ids, scores

    def _choose(self, *_args: object, return_down_config: bool = False, **_kwargs: object) -> object:
        if self._pair is None:
            raise RuntimeError("no candidate is being timed")
        up, down = (dict(config) for config in self._pair)  # SGLang changes what it is given
        return (up, (down, up["BLOCK_SIZE_M"])) if return_down_config else up


def report(tuned: Iterable[Tuned]) -> Iterator[str]:
    """A line for each number of tokens, before and after."""
    yield f"{'tokens':>6}  {'before us':>9}  {'after us':>9}  {'gain':>6}"
    for each in tuned:
        gain = 100 * (1 - each.after_us / each.before_us)
        note = "" if each.improved else "  (SGLang's own is kept)"
        yield f"{each.size:>6}  {each.before_us:>9.1f}  {each.after_us:>9.1f}  {gain:>5.1f}%{note}"


def _settled(bench: Bench, size: int, default: Config, pair: Pair, tried: int) -> Tuned:
    """Both once more, in turns, so that a change of clocks meets both."""
    before, after = [], []
    for _ in range(5):
        before.append(_needed(bench.time_us(size, (default, default)), size))
        after.append(_needed(bench.time_us(size, pair), size))
    return Tuned(size, default, pair, sorted(before)[2], sorted(after)[2], tried)


def _needed(took: float | None, size: int) -> float:
    if took is None:
        raise InputError(f"SGLang's experts do not run with {size} tokens here, so nothing can be tuned")
    return took


def _rows(config: Config) -> Config:
    return {"BLOCK_SIZE_M": config["BLOCK_SIZE_M"]}


def _config(rows: int, width: int, deep: int, group: int, warps: int, stages: int) -> Config:
    return {
        "BLOCK_SIZE_M": rows,
        "BLOCK_SIZE_N": width,
        "BLOCK_SIZE_K": deep,
        "GROUP_SIZE_M": group,
        "num_warps": warps,
        "num_stages": stages,
    }
