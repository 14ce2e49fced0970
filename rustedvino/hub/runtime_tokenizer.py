"""Tokenizing by a model's worker, for models without a usable tokenizer.json.

The runtime's own tokenizer encodes; decoding uses its vocabulary, fetched once after each load, so that streaming
costs no message per token.
"""

import codecs
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from attrs import define, field

from rustedvino.hub.calls import Call
from rustedvino.hub.errors import EngineFailed
from rustedvino.text.decoding import DecoderRules, TableDecoder, TokenDecoder, TokenTable
from rustedvino.text.markers import ControlMarker, alternation

_SEED_TOKENS: Final = 4
"""Last tokens of a prompt that a continuing decoder looks at: a character has at most four bytes."""


class _VocabularyTable(TokenTable):
    """A table made from whole vocabulary entries as bytes."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        super().__init__(DecoderRules(), lambda token_id: None)
        for token_id, data in enumerate(tokens):
            try:
                self[token_id] = data.decode()
            except UnicodeDecodeError:
                self[token_id] = data


@define(eq=False)
class RuntimeTokenizer:
    """The same surface as ModelTokenizer, with encoding that waits for the worker.

    Control strings are those of ``tokenizer_config.json``, the only place that names them here.
    """

    marker: ControlMarker
    control_tokens: MappingProxyType[str, int]
    special_tokens: frozenset[str]
    call: Call | None = None
    """The way to the worker, while the model is loaded."""
    bos_token_ids: tuple[int, ...] = ()
    _table: _VocabularyTable = field(factory=lambda: _VocabularyTable(()))
    _strip_left: int = 0
    _occurrence: re.Pattern[str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._occurrence = re.compile(f"(?={alternation(text for text in self.control_tokens if len(text) > 1)})")

    @classmethod
    def from_folder(cls, folder: Path) -> "RuntimeTokenizer":
        """Read the control strings. Raises ValueError or OSError for a broken file."""
        controls: dict[str, int] = {}
        special: set[str] = set()
        path = folder / "tokenizer_config.json"
        if path.is_file():
            entries = json.loads(path.read_bytes()).get("added_tokens_decoder")
            for number, entry in (entries if isinstance(entries, dict) else {}).items():
                content = entry.get("content")
                if isinstance(content, str) and content.strip():
                    controls[content] = int(number)
                    if entry.get("special"):
                        special.add(content)
        return cls(ControlMarker(controls), MappingProxyType(controls), frozenset(special))

    async def fetch(self) -> None:
        """Fetch the vocabulary of the worker that has just loaded the model. Raises EngineFailed."""
        answer = await self._ask("vocabulary", {})
        tokens = answer.get("tokens") if isinstance(answer, dict) else None
        if not isinstance(tokens, list) or not all(isinstance(token, bytes) for token in tokens):
            raise EngineFailed("the worker gave no vocabulary")
        self._table = _VocabularyTable(tokens)
        self._strip_left = 1 if answer.get("strips_first_space") else 0

    @property
    def vocab_size(self) -> int:
        """Number of ids; 0 before the model has been loaded."""
        return len(self._table)

    async def encode_raw(self, text: str, *, parse_special: bool = True, add_special_tokens: bool = True) -> list[int]:
        """Ids of a raw prompt, as ModelTokenizer.encode_raw."""
        pieces = [text] if parse_special else self._cut(text)
        head = await self._encode(pieces[:1], add_special_tokens=add_special_tokens)
        tail = await self._encode(pieces[1:], add_special_tokens=False)
        return [token for ids in (*head, *tail) for token in ids]

    async def encode_rendered(self, rendered: str) -> list[int]:
        """Ids of a rendered chat template whose client strings went through ``marker``."""
        pieces = self.marker.split(rendered)
        plain = [self._cut(piece.text) for piece in pieces if not piece.control]
        encoded = iter(await self._encode([text for cut in plain for text in cut], add_special_tokens=False))
        lengths = iter([len(cut) for cut in plain])
        ids: list[int] = []
        for piece in pieces:
            if piece.control:
                ids.append(self.control_tokens[piece.text])
            else:
                for _ in range(next(lengths)):
                    ids += next(encoded)
        return ids

    def _cut(self, text: str) -> list[str]:
        """Cut text inside each of its control strings: the runtime would take a whole one as a control token."""
        if not self.control_tokens:
            return [text] if text else []
        bounds = [0, *(match.start() + 1 for match in self._occurrence.finditer(text)), len(text)]
        return [text[start:end] for start, end in itertools.pairwise(bounds) if end > start]

    async def _encode(self, texts: list[str], *, add_special_tokens: bool) -> list[list[int]]:
        if not texts:
            return []
        answer = await self._ask("encode", {"texts": texts, "add_special_tokens": add_special_tokens})
        if not isinstance(answer, list) or len(answer) != len(texts):
            raise EngineFailed("the worker did not encode")
        return answer

    async def _ask(self, method: str, arguments: dict[str, Any]) -> Any:
        if self.call is None:
            raise EngineFailed("the model is not loaded, and only its worker can tokenize for it")
        return await self.call(method, arguments)

    def decoder(self, prompt_ids: Sequence[int] = ()) -> TokenDecoder:
        """An incremental decoder, as ModelTokenizer.decoder."""
        if not prompt_ids:
            return TableDecoder(self._table, b"", self._strip_left > 0, self._strip_left)
        data = b"".join(self.token_bytes(token) for token in prompt_ids[-_SEED_TOKENS:])
        _, consumed = codecs.utf_8_decode(data, "replace", False)
        return TableDecoder(self._table, data[consumed:])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids, special tokens included."""
        decoder = self.decoder()
        return "".join([*map(decoder.push, ids), decoder.flush()])

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token."""
        piece = self._table[token_id]
        return piece.encode() if isinstance(piece, str) else piece

    def token_text(self, token_id: int) -> str:
        """The text of one token on its own."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def too_long(self, text: str, limit_tokens: int) -> bool:
        """No bound is known here."""
        return False
