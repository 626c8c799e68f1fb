"""Analyses: a real-looking one, one of hostile names, one of a trace without steps, a simulated one; and a
browser to show their pages in."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import synth
from latencylab.analyzers import analyze
from latencylab.model.calibration import Fix
from latencylab.model.capture import Capture
from latencylab.model.findings import (
    Alignment,
    Analysis,
    CollectiveKind,
    Collectives,
    CollectiveTotals,
    Difference,
    Doing,
    Excess,
    GpuIdle,
    Kernel,
    KernelClass,
    KindFindings,
    Late,
    Leg,
    RankClock,
    RankFindings,
    RunAhead,
    Spread,
    Step,
    StepParts,
    Steps,
    Sync,
    Uneven,
    Verdict,
    WindowParts,
)
from latencylab.model.integrity import Integrity, Issue
from synth import ranks

HOSTILE = "<script>alert('x')</script> [/red] [bold]µ 核 \x1b[31m \ud800 \u202e </td>"
LONG_KERNEL = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
    "at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, at::native::binary_internal::"
    "MulFunctor<float> > >(at::TensorIteratorBase&)::{lambda(int)#1}>(int, float*)"
)
NO_SPREAD = GpuIdle(0.0, 0.0, 0.0)


def parts(host: float, gpu: float = 390.25, busy: float = 5620.5, unknown: float = 0.0) -> StepParts:
    idle = host + gpu + unknown
    return StepParts(busy + idle, busy, idle, host, host * 0.4, gpu, unknown)


def sync(site: str, verdict: str, idle: float, **changes: object) -> Sync:
    made = Sync(
        site=site,
        api=site.split(" ")[0],
        kind="explicit",
        span="scheduler.run_batch",
        op="",
        direction="",
        bytes=None,
        seam="",
        frames=(),
        waits_for="Memcpy DtoH (Device -> Pinned)",
        calls=27,
        per_step=1.0,
        call_us=12.25,
        blocked_us=3.5,
        idle_us=idle,
        behind_us=312.0,
        need_us=1498.5,
        queued_us=301.0,
        evidence="blocked",
        verdict=verdict,  # type: ignore[arg-type]
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def steps_of(count: int, host: float) -> tuple[Step, ...]:
    """Steps with a first, a last, an outlier, and every other one slower."""
    made, start = [], 8_111_111_111_000_000_000
    for i in range(count):
        cause = {0: "first", count - 1: "last", count // 2: "outlier"}.get(i)
        p = parts(host + 60.0 * (i % 2) + (14_000.0 if cause == "outlier" else 0.0))
        slower = (
            (
                Difference("host idle: gc", 13_800.0),
                Difference("host idle: cudaStreamSynchronize · scheduler.run_batch", 212.0),
                Difference("busy: gemm", -12.0),
            )
            if cause == "outlier"
            else ()
        )
        end = start + int(p.wall * 1000)
        made.append(Step(i, "NEXTN", start, end, cause, p, 120.0 * (i % 3), slower))
        start = end
    return tuple(made)


def nextn(host: float, steps: int = 30) -> KindFindings:
    p = parts(host)
    return KindFindings(
        kind="NEXTN",
        steps=Steps(
            steps,
            steps - 3,
            "scheduler.run_batch spans",
            {"first": 1, "last": 1, "outlier": 1},
            Spread(p.wall - 20, p.wall - 60, p.wall + 80),
            (p.wall - 30, p.wall + 30),
        ),
        step_us=p,
        idle_host_doing_us=Doing(
            sync=host * 0.1,
            api=host * 0.3,
            framework=host * 0.2,
            span={"scheduler.run_batch": host * 0.3, "step[VERIFY]": host * 0.08},
            gc=host * 0.02,
        ),
        idle_host_blame_us={
            "cudaStreamSynchronize · scheduler.run_batch · 16 B DtoH pinned · seam before draft": host * 0.55,
            "api": host * 0.2,
            "framework": host * 0.12,
            "span scheduler.get_next_batch_to_run": host * 0.08,
            "span scheduler.process_batch_result": host * 0.03,
            "gc": host * 0.02,
        },
        idle_gpu_us=GpuIdle(301.25, 49.0, 40.0),
        legs=(
            Leg("draft", 612.5, 571.0, 170.0, 1.0, 84.0, 903.5, 702.0),
            Leg("verify", 4100.0, 3980.0, 731.0, 1.0, 12.5, 411.0, 380.0),
            Leg("extend", 402.0, 391.0, 39.0, 1.0, 512.0, 122.0, 0.0),
        ),
        run_ahead_us=RunAhead(96.0, 0.0),
        syncs=(
            sync("cudaEventSynchronize · scheduler.process_batch_result", "hidden", 0.0, behind_us=6012.0),
            sync(
                "cudaStreamSynchronize · scheduler.run_batch · 16 B DtoH pinned · seam before draft",
                "harmful",
                host * 0.55,
                seam="draft",
                frames=("eagle_worker_v2.py(611): draft", "overlap_utils.py(88): resolve_seq_lens_cpu"),
            ),
            sync("cudaMemcpyAsync · step[VERIFY] > aten::to > aten::_to_copy > aten::copy_", "pinning", 6.5),
            sync(
                "cudaFree · scheduler.run_batch",
                "unclear",
                0.0,
                kind="alloc",
                evidence="unknown",
                waits_for="",
                need_us=None,
                behind_us=None,
                queued_us=None,
                per_step=0.04,
            ),
        ),
        kernels=(
            KernelClass("moe", 2210.0, 90.0),
            KernelClass("gemm", 1904.0, 210.5),
            KernelClass("attention", 803.0, 24.0),
            KernelClass("norm", 420.0, 98.0),
            KernelClass("elementwise", 283.5, 400.0),
        ),
        top_kernels=(
            Kernel("fused_moe_kernel", "moe", 2210.0, 90.0),
            Kernel("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", "gemm", 1904.0, 98.0),
            Kernel(LONG_KERNEL, "elementwise", 283.5, 12.0),
        ),
        abstained={"collectives": "needs the traces of several ranks on aligned clocks"},
    )


def rank(number: int, host: float, steps: int = 30) -> RankFindings:
    p = parts(host)
    window = WindowParts(
        *(steps * v for v in (p.wall, p.busy, p.idle, p.idle_host, 0.4 * host, p.idle_gpu, 0.0))
    )
    main = nextn(host, steps)
    extend = replace(
        main, kind="EXTEND", steps=Steps(1, 0, "spans", {"first": 1}, None), step_us=None, legs=(), syncs=()
    )
    return RankFindings(
        number, number, "NVIDIA H200", window, 32_000, 2_100, main, (extend,), steps_of(steps, host)
    )


def make(ranks: int = 1, steps: int = 30) -> Analysis:
    return Analysis(
        capture_path="/somewhere/private/nextn-host-stall",
        manifest={"commit": "0123abcd", "server": {"tp": ranks}, "temperature": math.nan},
        version="0.1.0",
        verdict=Verdict(
            ("The host is late for 5,800 of 11,811 µs a step.", "55 % of that after cudaStreamSynchronize."),
            "medium",
            (
                "not calibrated against an unprofiled run: the profiler slows the host",
                "steps fall into two modes",
                "1 of 30 steps is an outlier",
            ),
        ),
        fixes=(
            Fix(
                "Remove the blocking read cudaStreamSynchronize in scheduler.run_batch", 3190.0, bound="lower"
            ),
            Fix("Launch fewer eager kernels in the seam before draft", 702.0),
            Fix("Pass the copy in step[VERIFY] through a side stream", 6.5),
            Fix("Shorten dispatch gaps", 49.0, True),
        ),
        integrity=Integrity.of(
            [
                Issue("launches-without-ops", "info", 3, "launches before the window's first op"),
                Issue("profiler-buffer", "warning", 1, "the profiler flushed a buffer inside the window"),
            ]
        ),
        ranks=tuple(rank(r, 5800.0 - 700.0 * r, steps) for r in range(ranks)),
    )


def make_hostile() -> Analysis:
    """Every name is an attack, and numbers are missing wherever they may be."""
    nan = math.nan
    good = make(3)
    first = good.ranks[0]
    bad_parts = StepParts(nan, 5.0, nan, nan, nan, math.inf, nan, nan)
    main = replace(
        first.main,
        kind=HOSTILE,
        step_us=bad_parts,
        steps=Steps(2, 2, HOSTILE, {HOSTILE: 1}, Spread(nan, nan, nan)),
        idle_host_doing_us=Doing(sync=nan, span={HOSTILE: 5.0}),
        idle_host_blame_us={HOSTILE: 12.0, "nan": nan},
        legs=(Leg(HOSTILE, nan, 1.0, 2.0, 1.0, None, None, None),),
        run_ahead_us=RunAhead(nan, nan),
        syncs=(
            sync(HOSTILE, "harmful", nan, waits_for=HOSTILE, frames=(HOSTILE,), seam=HOSTILE, bytes=16),
            sync("x" * 300, "unclear", 0.0, behind_us=None, need_us=nan),
        ),
        kernels=(KernelClass(HOSTILE, nan, 1.0),),
        top_kernels=(Kernel(HOSTILE, HOSTILE, 1.0, nan), Kernel(LONG_KERNEL, "elementwise", 0.0, 0.0)),
        abstained={HOSTILE: HOSTILE},
    )
    step = Step(0, HOSTILE, 1, 2, HOSTILE, bad_parts, None, (Difference(HOSTILE, nan),))
    slow = replace(step, index=1, left_out=None)
    return replace(
        good,
        capture_path=HOSTILE,
        manifest={HOSTILE: [HOSTILE, {"x": nan}]},
        verdict=Verdict((HOSTILE,), "low", (HOSTILE,)),
        fixes=(Fix(HOSTILE, nan),),
        integrity=Integrity.of([Issue(HOSTILE, "error", 1, HOSTILE)]),
        ranks=(replace(first, device_name=HOSTILE, main=main, steps=(step, slow)), *good.ranks[1:]),
        alignment=Alignment(
            0,
            (
                RankClock(0, 0.0, 0.0, (0.0, 0.0), 0.0, 3, False, "reference"),
                RankClock(1, nan, nan, (-math.inf, math.inf), math.inf, 0, False, HOSTILE),
                RankClock(2, 5.0, math.inf, None, None, 7, True),
            ),
        ),
        collectives=Collectives(
            paired=3,
            unpaired=1,
            unpaired_by_rank={0: 0, 1: 1},
            resolved=2,
            unresolved=1,
            step_us=CollectiveTotals(nan, nan),
            late=(
                Late(
                    1, HOSTILE, nan, nan, 2, {f"GPU work: {HOSTILE}": nan, HOSTILE: 5.0, "host idle: ": 7.0}
                ),
            ),
            kinds=(CollectiveKind(HOSTILE, nan, nan, nan, nan, 1), CollectiveKind("", 0.0, 0.0, 0.0, 0.0, 0)),
            notes=(HOSTILE,),
            uneven=(
                Uneven(1, HOSTILE, "gpu", nan, (Excess(HOSTILE, nan, (0.0, 1.0), nan),)),
                Uneven(1, HOSTILE, "host", 5.0, (Excess(f"span {HOSTILE}", 5.0, (4.0, 6.0), 7.0),)),
            ),
        ),
    )


def make_empty() -> Analysis:
    """A trace without steps, legs, syncs or kernels; its window is all there is."""
    nothing = KindFindings(
        None,
        Steps(0, 0, "", {}, None),
        None,
        Doing(),
        {},
        NO_SPREAD,
        (),
        None,
        (),
        (),
        (),
        {"steps": "no spans"},
    )
    window = WindowParts(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    only = RankFindings(0, 0, "", window, 0, 0, nothing, (), ())
    return Analysis(
        "", None, "0.1.0", Verdict(("No steps were found.",), "low"), (), Integrity("ok", ()), (only,)
    )


@pytest.fixture
def analysis() -> Analysis:
    return make()


@pytest.fixture(scope="session")
def simulated() -> Analysis:
    """Two kinds of step of a simulated trace, with their timelines."""
    shape = synth.Shape(host=60_000, stall=True)
    extras = (synth.Extra(6, synth.Gc(900_000)), synth.Extra(9, synth.Python(400_000)))
    loop = synth.decode_loop(["prefill"] * 2 + ["nextn"] * 14, shape, extras)
    return analyze(Capture("runs/simulated", None, None, (synth.to_trace(synth.find(loop).run),)))


def clocks(count: int) -> tuple[ranks.Clock, ...]:
    return tuple(ranks.Clock(offset=900_000 * r, ppb=7_000 * r) for r in range(count))


def together(**shape: Any) -> Analysis:
    """Simulated ranks, analysed together."""
    shape = {"steps": 9, "gpu_jitter": 2_000, "host_jitter": 1_000, **shape}
    shape = {"clocks": clocks(shape.get("ranks", 4)), **shape}
    return analyze(
        Capture("runs/ranks", None, None, ranks.to_traces(ranks.simulate(ranks.decode_ranks(**shape))))
    )


@pytest.fixture(scope="session")
def late_rank() -> Analysis:
    """Four ranks, of which rank 2 has one kernel in each step that takes 60 µs longer."""
    return together(injects=(ranks.Inject(2, None, 4, "kernel", 60_000),))


@pytest.fixture(scope="session")
def nobody_late() -> Analysis:
    """Four ranks of one clock, each late now and then."""
    return together(clocks=(ranks.Clock(),) * 4)


@pytest.fixture(scope="session")
def eight_ranks() -> Analysis:
    """Eight ranks, of which rank 5 spends 70 µs more in Python each step, and rank 7 lacks the last steps."""
    captures = (*(ranks.Capture(),) * 7, ranks.Capture(diverge=300))
    late = ranks.Inject(5, None, 4, "python", 70_000)
    return together(ranks=8, injects=(late,), drain=True, captures=captures)


@pytest.fixture
def four_ranks() -> Analysis:
    return make(4)


@pytest.fixture
def hostile() -> Analysis:
    return make_hostile()


@pytest.fixture
def large() -> Analysis:
    """Eight ranks of a thousand steps."""
    return make(8, 1000)


@pytest.fixture(params=["one rank", "four ranks", "late rank", "nobody late", "hostile", "empty", "no ranks"])
def any_analysis(request: pytest.FixtureRequest) -> Analysis:
    empty = make_empty()
    made = {
        "one rank": make,
        "four ranks": lambda: make(4),
        "late rank": lambda: request.getfixturevalue("late_rank"),
        "nobody late": lambda: request.getfixturevalue("nobody_late"),
        "hostile": make_hostile,
        "empty": lambda: empty,
        "no ranks": lambda: replace(empty, ranks=()),
    }
    return made[request.param]()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium, whose console is recorded."""
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium, driver = (
        shutil.which("chromium") or shutil.which("chromium-browser"),
        shutil.which("chromedriver"),
    )
    if not (chromium and driver):
        pytest.skip("needs chromium and its driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield made
    made.quit()


@pytest.fixture
def show(browser: Any) -> Callable[[Path, int, str], None]:
    """Load a page as a screen of some width shows it, all that is folded open, and wait until it is drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    def load(page: Path, width: int, theme: str) -> None:
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        # Smooth scrolling would move what is about to be clicked.
        media = {"prefers-color-scheme": theme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in media.items()]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        browser.get(page.as_uri())
        browser.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = true; });")
        drawn = (
            "return [...document.querySelectorAll('.plot')].every((p) => p.querySelector('.main-svg'))"
            " && [...document.querySelectorAll('.timeline')].every((t) => t.dataset.shown);"
        )
        WebDriverWait(browser, 90).until(lambda b: b.execute_script(drawn))

    return load
