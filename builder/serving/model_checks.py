"""Refusals that need no start: a model that is nowhere to be had, and a context that is longer than the model's own."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.definitions.recipes import arguments
from builder.errors import ModelUnavailableError, NoImageHelpsError, SourceError
from builder.storage import huggingface_cache

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.recipes.command import ServeCommand
    from builder.definitions.recipes.container import ContainerSettings

# Keys of config.json that vLLM takes the longest context from (vllm/config/model.py, _get_and_verify_max_len, 0.32).
_LENGTHS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"),
    *("max_target_positions", "max_sequence_length", "max_seq_length", "seq_len"),
)
# What is set here may change the model's configuration, or where it comes from.
_CHANGES_CONFIG = frozenset(
    {
        *("--hf-overrides", "--hf-config-path", "--rope-scaling", "--rope-theta", "--rope-parameters"),
        *("--config-format", "--config", "--download-dir", "--load-format"),
    }
)
_CHANGES_HUB = frozenset({"HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "VLLM_USE_MODELSCOPE"})
_OFFLINE = frozenset({"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"})
_INSIDE = "/root/.cache/huggingface"
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG])?")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def require(
    command: ServeCommand, container: ContainerSettings, environ: Mapping[str, str], revision: str | None
) -> None:
    """Raises NoImageHelpsError where the ``command`` cannot serve its model on this machine: the hub or, offline, the
    cache has none of that name, a mounted folder does not hold it, or it takes no context of that length. What cannot
    be told is left to the server."""
    model = command.model
    if not model or "$" in model:
        return
    if model.startswith("/"):
        folder = _on_this_machine(container, model)
        if folder is not None and not folder.exists():
            raise NoImageHelpsError(
                f"there is no {folder}, which the server would find as {model}",
                hint="the recipe's `model` or its `volumes:` names another folder than the one that holds the model",
            )
    elif huggingface_cache.is_id(model) and _is_our_cache(container):
        folder = _of_hub(container, environ, model, revision or huggingface_cache.MAIN)
    else:
        return
    if folder is not None:
        _require_length(command, container, folder, model)


def longest_context(config: Mapping[str, Any]) -> int | None:
    """The longest context that a model of this config.json can take; None where that cannot be told for certain."""
    texts = [config, *(config[key] for key in ("text_config", "llm_config") if isinstance(config.get(key), dict))]
    thinker = config.get("thinker_config")
    if isinstance(thinker, dict):
        texts += [thinker, *(each for each in [thinker.get("text_config")] if isinstance(each, dict))]
    lengths: list[int] = [text[key] for text in texts for key in _LENGTHS if isinstance(text.get(key), int)]
    scaled = [text.get(key) for text in texts for key in ("rope_scaling", "rope_parameters")]
    if not lengths or any(_stretches(rope) for rope in scaled):
        return None
    return max(lengths)


def _stretches(rope: object) -> bool:
    """True for positions that are scaled: the length is then another than the one that is written."""
    if not isinstance(rope, dict):
        return False
    kind = rope.get("rope_type", rope.get("type", "default"))
    return "factor" in rope or kind not in ("default", "mrope") or any(isinstance(each, dict) for each in rope.values())


def _require_length(command: ServeCommand, container: ContainerSettings, folder: Path, model: str) -> None:
    words = {word.partition("=")[0].replace("_", "-") for word in command.words}
    wanted = _tokens(arguments.option(command.words, "--max-model-len", "--max_model_len") or "")
    overridden = {**command.env, **container.env}.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") not in (None, "", "0")
    if (
        wanted is None
        or overridden
        or words & _CHANGES_CONFIG
        or any(word.startswith("--hf-overrides") for word in words)
    ):
        return
    config: object = None
    with suppress(OSError, ValueError):
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    longest = longest_context(config) if isinstance(config, dict) else None
    if longest is not None and wanted > longest:
        raise NoImageHelpsError(
            f"{model} takes a context of at most {longest} tokens, and --max-model-len asks for {wanted}",
            hint=f"`--max-model-len {longest}` or less, in the recipe or as an option of `builder run`",
        )


def _tokens(text: str) -> int | None:
    """The number that vLLM reads in ``32768``, ``32k`` (a thousand each) or ``32K`` (1024 each); None for any other."""
    match = _HUMAN.fullmatch(text)
    return int(float(match[1]) * _UNITS[match[2] or ""]) if match else None


def _on_this_machine(container: ContainerSettings, path: str) -> Path | None:
    """The folder that is mounted at ``path``; None where it is the image's own."""
    holding = [mount for mount in container.mounts if f"{path}/".startswith(f"{mount.target}/")]
    if not holding:
        return None
    nearest = max(holding, key=lambda mount: len(mount.target))
    return Path(nearest.source, path.removeprefix(nearest.target).lstrip("/"))


def _is_our_cache(container: ContainerSettings) -> bool:
    """True if the server looks for models of the hub where this program keeps them."""
    at = [mount for mount in container.mounts if mount.target == _INSIDE or mount.target.startswith(f"{_INSIDE}/")]
    return all(mount.ours for mount in at) and not _CHANGES_HUB & {*container.env}


def _of_hub(container: ContainerSettings, environ: Mapping[str, str], model: str, revision: str) -> Path | None:
    """The folder of a cached model, None where it is yet to be downloaded. Raises NoImageHelpsError where it cannot."""
    if commit := huggingface_cache.revision(environ, model, revision):
        return huggingface_cache.folder(environ, model) / "snapshots" / commit
    if huggingface_cache.find_model(environ, model):
        return None
    from builder.sources.huggingface import hub_models

    settings = {key: value for key, value in container.env.items() if key.startswith(("HF_", "TRANSFORMERS_"))}
    try:
        hub_models.find_snapshot({**environ, **settings}, model, revision)
    except ModelUnavailableError as error:
        # A recipe that keeps its server from the hub keeps nobody from downloading.
        is_own = not _OFFLINE & {*environ} and bool(_OFFLINE & {*settings})
        hint = (
            f"`builder download {model}` brings it; the recipe keeps the server from the hub" if is_own else error.hint
        )
        raise NoImageHelpsError(f"nothing was started: {error.message}", hint=hint) from None
    except SourceError:
        return None  # a hub that does not answer may do so in a minute
    return None
