"""Parsers of what a model writes: tool calls in every dialect, and whole answers with reasoning."""
