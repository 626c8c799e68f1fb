"""`latencylab site`: the runs of all commits, kept in a history and shown as a static site."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from latencylab.cli._exit import debug_option
from latencylab.cli._input import Selection, Source, show_progress, step_span_option, takes_capture
from latencylab.cli._output import check_folder, force_option, required_output, write_folder
from latencylab.model.integrity import InputError

if TYPE_CHECKING:
    from latencylab.traces.history import Record

_MOST_TEXT = 400

history_option = click.option(
    "--history",
    "folder",
    type=click.Path(path_type=Path),
    default=Path("latencylab-history"),
    show_default=True,
    metavar="DIR",
    help="The folder of the history.",
)


def _date(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """A time as ISO 8601 in UTC."""
    if value is None:
        return None
    try:
        return _in_utc(value)
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{value!r} is not a time such as 2026-11-29T13:05:04Z") from None


def _text(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """One line of a length that a page can show."""
    if value is None:
        return None
    line = value.strip().split("\n")[0].strip()
    if not line:
        raise click.BadParameter("it is empty")
    return line[:_MOST_TEXT]


@click.group("site")
@debug_option
def command() -> None:
    """Keep the runs of all commits, and show them as a static site."""


@command.command("add")
@takes_capture
@history_option
@click.option(
    "--commit", metavar="SHA", callback=_text, help="Of the code that ran; else as the manifest says."
)
@click.option("--message", metavar="TEXT", callback=_text, help="The commit's subject line.")
@click.option(
    "--date", metavar="TIME", callback=_date, help="The commit's time, ISO 8601; else the capture's own."
)
@click.option(
    "--config",
    metavar="NAME",
    callback=_text,
    help="Runs of one name are compared with each other; else the kind of their steps.",
)
@step_span_option
@click.option("--force", is_flag=True, help="Replace the run, if this capture is in the history already.")
@debug_option
def add(
    source: Source,
    folder: Path,
    commit: str | None,
    message: str | None,
    date: str | None,
    config: str | None,
    step_span: re.Pattern[str] | None,
    force: bool,
) -> None:
    """Store one run: its figures, its analysis and its report.

    A capture is stored once, however often it is added. One that is unusable is refused.
    """
    from latencylab.analyzers.gate_runs import run_of
    from latencylab.reports.contract import to_contract
    from latencylab.reports.site import plotly_name, plotly_text, render_report
    from latencylab.reports.site_runs import record_of
    from latencylab.traces.history import History, fingerprint

    capture = source.open()
    history = History.create(folder)
    run_id = fingerprint(capture)
    if not force and (there := history.find(run_id)) is not None:
        _say_there(there, folder)
        return
    analysis = Selection(None, None, None, None, step_span).analyze(capture, timelines=True)
    run = run_of(capture, analysis)
    if run.integrity == "unusable":
        raise InputError(f"{capture.path}: not added, for the capture is unusable: {run.unusable}")
    commit = commit or run.commit
    run = replace(run, commit=commit, label=commit or run_id)
    now = time.time_ns()
    record = record_of(
        analysis,
        run,
        id=run_id,
        config=config or run.kind or "default",
        commit=commit,
        message=message or "",
        date=date or _recorded(capture.manifest) or datetime.fromtimestamp(now / 1e9, UTC).isoformat(),
        added_ns=now,
        plotly=plotly_name(),
    )
    report = render_report(analysis)
    if history.add(record, to_contract(analysis), report, plotly=plotly_text(), replacing=force):
        click.echo(f"latencylab: added run {run_id} of {record.config} to {folder}", err=True)
    elif (there := history.find(run_id)) is not None:
        _say_there(there, folder)


@command.command("build")
@history_option
@required_output("The folder to write the site into.", "DIR")
@force_option
@debug_option
def build(folder: Path, output: Path, force: bool) -> None:
    """Write the site: the trend of each configuration, the report of every run, diffs of neighbours.

    Its links are relative: serve the folder from anywhere, or open its index.html.
    """
    check_folder(output, force=force)

    from latencylab.reports.site import write_site
    from latencylab.traces.history import History

    history = History.open(folder)
    runs = history.runs()
    if not runs:
        raise InputError(f"{folder}: the history holds no runs")
    with show_progress("writing the site"):
        write_folder(output, lambda into: write_site(history, runs, into), force=force)
    click.echo(
        f"latencylab: wrote {output / 'index.html'}, {len(runs)} run{'s' * (len(runs) != 1)}", err=True
    )


def _recorded(manifest: dict[str, Any] | None) -> str | None:
    """When the manifest says that the capture was made, in UTC; None where it says no time."""
    created = (manifest or {}).get("created")
    try:
        return _in_utc(created) if isinstance(created, str) else None
    except (ValueError, OverflowError):
        return None


def _in_utc(text: str) -> str:
    when = datetime.fromisoformat(text)
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone(UTC).isoformat()


def _say_there(record: Record, folder: Path) -> None:
    where = f"commit {record.commit}" if record.commit else "no commit"
    click.echo(
        f"latencylab: this capture is in {folder} already, as run {record.id} of {record.config}, {where};"
        " nothing was added (--force replaces it)",
        err=True,
    )
