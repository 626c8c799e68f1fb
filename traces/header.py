"""What stands around the events of a Kineto trace: finding it in the text, and reading it."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec

from latencylab.traces.digits import LIMIT

_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_WANTED = re.compile(
    r'"(baseTimeNanoseconds|distributedInfo|deviceProperties|record_shapes|with_stack|\w+_version)"\s*:\s*'
)
_DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class NoTraceError(Exception):
    """The text is no trace; the message continues the file's name."""


@dataclass(frozen=True, slots=True)
class Head:
    """Where the first event may start in the text, what kind of root it has, and the keys before it."""

    start: int
    is_array: bool
    keys: dict[str, Any]


def find_head(text: bytes, notes: Counter[str]) -> Head | None:
    """The head of a trace that starts with `text`; None if `text` ends before the events.

    Raises NoTraceError if this is no JSON.
    """
    body = text.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not body:
        return None
    offset = len(text) - len(body)
    if body.startswith(b"["):
        return Head(offset + 1, True, {})
    if not body.startswith(b"{"):
        raise NoTraceError("is not JSON")
    matches = list(_KEY.finditer(text))
    for match in matches:
        # Only at the outermost level does this close to a whole object.
        keys = _decode_object(body[: match.start() - offset] + b'"":0}')
        if keys is not None:
            return Head(match.end(), False, keys)
    if matches:
        notes["damaged_header"] += 1
        return Head(matches[0].end(), False, _salvage(body[: matches[0].start() - offset]))
    return None


def read_tail(text: bytes, notes: Counter[str]) -> dict[str, Any]:
    """The keys that follow the events of an object, from after their bracket to the end of the file."""
    keys = _decode_object(b'{"":0' + text)
    if keys is not None:
        return keys
    if text.rstrip().endswith(b"}"):
        notes["damaged_header"] += 1
    else:
        notes["truncated"] = 1
    return _salvage(text)


def no_events(text: bytes) -> str:
    """What is wrong with a file in which no events were found."""
    if _decode_object(text) is not None:
        return "is JSON, but no trace: it has no traceEvents"
    return "is no trace: no traceEvents in it, and its JSON is damaged or cut off"


def _decode_object(text: bytes) -> dict[str, Any] | None:
    try:
        decoded = msgspec.json.decode(text)
    except _DECODE_ERRORS:
        return None
    return decoded if isinstance(decoded, dict) else None


def _salvage(text: bytes) -> dict[str, Any]:
    """The keys that matter, each wherever its value alone can be decoded."""
    whole = text.decode("utf-8", "replace")
    decoder = json.JSONDecoder(strict=False)
    keys: dict[str, Any] = {}
    for match in _WANTED.finditer(whole):
        try:
            keys.setdefault(match[1], decoder.raw_decode(whole, match.end())[0])
        except (ValueError, RecursionError):
            continue
    return keys


@dataclass(frozen=True, slots=True)
class Header:
    """The keys of a trace that are read; `base` is in ns since 1970, None where not given."""

    base: int | None = None
    rank: int | None = None
    world_size: int | None = None
    devices: dict[int, str] = field(default_factory=dict)
    stacks: bool = False
    shapes: bool = False
    versions: dict[str, str] = field(default_factory=dict)
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)  # ranks of process groups, by name

    @classmethod
    def of(cls, keys: dict[str, Any], notes: Counter[str]) -> Header:
        """Values of an unexpected type are left out and noted."""

        def integer(where: dict[str, Any], key: str, top: int) -> int | None:
            value = where.get(key)
            if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
                value = int(value)
            if type(value) is int and 0 <= value <= top:
                return value
            if value is not None and value != -1:
                notes["damaged_header"] += 1
            return None

        info = keys.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        devices = keys.get("deviceProperties")
        versions = {k: v for k, v in (*keys.items(), *info.items()) if k.endswith("_version")}
        return cls(
            base=integer(keys, "baseTimeNanoseconds", LIMIT),
            rank=integer(info, "rank", 1 << 31),
            world_size=integer(info, "world_size", 1 << 31),
            devices={
                d["id"]: d["name"]
                for d in (devices if isinstance(devices, list) else [])
                if isinstance(d, dict) and type(d.get("id")) is int and isinstance(d.get("name"), str)
            },
            stacks=bool(keys.get("with_stack")),
            shapes=bool(keys.get("record_shapes")),
            versions={k: str(v) for k, v in versions.items() if isinstance(v, (str, int, float))},
            groups=_groups(info, notes),
        )


def _groups(info: dict[str, Any], notes: Counter[str]) -> dict[str, tuple[int, ...]]:
    """The process groups of a trace whose members it lists; older traces list none for that of all ranks."""
    config = info.get("pg_config", [])
    groups = {}
    for group in config if isinstance(config, list) else [None]:
        name = group.get("pg_name") if isinstance(group, dict) else None
        ranks = group.get("ranks", []) if isinstance(group, dict) else None
        if not isinstance(name, str) or not isinstance(ranks, list) or any(type(r) is not int for r in ranks):
            notes["damaged_header"] += 1
        elif ranks:
            groups[name] = tuple(sorted(set(ranks)))
    return groups
