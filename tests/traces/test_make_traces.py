"""The benchmarks' traces: healthy, the same each time, and of the shape that the readers are timed on."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from latencylab.traces.kineto import read_kineto

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "make_traces.py"


def make(folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> list[Path]:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(folder), *options])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    return sorted(folder.iterdir())


def test_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make(tmp_path / "a", monkeypatch, "--events", "4000")
    second = make(tmp_path / "b", monkeypatch, "--events", "4000")
    assert [p.name for p in first] == [f"rank{r}.trace.json.gz" for r in range(4)]
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]
    assert (
        first[0].read_bytes()
        != make(tmp_path / "c", monkeypatch, "--events", "4000", "--seed", "1")[0].read_bytes()
    )
    for rank, path in enumerate(first):
        (trace,) = read_kineto(path)
        assert trace.issues == ()
        assert (trace.rank, trace.world_size, trace.stacks, trace.shapes) == (rank, 4, False, False)
        launches = [trace.names[n] for n in trace.api.name].count("cudaGraphLaunch")
        assert launches == 4 * (4000 // 760)
        assert set(trace.gpu.correlation.tolist()) <= set(trace.api.correlation.tolist())


def test_stacks_and_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = make(
        tmp_path / "a", monkeypatch, "--events", "1600", "--ranks", "1", "--stacks-mb", "4", "--plain"
    )
    (trace,) = read_kineto(path)
    assert trace.issues == ()
    assert trace.stacks
    assert trace.shapes
    assert path.stat().st_size == pytest.approx(4e6, rel=0.1)
