"""Keeps sequences apart that the runtime's prefix cache would mix up.

A block of the cache that is partly filled is found by a prompt that begins with all that the block's owner had. Whole
blocks are only read; this one is written to, and with several sequences on it this version of the runtime spoils the
answer of one of them, now and then. Two branches of one conversation, asked at the same time, are such a case. So a
prompt that would find a block like that does not join as long as another sequence that begins alike is in the batch.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

TOKEN_BYTES: Final = 4
LEAST_ENDS: Final = 4096
ENDS_PER_BLOCK: Final = 16
"""Remembered ends for each block of the pool, at about 100 bytes each. The cache keeps what is used, however old it is,
so far more are remembered than there are blocks; those that the cache has dropped are remembered in vain."""


class PrefixGuard:
    """Knows at which tokens cached blocks may end. Contents (prompt and answer) are int32 token ids as bytes.

    Beginnings are compared by hashes of 64 bit; a collision would make a prompt wait in vain.
    """

    def __init__(self, block_size: int, num_blocks: int) -> None:
        self._block_size = block_size
        self._capacity = LEAST_ENDS + num_blocks * ENDS_PER_BLOCK
        self._ends: OrderedDict[int, None] = OrderedDict()
        self._random = np.random.default_rng()
        self._factors = self._more_factors(1024)

    def remember(self, content: bytes, prompt_tokens: int) -> None:
        """A sequence has left the batch: its last block stays in the cache."""
        hashes = self._hashes(content)
        for count in {prompt_tokens, *_last_counts(content)}:
            if count > 0 and count % self._block_size:
                key = int(hashes[count - 1])
                self._ends[key] = None
                self._ends.move_to_end(key)
        while len(self._ends) > self._capacity:
            self._ends.popitem(last=False)

    def must_wait(self, prompt: bytes, running: Iterable[bytes], new: Iterable[bytes]) -> bool:
        """Whether ``prompt`` must not join the sequences whose contents are ``running``, and ``new``: those that no
        step has seen yet, of which nothing is in the cache."""
        end: int | None = None
        for content, own in [*((each, True) for each in running), *((each, False) for each in new)]:
            common = common_tokens(prompt, content)
            if not common:
                continue
            if own and common % self._block_size and common >= _last_counts(content)[0]:
                return True  # the sequence's own last block
            if end is None:
                end = self._first_end(prompt)
            if end <= common:
                return True
        return False

    def _first_end(self, prompt: bytes) -> int:
        """The shortest beginning of a prompt with which a cached block may end; more than its tokens: none."""
        hashes = self._hashes(prompt).tolist()
        return next((count for count, key in enumerate(hashes, 1) if key in self._ends), len(hashes) + 1)

    def _hashes(self, content: bytes) -> Any:
        """A hash of each beginning, from one token to all."""
        tokens = np.frombuffer(content, "<i4").astype(np.uint64)
        while len(self._factors) < len(tokens):
            self._factors = np.concatenate([self._factors, self._more_factors(len(self._factors))])
        return np.cumsum((tokens + np.uint64(1)) * self._factors[: len(tokens)], dtype=np.uint64)

    def _more_factors(self, count: int) -> Any:
        return self._random.integers(0, 2**64, count, dtype=np.uint64, endpoint=False)


def common_tokens(first: bytes, second: bytes) -> int:
    """How many tokens two contents have in common at their beginning."""
    size = min(len(first), len(second)) // TOKEN_BYTES
    differ = np.frombuffer(first, "<i4", size) != np.frombuffer(second, "<i4", size)
    return int(differ.argmax()) if differ.any() else size


def _last_counts(content: bytes) -> tuple[int, int]:
    """Where the blocks of a content may end: its last token is chosen, but perhaps not computed yet."""
    count = len(content) // TOKEN_BYTES
    return count - 1, count
