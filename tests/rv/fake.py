"""A small HTTP server that answers what a test tells it to: for routes that no real server has, and for bad servers."""

import http.server
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlsplit

OURS: Final = {"x-server": "rustedvino", "content-type": "application/json"}


class Asked(NamedTuple):
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: Any


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: Mapping[str, str]
    pause: Callable[[], object] | None = None
    """Waited for between the first half of the body and the rest."""


def json_answer(value: Any, status: int = 200, **headers: str) -> Answer:
    return Answer(status, json.dumps(value).encode(), {**OURS, **{k.replace("_", "-"): v for k, v in headers.items()}})


def error_answer(status: int, message: str, code: str, **headers: str) -> Answer:
    return json_answer({"error": {"message": message, "type": "t", "param": None, "code": code}}, status, **headers)


def events_answer(*events: Any, done: bool = True, pause: Callable[[], object] | None = None) -> Answer:
    data = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + ("data: [DONE]\n\n" if done else "")
    return Answer(200, data.encode(), {"x-server": "rustedvino", "content-type": "text/event-stream"}, pause)


class FakeServer:
    """``add`` answers; several for one route are given one after the other, the last one for ever."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._answers: dict[tuple[str, str], list[Answer]] = {}
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def _any(self) -> None:
                parts = urlsplit(self.path)
                content = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                fake.asked.append(
                    Asked(self.command, parts.path, parts.query, headers, json.loads(content) if content else None)
                )
                answer = fake.answer(self.command, parts.path)
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(answer.body)))
                self.end_headers()
                half = len(answer.body) // 2 if answer.pause else 0
                self.wfile.write(answer.body[:half])
                if answer.pause is not None:
                    answer.pause()
                try:
                    self.wfile.write(answer.body[half:])
                except OSError:  # it left: that may be the test
                    self.close_connection = True

            do_GET = do_POST = do_PATCH = do_DELETE = _any  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def add(self, route: str, *answers: Any) -> None:
        """``add("GET /health", {...})``: Answers, or JSON values."""
        method, path = route.split()
        self._answers[method, path] = [
            answer if isinstance(answer, Answer) else json_answer(answer) for answer in answers
        ]

    def answer(self, method: str, path: str) -> Answer:
        answers = self._answers.get((method, path))
        if answers is None:
            return error_answer(404, f"Unknown request URL: {method} {path}.", "unknown_url")
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def bodies(self, route: str) -> list[Any]:
        """What was sent to a route."""
        method, path = route.split()
        return [asked.body for asked in self.asked if (asked.method, asked.path) == (method, path)]
