"""The runs that captures are, as the gate compares them; calibrated where that tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from latencylab.cli._input import Selection, Source, show_progress

if TYPE_CHECKING:
    from latencylab.analyzers.analyze import Examined
    from latencylab.model.gate import Run


def read_sides(
    source: Source, bases: Sequence[str], heads: Sequence[str], selection: Selection
) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
    """The runs of both sides. Where the first of each cannot be compared, none is calibrated: no figure of it
    would be judged, and calibration takes longest. Raises InputError.
    """
    from latencylab.analyzers.comparable import conflicts

    head, base = (examine_path(source, paths[0], selection) for paths in (heads, bases))
    plain = [_run(one, selection, calibrated=False) for one in (base, head)]
    if conflicts(plain[0].conditions, plain[1].conditions):
        firsts, calibrated = plain, False
    else:
        firsts, calibrated = [_run(one, selection) for one in (base, head)], True
    del head, base
    others = read_runs(source, (*bases[1:], *heads[1:]), selection, calibrated=calibrated)
    return (firsts[0], *others[: len(bases) - 1]), (firsts[1], *others[len(bases) - 1 :])


def read_runs(
    source: Source, paths: Sequence[str], selection: Selection, *, calibrated: bool = True
) -> tuple[Run, ...]:
    """The run of each path, one capture in memory at a time. Raises InputError."""
    return tuple(
        _run(examine_path(source, path, selection), selection, calibrated=calibrated) for path in paths
    )


def examine_path(source: Source, path: str, selection: Selection) -> Examined:
    """Read one capture of those that a command takes, and run the passes over it. Raises InputError."""
    capture = replace(source, paths=(path,)).open()
    with show_progress("analysing"):
        return selection.examine(capture)


def _run(examined: Examined, selection: Selection, *, calibrated: bool = True) -> Run:
    from latencylab.analyzers.gate import run_of

    with show_progress("calibrating" if calibrated else "analysing"):
        return run_of(examined.capture, selection.analyze_examined(examined, calibrated=calibrated))
