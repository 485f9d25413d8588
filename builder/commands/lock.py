"""The lock command adds missing pins, and repairs images.lock.

The recovery of a lost file comes first, then new numbers after a merge, then the update of pins. None of them builds an
image.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base import files, words
from builder.base.errors import EngineError, FileProblemsError, LockError, NewerLockError, NothingToDoError, SourceError
from builder.base.events import Message
from builder.base.values import dataclass, replace
from builder.building import mod_choice, resolve
from builder.definitions.image import ImageDefinition, Overrides, definition_names, load_chain, unreadable
from builder.engine import images, machine
from builder.evidence import run_record
from builder.lab import changes
from builder.lock import layout, lock_file, merging, text
from builder.lock.checking import conflict_marks
from builder.lock.model import GitPin, ImageName, IncludedPin, Lock, NumberedImage, Pins
from builder.numbers import adopted, claims, images_lock, recovery, status
from builder.pins import pinning, vendored
from builder.serving import advice
from builder.sources import foreign_files

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.engine.client import Endpoint
    from builder.numbers.workspace import Workspace
    from builder.sources.mirror import CommitRange


# ``lock --recover`` rebuilds a lost images.lock from build directories and the engine.

_NOWHERE = (
    "marks, notes, kept images, pushed digests, and pairings that `pair` or `rollback` moved: only the lost file"
    " recorded them. Each model is now paired with the newest image that was built for it"
)

_ANEW = "to start a new images.lock: move the folders in builds/ to another place"


@dataclass(frozen=True)
class Recovered:
    """The numbers that are recorded again, and the ``unknown`` data that could not be recovered. ``findings`` name
    definitions that could not be read. ``damaged`` is the file with the damaged lock, or empty."""

    images: tuple[ImageName, ...]
    unknown: tuple[str, ...]
    findings: tuple[str, ...]
    damaged: str


def recover_lock(workspace: Workspace) -> Recovered:
    """Writes a missing or damaged images.lock again. A valid images.lock gets the missing numbers, and keeps its other
    content. The current number of a repository is the number that ``latest`` names in the engine. Raises
    NothingToDoError if nothing is found or missing, LockError if the lock is newer than this program or has conflict
    markers of a merge."""
    project = workspace.project
    damaged: list[bytes] = []

    def read(content: bytes, file: str, load: layout.Load) -> Lock:
        try:
            return lock_file.parse_bytes(content, file, load)
        except NewerLockError:
            raise
        except LockError:
            if conflict_marks(content.decode(errors="replace")):
                raise
            damaged.append(content)
            return Lock()

    with images_lock.repair_lock(workspace, read) as writer:
        recoverable = recovery.find_recoverable(workspace)
        missing = [number for number in recoverable if writer.lock.image(number.name) is None]
        findings = tuple(
            f"the search did not include images of {name} that have no build directory: {error.message}"
            for name, error in unreadable(project).items()
        )
        if not missing:
            reason = "neither the engine nor builds/ holds an image of this project: nothing to recover"
            if recoverable:
                reason = "images.lock already records every image of this project that was found: nothing to recover"
            raise NothingToDoError("\n".join((reason, *findings)), hint=_ANEW if lock_file.is_lost(project) else "")
        endings = itertools.chain([""], (f".{number}" for number in itertools.count(2)))
        paths = (project.lock.with_name(f"images.lock.damaged{ending}") for ending in endings)
        aside = next(path for path in paths if not os.path.lexists(path))
        if damaged:  # the user may still read it, and the earlier ones
            files.write_atomically(aside, damaged[0])
        latest = recovery.current(workspace.engine, recoverable)
        writer.commit(completed(writer.lock, missing, latest))
        for name, repository in writer.lock.images.items():
            claims.point_latest(workspace, name, repository.current)
            images_lock.tell_numbers(workspace, writer.lock, name)
    unknown = (*(line for number in missing for line in number.unknown), _NOWHERE)
    kept = project.relative(aside) if damaged else ""
    return Recovered(tuple(number.name for number in missing), unknown, findings, kept)


def completed(lock: Lock, missing: Sequence[recovery.RecoverableImage], latest: Mapping[str, int]) -> Lock:
    """Returns ``lock`` with the ``missing`` numbers. ``latest`` are the current numbers according to the tags."""
    recovered = Lock()
    for number in _in_build_order(missing):
        name = number.name
        recovered = recovered.with_image(name, number.image).with_current(name)
        for definition, platforms in number.part.pins.items():
            for platform, pins in platforms.items():
                recovered = recovered.with_pins(definition, platform, pins)
        for model, record in number.part.models.items():
            recovered = recovered.with_pairing(model, record.pairing)
    for repository, current in latest.items():
        if recovered.image(name := ImageName(repository, current)):
            recovered = recovered.with_current(name)
    return merging.adopt(lock, recovered)


def _in_build_order(missing: Sequence[recovery.RecoverableImage]) -> list[recovery.RecoverableImage]:
    """Sorts numbers by the time of their builds. A number always sorts before higher numbers of its repository: if the
    time comes from a tag, and the image was tagged again later, the time is too late."""
    earliest: dict[str, str] = {}
    times: dict[ImageName, str] = {}
    for number in sorted(missing, key=lambda number: number.name, reverse=True):
        repository, built = number.name.repository, number.image.built
        times[number.name] = earliest[repository] = min(built, earliest.get(repository, built))
    return sorted(missing, key=lambda number: (times[number.name], number.name))


# ``lock --merge`` makes one images.lock from the versions that git keeps during an unfinished merge, rebase,
# cherry-pick or `stash pop`. If both sides gave the same number to different images, one image gets the next free
# number, together with its build directory and pairings. The image that this engine has under the number keeps it, or
# else our image.


@dataclass(frozen=True)
class RenumberedImage:
    """An image that got a different number. ``directory`` is true if its build directory was found."""

    origin: ImageName
    to: ImageName
    image: NumberedImage
    directory: bool


@dataclass(frozen=True)
class MergedLock:
    """The result of a merge. ``chosen`` names the values that differ between the sides and were taken from the first
    side. ``tagged`` are the numbers that were tagged in this engine. ``written`` is true if images.lock changed.
    ``pending`` are the files and folders for `git add`; empty without an unfinished merge. ``absent`` are the models
    whose paired image this engine lacks, each with the image and the way to get it."""

    renumbered: tuple[RenumberedImage, ...]
    chosen: tuple[str, ...]
    tagged: tuple[ImageName, ...]
    written: bool
    pending: tuple[str, ...]
    absent: tuple[tuple[str, ImageName, str], ...] = ()


def merge_lock(workspace: Workspace) -> MergedLock:
    """Makes one lock from the versions in git's index, and adjusts build directories and tags to it. A lock without an
    unfinished merge is unchanged. If another machine merged the lock, only the tags of this engine are adjusted. Raises
    LockError if a side is damaged, or images.lock is lost."""
    project = workspace.project
    lock_file.refuse_lost_lock(project)
    sides = recovery.staged_locks(project)
    unfinished = bool(sides) and not project.lock.exists()  # `read` is not called for a file that was removed

    def read(content: bytes, file: str, load: layout.Load) -> Lock:
        nonlocal unfinished
        # A file without markers was already merged: by git, by hand, or by a killed run of this command. However, git
        # leaves the file of one side if its merge driver cannot run, or if the other side has no images.lock.
        one_side = content in (foreign_files.read_stage(project.root, stage, project.lock.name) for stage in (2, 3))
        unfinished = bool(sides and (one_side or conflict_marks(content.decode(errors="replace"))))
        return Lock() if unfinished else lock_file.parse_bytes(content, file, load)

    with images_lock.repair_lock(workspace, read) as writer:
        recovery.remove_unfinished(project)
        merged = writer.lock
        pairs: list[tuple[ImageName, ImageName]] = []
        chosen: list[str] = []
        commented = None
        if sides and unfinished:
            commented = foreign_files.read_stage(project.root, 2, project.lock.name)
            base, ours, theirs = sides
            base, ours, theirs, pairs = _separate(workspace, base, ours, theirs)
            chosen = list(merging.chosen(base, ours, theirs))
            merged = merging.union(base, ours, theirs)
        # Directories change before the lock, and tags after it. If this process is killed, the same command finishes.
        renumbered = []
        for origin, to in pairs:
            image = merged.images[to.repository].numbers[to.number]
            directory = recovery.restore_both(project, merged, origin, to)
            run_record.move_evidence(project, origin, to, image.fingerprint)
            renumbered.append(RenumberedImage(origin, to, image, directory))
        written = unfinished and writer.commit(merged, commented)
        tagged = _retag(workspace, merged)
        absent = tuple(_absent(workspace, merged)) if written or tagged else ()
    pending = tuple(_pending(project, merged)) if sides else ()
    return MergedLock(tuple(renumbered), tuple(chosen), tagged, written, pending, absent)


def _pending(project: Project, lock: Lock) -> Iterator[str]:
    """The files that a merge of ``lock`` has written, with the package files that git could not merge."""
    yield project.lock.name
    unmerged = foreign_files.unmerged_files(project.root)
    yield from sorted(unmerged & {file.path for file in layout.packages_files(lock)})
    yield from (folder.name for folder in (project.builds, project.evidence) if folder.exists())


def merge_files(base: Path, ours: Path, theirs: Path) -> bool:
    """Merges three versions of images.lock into the file ``ours``, for git. Returns False if both sides changed the
    same value, or gave the same number to different images: ``ours`` then contains git's markers, and `merge_lock`
    decides. Raises LockError if a version cannot be read."""
    common, our, their = (
        lock_file.parse_bytes(path.read_bytes(), path.name) if path.stat().st_size else Lock()
        for path in (base, ours, theirs)
    )
    if merging.clashes(our, their) or any(merging.chosen(common, our, their)):
        foreign_files.mark_conflict(base, ours, theirs)
        return False
    merged = text.dump_lock(merging.union(common, our, their), text.comments_of(ours.read_text(encoding="utf-8")))
    files.write_atomically(ours, merged.encode())
    return True


def _absent(workspace: Workspace, lock: Lock) -> Iterator[tuple[str, ImageName, str]]:
    """The models whose image is not in this engine under its number. Empty if the engine does not answer."""
    try:
        states, _ = status.image_states(workspace, lock)
    except EngineError:
        return
    for model, paired in sorted(lock.models.items()):
        name = paired.pairing.image
        if (record := lock.image(name)) and states[name] != "present":
            back = adopted.way_back(name, record)
            if states[name] == "moved":
                back = f"`{adopted.frees(name)}` frees the name, then {back}"
            yield model, name, back


def _separate(
    workspace: Workspace, base: Lock, ours: Lock, theirs: Lock
) -> tuple[Lock, Lock, Lock, list[tuple[ImageName, ImageName]]]:
    """The three locks with different numbers for different images, and the old and new name of each renumbered image.
    The common version changes together with the renumbered side. If the other side already has the image under another
    number, as in later commits of a rebase, the image gets that number."""
    sides, renumbered, numbered = [base, ours, theirs], [], []

    def rename(side: int, name: ImageName, wanted: int | None = None) -> None:
        image = sides[side].images[name.repository].numbers[name.number]
        to = ImageName(name.repository, wanted or 0)
        if not wanted or sides[side].image(to):
            to = ImageName(name.repository, _free_number(workspace, merging.union(*sides), name.repository, image))
        for each in (0, side):
            if merging.is_same_build(sides[each].image(name), image) and not sides[each].image(to):
                sides[each] = merging.renamed(sides[each], name, to.number)
        renumbered.append((name, to))

    for name in merging.clashes(ours, theirs):
        our_image, their_image = (lock.images[name.repository].numbers[name.number] for lock in (ours, theirs))
        keep_theirs = _fingerprint(workspace.engine, name) == their_image.fingerprint != our_image.fingerprint
        side, image = (1, our_image) if keep_theirs else (2, their_image)
        others = sides[3 - side].images[name.repository].numbers.items()
        same = next((number for number, other in others if merging.is_same_build(other, image)), None)
        if same:
            numbered.append((side, name, same))
        else:
            rename(side, name)
    for side, name, same in reversed(numbered):  # the highest first: its number becomes free for the next
        rename(side, name, same)
    return sides[0], sides[1], sides[2], renumbered


def _free_number(workspace: Workspace, lock: Lock, repository: str, image: NumberedImage) -> int:
    """The next number, or the number that a killed process was giving to the same image."""
    record = lock.images[repository]
    started = workspace.project.build_directory(repository, record.next)
    if recovery.is_of(started, image):
        return record.next
    try:
        own = claims.project_identity(workspace.project)
        if given := claims.numbers_for(workspace.engine, own, repository, image.fingerprint) - record.numbers.keys():
            return min(given)
        return claims.give_next_number(workspace, lock, repository, image.fingerprint).number
    except EngineError:  # without an engine, the numbers are read from the build directories
        return claims.free_number(workspace.project, lock, repository, ())


def _fingerprint(endpoint: Endpoint, name: ImageName) -> str:
    try:
        details = images.inspect_image(endpoint, str(name))
    except EngineError:
        return ""
    return images.fingerprint(details) if details else ""


def _retag(workspace: Workspace, lock: Lock) -> tuple[ImageName, ...]:
    """Tags each number that is missing from the engine and whose image has the tag of another number. The wrong tag is
    removed, unless another project in the engine has recorded it."""
    endpoint = workspace.engine
    try:
        tags = images.image_tags(endpoint, lock.images) if lock.images else {}
        details = {tag: images.inspect_image(endpoint, tag) for tag in tags}
    except EngineError:
        return ()
    content = {tag: images.fingerprint(image) for tag, image in details.items() if image}
    retagged = []
    for repository, record in lock.images.items():
        names = {ImageName(repository, number): image for number, image in sorted(record.numbers.items())}
        for name, image in names.items():
            tagged_so = (other for other in names if content.get(str(other)) == image.fingerprint)
            wrong = next((other for other in tagged_so if names[other].fingerprint != image.fingerprint), None)
            if str(name) not in content and not image.pruned and wrong:
                images_lock.claim_number(workspace, name, image.fingerprint)
                images.tag_image(endpoint, str(wrong), str(name))
                if images_lock.number_holder(workspace, wrong) is None:
                    images.remove_extra_tag(endpoint, str(wrong))
                retagged.append(name)
    return tuple(retagged)


# ``lock`` resolves missing pins, and updates pins on request, without building.


@dataclass(frozen=True)
class MovedPin:
    """A new or moved pin. ``between`` are the commits between two git pins. ``packages`` are the changed packages of a
    closure, or of a base image that was read. ``older`` are the packages and sources that go back to an older
    version."""

    definition: str
    platform: str
    name: str
    before: str
    after: str
    between: CommitRange | None = None
    packages: tuple[changes.PackageChange, ...] = ()
    older: tuple[pinning.OlderVersion, ...] = ()


@dataclass(frozen=True)
class UpdatedPins:
    """The moved pins, as written to images.lock, and the ``faults`` that prevented resolving other pins."""

    moved: tuple[MovedPin, ...]
    faults: tuple[pinning.Fault, ...]

    @property
    def error(self) -> SourceError | None:
        return pinning.error_of(self.faults) if self.faults else None


def update_lock(
    workspace: Workspace, names: tuple[str, ...], update: resolve.Update, platform: str | None
) -> UpdatedPins:
    """Completes the pins of the definitions ``names`` (all if empty) and of their parents. Without names, a definition
    is left out if its upstream base image is not pinned yet, because reading that image would pull it. Resolved pins
    are written even if others fail. Raises the errors of `resolve.resolve_chains`; images.lock is then unchanged."""
    project = workspace.project
    lock = lock_file.read_project_lock(project)
    image_chains = _chains(workspace, lock, names, platform)
    completed = resolve.resolve_chains(workspace, lock, image_chains, update)
    after: dict[tuple[str, str], Pins] = {}
    moved: list[MovedPin] = []
    for definition in {part.name: part for chain in image_chains for part in chain}.values():
        resolved = completed[definition.name]
        before = lock.pins_of(definition.name, definition.platform)
        if resolved.pins == before:
            continue
        diffs = vendored.load_vendored(project, definition.name, resolved.pins, resolved.patches)
        vendored.keep_vendored(project, definition.name, resolved.pins, diffs)
        after[definition.name, definition.platform] = resolved.pins
        older = pinning.versions_between(definition, before, resolved.pins, update)
        moved += _moved_pins(project, definition, before, resolved.pins, older)
    with images_lock.transaction(workspace) as transaction:
        lock = transaction.lock
        for (definition_name, platform), pins in after.items():
            lock = lock.with_pins(definition_name, platform, pins)
        transaction.commit(lock)
    for chain in image_chains:
        if any((part.name, part.platform) in after for part in chain):
            recipes = advice.recipes_of(project, chain[-1].name)
            advice.report_advice(workspace.report, advice.of_plan(project, lock, chain, recipes))
    faults = [fault for resolved in completed.values() for fault in resolved.faults]
    faults += [fault for chain in image_chains for fault in _faults_of_mods(project, chain, completed)]
    return UpdatedPins(tuple(moved), tuple(dict.fromkeys(faults)))


def check(workspace: Workspace, names: tuple[str, ...], platform: str | None) -> tuple[str, ...]:
    """Lists the stale pins of the definitions ``names`` (all if empty), such as ``cpu on linux/arm64: base``. A pin is
    stale if images.lock lacks it, or has it for a different request. Without names, it leaves out the same definitions
    as `update_lock`."""
    lock = lock_file.read_project_lock(workspace.project)
    lines = [
        f"{name} on {chain[-1].platform}: {pin}"
        for chain in _chains(workspace, lock, names, platform)
        for name, stale in resolve.stale_chain(lock, chain).items()
        for pin in stale
    ]
    return tuple(dict.fromkeys(lines))


def _faults_of_mods(
    project: Project, chain: resolve.Chain, completed: Mapping[str, pinning.ResolvedPins]
) -> Iterator[pinning.Fault]:
    """A fault if mods of ``chain`` require packages in other versions than its images have. `mods check` and the build
    report mods that cannot be read."""
    if not any(part.mods for part in chain) or any(completed[part.name].faults for part in chain):
        return
    try:
        mods = mod_choice.load_mods(project, chain, None)
        mod_choice.check_mod_versions(chain, mods, [completed[part.name].pins for part in chain])
    except FileProblemsError:
        return
    except SourceError as error:
        yield pinning.Fault(chain[-1].name, "mods", error)


def _chains(workspace: Workspace, lock: Lock, names: tuple[str, ...], platform: str | None) -> list[resolve.Chain]:
    """The chains of the definitions ``names``. Without names, a chain on an upstream image that is not pinned yet is
    left out and reported."""
    host, overrides = machine.platform(workspace.engine), Overrides(platform)
    wanted = names or definition_names(workspace.project)
    found_chains: list[resolve.Chain] = []
    for chain in (load_chain(workspace.project, name, host, overrides) for name in wanted):
        unread = [part for part in chain if part.base_sources and lock.pins_of(part.name, part.platform).base is None]
        for part in () if names else unread:
            left_out = f"{chain[-1].name}: skipped; `builder lock {chain[-1].name}` pulls {part.base}"
            workspace.report(Message(f"{left_out} to read its contents"))
        if names or not unread:
            found_chains.append(chain)
    return found_chains


def _moved_pins(
    project: Project, definition: ImageDefinition, before: Pins, after: Pins, older: tuple[pinning.OlderVersion, ...]
) -> list[MovedPin]:
    moved = []
    for name in pinning.pin_names(definition):
        old, new = _summary(before, name), _summary(after, name)
        contents = [_packages_in(side, name) for side in (before, after)]
        if old == new and contents[0] == contents[1]:
            continue
        pins = before.sources.get(name), after.sources.get(name)
        between: CommitRange | None = None
        if isinstance(pins[0], GitPin) and isinstance(pins[1], GitPin) and pins[0].git == pins[1].git:
            from builder.sources import mirror

            upstream = mirror.locate(project.mirrors, definition.git_sources[name].git)
            # Upstream may have removed the old commit, and a new mirror never had it.
            with contextlib.suppress(SourceError):
                between = mirror.commits_between(upstream, pins[0].commit, pins[1].commit)
        packages = changes.package_changes(*contents) if all(contents) else ()
        moved.append(MovedPin(definition.name, definition.platform, name, old, new, between, packages))
    if moved and older:
        # The older versions belong to the last moved pin: the packages, or the base that contains them.
        moved[-1] = replace(moved[-1], older=older)
    return moved


def _packages_in(pins: Pins, name: str) -> dict[str, str]:
    """The version and hashes of each package in a closure or a base image; empty for another pin."""
    packages = {
        "base": pins.base.packages if pins.base else (),
        "python": pins.python.packages if pins.python else (),
        "build": pins.build.packages if pins.build else (),
    }.get(name, ())
    return {package.name: " ".join((package.version, *package.hashes)) for package in packages}


def _summary(pins: Pins, name: str) -> str:
    """A short description of a pin. Different pins have different descriptions, but closures may differ in packages."""
    if name == "base":
        return pins.base.resolved if pins.base else ""
    if name in {"python", "build"}:
        closure = pins.python if name == "python" else pins.build
        if closure is None:
            return ""
        limit = f", resolved as of {closure.as_of}" if closure.as_of else ""
        return f"{words.counted(len(closure.packages), 'package')}, the newest from {closure.newest}{limit}"
    pin = pins.sources.get(name)
    if isinstance(pin, GitPin):
        patches = "".join(f" with {patch.label} at {(patch.head or patch.sha256)[:12]}" for patch in pin.patches)
        return f"{pin.version} ({pin.commit[:12]}){patches}"
    if isinstance(pin, IncludedPin) and pin.commit:
        return f"{pin.version} ({pin.commit[:12]})"
    return pin.version if pin else ""
