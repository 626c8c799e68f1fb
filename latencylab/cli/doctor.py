"""`latencylab doctor`: what this machine can do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from latencylab.cli._exit import debug_option
from latencylab.cli._output import (
    STDOUT,
    check_file,
    console_text,
    force_option,
    output_option,
    print_or_write,
)

if TYPE_CHECKING:
    from latencylab.runtime.doctor import Machine

SCHEMA = "latencylab.doctor/1"
STYLES = {"ok": "green", "warn": "yellow", "missing": "red"}


@click.command("doctor")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@output_option
@force_option
@debug_option
def command(form: str, output: Path, force: bool) -> None:
    """Show what this machine can do: GPUs, profiler, software, and what makes its host slow."""
    if output != STDOUT:
        check_file(output, force=force)

    from latencylab.runtime.doctor import examine_machine

    machine = examine_machine()
    text = _as_json(machine) if form == "json" else _as_table(machine, for_stdout=output == STDOUT)
    print_or_write(text, output, force=force, encoding="utf-8" if form == "json" else None)


def _as_json(machine: Machine) -> str:
    from dataclasses import asdict
    from importlib.metadata import version

    facts = {"schema": SCHEMA, "tool": {"version": version("latencylab")}, **asdict(machine)}
    return json.dumps(facts, indent=2, ensure_ascii=False) + "\n"


def _as_table(machine: Machine, *, for_stdout: bool) -> str:
    """The findings as a table: coloured and as wide as the terminal where it goes to one, else plain."""
    from rich.box import SIMPLE_HEAD
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
    return console_text(lambda console: console.print(table), for_stdout=for_stdout)
