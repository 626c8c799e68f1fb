"""The commands that measure servers: their help is quick, and says what they take."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"numpy", "pandas", "pyarrow", "msgspec", "isal", "rich", "sglang", "torch"}


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (
            "bench",
            {"--url", "--preset", "--input-tokens", "--output-tokens", "--seed", "--format", "--timeout"},
        ),
        (
            "capture",
            {"--url", "--server-dir", "--preset", "--shape", "--fault", "--steps", "--capture-range"},
        ),
    ],
)
def test_help(command, options):
    show = f"import sys; from latencylab.cli import run; run(['{command}', '--help']);"
    show += " print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    assert options <= set(done.stdout.replace(",", " ").split())
    assert not HEAVY & set(done.stderr.split())


@pytest.mark.parametrize("command", [("bench",), ("capture", "-o", "there")])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--url", "http://127.0.0.1:1"), "--lively-weights goes with --preset"),
        (("--preset", "plain", "--model", "m"), "--lively-weights goes with --shape"),
    ],
)
def test_lively_weights_are_of_a_shape_that_is_launched(
    latencylab, tmp_path, monkeypatch, command, options, said
):
    monkeypatch.chdir(tmp_path)
    result = latencylab(*command, *options, "--lively-weights")
    assert result.code == 2
    assert said in result.err
    assert not [*tmp_path.iterdir()]
