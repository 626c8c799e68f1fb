"""Every switch that the ledger names is where SGLang has it."""

from __future__ import annotations

import ast
import re
import sys
from typing import Any

import pytest

from latencylab.runtime.ledger import Ledger, Source
from latencylab.runtime.ledger_hooks import HOOKS, install_hooks
from latencylab.runtime.sglang_source import check_arguments, flags_of
from sglang_stand_ins import stand_in_modules

ENTRIES = list(Ledger.load().entries.values())
SOURCES = [pytest.param(s, id=f"{e.name}-{s.symbol}") for e in ENTRIES for s in e.sources]


def _find(tree: ast.Module, symbol: str) -> ast.AST | None:
    """The node of a dotted name: a function, a class, or an assignment."""
    place: Any = tree
    for part in symbol.split("."):
        place = next((n for n in ast.walk(place) if n is not place and _names(n, part)), None)
        if place is None:
            return None
    return place


def _names(node: ast.AST, name: str) -> bool:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return node.name == name
        case ast.Assign():
            return any(isinstance(t, ast.Name) and t.id == name for t in node.targets)
        case ast.AnnAssign():
            return isinstance(node.target, ast.Name) and node.target.id == name
    return False


def _words(node: ast.AST) -> set[str]:
    """Every name, attribute, argument, keyword and text in a node."""
    found: set[str] = set()
    for each in ast.walk(node):
        match each:
            case ast.Name():
                found.add(each.id)
            case ast.Attribute():
                found.add(each.attr)
            case ast.arg():
                found.add(each.arg)
            case ast.keyword(arg=str(name)):
                found.add(name)
            case ast.alias():
                found |= {each.name, each.asname or each.name}
            case ast.Constant() if isinstance(each.value, str):
                found.add(each.value)
    return found


def _problem(source: Source, text: str) -> str | None:
    node = _find(ast.parse(text), source.symbol)
    if node is None:
        return f"{source.symbol} is not there"
    if source.value is not None:
        value = getattr(node, "value", None)
        written = None if value is None else ast.unparse(value)
        if written != source.value:
            return f"{source.symbol} is {written}"
    missing = [word for word in source.uses if not any(word in said for said in _words(node))]
    return f"{source.symbol} does not use {missing[0]}" if missing else None


@pytest.mark.parametrize("source", SOURCES)
def test_switch_is_where_the_ledger_says(sglang_wheel, source):
    assert _problem(source, sglang_wheel(f"sglang/{source.file}")) is None


def test_a_switch_that_moved_is_noticed():
    text = "class Envs:\n    A = EnvBool(True)\ndef f():\n    return envs.A.get()\n"
    assert _problem(Source("", "Envs.A", "EnvBool(True)"), text) is None
    assert _problem(Source("", "Envs.A", "EnvBool(False)"), text) == "Envs.A is EnvBool(True)"
    assert _problem(Source("", "Envs.B"), text) == "Envs.B is not there"
    assert _problem(Source("", "f", uses=("A", "B")), text) == "f does not use B"


def test_arguments_are_known(sglang_wheel):
    declared = [
        name
        for name in sglang_wheel.names
        if re.fullmatch(r"sglang/srt/(server_args|arg_groups/fields/\w+)\.py", name)
    ]
    flags = flags_of(sglang_wheel(name) for name in declared)
    for entry in ENTRIES:
        for position in (entry.on, entry.off):
            check_arguments(position.arguments, flags)


def test_variables_are_known(sglang_wheel):
    known = set(re.findall(r"^ +(SGLANG_\w+) = Env", sglang_wheel("sglang/srt/environ.py"), re.MULTILINE))
    config = "sglang/srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_config.py"
    known |= set(re.findall(r"SGLANG_MOE_CONFIG_DIR", sglang_wheel(config)))
    used = {name for e in ENTRIES for p in (e.on, e.off) for name in (*p.environment, *p.stand_in)}
    assert used <= known
    assert len(used) > 8


def test_targets_of_hooks_exist(sglang_wheel):
    targets = []
    modules = {}
    try:
        for name in HOOKS:
            modules |= stand_in_modules(name)
        sys.modules.update(modules)
        for target, _ in install_hooks(HOOKS, lambda target, hook, kind: targets.append((target, kind))):
            assert target.count(".") > 3
    finally:
        for name in modules:
            sys.modules.pop(name, None)
    assert {kind for _, kind in targets} == {"after", "around"}
    ours = [target for target, _ in targets if target.startswith("sglang.")]
    assert len(ours) > 5
    for target in ours:
        file, symbol = _split(target, sglang_wheel.names)
        assert _find(ast.parse(sglang_wheel(file)), symbol) is not None, target


def _split(target: str, names: tuple[str, ...]) -> tuple[str, str]:
    """The wheel's file and the name in it of a dotted path."""
    parts = target.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        file = "/".join(parts[:cut]) + ".py"
        if file in names:
            return file, ".".join(parts[cut:])
    raise AssertionError(f"{target} is in no file")
