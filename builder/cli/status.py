"""``builder status``."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from builder import humanize
from builder.cli import table, upgrades_json
from builder.cli.completers import names
from builder.cli.context import Context, json_option, pass_context
from builder.cli.output import print_json, print_line, print_note, print_result
from builder.cli.terminal_text import styled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.commands.status import ServerState, ServingOverview

_PAUSE_SECONDS = 1.0
_COLOURS = {"healthy": "green", "starting": "yellow", "running": "green"}


@click.command()
@click.argument("what", metavar="[RECIPE|MODEL]", required=False, shell_complete=names("recipes", "models"))
@click.option("--watch", "-w", is_flag=True, help="Repeat every second, until ^C.")
@json_option
@pass_context
def status(context: Context, what: str | None, watch: bool, as_json: bool) -> None:
    """Show what is being served, and its health.

    Health, restarts, requests, tokens a second and speculative acceptance, as vLLM counts them.
    """
    from builder.commands import status

    while True:
        overview = status.run(context.workspace(), what)
        if as_json:
            print_json(_document(overview), indent=None if watch else 1)
        else:
            if watch and sys.stdout.isatty():
                click.clear()
            _print(overview)
        if not watch:
            return
        if not as_json and not sys.stdout.isatty():
            print_line()
        time.sleep(_PAUSE_SECONDS)


def _document(overview: ServingOverview) -> dict[str, Any]:
    """The state of the servers as JSON."""
    return {
        "services": [_service(state) for state in overview.states],
        "silent_nodes": list(overview.silent),
        "interrupted_upgrades": [upgrades_json.document(upgrade) for upgrade in overview.interrupted],
    }


def _print(overview: ServingOverview) -> None:
    for node in overview.silent:
        print_note(f"no answer from node {node}")
    for upgrade in overview.interrupted:
        print_note(str(upgrade))
    if not overview.states:
        print_result("nothing is being served: `builder run RECIPE` serves a model")
    for number, state in enumerate(overview.states):
        if number:
            print_line()
        text = f"{state.state}, {state.phase}" if state.phase else state.state
        word = styled(text, fg=_COLOURS.get(state.state, "red"))
        print_result(f"{styled(state.running.name, bold=True)}: {word}")
        table.print_facts(list(_facts(state)), "  ")
        for ended in state.ended:
            print_result(f"  {ended.node} ended with {ended.exit_code}:", hanging=4)
            for line in ended.lines:
                print_result(f"    {line}", hanging=6)
        if state.ended:
            print_result(f"  `builder restart {state.running.name}` starts it anew on all of its nodes")


def _facts(state: ServerState) -> Iterator[tuple[str, str]]:
    server = state.running
    if server.model:
        yield "model", server.model
    yield "image", server.image
    if server.started_by:
        yield "by", f"{server.started_by}, which starts and stops it"
    if superseded := state.superseded:
        yield "paired with", f"{superseded.paired} now: `builder restart {server.name}` serves from it"
    if state.put_back:
        yield "put back", f"from {state.put_back.image}: {state.put_back.note}"
    if server.address:
        yield "address", server.address
    if server.missing:
        yield "missing", ", ".join(server.missing)
    restarts = humanize.counted(state.restarts, "restart")
    yield "up", f"{humanize.duration(state.up)}, {restarts}" if state.up is not None else restarts
    if state.numbers:
        yield "requests", f"{state.numbers.running} running, {state.numbers.waiting} waiting"
        yield "tokens", f"{state.numbers.generated_tokens} generated, {state.numbers.prompt_tokens} read"
        if state.rates:
            yield "tokens/s", f"{state.rates.generated:.1f} generated, {state.rates.prompt:.1f} read"
        if (share := state.numbers.acceptance) is not None:
            counts = f"{state.numbers.accepted} of {state.numbers.drafted} drafted tokens"
            yield "speculation", f"{share:.1%} accepted: {counts}"
        yield "KV cache", f"{state.numbers.cache_used:.1%} used"


def _service(state: ServerState) -> dict[str, Any]:
    numbers, rates = state.numbers, state.rates
    return {
        "name": state.running.name,
        "model": state.running.model or None,
        "image": state.running.image,
        "paired_with_now": str(state.superseded.paired) if state.superseded else None,
        "address": state.running.address or None,
        "started_by": state.running.started_by or None,
        "state": state.state,
        "phase": state.phase or None,
        "up_seconds": None if state.up is None else round(state.up, 1),
        "started": state.running.head.service.started,
        "restarts": state.restarts,
        "nodes": [node for node in map(state.running.node_of, state.running.members) if node],
        "missing_nodes": list(state.running.missing),
        "put_back": ({"from": str(state.put_back.image), "note": state.put_back.note} if state.put_back else None),
        "ended_nodes": [
            {"node": ended.node, "exit_code": ended.exit_code, "lines": list(ended.lines)} for ended in state.ended
        ],
        "requests_running": numbers.running if numbers else None,
        "requests_waiting": numbers.waiting if numbers else None,
        "prompt_tokens": numbers.prompt_tokens if numbers else None,
        "generated_tokens": numbers.generated_tokens if numbers else None,
        "prompt_tokens_per_second": round(rates.prompt, 2) if rates else None,
        "generated_tokens_per_second": round(rates.generated, 2) if rates else None,
        "draft_tokens": numbers.drafted if numbers else None,
        "accepted_tokens": numbers.accepted if numbers else None,
        "acceptance": numbers.acceptance if numbers else None,
        "cache_used": numbers.cache_used if numbers else None,
    }
