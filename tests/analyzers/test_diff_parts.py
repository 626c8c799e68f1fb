"""The parts that a comparison is made of: intervals, unprofiled requests, calibrations, names of kernels."""

from __future__ import annotations

import numpy as np
import pytest

from latencylab.analyzers.diff import compare_unprofiled
from latencylab.analyzers.diff_bootstrap import Resampled, block_length, draw_steps
from latencylab.analyzers.diff_calibration import compare_calibrations, difference
from latencylab.analyzers.diff_places import normal_name
from latencylab.model.calibration import Calibration, Estimate, SiteCost
from latencylab.model.comparison import Delta, percents
from latencylab.model.unprofiled import Request, Unprofiled

# intervals


def test_blocks_hold_every_step_as_often_and_neighbours_together() -> None:
    drawn = draw_steps(27, 1, block_length(27))
    assert block_length(27) == 3
    assert drawn.shape == (1000, 27)
    assert ((drawn.reshape(1000, 9, 3)[:, :, 1:] - drawn.reshape(1000, 9, 3)[:, :, :-1]) % 27 == 1).all()
    assert np.bincount(drawn.ravel(), minlength=27) == pytest.approx(1000, rel=0.15)


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(7)
    resampled = Resampled.of(30, 30)
    columns = [(random.normal(5_000, 400, (2, 30)) * 1000).astype(np.int64) for _ in range(400)]
    deltas = resampled.deltas([both[0] for both in columns], [both[1] + 300_000 for both in columns])
    covered = sum(its.interval[0] <= 300 <= its.interval[1] for its in deltas if its.interval)
    # Blocks of three of 30 independent steps: somewhat narrow, as such intervals are.
    assert 0.86 < covered / len(deltas) < 0.98
    assert sum(its.resolved for its in deltas) > 200


# requests and calibrations


def requests(*ms: float) -> Unprofiled:
    return Unprofiled(tuple(Request.of(0, [(0, 1), (round(one * 1e6), 5)]) for one in ms))


def test_unprofiled_steps() -> None:
    found = compare_unprofiled(requests(5, 6, 5.5, 5.2, 5.4, 5.3), requests(7, 7.1, 7.2, 7.3, 7.4, 7.5))
    assert found is not None
    assert (found.step_ms.base, found.step_ms.head) == pytest.approx((5.35, 7.25))
    assert found.step_ms.resolved
    assert found.base_range == pytest.approx((5, 6))
    few = compare_unprofiled(requests(5, 6), requests(7))
    assert few is not None
    assert few.step_ms.interval is None
    assert few.step_ms.change == pytest.approx(1.5)
    half = compare_unprofiled(None, requests(7))
    assert half is not None
    assert (half.step_ms.base, half.step_ms.change) == (None, None)
    assert compare_unprofiled(None, Unprofiled()) is None


def test_calibrations() -> None:
    assert compare_calibrations(None, None) is None
    assert difference(Estimate(10, 7, 14), Estimate(20, 16, 23)) == Delta(
        10, 20, (10 - 32**0.5, 10 + 18**0.5)
    )
    cost = SiteCost(
        "the site", 3.0, Estimate(1500, 1400, 1600), Estimate(1200, 1100, 1300), 0.0, 900.0, "harmful"
    )
    head = Calibration("calibrated", unprofiled_step_us=Estimate(7300, 7200, 7400), syncs=(cost,))
    found = compare_calibrations(Calibration("calibrated"), head)
    assert found is not None
    assert found.calibrated
    assert found.unprofiled_step_us == Delta(None, 7300)
    assert [(row.name, row.us.base, row.us.head) for row in found.sites] == [("the site", 0.0, 1200)]
    alone = compare_calibrations(None, head)
    assert alone is not None
    assert (alone.base_status, alone.calibrated) == ("", False)


# names


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("triton_poi_fused_add_0", "triton_poi_fused_add_17"),
        ("kernel_3f9a12bc", "kernel_77e01ab4"),
        ("rms_norm_kernel_0d1d2de", "rms_norm_kernel_0d1d2d3de"),
        ("f<{lambda(int)#1}>(int)", "f<{lambda(int)#2}>(int)"),
    ],
)
def test_builds_do_not_rename_kernels(one: str, other: str) -> None:
    assert normal_name(one) == normal_name(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("gemm<64, 8>", "gemm<64, 16>"), ("verify_1", "verify_2"), ("nvjet_64x8", "nvjet_64x16")],
)
def test_sizes_do(one: str, other: str) -> None:
    assert normal_name(one) != normal_name(other)


@pytest.mark.parametrize("factor", [0, -1])
def test_requests_whose_clock_does_not_run_on_are_left_out(factor: int) -> None:
    odd = Request.of(0, [(5, 1), (5 + factor * 6_000_000, 2)])
    found = compare_unprofiled(requests(6.0, 6.0), Unprofiled((odd, *requests(7.0).requests)))
    assert found is not None
    assert (found.head_requests, found.step_ms.head) == (1, 7.0)


@pytest.mark.parametrize(
    ("interval", "said"),
    [((-1.25, 4.0), "\N{MINUS SIGN}1.2 to +4.0 %"), ((0.0, 1e9), "0.0 % to × 10,000,001")],
)
def test_intervals_in_percent(interval: tuple[float, float], said: str) -> None:
    assert percents(interval) == said
