"""Where results go: stdout, or files that appear whole or not at all and replace nothing unasked."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click

from latencylab.model.integrity import OutputError

if TYPE_CHECKING:
    from rich.console import Console

STDOUT = Path("-")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])

WIDTH = 120  # of text that goes to no terminal

output_option = click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=STDOUT,
    metavar="FILE",
    help="Write here instead of stdout.",
)


def required_output(what: str, metavar: str = "FILE") -> Callable[[Decorated], Decorated]:
    """The option -o of a command that has nothing to say on stdout unless asked to."""
    return click.option(
        "-o", "--output", type=click.Path(path_type=Path), required=True, metavar=metavar, help=what
    )


force_option = click.option("--force", is_flag=True, help="Replace files that exist.")


def print_text(text: str, encoding: str | None = None) -> None:
    """Write all of it to stdout, in stdout's encoding unless another is given.

    Raises OutputError, or BrokenPipeError where nobody reads on.
    """
    with _writing("standard output"):
        if sys.stdout is None:
            raise OutputError("cannot write standard output: it is closed")
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode(encoding or sys.stdout.encoding, "backslashreplace"))
        sys.stdout.flush()


def print_or_write(text: str, output: Path, *, force: bool, encoding: str | None = None) -> None:
    """Put a text where the command line wants it: on stdout, or in the file `output`. Raises OutputError."""
    if output == STDOUT:
        print_text(text, encoding)
    else:
        write_file(output, text, force=force)


def console_text(render: Callable[[Console], object], *, for_stdout: bool, width: int = WIDTH) -> str:
    """What `render` prints: coloured and as wide as the terminal where it goes to one, else plain."""
    from rich.console import Console

    stream = sys.stdout if for_stdout and sys.stdout is not None else StringIO()
    fixed = None if stream.isatty() or os.environ.get("COLUMNS", "0") != "0" else width
    console = Console(file=stream, width=fixed)
    with console.capture() as captured:
        render(console)
    return captured.get()


def check_file(path: Path, *, force: bool) -> None:
    """Raise OutputError where `write_file` would, as far as that can be told beforehand."""
    with _writing(path):
        if path.is_dir():
            raise OutputError(f"{path} is a folder")
        if path.is_file() and not force:
            raise OutputError(f"{path} exists (--force replaces it)")
        _check_parent(path)


def write_file(path: Path, text: str, *, force: bool) -> None:
    """Write UTF-8 text; the file appears whole, or stays as it was. Raises OutputError."""
    with open_file(path, force=force) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


@contextmanager
def open_file(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """A file to write bytes to: it appears whole when the block ends well, or stays as it was.

    Raises OutputError, also for an OSError of the block.
    """
    check_file(path, force=force)
    with _writing(path):
        target = path.resolve()  # a link stays a link
        if target.exists() and not target.is_file():  # a device or a pipe cannot be replaced
            with target.open("wb") as file:
                yield file
            return
        temporary = _temporary_beside(target)
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)


def check_folder(path: Path, *, force: bool) -> None:
    """Raise OutputError where `write_folder` would, as far as that can be told beforehand."""
    with _writing(path):
        if path.is_dir():
            if not force and any(path.iterdir()):
                raise OutputError(
                    f"{path} is not empty (--force replaces the files written, and leaves others)"
                )
            if not os.access(path, os.W_OK | os.X_OK):
                raise OutputError(f"cannot write into {path}: no permission")
        elif path.exists():
            raise OutputError(f"{path} exists and is no folder")
        else:
            _check_parent(path)


def write_folder(
    path: Path, fill: Callable[[Path], object], *, force: bool, stale: re.Pattern[str] | None = None
) -> None:
    """Let `fill` write into an empty folder, then put its files in place. Raises OutputError.

    A new folder appears whole or not at all; in one that exists each file does, and then those files are
    removed whose path within it is all matched by `stale`, and that were not written anew.
    """
    check_folder(path, force=force)
    with _writing(path):
        target = path.resolve()
        exists = target.exists()
        temporary = _temporary_beside(target / "_" if exists else target)
        try:
            temporary.mkdir()
            fill(temporary)
            if exists:
                written = _files(temporary)
                _move_files(temporary, target)
                if stale is not None:
                    for name in filter(stale.fullmatch, _files(target) - written):
                        (target / name).unlink()
            else:
                temporary.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _files(folder: Path) -> set[str]:
    """The files below a folder, by their paths within it; links are not followed."""
    return {
        (Path(place) / name).relative_to(folder).as_posix()
        for place, _, names in os.walk(folder)
        for name in names
    }


def _move_files(source: Path, target: Path) -> None:
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        file.replace(place)


def _check_parent(path: Path) -> None:
    try:
        parent = path.resolve().parent
    except (OSError, RuntimeError) as error:  # a loop of links
        raise OutputError(f"cannot write {path}: {error}") from None
    if not parent.is_dir():
        raise OutputError(f"cannot write {path}: {parent} is no folder")
    if not path.exists() and not os.access(parent, os.W_OK | os.X_OK):
        raise OutputError(f"cannot write {path}: no permission")


def _temporary_beside(target: Path) -> Path:
    """A name in the same folder, so that the move into place is atomic."""
    return target.with_name(f".latencylab-{os.getpid()}-{secrets.token_hex(4)}.tmp")


@contextmanager
def _writing(what: object) -> Iterator[None]:
    """Whatever the system refuses here is the output's fault."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write {what}: {error.strerror or error}") from error
