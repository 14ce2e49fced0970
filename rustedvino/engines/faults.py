"""Classification of what the runtime raises, by what can be done about it."""

import re
from typing import Final, Literal

FaultKind = Literal["bad_input", "capacity", "poisoned_device", "unknown"]

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
    (
        re.compile(
            r"bad_alloc|out of memory|CL_MEM_OBJECT_ALLOCATION_FAILURE|CL_OUT_OF_HOST_MEMORY|Exceeded max size"
            r"|can ?not allocate memory|insufficient memory",
            re.IGNORECASE,
        ),
        "capacity",
    ),
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
    if isinstance(error, MemoryError):
        return EngineFault("capacity", "out of memory")
    text = str(error).strip() or type(error).__name__
    for pattern, kind in _TABLE:
        if pattern.search(text):
            return EngineFault(kind, _last_line(text))
    return EngineFault(otherwise, _last_line(text))


def _last_line(text: str) -> str:
    """The runtime prefixes its messages with source positions, each on a line of its own; the reason is last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else text)[:2000]
