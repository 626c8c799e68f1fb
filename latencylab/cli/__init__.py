"""The command line: one file a command, imported when it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import click

from latencylab.cli import _exit

COMMANDS = (
    "report",
    "analyze",
    "calibrate",
    "diff",
    "gate",
    "trim",
    "export",
    "view",
    "bench",
    "capture",
    "runtime",
    "doctor",
    "site",
)

EPILOG = """\
Exit codes: 0 fine; 1 the gate: a regression; 2 wrong usage; 3 input missing, unreadable or not comparable;
4 output not written; 70 a bug; 130 interrupted.
"""


class LazyGroup(click.Group):
    """Finds the command NAME as `command` in latencylab.cli.NAME."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"latencylab.cli.{cmd_name}").command
        return command


@click.command(cls=LazyGroup, epilog=EPILOG)
@click.version_option(package_name="latencylab", prog_name="latencylab")
@_exit.debug_option
def root() -> None:
    """Say for each microsecond of a batch-1 decode step whose fault it was.

    CAPTURE is a capture folder, trace files (Kineto JSON, plain or gzipped), a glob in quotes, or
    sample:NAME for a bundled sample.
    """


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""

    def invoke(settings: _exit.Settings) -> None:
        with root.make_context("latencylab", list(arguments), obj=settings) as context:
            root.invoke(context)

    return _exit.run_guarded(invoke)


def main() -> NoReturn:
    """Run the process's command line and end the process with its exit code."""
    _exit.raise_on_sigterm()
    code = run(sys.argv[1:])
    _exit.settle_stdout()
    sys.exit(code)
