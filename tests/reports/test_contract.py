"""The JSON output against its schema, and the sums that it promises."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from latencylab.model.findings import Analysis
from latencylab.reports.contract import render_json, schema, to_contract

STABLE_RANK = (
    "rank device window_us kind steps step_us idle_host_doing_us idle_host_blame_us idle_gpu_us legs "
    "run_ahead_us syncs kernels other_kinds"
)


def validator() -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(schema())
    return jsonschema.Draft202012Validator(schema())


def test_every_analysis_is_valid(any_analysis: Analysis) -> None:
    text = render_json(any_analysis)
    assert text.endswith("}")
    text.encode("utf-8")
    assert "NaN" not in text.replace("temperature", "")
    assert "Infinity" not in text
    validator().validate(json.loads(text))


def test_stable_keys(analysis: Analysis) -> None:
    made = to_contract(analysis)
    assert made["schema"] == "latencylab.analysis/1"
    assert set(made) == {
        "schema", "tool", "capture", "verdict", "fixes", "integrity", "ranks", "alignment", "collectives",
        "calibration",
    }  # fmt: skip
    (rank,) = made["ranks"]
    assert set(STABLE_RANK.split()) <= set(rank)
    assert rank["kernels"][0] == {"class": "moe", "us": 2210.0, "ops": 90.0}
    assert rank["steps_table"][15]["slower_by"][0] == {"what": "host idle: gc", "us": 13800.0}
    other = rank["other_kinds"][0]
    assert other["kind"] == "EXTEND"
    assert other["step_us"] is None
    assert made["capture"]["manifest"]["temperature"] is None


def test_sums_hold(analysis: Analysis) -> None:
    for us in (to_contract(analysis)["ranks"][0][key] for key in ("step_us", "window_us")):
        assert us["wall"] == pytest.approx(us["busy"] + us["idle"], abs=1e-6)
        assert us["idle"] == pytest.approx(us["idle_host"] + us["idle_gpu"] + us["idle_unknown"], abs=1e-6)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("ranks", 0, "step_us", "wall"), "12"),
        (("ranks", 0, "syncs", 0, "verdict"), "fine"),
        (("ranks", 0, "syncs", 0, "bytes"), 1.5),
        (("ranks", 0, "steps", "found"), -1),
        (("integrity", "status"), "good"),
        (("schema",), "latencylab.analysis/2"),
    ],
)
def test_schema_refuses_wrong_values(analysis: Analysis, path: tuple[Any, ...], value: Any) -> None:
    made = to_contract(analysis)
    *way, last = path
    inner: Any = made
    for key in way:
        inner = inner[key]
    inner[last] = value
    assert not validator().is_valid(made)


@pytest.mark.parametrize(
    "path",
    [
        ("ranks", 0, "legs"),
        ("ranks", 0, "other_kinds", 0, "syncs"),
        ("verdict",),
        ("ranks", 0, "step_us", "idle"),
    ],
)
def test_schema_misses_stable_keys(analysis: Analysis, path: tuple[Any, ...]) -> None:
    made = to_contract(analysis)
    *way, last = path
    inner: Any = made
    for key in way:
        inner = inner[key]
    del inner[last]
    assert not validator().is_valid(made)


def test_ranks_are_in_the_contract(late_rank: Analysis) -> None:
    made = json.loads(render_json(late_rank))
    clock = made["alignment"]["ranks"][2]
    assert set(clock) >= {
        "rank",
        "offset_us",
        "drift_ppm",
        "bound_us",
        "residual_us",
        "points",
        "shifted",
        "note",
    }
    assert made["alignment"]["reference"] == 0
    assert clock["bound_us"][0] < clock["offset_us"] < clock["bound_us"][1]
    found = made["collectives"]
    assert set(found) >= {
        "paired",
        "unpaired",
        "step_us",
        "late",
        "unpaired_by_rank",
        "resolved",
        "kinds",
        "notes",
        "uneven",
    }
    assert set(found["step_us"]) == {"wait", "transfer"}
    late = found["late"][0]
    assert (late["rank"], late["kind"]) == (2, "NEXTN")
    assert sum(late["causes"].values()) == pytest.approx(late["wait_us"], rel=0.05)
    (more,) = found["uneven"]
    (part,) = more["parts"]
    assert (more["rank"], more["kind"], more["on"], part["what"]) == (2, "NEXTN", "gpu", "qkv_gemm")
    assert more["us"] == part["us"] == pytest.approx(60, abs=3)
    assert part["interval_us"][0] < part["us"] < part["interval_us"][1] < part["own_us"]
    for rank in made["ranks"]:
        assert 0 < rank["step_us"]["collective_wait"] < rank["step_us"]["busy"]
    json.dumps(made)


@pytest.mark.parametrize(
    "path",
    [
        ("alignment", "reference"),
        ("alignment", "ranks", 1, "residual_us"),
        ("alignment", "ranks", 1, "bound_us"),
        ("collectives", "step_us", "wait"),
        ("collectives", "late", 0, "causes"),
        ("collectives", "kinds", 0, "transfer_us"),
        ("collectives", "uneven", 0, "on"),
        ("collectives", "uneven", 0, "parts", 0, "interval_us"),
        ("ranks", 0, "step_us", "collective_wait"),
    ],
)
@pytest.mark.parametrize("wrong", ["text", "missing"])
def test_schema_is_strict_about_ranks(late_rank: Analysis, path: tuple[Any, ...], wrong: str) -> None:
    made = to_contract(late_rank)
    validator().validate(made)
    *way, last = path
    inner: Any = made
    for key in way:
        inner = inner[key]
    if wrong == "text":
        inner[last] = "twelve"
    else:
        del inner[last]
    assert not validator().is_valid(made)


def test_a_clock_without_bounds_is_null(hostile: Analysis) -> None:
    clocks = to_contract(hostile)["alignment"]["ranks"]
    assert clocks[1]["bound_us"] == [None, None]
    assert clocks[2]["bound_us"] is None
    assert clocks[2]["residual_us"] is None


def test_more_keys_are_allowed(analysis: Analysis) -> None:
    made = to_contract(analysis)
    made["later"] = 1
    made["ranks"][0]["later"] = {}
    made["alignment"] = {
        "reference": 0,
        "ranks": [{"rank": 1, "offset_us": 1.0, "drift_ppm": 0.1, "bound_us": [-4, 4], "residual_us": 0.2}],
    }
    validator().validate(made)
