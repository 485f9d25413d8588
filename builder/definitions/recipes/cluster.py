"""One model served by several nodes together: the command that the container on each of them runs.

vLLM's own multi-node launch (https://docs.vllm.ai/en/stable/serving/parallelism_scaling.html): the same command on each
node, with the number of nodes, the node's own rank and the address of the head node; or Ray, where the recipe's command
has ``--distributed-executor-backend ray``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.definitions.recipes import arguments, cluster_network, command
from builder.definitions.recipes.container import LABEL
from builder.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.definitions.configuration import Node
    from builder.definitions.recipes.cluster_network import Backend
    from builder.definitions.recipes.command import ServeCommand
    from builder.definitions.recipes.container import ContainerSettings
    from builder.definitions.recipes.recipe import Recipe

RANK = f"{LABEL}.rank"
# https://docs.ray.io/en/latest/cluster/vms/user-guides/launching-clusters/on-premises.html
_RAY_PORT = 6379
_HEAD = 'ray start --head --port="$1" --node-ip-address="$2" --disable-usage-stats && shift 2 && exec "$@"'
# The head node may not answer yet, and may come back after it was lost.
_WORKER = 'until "$@"; do sleep 2; done'


def require_fit(recipe: Recipe, nodes: int) -> None:
    """Raises UsageError where ``recipe`` does not serve on that many nodes."""
    if nodes > 1 and recipe.solo_only:
        raise UsageError(f"{recipe.file} says `solo_only`: one machine serves it", hint="name one node, or none")
    if nodes < 2 and recipe.cluster_only:
        raise UsageError(
            f"{recipe.file} says `cluster_only`: several machines serve it together",
            hint="name them in builder.yaml under `nodes`, this one too where it takes part: "
            "`spark1: {engine: default, address: 10.0.0.1}`",
        )


def commands(
    recipe: Recipe, overrides: Mapping[str, str], extra: Sequence[str], addresses: Sequence[str]
) -> tuple[ServeCommand, ...]:
    """The command of each node, that of the head node first; at ``addresses`` the nodes reach each other.

    Raises as ``command.render`` does.
    """
    alone = command.render(recipe, overrides, extra)
    if len(addresses) < 2:
        return (alone,)
    head, *others = addresses
    if backend_of(alone) == "ray":
        first = ("bash", "-c", _HEAD, "bash", str(_RAY_PORT), head, *alone.argv)
        return (replace(alone, argv=first), *(replace(alone, argv=_worker(head, other)) for other in others))
    return tuple(
        command.render(recipe, overrides, (*extra, *_place(rank, len(addresses), head)))
        for rank in range(len(addresses))
    )


def backend_of(rendered: ServeCommand) -> Backend:
    """The backend that joins the nodes of a rendered command."""
    return "ray" if arguments.option(rendered.words, "--distributed-executor-backend") == "ray" else "mp"


def member(settings: ContainerSettings, node: Node, rank: int, address: str, backend: Backend) -> ContainerSettings:
    """``settings`` for ``node``, which has that rank among the nodes and is reached by the others at ``address``. Only
    the head node (rank 0) answers requests, so only it has a health check."""
    return replace(
        cluster_network.connected(settings, node, address, backend),
        labels={**settings.labels, RANK: str(rank)},
        # The nodes talk to each other on ports that are chosen as they start.
        network="host",
        ports=(),
        health=None if rank else settings.health,
    )


def _place(rank: int, count: int, head: str) -> tuple[str, ...]:
    headless = ("--headless",) if rank else ()
    return ("--nnodes", str(count), "--node-rank", str(rank), "--master-addr", head, *headless)


def _worker(head: str, own: str) -> tuple[str, ...]:
    address = f"[{head}]:{_RAY_PORT}" if ":" in head else f"{head}:{_RAY_PORT}"
    ray = ("ray", "start", "--block", f"--address={address}", f"--node-ip-address={own}", "--disable-usage-stats")
    return ("bash", "-c", _WORKER, "bash", *ray)
