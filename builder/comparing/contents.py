"""What goes into an image, in one form, whether a build directory tells it or the pins of a definition do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.lock.model import Version
from builder.lock.pins import GitPin, Pins, PythonPin
from builder.plan import python

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.lock.model import NumberedImage
    from builder.numbered.build_directory import BuildDirectory, Part

_PULL = "pull request "


@dataclass(frozen=True, order=True)
class PullRequest:
    """A pull request on top of a source."""

    source: str
    number: int


@dataclass(frozen=True)
class ImageContents:
    """``git`` holds the address of each source that is taken from git; ``pulls`` the SHA-256 of each frozen diff;
    ``packages`` the version of each Python package and a digest of its files, ``build`` those for building alone."""

    base: str = ""
    sources: Mapping[str, Version] = field(default_factory=dict)
    git: Mapping[str, str] = field(default_factory=dict)
    pulls: Mapping[PullRequest, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    build: Mapping[str, str] = field(default_factory=dict)

    def versions_only(self) -> ImageContents:
        """The same without what only a build directory tells."""
        return ImageContents(sources=self.sources, git=self.git)


def of_image(image: NumberedImage, directory: BuildDirectory | None, pins: Pins) -> ImageContents:
    """What is in a numbered image. Without its build directory only the versions are known, and where the sources come
    from is taken from the ``pins`` of its definition."""
    git = _addresses(pins)
    if directory is None:
        return ImageContents(sources=image.versions, git=git)
    parts = directory.parts
    return ImageContents(
        base=next((_base(part) for part in parts if "base" in part.takes), ""),
        sources=image.versions,
        git={**git, **{name: url for part in parts for name, (url, _) in part.contexts.items()}},
        pulls=dict(pull for part in parts for pull in _pulls(part)),
        packages={name: at for part in parts for name, at in part.takes.get("python packages", {}).items()},
        build={name: at for part in parts for name, at in part.takes.get("build packages", {}).items()},
    )


def of_pins(pins: Pins) -> ImageContents:
    """What ``pins`` stand for."""
    git = [(name, pin) for name, pin in pins.sources.items() if isinstance(pin, GitPin)]
    return ImageContents(
        base=f"{pins.base.asked} {pins.base.resolved}" if pins.base else "",
        sources={name: Version(pin.version, pin.commit) for name, pin in pins.sources.items()},
        git=_addresses(pins),
        pulls={PullRequest(name, pull.number): pull.sha256 for name, pin in git for pull in pin.pulls},
        packages=_closure(pins.python),
        build=_closure(pins.build),
    )


def _addresses(pins: Pins) -> dict[str, str]:
    return {name: pin.git for name, pin in pins.sources.items() if isinstance(pin, GitPin)}


def _closure(pin: PythonPin | None) -> dict[str, str]:
    return {package.name: python.identity(package) for package in pin.packages} if pin else {}


def _base(part: Part) -> str:
    takes = part.takes["base"]
    return f"{takes.get('image', '')} {takes.get('content', '')}".strip()


def _pulls(part: Part) -> Iterator[tuple[PullRequest, str]]:
    for source, takes in part.takes.items():
        for key, sha256 in takes.items():
            number = key.removeprefix(_PULL)
            if key.startswith(_PULL) and number.isdecimal():
                yield PullRequest(source, int(number)), sha256.removeprefix("sha256:")
