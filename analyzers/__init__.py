"""Analyses: pure passes from a trace's columns to frozen findings; no files, no printing, no plotting."""

from latencylab.analyzers.analyze import analyze, analyze_views, host_window, view_ranks

__all__ = ["analyze", "analyze_views", "host_window", "view_ranks"]
