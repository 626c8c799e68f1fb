"""What the page's timelines are made of: boxes as columns of integers, names in one shared table, packed.

Columns are JSON, gzipped, in base64.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from latencylab.model.timeline import CAUSES, GapBoxes
from latencylab.model.trace import Table
from latencylab.reports import format as fmt
from latencylab.reports.names import short_name

Data = dict[str, Any]

# How a gap is coloured: a colour of the page's palette, and what it stands for.
TONES = (
    ("--host", "host in Python or untraced"),
    ("--host-2", "host in an API call"),
    ("--host-3", "host in a framework op"),
    ("--host-4", "host elsewhere: GC, waiting for others, the profiler"),
    ("--bad-bg", "host in a blocking call, or late because of one"),
    ("--gpu", "GPU, between the ops of one graph"),
    ("--gpu-2", "GPU, queued in time but started late"),
    ("--unknown", "no launch on record"),
)
_OWED = 4
_BY_CAUSE = {"in_graph": 5, "dispatch": 6, "launch_latency": 6, "unknown": 7}
_BY_DOING = {"api": 1, "framework": 2, "sync": _OWED}


class Strings:
    """The names in use, each once; `short` has the short form of those that have one."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.short: dict[int, str] = {}

    def row(self, text: str) -> int:
        """The row of a name as the page may show it."""
        return self.rows.setdefault(fmt.without_folders(fmt.clean(text)), len(self.rows))

    def kernel(self, name: str, shorten: Callable[[str], str] = short_name) -> int:
        """The row of a kernel's name, which has a short form too."""
        row = self.row(name)
        short = fmt.without_folders(shorten(name))
        if short != name:
            self.short[row] = short
        return row

    def state(self) -> tuple[int, int]:
        """How many names and short names there are."""
        return len(self.rows), len(self.short)

    def since(self, state: tuple[int, int]) -> list[Any]:
        """All that came since then."""
        return [list(self.rows)[state[0] :], list(self.short.items())[state[1] :]]

    def forget(self, state: tuple[int, int]) -> None:
        """Go back to how it was then."""
        names, shorts = self.since(state)
        for name in names:
            del self.rows[name]
        for row, _ in shorts:
            del self.short[row]


def encode_boxes(table: Table, start: int, **columns: list[int]) -> Data:
    """Boxes as columns: `t`, ns since the start of the one before (of the first: since `start`), `d`, ns of
    duration, and others.
    """
    times = {"t": np.diff(table.start, prepend=start).tolist(), "d": (table.end - table.start).tolist()}
    return times | columns


def gap_tones(gaps: GapBoxes, names: Sequence[str]) -> list[int]:
    """The row of tones that each gap is coloured with."""
    doing = {row: _doing_tone(names[row]) for row in np.unique(gaps.doing).tolist() if row >= 0}
    return [
        _OWED if owed else doing.get(row, _BY_CAUSE.get(CAUSES[cause], 0))
        for owed, row, cause in zip(gaps.owed.tolist(), gaps.doing.tolist(), gaps.cause.tolist(), strict=True)
    ]


def _doing_tone(doing: str) -> int:
    return 0 if doing.startswith("span ") else _BY_DOING.get(doing, 3)


def pack(data: Data) -> str:
    """JSON, gzipped (the same for the same data), in base64."""
    text = json.dumps(data, separators=(",", ":")).encode()
    return base64.b64encode(gzip.compress(text, 9, mtime=0)).decode()
