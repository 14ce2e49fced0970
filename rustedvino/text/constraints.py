"""What an answer is held to, as plain data that goes to a worker: made, hashed, and turned into grammars.

A constraint is one of

- ``{"type": "json_schema", "schema": TEXT}``: a value of the schema, TEXT its JSON
- ``{"type": "json_object"}``: any JSON object
- ``{"type": "regex", "pattern": TEXT}``: the whole answer matches
- ``{"type": "grammar", "grammar": TEXT}``: the runtime's EBNF with the root ``root``
- ``{"type": "structural_tag", "format": {…}}``: the runtime's structural tags, a tree of dicts

The runtime is given the last three only: schemas become grammars first, also those inside structural tags.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from rustedvino.text.json_schema import object_grammar, schema_grammar
from rustedvino.text.schema_facts import SchemaError
from rustedvino.text.xml_parameters import parameters_grammar

Constraint = dict[str, Any]

JSON_OBJECT: Final[Constraint] = {"type": "json_object"}
MAX_TREE_NESTING: Final = 32
_TREE_LEAVES: Final = {"json_schema": schema_grammar, "qwen_xml_parameter": parameters_grammar}


def schema_constraint(schema: Any) -> Constraint:
    """The constraint of a JSON schema, its grammar made already. Raises SchemaError when it cannot be enforced.

    Large schemas take up to half a second.
    """
    return {"type": "grammar", "grammar": schema_grammar(schema)}


def constraint_key(constraint: Mapping[str, Any]) -> bytes:
    """A hash of a constraint. The order inside it counts: it is the order in which properties are generated."""
    text = json.dumps(constraint, ensure_ascii=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def compiled(constraint: Mapping[str, Any]) -> Constraint:
    """The same constraint without schemas. Raises SchemaError for a schema or a tree that cannot be enforced."""
    match constraint.get("type"):
        case "json_schema":
            return {"type": "grammar", "grammar": schema_grammar(json.loads(constraint["schema"]))}
        case "json_object":
            return {"type": "grammar", "grammar": object_grammar()}
        case "structural_tag":
            return {"type": "structural_tag", "format": _compiled_tree(constraint["format"], (), lenient=False)}
        case "regex" | "grammar":
            return dict(constraint)
        case other:
            raise SchemaError((), f"there is no constraint of type {other!r}")


def tools_constraint(tag: Mapping[str, Any], *, strict: bool) -> Constraint:
    """The constraint of a structural tag of tool calls.

    Arguments whose schema cannot be enforced raise SchemaError with ``strict``; without, they are any JSON object, as a
    function that is not declared strict allows.
    """
    return {"type": "structural_tag", "format": _compiled_tree(tag["format"], (), lenient=not strict)}


def after_thinking(constraint: Mapping[str, Any], opening: str, closing: str) -> Constraint:
    """The constraint for the answer behind a block of thinking, which ``opening`` (empty when the prompt has it
    already) begins and ``closing`` ends. A block that the model has to open it may also leave out."""
    inner = compiled(constraint)
    answer = inner["format"] if inner["type"] == "structural_tag" else inner
    thinking = {"type": "tag", "begin": opening, "content": {"type": "any_text"}, "end": closing}
    first: Constraint = {"type": "sequence", "elements": [thinking, answer]}
    return {"type": "structural_tag", "format": {"type": "or", "elements": [first, answer]} if opening else first}


def _compiled_tree(node: Any, path: tuple[str | int, ...], *, lenient: bool) -> Any:
    if len(path) > MAX_TREE_NESTING:
        raise SchemaError(path, f"it is nested deeper than {MAX_TREE_NESTING} levels")
    if isinstance(node, list):
        return [_compiled_tree(item, (*path, index), lenient=lenient) for index, item in enumerate(node)]
    if not isinstance(node, dict):
        return node
    compile_leaf = _TREE_LEAVES.get(node.get("type", ""))
    if compile_leaf is None:
        return {name: _compiled_tree(item, (*path, name), lenient=lenient) for name, item in node.items()}
    schema = node.get("json_schema", True)
    try:
        grammar = compile_leaf(schema)
    except SchemaError as error:
        if not lenient:
            raise SchemaError((*path, "json_schema", *error.path), error.message) from error
        grammar = compile_leaf({"type": "object"})
    return {"type": "grammar", "grammar": grammar}
