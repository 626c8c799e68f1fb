"""A calibration, and what a change would give, on a terminal; and the same as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from latencylab.model.calibration import Calibration, Estimate, Prediction
from latencylab.reports import calibration as words
from latencylab.reports import format as fmt
from latencylab.reports.contract import as_plain
from latencylab.reports.text_parts import heading, indented, numbers

SCHEMA = "latencylab.calibration/1"


def render_calibration(
    name: str, found: Calibration, prediction: Prediction | None, console: Console
) -> None:
    """Print a calibration, what a change gives where one was asked for, and what to fix first."""
    line = Text(f"{fmt.clean(name)}, rank {found.rank}, {fmt.clean(found.kind or 'step')}: ", style="bold")
    line.append(words.headline(found), style=words.STATUS_STYLE[found.status])
    console.print(line)
    for topic, sentence in words.lines(found, None):
        console.print(indented(f"{topic}: {sentence}", 2))
    if found.blind_error_pct is not None and not found.map_from:
        blind = f"with the other half's host speeds: {words.percent(found.blind_error_pct)}"
        replayed = f"the trace replayed unchanged: {found.replay_error_pct:+.2f} %"
        console.print(indented(f"{blind}; {replayed}", 2, "dim"))
    if prediction is not None:
        _prediction(prediction, console)
    _idle(found, console)
    _legs(found, console)
    _spans(found, console)
    if found.fixes:
        heading("What to fix first: each alone, µs/step", console)
        console.print(numbers(("µs/step", "what"), ((fmt.us(f.us_per_step), f.what) for f in found.fixes)))


def _prediction(prediction: Prediction, console: Console) -> None:
    heading(f"What if: {prediction.what}", console)
    console.print(
        indented(f"step {_shown(prediction.step_us)} µs, shorter by {_shown(prediction.gain_us)}", 2)
    )
    for note in prediction.notes:
        console.print(indented(note, 2, "dim"))


def _idle(found: Calibration, console: Console) -> None:
    rows = [(name, its) for name, its in found.idle_host_blame_us.items() if its.value >= 1]
    if rows:
        heading("Host idle without the profiler is blamed on, µs/step", console)
        console.print(
            numbers(("µs", "95 %", "what"), ((fmt.us(e.value), words.between(e), n) for n, e in rows))
        )


def _legs(found: Calibration, console: Console) -> None:
    if not found.legs:
        return
    heading("GPU time from leg to leg without the profiler, µs, and run-ahead", console)
    rows = (
        (
            fmt.us(its.predicted_us),
            fmt.us(its.measured_us),
            words.percent(its.error_pct),
            _shown(ahead) if (ahead := found.run_ahead_us.get(its.leg)) else "",
            its.leg,
        )
        for its in found.legs
    )
    console.print(numbers(("replayed", "measured", "off", "run-ahead", "leg"), rows))


def _spans(found: Calibration, console: Console) -> None:
    if not found.spans:
        return
    heading("Host time per step in spans that were measured, µs", console)
    console.print(
        numbers(
            ("profiled", "without", "factor", "95 %", "span"),
            (
                (
                    fmt.us(its.profiled_us),
                    fmt.us(its.unprofiled_us.value),
                    f"{its.factor.value:.2f}",
                    f"{its.factor.low:.2f} to {its.factor.high:.2f}",
                    its.span or "outside of them",
                )
                for its in found.spans
            ),
        )
    )


def _shown(estimate: Estimate) -> str:
    return f"{fmt.us(estimate.value)} ({words.between(estimate)})"


def render_calibration_json(name: str, found: Calibration, prediction: Prediction | None) -> str:
    """The same as one JSON object: `calibration` as in an analysis, `what_if` or null, `fixes`."""
    whole = {
        "schema": SCHEMA,
        "capture": name,
        "calibration": words.to_contract(found),
        "what_if": None if prediction is None else asdict(prediction),
        "fixes": [asdict(fix) for fix in found.fixes],
    }
    return json.dumps(as_plain(whole), indent=2, ensure_ascii=False, allow_nan=False)
