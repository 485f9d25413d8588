"""Projects that share an engine claim numbers there, so that no project takes another project's number.

The identity of a project comes first, then its claims, its recorded numbers, the tag latest, and the next number.
Claims are empty volumes, because only one project can create a volume of a given name.
A claim outlasts its image: no other project gives the same number to other content.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
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


# The identity of a project. With it, projects that share an engine recognize their own numbers. Each clone has its own
# identity, in ``.builder/id``. The identity is bound to the folder by the folder's inode. So a copy of a project (``cp
# -a``) is another project, and a project that was moved or is mounted elsewhere stays the same.

PROJECT = "builder.project"  # the label with the id, and the prefix of the other labels
_PATH, _HOST, _MACHINE = f"{PROJECT}.path", f"{PROJECT}.host", f"{PROJECT}.machine"
_FILE = ".builder/id"
_LARGEST = 4096  # bytes of a file that anyone may have written
# The file is missing, is not a plain file, or is larger than a file of this program.
_NO_FILE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.EFBIG})


@dataclass(frozen=True)
class _IdFile:
    id: Annotated[str, "[0-9a-f]{32}"]
    inode: int


@dataclass(frozen=True)
class ProjectIdentity:
    """The identity of a project: its random ``id``, and its ``path``. ``host`` is for messages, ``machine``
    distinguishes machines; both are empty if they are unknown."""

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
    """The identity of a project, which is made if it does not exist yet. Raises OSError if it cannot be written."""
    if not (own_id := existing_identity(project)):
        project.state.mkdir(parents=True, exist_ok=True)
        with files.locked(project.state / "id.lock"):
            # Another process may have made the identity first.
            if not (own_id := existing_identity(project)):
                own_id = os.urandom(16).hex()
                content = records.text_of(_IdFile(own_id, project.root.stat().st_ino), {})
                files.write_atomically(project.root / _FILE, content.encode())
    return ProjectIdentity(own_id, str(project.root), os.uname().nodename, _machine())


def existing_identity(project: Project) -> str:
    return _read(project.root)


def of_labels(labels: Mapping[str, str]) -> ProjectIdentity:
    """The identity in the labels; one with an empty id if they contain no identity."""
    path, host = labels.get(_PATH, "?"), labels.get(_HOST, "")
    return ProjectIdentity(labels.get(PROJECT, ""), path, host, labels.get(_MACHINE, ""))


def is_gone(identity: ProjectIdentity) -> bool:
    """True for a project of this machine whose folder is missing, or is another project now. A project on another
    machine or in an unreadable folder counts as existing."""
    if not identity.machine or identity.machine != _machine():
        return False
    try:
        return _read(Path(identity.path)) != identity.id
    except (OSError, ValueError):
        return False


def _machine() -> str:
    """A unique name of this machine. machine-id(5) asks not to show the id itself, so the name is a digest. Most
    containers have no id and may share the host's name; their file systems distinguish them."""
    try:
        machine_id = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        machine_id = ""
    own = machine_id or f"file system {Path('/').stat().st_dev}"
    digest = words.sha256_of(f"builder {own} {os.uname().nodename}".encode())
    return digest.removeprefix("sha256:")[:16]


def _read(root: Path) -> str:
    """The id in the project folder ``root``; empty if there is none, or it belongs to another folder. Raises OSError if
    the file cannot be read."""
    try:
        recorded = records.read_file(root / _FILE, _IdFile, largest=_LARGEST)
        return recorded.id if recorded.inode == root.stat().st_ino else ""
    except records.RecordError:
        return ""
    except OSError as error:
        if error.errno in _NO_FILE:
            return ""
        raise


# Claims of projects that share an engine: the project that gave a number, and the project that owns a ``latest``. A
# claim is an empty volume with a fixed name, which only one project can create (`builder.engine.containers`). The claim
# of a number stays as long as any record may have the number, long after its image was pruned: no project gives the
# number to other content. Images do not belong to projects: the same inputs make the same image in each.
# To take over the claim of a project that is gone, a project removes its volume and creates it again. If two projects
# do so at the same moment, the second may remove the volume that the first has just created, and both continue as the
# owner. The volume that stays decides: the next command of the first project reports the second one as the owner. Until
# then ``latest`` may name an image of either project, and the fingerprint in images.lock shows whose content a number's
# tag names. If a process is killed between the two steps, nobody owns the claim, and the next project takes it.

KIND = "builder.claim"
REPOSITORY, NUMBER, NEXT, FINGERPRINT = (f"{KIND}.{name}" for name in ("repository", "number", "next", "fingerprint"))


def of_repository(endpoint: Endpoint, repository: str) -> dict[str, Mapping[str, str]]:
    return containers.labelled_volumes(endpoint, [f"{REPOSITORY}={repository}"])


def of_kind(endpoint: Endpoint, kind: str) -> dict[str, Mapping[str, str]]:
    return containers.labelled_volumes(endpoint, [f"{KIND}={kind}"])


def contents_of_others(endpoint: Endpoint, own_id: str) -> frozenset[str]:
    """The fingerprints of the images that other projects gave numbers to, without projects that are gone."""
    return frozenset(labels.get(FINGERPRINT, "") for _, labels in _made_by_others(endpoint, "number", own_id))


def _made_by_others(endpoint: Endpoint, kind: str, own_id: str) -> Iterator[tuple[ProjectIdentity, Mapping[str, str]]]:
    owned = ((of_labels(labels), labels) for labels in of_kind(endpoint, kind).values())
    return ((owner, labels) for owner, labels in owned if owner.id != own_id and not is_gone(owner))


def next_number(endpoint: Endpoint, repository: str) -> int:
    """The first number of a repository that is above all numbers that projects have given in this engine."""
    claimed = of_repository(endpoint, repository).values()
    given = (number_of(labels) + 1 for labels in claimed)
    return max([1, *given, *(_as_number(labels.get(NEXT, "")) for labels in claimed)])


def number_of(labels: Mapping[str, str]) -> int:
    return _as_number(labels.get(NUMBER, ""))


def give_number(endpoint: Endpoint, own: ProjectIdentity, name: ImageName, fingerprint: str) -> bool:
    """Claims a number for a new image; False if another project has just claimed it."""
    labels = _labels_of_number(own, name, fingerprint)
    return containers.create_volume(endpoint, _volume_of_number(name), labels).get(PROJECT) == own.id


def require_number(endpoint: Endpoint, own: ProjectIdentity, name: ImageName, fingerprint: str) -> None:
    """Claims a number that images.lock, a file or a registry has for this content. Another project may have claimed it
    for the same content: both have the same image. Raises ImageStateError if another project claimed it for other
    content."""

    def passes(existing: Mapping[str, str]) -> bool:
        if existing.get(FINGERPRINT) == fingerprint:
            return False
        # The project now knows its number's content better than when it claimed the number.
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
    """Removes this project's claim of a number that was not recorded in the end. Another project's claim stays."""
    if is_own(endpoint, own, name):
        containers.remove_volume(endpoint, _volume_of_number(name))


def is_own(endpoint: Endpoint, own: ProjectIdentity, name: ImageName) -> bool:
    """True if this project has claimed the number."""
    return (containers.find_volume(endpoint, _volume_of_number(name)) or {}).get(PROJECT) == own.id


def take_latest(endpoint: Endpoint, own: ProjectIdentity, repository: str) -> ProjectIdentity | None:
    """Claims the ``latest`` of a repository for this project, unless another existing project owns it. Returns None if
    this project owns it now, else the other owner."""
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
    """Creates a claim if there is none, or if ``passes`` lets the existing one be replaced. Returns the labels of the
    claim that exists then."""
    existing = containers.find_volume(endpoint, volume)
    if existing is not None:
        if not passes(existing):
            return existing
        containers.remove_volume(endpoint, volume)
    return containers.create_volume(endpoint, volume, labels)


def _volume_of_number(name: ImageName) -> str:
    return f"builder.number.{_volume_part(name.repository)}.{name.number}"


def _labels_of_number(own: ProjectIdentity, name: ImageName, fingerprint: str) -> dict[str, str]:
    of_number = {REPOSITORY: name.repository, NUMBER: str(name.number), FINGERPRINT: fingerprint}
    return {KIND: "number", **of_number, **own.labels}


def _as_number(text: str) -> int:
    """The number in a label, tag or folder's name, which anyone may have written; 0 if it is not a number. images.lock
    holds numbers of 18 digits, so a longer text is no number, and 18 digits leave no room for the next."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 18 else 0


def _volume_part(repository: str) -> str:
    """A repository's name as part of a volume's name, which must be the name of a folder, without slashes. The part is
    unique to the repository."""
    plain = repository.replace("/", "._")  # no repository has this in its name
    digest = words.sha256_of(repository.encode()).removeprefix("sha256:")
    return plain if len(plain) < 150 else f"{plain[:100]}.{digest}"


# The recorded numbers of each project, in the shared engine: no project removes a number that another one records. Each
# project keeps one empty volume for each of its repositories. Its labels list the numbers that the project records and
# has not pruned. The volume's name depends on the list: the new volume is made before the old one is removed.

_NUMBERS = f"{KIND}.numbers"


def write_holding(endpoint: Endpoint, own: ProjectIdentity, lock: Lock, repository: str) -> None:
    """Writes into the engine which numbers of a repository ``lock`` records, and its next number, below which all
    numbers are given. Removes the lists of projects that are gone."""
    claimed = of_repository(endpoint, repository)
    lists = {volume: labels for volume, labels in claimed.items() if labels.get(KIND) == "project"}
    wanted, record = "", lock.images.get(repository, Repository())
    if record.numbers:
        needed = (  # numbers that the project has not pruned, or still uses
            str(number)
            for number, image in sorted(record.numbers.items())
            if not image.pruned or number == record.current or lock.models_on(ImageName(repository, number))
        )
        own_list = {
            KIND: "project",
            REPOSITORY: repository,
            NEXT: str(record.next),
            _NUMBERS: " ".join(needed),
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


def of_others(endpoint: Endpoint, own_id: str) -> dict[ImageName, ProjectIdentity]:
    """The numbers that other projects record, each with such a project."""
    return {
        ImageName(labels.get(REPOSITORY, ""), _as_number(number)): owner
        for owner, labels in _made_by_others(endpoint, "project", own_id)
        for number in labels.get(_NUMBERS, "").split()
    }


# The tag ``latest`` of a repository, which follows its current number.


def point_latest(workspace: Workspace, repository: str, current: int | None) -> None:
    """Points ``REPOSITORY:latest`` to the current number. The tag stays unchanged if the engine lacks that image. If
    the tag belongs to another project, it also stays unchanged, and the project is reported."""
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
        message = f"{repository}:latest was the only name of an image, now called {kept}"
        workspace.report(Message(f"{message}. If it has no number: `builder adopt {kept}` gives it one"))


def foreign_latest(workspace: Workspace, moves: Iterable[PointerMove]) -> tuple[str, ...]:
    """The repositories of ``moves`` whose ``latest`` belongs to another project: that tag stays."""
    own = existing_identity(workspace.project)
    repositories = [move.what for move in moves if not move.is_model]
    return tuple(each for each in repositories if owner_of_latest(workspace.engine, own, each))


def move_latest(endpoint: Endpoint, name: ImageName) -> str:
    """Points the ``latest`` of an engine to a number that it has. If ``latest`` was the only name of an image, the
    image gets another name. Otherwise the next clean-up would remove it, although it is older than this project or was
    pulled separately. Returns the new name; empty if no image needed one."""
    latest, kept = f"{name.repository}:latest", ""
    before = images.inspect_image(endpoint, latest)
    if before and before.tags == (latest,) and images.inspect_image(endpoint, str(name)):
        kept = f"{name.repository}:before-{before.id.removeprefix('sha256:')[:12]}"
        images.tag_image(endpoint, before.id, kept)
    images.tag_image(endpoint, str(name), latest)
    return kept


# The next number of a repository: above every number that its images ever had, here and in the engine.


def give_next_number(
    workspace: Workspace,
    lock: Lock,
    repository: str,
    fingerprint: str,
    announce: Callable[[ImageName], None] = lambda _: None,
) -> ImageName:
    """The next number of a repository in ``lock``, in the engine and in ``builds/``, claimed for the content of this
    fingerprint. ``announce`` is called with each number that is tried."""
    project, engine, own = workspace.project, workspace.engine, project_identity(workspace.project)
    # Listing all tags takes 1 ms a layer. The cache may lack a tag, so each number is also looked up by itself.
    tags = images.cached_tags(engine, {*lock.images, repository}, project.engine_cache)
    first = free_number(project, lock, repository, tags)
    name = ImageName(repository, max(first, next_number(engine, repository)))
    while True:
        announce(name)
        if images.inspect_image(engine, str(name)) is None and give_number(engine, own, name, fingerprint):
            return name
        name = ImageName(repository, name.number + 1)


def reason(workspace: Workspace, name: ImageName) -> str:
    """The reason why ``name`` does not follow the last number in images.lock: the number before it is already taken."""
    before = ImageName(name.repository, name.number - 1)
    project = workspace.project
    for folder in (project.builds, project.evidence):
        if (path := folder / before.repository / str(before.number)).is_dir():
            return f"{project.relative(path)} exists, so {before.number} is already taken"
    if images.inspect_image(workspace.engine, str(before)):
        return f"the engine has {before}, but images.lock does not"
    return f"another project or an earlier images.lock already gave {before} in this engine"


def free_number(project: Project, lock: Lock, repository: str, tags: Iterable[str]) -> int:
    """The next number, above every number in the lock, in the engine, in ``builds/`` and in ``evidence/``. So no number
    is used twice, even after images.lock was lost or replaced."""
    taken = [tag.removeprefix(f"{repository}:") for tag in tags if tag.startswith(f"{repository}:")]
    for folder in (project.builds / repository, project.evidence / repository):
        taken += [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return max([lock.images.get(repository, Repository()).next, *(_as_number(tag) + 1 for tag in taken)])
