"""What was wrong with the input and what was done about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Severity = Literal["info", "warning", "error"]
Status = Literal["ok", "degraded", "unusable"]


@dataclass(frozen=True, slots=True)
class Issue:
    """One kind of defect: a stable `code`, how often it was met, and a sentence for people."""

    code: str
    severity: Severity
    count: int
    detail: str


@dataclass(frozen=True, slots=True)
class Integrity:
    """All issues of an input, worst first, and what they add up to; info alone leaves it ok."""

    status: Status
    issues: tuple[Issue, ...]

    @classmethod
    def of(cls, issues: Iterable[Issue]) -> Integrity:
        rank = {"error": 0, "warning": 1, "info": 2}
        ordered = tuple(sorted(issues, key=lambda i: (rank[i.severity], i.code)))
        severities = {i.severity for i in ordered}
        status: Status = "ok"
        if "error" in severities:
            status = "unusable"
        elif "warning" in severities:
            status = "degraded"
        return cls(status, ordered)


class InputError(Exception):
    """The input is missing, unreadable or not comparable: one line for the user, exit code 3."""


class OutputError(Exception):
    """The output could not be written: one line for the user, exit code 4."""
