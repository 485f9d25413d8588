"""The starts of this machine: the images that answered for a model, and the last start of each server that failed.

Both are kept in the state folder and may be deleted. An image that does not start is then put back at most once more,
and `why` knows less.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal

from builder.base import files, hub_cache, machine_record, records, redaction, words
from builder.base.errors import BuilderError, EngineError
from builder.base.machine_record import Machine
from builder.definitions import command, container
from builder.definitions.container import LABEL
from builder.engine import containers
from builder.evidence import standing
from builder.lock import lock_file
from builder.serving import server_log, starting
from builder.serving.running import NODES, StartOptions
from builder.serving.selection import SelectedImage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from builder.base.project import Project
    from builder.lock.model import Lock
    from builder.numbers.workspace import Workspace
    from builder.serving.running import RunningServer
    from builder.serving.selection import ServedImage
    from builder.serving.starting import StartedServer

Outcome = Literal["answered", "replaced"]
_MOST_IMAGES = 200  # of a model; the latest are kept
_MOST_STARTS = 10  # of an image; its first one always is kept
LEAST_SECONDS = 15 * 60.0
_LONGEST_START = 24 * 3600.0
_LONGEST_VALUE = 400
_LARGEST_LOG = 64 << 20


@dataclass(frozen=True)
class OptionsInUse:
    """The options and variables that a model is served with, without addresses and secrets, the revision of its weights
    and the digest of the recipe's chat template. ``revision`` and ``template`` are None if they are unknown."""

    options: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    recipe: str = ""
    revision: str | None = None
    template: str | None = None


@dataclass(frozen=True)
class StartFacts:
    """The facts under which an image answered, for the first time ``at`` and for the ``last`` time (RFC 3339 UTC).

    ``machines`` and ``nodes`` are in the order of their ranks; the user's own engine has no node. ``chosen`` is what
    vLLM chose by itself."""

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
    """The seconds in which a candidate of ``model`` has to answer: five times the longest recorded start of the paired
    image, since a candidate may compile what that image has compiled before, and at least 15 minutes. An hour if no
    start is recorded, as the first one may download the model."""
    paired = lock.models.get(model or "")
    current = lock.image(paired.pairing.image) if paired else None
    start = recorded_starts(project, model or "").get(current.fingerprint) if current else None
    # The file may hold anything: a limit that is not a number would never end the wait.
    if start is None or not 0 < start.seconds < _LONGEST_START:
        return 3600.0
    return max(5 * start.seconds, LEAST_SECONDS)


def record_answered(
    project: Project,
    model: str,
    fingerprint: str,
    outcome: Outcome,
    seconds: float = 0,
    facts: StartFacts | None = None,
) -> None:
    """Records the outcome of an image, the longest of the ``seconds`` that it took to answer, and the facts."""
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
    """The recorded starts of a model by the fingerprint of the image; the image that was recorded last comes last."""
    return _all_starts(project).get(model, {})


def _with(starts: Sequence[StartFacts], facts: StartFacts) -> tuple[StartFacts, ...]:
    """The starts with one more. It replaces the last one if only the time and the free memory differ."""
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


# The last start of each server that failed: its logs, and the record beside them.


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
    """Records how the server with these labels was served, which did not answer."""
    nodes = tuple(filter(None, labels.get(NODES, "").split(",")))
    with suppress(BuilderError):  # files that changed since then do not hide why it failed
        failed = FailedStart(selection.name, nodes, options_now(workspace, selection, labels))
        path = log_file(workspace.project, labels[LABEL]).with_suffix(".json")
        files.write_state(path, records.text_of(failed, {}).encode())


def failed_start(project: Project, server: str) -> FailedStart | None:
    """The last start of a server that failed; None if none is recorded."""
    with suppress(OSError, records.RecordError):
        return records.read_file(log_file(project, server).with_suffix(".json"), FailedStart)
    return None


# What is true of a server now.


def start_facts(workspace: Workspace, selection: SelectedImage, started: StartedServer) -> StartFacts:
    """The facts of a server that answers now."""
    server, now = started.server, words.now()
    machines = started.machines
    if not machines:
        members = [(member.engine.endpoint, server.image) for member in server.members]
        machines = tuple(each.result() for each in starting.begin_reading(members, workspace.environment))
    served = options_now(workspace, selection, server.labels)
    return StartFacts(now, now, machines, chosen_by(server), served, server.nodes)


def chosen_by(server: RunningServer) -> dict[str, tuple[str, ...]]:
    """The choices of vLLM in the last start of a server, by the log of its head."""
    head = server.head
    try:
        lines = containers.container_log(head.engine.endpoint, head.service.id, after=head.service.started)
    except EngineError:  # its log has another driver
        return {}
    return server_log.read_choices(line.text for line in lines)


def options_now(workspace: Workspace, selection: ServedImage, labels: Mapping[str, str]) -> OptionsInUse:
    """The options of a server with these labels, or of the recipe alone without labels. Raises FileProblemsError,
    UsageError."""
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
