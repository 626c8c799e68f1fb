"""The analysis on a terminal: the first screen says where the step went, whose fault and what to do."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from latencylab.model.findings import Analysis, KindFindings, RankFindings
from latencylab.reports import calibration, summary, text_details, text_ranks
from latencylab.reports import format as fmt
from latencylab.reports.text_parts import (
    CONFIDENCE_STYLE,
    ROLE_STYLE,
    STATUS_STYLE,
    amounts,
    blocking,
    heading,
    indented,
    issue_row,
)

_TOP_BLAME = 4
_TOP_SITES = 4
_TOP_FIXES = 3
_TOP_ISSUES = 3
_TOP_REASONS = 2
_TOP_RANKS = 8
# Of waits, which are no work though busy includes them.
_HATCHING = "▒"


def render_text(analysis: Analysis, console: Console) -> None:
    """Print the analysis. Colours, width and NO_COLOR are the console's to decide."""
    _first_screen(analysis, console)
    rank = summary.focus(analysis)
    if rank is not None:
        text_details.print_details(analysis, rank, console)


def _first_screen(analysis: Analysis, console: Console) -> None:
    rank = summary.focus(analysis)
    _headline(analysis, rank, console)
    _integrity(analysis, console)
    if rank is None:
        return
    _waterfall(analysis, rank, console)
    _calibration(analysis, rank, console)
    text_ranks.print_late(analysis, console)
    _blame(analysis, rank.main, summary.step_parts(rank).idle_host, console)
    _blocking(rank.main, console)
    _fixes(analysis, console)
    _ranks(analysis, rank, console)


def _headline(analysis: Analysis, rank: RankFindings | None, console: Console) -> None:
    verdict = analysis.verdict
    first, *further = summary.sentences(analysis)
    console.print(Text(fmt.clean(first), style="bold"))
    for sentence in further:
        console.print(indented(fmt.clean(sentence), 2))
    sure = Text("confidence: ")
    sure.append(verdict.confidence, style=CONFIDENCE_STYLE[verdict.confidence])
    if verdict.reasons:
        sure.append(" (" + fmt.clean("; ".join(verdict.reasons[:_TOP_REASONS])))
        more = len(verdict.reasons) - _TOP_REASONS
        sure.append(f"; {more} more below)" if more > 0 else ")")
    console.print(sure)
    if rank is None:
        console.print(Text("no GPU work was found on any rank", style="dim"))
        return
    where = f"rank {rank.rank}"
    if len(analysis.ranks) > 1:
        where += f" in front (of {len(analysis.ranks)})"
    steps = rank.main.steps
    found = f"{steps.steady} of {fmt.count(steps.found, 'step')} steady" if steps.found else "no steps found"
    parts = [where, f"{rank.device_name or 'GPU'} {rank.device}", rank.main.kind or "", found]
    console.print(Text(fmt.clean(" · ".join(p for p in parts if p)), style="dim"))


def _integrity(analysis: Analysis, console: Console) -> None:
    integrity = analysis.integrity
    line = Text("integrity: ")
    line.append(integrity.status, style=STATUS_STYLE[integrity.status])
    if integrity.status == "ok":
        if integrity.issues:
            line.append(f" ({fmt.count(len(integrity.issues), 'note')} below)", style="dim")
        console.print(line)
        return
    shown = [i for i in integrity.issues if i.severity != "info"][:_TOP_ISSUES]
    more = len(integrity.issues) - len(shown)
    if more:
        line.append(f" ({more} more below)", style="dim")
    console.print(line)
    for issue in shown:
        console.print(issue_row(issue))


def _waterfall(analysis: Analysis, rank: RankFindings, console: Console) -> None:
    parts = summary.step_parts(rank)
    spread = rank.main.steps.wall_us
    title = f"Where a {summary.unit(rank.main)} goes, µs: {summary.basis(rank.main)}"
    if spread is not None and rank.main.step_us is not None:
        title += f"; median {fmt.us(spread.median)}, p10 to p90 {fmt.us(spread.p10)} to {fmt.us(spread.p90)}"
    heading(title, console)
    wall = fmt.amount(parts.wall)
    width = max(8, min(console.width, 110) - 46)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True, width=24)
    grid.add_column(justify="right", no_wrap=True, width=10)
    grid.add_column(justify="right", no_wrap=True, width=7)
    grid.add_column(no_wrap=True, width=width)
    for row in summary.waterfall(parts):
        style = ROLE_STYLE[row.role]
        end = row.start_us + fmt.amount(row.us)
        fill = _HATCHING if row.role == "wait" else ""
        drawn = fmt.bar(row.start_us / wall, end / wall, width, fill) if wall else ""
        grid.add_row(
            Text("  " * (row.depth + 1) + row.label, style=style),
            Text(fmt.us(row.us), style=style),
            Text(fmt.percent(fmt.share(row.us, parts.wall)), style=style),
            Text(drawn, style="dim" if row.depth and not fill else style),
        )
    console.print(grid)
    if fmt.amount(parts.idle_host) > 0:
        console.print(indented(f"host idle {calibration.host_note(analysis)}", 2, "dim"))


def _calibration(analysis: Analysis, rank: RankFindings, console: Console) -> None:
    found = analysis.calibration
    if found is None or not calibration.shown(analysis):
        return
    console.print()
    line = Text("Calibration: ", style="bold")
    line.append(calibration.headline(found), style=calibration.STATUS_STYLE[found.status])
    console.print(line)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True, width=11)
    grid.add_column(overflow="fold")
    for topic, sentence in calibration.lines(found, summary.step_parts(rank).idle_host):
        grid.add_row(Text(f"  {topic}", style="dim"), Text(fmt.clean(sentence)))
    console.print(grid)


def _blame(analysis: Analysis, kind: KindFindings, idle_host: float | None, console: Console) -> None:
    rows = summary.blame_rows(kind, idle_host, _TOP_BLAME)
    if not rows:
        return
    title = f"Host idle is blamed on, µs/{summary.unit(kind)} and share of it, {calibration.word(analysis)}"
    heading(title, console)
    console.print(amounts(rows, idle_host, ROLE_STYLE["host"]))


def _blocking(kind: KindFindings, console: Console) -> None:
    syncs = summary.ordered_syncs(kind)
    heading(f"Blocking calls: {summary.verdict_counts(kind)}", console)
    if not syncs:
        return
    for line in blocking(syncs[:_TOP_SITES], console.width):
        console.print(line)
    if len(syncs) > _TOP_SITES:
        console.print(Text(f"  {fmt.count(len(syncs) - _TOP_SITES, 'more site')} below", style="dim"))


def _fixes(analysis: Analysis, console: Console) -> None:
    if not analysis.fixes:
        return
    heading("Fix first, µs/step each by itself", console)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", no_wrap=True, width=4)
    grid.add_column(justify="right", no_wrap=True, width=11)
    grid.add_column(overflow="fold")
    for number, fix in enumerate(analysis.fixes[:_TOP_FIXES], 1):
        grid.add_row(f"{number}.", Text(summary.gain(fix), style="bold"), Text(fmt.clean(fix.what)))
    console.print(grid)
    more = len(analysis.fixes) - _TOP_FIXES
    notes = [f"{more} more below"] if more > 0 else []
    if bounds := summary.bounds(analysis.fixes[:_TOP_FIXES]):
        notes.append(bounds)
    if notes:
        console.print(indented("; ".join(notes), 2, "dim"))


def _ranks(analysis: Analysis, front: RankFindings, console: Console) -> None:
    others = [r for r in analysis.ranks if r is not front]
    if not others:
        return
    heading(f"Other ranks, host idle {calibration.host_note(analysis)}", console)
    for rank in others[:_TOP_RANKS]:
        parts = summary.step_parts(rank)
        line = Text(f"rank {rank.rank}: {summary.unit(rank.main)} {fmt.duration(parts.wall)}, busy ")
        line.append(fmt.percent(fmt.share(parts.busy, parts.wall)))
        line.append(", host idle ")
        line.append(fmt.percent(fmt.share(parts.idle_host, parts.wall)), style=ROLE_STYLE["host"])
        line.append(", GPU idle ")
        line.append(fmt.percent(fmt.share(parts.idle_gpu, parts.wall)), style=ROLE_STYLE["gpu"])
        worst = summary.verdict_counts(rank.main).split(", ")[0]
        line.append(f"; {worst}" if rank.main.syncs else "", style="dim")
        console.print(indented(line, 2))
    if len(others) > _TOP_RANKS:
        console.print(Text(f"  {len(others) - _TOP_RANKS} more in the JSON and CSV output", style="dim"))
