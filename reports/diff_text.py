"""A comparison on a terminal: its first line says what changed most, and why."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from latencylab.model.comparison import Comparison, KindChange, SiteChange, UnprofiledChange
from latencylab.reports import diff_tables as tables
from latencylab.reports import format as fmt
from latencylab.reports.text_parts import VERDICT_STYLE, heading, indented


def render_diff_text(comparison: Comparison, console: Console) -> None:
    """Print the comparison. Colours, width and NO_COLOR are the console's to decide."""
    if banner := tables.banner(comparison):
        console.print(Text(fmt.clean(banner), style="bold red"))
    console.print(Text(fmt.clean(tables.headline(comparison)), style="bold"))
    main = comparison.kinds[0]
    console.print(Text(fmt.clean(f"base: {tables.side(comparison.base, main, True)}"), style="dim"))
    console.print(Text(fmt.clean(f"head: {tables.side(comparison.head, main, False)}"), style="dim"))
    _circumstances(comparison, console)
    if comparison.unprofiled is not None:
        _unprofiled(comparison.unprofiled, console)
    _sections(tables.calibration_sections(comparison), console)
    for number, kind in enumerate(comparison.kinds):
        _kind(kind, len(comparison.kinds) > 1, console)
        if number == 0:
            _sections(tables.collective_sections(comparison), console)
    console.print()
    for note in (*comparison.notes, tables.INTERVAL):
        console.print(indented(note, 2, "dim"))


def _circumstances(comparison: Comparison, console: Console) -> None:
    for title, lines in (
        ("changed", tables.changed(comparison)),
        ("not known", tables.not_known(comparison)),
    ):
        for line in lines:
            console.print(indented(f"{title}: {line}", 0, "" if title == "changed" else "dim"))


def _unprofiled(found: UnprofiledChange, console: Console) -> None:
    heading("Without the profiler, ms per step: median of the requests", console)
    step = found.step_ms
    for name, value, count, spread in (
        ("base", step.base, found.base_requests, found.base_range),
        ("head", step.head, found.head_requests, found.head_range),
    ):
        said = "not measured"
        if value is not None and spread is not None:
            said = f"{value:.3f}  ({fmt.count(count, 'request')}, {spread[0]:.3f} to {spread[1]:.3f})"
        console.print(Text(f"  {name}    {said}"))
    if step.change is not None:
        interval = tables.interval(step, ms=True)
        console.print(Text(f"  change  {tables.signed(step.change, ms=True)}  (95 % interval {interval})"))


def _kind(kind: KindChange, several: bool, console: Console) -> None:
    if several:
        console.print()
        console.rule(Text(fmt.clean(f"rank {kind.rank}, {kind.kind} steps")), style="dim")
    first, *others = tables.sections(kind)
    _sections([first], console)
    if kind.sites:
        heading("Blocking calls, µs per step", console)
        for site in kind.sites:
            _site(site, console)
    _sections(others, console)


def _sections(sections: Sequence[tables.Section], console: Console) -> None:
    for section in sections:
        heading(section.title, console)
        console.print(_table(section.what, section.lines, console.width))


def _site(site: SiteChange, console: Console) -> None:
    verdict = site.head_verdict or site.base_verdict
    style = VERDICT_STYLE[verdict] if verdict and site.how != "same" else "dim"
    console.print(indented(f"{tables.site_detail(site)}: {site.site}", 2, style))
    numbers = ", ".join(
        f"{name} {show(delta.base)} to {show(delta.head)}"
        for name, delta, show in (
            ("calls", site.per_step, fmt.per_step),
            ("blocked", site.blocked_us, fmt.us),
            ("owns idle", site.idle_us, fmt.us),
        )
    )
    console.print(indented(numbers, 4, "dim"))


def _table(what: str, lines: Sequence[tables.Line], width: int) -> Table:
    """Base, head, change and interval in columns; what is within the noise is dim."""
    table = Table(box=None, padding=(0, 1, 0, 1), header_style="dim", pad_edge=True)
    wide = width >= 76
    for head in ("base", "head", "change", *(["95 % interval"] if wide else [])):
        table.add_column(Text(head), justify="right", no_wrap=True)
    table.add_column(Text(what), overflow="fold")
    for line in lines:
        style = "" if line.sure else "dim"
        cells = [fmt.us(line.delta.base), fmt.us(line.delta.head), fmt.signed_us(line.delta.change)]
        cells += [tables.interval(line.delta)] if wide else []
        name = Text("  " * line.depth + fmt.clean(line.name), style=style)
        if line.detail:
            name.append(f"  {fmt.clean(line.detail)}", style="dim")
        table.add_row(*(Text(cell, style=style) for cell in cells), name)
    return table
