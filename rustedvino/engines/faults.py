"""Classification of what the runtime raises, by what can be done about it."""

import re
from typing import Final, Literal

from rustedvino.worker.out_of_memory import OUT_OF_MEMORY, described, speaks_of_memory

FaultKind = Literal["bad_input", "capacity", "out_of_memory", "poisoned_device", "unknown"]

BAD_INPUT: Final = "bad_input"
CAPACITY: Final = "capacity"
POISONED_DEVICE: Final = "poisoned_device"
UNKNOWN: Final = "unknown"

# Texts of the runtime and its GPU stack, from public reports. First match wins.
_TABLE: Final[tuple[tuple[re.Pattern[str], FaultKind], ...]] = (
    (
        re.compile(
            r"CL_OUT_OF_RESOURCES|CL_DEVICE_NOT_AVAILABLE|CL_INVALID_COMMAND_QUEUE|DEVICE_LOST"
            r"|clFinish|clWaitForEvents|clFlush|fence.{0,20}time.?out|GPU hang|ocl_?error"
            r"|\[GPU\].{0,40}out of resources",
            re.IGNORECASE,
        ),
        "poisoned_device",
    ),
    # One buffer larger than the device allows at all: more free memory does not help.
    (re.compile(r"Exceeded max size", re.IGNORECASE), "capacity"),
)


class EngineFault(Exception):
    """A fault of an engine with its kind; ``message`` is fit for a client and holds no stack trace."""

    def __init__(self, kind: FaultKind, message: str) -> None:
        super().__init__(message)
        self.kind: FaultKind = kind
        self.message = message


def classify(error: BaseException, *, otherwise: FaultKind = "unknown") -> EngineFault:
    """Turn any exception into an EngineFault; ``otherwise`` is the kind of a text that the table does not know."""
    if isinstance(error, EngineFault):
        return error
    text = str(error).strip() or type(error).__name__
    if isinstance(error, MemoryError):
        return EngineFault(OUT_OF_MEMORY, described(_last_line(text)))
    for pattern, kind in _TABLE:
        if pattern.search(text):
            return EngineFault(kind, _last_line(text))
    if speaks_of_memory(text):
        return EngineFault(OUT_OF_MEMORY, described(_last_line(text)))
    return EngineFault(otherwise, _last_line(text))


def _last_line(text: str) -> str:
    """The runtime prefixes its messages with source positions, each on a line of its own; the reason is last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else text)[:2000]
