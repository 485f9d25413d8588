"""The wait until a server answers or has certainly failed, then its metrics, and the starts of this machine."""

from __future__ import annotations

import math
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from builder.base import files, hub_cache, machine_record, records, redaction, words
from builder.base.errors import BuilderError, ConflictError, EngineError, NoImageHelpsError, ServeFailedError
from builder.base.events import Message
from builder.base.machine_record import Machine
from builder.base.redaction import redacted
from builder.base.values import dataclass, field, replace
from builder.definitions import cluster, command, container
from builder.definitions.container import LABEL
from builder.engine import containers
from builder.evidence import standing
from builder.lock import lock_file
from builder.serving import server_log, starting
from builder.serving.running import NODES, PROJECT, RunningServer, ServerMember, StartOptions, answers
from builder.serving.selection import SelectedImage, ServedImage
from builder.serving.server_log import READY

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.engine.containers import Service
    from builder.lock.model import Lock
    from builder.numbers.workspace import Workspace
    from builder.serving.starting import StartedServer


_POLL_SECONDS = 0.5
# The log may be configured so that it does not show that the server answers.
_PROBE_SECONDS = 30
# A first crash may happen because another server has not freed its memory yet. A second crash shows a loop.
CRASHES = 2
CRASHES_BEFORE_ANOTHER = 3  # if another image would take its place
CRASHES_TOGETHER = 1  # on several nodes: a restarted container does not rejoin the others
# The last lines of a log without a cause.
_TAIL = 10
# If one node ends, the others often end a moment later. `stop` removes the containers of a server one by one.
_SETTLE_SECONDS = 1.0
_LOOKS = 5  # vLLM refuses requests for a moment before it ends
# The exit codes after SIGINT, SIGKILL and SIGTERM, and of a regular end.
_STOPPED = frozenset({0, 130, 137, 143})


def wait_until_ready(
    workspace: Workspace, started: StartedServer, crashes: int = CRASHES, limit: float | None = None
) -> float:
    """Waits until the server answers, reports each `Phase`, and returns the seconds that this took. A server on one
    machine has failed after ``crashes`` crashes, a candidate after ``limit`` seconds. A server that never answers is
    removed, but its log and its options are kept; ServeFailedError gives the reason. ^C stops a server that this
    command started."""
    server = started.server
    # The engine seldom probes a server that has answered: the reported health may be ten minutes old.
    service = server.head.service
    if service.status == "running" and service.health in {"healthy", "unhealthy"} and not answers(server):
        raise ConflictError(
            f"{server.name} is running but does not answer",
            hint=f"`builder logs {server.name}` may show why; `builder restart {server.name}` starts it again",
        )
    try:
        return _watch(workspace, started, crashes, limit)
    except ServeFailedError:
        record_failure(workspace, started.selection, server.labels)
        starting.remove_server(server)
        raise
    except KeyboardInterrupt:
        if not started.was_running:
            hint = "; `--detach` starts it without waiting" if _is_own(workspace.project, server) else ""
            workspace.report(Message(f"stopping {server.name}{hint}"))
            starting.remove_server(server)
        raise


def _watch(workspace: Workspace, started: StartedServer, most_crashes: int, limit: float | None) -> float:
    project, report = workspace.project, workspace.report
    began = probed = time.monotonic()
    server = started.server
    head = server.head
    most_crashes = most_crashes if len(server.members) == 1 else CRASHES_TOGETHER
    after, crashed = "", 0
    phase: server_log.Phase | None = None
    most = words.duration_text(limit) if limit else ""
    if limit:
        report(Message(f"waiting for {server.name} for at most {most}"))
    while True:
        service, ended = _look(server)
        lines = containers.container_log(head.engine, service.id, after=after)
        after = lines[-1].written if lines else after
        for latest in filter(None, (server_log.of_line(line.text) for line in lines)):
            if latest != phase:
                phase = latest
                report(phase)
        crashes = max((count for _, count in ended), default=0)
        is_over = crashes >= most_crashes or (crashes and not service.is_up)  # the engine never restarts a candidate
        if crashed < crashes and not is_over:
            report(Message(f"the server exited after {time.monotonic() - began:.0f} s; starting it again"))
        crashed = crashes
        is_due = time.monotonic() - probed > _PROBE_SECONDS
        probed = time.monotonic() if is_due else probed
        if _is_ready(server, service, phase, is_due=is_due):
            return time.monotonic() - began
        if is_over:
            time.sleep(_SETTLE_SECONDS)
            raise _failure(project, started, _look(server)[1])
        if limit and time.monotonic() - began > limit:
            reached = f"; the last phase in its log: {phase}" if phase else ""
            log, _ = _keep_log(project, server, head)
            message = f"{server.name} did not answer within {most}{reached}"
            raise ServeFailedError(message, log=log, hint="the log shows how far the start got" if log else "")
        time.sleep(_POLL_SECONDS)


def _look(server: RunningServer) -> tuple[Service, list[tuple[ServerMember, int]]]:
    """Returns the present state of the head, and the containers that ended by themselves, each with how often."""
    states = _states(server)
    if len(states) > 1 and not all(state.is_up for state in states):
        time.sleep(_SETTLE_SECONDS)
        states = _states(server)
    pairs = zip(server.members, states, strict=True)
    crashes = [(member, state.restarts - member.service.restarts + (not state.is_up)) for member, state in pairs]
    return states[0], [(member, count) for member, count in crashes if count > 0]


def _states(server: RunningServer) -> list[Service]:
    """The present states of the server's containers. Raises ConflictError if the server was stopped."""
    present = [containers.find_container(member.engine, member.service.id) for member in server.members]
    states = [state for state in present if state is not None]
    is_ended = len(present) == 1 and any(
        not state.is_up and state.exit_code in _STOPPED and not state.out_of_memory for state in states
    )
    if is_ended or len(states) < len(present):
        message = f"another command or program stopped {server.name} while it was starting"
        raise ConflictError(message, hint="if nobody stopped the server on purpose, run the command again")
    return states


def _is_ready(server: RunningServer, service: Service, phase: server_log.Phase | None, *, is_due: bool) -> bool:
    """True if the server answers. Without a health check (if its port is unknown), the log decides; otherwise the
    health check or a probe. A probe is made when the log says that the server answers, and when a probe ``is_due``."""
    is_logged = phase is not None and phase.name == READY
    if not service.health:
        return is_logged
    return service.health == "healthy" or ((is_logged or is_due) and answers(server))


def _failure(project: Project, started: StartedServer, members: Sequence[tuple[ServerMember, int]]) -> ServeFailedError:
    """The error for a server that never answered. Writes the whole log of each ended container into a file."""
    server, selected = started.server, started.selection
    ended = [(member, crashes, *_keep_log(project, server, member)) for member, crashes in members]
    # A container that ended because another one did does not know the cause.
    ended = [each for each in ended if cluster.ENDED_ELSEWHERE not in each[3]] or ended
    texts = []
    for member, crashes, _, lines in ended:
        node = member.node
        times = f" {crashes} times" if crashes > 1 else ""
        problem = f"{server.labels[LABEL]}{node and f' on node {node}'} ended{times} before it answered"
        texts.append("\n".join(_told(problem, lines)))
    known_cause = next(filter(None, (server_log.known_crash_cause(lines) for *_, lines in ended)), None)
    typed = StartOptions.of_labels(server.labels)
    is_typed = bool(typed.overrides or typed.extra)
    no_image_helps = known_cause is not None and (not known_cause.in_image or (known_cause.in_options and is_typed))
    model = words.shell_word(selected.recipe.model or server.name)
    hints = [known_cause.hint.format(model=model)] if known_cause else []
    if _is_own(project, server):
        if selected.recipe.model:
            hints.append(f"`builder why {model}` shows what changed since it last worked")
        hints += [] if no_image_helps else [rollback_hint(project, selected.recipe.model)]
    if len(server.members) > 1:
        checks = f"`builder nodes check {words.shell_word(selected.recipe.file)}`"
        hints.insert(0, f"{checks} checks the nodes and their links")
    kind = NoImageHelpsError if no_image_helps else ServeFailedError
    logs = ", ".join(filter(None, (log for _, _, log, _ in ended)))
    return kind("\n".join(texts), log=logs, hint="; ".join(hints))


def end_while_measured(project: Project, server: RunningServer) -> ServeFailedError | None:
    """The error for a server that ended by itself after it had answered; its log is kept. None while it runs."""
    for _ in range(_LOOKS):
        for member in server.members:
            state = containers.find_container(member.engine, member.service.id)
            if state and not state.is_up:
                log, lines = _keep_log(project, server, member)
                cause = server_log.known_crash_cause(lines)
                model = words.shell_word(server.model or server.name)
                hint = cause.hint.format(model=model) if cause else "see the log" if log else ""
                problem = f"{server.labels[LABEL]} ended during the measurement"
                return ServeFailedError("\n".join(_told(problem, lines)), log=log, hint=hint)
        time.sleep(_SETTLE_SECONDS)
    return None


def _is_own(project: Project, server: RunningServer) -> bool:
    """False for a candidate, whose end says nothing about the model's own server."""
    return server.labels.get(PROJECT) == str(project.root)


def _told(problem: str, lines: Sequence[str]) -> Iterator[str]:
    """The problem with its cause, and the first error if that differs; the last lines if no cause is known."""
    if not (cause := server_log.crash_cause(lines)):
        yield from (f"{problem}; the last lines of its log:", *lines[-_TAIL:])
        return
    yield f"{problem}: {cause}"
    if (first := server_log.first_error(lines)) and first not in cause:
        yield f"the first error in its log: {first}"


def _keep_log(project: Project, server: RunningServer, member: ServerMember) -> tuple[str, list[str]]:
    """Writes the whole log of a container into a file; returns its path in the project, and the lines. The path is
    empty if the log cannot be written: a full disk may be why the server ended."""
    lines = [line.text for line in containers.container_log(member.engine, member.service.id)]
    service = containers.find_container(member.engine, member.service.id)
    if service and service.exit_code:  # a restarted container has 0
        lines.append(server_log.end_line(service.exit_code, out_of_memory=service.out_of_memory))
    path = log_file(project, server.labels[LABEL], member.node)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_plain_file(path, redacted("\n".join([*lines, ""])).encode())
    except OSError:
        return "", lines
    return project.relative(path), lines


def rollback_hint(project: Project, name: str | None) -> str:
    """The hint after an image did not serve the model ``name``: a rollback, unless the previous one did not either."""
    from builder.evidence import requirements

    lock = lock_file.read_lock(project.lock)
    model = lock.models.get(name or "")
    if name and model and (before := requirements.pairing_before(project, {}, lock, name)):
        image = lock.image(before.image)
        start = recorded_starts(project, name).get(image.fingerprint) if image else None
        if start and start.outcome == "replaced":
            same = f"the previous image {before.image} did not serve {name} either"
            return f"{same}; `builder why {words.shell_word(name)}` shows what changed"
        return f"`builder rollback {words.shell_word(name)}` goes back to {before.image}; then run the command again"
    if model and model.previous:
        return f"no earlier image of {name} can replace this one: see the log"
    return f"{name or 'this recipe'} was never paired with another image: see the log"


# The metrics of a running server, from the text that vLLM gives at ``/metrics``. Their names:
# https://docs.vllm.ai/en/stable/design/metrics.html; the format of the text:
# https://prometheus.io/docs/instrumenting/exposition_formats/

# ``NAME{LABEL="…"} VALUE`` or ``NAME VALUE``. A label may contain blanks and braces: the value follows the last one.
_SAMPLE = re.compile(r"^(vllm:[\w:]+)(?:\{.*\})?[ \t]+(\S+)", re.MULTILINE)
_COUNTS = {
    "running": "num_requests_running",
    "waiting": "num_requests_waiting",
    "prompt_tokens": "prompt_tokens_total",
    "generated_tokens": "generation_tokens_total",
    "drafted": "spec_decode_num_draft_tokens_total",
    "accepted": "spec_decode_num_accepted_tokens_total",
    "drafts": "spec_decode_num_drafts_total",
}


@dataclass(frozen=True)
class ServerMetrics:
    """The requests that a server handles now, and its tokens since its start. ``cache_used`` is a share from 0 to 1.
    ``drafted`` counts the tokens that a speculative decoder proposed in ``drafts`` steps, ``accepted`` the tokens that
    the model accepted."""

    running: int
    waiting: int
    prompt_tokens: int
    generated_tokens: int
    drafted: int
    accepted: int
    cache_used: float
    drafts: int = 0

    @property
    def acceptance(self) -> float | None:
        """The accepted share of the drafted tokens, from 0 to 1; None without drafted tokens."""
        return self.accepted / self.drafted if self.drafted else None


def read_metrics(text: str) -> ServerMetrics | None:
    """Reads the metrics from the text: counts are the sums over vLLM's engines, a share is their mean. Returns None if
    the text is not vLLM's."""
    samples: defaultdict[str, list[float]] = defaultdict(list)
    for name, value in _SAMPLE.findall(text):
        number = 0.0
        with suppress(ValueError):
            number = float(value)
        samples[name].append(number if math.isfinite(number) else 0.0)  # the format allows NaN and infinity
    if "vllm:num_requests_running" not in samples:
        return None
    counts = {field: int(sum(samples[f"vllm:{name}"])) for field, name in _COUNTS.items()}
    shares = samples["vllm:kv_cache_usage_perc"] or [0.0]
    return ServerMetrics(**counts, cache_used=sum(shares) / len(shares))


# The starts of this machine: the images that answered for a model, and the last failed start of each server.
#
# Both are kept in the state folder and may be deleted. Then an image that does not start is put back at most once more,
# and `why` knows less.

Outcome = Literal["answered", "replaced"]
_MOST_IMAGES = 200  # for each model; only the latest are kept
_MOST_STARTS = 10  # for each image; its first start is always kept
LEAST_SECONDS = 15 * 60.0
_LONGEST_START = 24 * 3600.0  # a longer one was planted: its limit would never end the wait
_LONGEST_VALUE = 400
_LARGEST_LOG = 64 << 20


@dataclass(frozen=True)
class OptionsInUse:
    """The options and variables that a model is served with, without addresses and secrets. ``revision`` belongs to its
    weights, and ``template`` is the digest of the recipe's chat template; both are None if they are unknown."""

    options: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    recipe: str = ""
    revision: str | None = None
    template: str | None = None


@dataclass(frozen=True)
class StartFacts:
    """The facts under which an image answered, for the first time ``at`` and for the ``last`` time (RFC 3339 UTC).
    ``machines`` and ``nodes`` are in the order of their ranks; the user's own engine is not a node. ``chosen`` are
    vLLM's own choices."""

    at: str
    last: str
    machines: tuple[Machine, ...] = ()
    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    served: OptionsInUse = OptionsInUse()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecordedStart:
    """The outcome of an image. ``seconds`` is its longest start, 0 if it never answered. ``starts`` are the different
    facts under which it answered, the earliest first."""

    outcome: Outcome
    seconds: float
    starts: tuple[StartFacts, ...] = ()


def start_limit(project: Project, lock: Lock, model: str | None) -> float:
    """The seconds within which a candidate of ``model`` must answer: five times the longest recorded start of the
    paired image, but at least 15 minutes. A candidate may compile code that the paired image compiled earlier. An hour
    without a recorded start, because the first start may download the model."""
    paired = lock.models.get(model or "")
    current = lock.image(paired.pairing.image) if paired else None
    start = recorded_starts(project, model or "").get(current.fingerprint) if current else None
    return max(5 * start.seconds, LEAST_SECONDS) if start and 0 < start.seconds < _LONGEST_START else 3600.0


def record_answered(
    project: Project,
    model: str,
    fingerprint: str,
    outcome: Outcome,
    seconds: float = 0,
    facts: StartFacts | None = None,
) -> None:
    """Records the outcome of an image, the longest of its starts in ``seconds``, and the facts. Nothing is recorded if
    the project's state folder cannot be written to."""
    with suppress(OSError):
        project.state.mkdir(parents=True, exist_ok=True)
        with files.locked(project.state / "answered.lock"):  # several servers may answer at once
            recorded = _all_starts(project)
            of_model = recorded.get(model, {})
            before = of_model.pop(fingerprint, None)
            starts = before.starts if before else ()
            longest = round(max(seconds, before.seconds if before else 0.0), 1)
            latest = RecordedStart(outcome, longest, _with(starts, facts) if facts else starts)
            if latest != before:
                kept = [*of_model.items(), (fingerprint, latest)][-_MOST_IMAGES:]
                files.write_state(project.answered, records.text_of({**recorded, model: dict(kept)}, {}).encode())


def recorded_starts(project: Project, model: str) -> Mapping[str, RecordedStart]:
    """The recorded starts of a model by the fingerprint of the image. The image that was recorded last comes last."""
    return _all_starts(project).get(model, {})


def _with(starts: Sequence[StartFacts], facts: StartFacts) -> tuple[StartFacts, ...]:
    """The starts with one more. The new start replaces the last one if only the time and the free memory differ."""
    for before in starts[-1:]:
        pairs = zip_longest(before.machines, facts.machines, fillvalue=Machine())
        parts = {change.part for pair in pairs for change in machine_record.machine_changes(*pair)}
        differs = parts - {"free memory"} or server_log.choice_changes(before.chosen, facts.chosen)
        if not differs and before.served == facts.served:
            return (*starts[:-1], replace(facts, at=before.at))
    kept = (*starts, facts)
    return kept if len(kept) <= _MOST_STARTS else (kept[0], *kept[len(kept) - _MOST_STARTS + 1 :])


def _all_starts(project: Project) -> dict[str, dict[str, RecordedStart]]:
    """The recorded starts, by model and fingerprint; empty if the file is missing or damaged."""
    try:
        return records.read_file(project.answered, dict[str, dict[str, RecordedStart]])
    except (OSError, records.RecordError):
        return {}


# The last failed start of each server: its logs, and the record beside them.


@dataclass(frozen=True)
class FailedStart:
    """The last start of a server that never answered: its image, its nodes, and how it was served."""

    image: str
    nodes: tuple[str, ...]
    served: OptionsInUse


def log_file(project: Project, server: str, node: str = "") -> Path:
    """The file that keeps the log of a container whose start failed."""
    return project.state / "serve-logs" / f"{server}{node and f'@{node}'}.log"


def kept_logs(project: Project, server: str = "", node: str = "") -> list[Path]:
    """The logs of failed starts of one ``server`` on one ``node``, or of all. The latest log comes last."""
    logs = sorted((project.state / "serve-logs").glob("*.log"), key=lambda path: path.stat().st_mtime)
    names = [(path, *path.stem.partition("@")[::2]) for path in logs]
    return [path for path, name, at in names if server in {"", name} and node in {"", at}]


def read_kept_log(path: Path) -> list[str]:
    """The lines of a kept log; empty if it cannot be read."""
    with suppress(OSError):
        return files.read_plain_file(path, _LARGEST_LOG).decode(errors="replace").splitlines()
    return []


def record_failure(workspace: Workspace, selection: ServedImage, labels: Mapping[str, str]) -> None:
    """Records the options of a server that did not answer; ``labels`` are the server's."""
    nodes = tuple(filter(None, labels.get(NODES, "").split(",")))
    with suppress(BuilderError):  # files that changed since the start must not hide why it failed
        failed = FailedStart(selection.name, nodes, options_now(workspace, selection, labels))
        path = log_file(workspace.project, labels[LABEL]).with_suffix(".json")
        files.write_state(path, records.text_of(failed, {}).encode())


def failed_start(project: Project, server: str) -> FailedStart | None:
    """The last failed start of a server; None without a record."""
    with suppress(OSError, records.RecordError):
        return records.read_file(log_file(project, server).with_suffix(".json"), FailedStart)
    return None


# The present facts of a server.


def start_facts(workspace: Workspace, selection: SelectedImage, started: StartedServer) -> StartFacts:
    """The facts of a server that answers now."""
    server, now = started.server, words.now()
    machines = started.machines
    if not machines:
        members = [(member.engine, server.image) for member in server.members]
        machines = tuple(each.result() for each in starting.begin_reading(members, workspace.environment))
    served = options_now(workspace, selection, server.labels)
    return StartFacts(now, now, machines, chosen_by(server), served, server.nodes)


def chosen_by(server: RunningServer) -> dict[str, tuple[str, ...]]:
    """vLLM's own choices in the last start of a server, from the log of its head."""
    head = server.head
    try:
        lines = containers.container_log(head.engine, head.service.id, after=head.service.started)
    except EngineError:  # the container uses another log driver
        return {}
    return server_log.read_choices(line.text for line in lines)


def options_now(workspace: Workspace, selection: ServedImage, labels: Mapping[str, str]) -> OptionsInUse:
    """The options of a server with these labels, or of the recipe alone. Raises FileProblemsError, UsageError."""
    project, environ, used = workspace.project, workspace.environment, selection.recipe
    typed = StartOptions.of_labels(labels)
    lock = lock_file.read_lock(project.lock)
    pairing = standing.pairing_of(lock, selection.image, used.model) if isinstance(selection, SelectedImage) else None
    revision = used.revision or (pairing.revision if pairing else None)
    if used.model and not (revision and hub_cache.is_commit(revision)):
        revision = hub_cache.revision(environ, used.model, revision or hub_cache.MAIN) or revision
    options = standing.options_of("bench", command.render_command(used, typed.overrides, typed.extra).words)
    variables = container.with_variables(
        {name: str(value) for name, value in used.env.items()}, container.typed_variables(typed.container)
    )
    return OptionsInUse(
        options=_without_secrets({name: " ".join(filter(None, values)) for name, values in options.items()}),
        variables=_without_secrets(variables),
        recipe=used.file,
        revision=revision,
        template=standing.served_facts(project, used, typed.overrides, environ).template,
    )


def _without_secrets(values: Mapping[str, str]) -> dict[str, str]:
    def shown(name: str, value: str) -> str:
        is_secret = redaction.looks_secret(name.replace("-", "_"), value)
        return "***" if is_secret else redaction.redacted(value)[:_LONGEST_VALUE]

    return {name: shown(name, value) for name, value in values.items()}
