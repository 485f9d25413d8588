"""Projects that share an engine claim numbers there, so that none of them takes another's number.

The identity of a project comes first, then its claims, its recorded numbers, the tag latest, and the next number.
Claims are empty volumes, because only one project can create a volume of a given name.
A claim outlasts its image: no other project gives the same number to other content.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from builder.base import files, records, words
from builder.base.errors import ImageStateError
from builder.base.values import dataclass
from builder.engine import containers, images
from builder.lock.model import ImageName, Lock, Repository

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.engine.client import Endpoint
    from builder.numbers.pointers import PointerMove
    from builder.numbers.workspace import Workspace


# The identity of a project: by it, projects that share an engine tell what is theirs from what is another's. Each
# clone has its own, in ``.builder/id``. It is bound to the folder by the folder's inode, so that a copy of a project
# (``cp -a``) is another project, and one that was moved or is mounted elsewhere stays the same.

PROJECT = "builder.project"  # the label with the id; the others are this one's
_PATH, _HOST, _MACHINE = f"{PROJECT}.path", f"{PROJECT}.host", f"{PROJECT}.machine"
_FILE = ".builder/id"
_LARGEST = 4096  # bytes of a file that anybody may have written
# The file is missing, is no plain one, or is larger than one of this program.
_NO_FILE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.EFBIG})


@dataclass(frozen=True)
class _IdFile:
    id: Annotated[str, "[0-9a-f]{32}"]
    inode: int


@dataclass(frozen=True)
class ProjectIdentity:
    """The identity of a project: its random ``id``, and where it lies. ``host`` is for messages, ``machine`` tells
    machines apart; both are empty where they are not known."""

    id: str
    path: str
    host: str = ""
    machine: str = ""

    @property
    def labels(self) -> dict[str, str]:
        return {PROJECT: self.id, _PATH: self.path, _HOST: self.host, _MACHINE: self.machine}

    def __str__(self) -> str:
        return f"the project in {self.path}" + (f" on {self.host}" if self.host else "")


def project_identity(project: Project) -> ProjectIdentity:
    """The identity of a project, which gets one where it has none yet. Raises OSError where it cannot be written."""
    own_id = existing_identity(project) or _created(project)
    return ProjectIdentity(own_id, str(project.root), os.uname().nodename, _machine())


def existing_identity(project: Project) -> str:
    return _read(project.root)


def of_labels(labels: Mapping[str, str]) -> ProjectIdentity:
    """The identity that labels tell; that of nobody where they tell none."""
    path, host = labels.get(_PATH, "?"), labels.get(_HOST, "")
    return ProjectIdentity(labels.get(PROJECT, ""), path, host, labels.get(_MACHINE, ""))


def is_gone(identity: ProjectIdentity) -> bool:
    """True for a project of this machine whose folder is no longer there, or is another project now. On another
    machine, and where the folder may not be looked into, nobody can tell: it counts as there."""
    if not identity.machine or identity.machine != _machine():
        return False
    try:
        return _read(Path(identity.path)) != identity.id
    except (OSError, ValueError):
        return False


def _machine() -> str:
    """A name for this machine that no other has; machine-id(5) asks not to show its own. Containers mostly have none,
    and may share the host's name: their file systems tell them apart."""
    try:
        machine_id = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        machine_id = ""
    own = machine_id or f"file system {Path('/').stat().st_dev}"
    digest = words.sha256_of(f"builder {own} {os.uname().nodename}".encode())
    return digest.removeprefix("sha256:")[:16]


def _read(root: Path) -> str:
    """The id in the project folder ``root``; empty if there is none, or it is that of another folder. Raises OSError
    where that cannot be told."""
    try:
        recorded = records.read_file(root / _FILE, _IdFile, largest=_LARGEST)
        return recorded.id if recorded.inode == root.stat().st_ino else ""
    except records.RecordError:
        return ""
    except OSError as error:
        if error.errno in _NO_FILE:
            return ""
        raise


def _created(project: Project) -> str:
    project.state.mkdir(parents=True, exist_ok=True)
    with files.locked(project.state / "id.lock"):
        # Another process may have been first.
        if not (own_id := existing_identity(project)):
            own_id = os.urandom(16).hex()
            content = records.text_of(_IdFile(own_id, project.root.stat().st_ino), {})
            files.write_alone(project.root / _FILE, content.encode())
    return own_id


# Claims of projects that share an engine: which of them a number was given by, and whose ``latest`` is. A claim is an
# empty volume of a fixed name, which only one can create (`builder.engine.containers`). That of a number stays as long
# as the number may be on record anywhere, long after its image was pruned: no project gives it to other content.
# Images know nothing of projects: the same inputs make the same image in each. To take a claim over from a project
# that is gone, a project removes its volume and creates it again. Where two projects do so at the same moment, the
# second may remove the volume that the first has just created, and both go on as the owner. The volume that stays
# decides: the next command of the first project reports the second one as the owner. Until then ``latest`` may name
# an image of either project, and the fingerprint in images.lock shows whose content a number's tag names. A process
# that is killed between the two steps leaves the claim to nobody, and the next project takes it.

KIND = "builder.claim"
REPOSITORY, NUMBER, NEXT, FINGERPRINT = (f"{KIND}.{name}" for name in ("repository", "number", "next", "fingerprint"))


def of_repository(endpoint: Endpoint, repository: str) -> dict[str, Mapping[str, str]]:
    return containers.labelled_volumes(endpoint, [f"{REPOSITORY}={repository}"])


def of_kind(endpoint: Endpoint, kind: str) -> dict[str, Mapping[str, str]]:
    return containers.labelled_volumes(endpoint, [f"{KIND}={kind}"])


def contents_of_others(endpoint: Endpoint, own_id: str) -> frozenset[str]:
    """The fingerprints of the images that other projects gave numbers to. Projects that are gone do not count."""
    claimed = of_kind(endpoint, "number").values()
    owned = [(of_labels(labels), labels.get(FINGERPRINT, "")) for labels in claimed]
    return frozenset(content for owner, content in owned if owner.id != own_id and not is_gone(owner))


def next_number(endpoint: Endpoint, repository: str) -> int:
    """The first number of a repository that is above all that projects have given in this engine."""
    claimed = of_repository(endpoint, repository).values()
    given = (number_of(labels) + 1 for labels in claimed)
    return max([1, *given, *(_as_number(labels.get(NEXT, "")) for labels in claimed)])


def number_of(labels: Mapping[str, str]) -> int:
    return _as_number(labels.get(NUMBER, ""))


def give_number(endpoint: Endpoint, own: ProjectIdentity, name: ImageName, fingerprint: str) -> bool:
    """Claims a number for a new image; False where another project has just claimed it."""
    labels = _labels_of_number(own, name, fingerprint)
    return containers.create_volume(endpoint, _volume_of_number(name), labels).get(PROJECT) == own.id


def require_number(endpoint: Endpoint, own: ProjectIdentity, name: ImageName, fingerprint: str) -> None:
    """Claims a number that images.lock, a file or a registry has for this content; where another project claimed it for
    the same content, both have the same image. Raises ImageStateError where that is other content."""

    def passes(existing: Mapping[str, str]) -> bool:
        if existing.get(FINGERPRINT) == fingerprint:
            return False
        # What this project's number is to have is known better than when it was claimed.
        owner = of_labels(existing)
        return owner.id == own.id or is_gone(owner)

    volume = _volume_of_number(name)
    claimed = _claim(endpoint, volume, _labels_of_number(own, name, fingerprint), passes)
    if claimed.get(FINGERPRINT) != fingerprint:
        raise ImageStateError(
            f"{name} is a different image in this engine: {of_labels(claimed)} gave it that number, and a number"
            " never changes its content",
            hint="projects that build in one engine need a repository each (`repository:` in image.yaml); if that"
            f" project no longer exists, free the number with `docker volume rm {volume}`",
        )


def numbers_for(endpoint: Endpoint, own: ProjectIdentity, repository: str, fingerprint: str) -> frozenset[int]:
    claimed = of_repository(endpoint, repository).values()
    own_claims = (labels for labels in claimed if labels.get(PROJECT) == own.id)
    return frozenset(number_of(labels) for labels in own_claims if labels.get(FINGERPRINT) == fingerprint)


def release_number(endpoint: Endpoint, own: ProjectIdentity, name: ImageName) -> None:
    """Takes this project's claim of a number back, which was not recorded in the end. That of another one stays."""
    volume = _volume_of_number(name)
    if (containers.find_volume(endpoint, volume) or {}).get(PROJECT) == own.id:
        containers.remove_volume(endpoint, volume)


def take_latest(endpoint: Endpoint, own: ProjectIdentity, repository: str) -> ProjectIdentity | None:
    """Makes the ``latest`` of a repository this project's, where it is nobody's or of a project that is gone; None if
    it is this one's now, else the project whose it is."""
    labels = {KIND: "latest", REPOSITORY: repository, **own.labels}
    claimed = _claim(endpoint, volume_of_latest(repository), labels, lambda labels: is_gone(of_labels(labels)))
    owner = of_labels(claimed)
    return None if owner.id == own.id else owner


def owner_of_latest(endpoint: Endpoint, own_id: str, repository: str) -> ProjectIdentity | None:
    labels = containers.find_volume(endpoint, volume_of_latest(repository))
    if labels is None or labels.get(PROJECT, "") == own_id:
        return None
    owner = of_labels(labels)
    return None if is_gone(owner) else owner


def volume_of_latest(repository: str) -> str:
    return f"builder.latest.{_volume_part(repository)}"


def _claim(
    endpoint: Endpoint, volume: str, labels: Mapping[str, str], passes: Callable[[Mapping[str, str]], bool]
) -> Mapping[str, str]:
    """Creates a claim if there is none, or the one that exists ``passes`` on; returns the labels of the claim that
    exists then."""
    existing = containers.find_volume(endpoint, volume)
    if existing is not None and passes(existing):
        containers.remove_volume(endpoint, volume)
    return containers.create_volume(endpoint, volume, labels)


def _volume_of_number(name: ImageName) -> str:
    return f"builder.number.{_volume_part(name.repository)}.{name.number}"


def _labels_of_number(own: ProjectIdentity, name: ImageName, fingerprint: str) -> dict[str, str]:
    of_number = {REPOSITORY: name.repository, NUMBER: str(name.number), FINGERPRINT: fingerprint}
    return {KIND: "number", **of_number, **own.labels}


def _as_number(text: str) -> int:
    """The number in a label, which anybody may have written; 0 if the label is not a number."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0


def _volume_part(repository: str) -> str:
    """A repository's name as part of a volume's, which has no slashes and must be the name of a folder: different ones
    for different repositories."""
    plain = repository.replace("/", "._")  # which no repository has in its name
    digest = words.sha256_of(repository.encode()).removeprefix("sha256:")
    return plain if len(plain) < 150 else f"{plain[:100]}.{digest}"


# The numbers that projects have on record, told in the engine that they share: what one of them has, none of the
# others removes. Each project keeps one empty volume for each of its repositories, whose labels list the numbers that
# it records and has not pruned. The list has a name by its content: a new one is made before the old one goes.

_NUMBERS = f"{KIND}.numbers"


@dataclass(frozen=True)
class Holding:
    """The ``numbers`` of one repository that another project has on record."""

    owner: ProjectIdentity
    repository: str
    numbers: frozenset[int]


def write_holding(endpoint: Endpoint, own: ProjectIdentity, lock: Lock, repository: str) -> None:
    """Tells the engine which numbers of a repository ``lock`` records, and that those below its next one are given.
    The lists of projects that are gone are removed."""
    claimed = of_repository(endpoint, repository)
    lists = {volume: labels for volume, labels in claimed.items() if labels.get(KIND) == "project"}
    wanted = ""
    if repository in lock.images and lock.images[repository].numbers:
        own_list = {
            KIND: "project",
            REPOSITORY: repository,
            NEXT: str(lock.images[repository].next),
            _NUMBERS: " ".join(map(str, _needed_numbers(lock, repository))),
            **own.labels,
        }
        content = "\n".join(f"{key}={value}" for key, value in sorted(own_list.items()))
        wanted = f"builder.project.{words.sha256_of(content.encode()).removeprefix('sha256:')[:32]}"
        if wanted not in lists:
            containers.create_volume(endpoint, wanted, own_list)
    for volume, labels in lists.items():
        owner = of_labels(labels)
        if volume != wanted and (owner.id == own.id or is_gone(owner)):
            containers.remove_volume(endpoint, volume)


def of_others(endpoint: Endpoint, own_id: str) -> tuple[Holding, ...]:
    owned = [(of_labels(labels), labels) for labels in of_kind(endpoint, "project").values()]
    return tuple(
        Holding(owner, labels.get(REPOSITORY, ""), frozenset(map(_as_number, labels.get(_NUMBERS, "").split())))
        for owner, labels in owned
        if owner.id != own_id and not is_gone(owner)
    )


def holder_of(holdings: Iterable[Holding], name: ImageName) -> ProjectIdentity | None:
    of_repository = (holding for holding in holdings if holding.repository == name.repository)
    return next((holding.owner for holding in of_repository if name.number in holding.numbers), None)


def _needed_numbers(lock: Lock, repository: str) -> tuple[int, ...]:
    """The numbers of a repository that a project needs to stay: those that it has not pruned, or uses nevertheless."""
    record = lock.images[repository]
    return tuple(
        number
        for number, image in sorted(record.numbers.items())
        if not image.pruned or number == record.current or lock.models_on(ImageName(repository, number))
    )


# The tag ``latest`` of a repository, which follows its current number.


def point_latest(workspace: Workspace, repository: str, current: int | None) -> None:
    """Points ``REPOSITORY:latest`` to the current number. Where the engine lacks that image the tag stays as it is, and
    so it does where it is another project's, which is reported."""
    from builder.base.events import Fact, Message

    engine = workspace.engine
    if current is None or images.inspect_image(engine, f"{repository}:{current}") is None:
        return
    if foreign := take_latest(engine, project_identity(workspace.project), repository):
        frees = f"`docker volume rm {volume_of_latest(repository)}`"
        message = f"{repository}:latest was not moved: it belongs to {foreign}. To release it for any project: {frees}"
        workspace.report(Fact(message))
        return
    if kept := move_latest(engine, ImageName(repository, current)):
        message = f"{repository}:latest was an image without a number, now called {kept}"
        workspace.report(Message(f"{message}. To give it a number: `builder adopt {kept}`"))


def foreign_latest(workspace: Workspace, moves: Iterable[PointerMove]) -> tuple[str, ...]:
    """The repositories of ``moves`` whose ``latest`` another project has: that tag stays."""
    own = existing_identity(workspace.project)
    repositories = [move.what for move in moves if not move.is_model]
    return tuple(each for each in repositories if owner_of_latest(workspace.engine, own, each))


def move_latest(endpoint: Endpoint, name: ImageName) -> str:
    """Points the ``latest`` of an engine to a number that it has. An image whose only name that was gets another one,
    or the next clean-up would take it: it was there before this project, or was pulled beside it. Returns that name;
    empty where there is no such image."""
    latest, kept = f"{name.repository}:latest", ""
    before = images.inspect_image(endpoint, latest)
    if before and before.tags == (latest,) and images.inspect_image(endpoint, str(name)):
        kept = f"{name.repository}:before-{before.id.removeprefix('sha256:')[:12]}"
        images.tag_image(endpoint, before.id, kept)
    images.tag_image(endpoint, str(name), latest)
    return kept


# The next number of a repository: above every one that was ever given to its images, here and in the engine.


def give_next_number(
    workspace: Workspace,
    lock: Lock,
    repository: str,
    fingerprint: str,
    announce: Callable[[ImageName], None] = lambda _: None,
) -> ImageName:
    """The next number of a repository in ``lock``, in the engine and in ``builds/``, claimed for the content of this
    fingerprint; ``announce`` is called with each that is tried."""
    project, engine, own = workspace.project, workspace.engine, project_identity(workspace.project)
    # A listing of all tags takes 1 ms a layer; what the cache cannot see is looked up for the number alone.
    tags = images.cached_tags(engine, {*lock.images, repository}, project.engine_cache)
    first = free_number(project, lock, repository, tags)
    name = ImageName(repository, max(first, next_number(engine, repository)))
    while True:
        announce(name)
        if images.inspect_image(engine, str(name)) is None and give_number(engine, own, name, fingerprint):
            return name
        name = ImageName(repository, name.number + 1)


def reason(workspace: Workspace, name: ImageName) -> str:
    """The reason why ``name`` has not the number before it, of which images.lock knows nothing."""
    before = ImageName(name.repository, name.number - 1)
    project = workspace.project
    for folder in (project.builds, project.evidence):
        if (path := folder / before.repository / str(before.number)).is_dir():
            return f"{project.relative(path)} exists, so {before.number} was given before"
    if images.inspect_image(workspace.engine, str(before)):
        return f"the engine has {before}, but images.lock does not"
    return f"another project or an earlier images.lock already gave {before} in this engine"


def free_number(project: Project, lock: Lock, repository: str, tags: Iterable[str]) -> int:
    """The next number, above every one in the lock, in the engine, in ``builds/`` and in ``evidence/``: none is used
    twice, not even after images.lock was lost or replaced."""
    taken = [tag.removeprefix(f"{repository}:") for tag in tags if tag.startswith(f"{repository}:")]
    for folder in (project.builds / repository, project.evidence / repository):
        taken += [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return max(
        [lock.images.get(repository, Repository()).next, *(int(number) + 1 for number in taken if number.isdecimal())]
    )
