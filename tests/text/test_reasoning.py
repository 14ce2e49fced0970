from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.text.reasoning import (
    THINK_TAGS,
    ReasoningParser,
    detect_reasoning_parser,
    starts_in_reasoning,
)
from rustedvino.text.tools.events import Reasoning
from rustedvino.text.tools.pieces import ControlToken, Piece

ROOT = Path(__file__).parents[2]
TAGS = THINK_TAGS["qwen3"]
BOTH = frozenset({TAGS.opening, TAGS.closing})
OPEN, CLOSE = ControlToken(3, TAGS.opening, special=False), ControlToken(4, TAGS.closing, special=False)


def split(
    pieces: Sequence[Piece], *, control: frozenset[str] = frozenset(), inside: bool = False, name: str = "qwen3"
) -> tuple[str, str, bool]:
    """(reasoning, content, output ended inside the block)."""
    parser = ReasoningParser(THINK_TAGS[name], control_tokens=control, inside=inside)
    reasoning = content = ""
    out = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
    for part in out:
        if isinstance(part, Reasoning):
            assert part.text
            assert not content
            reasoning += part.text
        else:
            content += part if isinstance(part, str) else part.text
    return reasoning, content, parser.inside_at_end


@pytest.mark.parametrize("name", sorted(THINK_TAGS))
@pytest.mark.parametrize("control", [True, False])
def test_a_block_is_split_off_whatever_the_cuts(name: str, control: bool) -> None:
    tags = THINK_TAGS[name]
    if control:
        whole: list[Piece] = [ControlToken(1, tags.opening), "\nA thought.\n\nMore\n", ControlToken(2, tags.closing)]
        whole.append("\n\n  Answer\n")
        pieces = [p for part in whole for p in (part if isinstance(part, str) else [part])]
        results = {
            split(parts, control=frozenset({tags.opening, tags.closing}), name=name) for parts in (whole, pieces)
        }
    else:
        text = f"{tags.opening}\nA thought.\n\nMore\n{tags.closing}\n\n  Answer\n"
        results = {split([text[:at], text[at:]], name=name) for at in range(len(text))}
        results.add(split(list(text), name=name))
    assert results == {("A thought.\n\nMore", "  Answer\n", False)}


def test_a_model_that_never_thinks_is_not_held_back() -> None:
    for control in (BOTH, frozenset[str]()):
        parser = ReasoningParser(TAGS, control_tokens=control)
        assert parser.push("Hello") == ["Hello"]
        assert parser.push(" <b") == [" <b"]
        assert parser.push("</think") == ["</think"]
        assert parser.finish() == []


def test_only_what_may_be_a_tag_waits_at_the_start() -> None:
    parser = ReasoningParser(TAGS)
    assert parser.push("<th") == []
    assert parser.push("e>") == ["<the>"]
    parser = ReasoningParser(TAGS, control_tokens=BOTH)
    assert parser.push("<think>") == ["<think>"]  # letters: its tags are control tokens


def test_prompt_that_opened_the_block() -> None:
    assert split(["So\n", CLOSE, "\n\nYes"], control=BOTH, inside=True) == ("So", "Yes", False)
    assert split(["So</thi", "nk>Yes"], inside=True) == ("So", "Yes", False)
    # the model opens it once more
    assert split([OPEN, "\nSo", CLOSE, "Yes"], control=BOTH, inside=True) == ("So", "Yes", False)


def test_output_that_ends_while_thinking_has_no_content() -> None:
    assert split([OPEN, "\nI think that"], control=BOTH) == ("I think that", "", True)
    assert split(["I think", " that\n</thi"], inside=True) == ("I think that\n</thi", "", True)
    assert split([], inside=True) == ("", "", True)


def test_empty_block_and_closing_tag_alone() -> None:
    assert split([OPEN, "\n\n", CLOSE, "\n\n", "Yes"], control=BOTH) == ("", "Yes", False)
    assert split(["<think></think>Yes"]) == ("", "Yes", False)
    assert split(["</think>\nYes"]) == ("", "Yes", False)
    assert split(["Already answering", CLOSE, "!"], control=BOTH) == ("", "Already answering!", False)


def test_a_second_block_right_behind_the_first_is_thinking_too() -> None:
    assert split([OPEN, "\n", CLOSE, "\n\n", OPEN, "a\nb", CLOSE, "c"], control=BOTH) == ("a\nb", "c", False)


def test_tags_within_text_are_text() -> None:
    assert split(["Use <think> like ", OPEN, "this"], control=BOTH) == ("", "Use <think> like <think>this", False)
    assert split([OPEN, "the tag </think> in letters, ", OPEN, "!", CLOSE, "ok"], control=BOTH) == (
        "the tag </think> in letters, <think>!",
        "ok",
        False,
    )
    assert split(["Write <think>x</think>"]) == ("", "Write <think>x</think>", False)


def test_other_control_tokens() -> None:
    special, plain = ControlToken(9, "<|im_end|>"), ControlToken(8, "<tool_call>", special=False)
    parser = ReasoningParser(TAGS, control_tokens=BOTH)
    assert parser.push(OPEN) == []
    assert parser.push("a") == [Reasoning("a")]
    assert parser.push(special) == []
    assert parser.push(plain) == [Reasoning("<tool_call>")]
    assert parser.push(CLOSE) == []
    assert parser.push(plain) == [plain]
    assert parser.push(special) == [special]


def test_white_space_of_an_answer_is_kept() -> None:
    assert split(["\n ", " Hello \n"]) == ("", "\n  Hello \n", False)
    assert split(["  ", "\n"]) == ("", "  \n", False)


@given(
    parts=st.lists(st.sampled_from(["<think>", "</think>", "a", " ", "\n", "<", "</", "think>", "é"]), max_size=12),
    inside=st.booleans(),
    data=st.data(),
)
@settings(max_examples=200, deadline=None)
def test_cuts_make_no_difference_and_no_text_is_lost(parts: list[str], inside: bool, data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(set(data.draw(st.lists(st.integers(0, len(text)), max_size=12))))
    borders = [0, *cuts, len(text)]
    results = {
        split([text], inside=inside),
        split(list(text), inside=inside),
        split([text[a:b] for a, b in itertools.pairwise(borders)], inside=inside),
    }
    assert len(results) == 1
    reasoning, content, _ = results.pop()
    lost = len(text) - len(reasoning) - len(content)
    assert lost <= text.count("\n") + text.count(" ") + 7 * text.count("<think>") + 8 * text.count("</think>")


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<|im_start|>' }}{% if '</think>' in content %}", "qwen3"),
        ("<|start|>assistant<|channel|>analysis<|message|>", "gpt_oss"),
        ("[SYSTEM_PROMPT]First draft your thinking [THINK]…[/THINK]", "mistral"),
        ("<|im_start|>assistant<|im_sep|> two sections: <think> {Thought} </think>", "phi"),
        ("<|user|>{{ m }}<|end|><|assistant|><think>", "phi"),
        ("<|im_start|>{{ message.content }}<|im_end|>", None),
        ("", None),
    ],
)
def test_parser_by_template(template: str, name: str | None) -> None:
    assert detect_reasoning_parser(template) == name


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("rustedvino/models/rv-demo", "qwen3"),
        ("tests/models/tiny-qwen3", "qwen3"),
        ("tests/models/tiny-llama3", None),
        ("tests/models/tiny-mistral", None),
    ],
)
def test_parser_of_the_models_at_hand(folder: str, name: str | None) -> None:
    assert detect_reasoning_parser((ROOT / folder / "chat_template.jinja").read_text()) == name


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>assistant\n", False),
        ("[/INST][THINK]", True),
        ("<|start|>assistant<|channel|>analysis<|message|>", True),
        ("say <think> now<|im_end|>\n<|im_start|>assistant\n", False),
        ("", False),
    ],
)
def test_whether_a_prompt_ends_inside_a_block(tail: str, expected: bool) -> None:
    assert starts_in_reasoning(tail) is expected
