"""What calibration says of two captures, compared: a step, its idle and its waits without the profiler."""

from __future__ import annotations

from collections.abc import Mapping
from math import hypot

from latencylab.model.calibration import Calibration, Estimate
from latencylab.model.comparison import CalibrationChange, Delta, Row, by_effect


def compare_calibrations(base: Calibration | None, head: Calibration | None) -> CalibrationChange | None:
    """None where neither side has a calibration."""
    if base is None and head is None:
        return None
    before, after = base or Calibration("uncalibrated"), head or Calibration("uncalibrated")
    return CalibrationChange(
        base_status=base.status if base else "",
        head_status=head.status if head else "",
        profiled_step_us=Delta(before.profiled_step_us, after.profiled_step_us),
        unprofiled_step_us=difference(before.unprofiled_step_us, after.unprofiled_step_us),
        predicted_step_us=difference(before.predicted_step_us, after.predicted_step_us),
        error_pct=Delta(before.error_pct, after.error_pct),
        idle_host_us=difference(before.idle_host_us, after.idle_host_us),
        idle_gpu_us=difference(before.idle_gpu_us, after.idle_gpu_us),
        blame=_rows(before.idle_host_blame_us, after.idle_host_blame_us),
        sites=_rows(
            {its.site: its.cost_us for its in before.syncs}, {its.site: its.cost_us for its in after.syncs}
        ),
    )


def difference(base: Estimate | None, head: Estimate | None) -> Delta:
    """The difference of two estimates made independently of each other, and its interval.

    The interval is recovered from those of the two: Zou and Donner, "Construction of confidence limits about
    effect measures: a general approach" (Statistics in Medicine 27, 2008). None for a side without any.
    """
    if base is None or head is None:
        return Delta(base.value if base else None, head.value if head else None)
    change = head.value - base.value
    low = change - hypot(head.value - head.low, base.high - base.value)
    high = change + hypot(head.high - head.value, base.value - base.low)
    return Delta(base.value, head.value, (low, high))


def _rows(base: Mapping[str, Estimate], head: Mapping[str, Estimate]) -> tuple[Row, ...]:
    """Parts by name; one that a side does not name is nothing there."""
    nothing = Estimate(0.0, 0.0, 0.0)
    names = dict.fromkeys((*head, *base))
    rows = [Row(name, difference(base.get(name, nothing), head.get(name, nothing))) for name in names]
    return tuple(sorted(rows, key=by_effect(lambda row: row.us)))
