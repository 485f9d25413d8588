"""Manual pages of all commands, made from their help when a wheel is built (man-pages(7), groff_man(7)).

click-man writes such pages as well, and takes texts for roff as they are: a line that begins with a full stop vanishes,
a paragraph that click shows as it stands flows, and commands that are imported when they are called are missing.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

_AS_IT_STANDS = "\b"
_EXIT_STATUS = "0 where it is done, 3 for a bug, 130 after ^C; `builder explain CODE` tells every other one."


def of_all(root: click.Group, number: str) -> dict[str, str]:
    """The page of each command below ``root`` by the name of its file; ``number`` is that of the release."""
    return {f"{path.replace(' ', '-')}.1": page(command, path, number) for path, command in walk(root, "builder")}


def walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """A command and all below it, each with its whole name."""
    yield path, command
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            if (below := command.get_command(ctx, name)) and not below.hidden:
                yield from walk(below, f"{path} {name}")


def page(command: click.Command, path: str, number: str) -> str:
    """The page of one command, called ``path``."""
    ctx = click.Context(command)
    text = inspect.cleandoc(command.help or "")
    first, _, rest = text.partition("\n\n")
    lines = [
        f'.TH "{path.replace(" ", "-").upper()}" "1" "" "builder {_escaped(number)}" "builder"',
        ".SH NAME",
        rf"{_escaped(path.replace(' ', '-'))} \- {_escaped(' '.join(first.split()).rstrip('.'))}",
        ".SH SYNOPSIS",
        rf"\fB{_escaped(path)}\fR {_escaped(' '.join(command.collect_usage_pieces(ctx)))}",
    ]
    if rest:
        lines += [".SH DESCRIPTION", *_paragraphs(rest)]
    records = [option.get_help_record(ctx) for option in command.params if isinstance(option, click.Option)]
    if any(records):
        lines.append(".SH OPTIONS")
        for names, help_text in filter(None, records):
            lines += [".TP", rf"\fB{_escaped(names)}\fR", _escaped(help_text)]
    if isinstance(command, click.Group):
        lines += [".SH COMMANDS", *_commands(command, path)]
    elif " " in path:
        lines += [".SH SEE ALSO", rf"\fB{_escaped(path.rpartition(' ')[0].replace(' ', '-'))}\fR(1)"]
    return "\n".join([*lines, ".SH EXIT STATUS", _escaped(_EXIT_STATUS), ""])


def _commands(group: click.Group, path: str) -> Iterator[str]:
    for full, command in walk(group, path):
        if full.count(" ") == path.count(" ") + 1:
            line = " ".join(inspect.cleandoc(command.help or "").partition("\n\n")[0].split())
            yield from (".TP", rf"\fB{_escaped(full.replace(' ', '-'))}\fR(1)", _escaped(line))


def _paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a help; one that begins with ``\\b`` stays as it is."""
    for paragraph in text.split("\n\n"):
        if paragraph.startswith(_AS_IT_STANDS):
            stands = textwrap.dedent(paragraph.removeprefix(_AS_IT_STANDS).strip("\n"))
            yield from (".PP", ".nf", ".RS", *map(_escaped, stands.splitlines()), ".RE", ".fi")
        else:
            yield from (".PP", _escaped(" ".join(paragraph.split())))


def _escaped(text: str) -> str:
    """Text that roff prints as it is: a line that begins with a full stop or a quote would be a request."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace("^", r"\(ha").replace("~", r"\(ti")
    escaped = re.sub(r"[^\x00-\x7f]", lambda letter: rf"\[u{ord(letter[0]):04X}]", escaped.replace("`", r"\(ga"))
    return re.sub(r"^(?=[.'])", r"\\&", escaped, flags=re.MULTILINE)
