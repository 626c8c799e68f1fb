"""Several ranks on a terminal: who is late and why on the first screen, clocks and collectives below it."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from latencylab.model.findings import Alignment, Analysis, Collectives, Late
from latencylab.reports import format as fmt
from latencylab.reports import ranks
from latencylab.reports.names import collective_name
from latencylab.reports.text_parts import ROLE_STYLE, heading, indented, issue_row, numbers

_TOP_LATE = 2
_TOP_GROUPS = 2
_TOP_CAUSES = 2
_MANY_CAUSES = 5


def print_late(analysis: Analysis, console: Console) -> None:
    """Who is late, by how much and why, what single ranks do beyond the others, and how well the clocks are
    known; nothing for one rank.
    """
    if not ranks.several(analysis):
        return
    found, alignment = analysis.collectives, analysis.alignment
    heading(ranks.answer(analysis), console)
    if found is None or alignment is None:
        for issue in ranks.issues(analysis):
            console.print(issue_row(issue))
        return
    console.print(indented(ranks.wait_text(analysis), 2))
    console.print(indented(ranks.resolved_text(analysis), 2, "dim"))
    if found.late:
        console.print(_late_table(analysis, found.late[:_TOP_LATE], brief=True))
        if len(found.late) > _TOP_LATE:
            console.print(indented(f"{len(found.late) - _TOP_LATE} more below", 2, "dim"))
    for its in found.uneven:
        console.print(indented(fmt.clean(ranks.uneven_text(analysis, its)), 2))
    known = any(clock.shifted for clock in alignment.ranks)
    console.print(indented(ranks.clocks_line(alignment), 2, "" if known else "dim"))


def print_ranks(analysis: Analysis, console: Console) -> None:
    """All ranks that were late, the clocks, the collectives by kind, and what is odd about them."""
    if not ranks.several(analysis):
        return
    found, alignment = analysis.collectives, analysis.alignment
    if found is not None and found.late:
        heading(
            "Who is late, µs/step that the other ranks wait for it, and share of what is resolved", console
        )
        console.print(_late_table(analysis, found.late, brief=False))
        console.print(indented(ranks.resolved_text(analysis), 2, "dim"))
        console.print(indented(ranks.CAUSES_MEAN, 2, "dim"))
    if alignment is not None:
        _clocks(alignment, console)
    if found is not None:
        _kinds(analysis, found, console)


def _late_table(analysis: Analysis, late: tuple[Late, ...], *, brief: bool) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", no_wrap=True, min_width=11)
    grid.add_column(justify="right", no_wrap=True, width=7)
    grid.add_column(overflow="fold")
    for its in late:
        why = Text(f"rank {its.rank}", style="bold")
        why.append(f", last in {fmt.count(its.count, 'collective')}", style="not bold")
        groups = ranks.groups(its)
        for group in groups[: _TOP_GROUPS if brief else None]:
            text = group.text(_TOP_CAUSES if brief else _MANY_CAUSES)
            why.append("\n" + fmt.clean(text), style=f"not bold {_style(group)}")
        if not brief or ranks.rests_on_fit(analysis, its):
            why.append("\n" + ranks.sureness(analysis, its), style="not bold dim")
        grid.add_row(Text("  " + ranks.late_us(analysis, its)), fmt.percent(its.share), why)
    return grid


def _style(group: ranks.Group) -> str:
    return "" if group.role in ("busy", "wait") else ROLE_STYLE[group.role]


def _clocks(alignment: Alignment, console: Console) -> None:
    heading(f"Clocks against rank {alignment.reference}, µs", console)
    table = numbers(("rank", "offset", "± residual", "guaranteed", "drift ppm", "points", "note"), ())
    for clock in alignment.ranks:
        is_reference = clock.rank == alignment.reference
        cells = (
            f"{clock.rank}",
            fmt.signed_us(clock.offset_us),
            "" if is_reference else fmt.us(clock.residual_us),
            "" if is_reference else ranks.bound_text(clock),
            fmt.signed_us(clock.drift_ppm),
            f"{clock.points:,}",
            clock.note,
        )
        dim = "" if clock.shifted or is_reference else "dim"
        table.add_row(*(Text(fmt.clean(cell), style=dim) for cell in cells))
    console.print(table)


def _kinds(analysis: Analysis, found: Collectives, console: Console) -> None:
    heading("Collectives by kind, µs/step, mean over ranks", console)
    table = numbers(("per step", "wait", "transfer", "±", "median skew", "resolved", "kind"), ())
    for kind in found.kinds:
        cells = (
            fmt.per_step(kind.count),
            fmt.us(kind.wait_us),
            fmt.us(kind.transfer_us),
            fmt.us(ranks.precision(analysis) * fmt.amount(kind.count)),
            ranks.skew_text(analysis, kind),
            ranks.resolved_of(kind),
            collective_name(kind.name),
        )
        table.add_row(*(Text(fmt.clean(cell), style="" if kind.resolved else "dim") for cell in cells))
    console.print(table)
    for note in (ranks.unpaired_text(analysis), *found.notes):
        if note:
            console.print(indented(note, 2))
