"""The doctor says what nvidia-smi, /proc and /sys say, and what is missing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from latencylab.runtime import doctor
from latencylab.runtime.doctor import Line, Machine, examine_machine
from latencylab.runtime.nvidia_smi import query_gpus

# As nvidia-smi 580.159 answers on a machine with one H200; its uuid is another.
FIELDS = (
    "index,name,uuid,pci.bus_id,memory.total,memory.used,driver_version,mig.mode.current,clocks.sm,"
    "clocks.max.sm,clocks.mem,clocks.max.mem,power.limit,power.default_limit,persistence_mode,compute_mode"
)
H200 = (
    "0, NVIDIA H200, GPU-00000000-0000-0000-0000-000000000000, 00000000:00:06.0, 143771, 0, 580.159.04, "
    "Disabled, 1980, 1980, 3201, 3201, 700.00, 700.00, Enabled, Default"
)
VERSION = """\
NVIDIA-SMI version  : 580.159.04
NVML version        : 580.159
DRIVER version      : 580.159.04
CUDA Version        : 13.0
"""
UNKNOWN_FIELD = 'Field "%s" is not a valid field to query.\n'

SMI = """\
#!{python}
import sys
gpus, apps, unknown = {gpus!r}, {apps!r}, {unknown!r}
what = sys.argv[1]
if what == "--version":
    sys.stdout.write({version!r})
elif what.startswith("--query-gpu="):
    assert sys.argv[2] == "--format=csv,noheader,nounits"
    asked = what.split("=")[1].split(",")
    if unknown in asked:
        sys.exit(print({message!r} % unknown) or 2)
    names = {fields!r}.split(",")
    for row in gpus:
        values = dict(zip(names, row.split(", "), strict=True))
        print(", ".join(values[name] for name in asked))
elif what.startswith("--query-compute-apps="):
    print("\\n".join(apps))
else:
    sys.exit(9)
"""

Install = Callable[..., None]


@pytest.fixture
def programs(tmp_path, monkeypatch) -> Path:
    """The only folder on PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def _install(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def nvidia_smi(programs) -> Install:
    def install(*gpus: str, apps: tuple[str, ...] = (), unknown: str = "") -> None:
        import sys

        text = SMI.format(
            python=sys.executable,
            gpus=gpus,
            apps=apps,
            unknown=unknown,
            version=VERSION,
            message=UNKNOWN_FIELD,
            fields=FIELDS,
        )
        _install(programs, "nvidia-smi", text)

    return install


@pytest.fixture
def root(tmp_path) -> Path:
    """A machine of two nodes and two cores, seen through proc and sys."""
    files = {
        "proc/meminfo": "MemTotal:       131981020 kB\nMemFree:  1 kB\nMemAvailable:   131452868 kB\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n",
        "sys/devices/system/node/node0/cpulist": "0\n",
        "sys/devices/system/node/node1/cpulist": "1\n",
        "sys/bus/pci/devices/0000:00:06.0/numa_node": "1\n",
    }
    for name, text in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "root"


@pytest.fixture
def versions(monkeypatch) -> dict[str, str]:
    """The packages that are installed."""
    found: dict[str, str] = {}
    monkeypatch.setattr(doctor, "_version", found.get)
    return found


def _line(machine: Machine, what: str) -> Line:
    (line,) = [line for line in machine.lines if line.what == what]
    return line


def _changed(row: str, field: str, value: str) -> str:
    values = row.split(", ")
    values[FIELDS.split(",").index(field)] = value
    return ", ".join(values)


def test_gpu_as_recorded(nvidia_smi, root):
    nvidia_smi(H200)
    machine = examine_machine(root)
    (gpu,) = machine.gpus
    assert (gpu.index, gpu.name, gpu.memory_mib, gpu.driver) == (0, "NVIDIA H200", 143771, "580.159.04")
    assert (gpu.max_sm_mhz, gpu.max_memory_mhz, gpu.power_limit_w) == (1980, 3201, 700)
    assert machine.cuda == "13.0"
    assert _line(machine, "GPU 0") == Line("GPU 0", "NVIDIA H200, 0 of 143771 MiB used")
    assert _line(machine, "driver") == Line("driver", "580.159.04, CUDA 13.0")
    assert _line(machine, "GPU 0 clocks").value == "SM 1980 of 1980 MHz, memory 3201 of 3201 MHz"
    quiet = ("clocks", "power cap", "MIG", "persistence", "compute mode", "other processes")
    assert {_line(machine, f"GPU 0 {what}").status for what in quiet} == {"ok"}
    assert _line(machine, "GPUs").status == "warn"  # the model needs four


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("power.limit", "350.00", "power cap"),
        ("mig.mode.current", "Enabled", "MIG"),
        ("persistence_mode", "Disabled", "persistence"),
        ("compute_mode", "Exclusive_Process", "compute mode"),
    ],
)
def test_what_distorts_a_measurement_is_a_warning(nvidia_smi, root, field, value, what):
    nvidia_smi(_changed(H200, field, value))
    line = _line(examine_machine(root), f"GPU 0 {what}")
    assert line.status == "warn"
    assert line.advice


def test_processes_are_told_by_gpu(nvidia_smi, root):
    second = _changed(_changed(H200, "index", "1"), "uuid", "GPU-1")
    nvidia_smi(H200, second, apps=('4711, "python3, served", 1000, GPU-1',))
    machine = examine_machine(root)
    assert _line(machine, "GPU 0 other processes").value == "none"
    assert _line(machine, "GPU 1 other processes") == Line(
        "GPU 1 other processes", "python3, served (4711)", "warn", "they take time from what is measured"
    )


def test_four_gpus_are_enough(nvidia_smi, root):
    nvidia_smi(*(_changed(H200, "index", str(index)) for index in range(4)))
    assert _line(examine_machine(root), "GPUs") == Line("GPUs", "4")


def test_field_that_is_unknown_or_not_supported(nvidia_smi, root):
    nvidia_smi(_changed(H200, "clocks.max.sm", "[N/A]"), unknown="power.default_limit")
    smi = query_gpus()
    assert smi.trouble == ""
    assert smi.gpus[0].default_power_limit_w is None
    assert smi.gpus[0].max_sm_mhz is None
    assert smi.gpus[0].power_limit_w == 700
    machine = examine_machine(root)
    assert _line(machine, "GPU 0 clocks").value.startswith("SM 1980 of unknown MHz")
    assert _line(machine, "GPU 0 power cap").status == "ok"


def test_without_nvidia_smi(programs, root):
    machine = examine_machine(root)
    assert machine.gpus == ()
    line = _line(machine, "GPU")
    assert line.status == "missing"
    assert "nvidia-smi is not on PATH" in line.value
    assert _line(machine, "nsys").status == "missing"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/bin/sh\necho 'could not talk to the driver' >&2\nexit 9\n", "could not talk to the driver"),
        ("#!/bin/sh\nexit 6\n", "ended with 6"),
        ("#!/bin/sh\n", "names no GPU"),
        ("#!/no/such/shell\n", "does not answer"),
    ],
)
def test_nvidia_smi_that_fails(programs, root, text, said):
    _install(programs, "nvidia-smi", text)
    machine = examine_machine(root)
    assert said in _line(machine, "GPU").value
    assert machine.gpus == ()


def test_nvidia_smi_that_hangs(programs, root, monkeypatch):
    monkeypatch.setattr("latencylab.runtime.nvidia_smi.TIMEOUT_S", 0.2)
    _install(programs, "nvidia-smi", "#!/bin/sh\nexec /bin/sleep 60\n")
    assert "does not answer" in _line(examine_machine(root), "GPU").value


# Software


@pytest.mark.parametrize(
    ("package", "version", "status"),
    [
        ("sglang", "0.5.23", "ok"),
        ("sglang", "0.5.22", "warn"),
        ("nvtx", "0.2.10", "ok"),
        ("nvtx", "0.2.9", "warn"),
        ("torch", "2.11.0", "ok"),
    ],
)
def test_packages(programs, root, versions, package, version, status):
    assert _line(examine_machine(root), package).status == "missing"
    versions[package] = version
    line = _line(examine_machine(root), package)
    assert (line.value, line.status) == (version, status)


def test_profiler_needs_all_three(nvidia_smi, programs, root, versions, monkeypatch):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda _name: None)
    assert "without a GPU, torch, libcupti" in _line(examine_machine(root), "Kineto profiler").value
    nvidia_smi(H200)
    versions["torch"] = "2.11.0"
    assert "without libcupti" in _line(examine_machine(root), "Kineto profiler").value
    library = root / "usr/local/cuda-13/extras/CUPTI/lib64/libcupti.so.13"
    library.parent.mkdir(parents=True)
    library.touch()
    assert _line(examine_machine(root), "Kineto profiler").value == "to be expected, libcupti.so.13 found"


def test_programs_on_path(programs, root):
    _install(programs, "nsys", "#!/bin/sh\n")
    assert _line(examine_machine(root), "nsys").value == str(programs / "nsys")


def test_mps(programs, root, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "pipe"))
    assert _line(examine_machine(root), "MPS").status == "missing"
    _install(programs, "nvidia-cuda-mps-control", "#!/bin/sh\n")
    assert _line(examine_machine(root), "MPS").value == "not running"
    (tmp_path / "pipe").mkdir()
    (tmp_path / "pipe" / "control").touch()
    assert _line(examine_machine(root), "MPS").status == "warn"


# Host


def test_host_as_it_is(nvidia_smi, programs, root):
    nvidia_smi(H200)
    machine = examine_machine(root)
    assert _line(machine, "memory").value == "125 GiB of 126 GiB available"
    assert _line(machine, "CPU governor") == Line("CPU governor", "performance (2 cores)")
    numa = _line(machine, "NUMA")
    assert (numa.value, numa.status) == ("2 nodes, GPU 0 on 1", "warn")  # numactl is missing
    _install(programs, "numactl", "#!/bin/sh\n")
    assert _line(examine_machine(root), "NUMA").status == "ok"


def test_governor_that_saves_power(programs, root):
    (root / "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor").write_text("powersave\n")
    line = _line(examine_machine(root), "CPU governor")
    assert line.status == "warn"
    assert "powersave (1 cores)" in line.value


def test_few_cores(nvidia_smi, root, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)))
    nvidia_smi(H200)
    assert _line(examine_machine(root), "CPU cores").status == "ok"
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "sys/fs/cgroup/cpu.max").write_text("200000 100000\n")
    line = _line(examine_machine(root), "CPU cores")
    assert line.status == "warn"
    assert "limited to the time of 2" in line.value
    (root / "sys/fs/cgroup/cpu.max").write_text("max 100000\n")
    assert _line(examine_machine(root), "CPU cores").status == "ok"


def test_empty_root(programs, tmp_path):
    machine = examine_machine(tmp_path / "nothing")
    assert _line(machine, "memory").value == "unknown GiB of unknown GiB available"
    assert str(machine).count("\n") == len(machine.lines) - 1


# The command


def test_command_without_a_gpu(programs, capsys, monkeypatch):
    from latencylab.cli import run

    monkeypatch.delenv("COLUMNS", raising=False)
    assert run(["doctor"]) == 0
    assert "nvidia-smi is not on PATH" in capsys.readouterr().out


def test_command_keeps_to_the_width_that_is_asked_for(programs, capsys, monkeypatch):
    from latencylab.cli import run

    monkeypatch.setenv("COLUMNS", "70")
    assert run(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= 70
    # The words of the second column, which takes several lines here.
    first = next(number for number, line in enumerate(lines) if line.split()[:1] == ["GPU"])
    words = " ".join(" ".join(lines[first : first + 4]).split())
    for word in ("nvidia-smi", "PATH", "missing"):
        assert word in words


def test_command_as_json(nvidia_smi, capsys):
    from latencylab.cli import run

    nvidia_smi(H200)
    assert run(["doctor", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "latencylab.doctor/1"
    assert found["gpus"][0]["name"] == "NVIDIA H200"
    assert {line["status"] for line in found["lines"]} <= {"ok", "warn", "missing"}
    assert all(line["advice"] for line in found["lines"] if line["status"] != "ok")


def test_command_into_a_file(programs, tmp_path, capsys):
    from latencylab.cli import run

    path = tmp_path / "machine.json"
    assert run(["doctor", "--format", "json", "-o", str(path)]) == 0
    assert json.loads(path.read_text())["gpus"] == []
    assert run(["doctor", "-o", str(path)]) == 4
    assert "--force" in capsys.readouterr().err
