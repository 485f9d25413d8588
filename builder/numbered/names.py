"""Names of numbered images as the user types them (``vllm-node-tf5:7``, ``tf5:7``), looked up in images.lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import UsageError
from builder.lock.model import ImageName, Lock, NumberedImage

if TYPE_CHECKING:
    from builder.project import Project

_HINT = "`builder list` shows the numbered images; `builder adopt IMAGE` gives one that is in the engine a number"


def repository(project: Project, lock: Lock, text: str) -> str | None:
    """The repository called ``text``, or that of the definition called so; None where there is neither."""
    if text in lock.images:
        return text
    from builder.definitions import image

    if text in image.names(project):
        return image.repository_of(project, text)
    return text if image.of_repository(project, text) else None


def numbered(project: Project, lock: Lock, text: str) -> tuple[ImageName, NumberedImage]:
    """The numbered image called ``text``; without a number, the current one.

    Raises UsageError where images.lock has no such image.
    """
    name, colon, number = text.rpartition(":")
    repository_name = repository(project, lock, name if colon else text)
    record = lock.images.get(repository_name) if repository_name else None
    if repository_name is None or record is None:
        raise UsageError(f"images.lock has no image `{text}`", hint=_HINT)
    if not colon or number == "latest":
        number = str(record.current or "")
    if not number.isdecimal() or int(number) not in record.numbers:
        raise UsageError(f"{repository_name} has no number {number}", hint=f"its numbers: {_numbers(record.numbers)}")
    return ImageName(repository_name, int(number)), record.numbers[int(number)]


def _numbers(numbers: dict[int, NumberedImage]) -> str:
    shown = sorted(numbers, reverse=True)
    return ", ".join(map(str, shown[:10])) + (" …" if len(shown) > 10 else "")
