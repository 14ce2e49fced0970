"""JSON schemas as grammars: the supported part, checked, and every text of the grammar valid.

The runtime has a converter of its own, which obeys part of the keywords, ignores others without a word, lets white
space run on for ever and gives malformed numbers and strings for some bounds and patterns. Here a keyword is either
enforced or refused by name. Where a schema leaves freedom the grammar may be narrower than the schema: properties come
in the order given, none that is not named unless ``additionalProperties`` asks for it, integers have at most 18 digits.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from attrs import define, field

from rustedvino.text.json_grammar import (
    BOUNDED_FRACTION_DIGITS,
    EMPTY,
    FRACTION_DIGITS,
    INTEGER_DIGITS,
    NEVER,
    SIGNIFICANT_DIGITS,
    Grammar,
    json_literal,
    literal,
)
from rustedvino.text.pattern_grammar import Body, PatternError, pattern_grammar
from rustedvino.text.string_formats import FORMATS, REFUSED_FORMATS

MAX_SCHEMA_BYTES: Final = 128 * 1024
MAX_NESTING: Final = 64
"""Objects and arrays inside each other in the schema's own text."""
MAX_PROPERTIES: Final = 256
MAX_ENUM_VALUES: Final = 1000
MAX_BRANCHES: Final = 64
MAX_COUNTED: Final = 1024
"""Largest value of minLength, maxLength, minItems, maxItems, minProperties and maxProperties."""
MAX_GRAMMAR_BYTES: Final = 512 * 1024

Path = tuple[str | int, ...]
Types = frozenset[str]

ALL_TYPES: Final[Types] = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})

_ANNOTATIONS: Final = frozenset(
    {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"}
    | {"$comment", "$schema", "$anchor", "$defs", "definitions", "contentEncoding", "contentMediaType"}
    | {"contentSchema", "discriminator", "externalDocs", "nullable"}
)
_BY_TYPE: Final[Mapping[str, frozenset[str]]] = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}),
    "object": frozenset({"properties", "required", "additionalProperties", "minProperties", "maxProperties"}),
}
_COMPOSED: Final = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
_KNOWN: Final = _ANNOTATIONS.union(_COMPOSED, {"type", "$id"}, *_BY_TYPE.values())


class SchemaError(Exception):
    """A schema that is wrong, too large, or asks for what cannot be enforced. ``path`` leads to the place."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message

    def __str__(self) -> str:
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path)
        return f"schema{place}: {self.message}"


def check_schema(schema: Any) -> None:
    """Raise SchemaError unless every text that the schema's grammar allows will satisfy the schema."""
    schema_grammar(schema)


def normalise(schema: Any) -> str:
    """The schema as JSON text; schemas that differ only in blanks have the same. Raises SchemaError.

    The order of properties stays: it is the order in which they are generated.
    """
    _check_size(schema)
    try:
        text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        size_bytes = len(text.encode())
    except (TypeError, ValueError) as error:
        raise SchemaError((), f"it is not JSON: {error}") from error
    if size_bytes > MAX_SCHEMA_BYTES:
        raise SchemaError((), f"it has {size_bytes} bytes; at most {MAX_SCHEMA_BYTES} are accepted")
    return text


def schema_key(text: str) -> bytes:
    """A hash of the schema's normalised text."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def schema_grammar(schema: Any) -> str:
    """The grammar of a schema, in the runtime's EBNF with the root ``root``. Raises SchemaError."""
    normalise(schema)
    grammar = Grammar()
    root = _Compiler(grammar, schema).visit(schema, ())
    if root is NEVER:
        raise SchemaError((), "nothing satisfies it")
    return grammar.text(root)


def object_grammar() -> str:
    """The grammar of any JSON object."""
    grammar = Grammar()
    return grammar.text(grammar.object)


def _check_size(schema: Any) -> None:
    """Bound nesting and size before anything recurses."""
    left: list[tuple[Any, int]] = [(schema, 0)]
    size = 0
    while left:
        value, depth = left.pop()
        if depth > MAX_NESTING:
            raise SchemaError((), f"it is nested deeper than {MAX_NESTING} levels")
        if isinstance(value, dict):
            size += sum(map(len, value))
            left += [(item, depth + 1) for item in value.values()]
        elif isinstance(value, list | tuple):
            left += [(item, depth + 1) for item in value]
        elif isinstance(value, str):
            size += len(value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise SchemaError((), "it holds a number that is not finite")
        size += 2
        if size > MAX_SCHEMA_BYTES:
            raise SchemaError((), f"it has more than {MAX_SCHEMA_BYTES} bytes")


@define(eq=False)
class _Compiler:
    _grammar: Grammar
    _root: Any
    _open: list[str] = field(factory=list)
    _targets: dict[str, str] = field(factory=dict)
    _properties: int = 0
    _enum_values: int = 0

    def visit(self, schema: Any, path: Path) -> str:
        """The expression for the values of a schema; NEVER when there are none."""
        if self._grammar.size_bytes > MAX_GRAMMAR_BYTES:
            raise SchemaError(path, "the schema as a whole is too large")
        if schema is True:
            return self._grammar.value
        if schema is False:
            return NEVER
        if not isinstance(schema, dict):
            raise SchemaError(path, "a schema must be an object or a boolean")
        self._check_keywords(schema, path)
        types = _types(schema, path)
        composed = [name for name in _COMPOSED if name in schema]
        if composed:
            return self._composed(composed[0], schema, types, path)
        if types is None:
            types = _implied_types(schema)
        if types is None:
            return self._grammar.value
        if "number" in types:
            types -= {"integer"}
        return self._grammar.either(self._typed(name, schema, path) for name in sorted(types))

    def _check_keywords(self, schema: dict[str, Any], path: Path) -> None:
        for name in schema:
            if name in _KNOWN or name.startswith("x-"):
                continue
            raise SchemaError((*path, name), "this keyword is not supported")
        if "$id" in schema and path:
            raise SchemaError((*path, "$id"), "is supported at the top only")

    # Composition.

    def _composed(self, name: str, schema: dict[str, Any], types: Types | None, path: Path) -> str:
        beside = sorted(set(schema) - _ANNOTATIONS - {name, "$id"})
        if name in ("const", "enum"):
            beside = [other for other in beside if other != "type"]
        beside = [other for other in beside if not other.startswith("x-")]
        if beside:
            raise SchemaError((*path, beside[0]), f"is not supported beside {name!r}")
        here = (*path, name)
        value = schema[name]
        if name == "$ref":
            return self._reference(value, here)
        if name == "const":
            return self._values([value], types, here)
        if not isinstance(value, list) or not value:
            raise SchemaError(here, "must be an array with at least one item")
        if name == "enum":
            return self._values(value, types, here)
        if len(value) > MAX_BRANCHES:
            raise SchemaError(here, f"has {len(value)} branches; at most {MAX_BRANCHES} are supported")
        if name == "allOf":
            if len(value) > 1:
                raise SchemaError(here, "is supported with one branch only")
            return self.visit(value[0], (*here, 0))
        branches = [self.visit(branch, (*here, index)) for index, branch in enumerate(value)]
        if name == "oneOf":
            self._check_apart(value, here)
        return self._grammar.either(branches)

    def _reference(self, target: Any, path: Path) -> str:
        schema = self._resolve(target, path)
        if target in self._open:
            raise SchemaError(path, "a schema that refers to itself is not supported")
        known = self._targets.get(target)
        if known is None:
            self._open.append(target)
            known = self._targets[target] = self.visit(schema, path)
            self._open.pop()
        return known

    def _resolve(self, target: Any, path: Path) -> Any:
        if not isinstance(target, str):
            raise SchemaError(path, "must be a string")
        if target != "#" and not target.startswith("#/"):
            raise SchemaError(path, "only references inside the schema are supported, such as '#/$defs/name'")
        if target == "#":
            raise SchemaError(path, "a schema that refers to itself is not supported")
        found = self._root
        for part in target[2:].split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isascii() and name.isdigit() and int(name[:6]) < len(found):
                found = found[int(name)]
            else:
                raise SchemaError(path, f"{target!r} leads nowhere")
        return found

    def _values(self, values: Sequence[Any], types: Types | None, path: Path) -> str:
        self._enum_values += len(values)
        if self._enum_values > MAX_ENUM_VALUES:
            raise SchemaError(path, f"the schema lists more than {MAX_ENUM_VALUES} values")
        chosen = [value for value in values if types is None or _type_of(value) & types]
        return self._grammar.either(self._grammar.rule(json_literal(value)) for value in chosen)

    def _check_apart(self, branches: Sequence[Any], path: Path) -> None:
        for index, branch in enumerate(branches):
            for other in range(index):
                if not self._apart(branch, branches[other], 0):
                    raise SchemaError(
                        (*path, index),
                        f"cannot be told from branch {other}: give them different types, or a required property "
                        "with different constants; or use 'anyOf'",
                    )

    def _apart(self, one: Any, other: Any, depth: int) -> bool:
        """Whether surely no value made for one of the two satisfies the other."""
        one, other = self._followed(one), self._followed(other)
        if not isinstance(one, dict) or not isinstance(other, dict):
            return one is False or other is False
        listed = [_listed(schema) for schema in (one, other)]
        if listed[0] is not None and listed[1] is not None:
            return not {_identity(value) for value in listed[0]} & {_identity(value) for value in listed[1]}
        narrow = [_narrow_types(schema) for schema in (one, other)]
        wide = [_wide_types(schema) for schema in (one, other)]
        if not narrow[0] & wide[1] and not narrow[1] & wide[0]:
            return True
        if depth or narrow != [{"object"}, {"object"}]:
            return False
        shared = [schema.get("properties") for schema in (one, other)]
        if not isinstance(shared[0], dict) or not isinstance(shared[1], dict):
            return False
        needed = {name for schema in (one, other) for name in schema.get("required", ()) if isinstance(name, str)}
        return any(
            name in shared[1] and name in needed and self._apart(schema, shared[1][name], depth + 1)
            for name, schema in shared[0].items()
        )

    def _followed(self, schema: Any) -> Any:
        """The schema behind references, which have been visited before and hence lead somewhere."""
        while isinstance(schema, dict) and "$ref" in schema:
            schema = self._resolve(schema["$ref"], ())
        return schema

    # Types.

    def _typed(self, name: str, schema: dict[str, Any], path: Path) -> str:
        match name:
            case "string":
                return self._string(schema, path)
            case "integer":
                return self._integer(schema, path)
            case "number":
                return self._number(schema, path)
            case "boolean":
                return self._grammar.rule('"true" | "false"')
            case "null":
                return literal("null")
            case "array":
                return self._array(schema, path)
            case _:
                return self._object(schema, path)

    def _string(self, schema: dict[str, Any], path: Path) -> str:
        least, most = _counts(schema, "minLength", "maxLength", path)
        pattern, form = schema.get("pattern"), schema.get("format")
        if form is not None and not isinstance(form, str):
            raise SchemaError((*path, "format"), "must be a string")
        if form in REFUSED_FORMATS:
            raise SchemaError((*path, "format"), f"the format {form!r} is not supported")
        fixed = None if form is None else FORMATS.get(form)
        if pattern is None and fixed is None:
            bounded = least > 0 or most is not None
            return self._grammar.string_of(least, most) if bounded else self._grammar.string
        if pattern is not None and fixed is not None:
            raise SchemaError((*path, "pattern"), f"is not supported beside the format {form!r}")
        body = fixed or self._pattern(pattern, (*path, "pattern"))
        if body.least < least:
            raise SchemaError((*path, "minLength"), "is not supported beside a pattern or format that may break it")
        if most is not None and (body.most is None or body.most > most):
            raise SchemaError((*path, "maxLength"), "is not supported beside a pattern or format that may break it")
        return self._grammar.rule(f'"\\"" ({body.expression or EMPTY}) "\\""')

    def _pattern(self, pattern: Any, path: Path) -> Body:
        if not isinstance(pattern, str):
            raise SchemaError(path, "must be a string")
        try:
            return pattern_grammar(self._grammar, pattern)
        except PatternError as error:
            raise SchemaError(path, str(error)) from error

    def _integer(self, schema: dict[str, Any], path: Path) -> str:
        low, low_open = _lower(schema, path)
        high, high_open = _upper(schema, path)
        if low is None and high is None:
            return self._grammar.integer
        first = None if low is None else math.floor(low) + 1 if low_open else math.ceil(low)
        last = None if high is None else math.ceil(high) - 1 if high_open else math.floor(high)
        return self._within(self._grammar.integer_between(first, last), path)

    def _number(self, schema: dict[str, Any], path: Path) -> str:
        low, low_open = _lower(schema, path)
        high, high_open = _upper(schema, path)
        if low is None and high is None:
            return self._grammar.number
        bounds = [bound for bound in (low, high) if bound is not None]
        whole = max(len(str(int(abs(bound)))) for bound in bounds)
        fraction = max(_fraction_digits(bound) for bound in bounds)
        most = SIGNIFICANT_DIGITS - whole
        if fraction > min(most, FRACTION_DIGITS) or whole > INTEGER_DIGITS:
            raise SchemaError(path, f"bounds of more than {SIGNIFICANT_DIGITS} digits are not supported")
        digits = min(most, max(fraction, BOUNDED_FRACTION_DIGITS))
        step = Decimal(1).scaleb(-digits)
        if low is not None and low_open:
            low += step
        if high is not None and high_open:
            high -= step
        return self._within(self._grammar.number_between(low, high, fraction_digits=digits), path)

    def _within(self, expression: str, path: Path) -> str:
        if expression is NEVER:
            raise SchemaError(path, "no number lies within its bounds")
        return expression

    def _array(self, schema: dict[str, Any], path: Path) -> str:
        if schema.get("uniqueItems") not in (None, False):
            raise SchemaError((*path, "uniqueItems"), "is not supported")
        least, most = _counts(schema, "minItems", "maxItems", path)
        prefix = schema.get("prefixItems", [])
        if not isinstance(prefix, list):
            raise SchemaError((*path, "prefixItems"), "must be an array")
        if most is not None:
            prefix = prefix[:most]
        head = []
        for index, item in enumerate(prefix):
            part = self.visit(item, (*path, "prefixItems", index))
            if part is NEVER:
                break
            head.append(part)
        if len(head) < len(prefix) or most == len(head):
            item = NEVER
        else:
            item = self.visit(schema.get("items", True), (*path, "items"))
        if item is NEVER and len(head) < least:
            raise SchemaError((*path, "minItems"), "asks for more items than are allowed")
        return self._grammar.array_of(head, item, least, most)

    def _object(self, schema: dict[str, Any], path: Path) -> str:
        least, most = _counts(schema, "minProperties", "maxProperties", path)
        properties = schema.get("properties", {})
        if not isinstance(properties, dict):
            raise SchemaError((*path, "properties"), "must be an object")
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise SchemaError((*path, "required"), "must be an array of strings")
        # Nothing is said of other properties: none are made, unless there is nothing else to make.
        others = schema.get("additionalProperties", not properties and not required)
        values = {name: self.visit(value, (*path, "properties", name)) for name, value in properties.items()}
        for name in required:
            if name not in values:
                extra = schema.get("additionalProperties", True)
                values[name] = self.visit(extra, (*path, "additionalProperties"))
            if values[name] is NEVER:
                raise SchemaError((*path, "required"), f"{name!r} is required and not allowed")
        self._properties += len(values)
        if self._properties > MAX_PROPERTIES:
            raise SchemaError(path, f"the schema has more than {MAX_PROPERTIES} properties")
        other = self.visit(others, (*path, "additionalProperties"))
        possible = {name: value for name, value in values.items() if value is not NEVER}
        if not possible:
            if least > 1 and other is not NEVER:
                # Names of a free object may repeat, so that more than one is not sure to be more than one.
                raise SchemaError((*path, "minProperties"), "is supported up to 1 where names are free")
            if least and other is NEVER:
                raise SchemaError((*path, "minProperties"), "asks for more properties than are allowed")
            return self._free_object(other, least, most)
        needed = set(required)
        if least > len(needed):
            raise SchemaError((*path, "minProperties"), "is not supported beyond the number of required properties")
        if most is not None and (other is not NEVER or most < len(possible)):
            raise SchemaError((*path, "maxProperties"), "is not supported below the number of properties")
        return self._named(possible, needed, other)

    def _free_object(self, other: str, least: int, most: int | None) -> str:
        if other is NEVER:
            return self._grammar.object_of(NEVER, 0, None)
        return self._grammar.object_of(f"{self._grammar.string} {self._grammar.colon} {other}", least, most)

    def _named(self, values: Mapping[str, str], needed: set[str], other: str) -> str:
        """An object of these properties in this order, then others."""
        grammar = self._grammar
        comma = f'"," {grammar.blank}'
        pairs = [f"{json_literal(name)} {grammar.colon} {value}" for name, value in values.items()]
        rest = ""  # what may follow once a property has been written
        first = ""  # what may stand where none has
        if other is not NEVER:
            extra = f"{grammar.other_names(values)} {grammar.colon} {other}"
            rest = grammar.rule(f"({comma} {extra})*")
            first = grammar.rule(f'"" | {extra} {rest}')
        for name, pair in reversed(list(zip(values, pairs, strict=True))):
            begun = f"{pair} {rest}".rstrip()
            if name in needed:
                rest = grammar.rule(f"{comma} {begun}")
                first = grammar.rule(begun)
            else:
                rest = grammar.rule(f"{comma} {begun} | {rest or EMPTY}")
                first = grammar.rule(f"{begun} | {first or EMPTY}")
        full = f'"{{" {grammar.blank} {first} {grammar.blank} "}}"'
        return grammar.rule(full if needed else f'"{{}}" | {full}')


def _types(schema: dict[str, Any], path: Path) -> Types | None:
    """The types that ``type`` names; None without it."""
    if "type" not in schema:
        return None
    named = schema["type"]
    names = named if isinstance(named, list) else [named]
    for name in names:
        if not isinstance(name, str) or name not in ALL_TYPES:
            raise SchemaError((*path, "type"), f"must be one of {', '.join(sorted(ALL_TYPES))}, or an array of them")
    if not names:
        raise SchemaError((*path, "type"), "must name a type")
    return frozenset(names)


def _implied_types(schema: dict[str, Any]) -> Types | None:
    """The types that the keywords are about: of what a schema without ``type`` allows, these are made."""
    implied = frozenset(name for name, keywords in _BY_TYPE.items() if keywords & schema.keys())
    return implied or None


def _narrow_types(schema: dict[str, Any]) -> Types:
    """The types of the values made for a schema."""
    if "type" in schema or _listed(schema) is not None or any(name in schema for name in _COMPOSED):
        return _wide_types(schema)
    return _implied_types(schema) or ALL_TYPES


def _wide_types(schema: dict[str, Any]) -> Types:
    """The types of the values that satisfy a schema; too many where it is composed."""
    listed = _listed(schema)
    if listed is not None:
        return frozenset(name for value in listed for name in _type_of(value))
    types = _types(schema, ())
    if types is None:
        return ALL_TYPES
    return types | {"integer"} if "number" in types else types


def _listed(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _type_of(value: Any) -> Types:
    """The types a value has: an integer is a number too."""
    if value is None:
        return frozenset({"null"})
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return frozenset({"integer", "number"})
    if isinstance(value, float):
        return frozenset({"number"})
    if isinstance(value, str):
        return frozenset({"string"})
    return frozenset({"array"}) if isinstance(value, list) else frozenset({"object"})


def _identity(value: Any) -> str:
    """Text that is the same for equal JSON values."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def _counts(schema: dict[str, Any], least: str, most: str, path: Path) -> tuple[int, int | None]:
    low = _count(schema, least, path) or 0
    high = _count(schema, most, path)
    if high is not None and low > high:
        raise SchemaError((*path, least), f"is larger than {most}")
    return low, high


def _count(schema: dict[str, Any], name: str, path: Path) -> int | None:
    if name not in schema:
        return None
    value = schema[name]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SchemaError((*path, name), "must be a whole number, not negative")
    if value > MAX_COUNTED:
        raise SchemaError((*path, name), f"is larger than {MAX_COUNTED}")
    return value


def _lower(schema: dict[str, Any], path: Path) -> tuple[Decimal | None, bool]:
    """The lower bound, and whether it is itself excluded."""
    closed, opened = _bound(schema, "minimum", path), _bound(schema, "exclusiveMinimum", path)
    if opened is not None and (closed is None or opened >= closed):
        return opened, True
    return closed, False


def _upper(schema: dict[str, Any], path: Path) -> tuple[Decimal | None, bool]:
    closed, opened = _bound(schema, "maximum", path), _bound(schema, "exclusiveMaximum", path)
    if opened is not None and (closed is None or opened <= closed):
        return opened, True
    return closed, False


def _bound(schema: dict[str, Any], name: str, path: Path) -> Decimal | None:
    if name not in schema:
        return None
    value = schema[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SchemaError((*path, name), "must be a number")
    if abs(value) >= 10**INTEGER_DIGITS:
        raise SchemaError((*path, name), f"numbers of more than {INTEGER_DIGITS} digits are not supported")
    return Decimal(repr(value))


def _fraction_digits(value: Decimal) -> int:
    exponent = value.normalize().as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0
