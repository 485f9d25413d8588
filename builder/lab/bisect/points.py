"""The points of a bisection are the commits or versions between two ends.

Known conflicts between packages come first, then commits with wheels, all points of a unit, and the spans of numbers.
Mixtures that cannot work are left out, and are not built.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from builder.base.errors import BuilderError, FileProblemsError, SourceError, UsageError
from builder.base.events import Message
from builder.definitions import configuration, image
from builder.definitions.image import PACKAGES_BUILT_FROM
from builder.engine import containers, installed
from builder.lab.bisect import search
from builder.lab.bisect.search import PACKAGE_KEY, Axis, ListPoints, RecordedBuild, Row, Segment, SegmentedFile
from builder.lab.compare.changes import UPSTREAM, of_contents
from builder.lock import lock_file
from builder.lock.model import ImageName
from builder.numbers import build_directory, claims
from builder.pins import packages
from builder.sources import git, mirror, vllm_versions, wheels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from builder.base.project import Project
    from builder.definitions.image import PythonRequirements
    from builder.lab.bisect.search import BisectCandidate, Difference, SourceTree
    from builder.lab.bisect.session import Bisection
    from builder.numbers.workspace import Workspace
    from builder.plan.plan_model import StagedFile
    from builder.sources.vllm_versions import CommitFacts
    from builder.sources.wheels import CommitWheel


# Packages that do not take each other, by what they say themselves: such mixtures are left out, and not built to see.

if TYPE_CHECKING:
    Packages = Mapping[str, tuple[str, tuple[str, ...]]]

_SECONDS = 120
_NO_EXTRA = {"extra": ""}  # of this machine otherwise
_LIST = """
import importlib.metadata, json, re
print(json.dumps({
    re.sub("[-_.]+", "-", dist.metadata["Name"] or "").lower(): [dist.version, dist.requires or []]
    for dist in importlib.metadata.distributions()
}))
"""


def reader(workspace: Workspace, spans: Callable[[int, int], NumberSpan]) -> Callable[[int, int, frozenset[str]], str]:
    """A function that says why the old number cannot have some units of the new one; empty where nothing speaks
    against it."""

    @functools.cache
    def packages(old: int, new: int) -> tuple[Packages, Packages, Mapping[str, str]]:
        span = spans(old, new)
        units = _units(span)
        is_needed = len(set(units.values())) > 1
        before, after = (_installed(workspace, name) if is_needed else {} for name in (span.old, span.new))
        return before, after, units

    @functools.cache
    def conflict(old: int, new: int, taken: frozenset[str]) -> str:
        before, after, units = packages(old, new)
        if not before or not after:
            return ""
        sides = {name: after if units.get(name) in taken else before for name in before.keys() | after.keys()}
        mixed = {name: side[name] for name, side in sides.items() if name in side}
        accepted = {*_conflicts(before), *_conflicts(after)}
        return next((text for text in _conflicts(mixed) if text not in accepted), "")

    return conflict


def _units(span: NumberSpan) -> dict[str, str]:
    """The unit that decides over each package that differs."""
    units = {
        segment.key.removeprefix(PACKAGE_KEY): segment.unit
        for file in span.files
        for segment in file.segments
        if segment.unit and segment.key
    }
    for part in span.builds.parts if span.builds else ():
        for tree in part.trees:
            if tree.old != tree.new:
                units.update(dict.fromkeys(PACKAGES_BUILT_FROM.get(tree.name, (tree.name,)), tree.unit))
    return units


def _conflicts(packages: Packages) -> Iterator[str]:
    """Yields what a package requires that the others do not fulfil."""
    versions = {name: version for name, (version, _) in packages.items()}
    for name, (version, requires) in sorted(packages.items()):
        for text in requires:
            if unmet := wheels.unmet_need(text, versions, _NO_EXTRA):
                yield f"{name} {version} requires {unmet[0]}, but would get {unmet[1]}"


def _installed(workspace: Workspace, name: ImageName) -> Packages:
    """The packages of an image with what they require; none where it cannot be told, which leaves out nothing."""
    labels = {claims.PROJECT: claims.project_identity(workspace.project).id}
    try:
        with containers.running(workspace.engine, str(name), labels=labels, workdir="/") as container:
            python = installed.find_python(container)
            if not python:
                return {}
            result = container.run([python, "-c", _LIST], timeout=_SECONDS)
        data = json.loads(result.output.strip().splitlines()[-1]) if not result.exit_code else {}
        return {str(key): (str(value[0]), tuple(map(str, value[1]))) for key, value in data.items()}
    except (BuilderError, ValueError, IndexError, TypeError, AttributeError):
        return {}


# The commits of vLLM between two numbers that take it as a wheel, each with the wheel that is published for it.

PACKAGE = "vllm"
"""The package that has a wheel for each commit."""
_REQUIREMENTS = re.compile(r"(?:^|/)python/(?!build\.txt)[^/]+\.txt$")
_PINNED = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)


def repository(project: Project) -> str:
    """The repository that tells the order of the commits: where a definition of the project takes vLLM from git, that
    one, else vLLM's own."""
    for name in image.definition_names(project):
        try:
            source = image.load_image(project, name, "linux/arm64").git_sources.get(PACKAGE)
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
    return vllm_versions.main_line_between(
        project.mirrors, repository(project), old, new, lambda t: workspace.report(Message(t))
    )


def _ref(point: str) -> str:
    """The commit that a point is, the first digits that a version names, or the tag of a release."""
    if mirror.is_commit(point):
        return point
    return wheels.named(point) or f"v{point.partition('+')[0]}"


def wheel_values(workspace: Workspace, span: NumberSpan, unit: str, commit: str) -> dict[str, str]:
    """The values of the texts of a build with the wheel of a commit. Raises SourceError where there is none."""
    wheel = _wheel(workspace, span, commit)
    return {
        f"package {PACKAGE}": wheel.line(PACKAGE),
        f"{unit} version": wheel.version,
        f"{unit} commit": commit,
        f"{unit} index": commit,
    }


def require_fitting_wheel(workspace: Workspace, span: NumberSpan, commit: str, files: Mapping[str, StagedFile]) -> None:
    """Raises SourceError where the wheel of a commit needs other packages than ``files``, a build directory, has: with
    another torch it would not even be imported, whatever is looked for. One whose metadata cannot be read may fit."""
    wheel = _wheel(workspace, span, commit)
    settings = git.read_index_settings(workspace.environment)
    try:
        needs = wheels.read_wheel_needs(workspace.project.state / "wheels", PACKAGE, wheel, settings.ca_file)
    except SourceError:
        return
    texts = (file.content.decode() for path, file in files.items() if _REQUIREMENTS.search(path))
    installed = dict(pair for text in texts for pair in _PINNED.findall(text))
    problem = wheels.conflict(needs, installed, _python(workspace.project, span), _platform(span))
    if problem:
        raise SourceError(f"{PACKAGE} {wheel.version} {problem}")


def _wheel(workspace: Workspace, span: NumberSpan, commit: str) -> CommitWheel:
    project = workspace.project
    return wheels.find_commit_wheel(
        project.state / "wheels",
        PACKAGE,
        index(project, span),
        commit,
        _python(project, span),
        _platform(span),
        git.read_index_settings(workspace.environment),
    )


def _platform(span: NumberSpan) -> str:
    return span.builds.platform if span.builds else ""


def index(project: Project, span: NumberSpan) -> str:
    """The address of a commit's index: that of either number where it is of a commit, with ``COMMIT`` in its place;
    else the project's own, or vLLM's."""
    ends = span.versions(PACKAGE)
    for taken, version in ((span.every, ends[1]), ((), ends[0])):
        files = search.files(span.builds, taken, {}) if span.builds else {}
        text = "".join(file.content.decode() for path, file in files.items() if path.endswith("Dockerfile"))
        if address := wheels.template(text, version):
            return address
    return configuration.load_configuration(project).commit_wheels or wheels.PUBLISHED


def _python(project: Project, span: NumberSpan) -> PythonRequirements:
    """The Python that the wheel is for, as the definition says."""
    record = lock_file.read_project_lock(project).image(span.new)
    try:
        chain = image.load_chain(project, record.definition, record.platform) if record else ()
    except (FileProblemsError, UsageError) as error:
        raise SourceError(f"which Python {span.new} has is not known: {error.message.splitlines()[0]}") from None
    for definition in reversed(chain):
        if definition.python and PACKAGE in definition.wheel_sources:
            return definition.python
    raise SourceError(f"the definition of {span.new} no longer takes {PACKAGE} as a wheel")


def facts(workspace: Workspace, commit: str) -> CommitFacts:
    """The facts of a commit. Raises SourceError."""
    return vllm_versions.commit_facts(workspace.project.mirrors, repository(workspace.project), commit)


def whole(workspace: Workspace, point: str) -> str:
    """The commit (40 hex digits) that a point or a version is. Raises SourceError."""
    project = workspace.project
    return vllm_versions.commit_of(project.mirrors, repository(project), _ref(point))


def to_stay_on(project: Project, span: NumberSpan, definition: str, good: str) -> str:
    """The hint of how to stay on a release or a commit (40 hex digits); empty for a version that names only the first
    digits of one."""
    if not mirror.is_commit(good):
        if wheels.named(good):
            return ""
        if not wheels.named(span.versions(PACKAGE)[1]):
            return f"`builder lock {definition} --update {PACKAGE}={good}` stays on that release"
        written, what = f"{{wheel: {PACKAGE}=={good}}}", "release"
    else:
        address = index(project, span).replace(wheels.COMMIT, good)
        written, what = f'{{wheel: {PACKAGE}, index: "{address}"}}', "commit"
    file = f"dockerfiles/{definition}/image.yaml"
    return f"`{PACKAGE}: {written}` under `sources` in {file} stays on that {what}"


# The points of a unit between its two ends: commits of a source from git, versions of a package.


def row(workspace: Workspace, span: NumberSpan, question: ListPoints) -> Row:
    """The points that a unit has; none where nothing is known between its ends. A repository or an index that does not
    answer is reported, and leaves the unit as it is."""
    unit, after, before = question.unit, question.after, question.before
    listed: tuple[str, ...] = ()
    try:
        if tree := span.tree(unit):
            listed = vllm_versions.commits_between(
                workspace.project.mirrors,
                tree.url,
                after or tree.old_commit,
                before or tree.new_commit,
                lambda text: workspace.report(Message(text)),
            )
        elif package := span.package(unit):
            ends = span.versions(package)
            if not (after or before or any(map(wheels.named, ends))):
                listed = packages.releases_between(package, *ends, workspace.environment)
            if not listed and package == PACKAGE:
                listed = between(workspace, span, question)
    except SourceError as error:
        workspace.report(Message(f"the commits or versions between cannot be listed: {error.message.splitlines()[0]}"))
    return Row(unit, after, before, listed)


def finest(workspace: Workspace, span: NumberSpan, unit: str) -> tuple[str, ...] | None:
    """All commits between the ends of a unit, None for one that has none, or where they are not known: in a plan, what
    lies between is a question, too, and its answer no condition."""
    question = ListPoints(span.old.number, span.new.number, unit)
    if span.tree(unit):
        return row(workspace, span, question).points
    if span.package(unit) != PACKAGE:
        return None
    try:
        return between(workspace, span, question)
    except SourceError as error:
        workspace.report(Message(f"which commits lie between is not known: {error.message.splitlines()[0]}"))
        return None


def values(workspace: Workspace, span: NumberSpan, chosen: Mapping[str, str]) -> dict[str, str]:
    """The values of the texts of a build at these points. Raises SourceError where one cannot be had."""
    made: dict[str, str] = {}
    for unit, point in chosen.items():
        if tree := span.tree(unit):
            commits = (tree.old_commit, tree.new_commit)
            facts = vllm_versions.commit_facts(workspace.project.mirrors, tree.url, point, within=commits)
            date = int(datetime.fromisoformat(facts.date).timestamp())
            made |= {f"{unit} commit": point, f"{unit} version": facts.version, f"{unit} date": str(date)}
        elif mirror.is_commit(point) and span.package(unit) == PACKAGE:
            made |= wheel_values(workspace, span, unit, point)
        elif package := span.package(unit):
            line = packages.line(package, point, workspace.environment)
            made |= {f"package {package}": line, f"{unit} version": point}
    return made


def require_fitting(
    workspace: Workspace, span: NumberSpan, chosen: Mapping[str, str], files: Mapping[str, StagedFile]
) -> None:
    """Raises SourceError where what is at one of these points does not go with the rest of ``files``."""
    for unit, point in chosen.items():
        if mirror.is_commit(point) and span.package(unit) == PACKAGE:
            require_fitting_wheel(workspace, span, point, files)


# The difference of two neighbouring numbers, read from their build directories, and from the recipe.

WHOLE = "the whole image"
_RECIPE = "recipe"
_CONTINUED = re.compile(r"[ \t]*\\\n[ \t]*")
_BEFORE_FLAG = re.compile(r"(?=[ \t]--?[A-Za-z]|\n\Z)")
_LONGEST_NAME = 40


@dataclass(frozen=True)
class NumberSpan:
    """The difference between two numbers: their builds, None where nothing of one has a place in the other, and the
    recipe by which they are served, None where it is the same."""

    old: ImageName
    new: ImageName
    builds: Difference | None
    recipe: SegmentedFile | None

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes, the cheapest first: a recipe is changed without a build."""
        units = tuple(dict.fromkeys(each.unit for each in self.recipe.segments if each.unit)) if self.recipe else ()
        image = self.builds.axes if self.builds else (Axis(WHOLE, (WHOLE,)),)
        return (*([Axis(_RECIPE, units)] if units else []), *image)

    @property
    def every(self) -> frozenset[str]:
        """The units of the image."""
        return frozenset(unit for axis in (self.builds.axes if self.builds else ()) for unit in axis.units)

    @property
    def files(self) -> tuple[SegmentedFile, ...]:
        return self.builds.files if self.builds else ()

    def tree(self, unit: str) -> SourceTree | None:
        """The tree of a source that both builds take from git."""
        parts = self.builds.parts if self.builds else ()
        trees = (tree for part in parts for tree in part.trees if tree.unit == unit and tree.old and tree.new)
        return next(trees, None)

    def package(self, unit: str) -> str:
        """The package whose line in a requirement file is of this unit alone, on both sides; empty where there is
        none."""
        own = {segment.key for file in self.files for segment in file.segments if segment.unit == unit and segment.key}
        package = own.pop().removeprefix(search.PACKAGE_KEY) if len(own) == 1 else ""
        return package if package and all(self.versions(package)) else ""

    def versions(self, package: str) -> tuple[str, str]:
        """The version of a package that differs on either side, empty where it is not there."""
        sides = ["", ""]
        for segment in (segment for file in self.files for segment in file.segments):
            if segment.key == f"{search.PACKAGE_KEY}{package}":
                for place, line in enumerate((segment.old, segment.new)):
                    sides[place] = line.decode().partition("==")[2].partition(" ")[0].strip() or sides[place]
        return sides[0], sides[1]

    def units_of_image(self, candidate: BisectCandidate) -> frozenset[str]:
        """The units of a candidate that the image has to be made for."""
        return frozenset(unit for unit in candidate.taken if not unit.startswith(f"{_RECIPE},"))

    def recipe_text(self, candidate: BisectCandidate) -> str:
        """The recipe by which a candidate is served; empty for the present one."""
        mixed = self.recipe.mixed(candidate.taken, {}) if self.recipe else None
        return mixed.content.decode() if mixed else ""


def span_reader(project: Project, bisection: Bisection, text: str) -> Callable[[int, int], NumberSpan]:
    """A function that reads the span of two numbers, each once; ``text`` is the recipe as it is now."""

    @functools.cache
    def read(old: int, new: int) -> NumberSpan:
        names = [ImageName(bisection.repository, number) for number in (old, new)]
        is_first = old == bisection.numbers[0] and bool(bisection.recipe_before)
        recipe = _recipe(bisection.recipe_before, text) if is_first else None
        return NumberSpan(names[0], names[1], _difference(project, names, bisection.platform), recipe)

    return read


def definition(project: Project, name: ImageName) -> str:
    """The definition that a number was built from; empty where none is recorded."""
    record = lock_file.read_project_lock(project).image(name)
    return (record.definition if record else None) or ""


def _difference(project: Project, names: list[ImageName], platform: str) -> Difference | None:
    """The difference of two builds; None where nothing of one has a place in the other, one was built elsewhere, or
    a build directory is gone or was edited."""
    try:
        directories = [build_directory.read_build_directory(project, name) for name in names]
        builds = [RecordedBuild(directory, build_directory.read_build_files(directory)) for directory in directories]
        return search.difference(builds[0], builds[1], platform)
    except (FileProblemsError, ValueError):
        return None


def _recipe(before: str, after: str) -> SegmentedFile:
    """The recipe in lines, and those of its command in flags: one is taken with its values, on whatever line it is."""
    segments = (
        Segment(old.encode(), new.encode(), "" if old == new else f"{_RECIPE}, {_flag_or_key(old or new)}")
        for old, new in search.pairs(_flags(before), _flags(after), _flag_or_key)
    )
    return SegmentedFile(_RECIPE, tuple(segments), old=False, new=False)


def _flags(text: str) -> list[str]:
    """The lines of a recipe, cut in front of each flag, with those that go on by a backslash in one."""
    lines = _CONTINUED.sub(" ", text).splitlines(keepends=True)
    return [token for line in lines for token in _BEFORE_FLAG.split(line) if token]


def _flag_or_key(text: str) -> str:
    words = text.split()
    first = words[0] if words and words[0].startswith("-") else text.strip().partition(":")[0]
    return first.partition("=")[0][:_LONGEST_NAME] or "an empty line"


def change_of(span: NumberSpan, unit: str) -> str:
    """The change that a unit is, as a unified diff of the files that it is in."""
    sides = [search.files(span.builds, taken, {}) if span.builds else {} for taken in ((), (unit,))]
    contents = {
        path: [side[path].content if path in side else None for side in sides]
        for path in sorted({*sides[0], *sides[1]})
    }
    for file in (*span.files, *([span.recipe] if span.recipe else ())):
        if file.path == _RECIPE or "python/" in file.path:  # long, and all that matters stands in its own lines
            own = [segment for segment in file.segments if segment.unit == unit]
            contents[file.path] = [b"".join(each.old for each in own), b"".join(each.new for each in own)]
    changes = [of_contents(old, new, path) for path, (old, new) in contents.items() if old != new]
    return "".join(
        f"--- {span.old}/{change.path}\n+++ {span.new}/{change.path}\n"
        + "".join(f"{line}\n" for line in change.lines or [f"{change.path} {change.kind}: {change.note}"])
        for change in changes
    )
