"""The gate's decision as text for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from latencylab.model.gate import Decision, GateResult
from latencylab.reports import gate_tables
from latencylab.reports.format import clean

_STYLES: dict[Decision, str] = {
    "regression": "bold red",
    "improvement": "green",
    "unchanged": "green",
    "inconclusive": "yellow",
    "incomparable": "yellow",
}


def render_gate_text(result: GateResult, console: Console) -> None:
    """Print the decision: the first line says it, and what led to it follows."""
    _line(console, result.headline, _STYLES[result.verdict])
    _line(console, f"base: {', '.join(result.base)}")
    _line(console, f"head: {', '.join(result.head)}")
    for warning in result.warnings:
        _line(console, f"warning: {warning}", "yellow")
    if result.mismatches:
        table = _table("What differs so that they must not be compared", "field", "base", "head")
        for mismatch in result.mismatches:
            table.add_row(*_cells(mismatch.field, mismatch.base, mismatch.head))
        console.print(table)
    if result.sites:
        table = _table(
            "Blocking sites", "decision", "site", "verdict", "evidence", "runs", "cost/step", "why"
        )
        for site in result.sites:
            cells = _cells(
                site.decision,
                site.site,
                site.verdict,
                site.evidence,
                gate_tables.site_runs(site),
                gate_tables.site_cost(site),
                site.reason,
            )
            cells[0].stylize(_STYLES[site.decision])
            table.add_row(*cells)
        console.print(table)
    if result.metrics:
        table = _table(
            "Metrics, runs as the unit",
            "metric",
            "unit",
            "base",
            "head",
            "change",
            "interval",
            "verdict",
            "role",
        )
        for one in result.metrics:
            cells = _cells(
                one.title,
                one.unit,
                gate_tables.figure(one.base),
                gate_tables.figure(one.head),
                gate_tables.change(one),
                gate_tables.interval(one),
                one.verdict,
                gate_tables.DECIDES[one.judged],
            )
            cells[6].stylize(_STYLES[one.verdict])
            table.add_row(*cells)
        console.print(table)
    changed = gate_tables.changes(result)
    if changed:
        table = _table("What was changed", "what", "base", "head")
        for row in changed:
            table.add_row(*_cells(*row))
        console.print(table)


def _line(console: Console, text: str, style: str = "") -> None:
    """One line, however long: what stands first must stay one line."""
    console.print(Text(clean(text), style=style), soft_wrap=True)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _cells(*texts: str) -> list[Text]:
    """Cells whose text is no markup."""
    return [Text(clean(text)) for text in texts]
