"""Building and starting the server: preset, switches and the user's own arguments become one command."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from latencylab.model.integrity import InputError, OutputError
from latencylab.runtime.ledger import Ledger
from latencylab.runtime.ledger_hooks import LIVELY_WEIGHTS
from latencylab.runtime.presets import PRESETS, SUPPORTED_SGLANG, Preset
from latencylab.runtime.settings import HOOKS, VARIABLES, Settings
from latencylab.runtime.sglang_source import Installed, check_arguments, find_sglang
from latencylab.runtime.shapes import write_shape

PLUGIN = "latencylab"  # its name among the entry points
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 30000
DEFAULT_RANKS = 4

# What only `build_launch` sets, and the option of the command line that says it.
_OWN = {
    "--model-path": "--model",
    "--model": "--model",
    "--speculative-draft-model-path": "--draft-model",
    "--speculative-draft-model": "--draft-model",
    "--tp-size": "--tp",
    "--tensor-parallel-size": "--tp",
    "--host": "--host",
    "--port": "--port",
}
UNIFORM_EXPERTS, ACCEPT_LENGTH = "SGLANG_SIMULATE_UNIFORM_EXPERTS", "SGLANG_SIMULATE_ACC_LEN"
_OVERRIDE = "--json-model-override-args"
_NUMBER = re.compile(r"-\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class Launch:
    """A server about to be started.

    `env` holds only what is set beside the environment that is there. `switches` are the positions of the
    optimisations that apply. `checked_against` is the version of the SGLang whose sources know all arguments
    ("unknown" where it does not say); None where none is installed.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    preset: str
    shape: str | None
    model: str
    tp: int
    host: str
    port: int
    switches: Mapping[str, bool]
    checked_against: str | None

    def shown(self) -> str:
        """The line that starts the same server from a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.env.items())]
        return " ".join([*variables, shlex.join(self.argv)])

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The whole environment of the server; what `env` sets takes the place of what `base` holds."""
        return {**base, **self.env}

    def warnings(self, base: Mapping[str, str]) -> tuple[str, ...]:
        """What the user should know before it starts, one line each."""
        found = [
            f"{name}={base[name]} of the environment is replaced by {value}"
            for name, value in sorted(self.env.items())
            if base.get(name, value) != value
        ]
        if LIVELY_WEIGHTS in self.env.get(HOOKS, "").split(","):
            found += [
                f"{name}={base[name]} of the environment stays: what it simulates is not the weights'"
                for name in (UNIFORM_EXPERTS, ACCEPT_LENGTH)
                if base.get(name)
            ]
        allowed = base.get("SGLANG_PLUGINS", "")
        if allowed and PLUGIN not in allowed.split(",") and any(name in VARIABLES for name in self.env):
            found.append(f"SGLANG_PLUGINS={allowed} of the environment keeps our plugin out: add {PLUGIN}")
        if self.checked_against is None:
            found.insert(0, "SGLang is not installed here, so nothing was checked against it")
        elif self.checked_against != SUPPORTED_SGLANG:
            found.insert(
                0, f"SGLang is {self.checked_against}; presets and plugin are made for {SUPPORTED_SGLANG}"
            )
        return tuple(found)

    def replace_process(self) -> NoReturn:
        """Become the server, so that signals reach it. Raises InputError where it cannot be started."""
        if self.checked_against is None:
            raise InputError("SGLang is not installed here: pip install 'latencylab[runtime]'")
        try:
            os.execvpe(self.argv[0], self.argv, self.environment(os.environ))  # noqa: S606 - no shell is meant
        except OSError as error:
            raise InputError(f"cannot start {self.argv[0]}: {error.strerror}") from error


def build_launch(
    preset: str,
    *,
    model: str | None = None,
    draft_model: str | None = None,
    tp: int | None = None,
    shape: str | None = None,
    lively_weights: bool = False,
    workdir: Path = Path(),
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    extra: Iterable[str] = (),
    settings: Settings | None = None,
    overrides: Mapping[str, bool] | None = None,
    artefacts: Path | None = None,
    find: Callable[[], Installed | None] = find_sglang,
) -> Launch:
    """The command of a preset, for a real model or, with `shape`, for its stand-in of random weights.

    `tp` is 4 for a model and 1 for a shape where not given; a shape's config.json is written into `workdir`.
    `lively_weights` are a shape's weights of such a size that its answers depend on every layer; routing and
    acceptance are not simulated with them, so that the answers are its own and can be asked for again.
    `extra` are arguments as SGLang takes them; they replace the preset's. `overrides` puts optimisations of
    the ledger on or off; `artefacts` is the folder of what some of them need. `find` looks for the SGLang to
    check against.
    Raises InputError for what does not exist or fit, OutputError where the shape cannot be written.
    """
    chosen = _preset(preset)
    if (model is None) == (shape is None):
        raise InputError("a launch needs either a model or a shape")
    if lively_weights and shape is None:
        raise InputError("only a shape has random weights to be made lively")
    if draft_model is not None and (shape is not None or not chosen.has_draft):
        raise InputError(f"{'a shape' if shape else f'the preset {preset}'} takes no draft model")
    ranks = tp if tp is not None else (1 if shape else DEFAULT_RANKS)
    if ranks < 1:
        raise InputError(f"tp is the number of GPUs, not {ranks}")
    asked = overrides or {}
    on, off = ([name for name, is_on in asked.items() if is_on is wanted] for wanted in (True, False))
    switches = Ledger.load().apply(preset, on, off, ranks=ranks, artefacts=artefacts)

    arguments: dict[str, tuple[str, ...]] = {"--model-path": (model or "",), "--tp-size": (str(ranks),)}
    arguments |= {"--host": (host,), "--port": (str(port),)}
    arguments |= chosen.arguments
    arguments |= switches.arguments
    environment = {**chosen.environment, **switches.environment}
    config = switches.config

    installed = find()
    own = _parse(extra, installed)
    if config or _OVERRIDE in own:
        own[_OVERRIDE] = (_merged_config(config, own.get(_OVERRIDE)),)
    arguments |= own
    if draft_model is not None:
        arguments["--speculative-draft-model-path"] = (draft_model,)
    if shape is not None:
        if not lively_weights:
            environment |= {**_simulated(chosen), **switches.stand_in}
        arguments |= _stand_in(shape, ranks, workdir, chosen)
    hooks = (*switches.hooks, LIVELY_WEIGHTS) if lively_weights else switches.hooks
    if hooks:
        settings = replace(settings or Settings(folder=workdir.absolute()), hooks=hooks)
    if settings is not None:
        environment |= settings.to_env()
    if installed is not None:
        _check(arguments, installed)

    words = [word for flag, values in arguments.items() for word in (flag, *values)]
    return Launch(
        argv=(sys.executable, "-m", "sglang.launch_server", *words),
        env=environment,
        preset=preset,
        shape=shape,
        model=arguments["--model-path"][0],
        tp=ranks,
        host=host,
        port=port,
        switches=switches.positions,
        checked_against=None if installed is None else installed.version or "unknown",
    )


def _preset(name: str) -> Preset:
    if name not in PRESETS:
        raise InputError(f"no preset is named {name}; there are {', '.join(PRESETS)}")
    return PRESETS[name]


def _check(arguments: Mapping[str, tuple[str, ...]], installed: Installed) -> None:
    """Raise InputError for what this SGLang does not take; another version is named as the likely cause."""
    try:
        check_arguments(arguments, installed.flags)
    except InputError as error:
        if installed.version in (None, SUPPORTED_SGLANG):
            raise
        raise InputError(
            f"{error} (it is {installed.version}; presets are made for {SUPPORTED_SGLANG})"
        ) from None


def _parse(words: Iterable[str], installed: Installed | None) -> dict[str, tuple[str, ...]]:
    """Arguments by flag, by its main name where that is known; the last of several counts."""
    found: dict[str, tuple[str, ...]] = {}
    flag = None
    for word in words:
        if word.startswith("-") and not _NUMBER.fullmatch(word):
            flag, equals, value = word.partition("=")
            if flag in _OWN:
                raise InputError(f"{flag} is set by latencylab: use its own option {_OWN[flag]}")
            if installed is not None and flag in installed.flags:
                flag = installed.flags[flag].name
            found[flag] = (value,) if equals else ()
        elif flag is None:
            raise InputError(f"{word} belongs to no argument of SGLang; those begin with --")
        else:
            found[flag] = (*found[flag], word)
    return found


def _merged_config(config: Mapping[str, str], own: tuple[str, ...] | None) -> str:
    """The override of config.json as JSON: that of the switches, then the user's."""
    try:
        given = json.loads(" ".join(own)) if own is not None else {}
    except ValueError as error:
        raise InputError(f"{_OVERRIDE} is no JSON: {error}") from None
    if not isinstance(given, dict):
        raise InputError(f"{_OVERRIDE} is no JSON object")
    return json.dumps({**config, **given})


def _simulated(preset: Preset) -> dict[str, str]:
    """Tiny random weights route to a few experts and accept no draft; both are replaced by what a model does.

    SGLang then draws experts anew at every launch of its kernel, and accepts a fixed token unseen.
    """
    environment = {UNIFORM_EXPERTS: "1"}
    if preset.accept_length is not None:
        environment[ACCEPT_LENGTH] = preset.accept_length
    return environment


def _stand_in(shape: str, ranks: int, workdir: Path, preset: Preset) -> dict[str, tuple[str, ...]]:
    """Write the shape and point the server at it, without weights or tokenizer."""
    try:
        model, draft = write_shape(shape, ranks, workdir.absolute(), draft=preset.has_draft)
    except OSError as error:
        raise OutputError(f"cannot write the shape into {workdir}: {error.strerror or error}") from error
    arguments: dict[str, tuple[str, ...]] = {
        "--model-path": (str(model),),
        "--load-format": ("dummy",),
        "--skip-tokenizer-init": (),
    }
    if draft is not None:
        arguments["--speculative-draft-model-path"] = (str(draft),)
        arguments["--speculative-draft-load-format"] = ("dummy",)
    return arguments
