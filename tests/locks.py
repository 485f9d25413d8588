"""images.lock for tests: numbered images that nobody built, and the models paired with them."""

from __future__ import annotations

from dataclasses import replace

from builder.base.project import Project
from builder.lock import text
from builder.lock.model import ImageName, Lock, Model, NumberedImage, Pairing, Repository
from tests import projects

RECIPE = "recipes/chat.yaml"
MODEL = "Org/Model-1B"


def numbered(mods: dict[str, str] | None = None) -> NumberedImage:
    """An image of the definition ``small``."""
    digest = f"sha256:{'0' * 64}"
    return NumberedImage("2026-11-20T22:00:00Z", "small", "linux/amd64", digest, digest, 5, mods=mods or {})


def without_circumstances(image: NumberedImage) -> NumberedImage:
    """The image but for when and where it was built, and what follows from that."""
    return replace(image, built="", fingerprint="", size=0, builder=None)


def write(project: Project, numbers: tuple[int, ...], current: int, paired: int | None = None, **mods: str) -> None:
    """A lock with these numbers of ``small``, and its model paired with one of them."""
    repository = Repository(max(numbers) + 1, current, numbers={number: numbered(mods) for number in numbers})
    pairing = {MODEL: Model(Pairing(ImageName("small", paired), RECIPE))} if paired else {}
    projects.write(project.lock, text.dump_lock(Lock(images={"small": repository}, models=pairing)))
