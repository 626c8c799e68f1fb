"""The gate's decision as JUnit XML, in the form that Jenkins publishes as junit-10.xsd.

One test case for whether the runs can be compared, for each blocking site and for each metric that decides. A
regression is a failure, what must not be compared an error, and what is inconclusive is skipped: it passed
nothing and failed nothing.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from latencylab.model.gate import GateResult, MetricVerdict, SiteVerdict
from latencylab.reports import gate_tables
from latencylab.reports.format import clean

_SUITE = "latencylab.gate"
# What XML 1.0 has no way to write, beside what `clean` replaces (production 2, Char).
_NOT_XML = re.compile("[\ufffe\uffff]")


def render_junit(result: GateResult) -> str:
    """The decision as an XML document; it ends in a newline."""
    suite = ET.Element("testsuite", name=_SUITE)
    _add_properties(suite, result)
    compared = _case(suite, "runs can be compared", "comparable")
    if result.mismatches:
        lines = [f"{one.field}: {one.base} against {one.head}" for one in result.mismatches]
        _add_outcome(compared, "error", result.headline, lines)
    elif not any(site.decision == "regression" for site in result.sites):
        _case(suite, "no new blocking site fails", "sites")
    for site in result.sites:
        _add_site(suite, site)
    for metric in result.metrics:
        if metric.judged:
            _add_metric(suite, metric)
    out = ET.SubElement(suite, "system-out")
    out.text = "\n".join(_text(line) for line in _told(result))
    counts = {"tests": len(suite.findall("testcase"))}
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        counts[name] = len(suite.findall(f"testcase/{tag}"))
    root = ET.Element("testsuites", name="latencylab")
    for name, number in counts.items():
        suite.set(name, str(number))
        if name != "skipped":  # which the schema has for a suite alone
            root.set(name, str(number))
    root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _text(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", clean(text))


def _case(suite: ET.Element, name: str, group: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", name=_text(name), classname=f"{_SUITE}.{group}")


def _add_outcome(case: ET.Element, tag: str, message: str, lines: list[str]) -> None:
    outcome = ET.SubElement(case, tag, message=_text(message))
    if tag != "skipped":
        outcome.set("type", "latencylab")
    outcome.text = "\n".join(_text(line) for line in lines)


def _add_site(suite: ET.Element, site: SiteVerdict) -> None:
    case = _case(suite, site.site, "sites")
    lines = [
        f"verdict {site.verdict}, evidence {site.evidence}, in {gate_tables.site_runs(site)} runs",
        f"cost per step: {gate_tables.site_cost(site)}",
    ]
    if site.decision == "regression":
        _add_outcome(case, "failure", site.reason, lines)
    elif site.decision == "inconclusive":
        _add_outcome(case, "skipped", site.reason, lines)


def _add_metric(suite: ET.Element, one: MetricVerdict) -> None:
    case = _case(suite, one.title, "metrics")
    lines = [
        f"base {gate_tables.figure(one.base)} {one.unit}, {one.base_runs} runs",
        f"head {gate_tables.figure(one.head)} {one.unit}, {one.head_runs} runs",
        f"change {gate_tables.change(one)}, interval {gate_tables.interval(one)}",
    ]
    if one.verdict == "regression":
        _add_outcome(case, "failure", one.reason, lines)
    elif one.verdict in ("inconclusive", "incomparable"):
        _add_outcome(case, "skipped", one.reason, lines)


def _add_properties(suite: ET.Element, result: GateResult) -> None:
    """What was compared, and what was changed between the sides."""
    properties = ET.SubElement(suite, "properties")
    rows = [("verdict", result.verdict), ("base", ", ".join(result.base)), ("head", ", ".join(result.head))]
    rows += [(f"changed: {what}", f"{base} to {head}") for what, base, head in gate_tables.changes(result)]
    for name, value in rows:
        ET.SubElement(properties, "property", name=_text(name), value=_text(value))


def _told(result: GateResult) -> list[str]:
    """The decision, the warnings, and the metrics that only explain."""
    return [
        result.headline,
        *(f"warning: {warning}" for warning in result.warnings),
        *(
            f"{one.title}: {gate_tables.figure(one.base)} to {gate_tables.figure(one.head)} {one.unit},"
            f" {gate_tables.change(one)}, {one.verdict}"
            for one in result.metrics
            if not one.judged
        ),
    ]
