"""Failures of a launch that can be known before it: files that nothing brings into the container, and options that its
vLLM refuses."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions.recipes import arguments, option_places, option_values
from builder.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.definitions.recipes.command import ServeCommand
    from builder.definitions.recipes.image_facts import ImageFacts
    from builder.definitions.recipes.option_places import UsedOption
    from builder.definitions.recipes.recipe import Recipe

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


def find(recipe: Recipe, rendered: ServeCommand, facts: ImageFacts) -> LaunchFindings:
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
            option_places.of_value(recipe, used),
            f"vLLM {vllm} breaks streamed tool calls when {tokens} tokens are predicted at once; vLLM 0.17.0 does not",
        )


def template_of_image(recipe: Recipe, rendered: ServeCommand) -> UsedOption | None:
    """The option by which ``recipe`` names a chat template that has to be in its image; None where it names none, gives
    it as text, or mounts it."""
    return _template_of_image(recipe, _options(rendered).get("chat-template"))


def _options(rendered: ServeCommand) -> dict[str, UsedOption]:
    """The options of the command by name, but for values that only the shell of a script knows."""
    return {
        option_values.name_of(used.option): used
        for used in option_places.options(rendered.words)
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
    model = arguments.model(words)
    if model and _is_path(model) and "$" not in model and not _is_there(recipe, facts, model):
        used = options.get("model")
        location = option_places.of_value(recipe, used) if used else option_places.of_text(recipe, model)
        message = f"no volume mounts the model's folder {model}; {_advice(model)}"
        yield Problem(location, message), facts.is_known or not _is_made_inside(model)
    for name in ("tokenizer", "speculative-config"):
        used = options.get(name)
        path = (_speculative(used).get("model") if name == "speculative-config" else used.value) if used else None
        if used and isinstance(path, str) and _is_path(path) and path != model and not _is_there(recipe, facts, path):
            message = f"no volume mounts {path} of {used.option}; {_advice(path)}"
            yield Problem(option_places.of_value(recipe, used), message), facts.is_known or not _is_made_inside(path)


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
    location = option_places.of_value(recipe, used)
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
    model = arguments.model(words) or ""
    if block is None or batch is None or block <= batch or (release and release >= _TAKES_LARGE_BLOCKS):
        return
    names = f"{model} {recipe.model or ''}"
    mode = options.get("mamba-cache-mode")
    if "--no-enable-prefix-caching" in words or not (_HYBRID.search(names) or (mode and mode.value == "align")):
        return
    location = option_places.of_value(recipe, options["block-size"])
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
        location = option_places.of_value(recipe, used)
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
