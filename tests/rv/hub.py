"""A hub that serves the files of a folder as the Hugging Face hub serves those of a repository."""

import hashlib
import http.server
import json
import threading
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import unquote, urlsplit

COMMIT: Final = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """``repositories``: folders by OWNER/NAME. ``broken``: after how many bytes the connection is cut, once for each
    file name; ``changed``: content that is sent instead of what was announced. ``token``: needed by ``gated``."""

    def __init__(self, **repositories: Path) -> None:
        self.repositories = {name.replace("__", "/"): folder for name, folder in repositories.items()}
        self.gated: set[str] = set()
        self.token = "hf_right"
        self.broken: dict[str, int] = {}
        self.changed: dict[str, bytes] = {}
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.handle(self)

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
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

    def handle(self, request: Any) -> None:
        path = unquote(urlsplit(request.path).path)
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.asked.append((request.command, path, headers))
        parts = path.strip("/").split("/")
        is_api = parts[:2] == ["api", "models"]
        owner, name, *rest = parts[2:] if is_api else parts
        repository = f"{owner}/{name}"
        folder = self.repositories.get(repository)
        if folder is None:
            return self._error(request, 401, "RepoNotFound", "Repository not found")
        if repository in self.gated and headers.get("authorization") != f"Bearer {self.token}":
            return self._error(request, 403 if "authorization" in headers else 401, "GatedRepo", "Access is restricted")
        revision = rest[1] if len(rest) > 1 else "main"
        if revision not in ("main", COMMIT):
            return self._error(request, 404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if not is_api:
            return self._file(request, folder / "/".join(rest[2:]), headers)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        if rest[:1] == ["tree"]:
            return self._json(request, [{"type": "file", **self._entry(folder, path)} for path in files])
        siblings = [{"rfilename": str(path.relative_to(folder)), "size": path.stat().st_size} for path in files]
        return self._json(request, {"id": repository, "sha": COMMIT, "siblings": siblings})

    def _entry(self, folder: Path, path: Path) -> dict[str, Any]:
        return {"path": str(path.relative_to(folder)), "size": path.stat().st_size, "oid": _etag(path)}

    def _json(self, request: Any, value: Any) -> None:
        self._send(request, 200, json.dumps(value).encode(), {"content-type": "application/json"})

    def _error(self, request: Any, status: int, code: str, message: str) -> None:
        headers = {"x-error-code": code, "x-error-message": message, "content-type": "application/json"}
        self._send(request, status, json.dumps({"error": message}).encode(), headers)

    def _file(self, request: Any, path: Path, headers: dict[str, str]) -> None:
        if not path.is_file():
            return self._error(request, 404, "EntryNotFound", "Entry not found")
        content = path.read_bytes()
        start = int(headers["range"].removeprefix("bytes=").partition("-")[0]) if "range" in headers else 0
        answer = {"etag": f'"{_etag(path)}"', "x-repo-commit": COMMIT, "accept-ranges": "bytes"}
        if request.command == "GET":
            content = self.changed.get(path.name, content)
        if start:
            answer["content-range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        return self._send(request, 206 if start else 200, content[start:], answer, name=path.name)

    def _send(self, request: Any, status: int, content: bytes, headers: dict[str, str], name: str = "") -> None:
        request.send_response(status)
        for header, value in headers.items():
            request.send_header(header, value)
        request.send_header("content-length", str(len(content)))
        request.end_headers()
        if request.command == "HEAD":
            return
        bound = self.broken.pop(name, None)
        request.wfile.write(content if bound is None else content[:bound])
        if bound is not None:
            request.close_connection = True


def _etag(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()
