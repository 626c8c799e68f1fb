"""latencylab: whose fault is each idle microsecond of a batch-1 decode step."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from latencylab.api import Opened

__version__ = version("latencylab")
__all__ = ["open"]


def open(*paths: str, **options: Any) -> Opened:  # noqa: A001 - latencylab.open(path) is how it reads
    """Open and analyse a capture; see `latencylab.api.open_analysed`, which is imported only now."""
    from latencylab.api import open_analysed

    return open_analysed(*paths, **options)
