"""What DSpark's ragged verify needs of a deployment: a calibration of confidence and a table of costs.

Both are made with SGLang's own tools, `sglang.benchmark.dspark_sts_fit` and `dspark_sps_profiler`, and stored
with their provenance where the ledger looks for them.

The calibration is fitted on what a server collects in the mode cap-accept, without a calibration: only then
the draft has its confidence head, and every drafted token is verified. With random weights the draft is never
right, so the fit runs and means nothing.

The table needs a server that records its steps, in the mode compact, of whose draft nothing is accepted
(SGLANG_SIMULATE_ACC_LEN=1), so it means as much with random weights as with real ones: the cost of a step
hardly depends on what is in them. The profiler pins the budget to fractions of the block and measures each.
Its own fit joins budgets in bins of 64 tokens, in which all budgets of one request fall together, so for one
request the table is made here, from the rounds that it measured: steps per second for each number of tokens.
The server needs a table to start with, of two equal rates: with none, or with one rate, the mode compact
verifies everything, whatever the budget, and the profiler does not notice.

What to expect of it: 0.5.23 captures ragged verify in graphs of whole blocks, and pads every layout of one
request to the whole block, so the table is flat but for what padding saves within it; by a flat table the
budget is all tokens. `graph_sizes` tells. The mode compact also verifies without the fused kernel of linear
attention, so its steps say nothing of how long those of the mode static take.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from latencylab.model.integrity import InputError
from latencylab.runtime.check import GreedyServer, make_prompts
from latencylab.runtime.provenance import describe_machine, describe_server

SCHEMA = "latencylab.artefact/1"
CALIBRATION = "dspark-sts.json"
COSTS = "dspark-sps.json"
RECORD_KEY = "dspark_info_record"  # of an internal state in /server_info
SHARD_STEPS = 256  # a shard is written when so many steps were collected, and what is left is lost
_PROFILER = "sglang.benchmark.dspark_sps_profiler"
_FIT = "sglang.benchmark.dspark_sts_fit"
# What the profiler logs where an import failed; it goes on, to fail later at what it lacks.
_LACKS = re.compile(r"Full sglang runtime unavailable \((.+?)\); using", re.DOTALL)

TABLE_FLAG = "--speculative-dspark-sps-table-path"
# Two equal rates: a budget is scheduled, and left to whoever pins it.
START_TABLE: Mapping[str, Any] = {
    "sample_batch_tokens": [1, 2],
    "sample_steps_per_sec": [1.0, 1.0],
    "max_batch_tokens": 1024,
}
PROFILE_ENV: Mapping[str, str] = {
    "SGLANG_RAGGED_VERIFY_MODE": "compact",
    "SGLANG_DSPARK_ENABLE_SPS_RECORD": "1",
    "SGLANG_SIMULATE_ACC_LEN": "1",
}


def collect_env(stem: Path, *, stand_in: bool) -> dict[str, str]:
    """Variables of a server that collects confidence into `stem`.N.pt.

    A stand-in accepts nothing: a longer simulated accept length is refused in this mode.
    """
    env = {"SGLANG_RAGGED_VERIFY_MODE": "cap-accept", "SGLANG_DSPARK_STS_COLLECT_PATH": str(stem)}
    return env | ({"SGLANG_SIMULATE_ACC_LEN": "1"} if stand_in else {})


def fit_command(shards: str, out: Path, *, bins: int = 15, gamma: int | None = None) -> list[str]:
    """The command that fits a calibration to the shards matching a glob."""
    command = [sys.executable, "-m", _FIT, "--data-glob", shards, "--out", str(out), "--num-bins", str(bins)]
    return command + (["--gamma", str(gamma)] if gamma is not None else [])


def profile_command(
    url: str,
    out: Path,
    fractions: Sequence[float],
    *,
    input_tokens: int,
    seconds: float,
    repeats: int,
    vocabulary: int | None = None,
) -> list[str]:
    """The command that measures steps of one request at each fraction of the block.

    The profiler reads a tokenizer, only to know how many tokens there are; `vocabulary` says so for a server
    that has none.
    """
    start = [sys.executable, "-m", _PROFILER]
    if vocabulary is not None:
        code = f"import {_PROFILER} as p; p.get_tokenizer = lambda path: range({vocabulary}); p.cli_main()"
        start = [sys.executable, "-c", code]
    return [
        *start,
        "run",
        *("--base-url", url),
        *("--out", str(out)),
        *("--batch-size", "1"),
        *("--fracs", *(f"{each:g}" for each in fractions)),
        *("--input-len", str(input_tokens)),
        *("--temperature", "0"),
        *("--min-steady-seconds", f"{seconds:g}"),
        *("--repeats", str(repeats)),
    ]


def fractions_of(drafted: int) -> tuple[float, ...]:
    """Fractions that pin the budget to each of 0 to `drafted` tokens, the last one being all of them.

    The budget is a fraction of the block rounded down, so each fraction aims between two.
    """
    return (*((each + 0.5) / drafted for each in range(drafted)), 1.0)


def profiled_server(info: Mapping[str, Any]) -> int:
    """How many tokens a step verifies at most. Raises InputError where the server cannot be profiled."""
    if info.get("speculative_algorithm") != "DSPARK":
        raise InputError(f"the server runs {info.get('speculative_algorithm') or 'no draft'}, not DSPARK")
    states = info.get("internal_states") or [{}]
    record = states[0].get(RECORD_KEY)
    wanted = ", ".join(f"{name}={value}" for name, value in PROFILE_ENV.items())
    if not isinstance(record, dict):
        raise InputError(f"the server records no steps; it must be started with {wanted}")
    if record.get("mode") != PROFILE_ENV["SGLANG_RAGGED_VERIFY_MODE"] or record.get("simulate_acc_len") != 1:
        raise InputError(
            f"the server runs in mode {record.get('mode')} with a simulated accept length of "
            f"{record.get('simulate_acc_len')}; it must be started with {wanted}"
        )
    if not info.get(TABLE_FLAG.removeprefix("--").replace("-", "_")):
        raise InputError(f"the server has no table to start with ({TABLE_FLAG}), so it verifies everything")
    return int(record["verify_num_draft_tokens"])


def table_of_rounds(text: str) -> dict[str, Any]:
    """SGLang's table of costs from the profiler's rounds of one request (JSON lines).

    Steps per second for each number of tokens in a step, the median of repeats. Raises InputError.
    """
    rates: dict[int, list[float]] = {}
    for number, line in enumerate(filter(str.strip, text.splitlines()), 1):
        try:
            row = json.loads(line)
            requests, tokens, rate = row["batch_size_per_rank"], row["batch_tokens"], row["steps_per_sec"]
        except (ValueError, KeyError, TypeError):
            raise InputError(f"round {number} is none of the profiler's") from None
        if requests != 1:
            raise InputError(f"round {number} ran {requests} requests; this table is for one")
        if not rate > 0:
            raise InputError(f"round {number} has {rate} steps per second")
        rates.setdefault(int(tokens), []).append(float(rate))
    if len(rates) < 2:
        raise InputError(f"{len(rates)} number of tokens was measured; a table needs two or more")
    return {
        "sample_batch_tokens": sorted(rates),
        "sample_steps_per_sec": [statistics.median(rates[tokens]) for tokens in sorted(rates)],
        "max_batch_tokens": max(rates),
    }


def measure_costs(
    server: GreedyServer,
    out: Path,
    *,
    input_tokens: int,
    seconds: float,
    repeats: int,
    vocabulary: int | None,
    progress: Callable[[str], None] | None = None,
) -> tuple[int, ...]:
    """Write the table of costs of a server that records its steps; the sizes of the graphs that it replayed.

    Raises InputError where the server does not record, or the profiler fails, and OutputError.
    """
    info = server.target.info()
    fractions = fractions_of(profiled_server(info) - 1)
    command = profile_command(
        server.url,
        out.absolute(),
        fractions,
        input_tokens=input_tokens,
        seconds=seconds,
        repeats=repeats,
        vocabulary=vocabulary,
    )
    if progress is not None:
        progress(f"{len(fractions) * repeats} rounds")
    run_tool(command, out.with_name("dspark-sps.log"))
    files = (out.with_name(f"{out.stem}.{kind}.jsonl") for kind in ("rounds", "records"))
    rounds, records = (file.read_text(encoding="utf-8") for file in files)
    sizes = graph_sizes(records)
    about = provenance("table of costs", command, info, input_tokens=input_tokens, graph_sizes=sizes)
    write_artefact(out, table_of_rounds(rounds), about)
    return sizes


def graph_sizes(text: str) -> tuple[int, ...]:
    """The sizes of the verify graphs that the profiled steps replayed, from its records (JSON lines)."""
    try:
        return tuple(
            sorted({int(json.loads(line)["num_verify_tokens"]) for line in text.splitlines() if line})
        )
    except (ValueError, KeyError, TypeError):
        raise InputError("the profiler's records are none that this knows") from None


def collect(
    server: GreedyServer,
    stem: Path,
    *,
    input_tokens: int,
    output_tokens: int,
    requests: int,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> int:
    """Send requests to a server that collects; how many shards came of it. Raises InputError."""
    for number, prompt in enumerate(make_prompts(requests, input_tokens, seed)):
        if progress is not None:
            progress(f"request {number + 1} of {requests}")
        server.tokens(prompt, output_tokens)
    shards = len(list(stem.parent.glob(f"{stem.name}.*.pt")))
    if not shards:
        raise InputError(
            f"no shard {stem.name}.*.pt came: a shard takes {SHARD_STEPS} steps, and a server that collects"
        )
    return shards


def run_tool(command: Sequence[str], log: Path) -> None:
    """Run one of SGLang's tools, what it prints going to `log`.

    Raises InputError with the import that failed where the tool says so, else with its last line.
    """
    try:
        with log.open("wb") as out:
            code = subprocess.run(  # noqa: S603 - our own command
                list(command), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, check=False
            ).returncode
    except OSError as error:
        raise InputError(f"cannot run {command[0]}: {error.strerror or error}") from None
    if code:
        text = log.read_text(errors="replace")
        if lacks := _LACKS.search(text):
            raise InputError(
                f"SGLang's tool cannot import what it needs: {' '.join(lacks[1].split())} ({log})"
            )
        lines = [line for line in text.splitlines() if line.strip()]
        raise InputError(
            f"SGLang's tool ended with exit code {code}: {lines[-1] if lines else 'no word'} ({log})"
        )


def provenance(
    kind: str, command: Sequence[str], info: Mapping[str, Any] | None, *, is_local: bool = True, **more: Any
) -> dict[str, Any]:
    """Where an artefact comes from: machine, server, versions, date and command; `more` is added."""
    server = describe_server(info, {}) if info is not None else {}
    arguments = server.get("server_args") or {}
    random_weights = "dummy" in (arguments.get("load_format"), arguments.get("speculative_draft_load_format"))
    return {
        "schema": SCHEMA,
        "kind": kind,
        "command": list(command),
        "model": arguments.get("model_path"),
        "draft_model": arguments.get("speculative_draft_model_path"),
        "random_weights": random_weights if info is not None else None,
        **describe_machine(is_local=is_local),
        **server,
        **more,
    }


def write_artefact(path: Path, content: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Write an artefact and, beside it, its provenance. Raises OSError."""
    _write(path, content)
    write_provenance(path, about)


def write_provenance(path: Path, about: Mapping[str, Any]) -> None:
    """Write the provenance of an artefact beside it. Raises OSError."""
    _write(path.with_name(f"{path.stem}.provenance.json"), about)


def write_table(path: Path, table: Mapping[str, Any]) -> None:
    """Write a table of costs. Raises OSError."""
    _write(path, table)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
