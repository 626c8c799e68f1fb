"""What the step clock costs: requests with it on and off in turn, in one engine.

    python benchmarks/step_clock.py --url http://127.0.0.1:30000 --server-dir DIR

The server must have been started with the plugin (LATENCYLAB_DIR=DIR LATENCYLAB_CLOCK=1). Each pair sends
one prompt twice, with the clock on and off in random order, so that what drifts in the engine weighs on both
alike. Prints the difference of ms per step with its 95 % interval (bootstrap over pairs), and the time that
the clock itself counts as its own. Ends with exit code 3 where the server does not obey.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from pathlib import Path

from latencylab.model.integrity import InputError
from latencylab.runtime.bench import Workload
from latencylab.runtime.client import HttpTarget, Prompt
from latencylab.runtime.clock_files import OBEY_S, ServerClocks
from latencylab.runtime.control import wait_obeyed, write_control
from latencylab.stats import bootstrap_mean


def switch(clocks: ServerClocks, on: bool) -> None:
    """Wait until every rank says that its clock is as wanted."""
    sequence = write_control(clocks.folder, clock=on, write=False)
    if late := wait_obeyed(clocks.folder, sequence, clocks.ranks, OBEY_S):
        raise InputError(f"rank {late[0]} did not switch its clock within {OBEY_S:g} s")
    for rank in clocks.ranks:
        if clocks.account(rank).get("clock") is not on:
            why = clocks.account(rank).get("stopped_by") or "the server runs without LATENCYLAB_CLOCK=1"
            raise InputError(f"rank {rank}: the clock stays off: {why}")


def measure(target: HttpTarget, clocks: ServerClocks, workload: Workload) -> list[tuple[float, float]]:
    """Ms per step with the clock on and off, of each pair."""
    order = random.Random(workload.seed)  # noqa: S311 - not for secrets
    pairs = []

    def send(prompt: Prompt) -> float:
        target.flush_cache()
        step_ms = target.generate(prompt, workload.output_tokens).request.step_ms
        if step_ms is None:
            raise InputError("a request came in one chunk: it has no steps to time")
        return step_ms

    for number in range(workload.warmup):
        switch(clocks, number % 2 == 0)
        send(workload.prompt(f"warm-up {number}"))
    for number in range(workload.requests):
        found = {}
        for on in order.sample((True, False), 2):
            switch(clocks, on)
            found[on] = send(workload.prompt(f"request {number}"))
        pairs.append((found[True], found[False]))
        sys.stderr.write(f"pair {number}: on {found[True]:.4f} ms, off {found[False]:.4f} ms\n")
    switch(clocks, True)
    return pairs


def summary(pairs: list[tuple[float, float]], clocks: ServerClocks) -> dict[str, object]:
    """What is printed; the interval is None without pairs."""
    differences = [1e3 * (on - off) for on, off in pairs]
    interval = bootstrap_mean([[difference] for difference in differences], draws=10_000)
    return {
        "pairs": len(pairs),
        "on_ms_per_step": statistics.fmean(on for on, _ in pairs),
        "off_ms_per_step": statistics.fmean(off for _, off in pairs),
        "difference_us_per_step": statistics.fmean(differences),
        "interval_95_us_per_step": interval,
        "own_us_per_step": {rank: clocks.account(rank).get("own_us_per_step") for rank in clocks.ranks},
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", required=True)
    parser.add_argument("--server-dir", required=True, type=Path)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--input-tokens", type=int, default=8192)
    parser.add_argument("--output-tokens", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    workload = Workload(given.input_tokens, given.output_tokens, given.pairs, given.warmup, given.seed)
    try:
        clocks = ServerClocks.of(given.server_dir)
        told = summary(measure(HttpTarget(given.url), clocks, workload), clocks)
    except InputError as error:
        sys.stderr.write(f"step_clock: error: {error}\n")
        sys.exit(3)
    sys.stdout.write(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
