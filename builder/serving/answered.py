"""The images that have answered for a model on this machine: how long they took, and what was true then.

The record is kept in the state folder, by model and fingerprint, and may be deleted: an image that does not start is
then put back at most once more, and `why` knows less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal

from builder.base import files, hub_cache, machine_record, records, redaction, words
from builder.base.errors import EngineError
from builder.base.machine_record import Machine
from builder.definitions import command
from builder.engine import containers
from builder.evidence import standing
from builder.lock import lock_file
from builder.serving import server_log, starting
from builder.serving.running import StartOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.base.project import Project
    from builder.definitions.recipe import Recipe
    from builder.lock.model import Lock
    from builder.numbers.workspace import Workspace
    from builder.serving.running import RunningServer
    from builder.serving.selection import SelectedImage
    from builder.serving.starting import StartedServer

Outcome = Literal["answered", "replaced"]
_MOST_IMAGES = 200  # of a model; the latest are kept
_MOST_STARTS = 10  # of an image; its first one always is kept
# A candidate compiles what the current image has compiled before, so that its start may take several times as long.
_TIMES = 5
LEAST_SECONDS = 15 * 60.0
_LONGEST_START = 24 * 3600.0
# A first start may download the model and compile all of it.
_SECONDS_WITHOUT_A_RECORD = 60 * 60.0
_LONGEST_VALUE = 400


@dataclass(frozen=True)
class StartLimit:
    """The ``seconds`` in which a candidate has to answer, and where that number comes from."""

    seconds: float
    reason: str


@dataclass(frozen=True)
class OptionsInUse:
    """The options and variables that a model is served with, without its address and without secrets; the revision of
    its weights, and the digest of the chat template that the recipe brings. None where it is not known."""

    options: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    recipe: str = ""
    revision: str | None = None
    template: str | None = None


@dataclass(frozen=True)
class StartFacts:
    """The facts of an image that answered, for the first time ``at`` and for the ``last`` time so (RFC 3339 UTC): the
    machines in the order of their ranks with the names of their nodes, none on the user's own engine, what vLLM chose
    by itself, and how it was served."""

    at: str
    last: str
    machines: tuple[Machine, ...] = ()
    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    served: OptionsInUse = OptionsInUse()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecordedStart:
    """The outcome of an image, and the longest of the ``seconds`` that it took to answer; 0 where it did not. Its
    ``starts`` are the different facts under which it answered, the earliest first."""

    outcome: Outcome
    seconds: float
    starts: tuple[StartFacts, ...] = ()


def outcomes(project: Project, model: str) -> Mapping[str, str]:
    """The outcome of each image that was started for a model, by its fingerprint."""
    return {fingerprint: start.outcome for fingerprint, start in recorded_starts(project, model).items()}


def start_limit(project: Project, lock: Lock, model: str | None) -> StartLimit:
    """The limit for a candidate of ``model``: five times the longest recorded start of the image that the model is
    paired with, at least 15 minutes; an hour where no start of that image is recorded."""
    paired = lock.models.get(model or "")
    current = lock.image(paired.pairing.image) if paired else None
    start = recorded_starts(project, model or "").get(current.fingerprint) if current else None
    seconds = start.seconds if start else 0.0
    # The file may hold anything, and a wait with a limit that is no time has no end.
    if paired is None or not 0 < seconds < _LONGEST_START:
        return StartLimit(_SECONDS_WITHOUT_A_RECORD, "no start of the current image is recorded")
    if _TIMES * seconds < LEAST_SECONDS:
        return StartLimit(LEAST_SECONDS, f"{paired.pairing.image} took {words.duration_text(seconds)}")
    return StartLimit(_TIMES * seconds, f"{_TIMES} times the {words.duration_text(seconds)} of {paired.pairing.image}")


def record_answered(
    project: Project,
    model: str,
    fingerprint: str,
    outcome: Outcome,
    seconds: float = 0.0,
    facts: StartFacts | None = None,
) -> None:
    """Records the outcome of an image, the longest of the ``seconds`` that it took to answer, and what was true."""
    recorded = _starts(project)
    of_model = recorded.get(model, {})
    before = of_model.pop(fingerprint, None)
    starts = before.starts if before else ()
    longest = round(max(seconds, before.seconds if before else 0.0), 1)
    latest = RecordedStart(outcome, longest, _with(starts, facts) if facts else starts)
    if latest != before:
        kept = [*of_model.items(), (fingerprint, latest)][-_MOST_IMAGES:]
        files.write_state(project.answered, records.text_of({**recorded, model: dict(kept)}, {}).encode())


def recorded_starts(project: Project, model: str) -> Mapping[str, RecordedStart]:
    """The recorded starts of a model by the fingerprint of the image, that of the latest new facts last."""
    return _starts(project).get(model, {})


def _with(starts: Sequence[StartFacts], facts: StartFacts) -> tuple[StartFacts, ...]:
    """The starts with one more, which becomes one with the last where nothing differs."""
    if starts and is_same_start(starts[-1], facts):
        return (*starts[:-1], replace(facts, at=starts[-1].at))
    kept = (*starts, facts)
    return kept if len(kept) <= _MOST_STARTS else (kept[0], *kept[len(kept) - _MOST_STARTS + 1 :])


def is_same_start(before: StartFacts, after: StartFacts) -> bool:
    """True if nothing differs but the time and the memory that was free."""
    pairs = zip_longest(before.machines, after.machines, fillvalue=Machine())
    changes = [change for pair in pairs for change in machine_record.machine_changes(*pair)]
    return (
        all(change.part == "free memory" for change in changes)
        and not server_log.choice_changes(before.chosen, after.chosen)
        and before.served == after.served
    )


def _starts(project: Project) -> dict[str, dict[str, RecordedStart]]:
    """The recorded starts, by model and fingerprint; none where the file is missing or damaged."""
    try:
        return records.read_file(project.answered, dict[str, dict[str, RecordedStart]])
    except (OSError, records.RecordError):
        return {}


def served_options(
    project: Project,
    used: Recipe,
    overrides: Mapping[str, str],
    extra: Sequence[str],
    environ: Mapping[str, str],
    revision: str | None,
) -> OptionsInUse:
    """The options of a recipe with these settings. Raises FileProblemsError, UsageError."""
    rendered = command.render_command(used, overrides, extra).words
    options = {
        name: " ".join(value for value in values if value is not None)
        for name, values in standing.options_of("bench", rendered).items()
    }
    variables = {name: str(value) for name, value in used.env.items()}
    return OptionsInUse(
        options=_without_secrets(options),
        variables=_without_secrets(variables),
        recipe=used.file,
        revision=revision,
        template=standing.served_facts(project, used, overrides, environ).template,
    )


def start_facts(workspace: Workspace, selection: SelectedImage, started: StartedServer) -> StartFacts:
    """The facts of a server that answers now."""
    server, environ = started.server, workspace.environment
    machines = started.machines
    if not machines:
        members = [(member.engine.endpoint, server.image) for member in server.members]
        machines = tuple(each.result() for each in starting.begin_reading(members, environ))
    now = words.now()
    served = options_now(workspace, selection, server.labels)
    return StartFacts(
        now, now, machines, chosen_by(server), served, tuple(filter(None, (m.node for m in server.members)))
    )


def chosen_by(server: RunningServer) -> dict[str, tuple[str, ...]]:
    """The choices of vLLM in the last start of a server, by the log of its head."""
    head = server.head
    try:
        lines = containers.container_log(head.engine.endpoint, head.service.id, after=head.service.started)
    except EngineError:  # its log has another driver
        return {}
    return server_log.read_choices(line.text for line in lines)


def options_now(workspace: Workspace, selection: SelectedImage, labels: Mapping[str, str]) -> OptionsInUse:
    """The options of a server with these labels, or of a new one where there are none."""
    project, environ, used = workspace.project, workspace.environment, selection.recipe
    asked_for = StartOptions.of_labels(labels)
    lock = lock_file.read_lock(project.lock)
    pairing = standing.pairing_of(lock, selection.image, used.model)
    revision = used.revision or (pairing.revision if pairing else None)
    if used.model and not (revision and hub_cache.is_commit(revision)):
        revision = hub_cache.revision(environ, used.model, revision or hub_cache.MAIN) or revision
    return served_options(project, used, asked_for.overrides, asked_for.extra, environ, revision)


def _without_secrets(values: Mapping[str, str]) -> dict[str, str]:
    return {name: _shown(name, value) for name, value in values.items()}


def _shown(name: str, value: str) -> str:
    is_secret = redaction.looks_secret(name.replace("-", "_"), value)
    return "***" if is_secret else redaction.redacted(value)[:_LONGEST_VALUE]
