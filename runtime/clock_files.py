"""Having the server's step clocks switched on and written, and keeping of them what belongs to a capture."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from latencylab.model.integrity import InputError
from latencylab.model.unprofiled import StepClock
from latencylab.runtime.control import obeyed_path, read_json, wait_obeyed, write_control
from latencylab.runtime.provenance import read_states
from latencylab.traces import read_clock, write_clock

OBEY_S = 30.0  # a scheduler looks at its orders while it is idle


@dataclass(frozen=True, slots=True)
class ServerClocks:
    """The step clocks of a server that runs the plugin; `folder` is its LATENCYLAB_DIR."""

    folder: Path
    ranks: tuple[int, ...]

    @classmethod
    def of(cls, folder: Path) -> ServerClocks:
        """Raises InputError where no server with the plugin uses the folder."""
        ranks = tuple(read_states(folder))
        if not ranks:
            raise InputError(f"{folder}: no plugin-rank*.json: no server with the plugin uses this folder")
        return cls(folder, ranks)

    def switch_on(self) -> list[str]:
        """Have them run; what is wrong with that, a line each."""
        late = self._order(clock=True, write=False)
        wrong = [f"rank {rank} did not switch its step clock on within {OBEY_S:g} s" for rank in late]
        wrong += [
            f"rank {rank}: the requests were no longer unprofiled when they were measured: its step clock was"
            f" stopped for good by {stopped}; start the server anew for each capture"
            for rank in self.ranks
            if (stopped := self.account(rank).get("stopped_by"))
        ]
        return wrong

    def take(self, target: Path, start: int, end: int) -> list[str]:
        """Write the rows from `start` to `end` (epoch ns) into a capture; what is wrong, a line each."""
        late = self._order(clock=True, write=True)
        wrong = [f"rank {rank} did not write its step clock within {OBEY_S:g} s" for rank in late]
        for rank in self.ranks:
            clock = read_clock(self.folder, rank) if rank not in late else None
            if clock is None:
                continue
            if (self.account(rank).get("overwritten") or 0) and clock.start_ns.min() > start:
                wrong.append(f"rank {rank}: its step clock holds only the last of the measured requests")
            kept = _rows(clock, np.flatnonzero((clock.start_ns >= start) & (clock.start_ns <= end)))
            if len(kept):
                write_clock(target, rank, kept)
            else:
                wrong.append(f"rank {rank} has no step clock of the measured requests")
        return wrong

    def account(self, rank: int) -> dict[str, Any]:
        """What a rank said when it last obeyed."""
        return read_json(obeyed_path(self.folder, rank)) or {}

    def accounts(self) -> dict[str, dict[str, Any]]:
        """By rank, for a manifest: what the clocks held and what they cost."""
        return {str(rank): self.account(rank) for rank in self.ranks}

    def _order(self, *, clock: bool, write: bool) -> list[int]:
        return wait_obeyed(
            self.folder, write_control(self.folder, clock=clock, write=write), self.ranks, OBEY_S
        )


def _rows(clock: StepClock, rows: Iterable[int]) -> StepClock:
    columns: dict[str, Any] = {}
    for column in fields(clock):
        values = getattr(clock, column.name)
        columns[column.name] = (
            tuple(values[row] for row in rows) if isinstance(values, tuple) else values[rows]
        )
    return replace(clock, **columns)
