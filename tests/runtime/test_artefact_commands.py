"""The commands that measure what a deployment needs, with stand-ins for SGLang's tools and the GPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from greedy_server import serving
from latencylab.cli import run
from latencylab.runtime import dspark_artefacts as artefact
from latencylab.runtime import moe_tuning
from latencylab.runtime.ledger import Ledger

INFO: dict[str, Any] = {
    "speculative_algorithm": "DSPARK",
    "speculative_dspark_sps_table_path": "/x/start.json",
    "model_path": "m",
    "load_format": "dummy",
    "internal_states": [
        {"dspark_info_record": {"mode": "compact", "simulate_acc_len": 1.0, "verify_num_draft_tokens": 3}}
    ],
}


@pytest.fixture
def commands(monkeypatch) -> list[list[str]]:
    """The commands of tools that were run; each leaves what the tool would."""
    ran: list[list[str]] = []

    def tool(command: Sequence[str], log: Path) -> None:
        ran.append(list(command))
        out = Path(command[command.index("--out") + 1])
        if "--base-url" not in command:
            out.write_text(json.dumps({"temperatures": [1.5, 2.0], "num_samples": 512}))
            return
        rounds = [
            {"batch_size_per_rank": 1, "batch_tokens": tokens, "steps_per_sec": 100 + tokens}
            for tokens in (1, 2, 3)
        ]
        out.with_name(f"{out.stem}.rounds.jsonl").write_text("\n".join(map(json.dumps, rounds)))
        out.with_name(f"{out.stem}.records.jsonl").write_text('{"num_verify_tokens": 3}\n' * 5)

    monkeypatch.setattr(artefact, "run_tool", tool)
    return ran


def test_costs_of_a_running_server(tmp_path, commands, capfd):
    folder = tmp_path / "artefacts"
    with serving(lambda _body: {}, INFO) as (url, _):
        arguments = ["runtime", "dspark-sps", "-o", str(folder), "--url", url, "--vocabulary", "39296"]
        assert run(arguments) == 0
        assert run(arguments) == 4  # what is there is kept
        assert run([*arguments, "--force"]) == 0
    (command, _) = commands
    assert command[command.index("--base-url") + 1] == url
    fractions = command[command.index("--fracs") + 1 : command.index("--input-len")]
    assert [int(float(each) * 2) for each in fractions] == [0, 1, 2]
    table = json.loads((folder / "dspark-sps.json").read_text())
    assert table == {
        "sample_batch_tokens": [1, 2, 3],
        "sample_steps_per_sec": [101.0, 102.0, 103.0],
        "max_batch_tokens": 3,
    }
    about = json.loads((folder / "dspark-sps.provenance.json").read_text())
    assert (about["model"], about["random_weights"], about["graph_sizes"]) == ("m", True, [3])
    out, err = capfd.readouterr()
    assert "every budget replayed the graph of 3 tokens" in err
    assert "101.0" in out


def test_calibration_of_shards(tmp_path, commands, capfd):
    folder = tmp_path / "artefacts"
    assert run(["runtime", "dspark-fit", "-o", str(folder), "--shards", "/x/sts.*.pt"]) == 0
    (command,) = commands
    assert command[command.index("--data-glob") + 1] == "/x/sts.*.pt"
    assert "temperatures [1.5, 2.0] of 512 samples" in capfd.readouterr().out
    about = json.loads((folder / "dspark-sts.provenance.json").read_text())
    assert (about["kind"], about["samples"]) == ("confidence calibration", 512)


def test_both_are_what_the_ledger_needs(tmp_path, commands):
    with serving(lambda _body: {}, INFO) as (url, _):
        assert run(["runtime", "dspark-sps", "-o", str(tmp_path), "--url", url]) == 0
    assert run(["runtime", "dspark-fit", "-o", str(tmp_path), "--shards", "/x/sts.*.pt"]) == 0
    Ledger.load().apply("dspark", on=["ragged-compact"], artefacts=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["dspark-sps"], 2, "give either --model or --shape"),
        (["dspark-sps", "--url", "http://127.0.0.1:1", "--shape", "tp4-rank"], 2, "exclude each other"),
        (["dspark-fit", "--shards", "x", "--shape", "tp4-rank"], 2, "--shards needs no server"),
        (["dspark-sps", "--shape", "tp4-rank"], 3, "SGLang is not installed here"),
        (["tune-moe"], 3, "SGLang is needed to tune"),
    ],
)
def test_refusals(tmp_path, capfd, arguments, code, said):
    assert run(["runtime", *arguments, "-o", str(tmp_path / "artefacts")]) == code
    err = capfd.readouterr().err
    assert said in err
    assert err.count("\n") == 1


class Bench:
    """A GPU on which wide tiles are twice as fast."""

    triton, gpu = "3.7.1", "NVIDIA H200"

    def __init__(self, shape: moe_tuning.Shape, *, fused_swiglu: bool) -> None:
        self.shape, self.fused_swiglu = shape, fused_swiglu

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def default(self, size: int) -> moe_tuning.Config:
        return {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}

    def time_us(self, size: int, pair: moe_tuning.Pair) -> float:
        return size + sum(10.0 if config["BLOCK_SIZE_N"] == 128 else 20.0 for config in pair)

    def names(self) -> tuple[str, str]:
        return ("E=513,N=192,device_name=NVIDIA_H200.json", "E=513,N=192,device_name=NVIDIA_H200_down.json")


def test_tuned_kernels(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(moe_tuning, "SglangBench", Bench)
    folder = tmp_path / "artefacts"
    assert run(["runtime", "tune-moe", "-o", str(folder), "--tokens", "1", "--tokens", "6"]) == 0
    out = capfd.readouterr().out
    assert "     6       46.0       26.0   43.5%" in out
    table = json.loads(next(folder.glob("configs/triton_3_7_1/E=*_down.json")).read_text())
    assert table["6"]["BLOCK_SIZE_N"] == 128
    assert table["8192"]["BLOCK_SIZE_N"] == 32
    about = json.loads((folder / "tuned-moe.provenance.json").read_text())
    assert about["figures"][1]["after_us"] == 26.0
    assert about["tuned_on"] == "NVIDIA H200"
    switches = Ledger.load().apply("nextn", on=["tuned-moe"], artefacts=folder)
    assert switches.environment["SGLANG_MOE_CONFIG_DIR"] == str(folder)
    assert run(["runtime", "tune-moe", "-o", str(folder)]) == 4
