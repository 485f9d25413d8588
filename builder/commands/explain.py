"""The explain command: an exit code, a key of a file, or a message on a recipe, in words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import UsageError
from builder.explaining import exit_codes, keys, notes
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Explanation:
    """The explanation of ``subject``: a line each."""

    kind: str
    subject: str
    lines: tuple[str, ...]


def run(text: str) -> tuple[Explanation, ...]:
    """Explains an exit code, a key (``serve.gpus``; ``image.yaml:serve.gpus`` for that of one file, ``run-json:server``
    for one that a command prints; its last part alone will do), or a message of `recipes check` as it was printed.
    Raises UsageError for anything else."""
    wanted = text.strip()
    if re.fullmatch(r"\d{1,3}", wanted):
        return (_exit_code(int(wanted)),)
    explained = tuple(_keys(wanted))
    if explained:
        return explained
    if note := notes.find(wanted):
        more = "" if note.keeps else "it keeps the recipe from nothing"
        return (Explanation("message", note.says, tuple(filter(None, (note.means, more, note.do)))),)
    raise UsageError(
        f"`{text}` is no exit code, no key of a file and no message of `builder recipes check`",
        hint=_suggestion(wanted) or "`builder schema` lists the files; `builder COMMAND --help` tells of options",
    )


def _exit_code(number: int) -> Explanation:
    for code in exit_codes.every():
        if code.code == number:
            return Explanation("exit code", str(number), code.meanings)
    numbers = ", ".join(str(code.code) for code in exit_codes.every())
    raise UsageError(f"builder ends with no exit code {number}", hint=f"there are: {numbers}")


def _keys(wanted: str) -> Iterator[Explanation]:
    """The keys that ``wanted`` names: by their whole path, or else those whose last parts it is."""
    file, colon, path = wanted.rpartition(":")
    files = [each for each in keys.every() if not colon or each.name == file or each.name.startswith(f"{file}.")]
    if printed := keys.outputs().get(file):
        files = [printed]
    every = [(each.name, key) for each in files for key in each.keys]
    exact = [pair for pair in every if pair[1].path == path]
    ending = [pair for pair in every if re.search(rf"(?:^|[.\]]){re.escape(path)}$", pair[1].path)]
    for name, key in exact or (ending if path else []):
        yield Explanation("key", f"{name}: {key.path}", tuple(filter(None, (key.kind, key.text))))


def _suggestion(wanted: str) -> str:
    paths = {key.path for file in keys.every() for key in file.keys}
    return did_you_mean(wanted, sorted(paths | {path.rpartition(".")[2] for path in paths}), code=True)
