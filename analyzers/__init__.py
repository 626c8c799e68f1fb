"""Analyses: pure passes from a trace's columns to frozen findings; no files, no printing, no plotting."""

from latencylab.analyzers.analyze import analyze, analyze_examined, examine, host_window, kind_in_front

__all__ = ["analyze", "analyze_examined", "examine", "host_window", "kind_in_front"]
