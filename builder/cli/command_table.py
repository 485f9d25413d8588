"""The table of commands: group, name, module and one-line help.

A command's module is imported when it is called or its own help is shown; never for ``builder --help``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import click

from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# What a user does: the commands for it, each with its module in builder.cli, the object in it and one line.
# `builder --help` shows the groups in this order, and a new command goes where its user would look for it.
GROUPS: dict[str, dict[str, tuple[str, str, str]]] = {
    "Main commands": {
        "build": ("build", "build", "Build a numbered image from a recipe or a definition."),
        "list": ("list", "list_", "Show the numbered images and the models paired with each."),
        "rollback": ("rollback", "rollback", "Go back to the image before, or to a number."),
    },
    "Begin": {
        "init": ("init", "init", "Make a project: definitions, mods, recipes and pins."),
        "up": ("up", "up", "Bring a model up: its image, its weights, its server."),
    },
    "Build": {
        "lock": ("lock", "lock", "Resolve or move pins without building."),
        "upgrade": ("upgrade", "upgrade", "Move a model to what is new upstream, if it is as good."),
        "adopt": ("adopt", "adopt", "Give an image that was built elsewhere a number, as it is."),
        "rebuild": ("rebuild", "rebuild", "Rebuild a number from its build directory."),
        "migrate": ("migrate", "migrate", "Take over a checkout of spark-vllm-docker."),
        "recipes": ("recipes", "recipes", "Show recipes, check or copy them, and see what they start."),
        "mods": ("mods", "mods", "List mods, check what they apply to, copy or begin one."),
    },
    "Go back": {
        "promote": ("promote", "promote", "Make an image the current one: what `latest` means."),
        "pair": ("pair", "pair", "Serve a model with an image."),
        "mark": ("pair", "mark", "Record how well an image works, or a model on its image."),
    },
    "Serve": {
        "run": ("run", "run", "Serve a model with the image that it is paired with."),
        "stop": ("stop", "stop", "Stop the server of a model."),
        "restart": ("restart", "restart", "Restart a server, from the image that is paired now."),
        "status": ("status", "status", "Show what is being served, and its health."),
        "logs": ("logs", "logs", "Show what a server prints."),
        "checkpoints": ("checkpoints", "checkpoints", "Make the weights that a recipe serves, by recorded steps."),
        "download": ("download", "download", "Fetch a model and its draft model, for here and for nodes."),
        "export": ("export", "export", "Export what serves a recipe or a model, for other tools."),
    },
    "Look": {
        "show": ("show", "show", "Show everything that is in an image."),
        "diff": ("diff", "diff", "Show what changed between two images."),
        "bisect": ("bisect", "bisect", "Find the change that broke a model."),
        "report": ("report", "report", "Write one page that shows what serves what, and how well."),
        "matrix": ("matrix", "matrix", "Show which image goes with which model."),
        "prove": ("prove", "prove", "Prove an image's chat templates and parsers, without a GPU."),
        "bench": ("bench", "bench", "Measure how fast a model is served, or two images in turn."),
        "probe": ("probe", "probe", "Check a served model: tool calls, and checks of your own."),
    },
    "Several machines": {
        "nodes": ("nodes", "nodes", "Show which node has which image, and what it serves."),
        "push": ("push", "push", "Push numbered images to the registry."),
        "pull": ("pull", "pull", "Pull a numbered image from the registry."),
        "copy": ("copy", "copy", "Copy a numbered image to other machines."),
        "export-image": ("image_files", "export_image", "Write a numbered image into a file."),
        "import-image": ("image_files", "import_image", "Import a numbered image from a file."),
    },
    "House-keeping": {
        "pin": ("pin", "pin", "Keep an image when others are pruned."),
        "unpin": ("pin", "unpin", "Stop keeping an image when others are pruned."),
        "prune": ("prune", "prune", "Remove images that are no longer needed, and what builds left."),
        "verify": ("verify", "verify", "Compare images.lock with the engine and with the files."),
        "doctor": ("doctor", "doctor", "Look for anything that would make a build fail."),
        "explain": ("explain", "explain", "Explain an exit code, a key of a file, or a message."),
        "schema": ("schema", "schema", "Print the JSON Schema of a file, for editors."),
        "completion": ("completion", "completion", "Print what bash, zsh or fish needs to complete names."),
        "help": ("help", "help_", "Show the help of a command."),
    },
}

TABLE = {name: row for group in GROUPS.values() for name, row in group.items()}

# Names that other programs use, where the nearest name of ours would mislead.
ELSEWHERE = {
    "images": "list",
    "inspect": "show",
    "ls": "list",
    "ps": "status",
    "rm": "prune",
    "serve": "run",
    "start": "run",
}


def unknown(ctx: click.Context, word: str) -> click.UsageError:
    """The error for ``word``, which is no command of the group of ``ctx``, with the nearest one that is."""
    group, top = ctx.command, ctx.parent is None
    names = group.list_commands(ctx) if isinstance(group, click.Group) else []
    suggestion = did_you_mean(ELSEWHERE.get(word, word) if top else word, names, code=True)
    name = word if top else f"{ctx.info_name} {word}"
    return click.UsageError(f"no command `{name}`" + (f"; {suggestion}" if suggestion else ""), ctx)


class Group(click.Group):
    """A group of commands whose list has the whole first line of each help, over several lines where it is long."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        rows = [(name, each.get_short_help_str(1000)) for name, each in commands.items() if each and not each.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class Commands(click.Group):
    """A group that knows its commands' names and one-line helps without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(TABLE)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in TABLE:
            return None
        module, attribute, _ = TABLE[cmd_name]
        command: click.Command = getattr(importlib.import_module(f"builder.cli.{module}"), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and name not in TABLE and not name.startswith("-") and not ctx.resilient_parsing:
            raise unknown(ctx, name)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes the commands from the table and then the options, without importing any command."""
        from click.shell_completion import CompletionItem

        commands = [
            CompletionItem(name, help=line) for name, (_, _, line) in TABLE.items() if name.startswith(incomplete)
        ]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        width = max(map(len, TABLE))
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(width), line) for name, (_, _, line) in commands.items()])
