"""A parameter's rules in plain words, from its JSON schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["in_words"]

KINDS = {"integer": "a whole number", "number": "a number", "string": "text", "boolean": "true or false"}
BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


def in_words(schema: Mapping[str, Any]) -> str:
    """What a parameter may be.

    >>> in_words({"anyOf": [{"exclusiveMinimum": 0, "type": "integer"}, {"type": "null"}]})
    'a whole number above 0, or none'
    >>> in_words({"enum": ["iid", "by_class"]})
    'iid or by_class'
    """
    if "anyOf" in schema:
        kinds = [in_words(one) for one in schema["anyOf"] if one.get("type") != "null"]
        none = ["none"] if any(one.get("type") == "null" for one in schema["anyOf"]) else []
        return ", or ".join([*kinds, *none])
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return " or ".join(str(value) for value in schema["enum"])
    if "$ref" in schema:
        return "a table, see below"
    kind = schema.get("type")
    if kind == "array":
        inner = in_words(schema["items"]) if isinstance(schema.get("items"), Mapping) else "values"
        return f"a list, each {inner}"
    if kind == "object":
        return "a table"
    limits = [f"{words} {schema[key]:g}" for key, words in BOUNDS.items() if key in schema]
    return " ".join([KINDS.get(str(kind), "any value"), " and ".join(limits)]).strip()
