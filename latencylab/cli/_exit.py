"""Exit codes: what a command raises becomes one line on stderr and a number, here and nowhere else."""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import click

from latencylab.model.integrity import InputError, OutputError

OK = 0
USAGE = 2
INPUT = 3
OUTPUT = 4
BUG = 70
INTERRUPTED = 130
PIPE_CLOSED = 141
TERMINATED = 143

# What only writing meets; every other OSError is told where it happens, or is a bug.
_WRITE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


class Terminated(BaseException):
    """SIGTERM came: like KeyboardInterrupt, it unwinds the stack so that nothing half-written stays."""


@dataclass(slots=True)
class Settings:
    """What holds for every command; the object of click's root context."""

    debug: bool = False


def _set_debug(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        context.ensure_object(Settings).debug = True


debug_option = click.option(
    "--debug",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_set_debug,
    help="Show the traceback of an error.",
)


def run_guarded(run: Callable[[Settings], None]) -> int:
    """Run a command line, say on stderr what went wrong, and return the exit code."""
    settings = Settings()
    try:
        run(settings)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (Exception, KeyboardInterrupt, Terminated) as error:  # noqa: BLE001 - the last place to tell it
        code, line = _explain(error)
        if settings.debug:
            _say("".join(traceback.format_exception(error)).rstrip())
        if line:
            _say(line)
        return code
    return OK


def raise_on_sigterm() -> None:
    """Let SIGTERM unwind the stack."""

    def handle(_signum: int, _frame: FrameType | None) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, handle)


def settle_stdout() -> None:
    """Throw away what stdout cannot take, so that the interpreter does not complain of it at its end."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explain(error: BaseException) -> tuple[int, str]:
    """Exit code and line of an error; the line is empty where nothing is to be said."""
    match error:
        case click.exceptions.NoArgsIsHelpError():
            return USAGE, error.format_message()
        case click.UsageError():
            where = error.ctx.command_path if error.ctx else "latencylab"
            return USAGE, _error(f"{error.format_message().rstrip('.')}; see '{where} --help'")
        case InputError():
            return INPUT, _error(str(error))
        case OutputError():
            return OUTPUT, _error(str(error))
        case BrokenPipeError():
            return PIPE_CLOSED, ""
        case OSError() if error.errno in _WRITE_ERRORS:
            return OUTPUT, _error(f"cannot write: {error}")
        case MemoryError():
            return INPUT, _error("not enough memory for this input; try one rank, or fewer --jobs")
        case KeyboardInterrupt() | click.Abort():
            return INTERRUPTED, "latencylab: interrupted"
        case Terminated():
            return TERMINATED, "latencylab: terminated"
        case _:
            what = f"{type(error).__name__}: {error}"
            return BUG, _error(f"this is a bug in latencylab: {what} (--debug shows where)")


def _error(message: str) -> str:
    """One printable line, whatever the message holds (file names may hold anything)."""
    line = " ".join(message.split())
    shown = (c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in line)
    return "latencylab: error: " + "".join(shown)


def _say(text: str) -> None:
    try:
        click.echo(text, err=True)
    except OSError:
        return  # nobody reads stderr any more
