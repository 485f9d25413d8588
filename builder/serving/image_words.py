"""Recipes compared with the vLLM of an image: options that it lacks, values that it rejects, variables that nothing
reads. vLLM answers in a container, once for all recipes. Its answers are kept in the state folder by the content of the
image."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from builder.base import records, words
from builder.base.errors import (
    BuilderError,
    BuildFailedError,
    EngineError,
    FileProblemsError,
    ImageContentsError,
    ImageStateError,
    Problem,
    UsageError,
    require_no_problems,
)
from builder.base.events import Message
from builder.base.values import dataclass
from builder.base.words import did_you_mean
from builder.definitions import command, recipe_problems
from builder.engine import containers, images, installed
from builder.lock.model import GitPin, Lock, WheelPin
from builder.serving import selection

if TYPE_CHECKING:
    from builder.definitions.image import ImageDefinition
    from builder.definitions.recipe import Recipe
    from builder.numbers.workspace import Workspace


_RELEASES = Path(__file__).with_name("vllm_options.json")
_FILE = "vllm-words.json"
_SECTION = "images"
_MOST_IMAGES = 20  # the latest are kept
_MOST_COMMANDS = 1000  # for each image
_LONGEST_COMMAND = 64 << 10  # in characters
_LONGEST_MESSAGE = 240
_NEARLY = 0.8
_PREFIX = "VLLM_"  # variables of other programs are not checked


@dataclass(frozen=True)
class ImageAnswer:
    """The answer of the vLLM in ``image`` about the arguments ``argv``; ``is_whole`` if they are the whole command."""

    image: str
    facts: installed.VllmFacts
    argv: tuple[str, ...]
    command: installed.CommandAnswer
    is_whole: bool

    @property
    def label(self) -> str:
        """The image and its vLLM, for messages."""
        return f"{self.image} (vLLM {self.facts.version})"


@dataclass(frozen=True)
class RememberedAnswers:
    """The stored answers of an image. ``commands`` has the answer to each question by the digest of the question."""

    questions: str
    facts: installed.VllmFacts
    commands: Mapping[str, installed.CommandAnswer | None]


def ask_own_images(workspace: Workspace, lock: Lock, recipes: Iterable[Recipe]) -> dict[str, ImageAnswer]:
    """Asks the image of each recipe about it, if the engine has the image. An image without the recipe's mods is not
    asked, because mods may add options and parsers. An image that does not answer is reported. Returns the answers by
    the recipe's file."""
    by_image: dict[str, list[Recipe]] = {}
    for recipe in recipes:
        with suppress(BuilderError):
            selected = selection.any_for_recipe(workspace.project, lock, recipe)
            if not selected.missing_mods:
                by_image.setdefault(selected.name, []).append(recipe)
    answers: dict[str, ImageAnswer] = {}
    for image, of_image in by_image.items():
        try:
            if images.inspect_image(workspace.engine, image):
                answers |= ask_image(workspace, image, of_image)
        except EngineError:
            break  # the engine does not answer; the recipes are checked without it
        except BuilderError as error:
            workspace.report(
                Message(f"recipes were not checked with the vLLM of {image}: {error.message.splitlines()[0]}")
            )
    return answers


def ask_image(
    workspace: Workspace,
    image: str,
    recipes: Iterable[Recipe],
    overrides: Mapping[str, str] | None = None,
    extra: Sequence[str] = (),
) -> dict[str, ImageAnswer]:
    """Asks ``image`` about the recipes, each with the typed settings and arguments. Raises ImageStateError if the
    engine lacks the image or its vLLM cannot answer."""
    details = images.inspect_image(workspace.engine, image)
    if details is None:
        raise ImageStateError(f"the engine has no image {image}")
    questions = {recipe.file: each for recipe in recipes if (each := question(recipe, overrides, extra))}
    keys = {file: key_of(asked_words) for file, (asked_words, _) in questions.items()}
    cache = workspace.project.state / _FILE
    kept = images.load_cache(cache).get(_SECTION, {})
    fingerprint, digest = images.fingerprint(details), installed.vllm_words_digest()
    remembered: RememberedAnswers | None = None
    with suppress(records.RecordError):
        remembered = records.record(RememberedAnswers, kept.get(fingerprint))
    commands = remembered.commands if remembered and remembered.questions == digest else {}
    new = {keys[file]: each for file, (each, _) in questions.items() if keys[file] not in commands}
    if new:
        workspace.report(Message(f"checking {words.counted(len(new), 'recipe')} with the vLLM of {image}"))
        try:
            answers = installed.ask_vllm(workspace.engine, details.id, containers.reading_labels(), list(new.values()))
        except (ImageContentsError, ImageStateError) as error:
            raise ImageStateError(error.message.replace(details.id, image), hint=error.hint) from None
        commands = dict([*commands.items(), *zip(new, answers.commands, strict=True)][-_MOST_COMMANDS:])
        remembered = RememberedAnswers(digest, answers.facts, commands)
        others = [(key, value) for key, value in kept.items() if key != fingerprint][1 - _MOST_IMAGES :]
        images.store_cache(cache, _SECTION, dict([*others, (fingerprint, records.plain(remembered))]))
    return {
        file: ImageAnswer(image, remembered.facts, asked_words["argv"], answer, is_whole)
        for file, (asked_words, is_whole) in questions.items()
        if remembered and (answer := commands.get(keys[file]))
    }


def question(
    recipe: Recipe, overrides: Mapping[str, str] | None = None, extra: Sequence[str] = ()
) -> tuple[dict[str, Any], bool] | None:
    """The command and the variables of a recipe for vLLM, and whether the command is whole; None if it is unknown."""
    with suppress(FileProblemsError, UsageError):
        argv, is_whole = command.server_arguments(recipe, overrides, extra)
        env = {
            name: "" if "$" in str(value) or value is None else str(value)
            for name, value in recipe.env.items()
            if name.startswith(_PREFIX)
        }
        if argv and sum(map(len, (*argv, *env.values()))) <= _LONGEST_COMMAND:
            return {"argv": argv, "env": env}, is_whole
    return None


def key_of(asked_words: Mapping[str, Any]) -> str:
    """The key of a question in the stored answers."""
    return sha256(json.dumps(asked_words).encode()).hexdigest()


def require_accepted(
    workspace: Workspace, image: str, recipe: Recipe, overrides: Mapping[str, str], extra: Sequence[str]
) -> None:
    """Raises FileProblemsError if the vLLM of ``image`` answers and rejects the recipe with the typed settings and
    arguments."""
    with suppress(ImageStateError, ImageContentsError, BuildFailedError):
        answers = ask_image(workspace, image, [recipe], overrides, extra)
        require_no_problems(each for answer in answers.values() for each in problems(recipe, answer, ()))


# Judging: the answers become problems and notes, at their places in the recipe.


def problems(recipe: Recipe, answer: ImageAnswer, earlier: Iterable[Problem]) -> Iterator[Problem]:
    """The faults that end `vllm serve` of the image with the arguments in the question, at their places in the recipe.
    Options in ``earlier`` problems are left out."""
    used = {_name(each.option): each for each in command.options(answer.argv)}  # vLLM uses the last one
    choices = {option: frozenset(names) for option, names in answer.facts.choices.items()}
    unknown = [*recipe_problems.unknown_names(recipe, answer.argv, answer.label, choices)]
    unknown += recipe_problems.unknown_fields(recipe, answer.argv, answer.label, answer.facts.fields)
    yield from unknown
    told = " ".join(problem.message for problem in (*earlier, *unknown))
    for fault in answer.command.faults:
        option = used.get(fault.option)
        if option is None:
            # vLLM may miss a part that was left out of the question. Names of parsers are reported above.
            if answer.is_whole and not (unknown and fault.message.startswith("invalid ")):
                yield Problem(
                    recipe.location("command"), f"{answer.label} refuses the command: {_short(fault.message)}"
                )
        elif option.option in told:
            continue
        elif fault.unknown:
            hint = _hint(fault.option, answer.facts.version, answer.facts.options)
            yield Problem(command.of_option(recipe, option), f"{answer.label} has no option `{option.option}`{hint}")
        else:
            values = answer.facts.options.get(fault.option, ())
            reason = did_you_mean(option.value or "", values, code=True) or _short(fault.message)
            written = f"{option.option} {_shown(option.value)}".rstrip()
            yield Problem(command.of_value(recipe, option), f"{answer.label} refuses `{written}`: {reason}")


def notes(recipe: Recipe, answer: ImageAnswer) -> Iterator[Problem]:
    """The variables that have no effect in the image, or may end its server later."""
    for name in answer.command.unread:
        option = f"--{name.removeprefix(_PREFIX).lower().replace('_', '-')}"
        hint = _hint(name, answer.facts.version, answer.facts.variables)
        if option in answer.facts.options:
            hint = f"; the option `{option}` does this"
        yield Problem(recipe.location("env", name), f"nothing in {answer.label} reads {name}{hint}")
    for name, reason in answer.command.values.items():
        if recipe.env.get(name) and "$" not in str(recipe.env[name]):
            yield Problem(recipe.location("env", name), f"{answer.label} refuses the value of {name}: {_short(reason)}")


def lost(workspace: Workspace, before: str, after: str, recipes: Iterable[Recipe]) -> tuple[str, ...]:
    """The parts of the recipes that the image ``after`` rejects or ignores, but the image ``before`` does not. Empty if
    one of the images cannot be asked."""
    every = {recipe.file: recipe for recipe in recipes}
    try:
        sides = [ask_image(workspace, image, every.values()) for image in (before, after)]
    except BuilderError:
        return ()
    lines = []
    for file in sides[0].keys() & sides[1].keys():
        old, new = ([*problems(every[file], side[file], ()), *notes(every[file], side[file])] for side in sides)
        places = {problem.location for problem in old}
        lines += [str(problem) for problem in new if problem.location not in places]
    return tuple(sorted(lines))


# Checks without an image: the options of each release.


def pinned_release(lock: Lock, chain: Sequence[ImageDefinition]) -> str:
    """The release of vLLM (``0.32.0``) that ``lock`` pins for the image of ``chain``; empty if its options are unknown:
    it is patched, not a release, or older or newer than `vllm_options.json`."""
    for definition in reversed(chain):
        for pins in lock.pins.get(definition.name, {}).values():
            pin = pins.sources.get("vllm")
            if isinstance(pin, GitPin | WheelPin):
                version, table = words.parse_version(pin.version), _table()
                if version is None or version.is_prerelease or (isinstance(pin, GitPin) and pin.patches):
                    return ""
                is_known = Version(table.oldest).release <= version.release[:2] <= Version(table.newest).release
                return version.public if is_known else ""
    return ""


def unknown_options(recipe: Recipe, release: str) -> Iterator[Problem]:
    """The options of the recipe that vLLM of this ``release`` does not have."""
    having = _options_of(release)
    argv, _ = command.server_arguments(recipe)
    for option in command.options(argv):
        name = _name(option.option)
        # vLLM accepts the beginning of a name, and `--no-X` for a switch.
        beginnings = (name, f"--{name.removeprefix('--no-')}")
        if name.startswith("--") and not any(each.startswith(beginnings) for each in having):
            hint = _hint(name, release, having)
            yield Problem(command.of_option(recipe, option), f"vLLM {release} has no option `{option.option}`{hint}")


def _hint(name: str, release: str, names: Iterable[str]) -> str:
    """A hint with the first or the last vLLM release that has ``name``, an option or a variable, else with the most
    similar one of ``names``."""
    first, last = _table().names.get(name, ("", ""))
    here = words.parse_version(release)
    if here and first and here < Version(first):
        return f"; vLLM {first} is the first release with it"
    if here and last and here.release[:2] > Version(last).release:
        return f"; vLLM {last} is the last release with it"
    nearest = did_you_mean(name, names, code=True, near=_NEARLY)
    return nearest and f"; {nearest}"


@cache
def _options_of(release: str) -> frozenset[str]:
    here = Version(release)
    return frozenset(
        name
        for name, (first, last) in _table().names.items()
        if (not first or Version(first) <= here) and (not last or here.release[:2] <= Version(last).release)
    )


@dataclass(frozen=True)
class ReleasedNames:
    """The options and variables of all releases from the ``oldest`` to the ``newest`` (``0.33``), each with its first
    and its last release, empty for these two. `benchmarks/vllm_agreement.py --options` writes the file."""

    oldest: str
    newest: str
    names: Mapping[str, tuple[str, str]]


@cache
def _table() -> ReleasedNames:
    return records.record(ReleasedNames, json.loads(_RELEASES.read_text(encoding="utf-8")))


def _name(option: str) -> str:
    """An option as vLLM spells it."""
    name = option.partition(".")[0]
    return name.replace("_", "-") if name.startswith("--") else name


# The name of the option, addresses in memory, and pydantic's text around its reason.
_AROUND = re.compile(
    r"\A(?:Error: |argument [^:]+: )|<function |at 0x[0-9a-f]+>"
    r"|\d+ validation errors? for \w+|\[type=.*\]$|For further .*",
    re.MULTILINE,
)


def _short(message: str) -> str:
    """A message of vLLM on one line, reduced to the reason."""
    lines = (line.strip() for line in _AROUND.sub("", message).splitlines())
    return _shown(": ".join(filter(None, lines)))


def _shown(text: str | None) -> str:
    text = text or ""
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[: _LONGEST_MESSAGE - 1]}…"
