"""Asks the front end of an image, in one container without a network for all models."""

from __future__ import annotations

import functools
import hashlib
import json
import signal
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from builder.base import hub_cache, records, words
from builder.base.errors import BuildFailedError, SourceError
from builder.base.events import Message, Report
from builder.base.values import dataclass, replace
from builder.engine import containers, installed
from builder.evidence import standing
from builder.plan.plan_model import WORKSPACE

if TYPE_CHECKING:
    from builder.definitions.recipe import Recipe
    from builder.engine.client import Endpoint
    from builder.lab.prove.conversations import Question
    from builder.numbers.workspace import Workspace


Json = dict[str, Any]

_DRIVER = Path(__file__).with_name("driver.py")
_FOLDER = PurePosixPath("/tmp/builder-prove")  # noqa: S108
_START_SECONDS = 600
_LONGEST = 3600
# vLLM with a tokenizer of 200,000 words needs 2 GiB. A template that writes endlessly uses all memory that it gets.
_MEMORY = 6 << 30
_TOO_LARGE = (
    f"vLLM's front end was killed, probably because it reached its limit of {_MEMORY >> 30} GiB; the chat template may"
    " contain an endless loop"
)
_REASONS = {
    128 + signal.SIGKILL: _TOO_LARGE,
    128 + signal.SIGALRM: f"vLLM was not imported within {_START_SECONDS} seconds",
}
_NO_PYTHON = (
    "a proof runs vLLM's front end with that Python; `builder probe` and `builder bench` need only a running server"
)
# No downloads, no usage statistics, no bytecode files, and long keep-alive for the driver's connection.
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "600",
    "PYTHONDONTWRITEBYTECODE": "1",
}


@dataclass(frozen=True)
class Setup:
    """A model as served: the files of its folder, the options of its front end, the mounted files, and the
    questions."""

    model: str
    files: Mapping[str, bytes]
    options: tuple[str, ...]
    environment: Mapping[str, str]
    template: str
    mounted: Mapping[PurePosixPath, bytes]
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class SetupAnswers:
    """The answers by question; None if the front end did not start: see ``log``. ``broke_off`` is the reason for an
    early end. ``was_killed``: SIGKILL ended the front end, possibly through no fault of its own. ``template`` is the
    text of the setup's template."""

    answers: Mapping[str, Json] | None = None
    template: str | None = None
    log: str = ""
    seconds: float = 0.0
    memory: int = 0
    broke_off: str = ""
    was_killed: bool = False


@dataclass(frozen=True)
class FrontEndRun:
    """The version of vLLM (empty if unknown), and the answers for each setup, or the reason for a ``failure``."""

    version: str = ""
    setups: tuple[SetupAnswers, ...] = ()
    failure: str = ""


def ask_front_end(
    endpoint: Endpoint, image: str, setups: Sequence[Setup], labels: Mapping[str, str], report: Report
) -> FrontEndRun:
    """Starts the front end of ``image`` for each setup and asks the questions. Raises ImageStateError if the image is
    missing, and ImageContentsError if it has no Python that runs here."""
    models = ", ".join(dict.fromkeys(setup.model for setup in setups))
    questions = words.counted(sum(len(setup.questions) for setup in setups), "question")
    report(Message(f"starting vLLM's front end for {models}, and asking it {questions}"))
    with containers.running(endpoint, image, labels=labels, workdir=WORKSPACE, memory=_MEMORY) as container:
        python = installed.require_python(container, image, _NO_PYTHON)
        containers.put_file(container, files_of_work(setups))
        try:
            argv = [python, "-B", str(_FOLDER / "driver.py"), str(_FOLDER)]
            ended, state = container.run(argv, timeout=_LONGEST), FrontEndRun()
            with suppress(records.RecordError):
                state = records.parse(_read(container, "state.json"), FrontEndRun)
            if ended.exit_code or state.failure:
                return FrontEndRun(state.version, failure=state.failure or _reason(ended))
            texts = (_read(container, f"answers-{number}.json") for number in range(len(setups)))
            return FrontEndRun(state.version, tuple(records.parse(text, SetupAnswers) for text in texts))
        except BuildFailedError as error:
            return FrontEndRun(failure=f"its answers are too long, or are missing: {error.message}")
        # The image is untrusted: its shell and its Python may return anything.
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            return FrontEndRun(failure="its answers do not match the questions")


def files_of_work(
    setups: Sequence[Setup], folder: PurePosixPath = _FOLDER, cwd: str = WORKSPACE
) -> dict[PurePosixPath, bytes]:
    """The driver and its work, by path."""
    files = {folder / "driver.py": _DRIVER.read_bytes()}
    work: list[Json] = []
    for number, setup in enumerate(setups):
        own = folder / f"model-{number}"
        files |= {own / name: content for name, content in setup.files.items()}
        files |= setup.mounted
        # The recipe's variables are meant for the server. Ours take precedence, so that nothing uses the network.
        env = {**setup.environment, **_ENVIRONMENT}
        questions = [
            {"name": each.name, "kind": each.kind, "seed": zlib.crc32(each.name.encode()), **each.body}
            for each in setup.questions
        ]
        of_model = {"argv": [str(own), *setup.options], "template": setup.template, "questions": questions}
        work.append({**of_model, "env": env, "cwd": cwd})
    whole = {"env": _ENVIRONMENT, "start_seconds": _START_SECONDS, "setups": work}
    return {**files, folder / "work.json": json.dumps(whole).encode()}


def _read(container: containers.Container, name: str) -> str:
    return container.run(["cat", str(_FOLDER / name)], timeout=60).output


def _reason(ended: containers.ExecResult) -> str:
    lines = "\n".join(ended.output.strip().splitlines()[-5:])
    own = f"its Python ended with {ended.exit_code} before the work was done" + (f":\n{lines}" if lines else "")
    return _REASONS.get(ended.exit_code, own)


# The front end of a model needs its tokenizer, config and template, but no weights. The files come from a cache on this
# machine, or once from the Hub; a stand-in replaces missing files.

_SUFFIXES = frozenset({".json", ".jinja", ".txt", ".model", ".tiktoken", ".py"})
_TOKENIZERS = frozenset({"tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json", "tiktoken.model"})
_LARGEST = 64 * 1024 * 1024


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model's folder, and its ``commit``. ``stand_in`` is the reason if they are not the model's own."""

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
    """The files of ``model``, from the place where the recipe loads it, or stand-ins."""
    if not hub_cache.is_id(model):
        folder = standing.mounted(workspace.project, recipe, model, workspace.environment)
        return _of_folder(folder) or ModelFiles(files(), stand_in=f"{model} is not a model on the hub")
    wanted = revision or hub_cache.MAIN
    if cached := _cached(workspace.environment, model, wanted):
        return cached
    # Not in the Hub's own cache: there, a model without weights would look downloaded.
    own = {**workspace.environment, "HF_HUB_CACHE": str(workspace.project.state / "tokenizers")}
    if hub_cache.is_commit(wanted) and (kept := _cached(own, model, wanted)):
        return kept
    try:
        return _fetch(workspace, own, model, wanted)
    except SourceError as error:
        return _cached(own, model, wanted) or ModelFiles(files(), stand_in=error.message)


def _cached(environ: Mapping[str, str], model: str, revision: str) -> ModelFiles | None:
    commit = hub_cache.revision(environ, model, revision)
    files = _of_folder(hub_cache.folder(environ, model) / "snapshots" / commit) if commit else None
    return replace(files, commit=commit) if files else None


def _of_folder(folder: Path | None) -> ModelFiles | None:
    """The files in a folder; None without a tokenizer or a config."""
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
        raise SourceError(f"{model} has no tokenizer files")
    workspace.report(Message(f"fetching the tokenizer of {model} at {snapshot.commit[:12]}, without the weights"))
    folder = hub.fetch_from_hub(environ, replace(snapshot, files=wanted), lambda _: None)
    fetched = _of_folder(folder)
    if fetched is None:
        raise SourceError(f"{model} lacks a tokenizer or config.json")
    return replace(fetched, commit=snapshot.commit)


# Stand-ins for a missing tokenizer and config of a model. They have one token for each byte, and one for each mark of
# the families. Texts of templates and readings of parsers are the same as with the model's own tokenizer; only the
# numbers of tokens differ.

END = "<|im_end|>"
# vLLM refuses a `--max-model-len` above the model's own context. This context is longer than any real one, so no recipe
# is refused.
CONTEXT = 1 << 24
# Marks that templates write, and that parsers look for as single tokens.
_MARKS = (
    *("<|endoftext|>", "<|im_start|>", END, "<think>", "</think>", "<tool_call>", "</tool_call>"),
    *("<tool_response>", "</tool_response>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    *("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|begin_of_text|>"),
    *("<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|end|>", "<|return|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
)


def files() -> dict[str, bytes]:
    """A tokenizer and a config for models of every family."""
    ids = {mark: 256 + at for at, mark in enumerate(_MARKS)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        **dict.fromkeys(("truncation", "padding", "normalizer", "post_processor")),
        "added_tokens": [{"id": ident, "content": mark, **flags} for mark, ident in ids.items()],
        "pre_tokenizer": by_bytes,
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
        # Without it, a template that writes it would fail through no fault of its own.
        "bos_token": "<|begin_of_text|>",
        **dict.fromkeys(("unk_token", "pad_token"), "<|endoftext|>"),
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
        "eos_token_id": [ids[END], ids["<|call|>"]],
    }
    contents = {"tokenizer.json": tokenizer, "tokenizer_config.json": settings, "config.json": config}
    return {name: json.dumps(content).encode() for name, content in contents.items()}


# Byte-level tokenizers write bytes as characters in their files: a printable byte as itself, others as the characters
# from 256 on (https://github.com/openai/gpt-2, src/encoder.py, bytes_to_unicode).


@functools.cache
def byte_values() -> dict[str, int]:
    """The byte of each character."""
    printed = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte if byte in printed else 256 + others.index(byte)): byte for byte in range(256)}
