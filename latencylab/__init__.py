"""latencylab: whose fault is each idle microsecond of a batch-1 decode step."""

from importlib.metadata import version

__version__ = version("latencylab")
