"""The writer of a response: the openai package's own types and accumulator take what it writes."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.api.converter import structure
from rustedvino.api.errors import ApiError, rate_limited, unavailable
from rustedvino.api.response_events import ResponseWriter, response_usage
from rustedvino.api.responses import ResponsesRequest
from rustedvino.api.results import TokenLogprob, Usage
from tests.support.responses import accumulate, check_events, check_response, output_text, parse_events, without_ids

REQUEST = structure(
    {
        "model": "m",
        "input": "hi",
        "instructions": "be nice",
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "metadata": {"a": "b"},
    },
    ResponsesRequest,
)
FIELDS = {**REQUEST.echo(), "temperature": 0.5, "top_p": 1.0}
COUNTS = Usage(prompt_tokens=5, completion_tokens=7, cached_tokens=2, reasoning_tokens=3)
TEXT = st.text(min_size=1, max_size=6)
TOKEN = TokenLogprob("é", -0.25, "é".encode())

Step = Callable[[ResponseWriter], bytes]


def make_writer(*, streaming: bool = True) -> ResponseWriter:
    return ResponseWriter(FIELDS, streaming=streaming, clock=iter([100.5, 101.5]).__next__)


def run(writer: ResponseWriter, *steps: Step) -> list[dict[str, Any]]:
    data = writer.start() + b"".join(step(writer) for step in steps)
    return parse_events(data.decode())


def done(reason: Any = "stop") -> Step:
    return lambda writer: writer.finish(reason, COUNTS)


def text(piece: str, *logprobs: TokenLogprob) -> Step:
    return lambda writer: writer.text(piece, logprobs)


def thought(piece: str) -> Step:
    return lambda writer: writer.reasoning(piece)


def calls(name: str, *fragments: str, complete: bool = True) -> list[Step]:
    def start(writer: ResponseWriter) -> bytes:
        return writer.call(f"call_{len(writer.response['output'])}", name)

    def argument(fragment: str) -> Step:
        return lambda writer: writer.arguments(fragment)

    return [start, *map(argument, fragments), lambda writer: writer.end_call(complete=complete)]


def test_the_events_of_a_text() -> None:
    events = run(make_writer(), text("a"), text("b"), done())
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert all(event["logprobs"] == [] for event in events if "output_text" in event["type"])
    response = check_events(events)
    assert output_text(response) == "ab"
    assert (response["created_at"], response["completed_at"]) == (100.5, 101.5)
    assert (response["instructions"], response["metadata"], response["temperature"]) == ("be nice", {"a": "b"}, 0.5)


def test_thinking_a_text_and_calls_in_their_order() -> None:
    events = run(
        make_writer(),
        thought("hm"),
        text("I call."),
        *calls("f", '{"a"', ": 1}"),
        *calls("g", "{}"),
        text("Done."),
        done("tool_calls"),
    )
    response = check_events(events)
    kinds = [item["type"] for item in response["output"]]
    assert kinds == ["reasoning", "message", "function_call", "function_call", "message"]
    assert response["output"][0]["summary"] == []
    assert response["output"][0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert response["output"][2]["arguments"] == '{"a": 1}'
    assert [item["call_id"] for item in response["output"][2:4]] == ["call_2", "call_3"]
    assert response["status"] == "completed"


def test_a_call_without_a_fragment_has_empty_arguments() -> None:
    response = check_events(run(make_writer(), *calls("f"), done("tool_calls")))
    assert response["output"][0]["arguments"] == ""


class TestEnds:
    def test_at_the_limit_of_tokens(self) -> None:
        response = check_events(run(make_writer(), text("a"), done("length")))
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert [item["status"] for item in response["output"]] == ["incomplete"]

    def test_inside_thinking(self) -> None:
        response = check_events(run(make_writer(), thought("a"), done("length")))
        assert [item["type"] for item in response["output"]] == ["reasoning"]

    def test_inside_a_call(self) -> None:
        response = check_events(run(make_writer(), *calls("f", '{"a', complete=False), done("length")))
        assert [item["status"] for item in response["output"]] == ["incomplete"]

    def test_items_before_the_last_are_complete(self) -> None:
        response = check_events(run(make_writer(), thought("a"), text("b"), done("length")))
        assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]

    @pytest.mark.parametrize("steps", [[], [thought("a")]])
    def test_an_empty_answer_is_an_empty_message(self, steps: list[Step]) -> None:
        response = check_events(run(make_writer(), *steps, done()))
        assert response["output"][-1]["content"] == [
            {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        ]

    def test_nothing_at_all_at_the_limit(self) -> None:
        assert check_events(run(make_writer(), done("length")))["output"] == []

    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (unavailable("worker_lost", "the worker ended", 1.0), "server_error"),
            (rate_limited("too many", 1.0), "rate_limit_exceeded"),
        ],
    )
    @pytest.mark.parametrize("steps", [[], [thought("a"), text("b")], calls("f", "{}"), calls("f", "{")[:-1]])
    def test_a_fault(self, error: ApiError, code: str, steps: list[Step]) -> None:
        events = run(make_writer(), *steps, lambda writer: writer.fail(error))
        response = check_events(events)
        assert response["status"] == "failed"
        assert (response["error"]["code"], response["error"]["message"]) == (code, error.message)
        assert response["usage"] is None
        told = events[-2]
        assert (told["type"], told["code"], told["message"], told["param"]) == (
            "error",
            error.code,
            error.message,
            None,
        )


class TestLogprobs:
    def test_they_come_with_their_text(self) -> None:
        events = run(make_writer(), text("é", TOKEN), text("é", TOKEN), done())
        response = check_events(events)
        entry = {"token": "é", "logprob": -0.25, "bytes": [195, 169], "top_logprobs": []}
        assert response["output"][0]["content"][0]["logprobs"] == [entry, entry]

    def test_tokens_without_text(self) -> None:
        response = check_events(run(make_writer(), text("a", TOKEN), text("", TOKEN), done()))
        assert len(response["output"][0]["content"][0]["logprobs"]) == 2

    def test_only_while_a_text_is_written(self) -> None:
        writer = make_writer()
        assert not writer.in_text
        writer.text("a")
        assert writer.in_text
        writer.reasoning("b")
        assert not writer.in_text


def test_counts() -> None:
    assert response_usage(COUNTS) == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 12,
    }
    bare = response_usage(Usage(prompt_tokens=1, completion_tokens=1))
    assert bare["input_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": 0}
    assert bare["output_tokens_details"] == {"reasoning_tokens": 0}


PIECES = st.one_of(
    TEXT.map(lambda piece: [text(piece)]),
    TEXT.map(lambda piece: [thought(piece)]),
    st.builds(lambda name, fragments: calls(name, *fragments), TEXT, st.lists(TEXT, max_size=3)),
)


@given(st.lists(PIECES, max_size=6), st.sampled_from(["stop", "length", "tool_calls"]))
@settings(max_examples=100, deadline=None)
def test_any_answer_streams_what_it_is(pieces: list[list[Step]], reason: str) -> None:
    steps = [step for piece in pieces for step in piece] + [done(reason)]
    events = run(make_writer(), *steps)
    response = check_events(events)
    whole = make_writer(streaming=False)
    assert whole.start() + b"".join(step(whole) for step in steps) == b""
    check_response(whole.response)
    assert without_ids(whole.response["output"]) == without_ids(response["output"])
    assert {**whole.response, "output": [], "id": ""} == {**response, "output": [], "id": ""}
    completed, streamed = accumulate(events)
    assert streamed == output_text(response)
    assert (completed is not None) == (reason != "length")
    if completed is not None:
        assert completed.output_text == output_text(response)
        assert [item.id for item in completed.output] == [item["id"] for item in response["output"]]
