"""A chat with one server: what was said, and one answer as it comes. No terminal here."""

import json
from collections.abc import Generator
from typing import Any, Final, NamedTuple

from rustedvino.rv.client import Client
from rustedvino.rv.errors import RvError

ROUTE: Final = "/v1/chat/completions"
CHAT_KINDS: Final = ("text_gen", "vision")


class Piece(NamedTuple):
    """A piece of an answer: of its text, or of the thinking before it."""

    text: str
    is_thinking: bool


class Ending(NamedTuple):
    """What was said of an answer at its end."""

    finish_reason: str | None
    usage: dict[str, Any]


class Conversation:
    """``messages`` are those that the next question follows, without the system message."""

    def __init__(self, model: str, *, system: str | None = None, sampling: dict[str, Any] | None = None) -> None:
        self.model = model
        self.system = system
        self.sampling = sampling or {}
        self.messages: list[dict[str, str]] = []

    def clear(self) -> None:
        """Forget what was said; the system message stays."""
        self.messages.clear()

    def body(self, question: str) -> dict[str, Any]:
        """The request of a question."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return {
            "model": self.model,
            "messages": [*system, *self.messages, {"role": "user", "content": question}],
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.sampling,
        }

    def ask(self, client: Client, question: str) -> Generator[Piece, None, Ending]:
        """Yield the pieces of the answer; return how it ended. Raises RvError.

        Question and answer are remembered together: when it ends, and also when the caller closes the generator in
        the middle or an interrupt comes, then with as much of the answer as had come. Closing it closes the connection.
        """
        answer: list[str] = []
        events = client.events(ROUTE, self.body(question))
        try:
            ending = yield from self._pieces(events, answer)
        except (GeneratorExit, KeyboardInterrupt):
            if answer:
                self._remember(question, answer)
            raise
        finally:
            events.close()
        self._remember(question, answer)
        return ending

    def _remember(self, question: str, answer: list[str]) -> None:
        self.messages += [{"role": "user", "content": question}, {"role": "assistant", "content": "".join(answer)}]

    def _pieces(self, events: Any, answer: list[str]) -> Generator[Piece, None, Ending]:
        finish_reason: str | None = None
        usage: dict[str, Any] = {}
        for data in events:
            if data == "[DONE]":
                return Ending(finish_reason, usage)
            chunk = _chunk(data)
            usage = chunk.get("usage") or usage
            for choice in chunk.get("choices") or []:
                delta = choice.get("delta") or {}
                if delta.get("reasoning_content"):
                    yield Piece(delta["reasoning_content"], is_thinking=True)
                if delta.get("content"):
                    answer.append(delta["content"])
                    yield Piece(delta["content"], is_thinking=False)
                finish_reason = choice.get("finish_reason") or finish_reason
        raise RvError("the answer broke off: the server closed the connection", code="disconnected")


def _chunk(data: str) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RvError("the server sent an event that is not JSON", code="bad_answer") from error
    if not isinstance(chunk, dict):
        raise RvError("the server sent an event that is not an object", code="bad_answer")
    if "error" in chunk:
        told = chunk["error"]
        message = told.get("message") if isinstance(told, dict) else told
        code = told.get("code") if isinstance(told, dict) else None
        raise RvError(str(message), code=str(code or "failed"), answer=chunk)
    return chunk


def choose_model(client: Client) -> str:
    """A model to chat with when none was named: the only one, else the first that is ready. Raises RvError."""
    try:
        models = client.get("/v1/admin/models")["models"]
        fitting = [
            (str(model["model_id"]), str(model["state"]))
            for model in models
            if model.get("kind") in (*CHAT_KINDS, None)
        ]
    except RvError:  # an inference key sees ids and states only
        cards = client.get("/v1/models")["data"]
        fitting = [
            (str(card["id"]), str(card.get("state"))) for card in cards if card.get("kind") in (*CHAT_KINDS, None)
        ]
    if len(fitting) == 1:
        return fitting[0][0]
    ready = [model_id for model_id, state in fitting if state == "ready"]
    if ready:
        return ready[0]
    if not fitting:
        raise RvError("the server has no model to chat with", code="no_model", hint="`rv pull` and `rv add` bring one")
    names = ", ".join(model_id for model_id, _ in fitting)
    raise RvError("no model is ready: name one of them", code="no_model", hint=names)
