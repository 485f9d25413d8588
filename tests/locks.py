"""images.lock for tests: numbered images that were never built, and the models paired with them."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

from builder.base.project import Project
from builder.lock import layout, lock_file, text
from builder.lock.model import ImageName, Lock, Model, NumberedImage, Pairing, Repository
from tests import projects

RECIPE = "recipes/chat.yaml"
MODEL = "Org/Model-1B"


def numbered(mods: dict[str, str] | None = None) -> NumberedImage:
    """An image of the definition ``small``."""
    digest = f"sha256:{'0' * 64}"
    return NumberedImage("2026-11-20T22:00:00Z", "small", "linux/amd64", digest, digest, 5, mods=mods or {})


def reread(text: str, *locks: Lock) -> Lock:
    """Reads the lock in ``text``, with the package files of ``locks``."""
    contents = {file.digest: file.content for lock in locks for file in layout.packages_files(lock)}
    return lock_file.parse_and_explain(text, load=lambda _path, digest: contents.get(digest))


def write_lock(folder: Path, lock: Lock) -> None:
    """Writes images.lock and its package files into a project's folder."""
    projects.write(folder / "images.lock", text.dump_lock(lock))
    for file in layout.packages_files(lock):
        projects.write(folder / file.path, file.content.decode())


def content(fingerprint: str) -> str:
    """A fingerprint in the form of images.lock."""
    return base64.urlsafe_b64encode(bytes.fromhex(fingerprint.removeprefix("sha256:"))).decode().rstrip("=")


def undated(lock: Lock) -> Lock:
    """The lock without the times at which images began to serve."""
    models = {
        name: Model(replace(model.pairing, since=""), tuple(replace(each, since="") for each in model.previous))
        for name, model in lock.models.items()
    }
    return replace(lock, models=models)


def without_circumstances(image: NumberedImage) -> NumberedImage:
    """The image without the time and place of its build, and without values that depend on them."""
    return replace(image, built="", fingerprint="", size=0, builder=None)


def write(project: Project, numbers: tuple[int, ...], current: int, paired: int | None = None, **mods: str) -> None:
    """Writes a lock with these numbers of ``small``, and its model paired with one of them."""
    repository = Repository(max(numbers) + 1, current, numbers={number: numbered(mods) for number in numbers})
    pairing = {MODEL: Model(Pairing(ImageName("small", paired), RECIPE))} if paired else {}
    projects.write(project.lock, text.dump_lock(Lock(images={"small": repository}, models=pairing)))


def one_after_the_other(commit: str) -> Lock:
    """A lock with two numbers of ``small``. The model was served at ``commit`` by the first number, and is now served
    by the second, the current number."""
    lock = Lock()
    for number in (1, 2):
        name, image = ImageName("small", number), replace(numbered(), fingerprint=f"sha256:{number:064x}", size=1)
        lock = lock.with_image(name, image).with_pairing(MODEL, Pairing(name, RECIPE, commit))
    return lock.with_current(ImageName("small", 2))
