"""The built wheel and sdist hold what the folders hold, and the installed wheel runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("latencylab", "analyzers", "reports", "runtime", "traces")
SAMPLE = "nextn-host-stall"
DOCUMENTS = ("pyproject.toml", "README.md", "LICENSE")


def _imported_as(path: Path) -> PurePosixPath:
    """Where a file of the checkout lies in the wheel."""
    relative = PurePosixPath(path.relative_to(ROOT).as_posix())
    return relative if relative.parts[0] == "latencylab" else PurePosixPath("latencylab") / relative


def _expected() -> set[str]:
    """All files of the package folders, but of the samples the one that is shipped."""
    found = set()
    for folder in PACKAGES:
        for path in (ROOT / folder).rglob("*"):
            place = _imported_as(path)
            parts = place.parts
            other_sample = parts[1:3] == ("traces", "samples") and len(parts) > 4 and parts[3] != SAMPLE
            stale = any(part.startswith(".") or part == "__pycache__" for part in parts)
            if path.is_file() and not stale and not other_sample:
                found.add(str(place))
    return found


def _run(*command: str | Path, cwd: Path) -> str:
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel built from it."""
    source = tmp_path_factory.mktemp("source")
    for folder in PACKAGES:
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in DOCUMENTS:
        shutil.copy(ROOT / name, source)
    cache = source / "traces" / "samples" / SAMPLE / ".latencylab"  # must not be shipped
    cache.mkdir(exist_ok=True)
    (cache / "stale.parquet").touch()
    out = tmp_path_factory.mktemp("built")
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source, cwd=out)
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment that has the wheel, and what it depends on from this environment."""
    env = tmp_path_factory.mktemp("env")
    _run(sys.executable, "-m", "venv", "--without-pip", env, cwd=env)
    python = env / "bin" / "python"
    _run(
        *(sys.executable, "-m", "pip", "--python", python),
        *("install", "--quiet", "--no-deps", "--no-index", wheel),
        cwd=env,
    )
    here = _run(sys.executable, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=env)
    there = _run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=env)
    (Path(there.strip()) / "dependencies.pth").write_text(here)
    return python.parent


def test_packages_are_the_folders() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {
        ".".join(_imported_as(init.parent).parts)
        for folder in PACKAGES
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert sorted(listed) == sorted(folders)


def test_wheel_holds_every_module_and_data_file(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == _expected()


def test_wheel_carries_the_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        licences = [name for name in archive.namelist() if name.endswith("licenses/LICENSE")]
        assert archive.read(licences[0]) == (ROOT / "LICENSE").read_bytes()


def test_sdist_holds_the_sources(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        held = {str(PurePosixPath(*PurePosixPath(name).parts[1:])) for name in archive.getnames()}
    sources = {str(PurePosixPath(*PurePosixPath(name).parts[1:])) for name in _expected()}
    inside = {name.removeprefix("latencylab/") for name in held}
    assert sources <= inside
    assert set(DOCUMENTS) <= held


def test_installed_script_runs(installed: Path, tmp_path: Path) -> None:
    assert _run(installed / "latencylab", "--version", cwd=tmp_path).startswith("latencylab")
    printed = _run(installed / "latencylab", "analyze", f"sample:{SAMPLE}", "--format", "json", cwd=tmp_path)
    found = json.loads(printed)
    assert found["schema"] == "latencylab.analysis/1"
    assert found["capture"]["path"] == f"sample:{SAMPLE}"


def test_installed_package_is_the_one_imported(installed: Path, tmp_path: Path) -> None:
    show = "import latencylab.traces as t, latencylab.reports as r; print(t.__file__, r.__file__)"
    for path in _run(installed / "python", "-c", show, cwd=tmp_path).split():
        assert Path(path).is_relative_to(installed.parent)


def test_installed_script_writes_a_report(installed: Path, tmp_path: Path) -> None:
    _run(installed / "python", "-m", "latencylab", "report", f"sample:{SAMPLE}", "-o", "r.html", cwd=tmp_path)
    assert "<html" in (tmp_path / "r.html").read_text(encoding="utf-8")[:1000]
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]
