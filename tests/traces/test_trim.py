"""Trimming keeps a window's events to the digit, and nothing that should not be shared."""

from __future__ import annotations

import errno
import gzip
import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latencylab.model.capture import Capture
from latencylab.model.integrity import InputError, OutputError
from latencylab.model.trace import Trace
from latencylab.traces import open_capture, read_client, read_clock, sample_path, trim_capture, trim_file
from latencylab.traces.kineto import read_kineto
from latencylab.traces.trim import clear_text, cleared, cleared_manifest


@pytest.fixture(scope="module")
def stall() -> Capture:
    return open_capture(sample_path("nextn-host-stall"), cache=False)


def _window(trace: Trace, first: int, last: int) -> tuple[int, int]:
    named = [i for i in range(len(trace.spans)) if trace.names[trace.spans.name[i]] == "scheduler.run_batch"]
    starts = trace.spans.start[named]
    return int(starts[first]), int(starts[last + 1])


def _rows(trace: Trace, table: str, skip: tuple[str, ...] = ()) -> set[tuple[Any, ...]]:
    """Rows as tuples with names and threads spelled out: their numbers differ between two readings."""
    columns = []
    for field in fields(getattr(trace, table)):
        values = getattr(getattr(trace, table), field.name).tolist()
        if field.name in skip:
            continue
        if field.name == "name":
            values = [trace.names[i] for i in values]
        if field.name == "thread":
            values = [trace.threads[i] for i in values]
        columns.append(values)
    return set(zip(*columns, strict=True))


def test_steps_of_a_sample(stall: Capture, tmp_path: Path) -> None:
    (whole,) = stall.traces
    start, end = _window(whole, 10, 12)
    out = tmp_path / "small"
    trim_capture(stall, {0: (start, end)}, out, about={"trimmed": {"steps": [10, 12]}})
    small = open_capture(out, cache=False)
    (trace,) = small.traces
    for table in ("api", "ops", "spans"):
        old = getattr(whole, table)
        inside = (old.start >= start) & (old.start < end)
        assert _rows(trace, table) == _rows(replace(whole, **{table: old.take(inside)}), table)
    kept = np.isin(whole.gpu.correlation, trace.api.correlation)
    assert _rows(trace, "gpu") == _rows(replace(whole, gpu=whole.gpu.take(kept)), "gpu")
    assert 3 * 900 < len(trace.gpu) < 3 * 1100
    assert (trace.rank, trace.world_size, trace.device_name, trace.versions) == (
        whole.rank,
        whole.world_size,
        whole.device_name,
        whole.versions,
    )
    assert small.manifest is not None
    assert stall.manifest is not None
    assert small.manifest == {**stall.manifest, "trimmed": {"steps": [10, 12]}}
    assert read_client(out) == read_client(sample_path("nextn-host-stall"))
    clock, before = read_clock(out, 0), read_clock(sample_path("nextn-host-stall"), 0)
    assert clock is not None
    assert before is not None
    assert list(clock.start_ns) == list(before.start_ns)
    assert clock.kind == before.kind
    assert (out / "rank0.trace.json.gz").stat().st_size < 400_000
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


def test_everything_kept(stall: Capture, tmp_path: Path) -> None:
    (whole,) = stall.traces
    trim_file(Path(whole.path), tmp_path / "all.json.gz", None, level=1)
    (again,) = read_kineto(tmp_path / "all.json.gz")
    for table in ("gpu", "api", "ops", "spans", "frames", "syncs", "overhead"):
        assert _rows(again, table) == _rows(whole, table)
    assert again.window == whole.window


# Odd digits: beyond what a double holds, an integer, an exponent, a number as text.
EVENTS = """
{"ph": "M", "name": "process_name", "pid": 9, "tid": 0, "args": {"name": "/home/jo/venv/bin/python"}},
{"ph": "M", "name": "thread_name", "pid": 9, "tid": 9, "args": {"name": "worker of \\/home\\/jo\\/x"}},
{"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": 0, "ts": 0, "dur": 9},
{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": 4398046511104.001,
  "dur": 3, "args": {"correlation": 1}},
{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": 4398046511104.002,
  "dur": 3, "args": {"correlation": "2"}},
{"ph": "X", "cat": "python_function", "name": "/home/jo/src/sglang/x.py(12): run", "pid": 9, "tid": 9,
  "ts": 4398046511105, "dur": 1.5e0, "args": {"Python id": 12345678901234567890}},
{"ph": "X", "cat": "python_function", "name": "torch/nn/m.py(3): <lambda>", "pid": 9, "tid": 9,
  "ts": 4398046511104.003, "dur": 1},
{"ph": "s", "id": 1, "pid": 9, "tid": 9, "ts": 4398046511104.001, "cat": "ac2g", "name": "ac2g"},
{"ph": "f", "id": 2, "pid": 0, "tid": 7, "ts": 4398046511124.009, "cat": "ac2g", "name": "ac2g", "bp": "e"},
{"ph": "X", "cat": "kernel", "name": "early", "pid": 0, "tid": 7, "ts": 4398046511104.9, "dur": 1,
  "args": {"device": 0, "stream": 7, "correlation": 1}},
{"ph": "X", "cat": "kernel", "name": "late<a/b>", "pid": 0, "tid": 7, "ts": 4398046511124.009, "dur": 2.0070,
  "args": {"device": 0, "stream": 7, "correlation": 2}},
{"ph": "X", "cat": "gpu_user_annotation", "name": "step", "pid": 0, "tid": 7, "ts": 4398046511125, "dur": 1},
{"ph": "X", "cat": "gpu_user_annotation", "name": "next", "pid": 0, "tid": 7, "ts": 4398046511127, "dur": 1},
{"ph": "X", "cat": "cpu_op", "name": "aten::end", "pid": 9, "tid": 9, "ts": 4398046511106.000, "dur": 1}
"""
HEADER = {
    "schemaVersion": 1,
    "baseTimeNanoseconds": 1_000_000_000,
    "host_name": "secret-host",
    "traceName": "/tmp/jo.json",
    "HOSTNAME": "secret-host",
    "USER": "jo",
    "with_stack": 1,
    "torch_version": "2.14+cu130",
    "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
    "distributedInfo": {"rank": 1, "world_size": 2, "store": "file:/home/jo/store/x"},
}
BASE = 4_398_046_511_104_000 + 1_000_000_000


def _odd(tmp_path: Path) -> Path:
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(HEADER)[:-1] + ', "traceEvents": [' + EVENTS + "]}")
    return path


def test_window_edges_digits_and_secrets(tmp_path: Path) -> None:
    source, target = _odd(tmp_path), tmp_path / "out.json.gz"
    count = trim_file(source, target, (BASE + 2, BASE + 2000))
    text = gzip.decompress(target.read_bytes()).decode()
    document = json.loads(text)
    names = [event["name"] for event in document["traceEvents"]]
    assert names == [
        "process_name",
        "thread_name",
        "cudaLaunchKernel",
        "x.py(12): run",
        "m.py(3): <lambda>",
        "ac2g",
        "late<a/b>",
        "step",
    ]
    assert len(names) == count
    for digits in (
        "4398046511104.002",
        "4398046511105,",
        "1.5e0",
        "4398046511124.009",
        "2.0070",
        "2345678901234567890",
    ):
        assert digits in text
    assert not re.search(r"secret-host|jo|home|tmp|HOSTNAME|traceName", text)
    del document["traceEvents"]
    assert document == {
        "schemaVersion": 1,
        "baseTimeNanoseconds": 1_000_000_000,
        "with_stack": 1,
        "torch_version": "2.14+cu130",
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
        "distributedInfo": {"rank": 1, "world_size": 2, "store": "file:x"},
    }
    (trace,) = read_kineto(target)
    assert trace.gpu.start.tolist() == [BASE + 20_009]
    assert trace.gpu.end.tolist() == [BASE + 22_016]


def test_array_form_and_unreadable_text(tmp_path: Path) -> None:
    array = tmp_path / "array.json"
    array.write_text("[" + EVENTS + "]")
    trim_file(array, tmp_path / "out.json", (BASE - 1_000_000_000, BASE))
    broken = tmp_path / "broken.json"
    broken.write_text('{"traceEvents": [{"ph": "X"')
    for source in (broken, tmp_path / "missing.json"):
        with pytest.raises(InputError, match=source.name):
            trim_file(source, tmp_path / "never.json", None)
    assert not (tmp_path / "never.json").exists()


def test_clear_text() -> None:
    for before, after in {
        "/home/jo/models/Ling-3.0": "Ling-3.0",
        "--model=/data/jo/Ling/ --tp 4": "--model=Ling --tp 4",
        "C:\\Users\\jo\\x.py(3): f": "x.py(3): f",
        "~/a/b": "b",
        "a/b": "a/b",
        "void f<int>(float*) / 2": "void f<int>(float*) / 2",
        "nccl://x": "nccl://x",
        "x/y.py(1): g(/home/u/v)": "y.py(1): g(v)",
        "/home/jo": "~",
        "at /Users/jo/ since": "at ~ since",
        "C:\\Users\\jo": "~",
    }.items():
        assert clear_text(before) == after


def test_cleared_manifest() -> None:
    args = {
        "model_path": "/home/jo/Ling",
        "host": "10.0.0.1",
        "api_key": "sk",
        "speculative_num_draft_tokens": 6,
    }
    env = {"SGLANG_OPT_FLASHINFER_VERIFY_HOST_PLAN": "1", "SGLANG_HOST_IP": "10.0.0.1", "HF_TOKEN": "x"}
    assert cleared({"host": "node7", "server_args": args, "env": env, "files": ["/a/b"], "n": 1.5}) == {
        "server_args": {"model_path": "Ling", "speculative_num_draft_tokens": 6},
        "env": {"SGLANG_OPT_FLASHINFER_VERIFY_HOST_PLAN": "1"},
        "files": ["b"],
        "n": 1.5,
    }


def test_cleared_manifest_of_a_capture_by_the_runtime() -> None:
    """What describes the run stays, with its odd names; what tells of a machine, its paths and users goes."""
    kept = {
        "schema": "latencylab.capture/1",
        "created": "2026-01-01T00:00:00Z",
        "host": None,
        "packages": {"torch": "2.14.1"},
        "faults": {"kda-cpu-seq-lens": {"ranks": [0]}},
        "ledger": {"kda-no-host-lengths": "off (FutureMap.needs_cpu_seq_lens is True)"},
        "hooks": {"sglang.srt.managers.scheduler.Scheduler.run_batch": "took"},
        "workload": {"model": "tp4-rank-x1", "seed": 0, "server_accept_length": [3.25, None]},
        "clocks": {"0": {"rows": 53768, "clock": True, "stopped_by": None, "sync_events": "no profiler yet"}},
        "files": {"0": "rank0.trace.json.gz"},
    }
    env = {
        "SGLANG_OPT_FLASHINFER_VERIFY_HOST_PLAN": "1",
        "LATENCYLAB_FAULTS": "kda-cpu-seq-lens",
        "NCCL_VERSION": "2.28.3-1",
        "CUDA_VERSION": "13.0.2",
        "TORCH_CUDA_ARCH_LIST": "9.0a",
    }
    places = {
        "CUDA_HOME": "/usr/local/cuda",
        "CUDA_CACHE_PATH": "/root",
        "TORCH_EXTENSIONS_DIR": "~/x",
        "LATENCYLAB_DIR": "/tmp/latencylab-abc",
        "CUDA_PATHS": "lib:/opt/lib",
        "NCCL_TOPO_FILE": "file=/etc/topo.xml",
        "SGLANG_RUN_ID": "sglang-run-1-2",
        "NCCL_SOCKET_IP": "10.0.0.1",
    }
    arguments = {"page_size": 64, "attention_backend": "flashmla", "host": None, "nccl_port": 5000}
    private = {
        "host": "10.0.0.1",
        "dist_init_addr": "node7:5000",
        "otlp_traces_endpoint": "node7:4317",
        "encoder_urls": ["http://node7"],
        "watermark_key": "abc",
        "watermark_key_b": "abc",
    }
    manifest = {
        **kept,
        "server_args": {**private, **arguments, "model_path": "/data/jo/Ling", "download_dir": "/home/jo"},
        "env": {**env, **places},
    }
    assert cleared_manifest(manifest | {"host": "node7"}) == cleared_manifest(
        {key: value for key, value in manifest.items() if key != "host"}
    )
    assert cleared_manifest(manifest) == {
        **kept,
        "server_args": {**arguments, "model_path": "Ling", "download_dir": "~"},
        "env": env,
    }
    assert manifest["env"] == {**env, **places}


def test_a_trimmed_capture_has_a_cleared_manifest(stall: Capture, tmp_path: Path) -> None:
    assert stall.manifest is not None
    dirty = {
        **stall.manifest,
        "host": "node7",
        "env": {**stall.manifest["env"], "CUDA_HOME": "/usr/local/cuda"},
    }
    window = _window(stall.traces[0], 10, 10)
    trim_capture(replace(stall, manifest=dirty), {0: window}, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    assert written == {key: value for key, value in stall.manifest.items() if key != "host"}


def _odd_capture(tmp_path: Path) -> Capture:
    return open_capture(_odd(tmp_path), cache=False)


def test_existing_output_is_kept(tmp_path: Path) -> None:
    capture, window = _odd_capture(tmp_path), {1: (BASE, BASE + 2000)}
    out = tmp_path / "out"
    trim_capture(capture, window, out)
    with pytest.raises(OutputError, match="exists already"):
        trim_capture(capture, window, out)
    (out / "old").write_text("")
    trim_capture(capture, window, out, force=True)
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "old", "rank1.trace.json.gz"]
    (out / "manifest.json").unlink()
    with pytest.raises(OutputError, match="is no capture"):
        trim_capture(capture, window, out, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["odd.json", "out"]


def test_ranks_that_cannot_be_trimmed(tmp_path: Path) -> None:
    capture = _odd_capture(tmp_path)
    (trace,) = capture.traces
    with pytest.raises(InputError, match="no trace of rank 3"):
        trim_capture(capture, {3: (0, 1)}, tmp_path / "out")
    with pytest.raises(InputError, match="no rank"):
        trim_capture(capture, {}, tmp_path / "out")
    merged = replace(capture, traces=(trace, replace(trace, rank=2)))
    with pytest.raises(InputError, match="several ranks"):
        trim_capture(merged, {1: (0, 1)}, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["odd.json"]


def test_output_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capture, window = _odd_capture(tmp_path), {1: (BASE, BASE + 2000)}
    with pytest.raises(OutputError, match=r"File exists|Not a directory"):
        trim_capture(capture, window, tmp_path / "odd.json" / "out")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(gzip.GzipFile, "write", full)
    with pytest.raises(OutputError, match=r"/out: No space left"):
        trim_capture(capture, window, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["odd.json"]


def test_interrupted_output_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    capture = _odd_capture(tmp_path)
    monkeypatch.setattr(gzip.GzipFile, "write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        trim_capture(capture, {1: (BASE, BASE + 2000)}, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["odd.json"]


def test_a_capture_is_never_trimmed_onto_itself(tmp_path: Path) -> None:
    capture, window = _odd_capture(tmp_path), {1: (BASE, BASE + 2000)}
    source = Path(capture.traces[0].path)
    before = source.read_bytes()
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(OutputError, match="holds what is trimmed"):
        trim_capture(capture, window, tmp_path, force=True)
    assert source.read_bytes() == before
