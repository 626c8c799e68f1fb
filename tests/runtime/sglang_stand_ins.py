"""Modules with only what a hook sets, under the names they have in SGLang."""

from __future__ import annotations

from types import ModuleType
from typing import Any

# Hook -> module, attribute, value before and after.
SETS = {
    "kda-host-lengths": (
        "sglang.srt.layers.attention.linear.kda_backend",
        "KDAAttnBackend.needs_cpu_seq_lens",
        False,
        True,
    ),
    "generic-moe-align": (
        "sglang.srt.layers.moe.moe_runner.triton_utils.moe_align_block_size",
        "SMALL_NUMEL_LIMIT",
        64,
        0,
    ),
    "kda-verify-block-32": (
        "sglang.kernels.ops.attention.linear.fused_kda_conv_recurrent_verify",
        "KDA_VERIFY_BLOCK_V",
        4,
        32,
    ),
    "router-library-gemm": ("sglang.srt.models.bailing_moe_v3", "ROUTER_GATE_MATVEC_MAX_M", 8, 0),
}


def stand_in_modules(hook: str) -> dict[str, ModuleType]:
    """A module with only what the hook sets, under the name it has in SGLang, with its parents."""
    if hook not in SETS:
        return {}
    name, attribute, before, _ = SETS[hook]
    module = ModuleType(name)
    owner, _, attribute = attribute.rpartition(".")
    place: Any = module
    if owner:
        place = type(owner, (), {})
        setattr(module, owner, place)
    setattr(place, attribute, before)
    parts = name.split(".")
    parents = {".".join(parts[:i]): ModuleType(".".join(parts[:i])) for i in range(1, len(parts))}
    return {**parents, name: module}
