"""Streams of the Responses API: parsing them, and checking them against the types of the openai package."""

import json
from typing import Any, Final, get_args

from openai import omit
from openai._models import construct_type_unchecked
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent, ResponseTextDeltaEvent

ENDS: Final = ("response.completed", "response.incomplete", "response.failed")
_DELTAS: Final = {
    "message": "response.output_text",
    "reasoning": "response.reasoning_text",
    "function_call": "response.function_call_arguments",
}


def _event_types() -> dict[str, Any]:
    union = get_args(ResponseStreamEvent)[0]
    return {get_args(cls.model_fields["type"].annotation)[0]: cls for cls in get_args(union)}


EVENT_TYPES: Final = _event_types()


def parse_events(text: str) -> list[dict[str, Any]]:
    """The events of a stream; each must have its name and its data and nothing else but comments."""
    events = []
    for record in text.split("\n\n"):
        lines = [line for line in record.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        name, data = lines
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def check_events(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Check the events of a complete stream and return the response it ends with."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        EVENT_TYPES[event["type"]].model_validate(event)
    names = [event["type"] for event in events]
    assert names[:2] == ["response.created", "response.in_progress"]
    for event in events[:2]:
        assert event["response"]["status"] == "in_progress"
        assert event["response"]["output"] == []
    assert names[-1] in ENDS
    assert not any(name in ENDS for name in names[:-1])
    response: dict[str, Any] = events[-1]["response"]
    assert events[-1]["type"] == f"response.{response['status']}"
    check_response(response)
    assert {event["response"]["id"] for event in events if "response" in event} == {response["id"]}
    body = [event for event in events[2:-1] if event["type"] != "error"]
    assert (len(events) - len(body) - 3) == (response["status"] == "failed")
    for index, item in enumerate(response["output"]):
        mine = [event for event in body if event["output_index"] == index]
        _check_item(mine, item, whole=response["status"] != "failed" or index + 1 < len(response["output"]))
        assert body[: len(mine)] == mine, "items overlap"
        body = body[len(mine) :]
    assert body == []
    return response


def _check_item(events: list[dict[str, Any]], item: dict[str, Any], *, whole: bool) -> None:
    stem = _DELTAS[item["type"]]
    added, *rest = events
    assert added["type"] == "response.output_item.added"
    assert added["item"] == {
        **item,
        "status": "in_progress",
        **({"arguments": ""} if item["type"] == "function_call" else {"content": []}),
    }
    assert all(event["item_id"] == item["id"] for event in rest if "item_id" in event)
    if item["type"] == "function_call":
        part: dict[str, Any] | None = None
        text = item["arguments"]
    else:
        (part,) = item["content"]
        assert part is not None
        text = part["text"]
        first, *rest = rest
        assert first["type"] == "response.content_part.added"
        assert first["part"] == {**part, "text": "", **({"logprobs": []} if "logprobs" in part else {})}
        assert all(event["content_index"] == 0 for event in rest if "item_id" in event)
    deltas = [event for event in rest if event["type"] == f"{stem}.delta"]
    assert "".join(event["delta"] for event in deltas) == text
    if item["type"] == "message":
        assert part is not None
        assert [entry for event in deltas for entry in event["logprobs"]] == part["logprobs"]
    ends = rest[len(deltas) :]
    if not whole and not ends:
        return
    names = [f"{stem}.done", *(["response.content_part.done"] if part is not None else []), "response.output_item.done"]
    assert [event["type"] for event in ends] == names
    assert ends[0]["arguments" if part is None else "text"] == text
    if part is not None:
        assert ends[1]["part"] == part
    assert ends[-1]["item"] == item


def check_response(response: dict[str, Any]) -> dict[str, Any]:
    """Check a response that has ended, and return it."""
    parsed = Response.model_validate(response)
    assert response["object"] == "response"
    assert response["id"].startswith("resp_")
    assert isinstance(response["created_at"], float)
    for name in ("output", "parallel_tool_calls", "tool_choice", "tools", "usage", "error", "incomplete_details"):
        assert name in response
    assert response["store"] is False
    status = response["status"]
    assert (response["completed_at"] is not None) == (status == "completed")
    assert (response["error"] is not None) == (status == "failed")
    assert (response["incomplete_details"] is not None) == (status == "incomplete")
    if status != "failed":
        usage = response["usage"]
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        assert 0 <= usage["output_tokens_details"]["reasoning_tokens"] <= usage["output_tokens"]
        assert parsed.usage is not None
        assert usage["input_tokens_details"]["cached_tokens"] <= usage["input_tokens"]
    ids = [item["id"] for item in response["output"]]
    assert len(set(ids)) == len(ids)
    for item in response["output"]:
        assert item["id"].startswith({"message": "msg_", "reasoning": "rs_", "function_call": "fc_"}[item["type"]])
        assert item["status"] in ("completed", "incomplete")
    return response


def accumulate(events: list[dict[str, Any]]) -> tuple[Any, str]:
    """What the accumulator of the openai package makes of a stream: the response, None unless it completed, and the
    text of its text events."""
    state: Any = ResponseStreamState(input_tools=[], text_format=omit)
    text = ""
    for event in events:
        for fired in state.handle_event(construct_type_unchecked(value=event, type_=EVENT_TYPES[event["type"]])):
            if isinstance(fired, ResponseTextDeltaEvent):
                text += fired.delta
    return state._completed_response, text


def output_text(response: dict[str, Any]) -> str:
    """All text of a response."""
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


def without_ids(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Output items without what differs between two equal answers."""
    return [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in output]
