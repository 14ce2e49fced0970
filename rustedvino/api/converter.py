"""Strict structuring of JSON values into request types.

A request type is a frozen attrs class whose annotations say what the wire allows: `str`, `int`, `float`,
`bool`, `Literal[...]`, `tuple[X, ...]`, `dict[str, X]`, unions told apart by the JSON kind of the value,
other request types, and `Annotated[X, rule]` with a rule such as `Within(0, 2)`.

- Nothing is coerced except between whole numbers: `5.0` is an integer and `5` a number; `"5"` and `true` are
  neither.
- `null` means absent. Unknown fields are ignored.
- The first wrong value ends the work, so a large array of wrong items costs no more than one of them. The
  error carries the path of that value in the API's own style (`messages[2].content[0].type`).
- A class may name fields it must not be given, and why: `REFUSED: ClassVar = {"audio": "not supported"}`.
- A check over several fields is the class's `__attrs_post_init__`, which raises `FieldError` with a path.
"""

from __future__ import annotations

import json
import math
import re
import sys
import types
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, Literal, Protocol, TypeVar, Union, get_args, get_origin

import attrs
import cattrs

from rustedvino.api.errors import ApiError, bad_request, printable, shown

__all__ = [
    "FieldError",
    "NonEmpty",
    "Rule",
    "Segment",
    "Within",
    "register",
    "render_path",
    "structure",
    "structure_as",
    "wrong",
]

T = TypeVar("T")
Segment = str | int
Hook = Callable[[Any, Any], Any]


class FieldError(ValueError):
    """One wrong value: `message` completes the sentence that begins with its path."""

    def __init__(self, message: str, path: Iterable[Segment] = (), code: str | None = None) -> None:
        self.message = message
        self.path: tuple[Segment, ...] = tuple(path)
        self.code = code
        super().__init__(message)

    def under(self, *segments: Segment) -> FieldError:
        """Adds outer segments to the path, as the error passes through the containers of the value."""
        self.path = (*segments, *self.path)
        return self

    def api_error(self) -> ApiError:
        param = render_path(self.path)
        if not param:
            return bad_request(f"The request {self.message}", code=self.code)
        return bad_request(f"'{printable(param, 300)}' {self.message}", param, self.code)


def render_path(path: Iterable[Segment]) -> str:
    """`("messages", 2, "role")` becomes `messages[2].role`; a name that is no plain word is quoted."""
    text = ""
    for segment in path:
        if isinstance(segment, int):
            text += f"[{segment}]"
        elif _WORD.fullmatch(segment):
            text += f".{segment}" if text else segment
        else:
            name = segment if len(segment) <= 60 else segment[:59] + "…"
            text += f"[{json.dumps(name, ensure_ascii=not name.isprintable())}]"
    return text


_WORD: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


class Rule(Protocol):
    """What a value must keep beyond its type."""

    def expected(self, of: str) -> str:
        """The expectation in words; `of` names the type (`a number`)."""

    def holds(self, value: Any) -> bool: ...


@attrs.frozen
class Within:
    """A number between `low` and `high`; `above` makes the lower end exclusive."""

    low: float
    high: float
    above: bool = False

    def expected(self, of: str) -> str:
        if self.above:
            return f"{of} above {_plain(self.low)} and at most {_plain(self.high)}"
        return f"{of} between {_plain(self.low)} and {_plain(self.high)}"

    def holds(self, value: float) -> bool:
        return (self.low < value if self.above else self.low <= value) and value <= self.high


@attrs.frozen
class NonEmpty:
    """A string or array with at least one and at most `limit` elements."""

    limit: int = sys.maxsize

    def expected(self, of: str) -> str:
        unit = "characters" if of == "a string" else "items"
        most = "" if self.limit == sys.maxsize else f" with at most {self.limit} {unit}"
        return f"{of.replace('a ', 'a non-empty ').replace('an ', 'a non-empty ')}{most}"

    def holds(self, value: Any) -> bool:
        return 0 < len(value) <= self.limit


def structure(data: object, cls: type[T]) -> T:
    """`data` (from `parse_json`) as a `cls`; raises ApiError 400 whose param is the wrong value's path."""
    try:
        return _converter.structure(data, cls)
    except FieldError as e:
        raise e.api_error() from None


def wrong(expected: str, value: object) -> FieldError:
    """The error that says what was expected and what was given."""
    return FieldError(f"must be {expected}, but it is {shown(value)}.")


# -- primitives -----------------------------------------------------------------------------------------


def _bool(value: Any, _: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    raise wrong("true or false", value)


def _int(value: Any, _: Any) -> int:
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer():
        return int(value)
    raise wrong("an integer", value)


def _float(value: Any, _: Any) -> float:
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is int and abs(value) <= sys.float_info.max:
        return float(value)
    raise wrong("a number", value)


def _str(value: Any, _: Any) -> str:
    if type(value) is str:
        return value
    raise wrong("a string", value)


def _object(value: Any, _: Any) -> dict[str, Any]:
    if type(value) is dict:
        return value
    raise wrong("an object", value)


# -- types made of others -------------------------------------------------------------------------------


def _literal_hook(tp: Any) -> Hook:
    allowed = get_args(tp)
    names = frozenset(allowed)
    expected = ("one of " if len(allowed) > 1 else "") + ", ".join(f"'{v}'" for v in allowed)

    def hook(value: Any, _: Any) -> Any:
        if type(value) is str and value in names:
            return value
        raise wrong(expected, value)

    return hook


def _tuple_hook(tp: Any) -> Hook:
    item_type = get_args(tp)[0]
    item = _converter.get_structure_hook(item_type)

    def hook(value: Any, _: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise wrong("an array", value)
        items: list[Any] = []
        try:
            for element in value:
                items.append(item(element, item_type))  # noqa: PERF401 - its length is the failing index
        except FieldError as e:
            raise e.under(len(items)) from None
        return tuple(items)

    return hook


def _dict_hook(tp: Any) -> Hook:
    value_type = get_args(tp)[1]
    if value_type in (Any, object):
        return _object
    item = _converter.get_structure_hook(value_type)

    def hook(value: Any, _: Any) -> dict[str, Any]:
        fields = _object(value, _)
        result: dict[str, Any] = {}
        for name, element in fields.items():
            try:
                result[name] = item(element, value_type)
            except FieldError as e:
                raise e.under(name) from None
        return result

    return hook


def _annotated_hook(tp: Any) -> Hook:
    base, *metadata = get_args(tp)
    rules: list[Rule] = [m for m in metadata if _is_rule(m)]
    hook = _converter.get_structure_hook(base)
    of = _noun(base)

    def checked(value: Any, _: Any) -> Any:
        result = hook(value, base)
        for rule in rules:
            if not rule.holds(result):
                raise wrong(rule.expected(of), value)
        return result

    return checked


def _union_hook(tp: Any) -> Hook:
    """Members are told apart by the JSON kind of the value, so no two may share a kind."""
    by_kind: dict[type, tuple[Hook, Any]] = {}
    members = _members(tp)
    for member in members:
        hook = _converter.get_structure_hook(member)
        for kind in _json_kinds(member):
            if kind in by_kind and kind not in (int, float):
                raise TypeError(f"two members of {tp} are a JSON {kind.__name__}")
            by_kind.setdefault(kind, (hook, member))
    expected = " or ".join(dict.fromkeys(_noun(m) for m in members))

    def hook_of_union(value: Any, _: Any) -> Any:
        found = by_kind.get(type(value))
        if found is None:
            raise wrong(expected, value)
        return found[0](value, found[1])

    return hook_of_union


def _class_hook(cls: type[Any]) -> Hook:
    attrs.resolve_types(cls)
    plan: list[tuple[str, Hook, Any, bool]] = []
    for field in attrs.fields(cls):
        if field.init:
            tp = _without_none(field.type)
            required = field.default is attrs.NOTHING
            plan.append((field.name, _converter.get_structure_hook(tp), tp, required))
    refused: dict[str, str] = getattr(cls, "REFUSED", {})

    def hook(value: Any, _: Any) -> Any:
        fields = _object(value, _)
        for name, why in refused.items():
            if fields.get(name) is not None:
                raise FieldError(f"cannot be used: {why}.", (name,), "unsupported_parameter")
        given: dict[str, Any] = {}
        for name, field_hook, tp, required in plan:
            element = fields.get(name)
            if element is None:
                if required:
                    raise FieldError(
                        f"is missing: you must provide a {name} parameter.",
                        (name,),
                        "missing_required_parameter",
                    )
                continue
            try:
                given[name] = field_hook(element, tp)
            except FieldError as e:
                raise e.under(name) from None
        return cls(**given)

    return hook


# -- looking at annotations -----------------------------------------------------------------------------


def _is_union(tp: Any) -> bool:
    return get_origin(tp) in (Union, types.UnionType)


def _members(tp: Any) -> tuple[Any, ...]:
    return tuple(m for m in get_args(tp) if m is not type(None))


def _without_none(tp: Any) -> Any:
    if not _is_union(tp):
        return tp
    members = _members(tp)
    return members[0] if len(members) == 1 else Union[members]  # noqa: UP007 - built from a tuple


def _has_origin(origin: Any) -> Callable[[Any], bool]:
    return lambda tp: get_origin(tp) is origin


def _is_rule(metadata: object) -> bool:
    return hasattr(metadata, "holds") and hasattr(metadata, "expected")


def _is_ruled(tp: Any) -> bool:
    return get_origin(tp) is Annotated and any(_is_rule(m) for m in get_args(tp)[1:])


def _json_kinds(tp: Any) -> tuple[type, ...]:
    origin = get_origin(tp)
    if origin is Annotated:
        return _json_kinds(get_args(tp)[0])
    if origin is Literal:
        return (str,)
    if origin is tuple:
        return (list,)
    if tp in (int, float):
        return (int, float)
    if tp in (str, bool):
        return (tp,)
    return (dict,)


def _noun(tp: Any) -> str:
    origin = get_origin(tp)
    if origin is Annotated:
        return _noun(get_args(tp)[0])
    if origin is Literal:
        return "one of " + ", ".join(f"'{v}'" for v in get_args(tp))
    if origin is tuple:
        return "an array"
    names = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
    return names.get(tp, "an object")


def _plain(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else str(number)


def register(cls: Any, hook: Callable[[Any], Any]) -> None:
    """Gives `cls` a structuring function of its own."""
    _converter.register_structure_hook(cls, lambda value, _: hook(value))


def structure_as(cls: type[T], value: object) -> T:
    """Like `structure`, for use inside a hook: raises FieldError with the path below `value`."""
    return _converter.structure(value, cls)


# Errors are raised plainly, not collected in groups: the first one is the answer.
_converter = cattrs.Converter(detailed_validation=False)
for _type, _hook in ((bool, _bool), (int, _int), (float, _float), (str, _str)):
    _converter.register_structure_hook(_type, _hook)
_converter.register_structure_hook_factory(attrs.has, _class_hook)
_converter.register_structure_hook_factory(_has_origin(Literal), _literal_hook)
_converter.register_structure_hook_factory(_has_origin(tuple), _tuple_hook)
_converter.register_structure_hook_factory(_has_origin(dict), _dict_hook)
_converter.register_structure_hook_factory(_is_union, _union_hook)
_converter.register_structure_hook_factory(_is_ruled, _annotated_hook)
