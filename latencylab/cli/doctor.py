"""`latencylab doctor`: what this machine can do."""

from __future__ import annotations

import json
import os
import sys
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import click

from latencylab.cli._exit import debug_option
from latencylab.cli._output import STDOUT, check_file, force_option, print_text, write_file

if TYPE_CHECKING:
    from latencylab.runtime.doctor import Machine

SCHEMA = "latencylab.doctor/1"
WIDTH = 120
STYLES = {"ok": "green", "warn": "yellow", "missing": "red"}


@click.command("doctor")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=STDOUT,
    metavar="FILE",
    help="Write here instead of stdout.",
)
@force_option
@debug_option
def command(form: str, output: Path, force: bool) -> None:
    """Show what this machine can do: GPUs, profiler, software, and what makes its host slow."""
    if output != STDOUT:
        check_file(output, force=force)

    from latencylab.runtime.doctor import examine_machine

    machine = examine_machine()
    text = _as_json(machine) if form == "json" else _as_table(machine, for_stdout=output == STDOUT)
    if output == STDOUT:
        print_text(text, "utf-8" if form == "json" else None)
    else:
        write_file(output, text, force=force)


def _as_json(machine: Machine) -> str:
    from dataclasses import asdict
    from importlib.metadata import version

    facts = {"schema": SCHEMA, "tool": {"version": version("latencylab")}, **asdict(machine)}
    return json.dumps(facts, indent=2, ensure_ascii=False) + "\n"


def _as_table(machine: Machine, *, for_stdout: bool) -> str:
    """The findings as a table: coloured and as wide as the terminal where it goes to one, else plain."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("what", "value", "", "what to do"):
        table.add_column(title, overflow="fold")
    for line in machine.lines:
        style = STYLES[line.status]
        table.add_row(
            escape(line.what), escape(line.value), f"[{style}]{line.status}[/{style}]", escape(line.advice)
        )
    stream = sys.stdout if for_stdout and sys.stdout is not None else StringIO()
    width = None if stream.isatty() or os.environ.get("COLUMNS", "0") != "0" else WIDTH
    console = Console(file=stream, width=width)
    with console.capture() as captured:
        console.print(table)
    return captured.get()
