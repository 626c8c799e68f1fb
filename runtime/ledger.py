"""The optimisations that won, one small file each in `ledger/`, and how each is put on and off here.

SGLang has an environment variable, a server argument or a value of the model's config.json for some of them;
where it has none, a hook of `ledger_hooks.py` brings the old path back. `Ledger.apply` merges the positions
asked for into what one launch sets, and refuses by name what contradicts itself.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from importlib.abc import Traversable
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from latencylab.model.integrity import InputError

State = Literal["on", "off", "default", "unavailable"]
ALL = "all"  # among those to put off: every one that is not put on
FOLDER = "{artefacts}"  # in a value: the folder that the artefacts of this deployment are in
# Measured once for a GPU and shipped; a deployment's own folder goes first.
SHIPPED = Path(str(files("latencylab.runtime"))) / "tuned"
_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True)
class Position:
    """What one position of an optimisation sets; nothing where SGLang is in it unasked.

    `files` must be in the folder of artefacts; `stand_in` is set beside it only where the weights are random.
    """

    arguments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    hook: str | None = None
    files: tuple[str, ...] = ()
    stand_in: Mapping[str, str] = field(default_factory=dict)

    def settings(self) -> Iterable[tuple[str, str]]:
        """(what is set, to which value), each once; hooks are no setting."""
        yield from ((flag, " ".join(values)) for flag, values in self.arguments.items())
        yield from self.environment.items()
        yield from ((f"config.json {key}", value) for key, value in self.config.items())

    def shown(self) -> str:
        """How it is brought about, in words."""
        parts = [" ".join((flag, *values)) for flag, values in self.arguments.items()]
        parts += [f"{name}={value}" for name, value in self.environment.items()]
        parts += [f"config.json {key}={value}" for key, value in self.config.items()]
        parts += [f"hook {self.hook}"] if self.hook else []
        return ", ".join(parts).replace(FOLDER, "ARTEFACTS") or "nothing is set"


@dataclass(frozen=True, slots=True)
class Source:
    """What must stand in a file of SGLang for the switch to work; a test holds it against the wheel.

    `symbol` is a dotted name in the file, assigned `value` (as `ast.unparse` writes it) where that is given,
    and `uses` are names, attributes and texts that occur in it.
    """

    file: str
    symbol: str
    value: str | None = None
    uses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Conflict:
    """Another optimisation that cannot be on at the same time, and why."""

    other: str
    why: str


@dataclass(frozen=True, slots=True)
class Optimisation:
    """One entry.

    `published` is the effect that was reported for it, `default` its position in the presets it applies to,
    `read` when the running process looks at the switch, `look` what proves the position there, `kernels_on`
    and `kernels_off` regular expressions of kernels that a trace has in one position alone, `needs` others
    without which it has no effect, `answers` what it does to greedy answers, where compared, and
    `elsewhere` why it is unavailable where it is.
    """

    name: str
    does: str
    published: str
    presets: tuple[str, ...]
    read: str
    look: str
    one_gpu: bool
    one_gpu_note: str
    default: bool = True
    least_ranks: int = 1
    elsewhere: str = ""
    answers: str = ""
    note: str = ""
    needs: tuple[str, ...] = ()
    kernels_on: tuple[str, ...] = ()
    kernels_off: tuple[str, ...] = ()
    on: Position = Position()
    off: Position = Position()
    sources: tuple[Source, ...] = ()
    conflicts: tuple[Conflict, ...] = ()

    def position(self, is_on: bool) -> Position:
        return self.on if is_on else self.off

    def in_trace(self, kernels: Iterable[str]) -> str:
        """Its position as the names of the kernels in a trace show it: on, off or unknown.

        Where the old path has kernels of its own, a trace with neither says nothing: the capture may lack the
        leg, or another kernel may do the work.
        """
        names = list(kernels)
        if not self.kernels_on and not self.kernels_off:
            return "unknown"
        if _matches(self.kernels_on, names):
            return "on"
        if _matches(self.kernels_off, names):
            return "off"
        return "unknown" if self.kernels_off or not names else "off"

    def missing(self, preset: str, ranks: int) -> str | None:
        """Why it is unavailable there, or None."""
        if preset not in self.presets:
            return self.elsewhere
        if ranks < self.least_ranks:
            return f"needs {self.least_ranks} ranks"
        return None


@dataclass(frozen=True, slots=True)
class Row:
    """One optimisation in one configuration: its state, its position if it has one, and by what or why."""

    entry: Optimisation
    state: State
    is_on: bool | None
    by: str


@dataclass(frozen=True, slots=True)
class Switches:
    """What one launch sets for the positions in `rows`, besides what its preset sets."""

    arguments: Mapping[str, tuple[str, ...]]
    environment: Mapping[str, str]
    config: Mapping[str, str]
    hooks: tuple[str, ...]
    stand_in: Mapping[str, str]
    rows: tuple[Row, ...]

    @property
    def positions(self) -> dict[str, bool]:
        """The position of each optimisation that is available."""
        return {row.entry.name: row.is_on for row in self.rows if row.is_on is not None}


@dataclass(frozen=True, slots=True)
class Ledger:
    """All optimisations by name."""

    entries: Mapping[str, Optimisation]

    @classmethod
    def load(cls, folder: Traversable | None = None) -> Self:
        """Read every file of `folder`, ours where not given. Raises InputError for what is no ledger."""
        place = folder if folder is not None else files("latencylab.runtime") / "ledger"
        paths = sorted((p for p in place.iterdir() if p.name.endswith(".toml")), key=lambda p: p.name)
        entries = {entry.name: entry for entry in map(_read, paths)}
        if len(entries) != len(paths):
            raise InputError(f"{place}: two files describe the same optimisation")
        for entry in entries.values():
            named = {*entry.needs, *(conflict.other for conflict in entry.conflicts)}
            if unknown := sorted(named - entries.keys()):
                raise InputError(f"{entry.name}: no optimisation is named {unknown[0]}")
        return cls(entries)

    def apply(
        self,
        preset: str,
        on: Collection[str] = (),
        off: Collection[str] = (),
        *,
        ranks: int = 1,
        artefacts: Path | None = None,
    ) -> Switches:
        """The positions of all optimisations for a preset: those asked for, and the defaults of the others.

        `off` may name `ALL`. `artefacts` is the folder of tables and configurations measured for this
        deployment. Raises InputError where something is unknown, unavailable or lacking, or where two
        positions exclude each other.
        """
        asked = self._asked(on, [name for name in off if name != ALL])
        if ALL in off:
            asked = {**self._all_off(preset, ranks, asked), **asked}
        rows: dict[str, Row] = {}
        for entry in self.entries.values():
            rows[entry.name] = self._row(entry, preset, ranks, asked)
        self._check_conflicts(rows)
        return _merged(tuple(rows.values()), artefacts)

    def _asked(self, on: Collection[str], off: Collection[str]) -> dict[str, bool]:
        for name in (*on, *off):
            if name not in self.entries:
                raise InputError(f"no optimisation is named {name}; there are {', '.join(self.entries)}")
        if both := sorted(set(on) & set(off)):
            raise InputError(f"{both[0]} cannot be both on and off")
        return {**dict.fromkeys(on, True), **dict.fromkeys(off, False)}

    def _all_off(self, preset: str, ranks: int, asked: Mapping[str, bool]) -> dict[str, bool]:
        """Those that are on there unasked; what needs one of them is unavailable without it."""
        unasked = {
            name
            for name, entry in self.entries.items()
            if entry.default and name not in asked and entry.missing(preset, ranks) is None
        }
        return {name: False for name in unasked if not unasked & set(self.entries[name].needs)}

    def _row(self, entry: Optimisation, preset: str, ranks: int, asked: Mapping[str, bool]) -> Row:
        why = entry.missing(preset, ranks)
        for name in entry.needs:
            needed = self.entries[name]
            if why is None and (needed.missing(preset, ranks) or not asked.get(name, needed.default)):
                why = f"needs {name}"
        if why is not None:
            if entry.name in asked:
                raise InputError(f"{entry.name} has no effect on {preset} with {ranks} ranks: {why}")
            return Row(entry, "unavailable", None, why)
        is_on = asked.get(entry.name, entry.default)
        state: State = "default" if entry.name not in asked else "on" if is_on else "off"
        return Row(entry, state, is_on, entry.position(is_on).shown())

    @staticmethod
    def _check_conflicts(rows: Mapping[str, Row]) -> None:
        for row in rows.values():
            for conflict in row.entry.conflicts:
                if row.is_on and rows[conflict.other].is_on:
                    raise InputError(
                        f"{row.entry.name} and {conflict.other} exclude each other: {conflict.why}"
                    )


def _matches(patterns: Iterable[str], names: Iterable[str]) -> bool:
    return any(re.search(pattern, name) for pattern in patterns for name in names)


def _merged(rows: tuple[Row, ...], artefacts: Path | None) -> Switches:
    """Everything the positions set; two that set one thing to two values are refused."""
    arguments: dict[str, tuple[str, ...]] = {}
    environment: dict[str, str] = {}
    config: dict[str, str] = {}
    stand_in: dict[str, str] = {}
    hooks: list[str] = []
    setter: dict[str, tuple[str, str]] = {}
    for row in rows:
        if row.is_on is None:
            continue
        name, position = row.entry.name, row.entry.position(row.is_on)
        for what, value in position.settings():
            other, before = setter.setdefault(what, (name, value))
            if before != value:
                raise InputError(
                    f"{other} and {name} exclude each other: both set {what}, to {before} and {value}"
                )
        folder = _folder(name, position, artefacts, row.state == "on")
        arguments |= {k: tuple(v.replace(FOLDER, folder) for v in vs) for k, vs in position.arguments.items()}
        environment |= {k: v.replace(FOLDER, folder) for k, v in position.environment.items()}
        config |= position.config
        stand_in |= position.stand_in
        hooks += [position.hook] if position.hook else []
    return Switches(arguments, environment, config, tuple(hooks), stand_in, rows)


def _folder(name: str, position: Position, artefacts: Path | None, is_asked: bool) -> str:
    """The folder that has what the position needs: the deployment's own, or else the one shipped here.

    What was put on by name is not taken from elsewhere than from the folder that was given.
    """
    if not position.files:
        return ""
    folders = [artefacts] if artefacts is not None else []
    folders += [SHIPPED] if not (folders and is_asked) else []
    for folder in folders:
        if all(any(folder.glob(file)) for file in position.files):
            return str(folder.absolute())
    if artefacts is None:
        raise InputError(f"{name} needs a folder of artefacts with {', '.join(position.files)}")
    lacking = next(file for file in position.files if not any(artefacts.glob(file)))
    raise InputError(f"{name}: {artefacts} has no {lacking}")


def _read(path: Traversable) -> Optimisation:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from None
    try:
        table["on"] = _position(table.get("on", {}))
        table["off"] = _position(table.get("off", {}))
        table["sources"] = tuple(_record(Source, each) for each in table.get("sources", ()))
        table["conflicts"] = tuple(_record(Conflict, each) for each in table.get("conflicts", ()))
        return _record(Optimisation, table)
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: {error}") from None


def _position(table: Mapping[str, Any]) -> Position:
    arguments = {
        flag: tuple(map(str, values)) if isinstance(values, list) else (str(values),) if values != "" else ()
        for flag, values in table.get("arguments", {}).items()
    }
    return _record(Position, {**table, "arguments": arguments})


def _record(kind: type[_Record], table: Mapping[str, Any]) -> _Record:
    """A dataclass from a table of the same keys, with tuples for lists. Raises TypeError or ValueError."""
    known = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(table.keys() - known):
        raise ValueError(f"{kind.__name__} has no {unknown[0]}")
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})
