"""The contents of an image, in one form, whether they come from a build directory or from the pins of a definition."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from builder.definitions.image import PACKAGES_BUILT_FROM
from builder.lock.model import Version
from builder.lock.pins import GitPin, Pins, PythonPin
from builder.plan import python

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from builder.lock.model import NumberedImage
    from builder.numbered.adopted import AdoptedContents
    from builder.numbered.build_directory import BuildDirectory, BuildPart

_PULL = "pull request "
UPSTREAM = {
    "vllm": "https://github.com/vllm-project/vllm.git",
    "flashinfer": "https://github.com/flashinfer-ai/flashinfer.git",
}


@dataclass(frozen=True, order=True)
class PullRequest:
    """A pull request on top of a source."""

    source: str
    number: int


@dataclass(frozen=True)
class ImageContents:
    """The contents of an image. ``git`` has the address of each source taken from git, ``pulls`` the SHA-256 of each
    vendored patch, ``packages`` the version of each Python package and a digest of its files, ``build`` the same for
    packages that are only built with."""

    base: str = ""
    sources: Mapping[str, Version] = field(default_factory=dict)
    git: Mapping[str, str] = field(default_factory=dict)
    pulls: Mapping[PullRequest, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    build: Mapping[str, str] = field(default_factory=dict)

    def installed_only(self) -> ImageContents:
        """Returns the same contents as far as they can be compared with those of an adopted image: the sources, and the
        versions of the other packages."""
        made = {name for source in self.sources for name in (source, *PACKAGES_BUILT_FROM.get(source, ()))}
        packages = {name: at.partition(" ")[0] for name, at in self.packages.items() if name not in made}
        return ImageContents(sources=self.sources, git=self.git, packages=packages)

    def limited_to(self, packages: Collection[str]) -> ImageContents:
        """Returns the same contents, of the packages only those that are named."""
        return replace(self, packages={name: at for name, at in self.packages.items() if name in packages})

    def versions_only(self) -> ImageContents:
        """Returns the same contents, without what only a build directory shows."""
        return ImageContents(sources=self.sources, git=self.git)


def of_image(image: NumberedImage, directory: BuildDirectory | None, pins: Pins) -> ImageContents:
    """Returns the contents of a numbered image. Without its build directory only the versions are known, and the
    addresses of the sources are taken from the ``pins`` of its definition."""
    git = _addresses(pins)
    if directory is None:
        return ImageContents(sources=image.versions, git=git)
    parts = directory.parts
    return ImageContents(
        base=next((_base(part) for part in parts if "base" in part.takes), ""),
        sources=image.versions,
        git={**git, **{name: url for part in parts for name, (url, _) in part.contexts.items()}},
        pulls=dict(pull for part in parts for pull in _pulls(part)),
        packages={
            name: at
            for part in parts
            for step in ("base packages", "python packages")
            for name, at in part.takes.get(step, {}).items()
        },
        build={name: at for part in parts for name, at in part.takes.get("build packages", {}).items()},
    )


def of_adopted(image: NumberedImage, inside: AdoptedContents | None) -> ImageContents:
    """Returns the contents of an adopted image; ``inside`` is what was read out of it, None where that is gone. Its
    sources are taken to be of their own projects, where the commits between two of them can be looked up."""
    return ImageContents(sources=image.versions, git=UPSTREAM, packages=inside.packages if inside else {})


def of_pins(pins: Pins) -> ImageContents:
    """Returns the contents of an image built with ``pins``."""
    git = [(name, pin) for name, pin in pins.sources.items() if isinstance(pin, GitPin)]
    return ImageContents(
        base=f"{pins.base.requested} {pins.base.resolved}" if pins.base else "",
        sources={name: Version(pin.version, pin.commit) for name, pin in pins.sources.items()},
        git=_addresses(pins),
        pulls={PullRequest(name, pull.number): pull.sha256 for name, pin in git for pull in pin.pulls},
        packages={**_brought(pins), **_closure(pins.python)},
        build=_closure(pins.build),
    )


def _addresses(pins: Pins) -> dict[str, str]:
    return {name: pin.git for name, pin in pins.sources.items() if isinstance(pin, GitPin)}


def _brought(pins: Pins) -> dict[str, str]:
    """The packages that come with the base image."""
    return {package.name: package.version for package in pins.base.packages} if pins.base else {}


def _closure(pin: PythonPin | None) -> dict[str, str]:
    return {package.name: python.identity(package) for package in pin.packages} if pin else {}


def _base(part: BuildPart) -> str:
    takes = part.takes["base"]
    return f"{takes.get('image', '')} {takes.get('content', '')}".strip()


def _pulls(part: BuildPart) -> Iterator[tuple[PullRequest, str]]:
    for source, takes in part.takes.items():
        for key, sha256 in takes.items():
            number = key.removeprefix(_PULL)
            if key.startswith(_PULL) and number.isdecimal():
                yield PullRequest(source, int(number)), sha256.removeprefix("sha256:")
