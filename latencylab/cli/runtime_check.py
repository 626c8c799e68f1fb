"""`latencylab runtime check`: whether two configurations of a server give the same greedy tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from latencylab.cli._exit import debug_option
from latencylab.cli._output import check_file, force_option, print_text, write_file
from latencylab.model.integrity import InputError

if TYPE_CHECKING:
    from latencylab.runtime.check import Comparison, Recording

URL = "http://127.0.0.1:30000"

EPILOG = """\
Exit codes: 0 identical (or recorded, or above the floor); 3 a difference, or nothing to compare. A difference
is no 1, which belongs to the gate alone: whether it is a regression is for you to say.
"""


@click.command("check", epilog=EPILOG)
@click.option("--url", default=URL, show_default=True, metavar="URL", help="The server to check.")
@click.option("--against", metavar="FILE|URL", help="The reference: a recording, or another server.")
@click.option("--record", type=click.Path(path_type=Path), metavar="FILE", help="Store the server's answers.")
@click.option("--prompts", type=click.IntRange(1), default=16, show_default=True, metavar="N")
@click.option("--input-tokens", type=click.IntRange(1), default=512, show_default=True, metavar="N")
@click.option("--output-tokens", type=click.IntRange(1), default=128, show_default=True, metavar="N")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Chooses the prompts.")
@click.option("--twice", is_flag=True, help="Also hold the server against itself.")
@click.option(
    "--gsm8k",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Instead score the questions of a JSONL file; needs real weights.",
)
@click.option("--examples", type=click.Path(path_type=Path), metavar="FILE", help="Worked examples for it.")
@click.option("--floor", type=click.FloatRange(0, 1), default=0.90, show_default=True, metavar="SHARE")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@force_option
@debug_option
def command(
    url: str,
    against: str | None,
    record: Path | None,
    prompts: int,
    input_tokens: int,
    output_tokens: int,
    seed: int,
    twice: bool,
    gsm8k: Path | None,
    examples: Path | None,
    floor: float,
    form: str,
    force: bool,
) -> None:
    """Compare greedy answers token by token, or record them for a later comparison.

    With a recording as the reference, its prompts and lengths are used. A prompt is sent alone, so that
    batching changes nothing.
    """
    if gsm8k is not None:
        _score(url, gsm8k, examples, floor, form)
        return
    if against is None and record is None and not twice:
        raise click.UsageError("give --against, --record, --twice or --gsm8k")
    if record is not None:
        check_file(record, force=force)

    from latencylab.runtime.check import GreedyServer, caveats, compare, make_prompts, read_recording, to_json
    from latencylab.runtime.check import record as take

    subject_server = GreedyServer(url)
    reference: Recording | None = None
    if against is not None and "://" not in against:
        reference = read_recording(Path(against))
        ids, output_tokens = reference.prompts, len(reference.outputs[0])
    else:
        ids = make_prompts(prompts, input_tokens, seed)
    with _progress() as say:
        if against is not None and reference is None:
            reference = take(GreedyServer(against), ids, output_tokens, say)
        subject = take(subject_server, ids, output_tokens, say)
        again = take(subject_server, ids, output_tokens, say) if twice else None
    if record is not None:
        write_file(record, to_json(subject), force=force)
    for line in dict.fromkeys((*(caveats(reference) if reference is not None else ()), *caveats(subject))):
        click.echo(f"latencylab: warning: {line}", err=True)

    found = [compare(subject, again)] if again is not None else []
    found += [compare(reference, subject)] if reference is not None else []
    _tell(found, subject, record, form)
    different = [comparison for comparison in found if comparison.divergences]
    if different:
        raise InputError(different[-1].line())


def _tell(found: list[Comparison], subject: Recording, record: Path | None, form: str) -> None:
    if form == "json":
        rows = [_as_dict(comparison) for comparison in found]
        print_text(
            json.dumps({"recorded": None if record is None else str(record), "comparisons": rows}) + "\n"
        )
        return
    if record is not None:
        print_text(f"recorded {len(subject.prompts)} answers of {subject.name} in {record}\n")
    for comparison in found:
        lines = [f"{comparison.subject} against {comparison.reference}"]
        if not comparison.divergences:
            lines.append(f"  {comparison.line()}")
        lines += [
            f"  prompt {each.prompt}: token {each.position}, after {list(each.common)}: "
            f"{list(each.reference)} against {list(each.subject)}"
            for each in comparison.divergences
        ]
        lines.append(f"  {comparison.agreeing} of {comparison.prompts} prompts agree to the last token")
        print_text("\n".join(lines) + "\n")


def _as_dict(comparison: Comparison) -> dict[str, object]:
    from dataclasses import asdict

    return {
        **asdict(comparison),
        "agreeing": comparison.agreeing,
        "first": asdict(comparison.first) if comparison.first else None,
    }


def _score(url: str, path: Path, examples: Path | None, floor: float, form: str) -> None:
    from latencylab.runtime.check import GreedyServer
    from latencylab.runtime.gsm8k import QUESTIONS, SHOTS, read_questions, score

    questions = read_questions(path)
    shown = read_questions(examples)[:SHOTS] if examples is not None else questions[:SHOTS]
    if examples is None:
        questions = questions[SHOTS:]  # what was shown with its answer is no question any more
        if not questions:
            raise InputError(f"{path}: no questions left beside the {SHOTS} that are shown as examples")
    if len(questions) < QUESTIONS - SHOTS:
        click.echo(f"latencylab: warning: {len(questions)} questions, the set has {QUESTIONS}", err=True)
    with _progress() as say:
        result = score(GreedyServer(url), questions, shown, floor=floor, progress=say)
    if form == "json":
        row = {"right": result.right, "asked": result.asked, "share": result.share, "floor": floor}
        print_text(json.dumps(row) + "\n")
    else:
        print_text(result.line() + "\n")
    if not result.passed:
        raise InputError(result.line())


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is being asked, where stderr is a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _line: None
        return
    with console.status("asking") as status:
        yield status.update
