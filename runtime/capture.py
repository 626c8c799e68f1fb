"""Take a capture of a server: what it does unprofiled, then the trace of some steps of every rank.

The unprofiled part comes first, since a process stays slower once a profiler was on in it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latencylab.model.integrity import InputError, Issue
from latencylab.model.trace import KERNEL
from latencylab.runtime.bench import Measured, Workload, measure
from latencylab.runtime.client import Answer, Target, TargetError
from latencylab.runtime.clock_files import ServerClocks
from latencylab.runtime.trace_files import Found, wait_for_traces
from latencylab.traces import open_capture, write_client, write_manifest
from latencylab.traces.bundle import read_manifest

Progress = Callable[[str], None]
TRACES_S = 300.0
SHOWN = 16  # ranks without a trace that are told one by one
# Chunks come after their steps, and a profiler stops at the start of a later one: with so few chunks more
# than steps wanted, it may still be on when the request ends.
STEPS_BEHIND = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """What to record: `steps` steps from the `after_chunk`-th chunk of a request on."""

    workload: Workload
    steps: int = 30
    after_chunk: int = 20
    traces_s: float = TRACES_S

    def check(self) -> None:
        """Raise InputError where the profiled request is too short to begin profiling in it."""
        if self.after_chunk >= self.workload.output_tokens:
            raise InputError(
                f"profiling begins after chunk {self.after_chunk}, and a request has"
                f" {self.workload.output_tokens} tokens: fewer chunks than that"
            )


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with a capture, one line; `unusable` where no analysis can do without."""

    text: str
    unusable: bool = False


def record(
    folder: Path,
    target: Target,
    plan: Plan,
    *,
    ranks: int | None,
    server_dir: Path | None,
    about: Mapping[str, Any],
    workdir: Path | None = None,
    progress: Progress | None = None,
) -> list[Finding]:
    """Fill `folder` with a capture of `target`; raises InputError where a part of it cannot be had.

    `server_dir` is the server's LATENCYLAB_DIR where it runs the plugin, and `about` what the manifest says
    beside files and workload. `workdir` is for the traces while they are written, where the caller ends the
    server and then removes it; without one the server stays, and its profiler is stopped after a failure.
    """
    clocks = ServerClocks.of(server_dir) if server_dir is not None else None
    with clocks.alone() if clocks is not None else nullcontext():
        before = record_unprofiled(folder, target, plan.workload, clocks, progress)
        return record_profiled(
            folder, target, plan, before, ranks=ranks, about=about, workdir=workdir, progress=progress
        )


@dataclass(frozen=True, slots=True)
class Before:
    """What was measured before a profiler came, what the clocks say of themselves, and what is wrong."""

    measured: Measured
    accounts: Mapping[str, Any] | None
    findings: tuple[Finding, ...]


def record_unprofiled(
    folder: Path,
    target: Target,
    workload: Workload,
    clocks: ServerClocks | None,
    progress: Progress | None = None,
) -> Before:
    """The first part of `record`: the requests, and of `clocks` the rows of their time.

    Raises TargetError where a request fails.
    """
    wrong = clocks.switch_on() if clocks is not None else []
    measured = measure(target, workload, progress)
    if measured.stopped is not None:
        raise TargetError(f"{measured.stopped}; no capture was taken")
    write_client(folder, [answer.request for answer in measured.answers])
    if clocks is None:
        return Before(measured, None, ())
    wrong += clocks.take(folder, *_window(measured), len(measured.answers))
    return Before(measured, clocks.accounts(), tuple(map(Finding, wrong)))


def record_profiled(
    folder: Path,
    target: Target,
    plan: Plan,
    before: Before,
    *,
    ranks: int | None,
    about: Mapping[str, Any],
    workdir: Path | None = None,
    progress: Progress | None = None,
) -> list[Finding]:
    """The second part of `record`: the traces, of as many ranks as `ranks` says, and the manifest.

    Raises TargetError where the request or the profiler fails, InputError where no trace comes.
    """
    with nullcontext(workdir / "traces") if workdir is not None else _trace_folder(target) as traces:
        profiled = _profile(target, plan, traces, progress)
        found = wait_for_traces(traces, ranks, plan.traces_s, target.check_alive)
        findings = [
            *before.findings,
            *_short(profiled, plan),
            *gather(folder, found, ranks, f"within {plan.traces_s:g} s of {target.where}"),
        ]
    workload = {
        **plan.workload.described(),
        **dict(about.get("workload") or {}),
        "profiled_steps": plan.steps,
        "profiled_after_chunk": plan.after_chunk,
        "server_accept_length": [answer.server_accept_length for answer in before.measured.answers],
        "server_cap_length": [answer.server_cap_length for answer in before.measured.answers],
    }
    clocks = {"clocks": before.accounts} if before.accounts is not None else {}
    names = {rank: trace_name(rank, path) for rank, path in found.files.items()}
    write_manifest(folder, {**about, **clocks, "workload": workload, "files": names})
    return findings


def gather(folder: Path, found: Found, ranks: int | None, when: str) -> list[Finding]:
    """Move the traces into the capture under the names of their ranks. Raises InputError without any."""
    if not found.files:
        raise InputError(f"no trace came {when}")
    for rank, path in found.files.items():
        shutil.move(path, folder / trace_name(rank, path))
    missing = [rank for rank in range(ranks or 0) if rank not in found.files]
    more = [f"{len(missing) - SHOWN} more ranks wrote no trace"] if len(missing) > SHOWN else []
    return [
        *(Finding(f"rank {rank} wrote no trace {when}", unusable=True) for rank in missing[:SHOWN]),
        *(Finding(text, unusable=True) for text in more),
        *(Finding(f"the trace of rank {rank} is cut short", unusable=True) for rank in found.cut),
    ]


def trace_name(rank: int, path: Path) -> str:
    """The name of a rank's trace in a capture; it stays plain or gzipped."""
    return f"rank{rank}.trace.json" + (".gz" if path.name.endswith(".gz") else "")


def check_capture(folder: Path) -> list[Finding]:
    """Open a capture that was just taken, and say what is wrong with it."""
    try:
        capture = open_capture(folder, cache=False)
    except InputError:
        manifest = read_manifest(folder) or {"files": {}}
        return [
            found
            for rank, name in sorted(manifest["files"].items(), key=lambda file: int(file[0]))
            for found in _check_file(int(rank), folder / name)
        ]
    found = [_as_finding(trace.rank, issue) for trace in capture.traces for issue in trace.issues]
    found += [
        Finding(f"rank {trace.rank} gave no kernels", unusable=True)
        for trace in capture.traces
        if not (trace.gpu.kind == KERNEL).any()
    ]
    return [finding for finding in found if finding is not None]


def is_complete(folder: Path) -> bool:
    """Whether both parts are in it: the manifest is the last thing written."""
    try:
        return read_manifest(folder) is not None
    except InputError:
        return False


def mark_unusable(folder: Path, findings: list[Finding]) -> str | None:
    """Write into the manifest why a capture is unusable, where it is; the reason."""
    reasons = [finding.text for finding in findings if finding.unusable]
    manifest = read_manifest(folder)
    if not reasons or manifest is None:
        return None
    reason = "; ".join(reasons)
    write_manifest(folder, {**manifest, "unusable": reason})
    return reason


def _window(measured: Measured) -> tuple[int, int]:
    """From when the first measured request was sent to the last chunk of the last, in epoch ns."""
    first, last = measured.answers[0].request, measured.answers[-1].request
    return first.start_ns or 0, (last.start_ns or 0) + last.chunks[-1][0]


@contextmanager
def _trace_folder(target: Target) -> Iterator[Path]:
    """A folder for the server to write traces into; nothing of it stays, and no profiler stays on.

    The server makes the folder anew when it writes, so after a failure its profiler is stopped first.
    """
    folder = Path(tempfile.mkdtemp(prefix="latencylab-traces-"))
    try:
        folder.chmod(0o777)  # the server may run as another user
        yield folder
    except BaseException:
        with suppress(TargetError):
            target.stop_profile()
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _profile(target: Target, plan: Plan, folder: Path, progress: Progress | None) -> Answer:
    """Profile in the steady decode of one more request; its end stops a profiler that has steps to go."""
    if progress is not None:
        progress(f"profiling {plan.steps} steps")

    def on_chunk(count: int) -> None:
        if count == plan.after_chunk:
            target.start_profile(folder, plan.steps)

    answer = target.generate(plan.workload.prompt("profiled 0"), plan.workload.output_tokens, on_chunk)
    chunks = len(answer.request.chunks)
    if chunks < plan.after_chunk:
        raise InputError(
            f"the request to profile had {chunks} chunks, and profiling was to begin after {plan.after_chunk}"
        )
    if chunks - plan.after_chunk <= plan.steps + STEPS_BEHIND:
        with suppress(TargetError):  # it may have stopped by itself in the last step
            target.stop_profile()
    if progress is not None:
        progress("waiting for the traces")
    return answer


def _short(profiled: Answer, plan: Plan) -> list[Finding]:
    left = len(profiled.request.chunks) - plan.after_chunk
    if left >= plan.steps:
        return []
    return [Finding(f"the request ended about {left} steps after profiling began, of {plan.steps} wanted")]


def _check_file(rank: int, path: Path) -> Iterator[Finding]:
    """What keeps one rank's file from being read, without its folder."""
    try:
        for trace in open_capture(path, cache=False).traces:
            if not (trace.gpu.kind == KERNEL).any():
                yield Finding(f"rank {rank} gave no kernels", unusable=True)
    except InputError as error:
        reason = str(error).removeprefix(f"{path}: ")
        what = "gave no kernels: " if reason.startswith("no GPU activity") else ""
        yield Finding(f"rank {rank} {what}{reason}" if what else f"rank {rank}: {reason}", unusable=True)


def _as_finding(rank: int, issue: Issue) -> Finding | None:
    if issue.severity == "info":
        return None
    return Finding(f"rank {rank}: {issue.detail}", unusable=issue.severity == "error")
