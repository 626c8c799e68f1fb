"""What a manifest says of the machine, the software and the faults."""

from __future__ import annotations

import subprocess

from latencylab.runtime.provenance import (
    code_commit,
    merged_faults,
    without_secrets,
    world_size,
)


def test_commit_of_a_checkout(tmp_path):
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@x", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    program = tmp_path / "program.py"
    program.write_text("1")
    assert code_commit(None, program) == {"commit": None}
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "x")
    assert code_commit(None, program) == {"commit": None}  # not tracked: it only lies there
    git("add", "program.py")
    git("commit", "-q", "-m", "y")
    head = git("rev-parse", "HEAD")
    assert code_commit(None, program) == {"commit": head, "commit_of": "program.py", "dirty": False}
    program.write_text("2")
    assert code_commit(None, tmp_path) == {"commit": head, "commit_of": "working folder", "dirty": True}


def test_secrets_stay_out():
    given = {"api_key": 1, "admin_api_key": 1, "HF_TOKEN": 1, "ssl_keyfile_password": 1, "tokenizer_path": 2}
    assert without_secrets(given) == {"tokenizer_path": 2}
    given = {"watermark_key": 1, "watermark_key_b": 1, "SGLANG_X_TOKEN": 1, "speculative_token_map": 2}
    assert without_secrets(given) == {"speculative_token_map": 2}


def test_world_size():
    assert world_size({"tp_size": 4, "pp_size": 2}, {}) == 8
    assert world_size({"tp_size": 4}, {0: {"world_size": 2}}) == 2
    assert world_size({}, {}) is None
    assert world_size({"tp_size": "x"}, {}) is None


def test_faults_of_all_ranks():
    states = {
        0: {"faults": {"sleep": {"us": 5, "active": False}, "gc": {"every": 2, "active": True}}},
        1: {"faults": {"sleep": {"us": 5, "active": True}}},
    }
    assert merged_faults(states) == {
        "sleep": {"us": 5, "ranks": [1]},
        "gc": {"every": 2, "ranks": [0]},
    }
