"""The gate's decision for GitHub Actions: annotations, and a job summary in Markdown.

Annotations are workflow commands, escaped as `@actions/core` does (its `command.ts`): `%`, CR and LF in the
message, and `:` and `,` too in a property. Names come from traces, so in Markdown each character that could
be taken for markup is written as a numeric entity, which CommonMark (0.31, section 6.2) never takes for one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from latencylab.model.gate import Decision, GateResult
from latencylab.reports import gate_tables
from latencylab.reports.format import clean

MOST_BYTES = 1024 * 1024  # of a step's summary, by GitHub's documentation
MOST_SHOWN = 10  # annotations of each level that GitHub shows of a step
_LONGEST = 400  # characters of a name in a table, or of a message
_MARKUP = frozenset("\\`*_{}[]<>#!|&~@:$.")  # with what makes links, mentions, emoji and formulas of words
_CUT = "\n\nThe rest is left out: the summary would exceed GitHub's limit.\n"
_SIGNS: dict[Decision, str] = {
    "regression": "❌",
    "improvement": "✅",
    "unchanged": "✅",
    "inconclusive": "⚠️",
    "incomparable": "⛔",
}


def render_annotations(result: GateResult) -> str:
    """One workflow command a line: errors for what failed, warnings for what is doubtful, or nothing."""
    errors = [f"{site.site}: {site.reason}" for site in result.sites if site.decision == "regression"]
    errors += [
        f"{one.title}: {one.reason}" for one in result.metrics if one.judged and one.verdict == "regression"
    ]
    if result.verdict in ("regression", "incomparable"):
        errors.insert(0, result.headline)
    lines = [_command("error", f"latencylab gate: {result.verdict}", text) for text in errors[:MOST_SHOWN]]
    lines += [_command("warning", "latencylab gate", text) for text in result.warnings[:MOST_SHOWN]]
    return "".join(f"{line}\n" for line in lines)


def _command(level: str, title: str, message: str) -> str:
    return f"::{level} title={_property(title)}::{_message(_one_line(message))}"


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")


def render_summary(result: GateResult, most_bytes: int = MOST_BYTES) -> str:
    """The job summary in Markdown, of at most so many bytes of UTF-8."""
    kept: list[str] = []
    left = most_bytes - len(_CUT.encode())
    if left < 0:
        return ""
    for line in _lines(result):
        left -= len(line.encode()) + 1
        if left < 0:
            return "\n".join(kept) + _CUT
        kept.append(line)
    return "\n".join(kept) + "\n"


def _lines(result: GateResult) -> Iterator[str]:
    yield f"## {_SIGNS[result.verdict]} latencylab gate: {result.verdict}"
    yield ""
    yield markdown(result.headline)
    yield ""
    yield f"Base: {_list(result.base)}. Head: {_list(result.head)}."
    for warning in result.warnings:
        yield ""
        yield f"⚠️ {markdown(warning)}"
    yield from _table(
        "What differs so that they must not be compared",
        ("field", "base", "head"),
        ((one.field, one.base, one.head) for one in result.mismatches),
    )
    yield from _table(
        "Blocking sites",
        ("decision", "site", "verdict", "evidence", "runs", "cost per step", "why"),
        (
            (
                f"{_SIGNS[site.decision]} {site.decision}",
                site.site,
                site.verdict,
                site.evidence,
                gate_tables.site_runs(site),
                gate_tables.site_cost(site),
                site.reason,
            )
            for site in result.sites
        ),
    )
    yield from _table(
        "Metrics",
        ("metric", "base", "head", "change", "interval", "verdict", "role"),
        (
            (
                f"{one.title}, {one.unit}",
                gate_tables.figure(one.base),
                gate_tables.figure(one.head),
                gate_tables.change(one),
                gate_tables.interval(one),
                f"{_SIGNS[one.verdict]} {one.verdict}" if one.judged else one.verdict,
                gate_tables.DECIDES[one.judged],
            )
            for one in result.metrics
        ),
    )
    yield from _table("What was changed", ("what", "base", "head"), gate_tables.changes(result))


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table under its title; nothing without rows."""
    for place, row in enumerate(rows):
        if place == 0:
            yield ""
            yield f"### {title}"
            yield ""
            yield f"| {' | '.join(columns)} |"
            yield f"|{' --- |' * len(columns)}"
        yield f"| {' | '.join(markdown(cell) for cell in row)} |"


def _list(labels: Sequence[str]) -> str:
    return ", ".join(markdown(label) for label in labels)


def markdown(text: str) -> str:
    """The text on one line, none of it markup; cut where it is very long."""
    return "".join(f"&#{ord(char)};" if char in _MARKUP else char for char in _one_line(text))


def _one_line(text: str) -> str:
    """The text without line breaks of any kind, cut where it is very long."""
    line = " ".join(clean(text).split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
