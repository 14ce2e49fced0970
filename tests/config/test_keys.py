import hmac
import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.config import keys as module
from rustedvino.config.keys import (
    KEYS_MAX_BYTES,
    MAX_KEY_CHARS,
    MAX_KEYS,
    SHORT_KEY_CHARS,
    ApiKey,
    KeyRing,
    KeySet,
    load_keys,
    parse_keys,
)
from rustedvino.config.problems import ConfigError

USER = "user-key-5f0a9c41d7e2"
OTHER = "user-key-77be10c3aa58"
ADMIN = "admin-key-0d3c91f6be74"


def content(**lists):
    return json.dumps(lists).encode()


def problems(data):
    with pytest.raises(ConfigError) as caught:
        parse_keys(data)
    return [str(problem) for problem in caught.value.problems]


@pytest.fixture
def keys_file(tmp_path) -> Path:
    path = tmp_path / "config.keys.json"
    path.write_bytes(content(api_keys=[USER, OTHER], admin_api_keys=[ADMIN]))
    path.chmod(0o600)
    return path


# What a file may hold.


def test_both_lists_are_read():
    found = parse_keys(content(api_keys=[USER, OTHER], admin_api_keys=[ADMIN]))
    assert [(key.text, key.admin) for key in found.keys] == [(USER, False), (OTHER, False), (ADMIN, True)]
    assert found.admin_count == 1
    assert found.warnings == ()


def test_one_list_is_enough():
    assert [key.admin for key in parse_keys(content(admin_api_keys=[ADMIN])).keys] == [True]
    only_users = parse_keys(content(api_keys=[USER]))
    assert [key.admin for key in only_users.keys] == [False]
    assert "admin_api_keys holds no key" in only_users.warnings[0]


def test_a_byte_order_mark_and_comments_are_passed_over():
    data = b"\xef\xbb\xbf" + content(_owner="Ann", **{"//": [1]}, admin_api_keys=[ADMIN])
    assert parse_keys(data).find(ADMIN) is not None


def test_a_key_in_both_lists_is_an_admin_key_and_warned_of():
    found = parse_keys(content(api_keys=[USER, ADMIN], admin_api_keys=[ADMIN]))
    assert [key.text for key in found.keys] == [USER, ADMIN]
    assert found.find(ADMIN).admin
    assert found.warnings == ("api_keys[1] is also in admin_api_keys, so it opens the admin routes",)


def test_short_keys_are_warned_of():
    short = "s" * (SHORT_KEY_CHARS - 1)
    (warning,) = parse_keys(content(api_keys=[short], admin_api_keys=[ADMIN])).warnings
    assert "api_keys[0]" in warning
    assert "shorter" in warning
    assert parse_keys(content(admin_api_keys=["s" * SHORT_KEY_CHARS])).warnings == ()


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", ["is not JSON"]),
        (b"[]", ["must hold one JSON object"]),
        (b'"secret-in-a-string"', ["must hold one JSON object"]),
        (b"{", ["is not JSON"]),
        (b"\xff\xfe{}", ["is not UTF-8"]),
        (b'{"api_keys": ' + b"[" * 5000 + b"]" * 5000 + b"}", ["nested too deeply"]),
        (b"{}", ["holds no key"]),
        (content(api_keys=[], admin_api_keys=[]), ["holds no key"]),
        (content(api_keys=[USER], api_key=[USER]), ['api_key: is not a list of keys; did you mean "api_keys"?']),
        (content(ADMIN_API_KEYS=[USER]), ['did you mean "admin_api_keys"?']),
        (content(api_keys=[USER], zzz=[USER]), ["member 2 has an unknown name; known are api_keys and admin_api_keys"]),
        (
            b'{"api_keys": ["user-key-5f0a9c41d7e2"], "api_keys": ["x"]}',
            ["api_keys: is written more than once"],
        ),
        (content(api_keys=USER), ["api_keys: must be a list of texts, got a text"]),
        (content(api_keys=None), ["api_keys: must be a list of texts, got null"]),
        (content(api_keys={"a": USER}), ["api_keys: must be a list of texts, got an object"]),
        (
            content(api_keys=["", 12345678, None, True, [USER], {"k": USER}, 1.5]),
            [
                "api_keys[0]: is empty",
                "api_keys[1]: must be a text, got a number",
                "api_keys[2]: must be a text, got null",
                "api_keys[3]: must be a text, got true or false",
                "api_keys[4]: must be a text, got a list",
                "api_keys[5]: must be a text, got an object",
                "api_keys[6]: must be a text, got a number",
            ],
        ),
        (content(api_keys=[USER, OTHER, USER]), ["api_keys[2]: is the same key as api_keys[0]"]),
        (content(admin_api_keys=[" " + USER]), ["admin_api_keys[0]: has a space"]),
        (content(admin_api_keys=[USER + "\n"]), ["admin_api_keys[0]: has a space"]),
        (content(admin_api_keys=["schlüssel-5f0a9c41d7e2"]), ["admin_api_keys[0]: has a space, a control"]),
        (content(admin_api_keys=["k" * (MAX_KEY_CHARS + 1)]), ["admin_api_keys[0]: is longer than"]),
        (content(api_keys=[f"key-{i}" for i in range(MAX_KEYS + 1)]), ["api_keys: holds more than"]),
        (
            content(api_keys=[f"key-{i}" for i in range(MAX_KEYS)], admin_api_keys=[ADMIN]),
            ["the file holds more than"],
        ),
    ],
)
def test_what_is_wrong_is_told_all_at_once(data, told):
    found = problems(data)
    assert len(found) == len(told), found
    for problem, text in zip(found, told, strict=True):
        assert text in problem


SECRETS = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters='"\\'), min_size=12, max_size=40
)
MISTAKES = st.sampled_from(
    [
        lambda secret: {"api_keys": secret},
        lambda secret: {"api_keys": [secret, secret]},
        lambda secret: {"api_keys": [secret + " "]},
        lambda secret: {"api_keys": [[secret]]},
        lambda secret: {"api_keys": [{secret: "admin"}]},
        lambda secret: {secret: "api_keys"},
        lambda secret: {"api_keys": {secret: True}},
        lambda secret: [secret],
        lambda secret: secret,
    ]
)


@settings(max_examples=150, deadline=None)
@given(secret=SECRETS, mistake=MISTAKES)
def test_no_message_shows_what_may_be_a_key(secret, mistake):
    if secret.startswith(("_", "//")):
        secret = "k" + secret
    with pytest.raises(ConfigError) as caught:
        parse_keys(json.dumps(mistake(secret)).encode())
    assert secret not in str(caught.value)
    assert secret not in repr(caught.value)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=80) | st.recursive(st.none() | st.text(), st.lists).map(lambda v: json.dumps(v).encode()))
def test_any_bytes_are_keys_or_problems(data):
    try:
        found = parse_keys(data)
    except ConfigError:
        return
    assert found.keys


# Finding a key.


@settings(max_examples=100, deadline=None)
@given(
    st.lists(SECRETS, min_size=1, max_size=8, unique=True).flatmap(
        lambda texts: st.tuples(st.just(texts), st.lists(st.booleans(), min_size=len(texts), max_size=len(texts)))
    ),
    st.text(max_size=600),
)
def test_a_key_is_found_by_its_whole_text_only(drawn, other):
    texts, admin = drawn
    found = KeySet(tuple(ApiKey(text, is_admin) for text, is_admin in zip(texts, admin, strict=True)))
    for text, is_admin in zip(texts, admin, strict=True):
        assert found.find(text) == ApiKey(text, is_admin)
        for near in (text[:-1], text + "x", text.swapcase(), " " + text, ""):
            assert (found.find(near) is not None) == (near in texts)
    assert (found.find(other) is not None) == (other in texts)


@pytest.mark.parametrize("shown", [USER, ADMIN, "key-0", "wrong", "", "k" * 100_000, "\ud800", "ключ"])
def test_each_key_is_compared_whichever_is_right(monkeypatch, shown):
    """The work must not tell how near a guess was: every digest is compared, and all are of one length."""
    keys = KeySet((ApiKey(USER), *(ApiKey(f"key-{i}") for i in range(20)), ApiKey(ADMIN, admin=True)))
    compared = []

    def compare(left, right):
        compared.append((len(left), len(right)))
        return hmac.compare_digest(left, right)

    monkeypatch.setattr(module, "hmac", type("Hmac", (), {"compare_digest": staticmethod(compare)}))
    keys.find(shown)
    assert compared == [(32, 32)] * 22


def test_a_text_beyond_the_longest_key_is_not_mistaken_for_its_beginning():
    longest = "k" * MAX_KEY_CHARS
    keys = KeySet((ApiKey(longest),))
    assert keys.find(longest) is not None
    assert keys.find(longest + "k") is None
    assert keys.find(longest * 2) is None


def test_the_text_of_a_key_is_in_no_repr():
    ring = KeyRing(Path("x"), parse_keys(content(api_keys=[USER], admin_api_keys=[ADMIN])))
    for shown in (repr(ring), repr(ring.keys), repr(ring.keys.find(USER)), str(ring.keys.keys)):
        assert USER not in shown
        assert ADMIN not in shown


# The file.


def test_a_file_is_read(keys_file):
    found = load_keys(keys_file)
    assert found.find(ADMIN).admin
    assert found.warnings == ()


@pytest.mark.skipif(sys.platform == "win32", reason="no file modes")
@pytest.mark.parametrize(
    ("mode", "warned"),
    [(0o600, None), (0o400, None), (0o640, None), (0o644, "read"), (0o666, "read"), (0o620, "written")],
)
def test_a_file_that_others_may_read_is_warned_of(keys_file, mode, warned):
    keys_file.chmod(mode)
    found = load_keys(keys_file)
    if warned is None:
        assert found.warnings == ()
    else:
        assert f"can be {warned} by other users" in found.warnings[0]
        assert f"mode 0{mode:o}" in found.warnings[0]


def test_a_broken_file_is_named(keys_file):
    keys_file.write_text("{")
    with pytest.raises(ConfigError) as caught:
        load_keys(keys_file)
    assert str(caught.value).startswith(str(keys_file))


def test_what_is_no_file_is_not_read(tmp_path):
    with pytest.raises(ConfigError):
        load_keys(tmp_path)
    with pytest.raises(FileNotFoundError):
        load_keys(tmp_path / "none.json")
    with pytest.raises(ConfigError):
        load_keys(str(tmp_path) + "/a\0b")


@pytest.mark.skipif(sys.platform == "win32", reason="no such pipes")
def test_a_pipe_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="not a regular file"):
        load_keys(tmp_path / "pipe")


def test_a_huge_file_is_refused(keys_file):
    keys_file.write_bytes(b" " * (KEYS_MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="larger than"):
        load_keys(keys_file)


# The keys of a server.


def test_without_a_file_no_keys_are_in_use(tmp_path):
    for ring in (KeyRing.open(None), KeyRing.open(tmp_path / "none.json")):
        assert not ring.in_use
        assert ring.find([USER, ""]) is None


def test_a_broken_file_is_no_server_without_keys(keys_file):
    keys_file.write_text("{}")
    with pytest.raises(ConfigError):
        KeyRing.open(keys_file)


def test_the_best_key_counts(keys_file):
    ring = KeyRing.open(keys_file)
    assert ring.find([]) is None
    assert ring.find(["wrong", USER]).text == USER
    assert ring.find([ADMIN, USER]).text == ADMIN
    assert ring.find([USER, ADMIN]).text == ADMIN


def test_use_and_change_are_told(keys_file):
    ring = KeyRing.open(keys_file)
    used, changed = [], []
    ring.on_use(used.append)
    ring.on_change(changed.append)
    assert changed == [(USER, OTHER, ADMIN)]
    ring.find(["wrong"])
    ring.find([USER])
    ring.find([USER, ADMIN])
    assert used == [USER, ADMIN]
    ring.replace(parse_keys(content(admin_api_keys=[OTHER])))
    assert changed[1:] == [(OTHER,)]
    assert ring.find([USER]) is None


def test_watching_a_server_without_keys():
    changed = []
    KeyRing().on_change(changed.append)
    assert changed == [()]
