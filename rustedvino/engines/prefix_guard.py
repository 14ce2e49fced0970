"""Keeps prompts apart that the runtime's prefix cache would mix up.

The cache finds a block that is partly filled when a prompt begins with all that the block's owner had. When two prompts
that both begin so, and then differ, are processed at the same time, this version of the runtime lets both write into
that one block, and the answer to the first is spoiled. Two branches of one conversation are such prompts. One after the
other is fine: by then the first has a block of its own. Whole blocks are never written to.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

TOKEN_BYTES: Final = 4
ENDS_PER_BLOCK: Final = 4
"""Remembered ends for each block of the pool; what the cache has dropped meanwhile is remembered in vain."""


class PrefixGuard:
    """Knows at which tokens cached blocks may end. Contents are int32 token ids as bytes."""

    def __init__(self, block_size: int, num_blocks: int) -> None:
        self._block_size = block_size
        self._capacity = num_blocks * ENDS_PER_BLOCK
        self._ends: OrderedDict[bytes, None] = OrderedDict()

    def remember(self, content: bytes, *tokens: int) -> None:
        """A sequence has ended, or is shared: its blocks may end after so many ``tokens`` of its content."""
        for count in tokens:
            if count % self._block_size:
                key = _digest(content[: count * TOKEN_BYTES])
                self._ends[key] = None
                self._ends.move_to_end(key)
        while len(self._ends) > self._capacity:
            self._ends.popitem(last=False)

    def clashes(self, prompt: bytes, others: Iterable[bytes]) -> bool:
        """Whether ``prompt`` must wait for one of ``others``, prompts that are being processed."""
        return any(self._clash(prompt, other) for other in others)

    def _clash(self, prompt: bytes, other: bytes) -> bool:
        if prompt == other:
            return False  # both write the same
        common = common_tokens(prompt, other)
        start = common // self._block_size * self._block_size
        return any(key in self._ends for key in _digests(prompt, start, common))


def common_tokens(first: bytes, second: bytes) -> int:
    """How many tokens two contents have in common at their beginning."""
    size = min(len(first), len(second)) // TOKEN_BYTES
    differ = np.frombuffer(first, "<i4", size) != np.frombuffer(second, "<i4", size)
    return int(differ.argmax()) if differ.any() else size


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _digests(content: bytes, start: int, end: int) -> Iterator[bytes]:
    """Digests of the first start + 1, …, end tokens."""
    running = hashlib.blake2b(content[: start * TOKEN_BYTES], digest_size=16)
    for count in range(start, end):
        running.update(content[count * TOKEN_BYTES : (count + 1) * TOKEN_BYTES])
        yield running.digest()
