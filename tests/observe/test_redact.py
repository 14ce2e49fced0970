"""Credentials never pass, whatever form they come in."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.observe.redact import MASK, MIN_SECRET_CHARS, Redactor

SECRET_CHARS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~+/"
secrets = st.text(SECRET_CHARS, min_size=12, max_size=64).filter(lambda text: text.strip("."))

FORMS = [
    "Authorization: Bearer {}",
    "authorization: bearer  {}",
    "Proxy-Authorization: Basic {}",
    "Authorization={}",
    "(b'authorization', b'Bearer {}')",
    "[('Authorization', 'Token {}')]",
    '{{"Authorization": "Bearer {}"}}',
    "Bearer {} was refused",
    "x-api-key: {}",
    "(b'x-api-key', b'{}')",
    "api_key={}&model=m",
    "GET /v1/realtime?api-key={}",
    '{{"api_keys": ["{}", "other"]}}',
    '{{"admin_api_keys": ["other", "{}"]}}',
    "api_keys=('other', '{}')",
    "Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.{}",
    "OPENAI_API_KEY={}",
    "admin_api_keys[0]: {}",
    "access_token: {}",
    "client_secret='{}'",
    "password={}",
    '{{"password": "two words {}"}}',
    "cannot fetch https://user:{}@example.com/x",
    "key sk-{} is unknown",
    "HF_TOKEN={}",
    "Cookie: session={}",
]


@pytest.mark.parametrize("form", FORMS)
@given(secret=secrets)
@settings(max_examples=25, deadline=None)
def test_credentials_are_masked(form: str, secret: str) -> None:
    if form.startswith("cannot fetch"):
        secret = secret.replace("/", "_")  # a slash ends the host part of an address
    text = Redactor()(form.format(secret))
    assert secret not in text
    assert secret[-MIN_SECRET_CHARS:] not in text or secret[-MIN_SECRET_CHARS:] in form
    assert MASK in text


@pytest.mark.parametrize("form", FORMS)
def test_credentials_inside_of_json_texts_are_masked(form: str) -> None:
    secret = "Zq3_kW9-pL5vTb7x"
    assert secret not in Redactor()(json.dumps({"message": form.format(secret)}))


@pytest.mark.parametrize(
    "text",
    [
        "POST /v1/chat/completions 200 12.5 ms prompt_tokens=12 completion_tokens=34",
        "model qwen3-8b is ready on GPU.0 after 12.3 s",
        "keys are never read from the config: move them to config.keys.json",
        "no key was sent; see the docs about keys",
        "the passwords, and secrets, are not here",
        "listening on http://127.0.0.1:11437",
        "model rv-demo-draft: task-force is ready",
        "max_tokens=100 tokens: 5, token ids [1, 2]",
        "",
    ],
)
def test_other_texts_stay(text: str) -> None:
    assert Redactor()(text) == text


@given(st.text(max_size=300), secrets)
@settings(max_examples=100, deadline=None)
def test_hidden_values_are_masked_anywhere(text: str, secret: str) -> None:
    redact = Redactor()
    redact.hide([secret])
    assert secret not in redact(f"{text}{secret}{text}")


def test_hiding_replaces_what_was_hidden_before_and_prefers_the_longest() -> None:
    redact = Redactor()
    redact.hide(["abcdefgh", "abcdefgh-ijkl", "short"])
    assert redact("x abcdefgh-ijkl short") == f"x {MASK} short"
    redact.hide(["zzzzzzzzzz"])
    assert redact("abcdefgh zzzzzzzzzz") == f"abcdefgh {MASK}"
    redact.hide([])
    assert redact("zzzzzzzzzz") == "zzzzzzzzzz"


@pytest.mark.parametrize(
    "piece", ["a-", "api", "api_key=[", "://", "bearer ", "secret-", "authorization a-", "\\", "x@"]
)
def test_no_text_takes_long(piece: str) -> None:
    Redactor()(piece * 50_000 + "api_key secret authorization bearer @ sk- hf_")  # minutes when it is quadratic
