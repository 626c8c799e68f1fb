"""Hooks that bring an old path of SGLang back where it has no switch for it; the ledger names them.

One is for stand-ins and no entry's: it makes random weights large enough to matter.

The plugin installs them in a scheduler process before the model is built: values are set at once, functions
are registered with SGLang's registry, which the plugin then has applied. All of it is in place before
anything is captured.
"""

from __future__ import annotations

import gc
import sys
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from latencylab.model.integrity import InputError

# (dotted target, hook, kind of hook: "after" or "around"), as SGLang's HookRegistry takes them.
Register = Callable[[str, Callable[..., Any], str], None]
# A function of SGLang and what was put around it.
Installed = tuple[str, Callable[..., Any]]

LIVELY_WEIGHTS = "lively-weights"

_MOE_ALIGN = "sglang.srt.layers.moe.moe_runner.triton_utils.moe_align_block_size"
_KDA_VERIFY = "sglang.kernels.ops.attention.linear.fused_kda_conv_recurrent_verify"
_CACHE_LOCATIONS = "sglang.kernels.ops.speculative.cache_locs"
_PDL = ("sglang.kernels.jit.utils.arch.is_arch_support_pdl",)
_PDL_OF_LIBRARIES = ("sgl_kernel.utils.is_arch_support_pdl", "flashinfer.utils.device_support_pdl")
_PDL_KEPT = "_ENABLE_PDL"  # what modules call the answer they keep from their import


@dataclass(frozen=True, slots=True)
class Hook:
    """A hook by name, what it does, and what it registers."""

    name: str
    does: str
    install: Callable[[Register], None]


def install_hooks(names: Iterable[str], register: Register | None = None) -> tuple[Installed, ...]:
    """Install hooks by name; functions are only registered, with SGLang's registry where not given.

    Gives what was registered. Raises InputError for unknown names, and where SGLang lacks what a hook sets.
    """
    installed: list[Installed] = []

    def note(target: str, hook: Callable[..., Any], kind: str) -> None:
        (register or _register)(target, hook, kind)
        installed.append((target, hook))

    for name in parse_hooks(",".join(names)):
        HOOKS[name].install(note)
    return tuple(installed)


def parse_hooks(text: str) -> tuple[str, ...]:
    """Names of hooks from a comma list. Raises InputError."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in names:
        if name not in HOOKS:
            raise InputError(f"no hook is named {name}; there are {', '.join(HOOKS)}")
    return names


def _register(target: str, hook: Callable[..., Any], kind: str) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(target, hook, HookType(kind))


def _set(module: str, owner: str | None, name: str, value: object) -> None:
    """Set an attribute of a module, or of a class in it. Raises InputError where there is none.

    The module is taken from sys.modules, as a function of the same name can hide it in its package.
    """
    try:
        import_module(module)
        place: Any = sys.modules[module] if owner is None else getattr(sys.modules[module], owner)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{module} cannot be changed: {error}") from None
    if not hasattr(place, name):
        raise InputError(f"{module} has no {name}: this is not the SGLang that the hook was made for")
    setattr(place, name, value)


def _kda_host_lengths(_register: Register) -> None:
    module = "sglang.srt.layers.attention.linear.kda_backend"
    _set(module, "KDAAttnBackend", "needs_cpu_seq_lens", True)


def _generic_moe_align(_register: Register) -> None:
    _set(_MOE_ALIGN, None, "SMALL_NUMEL_LIMIT", 0)


def _kda_verify_block_32(_register: Register) -> None:
    _set(_KDA_VERIFY, None, "KDA_VERIFY_BLOCK_V", 32)


def _router_library_gemm(_register: Register) -> None:
    _set("sglang.srt.models.bailing_moe_v3", None, "ROUTER_GATE_MATVEC_MAX_M", 0)


def _unfused_state_indices(register: Register) -> None:
    def after(_result: None, backend: Any, *_args: Any, **_kwargs: Any) -> None:
        backend._fused_state_indices_ok = False

    module = "sglang.srt.layers.attention.hybrid_linear_attn_backend"
    register(f"{module}.MambaAttnBackendBase.__init__", after, "after")


def _unfused_cache_locations(register: Register) -> None:
    register(f"{_CACHE_LOCATIONS}.assign_extend_cache_locs_uniform_func", unfused_extend_locations, "around")
    register("sglang.kernels.ops.speculative.eagle.build_chain_tree", tree_without_locations, "around")


def unfused_extend_locations(
    fused: Callable[..., Any],
    req_pool_indices: Any,
    req_to_token: Any,
    start_offset: Any,
    batch_size: int,
    draft_token_num: int,
    device: Any,
    **extras: Any,
) -> Any:
    """Slots of the tokens to verify by the general kernel, which takes the end of each row as a tensor.

    Tables of a pool with virtual pages have no unfused form, so they keep the fused one.
    """
    if extras.get("full_v2p") is not None:
        return fused(
            req_pool_indices, req_to_token, start_offset, batch_size, draft_token_num, device, **extras
        )
    import torch

    positions, anchor = extras.get("positions_out"), extras.get("anchor_out")
    if positions is not None:
        columns = torch.arange(draft_token_num, device=start_offset.device)
        positions.copy_(start_offset.to(torch.int64).unsqueeze(1) + columns)
    if anchor is not None:
        anchor[:, 0].copy_(extras["anchor_src"].view(-1))
    locations: Any = sys.modules[_CACHE_LOCATIONS]
    return locations.assign_extend_cache_locs_func(
        req_pool_indices=req_pool_indices,
        req_to_token=req_to_token,
        start_offset=start_offset,
        end_offset=start_offset + draft_token_num,
        batch_size=batch_size,
        draft_token_num=draft_token_num,
        device=device,
    )


def tree_without_locations(fused: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The draft tree without the slots, which verify then looks up by itself."""
    kwargs.pop("req_pool_indices", None)
    kwargs.pop("req_to_token", None)
    return fused(*args, **kwargs)


def _no_pdl(register: Register) -> None:
    def no(_original: Callable[..., bool], *_args: Any, **_kwargs: Any) -> bool:
        return False

    targets = [t for t in _PDL_OF_LIBRARIES if find_spec(t.partition(".")[0]) is not None]
    for target in (*_PDL, *targets):
        register(target, no, "around")

    for name, module in list(sys.modules.items()):
        if name.startswith("sglang.") and getattr(module, _PDL_KEPT, False) is True:
            setattr(module, _PDL_KEPT, False)


def _no_gc_freeze(register: Register) -> None:
    def thresholds_alone(
        _original: Callable[..., None], _context: str, gc_threshold: Any = None, **_kwargs: Any
    ) -> None:
        if gc_threshold is not None:
            gc.set_threshold(*gc_threshold)

    register("sglang.srt.utils.common.freeze_gc", thresholds_alone, "around")


def _device_dspark_plans(register: Register) -> None:
    def no_host_plan(_original: Callable[..., Any], *_args: Any, **_kwargs: Any) -> None:
        return None

    def plan_again(
        _result: Any, backend: Any, forward_batch: Any, in_capture: bool = False, **_kwargs: Any
    ) -> None:
        """Give the wrappers of a DFlash verify, which capture has just changed, their own plan back."""
        spec = forward_batch.spec_info
        kind = getattr(getattr(spec, "spec_input_type", None), "name", None)
        if not in_capture or kind != "DFLASH_VERIFY" or not forward_batch.forward_mode.is_target_verify():
            return
        for wrapper in backend.prefill_cuda_graph_metadata[forward_batch.batch_size]:
            vars(wrapper).pop("begin_forward", None)

    place = "sglang.srt.layers.attention"
    register(
        f"{place}.flashinfer_mla_backend.FlashInferMLAAttnBackend._build_fast_verify_plan_kwargs",
        no_host_plan,
        "around",
    )
    register(
        f"{place}.flashinfer_backend.FlashInferAttnBackend.init_forward_metadata_out_graph",
        plan_again,
        "after",
    )


def _lively_weights(register: Register) -> None:
    def around(original: Callable[..., None], model: Any, *args: Any, **kwargs: Any) -> None:
        original(model, *args, **kwargs)
        enliven(model)

    register("sglang.srt.model_loader.weight_utils.initialize_dummy_weights", around, "around")


def enliven(model: Any) -> None:
    """Draw the weights of a `torch.nn.Module` again, in place, so that every layer shapes what comes out.

    SGLang's own are within 0.001 of zero, norms included, and alike in layers of one shape. A weight of shape
    (..., inputs) gets the standard deviation inputs ** -0.5, which is 0.02 for a width of 2,560 and keeps the
    scale of what passes through it; a norm's becomes 1. The seed is the weight's name, so each has its own
    and all processes the same. All are drawn as bf16, as checkpoints have them, so that a weight has the same
    values where it is kept as fp32. What is no weight (biases, scales, KDA's A_log and dt_bias) stays, and so
    does what has fewer than 16 bits.
    """
    import torch

    for name, parameter in model.named_parameters():
        values = parameter.data
        if not values.is_floating_point() or values.element_size() < 2:
            continue
        if values.dim() > 1 and name.endswith("weight"):
            generator = torch.Generator(device=values.device)
            generator.manual_seed(zlib.crc32(name.encode()))
            drawn = torch.empty_like(values, dtype=torch.bfloat16)
            values.copy_(drawn.normal_(0.0, values.shape[-1] ** -0.5, generator=generator))
        elif values.dim() == 1 and name.endswith("norm.weight"):
            values.fill_(1.0)


HOOKS: dict[str, Hook] = {
    hook.name: hook
    for hook in (
        Hook("kda-host-lengths", "KDAAttnBackend.needs_cpu_seq_lens is True", _kda_host_lengths),
        Hook(
            "unfused-cache-locations",
            "slots are gathered after a separate addition",
            _unfused_cache_locations,
        ),
        Hook(
            "unfused-state-indices",
            "the chain of single operations, SGLang's fallback",
            _unfused_state_indices,
        ),
        Hook("no-pdl", "is_arch_support_pdl answers False", _no_pdl),
        Hook("generic-moe-align", "SMALL_NUMEL_LIMIT is 0", _generic_moe_align),
        Hook("kda-verify-block-32", "KDA_VERIFY_BLOCK_V is 32", _kda_verify_block_32),
        Hook("router-library-gemm", "ROUTER_GATE_MATVEC_MAX_M is 0", _router_library_gemm),
        Hook("no-gc-freeze", "freeze_gc sets thresholds alone", _no_gc_freeze),
        Hook("device-dspark-plans", "FlashInfer plans DSpark's verify from the device", _device_dspark_plans),
        Hook(LIVELY_WEIGHTS, "random weights are as large as those of a fresh model", _lively_weights),
    )
}
