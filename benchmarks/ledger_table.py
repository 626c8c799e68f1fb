"""The table of what `ledger.py` measured in one folder or more.

    python benchmarks/ledger_table.py FOLDER...

Every server stands against the one named on: ms per step round by round within a run, and GPU busy time
against that of on on the same GPU, in any run. The 95 % intervals join the spread over rounds, or steps, and
that between servers alike, which is known where some were measured again under names such as on.2. Where an
interval holds 0, the difference is not resolved. Times of different runs are not to be compared.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from latencylab.model.integrity import InputError
from latencylab.stats import student_quantile

REFERENCE = "on"


@dataclass(frozen=True)
class Against:
    """A difference to the reference in us per step, and how far its 95 % interval reaches to either side."""

    us: float
    reach: float

    def __str__(self) -> str:
        resolved = abs(self.us) > self.reach
        return f"{self.us:+,.0f} ± {self.reach:,.0f}" + ("" if resolved else " (not resolved)")


def _is_reference(name: str) -> bool:
    return name.partition(".")[0] == REFERENCE


def paired(reference: Sequence[float | None], other: Sequence[float | None]) -> list[float]:
    """Differences in us, round by round."""
    both = zip(reference, other, strict=False)
    return [1000 * (b - a) for a, b in both if a is not None and b is not None]


def between(means: Sequence[float]) -> tuple[float, int]:
    """Root mean square of differences between servers alike, and its degrees of freedom."""
    return (math.sqrt(statistics.fmean([mean**2 for mean in means])), len(means)) if means else (0.0, 0)


def reach(values: Sequence[float], apart: float, freedom: int) -> float:
    """Of the interval of a mean of `values`, to which servers alike add a spread `apart`."""
    own = student_quantile(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return math.hypot(own, student_quantile(0.975, freedom) * apart if freedom else 0.0)


def proven(held: dict[str, Any]) -> str:
    """Whether the server said that the optimisations it was told to switch are in that position."""
    words = [part for word in held["options"] for part in word.split("=", 1)]  # --without=pdl is one word
    told = held.get("ledger") or {}
    off = {name for word, name in pairwise(words) if word == "--without"}
    on = {name for word, name in pairwise(words) if word == "--with"}
    off |= told.keys() - on if "all" in off else set()
    wrong = [name for name in sorted(off) if told.get(name, "").startswith("on ")]
    wrong += [name for name in sorted(on) if told.get(name, "").startswith("off ")]
    if wrong:
        return f"no: {', '.join(wrong)}"
    return "yes" if (on | off) & told.keys() else ""


class Busy:
    """GPU busy time of the reference, by GPU: two GPUs of one host differ by more than two servers on one."""

    def __init__(self, runs: Sequence[Sequence[dict[str, Any]]]) -> None:
        self._means: dict[str, list[float]] = {}
        self._own: dict[str, float] = {}
        for held in (held for run in runs for held in run if _is_reference(held["name"])):
            if len(held.get("busy_us") or ()) < 2:
                continue
            self._means.setdefault(held["gpus"], []).append(statistics.fmean(held["busy_us"]))
            self._own[held["gpus"]] = reach(held["busy_us"], 0.0, 0)
        groups = [means for means in self._means.values() if len(means) > 1]
        self._freedom = sum(len(means) - 1 for means in groups)
        squares = sum(statistics.variance(means) * (len(means) - 1) for means in groups)
        self._spread = math.sqrt(squares / self._freedom) if groups else 0.0

    def against(self, held: dict[str, Any]) -> Against | None:
        """How a server differs from the reference on its GPU; None where there is none."""
        means, steps = self._means.get(held["gpus"]), held.get("busy_us") or ()
        if not means or len(steps) < 2:
            return None
        apart = self._spread * math.sqrt(1 + 1 / len(means))
        # The spread between servers has that over the steps of the reference in it.
        its_own = 0.0 if self._freedom else self._own[held["gpus"]]
        difference = statistics.fmean(steps) - statistics.fmean(means)
        return Against(difference, math.hypot(reach(steps, apart, self._freedom), its_own))


def rows(runs: Sequence[Sequence[dict[str, Any]]]) -> Iterator[tuple[str, ...]]:
    """A row for each server of each run: name, ms, the least, against on, GPU busy, against on, proven."""
    alike = [
        statistics.fmean(paired(reference["step_ms"], held["step_ms"]))
        for held, reference in _with_reference(runs)
        if _is_reference(held["name"]) and held is not reference
    ]
    apart, freedom = between(alike)
    busy = Busy(runs)
    for held, reference in _with_reference(runs):
        values = paired(reference["step_ms"], held["step_ms"])
        sent = [value for value in held["step_ms"] if value is not None]
        slower = Against(statistics.fmean(values), reach(values, apart, freedom))
        more = None if _is_reference(held["name"]) else busy.against(held)
        yield (
            held["name"],
            f"{statistics.fmean(sent):.3f}",
            f"{min(sent):.3f}",
            "" if held is reference else str(slower),
            f"{statistics.fmean(held['busy_us']):,.0f}" if held.get("busy_us") else "",
            "" if more is None else str(more),
            proven(held),
        )


def _with_reference(
    runs: Sequence[Sequence[dict[str, Any]]],
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each server that was measured in two rounds or more, with the reference of its run."""
    for run in runs:
        reference = next((held for held in run if held["name"] == REFERENCE), None)
        for held in run:
            if reference is not None and len(paired(reference["step_ms"], held["step_ms"])) > 1:
                yield held, reference


def left_out(runs: Sequence[Sequence[dict[str, Any]]]) -> Iterator[str]:
    """The servers that are in no row, and why."""
    shown = [held for held, _ in _with_reference(runs)]
    for number, run in enumerate(runs, 1):
        for held in run:
            if held["failed"]:
                yield f"{held['name']} failed: {held['failed']}"
            elif not any(held is each for each in shown):
                yield f"{held['name']} of run {number} has no two rounds with {REFERENCE} in them"


def read_runs(folders: Sequence[Path]) -> list[list[dict[str, Any]]]:
    """All runs of the folders. Raises InputError where there are none, or one is no file of `ledger.py`."""
    paths = [path for folder in folders for path in sorted(folder.glob("run-*.json"))]
    if not paths:
        raise InputError(f"no run-*.json in {', '.join(map(str, folders)) or 'no folder'}")
    runs = []
    for path in paths:
        try:
            run = json.loads(path.read_text(), parse_constant=lambda _: None)
            for held in run:
                _ = held["name"] + held["gpus"], held["failed"], *held["options"]
                _ = [
                    value + 0.0
                    for value in (*held["step_ms"], *(held.get("busy_us") or ()))
                    if value is not None
                ]
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            raise InputError(f"{path}: no run of ledger.py") from None
        runs.append(run)
    return runs


def table(folders: Sequence[Path]) -> int:
    """Print the table of all runs in the folders, and what is not in it; 3 where they cannot be read."""
    try:
        runs = read_runs(folders)
    except InputError as error:
        sys.stderr.write(f"ledger_table: error: {error}\n")
        return 3
    against = f"against {REFERENCE}, µs"
    head = ("", "ms/step", "fastest", against, "GPU busy, µs", against, "proven")
    lines = [head, ("---", "---:", "---:", "---:", "---:", "---:", "---"), *rows(runs)]
    for line in lines:
        sys.stdout.write(f"| {' | '.join(line)} |\n")
    for line in left_out(runs):
        sys.stdout.write(f"\n{line}\n")
    return 0


if __name__ == "__main__":
    sys.exit(table([Path(folder) for folder in sys.argv[1:]]))
