"""SGLang's own sources, which tests compare with: from its wheel, without installing it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from latencylab.runtime.presets import SUPPORTED_SGLANG

DOWNLOAD_S = 150


def _download(folder: Path) -> Path | None:
    """The wheel in `folder`, fetched once; None where it cannot be had."""
    there = sorted(folder.glob("*.whl"))
    if there:
        return there[0]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as partial:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--python-version", "3.12", "--implementation", "cp", "--abi", "cp312", "--abi", "none"]
        command += ["--platform", "manylinux_2_34_x86_64", "--platform", "any"]
        command += ["--dest", partial, f"sglang=={SUPPORTED_SGLANG}"]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=DOWNLOAD_S)
        except (OSError, subprocess.SubprocessError):
            return None
        return next(Path(partial).glob("*.whl")).rename(folder / "sglang.whl")


@dataclass(frozen=True)
class Wheel:
    """A call gives the text of a member, such as sglang/srt/environ.py; KeyError where there is none."""

    path: Path

    def __call__(self, member: str) -> str:
        with zipfile.ZipFile(self.path) as archive:
            return archive.read(member).decode("utf-8")

    @property
    def names(self) -> list[str]:
        with zipfile.ZipFile(self.path) as archive:
            return archive.namelist()


@pytest.fixture(scope="session")
def sglang_wheel() -> Wheel:
    path = _download(Path(tempfile.gettempdir()) / f"latencylab-sglang-{SUPPORTED_SGLANG}")
    if path is None:
        pytest.skip(f"the wheel of sglang {SUPPORTED_SGLANG} cannot be had")
    return Wheel(path)


# In place of the server: tells what it was started with, and ends well when it is asked to.
SERVER = """
import json, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print(json.dumps({"pid": os.getpid(), "argv": sys.argv[1:], "env": dict(os.environ)}), flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="session")
def sglang_tree(sglang_wheel, tmp_path_factory) -> Path:
    """A folder for PYTHONPATH with as much of SGLang as checking arguments reads."""
    folder = tmp_path_factory.mktemp("sglang-tree")
    members = {"sglang/__init__.py": "raise ImportError('it must not be imported')\n"}
    for name in sglang_wheel.names:
        is_field = name.startswith("sglang/srt/arg_groups/fields/") and name.endswith(".py")
        if is_field or name == "sglang/srt/server_args.py" or name.endswith(".dist-info/METADATA"):
            members[name] = sglang_wheel(name)
    for name, text in members.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def sglang_server(sglang_tree, tmp_path) -> Path:
    """The same, and it can be started."""
    folder = tmp_path / "with-server"
    shutil.copytree(sglang_tree, folder)
    (folder / "sglang" / "__init__.py").write_text("")
    (folder / "sglang" / "launch_server.py").write_text(SERVER)
    return folder
