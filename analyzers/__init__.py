"""Analyses: pure passes from a trace's columns to frozen findings; no files, no printing, no plotting."""

from latencylab.analyzers.analyze import analyze, host_window

__all__ = ["analyze", "host_window"]
