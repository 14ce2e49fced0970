"""Text of generated tokens, one token at a time.

Most tokenizers turn a token into bytes without looking at its neighbours, so a table from id to text is all
the state a stream needs. The table is filled on first use and shared by every stream of a model. The few
tokenizers whose decoder looks at neighbours (WordPiece) decode a short window of ids instead.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import attrs

INCOMPLETE_TOKENS_MAX: Final = 4
"""A UTF-8 character has at most 4 bytes, so an incomplete one spans at most this many tokens."""

REPLACEMENT: Final = "\ufffd"


class TokenSource(Protocol):
    """What decoding needs of a tokenizer."""

    def id_to_token(self, token_id: int, /) -> str | None:
        """Return the vocabulary entry of an id, None if there is none."""
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of the ids."""
        ...


class TokenDecoder(Protocol):
    """Incremental decoder of one sequence.

    Special tokens are kept in the text. Neither method raises on any id. A caller that treats a control
    token by its id calls `flush` first and does not push that id.
    """

    def push(self, token_id: int) -> str:
        """Return the text that became final with this token; "" while a character is incomplete."""
        ...

    def flush(self) -> str:
        """Return what is held back: one U+FFFD if the bytes never became a character, else ""."""
        ...


def _byte_level_alphabet() -> dict[str, int]:
    """The printable stand-ins byte-level vocabularies use for the 256 bytes."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in set(kept)]
    alphabet = {chr(byte): byte for byte in kept}
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(shifted)})
    return alphabet


BYTE_LEVEL_ALPHABET: Final = _byte_level_alphabet()


@attrs.frozen
class DecoderRules:
    """How a token becomes text, for decoders that look at one token at a time."""

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    strip_char: str = " "
    strip_left: int = 0
    """How many leading `strip_char` the whole text loses at its very beginning."""
    first_token_drops: str = ""
    """A character that vanishes from the first token of a text (Metaspace)."""

    def token_bytes(self, token: str) -> bytes:
        """Return the bytes of one vocabulary entry that is not the first of its text."""
        if self.byte_level:
            try:
                return bytes([BYTE_LEVEL_ALPHABET[char] for char in token])
            except KeyError:
                return token.encode("utf-8", "replace")
        for pattern, content in self.replacements:
            token = token.replace(pattern, content)
        if self.byte_fallback and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            try:
                return bytes([int(token[3:5], 16)])
            except ValueError:
                pass  # looks like a byte token and is none: plain text
        return token.encode("utf-8", "replace")


def decoder_rules(decoder: dict[str, Any] | None) -> DecoderRules | None:
    """Return the rules of a tokenizer.json decoder, None if it needs neighbouring tokens or is unknown."""
    if decoder is None:
        return None
    kind = decoder.get("type")
    if kind == "ByteLevel":
        return DecoderRules(byte_level=True)
    if kind == "Metaspace":
        mark = str(decoder.get("replacement", "▁"))
        scheme = decoder.get("prepend_scheme", "always")
        return DecoderRules(replacements=((mark, " "),), first_token_drops="" if scheme == "never" else mark)
    if kind != "Sequence":
        return None
    steps = decoder.get("decoders", [])
    if len(steps) == 1:
        return decoder_rules(steps[0])
    replacements: list[tuple[str, str]] = []
    byte_fallback = fused = False
    strip_char, strip_left = " ", 0
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)} if (
                not fused and not byte_fallback
            ):
                replacements.append((pattern, content))
            case {"type": "ByteFallback"} if not fused:
                byte_fallback = True
            case {"type": "Fuse"}:
                fused = True
            case {"type": "Strip", "content": str(char), "start": int(start), "stop": 0} if fused and not strip_left:
                strip_char, strip_left = char, start
            case _:
                return None
    return DecoderRules(
        byte_fallback=byte_fallback,
        replacements=tuple(replacements),
        strip_char=strip_char,
        strip_left=strip_left,
    )


class TokenTable(dict[int, "str | bytes"]):
    """Text of each id: `str` if it is whole characters, else `bytes`. Filled on first use."""

    def __init__(self, rules: DecoderRules, id_to_token: Callable[[int], str | None]) -> None:
        super().__init__()
        self.rules = rules
        self._id_to_token = id_to_token

    def __missing__(self, token_id: int) -> str | bytes:
        token = self.token(token_id)
        if token is None:
            return ""  # not stored: the ids that do not exist are without number
        data = self.rules.token_bytes(token)
        try:
            piece: str | bytes = data.decode()
        except UnicodeDecodeError:
            piece = data
        self[token_id] = piece
        return piece

    def token(self, token_id: int) -> str | None:
        """Return the vocabulary entry of any integer, None outside the vocabulary."""
        try:
            return self._id_to_token(token_id)
        except OverflowError:
            return None


@attrs.define(eq=False)
class TableDecoder:
    """Decoder of one sequence on a shared table. Its whole state is at most 3 bytes."""

    _table: TokenTable
    _pending: bytes = b""
    _at_start: bool = False
    _strip_left: int = 0

    def push(self, token_id: int) -> str:
        """See `TokenDecoder.push`."""
        piece = self._table[token_id]
        if self._at_start:
            return self._push_first(token_id, piece)
        if not self._pending and type(piece) is str:
            return piece
        return self._complete(piece)

    def flush(self) -> str:
        """See `TokenDecoder.flush`."""
        if not self._pending:
            return ""
        self._pending = b""
        return REPLACEMENT

    def _complete(self, piece: str | bytes) -> str:
        data = self._pending + (piece.encode("utf-8", "replace") if isinstance(piece, str) else piece)
        text, consumed = codecs.utf_8_decode(data, "replace", False)
        self._pending = data[consumed:]
        return text

    def _push_first(self, token_id: int, piece: str | bytes) -> str:
        rules = self._table.rules
        if rules.first_token_drops:
            token = self._table.token(token_id)
            if token is None:
                return ""
            self._at_start = False
            return self._complete(rules.token_bytes(token.replace(rules.first_token_drops, "")))
        text = self._complete(piece)
        stripped = text
        while self._strip_left and stripped.startswith(rules.strip_char):
            stripped = stripped[len(rules.strip_char) :]
            self._strip_left -= 1
        self._at_start = not stripped and self._strip_left > 0
        return stripped


@attrs.define(eq=False)
class WindowDecoder:
    """Decoder for tokenizers whose text of a token depends on its neighbours.

    Decodes the ids of the last step together with the new one; what it adds is the new text.
    """

    _source: TokenSource
    _ids: list[int] = attrs.field(factory=list)
    _shown: int = 0
    """How many of `_ids` are already part of the emitted text."""
    _base: str = ""

    def push(self, token_id: int) -> str:
        """See `TokenDecoder.push`."""
        self._ids.append(token_id)
        text = self._decode(self._ids)
        waiting = len(self._ids) - self._shown
        if text.endswith(REPLACEMENT) and waiting < INCOMPLETE_TOKENS_MAX:
            return ""
        return self._advance(text)

    def flush(self) -> str:
        """See `TokenDecoder.flush`."""
        if len(self._ids) == self._shown:
            return ""
        return self._advance(self._decode(self._ids))

    def _advance(self, text: str) -> str:
        fresh = self._ids[self._shown :]
        # If the neighbour changed text that is already out, go on from there.
        new = text[len(self._base) :] if text.startswith(self._base) else self._decode(fresh)
        self._ids = fresh
        self._shown = len(fresh)
        self._base = self._decode(fresh)
        return new

    def _decode(self, ids: list[int]) -> str:
        try:
            return self._source.decode(ids, skip_special_tokens=False)
        except (OverflowError, ValueError):
            # An id outside the vocabulary: it has no text. The others are decoded without it.
            known = [token_id for token_id in ids if 0 <= token_id < 2**32]
            return "" if known == ids else self._decode(known)


class Decoding:
    """Makes the decoders of one model and owns what they share."""

    def __init__(self, source: TokenSource, decoder: dict[str, Any] | None) -> None:
        """`decoder` is the decoder section of tokenizer.json."""
        self._source = source
        rules = decoder_rules(decoder)
        self.table = TokenTable(rules, source.id_to_token) if rules is not None else None

    def decoder(self, prompt_ids: Sequence[int] = ()) -> TokenDecoder:
        """Return a decoder that continues a text whose last ids are `prompt_ids`."""
        table = self.table
        if table is None:
            seed = list(prompt_ids[-INCOMPLETE_TOKENS_MAX:])
            window = WindowDecoder(self._source)
            for token_id in seed:
                window.push(token_id)
            return window
        if prompt_ids:
            data = b"".join(
                piece.encode("utf-8", "replace") if isinstance(piece, str) else piece
                for piece in (table[token_id] for token_id in prompt_ids[-INCOMPLETE_TOKENS_MAX:])
            )
            _, consumed = codecs.utf_8_decode(data, "replace", False)
            return TableDecoder(table, data[consumed:])
        rules = table.rules
        at_start = bool(rules.first_token_drops) or rules.strip_left > 0
        return TableDecoder(table, b"", at_start, rules.strip_left)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of the ids; always what a stream of the same ids adds up to."""
        decoder = self.decoder()
        parts = [decoder.push(token_id) for token_id in ids]
        parts.append(decoder.flush())
        return "".join(parts)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token inside a text; they need not be whole characters."""
        if self.table is None:
            return WindowDecoder(self._source).push(token_id).encode("utf-8", "replace")
        piece = self.table[token_id]
        return piece.encode("utf-8", "replace") if isinstance(piece, str) else piece

    def use_window(self) -> None:
        """Give up the table: decode through the tokenizer."""
        self.table = None
