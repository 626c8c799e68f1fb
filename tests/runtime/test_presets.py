"""Presets and switches name what SGLang has."""

from __future__ import annotations

import re
from itertools import chain

import pytest

from latencylab.model.integrity import InputError
from latencylab.runtime.ledger import Ledger
from latencylab.runtime.presets import PRESETS
from latencylab.runtime.sglang_source import Flag, check_arguments, flags_of
from latencylab.runtime.shapes import SHARDED, draft_config, model_config, write_shape

# What one rank of TP4 was seen to run with.
ONE_RANK = {
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 1536,
    "moe_intermediate_size": 192,
    "moe_shared_expert_intermediate_size": 192,
    "vocab_size": 39296,
    "hidden_size": 2560,
    "num_experts": 512,
    "num_experts_per_tok": 8,
    "kv_lora_rank": 512,
    "num_hidden_layers": 42,
}
VOCABULARY_PADDING = 64


@pytest.fixture(scope="module")
def flags(sglang_wheel) -> dict[str, Flag]:
    declared = [
        name
        for name in sglang_wheel.names
        if re.fullmatch(r"sglang/srt/(server_args|arg_groups/fields/\w+)\.py", name)
    ]
    return flags_of(sglang_wheel(name) for name in declared)


def test_flags_read_from_the_sources(flags):
    assert len(flags) > 400
    assert flags["--attention-backend"].arity == "one"
    assert flags["--disable-radix-cache"].arity == "none"
    assert flags["--numa-node"].arity == "many"
    assert flags["--model"].name == "--model-path"
    assert flags["--sampling-backend"].arity == "one"  # registered by hand
    assert flags["--cuda-graph-backend-decode"].arity == "one"
    assert flags["--flashinfer-allreduce-fusion-backend"].choices == ("auto", "trtllm", "mnnvl", "cutedsl")
    assert flags["--no-enable-tf32-matmul"].arity == "none"
    assert "--speculative-boundary-reduction" not in flags  # a field without a flag
    assert "--custom-sigquit-handler" not in flags


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda p: p.name)
def test_preset_arguments_are_known(flags, preset):
    check_arguments(preset.arguments, flags)


def test_variables_are_known(sglang_wheel):
    known = set(re.findall(r"^ +(SGLANG_\w+) = Env", sglang_wheel("sglang/srt/environ.py"), re.MULTILINE))
    used = {"SGLANG_SIMULATE_UNIFORM_EXPERTS", "SGLANG_SIMULATE_ACC_LEN"}
    used |= set(chain.from_iterable(preset.environment for preset in PRESETS.values()))
    assert used <= known
    assert len(used) > 2


def test_config_keys_are_read_by_the_model(sglang_wheel):
    model = sglang_wheel("sglang/srt/models/bailing_moe_v3.py")
    for entry in Ledger.load().entries.values():
        for key in {*entry.on.config, *entry.off.config}:
            assert f'"{key}"' in model


def test_unknown_argument_is_refused_with_the_closest(flags):
    with pytest.raises(InputError, match="--atention-backend; the closest is --attention-backend"):
        check_arguments({"--atention-backend": ("triton",)}, flags)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"--disable-radix-cache": ("1",)}, "takes no value"),
        ({"--attention-backend": ()}, "takes one value, not 0"),
        ({"--attention-backend": ("a", "b")}, "takes one value, not 2"),
        ({"--flashinfer-allreduce-fusion-backend": ("fast",)}, "is one of auto, trtllm"),
    ],
)
def test_values_are_checked(flags, arguments, said):
    with pytest.raises(InputError, match=said):
        check_arguments(arguments, flags)


# Shapes


def test_one_rank_is_what_was_seen_to_run():
    config = model_config(1)
    assert {key: config[key] for key in ONE_RANK} == ONE_RANK
    draft = draft_config(1)
    assert (draft["num_attention_heads"], draft["intermediate_size"], draft["vocab_size"]) == (8, 1536, 39296)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("config_of", [model_config, draft_config])
def test_each_rank_has_the_shapes_of_one(config_of, ranks):
    one, several = config_of(1), config_of(ranks)
    assert one.keys() == several.keys()
    for key, value in several.items():
        if key in SHARDED:
            assert value % ranks == 0
            assert value // ranks == one[key]
        else:
            assert value == one[key]
    # SGLang pads the vocabulary before it splits it; a padded one would give ranks other shapes.
    assert several["vocab_size"] % (VOCABULARY_PADDING * ranks) == 0
    for key in ("eos_token_id", "pad_token_id"):
        assert several[key] < one["vocab_size"]


def test_four_ranks_are_the_whole_model(sglang_wheel):
    config = model_config(4)
    assert (config["num_attention_heads"], config["moe_intermediate_size"]) == (32, 768)
    # The vocabulary is what SGLang takes for this family where a config says nothing.
    default = re.search(r"vocab_size=(\d+)", sglang_wheel("sglang/srt/configs/bailing_hybrid.py"))
    assert default is not None
    assert config["vocab_size"] == int(default[1])


def test_draft_has_the_vocabulary_of_its_model(tmp_path):
    for ranks in (1, 2, 4):
        assert draft_config(ranks)["vocab_size"] == model_config(ranks)["vocab_size"]


@pytest.mark.parametrize("ranks", [0, 3, 8])
def test_other_ranks_are_refused(ranks):
    with pytest.raises(InputError, match=f"1, 2, 4 ranks, not {ranks}"):
        model_config(ranks)


def test_unknown_shape_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is tp4-rank"):
        write_shape("tp8-rank", 1, tmp_path, draft=False)
    assert list(tmp_path.iterdir()) == []
