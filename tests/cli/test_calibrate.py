"""`calibrate` as a command: what it prints, what it refuses, and what it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

STALL = "sample:nextn-host-stall"
SITE = "cudaStreamSynchronize"
# The median step on the GPU that each sample's own clock measured without the profiler, µs.
MEASURED = {"nextn": 5883, "nextn-host-stall": 6817, "dspark": 8966, "plain": 3245}


@pytest.mark.parametrize("name", MEASURED)
def test_each_sample_by_its_own_clock(latencylab: Any, name: str) -> None:
    result = latencylab("calibrate", "--no-cache", f"sample:{name}", "--format", "json")
    found = json.loads(result.out)["calibration"]
    assert (result.code, found["status"]) == (0, "calibrated")
    assert found["unprofiled_step_us"] == pytest.approx(MEASURED[name], abs=1)
    assert found["predicted_step_us"] == pytest.approx(MEASURED[name], rel=0.05)
    assert abs(found["error_pct"]) <= 5
    # What the trace shows as idle is the profiler's, save with the stall.
    assert (found["idle_host_us"] > 0.1 * MEASURED[name]) == (name == "nextn-host-stall")
    assert found["profiled_step_us"] > 1.25 * MEASURED[name]


def test_without_the_stall_the_step_is_that_of_the_sample_without_it(latencylab: Any) -> None:
    result = latencylab("calibrate", "--no-cache", STALL, "--without", SITE, "--format", "json")
    whole = json.loads(result.out)
    assert whole["what_if"]["step_us"]["value"] == pytest.approx(MEASURED["nextn"], rel=0.07)
    cost = MEASURED["nextn-host-stall"] - MEASURED["nextn"]
    assert whole["what_if"]["gain_us"]["value"] == pytest.approx(cost, rel=0.2)
    (fix,) = [fix for fix in whole["fixes"] if fix.get("site", "").startswith(SITE)]
    assert fix["us_per_step"] == pytest.approx(cost, rel=0.2)


def test_a_sample_as_json(latencylab: Any) -> None:
    result = latencylab("calibrate", "--no-cache", STALL, "--without", SITE, "--format", "json")
    assert (result.code, result.err) == (0, "")
    whole = json.loads(result.out)
    assert whole["schema"] == "latencylab.calibration/1"
    assert whole["capture"] == STALL
    found, what_if = whole["calibration"], whole["what_if"]
    assert found["status"] == "calibrated"
    assert abs(found["error_pct"]) <= 5
    low, high = found["interval_us"]["predicted_step"]
    assert low <= found["predicted_step_us"] <= high
    assert what_if["gain_us"]["low"] <= what_if["gain_us"]["value"] <= what_if["gain_us"]["high"]
    assert what_if["step_us"]["value"] < found["predicted_step_us"]
    assert what_if["notes"] == ["the wait alone is taken away: what the host does around it stays"]
    assert [fix["site"].startswith(SITE) for fix in whole["fixes"] if fix.get("site")] == [True]
    assert whole["fixes"][0]["site"].startswith(SITE)
    gains = [fix["us_per_step"] for fix in whole["fixes"][1:]]
    assert gains == sorted(gains, reverse=True)


def test_the_analysis_says_the_same(latencylab: Any) -> None:
    alone = json.loads(latencylab("calibrate", "--no-cache", STALL, "--format", "json").out)
    whole = json.loads(latencylab("analyze", "--no-cache", STALL, "--format", "json").out)
    assert alone["what_if"] is None
    assert whole["calibration"] == alone["calibration"]
    assert whole["fixes"] == alone["fixes"]


def test_as_text(latencylab: Any, tmp_path: Path) -> None:
    out = tmp_path / "calibration.txt"
    options = ("--scale", "draft=0.5", "--faster", "MoE GEMM=2x", "--no-skew")
    result = latencylab("calibrate", "--no-cache", "sample:nextn", *options, "-o", out)
    assert (result.code, result.out, result.err) == (0, "", "")
    text = out.read_text()
    for part in (
        "sample:nextn, rank 0, NEXTN: calibrated",
        "What if: host time in span draft times 0.5; MoE GEMM kernels 2 times faster; no wait",
        "no wait for other ranks is known here",
        "What to fix first",
    ):
        assert part in text
    assert latencylab("calibrate", "--no-cache", "sample:nextn", "-o", out).code == 4


@pytest.mark.parametrize("name", ["nextn-host-stall", "dspark", "plain"])
def test_the_map_of_another_capture(latencylab: Any, name: str) -> None:
    options = ("--map-from", "sample:nextn", "--format", "json")
    result = latencylab("calibrate", "--no-cache", f"sample:{name}", *options)
    found = json.loads(result.out)["calibration"]
    assert found["map_from"] == "sample:nextn"
    assert found["predicted_step_us"] == pytest.approx(MEASURED[name], rel=0.1)
    assert abs(found["error_pct"]) <= 10


@pytest.mark.parametrize(
    "options",
    [
        ("--scale", "draft"),
        ("--scale", "draft=-1"),
        ("--scale", "=0.5"),
        ("--scale", "draft=nan"),
        ("--faster", "gemm=0.5"),
        ("--faster", "gemm=twice"),
    ],
)
def test_an_odd_factor_is_wrong_usage(latencylab: Any, options: tuple[str, str]) -> None:
    result = latencylab("calibrate", STALL, *options)
    assert result.code == 2
    assert options[1] in result.err


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--without", "nowhere"), "nowhere"),
        (("--without", "cuda"), "more than one"),
        (("--scale", "nospan=0.5"), "nospan"),
        (("--faster", "nokernel=2"), "nokernel"),
        (("--map-from", "sample:nothing"), "nothing"),
    ],
)
def test_what_is_not_there(latencylab: Any, options: tuple[str, str], word: str) -> None:
    result = latencylab("calibrate", "--no-cache", STALL, *options)
    assert (result.code, result.out) == (3, "")
    assert word in result.err
    assert result.err.count("\n") == 1


def test_a_trace_without_an_unprofiled_part(latencylab: Any, trace: Path) -> None:
    result = latencylab("calibrate", "--no-cache", trace)
    assert (result.code, result.out) == (3, "")
    assert "without the profiler" in result.err
    assert "--map-from" in result.err
    found = json.loads(latencylab("analyze", "--no-cache", trace, "--format", "json").out)["calibration"]
    assert found["status"] == "uncalibrated"
    assert found["predicted_step_us"] is None


def test_help_is_quick_to_find(latencylab: Any) -> None:
    result = latencylab("calibrate", "--help")
    assert result.code == 0
    for option in ("--without", "--scale", "--faster", "--no-skew", "--map-from"):
        assert option in result.out
