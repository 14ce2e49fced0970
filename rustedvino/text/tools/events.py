"""What the parsers report: frozen values in the order in which the model wrote them."""

from __future__ import annotations

from typing import TypeAlias

import attrs


@attrs.frozen(slots=True)
class Reasoning:
    """Text of the model's thinking, for ``reasoning_content``. Never empty."""

    text: str


@attrs.frozen(slots=True)
class Content:
    """Text of the answer. Never empty."""

    text: str


@attrs.frozen(slots=True)
class ToolCallStart:
    """A call begins; indexes count up from 0 without gaps and each name comes exactly once."""

    index: int
    name: str


@attrs.frozen(slots=True)
class ToolCallArguments:
    """The next part of a call's arguments. The parts of a complete call join to a JSON object."""

    index: int
    fragment: str


@attrs.frozen(slots=True)
class ToolCallEnd:
    """A call is over.

    ``complete`` is false when the output ended inside the arguments or when they stopped being
    JSON; the fragments delivered are then what the model wrote so far.
    """

    index: int
    complete: bool = True


Event: TypeAlias = Reasoning | Content | ToolCallStart | ToolCallArguments | ToolCallEnd
