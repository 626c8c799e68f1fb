"""The captures that come with the project: see `samples/README.md`."""

from __future__ import annotations

from pathlib import Path

from latencylab.model.integrity import InputError

SAMPLES = ("nextn", "nextn-host-stall", "dspark", "plain", "nextn-tp2-stall", "dspark-tp2-stall")


def sample_path(name: str) -> Path:
    """The folder of a sample capture. Raises InputError where it is unknown or not installed.

    An installed package holds `nextn-host-stall` alone, a checkout all of them.
    """
    folder = Path(__file__).parent / "samples" / name
    if name not in SAMPLES:
        raise InputError(f"{name}: no such sample; there are {', '.join(SAMPLES)}")
    if not folder.is_dir():
        raise InputError(f"{name}: this sample comes with the source checkout, not with the package")
    return folder
