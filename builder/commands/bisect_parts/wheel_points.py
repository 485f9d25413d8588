"""The commits of vLLM between two numbers that take it as a wheel, each with the wheel that is published for it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builder.bisecting import mixture
from builder.comparing.contents import UPSTREAM
from builder.definitions import configuration, image, image_chain
from builder.errors import FileProblemsError, SourceError, UsageError
from builder.events import Message
from builder.lock import reading
from builder.sources import environment
from builder.sources.git import commit_row, main_line, remote_refs
from builder.sources.wheels import commit_wheel, wheel_needs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.bisecting.search import ListPoints
    from builder.commands.bisect_parts.spans import NumberSpan
    from builder.definitions.image import PythonRequirements
    from builder.plan.model import StagedFile
    from builder.project import Project
    from builder.sources.git.commit_row import CommitFacts
    from builder.sources.wheels.commit_wheel import CommitWheel
    from builder.workspace import Workspace

PACKAGE = "vllm"
"""The package that has a wheel for each commit."""
_REQUIREMENTS = re.compile(r"(?:^|/)python/(?!build\.txt)[^/]+\.txt$")
_PINNED = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)


def repository(project: Project) -> str:
    """The repository that tells the order of the commits: where a definition of the project takes vLLM from git, that
    one, else vLLM's own."""
    for name in image.names(project):
        try:
            source = image.load(project, name, "linux/arm64").git_sources.get(PACKAGE)
        except (FileProblemsError, UsageError):
            continue
        if source:
            return source.git
    return UPSTREAM[PACKAGE]


def between(workspace: Workspace, span: NumberSpan, question: ListPoints) -> tuple[str, ...]:
    """The commits of the main line between two points, or the versions of the two numbers. Raises SourceError."""
    ends = span.versions(PACKAGE)
    old, new = (_ref(point) for point in (question.after or ends[0], question.before or ends[1]))
    project = workspace.project
    return main_line.between(project.mirrors, repository(project), old, new, lambda t: workspace.report(Message(t)))


def _ref(point: str) -> str:
    """The commit that a point is, the first digits that a version names, or the tag of a release."""
    if remote_refs.is_commit(point):
        return point
    return commit_wheel.named(point) or f"v{point.partition('+')[0]}"


def values(workspace: Workspace, span: NumberSpan, unit: str, commit: str) -> dict[str, str]:
    """The values of the texts of a build with the wheel of a commit. Raises SourceError where there is none."""
    wheel = _wheel(workspace, span, commit)
    return {
        f"package {PACKAGE}": wheel.line(PACKAGE),
        f"{unit} version": wheel.version,
        f"{unit} commit": commit,
        f"{unit} index": commit,
    }


def require_fitting(workspace: Workspace, span: NumberSpan, commit: str, files: Mapping[str, StagedFile]) -> None:
    """Raises SourceError where the wheel of a commit needs other packages than ``files``, a build directory, has: with
    another torch it would not even be imported, whatever is looked for. One whose metadata cannot be read may fit."""
    wheel = _wheel(workspace, span, commit)
    settings = environment.read(workspace.environment)
    try:
        needs = wheel_needs.read(workspace.project.state / "wheels", PACKAGE, wheel, settings.ca_file)
    except SourceError:
        return
    texts = (file.content.decode() for path, file in files.items() if _REQUIREMENTS.search(path))
    installed = dict(pair for text in texts for pair in _PINNED.findall(text))
    problem = wheel_needs.conflict(needs, installed, _python(workspace.project, span), _platform(span))
    if problem:
        raise SourceError(f"{PACKAGE} {wheel.version} {problem}")


def _wheel(workspace: Workspace, span: NumberSpan, commit: str) -> CommitWheel:
    project = workspace.project
    return commit_wheel.find(
        project.state / "wheels",
        PACKAGE,
        index(project, span),
        commit,
        _python(project, span),
        _platform(span),
        environment.read(workspace.environment),
    )


def _platform(span: NumberSpan) -> str:
    return span.builds.platform if span.builds else ""


def index(project: Project, span: NumberSpan) -> str:
    """The address of a commit's index: that of either number where it is of a commit, with ``COMMIT`` in its place;
    else the project's own, or vLLM's."""
    ends = span.versions(PACKAGE)
    for taken, version in ((span.every, ends[1]), ((), ends[0])):
        files = mixture.files(span.builds, taken, {}) if span.builds else {}
        text = "".join(file.content.decode() for path, file in files.items() if path.endswith("Dockerfile"))
        if address := commit_wheel.template(text, version):
            return address
    return configuration.load(project).commit_wheels or commit_wheel.PUBLISHED


def _python(project: Project, span: NumberSpan) -> PythonRequirements:
    """The Python that the wheel is for, as the definition says."""
    record = reading.of(project).image(span.new)
    try:
        chain = image_chain.load(project, record.definition, record.platform) if record else ()
    except (FileProblemsError, UsageError) as error:
        raise SourceError(f"which Python {span.new} has is not known: {error.message.splitlines()[0]}") from None
    for definition in reversed(chain):
        if definition.python and PACKAGE in definition.wheel_sources:
            return definition.python
    raise SourceError(f"the definition of {span.new} no longer takes {PACKAGE} as a wheel")


def facts(workspace: Workspace, commit: str) -> CommitFacts:
    """The facts of a commit. Raises SourceError."""
    return commit_row.facts(workspace.project.mirrors, repository(workspace.project), commit)


def whole(workspace: Workspace, point: str) -> str:
    """The commit (40 hex digits) that a point or a version is. Raises SourceError."""
    project = workspace.project
    return main_line.commit_of(project.mirrors, repository(project), _ref(point))


def to_stay_on(project: Project, span: NumberSpan, definition: str, good: str) -> str:
    """The hint of how to stay on a release or a commit (40 hex digits); empty for a version that names only the first
    digits of one."""
    if not remote_refs.is_commit(good):
        if commit_wheel.named(good):
            return ""
        if not commit_wheel.named(span.versions(PACKAGE)[1]):
            return f"`builder lock {definition} --update {PACKAGE}={good}` stays on that release"
        written, what = f"{{wheel: {PACKAGE}=={good}}}", "release"
    else:
        address = index(project, span).replace(commit_wheel.COMMIT, good)
        written, what = f'{{wheel: {PACKAGE}, index: "{address}"}}', "commit"
    file = f"dockerfiles/{definition}/image.yaml"
    return f"`{PACKAGE}: {written}` under `sources` in {file} stays on that {what}"
