"""The messages of `builder recipes check`, each with what it means and what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

_FILE = Path(__file__).parent / "recipe_notes.yaml"
_ANY = "…"


@dataclass(frozen=True)
class RecipeNote:
    """A message, ``says``, with … for what is of the recipe; ``keeps`` is false where the recipe is served all the
    same."""

    says: str
    means: str
    do: str
    keeps: bool

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(".*?".join(map(re.escape, self.says.split(_ANY))), re.DOTALL)

    def fits(self, message: str) -> bool:
        """True if ``message`` is this one."""
        return self._pattern.fullmatch(message) is not None

    @property
    def own_text(self) -> int:
        """The length of what is of the message itself: of several that fit, the one with most says most."""
        return len(self.says.replace(_ANY, ""))


@cache
def every() -> tuple[RecipeNote, ...]:
    """All messages, in the order of the page."""
    import yaml

    entries = yaml.load(_FILE.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    return tuple(
        RecipeNote(entry["says"], entry["means"], entry["do"], not entry.get("note", False)) for entry in entries
    )


def find(message: str) -> RecipeNote | None:
    """The message that ``message`` is, with or without the place before it, or the option and value that it is about;
    None where it is none of them."""
    rest = re.sub(r"^(?:note: |error: )?(?:\S+?:\d+(?::\d+)?: )?", "", " ".join(message.split()))
    while rest:
        fitting = [note for note in every() if note.fits(rest)]
        if fitting:
            return max(fitting, key=lambda note: note.own_text)
        rest = rest.partition(": ")[2]
    return None
