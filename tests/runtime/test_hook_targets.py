"""The targets of the hooks, held against the sources of SGLang that they were written for.

The sources are read from the wheel, never imported.
"""

from __future__ import annotations

import ast
import re
import zipfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from latencylab.runtime import hooks
from latencylab.runtime.plugin import INIT, LOOP, SCHEDULER_MODULE

OURS = [target for target in hooks.TARGETS if target.path.startswith("sglang.")]
# Subclasses that override a target on another kind of device.
NOT_OURS = {"MlxTpModelWorker"}


class Sources:
    """The Python files of the wheel, by module."""

    def __init__(self, wheel: Path) -> None:
        self._zip = zipfile.ZipFile(wheel)
        self.names = [name for name in self._zip.namelist() if re.match(r"sglang/srt/.*\.py$", name)]
        self._parsed: dict[str, ast.Module] = {}

    def text(self, name: str) -> str:
        return self._zip.read(name).decode()

    def parse(self, module: str) -> ast.Module:
        if module not in self._parsed:
            name = module.replace(".", "/")
            found = [one for one in (f"{name}.py", f"{name}/__init__.py") if one in self._zip.namelist()]
            assert found, f"no module {module}"
            self._parsed[module] = ast.parse(self.text(found[0]))
        return self._parsed[module]

    @cached_property
    def all_text(self) -> dict[str, str]:
        return {name: self.text(name) for name in self.names}

    def holding(self, word: str) -> Iterator[str]:
        """The text of each file in which the word occurs."""
        return (text for text in self.all_text.values() if word in text)

    @cached_property
    def bases(self) -> dict[str, set[tuple[str, str]]]:
        """The classes that name each class as a base: (file, class)."""
        found: dict[str, set[tuple[str, str]]] = {}
        for name, text in self.all_text.items():
            for match in re.finditer(r"^[ \t]*class (\w+)\(([^)]*)\)", text, re.MULTILINE):
                for base in re.findall(r"[\w.]+", match[2]):
                    found.setdefault(base.rpartition(".")[2], set()).add((name, match[1]))
        return found

    def subclasses(self, name: str) -> Iterator[tuple[str, str]]:
        for file, child in sorted(self.bases.get(name, set())):
            yield file, child
            if child != name:
                yield from self.subclasses(child)


@pytest.fixture(scope="module")
def sources(sglang_wheel: Any) -> Sources:
    return Sources(sglang_wheel.path)


def _class(tree: ast.Module, name: str) -> ast.ClassDef | None:
    return next(
        (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name), None
    )


def _function(body: list[ast.stmt], name: str) -> ast.FunctionDef | None:
    return next((node for node in body if isinstance(node, ast.FunctionDef) and node.name == name), None)


def _find(sources: Sources, path: str) -> tuple[str, ast.FunctionDef]:
    """The class ("" for a function of a module) and the definition of a target."""
    owner, _, name = path.rpartition(".")
    module, _, cls = owner.rpartition(".")
    if not cls[:1].isupper():
        module, cls = owner, ""
    tree = sources.parse(module)
    if cls:
        defined = _class(tree, cls)
        assert defined is not None, f"no class {cls} in {module}"
        body = defined.body
    else:
        body = tree.body
    function = _function(body, name)
    assert function is not None, f"{cls or module} does not define {name} itself"
    return cls, function


@pytest.mark.parametrize("target", OURS, ids=lambda target: target.path.split(".", 3)[3])
class TestTarget:
    def test_is_a_plain_function_with_the_parameters_that_the_hook_gives(
        self, sources: Sources, target: hooks.Target
    ) -> None:
        cls, function = _find(sources, target.path)
        decorators = {ast.unparse(one).split("(")[0] for one in function.decorator_list}
        assert decorators <= {"scheduler_stage_method", "torch.no_grad", "torch.inference_mode"}
        parameters = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
        assert tuple(parameters[: len(target.parameters)]) == target.parameters
        if cls:
            assert parameters[0] == "self"

    def test_is_called(self, sources: Sources, target: hooks.Target) -> None:
        name = target.path.rpartition(".")[2]
        dot = r"\." if target.used or "Scheduler" in target.path else ""
        calls = re.compile(rf"{dot}\b{name}\b(?!\s*=)")
        defined = re.compile(rf"def {name}\b")
        assert any(calls.search(defined.sub("", text)) for text in sources.holding(name)), (
            f"nothing calls {name}"
        )

    def test_no_subclass_in_use_overrides_it(self, sources: Sources, target: hooks.Target) -> None:
        cls, function = _find(sources, target.path)
        overriding = []
        for file, child in sources.subclasses(cls) if cls else ():
            defined = _class(ast.parse(sources.text(file)), child)
            if defined is not None and _function(defined.body, function.name):
                overriding.append(child)
        hooked = {other.path.split(".")[-2] for other in OURS if other.path.endswith(f".{function.name}")}
        assert [one for one in overriding if one not in hooked | NOT_OURS] == []

    def test_the_path_to_the_object_in_use_exists(self, sources: Sources, target: hooks.Target) -> None:
        scheduler = sources.text(f"{SCHEDULER_MODULE.replace('.', '/')}.py")
        first, *rest = [part for part in target.used.split(".") if part] or [""]
        if first:
            assert re.search(rf"self\.{first}\b(,|: [^=]*| )\s*=?", scheduler), f"Scheduler has no {first}"
        for part in rest:
            stored = re.compile(rf"self\.{part}(: [^=\n]*)? = |def {part}\(self\)")
            assert any(map(stored.search, sources.holding(part))), f"nothing sets {part}"


def test_the_frame_of_the_plugin(sources: Sources) -> None:
    _, init = _find(sources, INIT)
    assert [one.arg for one in init.args.args][:2] == ["self", "server_args"]
    _, loop = _find(sources, LOOP)
    assert [one.arg for one in loop.args.args] == ["self"]
    tree = sources.parse(SCHEDULER_MODULE)
    process = _function(tree.body, "run_scheduler_process")
    assert process is not None
    # The plugins are loaded before the scheduler is made, and only Exception is caught around it.
    text = ast.unparse(process)
    assert text.index("load_plugins()") < text.index("Scheduler(server_args") < text.index("run_event_loop()")
    caught = [
        ast.unparse(node.type)
        for node in ast.walk(process)
        if isinstance(node, ast.ExceptHandler) and node.type
    ]
    assert set(caught) == {"Exception"}


def test_the_registry_is_as_the_stand_in(sources: Sources) -> None:
    tree = sources.parse("sglang.srt.plugins.hook_registry")
    registry, kinds = _class(tree, "HookRegistry"), _class(tree, "HookType")
    assert registry is not None
    assert kinds is not None
    register = _function(registry.body, "register")
    assert register is not None
    assert [one.arg for one in register.args.args] == ["cls", "target", "hook", "hook_type"]
    assert _function(registry.body, "apply_hooks") is not None
    assert {ast.unparse(node) for node in kinds.body} >= {
        f"{name.upper()} = '{name}'" for name in ("before", "after", "around", "replace")
    }
    wrap = _function(tree.body, "_wrap_fn")
    assert wrap is not None
    assert "hook(original_fn, *args, **kwargs)" in ast.unparse(wrap)


def test_what_else_is_read(sources: Sources) -> None:
    scheduler = ast.unparse(sources.parse(SCHEDULER_MODULE))
    for attribute in ("forward_stream", "schedule_stream", "enable_overlap"):
        assert f"self.{attribute}" in scheduler
    assert _function(sources.parse("sglang.srt.runtime_context").body, "get_parallel") is not None
    modes = _class(sources.parse("sglang.srt.model_executor.forward_batch_info"), "ForwardMode")
    assert modes is not None
    named = {ast.unparse(node).split(" ")[0] for node in modes.body if isinstance(node, ast.Assign)}
    assert {"EXTEND", "DECODE", "MIXED", "SPLIT_PREFILL"} <= named


def test_lengths_on_the_host_are_asked_for_by_an_attribute_of_the_future_map(sources: Sources) -> None:
    """It is made once, read in every step and copied nowhere, so setting it on the object is enough."""
    tree = sources.parse("sglang.srt.managers.overlap_utils")
    future_map = _class(tree, "FutureMap")
    assert future_map is not None
    using = {
        node.name: ast.unparse(node)
        for node in future_map.body
        if "needs_cpu_seq_lens" in ast.unparse(node) and isinstance(node, ast.FunctionDef)
    }
    assert set(using) == {"__init__", "resolve_seq_lens_cpu"}
    assert "self.needs_cpu_seq_lens = needs_cpu_seq_lens" in using["__init__"]
    assert not any("needs_cpu_seq_lens" in ast.unparse(n) for n in future_map.body if not hasattr(n, "body"))
    (gate,) = [
        node
        for node in ast.walk(future_map)
        if isinstance(node, ast.If) and "needs_cpu_seq_lens" in ast.unparse(node.test)
    ]
    assert ast.unparse(gate.test) == "not self.needs_cpu_seq_lens"
    assert isinstance(gate.body[-1], ast.Return)
    after = using["resolve_seq_lens_cpu"].partition(ast.unparse(gate.test))[2]
    assert "fwd_prepare_d2h_stream.synchronize()" in after

    # The scheduler makes it where it itself is made, keeps it under this name, and reads it anew each time.
    assert [*sources.subclasses("FutureMap")] == []
    scheduler = ast.unparse(sources.parse(SCHEDULER_MODULE))
    assert re.findall(r"self\.(\w+) = [^\n]*needs_cpu_seq_lens", scheduler) == ["future_map"]
    assert scheduler.count("self.future_map = ") == 1


def test_the_algorithms_are_known_to_sglang(sources: Sources) -> None:
    module = "sglang.srt.speculative.spec_info"
    algorithms = _class(sources.parse(module), "SpeculativeAlgorithm")
    assert algorithms is not None
    named = {ast.unparse(node).split(" ")[0] for node in algorithms.body if isinstance(node, ast.Assign)}
    assert set(hooks.ALGORITHMS) - {"", "NEXTN"} <= named
    assert "_RESERVED_ALIASES" in ast.unparse(algorithms)  # other names for EAGLE
    registry = ast.unparse(sources.parse("sglang.srt.speculative.spec_registry"))
    assert "_RESERVED_ALIASES = frozenset({'NEXTN'})" in registry


def test_the_profiler_is_made_with_keywords(sources: Sources) -> None:
    """`experimental_config` is found among the keywords, and start and stop are called on the object."""
    manager = sources.text("sglang/srt/managers/scheduler_components/profiler_manager.py")
    assert "torch.profiler.profile(" in manager
    assert ".torch_profiler.start()" in manager
    assert ".torch_profiler.stop()" in manager
