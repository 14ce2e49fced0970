"""Keeps sequences apart that the runtime's prefix cache would mix up.

A block of the cache that is partly filled is found by a prompt that begins with all that the block's owner had. Whole
blocks are only read; this one is written to, and with several sequences on it this version of the runtime spoils the
answer of one of them, now and then. Two branches of one conversation, asked at the same time, are such a case. So a
prompt that would find a block like that does not join as long as another sequence that begins alike is in the batch.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

TOKEN_BYTES: Final = 4
LEAST_ENDS: Final = 4096
ENDS_PER_BLOCK: Final = 16
"""Remembered ends for each block of the pool, at about 100 bytes each. The cache keeps what is used, however old it is,
so far more are remembered than there are blocks; those that the cache has dropped are remembered in vain."""


class PrefixGuard:
    """Knows at which tokens cached blocks may end. Contents (prompt and answer) are int32 token ids as bytes."""

    def __init__(self, block_size: int, num_blocks: int) -> None:
        self._block_size = block_size
        self._capacity = LEAST_ENDS + num_blocks * ENDS_PER_BLOCK
        self._ends: OrderedDict[bytes, None] = OrderedDict()

    def remember(self, content: bytes, prompt_tokens: int) -> None:
        """A sequence has left the batch: its last block stays in the cache."""
        for count in {prompt_tokens, *_last_counts(content)}:
            if count % self._block_size:
                key = _digest(content[: count * TOKEN_BYTES])
                self._ends[key] = None
                self._ends.move_to_end(key)
        while len(self._ends) > self._capacity:
            self._ends.popitem(last=False)

    def must_wait(self, prompt: bytes, running: Iterable[bytes], new: Iterable[bytes]) -> bool:
        """Whether ``prompt`` must not join the sequences whose contents are ``running``, and ``new``: those that no
        step has seen yet, of which nothing is in the cache."""
        return any(self._shares(prompt, content, new=False) for content in running) or any(
            self._shares(prompt, content, new=True) for content in new
        )

    def _shares(self, prompt: bytes, content: bytes, *, new: bool) -> bool:
        common = common_tokens(prompt, content)
        start = common // self._block_size * self._block_size
        if start == common:
            return False  # whole blocks, or nothing
        if not new and common >= _last_counts(content)[0]:
            return True  # the sequence's own last block
        return any(key in self._ends for key in _digests(prompt, start, common))


def common_tokens(first: bytes, second: bytes) -> int:
    """How many tokens two contents have in common at their beginning."""
    size = min(len(first), len(second)) // TOKEN_BYTES
    differ = np.frombuffer(first, "<i4", size) != np.frombuffer(second, "<i4", size)
    return int(differ.argmax()) if differ.any() else size


def _last_counts(content: bytes) -> tuple[int, int]:
    """Where the blocks of a content may end: its last token is chosen, but perhaps not computed yet."""
    count = len(content) // TOKEN_BYTES
    return count - 1, count


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _digests(content: bytes, start: int, end: int) -> Iterator[bytes]:
    """Digests of the first start + 1, …, end tokens."""
    running = hashlib.blake2b(content[: start * TOKEN_BYTES], digest_size=16)
    for count in range(start, end):
        running.update(content[count * TOKEN_BYTES : (count + 1) * TOKEN_BYTES])
        yield running.digest()
