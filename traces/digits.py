"""Microseconds written as decimal text to exact int64 nanoseconds.

No float on the way: epoch microseconds with ns digits need 61 bits, and even below that
`round(us * 1000)` is off by 1 ns for a quarter of the values above 2**42 us.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Raw

from latencylab.model.trace import I64, U8, Bool

OK, ABSENT, UNREADABLE, QUOTED = 0, 1, 2, 3
# Sums of a base time, a timestamp and a duration stay within int64; in ns since 1970 this is the year 2043.
LIMIT = 1 << 61
_MAX_DIGITS = 16  # of whole microseconds: any 16 digits fit int64, and over LIMIT is found afterwards
_COMMA, _DOT, _MINUS, _ZERO, _NINE = b",.-09"


def parse_us(texts: Sequence[Raw]) -> tuple[I64, U8]:
    """JSON numbers of microseconds to ns, rounded half up at the fourth decimal, and a state for each.

    OK; ABSENT for an empty text; UNREADABLE (value 0) for what is no number or beyond LIMIT; QUOTED for a
    number written as a string, which is read.
    """
    n = len(texts)
    values = np.zeros(n, np.int64)
    states = np.zeros(n, np.uint8)
    if not n:
        return values, states
    joined = b",".join(texts) + b","
    chars = np.frombuffer(joined, np.uint8)
    ends = np.flatnonzero(chars == _COMMA)
    # A value that is a list, an object or a string may hold commas of its own.
    odd = _parse_plain(chars, ends, values) if len(ends) == n else np.ones(n, np.bool_)
    for i in np.flatnonzero(odd).tolist():
        values[i], states[i] = _parse_odd(bytes(texts[i]))
    return values, states


def _parse_plain(chars: U8, ends: npt.NDArray[np.intp], values: I64) -> Bool:
    """Fills `values` from comma-ended fields `[-]digits[.digits]`; true where a field is none such."""
    starts = np.concatenate((np.zeros(1, ends.dtype), ends[:-1] + 1))
    plain = (chars >= _ZERO) & (chars <= _NINE)
    points = np.flatnonzero(chars == _DOT)
    owners = np.searchsorted(ends, points)
    dots = ends.copy()
    dots[owners] = points
    negative = chars[starts] == _MINUS
    plain[ends] = True
    plain[points] = True
    plain[starts[negative]] = True
    first = starts + negative
    lengths = dots - first
    odd: Bool = (lengths < 1) | (lengths > _MAX_DIGITS)
    odd[np.searchsorted(ends, np.flatnonzero(~plain))] = True
    odd[owners[1:][owners[1:] == owners[:-1]]] = True
    last = len(chars) - 1
    for k in range(int(min(lengths.max(), _MAX_DIGITS))):
        inside = k < lengths
        digit = chars[np.minimum(first + k, last)].astype(np.int64) - _ZERO
        values[:] = np.where(inside, values * 10 + digit, values)
    for k in (1, 2, 3):
        values *= 10
        at = np.minimum(dots + k, last)
        values += np.where(dots + k < ends, chars[at].astype(np.int64) - _ZERO, 0)
    at = np.minimum(dots + 4, last)
    values += (dots + 4 < ends) & (chars[at] >= _ZERO + 5)
    odd |= (values < 0) | (values > LIMIT)
    values[negative] *= -1
    values[odd] = 0
    return odd


_NUMBER = re.compile(rb"-?[0-9]{1,40}(\.[0-9]{0,40})?([eE][-+]?[0-9]{1,3})?")


def _parse_odd(text: bytes) -> tuple[int, int]:
    text = text.strip()
    if not text:
        return 0, ABSENT
    state = OK
    if len(text) > 1 and text[:1] == text[-1:] == b'"':
        text, state = text[1:-1].strip(), QUOTED
    if not _NUMBER.fullmatch(text):
        return 0, UNREADABLE
    value = Decimal(text.decode()) * 1000
    if abs(value) > LIMIT:
        return 0, UNREADABLE
    return int(value.to_integral_value(ROUND_HALF_UP)), state


def to_int64(values: Sequence[Any]) -> tuple[I64, int]:
    """Python integers as int64, -1 for those beyond it, and how many these were."""
    try:
        return np.array(values, dtype=np.int64), 0
    except OverflowError:
        top = (1 << 63) - 1
        kept = [v if -top <= v <= top else -1 for v in values]
        lost = sum(not -top <= v <= top for v in values)
        return np.array(kept, dtype=np.int64), lost
