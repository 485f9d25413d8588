"""The steps, applied to headers: what they give, and the refusals with names."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod

import pytest

from builder.definitions import checkpoint_definition
from builder.lab.checkpoints.tensors import (
    ByteCopy,
    PlannedContent,
    SourceListing,
    StepError,
    apply_step,
    index_of,
    inputs_digest,
    planned_shards,
)
from builder.sources.safetensors_files import Header, HeaderError, StoredTensor
from tests.safetensors_files import SIZES, Specification

BEGIN = """\
description: a test
model: Org/Model
sources: {{{}}}
steps:
"""


def listing(shards: dict[str, Specification], *, listed: set[str] | None = None) -> SourceListing:
    headers = {}
    for path, tensors in shards.items():
        at, stored = 100, []
        for name, (dtype, shape) in tensors.items():
            size = SIZES[dtype] * prod(shape)
            stored.append(StoredTensor(name, dtype, tuple(shape), at, size))
            at += size
        headers[path] = Header(tuple(stored), at, "0" * 64)
    return SourceListing(headers, tuple(sorted(listed or shards)), {"config.json": 2, "README.md": 1, "x.bin": 9})


A = {
    "model-00001-of-00002.safetensors": {"x.weight": ("BF16", [4, 8]), "y.weight": ("BF16", [8]), "z": ("I32", [2])},
    "model-00002-of-00002.safetensors": {"w.weight": ("BF16", [256, 130])},
}
B: dict[str, Specification] = {
    "model.safetensors": {
        "x.weight": ("F8_E4M3", [4, 8]),
        "x.weight_scale_inv": ("F32", [1, 1]),
        "q.weight": ("F8_E4M3", [4, 8]),
        "q.weight_scale_inv": ("F32", [1, 1]),
    },
}
EXTRA: dict[str, Specification] = {"extra.safetensors": {"mtp.a": ("BF16", [2])}}


def apply(*lines: str) -> PlannedContent:
    steps_text = "".join(f"- {line}\n" for line in lines)
    used = [name for name in "ab" if re.search(rf"(take|replace|add): {name}\b", steps_text)]
    named = ", ".join(f"{name}: {{folder: /{name}}}" for name in used)
    definition = checkpoint_definition.parse_checkpoint(BEGIN.format(named) + steps_text, "test", "checkpoint.yaml")
    sources = {"a": listing({**A, **EXTRA}, listed=set(A)), "b": listing(B)}
    return apply_step(definition.steps, sources)


def refusal(*lines: str) -> str:
    with pytest.raises(StepError) as refused:
        apply(*lines)
    return f"{refused.value.number}: {refused.value.message}"


REPLACE = "replace: b, dtype: F8_E4M3, companions: [weight_scale_inv]"


def test_take_gives_the_tensors_of_the_index_and_the_other_files() -> None:
    content = apply("{take: a, expect: 4}")
    assert set(content.tensors) == {"x.weight", "y.weight", "z", "w.weight"}
    assert set(content.files) == {"config.json"}  # no weights of other formats, and a model card of its own
    assert content.effects[0].text == "takes 4 tensors and 1 other files of a"


def test_take_selects_and_renames() -> None:
    content = apply('{take: a, select: ["*.weight"], except: ["y*"], rename: {"*.weight": "model.*.w", z: zz}}')
    assert set(content.tensors) == {"model.x.w", "model.w.w"}


def test_replace_takes_equal_shapes_with_their_companions() -> None:
    content = apply("{take: a}", f"{{{REPLACE}, expect: 1, unmatched: 1}}")
    tensor, scale = content.tensors["x.weight"], content.tensors["x.weight_scale_inv"]
    assert (tensor.dtype, tensor.file.source) == ("F8_E4M3", "b")
    assert (scale.dtype, scale.shard) == ("F32", tensor.shard)
    assert "q.weight" not in content.tensors
    text = "replaces 1 tensors with tensors from b (BF16 → F8_E4M3), with 1 companions; 1 have no counterpart"
    assert content.effects[1].text == text


def test_add_takes_the_names_from_the_file_itself() -> None:
    content = apply("{take: a}", "{add: a, file: extra.safetensors, expect: 1}")
    assert "mtp.a" in content.tensors
    names = [shard.name for shard in planned_shards(content, 10**9)]
    assert names == ["extra.safetensors", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


def test_add_adds_nothing_where_such_tensors_are_there_already() -> None:
    add = '{add: a, file: extra.safetensors, unless: ["mtp.*"], expect: 1}'
    assert apply("{take: a}", add) == replace(
        apply("{take: a}", "{add: a, file: extra.safetensors}"), effects=apply("{take: a}", add).effects
    )
    listed = apply("{take: a, rename: {y.weight: mtp.a}}", add)
    assert set(listed.tensors) == {"x.weight", "mtp.a", "z", "w.weight"}
    assert listed.effects[1].text == "adds nothing from a: 1 such tensors already exist"
    # The file need not exist where the index lists the tensors in another one.
    assert apply("{take: a, rename: {y.weight: mtp.a}}", add.replace("extra", "other")) == listed


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{take: a, expect: 5}"], "0: expected 5 tensors in the selection, found 4: x.weight, y.weight, z, w.weight"),
        (['{take: a, select: ["nothing*"]}'], "0: no tensor of a is selected"),
        (['{take: a, rename: {"?": a, x.weight: z}}'], "0: these tensor names already exist: z"),
        (["{take: a}", "{take: a}"], "1: these tensor names already exist: x.weight, y.weight"),
        (
            ["{take: a}", f"{{{REPLACE}, expect: 144}}"],
            "1: expected 144 tensors with a counterpart, found 1: x.weight",
        ),
        (
            ["{take: a}", f"{{{REPLACE}, unmatched: 0}}"],
            "1: expected 0 tensors without a counterpart, found 1: q.weight",
        ),
        (
            ["{take: a}", "{replace: b, dtype: F8_E4M3, companions: [scale_inv]}"],
            "companions that are missing in b: x.s",
        ),
        (["{take: a}", '{replace: b, select: ["q*"]}'], "1: no selected tensor of b has a counterpart; selected: 2"),
        (
            ["{take: a, rename: {y.weight: q.weight}}", "{replace: b}"],
            "1: tensors with different shapes: q.weight [8] and [4, 8]",
        ),
        (["{take: a}", "{add: a, file: extr.safetensors}"], "a has no file extr.safetensors; did you mean `extra.s"),
        (
            ["{take: a}", "{add: a, file: extra.safetensors, expect: 785}"],
            "1: expected 785 tensors in extra.safetensors, found 1",
        ),
        (["{take: a}", "{add: b, file: model.safetensors}"], "1: these tensor names already exist: x.weight"),
        (
            ["{take: a}", "{config: {a: 1}, file: confg.json}"],
            "1: there is no file confg.json; did you mean `config.js",
        ),
        (["{take: a}", "{verify: {tensors: 5}}"], "1: expected 5 tensors, found 4"),
        (["{take: a}", "{verify: {bytes: 5}}"], "1: expected 5 bytes of tensors, found 66648"),
        (
            ["{take: a}", '{verify: {counts: {"*.weight": 2}, dtypes: {I32: 2}}}'],
            "1: expected 2 tensors with a name like *.weight, found 3; expected 2 tensors of type I32, found 1",
        ),
        (
            ["{take: a}", "{verify: {shapes: {x.weight: [4, 9]}}}"],
            "1: these tensors do not have the shape [4, 9]: x.weight [4, 8]",
        ),
        (["{take: a}", '{verify: {shapes: {"v*": [4]}}}'], "1: no tensor has a name like v*"),
    ],
)
def test_what_cannot_be_done_is_said_with_names(lines: list[str], message: str) -> None:
    assert message in refusal(*lines)


def test_tensors_that_lie_beside_each_other_are_one_copy() -> None:
    first, second = planned_shards(apply("{take: a}"), 10**9)
    assert [(piece.begin, piece.size) for piece in first.pieces if isinstance(piece, ByteCopy)] == [(100, 88)]
    assert second.size == len(second.beginning) + 256 * 130 * 2


def test_a_replaced_tensor_stays_in_its_place() -> None:
    first, _ = planned_shards(apply("{take: a}", f"{{{REPLACE}}}"), 10**9)
    assert first.names == ("x.weight", "x.weight_scale_inv", "y.weight", "z")
    assert [piece.file.source for piece in first.pieces] == ["b", "a"]


def test_files_of_weights_are_divided_by_size() -> None:
    shards = planned_shards(apply("{take: a}"), 80)
    assert [shard.name for shard in shards] == [f"model-{n:05}-of-00003.safetensors" for n in (1, 2, 3)]
    assert [len(shard.names) for shard in shards] == [2, 1, 1]


def test_one_file_needs_no_index() -> None:
    content = apply("{take: b}")
    shards = planned_shards(content, 10**9)
    assert [shard.name for shard in shards] == ["model.safetensors"]
    assert index_of(shards, content) is None


def test_an_added_file_takes_no_name_that_is_made() -> None:
    content = apply('{take: a, select: ["y*"]}', "{add: b, file: model.safetensors}")
    with pytest.raises(
        HeaderError, match=r"the added file model\.safetensors has the name of a file that the build makes"
    ):
        planned_shards(content, 10**9)


def test_the_digest_is_over_what_decides_the_bytes() -> None:
    content = apply("{take: a}")
    shards = planned_shards(content, 10**9)
    sources = {file: "x" for shard in shards for file in shard.sources}
    digest = inputs_digest(shards, content, sources, "")
    assert digest == inputs_digest(shards, content, dict(reversed(sources.items())), "")
    others = [
        inputs_digest(shards[:1], content, sources, ""),
        inputs_digest(shards, content, dict.fromkeys(sources, "y"), ""),
        inputs_digest(shards, content, sources, "other"),
        inputs_digest(shards, replace(content, patches={"config.json": ({"a": 1},)}), sources, ""),
    ]
    assert len({digest, *others}) == 5
