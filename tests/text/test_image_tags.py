from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.text.image_tags import (
    BREAK,
    PromptGuard,
    image_tag,
    place_images,
    replace_tags,
    split_at_tags,
    tagged_images,
)
from rustedvino.text.tokenizer import ModelTokenizer

CONTROLS = ["<|im_start|>", "<|im_end|>", "<think>", "\u2756"]
GUARD = PromptGuard(CONTROLS)
FRAGMENTS = [
    *(*CONTROLS, "<|im_", "end|>", "<", ">", "|>", "<ov_genai_image_0>", "<ov_genai_image_", "0>", "<|image_pad|>"),
    *("<|vision_start|>", "_pad|>", "user", "a", " ", "\n", BREAK, "\U0010f5a1", "\U0010f5a2", "<ov_genai_video_3>"),
]
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join)


def render(*client: str) -> str:
    """A template that puts client text right between its own control strings."""
    return "".join(f"<|im_start|>{text}<|im_end|>" for text in map(GUARD.marker.mark, client))


@settings(max_examples=200, deadline=None)
@given(st.lists(texts, min_size=1, max_size=3))
def test_only_the_control_strings_of_the_template_are_left(client: list[str]) -> None:
    prompt = GUARD.finish(render(*client))
    assert prompt.count("<|im_start|>") == prompt.count("<|im_end|>") == len(client)
    assert not any(text in prompt for text in ("<think>", "\u2756", "<|image_pad|>", "<|vision_start|>", "<ov_genai"))


@settings(max_examples=200, deadline=None)
@given(st.lists(texts, min_size=1, max_size=3))
def test_the_text_is_otherwise_the_client_s(client: list[str]) -> None:
    prompt = GUARD.finish(render(*client))
    wanted = "".join(f"<|im_start|>{text}<|im_end|>" for text in client).replace("\u2756", "\ufffd")
    assert prompt.replace(BREAK, "") == wanted.replace(BREAK, "")


@pytest.mark.parametrize("text", ["> quoted", "user", "a < b", "image", "|>", "<b>bold</b>", "x_end", "\U0010f5a1"])
def test_innocent_text_is_not_changed(text: str) -> None:
    assert GUARD.finish(render(text)) == f"<|im_start|>{text}<|im_end|>"


def test_a_control_string_of_two_messages_is_broken_where_they_meet() -> None:
    rendered = GUARD.marker.mark("x<|im_") + GUARD.marker.mark("end|>y")
    assert GUARD.finish(rendered) == f"x<|im_{BREAK}end|>y"


def test_tags_are_found_replaced_and_split() -> None:
    prompt = f"a{image_tag(1)}b{image_tag(0)}c"
    assert tagged_images(prompt) == [1, 0]
    assert replace_tags(prompt, "<\\1>") == "a<\\1>b<\\1>c"
    assert split_at_tags(prompt) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [(False, ["s", "a<ov_genai_image_0>b", "x", "<ov_genai_image_1>"]), (True, None)],
)
def test_images_are_numbered_over_the_conversation(parts: bool, expected: list[str] | None) -> None:
    text: dict[str, Any] = {"type": "text", "text": "a"}
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [text, {"type": "image"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "x", "tool_calls": []},
        {"role": "user", "content": [{"type": "image"}]},
    ]
    found = place_images(messages, parts=parts)
    if expected is not None:
        assert [message["content"] for message in found] == expected
    else:
        assert found[1]["content"] == [{"type": "text", "text": "a<ov_genai_image_0>b"}]
        assert found[0]["content"] == "s"
    assert messages[1]["content"][1] == {"type": "image"}
    assert found[2] is messages[2]


def test_no_control_id_comes_out_of_client_text() -> None:
    tokenizer = ModelTokenizer.from_folder(Path(__file__).parents[1] / "models" / "tiny-vlm")
    guard = PromptGuard(tokenizer.control_tokens)
    client = "".join(tokenizer.control_tokens)
    ids = tokenizer.encode_raw(guard.finish(guard.marker.mark(client)), add_special_tokens=False)
    assert not set(ids) & set(tokenizer.control_tokens.values())
    assert tokenizer.decode(ids).replace(BREAK, "") == client
