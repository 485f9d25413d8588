"""A part of bringing a model up: the event when it begins, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PartName = Literal["image", "nodes", "model", "server"]
# What was done: nothing, because it was here; or how it came here.
PartOutcome = Literal["here", "built", "pulled", "rebuilt", "copied", "downloaded", "left", "started"]


@dataclass(frozen=True)
class PartBegan:
    """The event when a part begins."""

    part: PartName


@dataclass(frozen=True)
class UpPart:
    """A part that is done: what it is about, such as an image or a model, what was done, and in how many seconds.
    ``note`` says more where there is more to say."""

    part: PartName
    subject: str
    outcome: PartOutcome
    seconds: float
    note: str = ""


@dataclass(frozen=True)
class PartEnded:
    """The event when a part is done."""

    result: UpPart
