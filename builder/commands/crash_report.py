"""The report of a crash: the last minute of a server in one text that can be posted.

It has the cause first, then the machine, the image, how it was served, what vLLM chose, and the end of the log. It has
no secrets, and nothing that names the user or the machine.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from builder.base import files, redaction, words
from builder.base.errors import BuilderError, EngineError, UsageError
from builder.commands import why
from builder.definitions import configuration
from builder.definitions.container import LABEL
from builder.engine import containers, machine
from builder.lock import lock_file
from builder.serving import advice, answered, running, selection, server_log

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from builder.base.machine_record import Machine
    from builder.base.project import Project
    from builder.commands.why import WhyReport
    from builder.numbers.workspace import Workspace
    from builder.serving.running import RunningServer
    from builder.serving.selection import SelectedImage

_LAST_SECONDS = 60
_MOST_LINES, _LONGEST_LINE = 400, 2000
_LARGEST_LOG = 64 << 20
# As vLLM begins its lines: `INFO 11-21 04:00:00 [`.
_WRITTEN = re.compile(r"\b(?:INFO|WARNING|ERROR|DEBUG) (\d\d-\d\d \d\d:\d\d:\d\d) \[")
_SHOWN_PACKAGES = (
    *("vllm", "flashinfer", "flashinfer-python", "torch", "triton", "transformers", "nvidia-nccl-cu13"),
    *("nvidia-nccl-cu12", "instanttensor", "xgrammar"),
)


@dataclass(frozen=True)
class CrashReport:
    """A crash. ``name`` is the server's, ``ended`` says how it ended, ``cause`` why, and ``remedy`` what is known to
    help; ``first_error`` is the first one in its log. ``lines`` are the last minute. ``advisories`` are those that
    match, a line each. Nothing in it is anonymous yet: `report_text` makes it so."""

    name: str
    ended: str
    cause: str
    remedy: str
    first_error: str
    machines: tuple[Machine, ...]
    image: str
    packages: Mapping[str, str]
    served: answered.OptionsInUse | None
    chosen: Mapping[str, tuple[str, ...]]
    changed: WhyReport | None
    lines: tuple[str, ...]
    advisories: tuple[str, ...] = ()


def crash_report(workspace: Workspace, text: str | None, node: str | None = None) -> CrashReport:
    """The report on the server called ``text``, None for the only one: one that is there, or whose last start failed
    and left its log. Raises UsageError where there is neither."""
    server = _server(workspace, text)
    labels: Mapping[str, str] = server.labels if server else {}
    name = server.labels[LABEL] if server else _kept_name(workspace, text)
    lines, ended = _of_container(server, node) if server else _of_file(workspace.project, name, node)
    selected = _selected(workspace, labels.get(f"{LABEL}.recipe") or text or name)
    remedy = server_log.known_crash_cause(lines)
    model = selected.recipe.model if selected else None
    machines = _machines(workspace, server)
    return CrashReport(
        name=name,
        ended=ended,
        cause=server_log.crash_cause(lines),
        remedy=remedy.hint.format(model=model or name) if remedy else "",
        first_error=server_log.first_error(lines),
        machines=machines,
        image=_image_line(workspace, selected, server),
        packages=_packages(workspace.project, selected),
        served=_served(workspace, selected, labels),
        chosen=server_log.read_choices(lines),
        changed=_changed(workspace, model),
        lines=tuple(last_minute(lines)),
        advisories=tuple(why.present_advisories(workspace.project, selected, machines)) if selected else (),
    )


def _server(workspace: Workspace, text: str | None) -> RunningServer | None:
    with suppress(EngineError):
        return running.pick(workspace.project, running.find_all(workspace), text)
    return None


def _of_container(server: RunningServer, node: str | None) -> tuple[list[str], str]:
    """The lines of the container that ended, or of the head, and how it ended."""
    ended = [member for member in server.members if not member.service.is_up]
    member = next((each for each in server.members if node and each.node == node), None) or (ended or [server.head])[0]
    service = member.service
    lines = [line.text for line in containers.container_log(member.engine.endpoint, service.id)]
    if service.is_up and not service.restarts:
        return lines, "is up"
    times = f"was started again {words.counted(service.restarts, 'time')}" if service.restarts else ""
    if service.is_up and not service.exit_code:  # it runs again
        return lines, times
    lines.append(server_log.end_line(service.exit_code, out_of_memory=service.out_of_memory))
    return lines, f"ended with exit code {service.exit_code}{f', and {times}' if times else ''}"


def _kept_name(workspace: Workspace, text: str | None) -> str:
    """The name of the server whose failed start left a log last: the one that is meant, or any."""
    logs = sorted((workspace.project.state / "serve-logs").glob("*.log"), key=lambda path: path.stat().st_mtime)
    wanted = ""
    if text is not None:
        selected = _selected(workspace, text)
        wanted = selected.recipe.name if selected else text
    names = [path.stem.partition("@")[0] for path in logs]
    if meant := [name for name in names if wanted in ("", name)]:
        return meant[-1]
    raise UsageError(
        f"no server {f'of `{text}` ' if text else ''}is there, and no failed start left its log",
        hint="`builder run RECIPE` keeps the log of a start that fails",
    )


def _of_file(project: Project, name: str, node: str | None) -> tuple[list[str], str]:
    folder = project.state / "serve-logs"
    kept = [path for path in folder.glob("*.log") if path.stem in {name, *([f"{name}@{node}"] if node else [])}]
    kept = kept or [path for path in folder.glob("*.log") if path.stem.partition("@")[0] == name and not node]
    if not kept:
        raise UsageError(f"{name} left no log on a node `{node}`")
    latest = max(kept, key=lambda path: path.stat().st_mtime)
    lines = files.read_plain_file(latest, _LARGEST_LOG).decode(errors="replace").splitlines()
    exit_code = server_log.exit_code(lines)
    return lines, "did not answer" if exit_code is None else f"ended with exit code {exit_code} before it answered"


def last_minute(lines: Sequence[str]) -> Iterator[str]:
    """The lines of the last minute by the times that vLLM writes; the last ones where it writes none."""
    start = 0
    # The year is not in them: a leap year has each day.
    moments = [
        (index, datetime.strptime(f"2024-{match[1]}", "%Y-%m-%d %H:%M:%S"))  # noqa: DTZ007
        for index, line in enumerate(lines)
        if (match := _WRITTEN.search(line)) and _is_date(match[1])
    ]
    if moments:
        begin = moments[-1][1] - timedelta(seconds=_LAST_SECONDS)
        # Lines without a time belong to what was logged before them.
        start = max((index + 1 for index, moment in moments if moment < begin), default=0)
    kept = lines[max(start, len(lines) - _MOST_LINES) :]
    yield from (line.rpartition("\r")[2][:_LONGEST_LINE] for line in kept)


def _is_date(text: str) -> bool:
    month, day, hour, *rest = (int(part) for part in re.findall(r"\d\d", text))
    return 1 <= month <= 12 and 1 <= day <= 28 and hour < 24 and max(rest) < 60


def _selected(workspace: Workspace, text: str) -> SelectedImage | None:
    with suppress(BuilderError):
        lock = lock_file.read_project_lock(workspace.project)
        return selection.select_image(workspace.project, lock, text)
    return None


def _machines(workspace: Workspace, server: RunningServer | None) -> tuple[Machine, ...]:
    engines = [member.engine.endpoint for member in server.members] if server else [workspace.engine]
    return tuple(machine.read_machine(endpoint, workspace.environment) for endpoint in engines)


def _image_line(workspace: Workspace, selected: SelectedImage | None, server: RunningServer | None) -> str:
    name = server.image if server else selected.name if selected else "unknown"
    repository, _, number = name.rpartition(":")
    images = lock_file.read_project_lock(workspace.project).images.get(repository)
    record = images.numbers.get(int(number)) if images and number.isdecimal() else None
    if record is None:
        return name
    origin = f"adopted from {record.adopted.image}" if record.adopted else f"built from {record.definition}"
    mods = f"; mods: {', '.join(record.mods)}" if record.mods else ""
    return f"{name}, {origin}, {record.built[:10]}{mods}"


def _packages(project: Project, selected: SelectedImage | None) -> dict[str, str]:
    if selected is None:
        return {}
    facts = advice.of_image(project, selected.image, selected.record)
    versions = {source: version.version for source, version in selected.record.versions.items()}
    packages = facts.get("package")
    every = {**(packages if isinstance(packages, dict) else {}), **versions}
    return {name: every[name] for name in _SHOWN_PACKAGES if name in every}


def _served(
    workspace: Workspace, selected: SelectedImage | None, labels: Mapping[str, str]
) -> answered.OptionsInUse | None:
    with suppress(BuilderError):
        return answered.options_now(workspace, selected, labels) if selected else None
    return None


def _changed(workspace: Workspace, model: str | None) -> WhyReport | None:
    """The comparison with the last state in which the model worked; None where none is recorded."""
    with suppress(BuilderError):
        return why.explain_change(workspace, model) if model else None
    return None


# The text.

_SHOWN_CAUSES = 5


def report_text(workspace: Workspace, report: CrashReport) -> str:
    """The whole report as Markdown, without secrets and without what names the user or the machine."""
    return redaction.anonymous("\n".join([*_text(report), ""]), _names(workspace.project, workspace.environment))


def _text(report: CrashReport) -> Iterator[str]:
    yield f"{report.name} {report.ended}"
    yield f"cause: {report.cause or report.first_error or 'its log tells none'}"
    if report.remedy:
        yield f"what helps: {report.remedy}"
    if report.first_error and report.first_error not in report.cause:
        yield f"first error in the log: {report.first_error}"
    yield ""
    yield f"image: {report.image}"
    if report.packages:
        yield f"packages: {', '.join(f'{name} {version}' for name, version in report.packages.items())}"
    for rank, each in enumerate(report.machines):
        yield f"machine{f' {rank}' if len(report.machines) > 1 else ''}: {machine_line(each)}"
    if served := report.served:
        options = " ".join(f"--{name} {value}".rstrip() for name, value in served.options.items())
        yield f"recipe: {served.recipe}: {options}".rstrip(": ")
        if served.variables:
            yield f"variables: {' '.join(f'{name}={value}' for name, value in served.variables.items())}"
    for name, values in report.chosen.items():
        yield f"chosen by vLLM: {name}: {', '.join(values)}"
    yield from (f"advisory: {advisory}" for advisory in report.advisories)
    if report.changed and (since := report.changed.since):
        yield f"worked last: {since.when} on {since.image} ({since.how})"
        yield from (f"changed since: {cause.text}" for cause in report.changed.causes[:_SHOWN_CAUSES])
    yield ""
    yield "````"  # four: the log may have three
    yield from report.lines
    yield "````"


def machine_line(machine: Machine) -> str:
    """A machine in one line, as far as it is known."""
    memory = f"{words.size_text(machine.available)} of {words.size_text(machine.memory)} available"
    parts = (
        ("", machine.product),
        ("GPU", machine.gpus_text),
        ("driver", machine.driver),
        ("kernel", machine.kernel),
        ("parameters", machine.parameters),
        ("system", machine.distribution),
        ("firmware", ", ".join(f"{name} {version}" for name, version in machine.firmware.items())),
        ("links", ", ".join(f"{device} {rate}" for device, rate in machine.links.items())),
        ("engine", machine.engine),
        ("container toolkit", machine.toolkit),
        ("governor", machine.governor),
        ("power limit", f"{machine.power} W" if machine.power else ""),
        ("CmaTotal", f"{machine.cma // 1024} kB" if machine.cma is not None else ""),
        ("CmaFree", f"{machine.cma_free // 1024} kB" if machine.cma_free is not None else ""),
        ("memory", memory if machine.memory else ""),
    )
    return "; ".join(f"{name} {value}".strip() for name, value in parts if value) or "unknown"


# Words that any log has.
_COMMON = frozenset({"root", "localhost", "/root", "user", "vllm", "node", "default", "ubuntu", "builder", "model"})


def _names(project: Project, environ: Mapping[str, str]) -> dict[str, str]:
    """The names of this user, of this machine, and of the nodes, each with what stands for it."""
    host = os.uname().nodename
    names = {str(project.root): "PROJECT", environ.get("HOME", ""): "HOME", host: "MACHINE"}
    names[host.partition(".")[0]] = "MACHINE"
    names |= {environ.get(variable, ""): variable for variable in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME")}
    names |= {environ.get(variable, ""): "USER" for variable in ("USER", "LOGNAME", "SUDO_USER")}
    with suppress(BuilderError):
        for number, node in enumerate(configuration.load_configuration(project).nodes):
            names |= {node.name: f"NODE{number}", node.address or "": f"ADDRESS{number}"}
            if "://" in node.engine:
                login = urlsplit(node.engine)
                names |= {login.hostname or "": f"ADDRESS{number}", login.username or "": "USER"}
    return {name: mark for name, mark in names.items() if len(name) > 2 and name not in _COMMON}


def write_report(path: Path, text: str) -> None:
    """Writes the report into a file of the user's. Raises UsageError."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
