"""The ``--json`` output of commands, compared with the schema that `builder schema` prints."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs

from builder.commands import explaining


def parsed(name: str, printed: str) -> dict[str, Any]:
    """The document that ``builder NAME --json`` printed. Here, a key that the schema lacks is an error; the users'
    schema allows later versions to add keys."""
    document: dict[str, Any] = json.loads(printed)
    schema = json.loads(explaining.OUTPUTS[f"{name}-json"].read_bytes())
    jsonschema_rs.validate(_closed(schema), document)
    return document


def _closed(node: Any) -> Any:
    if isinstance(node, list):
        return [_closed(each) for each in node]
    if not isinstance(node, dict):
        return node
    closed = {key: _closed(value) for key, value in node.items()}
    return {**closed, "additionalProperties": False} if "properties" in node and "required" in node else closed
