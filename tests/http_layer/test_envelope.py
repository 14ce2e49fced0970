from __future__ import annotations

import json

import pytest

from rustedvino.http.envelope import envelope


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (400, "invalid_request_error", "bad_request"),
        (413, "invalid_request_error", "request_too_large"),
        (418, "invalid_request_error", "bad_request"),
        (500, "server_error", "internal_error"),
        (501, "invalid_request_error", "unsupported_transfer_encoding"),
        (502, "server_error", "internal_error"),
        (505, "invalid_request_error", "unsupported_http_version"),
    ],
)
def test_type_and_code_follow_the_status(status, kind, code):
    error = json.loads(envelope(status, "wörds"))["error"]
    assert error == {"message": "wörds", "type": kind, "param": None, "code": code}


def test_code_can_be_given():
    assert json.loads(envelope(503, "", "model_unloading"))["error"]["code"] == "model_unloading"
