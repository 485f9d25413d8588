"""Lines of a recipe that have lost their indentation: settings and parts of the command at the left margin."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from builder.definitions.recipes import outline

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from builder.definitions.recipes.outline import RecipeLine

# The keys whose values are blocks of indented lines.
_MAPPINGS = frozenset({"defaults", "env"})
_COMMAND = "command"
_ENTRY = re.compile(r"(?P<name>[^\s:#'\"-][^:#]*?)\s*:(?:\s+(?P<value>.*))?$")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*|[a-z]+_proxy")
# Defaults that recipes have whose command does without them.
_DEFAULTS = frozenset(
    {"port", "host", "tensor_parallel", "tensor_parallel_size", "tp", "pipeline_parallel", "data_parallel"}
    | {"gpu_memory_utilization", "gpu_memory", "gpu_mem", "max_model_len", "max_num_seqs", "max_num_batched_tokens"}
)
STEP = "  "


@dataclass(frozen=True)
class LostIndentation:
    """Lines of one block that lost their indentation, by number, with the message that reports them."""

    numbers: tuple[int, ...]
    message: str


def find(text: str, keys: Collection[str]) -> Iterator[LostIndentation]:
    """The blocks that lost their indentation. ``keys`` are the valid keys of a recipe."""
    for key, block in groupby(outline.lines(text, keys), lambda line: line.key):
        head, *rest = block
        if key in _MAPPINGS and not _value(head):
            yield from _lost_entries(head, rest, keys, text)
        elif key == _COMMAND and (not _value(head) or _value(head)[0] in "|>"):
            yield from _lost_command(head, rest)


def _value(head: RecipeLine) -> str:
    return head.text.partition(":")[2].partition(" #")[0].strip()


def _lost_entries(
    head: RecipeLine, rest: list[RecipeLine], keys: Collection[str], text: str
) -> Iterator[LostIndentation]:
    """The entries of ``head`` at the margin. A key that nothing tells to be one of them is the recipe's own: newer
    launchers have keys that are not known here, and moving those would change what the recipe is."""
    entries: list[tuple[RecipeLine, str]] = []
    written = [line for line in rest if not line.is_blank and not line.is_comment]
    for line, following in zip(written, (*written[1:], None), strict=False):
        entry = _ENTRY.match(line.text)
        if not entry or difflib.get_close_matches(entry["name"], keys, n=1, cutoff=0.8):
            continue
        # The values of these mappings are plain: a key with a block under it is none of theirs.
        if not (entry["value"] or "").partition(" #")[0].strip() and following and not _ENTRY.match(following.text):
            continue
        entries.append((line, entry["name"]))
    evident = [entry for entry in entries if _belongs(head.key, entry[1], text) or _is_between(entry[0], written)]
    # Where every line is at the margin, the whole block has lost its indentation.
    whole = head.key == "defaults" and not any(line.text[0] in " \t" for line in written)
    lost = entries if whole and evident else evident
    if lost:
        names = ", ".join(f"`{name}`" for _, name in lost)
        they = "they belong" if len(lost) > 1 else "it belongs"
        message = f"{names}: the indentation is lost; {they} to `{head.key}` (line {head.number}), two spaces in"
        yield LostIndentation(tuple(line.number for line, _ in lost), message)


def _belongs(key: str, name: str, text: str) -> bool:
    """True if ``name`` tells that it is an entry of the mapping ``key``: the command uses it, launchers set it, or it
    is written like an environment variable."""
    if key == "env":
        return bool(_VARIABLE.fullmatch(name))
    return f"{{{name}" in text or name.replace("-", "_").lower() in _DEFAULTS


def _is_between(line: RecipeLine, written: list[RecipeLine]) -> bool:
    """True if an indented line follows a plain value: only an entry of the same mapping can stand there."""
    entry = _ENTRY.match(line.text)
    following = next((other for other in written if other.number > line.number), None)
    return bool(entry and entry["value"] and following and following.text[:1] in {" ", "\t"})


def _lost_command(head: RecipeLine, rest: list[RecipeLine]) -> Iterator[LostIndentation]:
    written = [line.number for line in rest if not line.is_blank and not line.is_comment]
    # Comments at the margin end the block, which does no harm after the last line of the command.
    inside = [line for line in rest if (written and line.number < written[-1]) or line.number in written]
    lost = [line.number for line in inside if not line.is_blank and line.text[0] not in " \t"]
    if lost:
        which = f"lines {lost[0]} to {lost[-1]}" if len(lost) > 1 else f"line {lost[0]}"
        they = "they belong" if len(lost) > 1 else "it belongs"
        message = f"the indentation of {which} is lost; {they} to `{head.key}` (line {head.number}), two spaces in"
        yield LostIndentation(tuple(lost), message)
