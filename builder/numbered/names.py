"""Names of numbered images as people type them: ``vllm-node-tf5:7``, ``tf5:7``, and lookups in the lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.definitions import image
from builder.errors import UsageError
from builder.lock.model import ImageName, Lock, NumberedImage

if TYPE_CHECKING:
    from builder.project import Project


def repository(project: Project, lock: Lock, text: str) -> str | None:
    """The repository called ``text``, or that of the definition called so; None where there is neither."""
    if text in lock.images:
        return text
    if text in image.names(project):
        return image.repository_of(project, text)
    return text if image.of_repository(project, text) else None


def numbered(project: Project, lock: Lock, text: str) -> tuple[ImageName, NumberedImage]:
    """The numbered image called ``text``; without a number, the current one.

    Raises UsageError where images.lock has no such image.
    """
    name, colon, number = text.rpartition(":")
    found = repository(project, lock, name if colon else text)
    held = lock.images.get(found) if found else None
    if found is None or held is None:
        raise UsageError(f"images.lock has no image `{text}`", hint="`builder list` shows the numbered images")
    if not colon or number == "latest":
        number = str(held.current or "")
    if not number.isdecimal() or int(number) not in held.numbers:
        raise UsageError(f"{found} has no number {number}", hint=f"its numbers: {_numbers(held.numbers)}")
    return ImageName(found, int(number)), held.numbers[int(number)]


def _numbers(numbers: dict[int, NumberedImage]) -> str:
    shown = sorted(numbers, reverse=True)
    return ", ".join(map(str, shown[:10])) + (" …" if len(shown) > 10 else "")
