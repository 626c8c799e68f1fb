"""`latencylab runtime`: the commands that work on a serving engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from latencylab.cli import runtime_artefacts, runtime_check, runtime_ledger
from latencylab.cli._exit import debug_option
from latencylab.cli._output import print_text

if TYPE_CHECKING:
    from latencylab.runtime.settings import Settings

PRESETS = ("nextn", "dspark", "plain")
SHAPES = ("tp4-rank",)
WORKDIR = Path("latencylab-run")


@click.group("runtime")
@debug_option
def command() -> None:
    """Run and measure a serving engine."""


for _command in (
    runtime_ledger.command,
    runtime_check.command,
    runtime_artefacts.fit,
    runtime_artefacts.sps,
    runtime_artefacts.tune_moe,
):
    command.add_command(_command)


def _switches(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, bool]:
    """Positions from NAME=on and NAME=off."""
    found = {}
    for value in values:
        name, _, position = value.partition("=")
        if position not in ("on", "off"):
            raise click.BadParameter(f"{value!r} is not NAME=on or NAME=off")
        found[name] = position == "on"
    return found


@command.command("launch")
@click.option("--preset", type=click.Choice(PRESETS), required=True, help="How to decode.")
@click.option("--model", metavar="PATH", help="The model's folder or repository.")
@click.option("--draft-model", metavar="PATH", help="DSpark's draft, where the model does not bring it.")
@click.option(
    "--shape",
    type=click.Choice(SHAPES),
    help="Run a stand-in with random weights: each rank has the shapes of one rank of TP4.",
)
@click.option(
    "--tp", type=click.IntRange(min=1), metavar="N", help="GPUs: 4 by default, with --shape 1 (1, 2 or 4)."
)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="H")
@click.option("--port", type=click.IntRange(1, 65535), default=30000, show_default=True, metavar="N")
@click.option("--spans", metavar="LIST", help="Put spans into traces: nvtx, profiler, or both with a comma.")
@click.option("--clock", is_flag=True, help="Record the step clock.")
@click.option("--strict", is_flag=True, help="End the server where a hook did not take.")
@click.option("--fault", "faults", multiple=True, metavar="NAME[:K=V,...]", help="Make the server slow.")
@click.option(
    "--switch",
    "switches",
    multiple=True,
    callback=_switches,
    metavar="NAME=on|off",
    help="Put one optimisation on or off; may be repeated.",
)
@click.option("--with", "on", multiple=True, metavar="OPT", help="The same as --switch OPT=on.")
@click.option("--without", "off", multiple=True, metavar="OPT", help="The same as --switch OPT=off.")
@click.option(
    "--artefacts",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="What dspark-fit, dspark-sps and tune-moe measured.",
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help=f"The folder for state, clocks and the shape's config.  [default: {WORKDIR}]",
)
@click.option("--dry-run", is_flag=True, help="Print the command as a shell line instead.")
@click.argument("extra", metavar="[-- ARGUMENTS OF SGLANG]", nargs=-1, type=click.UNPROCESSED)
@debug_option
def launch(
    preset: str,
    model: str | None,
    draft_model: str | None,
    shape: str | None,
    tp: int | None,
    host: str,
    port: int,
    spans: str | None,
    clock: bool,
    strict: bool,
    faults: tuple[str, ...],
    switches: Mapping[str, bool],
    on: tuple[str, ...],
    off: tuple[str, ...],
    artefacts: Path | None,
    folder: Path | None,
    dry_run: bool,
    extra: tuple[str, ...],
) -> None:
    """Start an SGLang server for decoding one request at a time.

    This process becomes the server, so Ctrl-C and signals reach it. Arguments after -- go to SGLang, in
    place of the preset's.
    """
    context = click.get_current_context()
    if (model is None) == (shape is None):
        raise click.UsageError("give either --model or --shape", context)
    if draft_model is not None and (shape is not None or preset != "dspark"):
        raise click.UsageError("--draft-model goes with --preset dspark and --model", context)
    asked = [*switches, *set(on), *set(off)]
    if twice := sorted(name for name in set(asked) if asked.count(name) > 1):
        raise click.UsageError(f"{twice[0]} is put on or off twice", context)

    from latencylab.runtime.launch import build_launch

    wanted = folder is not None or spans is not None or clock or strict or bool(faults)
    workdir = (folder or WORKDIR).absolute()
    built = build_launch(
        preset,
        model=model,
        draft_model=draft_model,
        tp=tp,
        shape=shape,
        workdir=workdir,
        host=host,
        port=port,
        extra=extra,
        settings=_settings(workdir, spans, clock, strict, faults) if wanted else None,
        overrides={**switches, **dict.fromkeys(on, True), **dict.fromkeys(off, False)},
        artefacts=artefacts,
    )
    if dry_run or built.checked_against is not None:
        for line in built.warnings(os.environ):
            click.echo(f"latencylab: warning: {line}", err=True)
    if dry_run:
        print_text(built.shown() + "\n")
    else:
        built.replace_process()


def _settings(
    folder: Path, spans: str | None, clock: bool, strict: bool, faults: tuple[str, ...]
) -> Settings:
    """What the plugin is to do; it checks the words itself."""
    from latencylab.runtime.settings import Settings

    given = {
        "LATENCYLAB_DIR": str(folder),
        "LATENCYLAB_SPANS": spans,
        "LATENCYLAB_CLOCK": "1" if clock else None,
        "LATENCYLAB_STRICT": "1" if strict else None,
        "LATENCYLAB_FAULTS": ";".join(faults) or None,
    }
    return Settings.from_env({name: value for name, value in given.items() if value is not None})
