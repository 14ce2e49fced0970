"""Error answers: shape, codes, headers, and that client values cannot break them."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rustedvino.api import errors
from rustedvino.api.errors import ApiError

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=4000)


@pytest.mark.parametrize(
    ("error", "status", "type_", "param", "code"),
    [
        (errors.bad_request("m", "n"), 400, "invalid_request_error", "n", None),
        (
            errors.context_length_exceeded(9000, 4096),
            400,
            "invalid_request_error",
            "messages",
            "context_length_exceeded",
        ),
        (errors.invalid_api_key(), 401, "authentication_error", None, "invalid_api_key"),
        (errors.forbidden("no"), 403, "permission_error", None, "insufficient_scope"),
        (errors.browser_origin_refused(), 403, "permission_error", None, "browser_origin_refused"),
        (errors.not_found_model("x"), 404, "invalid_request_error", "model", "model_not_found"),
        (errors.unknown_url("GET", "/v2"), 404, "invalid_request_error", None, "unknown_url"),
        (errors.method_not_allowed("PUT", ["GET"]), 405, "invalid_request_error", None, "method_not_allowed"),
        (errors.no_websocket("/health"), 400, "invalid_request_error", None, "websocket_not_supported"),
        (errors.upgrade_required("/v1/x"), 426, "invalid_request_error", None, "upgrade_required"),
        (errors.conflict("busy"), 409, "invalid_request_error", None, "wrong_state"),
        (errors.too_large("big"), 413, "invalid_request_error", None, "request_too_large"),
        (errors.unsupported_media_type(None), 415, "invalid_request_error", None, "unsupported_media_type"),
        (errors.rate_limited("full", 1), 429, "rate_limit_error", None, "rate_limit_exceeded"),
        (errors.internal("req-1"), 500, "server_error", None, "internal_error"),
        (
            errors.unavailable("model_loading", "wait", 3),
            503,
            "service_unavailable_error",
            None,
            "model_loading",
        ),
    ],
)
def test_each_error_has_its_status_and_envelope(error, status, type_, param, code):
    assert error.status == status
    body = error.envelope()["error"]
    assert (body["type"], body["param"], body["code"]) == (type_, param, code)
    assert list(body) == ["message", "type", "param", "code"]
    assert body["message"]


def test_messages_name_what_the_client_sent():
    assert "req-1" in errors.internal("req-1").message
    assert "9000" in errors.context_length_exceeded(9000, 4096).message
    assert "4096" in errors.context_length_exceeded(9000, 4096).message
    assert "'x/y'" in errors.not_found_model("x/y").message
    assert "text/plain" in errors.unsupported_media_type("text/plain").message


def test_method_not_allowed_lists_the_methods():
    assert errors.method_not_allowed("PUT", {"POST", "GET"}).response_headers() == {"allow": "GET, POST"}


@pytest.mark.parametrize(
    ("secs", "header"), [(0, "1"), (0.2, "1"), (1.0, "1"), (1.01, "2"), (float("inf"), "120"), (-3, "1")]
)
def test_retry_after_is_whole_seconds_and_never_zero(secs, header):
    assert errors.rate_limited("m", secs).response_headers()["retry-after"] == header


def test_no_retry_after_without_something_to_wait_for():
    assert "retry-after" not in errors.bad_request("m").response_headers()


@given(ANY_TEXT)
@example("\ud800\r\n\x00")
@example("\ud800" * 4000)
def test_any_client_text_gives_a_bounded_utf8_envelope(text):
    made = [
        errors.not_found_model(text),
        errors.unknown_url(text, text),
        errors.method_not_allowed(text, ["GET"]),
        errors.unsupported_media_type(text),
        errors.internal(text),
        errors.bad_request(text, text),
        ApiError(400, errors.shown(text)),
    ]
    for error in made:
        raw = json.dumps(error.envelope(), ensure_ascii=False).encode("utf-8")
        assert json.loads(raw) == error.envelope()
        assert len(error.message) <= 6 * errors.MAX_MESSAGE_CHARS
        for value in error.response_headers().values():
            assert value.isprintable()


@given(ANY_TEXT, st.integers(8, 200))
def test_printable_is_one_line_within_its_limit(text, limit):
    result = errors.printable(text, limit)
    assert len(result) <= limit
    assert result.isprintable()
    if text.isprintable() and len(text) <= limit:
        assert result == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (5, "5"),
        (0.5, "0.5"),
        ("a\n", '"a\\n"'),
        ([], "[]"),
        ([1, 2], "an array of 2 items"),
        ({}, "{}"),
        ({"a": 1}, "an object with 1 field"),
    ],
)
def test_values_are_shown_as_json_and_short(value, text):
    assert errors.shown(value) == text


def test_a_huge_integer_is_shown_by_its_size():
    assert errors.shown(10**5000) == "an integer of 16610 bits"
