"""Having the server's step clocks switched on and written, and keeping of them what belongs to a capture."""

from __future__ import annotations

import fcntl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from latencylab.model.integrity import InputError, OutputError
from latencylab.model.unprofiled import STEP_SPANS, StepClock
from latencylab.runtime.control import obeyed_path, read_json, wait_obeyed, write_control
from latencylab.runtime.faults import parse_faults
from latencylab.runtime.provenance import read_states
from latencylab.traces import read_clock, write_clock

LOCK = "capture.lock"
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

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other captures away from the server. Raises InputError where one is under way already."""
        try:
            file = (self.folder / LOCK).open("w")
        except OSError as error:
            raise OutputError(f"{self.folder / LOCK}: {error.strerror or error}") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(f"{self.folder}: another capture of this server is under way") from None
            yield

    def switch_on(self) -> list[str]:
        """Have them run; what is wrong with that, a line each. Raises InputError where no rank obeys."""
        late = self._order(clock=True, write=False)
        if len(late) == len(self.ranks):
            raise InputError(
                f"{self.folder}: no rank obeyed within {OBEY_S:g} s: its server is gone, or busy"
            )
        wrong = [f"rank {rank} did not switch its step clock on within {OBEY_S:g} s" for rank in late]
        wrong += [
            f"rank {rank}: the requests were no longer unprofiled when they were measured: its step clock was"
            f" stopped for good by {stopped}; start the server anew for each capture"
            for rank in self.ranks
            if (stopped := self.account(rank).get("stopped_by"))
        ]
        return wrong

    def take(self, target: Path, start: int, end: int, requests: int) -> list[str]:
        """Write the rows from `start` to `end` (epoch ns) into a capture; what is wrong, a line each.

        `requests` is how many the client sent within that time.
        """
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
                # Between two requests the spans are still those of the one before.
                of_step = (kept.request >= 0) & np.isin(kept.span, STEP_SPANS)
                if (served := len(np.unique(kept.request[of_step]))) > requests:
                    wrong.append(f"rank {rank} ran {served} requests while {requests} were measured")
            else:
                wrong.append(f"rank {rank} has no step clock of the measured requests")
        return wrong

    def switch_faults(self, faults: str) -> None:
        """Have these faults and no others, as `parse_faults` reads them. Raises InputError."""
        wanted = {fault.name: fault.values for fault in parse_faults(faults)}
        if late := self._order(clock=True, write=False, faults=faults):
            raise InputError(f"rank {late[0]} did not switch its faults within {OBEY_S:g} s")
        for rank, state in read_states(self.folder).items():
            there = state.get("faults") or {}
            if there.keys() != wanted.keys() or any(
                there[name].get(key) != value
                for name, values in wanted.items()
                for key, value in values.items()
            ):
                raise InputError(f"rank {rank} does not say that it has the faults {faults or 'none'}")

    def account(self, rank: int) -> dict[str, Any]:
        """What a rank said when it last obeyed."""
        return read_json(obeyed_path(self.folder, rank)) or {}

    def accounts(self) -> dict[str, dict[str, Any]]:
        """By rank, for a manifest: what the clocks held and what they cost."""
        return {str(rank): self.account(rank) for rank in self.ranks}

    def _order(self, *, clock: bool, write: bool, faults: str | None = None) -> list[int]:
        sequence = write_control(self.folder, clock=clock, write=write, faults=faults)
        return wait_obeyed(self.folder, sequence, self.ranks, OBEY_S)


def _rows(clock: StepClock, rows: Iterable[int]) -> StepClock:
    columns: dict[str, Any] = {}
    for column in fields(clock):
        values = getattr(clock, column.name)
        columns[column.name] = (
            tuple(values[row] for row in rows) if isinstance(values, tuple) else values[rows]
        )
    return replace(clock, **columns)
