"""The sentence for ^C: each command takes back what it had begun, and some go on from there."""

from __future__ import annotations

from collections.abc import Sequence

from builder.cli.command_table import TABLE

_BUILD = "nothing changed; run it again, finished steps are cached"
_RESUMES = "run it again, and it goes on where it was"
_LEFT = {
    "build": _BUILD,
    "rebuild": _BUILD,
    "lock": "nothing changed; run it again",
    "download": _RESUMES,
    "up": _RESUMES,
    "upgrade": _RESUMES,
    "push": "run it again, and layers that are there are not sent again",
    "pull": "nothing changed; run it again",
    "copy": "run it again, and layers that are there are not sent again",
    "prune": "what was removed stays so; run it again for the rest",
}


def sentence(arguments: Sequence[str], error: BaseException) -> str:
    """The line for a command that was interrupted: what ``error`` says itself, or what holds for every command of that
    name."""
    name = next((word for word in arguments if word in TABLE), "")
    left = str(error) or _LEFT.get(name, "")
    return f"interrupted: {left}" if left else "interrupted"
