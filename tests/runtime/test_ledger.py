"""The ledger merges without contradiction, and says what it is made of."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from latencylab.cli import run
from latencylab.model.integrity import InputError
from latencylab.runtime import ledger_hooks
from latencylab.runtime.ledger import SHIPPED, Ledger
from latencylab.runtime.ledger_hooks import HOOKS, LIVELY_WEIGHTS
from latencylab.runtime.ledger_state import OBSERVERS
from latencylab.runtime.moe_tuning import Shape
from latencylab.runtime.presets import PRESETS

LEDGER = Ledger.load()
ENTRIES = list(LEDGER.entries.values())

# All of what the published work names, under the names they have here.
NAMED = {
    "kda-no-host-lengths",
    "fused-cache-locations",
    "fused-state-indices",
    "metadata-graph",
    "pdl",
    "small-moe-align",
    "fused-swiglu",
    "kda-verify-block",
    "bf16-router",
    "bf16-lm-head",
    "draft-extend-graph",
    "dspark-host-plans",
    "ragged-compact",
    "ragged-cap-accept",
    "allreduce-fusion",
    "cpu-affinity",
    "gc-freeze",
    "gc-threshold",
    "numa-bind",
}


def test_every_named_optimisation_has_an_entry():
    assert set(LEDGER.entries) >= NAMED


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_entry_is_whole(entry):
    assert set(entry.presets) <= set(PRESETS)
    assert entry.on != entry.off, "both positions are the same"
    assert entry.on.hook is None, "a hook restores what upstream has left; it is never the optimisation"
    assert entry.off.hook is None or entry.off.hook in HOOKS
    assert entry.sources
    assert entry.elsewhere or set(entry.presets) == set(PRESETS)
    for text in (entry.does, entry.published, entry.read, entry.look, entry.one_gpu_note):
        assert len(text.split()) > 1 or text == "not published"
    for pattern in (*entry.kernels_on, *entry.kernels_off):
        re.compile(pattern)


def test_file_is_named_like_its_entry():
    folder = Path(ledger_hooks.__file__).with_name("ledger")
    assert {path.stem for path in folder.glob("*.toml")} == set(LEDGER.entries)


def test_every_hook_is_used_once():
    used = sorted(entry.off.hook for entry in ENTRIES if entry.off.hook)
    assert used == sorted({*HOOKS} - {LIVELY_WEIGHTS})


def test_every_entry_is_looked_at():
    assert set(OBSERVERS) == set(LEDGER.entries)


# Merging


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("ranks", [1, 4])
def test_defaults_set_no_hook(preset, ranks):
    switches = LEDGER.apply(preset, ranks=ranks)
    assert switches.hooks == ()
    assert {row.state for row in switches.rows} == {"default", "unavailable"}
    assert switches.positions == {
        entry.name: entry.default for entry in ENTRIES if entry.missing(preset, ranks) is None
    }


@pytest.mark.parametrize("entry", [e for e in ENTRIES if not e.on.files], ids=lambda e: e.name)
def test_each_is_reversible_alone(entry):
    preset = entry.presets[-1]
    ranks = entry.least_ranks
    on = LEDGER.apply(preset, on=[entry.name], ranks=ranks)
    off = LEDGER.apply(preset, off=[entry.name], ranks=ranks)
    assert on.positions[entry.name] is True
    assert off.positions[entry.name] is False
    changed = {name for name in off.positions if on.positions.get(name) != off.positions[name]}
    assert changed == {entry.name}
    if entry.off.hook:
        assert off.hooks == (entry.off.hook,)
        assert on.environment == off.environment
    else:
        settings = [(s.arguments, s.environment, s.config) for s in (on, off)]
        assert settings[0] != settings[1]


def test_one_that_lost_its_ground_is_unavailable():
    switches = LEDGER.apply("nextn", off=["fused-kda-verify"])
    row = next(row for row in switches.rows if row.entry.name == "kda-verify-block")
    assert (row.state, row.is_on) == ("unavailable", None)
    with pytest.raises(InputError, match=r"kda-verify-block has no effect on .*: needs fused-kda-verify"):
        LEDGER.apply("nextn", off=["fused-kda-verify", "kda-verify-block"])


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("ranks", [1, 4])
def test_all_that_is_on_unasked_can_be_put_off(preset, ranks):
    usual = LEDGER.apply(preset, ranks=ranks).positions
    switches = LEDGER.apply(preset, off=["all"], ranks=ranks)
    rows = {row.entry.name: row for row in switches.rows}
    assert set(rows) == set(LEDGER.entries)
    assert not any(row.is_on for row in rows.values())
    lost = {name for name, is_on in usual.items() if is_on and set(LEDGER.entries[name].needs) & set(usual)}
    for name, is_on in usual.items():
        wanted = "unavailable" if name in lost else "off" if is_on else "default"
        assert (name, rows[name].state) == (name, wanted)
    assert all(rows[name].state == "unavailable" for name in rows.keys() - usual.keys())
    assert set(switches.hooks) == {row.entry.off.hook for row in rows.values() if row.state == "off"} - {None}


def test_all_off_leaves_some_unavailable():
    rows = {row.entry.name: row for row in LEDGER.apply("nextn", off=["all"]).rows}
    assert (rows["kda-verify-block"].state, rows["kda-verify-block"].by) == (
        "unavailable",
        "needs fused-kda-verify",
    )
    assert rows["fused-kda-verify"].state == rows["pdl"].state == "off"
    assert rows["ragged-compact"].state == "unavailable"  # of another preset


def test_what_is_put_on_stays_on_where_all_is_put_off(artefacts):
    switches = LEDGER.apply("nextn", on=["pdl", "metadata-graph"], off=["all"])
    assert {name for name, is_on in switches.positions.items() if is_on} == {"pdl", "metadata-graph"}
    assert {row.state for row in switches.rows if row.is_on} == {"on"}
    assert "no-pdl" not in switches.hooks
    switches = LEDGER.apply(
        "dspark", on=["ragged-compact"], off=["all"], artefacts=artefacts
    )  # not on unasked
    assert {name for name, is_on in switches.positions.items() if is_on} == {"ragged-compact"}
    switches = LEDGER.apply("nextn", off=["all", "pdl"])
    assert switches == LEDGER.apply("nextn", off=["all"])


def test_all_off_takes_the_ground_of_what_is_put_on():
    with pytest.raises(InputError, match=r"kda-verify-block has no effect on .*: needs fused-kda-verify"):
        LEDGER.apply("nextn", on=["kda-verify-block"], off=["all"])
    switches = LEDGER.apply("nextn", on=["kda-verify-block", "fused-kda-verify"], off=["all"])
    assert {name for name, is_on in switches.positions.items() if is_on} == {
        "kda-verify-block",
        "fused-kda-verify",
    }


@pytest.fixture
def artefacts(tmp_path) -> Path:
    for name in ("dspark-sps.json", "dspark-sts.json"):
        (tmp_path / name).write_text("{}")
    return tmp_path


def test_two_modes_of_verify_exclude_each_other(artefacts):
    with pytest.raises(InputError, match="ragged-cap-accept and ragged-compact exclude each other"):
        LEDGER.apply("dspark", on=["ragged-compact", "ragged-cap-accept"], artefacts=artefacts)


def test_artefacts_are_fed_to_the_preset(artefacts):
    switches = LEDGER.apply("dspark", on=["ragged-compact"], artefacts=artefacts)
    assert switches.arguments["--speculative-dspark-sps-table-path"] == (str(artefacts / "dspark-sps.json"),)
    assert switches.environment["SGLANG_RAGGED_VERIFY_MODE"] == "compact"
    assert switches.stand_in == {"SGLANG_SIMULATE_ACC_LEN": "1"}


def test_missing_artefacts_are_named(artefacts):
    with pytest.raises(InputError, match="ragged-compact needs a folder of artefacts"):
        LEDGER.apply("dspark", on=["ragged-compact"])
    (artefacts / "dspark-sts.json").unlink()
    with pytest.raises(InputError, match=r"ragged-compact: .* has no dspark-sts\.json"):
        LEDGER.apply("dspark", on=["ragged-compact"], artefacts=artefacts)


def test_what_is_tuned_here_is_shipped_and_a_deployments_own_goes_first(artefacts, tmp_path):
    def folder(**given):
        return LEDGER.apply("nextn", **given).environment["SGLANG_MOE_CONFIG_DIR"]

    assert folder() == folder(artefacts=artefacts) == str(SHIPPED)
    with pytest.raises(InputError, match=r"tuned-moe: .* has no configs/triton"):
        folder(on=["tuned-moe"], artefacts=artefacts)
    own = tmp_path / "configs" / "triton_3_9_0"
    own.mkdir(parents=True)
    (own / "E=513,N=192,device_name=NVIDIA_H200.json").write_text("{}")
    assert folder(artefacts=tmp_path) == str(tmp_path)
    assert folder(on=["tuned-moe"]) == str(SHIPPED)
    assert "SGLANG_MOE_CONFIG_DIR" not in LEDGER.apply("nextn", off=["tuned-moe"]).environment
    shape = Shape.of_rank()
    for part in ("", "_down"):
        name = f"E={shape.experts},N={shape.width},device_name=NVIDIA_H200{part}.json"
        (path,) = SHIPPED.glob(f"configs/triton_*/{name}")
        sizes = json.loads(path.read_text())
        assert {"1", "6", "8", "9", "8192"} <= sizes.keys()
        assert all(each["BLOCK_SIZE_M"] >= 16 for each in sizes.values())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"on": ["nonsense"]}, "no optimisation is named nonsense; there are "),
        ({"on": ["all"]}, "no optimisation is named all; there are "),
        ({"on": ["all"], "off": ["all"]}, "no optimisation is named all; there are "),
        ({"on": ["pdl"], "off": ["all", "pdl"]}, "pdl cannot be both on and off"),
        ({"off": ["all", "nonsense"]}, "no optimisation is named nonsense; there are "),
        ({"on": ["pdl"], "off": ["pdl"]}, "pdl cannot be both on and off"),
        ({"on": ["allreduce-fusion"]}, "fusion has no effect on dspark with 1 ranks: needs 2 ranks"),
        ({"on": ["metadata-graph"]}, "metadata-graph has no effect on dspark .*: SGLang turns it off"),
    ],
)
def test_refusals(arguments, said):
    with pytest.raises(InputError, match=said):
        LEDGER.apply("dspark", **arguments)


def _folder(tmp_path: Path, **entries: str) -> Path:
    common = 'does="a"\npublished="x"\npresets=["nextn"]\nread="a"\nlook="a"\none_gpu=true\none_gpu_note=""\n'
    for name, text in entries.items():
        (tmp_path / f"{name}.toml").write_text(f'name="{name}"\n{common}{text}')
    return tmp_path


def test_one_variable_with_two_values_is_refused_by_name(tmp_path):
    folder = _folder(tmp_path, a='[on.environment]\nX="1"\n', b='[on.environment]\nX="2"\n')
    ledger = Ledger.load(folder)
    with pytest.raises(InputError, match="a and b exclude each other: both set X, to 1 and 2"):
        ledger.apply("nextn")
    assert ledger.apply("nextn", off=["b"]).environment == {"X": "1"}


def test_same_value_twice_is_no_contradiction(tmp_path):
    folder = _folder(tmp_path, a='[on.config]\nk="1"\n', b='[on.config]\nk="1"\n')
    assert Ledger.load(folder).apply("nextn").config == {"k": "1"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[on]\nhoook='x'\n", "Position has no hoook"),
        ("unknown=1\n", "Optimisation has no unknown"),
        ("does=", "Invalid value|Cannot overwrite"),
        ('needs=["b"]\n', "a: no optimisation is named b"),
        ('[[conflicts]]\nother="b"\nwhy="x"\n', "a: no optimisation is named b"),
    ],
)
def test_a_broken_entry_is_refused(tmp_path, text, said):
    with pytest.raises(InputError, match=said):
        Ledger.load(_folder(tmp_path, a=text))


# The command


@pytest.mark.parametrize("preset", PRESETS)
def test_command_shows_what_a_launch_sets(capfd, preset):
    assert (
        run(["runtime", "ledger", "--preset", preset, "--tp", "1", "--without", "pdl", "--format", "json"])
        == 0
    )
    rows = {row["name"]: row for row in json.loads(capfd.readouterr().out)[preset]}
    assert set(rows) == set(LEDGER.entries)
    assert rows["pdl"]["state"] == rows["pdl"]["position"] == "off"
    assert rows["pdl"]["by"] == "hook no-pdl"
    assert rows["cpu-affinity"]["state"] == "default"
    assert rows["cpu-affinity"]["by"] == "SGLANG_SET_CPU_AFFINITY=0"
    assert rows["allreduce-fusion"]["state"] == "unavailable"
    assert rows["allreduce-fusion"]["position"] is None
    positions = LEDGER.apply(preset, off=["pdl"]).positions
    assert {name: row["position"] == "on" for name, row in rows.items() if row["position"]} == positions


def test_command_puts_all_off_but_one(capfd):
    options = ["--preset", "nextn", "--with", "pdl", "--without", "all", "--format", "json"]
    assert run(["runtime", "ledger", *options]) == 0
    rows = json.loads(capfd.readouterr().out)["nextn"]
    assert [row["name"] for row in rows if row["position"] == "on"] == ["pdl"]


def test_command_as_text(capfd):
    assert run(["runtime", "ledger"]) == 0
    out = capfd.readouterr().out
    for name in (*PRESETS, *LEDGER.entries):
        assert name in out
    assert run(["runtime", "ledger", "kda-verify-block", "--preset", "nextn"]) == 0
    out = capfd.readouterr().out
    assert "off by     hook kda-verify-block-32" in out
    assert "needs      fused-kda-verify" in out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["turbo"], 3, "no optimisation is named turbo"),
        (["--with", "pdl"], 2, "--with and --without go with --preset"),
        (["--preset", "plain", "--with", "ragged-compact"], 3, "has no effect on plain"),
        (["--preset", "plain", "--with", "all"], 3, "no optimisation is named all"),
        (["--preset", "plain", "--with", "all", "--without", "all"], 2, "all is put both on and off"),
    ],
)
def test_command_refuses(capfd, arguments, code, said):
    assert run(["runtime", "ledger", *arguments]) == code
    err = capfd.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("sample", "position"),
    [
        ("nextn", {"small-moe-align": "on", "router-matvec": "on", "fused-cache-locations": "unknown"}),
        ("dspark", {"small-moe-align": "off", "router-matvec": "off", "fused-cache-locations": "on"}),
    ],
)
def test_traces_show_positions(capfd, sample, position):
    """NEXTN's verify of 6 tokens has the small kernels, DSpark's of 9 has not."""
    arguments = ["--preset", sample, "--capture", f"sample:{sample}", "--format", "json"]
    assert run(["runtime", "ledger", *arguments]) == 0
    seen = {row["name"]: row["in_trace"] for row in json.loads(capfd.readouterr().out)[sample]}
    assert {name: seen[name] for name in position} == position
    assert seen["fused-kda-verify"] == seen["fused-state-indices"] == "on"
    assert seen["allreduce-fusion"] == "off"
    assert seen["gc-freeze"] == "unknown"


def test_a_trace_of_the_old_path():
    entry = LEDGER.entries["fused-cache-locations"]
    assert entry.in_trace(["assign_extend_cache_locs"]) == "off"
    assert entry.in_trace(["assign_extend_cache_locs_uniform", "other"]) == "on"
    assert LEDGER.entries["small-moe-align"].in_trace(["moe_align_block_size_kernel"]) == "off"
    assert LEDGER.entries["small-moe-align"].in_trace([]) == "unknown"


def test_a_trace_of_ragged_verify():
    compact, cap_accept = (LEDGER.entries[f"ragged-{mode}"] for mode in ("compact", "cap-accept"))
    planner = ["_schedule_topk_prep_kernel", "_cap_correct_len_kernel"]
    assert (compact.in_trace(planner), cap_accept.in_trace(planner)) == ("off", "unknown")
    planner.append("_compact_row_index_kernel")
    assert (compact.in_trace(planner), cap_accept.in_trace(planner)) == ("on", "off")


@pytest.mark.parametrize(
    "kernel",
    [
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<...>",
        "void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<4, __nv_bfloat16, true>",
    ],
)
def test_a_trace_of_fused_all_reduce(kernel):
    assert LEDGER.entries["allreduce-fusion"].in_trace([kernel]) == "on"
