"""A recipe names a model, its image and mods, and the serve command.

The recipe comes first, then finding a recipe, notes on keys, and corrections of a pasted recipe. Only certain errors
are corrected. Version 2 has its own module.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from builder.base import yaml_file
from builder.base.errors import FileProblemsError, Location, Problem, UnsafePathError, UsageError
from builder.base.project import Project, below_project
from builder.base.values import dataclass, field, replace
from builder.base.words import RECIPE_FILE, did_you_mean
from builder.definitions import configuration, recipe_v2
from builder.definitions.configuration import NOTHING_REQUIRED, RequiredEvidence
from builder.definitions.fields import SCHEMAS, read_text

if TYPE_CHECKING:
    from builder.base.yaml_file import Repetition
    from builder.definitions.shell import Scalar


# Recipes: ``recipes/NAME.yaml``, in version 1 (the community's) or version 2 (sparkrun's).

CHECKPOINT = "checkpoint:"
"""The prefix of `model` in a recipe that serves a checkpoint of the project."""

SCHEMA = SCHEMAS / "recipe.schema.json"
_LARGEST = 64 << 10  # characters, about a thousand lines


@dataclass(frozen=True)
class Recipe:
    """A recipe as read. ``file`` is its path relative to the project's folder, ``text`` the content of the file.

    ``container`` is a definition's repository or a numbered image of it (``vllm-node-tf5:7``). ``cluster`` is ``ray``
    or ``none`` if the recipe says how several nodes are joined. ``requires`` is the evidence that a new image needs
    before it serves the model. ``checkpoint`` names the checkpoint of the project whose weights are served. A recipe of
    version 2 also sets the number of machines, and the commands that run ``before`` each start."""

    file: str
    name: str
    description: str
    model: str | None
    revision: str | None
    draft_model: str | None
    container: str
    mods: tuple[str, ...]
    defaults: dict[str, Scalar]
    env: dict[str, Scalar]
    volumes: tuple[str, ...]
    command: str
    cluster: str | None
    solo_only: bool
    cluster_only: bool
    ignored_build_args: tuple[str, ...]
    text: str = field(repr=False, compare=False)
    requires: RequiredEvidence = NOTHING_REQUIRED
    checkpoint: str | None = None
    version: int = 1
    min_nodes: int = 1
    max_nodes: int | None = None
    before: tuple[str, ...] = ()

    @property
    def repository(self) -> str:
        """The repository that ``container`` names, without a number and without the tag ``latest``."""
        repository, _, tag = self.container.rpartition(":")
        return repository if repository and (self.number or tag == "latest") else self.container

    @property
    def number(self) -> int | None:
        """The number that ``container`` names, or None."""
        number = self.container.rpartition(":")[2]
        return int(number) if number.isascii() and number.isdecimal() and ":" in self.container else None

    def location(self, *path: str | int) -> Location:
        return yaml_file.location_of(path, self.text, self.file)


@dataclass(frozen=True)
class ParsedRecipe:
    """The recipe if its text is valid, its problems, and notes that do not prevent serving it."""

    recipe: Recipe | None
    problems: tuple[Problem, ...]
    notes: tuple[Problem, ...] = ()


def readable_recipes(project: Project) -> Iterator[tuple[str, Recipe]]:
    for path in recipe_files(project.recipes):
        with suppress(FileProblemsError, UsageError):
            yield name_of(project.relative(path)), load_recipe(project, path)


def load_recipe(project: Project, path: Path) -> Recipe:
    """Reads the recipe in ``path``. Raises UsageError if the file does not exist, FileProblemsError with all problems
    of an invalid recipe."""
    parsed = read_recipe(project, path)
    if parsed.recipe is None or parsed.problems:
        raise FileProblemsError(parsed.problems)
    if not re.fullmatch(RECIPE_FILE, parsed.recipe.file):
        message = (
            "images.lock cannot hold a name that begins with `-` or `~`, or contains a backslash or control character"
        )
        raise FileProblemsError((Problem(Location(parsed.recipe.file), message),), hint="rename the file")
    return parsed.recipe


def read_recipe(project: Project, path: Path) -> ParsedRecipe:
    """Reads the recipe in ``path`` and finds all its problems. Raises UsageError if the file does not exist."""
    file = project.relative(path)
    # A file outside the project, such as ../x.yaml, was named by the user: its links are followed.
    is_ours = Path(os.path.normpath(path.absolute())).is_relative_to(project.root)
    return _with_checkpoint(project, parse_recipe(read_text(path, file, project.root if is_ours else None), file))


def parse_recipe(text: str, file: str) -> ParsedRecipe:
    """Reads the text of a recipe and finds all its problems. Errors call the recipe ``file``."""
    if len(text) > _LARGEST:
        message = f"a recipe has at most {_LARGEST:,} characters, but this file has {len(text):,}"
        return ParsedRecipe(None, (Problem(Location(file), message),))
    parsed, is_as_typed = _parsed(text, file)
    if not is_as_typed and (changed := pasted_problem(text, file)):
        return ParsedRecipe(None, (changed,))
    return parsed


def _parsed(text: str, file: str) -> tuple[ParsedRecipe, bool]:
    """Parses the text without corrections. The second value is True if no web page can have changed the text."""
    try:
        data, repetitions = yaml_file.load_shared(text, file)
    except FileProblemsError as error:
        return ParsedRecipe(None, error.problems), False
    is_version_2 = isinstance(data, dict) and recipe_v2.is_version_2(data)
    if is_version_2 and (foreign := recipe_v2.foreign_problem(data, text, file)):
        return ParsedRecipe(None, (foreign,)), True
    problems = yaml_file.problems(data, recipe_v2.SCHEMA if is_version_2 else SCHEMA, text, file)
    if not isinstance(data, dict):
        return ParsedRecipe(None, problems), False
    if data.get("requires"):
        conditions = configuration.problems(data["requires"], ("requires",), text, file)
        problems = tuple(sorted({*problems, *conditions}))
    unknown = tuple(_unknown_keys(data, text, file, recipe_v2.keys() if is_version_2 else keys()))
    notes = [*_repeated_keys(repetitions, file), *unknown]
    is_as_typed = text.isascii() and not (problems or unknown or "\t" in text)
    if is_version_2:
        is_as_typed = text.isascii() or recipe_v2.is_marked(data)
    elif (written := data.get("recipe_version")) is not None and recipe_v2.version_of(written) != 1:
        location = yaml_file.location_of(("recipe_version",), text, file)
        notes.append(Problem(location, f"`recipe_version`: {written} is unknown; builder reads it as version 1"))
    if is_version_2 and not problems:
        try:
            data, notes = recipe_v2.values(data, text, file), [*notes, *recipe_v2.notes(data, text, file)]
        except ValueError as error:
            problems = (Problem(yaml_file.location_of(("defaults",), text, file), f"`defaults`: {error}"),)
    recipe = None if problems else _recipe(data, text, file, 2 if is_version_2 else 1)
    return ParsedRecipe(recipe, problems, tuple(notes)), is_as_typed


def keys() -> tuple[str, ...]:
    return tuple(yaml_file.schema(SCHEMA)["properties"])


def _with_checkpoint(project: Project, parsed: ParsedRecipe) -> ParsedRecipe:
    """Adds facts from the definition of the recipe's checkpoint: the mods that it needs, and the model that it is made
    from. ``{model}`` stands for that model wherever the weights do not matter."""
    recipe = parsed.recipe
    if recipe is None or recipe.checkpoint is None:
        return parsed
    from builder.definitions import checkpoint_definition

    try:
        definition = checkpoint_definition.load_checkpoint(project, recipe.checkpoint)
    except (FileProblemsError, UsageError) as error:
        problem = Problem(recipe.location("model"), error.message.splitlines()[0])
        return replace(parsed, recipe=None, problems=(*parsed.problems, problem))
    if not re.search(r"\{model\b", recipe.command):
        message = "the command does not serve the checkpoint: write `{model}` where it names the weights"
        return replace(parsed, problems=(*parsed.problems, Problem(recipe.location("command"), message)))
    listed = {mod.rstrip("/").rpartition("/")[2] for mod in recipe.mods}
    mods = (*recipe.mods, *(f"mods/{mod}" for mod in definition.mods if mod not in listed))
    defaults = {"model": definition.model, **recipe.defaults}
    return replace(parsed, recipe=replace(recipe, model=definition.model, mods=mods, defaults=defaults))


def _recipe(data: dict[str, Any], text: str, file: str, version: int) -> Recipe:
    model: str | None = data.get("model")
    checkpoint: str | None = None
    defaults = dict(data.get("defaults") or {})
    if model and model.startswith(CHECKPOINT):
        checkpoint, model = model.removeprefix(CHECKPOINT), None
    if model and not model[0].isalnum():
        # A folder is not a model of the Hub: it is not downloaded, and images are not paired with it.
        defaults, model = {"model": model, **defaults}, None
    build_args = data.get("build_args") or ()
    return Recipe(
        file=file,
        name=str(data["name"]),
        description=str(data.get("description") or ""),
        model=model,
        revision=data.get("model_revision"),
        draft_model=data.get("draft_model"),
        container=data["container"].strip(),
        mods=tuple(data.get("mods") or ()),
        defaults=defaults,
        env=dict(data.get("env") or {}),
        volumes=tuple(data.get("volumes") or ()),
        command=data["command"],
        cluster=data.get("cluster"),
        solo_only=bool(data.get("solo_only")),
        cluster_only=bool(data.get("cluster_only")),
        ignored_build_args=(build_args,) if isinstance(build_args, str) else tuple(map(str, build_args)),
        text=text,
        requires=configuration.parsed(data.get("requires")),
        checkpoint=checkpoint,
        version=version,
        min_nodes=data["min_nodes"] if version == 2 else 1,
        max_nodes=data["max_nodes"] if version == 2 else None,
        before=data["before"] if version == 2 else (),
    )


# Finding the recipe that the user names by its file, its path without suffix, or its name.

SUFFIXES = (".yaml", ".yml")


def recipe_files(folder: Path) -> tuple[Path, ...]:
    """The recipe files in ``folder`` and its subfolders, sorted, without hidden files and folders. Whatever has such a
    name counts, also a link without a file: reading it is an error. Links to folders are followed only within the
    project: a link may lead to the whole disk."""
    collected = []
    project, seen = Path(os.path.realpath(folder)).parent, set()
    for path, folders, names in os.walk(folder, followlinks=True):
        real = Path(os.path.realpath(path))
        if real in seen or not real.is_relative_to(project):
            folders[:] = []
            continue
        seen.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        every = [name for name in (*names, *folders) if name.endswith(SUFFIXES) and not name.startswith(".")]
        collected += [Path(path, name) for name in every]
    return tuple(sorted(collected, key=lambda file: file.parts))


def recipe_names(project: Project) -> tuple[str, ...]:
    """The sorted names of the project's recipes: paths in ``recipes/`` without suffix (``chat``, ``4x/chat``). A name
    with a line break or a control character is left out: it could pass for text of this program."""
    names = {str(file.relative_to(project.recipes).with_suffix("")) for file in recipe_files(project.recipes)}
    return tuple(sorted(name for name in names if name.isprintable()))


def name_of(file: str) -> str:
    """The name of the recipe in ``file``, a path relative to the project's folder."""
    path = PurePath(file)
    return str(path.with_suffix("")).removeprefix("recipes/") if path.suffix in SUFFIXES else file


def recorded(project: Project, file: str | None) -> Path | None:
    """The recipe file that images.lock records for a served model. None if it no longer exists. Raises UnsafePathError
    for a file outside ``recipes/``: the recipe decides which command runs, and which folders are mounted."""
    path = project.root / file if file else None
    if path is None or not path.is_file():
        return None
    if not is_in_recipes(project, path):
        message = f"images.lock names {file}, which is not a file in recipes/, so builder does not read it"
        raise UnsafePathError(message, hint="if the recipe is yours, give the command the path of its file")
    return path


def is_in_recipes(project: Project, path: Path) -> bool:
    """True if ``path`` is in ``recipes/`` after following links. Raises UnsafePathError if that folder is a link that
    leaves the project."""
    return path.resolve().is_relative_to(below_project(project.root, project.recipes).resolve())


def find_recipe(project: Project, text: str) -> Path | None:
    """The file of the recipe that ``text`` names, or None. A path is relative to the project's folder, or else to the
    working directory. A name is searched in ``recipes/``, then in its subfolders. Raises UsageError if several recipes
    in the subfolders have the name."""
    here = [project.root / text, Path(text)]
    if text.endswith(SUFFIXES):
        paths = [*here, project.recipes / text]
    else:
        folders = [project.recipes / text, *(here if "/" in text else ())]
        paths = [path.parent / f"{path.name}{suffix}" for path in folders for suffix in SUFFIXES]
    if existing := next((path for path in paths if path.is_file()), None):
        return existing
    wanted = PurePath(text.removeprefix("./").removeprefix("recipes/")).parts
    if not wanted:
        return None
    last = slice(-len(wanted), None)
    inside = {file: file.relative_to(project.recipes) for file in recipe_files(project.recipes)}
    matching = [file for file, path in inside.items() if wanted in (path.parts[last], path.with_suffix("").parts[last])]
    if len(matching) > 1:
        which = ", ".join(project.relative(file) for file in matching)
        raise UsageError(f"`{text}` names several recipes: {which}", hint="name one recipe with its folder")
    return matching[0] if matching else None


# Unknown keys, and repeated keys.

# Below this, a suggestion would send the author to a key that means something else.
_NEAR = 0.8


def _unknown_keys(data: Mapping[str, Any], text: str, file: str, valid: tuple[str, ...]) -> Iterator[Problem]:
    """A note for each unknown key: newer launchers have additional keys."""
    absent = [key for key in valid if key not in data]
    for key in (key for key in data if key not in valid):
        # For example, `solo` is the beginning of `solo_only`.
        begun = [choice for choice in absent if len(key) >= 4 and choice.startswith(f"{key}_")]
        nearest = did_you_mean(key, absent, code=True, near=_NEAR)
        suggestion = f"did you mean `{begun[0]}`?" if len(begun) == 1 else nearest or "it is ignored"
        yield Problem(yaml_file.location_of((key,), text, file), f"unknown key `{key}`; {suggestion}")


def _repeated_keys(repetitions: Iterable[Repetition], file: str) -> Iterator[Problem]:
    """A note for each repeated key: launchers silently use the last value."""
    for repetition in repetitions:
        how = " as a whole, and the earlier value is ignored"
        if repetition.values:
            lines = [value.strip().splitlines() or ["nothing"] for value in repetition.values]
            earlier, later = (line if len(line) <= 40 and not more else f"{line[:39]}…" for line, *more in lines)
            how = f": {later}, not {earlier}"
        what = f"CONTRADICTS line {repetition.earlier_line}: the last value is used{how}"
        if repetition.same:
            what = f"is already set in line {repetition.earlier_line}, to the same value"
        name = ".".join(map(str, repetition.path))
        yield Problem(Location(file, repetition.line, repetition.column), f"`{name}` {what}")


# Recipes that were pasted from a web page. Forums and word processors replace plain quotes, dashes and spaces with
# typographic characters, and drop indentation. The text is restored as its author typed it, but only if that is
# certain: prose (comments, descriptions, quoted text) may contain such characters.

_DASHES = "–—―‐‑‒−"  # noqa: RUF001
_BULLETS = "•◦‣▪▫●○·∙⁃*"  # noqa: RUF001
_MARKS = str.maketrans(
    {**dict.fromkeys("“”„‟″«»", '"'), **dict.fromkeys("‘’‚‛′´", "'"), **dict.fromkeys(_DASHES, "-")}  # noqa: RUF001
)
# Special spaces, and invisible characters.
_BLANKS: dict[int, str | None] = {
    **dict.fromkeys((0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000), " "),
    **dict.fromkeys((0xAD, *range(0x200B, 0x2010), *range(0x202A, 0x202F), 0x2060, *range(0x2066, 0x206A), 0xFEFF)),
}
_BULLET = re.compile(rf"^(\s*)[{_BULLETS}{_DASHES}](?=\s)")
# The dashes before an option's name.
_OPTION = re.compile(rf"(?<![^\s'\"“”‘’])([{_DASHES}-]*[{_DASHES}]-*)(?=([A-Za-z][\w-]*))")  # noqa: RUF001
# Typographic characters are allowed in quoted text that does not look like JSON, in a comment after a value, and in a
# word with an apostrophe outside the command.
_PROSE = r"""(?<![^\s=:,(\[{])(?:'(?!\s*[{\[])[^']*'|"(?!\s*[{\[])(?:[^"\\]|\\.)*")|(?<=\s)#.*"""
_APOSTROPHE = r"(?<=[^\W\d_])[‘’´](?=[^\W\d_])"  # noqa: RUF001

_FENCES = (
    re.compile(r"\A(\s*)(?:```|~~~)[\w-]*[ \t]*$", re.MULTILINE),
    re.compile(r"^(?:```|~~~)[ \t]*+(\s*+)\Z", re.MULTILINE),
)

_KEY = re.compile(r"([A-Za-z_]+)[ \t]*:(?=[ \t]|$)")
# A key that version 1 does not have, or the end of a document. No line of a shell command begins like this.
_FOREIGN_KEY = re.compile(r"([A-Za-z_][\w.-]*:(?=[ \t]|$)|---$|\.\.\.$)")
_ENTRY = {
    "env": re.compile(r"([A-Z_][A-Z0-9_]*)\s*:\s+\S"),
    "defaults": re.compile(r"([\w-]+)\s*:\s+\S"),
}
_STEP = "  "


def as_typed(text: str) -> str:
    """Restores the characters and the indentation that the author of ``text`` typed, line for line. Text without losses
    is returned unchanged."""
    for fence in _FENCES:
        text = fence.sub(r"\1", text)
    corrected = "\n".join(_corrected(line, key) for key, lines in _blocks(text) for line in lines)
    return "\n".join(line for key, lines in _blocks(corrected) for line in _indented(key, lines, corrected))


def mended(text: str) -> str:
    """Restores ``text`` like `as_typed`, and also the backslashes that web pages drop at line ends of a command. Lines
    within quotes and lines with a comment are unchanged."""
    result: list[str] = []
    command = ""
    for key, lines in _blocks(as_typed(text)):
        for number, line in enumerate(lines):
            bare = line.rstrip()
            goes_on = key == "command" and 0 < number < len(lines) - 1 and _is_written(line)
            command += bare if goes_on else ""
            is_whole = not (command.count("'") % 2 or command.count('"') % 2 or re.search(r"\s#", bare))
            if goes_on and is_whole and lines[number + 1].lstrip().startswith("-"):
                result.append(bare if bare.endswith("\\") else f"{bare} \\")
            else:
                result.append(line)
    return "\n".join(result)


def pasted_problem(text: str, file: str) -> Problem | None:
    """One problem, at the first place where a web page changed the text. None if the text is unchanged."""
    for line, (old, new) in enumerate(zip(text.split("\n"), as_typed(text).split("\n"), strict=True), 1):
        if old != new:
            column = next((n for n, (a, b) in enumerate(zip(old, new, strict=False), 1) if a != b), len(new) + 1)
            mend = f"`builder recipes add --mend {shlex.quote(file)}`"
            message = f"this recipe was pasted from a web page; to correct it: {mend}"
            return Problem(Location(file, line, column), message)
    return None


def _blocks(text: str) -> list[tuple[str, list[str]]]:
    """The keys of a recipe, each with its line and the lines below it. The lines before the first key belong to ``""``.
    The text need not be valid YAML."""
    blocks: list[tuple[str, list[str]]] = [("", [])]
    top_level = {*keys(), *recipe_v2.keys()}
    for line in text.split("\n"):
        begins = _KEY.match(line.lstrip("".join(map(chr, _BLANKS))))
        if not begins or begins[1] not in top_level:
            begins = _FOREIGN_KEY.match(line) if blocks[-1][0] == "command" else None
        if begins:
            blocks.append((begins[1], []))
        blocks[-1][1].append(line)
    return blocks


def _is_written(line: str) -> bool:
    return line.strip()[:1] not in {"", "#"}


def _corrected(line: str, key: str) -> str:
    if not _is_written(line):
        return line
    blank = line[: len(line) - len(line.lstrip(" \t"))]
    # In a block of text, a tab after the block's own indentation is part of the text.
    if "\t" in blank and not (key == "command" and blank.startswith(" ")):
        line = blank.replace("\t", _STEP) + line[len(blank) :]
    if key in {"name", "description", "metadata"}:
        return line
    if key != "command":
        line = _BULLET.sub(r"\1-", line)
    parts = re.split(f"({_PROSE if key == 'command' else f'{_PROSE}|{_APOSTROPHE}'})", line)
    parts[::2] = [_OPTION.sub(_hyphens, part.translate(_BLANKS)).translate(_MARKS) for part in parts[::2]]
    return "".join(parts)


def _hyphens(match: re.Match[str]) -> str:
    """The hyphens before an option: one hyphen before one or two letters (-tp), otherwise two."""
    return "-" if len(match[1]) == 1 and len(match[2]) <= 2 else "--"


def _indented(key: str, lines: list[str], text: str) -> Iterator[str]:
    """The lines of a key. Lines at the left margin are indented if they belong to a command, `env` or `defaults`."""
    value = "".join(lines[:1]).partition(":")[2].partition(" #")[0].strip()
    lost: set[int] = set()
    if key == "command" and (not value or value[0] in "|>"):
        # A comment at the margin ends the block, which is harmless after the last line of the command.
        last = max(number for number, line in enumerate(lines) if _is_written(line))
        lost = {number for number in range(1, last + 1) if lines[number][:1] not in {"", " ", "\t"}}
    elif key in _ENTRY and not value:
        entries = {number: match[1] for number, line in enumerate(lines) if (match := _ENTRY[key].match(line))}
        # Newer launchers have additional keys, so only a name that the command uses counts as a default.
        if key == "env" or any(f"{{{name}" in text for name in entries.values()):
            lost = {*entries}
    for number, line in enumerate(lines):
        yield _STEP + line if number in lost else line
