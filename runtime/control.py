"""Files by which the plugin tells its state, and by which it is told what to do while the server runs.

All are JSON, written under another name and then renamed, so that a reader never sees half of one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latencylab.model.integrity import OutputError

CONTROL = "control.json"
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Command:
    """What a scheduler shall do at its next idle moment: run the clock or not, and write what it has.

    `faults` are those that it shall have from then on, as `parse_faults` reads them; None leaves them be.
    """

    sequence: int
    clock: bool
    write: bool
    faults: str | None = None


def state_path(folder: Path, rank: int) -> Path:
    """The file in which a rank's plugin says what it is and which of its hooks took."""
    return folder / f"plugin-rank{rank}.json"


def obeyed_path(folder: Path, rank: int) -> Path:
    """The file in which a rank's plugin answers the newest command that it obeyed."""
    return folder / f"obeyed-rank{rank}.json"


def write_control(folder: Path, *, clock: bool, write: bool, faults: str | None = None) -> int:
    """Tell every scheduler what to do (see `Command`); the sequence number to wait for. Raises OutputError.

    It is above all that were obeyed there, lest the answer to an earlier command passes for one to this.
    """
    before = read_control(folder)
    obeyed = (_sequence(path) for path in folder.glob("obeyed-rank*.json"))
    sequence = max(before.sequence if before else 0, *obeyed, 0) + 1
    write_json(folder / CONTROL, {"sequence": sequence, "clock": clock, "write": write, "faults": faults})
    return sequence


def read_control(folder: Path) -> Command | None:
    """The newest command, or None where there is none that can be read."""
    found = read_json(folder / CONTROL)
    if found is None or not isinstance(found.get("sequence"), int):
        return None
    faults = found.get("faults")
    return Command(
        found["sequence"],
        found.get("clock") is True,
        found.get("write") is True,
        faults if isinstance(faults, str) else None,
    )


def wait_obeyed(folder: Path, sequence: int, ranks: Iterable[int], timeout_s: float) -> list[int]:
    """Wait until each rank has obeyed this command or a later one; the ranks that did not in time."""
    waiting = sorted(set(ranks))
    until = time.monotonic() + timeout_s
    while True:
        waiting = [rank for rank in waiting if _sequence(obeyed_path(folder, rank)) < sequence]
        if not waiting or time.monotonic() >= until:
            return waiting
        time.sleep(POLL_S)


def _sequence(answer: Path) -> int:
    sequence = (read_json(answer) or {}).get("sequence")
    return sequence if isinstance(sequence, int) else -1


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object of a file, or None where it is missing or none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object at once or not at all. Raises OutputError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        partial.replace(path)
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}") from None
