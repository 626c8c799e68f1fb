"""What must come of each defect: counts, exact sums, and what is said about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from latencylab.model.integrity import InputError

if TYPE_CHECKING:
    from conftest import Kineto

BUSY, WALL = 45_000, 192_250
W = "warning"
# name: (GPU ops, busy ns, wall ns, issues)
EXPECTED: dict[str, tuple[int, int, int, dict[str, tuple[str, int]]]] = {
    "00_clean": (20, BUSY, WALL, {}),
    "01_negative_dur": (20, 42_750, WALL, {"negative_duration": (W, 1)}),
    "02_zero_dur": (20, 40_500, WALL, {}),
    "03_ts0_dur0": (19, 42_750, WALL, {"zero_timestamp": (W, 1)}),
    "04_missing_launch": (20, BUSY, WALL, {}),
    "05_no_correlation": (20, BUSY, WALL, {}),
    "06_stream0": (20, BUSY, WALL, {}),
    "07_hip": (20, BUSY, WALL, {}),
    "08_cuda_graph": (120, 252_000, 455_500, {}),
    "09_pdl": (21, 45_750, WALL, {}),
    "10_before_launch": (20, BUSY, WALL, {}),
    "11_no_distinfo": (20, BUSY, WALL, {"rank_guessed": ("info", 1)}),
    "12_minified": (20, BUSY, WALL, {}),
    "13_nan": (20, BUSY, WALL, {"not_a_number": (W, 1)}),
    "14_bad_utf8": (20, BUSY, WALL, {"bad_utf8": (W, 1)}),
    "15_backslash": (20, BUSY, WALL, {"bad_escape": (W, 1)}),
    "16_quote": (20, BUSY, WALL, {"bad_quote": (W, 1)}),
    "17_ctrl_char": (20, BUSY, WALL, {"control_character": (W, 1)}),
    "18_truncated": (13, 29_250, 122_250, {"truncated": (W, 1)}),
    "20_array_root": (20, BUSY, WALL, {"no_base_time": ("info", 1), "rank_guessed": ("info", 1)}),
    "21_epoch_float": (20, BUSY, WALL, {}),
    "22_epoch_int": (20, 40_000, 192_000, {}),
    "25_corr_str": (20, BUSY, WALL, {"quoted_number": ("info", 40)}),
    "26_merged_pid": (20, BUSY, WALL, {}),
    "28_gpu_annotation": (20, BUSY, WALL, {}),
    "29_cuda_sync": (20, BUSY, WALL, {}),
    "30_unsorted": (20, BUSY, WALL, {}),
    "31_duplicates": (20, BUSY, WALL, {"duplicate_op": (W, 20)}),
    "32_overflow": (20, 52_750, WALL, {"clipped_duration": (W, 1)}),
    "34_legacy": (20, BUSY, WALL, {}),
    "35_submicro": (20, 8_000, 190_400, {}),
    "36_rounding": (20, BUSY, WALL, {}),
}
EXACT = {"21_epoch_float", "22_epoch_int", "36_rounding"}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_sums_and_issues(kineto: Kineto, defects: dict[str, bytes], name: str) -> None:
    ops, busy, wall, issues = EXPECTED[name]
    trace = kineto.one(defects[name])
    # The digits of most come from doubles, which are off by up to 1 ns at each end.
    allowed = 0 if name in EXACT else 2 * ops
    assert len(trace.gpu) == ops
    assert abs(kineto.busy(trace) - busy) <= allowed
    assert abs(kineto.wall(trace) - wall) <= allowed
    assert kineto.issues(trace) == issues
    assert (trace.rank, trace.device) == (0, 0)


def test_truncated_gzip_gives_what_it_holds(kineto: Kineto, defects: dict[str, bytes]) -> None:
    trace = kineto.one(defects["19_truncated_gz"])
    assert kineto.issues(trace) == {"truncated": (W, 1)}
    assert 0 < len(trace.gpu) < 20
    assert len(trace.gpu) <= len(trace.api) <= len(trace.ops) <= len(trace.gpu) + 1


def test_truncation_keeps_all_whole_events(kineto: Kineto, defects: dict[str, bytes]) -> None:
    trace = kineto.one(defects["18_truncated"])
    assert len(trace.gpu) + len(trace.api) + len(trace.ops) == 39


def test_unreadable_launch_is_kept_but_launches_nothing(kineto: Kineto, defects: dict[str, bytes]) -> None:
    trace = kineto.one(defects["13_nan"])
    assert len(trace.api) == 20
    (row,) = np.flatnonzero(trace.api.correlation == -1)
    assert trace.api.start[row] == trace.api.end[row]


def test_sync_row_is_no_gpu_work(kineto: Kineto, defects: dict[str, bytes]) -> None:
    trace = kineto.one(defects["29_cuda_sync"])
    assert set(trace.gpu.stream.tolist()) == {7}
    assert (len(trace.syncs), trace.syncs.stream[0], trace.syncs.correlation[0]) == (1, 7, 9999)


def test_graph_ops_share_their_launch(kineto: Kineto, defects: dict[str, bytes]) -> None:
    trace = kineto.one(defects["08_cuda_graph"])
    assert np.unique(trace.gpu.correlation, return_counts=True)[1].tolist() == [60, 60]
    assert sorted(trace.gpu.graph_node[:60].tolist()) == list(range(60))


def test_two_ranks_are_never_mixed(kineto: Kineto, defects: dict[str, bytes]) -> None:
    first, second = kineto.read(defects["27_two_ranks"])
    assert (first.rank, second.rank) == (0, 1)
    assert kineto.issues(first, second) == {"world_size": (W, 1)}
    for trace in (first, second):
        assert (len(trace.gpu), len(trace.api), len(trace.ops)) == (20, 20, 20)
        assert abs(kineto.busy(trace) - BUSY) <= 40
        assert {t.process for t in trace.threads} == {"100"}
    assert second.gpu.start[0] - first.gpu.start[0] == pytest.approx(3_300, abs=2)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("23_meta_only", "no GPU activity: metadata alone"),
        ("24_empty_events", "no GPU activity: traceEvents is empty"),
        ("33_no_gpu", "no GPU activity: CUDA API calls but no kernel"),
    ],
)
def test_refused(kineto: Kineto, defects: dict[str, bytes], name: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as refused:
        kineto.read(defects[name])
    assert "trace.json" in str(refused.value)
    assert "\n" not in str(refused.value)
