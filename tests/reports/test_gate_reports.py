"""The gate as text, whose first line says it all, and as JSON that fits its schema."""

from __future__ import annotations

import json
from io import StringIO

import jsonschema
import pytest
from rich.console import Console

from latencylab.model.gate import METRICS, GateResult
from latencylab.reports.gate_json import gate_schema, render_gate_json
from latencylab.reports.gate_tables import figure
from latencylab.reports.gate_text import render_gate_text
from synth.gates import gate_results

RESULTS = gate_results()


@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_json_fits_its_schema(result: GateResult) -> None:
    made = json.loads(render_gate_json(result))
    jsonschema.Draft202012Validator(gate_schema()).validate(made)
    assert (made["verdict"], made["exit_code"]) == (result.verdict, result.exit_code)
    assert len(made["sites"]) == len(result.sites)


def test_the_schema_is_sound_and_knows_every_metric() -> None:
    jsonschema.Draft202012Validator.check_schema(gate_schema())
    assert gate_schema()["properties"]["metrics"]["items"]["properties"]["metric"]["enum"] == list(METRICS)
    made = json.loads(render_gate_json(RESULTS["regression"]))
    made["verdict"] = "fine"
    assert list(jsonschema.Draft202012Validator(gate_schema()).iter_errors(made))


@pytest.mark.parametrize("name", ["regression", "hostile", "incomparable", "inconclusive", "counts"])
def test_the_first_line_of_text_is_the_headline(name: str) -> None:
    out = StringIO()
    render_gate_text(RESULTS[name], Console(file=out, width=60))
    lines = out.getvalue().split("\n")
    assert lines[0].split()[0] in ("Regression:", "Not", "Inconclusive,", "No")
    if name == "regression":
        assert lines[0] == RESULTS[name].headline
        assert len(lines[0]) > 60
    assert "\x1b" not in out.getvalue()
    assert "\x00" not in out.getvalue()


@pytest.mark.parametrize(
    ("value", "shown"), [(6.3091, "6.309"), (5619.56, "5,619.6"), (2.0, "2"), (None, "–"), (0.0, "0")]
)
def test_figures(value: float | None, shown: str) -> None:
    assert figure(value) == shown
