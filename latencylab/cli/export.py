"""`latencylab export`: one native Perfetto trace of all ranks, on one clock, with what was found."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from latencylab.cli._exit import debug_option
from latencylab.cli._input import Selection, Source, _progress, takes_capture, takes_selection
from latencylab.cli._output import STDOUT, check_file, force_option, open_file
from latencylab.model.integrity import InputError

if TYPE_CHECKING:  # these import numpy
    from latencylab.analyzers.view import RankView
    from latencylab.model.trace import I64


@click.command("export")
@takes_capture
@takes_selection
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="The trace to write, such as all-ranks.pftrace.",
)
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
    with open_file(output, force=force) as file, _progress("writing"):
        write(file)
    click.echo(f"latencylab: wrote {output}", err=True)


def prepare_export(source: Source, selection: Selection) -> Callable[[BinaryIO], None]:
    """Read and analyse the capture; returns what writes the selected part of it as a Perfetto trace.

    Raises InputError where the capture has no such part.
    """
    from latencylab.analyzers.kernels import load_classes
    from latencylab.analyzers.ranks import join_ranks
    from latencylab.analyzers.view import RankView
    from latencylab.reports.perfetto import write_perfetto

    capture = source.open()
    table = load_classes(selection.classes)
    with _progress("analysing"):
        views = tuple(RankView.of(trace, table) for trace in capture.traces)
        joined = join_ranks(views)
    if len(views) > 1 and joined is None:
        click.echo(
            "latencylab: warning: nothing pairs these ranks, so their clocks are not aligned", err=True
        )
    chosen = [view for view in views if selection.ranks is None or view.trace.rank in selection.ranks]
    if not chosen:
        there = ", ".join(str(view.trace.rank) for view in views)
        raise InputError(f"{capture.path}: none of the ranks asked for; it has {there}")
    steps = None
    if selection.steps is not None or selection.kind is not None:
        steps = [_chosen_steps(view, selection, capture.path) for view in chosen]
    return partial(write_perfetto, views=chosen, joined=joined, steps=steps)


def _chosen_steps(view: RankView, selection: Selection, path: str) -> I64:
    """The rows of the steps asked for, in the rank's step table."""
    import numpy as np

    first, last = selection.steps or (0, len(view.steps))
    kinds = view.steps.kind[first:last]
    rows = [first + i for i, kind in enumerate(kinds) if selection.kind in (None, kind)]
    if not rows:
        there = ", ".join(dict.fromkeys(view.steps.kind)) or "none"
        raise InputError(
            f"{path}: rank {view.trace.rank} has no such steps; found: {len(view.steps)}, kinds: {there}"
        )
    return np.array(rows, np.int64)
