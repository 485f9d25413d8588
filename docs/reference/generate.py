"""Writes the pages of this folder from the program: commands, formats of files, the JSON that commands
print, exit codes, what `recipes check` says (``make reference``)."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from builder.cli.main import GROUPS, cli
from builder.commands import explaining
from builder.definitions import advisories

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.commands.explaining import DescribedFile
    from builder.definitions.advisories import Advisory


HERE = Path(__file__).parent
MADE = "<!-- Written by `make reference`. Change the program, and not this page. -->\n\n"


def pages() -> dict[str, str]:
    """The text of each page, by its file's name."""
    made = {
        "commands.md": commands(),
        "files.md": files(),
        "json.md": json_outputs(),
        "exit-codes.md": codes(),
        "advisories.md": known_advisories(),
    }
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
    return "\n".join([*parts, *(part for file in explaining.every_key() for part in _described(file))])


def json_outputs() -> str:
    parts = [
        "# What commands print with --json\n",
        "Standard output is one JSON document. Progress and notes go to standard error; so does an error, which has",
        "its [exit code](exit-codes.md) and no document, except that `build` prints the images that came before it.",
        "Every key is there, whatever its value. Later versions may add keys; `schema_version` changes when one goes",
        "or gets another meaning. `builder schema build-json` prints the JSON Schema of the first of these.\n",
    ]
    return "\n".join([*parts, *(part for output in explaining.outputs().values() for part in _described(output))])


def _described(file: DescribedFile) -> Iterator[str]:
    yield from (f"\n## {file.name}\n", f"{file.about[0].upper()}{file.about[1:]}.\n")
    if not file.keys:  # each key of the file is a name
        yield "[How to write one](../how-to/advisories.md#write-one) has the keys.\n"
        return
    yield from ("| key | holds | |", "|---|---|---|")
    yield from (f"| `{key.path}` | {key.kind} | {_cell(key.text)} |" for key in file.keys)
    yield ""


def codes() -> str:
    rows = [f"| {each.code} | {_cell('; '.join(each.meanings))} |" for each in explaining.every()]
    return "\n".join(["# Exit codes\n", "| code | what it means |", "|---|---|", *rows])


def known_advisories() -> str:
    parts = [
        "# Advisories\n",
        "What is known to go wrong, as `builder advisories` lists it. [How to use it](../how-to/advisories.md).\n",
        "## Facts\n",
        "| fact | |\n|---|---|",
    ]
    facts = {**advisories.VERSIONS, **advisories.TEXTS}
    facts |= {f"{name}.NAME": text for name, text in advisories.CLOSED.items()}
    parts += [f"| `{name}` | {text} |" for name, text in facts.items()]
    for file, text in advisories.shipped_files().items():
        heading = text.partition("\n")[0].removeprefix("# ").partition(". docs/")[0].rstrip(".")
        parts += [f"\n## {heading}\n", "| advisory | what happens | where | what to do |", "|---|---|---|---|"]
        parts += list(map(_advisory, advisories.parse_advisories(text, file)))
    return "\n".join(parts)


def _advisory(advisory: Advisory) -> str:
    versions = [f"`{fact} {versions}`" for fact, versions in advisory.affects.items()]
    where = "<br>".join([*versions, *map(_condition, advisory.when.items())])
    links = ", ".join(f"[{number}]({source})" for number, source in enumerate(advisory.sources, 1))
    more = f" {advisory.details}" if advisory.details else ""
    cells = (f"`{advisory.id}`", f"{advisory.what}.{more} ({links})", where, advisory.do)
    return f"| {' | '.join(map(_cell, cells))} |"


def _condition(part: tuple[str, Any]) -> str:
    shown = yaml.safe_dump(part[1], default_flow_style=True, width=10_000).strip().removesuffix("...").strip()
    return f"`{part[0]}: {shown}`"


def _plain(text: str) -> str:
    """Escapes characters that Markdown would take for markup."""
    return text.replace("<", "&lt;").replace("*", "\\*")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    for page, content in pages().items():
        (HERE / page).write_text(content, encoding="utf-8")
