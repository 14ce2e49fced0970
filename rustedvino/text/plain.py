"""Encoding of text in which nothing is a control token."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer

LONG_TEXT_CHARS: Final = 4096
"""Encoding a longer text takes over about 3 ms. It is done without the GIL: run it in a thread."""


class PlainEncoder:
    """Encodes text in which nothing is a control token. Shares the model with the ordinary tokenizer."""

    def __init__(self, full: Tokenizer, added: Mapping[int, AddedToken], control_ids: set[int]) -> None:
        model = full.model
        spellable = any(
            token.id in control_ids
            for token_id in control_ids
            for token in model.tokenize(model.id_to_token(token_id) or "")
        )
        if spellable:
            model = _without_tokens(full, control_ids).model
        pre_tokenizer = section_of(full.pre_tokenizer)
        self._first = Tokenizer(model)
        self._next = self._first
        inner = _never_prepend_first(pre_tokenizer)
        if inner != pre_tokenizer:
            self._next = Tokenizer(model)
        self._remap: dict[int, int] = {}
        texts = [(token_id, token) for token_id, token in sorted(added.items()) if token_id not in control_ids]
        for tokenizer, section in ((self._first, pre_tokenizer), (self._next, inner)):
            shell = _shell(section_of(full.normalizer), section)
            if shell.normalizer is not None:
                tokenizer.normalizer = shell.normalizer
            if shell.pre_tokenizer is not None:
                tokenizer.pre_tokenizer = shell.pre_tokenizer
            tokenizer.add_tokens([token for _, token in texts])
        for token_id, token in texts:
            own_id = self._first.token_to_id(token.content)
            if own_id is not None and own_id != token_id:
                self._remap[own_id] = token_id

    def encode(self, pieces: Sequence[tuple[str, bool]]) -> list[list[int]]:
        """Return the ids of each (text, whether it is the start of the whole text)."""
        if self._next is self._first:
            encoded = encode_texts(self._first, [text for text, _ in pieces])
        else:
            first = iter(encode_texts(self._first, [text for text, start in pieces if start]))
            rest = iter(encode_texts(self._next, [text for text, start in pieces if not start]))
            encoded = [next(first if start else rest) for _, start in pieces]
        if not self._remap:
            return encoded
        return [[self._remap.get(token_id, token_id) for token_id in ids] for ids in encoded]


def encode_texts(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Encode without special tokens; releases the GIL if the texts are long."""
    if sum(map(len, texts)) > LONG_TEXT_CHARS:
        return [item.ids for item in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def section_of(part: Any) -> dict[str, Any] | None:
    """Return a part of a tokenizer as the JSON of tokenizer.json."""
    if part is None:
        return None
    section: dict[str, Any] | None = json.loads(part.__getstate__())
    return section


def _shell(normalizer: dict[str, Any] | None, pre_tokenizer: dict[str, Any] | None) -> Tokenizer:
    """A tokenizer with these parts and no vocabulary to speak of."""
    return Tokenizer.from_str(
        json.dumps(
            {
                "version": "1.0",
                "truncation": None,
                "padding": None,
                "added_tokens": [],
                "normalizer": normalizer,
                "pre_tokenizer": pre_tokenizer,
                "post_processor": None,
                "decoder": None,
                "model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"},
            }
        )
    )


def _never_prepend_first(pre_tokenizer: dict[str, Any] | None) -> dict[str, Any] | None:
    """The pre-tokenizer for text that is not at the start: `prepend_scheme: first` adds nothing there."""
    if pre_tokenizer is None:
        return None
    if pre_tokenizer.get("type") == "Metaspace" and pre_tokenizer.get("prepend_scheme") == "first":
        return {**pre_tokenizer, "prepend_scheme": "never"}
    if pre_tokenizer.get("type") == "Sequence":
        return {
            **pre_tokenizer,
            "pretokenizers": [_never_prepend_first(step) for step in pre_tokenizer["pretokenizers"]],
        }
    return pre_tokenizer


def _without_tokens(full: Tokenizer, ids: set[int]) -> Tokenizer:
    """Return a tokenizer whose model has the same ids but cannot spell these tokens."""
    data = json.loads(full.to_str())
    model = data["model"]
    names = {token_id: f"\U0010f5a1{token_id}\U0010f5a1" for token_id in ids}
    vocab = model["vocab"]
    renamed: dict[str, str] = {}
    if isinstance(vocab, list):  # Unigram: pairs of piece and score, the index is the id
        for token_id in ids:
            if token_id < len(vocab):
                vocab[token_id] = [names[token_id], vocab[token_id][1]]
    else:
        renamed = {token: names[token_id] for token, token_id in vocab.items() if token_id in ids}
        model["vocab"] = {renamed.get(token, token): token_id for token, token_id in vocab.items()}
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = renamed.get(model["unk_token"], model["unk_token"])
    if model.get("merges"):
        model["merges"] = [merge for merge in model["merges"] if not _merge_touches(merge, renamed)]
    data.update(added_tokens=[], post_processor=None, truncation=None, padding=None)
    return Tokenizer.from_str(json.dumps(data))


def _merge_touches(merge: str | list[str], tokens: Mapping[str, str]) -> bool:
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left in tokens or right in tokens or left + right in tokens
