"""Reading and writing traces and captures.

`open_capture` is the door: a capture folder, trace files or a glob in, a `Capture` out.
"""

from latencylab.traces.bundle import (
    read_client,
    read_clock,
    read_manifest,
    write_client,
    write_clock,
    write_manifest,
)
from latencylab.traces.open import open_capture, read_text
from latencylab.traces.samples import SAMPLES, sample_path
from latencylab.traces.trim import trim_capture, trim_file

__all__ = [
    "SAMPLES",
    "open_capture",
    "read_client",
    "read_clock",
    "read_manifest",
    "read_text",
    "sample_path",
    "trim_capture",
    "trim_file",
    "write_client",
    "write_clock",
    "write_manifest",
]
