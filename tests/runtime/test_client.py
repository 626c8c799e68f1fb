"""The clients against a real HTTP server: what they measure, and the one line that each failure gives."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from fake_server import serving
from latencylab.model.integrity import InputError
from latencylab.runtime.client import _ACCEPT, _CAP, EngineTarget, HttpTarget, Prompt, TargetError, _number

IDS = Prompt(ids=(5, 6, 7))


@pytest.mark.parametrize("api", ["native", "openai"])
def test_chunks_and_their_times(api):
    with serving(chunk_ms=20, tokens_per_chunk=3) as fake:
        before = time.time_ns()
        answer = HttpTarget(fake.url, api=api).generate(IDS, 13)
        after = time.time_ns()
    request = answer.request
    assert [tokens for _, tokens in request.chunks] == [1, 4, 7, 10, 13]
    assert answer.tokens == 13
    assert before <= request.start_ns <= after
    # Each arrival lies after the step that gave it, as the server timed it, and not far after.
    for (at, _), (_, end) in zip(request.chunks, fake.steps, strict=True):
        assert 0 <= request.start_ns + at - end < 15e6
    assert request.accept_length == 3
    assert request.step_ms == pytest.approx(20, abs=6)
    assert request.tpot_ms == pytest.approx(request.step_ms * 4 / 12)
    assert answer.server_accept_length == (13 / 5 if api == "native" else None)
    assert answer.accept_length == (13 / 5 if api == "native" else 3)


@pytest.mark.parametrize(
    ("api", "prompt", "path", "key"),
    [
        ("native", IDS, "/generate", "input_ids"),
        ("native", Prompt(text="hello"), "/generate", "text"),
        ("openai", IDS, "/v1/completions", "prompt"),
        ("openai", Prompt(text="hello"), "/v1/completions", "prompt"),
    ],
)
def test_what_is_sent(api, prompt, path, key):
    with serving() as fake:
        HttpTarget(fake.url, api=api).generate(prompt, 4)
    (asked, body), *rest = fake.asked
    assert not rest
    assert asked == path
    assert body[key] == (list(prompt.ids) or prompt.text)
    assert body["stream"] is True
    sampling = body["sampling_params"] if api == "native" else body
    assert (sampling["temperature"], sampling["ignore_eos"]) == (0, True)


def test_on_chunk_counts_from_one():
    seen = []
    with serving() as fake:
        answer = HttpTarget(fake.url).generate(IDS, 8, seen.append)
    assert seen == list(range(1, len(answer.request.chunks) + 1))


@pytest.mark.parametrize(
    ("how", "after", "said"),
    [
        ("500", 0, "HTTP 500: Internal Server Error"),
        ("stall", 3, "nothing came for 0.3 s: the server stalls"),
        ("stall", 0, "nothing came for 0.3 s: the server stalls"),
        ("close", 3, "the server broke off"),
        ("abort", 2, "out of memory"),
        ("error", 0, "input too long"),
        ("short", 3, "ended after 5 of 40 tokens"),
        ("over", 0, "was to end after 40 tokens, and has 10000000"),
        ("html", 0, "no stream of events: <html>Hi"),
        ("ping", 3, "nothing came for 0.3 s: the server stalls"),
        ("endless", 2, "an event without end"),
    ],
)
@pytest.mark.parametrize("api", ["native", "openai"])
def test_failures_are_one_line(api, how, after, said):
    with serving(fail_request=0, fail_how=how, fail_after=after) as fake:
        target = HttpTarget(fake.url, api=api, timeout_s=0.3 if "0.3 s" in said else 30)
        with pytest.raises(TargetError) as caught:
            target.generate(IDS, 40)
        if how != "stall":  # the fake serves one at a time
            target.generate(IDS, 4)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nobody_listens():
    with serving() as fake:
        target = HttpTarget(fake.url)
        target.check_alive()
        assert target.is_healthy()
    assert not target.is_healthy()
    for call in (target.check_alive, target.info, lambda: target.generate(IDS, 4)):
        with pytest.raises(TargetError, match="nobody listens"):
            call()


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://h:port", "http://[::1", "http://h:99999"])
def test_no_url(url):
    with pytest.raises(InputError, match="not a URL"):
        HttpTarget(url)


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info", "/nothing"])
def test_info(path):
    with serving(ranks=3, info_path=path) as fake:
        info = HttpTarget(fake.url).info()
    assert info.get("tp_size") == (None if path == "/nothing" else 3)


def test_health_follows_the_server():
    with serving(unhealthy_s=0.4) as fake:
        target = HttpTarget(fake.url)
        assert not target.is_healthy()
        time.sleep(0.5)
        assert target.is_healthy()


def test_profiling_asks_for_neither_stacks_nor_shapes(tmp_path):
    with serving() as fake:
        target = HttpTarget(fake.url)
        target.start_profile(tmp_path, 7)
        target.stop_profile()
        with pytest.raises(TargetError, match="stop_profile: HTTP 500"):
            target.stop_profile()
        time.sleep(0.2)
    assert fake.asked[0] == (
        "/start_profile",
        {
            "output_dir": str(tmp_path),
            "num_steps": 7,
            "activities": ["CPU", "GPU"],
            "with_stack": False,
            "record_shapes": False,
        },
    )


class FakeEngine:
    """Answers as `sglang.Engine` does."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens, self.calls = tokens, []

    def generate(self, **given):
        self.calls.append(given)
        for tokens in self.tokens:
            time.sleep(0.01)
            yield {
                "meta_info": {"completion_tokens": tokens, "spec_accept_length": 2.5, "spec_cap_length": 6.5}
            }

    def start_profile(self, **given):
        self.calls.append(given)

    def stop_profile(self):
        raise RuntimeError("Profiling is not in progress.\nCall /start_profile first.")


def test_an_engine_in_this_process():
    engine = FakeEngine([1, 4, 4, 9])
    counts = []
    answer = EngineTarget(engine).generate(IDS, 9, counts.append)
    assert [tokens for _, tokens in answer.request.chunks] == [1, 4, 9]
    assert counts == [1, 2, 3]
    assert answer.request.step_ms == pytest.approx(15, abs=5)
    assert (answer.accept_length, answer.server_cap_length) == (2.5, 6.5)
    assert engine.calls[0]["input_ids"] == [5, 6, 7]
    assert engine.calls[0]["stream"] is True
    EngineTarget(engine).start_profile(Path("/x"), 3)
    assert json.dumps(engine.calls[1], sort_keys=True).count("false") == 2
    with pytest.raises(TargetError, match=r"^the engine: Profiling is not in progress\.$"):
        EngineTarget(engine).stop_profile()
    with pytest.raises(TargetError, match="after 9 of 10 tokens"):
        EngineTarget(engine).generate(IDS, 10)


def test_a_chunk_of_many_pieces_is_read_in_time_that_grows_with_its_length():
    """Reading it must not look at its beginning again for every piece that comes."""
    text = "x" * 20_000_000
    with serving(text=text, tokens_per_chunk=9) as fake:
        start = time.monotonic()
        assert HttpTarget(fake.url).generate(IDS, 10).tokens == 10
    assert time.monotonic() - start < 3


def test_no_information_but_a_page():
    with serving(info_path="/server_info", page="<html>\n<body>Welcome") as fake:
        with pytest.raises(TargetError, match="server_info: no JSON object: <html>"):
            HttpTarget(fake.url).info()
        assert HttpTarget(fake.url).is_healthy()


@pytest.mark.parametrize(("given", "found"), [(b"2.5", 2.5), (b"1e999", None), (b"-", None), (b"nan", None)])
def test_an_accept_length_is_a_number_or_none(given, found):
    assert (
        _number(_ACCEPT, b'{"text":"\\"spec_accept_length\\": 9","spec_accept_length": %b}' % given) == found
    )
    assert _number(_CAP, b'{"spec_accept_length": 7, "spec_cap_length": %b}' % given) == found
