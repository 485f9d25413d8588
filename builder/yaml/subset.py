"""The subset of YAML that files of the user may use: mappings with text as keys, lists, and plain values.

YAML has more: tags that create objects, aliases that contain themselves or expand to millions of values, lists as keys.
Whatever PyYAML or a schema would fail on is refused here, on the nodes, which know their locations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import yaml

Resolve = Callable[[type[yaml.Node], Any, Any], str]

DEEPEST = 64  # blocks within blocks: far below what overflows the stack of the C parser
_MOST = 100_000  # values, each alias counted as what it stands for
_LONGEST_NUMBER = 40

_YAML = "tag:yaml.org,2002:"
_PLAIN = {f"{_YAML}{name}" for name in ("null", "bool", "int", "float")}


def check(root: yaml.Node, resolve: Resolve) -> None:
    """Raises MarkedYAMLError, with its location, for anything but plain data of a moderate size.

    ``resolve`` returns the default tag of a node: (kind, text, (True, False)).
    """
    around: set[int] = set()
    left = _MOST

    def visit(node: yaml.Node, where: yaml.Node) -> None:
        nonlocal left
        left -= 1
        if id(node) in around:
            raise refused(where, "an alias to what it stands in")
        if len(around) > DEEPEST:
            raise refused(where, "blocks within blocks, too deep")
        if left < 0:
            raise refused(where, "aliases of aliases, which stand for too much")
        around.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            _check_scalar(node, resolve)
        elif isinstance(node, yaml.SequenceNode):
            _check_tag(node, "seq")
            for item in node.value:
                visit(item, item)
        elif isinstance(node, yaml.MappingNode):
            _check_tag(node, "map")
            _check_keys(node)
            for key, value in node.value:
                visit(value, key)
        around.discard(id(node))

    visit(root, root)


def _check_keys(node: yaml.MappingNode) -> None:
    written: set[str] = set()
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise refused(key, "a key must be plain text")
        if key.value in written:
            raise refused(key, f"the key `{key.value}` stands twice")
        written.add(key.value)
        if key.tag == f"{_YAML}merge" and not _merges(value):
            raise refused(key, "`<<` takes in a mapping, or a list of them")


def _merges(node: yaml.Node) -> bool:
    items = node.value if isinstance(node, yaml.SequenceNode) else [node]
    return all(isinstance(item, yaml.MappingNode) for item in items)


def _check_scalar(node: yaml.ScalarNode, resolve: Resolve) -> None:
    plain = resolve(yaml.ScalarNode, node.value, (True, False))
    if node.tag != f"{_YAML}str" and (node.tag not in _PLAIN or node.tag != plain):
        raise refused(node, f"{_named(node.tag)} has no place here; quote what is meant as text")
    if node.tag == f"{_YAML}int" and len(node.value) > _LONGEST_NUMBER:
        raise refused(node, "a number of so many digits; quote what is meant as text")


def _check_tag(node: yaml.Node, kind: str) -> None:
    if node.tag != f"{_YAML}{kind}":
        raise refused(node, f"{_named(node.tag)} has no place here")


def _named(tag: str) -> str:
    return f"the tag `{tag.replace(_YAML, '!!')}`"


class Refusal(yaml.MarkedYAMLError):
    """YAML that is valid, and not taken here."""


def refused(node: yaml.Node | None, message: str) -> Refusal:
    """The error that refuses a node with ``message``."""
    return Refusal(None, None, message, node.start_mark if node else None)
