"""A resolver queries each source once in a command, so all targets get the same answer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from builder.base.errors import SourceError
from builder.base.events import Message, Report
from builder.base.values import dataclass, field
from builder.sources import mirror

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.definitions.source_patches import SourcePatch
    from builder.lock.model import BasePin, GitPin
    from builder.numbers.workspace import Workspace
    from builder.pins.base_contents import BaseContents
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
    from builder.engine import installed, registry
    from builder.pins import base_contents
    from builder.sources import git

    return Resolver(
        project=workspace.project,
        settings=git.read_index_settings(workspace.environment),
        find_tag=lambda reference: registry.on_day(workspace.engine, reference),
        resolve_base=lambda reference, platform: installed.resolve_base(
            workspace.engine, reference, platform, workspace.report
        ),
        read_base=lambda pin, platform: base_contents.read_base_contents(
            workspace.engine, pin, platform, workspace.report
        ),
        report=workspace.report,
    )
