"""Writes the pages of this folder from the program: commands, formats of files, exit codes (``make reference``)."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder import errors
from builder.cli.command_table import GROUPS
from builder.cli.main import BUG, INTERRUPTED, cli
from builder.commands import schemas

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
MADE = "<!-- Written by `make reference`. Change the program, and not this page. -->\n\n"
TYPES = {
    "object": "mapping",
    "array": "list",
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
}
FIXED_CODES = {
    0: "done",
    BUG: "a bug; the message names a report to send",
    INTERRUPTED: "interrupted with ^C or SIGTERM; what was begun is taken back",
}


def pages() -> dict[str, str]:
    """The text of each page, by its file's name."""
    made = {"commands.md": commands(), "files.md": files(), "exit-codes.md": exit_codes()}
    return {name: MADE + text.rstrip() + "\n" for name, text in made.items()}


def commands() -> str:
    parts = ["# Commands\n", textwrap.dedent(cli.help or "") + "\n", f"    {_usage(cli, 'builder')}\n", *_options(cli)]
    parts += ["| commands | |\n|---|---|"]
    parts += [f"| {group} | {', '.join(map(_link, names))} |" for group, names in GROUPS.items()]
    for path, command in _walk(cli, "builder"):
        parts += [f"\n## {path}\n", f"    {_usage(command, path)}\n", *_prose(command.help or ""), *_options(command)]
    return "\n".join(parts)


def _link(name: str) -> str:
    return f"[{name}](#builder-{name})"


def _walk(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if command is None:
            raise LookupError(f"the table has {name}, and there is no such command")
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from _walk(command, f"{path} {name}")


def _usage(command: click.Command, path: str) -> str:
    return " ".join([path, *command.collect_usage_pieces(click.Context(command))])


def _prose(text: str) -> Iterator[str]:
    """A docstring as click shows it: paragraphs flow, one that begins with ``\\b`` stays as it is."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            yield textwrap.indent(textwrap.dedent(paragraph.removeprefix("\b").strip("\n")), "    ") + "\n"
        else:
            yield _plain(paragraph).replace("\n", " ") + "\n"


def _options(command: click.Command) -> Iterator[str]:
    ctx = click.Context(command, help_option_names=[])
    options = [param for param in command.params if isinstance(param, click.Option)]
    records = [record for option in options if (record := option.get_help_record(ctx))]
    if records:
        yield "| option | |\n|---|---|"
        yield from (f"| `{_cell(option)}` | {_cell(text)} |" for option, text in records)
        yield ""


def files() -> str:
    parts = [
        "# Files\n",
        "`builder schema` prints each of these as JSON Schema. A key that is not here is an error, with its line.\n",
        "`NAME` in a key stands for a name that you choose, `[]` for each item of a list.\n",
    ]
    for name in schemas.FILES:
        whole = json.loads(schemas.text(name))
        first, _, about = whole["title"].partition(": ")
        parts += [f"\n## {first}\n", f"{about[0].upper()}{about[1:]}.\n", "| key | holds | |", "|---|---|---|"]
        parts += [f"| `{key}` | {kind} | {_cell(text)} |" for key, kind, text in _keys(whole, whole, "", {})]
        parts.append("")
    return "\n".join(parts)


def _keys(
    node: dict[str, Any], whole: dict[str, Any], prefix: str, seen: dict[str, str]
) -> Iterator[tuple[str, str, str]]:
    """Every key below ``node``, depth first: its path, the kind of its value, and what it is for. ``seen`` maps each
    part that several keys share to the path under which it was listed first."""
    for form in _forms(node, whole):
        for key, value in form.get("properties", {}).items():
            target = _followed(value, whole)
            below = list(_keys(target, whole, f"{prefix}{key}.", seen))
            before = seen.setdefault(value.get("$ref", ""), f"{prefix}{key}") if "$ref" in value and below else ""
            kind = _kind(target, whole) + (", needed" if form is node and key in form.get("required", ()) else "")
            if before and before != f"{prefix}{key}":
                kind, below = f"as `{before}`", []
            yield f"{prefix}{key}", kind, value.get("description") or target.get("description", "")
            yield from below
        if isinstance(form.get("items"), dict):
            yield from _keys(_followed(form["items"], whole), whole, f"{prefix.removesuffix('.')}[].", seen)
        if isinstance(form.get("additionalProperties"), dict):
            yield from _keys(_followed(form["additionalProperties"], whole), whole, f"{prefix}NAME.", seen)


def _forms(node: dict[str, Any], whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """``node`` and the forms that it may take."""
    yield node
    for form in [*node.get("oneOf", ()), *(node[key] for key in ("then", "else") if key in node)]:
        yield from _forms(_followed(form, whole), whole)


def _followed(node: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    reference = node.get("$ref", "").removeprefix("#/$defs/")
    target: dict[str, Any] = whole["$defs"][reference] if reference else node
    return target


def _kind(node: dict[str, Any], whole: dict[str, Any]) -> str:
    if "enum" in node:
        return ", ".join(f"`{value}`" for value in dict.fromkeys(map(str, node["enum"])))
    if "const" in node:
        return f"`{node['const']}`"
    if "oneOf" in node:
        return " or ".join(dict.fromkeys(_kind(_followed(form, whole), whole) for form in node["oneOf"]))
    kinds = node.get("type", "object")
    if isinstance(kinds, list):
        return "text" if "string" in kinds else _kind({"type": kinds[0]}, whole)
    return TYPES[kinds]


def exit_codes() -> str:
    meanings: dict[int, list[str]] = defaultdict(list, {code: [text] for code, text in FIXED_CODES.items()})
    for kind in errors.BuilderError.__subclasses__():
        first = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
        meanings[kind.exit_code].append(re.split(r"[;.](?: |$)", first)[0])
    rows = [
        f"| {code} | {_cell('; '.join(_lower(text) for text in texts))} |" for code, texts in sorted(meanings.items())
    ]
    return "\n".join(["# Exit codes\n", "| code | what it means |", "|---|---|", *rows])


def _lower(text: str) -> str:
    first = text.partition(" ")[0]
    return text if not first.istitle() else text[0].lower() + text[1:]


def _plain(text: str) -> str:
    """Escapes characters that Markdown would take for markup."""
    return text.replace("<", "&lt;").replace("*", "\\*")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    for page, content in pages().items():
        (HERE / page).write_text(content, encoding="utf-8")
