"""JSON schemas as grammars: what is supported is checked, bounded and enforced.

The runtime has a converter of its own, which obeys part of the keywords, ignores others without a word, lets white
space run on for ever, and gives malformed numbers and strings for some bounds and patterns. It is not used.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, Final

from rustedvino.text.json_grammar import NEVER, Grammar
from rustedvino.text.schema_facts import SchemaError
from rustedvino.text.schema_visitor import SchemaVisitor

MAX_SCHEMA_BYTES: Final = 128 * 1024
MAX_NESTING: Final = 64
"""Objects and arrays inside each other in the schema's own text."""

__all__ = ["SchemaError", "check_schema", "normalise", "object_grammar", "schema_grammar", "schema_key"]


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
    root = SchemaVisitor(grammar, schema).visit(schema, ())
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
