"""What chat and raw completions have in common, as far as it needs no model."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.http.generation import weight

LIMIT = 4096
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)


def text_of(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(key) + text_of(item) for key, item in value.items())
    return sum(map(text_of, value)) if isinstance(value, list) else 0


@settings(max_examples=100, deadline=None)
@given(JSON)
def test_all_text_counts(value: Any) -> None:
    assert weight(value, 10**9) >= text_of(value)


@pytest.mark.parametrize(
    "value",
    [
        [{"role": "user", "content": ""}] * 100,
        ([], [{"function": {"description": "x" * 5000}}], {}),
        ([{"tool_calls": [{"function": {"arguments": {"a": ["x" * 5000]}}}]}], None, {}),
        ([], None, {"x" * 5000: 1}),
        [[]] * 100,
    ],
)
def test_much_is_much_wherever_it_is(value: Any) -> None:
    assert weight(value, LIMIT) > LIMIT


def test_counting_stops() -> None:
    endless: list[Any] = [["x"]]
    endless.append(endless)
    assert weight(endless, LIMIT) < 2 * LIMIT


def test_a_short_chat_is_light() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    assert weight(([{"role": "user", "content": "Hello"}] * 9, [tool], {}), LIMIT) < LIMIT
