"""What commands say of their input: the capture, how to read it and which part of it to take."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from latencylab.model.integrity import InputError

if TYPE_CHECKING:  # these import numpy
    from latencylab.analyzers.analyze import Examined
    from latencylab.model.capture import Capture
    from latencylab.model.findings import Analysis

SAMPLE = "sample:"
NO_LIMIT = sys.maxsize
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE | re.ASCII)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}

Progress = Callable[[str], None]
Function = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Source:
    """A capture as named on the command line, and how to read it."""

    paths: tuple[str, ...]
    max_bytes: int | None
    cache: bool
    jobs: int | None

    def open(self) -> Capture:
        """Read it, with a sign of life on a terminal's stderr; raises InputError."""
        from latencylab.traces import open_capture, sample_path

        paths = [
            sample_path(path.removeprefix(SAMPLE)) if path.startswith(SAMPLE) else path for path in self.paths
        ]
        with _reading(), show_progress("reading") as progress:
            capture = open_capture(
                paths, max_bytes=self.max_bytes, cache=self.cache, jobs=self.jobs, progress=progress
            )
        return replace(capture, path=self.paths[0]) if self.paths[0].startswith(SAMPLE) else capture


@dataclass(frozen=True, slots=True)
class Selection:
    """The part of a capture to analyse."""

    ranks: tuple[int, ...] | None
    steps: tuple[int, int] | None
    kind: str | None
    classes: Path | None
    step_span: re.Pattern[str] | None

    def examine(self, capture: Capture) -> Examined:
        """Run the passes that all analyses build on, over all ranks."""
        from latencylab.analyzers import examine
        from latencylab.analyzers.kernels import extend_classes
        from latencylab.traces import read_text

        table = None
        if self.classes is not None:
            table = extend_classes(read_text(self.classes), str(self.classes))
        return examine(capture, classes=table, step_span=self.step_span)

    def analyze(self, capture: Capture, *, timelines: bool = False) -> Analysis:
        """Analyse this part of it; raises InputError where there is no such part."""
        with _reading(), show_progress("analysing"):
            return self.analyze_examined(self.examine(capture), timelines=timelines)

    def analyze_examined(
        self, examined: Examined, *, timelines: bool = False, calibrated: bool = True
    ) -> Analysis:
        """The same, from passes already made; not `calibrated`, without what takes longest."""
        from latencylab.analyzers import analyze_examined

        return analyze_examined(
            examined,
            ranks=self.ranks,
            steps=self.steps,
            kind=self.kind,
            timelines=timelines,
            calibrated=calibrated,
        )


def takes_capture(function: Function) -> Function:
    """Give a command the argument CAPTURE and the options of reading, as its parameter `source`."""

    @click.argument("paths", metavar="CAPTURE...", nargs=-1, required=True)
    @click.option(
        "--max-bytes",
        metavar="SIZE",
        callback=_size,
        help="Refuse a gzipped trace that inflates to more than this, such as 800M or 2GiB.",
    )
    @click.option("--no-limit", is_flag=True, help="Inflate traces of any size.")
    @click.option("--no-cache", is_flag=True, help="Neither use nor keep the column store beside the traces.")
    @click.option(
        "--jobs", type=click.IntRange(min=1), metavar="N", help="Traces read at once; memory bounds it."
    )
    @wraps(function)
    def wrapper(
        *,
        paths: tuple[str, ...],
        max_bytes: int | None,
        no_limit: bool,
        no_cache: bool,
        jobs: int | None,
        **others: object,
    ) -> None:
        if no_limit and max_bytes is not None:
            raise click.UsageError(
                "--max-bytes and --no-limit exclude each other", click.get_current_context()
            )
        function(source=Source(paths, NO_LIMIT if no_limit else max_bytes, not no_cache, jobs), **others)

    return wrapper


def not_empty(_context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
    """Refuse an empty text, which would stand for anything: the value of an option, or one of several."""
    if value == "" or (isinstance(value, tuple) and "" in value):
        raise click.BadParameter("an empty text names nothing")
    return value


class Seconds(click.FloatRange):
    """A length of time above 0, and no more than a month."""

    name = "seconds"

    def __init__(self) -> None:
        super().__init__(min=0, max=2_678_400, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if seconds != seconds:
            self.fail(f"{value!r} is no length of time", param, ctx)
        return seconds


def _pattern(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> re.Pattern[str] | None:
    if value is None:
        return None
    if not value:
        raise click.BadParameter("an empty text names nothing")
    try:
        return re.compile(value)
    except re.error as error:
        raise click.BadParameter(f"{value!r} is not a regular expression: {error}") from None


rank_option = click.option(
    "--rank",
    "ranks",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Only this rank; may be repeated.",
)
step_span_option = click.option(
    "--step-span",
    metavar="REGEX",
    callback=_pattern,
    help="Spans that mark the steps, in place of those that are known.",
)


def takes_selection(function: Function) -> Function:
    """Give a command the options that narrow the analysis, as its parameter `selection`."""

    @rank_option
    @click.option(
        "--steps",
        metavar="A:B",
        callback=step_range,
        help="Only steps A up to B, B left out, counted from 0.",
    )
    @click.option("--kind", metavar="KIND", help="Only steps of this kind, such as decode.")
    @click.option(
        "--classes",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Kernel classes to ask before the built-in ones.",
    )
    @step_span_option
    @wraps(function)
    def wrapper(
        *,
        ranks: tuple[int, ...],
        steps: tuple[int, int] | None,
        kind: str | None,
        classes: Path | None,
        step_span: re.Pattern[str] | None,
        **others: object,
    ) -> None:
        function(selection=Selection(ranks or None, steps, kind, classes, step_span), **others)

    return wrapper


def step_range(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> tuple[int, int] | None:
    """Steps A up to but without B, from A:B; either may be left out."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d{0,18}):(\d{0,18})", value.strip(), re.ASCII)
    if not match:
        raise click.BadParameter(f"{value!r} is not a range of steps such as 10:20")
    first, last = int(match[1] or 0), int(match[2] or sys.maxsize)
    if first >= last:
        raise click.BadParameter(f"{value!r} holds no step: the end is not part of the range")
    return first, last


def _size(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    match = _SIZE.fullmatch(value.strip())
    size = int(float(match[1]) * 1024 ** _POWERS[match[2].upper()]) if match else 0
    if size < 1:
        raise click.BadParameter(f"{value!r} is not a size such as 800M or 2GiB (units are powers of 1024)")
    return size


@contextmanager
def _reading() -> Iterator[None]:
    """A file that cannot be read is the input's fault."""
    try:
        yield
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        raise InputError(f"{name}{error.strerror or error}") from error


@contextmanager
def show_progress(doing: str) -> Iterator[Progress | None]:
    """A spinner that shows the newest line of progress, where stderr is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(doing) as status:
        yield lambda line: status.update(f"{doing}: {escape(line)}")
