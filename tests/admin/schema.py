"""Checks what ``-o json`` prints against docs/admin-schema.json; more strictly: every field has to be there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PATH = Path(__file__).resolve().parents[2] / "docs" / "admin-schema.json"
DEFINED: dict[str, Any] = json.loads(PATH.read_text("utf-8"))["$defs"]

#: commands that print objects line by line
BY_LINES = {"tail", "produce", "consume", "dlq show", "monitor"}

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def mistakes(name: str, data: Any) -> list[str]:
    """Return what is wrong with what the command ``name`` printed."""
    return list(_mistakes(DEFINED[name], data, name))


def _mistakes(schema: dict[str, Any], data: Any, where: str) -> Iterator[str]:
    """It knows the words that the file has: $ref, anyOf, type, properties, required, additionalProperties, items."""
    if "$ref" in schema:
        schema = DEFINED[schema["$ref"].removeprefix("#/$defs/")]
    if "anyOf" in schema:
        tried = [list(_mistakes(one, data, where)) for one in schema["anyOf"]]
        yield from () if [] in tried else min(tried, key=len)
        return
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        allowed = tuple(one for name in names for one in _TYPES[name])
        if not isinstance(data, allowed) or (isinstance(data, bool) and bool not in allowed):
            yield f"{where}: {data!r} is no {' or '.join(names)}"
            return
    if isinstance(data, list):
        for number, one in enumerate(data):
            yield from _mistakes(schema.get("items", {}), one, f"{where}[{number}]")
    elif isinstance(data, dict) and "properties" in schema:
        yield from (f"{where}: no {name}" for name in schema.get("required", ()) if name not in data)
        for name, one in data.items():
            if name in schema["properties"]:
                yield from _mistakes(schema["properties"][name], one, f"{where}.{name}")
            else:
                yield f"{where}: {name} is not described"
    elif isinstance(data, dict):
        for name, one in data.items():
            yield from _mistakes(schema.get("additionalProperties", {}), one, f"{where}.{name}")
