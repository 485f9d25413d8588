"""The status verb: how everything that is being served is, with the numbers that vLLM gives of itself."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from builder.engine import containers, services
from builder.errors import EngineError
from builder.serving import lookup, metrics, phases, running

if TYPE_CHECKING:
    from builder.serving.metrics import ServerMetrics
    from builder.serving.phases import Phase
    from builder.serving.running import RunningServer
    from builder.workspace import Workspace

# Two looks at the numbers, so far apart, make a rate.
INTERVAL_SECONDS = 1.0
_LOOK_WAIT = 15
_RECENT_LINES = 400
# In the container, where the server answers whatever its network is, and wherever its engine is.
_LOOK = """\
import http.client, json, sys, time
host, port, interval = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
looks = []
for pause in (0, interval):
    time.sleep(pause)
    asked = http.client.HTTPConnection(host, port, timeout=5)
    asked.request("GET", "/metrics")
    text = asked.getresponse().read().decode()
    lines = [line for line in text.splitlines() if line.startswith("vllm:") and "_bucket{" not in line]
    looks.append((time.monotonic(), "\\n".join(lines)))
print(json.dumps(looks))
"""


@dataclass(frozen=True)
class Rates:
    """Tokens a second, read from prompts and generated, between two looks."""

    prompt: float
    generated: float


@dataclass(frozen=True)
class ServerState:
    """How one is. ``state`` is healthy, starting, unhealthy, restarting, running (where nobody knows how it is),
    stopped, or ``incomplete`` where a node is missing; ``phase`` what it does while it starts; ``up`` is in seconds;
    ``numbers`` and ``rates`` are None where the server does not give them."""

    running: RunningServer
    state: str
    phase: str
    up: float | None
    restarts: int
    numbers: ServerMetrics | None
    rates: Rates | None


@dataclass(frozen=True)
class ServingOverview:
    """Everything that is being served, and the nodes that cannot be asked."""

    states: tuple[ServerState, ...]
    silent: tuple[str, ...]


def look(workspace: Workspace, text: str | None) -> ServingOverview:
    """Everything, or what is called ``text``; takes a little more than `INTERVAL_SECONDS` where something answers.

    Raises UsageError where nothing is called so, EngineError where the engine does not answer.
    """
    from concurrent.futures import ThreadPoolExecutor

    if text is not None:
        return ServingOverview((_state(lookup.find(workspace, text)),), ())
    seen = lookup.find_all(workspace)
    with ThreadPoolExecutor(max_workers=8) as pool:
        return ServingOverview(tuple(pool.map(_state, seen.servers)), seen.unreachable)


def _state(one: RunningServer) -> ServerState:
    head = one.head.service
    state = _word(one)
    phase = _phase(one) if state == "starting" else None
    if phase and phase.name == phases.READY and running.answers(one):
        state = "healthy"  # before its health check was made again
    numbers, rates = _numbers(one) if state in {"healthy", "unhealthy", "running"} else (None, None)
    if state in {"healthy", "unhealthy"}:
        # Its health check is made seldom once it has answered: what counts is what it does now.
        state = "healthy" if numbers or running.answers(one) else "unhealthy"
    return ServerState(
        running=one,
        state=state,
        phase=str(phase) if phase and state == "starting" else "",
        up=_seconds_since(head.started) if head.status == "running" else None,
        restarts=sum(member.service.restarts for member in one.members),
        numbers=numbers,
        rates=rates,
    )


def _word(one: RunningServer) -> str:
    if one.missing:
        return "incomplete"
    for member in one.members:
        if not member.service.is_up:
            return "stopped"
    if any(member.service.status == "restarting" for member in one.members):
        return "restarting"
    return one.head.service.health or "running"


def _phase(one: RunningServer) -> Phase | None:
    head = one.head
    lines = services.log(head.engine.endpoint, head.service.id, tail=_RECENT_LINES)
    # What it said before it was started again is over.
    return phases.latest([line.text for line in lines if line.written >= head.service.started])


def _numbers(one: RunningServer) -> tuple[ServerMetrics | None, Rates | None]:
    head = one.head
    if one.port is None:
        return None, None
    host = running.listening_host(head.service)
    argv = ["python3", "-ISc", _LOOK, host, str(one.port), str(INTERVAL_SECONDS)]
    try:
        done = containers.execute(head.engine.endpoint, head.service.id, argv, _LOOK_WAIT)
    except EngineError:  # it has ended in this moment, or is too busy to say
        return None, None
    if done.exit_code:
        return None, None
    (began, first), (ended, second) = json.loads(done.output)
    before, now = metrics.read(first), metrics.read(second)
    if before is None or now is None:
        return now, None
    return now, Rates(
        prompt=(now.prompt_tokens - before.prompt_tokens) / (ended - began),
        generated=(now.generated_tokens - before.generated_tokens) / (ended - began),
    )


def _seconds_since(started: str) -> float:
    return max((datetime.now(UTC) - datetime.fromisoformat(started)).total_seconds(), 0)
