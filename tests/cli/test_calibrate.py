"""`calibrate` as a command: what it prints, what it refuses, and what it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

STALL = "sample:nextn-host-stall"
SITE = "cudaStreamSynchronize"


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
    assert whole["fixes"][0]["site"].startswith(SITE)
    gains = [fix["us_per_step"] for fix in whole["fixes"]]
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


def test_the_map_of_another_capture(latencylab: Any) -> None:
    result = latencylab("calibrate", "--no-cache", STALL, "--map-from", "sample:nextn", "--format", "json")
    found = json.loads(result.out)["calibration"]
    assert found["map_from"] == "sample:nextn"
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
