"""The why command: since when a model worked last, and everything that is not as it was then.

The states that are known to have worked come first, then the state of now, the comparison, and the machine alone, which
other commands ask about before they blame an image. Nothing is built, and no network is used but that to other nodes.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from builder.base import files, machine_record, words
from builder.base.errors import BuilderError, EngineError, NothingToDoError
from builder.base.events import ignore
from builder.base.machine_record import Machine
from builder.commands import diff
from builder.definitions import configuration
from builder.definitions.container import LABEL
from builder.engine import containers, machine
from builder.evidence import store
from builder.lab import likely_causes
from builder.lab.likely_causes import KnownFaults
from builder.lock import lock_file
from builder.lock.model import ImageName
from builder.moving import machines as nodes_machines
from builder.serving import advice, answered, running, selection, server_log

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.base.events import Diagnosis
    from builder.base.machine_record import MachineChange
    from builder.base.project import Project
    from builder.engine.client import Endpoint
    from builder.engine.containers import Service
    from builder.lab.likely_causes import LikelyCause
    from builder.lock.model import Lock, Version
    from builder.numbers.workspace import Workspace
    from builder.serving.advice import NewFacts
    from builder.serving.answered import OptionsInUse
    from builder.serving.selection import SelectedImage
    from builder.serving.server_log import ChoiceChange


# The states that are known to have worked: starts that answered, and runs of evidence that passed.


@dataclass(frozen=True)
class WorkingState:
    """A state in which a model worked: ``when`` for the last time (RFC 3339 UTC), ``how`` that is known, the image with
    its fingerprint, and what is known of the machines, of vLLM's choices and of the options then."""

    when: str
    how: str
    image: ImageName
    fingerprint: str
    machines: tuple[Machine, ...] = ()
    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    served: OptionsInUse | None = None
    nodes: tuple[str, ...] = ()


def working_states(project: Project, lock: Lock, model: str) -> tuple[WorkingState, ...]:
    """The states that are known to have worked, the latest first. An image that is marked bad has none."""
    return tuple(sorted(_working(project, lock, model), key=lambda state: state.when, reverse=True))


def _working(project: Project, lock: Lock, model: str) -> Iterator[WorkingState]:
    names = _images(lock, model)
    paired = lock.models.get(model)
    pairings = (paired.pairing, *paired.previous) if paired else ()
    good = {pairing.image for pairing in pairings if pairing.status == "good"}
    for fingerprint, start in answered.recorded_starts(project, model).items():
        if start.outcome == "answered" and fingerprint in names:
            for facts in start.starts:
                name = names[fingerprint]
                how = "it answered, and is marked good" if name in good else "it answered"
                state = WorkingState(facts.last, how, name, fingerprint, facts.machines, facts.chosen, facts.served)
                yield replace(state, nodes=facts.nodes)
    for fingerprint, name in names.items():
        for run in store.look_for_runs(project, name).runs:
            subject = run.subject
            if run.foreign or run.verdict != "pass" or run.kind == "prove" or subject.model != model:
                continue
            state = WorkingState(run.started, f"{run.kind} {run.name} passed", name, fingerprint, chosen=run.chosen)
            yield replace(state, machines=(subject.machine, *subject.workers) if subject.machine else ())


def _images(lock: Lock, model: str) -> dict[str, ImageName]:
    """The images of a model that are not marked bad, by fingerprint: those that it was paired with, else all."""
    paired = lock.models.get(model)
    pairings = (paired.pairing, *paired.previous) if paired else ()
    bad = {pairing.image for pairing in pairings if pairing.status == "bad"}
    every = [
        (ImageName(repository, number), image)
        for repository, record in lock.images.items()
        for number, image in record.numbers.items()
    ]
    usable = [(name, image) for name, image in every if name not in bad and image.status != "bad"]
    order = {pairing.image: place for place, pairing in enumerate(reversed(pairings))}
    return {image.fingerprint: name for name, image in sorted(usable, key=lambda pair: order.get(pair[0], -1))}


# The state of now.


@dataclass(frozen=True)
class PresentState:
    """The state of now: the image, the machines with the names of their nodes, vLLM's choices in the last start, the
    options, and what the last start or the server says of its end; empty where it says nothing."""

    image: ImageName
    fingerprint: str
    nodes: tuple[str, ...]
    machines: tuple[Machine, ...]
    chosen: Mapping[str, tuple[str, ...]]
    served: OptionsInUse
    failure: str


_NODE_SECONDS = 5.0
_RECENT_LINES = 2000


def present_state(workspace: Workspace, selected: SelectedImage, last: WorkingState | None = None) -> PresentState:
    """Reads the state of now. A log that was kept before the ``last`` working state tells nothing of it. A start that
    failed leaves no container: the nodes are then those of that state."""
    service = _service(workspace, selected)
    labels = service.labels if service else {}
    nodes = tuple(filter(None, labels.get(running.NODES, "").split(",")))
    if not service and last:
        known_nodes = {node.name for node in configuration.load_configuration(workspace.project).nodes}
        nodes = last.nodes if known_nodes.issuperset(last.nodes) else ()
    names, machines = _machines(workspace, nodes)
    lines = _lines(workspace, selected, service, last.when if last else "")
    goes_on = service is not None and service.is_up and not service.restarts
    return PresentState(
        image=selected.image,
        fingerprint=selected.record.fingerprint,
        nodes=names,
        machines=machines,
        chosen=server_log.read_choices(lines),
        served=answered.options_now(workspace, selected, labels),
        failure=server_log.trouble(lines) if goes_on else server_log.crash_cause(lines),
    )


def _service(workspace: Workspace, selected: SelectedImage) -> Service | None:
    """The container of the model's own server on this engine; None where there is none, or no engine answers."""
    with suppress(EngineError):
        wanted = (str(workspace.project.root), selected.recipe.file)
        for service in containers.labelled(workspace.engine, LABEL, 2):
            if (service.labels.get(running.PROJECT), service.labels.get(f"{LABEL}.recipe")) == wanted:
                return service
    return None


def _machines(workspace: Workspace, nodes: Sequence[str]) -> tuple[tuple[str, ...], tuple[Machine, ...]]:
    """The machines now, by the names of their nodes, which are empty for the only one. A node that does not answer at
    once is left out."""
    if not nodes:
        return ("",), (machine.read_machine(workspace.engine, workspace.environment),)
    engines = nodes_machines.engines(workspace.project, workspace.environment, nodes)

    def read(_node: str, engine: Endpoint) -> Machine:
        return machine.read_machine(engine, workspace.environment)

    answers = nodes_machines.ask_machines(engines, read, _NODE_SECONDS, ignore)
    machines = {node: each if isinstance(each, Machine) else Machine() for node, each in answers.items()}
    return tuple(machines), tuple(machines.values())


def _lines(workspace: Workspace, selected: SelectedImage, service: Service | None, since: str) -> list[str]:
    """The lines of the last start: from the container that is there, else from the log that a failed start left."""
    if service:
        with suppress(EngineError):
            log = containers.container_log(workspace.engine, service.id, tail=_RECENT_LINES)
            return [line.text for line in log]
    logs = (workspace.project.state / "serve-logs").glob(f"{selected.recipe.name}*.log")
    kept = sorted(logs, key=lambda path: path.stat().st_mtime)
    if not kept:
        return []
    from datetime import UTC, datetime

    written = words.timestamp_of(datetime.fromtimestamp(kept[-1].stat().st_mtime, UTC))
    if written < since:
        return []
    with suppress(OSError):
        return files.read_plain_file(kept[-1], 64 << 20).decode(errors="replace").splitlines()
    return []


# The comparison.


@dataclass(frozen=True)
class WhyReport:
    """The answer: when the ``model`` worked last as ``since``, None where nothing is known.

    ``as_now`` is when it last worked exactly as it is now, empty if it never did. ``causes`` are ranked, ``chosen`` are
    vLLM's choices that differ, ``unknown`` says what could not be compared. ``advisories`` are those that match what is
    there now, a line each.
    """

    model: str
    image: ImageName
    failure: str
    since: WorkingState | None
    as_now: str
    causes: tuple[LikelyCause, ...]
    chosen: tuple[ChoiceChange, ...]
    unknown: tuple[str, ...]
    advisories: tuple[str, ...] = ()


def explain_change(workspace: Workspace, text: str) -> WhyReport:
    """Compares a model, or the model of a recipe, with the last state in which it worked and that differs from now.
    Without such a state, the causes are the known faults of what is there now. Raises NothingToDoError where nothing is
    recorded and no fault is known, and what selecting its image does."""
    lock = lock_file.read_project_lock(workspace.project)
    selected = selection.select_image(workspace.project, lock, text)
    model = selected.recipe.model or text
    states = working_states(workspace.project, lock, model)
    now = present_state(workspace, selected, states[0] if states else None)
    if not states:
        if causes := tuple(_faults_now(workspace.project, selected, now)):
            return WhyReport(model, now.image, now.failure, None, "", causes, (), ())
        raise NothingToDoError(
            f"no start of {model} that answered, and no run that passed, is recorded",
            hint="`builder run` and `builder bench` record the machine and the image; the next change can be compared",
        )
    advisories = tuple(present_advisories(workspace.project, selected, now.machines))
    as_now = ""
    for state in states:
        report = _compared(workspace, lock, selected, model, state, now, states)
        if report.causes or report.chosen:
            return replace(report, as_now=as_now, advisories=advisories)
        as_now = as_now or state.when
    return WhyReport(model, now.image, now.failure, None, as_now, (), (), (), advisories)


def present_advisories(project: Project, selected: SelectedImage, machines: Sequence[Machine]) -> Iterator[str]:
    """The advisories that apply now, a line each with what to do."""
    facts = advice.of_record(machines[0]) if machines else {}
    for each in advised_by_id(project, selected, machines, facts).values():
        yield f"{each.message} → {each.remedy}"


def _faults_now(project: Project, selected: SelectedImage, now: PresentState) -> Iterator[LikelyCause]:
    """The advisories on the machines and on the image, as causes."""
    of_image = advised_by_id(project, selected, now.machines, {})
    for each in now.machines:
        advised = advised_by_id(project, selected, now.machines, advice.of_record(each))
        yield from (
            likely_causes.fault_cause("machine", fault) for name, fault in advised.items() if name not in of_image
        )
    yield from (likely_causes.fault_cause("image", fault) for fault in of_image.values())


def advised_by_id(
    project: Project, selected: SelectedImage, machines: Sequence[Machine], facts: NewFacts
) -> dict[str, Diagnosis]:
    """The advisories that apply to an image on these machines, of which the ``facts`` alone count, by id. A machine
    with a link to others serves with them."""
    count = max(len(machines), 1 + any(each.links for each in machines))
    nodes = configuration.load_configuration(project).nodes[:count] if count > 1 else ()
    diagnoses = advice.of_selection(project, selected, nodes, {**facts, "nodes": count})
    return {each.message.partition(":")[0]: each for each in diagnoses}


def _compared(
    workspace: Workspace,
    lock: Lock,
    selected: SelectedImage,
    model: str,
    state: WorkingState,
    now: PresentState,
    states: Sequence[WorkingState],
) -> WhyReport:
    kind = likely_causes.failure_kind(now.failure)
    causes: list[LikelyCause] = []
    unknown: list[str] = []
    chosen = server_log.choice_changes(state.chosen, now.chosen)
    changes = tuple(_machine_changes(state.machines, now.machines, now.nodes))
    faults = _known_faults(workspace.project, lock, selected, state, now)
    worked = [each for other in states for each in other.machines]
    causes += likely_causes.machine_causes(changes, kind, faults, len(now.machines), worked)
    if not state.machines:
        unknown.append("the machine: it was not recorded then")
    if state.fingerprint != now.fingerprint:
        has_worked = any(other.fingerprint == now.fingerprint for other in states)
        causes += _image_causes(workspace.project, lock, model, state, now, kind, faults, chosen, has_worked=has_worked)
    if state.served:
        causes += likely_causes.served_causes(state.served, now.served, model, kind, now.failure)
    else:
        unknown.append("the recipe's options: they were not recorded then")
    ranked = likely_causes.ranked(causes)
    return WhyReport(model, now.image, now.failure, state, "", ranked, chosen, tuple(unknown))


def _machine_changes(
    before: Sequence[Machine], after: Sequence[Machine], nodes: Sequence[str]
) -> Iterator[tuple[str, MachineChange]]:
    for name, old, new in zip_longest(nodes, before, after):
        if old is not None and new is not None:
            yield from ((name or "", change) for change in machine_record.machine_changes(old, new))


def _known_faults(
    project: Project, lock: Lock, selected: SelectedImage, state: WorkingState, now: PresentState
) -> KnownFaults:
    """The faults of now that are known and were not there then."""
    broken: dict[str, str] = {}
    for old, new in zip(state.machines, now.machines, strict=False):
        before = advice.of_record(old)
        earlier_faults = advised_by_id(project, selected, now.machines, before)
        for part, value in (("kernel", new.kernel), ("driver", new.driver)):
            advised = advised_by_id(project, selected, now.machines, {**before, part: value})
            if new_faults := [fault.message for name, fault in advised.items() if name not in earlier_faults]:
                broken[part] = new_faults[0]
    image: tuple[str, ...] = ()
    record = lock.image(state.image)
    if record and state.fingerprint != now.fingerprint:
        earlier = selection.with_number(lock, selected.recipe, state.image)
        earlier_of_image, of_image = (advised_by_id(project, each, now.machines, {}) for each in (earlier, selected))
        image = tuple(fault.message for name, fault in of_image.items() if name not in earlier_of_image)
    return KnownFaults(broken, image)


def _image_causes(
    project: Project,
    lock: Lock,
    model: str,
    state: WorkingState,
    now: PresentState,
    kind: likely_causes.FailureKind,
    faults: KnownFaults,
    chosen: Sequence[ChoiceChange],
    *,
    has_worked: bool,
) -> Iterator[LikelyCause]:
    """The image as one cause, and each of its mods that changed as another."""
    paired = lock.models.get(model)
    undo = f"builder rollback {model}"
    if paired is None or not paired.previous or paired.previous[0].image != state.image:
        undo = f"{undo} --to {state.image.number}"
    difference = diff.diff_images(project, str(state.image), str(now.image), None, ignore)
    details = [(12, f"vLLM chooses by itself: {change}") for change in chosen]
    for source in difference.sources:
        old, new = (_version(version) for version in (source.change.before, source.change.after))
        details.append((10 if source.change.name == "vllm" else 8, f"{source.change.name}: {old} → {new}"))
        if source.gained:
            titles = "; ".join(f"{commit.commit[:9]} {commit.title}" for commit in source.gained.commits[:3])
            details.append((9, f"{words.counted(source.gained.total, 'upstream commit')}, the newest: {titles}"))
    for change in difference.changes.packages:
        text = f"{change.name}: {change.before or 'not there'} → {change.after or 'not there'}"
        details.append((likely_causes.package_weight(change.name, now.failure), text))
    if base := difference.changes.base:
        details.append((5, f"base: {base.before} → {base.after}"))
    details += [(6, f"pull request {each.number} of {each.source} {each.kind}") for each in difference.changes.pulls]
    details += [(4, f"{file.path} {file.kind}") for file in difference.dockerfiles]
    details += [(4, f"arg {each.name}: {each.before} → {each.after}") for each in difference.args]
    if details or faults.image or not difference.mods:
        yield likely_causes.image_cause(
            str(state.image), str(now.image), details, f"`{undo}`", kind, faults, has_worked=has_worked
        )
    for mod in difference.mods:
        paths = [file.path for file in mod.files]
        yield likely_causes.mod_cause(f"mod {mod.name} {mod.kind}", paths, f"`{undo}`", kind)


def _version(version: Version | None) -> str:
    return version.version if version else "not there"


# The machine alone: an image is blamed only where the machine is the one on which the good image worked.

# Parts that decide if and how a server runs. The others come with any update of the system.
_DECISIVE = frozenset({"kernel", "driver", "parameters", "CMA", "links", "GPU", "memory"})
# Of the firmware that of the board, the GPU and the links, by the names of the kernel and of fwupd.
_VITAL = re.compile(
    r"BIOS|embedded controller|GPU Firmware|Video BIOS|RoCE .*"
    r"|fwupd .*(?:System|Embedded|UEFI Device|SoC|GPU|ConnectX|Power|PD Controller).*"
)


def machine_since(workspace: Workspace, name: ImageName, model: str) -> tuple[str, ...]:
    """The differences in the machines since the image ``name`` worked for ``model``, a line each; empty where nothing
    that decides differs, or no machine is recorded."""
    lock = lock_file.read_project_lock(workspace.project)
    record = lock.image(name)
    states = [
        state
        for state in working_states(workspace.project, lock, model)
        if record and state.fingerprint == record.fingerprint and state.machines
    ]
    if not states:
        return ()
    nodes = () if len(states[0].machines) == 1 else states[0].nodes or _nodes_of(workspace, model)
    names, machines = _machines(workspace, nodes)
    return tuple(
        f"{change}{f' on {node}' if node else ''}, since {states[0].when[:10]}"
        for node, change in _machine_changes(states[0].machines, machines, names)
        if change.part in _DECISIVE or (change.part == "firmware" and _VITAL.fullmatch(change.name))
    )


def _nodes_of(workspace: Workspace, model: str) -> tuple[str, ...]:
    """The nodes of a model's server, by its container; none where there is none here."""
    with suppress(BuilderError):
        lock = lock_file.read_project_lock(workspace.project)
        service = _service(workspace, selection.select_image(workspace.project, lock, model))
        labelled = service.labels.get(running.NODES, "") if service else ""
        configured = {node.name for node in configuration.load_configuration(workspace.project).nodes}
        return tuple(name for name in labelled.split(",") if name in configured)
    return ()
