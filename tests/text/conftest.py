"""Tokenizers of every family: those of the models at hand, and small ones of the kinds no model here has."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

import rustedvino
from rustedvino.text.tokenizer import ModelTokenizer

_ROOTS = [
    Path(rustedvino.__file__).parent / "models",
    Path(__file__).parents[1] / "models",
    *([Path(os.environ["RUSTEDVINO_TEST_MODELS"])] if "RUSTEDVINO_TEST_MODELS" in os.environ else []),
]
_FOLDERS = {
    folder.name: folder
    for root in reversed(_ROOTS)
    for folder in sorted(root.iterdir())
    if (folder / "tokenizer.json").is_file()
}
_CHAT_FOLDERS = {name: folder for name, folder in _FOLDERS.items() if (folder / "chat_template.jinja").is_file()}


def _added(token_id: int, content: str, **flags: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} | flags
    return {"id": token_id, "content": content, **flags}


_WORDS = ["he", "ll", "ello", "o", "▁hello", "th", "in", "thin", "think", "▁th", "▁w", "im", "_e", "nd", "use", "user"]
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _bpe(controls: list[dict[str, Any]], *, own_controls: bool, **model: Any) -> dict[str, Any]:
    """A byte-fallback BPE; `own_controls`: the control strings are part of the model's vocabulary."""
    chars = sorted(set("".join(_WORDS) + "▁<>|/[]ABCabcdefghijklmnopqrstuvwxyz0123456789.,!'\"{}:_\n"))
    tokens = ["<unk>", "<s>", "</s>"] + ([token["content"] for token in controls] if own_controls else [])
    tokens = list(dict.fromkeys([*tokens, *_BYTES, *chars, *_WORDS]))
    merges = [
        *(("h", "e"), ("l", "l"), ("t", "h"), ("i", "n"), ("th", "in"), ("▁", "th"), ("▁", "w")),
        *(("i", "m"), ("_", "e"), ("n", "d"), ("u", "se"), ("use", "r")),
    ]
    vocab = {token: index for index, token in enumerate(tokens)}
    merges = [pair for pair in merges if all(part in vocab for part in (*pair, "".join(pair)))]
    base = [_added(0, "<unk>"), _added(1, "<s>"), _added(2, "</s>")]
    for token in controls:
        token["id"] = vocab.setdefault(token["content"], len(vocab)) if own_controls else len(vocab) + token["id"]
    return {
        "version": "1.0",
        "added_tokens": [*base, *controls],
        "model": {
            "type": "BPE",
            "vocab": vocab,
            "merges": merges,
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "dropout": None,
            "ignore_merges": False,
            **model,
        },
    }


def _controls() -> list[dict[str, Any]]:
    return [
        _added(0, "<|im_start|>"),
        _added(1, "<|im_end|>"),
        _added(2, "<think>", special=False),
        _added(3, "</think>", special=False),
        _added(4, "[INST]"),
    ]


_LLAMA_DECODER = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}
_TO_METASPACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}


def _legacy() -> dict[str, Any]:
    """Prepends by normalizer, so behind every control token."""
    prepend = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, _TO_METASPACE]}
    return _bpe(_controls(), own_controls=True) | {"normalizer": prepend, "decoder": _LLAMA_DECODER}


def _metaspace_first() -> dict[str, Any]:
    """Prepends at the start of the text only."""
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    body = {"Sequence": {"id": "A", "type_id": 0}}
    template = {
        "type": "TemplateProcessing",
        "single": [bos, body],
        "pair": [bos, body],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    return _bpe(_controls(), own_controls=False) | {
        "pre_tokenizer": metaspace,
        "decoder": _LLAMA_DECODER,
        "post_processor": template,
    }


def _gemma() -> dict[str, Any]:
    """No prefix; white space and HTML elements among the added tokens."""
    added = [
        *_controls(),
        *(_added(5 + i, text, special=False) for i, text in enumerate(["\n\n", "\n\n\n", "<table>", "</b>"])),
    ]
    return _bpe(added, own_controls=True) | {
        "normalizer": _TO_METASPACE,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        "decoder": {"type": "Sequence", "decoders": _LLAMA_DECODER["decoders"][:3]},
    }


def _spelled() -> dict[str, Any]:
    """The model itself can spell its control strings (merges are ignored, whole words are looked up)."""
    return _bpe(_controls(), own_controls=True, ignore_merges=True) | {
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    }


def _flags() -> dict[str, Any]:
    """Added tokens of every matching rule."""
    added = [
        _added(0, "<|im_start|>", rstrip=True),
        _added(1, "<|im_end|>", lstrip=True, rstrip=True),
        _added(2, "<think>", special=False, normalized=True),
        _added(3, "</think>", special=False, normalized=True),
        _added(4, "user", single_word=True),
    ]
    return _bpe(added, own_controls=False) | {"normalizer": {"type": "NFKC"}, "decoder": _LLAMA_DECODER}


def _unigram() -> dict[str, Any]:
    """A unigram model: its lattice finds control strings in any text."""
    controls = _controls()
    pieces = ["<unk>", "<s>", "</s>", *(token["content"] for token in controls), *_BYTES, *_WORDS]
    pieces = list(dict.fromkeys([*pieces, "▁", *"<>|/[]abcdefghijklmnopqrstuvwxyzAINST_."]))
    for token in controls:
        token["id"] = pieces.index(token["content"])
    return {
        "version": "1.0",
        "added_tokens": [_added(0, "<unk>"), _added(1, "<s>"), _added(2, "</s>"), *controls],
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "decoder": _LLAMA_DECODER,
        "model": {
            "type": "Unigram",
            "vocab": [[piece, 0.0 if piece.startswith("<0x") else -float(index)] for index, piece in enumerate(pieces)],
            "unk_id": 0,
            "byte_fallback": True,
        },
    }


_SYNTHETIC = {
    "legacy": _legacy,
    "metaspace-first": _metaspace_first,
    "gemma": _gemma,
    "spelled": _spelled,
    "flags": _flags,
    "unigram": _unigram,
}


@pytest.fixture(scope="session")
def synthetic():
    """Return a function from the name of a small tokenizer to its tokenizer.json as an object."""
    return lambda name: _SYNTHETIC[name]()


@pytest.fixture(scope="session", params=[*_FOLDERS, *_SYNTHETIC])
def reference(request: pytest.FixtureRequest) -> Tokenizer:
    """The ordinary tokenizer of each model and family."""
    if request.param in _SYNTHETIC:
        tokenizer = Tokenizer.from_str(json.dumps(_SYNTHETIC[request.param]()))
    else:
        tokenizer = Tokenizer.from_file(str(_FOLDERS[request.param] / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer(reference: Tokenizer) -> ModelTokenizer:
    """Ours, of the same file."""
    return ModelTokenizer(Tokenizer.from_str(reference.to_str()))


@pytest.fixture(scope="session", params=list(_CHAT_FOLDERS))
def chat_folder(request: pytest.FixtureRequest) -> Path:
    """The folder of each model with a chat template."""
    return _CHAT_FOLDERS[request.param]
