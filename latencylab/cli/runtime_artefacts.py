"""`latencylab runtime dspark-fit`, `dspark-sps` and `tune-moe`: what a deployment measures for itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from latencylab.cli._exit import debug_option
from latencylab.cli._input import Progress, show_progress
from latencylab.cli._launch import Model, takes_model
from latencylab.cli._output import check_folder, force_option, print_text
from latencylab.model.integrity import InputError, OutputError

if TYPE_CHECKING:
    from latencylab.runtime.check import GreedyServer

START_S = 1800.0

output_option = click.option(
    "-o",
    "--artefacts",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    metavar="DIR",
    help="The folder of artefacts, as `runtime launch --artefacts` takes it.",
)


extra_argument = click.argument("extra", metavar="[-- ARGUMENTS OF SGLANG]", nargs=-1, type=click.UNPROCESSED)


@click.command("dspark-fit")
@output_option
@click.option("--shards", metavar="GLOB", help="Fit shards that were collected before.")
@takes_model
@extra_argument
@click.option("--requests", type=click.IntRange(1), default=32, show_default=True, metavar="N")
@click.option("--input-tokens", type=click.IntRange(1), default=1024, show_default=True, metavar="N")
@click.option("--output-tokens", type=click.IntRange(1), default=512, show_default=True, metavar="N")
@click.option("--bins", type=click.IntRange(1), default=15, show_default=True, metavar="N")
@force_option
@debug_option
def fit(
    artefacts: Path,
    shards: str | None,
    model: Model,
    extra: tuple[str, ...],
    requests: int,
    input_tokens: int,
    output_tokens: int,
    bins: int,
    force: bool,
) -> None:
    """Fit the calibration of DSpark's confidence with SGLang's tool.

    Starts a server that collects what confidence was right about, sends requests, and fits; or fits --shards.
    Prompts of random tokens calibrate for random text: for real use collect on yours.
    """
    if shards is None:
        model.check("dspark")
    elif model.given or extra:
        raise click.UsageError("--shards needs no server", click.get_current_context())

    from latencylab.runtime import dspark_artefacts as artefact

    out = _target(artefacts, artefact.CALIBRATION, force)
    info = None
    if shards is None:
        stem = artefacts / "collected" / "sts"
        stem.parent.mkdir(exist_ok=True)
        for old in stem.parent.glob(f"{stem.name}.*.pt"):
            old.unlink()
        env = artefact.collect_env(stem.absolute(), stand_in=model.shape is not None)
        with (
            show_progress("collecting") as progress,
            _launched(model, extra, env, artefacts, "collect", progress) as server,
        ):
            info = server.target.info()
            artefact.collect(
                server,
                stem,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                requests=requests,
                progress=progress,
            )
        shards = f"{stem.absolute()}.*.pt"
    command = artefact.fit_command(shards, out.absolute(), bins=bins)
    artefact.run_tool(command, artefacts / "dspark-fit.log")
    found = json.loads(out.read_text())
    about = artefact.provenance("confidence calibration", command, info, samples=found.get("num_samples"))
    artefact.write_provenance(out, about)
    note = " (random weights: it means nothing)" if about["random_weights"] else ""
    print_text(f"{out}: temperatures {found['temperatures']} of {found.get('num_samples')} samples{note}\n")


@click.command("dspark-sps")
@output_option
@click.option("--url", metavar="URL", help="A server that records its steps already.")
@takes_model
@extra_argument
@click.option("--input-tokens", type=click.IntRange(1), default=8192, show_default=True, metavar="N")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    default=3.0,
    show_default=True,
    metavar="S",
    help="Of each round.",
)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, metavar="N")
@click.option(
    "--vocabulary", type=click.IntRange(2001), metavar="N", help="Token ids, for a server without tokenizer."
)
@force_option
@debug_option
def sps(
    artefacts: Path,
    url: str | None,
    model: Model,
    extra: tuple[str, ...],
    input_tokens: int,
    seconds: float,
    repeats: int,
    vocabulary: int | None,
    force: bool,
) -> None:
    """Measure DSpark's table of costs: steps per second for each number of verified tokens.

    Starts a server that records its steps, in the mode compact, and lets SGLang's profiler pin the budget.
    """
    if url is None:
        model.check("dspark")
    elif model.given or extra:
        raise click.UsageError("--url and a server to launch exclude each other", click.get_current_context())

    from latencylab.runtime import dspark_artefacts as artefact

    out = _target(artefacts, artefact.COSTS, force)
    if model.shape is not None and vocabulary is None:
        from latencylab.runtime.shapes import model_config

        vocabulary = model_config(model.tp or 1)["vocab_size"]
    with (
        show_progress("measuring") as progress,
        _recording_server(url, model, extra, artefacts, progress) as server,
    ):
        sizes = artefact.measure_costs(
            server,
            out,
            input_tokens=input_tokens,
            seconds=seconds,
            repeats=repeats,
            vocabulary=vocabulary,
            progress=progress,
        )
    if len(sizes) == 1:
        click.echo(
            f"latencylab: warning: every budget replayed the graph of {sizes[0]} tokens, so there is "
            "nothing to gain by verifying fewer",
            err=True,
        )
    table = json.loads(out.read_text())
    print_text(f"{out}\ntokens  steps/s   ms/step\n")
    for tokens, rate in zip(table["sample_batch_tokens"], table["sample_steps_per_sec"], strict=True):
        print_text(f"{tokens:>6}  {rate:>7.1f}  {1000 / rate:>8.3f}\n")


@click.command("tune-moe")
@output_option
@click.option("--budget", type=click.FloatRange(min=0), default=240.0, show_default=True, metavar="S")
@click.option(
    "--tokens",
    "sizes",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="N",
    help="Tokens of a leg; may be repeated.  [default: 1, 6, 8 and 9]",
)
@click.option("--prefill", is_flag=True, help="Also tune 512, 2048 and 8192 tokens.")
@click.option("--no-fused-swiglu", is_flag=True, help="With the activation as a kernel of its own.")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="The order of candidates.")
@force_option
@debug_option
def tune_moe(
    artefacts: Path,
    budget: float,
    sizes: tuple[int, ...],
    prefill: bool,
    no_fused_swiglu: bool,
    seed: int,
    force: bool,
) -> None:
    """Tune the experts' kernels on this GPU for the shapes of one rank of TP4.

    Writes a configuration that `runtime launch --with tuned-moe --artefacts DIR` uses.
    """
    from latencylab.runtime import moe_tuning
    from latencylab.runtime.dspark_artefacts import provenance, write_provenance

    _target(artefacts, "configs", force)
    shape = moe_tuning.Shape.of_rank()
    wanted = tuple(sorted({*(sizes or moe_tuning.SIZES), *(moe_tuning.PREFILL if prefill else ())}))
    with (
        show_progress("tuning") as progress,
        moe_tuning.SglangBench(shape, fused_swiglu=not no_fused_swiglu) as bench,
    ):
        tuned = moe_tuning.tune(bench, shape, wanted, budget_s=budget, seed=seed, progress=progress)
        guards = {size: bench.default(size) for size in moe_tuning.guard_sizes(shape.experts)}
        names, version, gpu = bench.names(), bench.triton, bench.gpu
    try:
        paths = moe_tuning.write_configs(artefacts, names, version, tuned, guards)
        figures = [
            {"tokens": t.size, "before_us": t.before_us, "after_us": t.after_us, "tried": t.tried}
            for t in tuned
        ]
        about = provenance(
            "experts' kernels",
            [f"latencylab runtime tune-moe --budget {budget:g} --seed {seed}"],
            None,
            triton=version,
            tuned_on=gpu,
            fused_swiglu=not no_fused_swiglu,
            figures=figures,
        )
        write_provenance(artefacts / "tuned-moe.json", about)
    except OSError as error:
        raise OutputError(f"cannot write into {artefacts}: {error.strerror or error}") from error
    print_text("\n".join([*moe_tuning.report(tuned), *map(str, paths)]) + "\n")


def _target(artefacts: Path, name: str, force: bool) -> Path:
    """The artefact's path in its folder, which exists from now on. Raises OutputError."""
    if not artefacts.exists():
        check_folder(artefacts, force=force)
        try:
            artefacts.mkdir()
        except OSError as error:
            raise OutputError(f"cannot write {artefacts}: {error.strerror or error}") from error
    path = artefacts / name
    if path.exists() and not force:
        raise OutputError(f"{path} exists (--force replaces it)")
    return path


@contextmanager
def _recording_server(
    url: str | None, model: Model, extra: tuple[str, ...], artefacts: Path, progress: Progress | None
) -> Iterator[GreedyServer]:
    """A DSpark server that records its steps: the one at `url`, or one that is launched."""
    from latencylab.runtime import dspark_artefacts as artefact
    from latencylab.runtime.check import GreedyServer

    if url is not None:
        yield GreedyServer(url)
        return
    start = (artefacts / "start-table.json").absolute()
    artefact.write_table(start, artefact.START_TABLE)
    extra = (artefact.TABLE_FLAG, str(start), *extra)
    with _launched(model, extra, artefact.PROFILE_ENV, artefacts, "profile", progress) as server:
        yield server


@contextmanager
def _launched(
    model: Model,
    extra: tuple[str, ...],
    env: Mapping[str, str],
    artefacts: Path,
    name: str,
    progress: Progress | None,
) -> Iterator[GreedyServer]:
    """A DSpark server with variables of its own; its log stays beside the artefacts."""
    from latencylab.runtime.check import GreedyServer
    from latencylab.runtime.launch import build_launch
    from latencylab.runtime.server import free_port, run_server

    built = build_launch(
        "dspark",
        model=model.path,
        draft_model=model.draft,
        tp=model.tp,
        shape=model.shape,
        lively_weights=model.lively_weights,
        workdir=artefacts,
        port=free_port(),
        extra=extra,
    )
    if built.checked_against is None:
        raise InputError("SGLang is not installed here: pip install 'latencylab[runtime]'")
    server = GreedyServer(f"http://{built.host}:{built.port}")
    log = artefacts / f"{name}-server.log"
    with run_server(
        built.argv, {**built.env, **env}, server.target, log, timeout_s=START_S, progress=progress
    ):
        yield server
