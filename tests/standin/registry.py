"""A registry of hooks with the semantics of SGLang's: dotted paths, four kinds, failures swallowed."""

from __future__ import annotations

import functools
import pkgutil
import types
from collections.abc import Callable
from enum import Enum
from typing import Any


class HookType(Enum):
    BEFORE = "before"
    AFTER = "after"
    AROUND = "around"
    REPLACE = "replace"


class Registry:
    """One registry; `module` gives the module `sglang.srt.plugins.hook_registry` that exposes it."""

    def __init__(self) -> None:
        self.hooks: dict[str, list[tuple[HookType, Callable[..., Any]]]] = {}
        self.applied: set[str] = set()
        self.failures: dict[str, Exception] = {}

    def module(self) -> types.ModuleType:
        module = types.ModuleType("sglang.srt.plugins.hook_registry")
        module.HookRegistry = self  # type: ignore[attr-defined]
        module.HookType = HookType  # type: ignore[attr-defined]
        return module

    def register(self, target: str, hook: Callable[..., Any], hook_type: HookType = HookType.AFTER) -> None:
        self.hooks.setdefault(target, []).append((hook_type, hook))

    def apply_hooks(self) -> None:
        for target in sorted(self.hooks):
            if target in self.applied:
                continue
            try:
                self._apply(target)
            except Exception as error:  # noqa: BLE001  # the real one logs whatever it is
                self.failures[target] = error
            else:
                self.applied.add(target)

    def load(self, plugin: Callable[[], Any]) -> None:
        """What SGLang does with a plugin: call it, log what it raises, then apply all hooks."""
        try:
            plugin()
        except Exception as error:  # noqa: BLE001
            self.failures["plugin"] = error
        self.apply_hooks()

    def _apply(self, target: str) -> None:
        owner_path, _, name = target.rpartition(".")
        owner = pkgutil.resolve_name(owner_path)
        function = getattr(owner, name)
        replacing_first = sorted(self.hooks[target], key=lambda one: one[0] is not HookType.REPLACE)
        for kind, hook in replacing_first:
            function = _wrap(kind, hook, function)
        setattr(owner, name, function)


def _wrap(kind: HookType, hook: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if kind is HookType.AROUND:
            return hook(original, *args, **kwargs)
        if kind is HookType.REPLACE:
            return hook(*args, **kwargs)
        if kind is HookType.BEFORE:
            changed = hook(*args, **kwargs)
            args, kwargs = (args, kwargs) if changed is None else changed
            return original(*args, **kwargs)
        result = original(*args, **kwargs)
        changed = hook(result, *args, **kwargs)
        return result if changed is None else changed

    return wrapper
