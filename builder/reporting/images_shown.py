"""The images of the page: what is in each, and what changed since the number before it."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from builder import humanize
from builder.comparing import changes, compared_images
from builder.errors import FileProblemsError, SourceError, UnsafePathError
from builder.events import Message
from builder.evidence import witness
from builder.lock.model import ImageName
from builder.reporting.page import PageChange, PageCommit, PageImage, PageSource
from builder.sources.git import mirror_reading

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from builder.comparing.changes import Changes, PackageChange, SourceChange
    from builder.comparing.compared_images import ComparedImage
    from builder.events import Report
    from builder.evidence.overview import ImageEvidence
    from builder.lock.model import Lock, Version
    from builder.project import Project
    from builder.reporting.page import Disclosure

_LISTED_COMMITS = 20
_INCOMPLETE = "only versions and mods can be compared: a build directory is missing, or was adopted"
_FULL_COMMIT = re.compile("[0-9a-f]{40}")
_GITHUB = re.compile(r"https://github\.com/[A-Za-z0-9._-]+/[A-Za-z0-9._-]+?(?:\.git)?/?")


def of(
    project: Project,
    lock: Lock,
    names: Collection[ImageName],
    evidence: Mapping[ImageName, ImageEvidence],
    disclosure: Disclosure,
    report: Report,
) -> tuple[PageImage, ...]:
    """The images called ``names``. Upstream commits are those that the project's mirrors have: nothing is fetched."""
    if any((project.mirrors).glob("*.git")):
        report(Message("reading upstream's commits from the mirrors that are here"))
    commits = functools.cache(functools.partial(_commits, project))
    sides: dict[ImageName, ComparedImage | str] = {name: _side(project, lock, name) for name in names}
    return tuple(_image(project, lock, name, sides, evidence, disclosure, commits) for name in names)


def _side(project: Project, lock: Lock, name: ImageName) -> ComparedImage | str:
    """An image to be compared, or the reason why it cannot be."""
    try:
        return compared_images.of(project, lock, name)[0]
    except (UnsafePathError, FileProblemsError) as error:
        return error.message


def _image(
    project: Project,
    lock: Lock,
    name: ImageName,
    sides: Mapping[ImageName, ComparedImage | str],
    evidence: Mapping[ImageName, ImageEvidence],
    disclosure: Disclosure,
    commits: functools._lru_cache_wrapper[mirror_reading.CommitRange | None],
) -> PageImage:
    repository = lock.images[name.repository]
    record = repository.numbers[name.number]
    side = sides[name]
    own = compared_images.contents_of(lock, side) if not isinstance(side, str) else None
    has_packages = own is not None and bool(own.packages)
    return PageImage(
        image=disclosure.name(str(name)),
        repository=disclosure.name(name.repository),
        number=name.number,
        built=record.built,
        current=repository.current == name.number,
        pinned=record.pinned,
        pruned=record.pruned,
        adopted=disclosure.name(record.adopted.image) if record.adopted else None,
        definition=record.definition,
        platform=record.platform,
        size=record.size,
        status=record.status,
        note=disclosure.note(record.note),
        standing=evidence[name].standing if name in evidence else None,
        versions={source: _version(version) for source, version in sorted(record.versions.items(), reverse=True)},
        base=disclosure.name(own.base) if own else "",
        mods=tuple(record.mods),
        packages=len(own.packages) if own and has_packages else None,
        witnesses=len(witness.look(project, name, record.fingerprint).statements),
        models=tuple(map(disclosure.name, lock.models_on(name))),
        change=_change(lock, name, sides, disclosure, commits),
    )


def _change(
    lock: Lock,
    name: ImageName,
    sides: Mapping[ImageName, ComparedImage | str],
    disclosure: Disclosure,
    commits: functools._lru_cache_wrapper[mirror_reading.CommitRange | None],
) -> PageChange | None:
    """The changes since the number before; None of the first one."""
    before = max((number for number in lock.images[name.repository].numbers if number < name.number), default=None)
    if before is None:
        return None
    origin = ImageName(name.repository, before)
    since = disclosure.name(str(origin))
    old, new = sides[origin], sides[name]
    if isinstance(old, str) or isinstance(new, str):
        fault = str(old if isinstance(old, str) else new)
        return PageChange(since, (), (), (), (), disclosure.note(fault) or "a build directory cannot be read")
    if compared_images.are_same(old, new):
        return PageChange(since, (), (), (), (), "")
    differing = changes.between(*compared_images.contents_of_both(lock, old, new))
    is_whole = bool(old.directory and new.directory)
    return PageChange(
        since=since,
        sources=tuple(_source(change, commits) for change in differing.sources),
        packages=tuple(map(_package, differing.packages)),
        mods=tuple(_mods(old, new)),
        others=tuple(_others(differing, disclosure)),
        unknown="" if is_whole else _INCOMPLETE,
    )


def _others(differing: Changes, disclosure: Disclosure) -> Iterator[str]:
    if differing.base:
        before, after = (_base(text, disclosure) for text in (differing.base.before, differing.base.after))
        yield f"base image {before} → {after}"
    for pull in differing.pulls:
        yield f"pull request {pull.number} of {pull.source} {pull.kind}"
    if differing.build_packages:
        yield f"{humanize.counted(len(differing.build_packages), 'package')} to build with"


def _mods(old: ComparedImage, new: ComparedImage) -> Iterator[str]:
    before, after = old.image.mods, new.image.mods
    for name in dict.fromkeys([*after, *before]):
        if before.get(name) != after.get(name):
            yield f"{name} {changes.kind_of(before.get(name), after.get(name))}"


def _package(change: PackageChange) -> str:
    if change.kind == "other files":
        return f"{change.name} {change.after}: other files"
    return f"{change.name} {change.before or 'new'} → {change.after or 'gone'}"


def _base(text: str | None, disclosure: Disclosure) -> str:
    image, _, digest = (text or "none").partition(" ")
    return f"{disclosure.name(image)} {humanize.digest(digest)}".strip()


def _version(version: Version | None) -> str:
    if version is None:
        return ""
    return version.version + (f" ({version.commit[:9]})" if version.commit else "")


def _source(
    change: SourceChange, commits: functools._lru_cache_wrapper[mirror_reading.CommitRange | None]
) -> PageSource:
    old, new = (version.commit or "" if version else "" for version in (change.before, change.after))
    is_exact = old != new and bool(_FULL_COMMIT.fullmatch(old) and _FULL_COMMIT.fullmatch(new))
    between = commits(change.git, old, new) if is_exact and change.git else None
    address = change.git.removesuffix("/").removesuffix(".git") if _GITHUB.fullmatch(change.git) else ""
    return PageSource(
        name=change.name,
        before=_version(change.before),
        after=_version(change.after),
        total=between.total if between else None,
        commits=tuple(PageCommit(each.commit, each.title) for each in between.commits) if between else (),
        compare=f"{address}/compare/{old}...{new}" if address and is_exact else "",
    )


def _commits(project: Project, git: str, old: str, new: str) -> mirror_reading.CommitRange | None:
    try:
        return mirror_reading.commits_present(project.mirrors, git, old, new, _LISTED_COMMITS)
    except SourceError:
        return None
