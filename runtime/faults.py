"""Faults put into a run on purpose, so that what an analysis says can be held against what was done."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from latencylab.model.integrity import InputError

CALIBRATION_CYCLES = 20_000_000  # of the spin kernel, some 10 ms


@dataclass(frozen=True, slots=True)
class Parameter:
    """An integer from `least` to `most`; `default` None where it must be given."""

    does: str
    default: int | None
    least: int = 0
    most: int = 10**9


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that can be injected: its name, what it does, and its parameters."""

    name: str
    does: str
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


_RANK = Parameter("the only rank that has the fault; -1 for every rank", -1, -1)
FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(
            "kda-cpu-seq-lens",
            "asks for sequence lengths on the host each step, as KDAAttnBackend once did",
            {"rank": _RANK},
        ),
        Fault(
            "item",
            "reads a device tensor with .item() each step, where its lengths are published",
            {"rank": _RANK},
        ),
        Fault(
            "gc",
            "a full garbage collection",
            {"every": Parameter("steps between two", None, 1), "rank": _RANK},
        ),
        Fault(
            "sleep",
            "delays the host each step",
            {
                "us": Parameter("how long", None, 1),
                "rank": _RANK,
                "busy": Parameter("1 keeps the thread busy, 0 sleeps", 1),
            },
        ),
        Fault(
            "gpu-work",
            "puts a spinning kernel before the first leg of each step",
            {"us": Parameter("about how long", None, 1), "rank": _RANK},
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault to inject, with every parameter it has."""

    name: str
    values: Mapping[str, int] = field(default_factory=dict)

    def on_rank(self, rank: int) -> bool:
        return self.values.get("rank", -1) in (-1, rank)


def parse_faults(text: str) -> tuple[Injected, ...]:
    """Read `name` or `name:key=value,key=value`, separated by semicolons. Raises InputError."""
    found: dict[str, Injected] = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        name, _, given = part.partition(":")
        name = name.strip()
        if name not in FAULTS:
            raise InputError(f"fault {name!r}: not known; known: {', '.join(FAULTS)}")
        if name in found:
            raise InputError(f"fault {name}: given twice")
        found[name] = Injected(name, _values(FAULTS[name], given))
    return tuple(found.values())


def _values(fault: Fault, given: str) -> dict[str, int]:
    values: dict[str, int] = {}
    for pair in filter(None, (piece.strip() for piece in given.split(","))):
        key, equals, text = (piece.strip() for piece in pair.partition("="))
        if not equals or key not in fault.parameters:
            known = ", ".join(fault.parameters) or "none"
            raise InputError(f"fault {fault.name}: {pair!r} is no parameter of it; it has: {known}")
        try:
            values[key] = int(text)
        except ValueError:
            raise InputError(f"fault {fault.name}: {key}={text!r} is no whole number") from None
        if values[key] < (least := fault.parameters[key].least):
            raise InputError(f"fault {fault.name}: {key} must be at least {least}")
        if values[key] > (most := fault.parameters[key].most):
            raise InputError(f"fault {fault.name}: {key} must be at most {most}")
    for key, parameter in fault.parameters.items():
        if key not in values:
            if parameter.default is None:
                raise InputError(f"fault {fault.name}: {key}= is missing ({parameter.does})")
            values[key] = parameter.default
    return {key: values[key] for key in fault.parameters}


def format_faults(faults: Iterable[Injected]) -> str:
    """The text that `parse_faults` reads back as these faults."""
    return ";".join(
        fault.name + (":" + ",".join(f"{k}={v}" for k, v in fault.values.items()) if fault.values else "")
        for fault in faults
    )


class Injector:
    """Does, on one rank, what the faults say; the plugin calls it at the places of a step.

    `active` tells the state file what each fault came to on this rank, `in_steps` whether any of them acts
    within steps.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._needs_lengths: bool | None = None
        self._cycles_per_us = 0.0
        self._take(())

    def _take(self, faults: Iterable[Injected]) -> None:
        wanted = tuple(faults)
        here = {fault.name: fault.values for fault in wanted if fault.on_rank(self._rank)}
        self.active: dict[str, dict[str, Any]] = {
            fault.name: {**fault.values, "active": fault.name in here} for fault in wanted
        }
        self._kda = "kda-cpu-seq-lens" in here
        self._item = "item" in here
        self._every = here.get("gc", {}).get("every", 0)
        self._sleep_ns = here.get("sleep", {}).get("us", 0) * 1000
        self._busy = bool(here.get("sleep", {}).get("busy", 1))
        self._gpu_us = here.get("gpu-work", {}).get("us", 0)
        self.in_steps = bool(self._item or self._every or self._sleep_ns or self._gpu_us)

    def switch(self, faults: Iterable[Injected], scheduler: Any) -> None:
        """Have these faults and no others from here on; called while the scheduler is idle."""
        self._take(faults)
        if self._kda and self._needs_lengths is None:
            self._needs_lengths = scheduler.future_map.needs_cpu_seq_lens
        if self._needs_lengths is not None:  # else it was never touched
            scheduler.future_map.needs_cpu_seq_lens = self._needs_lengths or self._kda
        if self._gpu_us:
            self._cycles_per_us = self._cycles_per_us or _cycles_per_us()
            self.active["gpu-work"]["cycles_per_us"] = round(self._cycles_per_us, 1)

    def in_run_batch(self, step: int) -> None:
        """Inside `run_batch`, before anything is launched."""
        if self._every and step % self._every == 0:
            gc.collect()
        if self._sleep_ns and self._busy:
            until = time.perf_counter_ns() + self._sleep_ns
            while time.perf_counter_ns() < until:
                pass
        elif self._sleep_ns:
            time.sleep(self._sleep_ns / 1e9)

    def before_first_leg(self) -> None:
        """On the stream that runs the model, before the first leg of a step."""
        if self._gpu_us and self._cycles_per_us:
            import torch

            torch.cuda._sleep(round(self._gpu_us * self._cycles_per_us))

    def after_publish(self, seq_lens: Any) -> None:
        """After the new sequence lengths (a device tensor) were published."""
        if self._item and seq_lens.numel():
            seq_lens.view(-1)[0].item()


def _cycles_per_us() -> float:
    """How many cycles of the spin kernel make a microsecond, measured on an idle device."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(CALIBRATION_CYCLES // 10)  # clocks rise first
    start.record()
    torch.cuda._sleep(CALIBRATION_CYCLES)
    end.record()
    end.synchronize()
    return float(CALIBRATION_CYCLES / (start.elapsed_time(end) * 1000))
