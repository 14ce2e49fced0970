"""Parsing of bodies: what is accepted, and that each refusal says what and where."""

import json
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rustedvino.api import body
from rustedvino.api.body import MAX_DEPTH, MAX_NUMBER_CHARS, parse_json
from rustedvino.api.errors import ApiError

JSON_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | JSON_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(JSON_TEXT, inner, max_size=4),
    max_leaves=20,
)


def refused(data: bytes, **options: int) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_json(data, **options)
    assert len(json.dumps(caught.value.envelope())) < 3000
    return caught.value


@given(st.dictionaries(JSON_TEXT, JSON_VALUES, max_size=5), st.booleans(), st.booleans())
def test_any_json_object_is_read_as_it_was_written(value, ascii_only, bom):
    data = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert parse_json(b"\xef\xbb\xbf" * bom + data) == value


@settings(max_examples=300)
@given(
    st.one_of(
        st.binary(max_size=80),
        st.text('{}[]",:\\ud8cEe+-.0123456789 \n\tNaInfity tru', max_size=60).map(str.encode),
        JSON_VALUES.map(lambda v: json.dumps(v).encode()),
    )
)
@example(b'{"a":1}\xff')
@example(b'{"a":{"a":NaN,"a":1}}')
def test_any_bytes_give_an_object_or_a_400(data):
    try:
        result = parse_json(data)
    except ApiError as e:
        result = e
    if isinstance(result, ApiError):
        assert result.status == 400
        assert result.message
    else:
        assert isinstance(result, dict)
        json.dumps(result, ensure_ascii=False, allow_nan=False).encode()


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (b"", "empty"),
        (b" \n\t", "empty"),
        (b"\xef\xbb\xbf", "empty"),
        (b"[1]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"a":1', "line 1, column 7"),
        (b'{"a":1}\n{', "line 2, column 1"),
        (b'{"a":\n "x\x01y"}', "line 2, column 4"),
        (b'{"a":"x\ny"}', "control character"),
        (b'{"a":"\xff"}', "at byte 6"),
        (b'\xef\xbb\xbf{"a":"\xff"}', "at byte 9"),
        (b'{"a":"\xed\xa0\x80"}', "not valid UTF-8"),
        ('{"a":1}'.encode("utf-16"), "not valid UTF-8"),
        (b"{'a':1}", "line 1, column 2"),
        (b'{"a":01}', "line 1, column 7"),
        (b'{"a":1,}', "line 1"),
    ],
)
def test_syntax_is_refused_with_its_place(data, where):
    error = refused(data)
    assert error.status == 400
    assert where.lower() in error.message.lower()


@pytest.mark.parametrize(
    ("data", "param", "what"),
    [
        (b'{"a":{"b":[1,NaN]}}', "a.b[1]", "NaN"),
        (b'{"temperature":Infinity}', "temperature", "Infinity"),
        (b'{"temperature":-Infinity}', "temperature", "-Infinity"),
        (b'{"a":[0,1e999]}', "a[1]", "too large"),
        (b'{"a":-1e999}', "a", "too large"),
        (b'{"n":' + b"1" * 100_000 + b"}", "n", "100000 characters"),
        (b'{"n":-' + b"9" * MAX_NUMBER_CHARS + b"}", "n", "321 characters"),
        (b'{"n":0.' + b"1" * 100_000 + b"}", "n", "100002 characters"),
        (b'{"a":1,"a":1}', "a", "twice"),
        (b'{"m":[{"role":"x","role":"y"}]}', "m[0].role", "twice"),
        (b'{"m":[{"role":[1,{"z":1,"z":2}]}]}', "m[0].role[1].z", "twice"),
        (b'{"m":{"x":NaN,"x":1}}', "m.x", "NaN"),
        (b'{"m":["\\ud800"]}', "m[0]", "\\ud800"),
        (b'{"m":["\\uD83D!"]}', "m[0]", "at character 0"),
        (b'{"m":["ok\\udE00"]}', "m[0]", "at character 2"),
        (b'{"a b":{"\\ud800":1}}', '["a b"]["\\ud800"]', "in its name"),
    ],
)
def test_values_json_does_not_have_are_refused_with_their_path(data, param, what):
    error = refused(data)
    assert (error.status, error.param) == (400, param)
    assert what in error.message


def test_a_surrogate_pair_and_line_separators_are_text():
    assert parse_json(b'{"a":"\\ud83d\\ude00\\u2028"}') == {"a": "\U0001f600\u2028"}


def test_the_longest_number_is_read_exactly():
    number = 10 ** (MAX_NUMBER_CHARS - 1)
    assert parse_json(b'{"n":%d}' % number) == {"n": number}
    assert parse_json(b'{"n":1.7976931348623157e308}') == {"n": sys.float_info.max}


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_depth_is_bounded(opening):
    closing = b"]" if opening == b"[" else b"}"

    def nested(levels: int) -> bytes:
        inner = levels - 1
        return b'{"x":' + opening * inner + b"1" + closing * inner + b"}"

    parse_json(nested(MAX_DEPTH))
    for levels in (MAX_DEPTH + 1, 500, 20_000):
        error = refused(nested(levels))
        assert error.status == 400
        assert str(MAX_DEPTH) in error.message
    assert refused(b'{"x":' + opening * 50_000).status == 400


def test_too_many_values_is_413_before_parsing():
    assert refused(b'{"a":[' + b"1," * 200_001 + b"not json").status == 413
    assert refused(b'{"a":[1,2,3]}', max_brackets=3).status == 413
    assert parse_json(b'{"a":[1,2,3]}', max_brackets=4) == {"a": [1, 2, 3]}


@pytest.mark.parametrize("text", ["a,b[c]{d}" * 50_000, 'say "x,y[{", ' * 50_000, "\\,\\\\," * 30_000])
def test_brackets_inside_text_do_not_count(text):
    assert parse_json(json.dumps({"prompt": text}).encode())["prompt"] == text


def test_text_does_not_hide_brackets_outside_of_it():
    text = b'"' + b"," * 300 + b'\\"\\\\"'
    assert refused(b'{"a":[' + text + b",[],[],[],[]]}", max_brackets=8).status == 413


@given(JSON_VALUES)
def test_the_screen_counts_exactly_outside_of_strings(value):
    data = json.dumps({"a": value}).encode()

    def count(item: object) -> int:
        if isinstance(item, dict):
            return 1 + max(len(item) - 1, 0) + sum(map(count, item.values()))
        if isinstance(item, list):
            return 1 + max(len(item) - 1, 0) + sum(map(count, item))
        return 0

    # A limit below every count makes the screen look closely.
    assert body._count_brackets(data, 0) == count({"a": value})
