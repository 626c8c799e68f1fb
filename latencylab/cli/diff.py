"""`latencylab diff`: what differs between two captures, as text, JSON or a page."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from latencylab.cli._exit import debug_option
from latencylab.cli._input import Selection, Source, show_progress, takes_capture, takes_selection
from latencylab.cli._output import STDOUT, check_file, console_text, output_option, print_or_write
from latencylab.cli._runs import examine_path

if TYPE_CHECKING:
    from latencylab.model.comparison import Comparison


class _TwoCaptures(click.Command):
    """Its usage names both captures; how they are read is what every command's CAPTURE takes."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [self.options_metavar or "", "BASE HEAD"]


@click.command("diff", cls=_TwoCaptures)
@takes_capture
@takes_selection
@click.option(
    "--format", "form", type=click.Choice(["text", "json", "html"]), default="text", show_default=True
)
@output_option
@click.option(
    "--force",
    is_flag=True,
    help="Compare what is not comparable all the same, and replace a file that exists.",
)
@debug_option
def command(source: Source, selection: Selection, form: str, output: Path, force: bool) -> None:
    """Say what differs between two captures: HEAD minus BASE, µs per step.

    BASE and HEAD are one capture each: a folder, a trace file, a glob in quotes (the files of several ranks)
    or sample:NAME. Captures of another GPU, driver, model, workload, way of tracing, kind of step or legs are
    refused with exit code 3. The commit, versions, switches and faults are what is compared, and named.
    """
    if len(source.paths) != 2:
        raise click.UsageError(
            f"takes two captures, BASE and HEAD, but got {len(source.paths)} (put a glob in quotes)",
            click.get_current_context(),
        )
    if output != STDOUT:
        check_file(output, force=force)

    base, head = (examine_path(source, path, selection) for path in source.paths)

    from latencylab.analyzers.diff import compare

    with show_progress("comparing"):
        comparison = compare(
            base,
            head,
            ranks=selection.ranks,
            steps=selection.steps,
            kind=selection.kind,
            force=force,
            drawn=form == "html",
        )
    text, encoding = _render(comparison, form, for_stdout=output == STDOUT)
    print_or_write(text, output, force=force, encoding=encoding)


def _render(comparison: Comparison, form: str, *, for_stdout: bool) -> tuple[str, str | None]:
    """The text, and the encoding that it must have: None for the terminal's own."""
    if form == "json":
        from latencylab.reports.diff_json import render_diff_json

        return render_diff_json(comparison) + "\n", "utf-8"
    if form == "html":
        from latencylab.reports.diff_html import render_diff_html

        return render_diff_html(comparison), "utf-8"
    from latencylab.reports.diff_text import render_diff_text

    return console_text(partial(render_diff_text, comparison), for_stdout=for_stdout), None
