"""How a lack of memory shows in what native libraries and the interpreter say."""

import re
from typing import Final

OUT_OF_MEMORY: Final = "out_of_memory"
"""The kind of a fault whose cause is a lack of memory, of the system or of the device."""

# From public reports, and from loads under a limit on their address space.
_TEXT: Final = re.compile(
    r"\bbad_alloc\b|\bMemoryError\b|\bout of memory\b|CL_MEM_OBJECT_ALLOCATION_FAILURE|CL_OUT_OF_HOST_MEMORY"
    r"|ZE_RESULT_ERROR_OUT_OF_(?:HOST|DEVICE)_MEMORY|\bcan ?not allocate memory\b|\binsufficient memory\b"
    r"|\bnot enough memory\b|\bfailed to allocate (?:\d+ bytes|memory)\b|\bcan't alloc\b"
    r"|\brequire more memory than available\b|\bfailed to map segment from shared object(?!: Operation not permitted)",
    re.IGNORECASE,
)


def speaks_of_memory(text: str) -> bool:
    """Whether a text of the runtime, a driver or the interpreter says that memory ran out."""
    return _TEXT.search(text) is not None


def described(text: str) -> str:
    """The text of such a fault as it is shown: it always says "out of memory", which not every library does."""
    return text if "out of memory" in text.lower() else f"out of memory: {text}"
