"""Results of the gate, made by judging runs made by hand."""

from __future__ import annotations

from latencylab.analyzers.gate import judge
from latencylab.model.gate import GateResult, Run, RunSite

HOSTILE = (
    "k<int>|&\"'`*_[x](http://evil) ::error::boo\r\n::warning,a:b::%0A"
    "\x00\x1b[31m\x85\u2028\ud800\ufffe\u202e]]>"
)


def gate_run(ms: float | None, label: str = "run", site: str = "", **changes: object) -> Run:
    """A run of one request, with one pinning site where it is named."""
    sites = (RunSite(site, "pinning", "blocked", 1.0, 3.2),) if site else ()
    made = {"steps": 20, "metrics": {"busy": 5600.0, "traced_step": 8000.0 + (ms or 0)}, **changes}
    return Run(label, requests_step_ms=() if ms is None else (ms,), sites=sites, **made)  # type: ignore[arg-type]


def gate_results() -> dict[str, GateResult]:
    """One of each verdict, one of hostile names, one of very many sites."""
    base = [gate_run(6.0 + i / 100, "base") for i in range(3)]
    head = [gate_run(6.0 + i / 100 + 0.001, "head") for i in range(3)]
    many = tuple(RunSite(f"site {i} {HOSTILE * 20}", "harmful", "recorded", 1.0, 50.0) for i in range(1500))
    return {
        "unchanged": judge(base, head),
        "regression": judge(
            base, [gate_run(7.0 + i / 100, "head", "cudaStreamSynchronize") for i in range(3)]
        ),
        "improvement": judge(base, [gate_run(5.0 + i / 100, "head") for i in range(3)]),
        "inconclusive": judge(base[:1], [gate_run(6.5)]),
        "incomparable": judge(
            [gate_run(6.0, conditions={"GPU": "A|B"})], [gate_run(6.0, conditions={"GPU": HOSTILE})]
        ),
        "counts": judge([gate_run(None)], [gate_run(None)]),
        "hostile": judge(
            [gate_run(6.0, HOSTILE, circumstances={HOSTILE: HOSTILE}, commit="a")],
            [gate_run(6.5, HOSTILE, HOSTILE, circumstances={HOSTILE: "x"})],
        ),
        "many": judge([gate_run(6.0)], [Run("head", requests_step_ms=(6.5,), sites=many, steps=20)]),
    }
