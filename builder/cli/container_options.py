"""The options for the container that serves, shared by `run`, `restart` and `export`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--volume",
        "volumes",
        multiple=True,
        metavar="SRC:DST[:ro]",
        help="A folder or file of this machine, which the server sees as DST.",
    ),
    click.option(
        "--env",
        "-e",
        "env",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="An environment variable of the server; NAME alone takes its value here. What looks like a secret is kept"
        " nowhere.",
    ),
    click.option(
        "--publish",
        "-p",
        "publish",
        multiple=True,
        metavar="[ADDRESS:]PORT:INSIDE",
        help="A port of this machine that leads to INSIDE, in place of the host's network.",
    ),
    click.option(
        "--memory", metavar="SIZE", default="", help="The most memory that the server may take, such as 100g."
    ),
    click.option(
        "--earlyoom/--no-earlyoom",
        default=None,
        help="End the server before the machine is out of memory, by earlyoom.",
    ),
)
force_option = click.option("--force", is_flag=True, help="Start it even where memory is expected not to suffice.")


def container_options(command: _Command) -> _Command:
    """Adds the options; the command takes them as keyword arguments, for `requested`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def requested(options: dict[str, Any]) -> Any:
    """Returns the options as they were typed."""
    from builder.definitions.requested_options import RequestedOptions

    return RequestedOptions(
        options["volumes"], options["env"], options["publish"], options["earlyoom"], options["memory"]
    )
