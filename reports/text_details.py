"""What stands below the first screen: every table of the front rank, one after the other."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from latencylab.model.findings import Analysis, KindFindings, RankFindings, Step
from latencylab.reports import calibration, summary, text_ranks
from latencylab.reports import format as fmt
from latencylab.reports.names import short_name
from latencylab.reports.text_parts import ROLE_STYLE, amounts, blocking, heading, indented, issue_row, numbers


def print_details(analysis: Analysis, rank: RankFindings, console: Console) -> None:
    """Everything that the first screen left out."""
    console.print()
    console.rule(style="dim")
    _all_reasons(analysis, console)
    text_ranks.print_ranks(analysis, console)
    kind = rank.main
    _all_blocking(kind, console)
    _host_and_gpu(kind, summary.step_parts(rank).idle_host, console)
    _legs(kind, console)
    _kernels(kind, summary.step_parts(rank).busy, console)
    _steps(rank, kind, console)
    _abstained(kind, console)
    for other in rank.other_kinds:
        _other_kind(rank, other, console)


def _all_reasons(analysis: Analysis, console: Console) -> None:
    if analysis.verdict.reasons:
        heading(f"Why the confidence is {analysis.verdict.confidence}", console)
        for reason in analysis.verdict.reasons:
            console.print(indented(reason, 2))
    if analysis.fixes:
        heading("All fixes, µs/step each by itself", console)
        console.print(numbers(("µs/step", "what"), ((summary.gain(f), f.what) for f in analysis.fixes)))
        if bounds := summary.bounds(analysis.fixes):
            console.print(indented(bounds, 2, "dim"))
    if analysis.integrity.issues:
        heading(f"Input: {analysis.integrity.status}", console)
        for issue in analysis.integrity.issues:
            console.print(issue_row(issue))


def _all_blocking(kind: KindFindings, console: Console) -> None:
    if not kind.syncs:
        return
    heading("Blocking calls by site, µs", console)
    for line in blocking(summary.ordered_syncs(kind), console.width, notes=True):
        console.print(line)
    for verdict in sorted({s.verdict for s in kind.syncs}, key=summary.VERDICT_ORDER.__getitem__):
        console.print(indented(f"{verdict}: {summary.VERDICT_MEANS[verdict]}", 2, "dim"))
    console.print(indented(calibration.need_note(kind.syncs), 2, "dim"))


def _host_and_gpu(kind: KindFindings, idle_host: float | None, console: Console) -> None:
    unit = summary.unit(kind)
    blame = summary.blame_rows(kind, idle_host, 20)
    if blame:
        heading(f"Why the host was late (blame), µs/{unit}", console)
        console.print(amounts(blame, idle_host, ROLE_STYLE["host"]))
    doing = summary.doing_rows(kind.idle_host_doing_us)
    if doing:
        heading(f"What the host did meanwhile (doing), µs/{unit}", console)
        console.print(amounts(doing, idle_host, ROLE_STYLE["host"]))
    gpu = summary.gpu_idle_rows(kind.idle_gpu_us)
    if any(us > 0 for _, us in gpu):
        heading(f"Why the GPU idled by itself, µs/{unit}", console)
        console.print(amounts(gpu, sum(us for _, us in gpu), ROLE_STYLE["gpu"]))


def _legs(kind: KindFindings, console: Console) -> None:
    if kind.legs:
        heading(f"Legs, and the seam before each, µs/{summary.unit(kind)}", console)
        rows = (
            (
                fmt.us(leg.seam_us),
                fmt.us(leg.seam_idle_host_us),
                fmt.us(leg.gpu_us),
                fmt.us(leg.busy_us),
                fmt.per_step(leg.ops),
                fmt.us(leg.run_ahead_us),
                leg.name,
            )
            for leg in kind.legs
        )
        console.print(numbers(("seam", "host idle", "GPU", "busy", "ops", "run-ahead", "leg"), rows))
    ahead = kind.run_ahead_us
    if ahead is not None:
        console.print(
            Text(
                f"  run-ahead at the legs' first ops: median {fmt.us_unit(ahead.median)}; "
                f"10th percentile of the steps' least {fmt.us_unit(ahead.p10)}"
            )
        )


def _kernels(kind: KindFindings, busy: float | None, console: Console) -> None:
    unit = summary.unit(kind)
    if kind.kernels:
        heading(f"Kernel classes, exclusive µs/{unit}", console)
        rows = (
            (fmt.us(k.us), fmt.percent(fmt.share(k.us, busy)), fmt.per_step(k.ops), k.name)
            for k in sorted(kind.kernels, key=lambda k: -fmt.amount(k.us))
        )
        console.print(numbers(("µs", "of busy", "ops", "class"), rows))
    if kind.top_kernels:
        heading(f"Kernels, exclusive µs/{unit}", console)
        named = (
            (fmt.us(k.us), fmt.percent(fmt.share(k.us, busy)), fmt.per_step(k.ops), short_name(k.name))
            for k in kind.top_kernels[: summary.KERNELS_SHOWN]
        )
        console.print(numbers(("µs", "of busy", "ops", "kernel"), named))
        more = len(kind.top_kernels) - summary.KERNELS_SHOWN
        if more > 0:
            console.print(Text(f"  {more} more in the CSV and JSON output", style="dim"))


def _steps(rank: RankFindings, kind: KindFindings, console: Console) -> None:
    steps = kind.steps
    if not steps.found:
        heading("Steps: none found", console)
        return
    out = summary.left_out(kind)
    title = f"Steps: {steps.found:,} found ({steps.source}), {steps.steady:,} steady"
    heading(title + (f"; left out: {out}" if out else ""), console)
    if len(steps.modes_us) > 1:
        modes = " and ".join(fmt.duration(m) for m in steps.modes_us)
        console.print(Text(f"  durations fall into two modes, around {modes}", style="yellow"))
    walls = [fmt.amount(s.parts.wall) for s in summary.own_steps(rank, kind)]
    drawn = fmt.spark(walls, max(10, console.width - 4))
    if drawn:
        console.print(Text("  " + drawn))
        console.print(Text(f"  wall of each step, 0 to {fmt.duration(max(walls))}", style="dim"))
    slow = summary.slowest(rank, kind)
    if slow is not None:
        _slowest(slow, console)


def _slowest(step: Step, console: Console) -> None:
    heading(f"Slowest step: {step.index}, {fmt.duration(step.parts.wall)}", console)
    if not step.slower_by:
        console.print(Text("  nothing stands out against the median step"))
        return
    rows = [(fmt.signed_us(d.us), summary.difference(d.what)) for d in step.slower_by]
    console.print(numbers(("µs", "against the median step"), rows))


def _abstained(kind: KindFindings, console: Console) -> None:
    if kind.abstained:
        heading("Not answered, for lack of data", console)
        for name, lacks in sorted(kind.abstained.items()):
            console.print(indented(f"{name}: {lacks}", 2))


def _other_kind(rank: RankFindings, kind: KindFindings, console: Console) -> None:
    steps = kind.steps
    title = f"Other kind: {kind.kind or 'unnamed'}, {fmt.count(steps.found, 'step')}, {steps.steady:,} steady"
    heading(title, console)
    parts = kind.step_us
    if parts is not None:
        console.print(
            Text(
                f"  step {fmt.duration(parts.wall)}: busy {fmt.percent(fmt.share(parts.busy, parts.wall))}, "
                f"host idle {fmt.percent(fmt.share(parts.idle_host, parts.wall))}, "
                f"GPU idle {fmt.percent(fmt.share(parts.idle_gpu, parts.wall))}; "
                f"blocking calls: {summary.verdict_counts(kind)}"
            )
        )
        blame = summary.blame_rows(kind, parts.idle_host, 3)
        if blame:
            console.print(amounts(blame, parts.idle_host, ROLE_STYLE["host"]))
    slow = summary.slowest(rank, kind)
    if slow is not None and slow.slower_by:
        _slowest(slow, console)
