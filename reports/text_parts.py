"""Pieces of the terminal report: headings, tables and their colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from latencylab.model.findings import Sync
from latencylab.model.integrity import Issue
from latencylab.reports import format as fmt
from latencylab.reports.calibration import of_site

CONFIDENCE_STYLE = {"high": "green", "medium": "yellow", "low": "red"}
STATUS_STYLE = {"ok": "green", "degraded": "yellow", "unusable": "bold red"}
SEVERITY_STYLE = {"error": "bold red", "warning": "yellow", "info": "dim"}
ROLE_STYLE = {
    "wall": "bold",
    "busy": "",
    "wait": "medium_purple3",
    "host": "dark_orange",
    "gpu": "dodger_blue1",
    "unknown": "bright_black",
}
VERDICT_STYLE = {"harmful": "bold red", "pinning": "red", "unclear": "yellow", "hidden": "dim"}

NARROW = 76


def heading(title: str, console: Console) -> None:
    """An empty line, and the title of what follows."""
    console.print()
    console.print(Text(fmt.clean(title), style="bold"))


def amounts(rows: Iterable[tuple[str, float]], whole: float | None, style: str = "") -> Table:
    """Rows of µs, share of the whole, and a name that wraps rather than being cut."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", no_wrap=True, width=11)
    grid.add_column(justify="right", no_wrap=True, width=7)
    grid.add_column(overflow="fold")
    for name, us in rows:
        grid.add_row(Text(fmt.us(us), style=style), fmt.percent(fmt.share(us, whole)), Text(fmt.clean(name)))
    return grid


def numbers(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table of numbers whose last column is a name that wraps."""
    table = Table(box=None, padding=(0, 1, 0, 1), header_style="dim", pad_edge=True)
    for head in heads[:-1]:
        table.add_column(Text(head), justify="right", no_wrap=True)
    table.add_column(Text(heads[-1]), overflow="fold")
    for row in rows:
        table.add_row(*(Text(fmt.clean(cell)) for cell in row))
    return table


def indented(text: str | Text, by: int, style: str = "") -> Padding:
    """Text of which every line that it wraps into is indented."""
    shown = Text(fmt.clean(text), style=style) if isinstance(text, str) else text
    return Padding(shown, (0, 0, 0, by), expand=False)


def issue_row(issue: Issue) -> Padding:
    """One defect of the input."""
    line = Text()
    line.append(issue.severity, style=SEVERITY_STYLE[issue.severity])
    line.append(f" {fmt.clean(issue.code)} \N{MULTIPLICATION SIGN}{issue.count:,}: {fmt.clean(issue.detail)}")
    return indented(line, 2)


def blocking(syncs: Sequence[Sync], width: int, notes: bool = False) -> list[Text | Padding]:
    """A header, then two lines a site: its numbers in columns, and its whole name below them.

    With `notes`, what is known of the copy, the op waited for and the Python frames follows.
    """
    narrow = width < NARROW
    columns = (8, 6, 9, 10, 9, 9) if narrow else (8, 7, 10, 11, 11, 11)
    head = ("verdict", "/step", "blocked", "owns idle", "behind", "need")
    lines: list[Text | Padding] = [
        Text("  " + _columns(head, columns) + ("" if narrow else "  evidence"), style="dim")
    ]
    for sync in syncs:
        dim = "dim" if sync.verdict == "hidden" else ""
        cells = (
            sync.verdict,
            fmt.per_step(sync.per_step),
            fmt.us(sync.blocked_us),
            fmt.us(sync.idle_us),
            fmt.us(sync.behind_us),
            fmt.us(sync.need_us),
        )
        shown = _columns(cells, columns) + ("" if narrow else f"  {sync.evidence}")
        lines.append(Text("  " + shown, style=VERDICT_STYLE[sync.verdict]))
        lines.append(indented(sync.site, 4, dim))
        if (unprofiled := of_site(sync)) and (notes or sync.verdict != "hidden"):
            lines.append(indented(unprofiled, 6, dim))
        if notes:
            lines.extend(indented(note, 6, "dim") for note in _notes(sync, narrow))
    return lines


def _notes(sync: Sync, narrow: bool) -> list[str]:
    """What else is known of a site, one sentence a line."""
    notes = [f"evidence: {sync.evidence}"] if narrow else []
    if sync.waits_for:
        notes.append(f"waits for {sync.waits_for}")
    if sync.seam:
        notes.append(f"in the seam before {sync.seam}")
    queued = fmt.finite(sync.queued_us)
    notes.append(
        f"{fmt.count(sync.calls, 'call')} of {fmt.us_unit(sync.call_us)} (median)"
        + (f", {fmt.us_unit(queued)} of work still queued at the return" if queued is not None else "")
    )
    if sync.frames:
        notes.append("called from " + " < ".join(sync.frames[:3]))
    return notes


def _columns(cells: tuple[str, ...], widths: tuple[int, ...]) -> str:
    """The first cell flush left, the others flush right."""
    first, *others = cells
    return first.ljust(widths[0]) + "".join(c.rjust(w) for c, w in zip(others, widths[1:], strict=True))
