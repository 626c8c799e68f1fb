"""`latencylab gate`: exit code 1 where the head's runs are worse than the base's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from latencylab.cli._exit import debug_option
from latencylab.cli._input import Selection, Source, not_empty, takes_capture, takes_selection
from latencylab.cli._output import (
    STDOUT,
    check_file,
    console_text,
    force_option,
    print_or_write,
    print_text,
    write_file,
)
from latencylab.cli._policy import documented_policy, read_policy
from latencylab.cli._runs import read_runs, read_sides
from latencylab.model.integrity import InputError, OutputError

if TYPE_CHECKING:
    from latencylab.model.gate import GateResult, Policy, Run

WIDTH = 140
SUMMARY = "GITHUB_STEP_SUMMARY"


class _HeadAgainstBase(click.Command):
    """Its usage names the head; how captures are read is what every command's CAPTURE takes."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [self.options_metavar or "", "HEAD..."]


def _print_policy(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        print_text(documented_policy(), "utf-8")
        context.exit()


@click.command("gate", cls=_HeadAgainstBase)
@takes_capture
@takes_selection
@click.option(
    "--baseline",
    "baselines",
    multiple=True,
    metavar="BASE",
    help="A run to compare with, named as HEAD is; may be repeated.",
)
@click.option(
    "--baseline-from-history",
    "history",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Compare with the runs of the newest other commit in this history, and know their spread from it.",
)
@click.option(
    "--baseline-commit",
    "commit",
    metavar="SHA",
    callback=not_empty,
    help="Compare with this commit of the history.",
)
@click.option(
    "--config", metavar="NAME", help="The history's runs of this name; else of HEAD's kind of step."
)
@click.option(
    "--policy",
    "policy_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What passes; else latencylab.toml in the working folder, else the defaults.",
)
@click.option(
    "--print-policy",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_policy,
    help="Print a policy with every default and what it means.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "junit", "github"]),
    default="text",
    show_default=True,
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=STDOUT,
    metavar="FILE",
    help="Write here instead of stdout; of github the summary.",
)
@force_option
@debug_option
def command(
    source: Source,
    selection: Selection,
    baselines: tuple[str, ...],
    history: Path | None,
    commit: str | None,
    config: str | None,
    policy_file: Path | None,
    form: str,
    output: Path,
    force: bool,
) -> None:
    """Fail where HEAD is worse than the baseline.

    HEAD and BASE are one run each: a capture folder, a trace file, a glob in quotes (the files of several
    ranks) or sample:NAME. Give three or more runs a side, each from a new start of the engine: with fewer, a
    time is at most inconclusive, for steps of one process say nothing of the next.

    A new blocking site that pins the host fails by itself. The one time that decides is ms per step of the
    requests without the profiler; what else is measured explains, unless the policy lists it.

    Exit codes: 0 passed, an inconclusive gate with its warning included; 1 a regression; 3 not comparable.
    """
    if bool(baselines) == (history is not None):
        raise click.UsageError(
            "takes --baseline, once a run, or --baseline-from-history", click.get_current_context()
        )
    if history is None and (commit is not None or config is not None):
        raise click.UsageError(
            "--baseline-commit and --config go with --baseline-from-history", click.get_current_context()
        )
    if output != STDOUT:
        check_file(output, force=force)
    policy = read_policy(policy_file)

    if history is None:
        base, head = read_sides(source, baselines, source.paths, selection)
    else:
        head = read_runs(source, source.paths, selection)
        base, policy = _from_history(history, head, commit, config, policy)

    from latencylab.analyzers.gate import judge

    result = judge(base, head, policy)
    _show(result, form, output, force=force)
    if result.verdict == "incomparable":
        raise InputError(result.headline)
    if result.exit_code:
        raise click.exceptions.Exit(result.exit_code)


def _from_history(
    folder: Path, head: Sequence[Run], commit: str | None, config: str | None, policy: Policy
) -> tuple[tuple[Run, ...], Policy]:
    """The baseline's runs, and the policy with the history's spread where it names none."""
    from latencylab.traces.history import History

    config = config or head[0].kind or "default"
    history = History.open(folder)
    ours = {run.commit for run in head if run.commit}
    records = [record for record in history.runs(config) if commit or record.commit not in ours]
    if commit is None and records:
        newest = records[-1]
        records = [newest] if newest.commit is None else [r for r in records if r.commit == newest.commit]
    else:
        records = [record for record in records if (record.commit or "").startswith(commit or "")]
        if len(named := sorted({record.commit or "" for record in records})) > 1:
            raise InputError(f"{folder}: {commit} may be any of the commits {', '.join(named)}")
    if not records:
        what = f"of commit {commit}" if commit else "of another commit"
        raise InputError(f"{folder}: no run {what} of the configuration {config!r}")
    spread = history.spread_pct(config)
    if spread and policy.known_spread_pct == 0:
        policy = replace(policy, known_spread_pct=spread)
    return tuple(record.run for record in records), policy


def _show(result: GateResult, form: str, output: Path, *, force: bool) -> None:
    """Write the result where it belongs; warnings go to stderr where stdout does not tell them."""
    if form == "github":
        _show_github(result, output, force=force)
        return
    if form != "text" or output != STDOUT:
        from latencylab.reports.format import clean

        for warning in result.warnings:
            click.echo(f"latencylab: warning: {clean(warning)}", err=True)
    text, encoding = _render(result, form, for_stdout=output == STDOUT)
    print_or_write(text, output, force=force, encoding=encoding)


def _render(result: GateResult, form: str, *, for_stdout: bool) -> tuple[str, str | None]:
    """The text, and the encoding that it must have: None for the terminal's own."""
    if form == "json":
        from latencylab.reports.gate_json import render_gate_json

        return render_gate_json(result) + "\n", "utf-8"
    if form == "junit":
        from latencylab.reports.junit import render_junit

        return render_junit(result), "utf-8"
    from latencylab.reports.gate_text import render_gate_text

    return console_text(partial(render_gate_text, result), for_stdout=for_stdout, width=WIDTH), None


def _show_github(result: GateResult, output: Path, *, force: bool) -> None:
    """Annotations to stdout; the summary to the file named, to the step's own, or after them."""
    from latencylab.reports.github import render_annotations, render_summary

    print_text(render_annotations(result), "utf-8")
    own = os.environ.get(SUMMARY)
    if output != STDOUT:
        write_file(output, render_summary(result), force=force)
    elif own:
        _append(Path(own), result)
    else:
        print_text(render_summary(result), "utf-8")


def _append(path: Path, result: GateResult) -> None:
    """Add the summary to the step's file, which others may have begun, within what GitHub takes of it."""
    from latencylab.reports.github import MOST_BYTES, render_summary

    try:
        begun = path.stat().st_size if path.exists() else 0
        with path.open("a", encoding="utf-8") as file:
            file.write(render_summary(result, MOST_BYTES - begun))
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from None
