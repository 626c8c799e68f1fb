"""How numbers are written."""

from __future__ import annotations

import math

import pytest

from latencylab.reports import format as fmt


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234.56, "1,234.6"),
        (0.0, "0.0"),
        (0.123, "0.12"),
        (-0.0001, "0.0"),
        (123_456.7, "123,457"),
        (99_999.7, "100,000"),
        (math.nan, "–"),
        (math.inf, "–"),
        (None, "–"),
    ],
)
def test_us(value: float | None, text: str) -> None:
    assert fmt.us(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(999.9, "999.9 µs"), (999.99, "1.00 ms"), (8312.4, "8.31 ms"), (1_200_000.0, "1.20 s"), (None, "–")],
)
def test_duration(value: float | None, text: str) -> None:
    assert fmt.duration(value) == text


def test_signs_and_bounds() -> None:
    assert fmt.signed_us(12.0) == "+12.0"
    assert fmt.signed_us(-12.0) == "\N{MINUS SIGN}12.0"
    assert fmt.signed_us(0.0) == "0.0"
    assert fmt.bounded_us(5.0, "≤") == "≤ 5.0"
    assert fmt.bounded_us(5.0, "") == "5.0"
    assert fmt.bounded_us(math.nan, "≤") == "–"


def test_shares() -> None:
    assert fmt.percent(fmt.share(1.0, 3.0)) == "33.3 %"
    assert fmt.share(1.0, 0.0) is None
    assert fmt.share(math.nan, 1.0) is None


def test_counts() -> None:
    assert fmt.per_step(2.0) == "2"
    assert fmt.per_step(0.04) == "0.04"
    assert fmt.count(1, "step") == "1 step"
    assert fmt.count(2000, "step") == "2,000 steps"
    assert fmt.size(16) == "16 B"
    assert fmt.size(1536) == "1.5 KiB"
    assert fmt.size(3 << 20) == "3.0 MiB"
    assert fmt.size(None) == ""


def test_clean() -> None:
    assert (
        fmt.clean("a\x1b[31m\nb\ud800\u202e")
        == "a\N{REPLACEMENT CHARACTER}[31m b" + "\N{REPLACEMENT CHARACTER}" * 2
    )
    assert fmt.storable("\ud800x") == "?x"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/me/work/x.py(3): f", "…/x.py(3): f"),
        ("model=~/models/ling3", "model=…/ling3"),
        (r"C:\Users\me\x.py", "…/x.py"),
        ("12 µs/step, and/or", "12 µs/step, and/or"),
        ("aiter/ops/triton/x.py", "aiter/ops/triton/x.py"),
        ("[/red] </td>", "[/red] </td>"),
    ],
)
def test_without_folders(text: str, shown: str) -> None:
    assert fmt.without_folders(text) == shown


def test_bar() -> None:
    assert fmt.bar(0.0, 1.0, 4) == "████"
    assert fmt.bar(0.5, 0.75, 4) == "  █"
    assert fmt.bar(0.0, 0.0001, 4) == "▏"
    assert fmt.bar(1.0, 1.1, 4) == "   █"
    assert fmt.bar(0.5, 0.5, 4) == ""


def test_spark() -> None:
    assert fmt.spark([0.0, 4.0, 8.0], 10) == "▁▅█"
    assert fmt.spark([1.0, 8.0, 1.0, 1.0], 2) == "█▂"
    assert fmt.spark([], 5) == ""
    assert fmt.spark([0.0], 5) == ""
