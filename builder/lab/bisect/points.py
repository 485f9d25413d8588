"""The points of a unit between two numbers, such as commits or versions, and the image of a candidate at a point."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from builder.base.errors import (
    BuilderError,
    FileProblemsError,
    ImageContentsError,
    ImageStateError,
    SourceError,
    UsageError,
)
from builder.base.events import Message
from builder.building import work_folder
from builder.definitions import configuration, image
from builder.definitions.image import PACKAGES_BUILT_FROM, PythonRequirements
from builder.engine import images, installed, registry
from builder.lab.bisect import mixtures
from builder.lab.bisect.mixtures import BASE, PACKAGE_KEY, NumberSpan
from builder.lab.bisect.search import BisectCandidate, IsImpossible, ListPoints, Row, of_number
from builder.lab.changes import UPSTREAM
from builder.lock import lock_file
from builder.lock.model import BasePin, ImageName, Pins
from builder.numbers import claims
from builder.pins import packages
from builder.plan import making, plan_model
from builder.plan.plan_model import StagedFile
from builder.sources import git, mirror, vllm_versions, wheels

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.engine.installed import InstalledSoftware
    from builder.numbers.workspace import Workspace
    from builder.sources.vllm_versions import CommitFacts
    from builder.sources.wheels import CommitWheel


# The points of a unit between its two ends: commits of a source from git, versions of a package, or dated images.

PACKAGE = "vllm"
"""The package with a wheel for each commit."""


def row(workspace: Workspace, span: NumberSpan, question: ListPoints, tried: Iterable[BisectCandidate] = ()) -> Row:
    """The points of a unit; empty if no points between its ends are known. ``tried`` are the candidates with images.
    Reports a repository or index that does not answer."""
    unit, after, before = question.unit, question.after, question.before

    def line(url: str, old: str, new: str, *, inside_merge: bool = False) -> tuple[str, ...]:
        upstream = mirror.locate(workspace.project.mirrors, url, lambda text: workspace.report(Message(text)))
        return vllm_versions.main_line_between(upstream, old, new, inside_merge=inside_merge)

    listed: tuple[str, ...] = ()
    try:
        if tree := span.tree(unit):
            listed = line(tree.new[0], after or tree.old[1], before or tree.new[1], inside_merge=True)
        elif unit == BASE and all(span.bases):
            listed = () if in_base(after)[0] else _images_between(workspace, span, question, tried)
        elif package := span.package(unit):
            first, last = span.versions(package)
            if not (after or before or wheels.named(first) or wheels.named(last)):
                listed = packages.releases_between(package, first, last, workspace.environment)
            if not listed and package == PACKAGE:
                listed = line(repository(workspace.project), _ref(after or first), _ref(before or last))
    except SourceError as error:
        workspace.report(Message(f"{unit}: the versions in between cannot be listed: {error.message.splitlines()[0]}"))
    return Row(unit, after, before, listed)


# The image of a candidate: the number's own image, or an image with a tag derived from its content.


def image_of(
    workspace: Workspace, span: NumberSpan, candidate: BisectCandidate
) -> tuple[str, tuple[dict[str, StagedFile], dict[str, object]] | None]:
    """The tag of a candidate's image, and its build directory as files and targets (None for a number's image). Raises
    SourceError if a point is not available, or does not fit the other parts."""
    if candidate.number is not None:
        return str(ImageName(span.old.repository, candidate.number)), None
    units = {unit for axis in span.axes if axis.name != mixtures.RECIPE for unit in axis.units}
    taken = units.intersection(candidate.taken)
    if not taken or (taken == units and not candidate.point):
        return str(span.new if taken else span.old), None
    build = _build_of(workspace, span, candidate)
    content = json.dumps([plan_model.files_hash(build[0]), build[1]], sort_keys=True)
    return f"{candidate_repository(workspace.project)}:{hashlib.sha256(content.encode()).hexdigest()[:16]}", build


def definition(project: Project, name: ImageName) -> str:
    """The definition that a number was built from; empty if not recorded."""
    record = lock_file.read_project_lock(project).image(name)
    return (record.definition if record else None) or ""


def candidate_repository(project: Project) -> str:
    """The repository of a project's candidates in the engine."""
    return f"builder-bisect-{claims.project_identity(project).id[:8].lower()}"


def _build_of(
    workspace: Workspace, span: NumberSpan, candidate: BisectCandidate
) -> tuple[dict[str, StagedFile], dict[str, object]]:
    values: dict[str, str] = {}
    unit, point = candidate.point or ("", "")
    if tree := span.tree(unit):
        url, within = tree.new[0], (tree.old[1], tree.new[1])
        facts = vllm_versions.commit_facts(mirror.locate(workspace.project.mirrors, url), point, within=within)
        date = int(datetime.fromisoformat(facts.date).timestamp())
        values = {f"{unit} commit": point, f"{unit} version": facts.version, f"{unit} date": str(date)}
    elif unit == BASE:
        tag, commit = in_base(point)
        if commit:
            files = _files_inside(workspace, span, candidate, tag, commit)
            return files, mixtures.mixed_targets(span, candidate.taken, {})
        values = {BASE: _base_line(workspace, span, point)}
    elif mirror.is_commit(point) and span.package(unit) == PACKAGE:
        others = mixtures.mixed_files(span, candidate.taken, {})
        texts = (file.content.decode() for path, file in others.items() if _REQUIREMENTS.search(path))
        pinned = dict(pair for text in texts for pair in _PINNED.findall(text))
        wheel = _wheel(workspace, span, point, _python(workspace.project, span), pinned)
        values = {f"{unit} version": wheel.version, f"{unit} commit": point, f"{unit} index": point}
        values[f"{PACKAGE_KEY}{PACKAGE}"] = wheel.line(PACKAGE)
    elif package := span.package(unit):
        line = packages.line(package, point, workspace.environment)
        values = {f"{PACKAGE_KEY}{package}": line, f"{unit} version": point}
    return mixtures.mixed_files(span, candidate.taken, values), mixtures.mixed_targets(span, candidate.taken, values)


# Packages that exclude each other, by their own metadata. A mixture with such packages is not built.

_NO_EXTRA = {"extra": ""}  # otherwise, packaging uses the values of this machine


def conflict_reader(workspace: Workspace, spans: Callable[[int, int], NumberSpan]) -> IsImpossible:
    """Returns a function that is true if the old number is known to be incompatible with these units of the new
    number."""

    @functools.cache
    def software_of(number: int) -> InstalledSoftware | None:
        with suppress(BuilderError):
            return _software(workspace, spans(number, number), of_number(number))
        return None

    @functools.cache
    def conflict(old: int, new: int, taken: frozenset[str]) -> bool:
        span = spans(old, new)
        # The unit that decides the version of each package that differs.
        keyed = (segment for segment in span.segments if segment.unit and segment.key)
        units = {segment.key.removeprefix(PACKAGE_KEY): segment.unit for segment in keyed}
        for tree in span.trees:
            if tree.old != tree.new:
                units |= dict.fromkeys(PACKAGES_BUILT_FROM.get(tree.name, (tree.name,)), tree.unit)
        if len(set(units.values())) < 2:
            return False
        before, after = software_of(old), software_of(new)
        if not before or not after:
            return False
        every = {**before.packages, **after.packages}
        accepted = {*_conflicts(dict.fromkeys(every, before)), *_conflicts(dict.fromkeys(every, after))}
        mixed = {name: after if units.get(name) in taken else before for name in every}
        return not accepted.issuperset(_conflicts(mixed))

    return conflict


def _conflicts(sides: Mapping[str, InstalledSoftware]) -> Iterator[tuple[str, str, tuple[str, str]]]:
    """Yields the packages with unmet requirements. ``sides`` has the software that each package comes from."""
    versions = {name: side.packages[name] for name, side in sides.items() if name in side.packages}
    for name, version in versions.items():
        for text in sides[name].requires.get(name, ()):
            if unmet := wheels.unmet_need(text, versions, _NO_EXTRA):
                yield name, version, unmet


# The commits of vLLM between two numbers that install it from a wheel, each with the published wheel of the commit.

_REQUIREMENTS = re.compile(r"(?:^|/)python/(?!build\.txt)[^/]+\.txt$")
_PINNED = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)


def repository(project: Project) -> str:
    """The repository that gives the order of the commits: from a definition of the project, or vLLM's own."""
    for name in image.definition_names(project):
        with suppress(FileProblemsError, UsageError):
            if source := image.load_image(project, name, "linux/arm64").git_sources.get(PACKAGE):
                return source.git
    return UPSTREAM[PACKAGE]


def _ref(point: str) -> str:
    """The commit of a point, the first digits of a commit in a version, or the tag of a release."""
    if mirror.is_commit(point):
        return point
    return wheels.named(point) or f"v{point.partition('+')[0]}"


def index(project: Project, span: NumberSpan) -> str:
    """The address of the index of a commit, with ``COMMIT`` as the placeholder: from a number, or the project, or
    vLLM's."""
    dockerfiles = [file for file in span.files if file.path.rpartition("/")[2] == "Dockerfile"]
    for is_new, version in zip((True, False), span.versions(PACKAGE)[::-1], strict=True):
        for side in (file.new if is_new else file.old for file in dockerfiles):
            if side and (address := wheels.template(side.content.decode(), version)):
                return address
    return configuration.load_configuration(project).commit_wheels or wheels.PUBLISHED


def _wheel(
    workspace: Workspace, span: NumberSpan, commit: str, python: PythonRequirements, present: Mapping[str, str]
) -> CommitWheel:
    """The wheel of a commit. Raises SourceError if this Python and platform have none, or if its requirements conflict
    with the packages that are ``present``: with another torch, vLLM cannot be imported. A wheel with unreadable
    metadata is accepted."""
    cache, settings = workspace.project.state / "wheels", git.read_index_settings(workspace.environment)
    address = index(workspace.project, span)
    wheel = wheels.find_commit_wheel(cache, PACKAGE, address, commit, python, span.platform, settings)
    needs: tuple[str, ...] = ()
    with suppress(SourceError):
        needs = wheels.read_requirements(cache, wheel, settings.ca_file)
    if problem := wheels.conflict(needs, present, span.platform, python.version):
        raise SourceError(f"{PACKAGE} {wheel.version} {problem}")
    return wheel


def _python(project: Project, span: NumberSpan) -> PythonRequirements:
    """The Python of the wheel, from the definition."""
    record = lock_file.read_project_lock(project).image(span.new)
    for definition in reversed(image.load_chain(project, record.definition, record.platform) if record else ()):
        if definition.python and PACKAGE in definition.wheel_sources:
            return definition.python
    raise SourceError(f"the definition of {span.new} no longer installs {PACKAGE} from a wheel")


def commit_facts(workspace: Workspace, point: str) -> CommitFacts:
    """The facts of the commit of a point or version. Raises SourceError."""
    upstream = mirror.locate(workspace.project.mirrors, repository(workspace.project))
    return vllm_versions.commit_facts(upstream, vllm_versions.commit_of(upstream, _ref(point)))


def to_stay_on(project: Project, span: NumberSpan, definition: str, good: str) -> str:
    """The hint for staying on a release or commit (40 hex digits); empty if only the first digits of the commit are
    known."""
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


# Third-party images between two bases of the same name, by the dates in their tags. Listing them pulls no image.
# Between two images of neighbouring days come the commits of vLLM. The image of such a commit is the earlier image with
# the commit's wheel; its point is ``TAG+gCOMMIT``.

_IN_BASE = re.compile("(?P<tag>.+)[+]g(?P<commit>[0-9a-f]{40})")
# The version of Ubuntu 22.04: no image of vLLM has an older one.
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
    """The tag and the commit of a point between two dated images; both empty for any other point."""
    match = _IN_BASE.fullmatch(point)
    return (match["tag"], match["commit"]) if match else ("", "")


def _images_between(
    workspace: Workspace, span: NumberSpan, question: ListPoints, tried: Iterable[BisectCandidate]
) -> tuple[str, ...]:
    """The dated tags between two base images; for two neighbouring tags, the commits of vLLM. Raises SourceError."""
    project, name, points = workspace.project, images.repository(span.bases[0]), (question.after, question.before)
    tags = [tag for _, tag in registry.dated_tags(workspace.engine, name)]
    first, last = (_dated(workspace, base, point, tags) for base, point in zip(span.bases, points, strict=True))
    old, new = tags.index(first), tags.index(last)
    if between := tags[old + 1 : new] or tags[new + 1 : old][::-1]:
        return tuple(between)
    upstream = mirror.locate(project.mirrors, repository(project))
    published = registry.published(workspace.engine, name, [first, last], span.platform, project.engine_cache)
    labels = {image.tag: image.labels for image in published}
    commits = []
    for tag, point, number in ((first, points[0], span.old.number), (last, points[1], span.new.number)):
        match = re.search("[0-9a-f]{7,40}", labels.get(tag, {}).get("vllm_commit", ""))
        digits = match[0] if match else ""
        if not digits:
            candidate = next((each for each in tried if each.point == (BASE, point)), of_number(number))
            package = _software(workspace, span, candidate).sources.get(PACKAGE)
            digits = (package.commit if package else None) or ""
        if not digits:
            return ()
        commits.append(vllm_versions.commit_of(upstream, digits))
    before, after = commits
    if before == after:
        return ()
    line = functools.partial(vllm_versions.main_line_between, upstream)
    inside = line(before, after) or line(after, before)[::-1]
    return tuple(f"{first}+g{commit}" for commit in (before, *inside, after))


def _dated(workspace: Workspace, base: str, point: str, tags: Sequence[str]) -> str:
    """The dated tag of a base image: its ``point``, its own tag, or a dated tag with the same digest. Raises
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
    """The files of a candidate whose base is the image with this ``tag`` plus the wheel of a commit. Raises SourceError
    if the commit has no wheel for the packages of the image."""
    base = _base_line(workspace, span, tag)
    # The base may be missing in the engine. A candidate on this base was tried, and has its software.
    at = replace(candidate, point=(BASE, tag))
    if base == span.bases[0]:
        at = replace(candidate, point=None, taken=tuple(unit for unit in candidate.taken if unit != BASE))
    software = _software(workspace, span, at)
    python = PythonRequirements(software.python, _GLIBC, ())
    wheel = _wheel(workspace, span, commit, python, software.packages)
    values = {BASE: base, f"{PACKAGE} version": wheel.version, f"{PACKAGE} commit": commit}
    files = mixtures.mixed_files(span, candidate.taken, values)
    install = _INSTALL.replace("PYTHON", shlex.quote(software.executable))
    for path, file in files.items():
        text = file.content.decode(errors="replace") if path.rpartition("/")[2] == "Dockerfile" else ""
        if start := re.search(rf"^FROM .*{re.escape(base)}.*\n", text, re.MULTILINE):
            changed = StagedFile(f"{text[: start.end()]}{install}{text[start.end() :]}".encode())
            listed = path.removesuffix("Dockerfile") + _WHEEL_FILE
            return {**files, path: changed, listed: StagedFile(wheel.line(PACKAGE).encode())}
    raise SourceError(f"no Dockerfile begins with {base}")


def _software(workspace: Workspace, span: NumberSpan, candidate: BisectCandidate) -> InstalledSoftware:
    """The software in the image of a candidate that was tried. Raises SourceError."""
    tag, _ = image_of(workspace, span, candidate)
    try:
        with work_folder.create(workspace, "bisect", {}) as work:
            return installed.read_installed(workspace.engine, tag, work.labels, span.platform)
    except (ImageContentsError, ImageStateError) as error:
        raise SourceError(error.message, hint=error.hint) from None


def _base_line(workspace: Workspace, span: NumberSpan, tag: str) -> str:
    """The base image with this tag, in the form for a Dockerfile. Raises SourceError if it is not available."""
    reference = f"{images.repository(span.bases[0])}:{tag}"
    resolved = installed.resolve_base(workspace.engine, reference, span.platform, workspace.report)
    return making.base_reference(Pins(BasePin(reference, resolved)))
