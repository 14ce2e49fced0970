"""Gemma 3: calls in a fenced block, as Python (```` ```tool_code ````) or as JSON (```` ```json ````), or
without a fence when the answer is nothing but calls (``[f(a=1)]`` or ``{"name": …, "parameters": {…}}``)."""

from __future__ import annotations

from rustedvino.text.tools.framed import Frame, Notation

FRAME = Frame(
    openers=("```tool_code", "```tool_call", "```json"),
    closers=("```",),
    bare="{[",
    array=True,
    strict=True,
    named=Notation.PYTHON,
)
