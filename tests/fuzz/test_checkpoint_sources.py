"""Whatever is damaged in a checkpoint's source, a build says it and writes nothing, or makes what the library reads."""

from __future__ import annotations

import os
import random
import shutil
from typing import TYPE_CHECKING

import pytest
from safetensors import safe_open

from builder.base.errors import BuilderError
from builder.commands import checkpoints
from builder.sources.safetensors_files import LARGEST, NAME
from tests import projects, safetensors_files
from tests.lab.checkpoints.made import Kitchen

if TYPE_CHECKING:
    from pathlib import Path

    from tests.safetensors_files import Specification


pytestmark = pytest.mark.slow

COUNT = int(os.environ.get("BUILDER_FUZZ", "200"))
SHARDS: dict[str, Specification] = {
    "model-00001-of-00002.safetensors": {"a.weight": ("BF16", [4, 8]), "a.scale": ("F32", [4]), "none": ("I8", [0])},
    "model-00002-of-00002.safetensors": {"b.weight": ("F8_E4M3", [4, 8])},
}
DEFINITION = """\
description: x
model: Org/Model
sources: {{all: {{folder: {folder}}}}}
steps: [{{take: all}}]
output: {{folder: {result}}}
"""


def damaged(content: bytes, chance: random.Random) -> bytes:
    """``content`` after one to three accidents, most of them in its beginning, where the header is."""
    data = bytearray(content)
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(max(1, len(data)))
        match chance.randrange(7):
            case 0:
                data[place : place + 1] = bytes((chance.randrange(256),))
            case 1:
                del data[place : place + chance.choice((1, 2, 8, 1000))]
            case 2:
                data[place:place] = chance.choice(
                    (b"{", b'"', b"[", b"9" * 400, b"\0", b',"a":{}', b"-", b"e9", b"\xff")
                )
            case 3:
                end = min(len(data), place + chance.randint(1, 40))
                data[end:end] = data[place:end]
            case 4:
                size = chance.choice((0, 1, 7, len(data), LARGEST, 1 << 40, (1 << 63) - 1, (1 << 64) - 1))
                data[:8] = size.to_bytes(8, "little")
            case 5:
                old, new = chance.choice(((b"BF16", b"F64"), (b"a.", b"../"), (b"00001", b"00002"), (b"32", b"-1")))
                data = bytearray(bytes(data).replace(old, new, 1))
            case _:
                data[place:] = b""
    return bytes(data)


def test_no_damage_of_a_source_gives_a_bug_or_a_wrong_result(tmp_path: Path) -> None:
    chance = random.Random(19)  # noqa: S311
    source, result = tmp_path / "source", tmp_path / "result"
    whole = safetensors_files.files(SHARDS)
    safetensors_files.write(source, whole)
    project = projects.make(tmp_path / "project")
    projects.write(project.root / "checkpoints/small/checkpoint.yaml", DEFINITION.format(folder=source, result=result))
    workspace = Kitchen(project, tmp_path).workspace()
    names = [*SHARDS, NAME]
    refused = 0
    for _ in range(COUNT):
        name = chance.choice(names)
        (source / name).write_bytes(damaged(whole[name], chance))
        try:
            made = checkpoints.build_checkpoint(workspace, "small")
        except BuilderError as error:
            refused += 1
            assert error.message.isprintable()
            assert not result.exists()
            assert not project.checkpoints_lock.exists()
        else:
            assert sum(map(tensors, made.folder.glob("*.safetensors"))) == made.tensors
            shutil.rmtree(result)
            project.checkpoints_lock.unlink()
        (source / name).write_bytes(whole[name])
    assert refused > COUNT / 2


def tensors(path: Path) -> int:
    """How many tensors the real library reads in a file."""
    with safe_open(path, framework="np") as opened:
        return len([opened.get_slice(name).get_shape() for name in opened.keys()])  # noqa: SIM118
