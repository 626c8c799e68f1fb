"""`latencylab export`: one native Perfetto trace of all ranks, on one clock, with what was found."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO

import click

from latencylab.cli._exit import debug_option
from latencylab.cli._input import Selection, Source, show_progress, takes_capture, takes_selection
from latencylab.cli._output import STDOUT, check_file, force_option, open_file, required_output


@click.command("export")
@takes_capture
@takes_selection
@required_output("The trace to write, such as all-ranks.pftrace.")
@force_option
@debug_option
def command(source: Source, selection: Selection, output: Path, force: bool) -> None:
    """Write all ranks of a capture as one Perfetto trace on aligned clocks.

    Clocks are aligned by all ranks of the capture, also where --rank writes only some of them.
    """
    if output == STDOUT:
        raise click.UsageError("a trace is not text: name a file with -o", click.get_current_context())
    check_file(output, force=force)
    write = prepare_export(source, selection)
    with open_file(output, force=force) as file, show_progress("writing"):
        write(file)
    click.echo(f"latencylab: wrote {output}", err=True)


def prepare_export(source: Source, selection: Selection) -> Callable[[BinaryIO], None]:
    """Read and analyse the capture; returns what writes the selected part of it as a Perfetto trace.

    Raises InputError where the capture has no such part.
    """
    from latencylab.analyzers.analyze import settled
    from latencylab.reports.perfetto import write_perfetto

    capture = source.open()
    with show_progress("analysing"):
        examined = selection.examine(capture)
    if len(examined.views) > 1 and examined.joined is None:
        click.echo(
            "latencylab: warning: nothing pairs these ranks, so their clocks are not aligned", err=True
        )
    places = examined.places(selection.ranks)
    steps = None
    if selection.steps is not None or selection.kind is not None:
        steps = [examined.steps(place, selection.steps, selection.kind) for place in places]
    chosen = [examined.views[place] for place in places]
    joined = settled(examined, steps=selection.steps, kind=selection.kind)
    return partial(write_perfetto, views=chosen, joined=joined, steps=steps)
