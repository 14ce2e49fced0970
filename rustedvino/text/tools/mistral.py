"""Mistral: ``[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`` and, since the tokenizer of 2025,
``[TOOL_CALLS]name[ARGS]{…}`` with one opening tag per call (some versions write an id in between,
``[CALL_ID]…``, or no ``[ARGS]``)."""

from __future__ import annotations

from rustedvino.text.tools.framed import Frame, Notation

FRAME = Frame(openers=("[TOOL_CALLS]",), inner=("[ARGS]", "[CALL_ID]"), array=True, named=Notation.NAMED_JSON)
