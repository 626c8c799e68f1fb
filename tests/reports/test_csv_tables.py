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
