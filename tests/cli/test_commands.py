"""What the commands write, and where."""

from __future__ import annotations

import csv
import json
import re
import stat
from pathlib import Path

import pytest

from latencylab.cli import _output


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_text_to_stdout(latencylab, trace):
    result = latencylab("analyze", trace)
    assert result.code == 0
    assert result.err == ""
    assert "\x1b" not in result.out
    assert "idle" in result.out


def test_json_to_stdout(latencylab, trace):
    result = latencylab("analyze", trace, "--format", "json")
    found = json.loads(result.out)
    assert found["schema"] == "latencylab.analysis/1"
    assert found["ranks"][0]["steps"]["found"] == 8


def test_a_folder_or_a_pattern_is_a_capture(latencylab, trace):
    for given in (trace.parent, trace.parent / "*.json"):
        assert json.loads(latencylab("analyze", given, "--format", "json").out)["ranks"][0]["rank"] == 0


def test_file_is_what_stdout_gets(latencylab, trace, out):
    for form in ("text", "json"):
        path = out / form
        result = latencylab("analyze", trace, "--format", form, "-o", path)
        assert (result.code, result.out) == (0, "")
        assert path.read_text(encoding="utf-8") == latencylab("analyze", trace, "--format", form).out


def test_steps_narrow_the_analysis(latencylab, trace):
    found = json.loads(latencylab("analyze", trace, "--format", "json", "--steps", "2:6").out)
    assert found["ranks"][0]["steps"]["found"] == 4


def test_csv(latencylab, trace, out):
    result = latencylab("analyze", trace, "--format", "csv", "-o", out / "tables")
    assert (result.code, result.out) == (0, "")
    with (out / "tables" / "steps.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 8
    assert _names(out) == {"tables"}


def test_report_with_tables(latencylab, trace, out):
    result = latencylab("report", trace, "-o", out / "r.html", "--csv", out / "tables")
    assert result.code == 0
    assert result.out == ""
    assert _names(out) == {"r.html", "tables"}
    assert (out / "tables" / "steps.csv").is_file()
    assert stat.S_IMODE((out / "r.html").stat().st_mode) & 0o444 != 0


def test_report_to_stdout(latencylab, trace):
    result = latencylab("report", trace, "-o", "-")
    assert result.code == 0
    assert "<html" in result.out


def test_trim_makes_a_capture(latencylab, trace, out):
    assert latencylab("trim", trace, "--steps", "2:6", "-o", out / "small").code == 0
    found = json.loads(latencylab("analyze", out / "small", "--format", "json").out)
    assert found["ranks"][0]["steps"]["found"] == 4
    assert _names(out) == {"small"}


@pytest.mark.parametrize("command", ["analyze", "report"])
def test_existing_file_is_kept_unless_forced(latencylab, trace, out, command):
    path = out / "r"
    path.write_text("mine")
    result = latencylab(command, trace, "-o", path)
    assert result.code == 4
    assert "--force" in result.err
    assert path.read_text() == "mine"
    assert latencylab(command, trace, "-o", path, "--force").code == 0
    assert path.read_text(encoding="utf-8") != "mine"
    assert _names(out) == {"r"}


def test_existing_tables_are_kept_unless_forced(latencylab, trace, out):
    (out / "steps.csv").write_text("mine")
    (out / "notes.txt").write_text("mine")
    assert latencylab("analyze", trace, "--format", "csv", "-o", out).code == 4
    assert _names(out) == {"steps.csv", "notes.txt"}
    assert latencylab("analyze", trace, "--format", "csv", "-o", out, "--force").code == 0
    assert (out / "steps.csv").read_text() != "mine"
    assert (out / "notes.txt").read_text() == "mine"


def test_existing_capture_is_kept_unless_forced(latencylab, trace, out):
    arguments = ["trim", trace, "--steps", "2:6", "-o", out / "small"]
    assert latencylab(*arguments).code == 0
    assert latencylab(*arguments).code == 4
    assert latencylab(*arguments, "--force").code == 0


# Files


def test_a_link_stays_a_link(out):
    (out / "link").symlink_to(out / "real")
    _output.write_file(out / "link", "text", force=False)
    assert (out / "link").is_symlink()
    assert (out / "real").read_text() == "text"


def test_a_device_is_written_not_replaced():
    device = Path("/dev/null")
    _output.write_file(device, "text", force=False)
    assert device.is_char_device()


def test_a_failed_fill_leaves_no_folder(out):
    def fill(folder: Path) -> None:
        (folder / "a.csv").write_text("a")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _output.write_folder(out / "tables", fill, force=False)
    assert _names(out) == set()


def test_a_failed_fill_leaves_a_folder_as_it_was(out):
    def fill(folder: Path) -> None:
        (folder / "a.csv").write_text("new")
        raise OSError(28, "No space left on device")

    (out / "a.csv").write_text("old")
    with pytest.raises(_output.OutputError, match="No space left"):
        _output.write_folder(out, fill, force=True)
    assert _names(out) == {"a.csv"}
    assert (out / "a.csv").read_text() == "old"


def test_what_is_stale_goes_with_what_replaces_it(out, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "old2").write_text("another's")
    (out / "inner").mkdir()
    (out / "linked").symlink_to(outside)
    (out / "old3").symlink_to(out / "nowhere")
    for name in ("old1", "inner/old1", "older", "inner/notes.txt"):
        (out / name).write_text("old")

    def fill(folder: Path) -> None:
        (folder / "old1").write_text("new")

    _output.write_folder(out, fill, force=True, stale=re.compile(r"(inner/|linked/)?old\d"))
    assert (out / "old1").read_text() == "new"
    assert _names(out) == {"old1", "older", "inner", "linked"}
    assert _names(out / "inner") == {"notes.txt"}
    assert _names(outside) == {"old2"}
