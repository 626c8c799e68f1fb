"""What a reader's repairs are called, and what is said of each."""

from __future__ import annotations

from collections import Counter

from latencylab.model.integrity import Issue, Severity

_TEXTS: dict[str, tuple[Severity, str]] = {
    "bad_escape": ("warning", "names with unescaped backslashes were repaired"),
    "bad_quote": ("warning", "names with unescaped quotes were repaired"),
    "bad_utf8": ("warning", "events with invalid UTF-8 were repaired"),
    "clipped_duration": (
        "warning",
        "GPU ops that reach over 1 ms past the next launch's start on their stream were clipped there",
    ),
    "control_character": ("warning", "events with raw control characters were repaired"),
    "corrupt_gzip": ("warning", "the gzip data is damaged: what can be inflated was read, and may be wrong"),
    "damaged_header": ("warning", "keys beside the events could not be read"),
    "dropped_event": ("warning", "damaged events could not be repaired and were left out"),
    "duplicate_event": ("warning", "exact duplicates of host events were left out"),
    "duplicate_field": ("warning", "events name a field twice, so text may be missing; the last was taken"),
    "duplicate_op": ("warning", "exact duplicates of GPU ops were left out"),
    "far_timestamp": ("warning", "events over a day away from the others were left out"),
    "missing_field": ("warning", "fields are missing; events without a time were left out"),
    "negative_duration": ("warning", "negative durations were read as 0"),
    "no_base_time": ("info", "no baseTimeNanoseconds: times count from an unknown origin"),
    "not_a_number": ("warning", "times or durations are no usable numbers; such durations were read as 0"),
    "not_an_event": ("warning", "entries among the events are none"),
    "odd_phase": ("warning", "events of an unexpected phase were left out"),
    "odd_type": ("warning", "fields of an unexpected type were ignored"),
    "other_category": ("info", "events of other categories were left out"),
    "out_of_range": ("warning", "integers beyond 64 bits were ignored"),
    "quoted_number": ("info", "numbers are written as text"),
    "rank_guessed": ("info", "the trace does not name its rank"),
    "stray_text": ("warning", "text between events was skipped"),
    "trailing_data": ("warning", "data after the trace's end was ignored"),
    "truncated": ("warning", "the file ends early; all whole events were read"),
    "unclosed_event": ("warning", "events that lack their closing brace were repaired"),
    "unknown_category": ("warning", "events that look like GPU work have an unknown category; left out"),
    "world_size": ("warning", "the number of ranks contradicts the recorded world size"),
    "zero_timestamp": ("warning", "events with time 0 and duration 0 were left out"),
}


def to_issues(notes: Counter[str], details: dict[str, str]) -> tuple[Issue, ...]:
    """Issues for all non-zero notes, in order of code; `details` adds to the sentence of a code."""
    return tuple(
        Issue(code, _TEXTS[code][0], count, _TEXTS[code][1] + details.get(code, ""))
        for code, count in sorted(notes.items())
        if count > 0
    )
