"""This page finds the problems of a recipe before it is served.

Facts about the image come first, then JSON options, known names, and failures of a launch.
The list of all problems and notes comes last. Everything is read from files, and nothing is started.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from builder.base import redaction
from builder.base.errors import BuilderError, FileProblemsError, Problem
from builder.base.words import did_you_mean
from builder.definitions import command, container, image, mod
from builder.definitions.image import GitSource, WheelSource
from builder.definitions.mod import load_mod, name_of, read_script_facts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from builder.base.project import Project
    from builder.definitions.command import ServeCommand, UsedOption
    from builder.definitions.image import ImageDefinition, Source
    from builder.definitions.mod import Mod
    from builder.definitions.recipe import Recipe


# Facts about the image that a recipe names, as far as the project's own files tell them.

# Stands in for `platform: host`: what is asked here is the same on all platforms.
_ANY_PLATFORM = "linux/arm64"
_RELEASE = re.compile(r"(?:v|[\w.-]+==)(?P<version>\d+(?:\.\d+)+)$")


@dataclass(frozen=True)
class ImageFacts:
    """The definitions that the image is made of (the base first; none where another program made it), and its mods.
    ``opaque`` names those with a script that nobody can look into, ``missing`` those that the project does not have."""

    definitions: tuple[ImageDefinition, ...]
    mods: tuple[Mod, ...]
    opaque: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def is_known(self) -> bool:
        """True if nothing can be in the image that is not known here."""
        of_others = any(definition.base_sources for definition in self.definitions)
        return bool(self.definitions) and not of_others and not self.opaque and not self.missing

    @property
    def vllm(self) -> Source | None:
        """The source that its vLLM is built or installed from, None where that is not known."""
        sources = [definition.sources.get("vllm") for definition in reversed(self.definitions)]
        return next((source for source in sources if source), None)

    @property
    def vllm_release(self) -> tuple[int, ...] | None:
        """The release of its vLLM where the definition names one, as numbers: (0, 21, 0)."""
        source = self.vllm
        written = source.ref if isinstance(source, GitSource) else ""
        written = source.requirement if isinstance(source, WheelSource) else written
        match = _RELEASE.match(written)
        return tuple(map(int, match["version"].split("."))) if match else None

    def brings(self, name: str) -> bool:
        """True if a Dockerfile or a mod of the image has, or names, the file ``name``."""
        before = "" if name.startswith("/") else r"(?<![\w.-])"
        whole = re.compile(rf"{before}{re.escape(name)}(?![\w.-])")
        if any(whole.search(definition.template) for definition in self.definitions):
            return True
        return any(whole.search(text) for mod in self.mods for text in _texts(mod))


def image_facts(project: Project, recipe: Recipe) -> ImageFacts:
    """The facts about the image of ``recipe``. What cannot be read of it is left out."""
    definitions = _chain(project, recipe)
    names = dict.fromkeys(name_of(text) for text in (*(m for d in definitions for m in d.mods), *recipe.mods))
    mods: list[Mod] = []
    opaque: list[str] = []
    missing: list[str] = []
    for name in names:
        try:
            mod = load_mod(project, name)
        except BuilderError:
            missing.append(name)
            continue
        mods.append(mod)
        script = read_script_facts(mod)
        if script and not script.only_copies:
            opaque.append(name)
    return ImageFacts(definitions, tuple(mods), tuple(opaque), tuple(missing))


def _chain(project: Project, recipe: Recipe) -> tuple[ImageDefinition, ...]:
    try:
        name = image.of_repository(project, recipe.repository)
        chain: list[ImageDefinition] = []
        while name and name not in {definition.name for definition in chain}:
            chain.insert(0, image.load_image(project, name, _ANY_PLATFORM))
            name = chain[0].parent
    except BuilderError:
        return ()
    return tuple(chain)


def _texts(mod: Mod) -> Iterator[str]:
    yield from (text for copy in mod.copies for text in (copy.to, copy.staged))
    for file in mod.files:
        yield file.path
        if file.path == mod.run:
            yield file.content.decode("utf-8", "replace")


# Options of vLLM that take JSON, held against it: vLLM would refuse them only after it has started.

# Its value may be the text of a template, which begins with a brace, too.
_TEMPLATES = frozenset({"--chat-template", "--chat_template"})
_SHOWN = 60
# What Python's parser says, and what it means for the author.
_REASONS = (
    ("Expecting property name", "a name in double quotes belongs here"),
    ("Illegal trailing comma", "nothing follows this comma"),
    ("Expecting ',' delimiter", "a comma or the end belongs here"),
    ("Expecting ':' delimiter", "a colon belongs here"),
    ("Expecting value", "a value belongs here"),
    ("Extra data", "it ends before this"),
    ("Unterminated string", "the text that begins here has no closing quote"),
    ("Invalid control character", "a line break or tab inside a text"),
    ("Invalid \\", "a backslash that JSON does not know"),
)
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


def json_option_problems(recipe: Recipe, rendered: ServeCommand) -> Iterator[Problem]:
    """The options whose value looks like JSON and is not valid, at the place of the fault in the file."""
    for used in command.options(rendered.words):
        value = used.value
        if value is None or not value.startswith("{") or used.option in _TEMPLATES:
            continue
        if rendered.is_script and re.search(r"[$`]", value):
            continue  # only the shell can tell
        try:
            json.loads(value)
        except json.JSONDecodeError as error:
            message = (
                f"the value of {used.option} is no JSON: {_reason(recipe, used, error)}: {_shown(value, error.pos)}"
            )
            yield Problem(command.of_value(recipe, used, error.pos), message)
        except RecursionError:
            yield Problem(command.of_option(recipe, used), f"the value of {used.option} is nested too deep")


def _reason(recipe: Recipe, used: UsedOption, error: json.JSONDecodeError) -> str:
    value, at = used.value or "", error.pos
    rest = value[at:]
    before = value[:at].rstrip()
    word = re.match(r"True|False|None", rest)
    if word:
        return f"JSON writes `{_PYTHON_WORDS[word[0]]}` for `{word[0]}`"
    if rest.startswith("'"):
        return "names and texts take double quotes, not single ones"
    if rest[:1] in {"}", "]"} and before.endswith(","):
        return f"a comma before the closing `{rest[0]}`"
    if not rest and used.goes_on:
        return "bash ends it at a space; put single quotes around the whole value"
    if not rest:
        return "it has no end; a bracket, brace or quote is not closed"
    if rest.startswith('\\"') or before.endswith("\\"):
        return "bash keeps a backslash inside single quotes; leave it out"
    if '"' not in value and '"' in recipe.command:
        return "bash has taken its quotes away; put single quotes around the whole value"
    return next((reason for begin, reason in _REASONS if error.msg.startswith(begin)), error.msg)


def _shown(value: str, at: int) -> str:
    """The part of ``value`` around the fault, on one line."""
    begin = max(0, min(at - _SHOWN // 2, len(value) - _SHOWN))
    part = value[begin : begin + _SHOWN].replace("\n", " ")
    return f"{'…' if begin else ''}{part}{'…' if begin + _SHOWN < len(value) else ''}"


# Names in a serve command that vLLM has to know: parsers and load formats, held against those of a vLLM.

METHOD = "speculative method"
_SPECULATIVE = "speculative-config"
_TOOLS = "tool-call-parser"
# Further names come from a file that the command names, or from a package.
_PLUGINS = {_TOOLS: "tool-parser-plugin", "reasoning-parser": "reasoning-parser-plugin"}


def unknown_choice_problems(
    recipe: Recipe, words: Sequence[str], facts: ImageFacts, label: str, choices: Mapping[str, frozenset[str]]
) -> Iterator[Problem]:
    """The names in ``words``, the command, that the vLLM called ``label`` does not know. ``choices`` are those that it
    knows, by option (``tool-call-parser``); what a mod may add is left alone."""
    if not facts.is_known:
        return
    options = {command.name_of(used.option): used for used in command.options(words)}
    switches = {command.name_of(word) for word in words if word.startswith("--")}
    for name, known_names in choices.items():
        used = options.get(_SPECULATIVE if name == METHOD else name)
        value = used.value if used else None
        if used and name == METHOD:
            value = _method(value or "")
        if used is None or not value or "$" in value or value in known_names:
            continue
        # vLLM looks at the parser of tools only where it is used.
        if name == _TOOLS and "enable-auto-tool-choice" not in switches:
            continue
        if _PLUGINS.get(name) in options or facts.brings(value) or _has_package(facts, value):
            continue
        suggestion = did_you_mean(value, known_names, code=True)
        there = suggestion or f"it knows: {', '.join(sorted(known_names))}"
        yield Problem(command.of_value(recipe, used), f"{label} knows no {_called(name, used)} `{value}`; {there}")


def _called(name: str, used: UsedOption) -> str:
    return "speculative method" if name == METHOD else used.option


def _method(config: str) -> str:
    """The method in the value of ``--speculative-config``; empty where it has none."""
    try:
        value = json.loads(config)
    except ValueError:
        return ""
    method = value.get("method") if isinstance(value, dict) else None
    return method if isinstance(method, str) else ""


def _has_package(facts: ImageFacts, name: str) -> bool:
    """True if a package that the image asks for has the name in its own."""
    plain = name.replace("_", "-").lower()
    pythons = [definition.python for definition in facts.definitions if definition.python]
    return any(plain in package.replace("_", "-").lower() for python in pythons for package in python.packages)


# Failures of a launch that can be known before it: files that nothing brings into the container, and options that its
# vLLM refuses.

# Where every container of ours has the model cache.
_MOUNTED = ("/root/.cache/huggingface",)
# The folders in which servers start: a relative path begins there.
_WORKSPACES = frozenset({"/workspace", "/vllm-workspace", "/workspace/vllm"})
# Models with layers of attention and others with a state (Mamba, linear attention), by the names of their families.
_HYBRID = re.compile(
    r"qwen3[.][56]|qwen3-(coder-)?next|nemotron-(h|3|nano-\d+b-v2)|granite-4[.]0-h|falcon-h1|jamba|bamba|zamba|kimi-linear",
    re.IGNORECASE,
)
# vLLM 0.32.0 no longer asserts it; the releases before it do, in vllm/config/vllm.py.
_TAKES_LARGE_BLOCKS = (0, 32)
# vLLM has the drafter's sliding windows from 0.28 on; before, pull request 40898 brings them.
_DFLASH_ALONE = (0, 28)
# A streaming parser, and the last vLLM in which it counts on one token a step. With several it drops parameters or
# writes broken JSON (https://github.com/vllm-project/vllm/pull/35615, released with 0.17.0; run with the parsers of the
# wheels 0.14.1 to 0.21.0).
_BREAKS_STREAMS = ("qwen3_coder", "0.16.0")


@dataclass(frozen=True)
class LaunchFindings:
    """The ``problems`` that end a launch for certain, and ``notes`` on what may end it."""

    problems: tuple[Problem, ...]
    notes: tuple[Problem, ...]


def find_launch_problems(recipe: Recipe, rendered: ServeCommand, facts: ImageFacts) -> LaunchFindings:
    """Everything that is known against a launch of ``recipe``, whose command is ``rendered``, from its image."""
    options = _options(rendered)
    absent = [*_local_models(recipe, rendered.words, facts, options)]
    absent += _template(recipe, facts, options.get("chat-template"))
    # A mod that is missing has a note already.
    uncertain = [] if facts.missing else [problem for problem, is_certain in absent if not is_certain]
    return LaunchFindings(
        problems=(
            *(problem for problem, is_certain in absent if is_certain),
            *_block_size(recipe, rendered.words, facts, options),
            *_drafter(recipe, facts, options.get("speculative-config")),
        ),
        notes=tuple(_uncertain(problem, facts) for problem in uncertain),
    )


def streamed_calls(recipe: Recipe, rendered: ServeCommand, vllm: str) -> Iterator[Problem]:
    """A note where the image's ``vllm``, a version, breaks tool calls that are streamed while several tokens are
    predicted at once."""
    from packaging.version import InvalidVersion, Version

    options = _options(rendered)
    parser, used = options.get("tool-call-parser"), options.get("speculative-config")
    tokens = _speculative(used).get("num_speculative_tokens")
    if parser is None or used is None or parser.value != _BREAKS_STREAMS[0] or not isinstance(tokens, int):
        return
    try:
        is_affected = tokens > 1 and Version(vllm) <= Version(_BREAKS_STREAMS[1])
    except InvalidVersion:  # of an image that others built
        return
    if is_affected:
        yield Problem(
            command.of_value(recipe, used),
            f"vLLM {vllm} breaks streamed tool calls when {tokens} tokens are predicted at once; vLLM 0.17.0 does not",
        )


def template_of_image(recipe: Recipe, rendered: ServeCommand) -> UsedOption | None:
    """The option by which ``recipe`` names a chat template that has to be in its image; None where it names none, gives
    it as text, or mounts it."""
    return _template_of_image(recipe, _options(rendered).get("chat-template"))


def _options(rendered: ServeCommand) -> dict[str, UsedOption]:
    """The options of the command by name, but for values that only the shell of a script knows."""
    return {
        command.name_of(used.option): used
        for used in command.options(rendered.words)
        if used.value is not None and not (rendered.is_script and re.search(r"[$`]", used.value))
    }


def _uncertain(problem: Problem, facts: ImageFacts) -> Problem:
    who = f"the script of mod {', '.join(facts.opaque)}" if facts.opaque else "the image itself"
    return Problem(problem.location, f"{problem.message}, as far as is known: {who} may bring it")


def _is_path(text: str) -> bool:
    return text.startswith(("/", "~/", "./", "../"))


def _targets(recipe: Recipe) -> list[str]:
    return [volume.removesuffix(":ro").rpartition(":")[2].rstrip("/") for volume in recipe.volumes]


def _is_mounted(recipe: Recipe, path: str) -> bool:
    targets = _targets(recipe)
    inside = path.replace("~/", "/root/", 1) if path.startswith("~/") else path
    return any(target == "" or inside == target or inside.startswith(f"{target}/") for target in (*targets, *_MOUNTED))


def _local_models(
    recipe: Recipe, words: tuple[str, ...], facts: ImageFacts, options: dict[str, UsedOption]
) -> Iterator[tuple[Problem, bool]]:
    """Folders of models that no volume mounts, each with True if nothing else can bring it either."""
    model = command.model(words)
    if model and _is_path(model) and "$" not in model and not _is_there(recipe, facts, model):
        used = options.get("model")
        location = command.of_value(recipe, used) if used else command.of_text(recipe, model)
        message = f"no volume mounts the model's folder {model}; {_advice(model)}"
        yield Problem(location, message), facts.is_known or not _is_made_inside(model)
    for name in ("tokenizer", "speculative-config"):
        used = options.get(name)
        path = (_speculative(used).get("model") if name == "speculative-config" else used.value) if used else None
        if used and isinstance(path, str) and _is_path(path) and path != model and not _is_there(recipe, facts, path):
            message = f"no volume mounts {path} of {used.option}; {_advice(path)}"
            yield Problem(command.of_value(recipe, used), message), facts.is_known or not _is_made_inside(path)


def _is_there(recipe: Recipe, facts: ImageFacts, path: str) -> bool:
    name = path.rstrip("/").rpartition("/")[2]
    return _is_mounted(recipe, path) or facts.brings(path) or (_is_made_inside(path) and facts.brings(f"/{name}"))


def _is_made_inside(path: str) -> bool:
    """True for a folder that a mod or an image has rather than the machine: mods stage drafters in the workspace."""
    return path.startswith((*(f"{folder}/" for folder in _WORKSPACES), "/opt/", "/app/"))


def _advice(path: str) -> str:
    """The advice that mounts ``path``: with the folder that it lies in, or alone where that is the root."""
    if not path.startswith("/"):
        return "mount it with `volumes:` in the recipe, and write its path inside the container"
    folder = path.rstrip("/").rpartition("/")[0] or path
    return f"`volumes: [~/{folder.strip('/').rpartition('/')[2]}:{folder}]` in the recipe mounts it"


def _template(recipe: Recipe, facts: ImageFacts, used: UsedOption | None) -> Iterator[tuple[Problem, bool]]:
    """A chat template that neither the image, a mod nor a volume brings, with True if that is certain."""
    used = _template_of_image(recipe, used)
    value = used.value if used else None
    if used is None or value is None:
        return
    from_package = "/site-packages/" in value or "/dist-packages/" in value
    if from_package or facts.brings(value.rpartition("/")[2]):
        return
    location = command.of_value(recipe, used)
    # An image that others built, with vLLM in it, may have examples in a folder of its own.
    is_certain = facts.is_known and (facts.vllm is not None or "/" not in value)
    yield Problem(location, f"neither the image, a mod nor a volume brings the chat template {value}"), is_certain


def _template_of_image(recipe: Recipe, used: UsedOption | None) -> UsedOption | None:
    value = used.value if used else None
    # vLLM takes the text of a template, too, which has braces or line breaks in it.
    if not value or re.search(r"[{}\n]", value) or not re.search(r"[./]", value):
        return None
    name = value.rpartition("/")[2]
    beside = any(target.rpartition("/")[2] == name or target in _WORKSPACES for target in _targets(recipe))
    return None if _is_mounted(recipe, value) or (beside and not value.startswith("/")) else used


def _block_size(
    recipe: Recipe, words: tuple[str, ...], facts: ImageFacts, options: dict[str, UsedOption]
) -> Iterator[Problem]:
    """A block of the KV cache that a step of the scheduler cannot fill."""
    block, batch = _number(options.get("block-size")), _number(options.get("max-num-batched-tokens"))
    release = facts.vllm_release
    model = command.model(words) or ""
    if block is None or batch is None or block <= batch or (release and release >= _TAKES_LARGE_BLOCKS):
        return
    names = f"{model} {recipe.model or ''}"
    mode = options.get("mamba-cache-mode")
    if "--no-enable-prefix-caching" in words or not (_HYBRID.search(names) or (mode and mode.value == "align")):
        return
    location = command.of_value(recipe, options["block-size"])
    message = f"a block of {block} tokens is more than a step takes (--max-num-batched-tokens {batch})"
    yield Problem(location, f"{message}: vLLM refuses that for a hybrid model such as this one")


def _number(used: UsedOption | None) -> int | None:
    return int(used.value) if used and used.value and used.value.isascii() and used.value.isdecimal() else None


def _drafter(recipe: Recipe, facts: ImageFacts, used: UsedOption | None) -> Iterator[Problem]:
    """A draft model that the vLLM of the image has no code for."""
    release, source = facts.vllm_release, facts.vllm
    if used is None or release is None or not facts.is_known or _speculative(used).get("method") != "dflash":
        return
    if release < _DFLASH_ALONE and not getattr(source, "pulls", ()):
        location = command.of_value(recipe, used)
        version = ".".join(map(str, release))
        yield Problem(
            location, f"the image's vLLM {version} has no DFlash drafter of its own; an image such as dflash has"
        )


def _speculative(used: UsedOption | None) -> dict[str, object]:
    try:
        value = json.loads(used.value or "") if used else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


# Problems of a recipe that its schema cannot find: what keeps its command from starting. And notes: what else there
# is to know before it is served.

# A container's name is only taken for a mistyped one if it is nearly the same as one that is made here.
_NEARLY = 0.88


def recipe_problems(recipe: Recipe) -> tuple[Problem, ...]:
    """Every problem of ``recipe``, with its location in the file."""
    collected = [*command.command_problems(recipe)]
    if not collected:
        words = command.unchecked_words(recipe)
        collected += (*command.name_problems(recipe, words), *command.option_problems(recipe, words))
        with suppress(FileProblemsError):  # a name, which is told above
            collected += json_option_problems(recipe, command.render_command(recipe, {}))
    if recipe.solo_only and recipe.cluster_only:
        message = "`solo_only` and `cluster_only` exclude each other"
        collected.append(Problem(recipe.location("cluster_only"), message))
    for index, text in enumerate(recipe.volumes):
        if reason := container.fault(text):
            collected.append(Problem(recipe.location("volumes", index), f"`{text}`: {reason}"))
    return tuple(sorted(collected))


def require_none(recipes: Iterable[Recipe]) -> None:
    """Raises FileProblemsError with the problems of ``recipes``, if there are any."""
    all_problems = {problem for recipe in recipes for problem in recipe_problems(recipe)}
    if all_problems:
        raise FileProblemsError(tuple(all_problems))


def require_buildable(project: Project, recipes: Iterable[Recipe]) -> None:
    """Raises FileProblemsError with the problems of ``recipes`` and the mods that they name and the project lacks."""
    all_problems = {
        problem
        for recipe in recipes
        for problem in (
            *recipe_problems(recipe),
            *mod.unknown_mod(project, recipe.mods, partial(recipe.location, "mods")),
        )
    }
    if all_problems:
        raise FileProblemsError(tuple(all_problems))


def notes(project: Project, recipe: Recipe, numbered: Collection[str] = ()) -> tuple[Problem, ...]:
    """Notes on what is to know of ``recipe`` and is no mistake in it; ``numbered`` are containers of which it is known
    that they have a number."""
    has_number = recipe.repository in numbered or recipe.container in numbered
    collected = [
        *(() if has_number else _container(project, recipe)),
        *(() if is_built_here(project, recipe) else missing_mods(project, recipe)),
        *_run_time_mods(project, recipe),
        *_further_commands(recipe),
    ]
    if recipe.ignored_build_args:
        message = f"build_args mean nothing here and are ignored: {' '.join(recipe.ignored_build_args)}"
        collected.append(Problem(recipe.location("build_args"), message))
    collected += [
        Problem(
            recipe.location("env", name), f"{name} looks like a secret; leave it out, and give it by `--env {name}`"
        )
        for name, value in recipe.env.items()
        if value and redaction.looks_secret(name, str(value))
    ]
    return tuple(sorted(collected))


def is_built_here(project: Project, recipe: Recipe) -> bool:
    """True for one of the project's own recipes that a definition of the project builds the image of."""
    with suppress(FileProblemsError):
        is_own = (project.root / recipe.file).is_relative_to(project.recipes)
        return is_own and recipe.number is None and image.of_repository(project, recipe.repository) is not None
    return False


def _further_commands(recipe: Recipe) -> Iterator[Problem]:
    """A note on each command that runs beside the server: a recipe of others may hold any."""
    for text in command.beside_server(recipe):
        where = command.of_text(recipe, text.partition(" ")[0])
        yield Problem(where, f"`{text.strip('`')[:80]}` runs as well, beside the server")


def missing_mods(project: Project, recipe: Recipe) -> Iterator[Problem]:
    """Tells each mod of ``recipe`` that the project lacks: it is served without, and not built."""
    existing = mod.mod_names(project)
    for index, name in enumerate(map(mod.name_of, recipe.mods)):
        if name not in existing:
            suggestion = mod.remedy(project, name) or did_you_mean(name, existing, code=True, near=_NEARLY)
            message = f"no mod `{name}` in mods/; {suggestion or '`builder mods add` brings it from where it is kept'}"
            yield Problem(recipe.location("mods", index), message)


def unknown_container(project: Project, recipe: Recipe) -> Problem:
    """The problem of a ``recipe`` whose container no image definition makes, for what cannot do without one."""
    existing = image.definition_repositories(project)
    there = f"there are: {', '.join(existing) or 'none'}"
    message = f"container: no image definition makes `{recipe.container}`; {there}"
    return Problem(recipe.location("container"), message)


def _container(project: Project, recipe: Recipe) -> Iterator[Problem]:
    location = recipe.location("container")
    try:
        if image.of_repository(project, recipe.repository):
            return
        existing = image.definition_repositories(project)
    except FileProblemsError as error:
        yield Problem(location, f"which definition makes `{recipe.container}` is not known: {error.problems[0]}")
        return
    suggestion = did_you_mean(recipe.repository, existing, code=True, near=_NEARLY)
    ways = f"an image of that name that the engine has is served; `builder adopt {recipe.container}` numbers it"
    yield Problem(location, f"no image definition makes `{recipe.container}`; {suggestion or ways}")


def _run_time_mods(project: Project, recipe: Recipe) -> Iterator[Problem]:
    """A note on each mod that cannot be baked, with what to use in its place."""
    existing = mod.mod_names(project)
    for index, name in enumerate(map(mod.name_of, recipe.mods)):
        if name not in existing:
            continue
        with suppress(FileProblemsError):
            facts = mod.read_script_facts(mod.load_mod(project, name))
            if facts and facts.instead:
                yield Problem(recipe.location("mods", index), f"mod {name} cannot be baked: {facts.instead}")
