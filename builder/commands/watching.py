"""The commands logs and status show servers. They import little, so `status` is fast."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from builder.base import processes, words
from builder.base.errors import EngineError, LockError, UsageError
from builder.base.values import dataclass
from builder.engine import containers
from builder.lab import upgrade_journal
from builder.lock import lock_file
from builder.lock.model import Lock, Pairing
from builder.serving import readiness, running, server_log

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.numbers.workspace import Workspace
    from builder.serving.running import RunningServer, SupersededServer


def server_logs(
    workspace: Workspace, text: str | None, node: str | None, tail: int | None, *, follow: bool
) -> Iterator[str]:
    """The last ``tail`` lines (None: all) of the server called ``text`` (None: the only server) on ``node`` (None: its
    head). With ``follow``, also each new line until the server stops."""
    try:
        server = running.find_server(workspace, text)
    except UsageError as error:
        from builder.commands import crash_report

        if not crash_report.logs_of_failed_starts(workspace, text, node):
            raise
        report = f"`builder logs{f' {words.shell_word(text)}' if text else ''} --report`"
        raise UsageError(error.message, hint=f"{error.hint}; {report} shows why the last start failed") from None
    member = next((member for member in server.members if node in (None, member.node)), None)
    if member is None:
        nodes = ", ".join(server.nodes) or "none"
        raise UsageError(f"{server.name} does not run on node `{node}`", hint=f"its nodes: {nodes}")
    lines = containers.follow_log if follow else containers.container_log
    return (line.text for line in lines(member.engine, member.service.id, tail=tail))


# The time between two readings of the metrics; rates come from the difference.
INTERVAL_SECONDS = 1.0
_READING_TIMEOUT = 15
_AT_ONCE = 8  # servers
_RECENT_LINES = 400
_LAST_LINES = 5
# Runs in the container, where the server is reachable with every network and engine.
_READING = """\
import http.client, json, sys, time
host, port, interval = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
readings = []
for pause in (0, interval):
    time.sleep(pause)
    connection = http.client.HTTPConnection(host, port, timeout=5)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    lines = [line for line in text.splitlines() if line.startswith("vllm:") and "_bucket{" not in line]
    readings.append((time.monotonic(), "\\n".join(lines)))
print(json.dumps(readings))
"""


@dataclass(frozen=True)
class TokenRates:
    """Prompt tokens and generated tokens per second, between two readings."""

    prompt: float
    generated: float


@dataclass(frozen=True)
class EndedContainer:
    """A container that ended while other containers of its server continued: its node, exit code and last lines."""

    node: str
    exit_code: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class ServerState:
    """A server and its ``state``: healthy, starting, unhealthy, restarting, paused (by `docker pause`), running (no
    health check), stopped, ``incomplete`` (a node is missing), or ``ended`` (a node's container has ended, so the whole
    server has). ``phase`` is the step of its start; ``up`` is in seconds. ``put_back`` is the pairing from which its
    model was put back. ``superseded`` is set if its model is now paired with another image."""

    running: RunningServer
    state: str
    phase: str
    up: float | None
    restarts: int
    numbers: readiness.ServerMetrics | None
    rates: TokenRates | None
    ended: tuple[EndedContainer, ...]
    put_back: Pairing | None
    superseded: SupersededServer | None


@dataclass(frozen=True)
class ServingOverview:
    """All servers, the nodes that do not answer, and the interrupted upgrades."""

    states: tuple[ServerState, ...]
    silent: tuple[str, ...]
    interrupted: tuple[upgrade_journal.InterruptedUpgrade, ...]


def server_status(workspace: Workspace, text: str | None) -> ServingOverview:
    """Reads the state of all servers, or of the server called ``text``. Takes over a second if a server answers."""
    lock = Lock()
    with suppress(LockError):  # servers are shown even without the lock
        lock = lock_file.read_lock(workspace.project.lock)
    upgrades = tuple(upgrade_journal.interrupted_upgrades(workspace.project, lock))
    if text is not None:
        state = _state(workspace.project, lock, running.find_server(workspace, text))
        own = tuple(upgrade for upgrade in upgrades if upgrade.model == state.running.model)
        return ServingOverview((state,), (), own)
    running_servers = running.find_all(workspace)
    states = processes.in_parallel(
        lambda server: _state(workspace.project, lock, server), running_servers.servers, _AT_ONCE
    )
    return ServingOverview(tuple(states), running_servers.unreachable, upgrades)


def _state(project: Project, lock: Lock, server: RunningServer) -> ServerState:
    head = server.head.service
    state = _container_state(server)
    phase = None
    if state == "starting":
        lines = containers.container_log(server.head.engine, head.id, tail=_RECENT_LINES)
        # Ignore lines from before a restart.
        phase = server_log.latest_phase([line.text for line in lines if line.written >= head.started])
    if phase and phase.name == server_log.READY and running.answers(server):
        state = "healthy"  # the next health check is still due
    numbers, rates = _numbers(server) if state in {"healthy", "unhealthy", "running"} else (None, None)
    if state in {"healthy", "unhealthy"}:
        # After the first answer, health checks are rare. The present answer decides.
        state = "healthy" if numbers or running.answers(server) else "unhealthy"
    is_ours = server.labels.get(running.PROJECT) == str(project.root)
    up = datetime.now(UTC) - datetime.fromisoformat(head.started) if head.status == "running" else None
    return ServerState(
        running=server,
        state=state,
        phase=str(phase) if phase and state == "starting" else "",
        up=None if up is None else max(up.total_seconds(), 0),
        restarts=sum(member.service.restarts for member in server.members),
        numbers=numbers,
        rates=rates,
        ended=tuple(_ended(server)),
        put_back=running.put_back_from(lock, server.model) if is_ours else None,
        superseded=running.of_labels(project, lock, server.labels),
    )


def _container_state(server: RunningServer) -> str:
    if server.missing:
        return "incomplete"
    up = [member.service.is_up for member in server.members]
    if not all(up):
        return "stopped" if len(up) == 1 else "ended"
    statuses = {member.service.status for member in server.members}
    for status in ("paused", "restarting"):
        if status in statuses:
            return status
    return server.head.service.health or "running"


def _ended(server: RunningServer) -> Iterator[EndedContainer]:
    for member in server.members if len(server.members) > 1 else ():
        if not member.service.is_up:
            lines = containers.container_log(member.engine, member.service.id, tail=_LAST_LINES)
            yield EndedContainer(member.node, member.service.exit_code, tuple(line.text for line in lines))


def _numbers(server: RunningServer) -> tuple[readiness.ServerMetrics | None, TokenRates | None]:
    host, port = server.inside
    if port is None:
        return None, None
    argv = ["python3", "-ISc", _READING, host, str(port), str(INTERVAL_SECONDS)]
    try:
        result = containers.execute(server.head.engine, server.head.service.id, argv, _READING_TIMEOUT)
    except EngineError:  # the container has just ended, or the server is too busy
        return None, None
    if result.exit_code:
        return None, None
    (began, first), (ended, second) = json.loads(result.output)
    before, now = readiness.read_metrics(first), readiness.read_metrics(second)
    if before is None or now is None:
        return now, None
    seconds = ended - began
    prompt, generated = now.prompt_tokens - before.prompt_tokens, now.generated_tokens - before.generated_tokens
    return now, TokenRates(prompt / seconds, generated / seconds)
