"""The gate's policy file: `latencylab.toml` in the working folder, or a file named."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from latencylab.model.integrity import InputError

if TYPE_CHECKING:  # it imports msgspec
    from latencylab.model.gate import Policy

FILE = Path("latencylab.toml")
TABLE = "gate"


def documented_policy() -> str:
    """A policy file with every default and what it means."""
    return resources.files("latencylab").joinpath("policy.toml").read_text("utf-8")


def read_policy(path: Path | None) -> Policy:
    """The policy of a file, or of `latencylab.toml`, or else the defaults. Raises InputError."""
    from latencylab.model.gate import Policy

    if path is None:
        if not FILE.is_file():
            return Policy()
        path = FILE
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    return parse_policy(text, str(path))


def parse_policy(text: str, name: str) -> Policy:
    """The policy that a file of this name and text holds. Raises InputError, which names the key."""
    import msgspec

    from latencylab.model.gate import Policy

    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{name}: {error}") from None
    table = tables.get(TABLE, {})
    known = [field.name for field in dataclasses.fields(Policy)]
    unknown = [key for key in tables if key != TABLE]
    if not isinstance(table, dict):
        raise InputError(f"{name}: {TABLE} is no table")
    unknown += [f"{TABLE}.{key}" for key in table if key not in known]
    if unknown:
        raise InputError(
            f"{name}: unknown key {unknown[0]!r} (under [{TABLE}] it may hold {', '.join(known)})"
        )
    try:
        policy = msgspec.convert(table, Policy)
    except msgspec.ValidationError as error:
        raise InputError(f"{name}: {error}".replace("$.", f"{TABLE}.")) from None
    for problem in _problems(policy):
        raise InputError(f"{name}: {TABLE}.{problem}")
    return policy


def _problems(policy: Policy) -> Iterator[str]:
    """What is out of range, by name."""
    from latencylab.model.gate import METRICS, STEP

    if not 0 < policy.alpha < 0.5:
        yield "alpha must lie between 0 and 0.5"
    for key in (
        "min_effect_pct",
        "unchanged_within_pct",
        "usual_spread_pct",
        "known_spread_pct",
        "few_runs_factor",
        "site_per_step",
    ):
        if not 0 <= getattr(policy, key) < float("inf"):
            yield f"{key} must be a number of at least 0"
    if policy.min_runs < 2:
        yield "min_runs must be at least 2"
    if not 0 <= policy.site_share < 1:
        yield "site_share must be at least 0 and below 1"
    may = [metric.name for metric in METRICS.values() if metric.good != "none" and metric is not STEP]
    for name in policy.judge:
        if name not in may:
            yield f"judge: {name!r} cannot decide; what can: {', '.join(may)}"
