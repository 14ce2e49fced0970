"""The server's tokenizer: text to ids and back, from a model's tokenizer.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer

from rustedvino.text.decoding import BYTE_LEVEL_ALPHABET, Decoding, TokenDecoder
from rustedvino.text.markers import ControlMarker, ControlString
from rustedvino.text.plain import LONG_TEXT_CHARS as LONG_TEXT_CHARS
from rustedvino.text.plain import PlainEncoder, encode_texts, section_of

TOKENIZER_FILE: Final = "tokenizer.json"
_TOKENIZER_MAX_BYTES: Final = 256 * 1024**2

_SHRINKING_BY_AT_MOST: Final = {
    "NFC": 4,
    "NFD": 4,
    "NFKC": 4,
    "NFKD": 4,
    "Lowercase": 4,
    "Prepend": 1,
    "ByteLevel": 1,
}
"""Normalizers that shorten UTF-8 text by at most this factor, however it is chosen."""

_HTML_ELEMENTS: Final = frozenset(
    [
        *(
            "table",
            "caption",
            "thead",
            "tbody",
            "tfoot",
            "tr",
            "th",
            "td",
            "h1",
            "h2",
            "h3",
            "h4",
            "h5",
            "h6",
        ),
        *(
            "blockquote",
            "strong",
            "em",
            "b",
            "i",
            "u",
            "sub",
            "sup",
            "code",
            "p",
            "br",
            "hr",
            "ul",
            "ol",
            "li",
        ),
    ]
)


class TokenizerUnavailable(Exception):
    """The model has no tokenizer.json that can be used; `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ModelTokenizer:
    """Tokenizer of one model. Safe to use from several threads.

    Methods that encode hold the GIL for texts up to `LONG_TEXT_CHARS` and release it for longer ones.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Takes the tokenizer over: truncation and padding are switched off."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.digest: bytes | None = None
        """Of the file that it was read from."""
        self._full = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        control = {token_id: token for token_id, token in added.items() if _is_control(token)}
        self._added: Mapping[str, int] = MappingProxyType(
            {token.content: token_id for token_id, token in added.items()}
        )
        self._control: Mapping[str, int] = MappingProxyType(
            {token.content: token_id for token_id, token in control.items()}
        )
        self._special = frozenset(token.content for token in added.values() if token.special)
        self._vocab_size, self._longest_token_bytes = _measure(tokenizer, max(added, default=-1))
        self.marker = ControlMarker(
            ControlString(
                token.content,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                single_word=token.single_word,
                normalized=token.normalized,
            )
            for token in control.values()
        )
        self._plain = PlainEncoder(tokenizer, added, set(control))
        normalizer = section_of(tokenizer.normalizer)
        # Without marks the ordinary tokenizer gives the ids, unless normalizing client text could
        # produce a control string (full-width letters under NFKC).
        self._always_cut = normalizer is not None and any(token.normalized for token in control.values())
        self._bytes_per_token = self._token_bound(tokenizer, normalizer)
        self._strips_space = any(token.lstrip or token.rstrip for token in added.values())
        self._prefix, self._suffix = _template_ids(tokenizer)
        self._decoding = Decoding(tokenizer, section_of(tokenizer.decoder))
        self._check_table()

    @classmethod
    def from_folder(cls, folder: Path, *, kept: ModelTokenizer | None = None) -> ModelTokenizer:
        """Load `tokenizer.json`; raises TokenizerUnavailable.

        `kept` is the one read before, returned when the file still has the same content: the library never frees
        what a tokenizer has put in its cache of words (measured: 58 KB for each that encoded the probe strings).
        Takes up to a second (0.2 s for 150,000 tokens): run it in a thread, though the library holds the
        GIL for most of it.
        """
        path = folder / TOKENIZER_FILE
        try:
            size = path.stat().st_size
            if size > _TOKENIZER_MAX_BYTES:
                msg = f"{TOKENIZER_FILE} has {size} bytes, more than {_TOKENIZER_MAX_BYTES}"
                raise TokenizerUnavailable(msg)
            data = path.read_bytes()
        except FileNotFoundError:
            msg = f"the folder has no {TOKENIZER_FILE}"
            raise TokenizerUnavailable(msg) from None
        except OSError as error:
            msg = f"{TOKENIZER_FILE} cannot be read: {error.strerror or error}"
            raise TokenizerUnavailable(msg) from error
        digest = hashlib.blake2b(data).digest()
        if kept is not None and kept.digest == digest:
            return kept
        try:
            made = cls(Tokenizer.from_buffer(data))
            made.digest = digest
            return made
        except Exception as error:  # the library raises bare Exception for a bad file
            msg = f"{TOKENIZER_FILE} is broken: {error}"
            raise TokenizerUnavailable(msg) from error

    @property
    def vocab_size(self) -> int:
        """Highest id plus one, added tokens included."""
        return self._vocab_size

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """All added tokens, special or not."""
        return self._added

    @property
    def control_tokens(self) -> Mapping[str, int]:
        """Added tokens, special or not, but for those that are plain text (white space, HTML elements)."""
        return self._control

    @property
    def special_tokens(self) -> frozenset[str]:
        """The added tokens that the vocabulary calls special: an answer's text does not show them."""
        return self._special

    @property
    def longest_token_bytes(self) -> int:
        """Length in bytes of the longest token."""
        return self._longest_token_bytes

    @property
    def bos_token_ids(self) -> tuple[int, ...]:
        """What the tokenizer puts in front of a raw text."""
        return self._prefix

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """What the tokenizer puts behind a raw text (few generative models have any)."""
        return self._suffix

    @property
    def decodes_by_table(self) -> bool:
        """Whether decoding takes the fast way (any byte-level or byte-fallback tokenizer)."""
        return self._decoding.table is not None

    def encode_raw(self, text: str, *, parse_special: bool = True, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a raw prompt.

        `parse_special` False takes control strings in it as plain text. The beginning-of-text tokens are
        not added to a text that starts with them.
        """
        prefix = self._prefix if add_special_tokens else ()
        suffix = self._suffix if add_special_tokens else ()
        if parse_special:
            ids = encode_texts(self._full, [text])[0]
            if prefix and tuple(ids[: len(prefix)]) == prefix:
                prefix = ()
        else:
            ids = self._plain.encode([(text, True)])[0]
        return [*prefix, *ids, *suffix]

    def encode_rendered(self, rendered: str) -> list[int]:
        """Return the ids of a rendered chat template whose client strings went through `marker`."""
        if not self._always_cut and not self.marker.is_marked(rendered):
            return encode_texts(self._full, [rendered])[0]
        return self._encode_cut(rendered)

    def _encode_cut(self, rendered: str) -> list[int]:
        pieces = self.marker.split(rendered)
        plain = iter(self._plain.encode([(piece.text, piece.start) for piece in pieces if not piece.control]))
        ids: list[int] = []
        for piece in pieces:
            if piece.control:
                ids.append(self._control[piece.text])
            else:
                ids.extend(next(plain))
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of the ids, special tokens included: what streaming them adds up to."""
        return self._decoding.decode(ids)

    def decoder(self, prompt_ids: Sequence[int] = ()) -> TokenDecoder:
        """Return an incremental decoder.

        `prompt_ids`: the ids the text continues (raw completions); the first token then keeps its space
        and a character the prompt left incomplete is completed. None for the answer of a chat.
        """
        return self._decoding.decoder(prompt_ids)

    def token_text(self, token_id: int) -> str:
        """Return the text of one token on its own, "" if there is no such id."""
        return self._decoding.decoder((0,)).push(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token inside a text; they need not be whole characters."""
        return self._decoding.token_bytes(token_id)

    def too_long(self, text: str, limit_tokens: int) -> bool:
        """Whether the text surely has more than `limit_tokens` tokens, told from its length alone.

        Never true for a text that fits. Tokenizers that can drop or merge unbounded text (unknown words,
        stripped accents, collapsed spaces) give no bound and always answer False.
        """
        if self._bytes_per_token is None:
            return False
        bound = limit_tokens * self._bytes_per_token
        if len(text) * 4 <= bound:
            return False
        text = self.marker.unmark(text)
        if self._strips_space:  # a token may take any amount of space next to it
            text = "".join(text.split())
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        return size > bound

    def _token_bound(self, tokenizer: Tokenizer, normalizer: dict[str, Any] | None) -> int | None:
        """Return how many bytes of input one token can stand for at most, None if there is no bound."""
        factor = 1
        steps = normalizer.get("normalizers", []) if normalizer and normalizer["type"] == "Sequence" else None
        for step in steps if steps is not None else [normalizer] if normalizer else []:
            if step["type"] == "Replace" and _never_shrinks(step):
                continue
            if step["type"] not in _SHRINKING_BY_AT_MOST:
                return None
            factor *= _SHRINKING_BY_AT_MOST[step["type"]]
        if not _keeps_all_text(section_of(tokenizer.pre_tokenizer)):
            return None
        model = tokenizer.model
        byte_level = '"ByteLevel"' in json.dumps([section_of(tokenizer.pre_tokenizer), normalizer])
        if byte_level:
            whole = all(tokenizer.token_to_id(char) is not None for char in BYTE_LEVEL_ALPHABET)
        else:
            whole = bool(getattr(model, "byte_fallback", False)) and all(
                tokenizer.token_to_id(f"<0x{byte:02X}>") is not None for byte in range(256)
            )
        return factor * self._longest_token_bytes if whole else None

    def _check_table(self) -> None:
        """Decode through the tokenizer if the table would give another text."""
        if self._decoding.table is None:
            return
        step = max(1, self._vocab_size // 128)
        sample = [[token_id] for token_id in range(0, self._vocab_size, step) if self._full.id_to_token(token_id)]
        sample.append(self.encode_raw(" Grüße, 世界! 👩‍👩‍👧\r\n\t  x", parse_special=False))
        for ids in sample:
            reference = self._full.decode(ids, skip_special_tokens=False)
            if "\ufffd" not in reference and self._decoding.decode(ids) != reference:
                self._decoding.use_window()
                return


def _measure(tokenizer: Tokenizer, last_added_id: int) -> tuple[int, int]:
    """Return the highest id plus one and the longest token in bytes.

    Id by id: copying the whole vocabulary would hold the GIL for a tenth of a second.
    """
    left = tokenizer.get_vocab_size(with_added_tokens=True)
    end = 2 * left + last_added_id + 2  # ids with gaps; two entries with one id must not make it endless
    size, longest = 0, 1
    for token_id in range(end):
        token = tokenizer.id_to_token(token_id)
        if token is None:
            continue
        size = token_id + 1
        longest = max(longest, len(token) if token.isascii() else len(token.encode("utf-8", "replace")))
        left -= 1
        if left <= 0 and token_id >= last_added_id:
            break
    return size, longest


def _is_control(token: AddedToken) -> bool:
    if token.special:
        return True
    text = token.content.replace("▁", " ")
    if not text.strip() or all(char.isalnum() or char.isspace() for char in text):
        return False  # words and runs of white space that were added to the vocabulary
    inner = text.removeprefix("<").removeprefix("/").removesuffix(">").lower()
    return not (text.startswith("<") and text.endswith(">") and inner in _HTML_ELEMENTS)


def _template_ids(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return what the tokenizer puts around a raw text."""
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    full = tokenizer.encode("a", add_special_tokens=True).ids
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    return (), ()


def _never_shrinks(replace: Mapping[str, Any]) -> bool:
    pattern = replace["pattern"].get("String")
    return isinstance(pattern, str) and len(replace["content"].encode()) >= len(pattern.encode())


def _keeps_all_text(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    """Whether every character of the text reaches the model."""
    if pre_tokenizer is None:
        return True
    kind = pre_tokenizer["type"]
    if kind == "Sequence":
        return all(_keeps_all_text(step) for step in pre_tokenizer["pretokenizers"])
    if kind in ("Split", "Punctuation"):
        return bool(pre_tokenizer["behavior"] != "Removed")
    return kind in ("ByteLevel", "Metaspace", "Digits", "UnicodeScripts")
