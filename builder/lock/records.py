"""The keys of images.lock, in the order of the file, each with the kind of its value and a description.

Reading, writing and the JSON Schema all come from here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from builder.lock.block_kinds import list_of, mapping, needed, needed_unless, numbered, optional, record
from builder.lock.model import VERSION as FORMAT
from builder.lock.model import Adoption, NumberedImage, Version
from builder.lock.name_kinds import (
    ADDRESS,
    COMMIT_START,
    DEFINITION,
    INSTANCE,
    LINE,
    MODEL,
    MOMENT,
    PART,
    PLATFORM,
    RECIPE,
    REF,
    REFERENCE,
    REPOSITORY,
    REVISION,
    TOKEN,
    VERSION,
    or_nothing,
)
from builder.lock.pins import BasePin, GitPin, IncludedPin, LockedPackage, Pins, PullPin, PythonPin, SourcePin, WheelPin
from builder.lock.value_kinds import FLAG, TEXT, ValueKind, choice, constant, matching, whole

if TYPE_CHECKING:
    from builder.lock.lines import Data
    from builder.lock.value_kinds import Schema

_POSITIVE = whole(1, name="positive")
_COMMIT = matching("[0-9a-f]{40}", "a commit of 40 hex digits", name="commit")
_TIME = matching(
    "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?Z",
    "a time in UTC such as `2026-11-20T22:00:00Z`",
    name="time",
)
_COMMIT_OR_NOTHING = or_nothing(COMMIT_START)
_SHA256 = matching("[0-9a-f]{64}", "a SHA-256 of 64 hex digits")
_DIGEST = matching("sha256:[0-9a-f]{64}", "a digest such as `sha256:` and 64 hex digits")
_NOTE = replace(TEXT, empty="")
_MOMENT = replace(MOMENT, empty="")
_RECIPE = or_nothing(RECIPE)
_STATUS = choice("untested", "good", "bad", name="status")

_PULL = record(
    PullPin,
    {
        "number": needed(_POSITIVE, "the number of the pull request"),
        "head": needed(_COMMIT, "its last commit when it was pinned"),
        "sha256": needed(_SHA256, "the SHA-256 of its vendored patch, which the project keeps as a file"),
        "base": optional(replace(REF, empty=""), "the branch that it was opened for, where the definition names one"),
    },
    name="pull",
)
_GIT = record(
    GitPin,
    {
        "git": needed(ADDRESS, "the address of the repository, without a login"),
        "asked": needed(REF, "the branch, tag or commit that was asked for", "requested"),
        "commit": needed(_COMMIT, "the commit that it stood for"),
        "version": needed(VERSION, "what the repository's tags make of the commit"),
        "date": needed(_TIME, "when the commit was made"),
        "pulls": optional(list_of(_PULL), "the pull requests on top, in this order"),
    },
    name="git",
)
_WHEEL = record(
    WheelPin,
    {
        "asked": needed(
            LINE, "the requirement, such as vllm==0.32.0, and `from URL` for an index of its own", "requested"
        ),
        "version": needed(VERSION, "the version that it stood for"),
        "commit": optional(_COMMIT_OR_NOTHING, "the commit that the wheel names, where it names one", always=True),
    },
    name="wheel",
)


_INCLUDED = record(
    IncludedPin,
    {
        "base": needed(REFERENCE, "the base image that it comes with, as resolved"),
        "version": needed(VERSION, "its version in there"),
        "commit": optional(_COMMIT_OR_NOTHING, "its commit, where the image names it", always=True),
    },
    name="included",
)


def _read_source(data: Data) -> SourcePin:
    keys = data if isinstance(data, dict) else {}
    pin: SourcePin = (_GIT if "git" in keys else _INCLUDED if "base" in keys else _WHEEL).read(data)
    return pin


def _write_source(pin: SourcePin) -> dict[str, Any]:
    kind = _GIT if isinstance(pin, GitPin) else _INCLUDED if isinstance(pin, IncludedPin) else _WHEEL
    block: dict[str, Any] = kind.write(pin)
    return block


def _describe_source(definitions: dict[str, Schema]) -> Schema:
    return {
        "if": {"type": "object", "required": ["git"]},
        "then": _GIT.schema(definitions),
        "else": {
            "if": {"type": "object", "required": ["base"]},
            "then": _INCLUDED.schema(definitions),
            "else": _WHEEL.schema(definitions),
        },
    }


_SOURCE = ValueKind(_read_source, _describe_source, _write_source, name="source")

_PACKAGE_LINES = mapping(
    matching(
        r"[A-Za-z0-9][A-Za-z0-9.!+_~-]*( sha256:[0-9a-f]{64})*",
        "a version and `sha256:` hashes of 64 hex digits",
        name="package",
        scalar=True,
    ),
    PART,
)


def _read_packages(data: Data) -> tuple[LockedPackage, ...]:
    lines: dict[str, str] = _PACKAGE_LINES.read(data)
    packages = []
    for name in sorted(lines):
        version, *hashes = lines[name].split(" sha256:")
        packages.append(LockedPackage(name, version, tuple(hashes)))
    return tuple(packages)


def _write_packages(packages: tuple[LockedPackage, ...]) -> dict[str, str]:
    return {
        package.name: " ".join((package.version, *(f"sha256:{digest}" for digest in package.hashes)))
        for package in sorted(packages, key=lambda package: package.name)
    }


_PACKAGES = ValueKind(_read_packages, _PACKAGE_LINES.describe, _write_packages, empty=())

_BASE = record(
    BasePin,
    {
        "asked": needed(REFERENCE, "as the definition says it, such as debian:bookworm-slim", "requested"),
        "resolved": needed(
            REFERENCE, "the digest in the registry, or local:sha256:… of an image that only the engine has"
        ),
        "created": optional(_MOMENT, "when a base that brings vLLM was made"),
        "packages": optional(_PACKAGES, "by name: the version of each Python package in a base that brings vLLM"),
    },
    name="base",
)

_PYTHON = record(
    PythonPin,
    {
        "asked": needed(list_of(LINE), "the requirements that were asked for", "requested"),
        "newest": needed(MOMENT, "when the newest file among them was uploaded; the date of the image"),
        "as_of": optional(_MOMENT, "nothing was taken that was uploaded later; no limit where it is absent"),
        "undated": optional(list_of(LINE), "the packages whose index gives no upload dates: of any age"),
        "packages": needed(
            _PACKAGES,
            "by name: the version, and sha256:… of every file that suits the platform",
        ),
    },
    name="python",
)
_PINS = record(
    Pins,
    {
        "base": optional(_BASE, "the base image"),
        "sources": optional(mapping(_SOURCE, PART), "vLLM and FlashInfer, each from git, as a wheel or with the base"),
        "python": optional(_PYTHON, "the Python packages in the image"),
        "build": optional(_PYTHON, "the Python packages that it takes to build the sources from git"),
    },
    name="pins",
)

_VERSION = record(
    Version,
    {
        "version": needed(VERSION, "the version in the image"),
        "commit": optional(_COMMIT_OR_NOTHING, "its commit, where it is known", always=True),
    },
    name="version",
)
_PAIRING = record(
    dict,
    {
        "sequence": needed(
            _POSITIVE, "its place among the model's pairings: the highest serves, the one below did before"
        ),
        "recipe": optional(_RECIPE, "the recipe of the pairing"),
        "revision": optional(or_nothing(REVISION), "the revision of the model, or of a checkpoint: NAME@REVISION"),
        "status": optional(_STATUS, "how the model does on this image"),
        "note": optional(_NOTE, "what was seen"),
    },
    parts=dict,
    name="pairing",
)
_ADOPTION = record(
    Adoption,
    {
        "image": needed(REFERENCE, "its name or id in the engine when it got its number"),
        "digests": optional(list_of(REFERENCE), "the names by which registries may have it"),
    },
    name="adoption",
)


class NumberBlock(NamedTuple):
    """A number's block: its record, its sequence among what was current, and by model the pairing with it, as the
    fields of a Pairing and its sequence."""

    image: NumberedImage
    sequence: int | None
    models: dict[str, dict[str, Any]]


def _number_block(sequence: int | None = None, models: Any = None, **fields: Any) -> NumberBlock:
    return NumberBlock(NumberedImage(**{"definition": "", "input_hash": "", **fields}), sequence, models or {})


def _number_parts(block: NumberBlock) -> dict[str, Any]:
    return {**vars(block.image), "sequence": block.sequence, "models": block.models}


_IMAGE = record(
    _number_block,
    {
        "built": needed(_TIME, "when it was built, or got its number as it was"),
        "sequence": optional(
            _POSITIVE, "its place among what was current: the highest is current, the one below was before"
        ),
        "definition": needed_unless("adopted", DEFINITION, "the image definition"),
        "adopted": optional(_ADOPTION, "the image of others that got this number as it was"),
        "platform": needed(PLATFORM, "linux/arm64 or linux/amd64"),
        "pinned": optional(FLAG, "true where `prune` keeps it"),
        "fingerprint": needed(TOKEN, "the identity of its content: the same on every engine that holds it"),
        "input_hash": needed_unless(
            "adopted", TOKEN, "one hash over all that went in; a build with the same one is not made again"
        ),
        "pruned": optional(_TIME, "when it was removed on purpose"),
        "size": needed(whole(0), "bytes, as the engine counts them"),
        "status": optional(_STATUS, "how the image does"),
        "note": optional(_NOTE, "what was seen"),
        "recipe": optional(_RECIPE, "the recipe that it was built from"),
        "digest": optional(_DIGEST, "its digest in the registry of builder.yaml, where it was pushed"),
        "builder": optional(INSTANCE, "the `docker buildx` instance that built it, where not the engine itself"),
        "gpu": optional(TEXT, "the GPU on which it passed its checks, where it was built beside one"),
        "unchecked": optional(mapping(TEXT, PART), "the checks that were left out when it was built: by name, why"),
        "rebuilt": optional(TEXT, "when an equivalent image that was built again took its place, and what differed"),
        "versions": optional(mapping(_VERSION, PART), "what is in it, by name"),
        "mods": optional(mapping(TOKEN, PART), "the baked mods: by name, the hash of what each holds"),
        "models": optional(mapping(_PAIRING, MODEL), "the models that it serves, or served before, by Hugging Face id"),
    },
    parts=_number_parts,
    name="image",
)
_REPOSITORY = record(
    dict,
    {
        "next": optional(_POSITIVE, "the number of the next build, where it is not the one after the highest"),
        "numbers": optional(numbered(_IMAGE), "the images, by number", always=True),
    },
    parts=dict,
    name="repository",
)

FILE = record(
    dict,
    {
        "version": needed(constant(FORMAT), "the format of the file; a newer one is refused"),
        "definitions": optional(
            mapping(mapping(_PINS, PLATFORM), DEFINITION),
            "what each image definition is pinned to: by definition, then by platform",
        ),
        "images": optional(mapping(_REPOSITORY, REPOSITORY), "the numbered images, by repository"),
    },
    parts=dict,
)
"""The whole file. A repository, and the file itself, are dicts of what stands at their keys."""
