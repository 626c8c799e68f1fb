"""What the installed SGLang accepts, read from its sources, for importing it takes many seconds."""

from __future__ import annotations

import ast
import difflib
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from latencylab.model.integrity import InputError

Arity = Literal["none", "one", "many", "any"]

# Where server arguments are declared: fields of the record, and what is registered by hand.
_DECLARED = ("srt/server_args.py", "srt/arg_groups/fields/*.py")
_BOOLEAN_OPTIONAL = "BooleanOptionalAction"


@dataclass(frozen=True, slots=True)
class Flag:
    """A command-line flag by its main name, how many values it takes, and which, where they are listed."""

    name: str
    arity: Arity
    choices: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Installed:
    """The SGLang that this Python would run; `version` is None where the package does not say."""

    folder: Path
    version: str | None
    flags: Mapping[str, Flag]  # also by alias


def find_sglang() -> Installed | None:
    """The SGLang that `python -m sglang.launch_server` would start, not imported; None without one.

    Raises InputError where its sources cannot be read.
    """
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations)))
    sources = [path for pattern in _DECLARED for path in sorted(folder.glob(pattern))]
    if not sources:
        return None
    try:
        version: str | None = metadata.version("sglang")
    except metadata.PackageNotFoundError:
        version = None
    try:
        flags = flags_of(path.read_text(encoding="utf-8") for path in sources)
    except (OSError, ValueError, SyntaxError) as error:
        raise InputError(f"{folder}: not the sources of SGLang that this Python can read: {error}") from None
    return Installed(folder, version, flags)


def flags_of(sources: Iterable[str]) -> dict[str, Flag]:
    """Every flag that these modules declare, by name and alias.

    A field `name: A[type, help]` is the flag --name; `Arg(...)` in it may rename it, add aliases, or hide it.
    A call `add_argument("--name", ...)` adds one by hand.
    """
    found: dict[str, Flag] = {}
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.AnnAssign):
                found.update(_from_field(node))
            elif isinstance(node, ast.Call) and _name(node.func) == "add_argument":
                found.update(_from_call(node))
    return found


def check_arguments(arguments: Mapping[str, tuple[str, ...]], flags: Mapping[str, Flag]) -> None:
    """Raise InputError for the first flag that is unknown, or has values that it does not take."""
    for name, values in arguments.items():
        flag = flags.get(name)
        if flag is None:
            near = difflib.get_close_matches(name, flags, n=1, cutoff=0.5)
            hint = f"; the closest is {near[0]}" if near else ""
            raise InputError(f"SGLang knows no argument {name}{hint}")
        if flag.arity == "none" and values:
            raise InputError(f"SGLang's {name} takes no value, not {' '.join(values)}")
        if flag.arity == "one" and len(values) != 1:
            raise InputError(f"SGLang's {name} takes one value, not {len(values)}")
        wrong = [value for value in values if flag.choices and value not in flag.choices]
        if wrong:
            raise InputError(f"SGLang's {name} is one of {', '.join(flag.choices or ())}; not {wrong[0]}")


def _from_field(node: ast.AnnAssign) -> Iterator[tuple[str, Flag]]:
    annotation = node.annotation
    if not isinstance(annotation, ast.Subscript) or _name(annotation.value) not in ("A", "Annotated"):
        return
    if not isinstance(node.target, ast.Name) or not isinstance(annotation.slice, ast.Tuple):
        return
    kind, *described = annotation.slice.elts
    call = next((d for d in described if isinstance(d, ast.Call) and _name(d.func) == "Arg"), None)
    given = {word.arg: word.value for word in call.keywords if word.arg} if call else {}
    if not call and not any(_is_text(d) for d in described):
        return
    if _constant(given.get("no_cli")) is True:
        return
    name = _constant(given.get("cli_name")) or "--" + node.target.id.replace("_", "-")
    names = [str(name), *_strings(given.get("aliases"))]
    flag = Flag(str(name), _field_arity(kind, given), _choices(kind, given))
    yield from ((each, flag) for each in names)
    if _name(given.get("action")) == _BOOLEAN_OPTIONAL:
        negative = Flag("--no-" + str(name).removeprefix("--"), "none")
        yield from (("--no-" + each.removeprefix("--"), negative) for each in names)


def _field_arity(kind: ast.expr, given: Mapping[str, ast.expr]) -> Arity:
    if "action" in given:
        return "none" if _name(given["action"]) == _BOOLEAN_OPTIONAL else "any"
    text = ast.unparse(kind).removeprefix("Optional[").removesuffix("]").removesuffix(" | None")
    if "nargs" in given or (text.startswith(("List[", "list[")) and "type_parser" not in given):
        return "many" if _constant(given.get("nargs")) != "?" else "any"
    return "none" if text == "bool" else "one"


def _from_call(node: ast.Call) -> Iterator[tuple[str, Flag]]:
    names = [str(_constant(each)) for each in node.args if str(_constant(each)).startswith("--")]
    given = {word.arg: word.value for word in node.keywords if word.arg}
    action = given.get("action")
    if action is None:
        arity: Arity = "many" if "nargs" in given else "one"
    elif _constant(action) == "store_true" or str(_name(action)).endswith("StoreTrueAction"):
        arity = "none"
    else:
        arity = "any"
    if names:
        flag = Flag(names[0], arity, _choices(None, given))
        yield from ((name, flag) for name in names)


def _choices(kind: ast.expr | None, given: Mapping[str, ast.expr]) -> tuple[str, ...] | None:
    """The values listed on the spot: in `choices=[...]`, or in the type where there are no choices."""
    if "choices" in given:
        listed = given["choices"]
        is_plain = isinstance(listed, ast.List) and all(isinstance(e, ast.Constant) for e in listed.elts)
        return tuple(str(_constant(e)) for e in listed.elts) if is_plain else None  # type: ignore[attr-defined]
    for node in ast.walk(kind) if kind is not None else ():
        if isinstance(node, ast.Subscript) and _name(node.value) == "Literal":
            elements = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return tuple(str(_constant(element)) for element in elements)
    return None


def _name(node: ast.AST | None) -> str | None:
    """The last part of a name such as `argparse.BooleanOptionalAction`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _strings(node: ast.expr | None) -> list[str]:
    elements = node.elts if isinstance(node, ast.List | ast.Tuple) else []
    return [str(_constant(element)) for element in elements]


def _is_text(node: ast.expr) -> bool:
    """A help text, plain or put together."""
    return isinstance(node, ast.JoinedStr | ast.BinOp) or isinstance(_constant(node), str)
