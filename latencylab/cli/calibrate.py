"""`latencylab calibrate`: what a step is without the profiler, and what a change would give."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from latencylab.cli._exit import debug_option
from latencylab.cli._input import (
    Selection,
    Source,
    not_empty,
    show_progress,
    takes_capture,
    takes_selection,
)
from latencylab.cli._output import (
    STDOUT,
    check_file,
    console_text,
    force_option,
    output_option,
    print_or_write,
)

if TYPE_CHECKING:
    from latencylab.analyzers.calibration import Calibrated
    from latencylab.analyzers.what_if import Change
    from latencylab.model.calibration import Calibration, Prediction

Factors = tuple[tuple[str, float], ...]


def _factors(_context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> Factors:
    """NAME=FACTOR, several times; NAME may hold = itself."""
    found = []
    for value in values:
        name, _, text = value.rpartition("=")
        try:
            factor = float(text.strip().removesuffix("x"))
        except ValueError:
            factor = math.nan
        least = 0.0 if parameter.name == "scales" else 1.0
        if not name or not math.isfinite(factor) or factor < least:
            example = "draft=0.5" if parameter.name == "scales" else "MoE GEMM=2x, 1x or more"
            raise click.BadParameter(f"{value!r} is not like {example}")
        found.append((name, factor))
    return tuple(found)


@click.command("calibrate")
@takes_capture
@takes_selection
@click.option(
    "--without",
    "sites",
    multiple=True,
    metavar="SITE",
    callback=not_empty,
    help="Without this site's wait; part of its name will do.",
)
@click.option(
    "--scale",
    "scales",
    multiple=True,
    metavar="SPAN=0.5",
    callback=_factors,
    help="Host time in this span times so much.",
)
@click.option(
    "--faster",
    "kernels",
    multiple=True,
    metavar="KERNEL=2x",
    callback=_factors,
    help="Kernels of this class or name so many times faster.",
)
@click.option("--no-skew", is_flag=True, help="No rank waits for another in collectives.")
@click.option(
    "--map-from", metavar="CAPTURE", help="Take the host's map from this capture of the same software."
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@output_option
@force_option
@debug_option
def command(
    source: Source,
    selection: Selection,
    sites: tuple[str, ...],
    scales: Factors,
    kernels: Factors,
    no_skew: bool,
    map_from: str | None,
    form: str,
    output: Path,
    force: bool,
) -> None:
    """Predict the step without the profiler, and what changes would make of it.

    --without, --scale, --faster and --no-skew are made together.
    """
    if output != STDOUT:
        check_file(output, force=force)
    calibrated, name = _calibrate(source, selection, map_from)
    change = _change(sites, scales, kernels, no_skew)
    prediction = calibrated.predict(change) if change else None
    text = _rendered(form, name, calibrated.found, prediction, for_stdout=output == STDOUT)
    print_or_write(text, output, force=force, encoding="utf-8" if form == "json" else None)


def _change(sites: tuple[str, ...], scales: Factors, kernels: Factors, no_skew: bool) -> Change:
    from latencylab.analyzers.what_if import Change

    parts = [f"host time in span {span} times {factor:g}" for span, factor in scales]
    parts += [f"{kernel} kernels {factor:g} times faster" for kernel, factor in kernels]
    parts += ["no wait for other ranks"] if no_skew else []
    return Change("; ".join(parts), sites=sites, spans=scales, kernels=kernels, peers=0.0 if no_skew else 1.0)


def _calibrate(source: Source, selection: Selection, map_from: str | None) -> tuple[Calibrated, str]:
    from latencylab.analyzers import kind_in_front
    from latencylab.analyzers.calibrate import fit_model
    from latencylab.analyzers.calibration import (
        calibrate_by_clock,
        calibrate_by_map,
        clock_of,
        wait_by_op,
    )
    from latencylab.analyzers.host_map_carry import refuse_other_software
    from latencylab.model.integrity import InputError

    capture = source.open()
    other = None if map_from is None else replace(source, paths=(map_from,)).open()
    with show_progress("calibrating"):
        examined = selection.examine(capture)
        view = kind_in_front(examined, ranks=selection.ranks, steps=selection.steps, kind=selection.kind)
        try:
            if other is None:
                return calibrate_by_clock(view, capture.unprofiled, examined.joined), capture.path
        except InputError as error:
            clocks = capture.unprofiled.clocks if capture.unprofiled else {}
            hint = "" if view.rank.trace.rank in clocks else "; --map-from takes another capture's"
            raise InputError(f"{capture.path}: {error}{hint}") from None
        try:
            refuse_other_software(other.manifest, capture.manifest)
            theirs = selection.examine(other)
            their_view = kind_in_front(theirs)
            clock = clock_of(their_view, other.unprofiled)
            model, _ = fit_model(their_view, clock, wait_by_op(their_view, theirs.joined))
            done = calibrate_by_map(view, capture.unprofiled, examined.joined, model, other.path)
        except InputError as error:
            raise InputError(f"{other.path}: {error}") from None
    return done, capture.path


def _rendered(
    form: str, name: str, found: Calibration, prediction: Prediction | None, *, for_stdout: bool
) -> str:
    from latencylab.reports.text_calibration import render_calibration, render_calibration_json

    if form == "json":
        return render_calibration_json(name, found, prediction) + "\n"

    return console_text(partial(render_calibration, name, found, prediction), for_stdout=for_stdout)
