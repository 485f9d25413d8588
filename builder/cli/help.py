"""``builder help``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from builder.cli.output import print_document

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class _CommandName(click.ParamType[str]):
    """A word of a command's name: after `recipes`, one of its commands."""

    name = "command"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Completes the commands of the group that the words before it name."""
        from click.shell_completion import CompletionItem

        context = _context_of(ctx.find_root(), ctx.params.get(param.name or "") or ())
        names = context.command.list_commands(context) if isinstance(context.command, click.Group) else []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.command("help")
@click.argument("words", nargs=-1, type=_CommandName(), metavar="[COMMAND]…")
@click.pass_context
def help_(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command.

    As `builder COMMAND --help` does, also for two words such as `recipes check`. Without a command: all of them, by
    what they are for.
    """
    print_document(_context_of(ctx.find_root(), words).get_help() + "\n")


def _context_of(ctx: click.Context, words: tuple[str, ...]) -> click.Context:
    """The context of the command that ``words`` name below ``ctx``. Raises click's error if there is none."""
    from builder.cli.command_table import unknown

    for word in words:
        group = ctx.command
        command = group.get_command(ctx, word) if isinstance(group, click.Group) else None
        if command is None:
            raise unknown(ctx, word)
        ctx = click.Context(command, parent=ctx, info_name=word)
    return ctx
