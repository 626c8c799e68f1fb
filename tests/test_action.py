"""The composite action and the recipe beside it: their commands exist, and together they do what they say."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import synth
from latencylab.cli import root
from latencylab.model.unprofiled import Request
from latencylab.traces import bundle
from latencylab.traces.history import History

FOLDER = Path(__file__).parents[1] / ".github" / "actions" / "latencylab-gate"
README = (FOLDER / "README.md").read_text("utf-8")
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")


def action() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((FOLDER / "action.yml").read_text("utf-8"))
    return loaded


def scripts() -> list[str]:
    return [step["run"] for step in action()["runs"]["steps"] if "run" in step]


def recipes() -> list[str]:
    return re.findall(r"```sh\n(.*?)```", README, re.DOTALL)


# Form


def test_it_is_a_composite_action() -> None:
    made = action()
    assert made.keys() == {"name", "description", "inputs", "outputs", "runs"}
    assert made["runs"]["using"] == "composite"
    for name, given in made["inputs"].items():
        assert given["description"], name
        assert given.get("required") is True or isinstance(given["default"], str), name
    ids = {step["id"] for step in made["runs"]["steps"] if "id" in step}
    for given in made["outputs"].values():
        place = re.fullmatch(r"\$\{\{ steps\.(\w+)\.outputs\.(\w+) \}\}", given["value"])
        assert place is not None
        assert place[1] in ids
        (step,) = (s for s in made["runs"]["steps"] if s.get("id") == place[1])
        assert f"{place[2]}=" in step["run"]


def test_every_step_is_complete() -> None:
    inputs = action()["inputs"].keys()
    used = set()
    for step in action()["runs"]["steps"]:
        assert ("run" in step) != ("uses" in step)
        assert step["name"]
        if "run" in step:
            assert step["shell"] == "bash"
            # What comes from outside reaches a script as a variable, never as its text.
            assert "${{" not in step["run"]
            own = set(re.findall(r"\$\{?([A-Z_]+)", step["run"])) - {"GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"}
            assert own == set(step.get("env", {}))
        used |= set(re.findall(r"inputs\.([\w-]+)", yaml.safe_dump(step)))
    assert used == inputs


def test_the_workflow_that_the_readme_shows_uses_inputs_that_exist() -> None:
    workflow, comment = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL))
    assert workflow[True].keys() == {"pull_request", "push"}  # YAML 1.1 takes the key `on` for true
    (step,) = (s for s in workflow["jobs"]["gate"]["steps"] if s.get("uses", "").startswith("./"))
    assert FOLDER.samefile(Path(__file__).parents[1] / step["uses"])
    assert step["with"].keys() <= action()["inputs"].keys()
    assert comment[0]["env"].keys() == {"GH_TOKEN", "NUMBER", "SUMMARY"}
    rows = set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE))
    assert rows == action()["inputs"].keys()


@pytest.mark.parametrize("script", [*scripts(), *recipes()])
def test_scripts_parse(script: str) -> None:
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


# Commands


def commands(script: str) -> list[list[str]]:
    """The words of each call of latencylab, variables left as they stand."""
    joined = re.sub(r"\$\{\w+:\+([^}]*)\}", r"\1", script.replace("\\\n", " "))
    found = []
    for line in joined.splitlines():
        call = re.search(r"(?:^|\s)latencylab (.*)", line.split("#")[0])
        if call:
            found.append(shlex.split(call[1].split("||")[0]))
    return found


def check(words: list[str]) -> None:
    """Raise where a command or one of its options does not exist."""
    command: click.Command = root
    context = click.Context(root, info_name="latencylab")
    while isinstance(command, click.Group):
        name, *words = words
        inner = command.get_command(context, name)
        assert inner is not None, name
        command = inner
    known = {option for parameter in command.params for option in parameter.opts}
    for word in words:
        if word.startswith("-"):
            assert word in known, f"{command.name} has no {word}"
    for parameter in command.params:
        if parameter.required and isinstance(parameter, click.Option):
            assert set(parameter.opts) & set(words), f"{command.name} needs {parameter.opts}"


def test_every_command_and_option_exists() -> None:
    of_action = [call for script in scripts() for call in commands(script)]
    of_recipe = [call for script in recipes() for call in commands(script)]
    assert {call[0] for call in of_action} == {"capture", "report", "gate", "site"}
    assert {call[0] for call in of_recipe} == {"capture", "report", "gate", "site", "diff"}
    workflow = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)[0])
    given = [
        s["with"]["capture"]
        for s in workflow["jobs"]["gate"]["steps"]
        if "with" in s and "capture" in s["with"]
    ]
    for call in [*of_action, *of_recipe, ["capture", "-o", "x", *given[0].split()]]:
        check(call)
    with pytest.raises(AssertionError, match="has no --speed"):
        check(["capture", "-o", "x", "--speed"])


# Together


def capture(folder: Path, number: int, step_us: int, *, stall: bool) -> Path:
    """A capture of simulated steps, with six requests whose steps take so long."""
    shape = synth.Shape(host=60_000, stall=stall)
    loop = synth.decode_loop(["nextn"] * 12, shape)
    path = folder / f"{'slow' if stall else 'good'}-{number}"
    path.mkdir(parents=True)
    (path / "rank0.json").write_bytes(synth.to_json(synth.to_doc(synth.find(loop).run)))
    bundle.write_manifest(path, {"files": {0: "rank0.json"}, "gpu": "Simulated", "driver": "1"})
    step_ns = step_us * 1000 + 3_000 * number
    requests = [
        Request.of(
            10**18 + place, [(10**8 + i * step_ns + (i * place) % 7 * 100, 1 + 3 * i) for i in range(40)]
        )
        for place in range(6)
    ]
    bundle.write_client(path, requests)
    return path


def _value(inputs: dict[str, str], outputs: dict[str, str], commit: str, expression: re.Match[str]) -> str:
    """What a runner puts in place of an expression of this action."""
    kind, _, name = expression[1].partition(".")
    if kind == "github":
        return commit
    return inputs[name] if kind == "inputs" else outputs[name.split(".")[-1]]


class Runner:
    """Runs the action's scripts as a runner would, with a `latencylab capture` that copies what was taken."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.captures = folder / "captures"
        tool = self.bin / "latencylab"
        python = shlex.quote(sys.executable)
        tool.write_text(
            f'#!/bin/bash\nset -e\nif [ "$1" != capture ]; then exec {python} -m latencylab "$@"; fi\n'
            '[ "$2" = --commit ] && [ "$4" = -o ] && [ "$6 $7" = \'--preset nextn\' ]\n'
            'cp -r "$TAKEN-${5##*-}" "$5"\n'
            'sed -i "s/\\"gpu\\"/\\"commit\\": \\"$3\\", \\"gpu\\"/" "$5/manifest.json"\n'
        )
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        self.work = folder / "work"
        self.work.mkdir()
        self.git("init", "-q")

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=self.work, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def commit(self, message: str) -> str:
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def __call__(self, taken: str, commit: str, **inputs: str) -> tuple[int, dict[str, str], str]:
        """The exit code, the outputs and the summary."""
        given = {name: its.get("default", "") for name, its in action()["inputs"].items()} | inputs
        outputs: dict[str, str] = {}
        summary = self.folder / "step-summary"
        summary.write_text("")
        shutil.rmtree(self.work / given["output"], ignore_errors=True)
        for step in action()["runs"]["steps"]:
            if "uses" in step or (step.get("if") == "inputs.record == 'true'" and given["record"] != "true"):
                continue
            assert step.get("if") in (None, "inputs.record == 'true'")
            own = self.folder / "step-output"
            own.write_text("")

            environment = {
                name: EXPRESSION.sub(partial(_value, given, outputs, commit), text)
                for name, text in step.get("env", {}).items()
            }
            path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
            files = {"GITHUB_OUTPUT": str(own), "GITHUB_STEP_SUMMARY": str(summary)}
            taking = {"TAKEN": str(self.captures / taken), "PATH": path}
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                cwd=self.work,
                env={**os.environ, **environment, **files, **taking},
                capture_output=True,
                text=True,
                check=False,
            )
            outputs |= dict(line.split("=", 1) for line in own.read_text().splitlines())
            if done.returncode:
                assert step["name"] == "Decide", done.stderr
                return done.returncode, outputs, summary.read_text()
        return 0, outputs, summary.read_text()


@pytest.mark.skipif(not (shutil.which("bash") and shutil.which("git")), reason="needs bash and git")
def test_main_is_recorded_and_a_slower_commit_fails(tmp_path: Path) -> None:
    runner = Runner(tmp_path)
    for number in (1, 2, 3):
        capture(runner.captures, number, 6_000, stall=False)
        capture(runner.captures, number, 7_500, stall=True)
    history = runner.work / "latencylab-history"
    what = {"capture": "--preset nextn --model ./model --tp 4"}

    first = runner.commit("First commit")
    code, outputs, summary = runner("good", first, record="true", **what)
    assert (code, outputs["code"]) == (0, "0")
    assert "No baseline yet" in summary
    runs = History.open(history).runs()
    assert [(run.commit, run.message) for run in runs] == [(first, "First commit")] * 3
    assert (runner.work / outputs["site"] / "index.html").is_file()
    assert (runner.work / "latencylab-gate" / "report.html").is_file()

    second = runner.commit("Read the result at once")
    code, outputs, summary = runner("slow", second, **what)
    assert (code, outputs["code"]) == (1, "1")
    assert "regression" in summary.lower()
    assert (runner.work / outputs["summary"]).read_text() == summary
    assert len(History.open(history).runs()) == 3  # what is not on main changes nothing

    code, outputs, _ = runner("slow", second, config="another", **what)
    assert (code, outputs["code"]) == (3, "3")
    code, outputs, _ = runner("slow", second, config="another", record="true", **what)
    assert (code, outputs["code"]) == (0, "3")
    assert len(History.open(history).runs("another")) == 3
