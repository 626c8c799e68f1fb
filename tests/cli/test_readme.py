"""What README.md shows is what the tool prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_output_shown(latencylab):
    shown = re.search(r"analyze sample:nextn-host-stall` begins.*?```\n(.*?)```", README, re.DOTALL)
    assert shown is not None
    printed = [line.rstrip() for line in latencylab("analyze", "sample:nextn-host-stall").out.splitlines()]
    for line in shown[1].splitlines():
        assert any(p.startswith(line) for p in printed), line


@pytest.mark.parametrize("command", ["report", "analyze", "trim"])
def test_commands_listed_exist(latencylab, command):
    assert f"`latencylab {command} CAPTURE..." in README
    assert latencylab(command, "--help").code == 0
