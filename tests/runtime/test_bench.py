"""Measuring with one request in flight: what is sent, what is counted, and what is said when it breaks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fake_server import Behaviour, environment, install_fake_sglang, serving
from latencylab.cli import run
from latencylab.model.integrity import InputError
from latencylab.model.unprofiled import Request
from latencylab.runtime.bench import Workload, as_dict, check_prompts, figures, measure, summary
from latencylab.runtime.client import Answer, HttpTarget

SMALL = Workload(input_tokens=6, output_tokens=11, requests=3, warmup=2)
OPTIONS = ("--input-tokens", "6", "--output-tokens", "11", "--requests", "3")


def _prompts(fake) -> list[list[int]]:
    return [body["input_ids"] for path, body in fake.asked if path == "/generate"]


def test_runs_pair_by_index():
    sent = []
    for seed in (0, 0, 1):
        with serving() as fake:
            measure(HttpTarget(fake.url), Workload(6, 11, 3, 2, seed))
        sent.append(_prompts(fake))
    first, again, other = sent
    assert first == again
    assert len({tuple(prompt) for prompt in first + other}) == 2 * (2 + 3)
    assert all(len(prompt) == 6 and all(1000 <= token < 30000 for token in prompt) for prompt in first)
    # The measured prompts do not depend on how many requests warm up.
    with serving() as fake:
        measure(HttpTarget(fake.url), Workload(6, 11, 2, 0))
    assert _prompts(fake) == first[2:4]


def test_warm_up_is_not_measured():
    with serving() as fake:
        measured = measure(HttpTarget(fake.url), SMALL)
    assert measured.stopped is None
    assert len(measured.answers) == 3
    starts = [answer.request.start_ns for answer in measured.answers]
    assert starts == sorted(starts)
    assert starts[0] > fake.steps[2 * 6 - 1][1]  # the last step of the warm-up


def test_texts_are_used_in_turn_and_never_from_the_prefix_cache():
    workload = Workload(output_tokens=4, requests=3, warmup=1, texts=("a", "b"))
    with serving(info={}) as fake:
        measure(HttpTarget(fake.url), workload)
    asked = [(path, body and body["text"]) for path, body in fake.asked]
    flush = ("/flush_cache", None)
    assert asked == [
        flush,
        ("/generate", "a"),
        flush,
        ("/generate", "a"),
        ("/generate", "b"),
        flush,
        ("/generate", "a"),
    ]
    with pytest.raises(InputError, match="skips its tokenizer"):
        check_prompts(workload, {"skip_tokenizer_init": True})


def test_what_was_measured_until_a_request_failed():
    with serving(fail_request=4, fail_how="close", fail_after=2) as fake:
        measured = measure(HttpTarget(fake.url), SMALL)
    assert len(measured.answers) == 2
    assert measured.stopped.startswith("request 2: ")
    assert "broke off" in measured.stopped
    told = as_dict(measured, {})
    assert (told["complete"], len(told["requests"])) == (False, 2)


def test_figures_by_hand():
    request = Request.of(100, [(50_000_000, 1), (60_000_000, 4), (70_000_000, 6)])
    got = figures(Answer(request, 2.25, 7.5))
    assert got == {
        "ttft_ms": 50.0,
        "tpot_ms": 4.0,
        "step_ms": 10.0,
        "tokens_per_s": pytest.approx(6 / 0.07),
        "accept_length": 2.25,
        "cap_length": 7.5,
    }
    assert figures(Answer(request))["accept_length"] == 2.5
    assert summary([4.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 4.0, "spread_pct": 150.0}
    assert summary([]) is None


# The command


def test_table_and_json(capsys, tmp_path):
    with serving(chunk_ms=2, info={"api_key": "hidden", "skip_tokenizer_init": True}) as fake:
        assert run(["bench", "--url", fake.url, *OPTIONS]) == 0
        table = capsys.readouterr()
        out = tmp_path / "bench.json"
        assert run(["bench", "--url", fake.url, *OPTIONS, "--format", "json", "-o", str(out)]) == 0
    assert table.err == ""
    rows = [line.split() for line in table.out.splitlines()]
    assert [row[0] for row in rows[2:]] == ["0", "1", "2", "median", "least", "most", "spread,"]
    result = json.loads(out.read_text())
    assert result["schema"] == "latencylab.bench/1"
    assert result["complete"] is True
    assert [row["index"] for row in result["requests"]] == [0, 1, 2]
    assert result["workload"]["input_tokens"] == 6
    steps = sorted(row["step_ms"] for row in result["requests"])
    assert result["summary"]["step_ms"]["median"] == steps[1]
    assert steps[0] > 0
    assert "hidden" not in out.read_text()


def test_how_many_tokens_were_to_verify_is_told_where_a_server_says_so(capsys):
    for cap_length, told in ((0.0, False), (6.5, True)):
        with serving(cap_length=cap_length) as fake:
            assert run(["bench", "--url", fake.url, *OPTIONS]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert ("verified" in out) == ("6.50" in out) == told


def test_workloads_of_other_prompts_say_so():
    described = [
        Workload(**given).described()["prompts"]
        for given in ({}, {"token_ids": (5, 9)}, {"texts": ("a", "b")}, {"texts": ("a", "c")})
    ]
    assert len(set(described)) == 4
    assert described[0] == "random token ids"  # as captures say that were taken before


@pytest.mark.parametrize("how", ["500", "stall", "close"])
def test_a_failure_ends_it_with_what_was_measured(capsys, how):
    with serving(fail_request=3, fail_how=how, fail_after=1) as fake:
        code = run(["bench", "--url", fake.url, *OPTIONS, "--timeout", "0.4"])
    result = capsys.readouterr()
    assert code == 3
    assert result.out.splitlines()[2].startswith("0 ")
    assert "not complete: request 1: " in " ".join(result.out.split())
    assert result.err.startswith("latencylab: error: request 1: ")
    assert result.err.endswith("; 1 of 3 requests were measured\n")
    assert result.err.count("\n") == 1


def test_nothing_measured(capsys):
    with serving(fail_request=0, fail_how="500") as fake:
        code = run(["bench", "--url", fake.url, *OPTIONS, "--format", "json"])
    result = capsys.readouterr()
    assert code == 3
    told = json.loads(result.out)
    assert (told["complete"], told["requests"], told["summary"]["step_ms"]) == (False, [], None)
    assert "warm-up 0" in result.err


def test_text_for_a_server_without_tokenizer(capsys, tmp_path):
    (tmp_path / "prompts").write_text("one\n\ntwo\n")
    with serving() as fake:
        assert run(["bench", "--url", fake.url, "--prompts", str(tmp_path / "prompts")]) == 3
    assert "skips its tokenizer" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--url", "x", "--preset", "nextn"],
        ["--preset", "nextn"],
        ["--preset", "nextn", "--shape", "tp4-rank", "--server-dir", "x"],
        ["--url", "x", "--shape", "tp4-rank"],
        ["--url", "x", "--with", "numa-bind"],
        ["--url", "x", "--", "--enable-x"],
        ["--url", "x", "--token-ids", "9:9"],
        ["--url", "x", "--output-tokens", "1"],
        ["--server-dir", "x"],
    ],
)
def test_wrong_usage(capsys, options):
    assert run(["bench", *options]) == 2
    assert "--help'" in capsys.readouterr().err


@pytest.fixture
def launched(tmp_path):
    """Run `bench --preset` in a process of its own, against the fake behind `sglang.launch_server`."""
    install_fake_sglang(tmp_path / "site")
    (tmp_path / "tmp").mkdir()

    def call(*options, **behaviour):
        env = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "TMPDIR": str(tmp_path / "tmp")}
        env |= environment(Behaviour(**behaviour))
        command = [sys.executable, "-m", "latencylab", "bench", "--preset", "plain", "--shape", "tp4-rank"]
        done = subprocess.run(
            [*command, *OPTIONS, *options], env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert not list((tmp_path / "tmp").iterdir())
        return done

    return call


def test_a_launched_server(launched, tmp_path):
    record = tmp_path / "record"
    done = launched("--format", "json", record=str(record), info={"model_path": "x", "port": 7})
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["preset"], result["shape"]) == ("plain", "tp4-rank")
    assert result["env"]["SGLANG_SIMULATE_UNIFORM_EXPERTS"] == "1"
    assert result["ledger"]["metadata-graph"] is True
    assert "port" not in result["server_args"]
    assert result["api"] == "native"
    paths = [json.loads(line)[0] for line in record.read_text().splitlines()]
    assert paths[0] == "started"
    assert paths.index("/health") < paths.index("/server_info") < paths.index("/generate")
    with pytest.raises(ProcessLookupError):
        os.kill(json.loads(record.read_text().splitlines()[0])[3], 0)


def test_a_launched_server_that_dies(launched):
    done = launched(fail_request=4, fail_how="die", fail_after=1)
    assert done.returncode == 3
    assert done.stdout.splitlines()[2].startswith("0 ")
    error = done.stderr.splitlines()[-1]
    assert "request 2: " in error
    assert "the server had ended: exit code 9" in error
    assert "2 of 3 requests were measured" in error


def test_a_launched_server_that_never_starts(launched):
    done = launched(dies_at_start=True)
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].endswith("exit code 1: ValueError: no such model")


def test_a_launched_server_that_is_never_ready(launched):
    done = launched("--start-timeout", "1.5", unhealthy_s=1000)
    assert done.returncode == 3
    assert "was not ready after 1.5 s" in done.stderr


def test_an_interrupted_bench_stops_its_server(tmp_path):
    install_fake_sglang(tmp_path / "site")
    record = tmp_path / "record"
    (tmp_path / "tmp").mkdir()
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "TMPDIR": str(tmp_path / "tmp")}
    env |= environment(Behaviour(chunk_ms=50, record=str(record)))
    command = [sys.executable, "-m", "latencylab", "bench", "--preset", "plain", "--shape", "tp4-rank"]
    process = subprocess.Popen([*command, *OPTIONS], env=env, stderr=subprocess.PIPE, text=True)
    while not record.exists() or "/generate" not in record.read_text():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.endswith("latencylab: interrupted\n")
    with pytest.raises(ProcessLookupError):
        os.kill(json.loads(record.read_text().splitlines()[0])[3], 0)
    assert not list((tmp_path / "tmp").iterdir())


# What the step clock costs: benchmarks/step_clock.py


def _cost(url: str, home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    program = Path(__file__).parents[2] / "benchmarks" / "step_clock.py"
    command = [sys.executable, program, "--url", url, "--server-dir", home, "--input-tokens", "6", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_cost_of_the_clock(tmp_path):
    with serving(folder=tmp_path, ranks=2, chunk_ms=2, clock_ms=1) as fake:
        done = _cost(fake.url, tmp_path, "--output-tokens", "41", "--pairs", "6", "--warmup", "1")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    low, high = told["interval_95_us_per_step"]
    assert low <= told["difference_us_per_step"] <= high
    assert told["difference_us_per_step"] == pytest.approx(1000, abs=300)
    assert told["difference_us_per_step"] == pytest.approx(
        1e3 * (told["on_ms_per_step"] - told["off_ms_per_step"]), abs=0.01
    )
    assert told["own_us_per_step"] == {"0": 12.5, "1": 12.5}
    prompts = _prompts(fake)[1:]
    assert prompts[::2] == prompts[1::2]
    assert len({tuple(prompt) for prompt in prompts}) == 6
    assert done.stderr.count("pair ") == 6


def test_a_clock_that_does_not_obey(tmp_path):
    with serving(folder=tmp_path / "ll") as fake:
        HttpTarget(fake.url).start_profile(tmp_path / "traces", 5)
        done = _cost(fake.url, tmp_path / "ll", "--output-tokens", "41")
        assert (done.returncode, done.stdout) == (3, "")
        assert "the clock stays off: a profiler" in done.stderr
        done = _cost(fake.url, tmp_path)
        assert done.returncode == 3
        assert "no server with the plugin" in done.stderr


def test_no_time_per_token_from_a_single_chunk():
    """All tokens at once took no time apart from the first, which is no speed."""
    request = Request.of(0, [(5_000_000, 8)])
    assert (request.ttft_ms, request.tpot_ms, request.step_ms, request.accept_length) == (5, None, None, None)
