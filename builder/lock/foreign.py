"""Parts of images.lock that are made of what others wrote, such as the labels of an image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import LockError, UsageError
from builder.lock.parsing import parse
from builder.lock.text import dump

if TYPE_CHECKING:
    from builder.lock.model import Lock


def refused(part: Lock) -> str:
    """The reason why images.lock cannot hold ``part``: a name that no image, mod or definition has, or a value of
    another kind; empty where it can."""
    try:
        parse(dump(part), "its labels")
    except (LockError, UsageError) as error:
        return error.message.splitlines()[0]
    except (TypeError, ValueError, AttributeError):
        return "its labels hold values of other kinds than this program writes"
    return ""
