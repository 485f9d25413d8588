"""The report of a crash: one text about a server's last minute, which the user can post.

It contains the cause, the image, the machine, the options, vLLM's choices, and the end of the log. It contains no
secrets, and no names of users or machines.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from builder.base import files, machine_record, redaction, words
from builder.base.errors import BuilderError, EngineError, UsageError
from builder.commands import why
from builder.definitions import configuration, container
from builder.engine import containers, machine
from builder.lock import lock_file
from builder.serving import advice, readiness, running, selection, server_log

if TYPE_CHECKING:
    from pathlib import Path

    from builder.base.project import Project
    from builder.numbers.workspace import Workspace

_LAST, _YEAR = timedelta(seconds=60), timedelta(days=366)
_MOST_LINES, _LONGEST_LINE = 400, 2000
_SHOWN_CAUSES = 5
# The prefix of vLLM's log lines: `INFO 11-21 04:00:00 [`.
_WRITTEN = re.compile(r"\b(?:INFO|WARNING|ERROR|DEBUG) (\d\d-\d\d \d\d:\d\d:\d\d) \[")
_SHOWN_PACKAGES = (
    *("vllm", "flashinfer", "flashinfer-python", "torch", "triton", "transformers", "nvidia-nccl-cu13"),
    *("nvidia-nccl-cu12", "instanttensor", "xgrammar"),
)


def crash_report(workspace: Workspace, text: str | None, node: str | None = None) -> tuple[str, str]:
    """The name of the server called ``text`` (None: the only server), and the report as Markdown, without secrets and
    names. Raises UsageError if there is neither a server nor the log of a failed start, EngineError if there is no log
    and the engine does not answer."""
    server, failure = None, None
    try:
        server = running.pick(workspace.project, running.find_all(workspace), text)
    except EngineError as error:
        failure = error
    if server:
        name, (lines, ended) = server.labels[container.LABEL], _of_container(server, node)
    else:
        name, lines, ended = _of_file(workspace, text, node, failure)
    content = "\n".join([f"{name} {ended}", *_content(workspace, server, name, text, lines), ""])
    return name, redaction.anonymous(content, _names(workspace.project, workspace.environment))


def write_report(path: Path, report: str) -> None:
    """Raises UsageError if the file cannot be written, OSError for a full disk."""
    with files.named_by_user(path):
        path.write_text(report, encoding="utf-8")


def _of_container(server: running.RunningServer, node: str | None) -> tuple[list[str], str]:
    """The log of the container that ended, or else of the head, and how the container ended."""
    ended = [member for member in server.members if not member.service.is_up]
    member = next((each for each in server.members if node and each.node == node), None) or (ended or [server.head])[0]
    service = member.service
    lines = [line.text for line in containers.container_log(member.engine, service.id)]
    if service.is_up and not service.restarts:
        return lines, "is up"
    times = f"was started again {words.counted(service.restarts, 'time')}" if service.restarts else ""
    if service.is_up and not service.exit_code:  # it is running again
        return lines, times
    lines.append(server_log.end_line(service.exit_code, out_of_memory=service.out_of_memory))
    return lines, f"ended with exit code {service.exit_code}{f', and {times}' if times else ''}"


def _of_file(
    workspace: Workspace, text: str | None, node: str | None, failure: EngineError | None
) -> tuple[str, list[str], str]:
    """The name of the server with the latest log of a failed start, the lines of the log, and how the server ended.
    Without such a log, raises ``failure``, the error of the engine, or else UsageError."""
    logs = logs_of_failed_starts(workspace, text, node)
    if not logs:
        raise failure or UsageError(
            f"there is no server{f' of `{text}`' if text else ''}, and no log of a failed start"
            f"{f' on a node `{node}`' if node else ''}",
            hint="`builder run RECIPE` keeps the log of a start that fails",
        )
    lines = readiness.read_kept_log(logs[-1])
    exit_code = server_log.exit_code(lines)
    ended = "did not answer" if exit_code is None else f"ended with exit code {exit_code} before it answered"
    return logs[-1].stem.partition("@")[0], lines, ended


def logs_of_failed_starts(workspace: Workspace, text: str | None, node: str | None) -> list[Path]:
    """The kept logs of the server of a recipe or model, or of all servers. The latest log comes last."""
    selected = _selected(workspace, text) if text else None
    wanted = container.service_name(selected.recipe.name) if selected else text or ""
    return readiness.kept_logs(workspace.project, wanted, node or "")


def _selected(workspace: Workspace, text: str, image: str = "") -> selection.SelectedImage | None:
    """The image that serves a model or a recipe, or its number ``image`` if given. None if no image is found."""
    with suppress(BuilderError):
        lock = lock_file.read_project_lock(workspace.project)
        selected = selection.select_image(workspace.project, lock, text)
        repository, _, number = image.rpartition(":")
        if not number.isdecimal():
            return selected
        name = replace(selected.image, repository=repository, number=int(number))
        return selection.with_number(lock, selected.recipe, name)
    return None


def last_minute(lines: Sequence[str]) -> Iterator[str]:
    """The lines of the last minute, by vLLM's timestamps. Without timestamps, the last lines."""
    moments = [(index, moment) for index, line in enumerate(lines) if (moment := _moment(line))]
    # A line without a timestamp belongs to the lines before it. A log may continue into the next year.
    earlier = [index for index, moment in moments if _LAST < (moments[-1][1] - moment) % _YEAR < _YEAR / 2]
    start = max(earlier[-1] + 1 if earlier else 0, len(lines) - _MOST_LINES)
    yield from (line.rpartition("\r")[2][:_LONGEST_LINE] for line in lines[start:])


def _moment(line: str) -> datetime | None:
    """The timestamp of a log line. It has no year; the year 2024 is used because a leap year contains every date."""
    match = _WRITTEN.search(line)
    with suppress(ValueError):  # not a valid date
        return datetime.strptime(f"2024-{match[1]}", "%Y-%m-%d %H:%M:%S") if match else None  # noqa: DTZ007
    return None


# The text of the report.


def _content(
    workspace: Workspace, server: running.RunningServer | None, name: str, text: str | None, lines: Sequence[str]
) -> Iterator[str]:
    labels: Mapping[str, str] = server.labels if server else {}
    failed = None if server else readiness.failed_start(workspace.project, name)
    image = server.image if server else failed.image if failed else ""
    recipe = labels.get(f"{container.LABEL}.recipe") or (failed.served.recipe if failed else "")
    selected = _selected(workspace, recipe or text or name, image)
    model = selected.recipe.model if selected else None
    cause, first_error = server_log.crash_cause(lines), server_log.first_error(lines)
    yield f"cause: {cause or first_error or 'unknown, because the log contains no error'}"
    if remedy := server_log.known_crash_cause(lines):
        yield f"what helps: {remedy.hint.format(model=model or name)}"
    if first_error and first_error not in cause:
        yield f"first error in the log: {first_error}"
    yield ""
    yield f"image: {_image_line(selected) if selected else image or 'unknown'}"
    if selected and (packages := _packages(workspace.project, selected)):
        yield f"packages: {', '.join(f'{name} {version}' for name, version in packages.items())}"
    engines = [member.engine for member in server.members] if server else [workspace.engine]
    machines = [machine.read_machine(endpoint, workspace.environment) for endpoint in engines]
    for rank, each in enumerate(machines):
        yield f"machine{f' {rank}' if len(machines) > 1 else ''}: {_machine_line(each)}"
    served = failed.served if failed else None
    with suppress(BuilderError):
        served = served or (readiness.options_now(workspace, selected, labels) if selected else None)
    if served:
        options = " ".join(f"--{name} {value}".rstrip() for name, value in served.options.items())
        yield f"recipe: {served.recipe}: {options}".rstrip(": ")
        if served.variables:
            yield f"variables: {' '.join(f'{name}={value}' for name, value in served.variables.items())}"
    for choice, values in server_log.read_choices(lines).items():
        yield f"chosen by vLLM: {choice}: {', '.join(values)}"
    if selected:
        yield from (f"advisory: {each}" for each in why.present_advisories(workspace.project, selected, machines))
    with suppress(BuilderError):  # no earlier working state is recorded
        yield from _since(why.explain_change(workspace, model)) if model else ()
    yield ""
    yield "````"  # four, because the log may contain three
    yield from last_minute(lines)
    yield "````"


def _since(changed: why.WhyReport) -> Iterator[str]:
    if changed.as_now:
        yield f"last worked: {changed.as_now}, in exactly this state"
    elif since := changed.since:
        yield f"last worked: {since.when} on {since.image} ({since.how})"
        yield from (f"changed since: {cause.text}" for cause in changed.causes[:_SHOWN_CAUSES])


def _image_line(selected: selection.SelectedImage) -> str:
    record = selected.record
    origin = f"adopted from {record.adopted.image}" if record.adopted else f"built from {record.definition}"
    mods = f"; mods: {', '.join(record.mods)}" if record.mods else ""
    return f"{selected.name}, {origin}, {record.built[:10]}{mods}"


def _packages(project: Project, selected: selection.SelectedImage) -> dict[str, str]:
    packages = advice.of_image(project, selected.image, selected.record).get("package")
    versions = {source: version.version for source, version in selected.record.versions.items()}
    every = {**(packages if isinstance(packages, dict) else {}), **versions}
    return {name: every[name] for name in _SHOWN_PACKAGES if name in every}


def _machine_line(machine: machine_record.Machine) -> str:
    parts = [machine.product]
    parts += [f"{' '.join(filter(None, part))} {value}" for part, value in machine_record.known_parts(machine).items()]
    parts += [f"CmaFree {machine.cma_free // 1024} kB"] if machine.cma_free is not None else []
    parts += [f"available {words.size_text(machine.available)}"] if machine.available else []
    return "; ".join(filter(None, parts)) or "unknown"


# Words that occur in any log.
_COMMON = frozenset({"root", "localhost", "/root", "user", "vllm", "node", "default", "ubuntu", "builder", "model"})


def _names(project: Project, environ: Mapping[str, str]) -> dict[str, str]:
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
