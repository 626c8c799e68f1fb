"""`latencylab analyze`: the findings as text, as the JSON of the output contract, or as CSV tables."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from latencylab.cli._exit import debug_option
from latencylab.cli._input import Selection, Source, takes_capture, takes_selection
from latencylab.cli._output import (
    STDOUT,
    check_file,
    check_folder,
    console_text,
    force_option,
    print_or_write,
    write_folder,
)

if TYPE_CHECKING:
    from latencylab.model.findings import Analysis


@click.command("analyze")
@takes_capture
@takes_selection
@click.option(
    "--format", "form", type=click.Choice(["text", "json", "csv"]), default="text", show_default=True
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=STDOUT,
    metavar="FILE",
    help="Write here instead of stdout; a folder for csv.",
)
@force_option
@debug_option
def command(source: Source, selection: Selection, form: str, output: Path, force: bool) -> None:
    """Print what was found in a capture."""
    if form == "csv":
        if output == STDOUT:
            raise click.UsageError("--format csv writes several files: name a folder with -o")
        check_folder(output, force=force)
    elif output != STDOUT:
        check_file(output, force=force)

    analysis = selection.analyze(source.open())

    if form == "csv":
        from latencylab.reports.csv_tables import write_tables

        write_folder(output, partial(write_tables, analysis), force=force)
        return
    if form == "json":
        from latencylab.reports.contract import render_json

        text, encoding = render_json(analysis) + "\n", "utf-8"
    else:
        text, encoding = _as_text(analysis, for_stdout=output == STDOUT), None
    print_or_write(text, output, force=force, encoding=encoding)


def _as_text(analysis: Analysis, *, for_stdout: bool) -> str:
    """The text report: coloured and as wide as the terminal where it goes to one, else plain."""
    from latencylab.reports.text import render_text

    return console_text(partial(render_text, analysis), for_stdout=for_stdout)
