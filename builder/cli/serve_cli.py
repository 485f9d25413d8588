"""The command line of builder logs, restart, run, status, stop and up."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder import commands
from builder.base import words
from builder.cli import mods_cli, output, progress
from builder.cli.options import Context, json_and_context, names, pass_context, repeated, serve_request, serving_options
from builder.cli.output import data, print_json, print_line, print_log, print_note, print_result, styled

if TYPE_CHECKING:
    from builder.serving.preparation import PreparedServer


@click.command()
@click.argument("what", metavar="[RECIPE|MODEL]", required=False, shell_complete=names("recipes", "models"))
@click.option("--follow", "-f", is_flag=True, help="Keep printing new lines.")
@click.option("--tail", "-n", type=click.IntRange(min=0), metavar="N", help="Start with the last N lines.")
@click.option("--node", metavar="NAME", shell_complete=names("nodes"), help="Show what the server prints on this node.")
@click.option(
    "--report",
    is_flag=False,
    flag_value="-",
    type=click.Path(dir_okay=False, allow_dash=True),
    metavar="[FILE]",
    help="Write a crash report to FILE, without secrets or names. Without FILE, print the report.",
)
@pass_context
def logs(
    context: Context, what: str | None, follow: bool, tail: int | None, node: str | None, report: str | None
) -> None:
    """Show what a server prints. Without a name, the command shows the log of the only running server.

    With --report, the command shows the cause of a crash, the machine, the image and the options of the server. vLLM's
    own choices and the last minute of the log follow. The report contains no secrets, addresses or names. The report
    also works for a failed start whose container is gone.
    """
    if report is not None:
        if follow or tail is not None:
            raise click.UsageError("--report cannot be combined with --follow or --tail")
        name, text = commands.crash_report.crash_report(context.workspace(), what, node)
        if report != "-":
            commands.crash_report.write_report(Path(report), text)
            print_result(f"{report} contains the report on {name}; read the report before you post it")
            return
        lines: Iterable[str] = text.splitlines()
    else:
        lines = commands.watching.server_logs(context.workspace(), what, node, tail, follow=follow)
    for line in lines:
        print_log(line)


@click.command()
@serving_options
@json_and_context
def restart(context: Context, /, what: str, detach: bool, as_json: bool, **options: Any) -> None:
    """Restart a server from the image that is paired now.

    After `builder rollback MODEL`, the paired image is the previous one. The server keeps its options, except options
    that you give here.
    """
    request = serve_request(what, options)
    with context.working() as workspace:
        result = commands.servers.restart_server(workspace, request, detach=detach)
    print_served(result, as_json=as_json)


@click.command()
@click.option("--dry-run", is_flag=True, help="Print what would be started, but start nothing.")
@repeated(
    "--try-mod",
    "try_mods",
    metavar="MOD",
    kinds="mods",
    help="Apply this mod in the container before the server starts, without a build. Repeatable.",
)
@serving_options
@json_and_context
def run_command(context: Context, /, what: str, detach: bool, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Serve a model with the image that it is paired with.

    The command waits until the server answers; ^C during the wait stops the server. Later, the engine restarts the
    server if it exits, and when the machine starts. Several nodes serve the model together; the first --node answers
    requests.

    With --try-mod, the image stays unchanged, so the server's results are not evidence for the image. To build a mod
    that works into an image: `builder build RECIPE --mod MOD`.
    """
    request = serve_request(what, options)
    if dry_run and as_json:
        raise click.UsageError("--dry-run cannot be combined with --json")
    with context.working() as workspace:
        if dry_run:
            print_prepared(commands.servers.preview_run(workspace, request))
            return
        result = commands.servers.run_server(workspace, request, detach=detach)
    print_served(result, as_json=as_json)


def print_served(result: commands.servers.ServeResult, *, as_json: bool = False) -> None:
    """Prints the server's address, or its state if it does not answer yet."""
    if as_json:
        print_json({"server": document(result)})
        return
    server = result.server
    if result.put_back_from:
        print_result(f"{server.model}: {result.put_back_from} → {server.image}, because {result.put_back_reason}")
    name = styled(server.name, bold=True)
    if result.seconds is None:
        how = "is already starting" if result.already else "starts"
        print_result(f"{server.name} {how} from {server.image}; `builder status` shows its progress")
    elif result.already:
        print_result(f"{name} already serves from {server.image}: {server.address}")
    else:
        took = words.duration_text(result.seconds)
        print_result(f"{name} serves from {server.image}, ready after {took}: {server.address}")


def print_prepared(prepared: PreparedServer) -> None:
    """Prints what would be started: image, place and command of each container."""
    for planned in prepared.containers:
        settings = planned.settings
        where = f" on {planned.engine.node}" if planned.engine.node else ""
        listens = f", port {prepared.port}" if prepared.port and planned is prepared.head else ""
        print_result(f"{styled(settings.name, bold=True)} would serve from {settings.image}{where}{listens}")
        print_result(f"  {shlex.join(settings.argv)}", hanging=4)
    if prepared.note:
        print_note(prepared.note)


def document(result: commands.servers.ServeResult) -> dict[str, Any]:
    """The server as JSON data."""
    return {
        **data(result.server, "name model? image address?"),
        **data(result, "already ready_seconds=seconds~ put_back_from"),
    }


_PAUSE_SECONDS = 1.0
_COLOURS = {"healthy": "green", "starting": "yellow", "running": "green"}


@click.command()
@click.argument("what", metavar="[RECIPE|MODEL]", required=False, shell_complete=names("recipes", "models"))
@click.option("--watch", "-w", is_flag=True, help="Repeat every second, until ^C.")
@json_and_context
def status(context: Context, what: str | None, watch: bool, as_json: bool) -> None:
    """Show what is being served, and its health.

    The command shows health, restarts, requests, tokens per second and speculative acceptance, as vLLM counts them.
    """
    while True:
        overview = commands.watching.server_status(context.workspace(), what)
        if as_json:
            services = data(overview.states, _SERVICE)
            upgrades = list(map(output.interrupted_upgrade, overview.interrupted))
            content = {"services": services, "silent_nodes": overview.silent, "interrupted_upgrades": upgrades}
            print_json(content, indent=None if watch else 1)
        else:
            if watch and sys.stdout.isatty():
                click.clear()
            _print(overview)
        if not watch:
            return
        if not as_json and not sys.stdout.isatty():
            print_line()
        time.sleep(_PAUSE_SECONDS)


def _print(overview: commands.watching.ServingOverview) -> None:
    for node in overview.silent:
        print_note(f"no answer from node {node}")
    for upgrade in overview.interrupted:
        print_note(str(upgrade))
    if not overview.states:
        print_result("nothing is being served; to serve a model: `builder run RECIPE`")
    for number, state in enumerate(overview.states):
        if number:
            print_line()
        text = f"{state.state}, {state.phase}" if state.phase else state.state
        word = styled(text, fg=_COLOURS.get(state.state, "red"))
        print_result(f"{styled(state.running.name, bold=True)}: {word}")
        output.print_facts(list(_facts(state)), "  ")
        for ended in state.ended:
            print_result(f"  {ended.node} ended with exit code {ended.exit_code}:", hanging=4)
            for line in ended.lines:
                print_result(f"    {line}", hanging=6)
        if state.ended:
            print_result(f"  `builder restart {state.running.name}` restarts the server on all of its nodes")


def _facts(state: commands.watching.ServerState) -> Iterator[tuple[str, str]]:
    server = state.running
    if server.model:
        yield "model", server.model
    yield "image", server.image
    if server.tried:
        yield (
            "tried mods",
            f"{', '.join(server.tried)}: only in this server; its results are not evidence for the image",
        )
    if server.started_by:
        yield "started by", f"{server.started_by}, which also stops the server"
    if superseded := state.superseded:
        yield "paired with", f"{superseded.paired} now; to switch: `builder restart {server.name}`"
    if state.put_back:
        yield "put back", f"from {state.put_back.image}: {state.put_back.note}"
    if server.address:
        yield "address", server.address
    if server.missing:
        yield "missing nodes", ", ".join(server.missing)
    if state.state == "paused":
        paused = next(member for member in server.members if member.service.status == "paused")
        yield "to continue", f"`docker unpause {paused.service.name}`{paused.node and f' on node {paused.node}'}"
    restarts = words.counted(state.restarts, "restart")
    yield "up", f"{words.duration_text(state.up)}, {restarts}" if state.up is not None else restarts
    yield from _figures(state)


def _figures(state: commands.watching.ServerState) -> Iterator[tuple[str, str]]:
    numbers, rates = state.numbers, state.rates
    if numbers:
        yield "requests", f"{numbers.running} running, {numbers.waiting} waiting"
        yield "tokens", f"{numbers.generated_tokens} generated, {numbers.prompt_tokens} read"
        if rates:
            yield "tokens/s", f"{rates.generated:.1f} generated, {rates.prompt:.1f} read"
        if (share := numbers.acceptance) is not None:
            yield "speculation", f"{share:.1%} accepted: {numbers.accepted} of {numbers.drafted} drafted tokens"
        yield "KV cache", f"{numbers.cache_used:.1%} used"


_SERVICE = (
    "name=running.name model=running.model? image=running.image tried_mods=running.tried "
    "paired_with_now=superseded.paired address=running.address? started_by=running.started_by? state phase? "
    "up_seconds=up~ started=running.head.service.started restarts nodes=running.nodes missing_nodes=running.missing "
    "put_back(from=image note) ended_nodes=ended requests_running=numbers.running requests_waiting=numbers.waiting "
    "prompt_tokens=numbers.prompt_tokens generated_tokens=numbers.generated_tokens "
    "prompt_tokens_per_second=rates.prompt~ generated_tokens_per_second=rates.generated~ "
    "draft_tokens=numbers.drafted accepted_tokens=numbers.accepted acceptance=numbers.acceptance "
    "cache_used=numbers.cache_used"
)


@click.command()
@click.argument("what", metavar="[RECIPE|MODEL]", required=False, shell_complete=names("recipes", "models"))
@click.option(
    "--time",
    "seconds",
    type=click.IntRange(min=0),
    metavar="SECONDS",
    default=60,
    show_default=True,
    help="Kill the server after this time if it has not stopped.",
)
@json_and_context
def stop(context: Context, what: str | None, seconds: int, as_json: bool) -> None:
    """Stop the server of a model.

    The server may finish its requests until its time is up. Without a name, the command stops the only running server.
    """
    with progress.showing("stopping"):
        result = commands.servers.stop_server(context.workspace(), what, seconds)
    if as_json:
        keys = "name=server.name model=server.model? image=server.image seconds~ killed"
        print_json({"server": data(result, keys)})
        return
    for name in result.killed:
        print_note(f"{name} was killed, because it did not stop within {seconds} seconds")
    took = words.duration_text(result.seconds)
    print_result(f"{result.server.name} stopped after {took}; it served from {result.server.image}")


@click.command()
@serving_options
@json_and_context
def up(context: Context, /, what: str, detach: bool, as_json: bool, **options: Any) -> None:
    """Bring up a model: its image, its weights, its server.

    If the recipe has no image yet, the command builds one. If the image is missing here, the command pulls it from the
    registry in builder.yaml, copies it from a node, or builds it again. The command then downloads the model, starts
    the server like `builder run`, waits until the server answers, and prints the address. Finished steps are not
    repeated. If interrupted, run the same command again. With --node, every step runs on those machines.

    If the project lacks mods that the recipe names, and builder knows their address, the command offers each mod. It
    shows the scripts of the mod first. Nothing is fetched before you agree.
    """
    request = serve_request(what, options)
    if not as_json and sys.stdin.isatty():
        mods_cli.offer_mods(context.project, commands.up.lacking_mods(context.workspace(), what))
    with context.working() as workspace:
        result = commands.up.bring_up(workspace, request, detach=detach)
    if as_json:
        parts = data(result.parts, "part subject outcome seconds~ note?")
        print_json({"parts": parts, "server": document(result.served)})
    else:
        print_served(result.served)
