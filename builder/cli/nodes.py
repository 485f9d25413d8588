"""``builder nodes``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from builder.cli import table
from builder.cli.context import Context, json_option, pass_context
from builder.cli.output import print_json, print_result

if TYPE_CHECKING:
    from builder.commands.nodes import NodeImage, NodeServer, NodeState


@click.command()
@json_option
@pass_context
def nodes(context: Context, as_json: bool) -> None:
    """Show which node has which image, and what it serves.

    Stale is a `latest` that is not this project's current number, and a container whose model is paired with another
    image by now.
    """
    from builder.commands import nodes as command

    found = command.run(context.project, os.environ)
    if as_json:
        print_json({"nodes": [_node(state) for state in found]})
    elif not found:
        print_result("no nodes: name them in builder.yaml, `nodes: {spark2: ssh://USER@HOST}`")
    else:
        rows = [row for state in found for row in _rows(state)]
        table.print_table(("NODE", "IMAGE", "STATE", "SERVES"), rows)


def _rows(state: NodeState) -> list[tuple[str, ...]]:
    if state.error:
        return [(state.node, "-", "unknown", state.error)]
    known = {str(held.image) for held in state.images}
    rows: list[tuple[str, ...]] = [
        (state.node, str(held.image), _state_words(held), _serving_words(state, str(held.image)))
        for held in state.images
    ]
    others = dict.fromkeys(serving.image for serving in state.serving if serving.image not in known)
    rows += [(state.node, image or "-", "not in images.lock", _serving_words(state, image)) for image in others]
    return rows or [(state.node, "-", "none", "-")]


def _state_words(held: NodeImage) -> str:
    latest = "stale latest" if held.stale else "latest" if held.latest else ""
    said = (held.state if held.state != "present" else "", latest)
    return ", ".join(word for word in said if word) or "present"


def _serving_words(state: NodeState, image: str) -> str:
    return ", ".join(_one_serving(one) for one in state.serving if one.image == image) or "-"


def _one_serving(one: NodeServer) -> str:
    said = [one.state if one.state != "running" else "", "stale" if one.stale else ""]
    more = ", ".join(word for word in said if word)
    return one.name + (f" ({more})" if more else "")


def _node(state: NodeState) -> dict[str, Any]:
    return {
        "node": state.node,
        "engine": state.host,
        "error": state.error or None,
        "images": [
            {
                "image": str(held.image),
                "state": held.state,
                "latest": held.latest,
                "current": held.current,
                "stale": held.stale,
            }
            for held in state.images
        ],
        "serving": [
            {"name": one.name, "image": one.image, "model": one.model or None, "state": one.state, "stale": one.stale}
            for one in state.serving
        ],
    }
