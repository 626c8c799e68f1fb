"""JUnit XML that fits its schema, whatever names hold, and counts what it holds."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from lxml import etree

from latencylab.model.gate import GateResult
from latencylab.reports.junit import render_junit
from synth.gates import gate_results

RESULTS = gate_results()
SCHEMA = etree.XMLSchema(etree.parse(str(Path(__file__).with_name("junit.xsd"))))


@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_fits_the_schema(result: GateResult) -> None:
    document = etree.fromstring(render_junit(result).encode())
    SCHEMA.assertValid(document)
    (suite,) = document
    assert int(suite.get("tests")) == len(suite.findall("testcase"))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.get(name)) == len(suite.findall(f"testcase/{tag}"))
    assert document.get("failures") == suite.get("failures")


def test_the_schema_refuses_what_it_must() -> None:
    assert not SCHEMA.validate(etree.fromstring("<testsuites><testcase/></testsuites>"))
    assert not SCHEMA.validate(etree.fromstring("<testsuites><testsuite name='x' tests='-1'/></testsuites>"))


def _outcomes(name: str) -> dict[str | None, str]:
    suite = ET.fromstring(render_junit(RESULTS[name]))[0]
    return {case.get("name"): case[0].tag if len(case) else "passed" for case in suite.findall("testcase")}


def test_what_fails_what_errs_and_what_is_skipped() -> None:
    step = "step without the profiler"
    assert _outcomes("regression") == {
        "runs can be compared": "passed",
        "cudaStreamSynchronize": "failure",
        step: "failure",
    }
    assert _outcomes("inconclusive")[step] == "skipped"
    assert _outcomes("counts")[step] == "skipped"
    assert _outcomes("unchanged") == {
        "runs can be compared": "passed",
        "no new blocking site fails": "passed",
        step: "passed",
    }
    assert _outcomes("incomparable") == {"runs can be compared": "error"}


def test_hostile_names_keep_their_letters() -> None:
    suite = ET.fromstring(render_junit(RESULTS["hostile"]))[0]
    names = [case.get("name") or "" for case in suite.findall("testcase")]
    assert any(name.startswith("k<int>|&\"'`*_[x]") and name.endswith("]]>") for name in names)
