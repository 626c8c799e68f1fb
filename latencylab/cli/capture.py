"""`latencylab capture`: a capture folder of a server, or of a program that uses torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from latencylab.cli._exit import Terminated, debug_option
from latencylab.cli._input import Seconds, show_progress
from latencylab.cli._output import check_folder, force_option, required_output, write_folder
from latencylab.cli._server import Progress, Server, describe, takes_server
from latencylab.model.integrity import InputError

if TYPE_CHECKING:
    from latencylab.runtime.bench import Workload
    from latencylab.runtime.capture import Finding, Plan

COUNT = click.IntRange(min=1)
# What a capture consists of: nothing of an older one in the same folder may stay beside the new one.
PARTS = re.compile(
    r"manifest\.json|rank\d+\.trace\.json(\.gz)?|unprofiled/(client\.json|clock-rank\d+\.parquet)"
)
_OF_PROGRAMS = {"output", "commit", "capture_range", "force", "extra"}  # the parameters they have


@click.command("capture")
@takes_server
@required_output("The capture folder to write.", "DIR")
@click.option("--steps", type=COUNT, default=30, show_default=True, metavar="N", help="Steps to profile.")
@click.option(
    "--after-chunk",
    type=COUNT,
    default=20,
    show_default=True,
    metavar="K",
    help="Profile from the K-th chunk of a request on.",
)
@click.option(
    "--trace-timeout",
    "traces_s",
    type=Seconds(),
    default=300.0,
    show_default=True,
    metavar="S",
    help="How long the ranks may take to write their traces.",
)
@click.option("--no-plugin", is_flag=True, help="With --preset: without our spans and step clock.")
@click.option("--commit", metavar="ID", help="The commit that was measured, where git cannot tell.")
@click.option(
    "--capture-range",
    is_flag=True,
    help="Profile a program from torch.cuda.profiler.start() to stop() only.",
)
@force_option
@click.argument("extra", metavar="[-- PROGRAM or ARGUMENTS OF SGLANG]", nargs=-1, type=click.UNPROCESSED)
@debug_option
def command(
    server: Server,
    workload: Workload,
    output: Path,
    steps: int,
    after_chunk: int,
    traces_s: float,
    no_plugin: bool,
    commit: str | None,
    capture_range: bool,
    force: bool,
) -> None:
    """Record a capture: unprofiled requests with the step clock, then a profile of some steps.

    Of a server at --url, of one that --preset launches, or of a torch program: latencylab capture -o DIR
    -- python script.py. What is wrong with the capture is said on stderr, one line each.
    """
    context = click.get_current_context()
    if server.url is not None and server.extra:
        raise click.UsageError("a program, or arguments after --, do not go with --url", context)
    if server.url is None and server.preset is None and not server.extra:
        raise click.UsageError("give --url, --preset, or a program after --", context)
    if capture_range and (server.url is not None or server.preset is not None):
        raise click.UsageError("--capture-range is for a program", context)
    if no_plugin and server.preset is None:
        raise click.UsageError("--no-plugin goes with --preset", context)
    if server.url is None and server.preset is None:
        _refuse_options_of_servers(context)
    check_folder(output, force=force)

    taking = _Taking()
    if server.url is None and server.preset is None:
        _take_program(taking, output, server.extra, capture_range, commit, force)
        return

    from latencylab.runtime.capture import Plan

    plan = Plan(workload, steps, after_chunk, traces_s)
    plan.check()
    plugin = server.preset is not None and not no_plugin
    server = replace(server, clock=plugin, spans="profiler" if plugin else None)
    with show_progress("capturing") as progress:
        taking.write(output, lambda folder: _record(folder, server, plan, commit, progress), force)
    taking.tell()


def _refuse_options_of_servers(context: click.Context) -> None:
    """Raise UsageError for an option that a program's capture would pass over in silence."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is ParameterSource.COMMANDLINE and parameter.name not in _OF_PROGRAMS:
            raise click.UsageError(f"{parameter.opts[0]} is for a server", context)


@dataclass(slots=True)
class _Taking:
    """A capture that is being taken, and what stopped us after it was complete, if something did."""

    findings: list[Finding] = field(default_factory=list)
    stopped: BaseException | None = None

    def write(self, output: Path, record: Callable[[Path], list[Finding]], force: bool) -> None:
        """Fill the folder with `record`, and look at what it made; nothing stays of a capture half taken."""
        write_folder(output, lambda folder: self._fill(folder, record), force=force, stale=PARTS)

    def _fill(self, folder: Path, record: Callable[[Path], list[Finding]]) -> None:
        from latencylab.runtime.capture import check_capture, is_complete, mark_unusable

        try:
            self.findings += record(folder)
            self.findings += check_capture(folder)
            mark_unusable(folder, self.findings)
        except (KeyboardInterrupt, Terminated) as stop:
            if not is_complete(folder):
                raise
            self.stopped = stop

    def tell(self) -> None:
        for finding in self.findings:
            what = "unusable" if finding.unusable else "warning"
            click.echo(f"latencylab: {what}: {finding.text}", err=True)
        if self.stopped is not None:
            raise self.stopped


def _record(
    folder: Path, server: Server, plan: Plan, commit: str | None, progress: Progress | None
) -> list[Finding]:
    """Take it of the server, which is gone afterwards where it was launched."""
    from latencylab.runtime import provenance
    from latencylab.runtime.bench import check_prompts
    from latencylab.runtime.capture import Finding, record

    with server.serving(progress) as served:
        check_prompts(plan.workload, served.info)
        states = provenance.read_states(served.folder) if served.folder is not None else {}
        if served.launch is not None and served.folder is not None and not states:
            raise InputError(
                "the server does not run our plugin: --server-log keeps what it says of that, and --no-plugin"
                " captures without spans and step clock"
            )
        about = {**describe(served), **_commit(commit), "workload": _model(served.info)}
        if served.launch is not None:
            about["workload"] |= {"preset": served.launch.preset, "shape": served.launch.shape}
        lacking = [
            Finding(f"the plugin's hook on {name} is {state}")
            for name, state in about.get("hooks", {}).items()
            if state != "took"
        ]
        return lacking + record(
            folder,
            served.target,
            plan,
            ranks=provenance.world_size(served.info, states),
            server_dir=served.folder,
            about=about,
            workdir=served.workdir,
            progress=progress,
        )


def _take_program(
    taking: _Taking,
    output: Path,
    program: tuple[str, ...],
    capture_range: bool,
    commit: str | None,
    force: bool,
) -> None:
    from latencylab.runtime.program import record_program
    from latencylab.runtime.server import how_ended

    codes: list[int] = []

    def record(folder: Path) -> list[Finding]:
        about = {} if commit is None else {"commit": commit}
        findings, code = record_program(folder, program, capture_range=capture_range, about=about)
        codes.append(code)
        return findings

    taking.write(output, record, force)
    taking.tell()
    if codes and codes[0] != 0:
        raise InputError(f"the program ended with {how_ended(codes[0])}; its capture was kept")


def _commit(given: str | None) -> dict[str, Any]:
    """The commit as given, or that of SGLang's checkout, or of the folder in which this runs."""
    from latencylab.runtime.provenance import code_commit

    return {"commit": given} if given is not None else code_commit("sglang", Path.cwd())


def _model(info: Mapping[str, Any]) -> dict[str, Any]:
    model = info.get("model_path")
    return {"model": Path(model).name if isinstance(model, str) else None}
