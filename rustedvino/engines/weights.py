"""A check of weights files before the runtime maps them: a truncated one would be a bus error later."""

import re
from pathlib import Path

from rustedvino.engines.faults import EngineFault

_CONST = re.compile(rb'<data [^>]*?offset="(\d+)"[^>]*? size="(\d+)"')


def check_weights(folder: Path) -> None:
    """Check every ``*.xml`` with its ``*.bin`` in ``folder``.

    Raises EngineFault naming the file when a graph is empty or points beyond the end of its weights.
    """
    for graph in sorted(folder.glob("openvino_*.xml")):
        text = graph.read_bytes()
        if not text.strip():
            raise EngineFault("bad_input", f"{graph.name} is empty")
        needed = max((int(offset) + int(size) for offset, size in _CONST.findall(text)), default=0)
        weights = graph.with_suffix(".bin")
        have = weights.stat().st_size if weights.exists() else 0
        if have < needed:
            raise EngineFault(
                "bad_input",
                f"{weights.name} has {have} bytes where {graph.name} needs {needed}: it is truncated or missing",
            )
