"""Llama 3.2 and 4 and others: the whole answer is a list of Python calls, ``[f(a=1, b="x"), g()]``."""

from __future__ import annotations

from rustedvino.text.tools.framed import Frame, Notation

FRAME = Frame(
    openers=("<|python_start|>", "<|python_tag|>"),
    closers=("<|python_end|>",),
    bare="[",
    array=True,
    json=False,
    named=Notation.PYTHON,
)
