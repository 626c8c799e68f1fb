"""What commands say of a server to launch: the model, the optimisations put on and off, and faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path

import click

# As in latencylab.runtime, which is not imported for the sake of quick help.
PRESETS = ("nextn", "dspark", "plain")
SHAPES = ("tp4-rank",)

Function = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Model:
    """What a launched server runs: a model, or a shape in its place."""

    path: str | None
    draft: str | None
    shape: str | None
    tp: int | None
    lively_weights: bool

    @property
    def given(self) -> str | None:
        """An option that was given, or None where none was."""
        options = {
            "--model": self.path,
            "--draft-model": self.draft,
            "--shape": self.shape,
            "--lively-weights": self.lively_weights or None,
            "--tp": self.tp,
        }
        return next((option for option, value in options.items() if value is not None), None)

    def check(self, preset: str) -> None:
        """Raise UsageError where there is not exactly one thing to run."""
        context = click.get_current_context()
        if bool(self.path) == bool(self.shape):
            raise click.UsageError("give either --model or --shape", context)
        if self.lively_weights and self.shape is None:
            raise click.UsageError("--lively-weights goes with --shape", context)
        if self.draft is not None and (self.shape is not None or preset != "dspark"):
            raise click.UsageError("--draft-model goes with the preset dspark and --model", context)


@dataclass(frozen=True, slots=True)
class Optimisations:
    """Those of the ledger that are put on and off, and the folder of what some of them need."""

    positions: dict[str, bool]
    artefacts: Path | None

    @property
    def given(self) -> str | None:
        """An option that was given, or None where none was."""
        if self.positions:
            return "--with" if any(self.positions.values()) else "--without"
        return None if self.artefacts is None else "--artefacts"


def takes_model(function: Function) -> Function:
    """Give a command the options of the model to run, as its parameter `model`."""

    @click.option("--model", metavar="PATH", help="The model's folder or repository.")
    @click.option("--draft-model", metavar="PATH", help="DSpark's draft, where the model does not bring it.")
    @click.option(
        "--shape",
        type=click.Choice(SHAPES),
        help="In place of a model: random weights; each rank has the shapes of one rank of TP4.",
    )
    @click.option(
        "--lively-weights",
        is_flag=True,
        help="With --shape: weights large enough that every layer shapes the answers, for `runtime check`. "
        "Nothing is simulated then, so that drafts are hardly accepted.",
    )
    @click.option(
        "--tp",
        type=click.IntRange(min=1),
        metavar="N",
        help="GPUs: 4 by default, with --shape 1 (of 1, 2 or 4).",
    )
    @wraps(function)
    def wrapper(
        *,
        model: str | None,
        draft_model: str | None,
        shape: str | None,
        lively_weights: bool,
        tp: int | None,
        **others: object,
    ) -> None:
        function(model=Model(model, draft_model, shape, tp, lively_weights), **others)

    return wrapper


def takes_optimisations(function: Function) -> Function:
    """Give a command the options of the ledger's optimisations, as its parameter `optimisations`."""

    @click.option(
        "--with", "on", multiple=True, metavar="OPT", help="Put one optimisation on; may be repeated."
    )
    @click.option(
        "--without", "off", multiple=True, metavar="OPT", help="Put one off, or all; may be repeated."
    )
    @click.option(
        "--artefacts",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="What dspark-fit, dspark-sps and tune-moe measured.",
    )
    @wraps(function)
    def wrapper(
        *, on: tuple[str, ...], off: tuple[str, ...], artefacts: Path | None, **others: object
    ) -> None:
        if both := sorted(set(on) & set(off)):
            raise click.UsageError(f"{both[0]} is put both on and off", click.get_current_context())
        positions = {**dict.fromkeys(on, True), **dict.fromkeys(off, False)}
        function(optimisations=Optimisations(positions, artefacts), **others)

    return wrapper


fault_option = click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="NAME[:K=V,...]",
    help="Have the server start with a fault that makes it slow; may be repeated.",
)
