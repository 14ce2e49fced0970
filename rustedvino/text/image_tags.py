"""Images inside a prompt that the runtime tokenizes itself: their tags, and client text that looks like one.

A vision pipeline takes text, not token ids, and reads control strings and image tags wherever they stand. So
what a client wrote is kept apart with the marks of `ControlMarker`: after rendering, each control string that
came into being with a client's characters gets a zero-width space where the mark was, and nothing else of the
text changes. The model then sees `<`, U+200B and `|im_end|>`, which no tokenizer takes for the control token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from rustedvino.text.markers import ESCAPE, MARK, ControlMarker, ControlString, alternation

BREAK: Final = "\u200b"
"""Zero-width space: between the first character of a client's control string and the rest."""

UNKNOWN: Final = "\ufffd"
"""Written for a client's control string of a single character, which has no inside to break."""

_SINGLE: Final = re.compile(f"{ESCAPE}[\U0010f600-\U0010fdff]")

_TAG_HEAD: Final = "<ov_genai_image_"
_TAG: Final = re.compile(r"<ov_genai_image_(\d+)>")

_RUNTIME_TAGS: Final = (
    _TAG_HEAD,
    "<ov_genai_video_",
    "<ov_genai_audio_",
    # What the runtime itself searches prompts for, by family; most are control tokens of the tokenizer as well.
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    *("<|image_", "<|video_", "<|audio_", "<|image|>", "<|video|>", "<|audio|>", "<|image>", "<image|>"),
    *("<image>", "</image>", "<image_id>", "</image_id>", "<slice>", "</slice>", "<video>"),
    *("<start_of_image>", "<end_of_image>", "<image_soft_token>", "<IMG_CONTEXT>", "<img>", "</img>"),
)


def image_tag(index: int) -> str:
    """The tag of the image with this index, counted over the whole conversation."""
    return f"{_TAG_HEAD}{index}>"


def tagged_images(prompt: str) -> list[int]:
    """Indices of the images that a prompt shows, in its order."""
    return [int(index) for index in _TAG.findall(prompt)]


def replace_tags(prompt: str, native: str) -> str:
    """The prompt with every image tag written as ``native``."""
    return _TAG.sub(lambda _: native, prompt)


def split_at_tags(prompt: str) -> list[str]:
    """The text between the image tags."""
    return _TAG.split(prompt)[::2]


class PromptGuard:
    """Makes client text harmless in a prompt that is given as text."""

    def __init__(self, control_strings: Iterable[str]) -> None:
        """``control_strings``: those of the tokenizer; the runtime's own tags are added."""
        strings = dict.fromkeys([*control_strings, *_RUNTIME_TAGS])
        self.marker: Final = ControlMarker(ControlString(text) for text in strings)
        self._occurrence = re.compile(alternation(strings))

    def finish(self, rendered: str) -> str:
        """Return a rendered prompt, whose client text was marked, as the runtime may read it."""
        if not self.marker.is_marked(rendered):
            return rendered
        pieces = [self.marker.unmark(_SINGLE.sub(UNKNOWN, piece)) for piece in rendered.split(MARK)]
        joints: list[int] = []
        position = 0
        for piece in pieces[:-1]:
            position += len(piece)
            joints.append(position)
        text = "".join(pieces)
        breaks = self._breaks(text, joints)
        parts: list[str] = []
        start = 0
        for position in breaks:
            parts += (text[start:position], BREAK)
            start = position
        return "".join([*parts, text[start:]])

    def _breaks(self, text: str, joints: list[int]) -> list[int]:
        """The joints that lie inside a control string."""
        breaks: list[int] = []
        index = 0
        found = self._occurrence.search(text)
        while found is not None and index < len(joints):
            start, end = found.span()
            while index < len(joints) and joints[index] <= start:
                index += 1
            inside = index
            while inside < len(joints) and joints[inside] < end:
                if not breaks or breaks[-1] < joints[inside]:
                    breaks.append(joints[inside])
                inside += 1
            found = self._occurrence.search(text, start + 1)
        return breaks


def place_images(messages: list[dict[str, Any]], *, parts: bool) -> list[dict[str, Any]]:
    """Return messages, already marked, with a tag where an image stood.

    Images are numbered in the order of the conversation. The texts and tags of a message are joined without
    anything between; ``parts`` says whether the template wants the result as a list of one text part.
    """
    index = 0
    result: list[dict[str, Any]] = []
    for message in messages:
        content = message.get("content")
        if not isinstance(content, list) or all(part.get("type") != "image" for part in content):
            result.append(message)
            continue
        texts: list[str] = []
        for part in content:
            if part.get("type") == "image":
                texts.append(image_tag(index))
                index += 1
            else:
                texts.append(part["text"])
        text = "".join(texts)
        result.append({**message, "content": [{"type": "text", "text": text}] if parts else text})
    return result
