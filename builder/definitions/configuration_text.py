"""The text of ``builder.yaml`` with other settings in it: whatever else is there stays as it was written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

_NODES = "nodes"
_ENV = "env"
_STEP = 2


@dataclass(frozen=True)
class _TextEdit:
    """A replacement of the text from ``start`` to ``end``."""

    start: int
    end: int
    text: str


def with_node_settings(text: str, settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns ``text`` with these settings of these nodes set or added. Comments stay, but in a file that is laid out
    so unusually that it has to be written anew."""
    expected = _merged(yaml.safe_load(text) or {}, settings)
    edited = _edited(text, settings)
    return edited if _reads_as(edited, expected) else _dumped(expected)


def with_environment(text: str, variables: Mapping[str, str | None]) -> str:
    """Returns ``text`` with these variables set or added under ``env``, where comments stay as well."""
    data = yaml.safe_load(text) or {}
    expected = {**data, _ENV: {**(data.get(_ENV) or {}), **variables}}
    root = yaml.compose(text)
    edited = text
    if root is None or (isinstance(root, yaml.MappingNode) and not root.flow_style):
        key, _ = _entry(root, _ENV) if root is not None else (None, None)
        if root is None or key is None:
            edited = _ended(text) + _block({_ENV: dict(variables)}, 0)
        elif data.get(_ENV):
            edited = _apply(text, _node_edits(text, root, _ENV, variables))
    return edited if _reads_as(edited, expected) else _dumped(expected)


def _reads_as(text: str, expected: Mapping[str, Any]) -> bool:
    try:
        return bool(yaml.safe_load(text) == expected)
    except yaml.YAMLError:
        return False


def _merged(data: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    nodes = dict(data.get(_NODES) or {})
    for name, values in settings.items():
        before = nodes.get(name, {})
        nodes[name] = {**({"engine": before} if isinstance(before, str) else before), **values}
    return {**data, _NODES: nodes}


def _edited(text: str, settings: Mapping[str, Mapping[str, Any]]) -> str:
    root = yaml.compose(text)
    if root is None:
        return _ended(text) + _block({_NODES: _merged({}, settings)[_NODES]}, 0)
    if not isinstance(root, yaml.MappingNode) or root.flow_style:
        return text
    key, nodes = _entry(root, _NODES)
    if key is None:
        return _ended(text) + _block({_NODES: _merged({}, settings)[_NODES]}, 0)
    if not isinstance(nodes, yaml.MappingNode) or nodes.flow_style:
        written = yaml.safe_load(text) or {}
        everything = _merged(written, settings)[_NODES]
        return _apply(text, [_replaced_by_block(text, key, nodes, everything)])
    edits = [edit for name, values in settings.items() for edit in _node_edits(text, nodes, name, values)]
    new = {name: dict(values) for name, values in settings.items() if _entry(nodes, name)[0] is None}
    if new:
        indent = nodes.value[0][0].start_mark.column
        end = _line_end(text, _leaf_end(nodes))
        edits.append(_TextEdit(end, end, "\n" + _block(new, indent).rstrip("\n")))
    return _apply(text, edits)


def _node_edits(text: str, nodes: yaml.MappingNode, name: str, values: Mapping[str, Any]) -> list[_TextEdit]:
    key, node = _entry(nodes, name)
    if key is None or node is None:
        return []
    if not isinstance(node, yaml.MappingNode) or node.flow_style:
        before = yaml.safe_load(text[node.start_mark.index : node.end_mark.index])
        merged = _merged({_NODES: {name: before}}, {name: values})[_NODES][name]
        return [_replaced_by_block(text, key, node, merged)]
    edits = []
    new: dict[str, Any] = {}
    for setting, value in values.items():
        old_key, old = _entry(node, setting)
        if old_key is None or old is None:
            new[setting] = value
        elif _plain(old) != value:
            edits.append(_replacement(text, old_key, old, value))
    if new:
        # After the first entry that stands on one line: those of several lines have no certain end.
        anchor = next(value for _, value in node.value if isinstance(value, yaml.ScalarNode))
        end = _line_end(text, anchor.end_mark.index)
        edits.append(_TextEdit(end, end, "\n" + _block(new, node.value[0][0].start_mark.column).rstrip("\n")))
    return edits


def _replacement(text: str, key: yaml.Node, old: yaml.Node, value: Any) -> _TextEdit:
    start = text.index(":", key.end_mark.index) + 1
    if isinstance(value, dict):
        indent = key.start_mark.column + _STEP
        return _TextEdit(start, _leaf_end(old), "\n" + _block(value, indent).rstrip("\n"))
    return _TextEdit(start, _leaf_end(old), f" {_inline(value)}")


def _replaced_by_block(text: str, key: yaml.Node, old: yaml.Node | None, value: Mapping[str, Any]) -> _TextEdit:
    """Puts a block below ``key`` in place of what stands on its line; a comment at the end of the line stays there."""
    start = text.index(":", key.end_mark.index) + 1
    end = _leaf_end(old) if old is not None else start
    comment = text[end : _line_end(text, end)].rstrip()
    block = _block(value, key.start_mark.column + _STEP).rstrip("\n")
    return _TextEdit(start, _line_end(text, end), f"{comment}\n{block}")


def _entry(mapping: yaml.MappingNode, name: str) -> tuple[yaml.Node | None, yaml.Node | None]:
    return next(((key, value) for key, value in mapping.value if key.value == name), (None, None))


def _leaf_end(node: yaml.Node) -> int:
    """The end of the last scalar in a value: the end of a block counts the comments after it, too."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _leaf_end(last[1] if isinstance(last, tuple) else last)
    end: int = node.end_mark.index
    return end


def _plain(node: yaml.Node) -> Any:
    return yaml.safe_load(yaml.serialize(node))


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def _apply(text: str, edits: list[_TextEdit]) -> str:
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return _ended(text)


def _block(values: Mapping[str, Any], indent: int) -> str:
    lines = []
    for key, value in values.items():
        start = f"{' ' * indent}{_inline(key)}:"
        if isinstance(value, dict) and value:
            lines.append(f"{start}\n{_block(value, indent + _STEP)}".rstrip("\n"))
        else:
            lines.append(f"{start} {_inline(value)}")
    return "\n".join([*lines, ""])


def _inline(value: Any) -> str:
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True).removesuffix("...\n").strip()
    )


def _dumped(data: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=10_000)
