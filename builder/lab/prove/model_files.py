"""A proof needs the tokenizer, the config and the template of a model, but not its weights.

They come from a cache of this machine, or once from the Hub; where they are missing, a stand-in replaces them.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.base import hub_cache
from builder.base.errors import SourceError
from builder.base.events import Message
from builder.evidence import subjects

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.recipe import Recipe
    from builder.numbers.workspace import Workspace


_SUFFIXES = frozenset({".json", ".jinja", ".txt", ".model", ".tiktoken", ".py"})
_TOKENIZERS = frozenset({"tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json", "tiktoken.model"})
_LARGEST = 64 * 1024 * 1024


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model's folder, and its ``commit``; ``stand_in`` says why they are not the model's own."""

    files: Mapping[str, bytes]
    commit: str | None = None
    stand_in: str = ""

    @property
    def digest(self) -> str:
        digest = hashlib.sha256()
        for name in sorted(_TOKENIZERS & self.files.keys()):
            digest.update(name.encode() + b"\0" + self.files[name])
        return digest.hexdigest()[:16]


def model_files_of(workspace: Workspace, recipe: Recipe, model: str, revision: str | None) -> ModelFiles:
    """The files of ``model``, as the recipe loads it; or what stands in for them."""
    if not hub_cache.is_id(model):
        folder = subjects.mounted(workspace.project, recipe, model, workspace.environment)
        return _of_folder(folder) or _standing_in(f"{model} is no model of the hub")
    wanted = revision or hub_cache.MAIN
    if cached := _cached(workspace.environment, model, wanted):
        return cached
    # Beside the hub's own cache: a model without weights in there would look downloaded.
    own = {**workspace.environment, "HF_HUB_CACHE": str(workspace.project.state / "tokenizers")}
    if hub_cache.is_commit(wanted) and (kept := _cached(own, model, wanted)):
        return kept
    try:
        return _fetch(workspace, own, model, wanted)
    except SourceError as error:
        return _cached(own, model, wanted) or _standing_in(error.message)


def _cached(environ: Mapping[str, str], model: str, revision: str) -> ModelFiles | None:
    commit = hub_cache.revision(environ, model, revision)
    files = _of_folder(hub_cache.folder(environ, model) / "snapshots" / commit) if commit else None
    return replace(files, commit=commit) if files else None


def _standing_in(reason: str) -> ModelFiles:
    return ModelFiles(files(), stand_in=reason)


def _of_folder(folder: Path | None) -> ModelFiles | None:
    """The files in a folder that has a tokenizer and a config."""
    try:
        paths = [path for path in folder.iterdir() if _is_wanted(path.name)] if folder else []
        files = {path.name: path.read_bytes() for path in paths if path.is_file() and path.stat().st_size <= _LARGEST}
    except OSError:
        return None
    return ModelFiles(files) if "config.json" in files and _TOKENIZERS & files.keys() else None


def _is_wanted(name: str) -> bool:
    return Path(name).suffix in _SUFFIXES and not name.endswith(".index.json")


def _fetch(workspace: Workspace, environ: Mapping[str, str], model: str, revision: str) -> ModelFiles:
    from builder.sources import hub

    snapshot = hub.find_snapshot(environ, model, revision)
    wanted = tuple(
        file for file in snapshot.files if "/" not in file.path and _is_wanted(file.path) and file.size <= _LARGEST
    )
    if not wanted:
        raise SourceError(f"{model} has no files of a tokenizer")
    workspace.report(Message(f"fetching the tokenizer of {model} at {snapshot.commit[:12]}, without the weights"))
    folder = hub.fetch_from_hub(environ, replace(snapshot, files=wanted), lambda _: None)
    fetched = _of_folder(folder)
    if fetched is None:
        raise SourceError(f"{model} has no tokenizer or no config")
    return replace(fetched, commit=snapshot.commit)


# A tokenizer and a config that stand in for a model's own, where those are missing. One token for each byte, and
# one for each mark of the families: the text of a template and what a parser does with it are proven as with the
# model's own; the numbers of tokens are others.

END = "<|im_end|>"
# vLLM refuses a `--max-model-len` above the model's own. A recipe's is that of its real model, so no recipe's is above.
CONTEXT = 1 << 24
# What templates write and parsers look for as single tokens.
_MARKS = (
    *("<|endoftext|>", "<|im_start|>", END, "<think>", "</think>", "<tool_call>", "</tool_call>"),
    *("<tool_response>", "</tool_response>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    *("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|begin_of_text|>"),
    *("<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|end|>", "<|return|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
)


def files() -> dict[str, bytes]:
    ids = {mark: 256 + at for at, mark in enumerate(_MARKS)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": ident, "content": mark, **flags} for mark, ident in ids.items()],
        "normalizer": None,
        "pre_tokenizer": by_bytes,
        "post_processor": None,
        "decoder": by_bytes,
        "model": {
            "type": "BPE",
            **dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")),
            **dict.fromkeys(("fuse_unk", "byte_fallback"), False),
            "vocab": byte_values(),
            "merges": [],
        },
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        # A template that writes it would break on its absence, which is no fault of its own.
        "bos_token": "<|begin_of_text|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
    }
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 256 + len(_MARKS),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": CONTEXT,
        "torch_dtype": "bfloat16",
        "eos_token_id": ids[END],
    }
    contents = {"tokenizer.json": tokenizer, "tokenizer_config.json": settings, "config.json": config}
    return {name: json.dumps(content).encode() for name, content in contents.items()}


# The characters by which byte-level tokenizers write bytes in their files: themselves where they are printed, else
# those from 256 on (https://github.com/openai/gpt-2, src/encoder.py, bytes_to_unicode).


@functools.cache
def byte_values() -> dict[str, int]:
    """The byte of each character."""
    printed = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte if byte in printed else 256 + others.index(byte)): byte for byte in range(256)}
