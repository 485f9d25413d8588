"""The part of a serve command that the front end takes: template, parsers, tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions.recipes import arguments, option_places

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.definitions.recipes.command import ServeCommand

_WITH_VALUE = frozenset(
    {
        *("chat-template", "chat-template-content-format", "default-chat-template-kwargs"),
        *("tool-call-parser", "tool-parser-plugin", "tool-strict-level"),
        *("reasoning-parser", "reasoning-parser-plugin", "reasoning-config"),
        *("tokenizer", "tokenizer-mode", "hf-overrides", "max-model-len"),
    }
)
_SWITCHES = frozenset({"enable-auto-tool-choice", "exclude-tools-when-tool-choice-none", "trust-remote-code"})


@dataclass(frozen=True)
class ServedOptions:
    """The options of the front end; empty where the command has none of a kind. ``unread`` names those whose values
    only the script's shell knows."""

    model: str
    argv: tuple[str, ...]
    template: str
    tool_parser: str
    reasoning_parser: str
    unread: tuple[str, ...]


def of(command: ServeCommand) -> ServedOptions:
    """The options of the front end in a serve command."""
    words = command.words
    unread = tuple(dict.fromkeys(name for name, value in _options(command) if _is_of_shell(command, value)))
    argv = [part for name, value in _options(command) if name not in unread for part in _written(name, value)]
    calls_tools = "--enable-auto-tool-choice" in argv
    return ServedOptions(
        model=command.model or "",
        argv=tuple(argv),
        template=_value(words, "chat-template"),
        tool_parser=_value(words, "tool-call-parser") if calls_tools else "",
        reasoning_parser=_value(words, "reasoning-parser"),
        unread=unread,
    )


def _options(command: ServeCommand) -> Iterator[tuple[str, str | None]]:
    for used in option_places.options(command.words):
        name = used.option.lstrip("-").replace("_", "-")
        if name in _SWITCHES:
            yield name, None
        elif name in _WITH_VALUE and used.value is not None:
            yield name, used.value


def _is_of_shell(command: ServeCommand, value: str | None) -> bool:
    return command.is_script and value is not None and ("$" in value or "`" in value)


def _written(name: str, value: str | None) -> tuple[str, ...]:
    return (f"--{name}",) if value is None else (f"--{name}", value)


def _value(words: tuple[str, ...], name: str) -> str:
    return arguments.option(words, f"--{name}", f"--{name.replace('-', '_')}") or ""
