"""Kineto traces for the reader's tests: small, of our own numbers, damaged in ways seen in the field."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latencylab.model.trace import Trace
from latencylab.traces.kineto import read_kineto

Fields = dict[str, Any]
BASE_NS = 1_775_078_550_000_000_000
START_US = 4_909_914_216_204.635


class Kineto:
    """Builds documents and reads them back."""

    base_ns = BASE_NS

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.header: Fields = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
            "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": BASE_NS,
        }

    @staticmethod
    def op(name: str, ts: float, dur: float) -> Fields:
        row = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 100, "tid": 7}
        return {**row, "ts": ts, "dur": dur, "args": {"External id": 1}}

    @staticmethod
    def call(name: str, ts: float, dur: float, correlation: int) -> Fields:
        event = Kineto.op(name, ts, dur)
        return event | {"cat": "cuda_runtime", "args": {"correlation": correlation, "cbid": 211}}

    @staticmethod
    def kernel(name: str, ts: float, dur: float, correlation: int, **more: Any) -> Fields:
        args = {"device": 0, "context": 1, "stream": 7, "correlation": correlation, **more}
        event = Kineto.op(name, ts, dur)
        return event | {"cat": "kernel", "pid": args["device"], "tid": args["stream"], "args": args}

    def base(self, ts: float = START_US, dur: float = 2.25) -> list[Fields]:
        """20 kernels, one every 10 us, each launched 4.2 us before it starts by a call of 3.1 us."""
        events = []
        for i in range(20):
            at = ts + i * 10
            events.append(self.op("aten::add", at, 8.0))
            events.append(self.call("cudaLaunchKernel", at + 2, 3.1, 1000 + i))
            events.append(self.kernel("gemm", at + 6.2, dur, 1000 + i))
        return events

    def document(self, events: Iterable[Fields], **header: Any) -> str:
        return json.dumps({**self.header, **header, "traceEvents": list(events)})

    def digits(self, start_ns: int) -> str:
        """The base with its times as text of exactly three decimals, as Kineto writes them."""
        lines = []
        rows: tuple[tuple[str, str, int, int, int, Fields], ...] = (
            ("cpu_op", "aten::add", 100, 0, 8_000, {"External id": 1}),
            ("cuda_runtime", "cudaLaunchKernel", 100, 2_000, 3_100, {"cbid": 211}),
            ("kernel", "gemm", 0, 6_200, 2_250, {"device": 0, "context": 1, "stream": 7}),
        )
        for i in range(20):
            for cat, name, pid, offset, dur, args in rows:
                at = start_ns + i * 10_000 + offset
                more = {} if cat == "cpu_op" else {"correlation": 1000 + i}
                lines.append(
                    f'{{"ph":"X","cat":"{cat}","name":"{name}","pid":{pid},"tid":7,'
                    f'"ts":{at // 1000}.{at % 1000:03d},"dur":{dur // 1000}.{dur % 1000:03d},'
                    f'"args":{json.dumps(args | more)}}}'
                )
        return json.dumps(self.header)[:-1] + ',"traceEvents":[' + ",\n".join(lines) + "]}"

    def write(self, text: str | bytes, name: str = "trace.json") -> Path:
        path = self.folder / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def read(self, text: str | bytes, name: str = "trace.json") -> tuple[Trace, ...]:
        return read_kineto(self.write(text, name))

    def one(self, text: str | bytes, name: str = "trace.json") -> Trace:
        (trace,) = self.read(text, name)
        return trace

    @staticmethod
    def busy(trace: Trace) -> int:
        """Union of the GPU ops, ns."""
        before = np.maximum.accumulate(np.concatenate(([trace.gpu.start[0]], trace.gpu.end[:-1])))
        return int(np.maximum(0, trace.gpu.end - np.maximum(trace.gpu.start, before)).sum())

    @staticmethod
    def wall(trace: Trace) -> int:
        return int(trace.gpu.end.max() - trace.gpu.start.min())

    @staticmethod
    def issues(*traces: Trace) -> dict[str, tuple[str, int]]:
        return {i.code: (i.severity, i.count) for trace in traces for i in trace.issues}


@pytest.fixture(scope="session")
def kineto(tmp_path_factory: pytest.TempPathFactory) -> Kineto:
    return Kineto(tmp_path_factory.mktemp("kineto"))


@pytest.fixture(scope="session")
def defects(kineto: Kineto) -> dict[str, bytes]:
    """Each defect's file, by name."""

    def edited(edit: Callable[[list[Fields]], object], events: list[Fields] | None = None) -> str:
        events = kineto.base() if events is None else events
        changed = edit(events)
        return kineto.document(changed if isinstance(changed, list) else events)

    def each(cat: str, **fields: Any) -> Callable[[list[Fields]], object]:
        return lambda events: [e | fields if e["cat"] == cat else e for e in events]

    def args_of(change: Callable[[Fields], Fields]) -> Callable[[list[Fields]], object]:
        return lambda events: [e | {"args": change(e["args"])} for e in events]

    clean = kineto.document(kineto.base())
    graphs = [kineto.op("aten::x", 1e12, 50)]
    for launch, (call_at, first) in enumerate(((5, 20), (300, 320))):
        graphs.append(kineto.call("cudaGraphLaunch", 1e12 + call_at, 9, 500 + launch))
        for i in range(60):
            node = {"graph id": 3, "graph node id": i}
            graphs.append(kineto.kernel(f"g{i}", 1e12 + first + i * 2.6, 2.1, 500 + launch, **node))
    second_rank = [e | {"pid": f"[TP01] {e['pid']}"} for e in kineto.base(START_US + 3.3)]
    annotation = kineto.op("step", START_US - 0.635, 200) | {
        "cat": "gpu_user_annotation",
        "pid": 0,
        "args": {},
    }
    sync = annotation | {
        "cat": "cuda_sync",
        "name": "Stream Sync",
        "tid": 1000007,
        "ts": START_US + 15,
        "dur": 30,
    }
    sync |= {"args": {"stream": 7, "correlation": 9999}}
    whole = [e | {"ts": int(e["ts"]), "dur": int(e["dur"])} for e in kineto.base(1_712_195_495_519_689.0)]
    process = {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0, "args": {"name": "p"}}
    no_info = json.dumps(
        {k: v for k, v in kineto.header.items() if k != "distributedInfo"} | {"traceEvents": kineto.base()}
    )
    packed = gzip.compress(clean.encode(), mtime=0)
    files = {
        "00_clean": clean,
        "01_negative_dur": edited(lambda e: e[5].update(dur=-3.0)),
        "02_zero_dur": edited(lambda e: (e[5].update(dur=0), e[8].update(dur=0))),
        "03_ts0_dur0": edited(lambda e: e[5].update(ts=0, dur=0)),
        "04_missing_launch": edited(lambda e: (e.pop(4), e.pop(9))),
        "05_no_correlation": edited(args_of(lambda a: {k: v for k, v in a.items() if k != "correlation"})),
        "06_stream0": edited(lambda e: [x["args"].update(stream=0) for x in e[2::3]] and None),
        "07_hip": edited(each("cuda_runtime", name="hipLaunchKernel")),
        "08_cuda_graph": kineto.document(graphs),
        "09_pdl": edited(lambda e: e.append(kineto.kernel("pdl", e[2]["ts"] + 1.0, 2.0, 2000))),
        "10_before_launch": edited(lambda e: e[5].update(ts=e[5]["ts"] - 7.0)),
        "11_no_distinfo": no_info,
        "12_minified": json.dumps(json.loads(clean), separators=(",", ":")),
        "13_nan": clean.replace('"dur": 3.1', '"dur": NaN', 1),
        "14_bad_utf8": clean.encode().replace(b'"gemm"', b'"ge\xffmm"', 1),
        "15_backslash": clean.replace('"gemm"', '"torch\\cuda\\gemm"', 1),
        "16_quote": clean.replace('"gemm"', '"{"device": "cpu"}(12): run"', 1),
        "17_ctrl_char": clean.replace('"gemm"', '"ge\x01mm"', 1),
        "18_truncated": clean[: len(clean) * 2 // 3],
        "19_truncated_gz": packed[: len(packed) * 2 // 3],
        "20_array_root": json.dumps(kineto.base()),
        "21_epoch_float": kineto.digits(1_712_195_495_519_689_047),
        "22_epoch_int": kineto.document(whole),
        "23_meta_only": kineto.document([process]),
        "24_empty_events": kineto.document([]),
        "25_corr_str": edited(
            args_of(lambda a: {k: str(v) if k == "correlation" else v for k, v in a.items()})
        ),
        "26_merged_pid": edited(lambda e: [x | {"pid": f"[TP00] {x['pid']}"} for x in e]),
        "27_two_ranks": edited(lambda e: e + second_rank),
        "28_gpu_annotation": edited(lambda e: e.append(annotation)),
        "29_cuda_sync": edited(lambda e: e.append(sync)),
        "30_unsorted": edited(lambda e: e.reverse()),
        "31_duplicates": edited(lambda e: e + e[2::3]),
        "32_overflow": edited(lambda e: e[5].update(dur=1.6e6)),
        "33_no_gpu": edited(lambda e: [x for x in e if x["cat"] != "kernel"]),
        "34_legacy": clean.replace('"kernel"', '"Kernel"').replace('"cuda_runtime"', '"Runtime"'),
        "35_submicro": kineto.document(kineto.base(dur=0.4)),
        "36_rounding": kineto.digits(4_450_000_000_000_357),
    }
    return {name: text if isinstance(text, bytes) else text.encode() for name, text in files.items()}
