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

    states = command.run(context.project, os.environ)
    if as_json:
        print_json({"nodes": [_node(state) for state in states]})
    elif not states:
        print_result("no nodes: name them in builder.yaml, `nodes: {spark2: ssh://USER@HOST}`")
    else:
        rows = [row for state in states for row in _rows(state)]
        table.print_table(("NODE", "IMAGE", "STATE", "SERVES"), rows)


def _rows(state: NodeState) -> list[tuple[str, ...]]:
    if state.error:
        return [(state.node, "-", "unknown", state.error)]
    recorded = {str(image.image) for image in state.images}
    rows: list[tuple[str, ...]] = [
        (state.node, str(image.image), _state_words(image), _serving_words(state, str(image.image)))
        for image in state.images
    ]
    others = dict.fromkeys(server.image for server in state.serving if server.image not in recorded)
    rows += [(state.node, image or "-", "not in images.lock", _serving_words(state, image)) for image in others]
    return rows or [(state.node, "-", "none", "-")]


def _state_words(image: NodeImage) -> str:
    latest = "stale latest" if image.stale else "latest" if image.latest else ""
    words = (image.state if image.state != "present" else "", latest)
    return ", ".join(word for word in words if word) or "present"


def _serving_words(state: NodeState, image: str) -> str:
    return ", ".join(_server_words(server) for server in state.serving if server.image == image) or "-"


def _server_words(server: NodeServer) -> str:
    words = [server.state if server.state != "running" else "", "stale" if server.stale else ""]
    more = ", ".join(word for word in words if word)
    return server.name + (f" ({more})" if more else "")


def _node(state: NodeState) -> dict[str, Any]:
    return {
        "node": state.node,
        "engine": state.host,
        "error": state.error or None,
        "images": [
            {
                "image": str(image.image),
                "state": image.state,
                "latest": image.latest,
                "current": image.current,
                "stale": image.stale,
            }
            for image in state.images
        ],
        "serving": [
            {
                "name": server.name,
                "image": server.image,
                "model": server.model or None,
                "state": server.state,
                "stale": server.stale,
            }
            for server in state.serving
        ],
    }
