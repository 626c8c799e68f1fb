"""What this machine can do: its GPUs, the software that captures need, and what makes a host slow."""

from __future__ import annotations

import gc
import importlib.util
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from latencylab.runtime.launch import DEFAULT_RANKS
from latencylab.runtime.nvidia_smi import Gpu, GpuProcess, Smi, query_gpus
from latencylab.runtime.presets import SUPPORTED_SGLANG

Status = Literal["ok", "warn", "missing"]

LEAST_NVTX = (0, 2, 10)
FIRST_PYTHON_WITHOUT_SGLANG = (3, 14)
# Beside one core a rank: the server with its tokenizer, the detokenizer, and the client that measures.
CORES_BESIDE_RANKS = 3
INSTALL = "pip install 'latencylab[runtime]'"


@dataclass(frozen=True, slots=True)
class Line:
    """One thing looked at; `advice` says what to do, and is empty where nothing is."""

    what: str
    value: str
    status: Status = "ok"
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.status:7} {self.what}: {self.value}" + (f" ({self.advice})" if self.advice else "")


@dataclass(frozen=True, slots=True)
class Machine:
    """The findings in the order in which they are shown, and the GPUs as numbers."""

    lines: tuple[Line, ...]
    gpus: tuple[Gpu, ...]
    processes: tuple[GpuProcess, ...]
    cuda: str | None

    def __str__(self) -> str:
        return "\n".join(map(str, self.lines))


def examine_machine(root: Path = Path("/")) -> Machine:
    """Look at this machine; never raises for what it lacks. `root` holds proc, sys and usr."""
    smi = query_gpus()
    lines = (*_gpu_lines(smi), *_software_lines(smi, root), *_host_lines(smi, root))
    return Machine(lines, smi.gpus, smi.processes, smi.cuda)


# GPUs


def _gpu_lines(smi: Smi) -> Iterator[Line]:
    if smi.trouble:
        yield Line("GPU", f"none: {smi.trouble}", "missing", "traces can be read here; captures need a GPU")
        return
    few = len(smi.gpus) < DEFAULT_RANKS
    yield Line(
        "GPUs",
        str(len(smi.gpus)),
        "warn" if few else "ok",
        f"the model needs {DEFAULT_RANKS}; launch --shape tp4-rank runs on fewer" if few else "",
    )
    drivers = sorted({gpu.driver or "unknown" for gpu in smi.gpus})
    yield Line("driver", f"{', '.join(drivers)}, CUDA {smi.cuda or 'unknown'}")
    for gpu in smi.gpus:
        yield from _one_gpu(gpu, smi.processes)


def _one_gpu(gpu: Gpu, processes: tuple[GpuProcess, ...]) -> Iterator[Line]:
    name = f"GPU {_show(gpu.index)}"
    yield Line(name, f"{gpu.name or 'unknown'}, {_show(gpu.used_mib)} of {_show(gpu.memory_mib)} MiB used")
    yield Line(
        f"{name} clocks",
        f"SM {_show(gpu.sm_mhz)} of {_show(gpu.max_sm_mhz)} MHz, "
        f"memory {_show(gpu.memory_mhz)} of {_show(gpu.max_memory_mhz)} MHz",
    )
    limit, default = gpu.power_limit_w, gpu.default_power_limit_w
    capped = limit is not None and default is not None and limit < default
    yield Line(
        f"{name} power cap",
        f"{_show(limit)} W, {_show(default)} W by default",
        "warn" if capped else "ok",
        "clocks fall under load; nvidia-smi -pl raises it" if capped else "",
    )
    sliced = gpu.mig == "Enabled"
    yield Line(
        f"{name} MIG",
        gpu.mig or "unknown",
        "warn" if sliced else "ok",
        "a slice has other speeds than the whole GPU" if sliced else "",
    )
    naps = gpu.persistence == "Disabled"
    yield Line(
        f"{name} persistence",
        gpu.persistence or "unknown",
        "warn" if naps else "ok",
        "the first call is slow; nvidia-smi -pm 1" if naps else "",
    )
    alone = gpu.compute_mode not in (None, "Default")
    yield Line(
        f"{name} compute mode",
        gpu.compute_mode or "unknown",
        "warn" if alone else "ok",
        "processes cannot share it; nvidia-smi -c DEFAULT" if alone else "",
    )
    there = [f"{p.name or 'unknown'} ({_show(p.pid)})" for p in processes if p.gpu == gpu.uuid]
    yield Line(
        f"{name} other processes",
        ", ".join(there) or "none",
        "warn" if there else "ok",
        "they take time from what is measured" if there else "",
    )


# Software


def _software_lines(smi: Smi, root: Path) -> Iterator[Line]:
    late = sys.version_info[:2] >= FIRST_PYTHON_WITHOUT_SGLANG
    first = ".".join(map(str, FIRST_PYTHON_WITHOUT_SGLANG))
    yield Line(
        "Python",
        ".".join(map(str, sys.version_info[:3])),
        "warn" if late else "ok",
        f"SGLang needs one below {first}" if late else "",
    )
    yield _package("sglang", SUPPORTED_SGLANG)
    yield _package("torch", None)
    yield _package("nvtx", ".".join(map(str, LEAST_NVTX)))
    yield _profiler(smi, root)
    yield _program("nsys", "Nsight Systems is only needed for its own traces")
    yield _mps()
    yield _program("numactl", "SGLang binds ranks to CPU nodes through it")


def _package(name: str, supported: str | None) -> Line:
    version = _version(name)
    if version is None:
        return Line(name, "not installed", "missing", INSTALL)
    if name == "sglang" and version != supported:
        return Line(name, version, "warn", f"hooks and presets are made for {supported}")
    if name == "nvtx" and _numbers(version) < LEAST_NVTX:
        return Line(name, version, "warn", f"spans need {supported} or later")
    return Line(name, version)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", version)[:3])


def _profiler(smi: Smi, root: Path) -> Line:
    """Whether torch's profiler can be expected to trace the GPU: it needs a GPU, torch and CUPTI."""
    library = _cupti(root)
    lacking = [
        name
        for name, there in (("a GPU", smi.gpus), ("torch", _version("torch")), ("libcupti", library))
        if not there
    ]
    if lacking:
        value = f"not to be expected without {', '.join(lacking)}"
        return Line("Kineto profiler", value, "missing", "traces from elsewhere can be read all the same")
    params = _read(root / "proc/driver/nvidia/params")
    admins = re.search(r"RmProfilingAdminOnly:\s*1", params) and os.geteuid() != 0
    value = f"to be expected, {library} found"
    if admins:
        return Line("Kineto profiler", value, "warn", "counters are for administrators only")
    return Line("Kineto profiler", value)


def _cupti(root: Path) -> str | None:
    """The name of the CUPTI library: of the NVIDIA packages, or of a CUDA toolkit."""
    spec = importlib.util.find_spec("nvidia")
    packages = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    places = [(place, "*/lib/libcupti.so*") for place in packages]
    places += [(root / "usr/local", "cuda*/extras/CUPTI/lib64/libcupti.so*")]
    places += [(root / "usr/local", "cuda*/lib64/libcupti.so*")]
    return next((path.name for place, pattern in places for path in sorted(place.glob(pattern))), None)


def _program(name: str, why: str) -> Line:
    place = shutil.which(name)
    return Line(name, place) if place else Line(name, "not on PATH", "missing", why)


def _mps() -> Line:
    """CUDA MPS lets several processes share a GPU at once; its daemon is known by its pipe."""
    if shutil.which("nvidia-cuda-mps-control") is None:
        return Line("MPS", "not on PATH", "missing", "only needed for several processes on one GPU")
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control"  # noqa: S108 - its place
    if pipe.exists():
        return Line("MPS", "running", "warn", "processes share the GPU; end it unless that is meant")
    return Line("MPS", "not running")


# Host


def _host_lines(smi: Smi, root: Path) -> Iterator[Line]:
    yield _cores(smi, root)
    yield _governor(root)
    yield _numa(smi, root)
    found = dict(re.findall(r"(?m)^(MemTotal|MemAvailable):\s*(\d+) kB", _read(root / "proc/meminfo")))
    total, free = (_gib(found.get(key)) for key in ("MemTotal", "MemAvailable"))
    yield Line("memory", f"{free} GiB of {total} GiB available")
    thresholds = ", ".join(map(str, gc.get_threshold()))
    yield Line("Python's GC", f"{'on' if gc.isenabled() else 'off'}, thresholds {thresholds}")


def _cores(smi: Smi, root: Path) -> Line:
    usable = float(len(os.sched_getaffinity(0)))
    value = f"{usable:g} of {os.cpu_count()}"
    quota = _read(root / "sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit():
        limit = int(quota[0]) / int(quota[1])
        value += f", limited to the time of {limit:g}"
        usable = min(usable, limit)
    needed = len(smi.gpus) + CORES_BESIDE_RANKS
    if smi.gpus and usable < needed:
        return Line("CPU cores", value, "warn", f"{needed} are wanted, so that no process waits for one")
    return Line("CPU cores", value)


def _governor(root: Path) -> Line:
    paths = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    counts = Counter(name for name in (_read(path).strip() for path in paths) if name)
    if not counts:
        return Line("CPU governor", "not shown by this kernel")
    value = ", ".join(f"{name} ({count} cores)" for name, count in counts.most_common())
    if set(counts) == {"performance"}:
        return Line("CPU governor", value)
    return Line("CPU governor", value, "warn", "host times vary; cpupower frequency-set -g performance")


def _numa(smi: Smi, root: Path) -> Line:
    nodes = len(list((root / "sys/devices/system/node").glob("node[0-9]*")))
    value = f"{nodes} node{'' if nodes == 1 else 's'}"
    for gpu in smi.gpus:
        device = (gpu.bus_id or "")[-12:].lower()  # nvidia-smi writes the domain with eight digits
        node = _read(root / "sys/bus/pci/devices" / device / "numa_node").strip() if device else ""
        value += f", GPU {_show(gpu.index)} on {'none' if node in ('', '-1') else node}"
    if nodes > 1 and shutil.which("numactl") is None:
        return Line("NUMA", value, "warn", "install numactl: SGLang keeps ranks near their GPU with it")
    return Line("NUMA", value)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _gib(kib: str | None) -> str:
    return "unknown" if kib is None else f"{int(kib) / 2**20:.0f}"


def _show(number: float | None) -> str:
    return "unknown" if number is None else f"{number:.0f}"
