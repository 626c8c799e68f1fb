"""Renderers of an `Analysis`: pure functions from plain data to JSON, text, tables and HTML."""
