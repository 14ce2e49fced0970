"""Llama 3.1 and later: the whole answer is ``{"name": …, "parameters": {…}}``, several are separated by
``;`` or line ends, and ``<|python_tag|>`` may stand in front."""

from __future__ import annotations

from rustedvino.text.tools.framed import Frame

FRAME = Frame(openers=("<|python_tag|>",), bare="{[", array=True)
