"""Captures of one server under one fault after the other, to hold analyses against what was done.

    python benchmarks/faults.py FOLDER --url http://127.0.0.1:30000 --server-dir DIR
        --case clean= --case late-host=sleep:us=300,rank=1

The server must run the plugin with the step clock. A case is NAME=FAULTS, as `runtime launch --fault` takes
them, several with a semicolon between them. First all cases are measured unprofiled, then each is profiled,
since a process stays slower once a profiler was on in it; each becomes the capture FOLDER/NAME.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from latencylab.model.integrity import InputError
from latencylab.runtime.bench import Workload
from latencylab.runtime.capture import Before, Plan, check_capture, record_profiled, record_unprofiled
from latencylab.runtime.client import HttpTarget
from latencylab.runtime.clock_files import ServerClocks
from latencylab.runtime.provenance import describe_machine, describe_server, read_states


def record(
    folder: Path, target: HttpTarget, clocks: ServerClocks, cases: Mapping[str, str], plan: Plan
) -> list[str]:
    """Take a capture of each case; what is wrong with them, a line each. Raises InputError."""
    before: dict[str, Before] = {}
    try:
        for name, faults in cases.items():
            clocks.switch_faults(faults)
            (folder / name).mkdir(parents=True, exist_ok=True)
            before[name] = record_unprofiled(folder / name, target, plan.workload, clocks)
        wrong = []
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
    finally:
        clocks.switch_faults("")


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
    cases = dict(case.partition("=")[::2] for case in given.case)
    try:
        clocks = ServerClocks.of(given.server_dir)
        for line in record(given.folder, HttpTarget(given.url), clocks, cases, Plan(workload, given.steps)):
            sys.stderr.write(f"{line}\n")
    except InputError as error:
        sys.stderr.write(f"faults: error: {error}\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
