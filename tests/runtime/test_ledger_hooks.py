"""Hooks bring old paths back, and the position of each optimisation is seen in the running process."""

from __future__ import annotations

import gc
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from latencylab.model.integrity import InputError
from latencylab.runtime import ledger_hooks, ledger_state
from latencylab.runtime.ledger import Ledger
from latencylab.runtime.ledger_hooks import install_hooks, tree_without_locations
from latencylab.runtime.ledger_state import observed_state, unhooked
from latencylab.runtime.session import Session
from latencylab.runtime.settings import Settings
from sglang_stand_ins import SETS, stand_in_modules

LEDGER = Ledger.load()
ENTRIES = list(LEDGER.entries.values())


@pytest.mark.parametrize("hook", SETS)
def test_values_are_set(monkeypatch, hook):
    for name, module in stand_in_modules(hook).items():
        monkeypatch.setitem(sys.modules, name, module)
    name, attribute, _, after = SETS[hook]
    assert install_hooks([hook], lambda *_: pytest.fail("nothing is to be registered")) == ()
    found: Any = sys.modules[name]
    for part in attribute.split("."):
        found = getattr(found, part)
    assert found == after


def test_another_sglang_is_refused(monkeypatch):
    name = SETS["router-library-gemm"][0]
    for path, module in stand_in_modules("router-library-gemm").items():
        monkeypatch.setitem(sys.modules, path, module)
    del sys.modules[name].ROUTER_GATE_MATVEC_MAX_M  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="has no ROUTER_GATE_MATVEC_MAX_M"):
        install_hooks(["router-library-gemm"])


def _registered(name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    install_hooks([name], lambda target, hook, kind: found.__setitem__(target.rpartition(".")[2], hook))
    return found


def test_state_indices_take_the_fallback():
    backend = SimpleNamespace(_fused_state_indices_ok=True)
    assert _registered("unfused-state-indices")["__init__"](None, backend, object()) is None
    assert backend._fused_state_indices_ok is False


def test_pdl_answers_no_and_kept_answers_are_forgotten(monkeypatch):
    kept, other = ModuleType("sglang.kept"), ModuleType("other.kept")
    kept._ENABLE_PDL = other._ENABLE_PDL = True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, kept.__name__, kept)
    monkeypatch.setitem(sys.modules, other.__name__, other)
    assert _registered("no-pdl")["is_arch_support_pdl"](lambda: True) is False
    assert kept._ENABLE_PDL is False  # type: ignore[attr-defined]
    assert other._ENABLE_PDL is True  # type: ignore[attr-defined]


def test_freeze_sets_thresholds_alone():
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    try:
        _registered("no-gc-freeze")["freeze_gc"](lambda *_: gc.freeze(), "Scheduler", [701, 11, 12])
        assert gc.get_threshold() == (701, 11, 12)
        assert gc.get_freeze_count() == frozen
    finally:
        gc.set_threshold(*before)


def test_tree_is_built_without_locations():
    def fused(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return args, kwargs

    args, kwargs = tree_without_locations(fused, 1, 2, req_pool_indices=3, req_to_token=4, with_mrope=False)
    assert (args, kwargs) == ((1, 2), {"with_mrope": False})


def test_virtual_pages_keep_the_fused_kernel():
    given = {"full_v2p": object(), "positions_out": None}
    said = ledger_hooks.unfused_extend_locations(lambda *a, **k: (a, k), 1, 2, 3, 4, 5, 6, **given)
    assert said == ((1, 2, 3, 4, 5, 6), given)


@pytest.mark.parametrize("in_capture", [True, False])
def test_verify_plans_again_after_capture(in_capture):
    class Wrapper:
        def begin_forward(self) -> str:
            return "device"

    def batch(kind: str) -> SimpleNamespace:
        spec = SimpleNamespace(spec_input_type=SimpleNamespace(name=kind))
        return SimpleNamespace(
            batch_size=1, spec_info=spec, forward_mode=SimpleNamespace(is_target_verify=lambda: True)
        )

    hook = _registered("device-dspark-plans")["init_forward_metadata_out_graph"]
    for kind in ("DFLASH_VERIFY", "EAGLE_VERIFY"):
        wrapper = Wrapper()
        wrapper.begin_forward = lambda: "host"  # type: ignore[method-assign]
        backend = SimpleNamespace(prefill_cuda_graph_metadata={1: [wrapper]})
        hook(None, backend, batch(kind), in_capture=in_capture)
        wanted = "device" if in_capture and kind == "DFLASH_VERIFY" else "host"
        assert wrapper.begin_forward() == wanted


def test_unknown_hook_is_refused():
    with pytest.raises(InputError, match="no hook is named nonsense; there are kda-host-lengths"):
        install_hooks(["nonsense"])


# Seen in the process


def test_without_sglang_nothing_fails():
    state = observed_state()
    assert set(state) == set(LEDGER.entries)
    assert all(re.match(r"(on|off|unknown) \(", said) for said in state.values())
    assert state["kda-no-host-lengths"].startswith("unknown (AttributeError")


def _scheduler(**changes: Any) -> SimpleNamespace:
    """As much of a scheduler as is looked at, with everything on."""
    known: dict[str, Any] = {
        "host_lengths": False,
        "fused_indices": True,
        "glue": SimpleNamespace(disabled=False, replays=7, eager=2),
        "chain": print,
        "interleaved": (True, True, False),
        "gate": "torch.bfloat16",
        "fp32": False,
        "extend": SimpleNamespace(),
        "mode": "compact",
        **changes,
    }
    gate = type("BailingMoEGate", (), {"weight": SimpleNamespace(dtype=known["gate"])})()
    experts = [
        SimpleNamespace(quant_method=SimpleNamespace(w13_swiglu_interleaved=is_on))
        for is_on in known["interleaved"]
    ]
    model = SimpleNamespace(
        modules=lambda: [gate, *experts], logits_processor=SimpleNamespace(use_fp32_lm_head=known["fp32"])
    )
    linear = SimpleNamespace(
        _fused_state_indices_ok=known["fused_indices"], _fused_chain_verify_fn=known["chain"]
    )
    runner = SimpleNamespace(
        model=model,
        attn_backend=SimpleNamespace(linear_attn_backend=linear, attn_backend_list=[linear]),
        decode_cuda_graph_runner=SimpleNamespace(_metadata_glue=known["glue"]),
    )
    planner = SimpleNamespace(
        mode_value=known["mode"],
        is_verify_all=False,
        _confidence_head=SimpleNamespace(sts_temperatures=SimpleNamespace(dim=lambda: 1)),
        _budget_planner=SimpleNamespace(),
    )
    draft = SimpleNamespace(
        draft_worker=SimpleNamespace(cuda_graph_runner_for_draft_extend=known["extend"]),
        _verify_planner=planner,
    )
    return SimpleNamespace(
        tp_worker=SimpleNamespace(model_runner=runner),
        draft_worker=draft,
        future_map=SimpleNamespace(needs_cpu_seq_lens=known["host_lengths"]),
    )


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("kda-no-host-lengths", {"host_lengths": True}),
        ("fused-state-indices", {"fused_indices": False}),
        ("metadata-graph", {"glue": None}),
        ("metadata-graph", {"glue": SimpleNamespace(disabled=True)}),
        ("fused-swiglu", {"interleaved": (False, False)}),
        ("fused-kda-verify", {"chain": None}),
        ("bf16-router", {"gate": "torch.float32"}),
        ("bf16-lm-head", {"fp32": True}),
        ("draft-extend-graph", {"extend": None}),
        ("ragged-compact", {"mode": "static"}),
    ],
)
def test_positions_are_seen(name, changes):
    assert observed_state(_scheduler())[name].startswith("on (")
    assert observed_state(_scheduler(**changes))[name].startswith("off (")


def test_what_was_seen_is_told():
    state = observed_state(_scheduler())
    assert state["fused-swiglu"] == "on (2 of 3 layers of experts)"
    assert state["metadata-graph"] == "on (it was replayed)"
    assert "makes no such plan" in state["dspark-host-plans"]


@pytest.mark.parametrize("hook", ["generic-moe-align", "kda-verify-block-32", "router-library-gemm"])
def test_a_value_set_by_a_hook_is_seen(monkeypatch, hook):
    for name, module in stand_in_modules(hook).items():
        monkeypatch.setitem(sys.modules, name, module)
    entry = next(entry for entry in ENTRIES if entry.off.hook == hook)
    assert observed_state()[entry.name].startswith("on (")
    install_hooks([hook])
    assert observed_state()[entry.name].startswith("off (")


def test_only_what_was_frozen_since_the_start_counts(monkeypatch):
    """Python 3.12 starts with frozen objects, and a capture of graphs sets the count to 0."""
    counts = {376: "on (objects were", 375: "off (no objects were", 0: "off (no objects were"}
    monkeypatch.setattr(ledger_state, "_FROZEN_AT_START", 375)
    for count, said in counts.items():
        monkeypatch.setattr(gc, "get_freeze_count", lambda count=count: count)
        assert observed_state()["gc-freeze"].startswith(said)


@pytest.mark.parametrize(
    ("backend", "made", "unavailable", "said"),
    [
        (None, (), False, "off (backend None)"),
        ("auto", (True, True), False, "on (workspace of trtllm)"),
        ("auto", (True, False), True, "off (backend auto has no workspace, see the server's log)"),
        ("auto", (), False, "off (backend auto has no workspace, see the server's log)"),
        ("cutedsl", (), False, "unknown (cutedsl has another workspace)"),
    ],
)
def test_fused_all_reduce_needs_its_workspace(monkeypatch, backend, made, unavailable, said):
    names = ("flashinfer_fusion_attn_tp_workspace", "flashinfer_fusion_moe_tp_workspace")
    managers = {
        name: SimpleNamespace(initialized=is_made, backend="trtllm" if is_made else None)
        for name, is_made in zip(names, made, strict=False)
    }
    _place(
        monkeypatch,
        "sglang.srt.runtime_context",
        get_exec=lambda: SimpleNamespace(comm=SimpleNamespace(flashinfer_allreduce_fusion_backend=backend)),
        get_resources=lambda: SimpleNamespace(buffers={"other": object(), **managers}),
    )
    _place(
        monkeypatch,
        "sglang.srt.layers.flashinfer_comm_fusion",
        is_flashinfer_allreduce_unavailable=lambda: unavailable,
    )
    assert observed_state()["allreduce-fusion"] == said


# With SGLang's own registry


@pytest.fixture
def registry(sglang_wheel, monkeypatch) -> ModuleType:
    """SGLang's hook registry, which needs nothing else of SGLang, under its own name."""
    name = "sglang.srt.plugins.hook_registry"
    for parent in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(sglang_wheel("sglang/srt/plugins/hook_registry.py"), name, "exec"), vars(module))
    return module


def _place(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> ModuleType:
    """A module under a dotted name, reachable as an attribute of its parents too."""
    parts = name.split(".")
    for cut in range(1, len(parts) + 1):
        path = ".".join(parts[:cut])
        if path not in sys.modules:
            monkeypatch.setitem(sys.modules, path, ModuleType(path))
        module = sys.modules[path]
        module.__path__ = []
        if cut > 1:
            monkeypatch.setattr(
                sys.modules[".".join(parts[: cut - 1])], parts[cut - 1], module, raising=False
            )
    module = sys.modules[name]
    vars(module).update(content)
    return module


def test_pdl_is_off_for_those_who_imported_it_too(registry, monkeypatch):
    arch = _place(monkeypatch, "sglang.kernels.jit.utils.arch", is_arch_support_pdl=lambda: True)
    user = _place(monkeypatch, "sglang.kernels.user", is_arch_support_pdl=arch.is_arch_support_pdl)
    assert observed_state()["pdl"].startswith("on (")
    installed = install_hooks(["no-pdl"])
    assert unhooked(installed) == ["sglang.kernels.jit.utils.arch.is_arch_support_pdl"]
    registry.HookRegistry.apply_hooks()
    assert unhooked(installed) == []
    assert user.is_arch_support_pdl() is False
    assert observed_state()["pdl"].startswith("off (")


def test_subclasses_take_the_fallback(registry, monkeypatch):
    class MambaAttnBackendBase:
        def __init__(self) -> None:
            self._fused_state_indices_ok = True

    class Kda(MambaAttnBackendBase):
        def __init__(self) -> None:
            super().__init__()
            self.later = self._fused_state_indices_ok

    name = "sglang.srt.layers.attention.hybrid_linear_attn_backend"
    _place(monkeypatch, name, MambaAttnBackendBase=MambaAttnBackendBase)
    assert Kda().later is True
    installed = install_hooks(["unfused-state-indices"])
    registry.HookRegistry.apply_hooks()
    assert unhooked(installed) == []
    assert Kda().later is False


def test_cache_locations_are_gathered_apart(registry, monkeypatch):
    called = []

    class Lengths(int):
        """A tensor, as far as the addition goes."""

    def general(**given: Any) -> str:
        called.append(given)
        return "locations"

    locations = _place(
        monkeypatch,
        "sglang.kernels.ops.speculative.cache_locs",
        assign_extend_cache_locs_uniform_func=lambda **_given: "fused",
        assign_extend_cache_locs_func=general,
    )
    _place(monkeypatch, "sglang.kernels.ops.speculative.eagle", build_chain_tree=lambda *a, **k: (a, k))
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert observed_state()["fused-cache-locations"].startswith("on (")
    installed = install_hooks(["unfused-cache-locations"])
    registry.HookRegistry.apply_hooks()
    assert unhooked(installed) == []
    given = {
        "req_pool_indices": 1,
        "req_to_token": 2,
        "start_offset": Lengths(8192),
        "batch_size": 1,
        "draft_token_num": 6,
        "device": "cuda",
    }
    assert locations.assign_extend_cache_locs_uniform_func(**given, page_size=1) == "locations"
    assert called == [{**given, "end_offset": 8198}]
    assert observed_state()["fused-cache-locations"].startswith("off (")


def test_hooks_reach_the_scheduler_by_their_variable():
    env = {"LATENCYLAB_DIR": "/x", "LATENCYLAB_HOOKS": "no-pdl, no-gc-freeze,no-pdl"}
    settings = Settings.from_env(env)
    assert settings.hooks == ("no-pdl", "no-gc-freeze")
    assert settings.wanted
    assert Settings.from_env(settings.to_env()) == settings
    with pytest.raises(InputError, match="no hook is named turbo"):
        Settings.from_env({**env, "LATENCYLAB_HOOKS": "turbo"})
    with pytest.raises(InputError, match="LATENCYLAB_DIR: not set"):
        Settings.from_env({"LATENCYLAB_HOOKS": "no-pdl"})


def test_a_session_refuses_what_it_cannot_restore(tmp_path):
    session = Session(Settings(folder=tmp_path, hooks=("router-library-gemm",)))
    with pytest.raises(SystemExit, match=r"refused to start: sglang\.srt\.models\.bailing_moe_v3 cannot be"):
        session._restore()
