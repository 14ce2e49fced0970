"""From JSON schemas to grammars: every text of the grammar satisfies the schema.

A keyword is either enforced or refused by name. Where a schema leaves freedom the grammar may be narrower: properties
come in the order given, none that is not named unless ``additionalProperties`` asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any, Final

from attrs import define, field

from rustedvino.text.automata import Joined, Node, TooManyStates, language, literal, word, words
from rustedvino.text.json_grammar import EMPTY, NEVER, Grammar, json_text
from rustedvino.text.number_ranges import BOUNDED_FRACTION_DIGITS, SIGNIFICANT_DIGITS, decimals, integers
from rustedvino.text.patterns import Body, PatternError, parse_pattern
from rustedvino.text.schema_facts import (
    ANNOTATIONS,
    COMPOSED,
    KNOWN,
    Path,
    SchemaError,
    Types,
    allowed_types,
    counts,
    declared_types,
    fraction_digits,
    identity,
    implied_types,
    listed_values,
    lower_bound,
    made_types,
    types_of,
    upper_bound,
)
from rustedvino.text.string_formats import FORMATS, REFUSED_FORMATS

MAX_SUBSCHEMAS: Final = 2000
MAX_PROPERTIES: Final = 256
MAX_NAME_CHARS: Final = 4096
"""Names, all together, beside which others are allowed."""
MAX_ENUM_VALUES: Final = 1000
MAX_BRANCHES: Final = 64
MAX_GRAMMAR_BYTES: Final = 512 * 1024


@define(eq=False)
class SchemaVisitor:
    """Turns the parts of one schema into expressions of one grammar."""

    _grammar: Grammar
    _root: Any
    _open: list[str] = field(factory=list)
    _targets: dict[str, str] = field(factory=dict)
    _strings: dict[tuple[str | None, str | None], str] = field(factory=dict)
    _subschemas: int = 0
    _properties: int = 0
    _enum_values: int = 0

    def visit(self, schema: Any, path: Path) -> str:
        """The expression for the values of a schema; NEVER when there are none."""
        self._subschemas += 1
        if self._grammar.size_bytes > MAX_GRAMMAR_BYTES or self._subschemas > MAX_SUBSCHEMAS:
            raise SchemaError(path, "the schema as a whole is too large")
        if schema is True:
            return self._grammar.value
        if schema is False:
            return NEVER
        if not isinstance(schema, dict):
            raise SchemaError(path, "a schema must be an object or a boolean")
        self.check_keywords(schema, path)
        types = declared_types(schema, path)
        composed = [name for name in COMPOSED if name in schema]
        if composed:
            return self._composed(composed[0], schema, types, path)
        if types is None:
            types = implied_types(schema)
        if types is None:
            return self._grammar.value
        if "number" in types:
            types -= {"integer"}
        return self._grammar.either(self._typed(name, schema, path) for name in sorted(types))

    def check_keywords(self, schema: dict[str, Any], path: Path) -> None:
        """Raise SchemaError for a keyword that is neither enforced nor a mere note."""
        for name in schema:
            if name in KNOWN or name.startswith("x-"):
                continue
            raise SchemaError((*path, name), "this keyword is not supported")
        if "$id" in schema and path:
            raise SchemaError((*path, "$id"), "is supported at the top only")

    # Composition.

    def _composed(self, name: str, schema: dict[str, Any], types: Types | None, path: Path) -> str:
        beside = sorted(set(schema) - ANNOTATIONS - {name, "$id"})
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
        chosen = [value for value in values if types is None or types_of(value) & types]
        return words(self._grammar, dict.fromkeys(map(json_text, chosen))) if chosen else NEVER

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
        listed = [listed_values(schema) for schema in (one, other)]
        if listed[0] is not None and listed[1] is not None:
            return not {identity(value) for value in listed[0]} & {identity(value) for value in listed[1]}
        narrow = [made_types(schema) for schema in (one, other)]
        wide = [allowed_types(schema) for schema in (one, other)]
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
        least, most = counts(schema, "minLength", "maxLength", path)
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
        key = (pattern, form)
        known = self._strings.get(key)
        if known is None:
            quote = word('"')
            known = self._strings[key] = self._language(Joined([quote, body.node, quote]), path)
        return known

    def _pattern(self, pattern: Any, path: Path) -> Body:
        if not isinstance(pattern, str):
            raise SchemaError(path, "must be a string")
        try:
            return parse_pattern(pattern)
        except PatternError as error:
            raise SchemaError(path, str(error)) from error

    def _integer(self, schema: dict[str, Any], path: Path) -> str:
        low, low_open = lower_bound(schema, path)
        high, high_open = upper_bound(schema, path)
        if low is None and high is None:
            return self._grammar.integer
        first = None if low is None else math.floor(low) + 1 if low_open else math.ceil(low)
        last = None if high is None else math.ceil(high) - 1 if high_open else math.floor(high)
        return self._within(integers(first, last), path)

    def _number(self, schema: dict[str, Any], path: Path) -> str:
        low, low_open = lower_bound(schema, path)
        high, high_open = upper_bound(schema, path)
        if low is None and high is None:
            return self._grammar.number
        bounds = [bound for bound in (low, high) if bound is not None]
        whole = max(len(str(int(abs(bound)))) for bound in bounds)
        fraction = max(fraction_digits(bound) for bound in bounds)
        digits = min(max(0, SIGNIFICANT_DIGITS - whole), max(fraction, BOUNDED_FRACTION_DIGITS))
        step = Decimal(1).scaleb(-digits)
        # Bounds move inwards: to what can be written, and off a bound that is itself excluded.
        if low is not None:
            low = low.quantize(step, ROUND_CEILING) + (step if low_open else 0)
        if high is not None:
            high = high.quantize(step, ROUND_FLOOR) - (step if high_open else 0)
        return self._within(decimals(low, high, fraction_digits=digits), path)

    def _within(self, numbers: Node | None, path: Path) -> str:
        if numbers is None:
            raise SchemaError(path, "no number lies within its bounds")
        return self._language(numbers, path)

    def _language(self, node: Node, path: Path) -> str:
        try:
            return language(self._grammar, node)
        except TooManyStates as error:
            raise SchemaError(path, "its patterns and bounds are too complex") from error

    def _array(self, schema: dict[str, Any], path: Path) -> str:
        if schema.get("uniqueItems") not in (None, False):
            raise SchemaError((*path, "uniqueItems"), "is not supported")
        least, most = counts(schema, "minItems", "maxItems", path)
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
        least, most = counts(schema, "minProperties", "maxProperties", path)
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
        return self._named(possible, needed, other, path)

    def _free_object(self, other: str, least: int, most: int | None) -> str:
        if other is NEVER:
            return self._grammar.object_of(NEVER, 0, None)
        return self._grammar.object_of(f"{self._grammar.string} {self._grammar.colon} {other}", least, most)

    def _named(self, values: Mapping[str, str], needed: set[str], other: str, path: Path) -> str:
        """An object of these properties in this order, then others."""
        grammar = self._grammar
        comma = f'"," {grammar.blank}'
        pairs = [f"{literal(json_text(name))} {grammar.colon} {value}" for name, value in values.items()]
        rest = ""  # what may follow once a property has been written
        first = ""  # what may stand where none has
        if other is not NEVER:
            if sum(map(len, values)) > MAX_NAME_CHARS:
                raise SchemaError((*path, "additionalProperties"), "is not supported beside names as long")
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
        full = f'{grammar.blank} {first} {grammar.blank} "}}"'
        return grammar.rule(f'"{{" {full}' if needed else f'"{{" ("}}" | {full})')
