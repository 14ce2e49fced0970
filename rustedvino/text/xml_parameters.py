"""Grammars of tool arguments written as ``<parameter=NAME>`` elements, each value on lines of its own."""

from __future__ import annotations

from typing import Any, Final

from rustedvino.text.automata import literal, words
from rustedvino.text.characters import ALL, char_class, without
from rustedvino.text.json_grammar import EMPTY, NEVER, Grammar
from rustedvino.text.json_schema import normalise
from rustedvino.text.schema_facts import SchemaError
from rustedvino.text.schema_visitor import SchemaVisitor

_ENDS: Final = ("</parameter>", "</function>")
_LAST: Final = "\n</parameter>"
_NAME: Final = "[A-Za-z0-9_.-]{1,64}"


def parameters_grammar(schema: Any) -> str:
    """The grammar of the elements for an object of the schema: the properties in their order, those required all there.

    A string is bare text, of any length; other values are JSON. Raises SchemaError.
    """
    normalise(schema)
    if schema is True:
        schema = {"type": "object"}
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise SchemaError(("type",), "must be 'object'")
    grammar = Grammar()
    visitor = SchemaVisitor(grammar, schema)
    visitor.check_keywords(schema, ())
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    if not isinstance(properties, dict):
        raise SchemaError(("properties",), "must be an object")
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise SchemaError(("required",), "must be an array of strings")
    if not properties and not required and schema.get("additionalProperties") is not False:
        free = f'"\\n<parameter=" {_NAME} ">\\n" {bare_text(grammar)} {literal(_LAST)}'
        return grammar.text(grammar.rule(f"({free})*"))
    parts: list[str] = []
    for name in [*properties, *(name for name in required if name not in properties)]:
        if any(character in name for character in "<>\n"):
            raise SchemaError(("properties", name), "this name cannot be written in this model's tool calls")
        value = _value(grammar, visitor, properties.get(name, {"type": "string"}), name)
        if value is NEVER and name in required:
            raise SchemaError(("required",), f"{name!r} is required and not allowed")
        if value is NEVER:
            continue
        element = grammar.rule(f"{literal(chr(10) + f'<parameter={name}>' + chr(10))} {value} {literal(_LAST)}")
        parts.append(element if name in required else f"{element}?")
    return grammar.text(grammar.rule(" ".join(parts) or EMPTY))


def _value(grammar: Grammar, visitor: SchemaVisitor, schema: Any, name: str) -> str:
    if isinstance(schema, dict) and schema.get("type") == "string":
        if "enum" in schema or "const" in schema:
            listed = schema["enum"] if "enum" in schema else [schema["const"]]
            if isinstance(listed, list) and listed and all(isinstance(value, str) for value in listed):
                return words(grammar, listed) if all(listed) else bare_text(grammar)
        return bare_text(grammar)
    return visitor.visit(schema, ("properties", name))


def bare_text(grammar: Grammar) -> str:
    """Any text without an end tag: one state for each beginning of such a tag that has just been written."""
    begun = sorted({end[:length] for end in _ENDS for length in range(len(end))})
    names = {text: grammar.recursive() for text in begun}
    letters = sorted(set("".join(_ENDS)))
    other = char_class(without(ALL, tuple((ord(letter), ord(letter)) for letter in letters)))
    for text, name in names.items():
        branches = [EMPTY, f"{other} {names['']}"]
        for letter in letters:
            written = text + letter
            if written not in _ENDS:
                longest = next(written[at:] for at in range(len(written) + 1) if written[at:] in names)
                branches.append(f"{literal(letter)} {names[longest]}")
        grammar.define(name, " | ".join(branches))
    return names[""]
