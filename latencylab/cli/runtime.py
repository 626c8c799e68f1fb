"""`latencylab runtime`: the commands that work on a serving engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from latencylab.cli import runtime_artefacts, runtime_check, runtime_ledger
from latencylab.cli._exit import debug_option
from latencylab.cli._launch import (
    PRESETS,
    Model,
    Optimisations,
    fault_option,
    takes_model,
    takes_optimisations,
)
from latencylab.cli._output import print_text

if TYPE_CHECKING:
    from latencylab.runtime.settings import Settings

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


@command.command("launch")
@click.option("--preset", type=click.Choice(PRESETS), required=True, help="How to decode.")
@takes_model
@click.option("--host", default="127.0.0.1", show_default=True, metavar="H")
@click.option("--port", type=click.IntRange(1, 65535), default=30000, show_default=True, metavar="N")
@click.option("--spans", metavar="LIST", help="Put spans into traces: nvtx, profiler, or both with a comma.")
@click.option("--clock", is_flag=True, help="Record the step clock.")
@click.option("--strict", is_flag=True, help="End the server where a hook did not take.")
@fault_option
@takes_optimisations
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help=f"The folder for state, clocks and the shape's config.  [default: {WORKDIR}]",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the command as a shell line instead; a stand-in's config.json is written, as it names that.",
)
@click.argument("extra", metavar="[-- ARGUMENTS OF SGLANG]", nargs=-1, type=click.UNPROCESSED)
@debug_option
def launch(
    preset: str,
    model: Model,
    host: str,
    port: int,
    spans: str | None,
    clock: bool,
    strict: bool,
    faults: tuple[str, ...],
    optimisations: Optimisations,
    folder: Path | None,
    dry_run: bool,
    extra: tuple[str, ...],
) -> None:
    """Start an SGLang server for decoding one request at a time.

    This process becomes the server, so Ctrl-C and signals reach it. Arguments after -- go to SGLang, in
    place of the preset's.
    """
    model.check(preset)

    from latencylab.runtime.launch import build_launch

    wanted = folder is not None or spans is not None or clock or strict or bool(faults)
    workdir = (folder or WORKDIR).absolute()
    built = build_launch(
        preset,
        model=model.path,
        draft_model=model.draft,
        tp=model.tp,
        shape=model.shape,
        lively_weights=model.lively_weights,
        workdir=workdir,
        host=host,
        port=port,
        extra=extra,
        settings=_settings(workdir, spans, clock, strict, faults) if wanted else None,
        overrides=optimisations.positions,
        artefacts=optimisations.artefacts,
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
