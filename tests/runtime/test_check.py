"""Greedy answers of two servers are compared token by token."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from greedy_server import Reply, serving
from latencylab.cli import run
from latencylab.model.integrity import InputError
from latencylab.runtime.check import (
    Divergence,
    GreedyServer,
    Recording,
    caveats,
    compare,
    make_prompts,
    read_recording,
    record,
    to_json,
)
from latencylab.runtime.gsm8k import Question, Score, last_number, read_questions, score


def continued(body: dict[str, Any]) -> dict[str, Any]:
    """What follows depends on the whole prompt, as with a model."""
    ids = body["input_ids"]
    start = sum(ids) % 1000
    return {"output_ids": [(start + 7 * i) % 1000 for i in range(body["sampling_params"]["max_new_tokens"])]}


def parting(prompt: int, position: int, seed: int = 0) -> Reply:
    """Answers like `continued`, but for one prompt from one token on."""
    odd = list(make_prompts(prompt + 1, 8, seed)[prompt])

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        answer = continued(body)
        if body["input_ids"] == odd:
            answer["output_ids"][position:] = [5000 + i for i in answer["output_ids"][position:]]
        return answer

    return reply


SMALL = ["--prompts", "4", "--input-tokens", "8", "--output-tokens", "12"]


def test_prompts_follow_from_the_seed():
    assert make_prompts(3, 8, 0) == make_prompts(3, 8, 0)
    assert make_prompts(3, 8, 0) != make_prompts(3, 8, 1)
    assert len(set(make_prompts(3, 8, 0))) == 3
    assert make_prompts(5, 8, 0)[:3] == make_prompts(3, 8, 0)
    assert all(1000 <= each < 30000 for ids in make_prompts(3, 8, 0) for each in ids)


def test_request_is_greedy_and_alone():
    with serving(continued) as (url, asked):
        taken = record(GreedyServer(url), make_prompts(2, 8, 0), 5)
    assert [body["input_ids"] for body in asked] == [list(ids) for ids in taken.prompts]
    for body in asked:
        assert body["sampling_params"] == {"temperature": 0, "max_new_tokens": 5, "ignore_eos": True}
        assert body["stream"] is False
    assert [len(ids) for ids in taken.outputs] == [5, 5]
    assert taken.about["packages"]["sglang"] == "0.5.23"
    assert "geheim" not in to_json(taken)


def test_identical_servers(capfd):
    with serving(continued) as (one, _), serving(continued) as (other, _):
        assert run(["runtime", "check", "--url", one, "--against", other, *SMALL]) == 0
    out, err = capfd.readouterr()
    assert "4 prompts, 48 tokens: identical" in out
    assert "4 of 4 prompts agree" in out
    assert err == ""


def test_the_first_divergence_is_told(capfd):
    with serving(parting(2, 9)) as (subject, _), serving(continued) as (reference, _):
        assert run(["runtime", "check", "--url", subject, "--against", reference, *SMALL]) == 3
    out, err = capfd.readouterr()
    assert "3 of 4 prompts agree" in out
    assert "prompt 2: token 9, after [" in out
    assert "3 of 4 prompts agree; earliest in prompt 2 at token 9" in err
    assert err.count("\n") == 1


def test_json_names_position_and_context(capfd):
    prompt = make_prompts(4, 8, 3)[1]
    with serving(parting(1, 2, seed=3)) as (subject, _), serving(continued) as (reference, _):
        arguments = ["--url", subject, "--against", reference, *SMALL, "--seed", "3", "--format", "json"]
        assert run(["runtime", "check", *arguments]) == 3
    (found,) = json.loads(capfd.readouterr().out)["comparisons"]
    wanted = continued({"input_ids": prompt, "sampling_params": {"max_new_tokens": 12}})["output_ids"]
    assert found["agreeing"] == 3
    assert found["first"] == {
        "prompt": 1,
        "position": 2,
        "common": [*prompt[-3:], *wanted[:2]],
        "reference": wanted[2:7],
        "subject": [5000 + i for i in wanted[2:7]],
    }


def test_earliest_position_comes_first():
    prompts = ((1, 2), (3, 4), (5, 6))
    reference = Recording(prompts, ((1, 1, 1), (1, 1, 1), (1, 1, 1)))
    subject = Recording(prompts, ((1, 1, 9), (1, 9, 1), (1, 1, 1)))
    found = compare(reference, subject)
    assert found.first == Divergence(1, 1, (3, 4, 1), (1, 1), (9, 1))
    assert (found.agreeing, found.tokens) == (1, 9)
    assert [each.prompt for each in found.divergences] == [0, 1]


def test_recording_is_a_reference(tmp_path, capfd):
    file = tmp_path / "reference.json"
    with serving(continued) as (url, _):
        assert run(["runtime", "check", "--url", url, "--record", str(file), *SMALL, "--seed", "3"]) == 0
        assert run(["runtime", "check", "--url", url, "--record", str(file), *SMALL]) == 4
        # Its prompts and lengths count, whatever else is asked for.
        assert run(["runtime", "check", "--url", url, "--against", str(file), "--prompts", "2"]) == 0
    assert "4 prompts, 48 tokens: identical" in capfd.readouterr().out
    with serving(parting(0, 0, seed=3)) as (url, _):
        assert run(["runtime", "check", "--url", url, "--against", str(file)]) == 3
    assert f"differs from {file}" in capfd.readouterr().err
    held = json.loads(file.read_text())
    assert held["schema"] == "latencylab.greedy/1"
    assert held["about"]["server_args"]["tp_size"] == 1


def test_recording_comes_back_whole(tmp_path):
    taken = Recording(((1, 2), (3,)), ((4, 5), (6, 7)), {"where": "http://x", "gpu": "H200"})
    file = tmp_path / "r.json"
    file.write_text(to_json(taken))
    read = read_recording(file)
    assert (read.prompts, read.outputs, read.about["gpu"], read.name) == (
        taken.prompts,
        taken.outputs,
        "H200",
        str(file),
    )


def test_server_that_disagrees_with_itself(capfd):
    count = iter(range(1000))

    def fickle(body: dict[str, Any]) -> dict[str, Any]:
        answer = continued(body)
        if next(count) >= 4:
            answer["output_ids"][-1] = 9999
        return answer

    with serving(fickle) as (url, _):
        assert run(["runtime", "check", "--url", url, "--twice", *SMALL]) == 3
    assert "0 of 4 prompts agree; earliest in prompt 0 at token 11" in capfd.readouterr().err
    with serving(continued) as (url, _):
        assert run(["runtime", "check", "--url", url, "--twice", *SMALL]) == 0


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (lambda _body: {"text": "x"}, "gives no token ids"),
        (lambda _body: {"output_ids": [1, 2]}, "ended a request after 2 of 12 tokens"),
        (lambda _body: "out of memory", "HTTP 500: .*out of memory"),
        (lambda _body: [1], "no JSON object"),
    ],
)
def test_odd_answers_are_refused(reply, said):
    with serving(reply) as (url, _), pytest.raises(InputError, match=said):
        record(GreedyServer(url), make_prompts(1, 8, 0), 12)


def test_nobody_listens(capfd):
    assert run(["runtime", "check", "--url", "http://127.0.0.1:1", "--twice", *SMALL]) == 3
    assert capfd.readouterr().err.startswith("latencylab: error: http://127.0.0.1:1: ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("{}", "no recording of greedy answers"),
        ('{"schema": "latencylab.greedy/1", "prompts": [], "outputs": []}', "no token ids in it"),
        ('{"schema": "latencylab.greedy/1", "prompts": [[1]], "outputs": [[true]]}', "no list of token ids"),
        ('{"schema": "latencylab.greedy/1", "prompts": [[1]], "outputs": [[1], [2]]}', "1 prompts and 2"),
    ],
)
def test_broken_recordings_are_refused(tmp_path, text, said):
    file = tmp_path / "r.json"
    file.write_text(text)
    with pytest.raises(InputError, match=said):
        read_recording(file)


def test_missing_recording_is_refused(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_recording(tmp_path / "r.json")


def test_different_questions_are_not_comparable():
    with pytest.raises(InputError, match="different prompts"):
        compare(Recording(((1,),), ((1,),)), Recording(((2,),), ((1,),)))
    with pytest.raises(InputError, match="asked for 1 and 2 tokens"):
        compare(Recording(((1,),), ((1,),)), Recording(((1,),), ((1, 2),)))


def test_caveats():
    def about(**arguments: Any) -> Recording:
        return Recording((), (), {"server_args": arguments})

    assert caveats(about(load_format="auto", speculative_algorithm="NEXTN", max_running_requests=1)) == ()
    assert "random weights" in caveats(about(load_format="dummy", speculative_algorithm="NEXTN"))[0]
    assert "batch" in caveats(about(max_running_requests=8))[0]
    assert caveats(Recording((), (), {"server_args": ["load_format"]})) == ()


def _answers(*outputs: list[int]) -> Recording:
    return Recording(((1,),) * len(outputs), tuple(map(tuple, outputs)), {"where": "http://x"})


def test_answers_that_repeat_themselves_are_told():
    two, four, all_of_them = [7, 9] * 64, [1, 2, 3, 4] * 32, list(range(128))
    (line,) = caveats(_answers(two, four, four))
    assert line == (
        "3 of 3 answers of http://x repeat themselves (different tokens: 2 to 4 of 128), "
        "so that agreeing with them says little"
    )
    assert "2 of 3 answers of http://x" in caveats(_answers(two, all_of_them, two))[0]
    assert "(different tokens: 2 of 128)" in caveats(_answers(two, all_of_them))[0]
    assert caveats(_answers(two, all_of_them, all_of_them)) == ()
    assert "(different tokens: 1 of 8 to 9)" in caveats(_answers([5] * 8, [5] * 9))[0]


def test_one_different_token_in_eight_is_the_limit():
    assert caveats(_answers([*range(16)] * 8)) != ()
    assert caveats(_answers([*range(17)] * 7)) == ()
    assert caveats(_answers([5] * 7)) == ()  # too short to repeat itself much


def test_both_sides_are_looked_at(tmp_path, capfd):
    def repeating(body: dict[str, Any]) -> dict[str, Any]:
        return {"output_ids": [7] * body["sampling_params"]["max_new_tokens"]}

    file = tmp_path / "reference.json"
    with serving(repeating) as (url, _):
        assert run(["runtime", "check", "--url", url, "--record", str(file), *SMALL]) == 0
        assert f"4 of 4 answers of {url} repeat themselves" in capfd.readouterr().err
    with serving(continued) as (url, _):
        assert run(["runtime", "check", "--url", url, "--against", str(file)]) == 3
        first, *_ = capfd.readouterr().err.splitlines()
        assert first.startswith(f"latencylab: warning: 4 of 4 answers of {file} repeat themselves (")


def test_nothing_to_do_is_wrong_usage(capfd):
    assert run(["runtime", "check"]) == 2
    assert "--against" in capfd.readouterr().err


# GSM8K


def _data(path: Path, count: int, start: int = 0) -> Path:
    rows = [
        {"question": f"What is {i} + 1000?", "answer": f"x\n#### {i + 1000:,}"} for i in range(start, count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def adding(wrong: int) -> Reply:
    """Does the sum, except for the first `wrong` of the questions that are not examples."""

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        number = int(body["text"].rpartition("What is ")[2].split()[0])
        off = 1 if 5 <= number < 5 + wrong else 0
        return {"text": f" {number} + 1000 = {number + 1000 + off:,}."}

    return reply


@pytest.mark.parametrize(("wrong", "code"), [(0, 0), (2, 0), (3, 3)])
def test_floor(tmp_path, capfd, wrong, code):
    data = _data(tmp_path / "test.jsonl", 25)
    with serving(adding(wrong)) as (url, asked):
        assert run(["runtime", "check", "--url", url, "--gsm8k", str(data)]) == code
    assert f"GSM8K: {20 - wrong} of 20 right" in capfd.readouterr().out
    assert len(asked) == 20
    assert asked[0]["text"].count("Question: ") == 6
    assert asked[0]["text"].endswith("Question: What is 5 + 1000?\nAnswer:")
    assert asked[0]["sampling_params"]["temperature"] == 0


def test_examples_of_their_own(tmp_path):
    questions = read_questions(_data(tmp_path / "test.jsonl", 7))
    with serving(adding(0)) as (url, asked):
        assert score(GreedyServer(url), questions, questions[:1]) == Score(7, 7, 0.90)
    assert asked[0]["text"].count("Question: ") == 2


def test_a_share_at_the_floor_passes():
    assert Score(9, 10, 0.9).passed
    assert not Score(8, 10, 0.9).passed


def test_a_server_without_tokenizer_is_refused(tmp_path, capfd):
    data = _data(tmp_path / "test.jsonl", 25)
    with serving(adding(0), {"skip_tokenizer_init": True}) as (url, asked):
        assert run(["runtime", "check", "--url", url, "--gsm8k", str(data)]) == 3
    assert "skips its tokenizer" in capfd.readouterr().err
    assert asked == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no questions"),
        ("{}\n", "line 1 has no question"),
        ('{"question": "q", "answer": "7"}x\n', "line 1"),
    ],
)
def test_odd_data_is_refused(tmp_path, text, said):
    data = tmp_path / "test.jsonl"
    data.write_text(text)
    with pytest.raises(InputError, match=said):
        read_questions(data)


def test_missing_data_is_one_line(tmp_path, capfd):
    assert run(["runtime", "check", "--gsm8k", str(tmp_path / "none.jsonl")]) == 3
    err = capfd.readouterr().err
    assert "no GSM8K data (No such file or directory)" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("So 3 + 4 = 7.", "7"),
        ("#### 1,234", "1234"),
        ("it is -2.50 dollars", "-2.50"),
        ("The answer is 18.\n", "18"),
        ("none", None),
    ],
)
def test_last_number(text, number):
    assert last_number(text) == (None if number is None else Decimal(number))


def test_result_of_a_question():
    assert Question("q", "He has 5 apples.\n#### 1,005").result == Decimal(1005)
