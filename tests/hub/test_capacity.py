"""What a model has room for, whatever is asked."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rustedvino.hub.capacity import Capacity
from rustedvino.hub.errors import HubError, NeverFits, PromptTooLong, Unsupported
from tests.support.actors import request


def capacity(slots: int = 4, **facts: Any) -> Capacity:
    return Capacity("m", slots, {"block_size": 32, "num_kv_blocks": 64, **facts})


@given(
    slots=st.integers(1, 20),
    blocks=st.integers(1, 200),
    size=st.sampled_from([1, 16, 32]),
    prompt=st.integers(1, 5000),
    new=st.integers(1, 5000),
    n=st.integers(1, 8),
    shrinkable=st.booleans(),
    context=st.none() | st.integers(1, 6000),
)
def test_what_passes_the_check_fits_an_idle_model(
    slots: int, blocks: int, size: int, prompt: int, new: int, n: int, shrinkable: bool, context: int | None
) -> None:
    limits = {} if context is None else {"context_tokens": context}
    room = capacity(slots, block_size=size, num_kv_blocks=blocks, **limits)
    wanted = request([1] * prompt, new, n=n, shrinkable=shrinkable)
    given_tokens = room.new_tokens(wanted)
    assert 1 <= given_tokens <= new
    if context is not None and prompt < context:
        assert prompt + given_tokens <= context
    try:
        room.check(wanted)
    except NeverFits:
        assert n > slots or -(-(prompt + given_tokens) // size) * n > blocks
        if shrinkable and n <= slots:
            assert given_tokens == 1 or prompt + given_tokens > blocks // n * size
        return
    assert n <= slots
    assert room.blocks(wanted) * n <= blocks
    assert prompt + given_tokens <= room.blocks(wanted) * size


@pytest.mark.parametrize(
    ("facts", "error", "text"),
    [
        ({"max_prompt_tokens": 2}, PromptTooLong, "a model with a draft takes no more"),
        ({"max_prompt_tokens": 2, "max_prompt_setting": "max_prompt_len"}, PromptTooLong, "the setting max_prompt_len"),
        (
            {"refuses": {"min_p": "greedy only"}},
            Unsupported,
            "'min_p' cannot be used with 'm': greedy only",
        ),
    ],
)
def test_what_the_engine_refuses(facts: dict[str, Any], error: type[HubError], text: str) -> None:
    with pytest.raises(error, match=text):
        capacity(**facts).check(request([1, 2, 3], 4, min_p=0.5))


def test_before_the_first_load_there_is_no_room() -> None:
    assert Capacity("m", 4, {}).blocks_total == 0
