"""The tokenizer of a served model, as a file here: llama-benchy silently takes another where it finds none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from builder.engine import containers
from builder.errors import EngineError, MeasuringError
from builder.storage import huggingface_cache

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.measuring.served_model import ServedModel
    from builder.serving.running import ServerMember

NAME = "tokenizer.json"
_TIMEOUT = 60.0


def fetch(
    served: ServedModel,
    revision: str | None,
    environ: Mapping[str, str],
    member: ServerMember | None,
    target: Path,
) -> Path:
    """The tokenizer.json of the served model: that of the Hub's cache here, or else the server's own, copied to
    ``target``. Raises MeasuringError where there is neither."""
    model = served.source
    commit = huggingface_cache.revision(environ, model, revision or huggingface_cache.MAIN)
    if commit:
        path = huggingface_cache.folder(environ, model) / "snapshots" / commit / NAME
        if path.is_file():
            return path
    content = _in_container(member, model) if member and model.startswith("/") else ""
    if not _is_object(content):
        raise MeasuringError(
            f"there is no {NAME} of {model or served.name} here: without it the lengths of prompts would be wrong",
            hint=f"`builder download` fetches it; a model without a {NAME} cannot be measured by llama-benchy",
        )
    target.write_text(content, encoding="utf-8")
    return target


def _in_container(member: ServerMember, folder: str) -> str:
    try:
        result = containers.execute(member.engine.endpoint, member.service.id, ["cat", f"{folder}/{NAME}"], _TIMEOUT)
    except EngineError:
        return ""
    return "" if result.exit_code else result.output


def _is_object(content: str) -> bool:
    try:
        return isinstance(json.loads(content), dict)
    except (ValueError, RecursionError):
        return False
