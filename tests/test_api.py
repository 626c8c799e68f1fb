"""The notebook's door: the frames agree with the findings, and the example in the README runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import latencylab
from latencylab.api import Opened
from latencylab.model.integrity import InputError

README = Path(__file__).parents[1] / "README.md"


@pytest.fixture(scope="module")
def opened() -> Opened:
    return latencylab.open("sample:nextn-host-stall")


def test_what_it_looks_like(opened: Opened) -> None:
    assert repr(opened).splitlines()[1] == opened.analysis.verdict.text
    assert len(repr(opened).splitlines()) == 3
    page = opened._repr_html_()
    assert "cudaStreamSynchronize" in page
    assert page.count("<tr>") == len(opened.analysis.fixes) + 1


def test_frames_agree_with_the_findings(opened: Opened) -> None:
    rank = opened.analysis.ranks[0]
    steady = opened.steps[opened.steps.left_out.isna()]
    assert rank.main.step_us is not None
    assert steady.wall_us.mean() == pytest.approx(rank.main.step_us.wall)
    gaps = opened.gaps[opened.gaps.step.isin(steady.step)]
    by_cause = gaps.groupby("cause").us.sum() / len(steady)
    assert by_cause["host"] == pytest.approx(rank.main.step_us.idle_host)
    assert by_cause["in_graph"] == pytest.approx(rank.main.idle_gpu_us.in_graph)
    blame = gaps[gaps.cause == "host"].groupby("blame").us.sum() / len(steady)
    assert blame.to_dict() == pytest.approx(rank.main.idle_host_blame_us)
    assert opened.gpu_ops.exclusive_us.sum() == pytest.approx(rank.window_us.busy)
    assert len(opened.gpu_ops) == rank.gpu_ops
    sites = opened.blocking_calls[opened.blocking_calls.step.isin(steady.step)].site.value_counts()
    assert sites.to_dict() == {sync.site: sync.calls for sync in rank.main.syncs}
    assert (opened.api_calls.ops > 0).sum() == rank.launches
    assert (opened.spans.name == "scheduler.run_batch").sum() == 31


def test_several_ranks_stand_in_one_frame(tmp_path: Path) -> None:
    source = latencylab.open("sample:dspark").capture
    trace = Path(source.traces[0].path)
    for rank in range(2):
        (tmp_path / f"rank{rank}.trace.json.gz").write_bytes(trace.read_bytes())
    opened = latencylab.open(str(tmp_path), cache=False)
    assert set(opened.gpu_ops["rank"]) == {0, 1}


def test_a_missing_capture_is_one_line() -> None:
    with pytest.raises(InputError, match="nowhere"):
        latencylab.open("nowhere")


def test_the_example_in_the_readme_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    assert isinstance(names["run"], Opened)
