"""Spans for traces: NVTX ranges in a domain of their own, and the same for the torch profiler while it runs.

An NVTX message is one of few and its payload is the step, so that a tool can group by message; a span of the
torch profiler has no payload, so its name carries the step and what else stands in brackets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

DOMAIN = "latencylab"


class Domain(Protocol):
    """What is used of `nvtx.Domain`."""

    def get_event_attributes(self, message: str) -> Any: ...

    def push_range(self, attributes: Any) -> None: ...

    def pop_range(self) -> None: ...


class Tracer:
    """Opens and closes spans in every sink that listens. Spans of a thread must nest.

    `on` says whether to call `push` at all; `update` computes it. `record_function` makes a span of the torch
    profiler, which is entered only while `profiling`.
    """

    def __init__(self, domain: Domain | None, record_function: Callable[[str], Any] | None) -> None:
        self.on = False
        self.profiling = False
        self._domain = domain
        self._attributes: dict[str, Any] = {}
        self._record_function = record_function

    def update(self, allowed: bool) -> None:
        """Switch on where allowed, and where anybody listens."""
        self.on = allowed and (self._domain is not None or self.profiling)

    def profile(self, running: bool) -> None:
        """The torch profiler was started, or is about to stop."""
        self.profiling = running and self._record_function is not None

    def push(self, message: str, step: int, name: str = "") -> tuple[bool, Any]:
        """Open a span and return what `pop` needs; `name` is what the profiler shows for `message`."""
        domain = self._domain
        if domain is not None:
            attributes = self._attributes.get(message)
            if attributes is None:
                attributes = self._attributes[message] = domain.get_event_attributes(message)
            attributes.payload = step
            domain.push_range(attributes)
        if not self.profiling or self._record_function is None:
            return domain is not None, None
        span = self._record_function(name or message)
        span.__enter__()
        return domain is not None, span

    def pop(self, opened: tuple[bool, Any]) -> None:
        """Close what `push` opened, and no more, even where a sink has come or gone since."""
        ranged, span = opened
        if span is not None:
            span.__exit__(None, None, None)
        if ranged and self._domain is not None:
            self._domain.pop_range()


def nvtx_domain() -> Domain | None:
    """The NVTX domain, or None where no tool listens (nvtx then hands out a domain that does nothing).

    Raises ImportError without the package nvtx.
    """
    import nvtx

    domain: Domain = nvtx.get_domain(DOMAIN)
    return domain if domain.get_event_attributes("ll.step") is not None else None
