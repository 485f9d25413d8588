"""A resolver queries each source once in a command, so all targets get the same answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from builder.base import words
from builder.base.errors import (
    BuildFailedError,
    EngineError,
    ImageContentsError,
    ImageStateError,
    SourceError,
    TransferError,
)
from builder.base.events import Message, Report, TransferProgress
from builder.base.values import dataclass, field
from builder.engine import containers, images, installed, registry, transfer
from builder.engine.images import repository
from builder.lock.model import BasePin, LockedPackage, Version
from builder.sources import mirror

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.definitions.source_patches import SourcePatch
    from builder.engine.client import Endpoint
    from builder.engine.transfer import LayerProgress
    from builder.lock.model import GitPin
    from builder.numbers.workspace import Workspace
    from builder.sources.git import GitRepository, UserSettings
    from builder.sources.pulls import Vendored


T = TypeVar("T")


@dataclass
class Resolver:
    """The user's settings, the project's mirrors, functions that resolve a base image and read its contents for a
    platform, and the answers so far."""

    project: Project
    settings: UserSettings
    find_tag: Callable[[str], str]
    resolve_base: Callable[[str, str], str]
    read_base: Callable[[BasePin, str], BaseContents]
    report: Report
    _answers: dict[tuple[object, ...], Any] = field(default_factory=dict)

    def say(self, text: str) -> None:
        self.report(Message(text))

    def mirror(self, url: str) -> GitRepository:
        return mirror.locate(self.project.mirrors, url, self.say)

    def _once(self, ask: Callable[[], T], *question: object) -> T:
        if question not in self._answers:
            try:
                self._answers[question] = ask()
            except SourceError as error:
                self._answers[question] = error
        answer: T | SourceError = self._answers[question]
        if isinstance(answer, SourceError):
            raise answer
        return answer

    def tagged(self, reference: str) -> str:
        """``NAME:TAG`` for a base image with a day, NAME@DATE. Raises SourceError."""

        def ask() -> str:
            tagged = self.find_tag(reference)
            if tagged != reference:
                self.say(f"{reference} means {tagged}")
            return tagged

        return self._once(ask, "tag", reference)

    def base(self, reference: str, platform: str) -> str:
        """The digest or fingerprint of a base image's tag. Raises SourceError."""

        def ask() -> str:
            self.say(f"resolving the base image {reference}")
            return self.resolve_base(reference, platform)

        return self._once(ask, "base", reference, platform)

    def contents(self, base: BasePin, platform: str) -> BaseContents:
        """The contents of a pinned base image. Raises SourceError."""
        return self._once(lambda: self.read_base(base, platform), "contents", base.resolved, platform)

    def commit(self, name: str, url: str, ref: str) -> GitPin:
        """The pin of a ref of the source ``name``, which messages name if it is not empty. Raises SourceError."""

        def ask() -> GitPin:
            if name:
                self.say(f"resolving {name} {ref}")
            return mirror.resolve_ref(self.mirror(url), ref)

        return self._once(ask, "commit", url, ref)

    def release(self, name: str, url: str) -> str:
        """The tag of the newest release of ``name`` that has the age in builder.yaml. Raises SourceError."""
        from builder.definitions import configuration
        from builder.sources import vllm_versions

        def ask() -> str:
            days = configuration.load_configuration(self.project).release_age
            choice = vllm_versions.choose_release(self.mirror(url), days, datetime.now(UTC))
            young = [f"{release.tag} of {release.since:%Y-%m-%d}" for release in choice.too_young]
            self.say(
                f"{name}: {choice.taken.tag} of {choice.taken.since:%Y-%m-%d} is the newest release that is at least"
                f" {days} days old" + (f"; too young: {', '.join(young)}" if young else "")
            )
            return f"refs/tags/{choice.taken.tag}"

        return self._once(ask, "release", url)

    def pull(self, url: str, pull: SourcePatch, commit: str, earlier: tuple[Vendored, ...]) -> Vendored:
        """The present head of a pull request, for ``commit`` with the ``earlier`` patches. Raises SourceError."""
        from builder.sources import pulls

        question = pull, commit, earlier
        return self._once(lambda: pulls.vendor(self.mirror(url), *question), "pull", url, *question)


def make_resolver(workspace: Workspace) -> Resolver:
    from builder.sources import git

    return Resolver(
        project=workspace.project,
        settings=git.read_index_settings(workspace.environment),
        find_tag=lambda reference: registry.on_day(workspace.engine, reference),
        resolve_base=lambda reference, platform: installed.resolve_base(
            workspace.engine, reference, platform, workspace.report
        ),
        read_base=lambda pin, platform: read_base_contents(workspace.engine, pin, platform, workspace.report),
        report=workspace.report,
    )


# The contents of a community base image, read from the engine's copy: its vLLM, FlashInfer and packages. If the engine
# has no copy, the image is pulled; a build on that base requires it anyway.


@dataclass(frozen=True)
class BaseContents:
    """The contents of a base image: its date (RFC 3339 UTC, empty if unknown), the version of its Python, the sources
    that it contains, and all its Python packages."""

    created: str
    python: str
    sources: Mapping[str, Version]
    packages: tuple[LockedPackage, ...]


def read_base_contents(endpoint: Endpoint, pin: BasePin, platform: str, report: Report) -> BaseContents:
    """Reads the contents of a pinned base, and pulls it first if the engine lacks it. Raises SourceError if the base
    cannot be pulled, differs from the pin, or cannot run here."""
    with _read_errors(pin):
        details = _pulled(endpoint, pin, platform, report)
        report(Message(f"reading what {pin.requested} contains"))
        software = installed.read_installed(endpoint, base_reference(pin), containers.reading_labels(), platform)
    sources = {name: Version(package.version, package.commit) for name, package in software.sources.items()}
    packages = tuple(LockedPackage(name, version, ()) for name, version in software.packages.items())
    return BaseContents(_date(details.created), software.python, sources, packages)


def ensure_base_present(endpoint: Endpoint, pin: BasePin, platform: str, report: Report) -> None:
    """Pulls a pinned base if the engine lacks it. Raises SourceError."""
    with _read_errors(pin):
        _pulled(endpoint, pin, platform, report)


def read_base_files(
    endpoint: Endpoint, pin: BasePin, platform: str, package: str, paths: Collection[str]
) -> dict[str, bytes]:
    """Reads the files ``paths`` (``vllm/config.py``) of the importable ``package`` in a pinned base. Missing files are
    left out. Raises SourceError if the engine lacks the base: nothing is pulled."""
    with _read_errors(pin):
        if _present(endpoint, pin, platform) is None:
            raise SourceError(f"this engine does not have the pinned image of {pin.requested}; a build pulls it")
        return installed.read_files(
            endpoint, base_reference(pin), containers.reading_labels(), package, paths, platform
        )


def base_reference(pin: BasePin) -> str:
    local = pin.resolved.startswith(installed.LOCAL)
    return pin.requested if local else f"{repository(pin.requested)}@{pin.resolved}"


@contextmanager
def _read_errors(pin: BasePin) -> Iterator[None]:
    try:
        yield
    except (BuildFailedError, EngineError, ImageContentsError, ImageStateError, TransferError) as error:
        raise SourceError(f"{pin.requested} cannot be read: {error.message}", hint=error.hint) from None


def _pulled(endpoint: Endpoint, pin: BasePin, platform: str, report: Report) -> images.ImageDetails:
    if details := _present(endpoint, pin, platform):
        return details
    report(Message(f"pulling {pin.requested}, to read its contents"))
    path, _, digest = base_reference(pin).partition("@")
    if not digest:
        message = f"this engine lacks the pinned image of {path}, which came from no registry"
        pins = "pin the image that has this name now: `builder lock DEFINITION --update base`"
        raise SourceError(message, hint=f"load the pinned image again (`docker load`); or {pins}")

    def on_progress(progress: LayerProgress) -> None:
        report(TransferProgress(path, progress.current, progress.total))

    transfer.pull_layers(endpoint, path, digest, registry.auth_headers(path), on_progress, platform)
    if details := _present(endpoint, pin, platform):
        return details
    raise SourceError(f"the engine has no {base_reference(pin)} for {platform}")


def _present(endpoint: Endpoint, pin: BasePin, platform: str) -> images.ImageDetails | None:
    details = images.inspect_image(endpoint, base_reference(pin))
    if details is None or details.platform != platform:
        return None
    local = pin.resolved.startswith(installed.LOCAL)
    return None if local and installed.LOCAL + images.fingerprint(details) != pin.resolved else details


def _date(created: str) -> str:
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return ""
    # The date of an image is untrusted, and may be out of range.
    return words.timestamp_of(moment) if 1980 <= moment.year < 9999 and moment.tzinfo else ""
