"""Two numbered images to be compared, and their contents as far as they are known of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.comparing import contents
from builder.errors import FileProblemsError
from builder.numbered import adopted, build_directory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.comparing.contents import ImageContents
    from builder.lock.model import ImageName, Lock, NumberedImage, Pairing
    from builder.numbered.adopted import AdoptedContents
    from builder.numbered.build_directory import BuildDirectory
    from builder.project import Project


@dataclass(frozen=True)
class ComparedImage:
    """One of the two images. ``directory`` is None where its build directory is gone or damaged, and for an adopted
    image, of which ``adopted`` is what was read out of it; ``pairings`` holds the pairing of each model that is, or
    was, paired with it."""

    name: ImageName
    image: NumberedImage
    directory: BuildDirectory | None
    adopted: AdoptedContents | None
    pairings: Mapping[str, Pairing]

    @property
    def knows_base(self) -> bool:
        """True if its build recorded the packages of the base image."""
        return bool(self.directory and any("base packages" in part.takes for part in self.directory.parts))


def of(project: Project, lock: Lock, name: ImageName) -> tuple[ComparedImage, str]:
    """An image that images.lock has, and the error where its build directory cannot be read."""
    image = lock.images[name.repository].numbers[name.number]
    pairings = {
        name_of_model: pairing
        for name_of_model, model in sorted(lock.models.items())
        for pairing in (model.pairing, *model.previous)
        if pairing.image == name
    }
    if image.adopted:
        inside = adopted.read(build_directory.path_of(project, name))
        fault = inside.unknown if inside else f"what was read out of {name} is gone"
        return ComparedImage(name, image, None, inside, pairings), fault
    try:
        return ComparedImage(name, image, build_directory.read(project, name), None, pairings), ""
    except FileProblemsError as error:
        return ComparedImage(name, image, None, None, pairings), error.message


def contents_of_both(lock: Lock, before: ComparedImage, after: ComparedImage) -> tuple[ImageContents, ImageContents]:
    """The contents of each image, limited to what is known of both."""
    both = [contents_of(lock, side) for side in (before, after)]
    if any(side.directory is None and not (side.adopted and side.adopted.packages) for side in (before, after)):
        both = [image_contents.versions_only() for image_contents in both]
    elif before.adopted or after.adopted:
        both = [image_contents.installed_only() for image_contents in both]
        # A build knows the packages of its base only where they are pinned: those found in an adopted image alone may
        # be in both, as pip and wheel of Debian are.
        for side, own in zip((before, after), tuple(both), strict=True):
            if side.directory and not side.knows_base:
                both = [image_contents.limited_to(own.packages) for image_contents in both]
    return both[0], both[1]


def are_same(before: ComparedImage, after: ComparedImage) -> bool:
    """True if one of the two was adopted, and its content is byte for byte that of the other."""
    has_adopted = bool(before.image.adopted or after.image.adopted)
    return has_adopted and before.image.fingerprint == after.image.fingerprint


def contents_of(lock: Lock, side: ComparedImage) -> ImageContents:
    """All that is known of the contents of an image."""
    if side.image.adopted:
        return contents.of_adopted(side.image, side.adopted)
    pins = lock.pins_of(side.image.definition, side.image.platform)
    return contents.of_image(side.image, side.directory, pins)
