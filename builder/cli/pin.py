"""``builder pin`` and ``builder unpin``."""

from __future__ import annotations

import click

from builder.cli.completers import names
from builder.cli.context import Context, json_option, pass_context
from builder.cli.output import print_json, print_result


@click.command()
@click.argument("image", metavar="IMAGE:N", shell_complete=names("numbered", "definitions", "models", "recipes"))
@json_option
@pass_context
def pin(context: Context, image: str, as_json: bool) -> None:
    """Keep an image when others are pruned. A model or a recipe stands for the image that serves it, an image without a
    number for the current one."""
    _set(context, image, as_json, pinned=True)


@click.command()
@click.argument("image", metavar="IMAGE:N", shell_complete=names("numbered", "definitions", "models", "recipes"))
@json_option
@pass_context
def unpin(context: Context, image: str, as_json: bool) -> None:
    """Stop keeping an image when others are pruned."""
    _set(context, image, as_json, pinned=False)


def _set(context: Context, image: str, as_json: bool, *, pinned: bool) -> None:
    from builder.commands import pin as command

    name, changed = command.run(context.workspace(), image, pinned=pinned)
    if as_json:
        print_json({"image": str(name), "pinned": pinned, "changed": changed})
        return
    word = "pinned" if pinned else "not pinned"
    which = "" if image.endswith(f":{name.number}") else f", which is what {image} means now,"
    print_result(f"{name}{which} is {word}" if changed else f"{name}{which} was {word} already")
