"""The bake file of a build directory, which ``docker buildx bake`` builds without this program."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from builder.plan import layout
from builder.plan.model import StagedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TARGET = "image"
FILE = layout.BAKE


def target(
    platform: str, epoch: int, trees: Mapping[str, str], parent: str | None, *, records_packages: bool
) -> dict[str, Any]:
    """A target that builds the build directory; the parent image is another target of the same file. ``trees`` are the
    sources taken from git, each with its address and commit as ``URL#COMMIT``. Where it ``records_packages`` of the
    distribution, those of the build before are installed again: a secret, because BuildKit does not know a step by it.

    Attestations are off: they would change the digest of every build.
    """
    contexts = {source_context(name): tree for name, tree in sorted(trees.items())}
    if parent:
        contexts[parent] = f"target:{parent}"
    return {
        "context": ".",
        "dockerfile": "Dockerfile",
        **({"contexts": contexts} if contexts else {}),
        "platforms": [platform],
        "args": {"SOURCE_DATE_EPOCH": str(epoch)},
        **({"secret": [packages_secret("")]} if records_packages else {}),
        "attest": [{"type": "provenance", "disabled": "true"}, {"type": "sbom", "disabled": "true"}],
    }


def packages_secret(folder: str) -> str:
    """The secret with the packages of the distribution, whose file lies in ``folder``, below the bake file or
    absolute."""
    source = f"src={folder}/{layout.PACKAGES}" if folder else f"src={layout.PACKAGES}"
    if any(mark in source for mark in ',"\n'):  # buildx reads it as CSV
        source = '"' + source.replace('"', '""') + '"'
    return f"id=distribution-packages,{source}"


def source_context(source: str) -> str:
    """The named build context that holds a source taken from git: ``vllm-source``."""
    return f"{source}-source"


def groups() -> dict[str, Any]:
    """The groups of a bake file: what is built where nothing is named is the last image of the chain."""
    return {"default": {"targets": [TARGET]}}


def bake_file(targets: Mapping[str, Any]) -> StagedFile:
    """The bake file, which builds the last image of the chain."""
    return StagedFile(f"{dump({'group': groups(), 'target': targets})}\n".encode())


def dump(document: Mapping[str, Any]) -> str:
    """Returns the text of a bake file that means ``document`` word for word: to bake, ``${`` and ``%{`` begin an
    expression, which may read the environment, wherever a string or a key stands."""
    return json.dumps(_with_strings(document, lambda text: re.sub(r"([$%])(?=\{)", r"\1\1", text)), indent=2)


def load(text: str) -> Any:
    """Returns what a text of `dump` means.

    Raises ValueError where it is not JSON, holds an expression, or a key twice, of which bake would take both.
    """
    return _with_strings(json.loads(text, object_pairs_hook=_once), _literal)


def _literal(text: str) -> str:
    if re.search(r"(?<!\$)\$\{|(?<!%)%\{", text):
        raise ValueError("it holds an expression")
    return re.sub(r"([$%])\1(?=\{)", r"\1", text)


def _with_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _with_strings(item, change) for key, item in value.items()}
    return [_with_strings(item, change) for item in value] if isinstance(value, list) else value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) != len(pairs):
        raise ValueError("a key stands twice")
    return keys
