"""`latencylab bench`: time one request at a time, with no profiler on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from latencylab.cli._exit import debug_option
from latencylab.cli._input import show_progress
from latencylab.cli._output import (
    STDOUT,
    check_file,
    console_text,
    force_option,
    output_option,
    print_or_write,
)
from latencylab.cli._server import Server, describe, takes_server
from latencylab.model.integrity import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from latencylab.runtime.bench import Measured, Workload

WIDTH = 100
# Metric: what it is called, and its decimals.
_SHOWN = {
    "ttft_ms": ("TTFT, ms", 2),
    "tpot_ms": ("TPOT, ms", 3),
    "step_ms": ("step, ms", 3),
    "tokens_per_s": ("tokens/s", 1),
    "accept_length": ("accept length", 2),
    "cap_length": ("verified", 2),  # tokens a step, of DSpark's ragged modes alone
}


@click.command("bench")
@takes_server
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@output_option
@force_option
@click.argument("extra", metavar="[-- ARGUMENTS OF SGLANG]", nargs=-1, type=click.UNPROCESSED)
@debug_option
def command(server: Server, workload: Workload, form: str, output: Path, force: bool) -> None:
    """Measure a server with one request in flight.

    Ends with exit code 3 where a request fails, after what was measured until then.
    """
    context = click.get_current_context()
    if server.url is None and server.preset is None:
        raise click.UsageError("give either --url or --preset", context)
    if server.extra and server.preset is None:
        raise click.UsageError("arguments after -- are for a server that --preset launches", context)
    if output != STDOUT:
        check_file(output, force=force)

    measured, about = _measure(server, workload)

    from latencylab.runtime.bench import as_dict

    result = as_dict(measured, about)
    if form == "json":
        text, encoding = json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8"
    else:
        text, encoding = _as_text(result, for_stdout=output == STDOUT), None
    print_or_write(text, output, force=force, encoding=encoding)
    if measured.stopped is not None:
        raise InputError(
            f"{measured.stopped}; {len(measured.answers)} of {workload.requests} requests were measured"
        )


def _measure(server: Server, workload: Workload) -> tuple[Measured, dict[str, Any]]:
    from latencylab.runtime.bench import check_prompts, measure

    with show_progress("measuring") as progress, server.serving(progress) as served:
        check_prompts(workload, served.info)
        measured = measure(served.target, workload, progress)
        ended = served.running.ended() if measured.stopped and served.running else None
        if ended is not None:
            measured = replace(measured, stopped=f"{measured.stopped}; {ended}")
        return measured, describe(served)


def _as_text(result: Mapping[str, Any], *, for_stdout: bool) -> str:
    """A table of the requests and one line of medians; coloured where it goes to a terminal."""
    from rich.table import Table

    shown = {
        metric: how for metric, how in _SHOWN.items() if metric != "cap_length" or result["summary"][metric]
    }
    table = Table(title="one request in flight", title_justify="left", box=None, pad_edge=False)
    table.add_column("request")
    for title, _ in shown.values():
        table.add_column(title, justify="right")
    for row in result["requests"]:
        table.add_row(
            str(row["index"]), *(_number(row[metric], digits) for metric, (_, digits) in shown.items())
        )
    if result["requests"]:
        table.add_section()
        for key, name in (
            ("median", "median"),
            ("min", "least"),
            ("max", "most"),
            ("spread_pct", "spread, %"),
        ):
            cells = (
                _number(
                    result["summary"][metric] and result["summary"][metric][key], 1 if "%" in name else digits
                )
                for metric, (_, digits) in shown.items()
            )
            table.add_row(name, *cells)

    def render(console: Console) -> None:
        console.print(table)
        if result["stopped"]:
            console.print(
                "not complete: ", result["stopped"], markup=False, highlight=False, sep="", soft_wrap=True
            )

    return console_text(render, for_stdout=for_stdout, width=WIDTH)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
