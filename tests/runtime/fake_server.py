"""A server that speaks SGLang's HTTP API and misbehaves on request, in a thread or as a process of its own.

As a process it takes SGLang's arguments, of which it heeds --host, --port and --tp-size; its behaviour is
JSON in FAKE_BEHAVIOUR. With LATENCYLAB_DIR set it does as our plugin would: it writes its state, obeys
control.json and writes step clocks.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np


@dataclass
class Behaviour:
    chunk_ms: float = 1.0
    tokens_per_chunk: int = 2
    ranks: int = 1
    # The request (from 0, warm-up counted) that fails, how, and after how many chunks.
    fail_request: int = -1
    fail_how: str = ""  # 500, html, stall, ping, endless, close, die, abort, error, short, over
    fail_after: int = 0
    info: dict[str, Any] = field(default_factory=lambda: {"skip_tokenizer_init": True})
    info_path: str = "/server_info"
    page: str = ""  # in place of the information
    text: str = ' {"completion_tokens": 9} "type":"abort" '  # what a model may say, and no client may heed
    unhealthy_s: float = 0.0
    dies_at_start: bool = False
    profile_fails: bool = False
    traces_late_s: float = 0.0
    pieces: int = 1
    piece_s: float = 0.0
    no_kernels: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    cut: tuple[int, ...] = ()
    named_by_header: bool = True
    faults: dict[str, Any] = field(default_factory=dict)
    faults_stay: bool = False  # as in a plugin that knows no command for them
    clock_deaf: bool = False
    strangers: int = 0  # requests in the clock that nobody here sent
    seam: bool = False  # the clock's first span follows the steps of a request before those of `strangers`
    hooks: dict[str, str] = field(default_factory=lambda: {"Scheduler.run_batch": "took"})
    stateless: bool = False  # as where the plugin does not run
    clock_ms: float = 0.0  # what the clock costs a step
    child: bool = False
    cap_length: float = 0.0  # tokens to verify a step, as in DSpark's ragged modes
    record: str | None = None  # every request made goes there, a line each


class Fake:
    """The state behind the handlers."""

    def __init__(self, behaviour: Behaviour, url: str, folder: Path | None) -> None:
        self.behaviour, self.url, self.folder = behaviour, url, folder
        self.born = time.monotonic()
        self.served = 0
        self.steps: list[tuple[int, int]] = []
        self.profile: dict[str, Any] | None = None
        self.profiled: list[tuple[int, int]] = []
        self.was_profiled = False
        self.clock_on = False
        self.asked: list[tuple[str, Any]] = []
        self.busy = threading.Lock()
        self.over = threading.Event()
        if folder is not None and not behaviour.stateless:
            for rank in range(behaviour.ranks):
                self._write_state(rank)
            threading.Thread(target=self._obey, daemon=True).start()

    def note(self, path: str, body: Any) -> None:
        self.asked.append((path, body))
        if self.behaviour.record:
            with Path(self.behaviour.record).open("a") as file:
                file.write(json.dumps([path, body, time.time_ns(), os.getpid()]) + "\n")

    def step(self) -> None:
        start = time.time_ns()
        time.sleep((self.behaviour.chunk_ms + self.behaviour.clock_ms * self.clock_on) / 1e3)
        self.steps.append((start, time.time_ns()))
        if self.profile is not None:
            self.profiled.append(self.steps[-1])
            if len(self.profiled) >= self.profile["num_steps"]:
                profile, steps, self.profile, self.profiled = self.profile, self.profiled, None, []
                threading.Thread(target=self.write_traces, args=(profile, steps), daemon=True).start()

    def stop_profile(self) -> bool:
        profile, steps, self.profile, self.profiled = self.profile, self.profiled, None, []
        if profile is not None:
            self.write_traces(profile, steps)
        return profile is not None

    def write_traces(self, profile: dict[str, Any], steps: list[tuple[int, int]]) -> None:
        b = self.behaviour
        time.sleep(b.traces_late_s)
        folder = Path(profile["output_dir"])
        folder.mkdir(parents=True, exist_ok=True)
        for rank in range(b.ranks):
            if rank in b.missing:
                continue
            trace = kineto(steps, rank, b.ranks, kernels=rank not in b.no_kernels)
            if not b.named_by_header:
                del trace["distributedInfo"]
            data = gzip.compress(json.dumps(trace).encode())
            data = data[: len(data) // 2] if rank in b.cut else data
            size = -(-len(data) // b.pieces)
            with (folder / f"{time.time()}-TP-{rank}.trace.json.gz").open("wb") as file:
                for at in range(0, len(data), size):
                    file.write(data[at : at + size])
                    file.flush()
                    time.sleep(b.piece_s)

    def _write_state(self, rank: int) -> None:
        state = {
            "rank": rank,
            "world_size": self.behaviour.ranks,
            "pid": os.getpid(),
            "hooks": self.behaviour.hooks if rank else {"Scheduler.run_batch": "took"},
            "faults": self.behaviour.faults,
            "packages": {"sglang": "0.5.23", "torch": "2.14.1"},
            "server_args": {
                "tp_size": self.behaviour.ranks,
                "api_key": "hidden",
                "model_path": "/models/tiny",
            },
            "env": {"SGLANG_TEST": "1"},
            "gpu": "Fake GPU",
            "driver": "1.2",
        }
        self._write(f"plugin-rank{rank}.json", state)

    def _obey(self) -> None:
        from latencylab.runtime.faults import parse_faults
        from latencylab.traces import write_clock

        done = 0
        while not self.over.wait(0.02):
            path = self.folder / "control.json"
            if self.behaviour.clock_deaf or not path.exists() or self.busy.locked():
                continue
            control = json.loads(path.read_text())
            if control["sequence"] == done:
                continue
            done = control["sequence"]
            self.clock_on = control["clock"] and not self.was_profiled
            if control.get("faults") is not None and not self.behaviour.faults_stay:
                wanted = parse_faults(control["faults"])
                for rank in range(self.behaviour.ranks):
                    self.behaviour.faults = {
                        each.name: {**each.values, "active": each.on_rank(rank)} for each in wanted
                    }
                    self._write_state(rank)
            for rank in range(self.behaviour.ranks):
                if control["write"]:
                    write_clock(
                        self.folder,
                        rank,
                        clock_of(
                            [] if self.was_profiled else self.steps,
                            self.behaviour.strangers,
                            seam=self.behaviour.seam,
                        ),
                    )
                answer = {"sequence": done, "rows": len(self.steps), "overwritten": 0}
                answer |= {"clock": self.clock_on, "own_us_per_step": 12.5}
                answer |= {"stopped_by": "a profiler" if self.was_profiled else None}
                self._write(f"obeyed-rank{rank}.json", answer)

    def _write(self, name: str, content: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.folder / f".{name}"
        partial.write_text(json.dumps(content))
        partial.replace(self.folder / name)


def clock_of(steps: list[tuple[int, int]], strangers: int = 0, *, seam: bool = False) -> Any:
    from latencylab.model.unprofiled import StepClock

    count = len(steps)
    starts = np.array([start for start, _ in steps], np.int64)
    ends = np.array([end for _, end in steps], np.int64)
    none = np.full(count, -1, np.int64)
    number = np.arange(count, dtype=np.int64)
    request = number % strangers if strangers else none
    spans = ["ll.step"] * count
    if seam and count:
        request[0], spans[0] = strangers, "ll.get_batch"
    return StepClock(
        number, tuple(spans), starts, ends, none, ends - starts, starts, ("decode",) * count, request
    )


def kineto(steps: list[tuple[int, int]], rank: int, ranks: int, *, kernels: bool = True) -> dict[str, Any]:
    """A span, a launch and a kernel for each step."""
    base = steps[0][0] if steps else 0
    events = []
    for number, (start, end) in enumerate(steps):
        at, length = (start - base) / 1e3, (end - start) / 1e3
        common = {"ph": "X", "pid": 7, "tid": 7}
        events.append(
            {**common, "cat": "user_annotation", "name": "scheduler.run_batch", "ts": at, "dur": length / 2}
        )
        launch = {"correlation": number + 1}
        events.append(
            {
                **common,
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "ts": at + 5,
                "dur": 2,
                "args": launch,
            }
        )
        if kernels:
            place = {**launch, "stream": 7, "device": 0}
            events.append(
                {
                    "ph": "X",
                    "pid": 0,
                    "tid": 7,
                    "cat": "kernel",
                    "name": "gemm",
                    "ts": at + 10,
                    "dur": length / 2,
                    "args": place,
                }
            )
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "Fake GPU"}],
        "distributedInfo": {"rank": rank, "world_size": ranks},
        "traceEvents": events,
        "baseTimeNanoseconds": base,
    }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: Fake

    def log_message(self, *_arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.fake.note(self.path, None)
        b = self.fake.behaviour
        if self.path == "/health":
            ready = time.monotonic() - self.fake.born >= b.unhealthy_s
            self.answer(200 if ready else 503, b"")
        elif self.path == b.info_path:
            info = {"version": "0.5.23", "tp_size": b.ranks, "model_path": "/models/tiny", **b.info}
            self.answer(200, (b.page or json.dumps(info)).encode())
        else:
            self.answer(404, b"Not Found")

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(text) if text else None
        path = self.path.partition("?")[0]
        self.fake.note(path, body)
        if path in {"/generate", "/v1/completions"}:
            with self.fake.busy:
                self.generate(body, openai=path != "/generate")
        elif path == "/start_profile":
            if self.fake.behaviour.profile_fails:
                self.answer(500, b"Internal Server Error")
                return
            self.fake.was_profiled = True
            self.fake.profile = body
            self.answer(200, b"Start profiling.\n")
        elif path == "/stop_profile":
            if self.fake.stop_profile():
                self.answer(200, b"Stop profiling.\n")
            else:
                self.answer(500, b"Internal Server Error")
        else:
            self.answer(200 if path == "/flush_cache" else 404, b"")

    def generate(self, body: dict[str, Any], *, openai: bool) -> None:
        b = self.fake.behaviour
        number, self.fake.served = self.fake.served, self.fake.served + 1
        fails = number == b.fail_request
        if fails and b.fail_how in ("500", "html"):
            status, said = (500, b"Internal Server Error") if b.fail_how == "500" else (200, b"<html>Hi\n")
            self.answer(status, said)
            return
        wanted = body["max_tokens"] if openai else body["sampling_params"]["max_new_tokens"]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        tokens = 0
        steps = 0
        while tokens < wanted:
            if fails and steps == b.fail_after and self.misbehave(b.fail_how):
                return
            self.fake.step()
            tokens = 1 if not steps else min(tokens + b.tokens_per_chunk, wanted)
            steps += 1
            self.event(self.chunk(tokens, steps, wanted, openai=openai))
        if openai:
            usage = {"prompt_tokens": 8, "completion_tokens": tokens, "total_tokens": 8 + tokens}
            self.event({"id": "x", "choices": [], "usage": usage})
        self.send_chunk(b"data: [DONE]\n\n")
        self.send_chunk(b"")

    def chunk(self, tokens: int, steps: int, wanted: int, *, openai: bool) -> dict[str, Any]:
        text = self.fake.behaviour.text
        if openai:
            usage = {"prompt_tokens": 8, "completion_tokens": tokens, "total_tokens": 8 + tokens}
            return {"id": "x", "choices": [{"index": 0, "text": text}], "usage": usage}
        finish = {"type": "length", "length": wanted} if tokens >= wanted else None
        meta = {"id": "x", "finish_reason": finish, "prompt_tokens": 8, "completion_tokens": tokens}
        if tokens >= wanted:
            meta["spec_accept_length"] = tokens / steps
            if self.fake.behaviour.cap_length:
                meta["spec_cap_length"] = self.fake.behaviour.cap_length
        return {"text": text, "output_ids": list(range(tokens)), "meta_info": meta}

    def misbehave(self, how: str) -> bool:
        """True where the request is over by that."""
        if how == "stall":
            self.fake.over.wait(60)
        elif how == "ping":
            while not self.close_connection and not self.fake.over.wait(0.05):
                self.send_chunk(b": ping\n\n")
        elif how == "endless":
            while not self.close_connection:
                self.send_chunk(b"x" * 65536)
        elif how == "over":
            self.event({"meta_info": {"completion_tokens": 10**30}})
            self.send_chunk(b"data: [DONE]\n\n")
        elif how == "die":
            os._exit(9)
        elif how == "abort":
            finish = {"type": "abort", "message": "out of memory"}
            self.event({"text": "", "meta_info": {"finish_reason": finish, "completion_tokens": 3}})
        elif how == "error":
            self.event({"error": {"message": "input too long", "code": 400}})
        elif how == "short":
            self.send_chunk(b"data: [DONE]\n\n")
            self.send_chunk(b"")
            return True
        self.close_connection = True
        return True

    def event(self, content: Any) -> None:
        self.send_chunk(b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n")

    def send_chunk(self, data: bytes) -> None:
        try:
            self.wfile.write(b"%x\r\n" % len(data) + data + b"\r\n")
        except OSError:
            self.close_connection = True

    def answer(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_arguments: Any) -> None:
        """A client that went away is none of the tests' business."""


def make_server(
    behaviour: Behaviour, host: str = "127.0.0.1", port: int = 0, folder: Path | None = None
) -> tuple[ThreadingHTTPServer, Fake]:
    server = QuietServer((host, port), Handler)
    fake = Fake(behaviour, f"http://{host}:{server.server_port}", folder)
    server.RequestHandlerClass = type("BoundHandler", (Handler,), {"fake": fake})
    return server, fake


@contextmanager
def serving(folder: Path | None = None, **behaviour: Any) -> Iterator[Fake]:
    """A server in a thread while the block runs."""
    server, fake = make_server(Behaviour(**behaviour), folder=folder)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        fake.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def environment(behaviour: Behaviour) -> dict[str, str]:
    return {"FAKE_BEHAVIOUR": json.dumps(asdict(behaviour))}


def install_fake_sglang(folder: Path, flags: Iterable[str] = ()) -> None:
    """A package `sglang` whose `python -m sglang.launch_server` is this file.

    With flags it has sources that know them, without which `runtime launch` starts nothing.
    """
    package = folder / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "launch_server.py").write_text(
        f"import runpy\nrunpy.run_path({str(Path(__file__).resolve())!r}, run_name='__main__')\n"
    )
    if flags:
        (package / "srt").mkdir()
        known = "".join(f"parser.add_argument({flag!r}, action='any')\n" for flag in flags)
        (package / "srt" / "server_args.py").write_text(known)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tp-size", type=int)
    arguments, _ = parser.parse_known_args()
    given = json.loads(os.environ.get("FAKE_BEHAVIOUR", "{}"))
    behaviour = Behaviour(**given)
    if arguments.tp_size:
        behaviour.ranks = arguments.tp_size
    if behaviour.dies_at_start:
        sys.exit("ValueError: no such model")
    if behaviour.child:
        subprocess.Popen(["sleep", "600"], start_new_session=True)
    folder = os.environ.get("LATENCYLAB_DIR")
    server, fake = make_server(behaviour, arguments.host, arguments.port, Path(folder) if folder else None)
    fake.note("started", sys.argv[1:])
    server.serve_forever()


if __name__ == "__main__":
    main()
