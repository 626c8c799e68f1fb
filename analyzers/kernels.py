"""Kernel classes: what kind of work each GPU op does, from a table that users can extend."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

import numpy as np

from latencylab.model.integrity import InputError
from latencylab.model.trace import I64, KERNEL, Trace

COLLECTIVE, COPY, OTHER = "collective", "copy", "other"


@dataclass(frozen=True, slots=True)
class ClassTable:
    """Classes in the order in which they are asked, each with its pattern."""

    rules: tuple[tuple[str, re.Pattern[str]], ...]
    known: dict[str, str] = field(default_factory=dict, repr=False, compare=False)  # ranks share their names

    def class_of(self, kernel: str) -> str:
        """The first class whose pattern is found in the kernel's name, or "other"."""
        found = self.known.get(kernel)
        if found is None:
            found = next((name for name, pattern in self.rules if pattern.search(kernel)), OTHER)
            self.known[kernel] = found
        return found


@cache
def load_classes() -> ClassTable:
    """The bundled table."""
    bundled = files("latencylab.analyzers").joinpath("kernel_classes.toml").read_text("utf-8")
    return ClassTable(_rules(bundled, "kernel_classes.toml"))


def extend_classes(text: str, where: str) -> ClassTable:
    """The rules of a TOML text of the same form as the bundled table, and after them the bundled ones.

    Raises InputError, naming `where` the text is from, where it is no TOML or not of that form.
    """
    return ClassTable(_rules(text, where) + load_classes().rules)


def _rules(text: str, where: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    try:
        entries = [(entry["name"], entry["patterns"]) for entry in tomllib.loads(text)["class"]]
        if not all(isinstance(patterns, list) and patterns for _, patterns in entries):
            raise TypeError("patterns must be a list of at least one")
        return tuple((str(name), re.compile("|".join(its), re.IGNORECASE)) for name, its in entries)
    except (tomllib.TOMLDecodeError, KeyError, TypeError, re.error) as error:
        raise InputError(f"{where}: not a table of kernel classes: {error!r}") from error


def classify(trace: Trace, table: ClassTable) -> tuple[I64, tuple[str, ...]]:
    """Per GPU op the row of its class in the returned names."""
    used = np.flatnonzero(np.bincount(trace.gpu.name))
    classes: dict[str, int] = {COPY: 0, OTHER: 1}
    of_name = np.zeros(len(trace.names), np.int64)
    for name in used.tolist():
        of_name[name] = classes.setdefault(table.class_of(trace.names[name]), len(classes))
    of_op = np.where(trace.gpu.kind == KERNEL, of_name[trace.gpu.name], classes[COPY])
    return of_op, tuple(classes)
