"""A conversation: requests, pieces, memory."""

from typing import Any

import pytest

from rustedvino.rv.client import Client
from rustedvino.rv.conversation import Conversation, Ending, Piece, choose_model
from rustedvino.rv.errors import RvError
from tests.rv.conftest import IDLE, MODEL, models
from tests.rv.fake import FakeServer, error_answer, events_answer

CHAT = "POST /v1/chat/completions"


def delta(finish: str | None = None, **fields: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


ANSWER = events_answer(
    delta(role="assistant", content=""),
    delta(reasoning_content="Hm"),
    delta(content="Hel"),
    delta(content="lo"),
    delta(finish="stop"),
    {"choices": [], "usage": {"completion_tokens": 4}},
)


def ask(conversation: Conversation, fake: FakeServer, question: str) -> tuple[list[Piece], Ending]:
    pieces = []
    answer = conversation.ask(Client(fake.url), question)
    while True:
        try:
            pieces.append(next(answer))
        except StopIteration as end:
            return pieces, end.value


def test_an_answer_comes_in_pieces_and_is_remembered(fake: FakeServer) -> None:
    fake.add(CHAT, ANSWER)
    conversation = Conversation("qwen", system="be brief", sampling={"temperature": 0})
    pieces, ending = ask(conversation, fake, "hi")
    assert pieces == [Piece("Hm", True), Piece("Hel", False), Piece("lo", False)]
    assert ending == Ending("stop", {"completion_tokens": 4})
    ask(conversation, fake, "again")
    system = {"role": "system", "content": "be brief"}
    first = {"role": "user", "content": "hi"}
    told = {"role": "assistant", "content": "Hello"}
    bodies = fake.bodies(CHAT)
    assert bodies[0]["messages"] == [system, first]
    assert bodies[1]["messages"] == [system, first, told, {"role": "user", "content": "again"}]
    assert (bodies[0]["model"], bodies[0]["stream"], bodies[0]["temperature"]) == ("qwen", True, 0)
    conversation.clear()
    assert conversation.body("x")["messages"] == [system, {"role": "user", "content": "x"}]


def test_a_cancelled_answer_is_remembered_as_far_as_it_came(fake: FakeServer) -> None:
    fake.add(CHAT, ANSWER)
    conversation = Conversation("qwen")
    answer = conversation.ask(Client(fake.url), "hi")
    assert [next(answer).text, next(answer).text] == ["Hm", "Hel"]
    answer.close()
    assert [message["content"] for message in conversation.messages] == ["hi", "Hel"]
    answer = conversation.ask(Client(fake.url), "hi")
    next(answer)
    with pytest.raises(KeyboardInterrupt):
        answer.throw(KeyboardInterrupt())
    assert len(conversation.messages) == 2, "a question without any answer is not remembered"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            events_answer(delta(content="x"), {"error": {"message": "the model left", "code": "model_unloading"}}),
            "left",
        ),
        (events_answer(delta(content="x"), done=False), "broke off"),
        (events_answer([1]), "not an object"),
        (events_answer({"error": "odd"}), "odd"),
        (error_answer(429, "too many", "rate_limited"), "too many"),
    ],
)
def test_a_failed_answer_is_an_error_and_not_remembered(fake: FakeServer, answer: Any, words: str) -> None:
    fake.add(CHAT, answer)
    conversation = Conversation("qwen")
    with pytest.raises(RvError, match=words):
        ask(conversation, fake, "hi")
    assert conversation.messages == []


def test_a_model_is_chosen(fake: FakeServer) -> None:
    client = Client(fake.url)
    fake.add("GET /v1/admin/models", models({**MODEL, "kind": "embedding"}, IDLE))
    assert choose_model(client) == "phi", "the only one to chat with, loaded or not"
    fake.add("GET /v1/admin/models", models(IDLE, MODEL))
    assert choose_model(client) == "qwen"
    fake.add("GET /v1/admin/models", models(IDLE, {**IDLE, "model_id": "x"}))
    with pytest.raises(RvError, match="no model is ready") as caught:
        choose_model(client)
    assert caught.value.hint == "phi, x"
    fake.add("GET /v1/admin/models", models())
    with pytest.raises(RvError, match="no model to chat with"):
        choose_model(client)


def test_a_model_is_chosen_with_an_inference_key(fake: FakeServer) -> None:
    fake.add("GET /v1/admin/models", error_answer(403, "no", "insufficient_scope"))
    fake.add("GET /v1/models", {"data": [{"id": "a", "state": "not_loaded"}, {"id": "b", "state": "ready"}]})
    assert choose_model(Client(fake.url)) == "b"
    cards = [{"id": "e", "state": "ready", "kind": "embedding"}, {"id": "b", "state": "ready", "kind": "vision"}]
    fake.add("GET /v1/models", {"data": cards})
    assert choose_model(Client(fake.url)) == "b"
