"""The spans of a bisection: what differs between two neighbouring numbers, and the commits or versions between them.

The spans come first, then packages that conflict, vLLM as a wheel, the dated images of others, the points of any unit,
and the build directory of a candidate.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import shlex
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from builder.base import records
from builder.base.errors import (
    BuilderError,
    FileProblemsError,
    ImageContentsError,
    ImageStateError,
    SourceError,
    TransferError,
    UsageError,
)
from builder.base.events import Message
from builder.building import work_folder
from builder.definitions import configuration, image
from builder.definitions.image import PACKAGES_BUILT_FROM, PythonRequirements
from builder.engine import containers, images, installed, registry
from builder.lab.bisect import mixtures
from builder.lab.bisect.mixtures import PACKAGE_KEY, Difference, Segment
from builder.lab.bisect.search import Axis, ListPoints, Row, of_number
from builder.lab.changes import UPSTREAM, of_contents
from builder.lock import lock_file
from builder.lock.model import ImageName
from builder.numbers import build_directory, claims
from builder.pins import packages
from builder.plan import plan_model
from builder.plan.plan_model import StagedFile
from builder.sources import git, mirror, vllm_versions, wheels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from builder.base.project import Project
    from builder.engine.installed import InstalledSoftware
    from builder.lab.bisect.mixtures import SourceTree
    from builder.lab.bisect.search import BisectCandidate
    from builder.numbers.workspace import Workspace
    from builder.sources.vllm_versions import CommitFacts
    from builder.sources.wheels import CommitWheel

    Packages = Mapping[str, tuple[str, list[str]]]


# The difference of two neighbouring numbers, read from their build directories, and from the recipe.

WHOLE = "the whole image"
RECIPE = "recipe"
_CONTINUED = re.compile(r"[ \t]*\\\n[ \t]*")
_BEFORE_FLAG = re.compile(r"(?=[ \t]--?[A-Za-z]|\n\Z)")
_LONGEST_NAME = 40


@dataclass(frozen=True)
class NumberSpan:
    """The difference between two numbers: their builds, without parts if they cannot be mixed, and the recipe that
    serves them, empty if it is the same."""

    old: ImageName
    new: ImageName
    builds: Difference
    recipe: tuple[Segment, ...]

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes, the cheapest first: a recipe is changed without a build."""
        units = tuple(dict.fromkeys(segment.unit for segment in self.recipe if segment.unit))
        image = self.builds.axes if self.builds.parts else (Axis(WHOLE, (WHOLE,)),)
        return (*([Axis(RECIPE, units)] if units else []), *image)

    @property
    def segments(self) -> list[Segment]:
        return [segment for file in self.builds.files for segment in file.segments]

    def tree(self, unit: str) -> SourceTree | None:
        """The tree of a source that both builds take from git."""
        return next((tree for tree in self.builds.trees if tree.unit == unit and tree.old[0] and tree.new[0]), None)

    def package(self, unit: str) -> str:
        """The package of a unit that is one line in a requirement file on both sides; else empty."""
        own = {segment.key for segment in self.segments if segment.unit == unit and segment.key}
        package = own.pop().removeprefix(PACKAGE_KEY) if len(own) == 1 else ""
        return package if package and all(self.versions(package)) else ""

    def versions(self, package: str) -> tuple[str, str]:
        """The version of a package on either side, empty if the side lacks the package."""
        old = new = ""
        for segment in self.segments:
            if segment.key == f"{PACKAGE_KEY}{package}":
                lines = (segment.old, segment.new)
                before, after = (line.partition("==")[2].partition(" ")[0].strip() for line in lines)
                old, new = before or old, after or new
        return old, new

    @property
    def bases(self) -> tuple[str, str]:
        """The base images on either side, each with its digest; empty unless they are two images of one name."""
        values = (value for file in self.builds.files for value in file.values if value.key == mixtures.BASE)
        if (base := next(values, None)) and images.repository(base.old) == images.repository(base.new):
            return base.old, base.new
        return "", ""

    def units_of_image(self, candidate: BisectCandidate) -> frozenset[str]:
        """The units of a candidate that are parts of its image."""
        return frozenset(unit for unit in candidate.taken if not unit.startswith(f"{RECIPE},"))

    def recipe_text(self, candidate: BisectCandidate) -> str:
        """The recipe that serves a candidate; empty for the present one, which serves all but the first number and its
        mixtures."""
        return "".join(segment.chosen(candidate.taken, {}) for segment in self.recipe)


def span_reader(
    project: Project, repository: str, platform: str, recipe: str = "", recipe_before: tuple[int, str] = (0, "")
) -> Callable[[int, int], NumberSpan]:
    """A function that reads the span of two numbers, each once. ``recipe`` is its present text, ``recipe_before`` the
    other text that served the number with it."""

    @functools.cache
    def span(old: int, new: int) -> NumberSpan:
        first, second = ImageName(repository, old), ImageName(repository, new)
        builds = None
        try:
            read = build_directory.read_build_directory
            builds = mixtures.difference(read(project, first), read(project, second), platform)
        except (FileProblemsError, ValueError):  # adopted, gone, damaged or edited
            pass
        before = recipe_before[1] if old == recipe_before[0] else ""
        segments = tuple(
            Segment(left, right, "" if left == right else f"{RECIPE}, {_flag_or_key(left or right)}")
            for left, right in (mixtures.pairs(_flags(before), _flags(recipe), _flag_or_key) if before else ())
        )
        return NumberSpan(first, second, builds or Difference(platform, (), {}, {}), segments)

    return span


def _flags(text: str) -> list[str]:
    """The lines of a recipe, continued lines joined, cut in front of each flag: a flag is one unit with its values."""
    lines = _CONTINUED.sub(" ", text).splitlines(keepends=True)
    return [token for line in lines for token in _BEFORE_FLAG.split(line) if token]


def _flag_or_key(text: str) -> str:
    words = text.split()
    first = words[0] if words and words[0].startswith("-") else text.strip().partition(":")[0]
    return first.partition("=")[0][:_LONGEST_NAME] or "an empty line"


def definition(project: Project, name: ImageName) -> str:
    """The definition that a number was built from; empty if none is recorded."""
    record = lock_file.read_project_lock(project).image(name)
    return (record.definition if record else None) or ""


def change_of(span: NumberSpan, unit: str) -> str:
    """The change of a unit, as a unified diff of its files."""
    old, new = (mixtures.mixed_files(span.builds, taken, {}) for taken in ((), (unit,)))
    contents = {
        path: [side[path].content if path in side else None for side in (old, new)] for path in sorted({*old, *new})
    }
    # Requirements and recipes are long: only the unit's own lines are shown.
    long = {file.path: file.segments for file in span.builds.files if "python/" in file.path} | {RECIPE: span.recipe}
    for path, segments in long.items():
        own = [segment for segment in segments if segment.unit == unit]
        contents[path] = ["".join(each.old for each in own).encode(), "".join(each.new for each in own).encode()]
    changes = [of_contents(before, after, path) for path, (before, after) in contents.items() if before != after]
    return "".join(
        f"--- {span.old}/{change.path}\n+++ {span.new}/{change.path}\n"
        + "".join(f"{line}\n" for line in change.lines or [f"{change.path} {change.kind}: {change.note}"])
        for change in changes
    )


# Packages that exclude each other, by their own metadata: a mixture with such packages is not built.

_SECONDS = 120
_NO_EXTRA = {"extra": ""}  # of this machine otherwise
_LIST = """
import importlib.metadata, json, re
print(json.dumps({
    re.sub("[-_.]+", "-", dist.metadata["Name"] or "").lower(): [dist.version, dist.requires or []]
    for dist in importlib.metadata.distributions()
}))
"""


def conflict_reader(
    workspace: Workspace, spans: Callable[[int, int], NumberSpan]
) -> Callable[[int, int, frozenset[str]], str]:
    """A function that says why the old number cannot have some units of the new one; empty if no reason is known."""

    installed_in = functools.cache(functools.partial(_installed, workspace))

    @functools.cache
    def conflict(old: int, new: int, taken: frozenset[str]) -> str:
        span = spans(old, new)
        units = _unit_of_packages(span)
        if len(set(units.values())) < 2:
            return ""
        before, after = installed_in(span.old), installed_in(span.new)
        if not before or not after:
            return ""
        sides = {name: after if units.get(name) in taken else before for name in before.keys() | after.keys()}
        mixed = {name: side[name] for name, side in sides.items() if name in side}
        accepted = {*_conflicts(before), *_conflicts(after)}
        return next((text for text in _conflicts(mixed) if text not in accepted), "")

    return conflict


def _unit_of_packages(span: NumberSpan) -> dict[str, str]:
    """The unit that decides over each package that differs."""
    keyed = (segment for segment in span.segments if segment.unit and segment.key)
    units = {segment.key.removeprefix(PACKAGE_KEY): segment.unit for segment in keyed}
    for tree in span.builds.trees:
        if tree.old != tree.new:
            units |= dict.fromkeys(PACKAGES_BUILT_FROM.get(tree.name, (tree.name,)), tree.unit)
    return units


def _conflicts(packages: Packages) -> Iterator[str]:
    """Yields the unmet requirements."""
    versions = {name: version for name, (version, _) in packages.items()}
    for name, (version, requires) in sorted(packages.items()):
        for text in requires:
            if unmet := wheels.unmet_need(text, versions, _NO_EXTRA):
                yield f"{name} {version} requires {unmet[0]}, but would get {unmet[1]}"


def _installed(workspace: Workspace, name: ImageName) -> Packages:
    """The packages of an image with their requirements; none if they are not known."""
    try:
        with (
            work_folder.create(workspace, "bisect", {}) as work,
            containers.running(workspace.engine, str(name), labels=work.labels, workdir="/") as container,
        ):
            python = installed.find_python(container)
            result = container.run([python, "-c", _LIST], timeout=_SECONDS) if python else None
        data = records.parse_json(result.output.strip().splitlines()[-1]) if result and not result.exit_code else {}
        return {str(key): (str(version), [str(each) for each in requires]) for key, (version, requires) in data.items()}
    except (BuilderError, ValueError, IndexError):
        return {}


# The commits of vLLM between two numbers that take it as a wheel, each with the wheel that is published for it.

PACKAGE = "vllm"
"""The package that has a wheel for each commit."""
_REQUIREMENTS = re.compile(r"(?:^|/)python/(?!build\.txt)[^/]+\.txt$")
_PINNED = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)


def repository(project: Project) -> str:
    """The repository with the order of the commits: that of a definition in the project, else vLLM's own."""
    for name in image.definition_names(project):
        try:
            source = image.load_image(project, name, "linux/arm64").git_sources.get(PACKAGE)
        except (FileProblemsError, UsageError):
            continue
        if source:
            return source.git
    return UPSTREAM[PACKAGE]


def _ref(point: str) -> str:
    """The commit of a point, the first digits that a version names, or the tag of a release."""
    if mirror.is_commit(point):
        return point
    return wheels.named(point) or f"v{point.partition('+')[0]}"


def _wheel_commits(workspace: Workspace, span: NumberSpan, question: ListPoints) -> tuple[str, ...]:
    """The commits of the main line between two points, or the versions of the two numbers. Raises SourceError."""
    ends = span.versions(PACKAGE)
    old, new = (_ref(point) for point in (question.after or ends[0], question.before or ends[1]))
    project = workspace.project
    return vllm_versions.main_line_between(
        project.mirrors, repository(project), old, new, lambda text: workspace.report(Message(text))
    )


def _wheel(workspace: Workspace, span: NumberSpan, commit: str, python: PythonRequirements) -> CommitWheel:
    project, settings = workspace.project, git.read_index_settings(workspace.environment)
    address, platform = index(project, span), span.builds.platform
    return wheels.find_commit_wheel(project.state / "wheels", PACKAGE, address, commit, python, platform, settings)


def _require_fitting(
    workspace: Workspace, span: NumberSpan, wheel: CommitWheel, packages: Mapping[str, str], python: str
) -> None:
    """Raises SourceError if a wheel needs other ``packages`` than an image with this Python has: with another torch,
    vLLM cannot be imported. A wheel whose metadata cannot be read may fit."""
    settings = git.read_index_settings(workspace.environment)
    try:
        needs = wheels.read_requirements(
            workspace.project.state / "wheels", wheel, f"{PACKAGE}-{wheel.version}", settings.ca_file
        )
    except SourceError:
        return
    wants = PythonRequirements(python, _GLIBC, ())
    if problem := wheels.conflict(needs, packages, wants, span.builds.platform):
        raise SourceError(f"{PACKAGE} {wheel.version} {problem}")


def index(project: Project, span: NumberSpan) -> str:
    """The address of a commit's index, with ``COMMIT`` in its place: a number's, else the project's, or vLLM's."""
    for text, version in zip(span.builds.dockerfiles[::-1], span.versions(PACKAGE)[::-1], strict=True):
        if address := wheels.template(text, version):
            return address
    return configuration.load_configuration(project).commit_wheels or wheels.PUBLISHED


def _python(project: Project, span: NumberSpan) -> PythonRequirements:
    """The Python of the wheel, by the definition."""
    record = lock_file.read_project_lock(project).image(span.new)
    for definition in reversed(image.load_chain(project, record.definition, record.platform) if record else ()):
        if definition.python and PACKAGE in definition.wheel_sources:
            return definition.python
    raise SourceError(f"the definition of {span.new} no longer installs {PACKAGE} from a wheel")


def commit_facts(workspace: Workspace, point: str) -> CommitFacts:
    """The facts of the commit that a point or a version is. Raises SourceError."""
    mirrors, url = workspace.project.mirrors, repository(workspace.project)
    return vllm_versions.commit_facts(mirrors, url, vllm_versions.commit_of(mirrors, url, _ref(point)))


def to_stay_on(project: Project, span: NumberSpan, definition: str, good: str) -> str:
    """The hint of how to stay on a release or a commit (40 hex digits); empty if only its first digits are known."""
    if mirror.is_commit(good):
        address = index(project, span).replace(wheels.COMMIT, good)
        written, what = f'{{wheel: {PACKAGE}, index: "{address}"}}', "commit"
    elif wheels.named(good):
        return ""
    elif not wheels.named(span.versions(PACKAGE)[1]):
        return f"`builder lock {definition} --update {PACKAGE}={good}` stays on that release"
    else:
        written, what = f"{{wheel: {PACKAGE}=={good}}}", "release"
    file = f"dockerfiles/{definition}/image.yaml"
    return f"`{PACKAGE}: {written}` under `sources` in {file} stays on that {what}"


# The images of others between two bases of one name, by the days of their tags: no image is pulled to list them. Inside
# a day come the commits of vLLM between the two images. The image of a commit is the image before, with the commit's
# wheel; its point is ``TAG+gCOMMIT``.

_IN_BASE = re.compile("(?P<tag>.+)[+]g(?P<commit>[0-9a-f]{40})")
# Of Ubuntu 22.04: no image of vLLM has an older one.
_GLIBC = "2.35"
_WHEEL_FILE = "commit.txt"
_INSTALL = f"""\
RUN --mount=type=bind,source={_WHEEL_FILE},target=/run/builder/{_WHEEL_FILE} \\
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt <<'EOF'
# vLLM of one commit
set -eu
export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt
export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore UV_BREAK_SYSTEM_PACKAGES=1
set -- --no-deps --require-hashes -r /run/builder/{_WHEEL_FILE}
if command -v uv > /dev/null; then
    uv pip install --no-cache --python PYTHON "$@"
else
    PYTHON -m pip install --no-cache-dir "$@"
fi
EOF
"""


def in_base(point: str) -> tuple[str, str]:
    """The tag and the commit of a point inside a day; both empty for any other point."""
    match = _IN_BASE.fullmatch(point)
    return (match["tag"], match["commit"]) if match else ("", "")


def _images_between(
    workspace: Workspace, span: NumberSpan, question: ListPoints, tried: Iterable[BisectCandidate]
) -> tuple[str, ...]:
    """The dated tags between two base images; between two neighbours the commits of vLLM. Raises SourceError."""
    name = images.repository(span.bases[0])
    tags = [tag for _, tag in registry.dated_tags(workspace.engine, name)]
    points = (question.after, question.before)
    first, last = (_dated(workspace, base, point, tags) for base, point in zip(span.bases, points, strict=True))
    old, new = tags.index(first), tags.index(last)
    if between := tags[old + 1 : new] or tags[new + 1 : old][::-1]:
        return tuple(between)
    project, url = workspace.project, repository(workspace.project)
    published = registry.published(
        workspace.engine, name, [first, last], span.builds.platform, workspace.project.engine_cache
    )
    labels = {image.tag: image.labels for image in published}
    commits = []
    for tag, point, number in ((first, points[0], span.old.number), (last, points[1], span.new.number)):
        if digits := re.search("[0-9a-f]{7,40}", labels.get(tag, {}).get("vllm_commit", "")):
            commits.append(vllm_versions.commit_of(project.mirrors, url, digits[0]))
            continue
        candidate = next((each for each in tried if (mixtures.BASE, point) in each.points), of_number(number))
        package = _software(workspace, image_of(workspace, span, candidate)[0], span).sources.get(PACKAGE)
        if not package or not package.commit:
            return ()
        commits.append(vllm_versions.commit_of(project.mirrors, url, package.commit))
    before, after = commits
    if before == after:
        return ()
    line = functools.partial(vllm_versions.main_line_between, project.mirrors, url)
    inside = line(before, after) or line(after, before)[::-1]
    return tuple(f"{first}+g{commit}" for commit in (before, *inside, after))


def _dated(workspace: Workspace, base: str, point: str, tags: Sequence[str]) -> str:
    """The dated tag of a base image: its ``point``, its own tag, or one with its digest, as `latest` has. Raises
    SourceError."""
    named, _, digest = base.partition("@")
    tag = point or images.split_tag(named)[1]
    if tag not in tags:
        digests = registry.digests(workspace.engine, images.repository(base), tags)
        tag = next((tag for tag, own in digests.items() if own == digest), "")
    if not tag:
        raise SourceError(f"{base} is not one of the {len(tags)} dated images of {images.repository(base)}")
    return tag


def _files_inside(
    workspace: Workspace, span: NumberSpan, candidate: BisectCandidate, tag: str, commit: str
) -> dict[str, StagedFile]:
    """The files of a candidate whose base has the ``tag`` and the wheel of a commit. Raises SourceError if the commit
    has no wheel that fits the packages of the image."""
    base = _base_line(workspace, span, tag)
    # The engine need not have the base: the candidate on the same base was tried, and has its software.
    at = replace(candidate, points=((mixtures.BASE, tag),))
    if base == span.bases[0]:
        at = replace(candidate, points=(), taken=tuple(unit for unit in candidate.taken if unit != mixtures.BASE))
    software = _software(workspace, image_of(workspace, span, at)[0], span)
    wheel = _wheel(workspace, span, commit, PythonRequirements(software.python, _GLIBC, ()))
    _require_fitting(workspace, span, wheel, software.packages, software.python)
    values = {mixtures.BASE: base, f"{PACKAGE} version": wheel.version, f"{PACKAGE} commit": commit}
    files = mixtures.mixed_files(span.builds, span.units_of_image(candidate), values)
    install = _INSTALL.replace("PYTHON", shlex.quote(software.executable))
    for path, file in files.items():
        text = file.content.decode(errors="replace") if path.rpartition("/")[2] == "Dockerfile" else ""
        if start := re.search(rf"^FROM .*{re.escape(base)}.*\n", text, re.MULTILINE):
            changed = StagedFile(f"{text[: start.end()]}{install}{text[start.end() :]}".encode())
            listed = path.removesuffix("Dockerfile") + _WHEEL_FILE
            return {**files, path: changed, listed: StagedFile(wheel.line(PACKAGE).encode())}
    raise SourceError(f"no Dockerfile begins with {base}")


def _software(workspace: Workspace, image: str, span: NumberSpan) -> InstalledSoftware:
    try:
        with work_folder.create(workspace, "bisect", {}) as work:
            return installed.read_installed(workspace.engine, image, work.labels, span.builds.platform)
    except (ImageContentsError, ImageStateError) as error:
        raise SourceError(error.message, hint=error.hint) from None


def _base_line(workspace: Workspace, span: NumberSpan, tag: str) -> str:
    """The base image with this tag, as a Dockerfile names it. Raises SourceError if the registry does not have it."""
    reference = f"{images.repository(span.bases[0])}:{tag}"
    try:
        digest = registry.manifest_digest(workspace.engine, reference)
    except TransferError as error:
        raise SourceError(error.message, hint=error.hint) from None
    if digest is None:
        raise SourceError(f"the registry no longer has {reference}")
    return f"{reference}@{digest}"


# The points of a unit between its two ends: commits of a source from git, versions of a package, images by their days.


def row(workspace: Workspace, span: NumberSpan, question: ListPoints, tried: Iterable[BisectCandidate] = ()) -> Row:
    """The points of a unit; none if nothing is known between its ends. ``tried`` are the candidates with images. A
    repository or an index that does not answer is reported."""
    unit, after, before = question.unit, question.after, question.before
    listed: tuple[str, ...] = ()
    try:
        if tree := span.tree(unit):
            ends = (after or tree.old[1], before or tree.new[1])
            listed = vllm_versions.main_line_between(
                workspace.project.mirrors,
                tree.new[0],
                *ends,
                lambda text: workspace.report(Message(text)),
                inside_merge=True,
            )
        elif unit == mixtures.BASE and all(span.bases):
            listed = () if in_base(after)[0] else _images_between(workspace, span, question, tried)
        elif package := span.package(unit):
            ends = span.versions(package)
            if not (after or before or any(map(wheels.named, ends))):
                listed = packages.releases_between(package, *ends, workspace.environment)
            if not listed and package == PACKAGE:
                listed = _wheel_commits(workspace, span, question)
    except SourceError as error:
        workspace.report(Message(f"{unit}: the versions in between cannot be listed: {error.message.splitlines()[0]}"))
    return Row(unit, after, before, listed)


def image_of(
    workspace: Workspace, span: NumberSpan, candidate: BisectCandidate
) -> tuple[str, tuple[dict[str, StagedFile], dict[str, object]] | None]:
    """The tag of a candidate's image, and its build directory as files and targets, None for a number's image. Raises
    SourceError for a point that cannot be had, or that does not go with the rest."""
    if candidate.number is not None:
        return str(ImageName(span.old.repository, candidate.number)), None
    taken = span.units_of_image(candidate)
    every = {unit for axis in span.builds.axes for unit in axis.units}
    if not taken or (taken >= every and not candidate.points):
        return str(span.new if taken else span.old), None
    build = _build_of(workspace, span, candidate, taken)
    content = json.dumps([plan_model.files_hash(build[0]), build[1]], sort_keys=True)
    return f"{candidate_repository(workspace.project)}:{hashlib.sha256(content.encode()).hexdigest()[:16]}", build


def candidate_repository(project: Project) -> str:
    """The repository of a project's candidates in the engine."""
    return f"builder-bisect-{claims.project_identity(project).id[:8].lower()}"


def _build_of(
    workspace: Workspace, span: NumberSpan, candidate: BisectCandidate, taken: frozenset[str]
) -> tuple[dict[str, StagedFile], dict[str, object]]:
    values: dict[str, str] = {}
    added: list[CommitWheel] = []
    tag, commit = in_base(dict(candidate.points).get(mixtures.BASE, ""))
    if commit:
        files = _files_inside(workspace, span, candidate, tag, commit)
        return files, mixtures.mixed_targets(span.builds, taken, values)
    for unit, point in candidate.points:
        if tree := span.tree(unit):
            url, within = tree.new[0], (tree.old[1], tree.new[1])
            facts = vllm_versions.commit_facts(workspace.project.mirrors, url, point, within=within)
            date = int(datetime.fromisoformat(facts.date).timestamp())
            values |= {f"{unit} commit": point, f"{unit} version": facts.version, f"{unit} date": str(date)}
        elif unit == mixtures.BASE:
            values[mixtures.BASE] = _base_line(workspace, span, point)
        elif mirror.is_commit(point) and span.package(unit) == PACKAGE:
            wheel = _wheel(workspace, span, point, _python(workspace.project, span))
            values |= {f"{unit} version": wheel.version, f"{unit} commit": point, f"{unit} index": point}
            values[f"{PACKAGE_KEY}{PACKAGE}"] = wheel.line(PACKAGE)
            added.append(wheel)
        elif package := span.package(unit):
            line = packages.line(package, point, workspace.environment)
            values |= {f"{PACKAGE_KEY}{package}": line, f"{unit} version": point}
    files = mixtures.mixed_files(span.builds, taken, values)
    for wheel in added:
        texts = (file.content.decode() for path, file in files.items() if _REQUIREMENTS.search(path))
        packages_of_files = dict(pair for text in texts for pair in _PINNED.findall(text))
        _require_fitting(workspace, span, wheel, packages_of_files, _python(workspace.project, span).version)
    return files, mixtures.mixed_targets(span.builds, taken, values)
