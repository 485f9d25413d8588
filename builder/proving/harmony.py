"""The vocabulary by which vLLM writes and reads GPT-OSS's own format, Harmony.

openai-harmony fetches it when it is first needed, which a container without a network cannot; oss-harmony, which vLLM
takes from 0.32 on, has it inside. The model's tokenizer.json has the same tokens with the same ranks, so the file that
both know by its digest is made of that.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from builder.proving import byte_characters

if TYPE_CHECKING:
    from collections.abc import Mapping

# https://github.com/openai/harmony, src/tiktoken_ext/public_encodings.rs: the file, its digest, and the variable that
# names its folder.
SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
FILE = PurePosixPath("/tmp/builder-encodings/o200k_base.tiktoken")  # noqa: S108  # of the container
VARIABLES = {"TIKTOKEN_ENCODINGS_BASE": str(FILE.parent)}
MISSING = "loading vocab file"
"""In the error of openai-harmony where the vocabulary is not to be had."""

_MODEL_TYPE = "gpt_oss"


def is_spoken(files: Mapping[str, bytes]) -> bool:
    """True where vLLM takes Harmony in place of a chat template: by the type in the model's config."""
    try:
        return bool(json.loads(files.get("config.json", b"{}")).get("model_type") == _MODEL_TYPE)
    except (ValueError, AttributeError):
        return False


def vocabulary(files: Mapping[str, bytes]) -> bytes | None:
    """The content of `FILE`, made of a model's tokenizer; None where that is another one."""
    try:
        tokens = json.loads(files["tokenizer.json"])["model"]["vocab"]
        ranked = sorted(tokens.items(), key=lambda item: int(item[1]))
        lines = [b"%s %d\n" % (base64.b64encode(byte_characters.read(token)), rank) for token, rank in ranked]
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    content = b"".join(lines)
    return content if hashlib.sha256(content).hexdigest() == SHA256 else None
