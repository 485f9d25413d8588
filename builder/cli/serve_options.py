"""The options that change a recipe's serve command, shared by the commands that render one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from builder.cli.completers import names
from builder.cli.container_options import container_options, force_option
from builder.cli.verbosity import verbosity_options

if TYPE_CHECKING:
    from builder.definitions.recipes.arguments import Backend

_Command = TypeVar("_Command", bound=Callable[..., Any])

# Each option by the key of the recipe that it sets.
_OPTIONS = (
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
    click.option("--max-model-len", type=click.IntRange(min=1), metavar="N", help="The longest context, in tokens."),
    click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A value for any {KEY} of the command."),
)
_what_argument = click.argument("what", metavar="RECIPE|MODEL", shell_complete=names("recipes", "models"))
_extra_argument = click.argument("extra", nargs=-1, type=click.UNPROCESSED, metavar="[-- VLLM ARGUMENT…]")
_node_option = click.option(
    "--node", "nodes", multiple=True, metavar="NAME", shell_complete=names("nodes"), help="Serve on this node."
)
_ray_option = click.option(
    "--ray/--no-ray", "ray", default=None, help="Join several nodes with Ray, or without; else as the recipe says."
)
_detach_option = click.option("--detach", "-d", is_flag=True, help="Do not wait until it answers.")
_KEYS = ("port", "host", "tensor_parallel", "gpu_memory_utilization", "max_model_len")


def serve_options(command: _Command) -> _Command:
    """Adds the options; the command takes them as keyword arguments, for `overrides`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def node_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that say which nodes serve, and what joins them; ``ray`` is for `backend`."""
    return _node_option(_ray_option(command))


def backend(ray: bool | None) -> Backend | None:
    """Returns the backend that was asked for, or None."""
    return None if ray is None else "ray" if ray else "mp"


def serving_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds all arguments and options of `run` and `restart`."""
    command = container_options(force_option(node_options(_detach_option(verbosity_options(command)))))
    command = serve_options(command)
    return _what_argument(_extra_argument(command))


def overrides(options: dict[str, Any]) -> dict[str, str]:
    """Returns the values that were typed, by key of the recipe. Raises click's error for a ``--set`` without a `=`."""
    values = {key: str(options[key]) for key in _KEYS if options[key] is not None}
    for text in options["settings"]:
        key, sign, value = text.partition("=")
        if not key or not sign:
            raise click.BadParameter(f"`{text}`: KEY=VALUE is wanted", param_hint="--set")
        values[key] = value
    return values
