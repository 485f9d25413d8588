"""Headers of safetensors files: what the real library writes is read, all else is refused with its reason."""

from __future__ import annotations

import json
import os
import random
import re
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from builder.sources.safetensors_files import (
    LARGEST,
    MOST_TENSORS,
    PREFIX,
    Header,
    HeaderError,
    length,
    parse_header,
    written,
)
from tests import safetensors_files

COUNT = int(os.environ.get("BUILDER_FUZZ", "1000"))
GOOD = {"a.weight": ("BF16", [4, 8]), "a.scale": ("F32", [4]), "b": ("I32", [])}


def read(content: bytes) -> Header:
    count = length(content[:PREFIX], len(content))
    return parse_header(content[PREFIX : PREFIX + count], len(content))


def file(tensors: dict[str, Any], data: int, **more: Any) -> bytes:
    return safetensors_files.raw({**more, **tensors}) + b"\0" * data


def tensor(dtype: str = "U8", shape: Any = (4,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def refusal(content: bytes) -> str:
    with pytest.raises(HeaderError) as refused:
        read(content)
    return str(refused.value)


def test_what_the_real_library_writes_is_read() -> None:
    content = save({"w": np.arange(12, dtype=np.float32).reshape(3, 4), "e": np.zeros((0, 4), np.int8)})
    tensors = {each.name: each for each in read(content).tensors}
    weight = tensors["w"]
    assert (weight.dtype, weight.shape, tensors["e"].size) == ("F32", (3, 4), 0)
    values = np.frombuffer(content, np.float32, 12, weight.begin)
    assert values.tolist() == list(range(12))


def test_the_real_library_reads_what_is_written() -> None:
    beginning, begins = written([("a", "F32", (2,)), ("ü", "I8", (3,)), ("none", "I8", (0,))])
    content = beginning + np.array([1, 2], np.float32).tobytes() + bytes((1, 2, 3))
    loaded = load(content)
    assert loaded["a"].tolist() == [1, 2]
    assert loaded["ü"].tolist() == [1, 2, 3]
    assert loaded["none"].shape == (0,)
    assert begins == (len(beginning), len(beginning) + 8, len(beginning) + 11)
    assert len(beginning) % 8 == 0
    assert json.loads(content[8 : len(beginning)])["__metadata__"] == {"format": "pt"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it has 0 bytes: too few for a safetensors file"),
        (b"\1\0\0\0\0\0\0\0x", "its header has only 1 bytes"),
        (
            (100_000_000).to_bytes(8, "little") + b"{}",
            "its header would have 100,000,000 bytes, but at most 25,000,000",
        ),
        ((1 << 63).to_bytes(8, "little") + b"{}", "its header would have"),
        ((50).to_bytes(8, "little") + b"{}", "should have 50 bytes, but the file has only 10: the file was truncated"),
        (safetensors_files.raw(b"[1]"), "its header is not a JSON object"),
        (safetensors_files.raw(b'{"a": '), "its header is not JSON"),
        (safetensors_files.raw(b'{"a": \xff}'), "its header is not JSON"),
        (safetensors_files.raw(b'{"a":' + b"[" * 100_000), "its header is not JSON"),
        (safetensors_files.raw(b'{"a": NaN}'), "its header contains NaN, which is not valid JSON"),
        (safetensors_files.raw(b'{"a": 1, "a": 2}'), "its header has `a` twice"),
        (safetensors_files.raw(b'{"a": {"dtype": "U8", "dtype": "I8"}}'), "its header has `dtype` twice"),
        (file({"a": 1}, 4), "`a` must have exactly dtype, shape and data_offsets"),
        (file({"a": {**tensor(), "more": 1}}, 4), "`a` must have exactly"),
        (file({"a": tensor("Q4")}, 4), "`a` has an unknown dtype: Q4"),
        (file({"a": {**tensor(), "dtype": [1]}}, 4), "`a` has an unknown dtype"),
        (file({"a": tensor(shape=(-4,))}, 4), "the shape of `a` is not a list of whole numbers"),
        (file({"a": tensor(shape=(True, 4))}, 4), "the shape of `a` is not a list of whole numbers"),
        (file({"a": tensor(shape=(1 << 60, 1 << 60))}, 4), "the shape of `a` is not a list"),
        (file({"a": tensor(shape=(1 << 50, 1 << 50))}, 4), "`a` is U8"),
        (file({"a": tensor(offsets=(4, 0))}, 4), "the data_offsets of `a` are not a start and an end"),
        (file({"a": tensor(offsets=(0, 4, 4))}, 4), "the data_offsets of `a` are not a start and an end"),
        (file({"a": tensor(shape=(5,))}, 4), "`a` is U8 [5]: it needs 5 bytes, but has 4"),
        (file({"a": tensor("BF16")}, 4), "`a` is BF16 [4]: it needs 8 bytes, but has 4"),
        (file({"a": tensor(), "b": tensor(offsets=(2, 6))}, 6), "the bytes of `b` overlap the previous tensor"),
        (file({"a": tensor(), "b": tensor(offsets=(6, 10))}, 10), "`b` leave a gap after the previous tensor"),
        (file({"a": tensor()}, 3), "but the file ends at 75: the file was truncated"),
        (file({"a": tensor()}, 5), "but the file ends at 77: more bytes follow the tensors"),
        (file({"": tensor()}, 4), "'' is not a valid tensor name"),
        (safetensors_files.raw(b'{"\\ud800": {}}'), "'\\ud800' is not a valid tensor name"),
        (file({"a": tensor()}, 4, __metadata__={"format": 1}), "its __metadata__ does not map names to strings"),
    ],
)
def test_a_damaged_file_is_refused_with_the_reason(content: bytes, reason: str) -> None:
    assert reason in refusal(content)


def damaged(content: bytes, chance: random.Random) -> bytes:
    """``content`` after one to three accidents."""
    data = bytearray(content)
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(data) or 1)
        match chance.randrange(5):
            case 0:
                data[place : place + 1] = bytes((chance.randrange(256),))
            case 1:
                del data[place : place + chance.choice((1, 2, 8, 1000))]
            case 2:
                data[place:place] = chance.choice((b"{", b'"', b"[", b"9" * 400, b"\0", b',"a":{}', b"-", b"e9"))
            case 3:
                end = min(len(data), place + chance.randint(1, 40))
                data[end:end] = data[place:end]
            case _:
                data[:8] = chance.choice((0, 1, 7, len(data), 1 << 24, 1 << 40, (1 << 64) - 1)).to_bytes(8, "little")
    return bytes(data)


def test_no_damage_brings_anything_but_a_reason_or_the_same_tensors() -> None:
    chance = random.Random(19)  # noqa: S311
    content = safetensors_files.encoded(GOOD)
    refused = 0
    for _ in range(COUNT):
        changed = damaged(content, chance)
        try:
            tensors = read(changed).tensors
        except HeaderError as error:
            refused += 1
            assert str(error).isprintable()
            continue
        # What is taken accounts for every byte of the file.
        assert sum(each.size for each in tensors) == len(changed) - 8 - int.from_bytes(changed[:8], "little")
    assert refused > COUNT * 0.5


@pytest.mark.slow
def test_a_name_that_is_there_twice_among_many_is_found_in_one_pass() -> None:
    """In time that grows with the square of the names this would take hours."""
    names = [f"t{number}" for number in range(MOST_TENSORS - 1)]
    entry = json.dumps(tensor(shape=(0,), offsets=(0, 0)))
    text = ",".join(f'"{name}":{entry}' for name in [*names, names[-1]])
    content = f"{{{text}}}".encode()
    assert "has `t99998` twice" in refusal(len(content).to_bytes(8, "little") + content)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("piece", "said"),
    [
        ('"{number}":0', "names, but at most 500,000 are read"),
        ('"{number}":{{"a":0}}', "tensors, but at most 100,000 are read"),
        ('"a":[{number},[],{{}},[],{{}},[],{{}},[],{{}},[],{{}},[],{{}},[]]', "values, but at most 3,000,000 are read"),
    ],
)
def test_more_than_any_model_has_is_told_with_its_figure(piece: str, said: str) -> None:
    count = {"names": 1_600_000, "tensors": 150_000, "values": 200_000}[said.partition(",")[0]]
    text = ",".join(piece.format(number=number) for number in range(count))
    content = f"{{{text}}}".encode()
    assert len(content) < LARGEST
    assert re.search(rf"its header has [0-9,]+ {said}", refusal(len(content).to_bytes(8, "little") + content))
