"""Which position each optimisation is in, as seen in the running scheduler and not as it was asked for.

Every answer begins with on, off or unknown and says in brackets what was looked at. It has no count that
grows while a server runs, so that two runs alike say the same. Made for SGLang 0.5.23.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from latencylab.runtime.hooks import runs_through
from latencylab.runtime.ledger import Ledger
from latencylab.runtime.ledger_hooks import Installed, unfused_extend_locations

Observer = Callable[[Any], str]

_KERNELS = "sglang.kernels.ops"
_ATTENTION = "sglang.srt.layers.attention"
_MOE = "sglang.srt.layers.moe.moe_runner.triton_utils"
_NODES = Path("/sys/devices/system/node")
# Of a process that has frozen nothing itself: Python 3.12 starts with some objects frozen.
_FROZEN_AT_START = gc.get_freeze_count()


def observed_state(scheduler: Any = None) -> dict[str, str]:
    """The position of every entry of the ledger on this rank, and how it was seen.

    To be called in the scheduler's process; without the scheduler, what only its objects tell is unknown.
    Never raises: what cannot be looked at is unknown.
    """
    try:
        names = tuple(Ledger.load().entries)
    except Exception as error:  # noqa: BLE001  # a broken installation must not stop a server
        return {"ledger": f"unknown ({type(error).__name__}: {error})"}
    return {name: _observe(name, scheduler) for name in names}


def unhooked(installed: Iterable[Installed]) -> list[str]:
    """The functions that do not run through the hook that was registered for them."""
    return [target for target, hook in installed if not _is_hooked(target, hook)]


def _is_hooked(target: str, hook: Callable[..., Any]) -> bool:
    owner, _, name = target.rpartition(".")
    try:
        return runs_through(getattr(resolve_name(owner), name), hook)
    except (ImportError, AttributeError, ValueError):
        return False


def _observe(name: str, scheduler: Any) -> str:
    observer = OBSERVERS.get(name)
    if observer is None:
        return "unknown (nothing looks at it)"
    try:
        return observer(scheduler)
    except Exception as error:  # noqa: BLE001  # an object of another SGLang may lack anything
        return f"unknown ({type(error).__name__}: {error})"


def _told(is_on: bool, how: str) -> str:
    return f"{'on' if is_on else 'off'} ({how})"


def _constant(module: str, name: str, is_on: Callable[[int], bool]) -> Observer:
    """A module's value, where the module was imported at all."""

    def observe(_scheduler: Any) -> str:
        if module not in sys.modules:
            return f"unknown ({module.rpartition('.')[2]} is not imported)"
        value = getattr(sys.modules[module], name)
        return _told(is_on(value), f"{name} is {value}")

    return observe


def _runner(scheduler: Any) -> Any:
    return scheduler.tp_worker.model_runner


def _linear_backend(scheduler: Any) -> Any:
    return _runner(scheduler).attn_backend.linear_attn_backend


def _host_lengths(scheduler: Any) -> str:
    needed = scheduler.future_map.needs_cpu_seq_lens
    return _told(not needed, f"FutureMap.needs_cpu_seq_lens is {needed}")


def _cache_locations(_scheduler: Any) -> str:
    module = sys.modules[f"{_KERNELS}.speculative.cache_locs"]
    function = module.assign_extend_cache_locs_uniform_func
    is_hooked = runs_through(function, unfused_extend_locations)
    return _told(not is_hooked, "the function is ours" if is_hooked else "the function is SGLang's")


def _state_indices(scheduler: Any) -> str:
    fused = _linear_backend(scheduler)._fused_state_indices_ok
    return _told(bool(fused), f"_fused_state_indices_ok is {fused}")


def _metadata_graph(scheduler: Any) -> str:
    glue = _runner(scheduler).decode_cuda_graph_runner._metadata_glue
    if glue is None:
        return _told(False, "the decode runner has no metadata graph")
    if glue.disabled:
        return _told(False, "capturing it failed, see the server's log")
    return _told(True, "it was replayed" if glue.replays else "not replayed yet")


def _pdl(_scheduler: Any) -> str:
    supported = sys.modules["sglang.kernels.jit.utils.arch"].is_arch_support_pdl()
    return _told(bool(supported), f"is_arch_support_pdl() is {supported}")


def _swiglu(scheduler: Any) -> str:
    methods: list[Any] = [getattr(each, "quant_method", None) for each in _runner(scheduler).model.modules()]
    known = [m.w13_swiglu_interleaved for m in methods if hasattr(m, "w13_swiglu_interleaved")]
    if not known:
        return "unknown (no layer of experts was found)"
    return _told(any(known), f"{sum(known)} of {len(known)} layers of experts")


def _fused_verify(scheduler: Any) -> str:
    function = _linear_backend(scheduler)._fused_chain_verify_fn
    return _told(function is not None, f"_fused_chain_verify_fn is {'set' if function else None}")


def _router(scheduler: Any) -> str:
    gates = [m for m in _runner(scheduler).model.modules() if type(m).__name__ == "BailingMoEGate"]
    dtypes = sorted({str(gate.weight.dtype) for gate in gates})
    if len(dtypes) != 1:
        return f"unknown (the router gates are {', '.join(dtypes) or 'not found'})"
    return _told(dtypes[0] == "torch.bfloat16", f"{len(gates)} router gates of {dtypes[0]}")


def _lm_head(scheduler: Any) -> str:
    wide = _runner(scheduler).model.logits_processor.use_fp32_lm_head
    return _told(not wide, f"use_fp32_lm_head is {wide}")


def _draft_extend(scheduler: Any) -> str:
    worker = getattr(scheduler.draft_worker, "draft_worker", None)
    if worker is None or not hasattr(worker, "cuda_graph_runner_for_draft_extend"):
        return "unknown (there is no draft extend)"
    runner = worker.cuda_graph_runner_for_draft_extend
    return _told(runner is not None, f"its graph runner is {type(runner).__name__}")


def _flashinfer_variable(name: str) -> Observer:
    def observe(scheduler: Any) -> str:
        from sglang.srt.environ import envs

        if other := _other_backend(_draft_and_target(scheduler)):
            return f"unknown ({other} makes no such plan)"
        value = getattr(envs, name).get()
        return _told(bool(value), f"{name} is {value}")

    return observe


def _draft_and_target(scheduler: Any) -> list[str]:
    """The class names of the attention backends that a step uses."""
    worker = scheduler.draft_worker
    backends = [_runner(scheduler).attn_backend]
    backends = list(getattr(worker, "spec_v2_attn_backends", backends))
    parts = [
        part
        for b in backends
        if b is not None
        for part in (b, *(getattr(b, "attn_backend_list", None) or ()))
    ]
    return sorted({type(part).__name__ for part in parts})


def _other_backend(names: Iterable[str]) -> str | None:
    """The backends' names where FlashInfer is not among them."""
    return None if any("FlashInfer" in name for name in names) else ", ".join(names)


def _dspark_plans(scheduler: Any) -> str:
    if other := _other_backend(_draft_and_target(scheduler)):
        return f"unknown ({other} makes no such plan)"
    module = sys.modules[f"{_ATTENTION}.flashinfer_mla_backend"]
    name = getattr(module.FlashInferMLAAttnBackend._build_fast_verify_plan_kwargs, "__wrapped__", None)
    return _told(name is None, "SGLang's function" if name is None else "a function that a hook wraps")


def _ragged(mode: str) -> Observer:
    def observe(scheduler: Any) -> str:
        planner = getattr(scheduler.draft_worker, "_verify_planner", None)
        if planner is None:
            return "unknown (there is no verify planner)"
        # A single temperature of 1 until a calibration is loaded, then one for each drafted token.
        temperatures = getattr(planner._confidence_head, "sts_temperatures", None)
        calibrated = temperatures is not None and temperatures.dim() > 0
        how = f"mode {planner.mode_value}, {'calibrated' if calibrated else 'uncalibrated'} confidence"
        budget = getattr(planner, "_budget_planner", None)
        if budget is not None:
            how += ", all tokens verified" if planner.is_verify_all else f", {type(budget).__name__}"
        return _told(planner.mode_value == mode, how)

    return observe


def _fusion(_scheduler: Any) -> str:
    from sglang.srt.runtime_context import get_exec, get_resources

    backend = get_exec().comm.flashinfer_allreduce_fusion_backend
    if backend is None:
        return _told(False, "backend None")
    if backend == "cutedsl":
        return "unknown (cutedsl has another workspace)"
    module = sys.modules["sglang.srt.layers.flashinfer_comm_fusion"]
    held = get_resources().buffers
    managers = [held[name] for name in held if name.startswith("flashinfer_fusion_")]
    made = sorted({str(manager.backend) for manager in managers if manager.initialized})
    if not made or module.is_flashinfer_allreduce_unavailable():
        return _told(False, f"backend {backend} has no workspace, see the server's log")
    return _told(True, f"workspace of {', '.join(made)}")


def _freeze(_scheduler: Any) -> str:
    is_frozen = gc.get_freeze_count() > _FROZEN_AT_START
    return _told(is_frozen, f"{'' if is_frozen else 'no '}objects were frozen since the start")


def _threshold(_scheduler: Any) -> str:
    threshold = gc.get_threshold()
    wanted = Ledger.load().entries["gc-threshold"].on.arguments["--gc-threshold"]
    return _told(threshold == tuple(map(int, wanted)), f"thresholds {threshold}")


def _cores(text: str) -> set[int]:
    """The cores of a list such as 0-3,8."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _numa(_scheduler: Any) -> str:
    nodes = [_cores(path.read_text()) for path in sorted(_NODES.glob("node*/cpulist"))]
    nodes = [cores for cores in nodes if cores]
    if len(nodes) < 2:
        return f"unknown ({len(nodes)} CPU node)"
    allowed = os.sched_getaffinity(0)
    return _told(
        any(allowed <= cores for cores in nodes), f"{len(allowed)} cores allowed, {len(nodes)} nodes"
    )


def _affinity(_scheduler: Any) -> str:
    from sglang.srt.environ import envs

    asked, allowed, all_cores = (
        envs.SGLANG_SET_CPU_AFFINITY.get(),
        len(os.sched_getaffinity(0)),
        os.cpu_count(),
    )
    return _told(bool(asked) and allowed < (all_cores or 0), f"{allowed} of {all_cores} cores allowed")


def _tuned(scheduler: Any) -> str:
    folder = os.environ.get("SGLANG_MOE_CONFIG_DIR")
    shapes = {tuple(m.w2_weight.shape) for m in _runner(scheduler).model.modules() if hasattr(m, "w2_weight")}
    if len(shapes) != 1:
        return f"unknown ({len(shapes)} shapes of experts)"
    experts, _, width = shapes.pop()
    configs = sys.modules[f"{_MOE}.fused_moe_triton_config"].get_moe_configs(experts, width, None, 0, 0)
    if not configs:
        return _told(False, "SGLang's default is used")
    digest = hashlib.sha256(json.dumps(configs, sort_keys=True).encode()).hexdigest()[:8]
    return _told(bool(folder), f"{len(configs)} sizes for {experts} experts of {width}, {digest}")


OBSERVERS: dict[str, Observer] = {
    "kda-no-host-lengths": _host_lengths,
    "fused-cache-locations": _cache_locations,
    "fused-state-indices": _state_indices,
    "metadata-graph": _metadata_graph,
    "pdl": _pdl,
    "small-moe-align": _constant(
        f"{_MOE}.moe_align_block_size", "SMALL_NUMEL_LIMIT", lambda limit: limit > 0
    ),
    "fused-swiglu": _swiglu,
    "fused-kda-verify": _fused_verify,
    "kda-verify-block": _constant(
        f"{_KERNELS}.attention.linear.fused_kda_conv_recurrent_verify",
        "KDA_VERIFY_BLOCK_V",
        lambda width: width == 4,
    ),
    "bf16-router": _router,
    "router-matvec": _constant(
        "sglang.srt.models.bailing_moe_v3", "ROUTER_GATE_MATVEC_MAX_M", lambda limit: limit > 0
    ),
    "bf16-lm-head": _lm_head,
    "draft-extend-graph": _draft_extend,
    "dspark-host-plans": _dspark_plans,
    "verify-host-plan": _flashinfer_variable("SGLANG_OPT_FLASHINFER_VERIFY_HOST_PLAN"),
    "draft-host-indptr": _flashinfer_variable("SGLANG_OPT_FLASHINFER_DRAFT_HOST_INDPTR"),
    "ragged-compact": _ragged("compact"),
    "ragged-cap-accept": _ragged("cap-accept"),
    "allreduce-fusion": _fusion,
    "gc-freeze": _freeze,
    "gc-threshold": _threshold,
    "numa-bind": _numa,
    "cpu-affinity": _affinity,
    "tuned-moe": _tuned,
}
