"""Times latencylab beside other tools: see README.md in this folder.

    python benchmarks/run.py WORK --hta-python PYTHON --tracelens CHECKOUT --tracelens-python PYTHON

WORK gets the traces that are not in it yet. Memory is summed over all processes, and sampled in runs apart.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from measure import Run, Spread, ratios, run

HERE = Path(__file__).parent
MIB = 1 << 20
HTA = (
    "import sys; from hta.trace_analysis import TraceAnalysis; a = TraceAnalysis(trace_dir=sys.argv[1]);"
    " assert len(a.t.traces) == int(sys.argv[2]), a.t.traces.keys()"
)
TRACELENS = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1));"
    " module = 'TraceLens.Reporting.generate_multi_rank_collective_report_pytorch';"
    " runpy.run_module(module, None, '__main__')"
)
HTA_VERSIONS = (
    "import json; from importlib.metadata import version as v;"
    " print(json.dumps({p: v(p) for p in ('traceinsight', 'pandas', 'numpy')}))"
)
RANKS = 4


class Bench:
    """The options, the lines of the report, and every run as it was measured."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.work: Path = options.work
        self.rounds: int = options.rounds
        self.runs: list[dict[str, object]] = []

    def say(self, line: str = "") -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def table(self, *head: str) -> None:
        self.say()
        self.row(*head)
        self.row("---", *("---:" for _ in head[1:]))

    def row(self, *cells: object) -> None:
        self.say("| " + " | ".join(map(str, cells)) + " |")

    def traces(self, name: str, *made: str | int) -> Path:
        """The folder of this name, made first where it is not there."""
        folder = self.work / name
        if not folder.exists():
            making = folder.with_name(f"{name}.making")
            shutil.rmtree(making, ignore_errors=True)
            run([sys.executable, HERE / "make_traces.py", making, *map(str, made)])
            making.rename(folder)
        return folder

    def standard(self, times: int = 1) -> Path:
        """The set of 4 ranks, with so many times the events."""
        events = times * self.options.events
        return self.traces(f"ranks-{events}", "--ranks", RANKS, "--events", events)

    def task(self, task: str, argument: Path | int, *, memory: bool = False) -> Run:
        return self.timed(task, [sys.executable, HERE / "tasks.py", task, argument], memory=memory)

    def timed(
        self, name: str, command: list[object], *, memory: bool = False, limit: float | None = None
    ) -> Run:
        done = run([str(part) for part in command], memory=memory, limit=limit)
        load = os.getloadavg()[0]
        self.runs.append(
            {"name": name, "argument": Path(str(command[-1])).name, "load": load, **asdict(done)}
        )
        return done


def forget(folder: Path) -> None:
    """Empty the column store beside these traces."""
    shutil.rmtree(folder / ".latencylab", ignore_errors=True)


def bench_ranks(bench: Bench) -> None:
    """The 4 ranks, each way in turn, and HTA loading the same files in the same rounds."""
    folder, hta = bench.standard(), bench.options.hta_python
    page = bench.work / "report.html"
    report = ["-m", "latencylab", "report", folder, "--no-cache", "--force", "-o", page]
    ways: dict[str, Callable[[], Run]] = {
        "imports": lambda: bench.task("imports", folder),
        "inflate": lambda: bench.task("inflate", folder),
        "open": lambda: bench.task("parse", folder),
        "open, filling the store": lambda: bench.task("store", folder),
        "open from the store": lambda: bench.task("store", folder),
        "open and analyse": lambda: bench.task("analyse", folder),
        "report to HTML": lambda: bench.timed("report", [sys.executable, *report]),
    }
    if hta:
        ways["HTA loads"] = lambda: bench.timed("hta", [hta, "-c", HTA, folder, RANKS])
    done: dict[str, list[Run]] = {name: [] for name in ways}
    for _ in range(bench.rounds):
        forget(folder)
        for name, way in ways.items():
            done[name].append(way())

    seconds = {name: [one.seconds for one in its] for name, its in done.items()}
    cpu = {name: [one.cpu for one in its] for name, its in done.items()}
    size = done["inflate"][0].told["json_bytes"] / 1e6 / RANKS
    bench.say(f"\n### {RANKS} ranks, {size:.0f} MB of JSON each\n")
    bench.say("Whole processes, imports included; the store is empty unless said.")
    bench.table("", "s", "CPU s", "HTA's time / this", "HTA's CPU time / this")
    for name in ways:
        beside = ["", ""]
        if hta and name != "HTA loads":
            beside = [str(ratios(its["HTA loads"], its[name])) for its in (seconds, cpu)]
        bench.row(name, Spread.of(seconds[name]), Spread.of(cpu[name]), *beside)
    inside = {name: [one.told.get("inside", 0.0) for one in its] for name, its in done.items()}
    bench.table("inside the process, imports excluded", "s")
    for name in ("inflate", "open", "open, filling the store", "open from the store", "open and analyse"):
        bench.row(name, Spread.of(inside[name]))
    again = ratios(inside["open"], inside["open from the store"])
    bench.say(f"\nSecond opening: {again} times faster than opening without the store.")
    again = ratios(inside["open, filling the store"], inside["open from the store"])
    bench.say(f"Second opening: {again} times faster than the first, which fills the store.")

    forget(folder)
    bench.table("peak memory of all processes", "PSS, MiB", "RSS, MiB")
    ways = {
        "open and analyse": lambda: bench.task("analyse", folder, memory=True),
        "report to HTML": lambda: bench.timed("report", [sys.executable, *report], memory=True),
    }
    if hta:
        ways["HTA loads"] = lambda: bench.timed("hta", [hta, "-c", HTA, folder, RANKS], memory=True)
    for name, way in ways.items():
        peaks = [way() for _ in range(1 if name == "HTA loads" else bench.rounds)]
        bench.row(name, Spread.of([p.pss / MIB for p in peaks]), Spread.of([p.rss / MIB for p in peaks]))


def bench_scaling(bench: Bench) -> None:
    """Open and analyse once, twice and four times the events."""
    folders = {times: bench.standard(times) for times in (1, 2, 4)}
    done: dict[int, list[Run]] = {times: [] for times in folders}
    for _ in range(bench.rounds):
        for times, folder in folders.items():
            done[times].append(bench.task("analyse", folder))
    peaks = {times: bench.task("analyse", folder, memory=True) for times, folder in folders.items()}
    bench.say("\n### Growth with the number of events\n")
    bench.say(f"Open and analyse {RANKS} ranks, inside the process.")
    bench.table("events a rank", "open, s", "analyse, s", "together, s", "/ first row", "CPU s", "PSS, MiB")
    whole = {times: [one.told["inside"] for one in its] for times, its in done.items()}
    for times, its in done.items():
        bench.row(
            f"{times * bench.options.events:,}",
            *(Spread.of([one.told[part] for one in its]) for part in ("open", "analyse")),
            Spread.of(whole[times]),
            ratios(whole[times], whole[1]),
            Spread.of([one.cpu for one in its]),
            f"{peaks[times].pss / MIB:.0f}",
        )


def bench_collectives(bench: Bench) -> None:
    """Pair, align and blame once, twice and four times the collectives on 8 ranks."""
    counts = [times * bench.options.collectives for times in (1, 2, 4)]
    done: dict[int, list[Run]] = {count: [] for count in counts}
    for _ in range(bench.rounds):
        for count in counts:
            done[count].append(bench.task("join", count))
    bench.say("\n### Collectives of 8 ranks\n")
    bench.say("Pairing, clocks and skew (`join_ranks`), inside the process.")
    bench.table("collectives a rank", "paired", "s", "/ first row", "each rank alone before, s")
    inside = {count: [one.told["inside"] for one in its] for count, its in done.items()}
    for count, its in done.items():
        bench.row(
            f"{count:,}",
            f"{its[0].told['paired']:,}",
            Spread.of(inside[count]),
            ratios(inside[count], inside[counts[0]]),
            Spread.of([one.told["views"] for one in its]),
        )


def bench_large(bench: Bench) -> None:
    """One rank with Python stacks and tensor shapes."""
    size = bench.options.large_mb
    events = bench.options.events
    folder = bench.traces(f"large-{size}", "--ranks", 1, "--stacks-mb", size, "--events", events)
    json_bytes = bench.task("inflate", folder).told["json_bytes"]
    done = [bench.task("analyse", folder) for _ in range(bench.rounds)]
    peaks = [bench.task("analyse", folder, memory=True) for _ in range(bench.rounds)]
    bench.say(f"\n### One rank with stacks and shapes, {json_bytes / 1e6:.0f} MB of JSON\n")
    bench.table("open and analyse", "")
    bench.row("s", Spread.of([one.seconds for one in done]))
    bench.row("CPU s", Spread.of([one.cpu for one in done]))
    bench.row("peak PSS, MiB", Spread.of([one.pss / MIB for one in peaks]))
    bench.row("peak PSS / JSON", Spread.of([one.pss / json_bytes for one in peaks]))


def bench_tracelens(bench: Bench) -> None:
    """TraceLens's collective report of the 4 ranks, once, with our open and analyse before and after it."""
    options = bench.options
    if not options.tracelens:
        bench.say("\nTraceLens: not asked for (--tracelens).")
        return
    folder, out = bench.standard(), bench.work / "tracelens"
    before = bench.task("analyse", folder)
    # In its own process, from its checkout: nothing of it is imported here.
    command = [options.tracelens_python, "-c", TRACELENS, options.tracelens]
    command += ["--trace_pattern", folder / "rank*.trace.json.gz", "--world_size", RANKS]
    command += ["--output_csvs_dir", out]
    theirs = bench.timed("tracelens", command, limit=options.limit)
    after = bench.task("analyse", folder)
    if not theirs.over and not any(out.glob("*.csv")):
        raise SystemExit("TraceLens wrote no table")
    over = "over " if theirs.over else ""
    bench.say(f"\n### Collective report of {RANKS} ranks\n")
    bench.table("whole processes", "s", "CPU s", "TraceLens's time / this", "TraceLens's CPU time / this")
    for name, ours in (("open and analyse, before", before), ("open and analyse, after", after)):
        times = (f"{over}{a / b:.0f}" for a, b in ((theirs.seconds, ours.seconds), (theirs.cpu, ours.cpu)))
        bench.row(name, f"{ours.seconds:.1f}", f"{ours.cpu:.1f}", *times)
    bench.row("TraceLens", f"{over}{theirs.seconds:.0f}", f"{over}{theirs.cpu:.0f}", "", "")


def bench_shell(bench: Bench) -> None:
    """The report of the bundled sample, as a user runs it."""
    page = bench.work / "sample.html"
    command = [sys.executable, "-m", "latencylab", "report", "sample:nextn-host-stall", "--force", "-o", page]
    done = [bench.timed("sample", [*command]) for _ in range(bench.rounds)]
    bench.say("\n### `latencylab report sample:nextn-host-stall`\n")
    bench.table("whole process", "s", "CPU s")
    bench.row("report", Spread.of([d.seconds for d in done]), Spread.of([d.cpu for d in done]))


BENCHES: dict[str, Callable[[Bench], None]] = {
    "ranks": bench_ranks,
    "scaling": bench_scaling,
    "collectives": bench_collectives,
    "large": bench_large,
    "tracelens": bench_tracelens,
    "shell": bench_shell,
}


def header(bench: Bench) -> None:
    """When, where and with what this was measured."""
    ours = ("latencylab", "numpy", "pandas", "msgspec", "isal", "pyarrow")
    versions = ", ".join(f"{name} {version(name)}" for name in ours)
    cpu = next((line.split(":")[1] for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "?")
    bench.say(
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores ({cpu.strip()}), load {os.getloadavg()[0]:.1f}"
    )
    bench.say(f"Python {platform.python_version()}, {versions}")
    if bench.options.hta_python:
        told = run([bench.options.hta_python, "-c", HTA_VERSIONS]).told
        bench.say("HTA: " + ", ".join(f"{name} {its}" for name, its in told.items()))
    bench.say(f"{bench.rounds} rounds; median (least to most); ratios are taken round by round")


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def main() -> None:
    """Runs the benchmarks named by the command line, and prints Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=Path, help="folder for traces and outputs, some 400 MB")
    parser.add_argument("--only", nargs="+", choices=BENCHES, default=list(BENCHES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hta-python", type=Path, help="a Python that has HTA")
    parser.add_argument("--tracelens", type=Path, help="a checkout of TraceLens")
    parser.add_argument("--tracelens-python", type=Path, help="a Python that has what TraceLens imports")
    parser.add_argument("--limit", type=float, default=900, help="seconds for TraceLens")
    parser.add_argument("--events", type=int, default=300_000, help="events a rank")
    parser.add_argument("--collectives", type=int, default=27_000, help="collectives a rank")
    parser.add_argument("--large-mb", type=int, default=600)
    parser.add_argument("--raw", type=Path, help="write every run here, as JSON")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    bench = Bench(options)
    header(bench)
    for name in options.only:
        BENCHES[name](bench)
        if options.raw:
            options.raw.write_text(json.dumps(bench.runs, indent=1) + "\n")


if __name__ == "__main__":
    main()
