"""Phi-4: ``<|tool_call|>[{"name": …, "arguments": {…}}]<|/tool_call|>``; its larger sizes write
``functools[{…}]`` in plain letters and no closing mark."""

from __future__ import annotations

from rustedvino.text.tools.framed import Frame

FRAME = Frame(openers=("<|tool_call|>", "functools["), closers=("<|/tool_call|>",), array=True)
