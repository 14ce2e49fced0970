"""Hermes and Qwen3: ``<tool_call>\\n{"name": …, "arguments": {…}}\\n</tool_call>``, one pair of tags per call."""

from __future__ import annotations

from rustedvino.text.tools.framed import Frame

FRAME = Frame(openers=("<tool_call>",), closers=("</tool_call>",))
