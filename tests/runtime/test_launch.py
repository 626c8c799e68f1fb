"""A launch is the preset, its switches and the user's words, in one command."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from latencylab.model.integrity import InputError, OutputError
from latencylab.runtime import provenance
from latencylab.runtime.launch import build_launch
from latencylab.runtime.ledger import Ledger
from latencylab.runtime.presets import PRESETS, SUPPORTED_SGLANG
from latencylab.runtime.settings import Settings
from latencylab.runtime.sglang_source import Installed, find_sglang

LEDGER = Ledger.load().entries


def _none() -> Installed | None:
    return None


def _build(preset="nextn", **options):
    return build_launch(preset, **{"model": "/models/ling", "find": _none, **options})


def _arguments(launch) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for word in launch.argv[3:]:
        if word.startswith("--"):
            assert word not in found, f"{word} is there twice"
            last = found[word] = []
        else:
            last.append(word)
    return found


@pytest.fixture
def installed(sglang_tree, monkeypatch) -> Installed:
    monkeypatch.syspath_prepend(str(sglang_tree))
    found = find_sglang()
    assert found is not None
    return found


def test_real_model_on_four_gpus():
    launch = _build(host="0.0.0.0", port=1234)
    assert launch.argv[1:3] == ("-m", "sglang.launch_server")
    arguments = _arguments(launch)
    assert arguments["--model-path"] == ["/models/ling"]
    assert arguments["--tp-size"] == ["4"]
    assert (arguments["--host"], arguments["--port"]) == (["0.0.0.0"], ["1234"])
    assert arguments["--max-running-requests"] == ["1"]
    assert arguments["--disable-radix-cache"] == []
    assert arguments["--speculative-num-draft-tokens"] == ["6"]
    assert arguments["--flashinfer-allreduce-fusion-backend"] == ["auto"]
    assert "--load-format" not in arguments
    assert not [name for name in launch.env if "SIMULATE" in name]


def test_plain_speculates_nothing():
    assert not [name for name in _arguments(_build("plain")) if "speculative" in name]


def test_draft_model_is_passed():
    launch = _build("dspark", draft_model="/models/draft")
    assert _arguments(launch)["--speculative-draft-model-path"] == ["/models/draft"]
    assert "--speculative-draft-model-path" not in _arguments(_build("dspark"))


@pytest.mark.parametrize(("preset", "accept"), [("plain", None), ("nextn", "3.25"), ("dspark", "5")])
@pytest.mark.parametrize("ranks", [None, 2, 4])
def test_shape_runs_without_weights(tmp_path, preset, accept, ranks):
    launch = _build(preset, model=None, shape="tp4-rank", tp=ranks, workdir=tmp_path)
    arguments = _arguments(launch)
    assert arguments["--tp-size"] == [str(ranks or 1)]
    assert arguments["--load-format"] == ["dummy"]
    assert arguments["--skip-tokenizer-init"] == []
    assert launch.env["SGLANG_SIMULATE_UNIFORM_EXPERTS"] == "1"
    assert launch.env.get("SGLANG_SIMULATE_ACC_LEN") == accept
    assert launch.model == arguments["--model-path"][0]
    config = json.loads((Path(launch.model) / "config.json").read_text())
    assert config["num_attention_heads"] == 8 * (ranks or 1)
    draft = arguments.get("--speculative-draft-model-path")
    assert (draft is not None) == (preset == "dspark")
    if draft:
        assert arguments["--speculative-draft-load-format"] == ["dummy"]
        assert json.loads((Path(draft[0]) / "config.json").read_text())["vocab_size"] == config["vocab_size"]
    assert ("--flashinfer-allreduce-fusion-backend" in arguments) == ((ranks or 1) > 1)


def test_shapes_of_several_sizes_share_a_folder(tmp_path):
    one, two = (
        _build(model=None, shape="tp4-rank", tp=ranks, workdir=tmp_path / "new" / "folder").model
        for ranks in (1, 2)
    )
    heads = [
        json.loads((Path(each) / "config.json").read_text())["num_attention_heads"] for each in (one, two)
    ]
    assert heads == [8, 16]


def test_folder_of_a_shape_may_be_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Path(_build(model=None, shape="tp4-rank").model).is_relative_to(tmp_path)


def test_shape_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write the shape"):
        _build(model=None, shape="tp4-rank", workdir=tmp_path / "file")


# Switches


@pytest.mark.parametrize("name", [e.name for e in LEDGER.values() if not e.on.files])
def test_each_switch_changes_the_command_alone(name):
    switch = LEDGER[name]
    launches = {
        is_on: _build(switch.presets[0], overrides={name: is_on}) for is_on in (switch.default, False, True)
    }
    assert launches[True].switches[name] is True
    assert launches[False].switches[name] is False
    assert (launches[True].argv, launches[True].env) != (launches[False].argv, launches[False].env)
    default = _build(switch.presets[0])
    assert (default.argv, default.env) == (launches[switch.default].argv, launches[switch.default].env)


def test_switch_of_an_environment_variable():
    assert _build().env["SGLANG_OPT_FUSED_KDA_VERIFY"] == "1"
    assert _build(overrides={"fused-kda-verify": False}).env["SGLANG_OPT_FUSED_KDA_VERIFY"] == "0"
    assert _build().env["SGLANG_DISABLE_DRAFT_EXTEND_CUDA_GRAPH"] == "0"


def test_switch_of_the_config_joins_the_users_override():
    def override(launch):
        return json.loads(_arguments(launch)["--json-model-override-args"][0])

    assert override(_build()) == {"router_dtype": "bf16"}
    assert override(_build(overrides={"bf16-router": False})) == {"router_dtype": "fp32"}
    own = ["--json-model-override-args", '{"num_hidden_layers": 6}']
    assert override(_build(extra=own)) == {"router_dtype": "bf16", "num_hidden_layers": 6}
    with pytest.raises(InputError, match="is no JSON object"):
        _build(extra=["--json-model-override-args", "[1]"])
    with pytest.raises(InputError, match="is no JSON"):
        _build(extra=["--json-model-override-args", "{"])


def test_switches_that_do_not_apply():
    assert "SGLANG_ENABLE_METADATA_GLUE_GRAPH" not in _build("dspark").env
    with pytest.raises(InputError, match="metadata-graph has no effect on dspark"):
        _build("dspark", overrides={"metadata-graph": False})
    with pytest.raises(InputError, match="allreduce-fusion has no effect on nextn with 1 ranks"):
        _build(tp=1, overrides={"allreduce-fusion": True})
    with pytest.raises(InputError, match="no optimisation is named turbo"):
        _build(overrides={"turbo": True})


def test_a_switch_without_upstream_switch_is_a_hook(tmp_path):
    env = _build(overrides={"pdl": False, "small-moe-align": False}, workdir=tmp_path).env
    assert env["LATENCYLAB_HOOKS"] == "no-pdl,generic-moe-align"
    assert env["LATENCYLAB_DIR"] == str(tmp_path)
    own = Settings(folder=tmp_path / "own", clock=True)
    env = _build(overrides={"pdl": False}, workdir=tmp_path, settings=own).env
    assert (env["LATENCYLAB_DIR"], env["LATENCYLAB_CLOCK"]) == (str(tmp_path / "own"), "1")
    assert "LATENCYLAB_HOOKS" not in _build(overrides={"pdl": True}, workdir=tmp_path, settings=own).env


def _stand_in(tmp_path, preset="nextn", **options):
    return _build(preset, **{"model": None, "shape": "tp4-rank", "workdir": tmp_path, **options})


@pytest.mark.parametrize("preset", PRESETS)
def test_lively_weights_are_a_hook_and_nothing_is_simulated(tmp_path, preset):
    tiny, lively = (_stand_in(tmp_path, preset, lively_weights=is_on) for is_on in (False, True))
    added = {"LATENCYLAB_HOOKS": "lively-weights", "LATENCYLAB_DIR": str(tmp_path)}
    assert lively.env == {k: v for k, v in tiny.env.items() if "SIMULATE" not in k} | added
    assert lively.argv == tiny.argv


def test_what_simulates_beside_lively_weights_is_told(tmp_path):
    base = {"SGLANG_SIMULATE_ACC_LEN": "3", "SGLANG_SIMULATE_UNIFORM_EXPERTS": ""}
    said = _stand_in(tmp_path, lively_weights=True).warnings(base)
    assert [line for line in said if "SIMULATE" in line] == [
        "SGLANG_SIMULATE_ACC_LEN=3 of the environment stays: what it simulates is not the weights'"
    ]
    tiny = _stand_in(tmp_path).warnings(base)
    assert [line for line in tiny if "stays" in line] == []


def test_lively_weights_join_the_hooks_of_the_switches(tmp_path):
    off = {"pdl": False, "small-moe-align": False}
    own = Settings(folder=tmp_path / "own", clock=True)
    env = _stand_in(tmp_path, lively_weights=True, overrides=off, settings=own).env
    assert env["LATENCYLAB_HOOKS"] == "no-pdl,generic-moe-align,lively-weights"
    assert (env["LATENCYLAB_DIR"], env["LATENCYLAB_CLOCK"]) == (str(tmp_path / "own"), "1")
    assert Settings.from_env(env).hooks[-1] == "lively-weights"
    assert provenance.switches(env)["LATENCYLAB_HOOKS"] == env["LATENCYLAB_HOOKS"]  # so manifests have it


def test_lively_weights_of_ragged_verify_accept_what_is_right(tmp_path):
    for name in ("dspark-sps.json", "dspark-sts.json"):
        (tmp_path / name).write_text("{}")
    options = {"overrides": {"ragged-compact": True}, "artefacts": tmp_path, "lively_weights": True}
    assert "SGLANG_SIMULATE_ACC_LEN" not in _stand_in(tmp_path, "dspark", **options).env


def test_a_model_has_its_own_weights():
    with pytest.raises(InputError, match="only a shape has random weights"):
        _build(lively_weights=True)


def test_artefacts_replace_what_the_preset_says(tmp_path):
    for name in ("dspark-sps.json", "dspark-sts.json"):
        (tmp_path / name).write_text("{}")
    options = {"overrides": {"ragged-compact": True}, "artefacts": tmp_path}
    launch = _build("dspark", **options)
    assert launch.env["SGLANG_RAGGED_VERIFY_MODE"] == "compact"
    assert "SGLANG_SIMULATE_ACC_LEN" not in launch.env
    table = _arguments(launch)["--speculative-dspark-sps-table-path"]
    assert table == [str(tmp_path / "dspark-sps.json")]
    stand_in = _build("dspark", model=None, shape="tp4-rank", workdir=tmp_path, **options)
    assert stand_in.env["SGLANG_SIMULATE_ACC_LEN"] == "1"
    assert _build("dspark").env["SGLANG_RAGGED_VERIFY_MODE"] == "static"


# The user's words


def test_extra_arguments_take_the_presets_place():
    extra = ["--attention-backend=triton", "--context-length", "4096", "--numa-node", "0", "1", "--new"]
    arguments = _arguments(_build(extra=[*extra, "--chunked-prefill-size", "-1"]))
    assert arguments["--attention-backend"] == ["triton"]
    assert arguments["--context-length"] == ["4096"]
    assert arguments["--numa-node"] == ["0", "1"]
    assert arguments["--new"] == []
    assert arguments["--chunked-prefill-size"] == ["-1"]


def test_alias_takes_the_place_of_the_name(installed):
    launch = _build(find=lambda: installed, extra=["--dist-init-addr", "h:1", "--nccl-init-addr", "h:2"])
    assert _arguments(launch)["--dist-init-addr"] == ["h:2"]
    assert "--nccl-init-addr" not in _arguments(launch)


@pytest.mark.parametrize("own", ["--port", "--tp-size", "--model", "--model-path=/x", "--host"])
def test_own_arguments_are_refused(own):
    with pytest.raises(InputError, match="is set by latencylab"):
        _build(extra=[own, "1"])


@pytest.mark.parametrize(
    ("preset", "options", "said"),
    [
        ("eagle", {}, "no preset is named eagle; there are plain, nextn, dspark"),
        ("nextn", {"model": None}, "either a model or a shape"),
        ("nextn", {"shape": "tp4-rank"}, "either a model or a shape"),
        ("nextn", {"model": None, "shape": "tp8"}, "no shape is named tp8"),
        ("nextn", {"model": None, "shape": "tp4-rank", "tp": 3}, "1, 2, 4 ranks, not 3"),
        ("nextn", {"draft_model": "/d"}, "the preset nextn takes no draft model"),
        ("dspark", {"model": None, "shape": "tp4-rank", "draft_model": "/d"}, "a shape takes no draft"),
        ("nextn", {"tp": 0}, "number of GPUs, not 0"),
        ("nextn", {"extra": ["stray"]}, "stray belongs to no argument"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, preset, options, said):
    with pytest.raises(InputError, match=said):
        _build(preset, workdir=tmp_path, **options)
    assert list(tmp_path.iterdir()) == []


# Against SGLang


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("position", [True, False])
def test_whole_commands_are_known_to_sglang(installed, tmp_path, preset, position):
    switches = {
        entry.name: position
        for entry in LEDGER.values()
        if entry.missing(preset, 2) is None and not entry.needs and not entry.on.files
    }
    launch = _build(
        preset,
        model=None,
        shape="tp4-rank",
        tp=2,
        workdir=tmp_path,
        overrides=switches,
        find=lambda: installed,
    )
    assert launch.checked_against == SUPPORTED_SGLANG
    assert launch.warnings({}) == ()


def test_unknown_argument_is_refused(installed):
    with pytest.raises(InputError, match="knows no argument --context-len; the closest is --context-length"):
        _build(extra=["--context-len", "4096"], find=lambda: installed)


def test_an_argument_that_another_version_lacks_names_the_version(installed):
    other = replace(installed, version="0.4.9", flags={"--model-path": installed.flags["--model-path"]})
    with pytest.raises(InputError, match=f"it is 0.4.9; presets are made for {SUPPORTED_SGLANG}"):
        _build(find=lambda: other)


@pytest.mark.parametrize("source", [b"class (\n", b"\xff\xfe"])
def test_sources_that_cannot_be_read(tmp_path, monkeypatch, source):
    (tmp_path / "sglang" / "srt").mkdir(parents=True)
    (tmp_path / "sglang" / "__init__.py").touch()
    (tmp_path / "sglang" / "srt" / "server_args.py").write_bytes(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InputError, match="not the sources of SGLang"):
        find_sglang()


def test_other_version_is_told(installed):
    other = Installed(installed.folder, "0.6.0", installed.flags)
    (line,) = _build(find=lambda: other).warnings({})
    assert "0.6.0" in line
    assert SUPPORTED_SGLANG in line


def test_nothing_checked_is_told():
    launch = _build()
    assert launch.checked_against is None
    assert "nothing was checked" in launch.warnings({})[0]
    with pytest.raises(InputError, match="SGLang is not installed"):
        launch.replace_process()


# What is started


def test_settings_reach_the_environment(tmp_path):
    settings = Settings.from_env({"LATENCYLAB_DIR": str(tmp_path), "LATENCYLAB_CLOCK": "1"})
    env = _build(settings=settings).env
    assert env["LATENCYLAB_DIR"] == str(tmp_path)
    assert env["LATENCYLAB_CLOCK"] == "1"
    assert not [name for name in _build().env if name.startswith("LATENCYLAB_")]


def test_environment_that_is_replaced_is_told():
    launch = _build()
    base = {"SGLANG_OPT_FUSED_KDA_VERIFY": "0", "SGLANG_AUTO_NUMA_BIND": "1", "HOME": "/root"}
    assert launch.environment(base)["SGLANG_OPT_FUSED_KDA_VERIFY"] == "1"
    assert launch.environment(base)["HOME"] == "/root"
    assert launch.warnings(base)[1:] == ("SGLANG_OPT_FUSED_KDA_VERIFY=0 of the environment is replaced by 1",)


@pytest.mark.parametrize(("allowed", "told"), [("other", True), ("other,latencylab", False), ("", False)])
def test_a_plugin_that_is_kept_out_is_told(tmp_path, allowed, told):
    launch = _build(settings=Settings(folder=tmp_path, strict=True))
    warnings = launch.warnings({"SGLANG_PLUGINS": allowed})
    assert any("keeps our plugin out" in line for line in warnings) == told
    assert not any("keeps" in line for line in _build().warnings({"SGLANG_PLUGINS": "other"}))


def test_shown_line_means_the_same_to_a_shell():
    launch = _build(model="/models/it's here", extra=["--json-model-override-args", '{"a b": "$HOME `x`"}'])
    echo = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"
    words = shlex.split(launch.shown())
    first = words.index(launch.argv[0])
    line = launch.shown().replace(shlex.join(launch.argv[:3]), shlex.join([launch.argv[0], "-c", echo]), 1)
    done = subprocess.run(
        ["sh", "-c", line], check=True, capture_output=True, text=True, env=dict(os.environ)
    )
    seen, env = json.loads(done.stdout)
    assert tuple(seen) == launch.argv[3:]
    assert first == len(launch.env)
    assert {name: env[name] for name in launch.env} == launch.env


def _run(folder: Path, *words: str, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "latencylab", "runtime", "launch", "--preset", "plain", *words]
    return subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_server_takes_the_place_of_the_process(sglang_server, tmp_path, monkeypatch):
    monkeypatch.setenv("SGLANG_SET_CPU_AFFINITY", "1")
    with _run(sglang_server, "--model", "/m", "--tp", "1", cwd=tmp_path) as process:
        try:
            said = json.loads(process.stdout.readline())
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert said["pid"] == process.pid
    assert process.returncode == 7  # the server's own answer to the signal
    assert said["argv"][:4] == ["--model-path", "/m", "--tp-size", "1"]
    assert said["env"]["SGLANG_SET_CPU_AFFINITY"] == "0"
    assert errors == ("latencylab: warning: SGLANG_SET_CPU_AFFINITY=1 of the environment is replaced by 0\n")


def test_sglang_is_looked_at_but_not_imported(sglang_tree, tmp_path):
    with _run(sglang_tree, "--model", "/m", "--dry-run", cwd=tmp_path) as process:
        line, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert line.count("\n") == 1


def test_folder_that_is_no_sglang(tmp_path, monkeypatch):
    (tmp_path / "sglang").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_sglang() is None
