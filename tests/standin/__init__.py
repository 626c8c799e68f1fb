"""Stand-ins for torch and SGLang: as much of them as the plugin touches, without a GPU."""

from __future__ import annotations
