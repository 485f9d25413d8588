"""The command line of ``builder nodes``, with ``discover`` and ``check``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from builder import commands
from builder.base.errors import BuilderError
from builder.cli import output
from builder.cli.main import Group
from builder.cli.options import Context, json_and_context, names, repeated
from builder.cli.output import agreed, data, print_json, print_line, print_message, print_result

if TYPE_CHECKING:
    from builder.commands.nodes import Discovery, NodeState
    from builder.moving.machines import LinkChoice


_timeout_option = click.option(
    "--timeout",
    type=click.IntRange(1, 3600),
    metavar="SECONDS",
    help="Wait at most SECONDS for a node's answer (default: `node_timeout` in builder.yaml, or 10).",
)


@click.group(cls=Group, invoke_without_command=True)
@_timeout_option
@json_and_context
def nodes(context: Context, timeout: int | None, as_json: bool) -> None:
    """Show which images each node has, and what each node serves.

    A `latest` is stale if it is not this project's current number. A container is stale if its model is now paired with
    another image. The command asks all nodes at once. It ends with 1 if a node did not answer.
    """
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is not None:
        if as_json or timeout:
            option = "--json" if as_json else "--timeout"
            raise click.UsageError(f"`{option}` goes after `{ctx.invoked_subcommand}`", ctx)
        return
    states = commands.nodes.nodes_state(context.project, os.environ, timeout, print_message)
    if as_json:
        of_images, of_servers = "images(image state latest current stale)", "serving(name image model? state stale)"
        print_json({"nodes": data(states, f"node engine=host error? {of_images} {of_servers}")})
    elif not states:
        print_result(
            "builder.yaml names no nodes. Add them there: `nodes: {spark2: ssh://USER@HOST}`; "
            "`builder nodes discover` fills in their links"
        )
    else:
        rows = [row for state in states for row in _rows(state)]
        output.print_table(("NODE", "IMAGE", "STATE", "SERVES"), rows)
    if any(state.error for state in states):
        ctx.exit(1)


@nodes.command()
@click.argument("node_names", nargs=-1, metavar="[NODE]…", shell_complete=names("nodes"))
@click.option("--yes", is_flag=True, help="Write builder.yaml without asking.")
@_timeout_option
@json_and_context
def discover(context: Context, node_names: tuple[str, ...], yes: bool, timeout: int | None, as_json: bool) -> int:
    """Fill in the link of each node in builder.yaml: address, interface and RoCE devices.

    The command reads the RoCE devices of each machine, over ssh or locally. Two active links mean a pair of machines,
    or a switch. Four active links mean a ring of three machines. The command shows what would change in builder.yaml,
    and asks before it writes.

    The command ends with 1 if a machine could not be reached.
    """
    discovery = commands.nodes.discover_nodes(context.project, os.environ, node_names, print_message, timeout)
    if not as_json:
        output.print_table(("NODE", "SETTING", "VALUE"), list(_discovered_rows(discovery)))
        if discovery.changed:
            print_line()
        for line in discovery.difference() if discovery.changed else ():
            print_line(output.line(line))
    written = discovery.changed and agreed("write builder.yaml?", yes=yes, as_json=as_json)
    if written:
        commands.nodes.write_nodes(context.project, discovery)
    if as_json:
        shown = [_discovered_json(node, *answer) for node, answer in discovery.nodes.items()]
        print_json({"nodes": shown, "difference": list(discovery.difference()), "written": written})
    elif written:
        print_result("builder.yaml was written; to test it: `builder nodes check`")
    elif discovery.changed:
        print_result("nothing was written; --yes writes without asking")
    elif unread := [node for node, (_, answer) in discovery.nodes.items() if isinstance(answer, BuilderError)]:
        print_result(f"nothing to write: {', '.join(unread)} could not be read")
    elif not all(answer.interface for _, answer in discovery.nodes.values() if not isinstance(answer, BuilderError)):
        print_result("nothing to write: not every node has a link")
    else:
        print_result("builder.yaml already has these settings")
    return 1 if any(isinstance(answer, BuilderError) for _, answer in discovery.nodes.values()) else 0


@nodes.command()
@click.argument("what", metavar="[RECIPE|MODEL]", required=False, shell_complete=names("recipes", "models"))
@repeated("--node", "node_names", metavar="NAME", kinds="nodes", help="Check only this node. Repeatable.")
@_timeout_option
@json_and_context
def check(context: Context, what: str | None, node_names: tuple[str, ...], timeout: int | None, as_json: bool) -> int:
    """Try everything that nodes need to serve one model together.

    On each node, the command checks ssh, the engine, the image's fingerprint, the RoCE devices, the model and the
    clock. It also checks the interface, its address and its subnet. With RECIPE or MODEL, each node must have the image
    and the model. Otherwise, each node must have what the other nodes have. The command ends with 1 if anything is
    wrong.
    """
    by_node = commands.nodes.check_nodes(context.project, os.environ, what, node_names, timeout, print_message)
    findings = [(node, each) for node, own in by_node.items() for each in own]
    if as_json:
        keys = "check=subject verdict message remedy?"
        print_json({"findings": [{"node": node, **data(each, keys)} for node, each in findings]})
    else:
        rows = [(node, each.subject, output.word(each.verdict), each.message) for node, each in findings]
        output.print_table(("NODE", "CHECK", "STATE", "FINDING"), rows)
        for remedy in dict.fromkeys(each.remedy for _, each in findings if each.remedy):
            print_result(f"→ {remedy}")
    return 1 if any(each.verdict == "error" for _, each in findings) else 0


def _discovered_rows(discovery: Discovery) -> Iterator[tuple[str, str, str]]:
    for node, (_, answer) in discovery.nodes.items():
        if isinstance(answer, BuilderError):
            yield node, "unknown", answer.message + (f"; {answer.hint}" if answer.hint else "")
            continue
        settings = {"link": answer.shape, "interface": answer.interface, "address": answer.address}
        rows = [*settings.items(), ("rdma", ", ".join(answer.rdma))]
        rows += [("env", f"{name}={value}") for name, value in answer.env.items()]
        rows += [("problem", problem) for problem in answer.problems]
        shown = [row for row in rows if row[1]]
        yield from ((node if not number else "", *row) for number, row in enumerate(shown))


def _discovered_json(node: str, host: str, answer: LinkChoice | BuilderError) -> dict[str, Any]:
    if isinstance(answer, BuilderError):
        nothing = dict.fromkeys(("link", "address", "interface"))
        return {"node": node, "engine": host, "error": answer.message, **nothing, "rdma": [], "env": {}, "problems": []}
    settings = data(answer, "link=shape address? interface? rdma env problems")
    return {"node": node, "engine": host, "error": None, **settings}


def _rows(state: NodeState) -> list[tuple[str, ...]]:
    if state.error:
        return [(state.node, "-", "unknown", state.error)]
    rows: list[tuple[str, ...]] = []
    for image in state.images:
        latest = "stale latest" if image.stale else "latest" if image.latest else ""
        words = (image.state if image.state != "present" else "", latest)
        rows.append(
            (state.node, str(image.image), _listed(words) or "present", _serving_words(state, str(image.image)))
        )
    others = {server.image for server in state.serving} - {str(image.image) for image in state.images}
    rows += [(state.node, image or "-", "not in images.lock", _serving_words(state, image)) for image in sorted(others)]
    return rows or [(state.node, "-", "none", "-")]


def _serving_words(state: NodeState, image: str) -> str:
    texts = []
    for server in state.serving:
        if server.image == image:
            more = _listed((server.state if server.state != "running" else "", "stale" if server.stale else ""))
            texts.append(server.name + (f" ({more})" if more else ""))
    return ", ".join(texts) or "-"


def _listed(words: Sequence[str]) -> str:
    return ", ".join(filter(None, words))
