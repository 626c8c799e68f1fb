"""DSpark's artefacts: the commands of SGLang's tools, the table of costs, and where they come from."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from latencylab.model.integrity import InputError
from latencylab.runtime import dspark_artefacts as artefact
from latencylab.runtime.ledger import Ledger

STEP = {"core", "step_cpu_time"}


def _options(source: str) -> dict[str, dict[str, Any]]:
    """The options that a tool's argparse calls declare, each with its literal keywords."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            given = {
                w.arg: w.value.value for w in node.keywords if w.arg and isinstance(w.value, ast.Constant)
            }
            found |= {a.value: given for a in node.args if isinstance(a, ast.Constant)}
    return found


def _flags(command: list[str]) -> set[str]:
    return {word for word in command if word.startswith("--")}


def test_fit_is_the_tools_own_command(sglang_wheel):
    command = artefact.fit_command("/x/sts.*.pt", Path("/x/out.json"), gamma=8)
    assert command[:3] == [sys.executable, "-m", "sglang.benchmark.dspark_sts_fit"]
    options = _options(sglang_wheel("sglang/benchmark/dspark_sts_fit.py"))
    assert _flags(command) <= options.keys()
    required = {name for name, given in options.items() if given.get("required")}
    assert required
    assert required <= _flags(command)
    assert command[command.index("--data-glob") + 1] == "/x/sts.*.pt"


@pytest.mark.parametrize("vocabulary", [None, 39296])
def test_profile_is_the_tools_own_command(sglang_wheel, vocabulary):
    command = artefact.profile_command(
        "http://x:1",
        Path("/x/t.json"),
        (0.5, 1.0),
        input_tokens=8192,
        seconds=3,
        repeats=2,
        vocabulary=vocabulary,
    )
    source = sglang_wheel("sglang/benchmark/dspark_sps_profiler.py")
    assert _flags(command) <= _options(source).keys()
    assert command[3] == "run"
    assert command[command.index("--fracs") + 1 : command.index("--fracs") + 3] == ["0.5", "1"]
    if vocabulary is None:
        assert command[1:3] == ["-m", "sglang.benchmark.dspark_sps_profiler"]
        return
    # The stand-in for a tokenizer is put where the profiler calls it, for its length alone.
    ast.parse(command[2])
    assert "p.get_tokenizer = lambda path: range(39296)" in command[2]
    assert "len(get_tokenizer(" in source
    assert source.count("get_tokenizer(") == 1
    assert "def cli_main" in source


def test_variables_are_known(sglang_wheel):
    environ = sglang_wheel("sglang/srt/environ.py")
    for name in (*artefact.PROFILE_ENV, *artefact.collect_env(Path("/x/sts"), stand_in=True)):
        assert f" {name} = Env" in environ


def test_a_stand_in_accepts_nothing_while_collecting():
    real, stand_in = (artefact.collect_env(Path("/x/sts"), stand_in=each) for each in (False, True))
    assert real == {"SGLANG_RAGGED_VERIFY_MODE": "cap-accept", "SGLANG_DSPARK_STS_COLLECT_PATH": "/x/sts"}
    assert {**real, "SGLANG_SIMULATE_ACC_LEN": "1"} == stand_in


def test_collecting_is_as_the_tool_expects(sglang_wheel):
    recorder = sglang_wheel("sglang/srt/speculative/dspark_components/dspark_sts.py")
    assert '{self.path_stem}.{self._shard_ct}.pt"' in recorder
    observers = sglang_wheel("sglang/srt/speculative/dspark_components/dspark_observability.py")
    assert f"_STS_COLLECT_FLUSH_EVERY: int = {artefact.SHARD_STEPS}" in observers


@pytest.mark.parametrize("drafted", range(1, 17))
def test_fractions_pin_each_budget(drafted):
    """The server rounds fraction times block down, with 0 < fraction <= 1."""
    fractions = artefact.fractions_of(drafted)
    shown = [float(f"{each:g}") for each in fractions]  # as it stands on the command line
    assert [int(each * drafted) for each in shown] == list(range(drafted + 1))
    assert all(0 < each <= 1 for each in shown)


def _rounds(*rows: tuple[int, float], requests: int = 1) -> str:
    return "".join(
        json.dumps({"batch_size_per_rank": requests, "batch_tokens": tokens, "steps_per_sec": rate}) + "\n"
        for tokens, rate in rows
    )


def test_table_takes_the_median_of_each_number_of_tokens():
    table = artefact.table_of_rounds(_rounds((9, 110), (1, 200), (9, 100), (9, 90), (1, 210)))
    assert table == {
        "sample_batch_tokens": [1, 9],
        "sample_steps_per_sec": [205.0, 100.0],
        "max_batch_tokens": 9,
    }


def test_table_is_one_that_sglang_reads(sglang_wheel):
    """The fields of SGLang's struct, and what it demands of them."""
    source = sglang_wheel("sglang/srt/speculative/dspark_components/dspark_sps.py")
    struct = next(
        n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ClassDef) and n.name == "SpsCostTable"
    )
    fields = {
        n.target.id for n in struct.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    }
    for table in (artefact.table_of_rounds(_rounds((1, 2), (2, 1))), artefact.START_TABLE):
        assert table.keys() == fields
        tokens = table["sample_batch_tokens"]
        assert tokens == sorted(set(tokens))
        assert len(tokens) == len(table["sample_steps_per_sec"]) > 1  # one rate would mean none was measured
        assert table["max_batch_tokens"] >= tokens[-1]
    assert "len(table.sample_batch_tokens) <= 1" in source


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "0 number of tokens"),
        (_rounds((9, 100)), "1 number of tokens"),
        (_rounds((9, 100), (1, 0)), "round 2 has 0 steps per second"),
        (_rounds((9, 100), requests=2), "round 1 ran 2 requests"),
        ("{}\n", "round 1 is none"),
        ("x\n", "round 1 is none"),
    ],
)
def test_odd_rounds_are_refused(text, said):
    with pytest.raises(InputError, match=said):
        artefact.table_of_rounds(text)


def test_rounds_have_the_keys_read_here(sglang_wheel):
    source = sglang_wheel("sglang/benchmark/dspark_sps_profiler.py")
    for key in (
        "batch_size_per_rank",
        "batch_tokens",
        "steps_per_sec",
        "num_verify_tokens",
        artefact.RECORD_KEY,
    ):
        assert f'"{key}"' in source
    assert '.stem + ".rounds.jsonl"' in source
    assert '.stem + ".records.jsonl"' in source


def test_sizes_of_graphs():
    records = '{"num_verify_tokens": 9}\n{"num_verify_tokens": 18}\n{"num_verify_tokens": 9}\n'
    assert artefact.graph_sizes(records) == (9, 18)
    with pytest.raises(InputError, match="none that this knows"):
        artefact.graph_sizes("{}\n")


INFO: dict[str, Any] = {
    "speculative_algorithm": "DSPARK",
    "speculative_dspark_sps_table_path": "/x/start.json",
    "internal_states": [
        {"dspark_info_record": {"mode": "compact", "simulate_acc_len": 1.0, "verify_num_draft_tokens": 9}}
    ],
}


def _record(**changes: Any) -> dict[str, Any]:
    return {
        **INFO,
        "internal_states": [
            {"dspark_info_record": {**INFO["internal_states"][0]["dspark_info_record"], **changes}}
        ],
    }


def test_a_server_that_can_be_profiled():
    assert artefact.profiled_server(INFO) == 9


@pytest.mark.parametrize(
    ("info", "said"),
    [
        ({}, "the server runs no draft, not DSPARK"),
        ({**INFO, "speculative_algorithm": "EAGLE"}, "the server runs EAGLE"),
        ({**INFO, "internal_states": []}, "records no steps; .*SGLANG_DSPARK_ENABLE_SPS_RECORD=1"),
        (_record(mode="static"), "in mode static"),
        (_record(simulate_acc_len=5.0), "accept length of 5.0"),
        ({**INFO, "speculative_dspark_sps_table_path": None}, "no table to start with"),
    ],
)
def test_a_server_that_cannot(info, said):
    with pytest.raises(InputError, match=said):
        artefact.profiled_server(info)


class Collecting:
    """A server that writes a shard after some requests."""

    url = "http://x"

    def __init__(self, stem: Path, shards: int) -> None:
        self.stem, self.shards, self.asked = stem, shards, []

    def tokens(self, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
        self.asked.append((len(prompt), count))
        if len(self.asked) <= self.shards:
            Path(f"{self.stem}.{len(self.asked) - 1}.pt").touch()
        return (1,) * count


def test_collecting_sends_requests(tmp_path):
    server = Collecting(tmp_path / "sts", 2)
    found = artefact.collect(server, tmp_path / "sts", input_tokens=8, output_tokens=16, requests=3)  # type: ignore[arg-type]
    assert (found, server.asked) == (2, [(8, 16)] * 3)


def test_collecting_nothing_is_told(tmp_path):
    server = Collecting(tmp_path / "sts", 0)
    with pytest.raises(InputError, match="a shard takes 256 steps"):
        artefact.collect(server, tmp_path / "sts", input_tokens=8, output_tokens=16, requests=1)  # type: ignore[arg-type]


def test_a_tool_that_fails_is_told_by_its_last_line(tmp_path):
    log = tmp_path / "log"
    artefact.run_tool([sys.executable, "-c", "print('fine')"], log)
    assert log.read_text() == "fine\n"
    with pytest.raises(InputError, match=r"exit code 3: last word \("):
        artefact.run_tool([sys.executable, "-c", "print('last word\\n'); raise SystemExit(3)"], log)
    with pytest.raises(InputError, match="cannot run /nowhere"):
        artefact.run_tool(["/nowhere"], log)


def test_an_import_that_the_profiler_lacked_is_told(tmp_path, sglang_wheel):
    """It only warns of it, and ends in an error that says nothing."""
    source = sglang_wheel("sglang/benchmark/dspark_sps_profiler.py")
    warning = "Full sglang runtime unavailable (%s); using a torch-free fallback import. "
    assert f'"{warning}"' in source
    for why in ("No module named 'multiprocess'", "cannot import name 'a' from 'b' (/x/b.py)\n of two lines"):
        code = f"print({warning % why!r}); None()"
        with pytest.raises(InputError) as told:
            artefact.run_tool([sys.executable, "-c", code], tmp_path / "log")
        said = " ".join(why.split())
        assert str(told.value) == f"SGLang's tool cannot import what it needs: {said} ({tmp_path / 'log'})"
    with pytest.raises(InputError, match="exit code 1: TypeError"):
        artefact.run_tool([sys.executable, "-c", "None()"], tmp_path / "log")


def test_provenance_lies_beside(tmp_path):
    info = {"model_path": "m", "load_format": "dummy", "version": "0.5.23", "api_key": "geheim"}
    about = artefact.provenance("table of costs", ["a", "b"], info, input_tokens=8)
    artefact.write_artefact(tmp_path / artefact.COSTS, artefact.START_TABLE, about)
    held = json.loads((tmp_path / "dspark-sps.provenance.json").read_text())
    assert held["command"] == ["a", "b"]
    assert held["model"] == "m"
    assert held["random_weights"] is True
    assert held["packages"]["sglang"] == "0.5.23"
    assert held["input_tokens"] == 8
    assert held["created"].endswith("Z")
    assert "geheim" not in json.dumps(held)
    assert json.loads((tmp_path / artefact.COSTS).read_text()) == dict(artefact.START_TABLE)


def test_the_ledger_looks_where_artefacts_are_written():
    for name in ("ragged-compact", "ragged-cap-accept"):
        assert set(Ledger.load().entries[name].on.files) == {artefact.CALIBRATION, artefact.COSTS}
    modes = {
        Ledger.load().entries[f"ragged-{m}"].on.environment["SGLANG_RAGGED_VERIFY_MODE"]
        for m in ("compact", "cap-accept")
    }
    assert modes == {"compact", "cap-accept"}
