"""The problems of a recipe before it is served, found from files alone.

All problems and notes come first, then JSON options, the image that the recipe names, names that its vLLM does not
know, and failures of a launch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from builder.base import redaction
from builder.base.errors import BuilderError, FileProblemsError, Problem, require_no_problems
from builder.base.values import dataclass
from builder.base.words import did_you_mean
from builder.definitions import command, container, image, mod, recipe_v2
from builder.definitions.image import GitSource, ImageDefinition, Source, WheelSource

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.definitions.command import ServeCommand, UsedOption
    from builder.definitions.mod import Mod
    from builder.definitions.recipe import Recipe


_SHORTEST_SECRET = 8  # `--api-key EMPTY` is not a secret
# Options of a server without HTTP, and what else helps.
_NO_HTTP = {
    "ssl-certfile": "; for HTTPS, put a proxy in front of the server",
    "uds": "; for a socket, put a proxy in front of the server",
    "grpc": "",
    "headless": "; builder adds it on every machine but the first",
}


def recipe_problems(recipe: Recipe) -> tuple[Problem, ...]:
    collected = [*command.command_problems(recipe)]
    if not collected:
        words = command.unchecked_words(recipe)
        collected += (*_without_value(recipe, words), *_not_inside(recipe, words))
    if not collected:
        collected += (*command.name_problems(recipe, words), *command.number_problems(recipe, words))
        collected += (*json_problems(recipe, words), *_unreachable(recipe, words))
    if recipe.solo_only and recipe.cluster_only:
        place = recipe.location("cluster_only")
        collected.append(Problem(place, "`solo_only` and `cluster_only` cannot be combined"))
    if recipe.max_nodes and recipe.min_nodes > recipe.max_nodes:
        message = f"`max_nodes` is {recipe.max_nodes}, but at least {recipe.min_nodes} machines are required"
        collected.append(Problem(recipe.location("max_nodes"), message))
    for index, text in enumerate(recipe.volumes):
        if reason := container.fault(text):
            collected.append(Problem(recipe.location("volumes", index), f"`{text}`: {reason}"))
    return tuple(sorted(collected))


def _without_value(recipe: Recipe, words: Sequence[str]) -> Iterator[Problem]:
    """A problem for each option of a version 2 recipe whose value is a placeholder without a value."""
    for used in command.options(words) if recipe.version == 2 else ():
        if named := re.fullmatch(recipe_v2.NAMED, used.value or ""):
            message = f"there is no value for {{{named[1]}}} of {used.option}: set `{named[1]}` under `defaults`"
            yield Problem(command.of_value(recipe, used), message)


def _not_inside(recipe: Recipe, words: Sequence[str]) -> Iterator[Problem]:
    """A problem for a command for the shell of a machine, which no container can start."""
    first = next(iter(words), "")
    if first in {"docker", "podman", "nerdctl", "$"}:
        advice = "remove the prompt of the shell"
        if first != "$":
            advice = "it runs inside the container, so write only `vllm serve MODEL` and its options"
        yield Problem(command.of_text(recipe, first), f"the command begins with `{first}`: {advice}")


def _unreachable(recipe: Recipe, words: Sequence[str]) -> Iterator[Problem]:
    """A problem for each option with which no health check would ever reach the server."""
    for used in command.options(words):
        if (name := command.name_of(used.option)) in _NO_HTTP:
            advice = f"remove {used.option}{_NO_HTTP[name]}"
            yield Problem(command.of_text(recipe, used.option), f"builder reaches servers by HTTP at a port: {advice}")


def require_buildable(project: Project, recipes: Iterable[Recipe]) -> None:
    """Raises FileProblemsError with the problems of ``recipes``, including mods that the project lacks."""
    every = ((*recipe_problems(recipe), *missing_mods(project, recipe)) for recipe in recipes)
    require_no_problems({problem for problems in every for problem in problems})


def notes(project: Project, recipe: Recipe, numbered: Collection[str] = ()) -> tuple[Problem, ...]:
    """Notes on ``recipe`` that are not mistakes. ``numbered`` are containers that are known to have a number."""
    has_number = recipe.repository in numbered or recipe.container in numbered
    collected = [
        *(() if has_number else _container(project, recipe)),
        *(() if is_built_here(project, recipe) else missing_mods(project, recipe)),
        *_run_time_mods(project, recipe),
    ]
    for text in command.beside_server(recipe):  # an untrusted recipe may contain any command
        where = command.of_text(recipe, text.partition(" ")[0])
        collected.append(Problem(where, f"`{text.strip('`')[:80]}` also runs, beside the server"))
    if recipe.ignored_build_args:
        message = f"builder ignores build_args: {' '.join(recipe.ignored_build_args)}"
        collected.append(Problem(recipe.location("build_args"), message))
    for name, value in recipe.env.items():
        if value and redaction.looks_secret(name, str(value)):
            message = f"{name} looks like a secret; remove it here, and pass it with `--env {name}`"
            collected.append(Problem(recipe.location("env", name), message))
    with suppress(BuilderError):  # a command that cannot be read is reported as a problem
        words = command.unchecked_words(recipe)
        if words and (words[0] in {"serve", recipe.model} or words[0].startswith("-")):
            advice = "write `vllm serve` before it, unless the image's entrypoint runs vLLM"
            location = command.of_text(recipe, words[0])
            collected.append(Problem(location, f"the command begins with `{words[0]}`: {advice}"))
        if command.option(words, "--config") and not (command.option(words, "--port") and command.model(words)):
            message = "builder does not read the file of `--config`: write the model and `--port` into the command, too"
            collected.append(Problem(command.of_text(recipe, "--config"), message))
        for used in command.options(words):
            value, name = used.value or "", command.name_of(used.option).replace("-", "_")
            if len(value) >= _SHORTEST_SECRET and not re.search(r"[$`]", value) and redaction.looks_secret(name, value):
                message = f"the value of {used.option} looks like a secret; remove it here"
                message += ", and pass it with `--env VLLM_API_KEY`" if name == "api_key" else ""
                collected.append(Problem(command.of_value(recipe, used), message))
    return tuple(sorted(collected))


def is_built_here(project: Project, recipe: Recipe) -> bool:
    """True if the recipe is in the project's ``recipes/``, and a definition of the project builds its image."""
    with suppress(FileProblemsError):
        is_own = (project.root / recipe.file).is_relative_to(project.recipes)
        return is_own and recipe.number is None and image.of_repository(project, recipe.repository) is not None
    return False


def missing_mods(project: Project, recipe: Recipe) -> Iterator[Problem]:
    """A problem for each mod of ``recipe`` that the project lacks. The recipe can still be served, but not built."""
    return mod.unknown_mods(project, recipe.mods, partial(recipe.location, "mods"))


def unknown_container(project: Project, recipe: Recipe) -> Problem:
    """The problem of a ``recipe`` whose container no image definition makes, if a definition is required."""
    there = ", ".join(image.definition_repositories(project)) or "none"
    message = f"container: no image definition makes `{recipe.container}`; the definitions make: {there}"
    return Problem(recipe.location("container"), message)


def _container(project: Project, recipe: Recipe) -> Iterator[Problem]:
    location = recipe.location("container")
    try:
        if image.of_repository(project, recipe.repository):
            return
        existing = image.definition_repositories(project)
    except FileProblemsError as error:
        yield Problem(location, f"builder cannot tell which definition makes `{recipe.container}`: {error.problems[0]}")
        return
    suggestion = did_you_mean(recipe.repository, existing, code=True, near=0.88)
    ways = f"the engine's image of that name is served; to give it a number: `builder adopt {recipe.container}`"
    yield Problem(location, f"no image definition makes `{recipe.container}`; {suggestion or ways}")


def _run_time_mods(project: Project, recipe: Recipe) -> Iterator[Problem]:
    """A note on each mod with an effect that no image keeps, with an alternative."""
    for index, name in enumerate(map(mod.name_of, recipe.mods)):
        with suppress(BuilderError):  # another check reports a missing or broken mod
            facts = mod.read_script_facts(mod.load_mod(project, name))
            if facts and facts.instead:
                yield Problem(recipe.location("mods", index), f"mod {name}: {facts.instead}")


# Options of vLLM with JSON values: vLLM would refuse an invalid value only after its start.

# The value may be the text of a template, which may also begin with a brace.
_TEMPLATES = frozenset({"--chat-template", "--chat_template"})
_SHOWN = 60


def json_problems(recipe: Recipe, words: Sequence[str]) -> Iterator[Problem]:
    """A problem for each option whose value looks like JSON but is not valid, at the place of the error in the file."""
    for used in command.options(words):
        value = used.value
        if value is None or not value.startswith("{") or used.option in _TEMPLATES or re.search(r"[$`]", value):
            continue  # only a shell can expand it
        if "," in value and not re.search("[:'\"]", value):
            continue  # `{a,b}` is a list of words for the shell, and JSON has a colon or quotes
        try:
            json.loads(value)
        except json.JSONDecodeError as error:
            begin = max(0, min(error.pos - _SHOWN // 2, len(value) - _SHOWN))
            shown = value[begin : begin + _SHOWN].replace("\n", " ")
            shown = f"{'…' if begin else ''}{shown}{'…' if begin + _SHOWN < len(value) else ''}"
            hint = "write single quotes around the whole value, and double quotes in it"
            message = f"the value of {used.option} is not valid JSON: {error.msg}: {shown}; {hint}"
            yield Problem(command.of_value(recipe, used, error.pos), message)
        except RecursionError:
            yield Problem(command.of_option(recipe, used), f"the value of {used.option} is nested too deeply")


# Facts about the image that a recipe names, found in the project's own files.

_RELEASE = re.compile(r"(?:v|[\w.-]+==)(?P<version>\d+(?:\.\d+)+)$")


@dataclass(frozen=True)
class ImageFacts:
    """The definitions that the image is made of (the base first; empty if another program made it), and its mods.
    ``opaque`` names mods with a script whose effects are unknown, ``missing`` the mods that the project lacks."""

    definitions: tuple[ImageDefinition, ...]
    mods: tuple[Mod, ...]
    opaque: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def is_known(self) -> bool:
        """True if these facts cover everything that can be in the image."""
        of_others = any(definition.base_sources for definition in self.definitions)
        return bool(self.definitions) and not of_others and not self.opaque and not self.missing

    @property
    def vllm(self) -> Source | None:
        """The source from which its vLLM is built or installed. None if unknown."""
        sources = [definition.sources.get("vllm") for definition in reversed(self.definitions)]
        return next((source for source in sources if source), None)

    @property
    def vllm_release(self) -> tuple[int, ...] | None:
        """The release of its vLLM as numbers, such as (0, 21, 0). None if the definition names no release."""
        source = self.vllm
        written = source.ref if isinstance(source, GitSource) else ""
        written = source.requirement if isinstance(source, WheelSource) else written
        match = _RELEASE.match(written)
        return tuple(map(int, match["version"].split("."))) if match else None

    def brings(self, name: str) -> bool:
        """True if a Dockerfile or a mod of the image contains or names the file ``name``."""
        before = "" if name.startswith("/") else r"(?<![\w.-])"
        whole = re.compile(rf"{before}{re.escape(name)}(?![\w.-])")
        texts = (*(each.template for each in self.definitions), *(text for mod in self.mods for text in _texts(mod)))
        return any(map(whole.search, texts))

    def may_bring(self, name: str) -> bool:
        """True if the image has a file ``name``, or installs a package whose name contains ``name``."""
        packages = [package for each in self.definitions if each.python for package in each.python.packages]
        plain = name.replace("_", "-").lower()
        return self.brings(name) or any(plain in package.replace("_", "-").lower() for package in packages)


def image_facts(project: Project, recipe: Recipe) -> ImageFacts:
    definitions: tuple[ImageDefinition, ...] = ()
    with suppress(BuilderError):
        if name := image.of_repository(project, recipe.repository):
            # These facts are the same on all platforms.
            definitions = image.load_chain(project, name, "linux/arm64")
    names = dict.fromkeys(map(mod.name_of, (*(name for each in definitions for name in each.mods), *recipe.mods)))
    mods: dict[str, Mod] = {}
    for name in names:
        with suppress(BuilderError):
            mods[name] = mod.load_mod(project, name)
    scripts = {name: mod.read_script_facts(each) for name, each in mods.items()}
    opaque = tuple(name for name, script in scripts.items() if script and not script.only_copies)
    return ImageFacts(definitions, tuple(mods.values()), opaque, tuple(name for name in names if name not in mods))


def _texts(mod: Mod) -> Iterator[str]:
    yield from (text for copy in mod.copies for text in (copy.to, copy.staged))
    for file in mod.files:
        yield file.path
        if file.path == mod.run:
            yield file.content.decode("utf-8", "replace")


# Names in a serve command that vLLM must know, such as parsers and load formats.

METHOD = "speculative method"
_SPECULATIVE = "speculative-config"
_TOOLS = "tool-call-parser"
_ATTENTION = "attention-backend"
# Further names may come from a plugin file that the command names, or from a package.
_PLUGINS = {_TOOLS: "tool-parser-plugin", "reasoning-parser": "reasoning-parser-plugin"}


def unknown_names(
    recipe: Recipe,
    words: Sequence[str],
    label: str,
    choices: Mapping[str, frozenset[str]],
    facts: ImageFacts | None = None,
) -> Iterator[Problem]:
    """A problem for each name in the command ``words`` that the vLLM called ``label`` does not know. ``choices`` are
    the known names by option (``tool-call-parser``). Names that its image may add, by ``facts``, are accepted."""
    if facts and not facts.is_known:
        return
    options = {command.name_of(used.option): used for used in command.options(words)}
    switches = {command.name_of(word) for word in words if word.startswith("--")}
    for name, known_names in choices.items():
        used = options.get(_SPECULATIVE if name == METHOD else name)
        value = (used.json_object.get("method") if name == METHOD else used.value) if used else None
        if used is None or not isinstance(value, str) or not value or "$" in value or value in known_names:
            continue
        if name == _ATTENTION:  # vLLM accepts upper and lower case
            value = value.upper()
            if value in {*known_names, "AUTO", "NONE"}:
                continue
        # vLLM checks the tool parser only if it is used.
        if name == _TOOLS and "enable-auto-tool-choice" not in switches:
            continue
        if _PLUGINS.get(name) in options or (facts and facts.may_bring(value)):
            continue
        there = did_you_mean(value, known_names, code=True) or f"known: {', '.join(sorted(known_names))}"
        called = name if name == METHOD else used.option
        yield Problem(command.of_value(recipe, used), f"{label} has no {called} `{value}`; {there}")


def unknown_fields(
    recipe: Recipe, words: Sequence[str], label: str, fields: Mapping[str, Sequence[str]]
) -> Iterator[Problem]:
    """A problem for each field in a JSON option of ``words`` that the vLLM called ``label`` refuses. ``fields`` are the
    accepted fields by option."""
    for used in command.options(words):
        known_fields = fields.get(command.name_of(used.option), ())
        for key in used.json_object if known_fields else ():
            if key.replace("-", "_") not in known_fields:
                at = max((used.value or "").find(f'"{key}"'), 0)
                nearest = did_you_mean(key, known_fields, code=True)
                message = f"{used.option}: {label} has no field `{key}`"
                yield Problem(command.of_value(recipe, used, at), f"{message}; {nearest}" if nearest else message)


# Failures of a launch that can be predicted: files that the container does not contain, and options that its vLLM
# refuses.

# The model cache in every container that builder starts.
_MOUNTED = ("/root/.cache/huggingface",)
# The working directories of servers: relative paths begin there.
_WORKSPACES = frozenset({"/workspace", "/vllm-workspace", "/workspace/vllm"})
# Families of models that combine attention with stateful layers (Mamba, linear attention).
_HYBRID = re.compile(
    r"qwen3[.][56]|qwen3-(coder-)?next|nemotron-(h|3|nano-\d+b-v2)|granite-4[.]0-h|falcon-h1|jamba|bamba|zamba|kimi-linear",
    re.IGNORECASE,
)
# vLLM before 0.32.0 asserts in vllm/config/vllm.py that a block is not larger than a step.
_TAKES_LARGE_BLOCKS = (0, 32)


def find_launch_problems(
    recipe: Recipe, rendered: ServeCommand, facts: ImageFacts
) -> tuple[list[Problem], list[Problem]]:
    """Compares a launch of ``recipe`` with the ``facts`` about its image; ``rendered`` is the command. Returns the
    problems that certainly prevent the launch, and notes on possible problems."""
    options = _options(rendered)
    absent = [*_absent_models(recipe, rendered, facts, options), *_absent_template(recipe, rendered, facts)]
    who = f"the script of mod {', '.join(facts.opaque)} may add it" if facts.opaque else "the image itself may have it"
    problems = [problem for problem, is_certain in absent if is_certain]
    # Missing mods have their own notes.
    doubtful = [problem for problem, is_certain in absent if not is_certain and not facts.missing]
    notes = [Problem(each.location, f"{each.message}; however, {who}") for each in doubtful]
    return [*problems, *_block_size(recipe, rendered, facts, options)], notes


def template_of_image(recipe: Recipe, rendered: ServeCommand) -> UsedOption | None:
    """The option with which ``recipe`` names a chat template that must be in its image. None if the recipe names no
    template, contains its text, mounts it, or makes it in its command."""
    used = _options(rendered).get("chat-template")
    value = used.value if used else None
    # vLLM also accepts the text of a template, which contains braces or line breaks.
    if not value or re.search(r"[{}\n]", value) or not re.search(r"[./]", value):
        return None
    elsewhere = re.sub(rf"chat[-_]template[\s=\\]+['\"]?{re.escape(value)}", "", recipe.command)
    if re.search(rf"[\s=>]['\"]?{re.escape(value)}", elsewhere):
        return None
    name = value.rpartition("/")[2]
    beside = any(target.rpartition("/")[2] == name or target in _WORKSPACES for target in _targets(recipe))
    return None if _is_mounted(recipe, value) or (beside and not value.startswith("/")) else used


def _options(rendered: ServeCommand) -> dict[str, UsedOption]:
    """The options of the command by name, without those whose value only the shell of a script knows."""
    return {
        command.name_of(used.option): used
        for used in command.options(rendered.words)
        if used.value is not None and not (rendered.is_script and re.search(r"[$`]", used.value))
    }


def _targets(recipe: Recipe) -> list[str]:
    return [volume.split(":")[1].rstrip("/") for volume in recipe.volumes]


def _is_mounted(recipe: Recipe, path: str) -> bool:
    inside = path.replace("~/", "/root/", 1) if path.startswith("~/") else path
    return any(f"{inside}/".startswith(f"{target}/") for target in (*_targets(recipe), *_MOUNTED))


def _absent_models(
    recipe: Recipe, rendered: ServeCommand, facts: ImageFacts, options: dict[str, UsedOption]
) -> Iterator[tuple[Problem, bool]]:
    """A problem for each model folder that no volume mounts, with True if the problem is certain."""
    model, tokenizer, config = rendered.model, options.get("tokenizer"), options.get(_SPECULATIVE)
    named: list[tuple[UsedOption | None, str, str]] = []
    if model and "$" not in model:
        named.append((options.get("model"), model, f"the model's folder {model}"))
    drafter = config and config.json_object.get("model")
    for used, path in ((tokenizer, tokenizer and tokenizer.value), (config, drafter)):
        if used and isinstance(path, str) and path != model:
            named.append((used, path, f"{path} of {used.option}"))
    for used, path, what in named:
        if not path.startswith(("/", "~/", "./", "../")):
            continue
        # Mods put draft models into the workspace: such a folder comes from a mod or the image, not from the machine.
        is_made_inside = path.startswith((*(f"{folder}/" for folder in _WORKSPACES), "/opt/", "/app/"))
        name = path.rstrip("/").rpartition("/")[2]
        if _is_mounted(recipe, path) or facts.brings(path) or (is_made_inside and facts.brings(f"/{name}")):
            continue
        location = command.of_value(recipe, used) if used else command.of_text(recipe, path)
        advice = "mount it with `volumes:` in the recipe, and write its path inside the container"
        if path.startswith("/"):
            folder = path.rstrip("/").rpartition("/")[0] or path
            advice = f"`volumes: [~/{folder.strip('/').rpartition('/')[2]}:{folder}]` in the recipe mounts it"
        yield Problem(location, f"no volume mounts {what}; {advice}"), facts.is_known or not is_made_inside


def _absent_template(recipe: Recipe, rendered: ServeCommand, facts: ImageFacts) -> Iterator[tuple[Problem, bool]]:
    """A problem if no image, mod or volume contains the chat template, with True if the problem is certain."""
    used = template_of_image(recipe, rendered)
    value = (used.value if used else None) or ""
    from_package = "/site-packages/" in value or "/dist-packages/" in value
    if used and not from_package and not facts.brings(value.rpartition("/")[2]):
        message = f"the image, its mods and the volumes do not contain the chat template {value}; add it with a mod"
        # An image that another project built with its own vLLM may contain example templates.
        is_certain = facts.is_known and (facts.vllm is not None or "/" not in value)
        yield Problem(command.of_value(recipe, used), message), is_certain


def _block_size(
    recipe: Recipe, rendered: ServeCommand, facts: ImageFacts, options: dict[str, UsedOption]
) -> Iterator[Problem]:
    """A problem for a block of the KV cache that is larger than a step of the scheduler."""
    sizes = ((used and used.value) or "" for used in map(options.get, ("block-size", "max-num-batched-tokens")))
    block, batch = map(command.whole_number, sizes)
    release = facts.vllm_release
    if block is None or batch is None or block <= batch or (release and release >= _TAKES_LARGE_BLOCKS):
        return
    mode = options.get("mamba-cache-mode")
    is_hybrid = _HYBRID.search(f"{rendered.model} {recipe.model}") or (mode and mode.value == "align")
    if is_hybrid and "--no-enable-prefix-caching" not in rendered.words:
        message = f"a block of {block} tokens is larger than a step (--max-num-batched-tokens {batch})"
        location = command.of_value(recipe, options["block-size"])
        yield Problem(
            location, f"{message}: vLLM refuses this for hybrid models such as this model. Lower --block-size"
        )
