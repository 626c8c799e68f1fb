"""Measure a server with one request in flight."""

from __future__ import annotations

import hashlib
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from latencylab.model.integrity import InputError
from latencylab.runtime.client import Answer, Prompt, Target, TargetError

SCHEMA = "latencylab.bench/1"
TOKEN_IDS = (1000, 30000)  # above special tokens, and within the vocabulary of one rank of a shape
METRICS = ("ttft_ms", "tpot_ms", "step_ms", "tokens_per_s", "accept_length", "cap_length")
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked of the server; two runs of one workload send the same prompts in the same order.

    `token_ids` bounds the random ids (the last one left out); `texts` are used in turn in their place.
    """

    input_tokens: int = 8192
    output_tokens: int = 1024
    requests: int = 6
    warmup: int = 2
    seed: int = 0
    token_ids: tuple[int, int] = TOKEN_IDS
    texts: tuple[str, ...] = ()

    def prompt(self, name: str) -> Prompt:
        """The prompt of a request named such as "warm-up 0" or "request 3"."""
        if self.texts:
            return Prompt(text=self.texts[int(name.split()[-1]) % len(self.texts)])
        chosen = random.Random(f"{self.seed}/{name}")  # noqa: S311 - not for secrets
        return Prompt(ids=tuple(chosen.randrange(*self.token_ids) for _ in range(self.input_tokens)))

    def described(self) -> dict[str, Any]:
        """For a manifest."""
        return {
            "batch_size": 1,
            "input_tokens": None if self.texts else self.input_tokens,
            "output_tokens": self.output_tokens,
            "requests": self.requests,
            "warmup": self.warmup,
            "seed": self.seed,
            "prompts": self._about_prompts(),
        }

    def _about_prompts(self) -> str:
        """In words that differ where the prompts do, but for their length and seed."""
        if self.texts:
            digest = hashlib.sha256("\n".join(self.texts).encode("utf-8", "surrogatepass")).hexdigest()
            return f"{len(self.texts)} given texts, SHA-256 {digest[:16]}"
        if self.token_ids != TOKEN_IDS:
            return f"random token ids from {self.token_ids[0]} up to {self.token_ids[1]}"
        return "random token ids"


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured requests in order, and why there are fewer than asked for, if so."""

    workload: Workload
    answers: tuple[Answer, ...]
    stopped: str | None = None


def measure(target: Target, workload: Workload, progress: Progress | None = None) -> Measured:
    """Warm up, then send the requests one after the other, until one fails."""
    answers: list[Answer] = []
    sent: set[Prompt] = set()

    def send(name: str) -> Answer:
        if progress is not None:
            progress(f"{name} of {workload.warmup if name.startswith('warm') else workload.requests}")
        prompt = workload.prompt(name)
        if prompt in sent or not sent:  # a prompt in the prefix cache would have no prefill
            target.flush_cache()
        sent.add(prompt)
        return target.generate(prompt, workload.output_tokens)

    names = [f"warm-up {number}" for number in range(workload.warmup)]
    names += [f"request {number}" for number in range(workload.requests)]
    for place, name in enumerate(names):
        try:
            answer = send(name)
        except TargetError as error:
            return Measured(workload, tuple(answers), f"{name}: {error}")
        if place >= workload.warmup:
            answers.append(answer)
    return Measured(workload, tuple(answers))


def check_prompts(workload: Workload, info: Mapping[str, Any]) -> None:
    """Raise InputError for text that the server cannot tokenize."""
    if workload.texts and info.get("skip_tokenizer_init"):
        raise InputError("this server skips its tokenizer: it takes token ids alone, no text")


def figures(answer: Answer) -> dict[str, float | None]:
    """The metrics of one request; `tokens_per_s` is over the whole of it, prefill included."""
    request = answer.request
    whole_ns = request.chunks[-1][0] if request.chunks else 0
    return {
        "ttft_ms": request.ttft_ms,
        "tpot_ms": request.tpot_ms,
        "step_ms": request.step_ms,
        "tokens_per_s": answer.tokens / whole_ns * 1e9 if whole_ns else None,
        "accept_length": answer.accept_length,
        "cap_length": answer.server_cap_length,
    }


def summary(values: Sequence[float]) -> dict[str, float] | None:
    """Median, least and most of a metric, and (most - least) / median in percent; None without values."""
    if not values:
        return None
    middle, least, most = statistics.median(values), min(values), max(values)
    spread = (most - least) / middle * 100 if middle else 0.0
    return {"median": middle, "min": least, "max": most, "spread_pct": spread}


def as_dict(measured: Measured, about: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of a run; `about` says what was measured."""
    rows = [figures(answer) for answer in measured.answers]
    return {
        "schema": SCHEMA,
        "complete": measured.stopped is None,
        "stopped": measured.stopped,
        **about,
        "workload": measured.workload.described(),
        "summary": {
            metric: summary([value for row in rows if (value := row[metric]) is not None])
            for metric in METRICS
        },
        "requests": [
            {"index": index, "start_ns": answer.request.start_ns, "output_tokens": answer.tokens, **row}
            for index, (answer, row) in enumerate(zip(measured.answers, rows, strict=True))
        ],
    }
