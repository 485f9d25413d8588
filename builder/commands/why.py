"""The why command: when a model last worked, and everything that differs now.

The states that worked come first, then the present state, the comparison, and the machine alone: other commands check
the machine before they blame an image. Nothing is built, and the network is used only for other nodes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import zip_longest
from typing import TYPE_CHECKING

from builder.base import machine_record, words
from builder.base.errors import BuilderError, ConflictError, EngineError, NothingToDoError
from builder.base.events import Diagnosis, ignore
from builder.base.machine_record import Machine, MachineChange
from builder.base.values import dataclass, replace
from builder.commands import diff
from builder.definitions import configuration, container
from builder.definitions.container import LABEL
from builder.engine import containers, machine
from builder.evidence import run_record
from builder.lab import likely_causes
from builder.lock import lock_file
from builder.moving import machines as nodes_machines
from builder.serving import advice, readiness, running, selection, server_log
from builder.serving.readiness import OptionsInUse, StartFacts

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.lab.likely_causes import FailureKind, LikelyCause
    from builder.lock.model import ImageName, Lock
    from builder.numbers.workspace import Workspace
    from builder.serving.selection import SelectedImage
    from builder.serving.server_log import ChoiceChange


# The states that worked: server starts that answered, and runs of evidence that passed.


@dataclass(frozen=True)
class WorkingState:
    """A state in which a model worked: ``how`` this is known, the image with its fingerprint, and the facts. If the
    options are unknown, ``facts.served`` names no recipe."""

    how: str
    image: ImageName
    fingerprint: str
    facts: StartFacts

    @property
    def when(self) -> str:
        """RFC 3339 UTC."""
        return self.facts.last


def working_states(project: Project, lock: Lock, model: str) -> tuple[WorkingState, ...]:
    """The states that worked, the latest first. Images that are marked bad are left out."""
    return tuple(sorted(_working(project, lock, model), key=lambda state: state.when, reverse=True))


def _working(project: Project, lock: Lock, model: str) -> Iterator[WorkingState]:
    paired = lock.models.get(model)
    pairings = (paired.pairing, *paired.previous) if paired else ()
    marks = {(pairing.image, pairing.status) for pairing in pairings}
    order = {pairing.image: place for place, pairing in enumerate(reversed(pairings))}
    # Several names may have the same fingerprint: the name of the latest pairing is used.
    names = {
        image.fingerprint: name
        for name, image in sorted(lock.numbered(), key=lambda pair: (order.get(pair[0], -1), pair[0]))
        if image.status != "bad" and (name, "bad") not in marks
    }
    for fingerprint, start in readiness.recorded_starts(project, model).items():
        if start.outcome == "answered" and (name := names.get(fingerprint)):
            how = "it answered, and is marked good" if (name, "good") in marks else "it answered"
            yield from (WorkingState(how, name, fingerprint, facts) for facts in start.starts)
    for fingerprint, name in names.items():
        for run in run_record.look_for_runs(project, name).runs:
            subject = run.subject
            # A proof runs no server, and a comparison may serve a candidate with other arguments.
            if run.verdict != "pass" or run.kind in {"prove", "same"} or subject.model != model:
                continue
            machines = (subject.machine, *subject.workers) if subject.machine else ()
            facts = StartFacts(run.started, run.started, machines, run.chosen)
            yield WorkingState(f"{run.kind} {run.name} passed", name, fingerprint, facts)


# The present state.


@dataclass(frozen=True)
class _Now:
    """The present state of a model: its selected image, the machines with the names of their nodes, the cause of a
    failure, and vLLM's choices (``chosen``) and options (``served``) in the last start. ``alone`` are the options that
    the recipe gives without the settings of a start."""

    workspace: Workspace
    lock: Lock
    selected: SelectedImage
    nodes: tuple[str, ...]
    machines: tuple[Machine, ...]
    chosen: Mapping[str, tuple[str, ...]]
    served: OptionsInUse
    alone: OptionsInUse
    failure: str

    def advised(self, facts: advice.NewFacts, selected: SelectedImage | None = None) -> dict[str, Diagnosis]:
        return advised_by_id(self.workspace.project, selected or self.selected, self.machines, facts)


_NODE_SECONDS = 5.0
_RECENT_LINES = 2000


def _read_now(workspace: Workspace, lock: Lock, selected: SelectedImage, last: WorkingState) -> _Now:
    """Reads the state of the server, or of the start that failed after the ``last`` working state."""
    server = _server(workspace, selected.recipe.file)
    service = server.head.service if server else None
    lines: list[str] = []
    failed = None
    if server is None:
        lines, failed = _last_failure(workspace.project, selected, last.when)
        nodes = _configured(workspace.project, (failed or last.facts).nodes)
    else:
        with suppress(EngineError):
            log = containers.container_log(server.head.engine, server.head.service.id, tail=_RECENT_LINES)
            lines = [line.text for line in log]
        nodes = _nodes(server)
    names, machines = _machines(workspace, nodes)
    if service and service.is_up:  # the server itself uses the memory
        machines = tuple(replace(each, available=0) for each in machines)
    goes_on = service is not None and service.is_up and not service.restarts
    labels = server.labels if server else {}
    return _Now(
        workspace,
        lock,
        selected,
        nodes=names,
        machines=machines,
        chosen=server_log.read_choices(lines),
        served=failed.served if failed else readiness.options_now(workspace, selected, labels),
        alone=readiness.options_now(workspace, selected, {}),
        failure=server_log.trouble(lines) if goes_on else server_log.crash_cause(lines),
    )


def _server(workspace: Workspace, text: str) -> running.RunningServer | None:
    """The server of a model or recipe, or with this name. None if it is not found, or its engine does not answer."""
    with suppress(BuilderError):
        return running.pick(workspace.project, running.find_all(workspace), text)
    return None


def _nodes(server: running.RunningServer) -> tuple[str, ...]:
    return tuple(filter(None, server.labels.get(running.NODES, "").split(",")))


def _configured(project: Project, nodes: Sequence[str]) -> Sequence[str]:
    """The nodes, or an empty tuple if one of them is not in builder.yaml."""
    configured = {node.name for node in configuration.load_configuration(project).nodes}
    return nodes if configured.issuperset(nodes) else ()


def _machines(workspace: Workspace, nodes: Sequence[str]) -> tuple[tuple[str, ...], tuple[Machine, ...]]:
    """The names of the nodes, and their machines. The user's own machine has an empty name. The record of a node that
    does not answer in time is empty."""
    if not nodes:
        return ("",), (machine.read_machine(workspace.engine, workspace.environment),)
    environ = workspace.environment
    engines = nodes_machines.engines(workspace.project, environ, nodes)
    answers = nodes_machines.ask_machines(
        engines, lambda _, engine: machine.read_machine(engine, environ), _NODE_SECONDS, ignore
    )
    machines = {node: each if isinstance(each, Machine) else Machine() for node, each in answers.items()}
    return tuple(machines), tuple(machines.values())


def _last_failure(
    project: Project, selected: SelectedImage, since: str
) -> tuple[list[str], readiness.FailedStart | None]:
    """The log and the record of the last failed start, if it was after ``since``."""
    name = container.service_name(selected.recipe.name)
    logs = readiness.kept_logs(project, name)
    if not logs or words.timestamp_of(datetime.fromtimestamp(logs[-1].stat().st_mtime, UTC)) < since:
        return [], None
    return readiness.read_kept_log(logs[-1]), readiness.failed_start(project, name)


# The comparison.


@dataclass(frozen=True)
class WhyReport:
    """The comparison of a ``model`` with ``since``, the last state in which it worked. ``since`` is None if no such
    state is known, or nothing differs.

    ``as_now`` is the last time at which the model worked in exactly the present state; empty if it never did.
    ``causes`` are ranked. ``chosen`` are vLLM's choices that differ, ``unknown`` says what could not be compared,
    ``advisories`` apply to the present state.
    """

    model: str
    image: ImageName
    failure: str
    since: WorkingState | None
    as_now: str = ""
    causes: tuple[LikelyCause, ...] = ()
    chosen: tuple[ChoiceChange, ...] = ()
    unknown: tuple[str, ...] = ()
    advisories: tuple[str, ...] = ()


def explain_change(workspace: Workspace, text: str) -> WhyReport:
    """Compares a model, or the model of a recipe or running server, with the last different state in which it worked.
    Raises NothingToDoError if no state is recorded in which it worked, and the errors of selecting its image."""
    lock = lock_file.read_project_lock(workspace.project)
    if text not in lock.models and (server := _server(workspace, text)):
        text = server.labels.get(f"{LABEL}.recipe") or text
    selected = selection.select_image(workspace.project, lock, text)
    model = selected.recipe.model or text
    states = working_states(workspace.project, lock, model)
    if not states:
        raise NothingToDoError(
            f"no successful start or run of {model} is recorded",
            hint="`builder run` and `builder bench` record the machine and the image for the next comparison; "
            "`builder doctor` shows known faults",
        )
    now = _read_now(workspace, lock, selected, states[0])
    advisories = tuple(present_advisories(workspace.project, selected, now.machines))
    as_now, alike = "", None
    for state in states:
        report = replace(_compared(now, model, state, states), as_now=as_now, advisories=advisories)
        if report.causes or report.chosen:
            return report
        alike = alike or report
        as_now = as_now or ("" if report.unknown else state.when)
    if alike and not as_now:  # no known value differs
        return alike
    return WhyReport(model, selected.image, now.failure, None, as_now, advisories=advisories)


def present_advisories(project: Project, selected: SelectedImage, machines: Sequence[Machine]) -> Iterator[str]:
    """The advisories that apply to the present state, each with its remedy."""
    facts = advice.machine_facts(machines[0]) if machines else {}
    for each in advised_by_id(project, selected, machines, facts).values():
        yield f"{each.message} → {each.remedy}"


def advised_by_id(
    project: Project, selected: SelectedImage, machines: Sequence[Machine], facts: advice.NewFacts
) -> dict[str, Diagnosis]:
    """The advisories, by id, for an image on machines with these ``facts``. A machine with a link counts as two."""
    count = max(len(machines), 1 + any(each.links for each in machines))
    nodes = configuration.load_configuration(project).nodes[:count] if count > 1 else ()
    diagnoses = advice.of_selection(project, selected, nodes, {**facts, "nodes": count})
    return {each.message.partition(":")[0]: each for each in diagnoses}


def _compared(now: _Now, model: str, state: WorkingState, states: Sequence[WorkingState]) -> WhyReport:
    before = state.facts
    kind = likely_causes.failure_kind(now.failure)
    chosen = server_log.choice_changes(before.chosen, now.chosen)
    changes = tuple(_machine_changes(before.machines, now.machines, now.nodes))
    worked = [each for other in states for each in other.facts.machines]
    faults = _machine_faults(now, before.machines)
    causes = [*likely_causes.machine_causes(changes, kind, faults, len(now.machines), worked)]
    unknown = [] if before.machines else ["the machine: it was not recorded then"]
    fingerprint = now.selected.record.fingerprint
    if state.fingerprint != fingerprint:
        has_worked = any(other.fingerprint == fingerprint for other in states)
        causes += _image_causes(now, model, state.image, kind, chosen, has_worked=has_worked)
    if before.served.recipe:
        causes += likely_causes.served_causes(before.served, now.served, now.alone, model, kind, now.failure)
    else:
        unknown.append("the recipe's options: they were not recorded then")
    ranked = likely_causes.ranked(causes)
    return WhyReport(model, now.selected.image, now.failure, state, "", ranked, chosen, tuple(unknown))


def _machine_changes(
    before: Sequence[Machine], after: Sequence[Machine], nodes: Sequence[str]
) -> Iterator[tuple[str, MachineChange]]:
    for name, old, new in zip_longest(nodes, before, after):
        if old is not None and new is not None:
            yield from ((name or "", change) for change in machine_record.machine_changes(old, new))


def _machine_faults(now: _Now, machines: Sequence[Machine]) -> dict[str, str]:
    """The known faults of the present kernel and driver that the earlier ``machines`` did not have."""
    broken: dict[str, str] = {}
    for old, new in zip(machines, now.machines, strict=False):
        before = advice.machine_facts(old)
        earlier = now.advised(before)
        for part, value in (("kernel", new.kernel), ("driver", new.driver)):
            advised = now.advised({**before, part: value})
            if new_faults := [fault.message for name, fault in advised.items() if name not in earlier]:
                broken[part] = new_faults[0]
    return broken


def _image_causes(
    now: _Now, model: str, image: ImageName, kind: FailureKind, chosen: Sequence[ChoiceChange], *, has_worked: bool
) -> Iterator[LikelyCause]:
    """One cause for the image, and one cause for each changed mod."""
    paired = now.lock.models.get(model)
    is_previous = paired is not None and paired.previous and paired.previous[0].image == image
    undo = f"`builder rollback {words.shell_word(model)}{'' if is_previous else f' --to {image.number}'}`"
    earlier = now.advised({}, selection.with_number(now.lock, now.selected.recipe, image))
    faults = [fault.message for name, fault in now.advised({}).items() if name not in earlier]
    before, after = str(image), str(now.selected.image)
    difference = diff.diff_images(now.workspace.project, before, after, None, ignore)
    details = [(12, f"vLLM chooses by itself: {change}") for change in chosen]
    for source in difference.sources:
        change = source.change
        old, new = (version.version if version else "not there" for version in (change.before, change.after))
        details.append((10 if change.name == "vllm" else 8, f"{change.name}: {old} → {new}"))
        if source.gained:
            titles = "; ".join(f"{commit.commit[:9]} {commit.title}" for commit in source.gained.commits[:3])
            details.append((9, f"{words.counted(source.gained.total, 'upstream commit')}, the newest: {titles}"))
    for package in difference.changes.packages:
        text = f"{package.name}: {package.before or 'not there'} → {package.after or 'not there'}"
        details.append((likely_causes.package_weight(package.name, now.failure), text))
    if base := difference.changes.base:
        details.append((5, f"base: {base.before} → {base.after}"))
    details += [(6, f"{each.patch} of {each.source} {each.kind}") for each in difference.changes.patches]
    details += [(4, f"{file.path} {file.kind}") for file in difference.dockerfiles]
    if details or faults or not difference.mods:
        yield likely_causes.image_cause(before, after, details, undo, kind, faults, has_worked=has_worked)
    for mod in difference.mods:
        paths = [file.path for file in mod.files]
        yield likely_causes.mod_cause(f"mod {mod.name} {mod.kind}", paths, undo, kind)


# The machine alone: an image is blamed only if the machine is unchanged since the good image worked.

# The parts that decide if and how a server runs. The other parts change with any system update.
_DECISIVE = frozenset({"kernel", "driver", "parameters", "CMA", "links", "GPU", "memory"})
# The firmware of the board, the GPU and the links, as named by the kernel and fwupd.
_VITAL = re.compile(
    r"BIOS|embedded controller|GPU Firmware|Video BIOS|RoCE .*"
    r"|fwupd .*(?:System|Embedded|UEFI Device|SoC|GPU|ConnectX|Power|PD Controller).*"
)


def machine_since(workspace: Workspace, name: ImageName, model: str) -> tuple[str, ...]:
    """The decisive changes of the machines since the image ``name`` worked for a model, one line each. Empty if nothing
    decisive changed, or no machine is recorded."""
    lock = lock_file.read_project_lock(workspace.project)
    record = lock.image(name)
    states = (
        state
        for state in working_states(workspace.project, lock, model)
        if record and state.fingerprint == record.fingerprint and state.facts.machines
    )
    if (state := next(states, None)) is None:
        return ()
    facts = state.facts
    nodes: Sequence[str] = () if len(facts.machines) == 1 else facts.nodes
    if len(facts.machines) > 1 and not nodes:
        server = _server(workspace, model)
        nodes = _configured(workspace.project, _nodes(server) if server else ())
    names, machines = _machines(workspace, nodes)
    lines = (
        f"{change}{f' on {node}' if node else ''}, since {facts.last[:10]}"
        for node, change in _machine_changes(facts.machines, machines, names)
        if change.part in _DECISIVE or (change.part == "firmware" and _VITAL.fullmatch(change.name))
    )
    return tuple(dict.fromkeys(lines))


def require_same_machine(name: ImageName, changes: Sequence[str], subject: str) -> None:
    """Raises ConflictError if the machine has ``changes`` since the image ``name`` worked: the machine may be the
    cause, not another image. ``subject`` is the name that the user typed."""
    if changes:
        raise ConflictError(
            "\n".join([f"the machine has changed since {name} worked, so the image may not be the cause", *changes]),
            hint=f"`builder why {shlex.quote(subject)}` shows how to undo the change. If {name} still works, start a"
            " server from it: builder then records that it works here. To continue anyway: `--machine-differs`",
        )
