"""What the benchmarks time, one task a process: `python benchmarks/tasks.py TASK ARGUMENT`.

Each prints, as one JSON object, its seconds inside the process, imports excluded, and what it found.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

Told = dict[str, Any]


def imports(_: str) -> Told:
    """Only what the other tasks import."""
    _load()
    return {}


def inflate(folder: str) -> Told:
    """Inflate the files one after another, and drop the text."""
    from latencylab.traces.inflate import MAX_BYTES, read_blocks
    from latencylab.traces.open import trace_files

    started = time.perf_counter()
    files = trace_files(Path(folder))
    size = sum(len(block) for path in files for block in read_blocks(path, MAX_BYTES, Counter()))
    return {"inside": time.perf_counter() - started, "json_bytes": size}


def parse(folder: str) -> Told:
    """Open the traces without the column store."""
    return _open(folder, cache=False)


def store(folder: str) -> Told:
    """Open the traces with the column store: the first time fills it, the second reads it."""
    return _open(folder, cache=True)


def analyse(folder: str) -> Told:
    """Open the traces without the column store, and analyse them."""
    open_capture, analyze = _load()
    started = time.perf_counter()
    capture = open_capture(folder, cache=False)
    opened = time.perf_counter()
    analysis = analyze(capture)
    ended = time.perf_counter()
    return {
        "inside": ended - started,
        "open": opened - started,
        "analyse": ended - opened,
        "paired": analysis.collectives.paired if analysis.collectives else 0,
    }


def join(collectives: str) -> Told:
    """Pair the collectives of 8 ranks, align their clocks and measure the skew."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from latencylab.analyzers.kernels import load_classes
    from latencylab.analyzers.ranks import join_ranks
    from latencylab.analyzers.view import RankView
    from synth import ranks

    clocks = [ranks.Clock(offset=r * 300_000, ppb=r * 2_000) for r in range(8)]
    run = ranks.many(ranks=8, collectives=int(collectives), clocks=clocks)
    classes = load_classes()
    begun = time.perf_counter()
    views = tuple(RankView.of(trace, classes) for trace in run.traces)
    started = time.perf_counter()
    joined = join_ranks(views)
    ended = time.perf_counter()
    paired = len(joined.pairing) if joined else 0
    return {"inside": ended - started, "views": started - begun, "paired": paired}


def _open(folder: str, *, cache: bool) -> Told:
    open_capture, _ = _load()
    started = time.perf_counter()
    capture = open_capture(folder, cache=cache)
    return {"inside": time.perf_counter() - started, "traces": len(capture.traces)}


def _load() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """All imports at once, pyarrow's too, which opening leaves until they are needed."""
    import pyarrow.parquet  # noqa: F401

    import latencylab.traces.kineto  # noqa: F401
    from latencylab.analyzers import analyze
    from latencylab.traces import open_capture

    return open_capture, analyze


TASKS = {task.__name__: task for task in (imports, inflate, parse, store, analyse, join)}

if __name__ == "__main__":
    sys.stdout.write(json.dumps(TASKS[sys.argv[1]](sys.argv[2])) + "\n")
