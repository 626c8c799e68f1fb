"""What commands say of a server to measure: one that runs, or a preset to launch, and what to ask of it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from latencylab.cli._input import Seconds
from latencylab.cli._launch import (
    PRESETS,
    Model,
    Optimisations,
    fault_option,
    takes_model,
    takes_optimisations,
)
from latencylab.model.integrity import InputError

if TYPE_CHECKING:
    from latencylab.runtime.bench import Workload
    from latencylab.runtime.client import HttpTarget
    from latencylab.runtime.launch import Launch
    from latencylab.runtime.server import Running
    from latencylab.runtime.settings import Settings

Progress = Callable[[str], None]
Function = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Served:
    """A server that is ready; `launch`, `running` and `workdir` only where it was launched here."""

    target: HttpTarget
    info: Mapping[str, Any]
    folder: Path | None  # its LATENCYLAB_DIR
    launch: Launch | None = None
    running: Running | None = None
    workdir: Path | None = None

    @property
    def is_local(self) -> bool:
        return self.launch is not None or self.target.host in {"localhost", "127.0.0.1", "::1", "0.0.0.0"}  # noqa: S104


@dataclass(frozen=True, slots=True)
class Server:
    """A server as named on the command line."""

    url: str | None
    folder: Path | None
    preset: str | None
    model: Model
    optimisations: Optimisations
    faults: tuple[str, ...]
    extra: tuple[str, ...]
    start_s: float
    log: Path | None
    api: Literal["native", "openai"]
    timeout_s: float
    spans: str | None = None
    clock: bool = False

    @contextmanager
    def serving(self, progress: Progress | None) -> Iterator[Served]:
        """The server while the block runs; raises InputError where it cannot be had."""
        if self.url is not None:
            yield self._reached(self.url)
            return
        with (
            tempfile.TemporaryDirectory(prefix="latencylab-server-") as temporary,
            self._launched(Path(temporary), progress) as served,
        ):
            yield served

    def _reached(self, url: str) -> Served:
        from latencylab.runtime.client import HttpTarget
        from latencylab.runtime.provenance import check_same_server, read_states

        target = HttpTarget(url, api=self.api, timeout_s=self.timeout_s)
        info = target.info()
        if self.folder is not None:
            check_same_server(info, read_states(self.folder), self.folder)
        _check_faults(self.faults, self.folder)
        return Served(target, info, self.folder)

    @contextmanager
    def _launched(self, workdir: Path, progress: Progress | None) -> Iterator[Served]:
        from latencylab.runtime.client import HttpTarget
        from latencylab.runtime.launch import build_launch
        from latencylab.runtime.server import free_port, run_server

        settings = self._settings(workdir)
        launch = build_launch(
            self.preset or "",
            model=self.model.path,
            draft_model=self.model.draft,
            tp=self.model.tp,
            shape=self.model.shape,
            lively_weights=self.model.lively_weights,
            workdir=workdir,
            port=free_port(),
            extra=self.extra,
            settings=settings,
            overrides=self.optimisations.positions,
            artefacts=self.optimisations.artefacts,
        )
        for line in launch.warnings(os.environ):
            click.echo(f"latencylab: warning: {line}", err=True)
        target = HttpTarget(f"http://{launch.host}:{launch.port}", api=self.api, timeout_s=self.timeout_s)
        log = self.log or workdir / "server.log"
        with run_server(
            launch.argv, launch.env, target, log, timeout_s=self.start_s, progress=progress
        ) as running:
            folder = workdir if settings is not None else None
            yield Served(target, target.info(), folder, launch, running, workdir)

    def _settings(self, workdir: Path) -> Settings | None:
        """What the plugin is to do; nothing at all, where neither spans, clock nor faults are asked for."""
        from latencylab.runtime.faults import parse_faults
        from latencylab.runtime.settings import Settings

        if not (self.spans or self.clock or self.faults):
            return None
        spans = frozenset(filter(None, (self.spans or "").split(",")))
        return Settings(
            folder=workdir, spans=spans, clock=self.clock, faults=parse_faults(";".join(self.faults))
        )


def describe(served: Served) -> dict[str, Any]:
    """What was measured: machine, server, and the switches of a preset."""
    from latencylab.runtime import provenance

    states = provenance.read_states(served.folder) if served.folder is not None else {}
    known = provenance.describe_machine(is_local=served.is_local)
    known |= {**provenance.describe_server(served.info, states), "api": served.target.api}
    if served.launch is not None and served.running is not None:
        known |= {
            "preset": served.launch.preset,
            "shape": served.launch.shape,
            "ledger": known["ledger"] or dict(served.launch.switches),
            "env": {**provenance.switches(served.running.env), **known["env"]},
            "packages": {**provenance.installed_packages(), **known["packages"]},
        }
    # Two runs of one configuration must not differ by where they kept their files and which port was free.
    known["server_args"].pop("port", None)
    known["env"].pop("LATENCYLAB_DIR", None)
    for place in (served.workdir, served.folder):
        if place is not None:
            known["server_args"] = _without_text(known["server_args"], f"{place.absolute()}/")
    return known


def _without_text(given: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The mapping with `text` taken out of its strings."""
    return {
        name: value.replace(text, "") if isinstance(value, str) else value for name, value in given.items()
    }


def _check_faults(faults: tuple[str, ...], folder: Path | None) -> None:
    """Raise InputError for faults that a running server does not have: they are injected at its start."""
    from latencylab.runtime.faults import parse_faults
    from latencylab.runtime.provenance import merged_faults, read_states

    wanted = parse_faults(";".join(faults))
    if not wanted:
        return
    on = merged_faults(read_states(folder)) if folder is not None else {}
    for fault in wanted:
        there = on.get(fault.name)
        if there is None or any(there.get(key) != value for key, value in fault.values.items()):
            raise InputError(
                f"the fault {fault.name} is injected when a server starts,"
                " and this one does not say that it has it"
            )


def takes_server(function: Function) -> Function:
    """Give a command the options of a server and of a workload, as `server` and `workload`.

    What stands after -- goes into `server.extra`, through an argument of that name which the command has.
    """

    @click.option("--url", metavar="URL", help="Measure the server that runs there.")
    @click.option(
        "--server-dir",
        "folder",
        type=click.Path(path_type=Path, file_okay=False, exists=False),
        metavar="DIR",
        help="LATENCYLAB_DIR of the server at --url, where it runs our plugin.",
    )
    @click.option("--preset", type=click.Choice(PRESETS), help="Launch a server, and stop it afterwards.")
    @takes_model
    @takes_optimisations
    @fault_option
    @click.option(
        "--start-timeout",
        "start_s",
        type=Seconds(),
        default=1800.0,
        show_default=True,
        metavar="S",
        help="How long a launched server may take until it serves.",
    )
    @click.option(
        "--server-log",
        "log",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Keep what a launched server prints.",
    )
    @click.option(
        "--timeout",
        "timeout_s",
        type=Seconds(),
        default=300.0,
        show_default=True,
        metavar="S",
        help="How long the server may give no token.",
    )
    @click.option(
        "--api",
        type=click.Choice(["native", "openai"]),
        default="native",
        show_default=True,
        help="SGLang's /generate, or /v1/completions.",
    )
    @_takes_workload
    @wraps(function)
    def wrapper(*, workload: Workload, **given: Any) -> None:
        names = Server.__dataclass_fields__.keys()
        server = Server(**{name: given.pop(name) for name in names if name in given})
        _check(server)
        function(server=server, workload=workload, **given)

    return wrapper


def _check(server: Server) -> None:
    """Raise UsageError for options that exclude or need each other; neither URL nor preset is fine here."""
    context = click.get_current_context()
    if server.url is not None and server.preset is not None:
        raise click.UsageError("--url and --preset exclude each other", context)
    if server.preset is not None:
        server.model.check(server.preset)
        if server.folder is not None:
            raise click.UsageError("--server-dir goes with --url", context)
        return
    given = server.model.given or server.optimisations.given or ("--server-log" if server.log else None)
    if given is not None:
        raise click.UsageError(f"{given} goes with --preset", context)
    if server.folder is not None and server.url is None:
        raise click.UsageError("--server-dir goes with --url", context)


def _takes_workload(function: Function) -> Function:
    count = click.IntRange(min=1)

    @click.option("--input-tokens", type=count, default=8192, show_default=True, metavar="N")
    @click.option("--output-tokens", type=click.IntRange(min=2), default=1024, show_default=True, metavar="N")
    @click.option(
        "--requests", type=count, default=6, show_default=True, metavar="N", help="Requests to measure."
    )
    @click.option(
        "--warmup",
        type=click.IntRange(min=0),
        default=2,
        show_default=True,
        metavar="N",
        help="Requests sent before those.",
    )
    @click.option(
        "--seed",
        type=int,
        default=0,
        show_default=True,
        metavar="N",
        help="Runs of one seed send the same prompts.",
    )
    @click.option(
        "--token-ids",
        default="1000:30000",
        show_default=True,
        metavar="A:B",
        callback=_ids,
        help="Prompts are random ids from A up to B, B left out.",
    )
    @click.option(
        "--prompts",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Send the lines of this file as text instead, in turn.",
    )
    @wraps(function)
    def wrapper(
        *,
        input_tokens: int,
        output_tokens: int,
        requests: int,
        warmup: int,
        seed: int,
        token_ids: tuple[int, int],
        prompts: Path | None,
        **others: object,
    ) -> None:
        from latencylab.runtime.bench import Workload

        texts = _lines(prompts) if prompts is not None else ()
        workload = Workload(input_tokens, output_tokens, requests, warmup, seed, token_ids, texts)
        function(workload=workload, **others)

    return wrapper


def _ids(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, int]:
    first, _, last = value.partition(":")
    if not (first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise click.BadParameter(f"{value!r} is not a range of token ids such as 1000:30000")
    return int(first), int(last)


def _lines(path: Path) -> tuple[str, ...]:
    from latencylab.traces import read_text

    lines = tuple(line for line in read_text(path).splitlines() if line.strip())
    if not lines:
        raise InputError(f"{path}: no prompts in it, one a line")
    return lines
