"""`latencylab runtime launch` as a command."""

from __future__ import annotations

import shlex

import pytest

SHAPE = ("runtime", "launch", "--preset", "nextn", "--shape", "tp4-rank")


@pytest.fixture(autouse=True)
def _without_sglang(monkeypatch, tmp_path):
    """As where SGLang is not installed, in an empty folder."""
    monkeypatch.setattr("latencylab.runtime.sglang_source.importlib.util.find_spec", lambda _name: None)
    monkeypatch.chdir(tmp_path)


def test_dry_run_prints_the_line_and_says_that_nothing_was_checked(latencylab, tmp_path):
    result = latencylab(*SHAPE, "--dry-run", "--port", "1234", "--", "--context-length", "4096")
    assert result.code == 0
    assert result.out.count("\n") == 1
    words = shlex.split(result.out)
    assert words[words.index("--port") + 1] == "1234"
    assert words[words.index("--context-length") + 1] == "4096"
    assert "SGLANG_SIMULATE_ACC_LEN=3.25" in words
    assert not [word for word in words if word.startswith("LATENCYLAB_")]
    assert result.err == (
        "latencylab: warning: SGLang is not installed here, so nothing was checked against it\n"
    )
    assert (tmp_path / "latencylab-run" / "tp4-rank-x1" / "config.json").is_file()


def test_plugin_settings_are_passed(latencylab, tmp_path):
    options = ("--dir", "there", "--spans", "nvtx,profiler", "--clock", "--strict", "--fault", "gc:every=50")
    words = shlex.split(latencylab(*SHAPE, *options, "--fault", "item", "--dry-run").out)
    assert f"LATENCYLAB_DIR={tmp_path / 'there'}" in words
    assert "LATENCYLAB_SPANS=nvtx,profiler" in words
    assert "LATENCYLAB_CLOCK=1" in words
    assert "LATENCYLAB_STRICT=1" in words
    (faults,) = [word for word in words if word.startswith("LATENCYLAB_FAULTS=")]
    assert "gc" in faults
    assert ";item" in faults


def test_an_optimisation_put_off(latencylab):
    result = latencylab(*SHAPE, "--without", "fused-kda-verify", "--dry-run")
    assert "SGLANG_OPT_FUSED_KDA_VERIFY=0" in shlex.split(result.out)


def test_lively_weights(latencylab, tmp_path):
    words = shlex.split(latencylab(*SHAPE, "--lively-weights", "--without", "pdl", "--dry-run").out)
    assert "LATENCYLAB_HOOKS=no-pdl,lively-weights" in words
    assert f"LATENCYLAB_DIR={tmp_path / 'latencylab-run'}" in words


def test_real_launch_without_sglang_is_refused_in_one_line(latencylab):
    result = latencylab("runtime", "launch", "--preset", "plain", "--model", "/models/ling")
    assert result.code == 3
    assert result.out == ""
    assert result.err == (
        "latencylab: error: SGLang is not installed here: pip install 'latencylab[runtime]'\n"
    )


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--preset", "nextn"),
        ("--preset", "eagle", "--shape", "tp4-rank"),
        ("--preset", "nextn", "--shape", "tp4-rank", "--model", "m"),
        ("--preset", "nextn", "--model", "m", "--draft-model", "d"),
        ("--preset", "dspark", "--shape", "tp4-rank", "--draft-model", "d"),
        ("--preset", "nextn", "--model", "m", "--lively-weights"),
        ("--preset", "nextn", "--lively-weights"),
        ("--preset", "nextn", "--model", "m", "--tp", "0"),
        ("--preset", "nextn", "--model", "m", "--port", "70000"),
        ("--preset", "nextn", "--model", "m", "--with", "pdl", "--without", "pdl"),
        ("--preset", "nextn", "--model", "m", "--context-length", "4096"),
    ],
)
def test_wrong_usage(latencylab, options):
    result = latencylab("runtime", "launch", *options, "--dry-run")
    assert result.code == 2
    assert "latencylab runtime launch --help" in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    "options",
    [
        ("--tp", "3"),
        ("--fault", "no-such-fault"),
        ("--spans", "smoke"),
        ("--with", "turbo"),
        ("--", "--port", "5"),
    ],
)
def test_what_does_not_fit(latencylab, options):
    result = latencylab(*SHAPE, "--dry-run", *options)
    assert result.code == 3
    assert result.err.startswith("latencylab: error: ")
    assert result.err.count("\n") == 1
    assert result.out == ""


def test_choices_are_those_of_the_runtime():
    from latencylab.cli._launch import PRESETS, SHAPES
    from latencylab.runtime import presets, shapes

    assert set(PRESETS) == set(presets.PRESETS)
    assert set(SHAPES) == set(shapes.SHAPES)
