"""Clients that stream one request and note when each chunk arrives.

SGLang's native API and the OpenAI-compatible one over HTTP, and an engine inside this process. The time is
taken as soon as the bytes are read, before any of them is looked at.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from latencylab.model.integrity import InputError
from latencylab.model.unprofiled import Request

Api = Literal["native", "openai"]
OnChunk = Callable[[int], None]
PATHS: Mapping[Api, str] = {"native": "/generate", "openai": "/v1/completions"}
ACTIVITIES = ("CPU", "GPU")
_TOKENS = b'"completion_tokens":'
_ACCEPT = re.compile(rb'"spec_accept_length":\s*([0-9.eE+-]+)')
_CAP = re.compile(rb'"spec_cap_length":\s*([0-9.eE+-]+)')
_ABORT = re.compile(rb'"type":\s*"abort"')
_MOST = 1e6  # tokens a step
_DATA = b"data:"
_BLOCK = 1 << 16
_LONGEST = 4096  # blocks of one event
_SHORT_S = 10.0  # for what a server answers at once
_PROFILER_S = 180.0  # starting CUPTI on every rank, or writing their traces, takes its time


class TargetError(InputError):
    """The server died, stalled or refused; one line."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a request starts from: token ids, or text where `ids` is empty."""

    ids: tuple[int, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """One request as its client saw it, and the server's own counts per verify step, if given: of tokens that
    came of it, and of those that it was to verify (in DSpark's ragged modes)."""

    request: Request
    server_accept_length: float | None = None
    server_cap_length: float | None = None

    @property
    def accept_length(self) -> float | None:
        """The server's figure, which merged chunks cannot distort, or else the tokens per chunk."""
        given = self.server_accept_length
        return self.request.accept_length if given is None else given

    @property
    def tokens(self) -> int:
        return self.request.chunks[-1][1] if self.request.chunks else 0


class Target(Protocol):
    """What can be measured: it serves one request at a time and can be profiled."""

    @property
    def where(self) -> str:
        """What it is called in messages."""

    def generate(self, prompt: Prompt, tokens: int, on_chunk: OnChunk | None = None) -> Answer:
        """Ask for exactly `tokens` tokens; `on_chunk` is called with the count of chunks so far, from 1."""

    def info(self) -> dict[str, Any]:
        """What the server says of itself."""

    def flush_cache(self) -> None: ...

    def start_profile(self, folder: Path, steps: int) -> None:
        """Profile the next `steps` steps into `folder`; returns once the profiler is on."""

    def stop_profile(self) -> None:
        """Stop a profiler that is still on; returns once its files are written."""

    def check_alive(self) -> None:
        """Raise TargetError where the server is gone."""


class HttpTarget:
    """A server that speaks SGLang's HTTP API. `timeout_s` bounds the wait for each next chunk."""

    def __init__(self, url: str, *, api: Api = "native", timeout_s: float = 300.0) -> None:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port, is_known = parts.port, parts.scheme in {"http", "https"}
        except ValueError:
            is_known = False
        if not is_known or not parts.hostname:
            raise InputError(f"{url}: not a URL such as http://127.0.0.1:30000")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self.host = parts.hostname
        self.port = port or (443 if parts.scheme == "https" else 80)
        self.api = api
        self.timeout_s = timeout_s
        self.where = self.url
        self._prefix = parts.path.rstrip("/")
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection

    def generate(self, prompt: Prompt, tokens: int, on_chunk: OnChunk | None = None) -> Answer:
        body = json.dumps(_body(self.api, prompt, tokens)).encode()
        chunks: list[tuple[int, int]] = []
        last = b""
        with self._telling(), closing(self._kind(self.host, self.port, timeout=self.timeout_s)) as connection:
            connection.connect()
            start_ns, start = time.time_ns(), time.perf_counter_ns()
            connection.request("POST", self._prefix + PATHS[self.api], body, _HEADERS)
            response = connection.getresponse()
            if response.status != 200:
                raise TargetError(f"{self.url}{PATHS[self.api]}: {_refusal(response)}")
            newest = start
            for at, event in _events(response):
                seen = _tokens(event)
                if seen > (chunks[-1][1] if chunks else 0):
                    newest = at
                    chunks.append((at - start, seen))
                    if on_chunk is not None:
                        on_chunk(len(chunks))
                elif at - newest > self.timeout_s * 1e9:  # it keeps the connection alive, and no more
                    raise TimeoutError
                last = event if seen else last
        told = _number(_ACCEPT, last), _number(_CAP, last)
        return _answer(start_ns, chunks, told, tokens, self.url)

    def info(self) -> dict[str, Any]:
        """The answer of /server_info, or of /get_server_info where a server knows only that."""
        for path in ("/server_info", "/get_server_info"):
            status, text = self._ask("GET", path, timeout_s=_SHORT_S)
            if status == 404:
                continue
            try:
                info = json.loads(text)
            except ValueError:
                info = None
            if status == 200 and isinstance(info, dict):
                return info
            what = "no JSON object" if status == 200 else f"HTTP {status}"
            raise TargetError(f"{self.url}{path}: {what}: {_first_line(text)}")
        return {}

    def is_healthy(self) -> bool:
        """Whether /health says so; a server without that path is asked for its information."""
        try:
            status, _ = self._ask("GET", "/health", timeout_s=2 * _SHORT_S)
            return status == 200 or (status == 404 and bool(self.info()))
        except TargetError:
            return False

    def flush_cache(self) -> None:
        """Empty the prefix cache, once the server is idle; one that knows no such request is left alone."""
        status, text = self._ask("POST", "/flush_cache?timeout=5", timeout_s=_SHORT_S)
        if status not in {200, 404}:
            raise TargetError(f"{self.url}/flush_cache: HTTP {status}: {_first_line(text)}")

    def start_profile(self, folder: Path, steps: int) -> None:
        self._post("/start_profile", _profile_options(folder, steps), timeout_s=_PROFILER_S)

    def stop_profile(self) -> None:
        self._post("/stop_profile", timeout_s=_PROFILER_S)

    def check_alive(self) -> None:
        with self._telling():
            socket.create_connection((self.host, self.port), timeout=_SHORT_S).close()

    def _post(self, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float) -> None:
        status, text = self._ask("POST", path, body, timeout_s=timeout_s)
        if status != 200:
            raise TargetError(f"{self.url}{path}: HTTP {status}: {_first_line(text)}")

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float
    ) -> tuple[int, bytes]:
        data = None if body is None else json.dumps(body).encode()
        headers = _HEADERS if data is not None else {}
        with self._telling(timeout_s), closing(self._kind(self.host, self.port, timeout=timeout_s)) as asked:
            asked.request(method, self._prefix + path, data, headers)
            response = asked.getresponse()
            return response.status, response.read()

    @contextmanager
    def _telling(self, timeout_s: float | None = None) -> Iterator[None]:
        """Whatever goes wrong with the connection becomes one line."""
        try:
            yield
        except TimeoutError:
            limit = self.timeout_s if timeout_s is None else timeout_s
            raise TargetError(f"{self.url}: nothing came for {limit:g} s: the server stalls") from None
        except ConnectionRefusedError:
            raise TargetError(f"{self.url}: nobody listens there") from None
        except (http.client.HTTPException, ConnectionError, _CutShortError) as error:
            detail = f" ({error})" if str(error) else ""
            raise TargetError(f"{self.url}: the server broke off{detail}") from None
        except OSError as error:
            raise TargetError(f"{self.url}: {error.strerror or error}") from None


class EngineTarget:
    """An `sglang.Engine` in this process; its stream cannot be bounded in time."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.where = "the engine"

    def generate(self, prompt: Prompt, tokens: int, on_chunk: OnChunk | None = None) -> Answer:
        given = {"input_ids": list(prompt.ids)} if prompt.ids else {"prompt": prompt.text}
        chunks: list[tuple[int, int]] = []
        meta: dict[str, Any] = {}
        start_ns, start = time.time_ns(), time.perf_counter_ns()
        for chunk in self.engine.generate(**given, sampling_params=_sampling(tokens), stream=True):
            at = time.perf_counter_ns() - start
            meta = chunk["meta_info"]
            if meta["completion_tokens"] > (chunks[-1][1] if chunks else 0):
                chunks.append((at, meta["completion_tokens"]))
                if on_chunk is not None:
                    on_chunk(len(chunks))
        told = meta.get("spec_accept_length"), meta.get("spec_cap_length")
        return _answer(start_ns, chunks, told, tokens, self.where)

    def info(self) -> dict[str, Any]:
        return dict(self.engine.get_server_info())

    def flush_cache(self) -> None:
        self.engine.flush_cache()

    def start_profile(self, folder: Path, steps: int) -> None:
        with _telling_engine():
            self.engine.start_profile(**_profile_options(folder, steps))

    def stop_profile(self) -> None:
        with _telling_engine():
            self.engine.stop_profile()

    def check_alive(self) -> None:
        """An engine that dies takes this process with it."""


_HEADERS = {"Content-Type": "application/json"}


@contextmanager
def _telling_engine() -> Iterator[None]:
    """What an engine refuses, it raises as RuntimeError."""
    try:
        yield
    except RuntimeError as error:
        raise TargetError(f"the engine: {_first_line(str(error).encode())}") from None


class _CutShortError(Exception):
    """The stream ended before its end was announced."""


def _answer(
    start_ns: int,
    chunks: list[tuple[int, int]],
    told: tuple[float | None, float | None],
    tokens: int,
    where: str,
) -> Answer:
    """The answer with what the server told; raises TargetError where it has not the tokens asked for."""
    answer = Answer(Request.of(start_ns, chunks), *told)
    if answer.tokens < tokens:
        raise TargetError(f"{where}: the request ended after {answer.tokens} of {tokens} tokens")
    if answer.tokens > tokens:
        raise TargetError(f"{where}: the request was to end after {tokens} tokens, and has {answer.tokens}")
    return answer


def _sampling(tokens: int) -> dict[str, Any]:
    return {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}


def _body(api: Api, prompt: Prompt, tokens: int) -> dict[str, Any]:
    if api == "native":
        given = {"input_ids": prompt.ids} if prompt.ids else {"text": prompt.text}
        return {**given, "sampling_params": _sampling(tokens), "stream": True}
    return {
        "model": "default",
        "prompt": prompt.ids or prompt.text,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def _profile_options(folder: Path, steps: int) -> dict[str, Any]:
    """Stacks and shapes are on by default, and would slow the host severalfold."""
    return {
        "output_dir": str(folder),
        "num_steps": steps,
        "activities": list(ACTIVITIES),
        "with_stack": False,
        "record_shapes": False,
    }


def _events(response: http.client.HTTPResponse) -> Iterator[tuple[int, bytes]]:
    """(when it was read, its data) of each server-sent event; no data where bytes came that end none.

    Raises TargetError for an error that the server sends, for an endless event and for what is no stream of
    events, and _CutShortError where the end is missing.
    """
    rest: list[bytes] = []
    first = b""
    streams = False
    while block := response.read1(_BLOCK):
        at = time.perf_counter_ns()
        first = first or block
        ended, newline, begun = block.rpartition(b"\n")
        if not newline:
            rest.append(block)
            if len(rest) > _LONGEST:  # blocks may be short, so that this bounds them from above
                raise TargetError("the server sends an event without end")
            yield at, b""
            continue
        lines = b"".join([*rest, ended]).split(b"\n")
        rest = [begun]
        for line in lines:
            if not line.startswith(_DATA):
                continue
            data = line[len(_DATA) :].strip()
            if data == b"[DONE]":
                return
            if data.startswith(b'{"error"') or (b'"abort"' in data and _ABORT.search(data)):
                raise TargetError(f"the server gave up on the request: {_first_line(data)}")
            streams = True
            yield at, data
        yield at, b""
    if first and not streams:
        raise TargetError(f"the server answers with no stream of events: {_first_line(first)}")
    raise _CutShortError("in the middle of the stream")


def _tokens(event: bytes) -> int:
    """How many tokens the request has so far, or 0 where the event does not say.

    The event is searched and not decoded, as by default it repeats all tokens so far; quotation marks
    inside generated text are escaped, so the key is found only where it is one.
    """
    at = event.rfind(_TOKENS)
    if at < 0:
        return 0
    digits = re.match(rb"\s*(\d+)", event[at + len(_TOKENS) :])
    return int(digits[1]) if digits else 0


def _number(pattern: re.Pattern[bytes], event: bytes) -> float | None:
    found = pattern.search(event)
    try:
        given = float(found[1]) if found else None
    except ValueError:
        return None
    return given if given is not None and 0 <= given <= _MOST else None  # else it is no count of tokens


def _refusal(response: http.client.HTTPResponse) -> str:
    return f"HTTP {response.status}: {_first_line(response.read(_BLOCK))}"


def _first_line(text: bytes) -> str:
    lines = text.decode("utf-8", "replace").strip().splitlines()
    return lines[0][:200] if lines else "no more said"
