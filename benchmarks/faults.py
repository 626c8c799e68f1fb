"""Captures of one server under one fault after the other, to hold analyses against what was done.

    python benchmarks/faults.py FOLDER --url http://127.0.0.1:30000 --server-dir DIR
        --case clean= --case late-host=sleep:us=300,rank=1

The server must run the plugin with the step clock. A case is NAME=FAULTS, as `runtime launch --fault` takes
them, several with a semicolon between them. First all cases are measured unprofiled, then each is profiled,
since a process stays slower once a profiler was on in it; each becomes the capture FOLDER/NAME.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from latencylab.model.integrity import InputError
from latencylab.runtime.bench import Workload
from latencylab.runtime.capture import Before, Plan, check_capture, record_profiled, record_unprofiled
from latencylab.runtime.client import HttpTarget
from latencylab.runtime.clock_files import ServerClocks
from latencylab.runtime.faults import parse_faults
from latencylab.runtime.provenance import describe_machine, describe_server, read_states

NAME = re.compile(r"\w[\w.-]*")


def record(
    folder: Path, target: HttpTarget, clocks: ServerClocks, cases: Mapping[str, str], plan: Plan
) -> list[str]:
    """Take a capture of each case; what is wrong with them, a line each. Raises InputError."""
    before: dict[str, Before] = {}
    wrong: list[str] = []
    with clocks.alone(), _put_back(clocks):
        for name, faults in cases.items():
            clocks.switch_faults(faults)
            (folder / name).mkdir(parents=True)
            before[name] = record_unprofiled(folder / name, target, plan.workload, clocks)
        for name, faults in cases.items():
            clocks.switch_faults(faults)
            about = {
                **describe_machine(),
                **describe_server(target.info(), read_states(clocks.folder)),
                "api": target.api,
            }
            findings = record_profiled(
                folder / name, target, plan, before[name], ranks=len(clocks.ranks), about=about
            )
            wrong += [f"{name}: {found.text}" for found in (*findings, *check_capture(folder / name))]
    return wrong


@contextmanager
def _put_back(clocks: ServerClocks) -> Iterator[None]:
    """No fault stays on the server after the block."""
    try:
        yield
    except BaseException:
        with suppress(InputError):  # the server may be gone, and what is told is what went wrong first
            clocks.switch_faults("")
        raise
    clocks.switch_faults("")


def read_cases(folder: Path, texts: Sequence[str]) -> dict[str, str]:
    """Faults by name. Raises InputError for what is no case, or was recorded already."""
    cases: dict[str, str] = {}
    for text in texts:
        name, _, faults = text.partition("=")
        if not NAME.fullmatch(name):
            raise InputError(f"case {name!r}: a name has letters, digits, '.', '_' and '-' alone")
        parse_faults(faults)
        if name in cases:
            raise InputError(f"case {name}: given twice")
        if (folder / name).exists():
            raise InputError(f"{folder / name}: is there already")
        cases[name] = faults
    return cases


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url", required=True)
    parser.add_argument("--server-dir", required=True, type=Path)
    parser.add_argument("--case", action="append", required=True, help="NAME=FAULTS")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--requests", type=int, default=6)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--input-tokens", type=int, default=8192)
    parser.add_argument("--output-tokens", type=int, default=512)
    given = parser.parse_args()
    workload = Workload(given.input_tokens, given.output_tokens, given.requests, given.warmup)
    plan = Plan(workload, given.steps)
    try:
        plan.check()
        cases = read_cases(given.folder, given.case)
        clocks = ServerClocks.of(given.server_dir)
        for line in record(given.folder, HttpTarget(given.url), clocks, cases, plan):
            sys.stderr.write(f"{line}\n")
    except InputError as error:
        sys.stderr.write(f"faults: error: {error}\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
