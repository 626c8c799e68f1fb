"""`latencylab report`: one HTML file that needs nothing else."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from latencylab.cli._exit import debug_option
from latencylab.cli._input import Selection, Source, takes_capture, takes_selection
from latencylab.cli._output import (
    STDOUT,
    check_file,
    check_folder,
    force_option,
    print_text,
    required_output,
    write_file,
    write_folder,
)


@click.command("report")
@takes_capture
@takes_selection
@required_output("The HTML file to write, or - for stdout.")
@click.option(
    "--csv",
    "tables",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write the tables here as CSV, too.",
)
@force_option
@debug_option
def command(source: Source, selection: Selection, output: Path, tables: Path | None, force: bool) -> None:
    """Write a self-contained HTML report of a capture."""
    if output != STDOUT:
        check_file(output, force=force)
    if tables is not None:
        check_folder(tables, force=force)

    analysis = selection.analyze(source.open(), timelines=True)

    from latencylab.reports.html import render_html

    page = render_html(analysis)
    if tables is not None:
        from latencylab.reports.csv_tables import write_tables

        write_folder(tables, partial(write_tables, analysis), force=force)
    if output == STDOUT:
        print_text(page, "utf-8")
    else:
        write_file(output, page, force=force)
        click.echo(f"latencylab: wrote {output}", err=True)
