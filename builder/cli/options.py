"""Options that several commands share.

Completion reads the project's files and never contacts the engine.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from builder import commands
from builder.base.words import did_you_mean
from builder.cli import output

if TYPE_CHECKING:
    from datetime import timedelta
    from pathlib import Path

    from builder.base.events import Report
    from builder.base.project import Project
    from builder.numbers.workspace import Workspace
    from builder.serving.preparation import ServeRequest


# The context of every command: its project, which is searched for at the first use, and its workspace.


class Context:
    """The context of a command. ``start`` is the folder where the search for the project begins."""

    def __init__(self, start: Path | str) -> None:
        self.start = start

    @functools.cached_property
    def project(self) -> Project:
        from pathlib import Path

        from builder.base import project

        return project.find_project(Path(self.start))

    def workspace(self, report: Report = output.print_message) -> Workspace:
        """The workspace of a command. ``report`` gets its events; the default prints its messages."""
        from builder.numbers import workspace

        return workspace.open_workspace(self.project, os.environ, report)

    @contextmanager
    def working(self) -> Iterator[Workspace]:
        """The workspace of a command that may take long; its progress is shown."""
        from builder.cli import progress

        with progress.reporter() as report:
            yield self.workspace(report)


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def together(*decorators: Decorator) -> Decorator:
    """Returns one decorator that applies all of these in order."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for each in reversed(decorators):
            command = each(command)
        return command

    return add


pass_context = click.make_pass_decorator(Context)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
json_and_context = together(json_option, pass_context)
verbosity_and_context = together(output.verbosity_options, pass_context)


# Completions after TAB: click completes options; names come from the project's files, without the engine.

_PLAIN = r"(?![-~])[\w./:@+,=%~-]+"

Completer = Callable[["click.Context", "click.Parameter", str], list[str]]


def names(*kinds: str) -> Completer:
    """Completes names of these kinds (``definitions``, ``models``, …; see `builder.commands.about`)."""
    return _completer(lambda project, _ctx: (name for kind in kinds for name in commands.about.NAMES[kind](project)))


def _completer(read_names: Callable[[Project, click.Context], Iterable[object]]) -> Completer:
    def complete(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        from builder.base.errors import BuilderError

        # Click runs no group during completion, so the command's own context may be missing.
        context = ctx.find_object(Context) or Context(ctx.find_root().params.get("project") or ".")
        try:
            return matching(map(str, read_names(context.project, ctx)), incomplete)
        except BuilderError:  # no project, or an invalid file: offers nothing
            return []

    return complete


# The numbers of the repository, definition, recipe or model that is the command's target. While an option lacks its
# value, click does not assign earlier arguments; the target is then the first of the unassigned arguments.
numbers = _completer(
    lambda project, ctx: commands.about.numbers(project, str(ctx.params.get("target") or next(iter(ctx.args), "")))
)


def matching(candidates: Iterable[str], incomplete: str) -> list[str]:
    """Filters the candidates by the typed prefix, and drops repetitions. Also drops names that are not one plain shell
    word: bash would insert them unquoted, and the project's files may be untrusted."""
    return list(
        dict.fromkeys(name for name in candidates if name.startswith(incomplete) and re.fullmatch(_PLAIN, name))
    )


def repeated(*declarations: str, metavar: str, help: str, kinds: str = "") -> Decorator:  # noqa: A002
    """A repeatable option. A shell completes names of ``kinds``, which are separated by spaces."""
    complete = names(*kinds.split()) if kinds else None
    return click.option(*declarations, multiple=True, metavar=metavar, shell_complete=complete, help=help)


# Options that several commands share, and types of option and argument values.

_UNITS = {"h": "hours", "d": "days", "w": "weeks"}
PLATFORMS = ("linux/arm64", "linux/amd64")


class WordChoice(click.Choice[str]):
    """A choice of a few words. The error for another word lists all words and suggests the nearest."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Returns the word as typed. Raises click's error, which shows the argument's name instead of its choices."""
        if value in self.choices:
            return value
        suggestion = did_you_mean(value, self.choices, code=True)
        message = f"`{value}` is not one of {', '.join(self.choices)}" + (f"; {suggestion}" if suggestion else "")
        hint = f"'{param.name.upper()}'" if isinstance(param, click.Argument) else None
        raise click.BadParameter(message, ctx, param, hint)


platform_option = click.option(
    "--platform", type=WordChoice(PLATFORMS), help="Use this platform instead of the definition's platform."
)


def parse_age(_context: click.Context, _parameter: click.Parameter, text: str | None) -> timedelta | None:
    """Parses ``30d``, ``12h`` or ``2w``. Raises click's error for anything else."""
    if text is None:
        return None
    number, unit = text[:-1], _UNITS.get(text[-1:])
    if unit is None or not number.isdecimal() or len(number) > 5:
        raise click.BadParameter(f"`{text}` is not a length of time such as 30d, 12h or 2w")
    from datetime import timedelta

    return timedelta(**{unit: int(number)})


def _parse_update(_ctx: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, str | None]:
    """Parses ``SOURCE`` and ``SOURCE=REF``. Raises click's error for an empty REF, and for two for one source."""
    updates: dict[str, str | None] = {}
    for text in texts:
        name, sign, ref = text.partition("=")
        if not name or bool(sign) != bool(ref):
            raise click.BadParameter(f"`{text}`: expected SOURCE or SOURCE=REF", param_hint="--update")
        if updates.setdefault(name, ref or None) != (ref or None):
            raise click.BadParameter(f"{name} is named twice, with different refs", param_hint="--update")
    return updates


def _parse_settings(_ctx: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """Parses ``KEY=VALUE``; returns the values by key. Raises click's error for text without `=`."""
    values = {}
    for text in texts:
        key, sign, values[key] = text.partition("=")
        if not key or not sign:
            raise click.BadParameter(f"`{text}`: expected KEY=VALUE", param_hint="--set")
    return values


update_option = click.option(
    "--update",
    multiple=True,
    metavar="SOURCE[=REF]",
    callback=_parse_update,
    shell_complete=names("sources"),
    help="Resolve SOURCE (base, vllm, python …) again. REF is a branch, tag, commit or wheel version, or `release` for"
    " the newest release that is some days old. Repeatable.",
)


def set_option(text: str) -> Decorator:
    """The option ``--set`` with this help text."""
    return click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", callback=_parse_settings, help=text)


template_option = set_option(
    "Set an argument of the Dockerfile template, instead of the value in image.yaml. Repeatable."
)


def without(name: str, kept: str, text: str) -> Decorator:
    """A flag that leaves something out: the parameter ``kept`` is true unless the flag ``name`` is given."""
    return click.option(name, kept, is_flag=True, callback=lambda _ctx, _parameter, given: not given, help=text)


# Arguments and options of the commands that serve or render a recipe.

# Options that set a key of the recipe.
_KEYS = ("port", "host", "tensor_parallel", "gpu_memory_utilization", "max_model_len")
serve_options = together(
    click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="Listen on port N."),
    click.option("--host", metavar="ADDRESS", help="Listen on this address."),
    click.option(
        "--tp",
        "--tensor-parallel",
        "tensor_parallel",
        type=click.IntRange(min=1),
        metavar="N",
        help="Spread the model over N GPUs.",
    ),
    click.option(
        "--gpu-mem",
        "--gpu-memory-utilization",
        "gpu_memory_utilization",
        metavar="SHARE",
        type=click.FloatRange(0, 1, min_open=True),
        help="Use this share of the GPU's memory.",
    ),
    click.option("--max-model-len", type=click.IntRange(min=1), metavar="N", help="Limit the context to N tokens."),
    set_option("Set the placeholder {KEY} in the recipe's command. Repeatable."),
)
node_options = together(
    repeated(
        "--node",
        "nodes",
        metavar="NAME",
        kinds="nodes",
        help="Serve on this node; the first one answers requests. Repeatable.",
    ),
    click.option(
        "--ray/--no-ray", default=None, help="Connect several nodes with or without Ray; the default is in the recipe."
    ),
)
container_options = together(
    repeated(
        "--volume",
        "volumes",
        metavar="SRC:DST[:ro]",
        help="Mount SRC, a folder or file of this machine, as DST in the container. Repeatable.",
    ),
    repeated(
        "--env",
        "-e",
        metavar="NAME[=VALUE]",
        help="Set an environment variable of the server. NAME alone passes the value on this machine. A value that"
        " looks like a secret is not stored. Repeatable.",
    ),
    repeated(
        "--publish",
        "-p",
        metavar="[ADDRESS:]PORT:INSIDE",
        help="Publish port INSIDE as PORT of this machine, instead of using the host's network. Repeatable.",
    ),
    click.option("--memory", metavar="SIZE", default="", help="Limit the server's memory, for example to 100g."),
    click.option(
        "--earlyoom/--no-earlyoom",
        default=None,
        help="Use earlyoom to end the server before the machine runs out of memory.",
    ),
)
extra_argument = click.argument("extra", nargs=-1, type=click.UNPROCESSED, metavar="[-- VLLM ARGUMENT…]")
serving_options = together(
    click.argument("what", metavar="RECIPE|MODEL", shell_complete=names("recipes", "models")),
    extra_argument,
    serve_options,
    container_options,
    click.option("--force", is_flag=True, help="Start the server even if memory will probably run out."),
    node_options,
    click.option("--detach", "-d", is_flag=True, help="Do not wait until the server answers."),
    output.verbosity_options,
)


def serve_request(what: str, options: dict[str, Any]) -> ServeRequest:
    """Returns the request from the typed values of the options above."""
    from builder.definitions.configuration import RequestedOptions
    from builder.serving.preparation import ServeRequest

    values = {key: str(options[key]) for key in _KEYS if options[key] is not None}
    typed = {key: options[key] for key in ("volumes", "env", "publish", "earlyoom", "memory") if key in options}
    return ServeRequest(
        what,
        {**values, **options["settings"]},
        options["extra"],
        options["nodes"],
        None if options["ray"] is None else "ray" if options["ray"] else "mp",
        RequestedOptions(**typed),
        force=options.get("force", False),
        try_mods=options.get("try_mods", ()),
    )
