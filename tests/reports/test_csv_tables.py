"""The flat tables."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from latencylab.model.findings import Analysis
from latencylab.reports.csv_tables import COLUMNS, tables, write_tables


def test_every_table_has_its_columns(any_analysis: Analysis, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    written = write_tables(any_analysis, folder)
    assert sorted(p.name for p in written) == sorted(f"{name}.csv" for name in COLUMNS)
    for path in written:
        frame = pd.read_csv(path)
        assert tuple(frame.columns) == COLUMNS[path.stem]
        if path.stem not in ("ranks", "collectives", "late", "uneven"):
            assert {"rank", "device", "kind"} <= set(frame.columns)


def test_values(four_ranks: Analysis) -> None:
    made = tables(four_ranks)
    assert len(made["steps"]) == 4 * 30
    assert made["steps"]["start_ns"].dtype == "int64"
    assert made["steps"]["start_ns"][0] == 8_111_111_111_000_000_000
    assert made["syncs"]["verdict"][0] == "harmful"
    idle = made["idle"].query("rank == 0 and kind == 'NEXTN'").groupby("split")["us"].sum()
    assert idle["host_blame"] == pytest.approx(5800.0)
    assert idle["host_doing"] == pytest.approx(5800.0)
    assert idle["gpu"] == pytest.approx(390.25)
    assert "elementwise_kernel<MulFunctor>" in set(made["kernels"]["short_name"])


def test_no_number_is_an_empty_cell(hostile: Analysis, tmp_path: Path) -> None:
    write_tables(hostile, tmp_path)
    text = (tmp_path / "steps.csv").read_text("utf-8")
    assert "inf" not in text
    assert ",nan," not in text


def test_ranks(late_rank: Analysis) -> None:
    made = tables(late_rank)
    found, alignment = late_rank.collectives, late_rank.alignment
    assert found is not None
    assert alignment is not None
    assert made["ranks"]["rank"].tolist() == [0, 1, 2, 3]
    assert set(made["ranks"]["reference"]) == {0}
    assert (
        made["ranks"]["bound_low_us"][1] < made["ranks"]["offset_us"][1] < made["ranks"]["bound_high_us"][1]
    )
    assert made["collectives"]["per_step"].sum() == pytest.approx(48)
    first = made["late"].query("rank == 2")
    assert first["us"].sum() == pytest.approx(found.late[0].wait_us, rel=0.05)
    assert first["cause"].tolist()[0] == "GPU work: qkv_gemm"
    (more,) = made["uneven"].to_dict("records")
    assert (more["rank"], more["kind"], more["on"], more["what"]) == (2, "NEXTN", "gpu", "qkv_gemm")
    assert 0 < more["low_us"] < more["us"] < more["high_us"] < more["own_us"]


def test_one_rank_has_no_clock(analysis: Analysis) -> None:
    made = tables(analysis)
    assert made["ranks"].empty
    assert made["collectives"].empty
    assert made["late"].empty
