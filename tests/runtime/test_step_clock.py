"""The ring of the step clock and the clock of the GPU, without a scheduler."""

from __future__ import annotations

import time

import numpy as np
import pytest
from standin.device import Gpu, make_torch

from latencylab.model.trace import I64
from latencylab.model.unprofiled import PROBE
from latencylab.runtime.gpu_clock import GpuClock
from latencylab.runtime.step_clock import StepRing, clocks_now


def _no_gpu(tickets: I64) -> I64:
    return np.full(len(tickets), -1, np.int64)


def test_rows_come_back_as_they_went_in() -> None:
    ring = StepRing(80)
    before_perf, before_epoch = clocks_now()
    ring.append(ring.intern("ll.receive"), before_perf + 1, before_perf + 2)
    for kind, request in (("prefill", 0), ("NEXTN", 0), ("prefill", 1)):
        ring.begin_step(ring.intern(kind), request)
    ring.append_full(ring.intern("ll.draft"), before_perf + 10, before_perf + 30, cpu_ns=15, ticket=7)
    ring.append_full(ring.intern("ll.wait.item"), before_perf + 40, before_perf + 90, 50)
    ring.append(ring.intern("ll.stash"), before_perf + 91, before_perf + 92)
    clock = ring.read(lambda tickets: np.where(tickets == 7, before_perf + 20, -1))
    assert clock.span == ("ll.receive", "ll.draft", "ll.wait.item", "ll.stash")
    assert clock.kind == ("", *["prefill"] * 3)
    assert clock.step.tolist() == [-1, 2, 2, 2]
    assert clock.request.tolist() == [-1, 1, 1, 1]
    assert (clock.end_ns - clock.start_ns).tolist() == [1, 20, 50, 1]
    assert clock.waiting_ns.tolist() == [-1, -1, 50, -1]
    assert clock.cpu_ns.tolist() == [-1, 15, -1, -1]
    assert (clock.gpu_start_ns > 0).tolist() == [False, True, False, False]
    assert abs(int(clock.start_ns[1]) - (before_epoch + 10)) < 1_000_000


def test_a_short_row_shows_nothing_of_the_long_one_that_it_overwrote() -> None:
    ring = StepRing(4)
    ring.intern("long")
    for _ in range(4):
        ring.append_full(0, 1, 2, 3, 4, 5)
    for _ in range(4):
        ring.append(ring.intern("x"), 1, 2)
    clock = ring.read(lambda tickets: tickets)
    assert clock.span == ("x",) * 4
    for column in (clock.waiting_ns, clock.cpu_ns, clock.gpu_start_ns):
        assert column.tolist() == [-1] * 4


def test_the_cost_is_that_of_the_steps_which_measured_it() -> None:
    ring = StepRing(1000)
    ring.on = True
    assert ring.own_us_per_step() is None
    for _ in range(21):
        ring.begin_turn()
        ring.begin_step(0, 0)
        for _ in range(3):
            ring.append(0, 0, 0)
            if ring.measuring:
                ring.own_ns += 1000
    assert ring.own_steps == 5
    assert ring.own_us_per_step() == 3
    ring.layers_ns = 500
    assert ring.own_us_per_step() == 4.5


def test_the_ring_keeps_the_newest() -> None:
    ring = StepRing(10)
    ring.intern("x")
    for n in range(25):
        ring.step = n
        ring.append(0, n, n + 1)
    assert ring.overwritten == 15
    assert len(ring) == 10
    assert ring.read(_no_gpu).step.tolist() == list(range(15, 25))


def test_what_is_taken_back_is_not_read_even_where_it_overwrote_rows() -> None:
    ring = StepRing(10)
    ring.intern("x")
    for n in range(10):
        ring.step = n
        ring.append(0, n, n)
    ring.keep()
    for _ in range(50):  # an idle engine turns its loop without a step
        ring.rewind()
        ring.step = 99
        ring.append(0, 0, 0)
        ring.append(0, 0, 0)
    ring.rewind()
    assert ring.overwritten == 2
    assert ring.read(_no_gpu).step.tolist() == list(range(2, 10))


def test_a_probe_takes_longer_for_more_work() -> None:
    ring = StepRing(64)
    for _ in range(8):
        ring.probe(300)
        ring.probe(3000)
    clock = ring.read(_no_gpu)
    took = clock.end_ns - clock.start_ns
    assert set(clock.span) == {PROBE}
    assert took[1::2].min() > 3 * took[0::2].min()


@pytest.mark.parametrize("drift", [0.0, 2e-4, -5e-4])
def test_gpu_times_are_on_the_hosts_clock(drift: float) -> None:
    gpu = Gpu(drift)
    torch = make_torch(gpu)
    stream = torch.cuda.Stream()
    clock = GpuClock(lambda: torch.cuda.Event(enable_timing=True), stream, capacity=1000, pool=64)
    clock.reference()
    truth = []
    for n in range(300):  # five times around the pool
        stream.work(500 + 10 * (n % 7))
        clock.record()
        truth.append(gpu.reached[-1])
        if n % 3 == 0:
            while not stream.query():
                pass
    while not stream.query():
        pass
    clock.reference()
    found = clock.times(np.arange(300))
    assert clock.skipped == 0
    error = np.abs(found - np.array(truth))
    # The fake reads no faster than Python, so a reference is some µs wide; drift alone would be 100 µs.
    assert error.max() < 3000 + 2 * clock.uncertainty_ns


def test_reading_the_gpus_clock_never_waits() -> None:
    gpu = Gpu()
    torch = make_torch(gpu)
    stream = torch.cuda.Stream()
    clock = GpuClock(lambda: torch.cuda.Event(enable_timing=True), stream, capacity=100, pool=16)
    clock.reference()
    gpu.calls.clear()
    stream.work(50_000)
    start = time.perf_counter_ns()
    tickets = [clock.record() for _ in range(40)]
    found = clock.times(np.array(tickets))
    assert time.perf_counter_ns() - start < 40_000_000, "it waited for the device"
    assert "event.synchronize" not in gpu.calls
    assert clock.skipped == sum(ticket < 0 for ticket in tickets) > 0
    assert (found == -1).all()


def test_times_older_than_the_capacity_are_not_known() -> None:
    gpu = Gpu()
    torch = make_torch(gpu)
    clock = GpuClock(lambda: torch.cuda.Event(enable_timing=True), gpu.current, capacity=20, pool=8)
    clock.reference()
    for _ in range(50):
        clock.record()
    clock.reference()
    found = clock.times(np.array([0, 29, 30, 49, -1]))
    assert (found[[0, 1, 4]] == -1).all()
    assert (found[[2, 3]] > 0).all()


def test_without_a_reference_nothing_is_known() -> None:
    gpu = Gpu()
    torch = make_torch(gpu)
    clock = GpuClock(lambda: torch.cuda.Event(enable_timing=True), gpu.current, capacity=20, pool=8)
    clock.record()
    assert clock.times(np.array([0])).tolist() == [-1]
    clock.reference()
    assert clock.times(np.array([0])).tolist() == [-1]
