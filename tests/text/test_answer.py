"""The reader of one answer: which of its tokens are thinking, and where the text begins."""

import pytest

from rustedvino.text.answer import AnswerReader
from rustedvino.text.tools.events import Content, Reasoning
from rustedvino.text.tools.output import OutputParser
from rustedvino.text.tools.pieces import ControlToken

OPEN, CLOSE, END, HALF = 1001, 1002, 1003, 1004
CONTROLS = {
    OPEN: ControlToken(OPEN, "<think>", special=False),
    CLOSE: ControlToken(CLOSE, "</think>", special=False),
    END: ControlToken(END, "<end>", special=True),
}


class Letters:
    """A decoder whose token ids are characters; HALF is the first half of the next one."""

    def push(self, token_id: int) -> str:
        return "" if token_id == HALF else chr(token_id)

    def flush(self) -> str:
        return ""


def read(*tokens: int | str) -> AnswerReader:
    """A reader that has read a whole answer, token by token."""
    parser = OutputParser(reasoning="qwen3", control_tokens=frozenset(token.text for token in CONTROLS.values()))
    reader = AnswerReader(Letters(), CONTROLS, frozenset({END}), parser=parser)  # type: ignore[arg-type]
    for token in tokens:
        reader.read([ord(token) if isinstance(token, str) else token])
    reader.end()
    return reader


@pytest.mark.parametrize(
    ("tokens", "thinking", "text_starts_at"),
    [
        ("ab", 0, 0),
        ((OPEN, "a", "b", CLOSE, "c", "d", END), 3, 4),
        ((OPEN, "\n", "a", "\n", CLOSE, "\n", "\n", "c"), 3, 7),
        ((OPEN, "a", "b"), 3, 3),
        ((OPEN, "a", CLOSE, HALF, "c", "d"), 2, 3),
        ((OPEN, "\n", CLOSE, "c", "d"), 0, 0),
        ((), 0, 0),
    ],
)
def test_tokens_of_thinking(tokens: tuple[int | str, ...], thinking: int, text_starts_at: int) -> None:
    reader = read(*tokens)
    assert (reader.reasoning_tokens, reader.reasoning_end) == (thinking, text_starts_at)
    assert reader.tokens_read == len(tokens)


def test_however_many_tokens_come_at_once() -> None:
    tokens = [OPEN, ord("a"), CLOSE, ord("c"), ord("d")]
    parser = OutputParser(reasoning="qwen3", control_tokens=frozenset({"<think>", "</think>"}))
    reader = AnswerReader(Letters(), CONTROLS, frozenset({END}), parser=parser)  # type: ignore[arg-type]
    assert reader.read(tokens) == [Reasoning("a"), Content("cd")]
    assert (reader.reasoning_tokens, reader.reasoning_end) == (2, 3)
