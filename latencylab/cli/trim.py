"""`latencylab trim`: some steps of a capture as a capture of their own."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from latencylab.cli._exit import debug_option
from latencylab.cli._input import Source, rank_option, step_range, step_span_option, takes_capture
from latencylab.cli._output import check_folder, force_option, required_output
from latencylab.model.integrity import InputError


def _closed_range(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, int] | None:
    steps = step_range(context, parameter, value)
    if steps is not None and steps[1] == sys.maxsize:
        raise click.BadParameter(f"{value!r} has no end")
    return steps


@click.command("trim")
@takes_capture
@click.option(
    "--steps",
    metavar="A:B",
    required=True,
    callback=_closed_range,
    help="Keep steps A up to B of each rank, B left out, counted from 0.",
)
@rank_option
@required_output("The capture folder to write.", "DIR")
@step_span_option
@force_option
@debug_option
def command(
    source: Source,
    steps: tuple[int, int],
    ranks: tuple[int, ...],
    step_span: re.Pattern[str] | None,
    output: Path,
    force: bool,
) -> None:
    """Cut a capture down to some of its steps, as a smaller capture that can be shared.

    Paths and the names of hosts and users are cleared from what is kept.
    """
    check_folder(output, force=force)
    capture = source.open()
    kept = [trace for trace in capture.traces if not ranks or trace.rank in ranks]
    if not kept:
        there = ", ".join(str(trace.rank) for trace in capture.traces)
        raise InputError(f"{capture.path}: none of the ranks asked for; it has {there}")

    from latencylab.analyzers import host_window
    from latencylab.traces.trim import trim_capture

    windows = {trace.rank: host_window(trace, *steps, step_span) for trace in kept}
    latest, earliest = max(start for start, _ in windows.values()), min(end for _, end in windows.values())
    if latest >= earliest:
        click.echo(
            "latencylab: warning: steps count from where each rank's record begins, and these ranks began so"
            " far apart that the steps kept have no time in common",
            err=True,
        )
    trim_capture(capture, windows, output, about={"steps": list(steps)}, force=force)
