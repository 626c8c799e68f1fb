"""`latencylab runtime ledger`: the optimisations, their state in a configuration, and by what."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from latencylab.cli._exit import debug_option
from latencylab.cli._launch import PRESETS, Optimisations, takes_optimisations
from latencylab.cli._output import console_text, print_text

if TYPE_CHECKING:
    from rich.console import Console

    from latencylab.runtime.ledger import Ledger, Row

WIDTH = 140
COLOURS = {"on": "green", "off": "yellow", "default": "", "unavailable": "dim"}


@click.command("ledger")
@click.argument("names", metavar="[OPT]...", nargs=-1)
@click.option("--preset", type=click.Choice(PRESETS), help="Only one preset.  [default: all]")
@click.option("--tp", type=click.IntRange(1), default=4, show_default=True, metavar="N", help="GPUs.")
@takes_optimisations
@click.option("--capture", metavar="CAPTURE", help="Also say what the kernels of its trace show.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@debug_option
def command(
    names: tuple[str, ...],
    preset: str | None,
    tp: int,
    optimisations: Optimisations,
    capture: str | None,
    form: str,
) -> None:
    """Show the optimisations and their state, or with OPT all that is known of some.

    State: on or off as asked for, the default with its position, or unavailable.
    """
    from latencylab.model.integrity import InputError
    from latencylab.runtime.ledger import Ledger

    ledger = Ledger.load()
    for name in names:
        if name not in ledger.entries:
            raise InputError(f"no optimisation is named {name}; there are {', '.join(ledger.entries)}")
    chosen = [preset] if preset is not None else list(PRESETS)
    if len(chosen) > 1 and optimisations.positions:
        raise click.UsageError("--with and --without go with --preset", click.get_current_context())
    asked = optimisations.positions
    on, off = ([name for name in asked if asked[name] is wanted] for wanted in (True, False))
    rows = {
        each: [
            row
            for row in ledger.apply(each, on, off, ranks=tp, artefacts=optimisations.artefacts).rows
            if not names or row.entry.name in names
        ]
        for each in chosen
    }
    kernels = None if capture is None else _kernels(capture)
    seen = {} if kernels is None else {e.name: e.in_trace(kernels) for e in ledger.entries.values()}
    if form == "json":
        print_text(json.dumps(_as_dict(rows, seen), indent=1) + "\n", "utf-8")
    elif names:
        print_text("\n".join(_details(ledger, name, rows, seen) for name in names))
    else:
        print_text(_table(rows, seen))


def _kernels(capture: str) -> set[str]:
    """The names of all kernels of a capture."""
    from latencylab.cli._input import Source

    opened = Source((capture,), max_bytes=None, cache=False, jobs=None).open()
    return {trace.names[name] for trace in opened.traces for name in set(trace.gpu.name.tolist())}


def _as_dict(rows: dict[str, list[Row]], seen: dict[str, str]) -> dict[str, list[dict[str, object]]]:
    return {
        preset: [
            {
                "name": row.entry.name,
                "state": row.state,
                "position": None if row.is_on is None else "on" if row.is_on else "off",
                "by": row.by,
                "on": row.entry.on.shown(),
                "off": row.entry.off.shown(),
                "does": row.entry.does,
                "published": row.entry.published,
                "one_gpu": row.entry.one_gpu,
                "read": row.entry.read,
                "look": row.entry.look,
                "in_trace": seen.get(row.entry.name),
            }
            for row in shown
        ]
        for preset, shown in rows.items()
    }


def _state(row: Row) -> str:
    return f"default ({'on' if row.is_on else 'off'})" if row.state == "default" else row.state


def _details(ledger: Ledger, name: str, rows: dict[str, list[Row]], seen: dict[str, str]) -> str:
    entry = ledger.entries[name]
    lines = [
        ("does", entry.does),
        ("published", entry.published),
        ("on by", entry.on.shown()),
        ("off by", entry.off.shown()),
        ("read", entry.read),
        ("proof", entry.look),
        ("one GPU", f"{'yes' if entry.one_gpu else 'no'}: {entry.one_gpu_note}"),
        ("answers", entry.answers),
        ("needs", ", ".join(entry.needs)),
        ("excludes", "; ".join(f"{conflict.other}: {conflict.why}" for conflict in entry.conflicts)),
        ("note", entry.note),
        ("in trace", seen.get(name, "")),
    ]
    for preset, shown in rows.items():
        lines += [(preset, f"{_state(row)}: {row.by}") for row in shown if row.entry.name == name]
    return "".join([f"{name}\n", *(f"  {what:<9}  {text}\n" for what, text in lines if text)])


def _table(rows: dict[str, list[Row]], seen: dict[str, str]) -> str:
    from rich.table import Table

    def render(console: Console) -> None:
        for preset, shown in rows.items():
            table = Table(title=preset, title_justify="left", box=None, pad_edge=False)
            table.add_column("optimisation", no_wrap=True)
            table.add_column("state", no_wrap=True)
            if seen:
                table.add_column("in trace", no_wrap=True)
            table.add_column("by, or why not")
            table.add_column("the other way")
            for row in shown:
                other = "" if row.is_on is None else row.entry.position(not row.is_on).shown()
                cells = [
                    row.entry.name,
                    _state(row),
                    *([seen[row.entry.name]] if seen else []),
                    row.by,
                    other,
                ]
                table.add_row(*cells, style=COLOURS[row.state])
            console.print(table)
            console.print()

    return console_text(render, for_stdout=True, width=WIDTH)
