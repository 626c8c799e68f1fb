"""How numbers and names are written, in one place, so that every report writes them alike."""

from __future__ import annotations

import itertools
import json
import math
import re
import unicodedata
from typing import Any

MISSING = "–"


def finite(value: float | None) -> float | None:
    """The value, or None where there is none to speak of: None, NaN or infinity."""
    if value is None or not math.isfinite(value):
        return None
    return float(value)


def amount(value: float | None) -> float:
    """The value, or 0 where there is none: for lengths of bars and orders of rows, never for printing."""
    return finite(value) or 0.0


def us(value: float | None) -> str:
    """Microseconds without the unit: `1,234.5`; whole numbers from 100,000 on, two decimals below 1."""
    number = finite(value)
    if number is None:
        return MISSING
    size = abs(number)
    digits = 0 if size >= 99_999.5 else 1 if size >= 1 or size < 0.0005 else 2
    text = f"{number:,.{digits}f}"
    return text[1:] if text.startswith("-") and not text.strip("-0.,") else text


def us_unit(value: float | None) -> str:
    """Microseconds with the unit."""
    return MISSING if finite(value) is None else f"{us(value)} µs"


def duration(value: float | None) -> str:
    """Microseconds in the unit in which people speak of them: `12.3 µs`, `8.31 ms`, `1.20 s`."""
    number = finite(value)
    if number is None:
        return MISSING
    size = abs(number)
    if size >= 999_995:
        return f"{number / 1e6:,.2f} s"
    if size >= 999.95:
        return f"{number / 1e3:.2f} ms"
    return us_unit(number)


def signed_us(value: float | None) -> str:
    """Microseconds with their sign and without the unit: `+12.3`, or with a minus sign."""
    number = finite(value)
    if number is None:
        return MISSING
    text = us(abs(number))
    if not text.strip("0.,"):
        return text
    return f"+{text}" if number > 0 else f"\N{MINUS SIGN}{text}"


def bounded_us(value: float | None, sign: str) -> str:
    """Microseconds without the unit, after a sign such as `≤`."""
    return us(value) if finite(value) is None or not sign else f"{sign} {us(value)}"


def share(part: float | None, whole: float | None) -> float | None:
    """The part's share of the whole, from 0 to 1; None where the whole is nothing."""
    top, bottom = finite(part), finite(whole)
    return None if top is None or bottom is None or bottom <= 0 else top / bottom


def percent(fraction: float | None) -> str:
    """A fraction as a percentage: `67.6 %`."""
    number = finite(fraction)
    return MISSING if number is None else f"{100 * number:.1f} %"


def per_step(value: float | None) -> str:
    """A count per step: whole where it is whole, else with two decimals."""
    number = finite(value)
    if number is None:
        return MISSING
    return f"{number:,.0f}" if abs(number - round(number)) < 0.005 else f"{number:,.2f}"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """`1 step`, `3 steps`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def size(number: int | None) -> str:
    """Bytes: `16 B`, `1.5 KiB`; nothing where unknown."""
    if number is None:
        return ""
    if number < 1024:
        return f"{number} B"
    if number < 1024**2:
        return f"{number / 1024:.1f} KiB"
    return f"{number / 1024**2:,.1f} MiB"


_FOLDERS = re.compile(r"(?<![\w./~-])(?:~|[A-Za-z]:)?[/\\](?:[^\s/\\:;,()'\"<>|]+[/\\])+")


def without_folders(text: str) -> str:
    """The text with the folders of absolute paths left out: they say where somebody worked, not what was
    measured, and pages are passed on.
    """
    return _FOLDERS.sub("…/", text) if "/" in text or "\\" in text else text


def storable(text: str) -> str:
    """The text without lone surrogates, which JSON can name but no UTF-8 file can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


_TURNS_WRITING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def clean(text: str) -> str:
    """The text with what a terminal or a page could take for a command made visible.

    Names come from traces, so from anyone: control characters (escape sequences among them), characters
    that turn the direction of writing, and lone surrogates, which no file can hold, become U+FFFD.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_harmless(c) for c in text)


def _harmless(char: str) -> str:
    if char in "\n\t":
        return " "
    bad = unicodedata.category(char) in ("Cc", "Cs") or char in _TURNS_WRITING
    return "\N{REPLACEMENT CHARACTER}" if bad else char


def script_json(data: Any) -> str:
    """JSON that no HTML parser can leave a script element in."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def bar(start: float, end: float, width: int, fill: str = "") -> str:
    """A bar from `start` to `end` (fractions of the width), in eighths of a character at its right end, or of
    whole characters of a `fill`.

    Whatever is not nothing is drawn at least an eighth, or a character, wide.
    """
    left = min(max(start, 0.0), 1.0) * width
    right = min(max(end, 0.0), 1.0) * width
    if end <= start or width <= 0:
        return ""
    first = min(int(left + 1e-9), width - 1)
    if fill:
        return " " * first + fill * max(1, round(right) - first)
    eighths = max(1, round((right - first) * 8))
    full, rest = divmod(eighths, 8)
    return " " * first + "█" * full + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[rest]


def spark(values: list[float], width: int) -> str:
    """The values as a row of block characters from 0 to the greatest; where there are more values than
    characters, each character shows the greatest of its share.
    """
    if not values or width <= 0:
        return ""
    top = max(values)
    if top <= 0:
        return ""
    cells = min(width, len(values))
    edges = [round(i * len(values) / cells) for i in range(cells + 1)]
    greatest = [max(values[a:b]) for a, b in itertools.pairwise(edges)]
    return "".join("▁▂▃▄▅▆▇█"[min(7, int(8 * max(v, 0.0) / top))] for v in greatest)
