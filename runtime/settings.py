"""What the plugin is asked to do, carried to every process of SGLang by environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from latencylab.model.integrity import InputError
from latencylab.runtime.faults import Injected, format_faults, parse_faults
from latencylab.runtime.ledger_hooks import parse_hooks

DIR = "LATENCYLAB_DIR"
SPANS = "LATENCYLAB_SPANS"
CLOCK = "LATENCYLAB_CLOCK"
STRICT = "LATENCYLAB_STRICT"
FAULTS = "LATENCYLAB_FAULTS"
HOOKS = "LATENCYLAB_HOOKS"  # of `ledger_hooks`
VARIABLES = (DIR, SPANS, CLOCK, STRICT, FAULTS, HOOKS)
# Where spans go: to NVTX (Nsight Systems), to the torch profiler while one runs.
SPAN_SINKS = ("nvtx", "profiler")


@dataclass(frozen=True, slots=True)
class Settings:
    """The folder for state and clocks, the sinks of spans, and what else is switched on."""

    folder: Path | None = None
    spans: frozenset[str] = frozenset()
    clock: bool = False
    strict: bool = False
    faults: tuple[Injected, ...] = ()
    hooks: tuple[str, ...] = ()

    @property
    def wanted(self) -> bool:
        """Whether there is anything for the plugin to do."""
        return bool(self.folder or self.spans or self.clock or self.strict or self.faults or self.hooks)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Settings:
        """Read the variables; an empty one counts as not set. Raises InputError for nonsense."""
        given = {name: env[name].strip() for name in VARIABLES if env.get(name, "").strip()}
        spans = frozenset(part.strip() for part in given.get(SPANS, "").split(",") if part.strip())
        if odd := sorted(spans - set(SPAN_SINKS)):
            raise InputError(f"{SPANS}: {odd[0]!r} is none of {', '.join(SPAN_SINKS)}")
        folder = Path(given[DIR]) if DIR in given else None
        settings = cls(
            folder,
            spans,
            _switch(given, CLOCK),
            _switch(given, STRICT),
            parse_faults(given.get(FAULTS, "")),
            parse_hooks(given.get(HOOKS, "")),
        )
        if folder is None and settings.wanted:
            raise InputError(f"{DIR}: not set, but the state of the plugin must be written somewhere")
        return settings

    def to_env(self) -> dict[str, str]:
        """The variables that `from_env` reads back as these settings."""
        env = {
            DIR: str(self.folder) if self.folder else "",
            SPANS: ",".join(sink for sink in SPAN_SINKS if sink in self.spans),
            CLOCK: "1" if self.clock else "",
            STRICT: "1" if self.strict else "",
            FAULTS: format_faults(self.faults),
            HOOKS: ",".join(self.hooks),
        }
        return {name: text for name, text in env.items() if text}


def _switch(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "0")
    if text not in ("0", "1"):
        raise InputError(f"{name}: {text!r} is neither 0 nor 1")
    return text == "1"
