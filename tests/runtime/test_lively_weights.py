"""Random weights are drawn again by name, in place, where SGLang has made its own and nothing else yet."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from latencylab.runtime.ledger_hooks import LIVELY_WEIGHTS, enliven, install_hooks

TARGET = "sglang.srt.model_loader.weight_utils.initialize_dummy_weights"
MODELS = ("bailing_moe_v3", "bailing_moe_nextn", "kimi_linear", "deepseek_v2", "dspark", "dflash")


@dataclass
class Values:
    """A tensor, as far as it is filled: what was done with it is in `log`."""

    shape: tuple[int, ...]
    size: int = 2
    floating: bool = True
    device: str = "cuda:1"
    dtype: str = ""
    log: list[Any] = field(default_factory=list)

    def dim(self) -> int:
        return len(self.shape)

    def element_size(self) -> int:
        return self.size

    def is_floating_point(self) -> bool:
        return self.floating

    def normal_(self, mean: float, std: float, *, generator: Any) -> Values:
        assert (mean, generator.device) == (0.0, self.device)
        self.log.append((round(std, 4), generator.seed, self.dtype))
        return self

    def copy_(self, other: Values) -> None:
        assert (self.shape, self.device) == (other.shape, other.device)
        self.log += other.log

    def fill_(self, value: float) -> None:
        self.log.append(value)


def _empty_like(values: Values, *, dtype: str) -> Values:
    return Values(values.shape, device=values.device, dtype=dtype)


class Generator:
    def __init__(self, device: str) -> None:
        self.device = device

    def manual_seed(self, seed: int) -> None:
        self.seed = seed


class Model(dict[str, Values]):
    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        yield from ((name, SimpleNamespace(data=values)) for name, values in self.items())


@pytest.fixture(autouse=True)
def _torch(monkeypatch):
    torch = ModuleType("torch")
    torch.Generator, torch.bfloat16, torch.empty_like = Generator, "bfloat16", _empty_like  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)


def _filled(name: str, *shape: int, **more: Any) -> list[Any]:
    model = Model({name: Values(shape, **more)})
    enliven(model)
    return model[name].log


@pytest.mark.parametrize(
    ("name", "shape", "std"),
    [
        ("model.word_embeddings.weight", (39296, 2560), 0.0198),
        ("model.layers.3.mlp.gate.weight", (512, 2560), 0.0198),
        ("model.layers.3.mlp.experts.w13_weight", (512, 384, 2560), 0.0198),
        ("model.layers.3.mlp.experts.w2_weight", (512, 2560, 192), 0.0722),
        ("model.layers.0.attention.qkv_conv1d.weight", (3072, 1, 4), 0.5),
        ("markov_head.markov_w2.weight", (39296, 256), 0.0625),
    ],
)
def test_a_weight_keeps_the_scale_of_its_input(name, shape, std):
    ((drawn, _, _),) = _filled(name, *shape)
    assert drawn == std


@pytest.mark.parametrize(
    "name", ["model.norm.weight", "layers.1.q_norm.weight", "model.final_layernorm.weight"]
)
def test_a_norm_scales_by_one(name):
    assert _filled(name, 128) == [1.0]


@pytest.mark.parametrize(
    ("name", "shape", "more"),
    [
        ("model.layers.0.attention.A_log", (1, 1, 8, 1), {"size": 4}),
        ("model.layers.0.attention.dt_bias", (1024,), {"size": 4}),
        ("model.layers.3.mlp.gate.expert_bias", (512,), {"size": 4}),
        ("confidence_head.proj.bias", (1,), {"size": 4}),
        ("model.layers.3.mlp.experts.w13_weight_bias", (512, 384), {"size": 4}),
        ("model.layers.3.mlp.down_proj.weight_scale_inv", (20, 2), {"size": 4}),
        ("model.layers.3.mlp.down_proj.weight", (2560, 192), {"size": 1}),
        ("model.layers.3.mlp.down_proj.qweight", (2560, 24), {"size": 4, "floating": False}),
        ("rotary.weight", (64,), {}),
    ],
)
def test_the_rest_stays(name, shape, more):
    assert _filled(name, *shape, **more) == []


@pytest.mark.parametrize("size", [2, 4, 8])
def test_it_is_drawn_as_bf16_whatever_holds_it(size):
    assert _filled("model.layers.3.mlp.gate.weight", 512, 2560, size=size) == [
        (0.0198, 3831531141, "bfloat16")
    ]


def test_each_has_its_own_seed_and_every_process_the_same():
    names = [f"model.layers.{i}.mlp.{part}_proj.weight" for i in range(42) for part in ("gate_up", "down")]
    seeds = [_filled(name, 8, 8)[0][1] for name in names]
    assert len(set(seeds)) == len(names)
    assert seeds == [_filled(name, 8, 8)[0][1] for name in names]
    assert seeds[0] == 2297759320  # as in another process


def test_sglangs_own_come_first(monkeypatch):
    order: list[str] = []
    found: dict[str, tuple[Callable[..., Any], str]] = {}
    install_hooks([LIVELY_WEIGHTS], lambda target, hook, kind: found.__setitem__(target, (hook, kind)))
    ((hook, kind),) = found.values()
    assert (*found, kind) == (TARGET, "around")
    monkeypatch.setattr(
        "latencylab.runtime.ledger_hooks.enliven", lambda model: order.append(f"ours, {model}")
    )
    assert hook(lambda model, low: order.append(f"theirs, {model}, {low}"), "model", low=-1) is None
    assert order == ["theirs, model, -1", "ours, model"]


# Against SGLang's own sources


def _attributes(text: str, made_by: str) -> set[str]:
    """The attributes that are assigned a call of a function whose name matches."""
    return {
        node.targets[0].attr
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Attribute)
        and isinstance(node.value, ast.Call)
        and re.search(made_by, ast.unparse(node.value.func))
    }


def test_dummies_are_drawn_before_anything_is_made_of_them(sglang_wheel):
    tree = ast.parse(sglang_wheel("sglang/srt/model_loader/loader.py"))
    loader = next(n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == "DummyModelLoader")
    calls = {ast.unparse(n.func): n for n in ast.walk(loader) if isinstance(n, ast.Call)}
    order = ["_initialize_model", "initialize_dummy_weights", "post_load_weights"]
    order.append("quant_method.process_weights_after_loading")
    lines = [calls[name].lineno for name in order]
    assert lines == sorted(lines)
    assert ast.unparse(calls["initialize_dummy_weights"]) == "initialize_dummy_weights(model)"


def test_norms_are_named_so(sglang_wheel):
    norms = {
        name: _attributes(sglang_wheel(f"sglang/srt/models/{name}.py"), r"(?i)norm(gated|_cls)?$")
        for name in MODELS
    }
    assert {"input_layernorm", "post_attention_layernorm", "norm"} <= norms["bailing_moe_v3"]
    assert {"enorm", "hnorm", "final_layernorm"} <= norms["bailing_moe_nextn"]
    assert "o_norm" in norms["kimi_linear"]
    assert "kv_a_layernorm" in norms["deepseek_v2"]
    assert {"q_norm", "k_norm", "hidden_norm"} <= norms["dflash"]
    for name in set().union(*norms.values()):
        assert _filled(f"model.{name}.weight", 64) == [1.0], name


def test_parameters_that_are_no_weights_are_named_so(sglang_wheel):
    made = {
        name: _attributes(sglang_wheel(f"sglang/srt/models/{name}.py"), r"\bParameter$") for name in MODELS
    }
    assert made["bailing_moe_v3"] == {"weight", "expert_bias"}  # of the router
    assert {"A_log", "dt_bias"} <= made["kimi_linear"]
    assert made["bailing_moe_nextn"] == made["dspark"] == set()
    for name in set().union(*made.values()) - {"weight"}:
        assert _filled(f"model.layers.0.{name}", 1, 1, 8, 1) == [], name


def test_what_computes_is_named_weight(sglang_wheel):
    conv = _attributes(sglang_wheel("sglang/srt/models/kimi_linear.py"), "MergedColumnParallelLinear")
    assert {"qkv_conv1d", "fused_qkvbfg_proj"} <= conv
    markov = _attributes(sglang_wheel("sglang/srt/models/dspark.py"), r"nn\.(Embedding|Linear)")
    assert {"markov_w1", "markov_w2", "proj"} <= markov
    experts = sglang_wheel("sglang/srt/layers/quantization/unquant.py")
    for name in ("w13_weight", "w2_weight"):
        assert f'register_parameter("{name}"' in experts
