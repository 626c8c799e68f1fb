"""Servers of several configurations, measured in turn on one host: what is each optimisation worth?

    python benchmarks/ledger.py FOLDER --common "--preset nextn --shape tp4-rank"
        --server on@0 --server "no-pdl@0 --without pdl" --server "off@1 --without all"
    python benchmarks/ledger_table.py FOLDER

A server is NAME@GPUS and the options that `latencylab runtime launch` has for it besides the common ones;
with `raw` as the first word they are SGLang's own, after variables for its environment. All are started at
once, then each round sends one request to each, so that what drifts on the host weighs on all alike; the
others are stopped (SIGSTOP) meanwhile, since an idle scheduler spins. Then a capture of each is taken, of
which the GPU's busy time is kept. What was found goes to FOLDER/run-1.json, run-2.json and so on.
`--keep NAME` leaves a server to the next run of the same folder, and takes no capture of it: a process stays
slower once a profiler was on in it. A server that does not start is told and left out, with exit code 3.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import latencylab
from latencylab.model.integrity import InputError
from latencylab.runtime.bench import Workload
from latencylab.runtime.client import HttpTarget
from latencylab.runtime.clock_files import ServerClocks
from latencylab.runtime.ledger import Ledger
from latencylab.runtime.provenance import read_states
from latencylab.runtime.server import birth, process_stat

NAMED = re.compile(r"(\w[\w.-]*)@(\d+(?:,\d+)*)")
PORTS_APART = 50
LAST_PORT = 65000
END_S = 3.0
LATENCYLAB = (sys.executable, "-m", "latencylab")


@dataclass
class Server:
    """One configuration while it is measured; `ms` holds a value for each round."""

    name: str
    gpus: str
    options: tuple[str, ...]
    folder: Path
    port: int = 0
    pid: int = 0
    start_s: float | None = None
    failed: str | None = None
    captured: bool = False
    ms: list[float | None] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str, folder: Path) -> Server:
        """Read `NAME@GPUS OPTIONS`. Raises InputError."""
        first, *options = _split(text) or [""]
        if (found := NAMED.fullmatch(first)) is None:
            raise InputError(f"{text!r}: a server is NAME@GPUS and options")
        name, gpus = found.groups()
        return cls(name, gpus, tuple(options), folder / name)

    @property
    def target(self) -> HttpTarget:
        return HttpTarget(f"http://127.0.0.1:{self.port}")

    @property
    def is_raw(self) -> bool:
        return self.options[:1] == ("raw",)

    def start(self, common: Sequence[str], sglang: Sequence[str]) -> None:
        """Begin to start it, in a session of its own that outlives this process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": self.gpus}
        where = ("--host", "127.0.0.1", "--port", str(self.port))
        if self.is_raw:
            words = self.options[1:]
            variables = [word for word in words if "=" in word and not word.startswith("-")]
            env |= dict(word.split("=", 1) for word in variables)
            rest = [word for word in words if word not in variables]
            command = [sys.executable, "-m", "sglang.launch_server", *rest, *sglang, *where]
        else:
            command = [*LATENCYLAB, "runtime", "launch", *common, *self.options, *where]
            command += ["--dir", str(self.folder / "state"), "--clock", "--spans", "profiler", "--", *sglang]
        with (self.folder / "server.log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - our own command
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.pid = process.pid
        self.note(kept=False)

    def note(self, *, kept: bool) -> None:
        """Tell the next run of it; one that is not kept, as after a run that was killed, is stopped then."""
        told = {"port": self.port, "pid": self.pid, "born": birth(self.pid), "kept": kept}
        (self.folder / "server.json").write_text(json.dumps(told))

    def await_health(self, until: float, started: float) -> None:
        """Wait until it serves, ends, or `until` (monotonic s) is over."""
        while time.monotonic() < until:
            if _ended(self.pid):
                self.failed = f"ended: {_last_line(self.folder / 'server.log')}"
                return
            if self.target.is_healthy():
                self.start_s = round(time.monotonic() - started, 1)
                return
            time.sleep(0.5)
        self.failed = f"not ready in time: {_last_line(self.folder / 'server.log')}"

    def send(self, number: int, workload: Workload) -> float | None:
        """Milliseconds per step of one request; None, and `failed`, where it fails."""
        try:
            return self.target.generate(
                workload.prompt(f"request {number}"), workload.output_tokens
            ).request.step_ms
        except InputError as error:
            self.failed = str(error)
            return None

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def end(self) -> None:
        """Stop it and what it started."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        until = time.monotonic() + END_S
        while not _ended(self.pid) and time.monotonic() < until:
            time.sleep(0.2)
        self.signal(signal.SIGKILL)
        (self.folder / "server.json").unlink(missing_ok=True)


def _split(text: str) -> list[str]:
    """The words of a shell line. Raises InputError."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InputError(f"{text!r}: {str(error).lower()}") from None


def _ended(pid: int) -> bool:
    with suppress(ChildProcessError):  # one that an earlier run started is no child of ours
        os.waitpid(pid, os.WNOHANG)
    fields = process_stat(pid)
    return fields is None or fields[0] == "Z"


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "error:" in line]
    return (telling or lines or ["it printed nothing"])[-1][:300]


def adopt(servers: Sequence[Server], folder: Path, first_port: int) -> list[Server]:
    """Take over what an earlier run kept, stop what is not asked for; the servers still to be started."""
    wanted = {server.name: server for server in servers}
    for path in folder.glob("*/server.json"):
        told = json.loads(path.read_text())
        if birth(told["pid"]) not in (None, told["born"]):  # the number belongs to another process by now
            path.unlink()
            continue
        kept = wanted.get(path.parent.name) or Server(path.parent.name, "", (), path.parent)
        kept.port, kept.pid = told["port"], told["pid"]
        kept.signal(signal.SIGCONT)
        if kept.name in wanted and told["kept"] and kept.target.is_healthy():
            kept.start_s = 0.0
            kept.note(kept=False)
        else:
            kept.end()
            kept.port = kept.pid = 0
    taken = {server.port for server in servers}
    free = (
        port for port in range(first_port, LAST_PORT, PORTS_APART) if port not in taken and _is_free(port)
    )
    new = [server for server in servers if not server.pid]
    for server in new:
        server.port = next(free)
    return new


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@contextmanager
def alone(server: Server, servers: Sequence[Server]) -> Iterator[None]:
    """The other servers are stopped while the block runs."""
    others = [each for each in servers if each is not server]
    for each in others:
        each.signal(signal.SIGSTOP)
    server.signal(signal.SIGCONT)
    try:
        yield
    finally:
        for each in others:
            each.signal(signal.SIGCONT)


def measure(servers: Sequence[Server], workload: Workload) -> None:
    """Warm up each, then send the requests in rounds, each beginning with another server."""
    with ThreadPoolExecutor(len(servers)) as pool:  # what is compiled now is compiled by all at once
        for number in range(workload.warmup):
            up = [server for server in servers if server.failed is None]
            list(pool.map(lambda server: server.send(-1 - number, workload), up))  # noqa: B023
    for number in range(workload.requests):
        first = number % len(servers)
        for server in (*servers[first:], *servers[:first]):
            if server.failed is None:
                with alone(server, servers):
                    server.ms.append(server.send(number, workload))


def refresh(servers: Sequence[Server]) -> None:
    """Have each write its state anew: it does not tell yet what came after the first requests."""
    for server in servers:
        with suppress(InputError):
            ServerClocks.of(server.folder / "state").switch_on()


def capture_all(traceable: Sequence[Server], live: Sequence[Server], options: Sequence[str]) -> None:
    """Take the captures, at the same time only where no GPU is shared."""

    def one_after_the_other(group: Sequence[Server]) -> None:
        for server in group:
            if server in traceable:
                with alone(server, group):
                    capture(server, options)

    groups = sharing(live)
    with ThreadPoolExecutor(len(groups)) as pool:
        list(pool.map(one_after_the_other, groups))


def sharing(servers: Sequence[Server]) -> list[list[Server]]:
    """The servers in groups that have no GPU in common."""
    groups: list[tuple[set[str], list[Server]]] = []
    for server in servers:
        gpus, group = set(server.gpus.split(",")), [server]
        for other in [other for other in groups if other[0] & gpus]:
            groups.remove(other)
            gpus, group = gpus | other[0], other[1] + group
        groups.append((gpus, group))
    return [group for _, group in groups]


def capture(server: Server, options: Sequence[str]) -> None:
    """Take its capture into FOLDER/NAME/capture."""
    command = [
        *LATENCYLAB,
        "capture",
        "--url",
        server.target.url,
        "-o",
        str(server.folder / "capture"),
        "--force",
    ]
    if not server.is_raw:
        command += ["--server-dir", str(server.folder / "state")]
    done = subprocess.run(  # noqa: S603 - our own command
        [*command, *options], capture_output=True, text=True, check=False
    )
    (server.folder / "capture.log").write_text(done.stdout + done.stderr)
    server.captured = done.returncode == 0
    if not server.captured:
        server.failed = f"no capture: {(done.stderr.strip().splitlines() or ['?'])[-1]}"


def traced(folder: Path) -> dict[str, Any]:
    """Of a capture: the steady steps' busy time on the rank with the most of it, without what it waited in
    collectives, and the ledger's proofs."""
    opened = latencylab.open(folder)
    steps = opened.steps[opened.steps.left_out.isna()]
    steps = steps.assign(busy_us=steps.busy_us - steps.collective_wait_us.fillna(0))
    by_rank = dict(iter(steps.groupby("rank", observed=True)))
    rank = max(by_rank, key=lambda each: by_rank[each].busy_us.mean())
    names = opened.gpu_ops
    found = (opened.steps["rank"] == rank).sum()
    kernels = {str(name) for name in names.name[names.kind == "kernel"].unique()}
    return {
        "busy_us": [round(value, 3) for value in by_rank[rank].busy_us],
        "wall_us": [round(value, 3) for value in by_rank[rank].wall_us],
        "kernels_per_step": round(len(names[(names.kind == "kernel") & (names["rank"] == rank)]) / found, 1),
        "in_trace": {
            entry.name: position
            for entry in Ledger.load().entries.values()
            if (position := entry.in_trace(kernels)) != "unknown"
        },
        "verdict": opened.analysis.verdict.text,
    }


def start(servers: Sequence[Server], given: argparse.Namespace, started: float) -> None:
    """Start them all at once, and wait until each serves or has failed."""
    for server in servers:
        server.start(_split(given.common), _split(given.sglang))
    until = started + given.start_timeout
    with ThreadPoolExecutor(max(1, len(servers))) as pool:  # to ask one that is not ready can take its time
        list(pool.map(lambda server: server.await_health(until, started), servers))
    for server in servers:
        _say(f"{server.name}: {server.failed or f'ready after {server.start_s} s'}")


def run(given: argparse.Namespace) -> int:
    """Start, measure, capture, write the results, and stop all but those to keep."""
    folder: Path = given.folder
    servers = [Server.parse(text, folder) for text in given.server]
    if twice := [name for name, count in Counter(each.name for each in servers).items() if count > 1]:
        raise InputError(f"{twice[0]}: two servers have this name")
    if strange := sorted(set(given.keep) - {each.name for each in servers}):
        raise InputError(f"--keep {strange[0]}: no server has this name")
    if not 1 <= given.first_port <= LAST_PORT - PORTS_APART * len(servers):
        raise InputError(f"--first-port {given.first_port}: leaves no room for ports up to {LAST_PORT}")
    for text in (given.common, given.sglang, given.capture):
        _split(text)  # before anything is started
    started = time.monotonic()
    try:
        start(adopt(servers, folder, given.first_port), given, started)
        live = [server for server in servers if server.failed is None]
        workload = Workload(given.input_tokens, given.output_tokens, given.rounds, given.warmup)
        if live:
            measure(live, workload)
            refresh([server for server in live if server.failed is None])
            _say(f"measured after {time.monotonic() - started:.0f} s")
            traceable = [server for server in live if server.name not in given.keep and server.failed is None]
            capture_all(traceable, live, _split(given.capture))
            _say(f"captured after {time.monotonic() - started:.0f} s")
    finally:
        ready = [server for server in servers if server.start_s is not None and server.failed is None]
        kept = [server for server in ready if server.name in given.keep]
        for server in kept:
            server.note(kept=True)
        with ThreadPoolExecutor(len(servers)) as pool:
            list(pool.map(Server.end, (each for each in servers if each.pid and each not in kept)))
    found = [result(server) for server in servers]
    numbers = [int(path.stem[4:]) for path in folder.glob("run-*.json") if path.stem[4:].isdecimal()]
    number = 1 + max(numbers, default=0)
    (folder / f"run-{number}.json").write_text(json.dumps(found) + "\n")
    _say(f"ended after {time.monotonic() - started:.0f} s")
    return 3 if any(each["failed"] for each in found) else 0


def result(server: Server) -> dict[str, Any]:
    """What was found of a server, for the file of the run."""
    held: dict[str, Any] = {
        "name": server.name,
        "gpus": server.gpus,
        "options": server.options,
        "failed": server.failed,
        "start_s": server.start_s,
        "step_ms": server.ms,
    }
    with suppress(InputError):
        states = read_states(server.folder / "state")
        held["ledger"] = states[min(states)].get("ledger") if states else None
    if server.captured:
        try:
            held |= traced(server.folder / "capture")
        except Exception as error:  # noqa: BLE001  # what was measured must not be lost with it
            held["failed"] = held["failed"] or f"{type(error).__name__}: {error}"
    shown = [round(value, 4) for value in server.ms if value is not None]
    busy = statistics.fmean(held.get("busy_us") or [math.nan])
    _say(f"{server.name}: ms/step {shown}, busy {busy:.1f} us, {held['failed'] or 'ok'}")
    return held


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--server", action="append", required=True)
    parser.add_argument("--common", default="")
    parser.add_argument("--sglang", default="", help="arguments of SGLang for all of them")
    parser.add_argument(
        "--capture", default="--requests 2 --warmup 0 --output-tokens 512", help="its options"
    )
    parser.add_argument("--keep", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--input-tokens", type=int, default=8192)
    parser.add_argument("--output-tokens", type=int, default=512)
    parser.add_argument("--first-port", type=int, default=31000)
    parser.add_argument("--start-timeout", type=float, default=1200.0)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # else the servers would stay
    try:
        return run(given)
    except InputError as error:
        sys.stderr.write(f"ledger: error: {error}\n")
        return 3


if __name__ == "__main__":
    sys.exit(main())
