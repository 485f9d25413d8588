"""Changes to images.lock and to everything that it records: the tags in the engine and the build directories.

A change has happened when images.lock is written. The rest of the change is announced in the journal first
(``builder.lock.lock_file``), so that the next process finishes or undoes the change of a killed process.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from builder.base import files
from builder.base.errors import ConflictError, ImageStateError
from builder.base.values import replace
from builder.engine import images
from builder.engine.client import EngineHTTPError
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock, Repository
from builder.numbers import claims
from builder.plan import plan_model

if TYPE_CHECKING:
    from pathlib import Path

    from builder.engine.client import Endpoint
    from builder.engine.images import ImageDetails
    from builder.lock.lock_file import Read
    from builder.lock.model import NumberedImage
    from builder.numbers.claims import ProjectIdentity
    from builder.numbers.workspace import Workspace


RECORD = plan_model.RECORD  # in a build directory: the part of the project's images.lock that the build wrote


class Transaction:
    """The right to change the numbered images of a workspace, until its block ends."""

    def __init__(self, workspace: Workspace, writer: lock_file.LockWriter) -> None:
        self._workspace = workspace
        self._writer = writer
        self._announced: set[str] = set()
        self._given: set[ImageName] = set()

    @property
    def lock(self) -> Lock:
        return self._writer.lock

    def next_name(self, repository: str, fingerprint: str) -> ImageName:
        """The next number of ``repository``: no image ever had it, and no other project in this engine gets it. It is
        claimed for the content of this fingerprint until the block ends. If images.lock then records it, the claim
        stays."""
        # The number is announced before it is claimed, so that the claim of a killed process is removed.
        name = claims.give_next_number(self._workspace, self.lock, repository, fingerprint, self.announce)
        self._given.add(name)
        return name

    def announce(self, name: ImageName, engine_id: str = "") -> None:
        """Writes into the journal that ``name`` is about to change. The image ``engine_id`` loses that tag unless
        images.lock records it in the end. ``latest`` is set to the current number in any case."""
        lock_file.write_journal(self._workspace.project, name, engine_id)
        self._announced.add(name.repository)

    def place(self, name: ImageName, tag: str, directory: Path, engine_id: str, fingerprint: str) -> None:
        """Gives an image, with its temporary ``tag``, the tag ``name``, and moves its build ``directory`` to the place
        for ``name``. The change counts only after images.lock records it. An existing tag or directory of that number
        stays.

        Raises ImageStateError if another project in this engine has that number for other content."""
        destination = self._workspace.project.build_directory(name.repository, name.number)
        tagged = images.inspect_image(self._workspace.engine, str(name))
        if tagged is not None and images.fingerprint(tagged) != fingerprint:
            raise ImageStateError(
                f"another process has just given {name} to another image in this engine, which was not overwritten",
                hint="run the command again",
            )
        is_new = not destination.exists() and tagged is None
        self.announce(name, engine_id if is_new else "")
        if name not in self._given:
            claim_number(self._workspace, name, fingerprint)
        if not destination.exists() and any(directory.glob("*")):
            files.put_folder_in_place(directory, destination)
        images.tag_image(self._workspace.engine, tag, str(name))

    def commit(self, lock: Lock) -> bool:
        """Writes ``lock`` to images.lock; returns False if nothing changed. If the current number of a repository
        moves, its ``latest`` tag follows when the block ends. Raises the errors of `lock_file.LockWriter.commit`."""
        for name, repository in lock.images.items():
            if repository.current != _repository(self.lock, name).current and name not in self._announced:
                self.announce(ImageName(name, repository.current or 0))
        return self._writer.commit(lock)


@contextmanager
def transaction(workspace: Workspace) -> Iterator[Transaction]:
    """Holds images.lock for writing. Only this and `repair_lock` change it. Keep the block short: others wait.

    The journal is replayed at the start and at the end, so that tags and build directories agree with images.lock
    however the block ends. Raises LockBusyError, and LockError for a lock that is damaged or cannot be written.
    """
    project = workspace.project
    with lock_file.writing(project.lock, on_wait=workspace.report_waiting) as writer:
        claims.project_identity(project)  # made before anything is recorded: later steps need it
        _replay_journal(workspace, writer)
        try:
            yield Transaction(workspace, writer)
        finally:
            writer.read_again()
            _replay_journal(workspace, writer)


@contextmanager
def repair_lock(workspace: Workspace, read: Read) -> Iterator[lock_file.LockWriter]:
    """Holds a damaged images.lock for writing; ``read`` recovers what it can. The journal waits for the next
    `transaction`: replayed against a damaged lock, it would undo recorded changes."""
    with lock_file.writing(workspace.project.lock, on_wait=workspace.report_waiting, read=read) as writer:
        yield writer


def recover_transaction(workspace: Workspace) -> None:
    """Finishes or undoes the change of a killed process, for commands that may write nothing themselves."""
    if not lock_file.is_empty(workspace.project):
        with transaction(workspace):
            pass


def claim_number(workspace: Workspace, name: ImageName, fingerprint: str) -> None:
    """Claims a number in the engine for the content that it has here. Raises ImageStateError if another project in this
    engine gave that number to other content."""
    claims.require_number(workspace.engine, claims.project_identity(workspace.project), name, fingerprint)


def tell_numbers(workspace: Workspace, lock: Lock, repository: str) -> None:
    claims.write_holding(workspace.engine, claims.project_identity(workspace.project), lock, repository)


def restore_tag(workspace: Workspace, name: ImageName, source: str) -> None:
    """Restores the tag of a number that is missing from the engine, and records that the number is no longer pruned.
    ``source`` (a tag, digest or id) has its content. Raises the errors of `claim_number`."""
    with transaction(workspace) as change:
        change.announce(name)
        record = change.lock.image(name)
        if record:
            claim_number(workspace, name, record.fingerprint)
        images.tag_image(workspace.engine, source, str(name))
        if record and record.pruned:
            change.commit(change.lock.with_image(name, replace(record, pruned=None)))


def _replay_journal(workspace: Workspace, writer: lock_file.LockWriter) -> None:
    """Makes tags and build directories agree with images.lock after an announced change, and records a restored number.
    Only the holder of images.lock may call it."""
    project, engine = workspace.project, workspace.engine
    for unwritten in project.journal.glob(".*"):  # of a process that was killed before it announced anything
        unwritten.unlink()
    for entry in lock_file.journal_entries(project):
        name, lock, own = entry.name, writer.lock, claims.project_identity(project)
        record = lock.image(name)
        details = images.inspect_image(engine, str(name)) if record is None or record.pruned else None
        if details and number_holder(workspace, name):
            details = None  # the tag belongs to another project
        if details and details.id == entry.engine_id and _is_ours(engine, own, name, record, details):
            # A container may use the image now, or the engine may fail: then the image stays. An error would stop every
            # later command, because each of them replays the journal.
            with suppress(ConflictError, EngineHTTPError):
                images.remove_image(engine, str(name))
        if entry.engine_id and (record is None or record.adopted):  # a build made no such tag
            images.remove_extra_tag(engine, adopting_tag(name.repository, entry.engine_id))
        directory = project.build_directory(name.repository, name.number)
        files.remove_unfinished(directory)
        if entry.engine_id and record is None:
            shutil.rmtree(directory, ignore_errors=True)
        if details and record and not entry.engine_id and images.fingerprint(details) == record.fingerprint:
            # A killed process had built or pulled the number again (`restore_tag`).
            writer.commit(lock.with_image(name, replace(record, pruned=None)))
        if record is None and name.number:
            claims.release_number(engine, own, name)
        claims.point_latest(workspace, name.repository, _repository(lock, name.repository).current)
        tell_numbers(workspace, writer.lock, name.repository)
        lock_file.journal_file(project, name.repository).unlink()


def _is_ours(
    engine: Endpoint, own: ProjectIdentity, name: ImageName, record: NumberedImage | None, details: ImageDetails
) -> bool:
    """True if an image has the recorded content of its number, or else if this project claimed the number. Anyone may
    have written a journal, and it may name an image of another program."""
    return images.fingerprint(details) == record.fingerprint if record else claims.is_own(engine, own, name)


def adopting_tag(repository: str, engine_id: str) -> str:
    """The tag of an image without a name until it has a number, so that nothing deletes it as a leftover."""
    return f"{repository}:adopting-{engine_id.removeprefix('sha256:')[:12]}"


def number_holder(workspace: Workspace, name: ImageName) -> ProjectIdentity | None:
    return claims.of_others(workspace.engine, claims.existing_identity(workspace.project)).get(name)


def _repository(lock: Lock, name: str) -> Repository:
    return lock.images.get(name, Repository())
