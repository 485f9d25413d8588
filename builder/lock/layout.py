"""The keys of images.lock: what each holds, a lock as the data of its file, and the JSON Schema.

The models come first in the file, then the numbered images, then what the next builds are made from. Reading, writing
and the schema all come from the records below.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.lock import closures
from builder.lock.closures import LockedPackages
from builder.lock.kinds import (
    ADDRESS,
    COMMIT_START,
    DEFINITION,
    FLAG,
    IMAGE_NAME,
    INSTANCE,
    LINE,
    MODEL,
    MOMENT,
    NUMBER,
    PART,
    PLATFORM,
    RECIPE,
    REF,
    REFERENCE,
    REPOSITORY,
    REVISION,
    TEXT,
    TOKEN,
    VERSION,
    Data,
    Key,
    Need,
    Schema,
    ValueKind,
    WrongError,
    choice,
    list_of,
    mapping,
    record,
    scalar,
    whole,
)
from builder.lock.model import VERSION as FORMAT
from builder.lock.model import (
    Adoption,
    BasePin,
    GitPin,
    ImageName,
    IncludedPin,
    Lock,
    Model,
    NumberedImage,
    Pairing,
    Pins,
    PullPin,
    PythonPin,
    Repository,
    SourcePin,
    Version,
    WheelPin,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.lock.closures import Load

_POSITIVE = whole(1)
_COMMIT = scalar("[0-9a-f]{40}", "a commit of 40 hex digits")
_TIME = scalar(
    "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?Z",
    "a time in UTC such as `2026-11-20T22:00:00Z`",
)
_SHA256 = scalar("[0-9a-f]{64}", "a SHA-256 of 64 hex digits")
_DIGEST = scalar("sha256:[0-9a-f]{64}", "a digest such as `sha256:` and 64 hex digits")
_NOTE = replace(TEXT, empty="")
_STATUS = choice("untested", "good", "bad")


# The models: `image` serves the model now. Each image that serves it, or did before, has a line.

_PAIRING = record(
    dict,
    {
        "status": Key(_STATUS, "how the model does on this image", Need.WRITTEN),
        "since": Key(replace(_TIME, empty=""), "when the image began to serve the model, for the last time"),
        "recipe": Key(RECIPE, "the recipe of the pairing"),
        "revision": Key(REVISION, "the revision of the model, or of a checkpoint: NAME@REVISION"),
        "note": Key(_NOTE, "what was seen"),
    },
)


def _model(image: ImageName, rest: dict[ImageName, dict[str, Any]]) -> Model:
    pairings = {name: Pairing(name, **fields) for name, fields in rest.items()}
    now = pairings.pop(image, Pairing(image))
    return Model(now, tuple(pairings.values()))


def _model_parts(model: Model) -> dict[str, Any]:
    pairings = (model.pairing, *model.previous)
    return {"image": model.pairing.image, "rest": {pairing.image: pairing for pairing in pairings}}


_MODEL = record(
    _model,
    {"image": Key(IMAGE_NAME, "the image that serves the model now", Need.YES)},
    rest=(IMAGE_NAME, _PAIRING),
    parts=_model_parts,
)


# The numbered images of a repository.
_PINNED_VERSION = scalar(
    f"(?:{VERSION.pattern})(?: (?:{COMMIT_START.pattern}))?",
    "a version such as `0.32.0+cpu`, and the first digits of its commit",
    convert=lambda text: Version(*text.split(" ")),
    types=("string", "number", "boolean"),
)
_PINNED_VERSION = replace(
    _PINNED_VERSION, write=lambda version: " ".join(filter(None, (version.version, version.commit)))
)
_HOLDS = record(
    dict,
    {
        "base": Key(replace(REFERENCE, empty=""), "the base image, and the first digits of its digest"),
        "transformers": Key(replace(VERSION, empty=""), "the version of transformers"),
    },
    rest=(PART, _PINNED_VERSION),
    rest_after="base",
    parts=lambda holds: holds,
)
_HOLDS_OR_NOTHING = replace(_HOLDS, empty={"base": "", "transformers": "", "rest": {}})
_ADOPTION = record(
    Adoption,
    {
        "image": Key(REFERENCE, "its name or id in the engine when it got its number", Need.YES),
        "digests": Key(list_of(REFERENCE), "the names by which registries may have it"),
    },
)


def _number(holds: Any = None, **fields: Any) -> NumberedImage:
    members = dict(holds or {})
    versions = members.pop("rest", {})
    return NumberedImage(**{"definition": "", "input_hash": "", "versions": versions, **members, **fields})


def _number_parts(image: NumberedImage) -> dict[str, Any]:
    versions = dict(sorted(image.versions.items(), reverse=True))  # vLLM first
    return {**vars(image), "holds": {"base": image.base, "transformers": image.transformers, "rest": versions}}


_NUMBER = record(
    _number,
    {
        "status": Key(_STATUS, "how the image does", Need.WRITTEN),
        "built": Key(_TIME, "when it was built, or got its number as it was", Need.YES),
        "definition": Key(DEFINITION, "the image definition", Need.UNLESS_ADOPTED),
        "adopted": Key(_ADOPTION, "the image of others that got this number as it was"),
        "platform": Key(PLATFORM, "linux/arm64 or linux/amd64", Need.YES),
        "size": Key(whole(0), "bytes, as the engine counts them", Need.YES),
        "pinned": Key(FLAG, "true where `prune` keeps it"),
        "pruned": Key(_TIME, "when it was removed on purpose"),
        "note": Key(_NOTE, "what was seen"),
        "holds": Key(_HOLDS_OR_NOTHING, "the base image and the versions in it, each with its commit if known"),
        "recipe": Key(RECIPE, "the recipe that it was built from"),
        "mods": Key(mapping(TOKEN, PART), "the baked mods: by name, the first digits of a hash of their content"),
        "digest": Key(_DIGEST, "its digest in the registry of builder.yaml, where it was pushed"),
        "builder": Key(INSTANCE, "the `docker buildx` instance that built it, where not the engine itself"),
        "gpu": Key(TEXT, "the GPU on which it passed its checks, where it was built beside one"),
        "unchecked": Key(mapping(TEXT, PART), "the checks that were left out when it was built: by name, why"),
        "rebuilt": Key(TEXT, "when an equivalent image that was built again took its place, and what differed"),
        "content": Key(
            TOKEN, "the identity of its content: the same on every engine that holds it", Need.YES, "fingerprint"
        ),
        "inputs": Key(
            TOKEN,
            "a hash over all that went in; a build with the same one is not made again",
            Need.UNLESS_ADOPTED,
            "input_hash",
        ),
    },
    parts=_number_parts,
)


def _repository(
    rest: dict[int, NumberedImage], current: int | None = None, following: int = 1, previous: tuple[int, ...] = ()
) -> Repository:
    numbers = dict(sorted(rest.items()))
    return Repository(max(following, max(numbers, default=0) + 1), current, previous, numbers)


def _repository_parts(repository: Repository) -> dict[str, Any]:
    above = max(repository.numbers, default=0) + 1
    return {
        "current": repository.current,
        "following": repository.next if repository.next > above else None,
        "previous": repository.previous,
        "rest": dict(sorted(repository.numbers.items(), reverse=True)),
    }


_REPOSITORY = record(
    _repository,
    {
        "latest": Key(_POSITIVE, "the number in use, which the tag `latest` names", field="current"),
        "next": Key(
            _POSITIVE, "the number of the next build, where it is not the one after the highest", field="following"
        ),
        "before": Key(list_of(_POSITIVE), "the numbers that were in use before, the latest first", field="previous"),
    },
    rest=(NUMBER, _NUMBER),
    parts=_repository_parts,
)


# What the next build of a definition on a platform is made from. The packages of a closure stand in a file, of which
# the closure has the digest. While the data are read, the digest has the place of the packages.

_PULL = record(
    PullPin,
    {
        "number": Key(_POSITIVE, "the number of the pull request", Need.YES),
        "head": Key(_COMMIT, "its last commit when it was pinned", Need.YES),
        "sha256": Key(_SHA256, "the SHA-256 of its vendored patch, which the project keeps as a file", Need.YES),
        "base": Key(replace(REF, empty=""), "the branch that it was opened for, where the definition names one"),
    },
)
_GIT = record(
    GitPin,
    {
        "asked": Key(REF, "the branch, tag or commit that was asked for", Need.YES, "requested"),
        "version": Key(VERSION, "what the repository's tags make of the commit", Need.YES),
        "commit": Key(_COMMIT, "the commit that it stood for", Need.YES),
        "date": Key(_TIME, "when the commit was made", Need.YES),
        "git": Key(ADDRESS, "the address of the repository, without a login", Need.YES),
        "pulls": Key(list_of(_PULL), "the pull requests on top, in this order"),
    },
)
_WHEEL = record(
    WheelPin,
    {
        "asked": Key(
            LINE, "the requirement, such as vllm==0.32.0, and `from URL` for an index of its own", Need.YES, "requested"
        ),
        "version": Key(VERSION, "the version that it stood for", Need.YES),
        "commit": Key(COMMIT_START, "the commit that the wheel names"),
    },
)
_INCLUDED = record(
    IncludedPin,
    {
        "base": Key(REFERENCE, "the base image that it comes with, as resolved", Need.YES),
        "version": Key(VERSION, "its version in there", Need.YES),
        "commit": Key(COMMIT_START, "its commit, where the image names it"),
    },
)


def _read_source(data: Data) -> SourcePin:
    keys = data if isinstance(data, dict) else {}
    pin: SourcePin = (_GIT if "git" in keys else _INCLUDED if "base" in keys else _WHEEL).read(data)
    return pin


def _write_source(pin: SourcePin) -> dict[str, Any]:
    kind = _GIT if isinstance(pin, GitPin) else _INCLUDED if isinstance(pin, IncludedPin) else _WHEEL
    block: dict[str, Any] = kind.write(pin)
    return block


_SOURCE_SCHEMA: Schema = {
    "if": {"type": "object", "required": ["git"]},
    "then": _GIT.schema,
    "else": {
        "if": {"type": "object", "required": ["base"]},
        "then": _INCLUDED.schema,
        "else": _WHEEL.schema,
    },
}


_BASE = record(
    BasePin,
    {
        "asked": Key(REFERENCE, "as the definition says it, such as debian:bookworm-slim", Need.YES, "requested"),
        "resolved": Key(
            REFERENCE, "the digest in the registry, or local:sha256:… of an image that only the engine has", Need.YES
        ),
        "created": Key(replace(MOMENT, empty=""), "when a base that brings vLLM was made"),
        "packages": Key(
            replace(_DIGEST, empty=()), "the digest of base-packages.PLATFORM.txt: what a base that brings vLLM holds"
        ),
    },
)
_CLOSURE = record(
    PythonPin,
    {
        "file": Key(_DIGEST, "the digest of the file with the packages", Need.YES, "packages"),
        "newest": Key(MOMENT, "when the newest file among them was uploaded; the date of the image", Need.YES),
        "as_of": Key(replace(MOMENT, empty=""), "nothing was taken that was uploaded later; else there is no limit"),
        "undated": Key(list_of(LINE), "the packages whose index gives no upload dates: of any age"),
        "asked": Key(list_of(LINE), "the requirements that were asked for", Need.YES, "requested"),
    },
)


def _pins(rest: dict[str, SourcePin], **fields: Any) -> Pins:
    return Pins(sources=rest, **fields)


_PINS = record(
    _pins,
    {
        "base": Key(_BASE, "the base image"),
        "packages": Key(_CLOSURE, "the Python packages in the image: packages.PLATFORM.txt", field="python"),
        "build-packages": Key(
            _CLOSURE,
            "the Python packages that it takes to build the sources: build-packages.PLATFORM.txt",
            field="build",
        ),
    },
    rest=(PART, ValueKind(_read_source, _SOURCE_SCHEMA, _write_source)),
    rest_after="base",
    parts=lambda pins: {**vars(pins), "rest": dict(sorted(pins.sources.items(), reverse=True))},
)
_BUILD_NAME = scalar(
    f"(?:{DEFINITION.pattern}) (?:{PLATFORM.pattern})",
    "a definition and a platform, such as `tf5 linux/arm64`",
)

FILE = record(
    dict,
    {
        "version": Key(
            scalar(str(FORMAT), f"`{FORMAT}`", {"const": FORMAT}, int),
            "the format of the file; another one is refused",
            Need.YES,
        ),
        "models": Key(mapping(_MODEL, MODEL), "the image that serves each model, by Hugging Face id"),
        "images": Key(mapping(_REPOSITORY, REPOSITORY), "the numbered images, by repository"),
        "builds": Key(mapping(_PINS, _BUILD_NAME), "what the next build is made from: by definition and platform"),
    },
    parts=dict,
)
"""The whole file, as a dict."""


# A lock as the data of its file, and back.


def lock_of(data: Data, load: Load) -> Lock:
    """Converts the data of a file to the lock; ``load`` gives the content of a file with packages, once it is asked
    for. Raises WrongError with the path to all that is wrong."""
    file = FILE.read(data)
    lock = Lock(images=file.get("images", {}), models=file.get("models", {}))
    if problems := list(lock.broken_rules()):
        raise WrongError(problems)
    for name, pins in file.get("builds", {}).items():
        definition, _, platform = name.rpartition(" ")
        lock = lock.with_pins(definition, platform, _with_files(pins, definition, platform, load))
    return lock


def _with_files(pins: Pins, definition: str, platform: str, load: Load) -> Pins:
    """The pins with files of packages in place of their digests."""
    return _with_packages(
        pins, lambda part, pin: LockedPackages(closures.path_of(definition, platform, part), pin.packages, load)
    )


def _with_packages(pins: Pins, packages: Callable[[str, Any], Any]) -> Pins:
    """The pins with other packages in each part that has a file."""
    changed = {part: replace(pin, packages=packages(part, pin)) for part, pin in closures.of_pins(pins)}
    return replace(
        pins,
        base=changed.get("base-packages", pins.base),
        python=changed.get("packages"),
        build=changed.get("build-packages"),
    )


def data_of(lock: Lock) -> dict[str, Any]:
    """Converts a lock to the data of its file: dicts and lists in its order, numbers and truth values as they are."""
    builds = {
        f"{definition} {platform}": _with_digests(pins, definition, platform)
        for definition, platforms in lock.pins.items()
        for platform, pins in platforms.items()
    }
    sections = {"version": FORMAT, "models": lock.models, "images": lock.images, "builds": builds}
    data: dict[str, Any] = FILE.write(sections)
    return data


def _with_digests(pins: Pins, definition: str, platform: str) -> Pins:
    return _with_packages(pins, partial(closures.digest_of, definition, platform))


# lock.schema.json, made from the records: ``make reference`` writes it (``python -m builder.lock.layout``).

PATH = Path(__file__).parent / "lock.schema.json"
_WIDTH = 120


def text() -> str:
    """The JSON Schema of images.lock."""
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "images.lock: which image serves each model, what each image is, and what the next build is made from",
    }
    return _pretty({**head, **FILE.schema}, "", 0) + "\n"


def _pretty(value: Any, indent: str, before: int) -> str:
    """``value`` on one line where it fits below ``before`` characters, else with each of its parts on its own."""
    import json

    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict) or not value or before + len(line) <= _WIDTH:
        return line
    deeper = indent + "  "
    parts = []
    for key, part in value.items():
        start = f"{deeper}{json.dumps(key)}: "
        parts.append(start + _pretty(part, deeper, len(start) + 1))
    return "{\n" + ",\n".join(parts) + f"\n{indent}}}"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
