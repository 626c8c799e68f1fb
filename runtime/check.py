"""Whether two configurations of a server answer alike: greedy decoding, compared token by token.

The prompts are token ids drawn from a seed, sent one after the other, so a run can be repeated anywhere and
recorded once for many comparisons. Byte-exact equality is more than correctness asks for: where a kernel sums
in another order, close scores may swap. Hence `compare` says where and how often, and the caller judges.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from latencylab.model.integrity import InputError
from latencylab.runtime.bench import Workload
from latencylab.runtime.client import HttpTarget
from latencylab.runtime.provenance import describe_machine, describe_server

SCHEMA = "latencylab.greedy/1"
CONTEXT = 5  # tokens shown on either side of a divergence
# An answer with at most one different token in so many repeats itself. Of 128 words prose has about 70
# different ones and source code 44, in 99 of 100 places more than 25; tiny random weights come to 2 to 4.
REPEATING = 8
_LOCAL = {"127.0.0.1", "localhost", "::1"}
Ids = tuple[int, ...]
Progress = Callable[[str], None]


class GreedyServer:
    """A server by its URL, asked for whole answers. `timeout_s` bounds the wait for one answer."""

    def __init__(self, url: str, *, timeout_s: float = 600.0) -> None:
        self.target = HttpTarget(url)
        self.url = self.target.url
        self.timeout_s = timeout_s

    def tokens(self, prompt: Ids, count: int) -> Ids:
        """Exactly `count` token ids that follow a prompt. Raises InputError."""
        sampling = {"temperature": 0, "max_new_tokens": count, "ignore_eos": True}
        ids = self._generate({"input_ids": list(prompt), "sampling_params": sampling}).get("output_ids")
        if not isinstance(ids, list) or not all(isinstance(each, int) for each in ids):
            raise InputError(f"{self.url} gives no token ids (output_ids) in its answers")
        if len(ids) != count:
            raise InputError(f"{self.url} ended a request after {len(ids)} of {count} tokens")
        return tuple(ids)

    def text(self, prompt: str, count: int, stop: Sequence[str]) -> str:
        """At most `count` tokens of text that follow a prompt. Raises InputError."""
        sampling = {"temperature": 0, "max_new_tokens": count, "stop": list(stop)}
        text = self._generate({"text": prompt, "sampling_params": sampling}).get("text")
        if not isinstance(text, str):
            raise InputError(f"{self.url} gives no text in its answers")
        return text

    def _generate(self, body: Mapping[str, Any]) -> dict[str, Any]:
        request = Request(  # noqa: S310 - HttpTarget takes http and https alone
            f"{self.url}/generate",
            json.dumps({**body, "stream": False}).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urlopen(request, timeout=self.timeout_s) as response:  # noqa: S310
                answer = json.load(response)
        except HTTPError as error:
            said = error.read(300).decode("utf-8", "replace").strip()
            raise InputError(f"{self.url}/generate: HTTP {error.code}: {said or error.reason}") from None
        except URLError as error:
            raise InputError(f"{self.url}: {error.reason}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise InputError(f"{self.url}/generate: {str(error) or type(error).__name__}") from None
        if not isinstance(answer, dict):
            raise InputError(f"{self.url}/generate: the answer is no JSON object")
        return answer


@dataclass(frozen=True, slots=True)
class Recording:
    """What one server answered: the ids of each prompt and of what followed, and what server it was."""

    prompts: tuple[Ids, ...]
    outputs: tuple[Ids, ...]
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.about.get("where", "a recording"))


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where the answers to one prompt part: at which token, counted from 0, and what each went on with."""

    prompt: int
    position: int
    common: Ids
    reference: Ids
    subject: Ids


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two recordings of the same prompts; `tokens` were compared, `divergences` are in order of prompts."""

    reference: str
    subject: str
    prompts: int
    tokens: int
    divergences: tuple[Divergence, ...]

    @property
    def agreeing(self) -> int:
        """How many prompts have the same answer to the last token."""
        return self.prompts - len(self.divergences)

    @property
    def first(self) -> Divergence | None:
        """The earliest position at which an answer parts, of the first such prompt."""
        return min(self.divergences, key=lambda d: (d.position, d.prompt), default=None)

    def line(self) -> str:
        """The whole in one line."""
        if self.first is None:
            return f"{self.prompts} prompts, {self.tokens} tokens: identical"
        at = self.first
        return (
            f"{self.subject} differs from {self.reference}: {self.agreeing} of {self.prompts} prompts agree; "
            f"earliest in prompt {at.prompt} at token {at.position}: after {_shown(at.common)} "
            f"{_shown(at.reference)} against {_shown(at.subject)}"
        )


def make_prompts(count: int, tokens: int, seed: int) -> tuple[Ids, ...]:
    """Prompts of random token ids; the same for the same arguments."""
    workload = Workload(input_tokens=tokens, seed=seed)
    return tuple(workload.prompt(f"check {number}").ids for number in range(count))


def record(
    server: GreedyServer, prompts: Sequence[Ids], count: int, progress: Progress | None = None
) -> Recording:
    """Ask for `count` tokens after each prompt, one request at a time. Raises InputError."""
    info = server.target.info()
    about = {
        "where": server.url,
        **describe_machine(is_local=server.target.host in _LOCAL),
        **describe_server(info, {}),
    }
    server.target.flush_cache()
    outputs = []
    for number, prompt in enumerate(prompts):
        if progress is not None:
            progress(f"prompt {number + 1} of {len(prompts)}")
        outputs.append(server.tokens(prompt, count))
    return Recording(tuple(prompts), tuple(outputs), about)


def compare(reference: Recording, subject: Recording) -> Comparison:
    """Hold two recordings against each other. Raises InputError where they answer different prompts."""
    if reference.prompts != subject.prompts:
        raise InputError(f"{reference.name} and {subject.name} answer different prompts: not comparable")
    found = []
    tokens = 0
    pairs = zip(reference.outputs, subject.outputs, strict=True)
    for prompt, (wanted, got) in enumerate(pairs):
        if len(wanted) != len(got):
            raise InputError(
                f"{reference.name} and {subject.name} were asked for {len(wanted)} and {len(got)} tokens: "
                "not comparable"
            )
        tokens += len(wanted)
        at = next((i for i, (a, b) in enumerate(zip(wanted, got, strict=True)) if a != b), None)
        if at is not None:
            common = (reference.prompts[prompt] + wanted[:at])[-CONTEXT:]
            found.append(Divergence(prompt, at, common, wanted[at : at + CONTEXT], got[at : at + CONTEXT]))
    return Comparison(reference.name, subject.name, len(reference.prompts), tokens, tuple(found))


def caveats(recording: Recording) -> tuple[str, ...]:
    """What keeps a comparison with this server from saying much, one line each."""
    arguments = recording.about.get("server_args")
    arguments = arguments if isinstance(arguments, Mapping) else {}
    found = []
    if arguments.get("load_format") == "dummy" and arguments.get("speculative_algorithm"):
        found.append(
            f"{recording.name} has random weights and a draft: where SGLANG_SIMULATE_ACC_LEN is set, drafted "
            "tokens are accepted unseen, so its answers are not the model's"
        )
    if (arguments.get("max_running_requests") or 1) != 1:
        found.append(f"{recording.name} may batch requests, which can change sums")
    repeating = [ids for ids in recording.outputs if len(set(ids)) * REPEATING <= len(ids)]
    if repeating and 2 * len(repeating) >= len(recording.outputs):
        different, tokens = _span(len(set(ids)) for ids in repeating), _span(map(len, repeating))
        found.append(
            f"{len(repeating)} of {len(recording.outputs)} answers of {recording.name} repeat themselves "
            f"(different tokens: {different} of {tokens}), so that agreeing with them says little"
        )
    return tuple(found)


def to_json(recording: Recording) -> str:
    """A recording as the text of a file."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "about": dict(recording.about),
            "prompts": recording.prompts,
            "outputs": recording.outputs,
        }
    )


def read_recording(path: Path) -> Recording:
    """A file that `to_json` wrote. Raises InputError."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path}: no JSON") from None
    if not isinstance(held, dict) or held.get("schema") != SCHEMA:
        raise InputError(f"{path}: no recording of greedy answers ({SCHEMA})")
    prompts, outputs = _ids(path, held.get("prompts")), _ids(path, held.get("outputs"))
    if len(prompts) != len(outputs):
        raise InputError(f"{path}: {len(prompts)} prompts and {len(outputs)} outputs")
    about = held.get("about")
    return Recording(prompts, outputs, {**(about if isinstance(about, dict) else {}), "where": str(path)})


def _ids(path: Path, held: object) -> tuple[Ids, ...]:
    if not isinstance(held, list) or not held:
        raise InputError(f"{path}: no token ids in it")
    for row in held:
        if not isinstance(row, list) or not row or not all(type(each) is int for each in row):
            raise InputError(f"{path}: a row that is no list of token ids")
    return tuple(tuple(row) for row in held)


def _span(counts: Iterable[int]) -> str:
    """The range of one or more counts, in words."""
    ordered = sorted(counts)
    return " to ".join(str(end) for end in dict.fromkeys((ordered[0], ordered[-1])))


def _shown(ids: Ids) -> str:
    return "[" + " ".join(map(str, ids)) + "]"
