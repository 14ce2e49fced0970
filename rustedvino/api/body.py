"""From the bytes of a body to a JSON object, with bounded work and errors that say what and where.

The parser of the standard library runs in C and holds the interpreter lock for its whole run, so what it is
given is screened first: its time follows the number of values, not of bytes. What it accepts beyond JSON,
or decides silently, is refused: NaN and Infinity, numbers a double cannot hold, lone surrogates (no tokenizer
and no answer can carry them), and a name that stands twice in one object (parsers differ in which one counts,
so what a gateway checked need not be what is run).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, Final, NoReturn

import attrs

from rustedvino.api.converter import Segment, render_path
from rustedvino.api.errors import ApiError, bad_request, printable, too_large

__all__ = ["MAX_BRACKETS", "MAX_DEPTH", "MAX_NUMBER_CHARS", "parse_json"]

#: Most `{`, `[` and `,` outside of strings: a measure of how many values there are.
MAX_BRACKETS: Final = 200_000
#: Most quotes and most escapes up to which the screen tells strings from the rest.
MAX_QUOTES: Final = 2 * MAX_BRACKETS
#: Deepest nesting of arrays and objects.
MAX_DEPTH: Final = 100
#: Longest number, in characters: the largest double written out has 309. Long integers cost quadratic time.
MAX_NUMBER_CHARS: Final = 320

_BOM: Final = b"\xef\xbb\xbf"
_SLICE_BYTES: Final = 1024 * 1024
_INVALID: Final = "invalid_json"


def parse_json(data: bytes, *, max_brackets: int = MAX_BRACKETS) -> dict[str, Any]:
    """`data` as a JSON object.

    A UTF-8 byte order mark is skipped. Raises ApiError: 413 for more than `max_brackets` of `{`, `[` and `,`,
    400 for everything else; the message names the byte, the line and column, or the path of the fault.
    """
    offset = len(_BOM) if data.startswith(_BOM) else 0
    if not data[offset : offset + 64].strip() and not data[offset:].strip():
        raise bad_request("The body is empty; it must be a JSON object.", code=_INVALID)
    if _count_brackets(data, max_brackets) > max_brackets:
        raise too_large(f"The body has too many values: more than {max_brackets} of '{{', '[' and ','.")
    # A lone surrogate can only come from an escape: as bytes it is not valid UTF-8.
    may_have_surrogates = b"\\ud" in data or b"\\uD" in data
    try:
        text = str(memoryview(data)[offset:], "utf-8")
    except UnicodeDecodeError as e:
        message = f"The body is not valid UTF-8: {e.reason} at byte {e.start + offset}."
        raise bad_request(message, code=_INVALID) from None
    del data  # text, value and bytes together would be three times the body
    try:
        value = _PLAIN.decode(text)
    except json.JSONDecodeError as e:
        raise _syntax_error(e) from None
    except RecursionError:
        raise _too_deep() from None
    except _FlawSeenError:
        raise _located(text) from None
    if type(value) is not dict:
        raise bad_request("The body must be a JSON object.", code=_INVALID)
    _check_depth(value)
    if may_have_surrogates:
        _check_surrogates(value)
    return value


def _count_brackets(data: bytes, limit: int) -> int:
    """Brackets and commas outside of strings as far as that is cheap to say; above `limit` not exact."""
    count = _count_up_to(data, b"{[,", limit)
    if count <= limit:
        return count
    # Text may be full of commas. With few quotes it is cheap to count outside of strings only.
    escapes = _count_up_to(data, b"\\", MAX_QUOTES)
    if escapes > MAX_QUOTES:
        return count
    if escapes:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    if _count_up_to(data, b'"', MAX_QUOTES) > MAX_QUOTES:
        return count
    outside = data.split(b'"')[::2]
    return sum(piece.count(b"{") + piece.count(b"[") + piece.count(b",") for piece in outside)


def _count_up_to(data: bytes, characters: bytes, limit: int) -> int:
    """How often any of `characters` occurs, counted no further than to the first MiB in which `limit` is passed:
    a hostile body of 50 MiB must not hold the interpreter for as long as counting it takes."""
    count = 0
    for start in range(0, len(data), _SLICE_BYTES):
        end = start + _SLICE_BYTES
        count += sum(data.count(character, start, end) for character in characters)
        if count > limit:
            break
    return count


# -- flaws -------------------------------------------------------------------------------------------------
# The first pass only notices that something is wrong. The second, made for a refusal only, puts a `_Flaw` in
# the place of each wrong value, and a walk over the result finds its path.


class _FlawSeenError(Exception):
    pass


@attrs.frozen
class _Flaw:
    message: str
    below: tuple[Segment, ...] = ()


def _int_flaw(text: str) -> int | _Flaw:
    if len(text) > MAX_NUMBER_CHARS:
        return _Flaw(f"is a number of {len(text)} characters; at most {MAX_NUMBER_CHARS} are read")
    return int(text)


def _float_flaw(text: str) -> float | _Flaw:
    if len(text) > MAX_NUMBER_CHARS:
        return _Flaw(f"is a number of {len(text)} characters; at most {MAX_NUMBER_CHARS} are read")
    number = float(text)
    if math.isinf(number):
        return _Flaw(f"is a number too large to be represented ({printable(text)})")
    return number


def _constant_flaw(text: str) -> _Flaw:
    return _Flaw(f"is {text}, which JSON does not have")


def _object_flaw(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Flaw:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for name, value in pairs:
            if isinstance(value, _Flaw):
                return attrs.evolve(value, below=(name, *value.below))
            if name in seen:
                return _Flaw("is given twice in the same object", (name,))
            seen.add(name)
    return result


def _int(text: str) -> int:
    if len(text) > MAX_NUMBER_CHARS:
        raise _FlawSeenError
    return int(text)


def _float(text: str) -> float:
    number = float(text) if len(text) <= MAX_NUMBER_CHARS else math.inf
    if math.isinf(number):
        raise _FlawSeenError
    return number


def _constant(_: str) -> NoReturn:
    raise _FlawSeenError


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise _FlawSeenError
    return result


_PLAIN: Final = json.JSONDecoder(
    parse_int=_int, parse_float=_float, parse_constant=_constant, object_pairs_hook=_object
)
_LOCATING: Final = json.JSONDecoder(
    parse_int=_int_flaw,
    parse_float=_float_flaw,
    parse_constant=_constant_flaw,
    object_pairs_hook=_object_flaw,
)


def _located(text: str) -> ApiError:
    try:
        value = _LOCATING.decode(text)
    except json.JSONDecodeError as e:
        return _syntax_error(e)
    except RecursionError:
        return _too_deep()
    for path, item in _walk(value):
        if isinstance(item, _Flaw):
            return _at((*path, *item.below), item.message)
    raise AssertionError("the second pass found no flaw")


def _check_depth(value: dict[str, Any]) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for container in level
            for item in (container.values() if type(container) is dict else container)
            if type(item) is dict or type(item) is list
        ]
        if not level:
            return
    raise _too_deep()


def _check_surrogates(value: dict[str, Any]) -> None:
    for path, item in _walk(value):
        if type(item) is str and (found := _lone_surrogate(item)) is not None:
            raise _at(path, f"has a lone surrogate (\\u{ord(item[found]):04x}) at character {found}")
        if type(item) is dict:
            for name in item:
                if _lone_surrogate(name) is not None:
                    raise _at((*path, name), "has a lone surrogate in its name")


def _lone_surrogate(text: str) -> int | None:
    if text.isascii():
        return None
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as e:
        return e.start
    return None


def _walk(value: Any) -> Iterator[tuple[tuple[Segment, ...], Any]]:
    """Every value with its path, in the order of the text; needs no recursion."""
    stack: list[tuple[tuple[Segment, ...], Any]] = [((), value)]
    while stack:
        path, item = stack.pop()
        yield path, item
        if type(item) is dict:
            stack.extend(((*path, name), child) for name, child in reversed(item.items()))
        elif type(item) is list:
            stack.extend(((*path, i), item[i]) for i in range(len(item) - 1, -1, -1))


def _at(path: tuple[Segment, ...], message: str) -> ApiError:
    param = render_path(path)
    subject = f"'{printable(param, 300)}'" if param else "The body"
    return bad_request(f"The body is not acceptable JSON: {subject} {message}.", param or None, _INVALID)


def _syntax_error(error: json.JSONDecodeError) -> ApiError:
    what = error.msg.removesuffix(" at")
    message = f"The body is not valid JSON: {what} at line {error.lineno}, column {error.colno}."
    return bad_request(message, code=_INVALID)


def _too_deep() -> ApiError:
    return bad_request(f"The body is nested too deeply: more than {MAX_DEPTH} levels.", code=_INVALID)
