"""The keys of images.lock: what each holds, a lock as the data of its file, and the JSON Schema.

The models come first in the file, then the numbered images, then what the next builds are made from. Reading, writing
and the schema all come from the records below.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.lock import closures, kinds, model
from builder.lock.closures import LockedPackages
from builder.lock.kinds import Schema, ValueKind, WrongError, list_of, mapping, record, scalar, whole
from builder.lock.model import ImageName, Lock, Model, NumberedImage, Pairing, Pins, Repository, Version

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.lock.closures import Load
    from builder.lock.kinds import Data

_COMMIT = scalar("[0-9a-f]{40}", "a commit of 40 hex digits")
_TIME = scalar(
    "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?Z",
    "a time in UTC such as `2026-11-20T22:00:00Z`",
)
_SHA256 = scalar("[0-9a-f]{64}", "a SHA-256 of 64 hex digits")
_DIGEST = scalar("sha256:[0-9a-f]{64}", "a digest such as `sha256:` and 64 hex digits")
_STATUS = scalar("untested|good|bad", "`untested`, `good` or `bad`", {"enum": ["untested", "good", "bad"]})
_NO_RECIPE = "-"  # which begins no recipe's path


def _unless_untested(marked: NumberedImage | Pairing) -> str:
    return marked.status if marked.status != "untested" else ""


# The models: `image` serves the model. It and those that served the model before have a line each, the latest first.

_PAIRING = record(
    {
        "status": (_STATUS, "how the model does on this image; untested unless it says so"),
        "since": (_TIME, "when the image began to serve the model, for the last time"),
        "recipe": (
            scalar(f"{_NO_RECIPE}|(?:{kinds.RECIPE.pattern})", "the path of a recipe or `-`", types=kinds.ANY),
            "the recipe of the pairing, where it is not the image's; `-` for none",
        ),
        "revision": (kinds.REVISION, "the revision of the model, or of a checkpoint: NAME@REVISION"),
        "note": (kinds.TEXT, "what was seen"),
    },
)


_MODEL = record(
    {"image": (kinds.IMAGE_NAME, "the image that serves the model now")},
    required="image",
    make=lambda image, rest: {image: rest.get(image, {}), **rest},
    parts=lambda images: {"image": next(iter(images)), "rest": images},
    rest=(kinds.IMAGE_NAME, _PAIRING),
)


def _model(lock: Lock, images: dict[ImageName, dict[str, Any]]) -> Model:
    """The model of these images, of which the first serves it."""
    pairings = []
    for image, fields in images.items():
        recipe = fields.pop("recipe", None) or _recipe_of(lock, image)
        pairings.append(Pairing(image, recipe if recipe != _NO_RECIPE else None, **fields))
    return Model(pairings[0], tuple(pairings[1:]))


def _images_of(lock: Lock, model: Model) -> dict[ImageName, dict[str, Any]]:
    return {
        pairing.image: {
            **vars(pairing),
            "status": _unless_untested(pairing),
            "recipe": pairing.recipe != _recipe_of(lock, pairing.image) and (pairing.recipe or _NO_RECIPE),
        }
        for pairing in (model.pairing, *model.previous)
    }


def _recipe_of(lock: Lock, name: ImageName) -> str | None:
    image = lock.image(name)
    return image.recipe if image else None


# The numbered images of a repository. A value that all built ones have stands once, as it is in the lowest of them; the
# others have it only where it differs.

_PINNED_VERSION = scalar(
    f"(?:{kinds.VERSION.pattern})(?: (?:{kinds.COMMIT_START.pattern}))?",
    "a version such as `0.32.0+cpu`, and the first digits of its commit",
    convert=lambda text: _read_version(*text.split(" ")),
    write=lambda it: it.version if it.commit in (None, model.commit_in(it.version)) else f"{it.version} {it.commit}",
    types=kinds.ANY,
)


def _read_version(version: str, commit: str | None = None) -> Version:
    return Version(version, commit or model.commit_in(version))


_ADOPTION = record(
    {
        "image": (kinds.REFERENCE, "its name or id in the engine when it got its number"),
        "digests": (list_of(kinds.REFERENCE), "the names by which registries may have it"),
    },
    make=model.Adoption,
    required="image",
)
_COMMON = {
    "definition": (kinds.DEFINITION, "the image definition"),
    "platform": (kinds.PLATFORM, "linux/arm64 or linux/amd64"),
    "base": (kinds.REFERENCE, "the base image, and the first digits of its digest"),
}
_SOURCES = ("vllm", "flashinfer")
_NUMBER = record(
    {
        "status": (_STATUS, "how the image does; untested unless it says so"),
        "built": (_TIME, "when it was built, or got its number as it was"),
        "adopted": (_ADOPTION, "the image of others that got this number as it was"),
        "recipe": (kinds.RECIPE, "the recipe that it was built from"),
        "pinned": (kinds.FLAG, "true where `prune` keeps it"),
        "pruned": (_TIME, "when it was removed on purpose"),
        "note": (kinds.TEXT, "what was seen"),
        "gpu": (kinds.TEXT, "the GPU on which it passed its checks, where it was built beside one"),
        "builder": (kinds.INSTANCE, "the `docker buildx` instance that built it, where not the engine itself"),
        "size": (whole(0), "bytes, as the engine counts them"),
        "vllm": (_PINNED_VERSION, "the version of vLLM, and its commit, where that is known and not in the version"),
        "flashinfer": (_PINNED_VERSION, "the version of FlashInfer, likewise"),
        "transformers": (kinds.VERSION, "the version of transformers"),
        **_COMMON,
        "mods": (
            mapping(kinds.TOKEN, kinds.PART),
            "the baked mods: by name, the first digits of a hash of their content",
        ),
        "unchecked": (mapping(kinds.TEXT, kinds.PART), "the checks that were left out when it was built: by name, why"),
        "rebuilt": (kinds.TEXT, "when an equivalent image that was built again took its place, and what differed"),
        "digest": (_DIGEST, "its digest in the registry of builder.yaml, where it was pushed"),
        "content": (kinds.TOKEN, "the identity of its content: the same on every engine that holds it"),
        "inputs": (kinds.TOKEN, "a hash over all that went in; a build with the same one is not made again"),
    },
    required="built size content",
    fields={"content": "fingerprint", "inputs": "input_hash"},
)
_LATEST = record(
    {
        "now": (whole(1), "the number in use, which the tag `latest` names"),
        "before": (list_of(whole(1)), "the numbers that were in use before, the latest first"),
    },
    required="now",
)


def _repository(rest: dict[int, Any], latest: Any = None, next: int = 1, each: Any = None) -> Repository:  # noqa: A002
    latest = {"now": None, "before": (), **(latest or {})}
    numbers = {n: _image({} if "adopted" in rest[n] else each or {}, **rest[n]) for n in sorted(rest)}
    return Repository(max(next, max(numbers, default=0) + 1), latest["now"], latest["before"], numbers)


def _image(common: dict[str, Any], **fields: Any) -> NumberedImage:
    versions = {source: fields.pop(source) for source in _SOURCES if source in fields}
    return NumberedImage(**{"definition": "", "platform": "", "input_hash": "", **common, **fields}, versions=versions)


def _repository_parts(repository: Repository) -> dict[str, Any]:
    built = [image for _, image in sorted(repository.numbers.items()) if not image.adopted]
    common = {key: getattr(built[0], key) for key in _COMMON if built and all(getattr(each, key) for each in built)}
    numbers = {}
    for number, image in sorted(repository.numbers.items(), reverse=True):
        same = {key: "" for key, value in common.items() if getattr(image, key) == value and not image.adopted}
        numbers[number] = {**vars(image), **image.versions, **same, "status": _unless_untested(image)}
    return {
        "latest": repository.current and {"now": repository.current, "before": repository.previous},
        "next": repository.next if repository.next > max(numbers, default=0) + 1 else None,
        "each": common,
        "rest": numbers,
    }


_REPOSITORY = record(
    {
        "latest": (_LATEST, "the number in use, and those before it"),
        "next": (whole(1), "the number of the next build, where it is not the one after the highest"),
        "each": (record(_COMMON), "what holds for each number that was built here and says nothing else"),
    },
    make=_repository,
    parts=_repository_parts,
    rest=(kinds.NUMBER, _NUMBER),
)


# What the next build of a definition on a platform is made from. The packages of a closure stand in a file, of which
# the closure has the digest. While the data are read, the digest has the place of the packages.

_PULL = record(
    {
        "number": (whole(1), "the number of the pull request"),
        "head": (_COMMIT, "its last commit when it was pinned"),
        "sha256": (_SHA256, "the SHA-256 of its vendored patch, which the project keeps as a file"),
        "base": (kinds.REF, "the branch that it was opened for, where the definition names one"),
    },
    make=model.PullPin,
    required="number head sha256",
)
_GIT = record(
    {
        "asked": (kinds.REF, "the branch, tag or commit that was asked for"),
        "git": (kinds.ADDRESS, "the address of the repository, without a login"),
        "version": (kinds.VERSION, "what the repository's tags make of the commit"),
        "commit": (_COMMIT, "the commit that it stood for"),
        "date": (_TIME, "when the commit was made"),
        "pulls": (list_of(_PULL), "the pull requests on top, in this order"),
    },
    make=model.GitPin,
    required="asked git version commit date",
    fields={"asked": "requested"},
)
_WHEEL = record(
    {
        "asked": (kinds.LINE, "the requirement, such as vllm==0.32.0, and `from URL` for an index of its own"),
        "version": (kinds.VERSION, "the version that it stood for"),
        "commit": (kinds.COMMIT_START, "the commit that the wheel names"),
    },
    make=model.WheelPin,
    required="asked version",
    fields={"asked": "requested"},
)
_INCLUDED = record(
    {
        "base": (kinds.REFERENCE, "the base image that it comes with, as resolved"),
        "version": (kinds.VERSION, "its version in there"),
        "commit": (kinds.COMMIT_START, "its commit, where the image names it"),
    },
    make=model.IncludedPin,
    required="base version",
)


def _schema_if(key: str, then: Schema, otherwise: Schema) -> Schema:
    return {"if": {"type": "object", "required": [key]}, "then": then, "else": otherwise}


_PIN_KINDS = {model.GitPin: _GIT, model.IncludedPin: _INCLUDED, model.WheelPin: _WHEEL}
_SOURCE = ValueKind(
    lambda data: (_GIT if "git" in (data or ()) else _INCLUDED if "base" in (data or ()) else _WHEEL).read(data),
    _schema_if("git", _GIT.schema, _schema_if("base", _INCLUDED.schema, _WHEEL.schema)),
    lambda pin: _PIN_KINDS[type(pin)].write(pin),
)
_PLAIN_BASE = scalar(
    f"(?:{kinds.REFERENCE.pattern})@(?:{_DIGEST.pattern})",
    "an image with its digest, such as `debian:bookworm-slim@sha256:` and 64 hex digits",
    convert=lambda text: model.BasePin(text.rpartition("@")[0], text.rpartition("@")[2]),
    write=lambda pin: f"{pin.requested}@{pin.resolved}",
)
_OTHER_BASE = record(
    {
        "asked": (kinds.REFERENCE, "as the definition says it, such as debian:bookworm-slim"),
        "resolved": (kinds.REFERENCE, "the digest, or local:sha256:… of an image that only the engine has"),
        "created": (kinds.MOMENT, "when a base that brings vLLM was made"),
        "packages": (_DIGEST, "the digest of base-packages.PLATFORM.txt: what a base that brings vLLM holds"),
    },
    make=model.BasePin,
    required="asked resolved",
    fields={"asked": "requested"},
)


def _write_base(pin: model.BasePin) -> Any:
    is_plain = pin.resolved.startswith("sha256:") and not (pin.created or pin.packages)
    return (_PLAIN_BASE if is_plain else _OTHER_BASE).write(pin)


_BASE = ValueKind(
    lambda data: (_OTHER_BASE if isinstance(data, dict) else _PLAIN_BASE).read(data),
    {"if": {"type": "object"}, "then": _OTHER_BASE.schema, "else": _PLAIN_BASE.schema},
    _write_base,
)
_CLOSURE = record(
    {
        "file": (_DIGEST, "the digest of the file with the packages"),
        "newest": (kinds.MOMENT, "when the newest file among them was uploaded; the date of the image"),
        "as_of": (kinds.MOMENT, "nothing was taken that was uploaded later; else there is no limit"),
        "undated": (list_of(kinds.LINE), "the packages whose index gives no upload dates: of any age"),
        "asked": (list_of(kinds.LINE), "the requirements that were asked for"),
    },
    make=model.PythonPin,
    required="file newest asked",
    fields={"file": "packages", "asked": "requested"},
)


def _pins(**fields: Any) -> Pins:
    sources = {source: fields.pop(source) for source in _SOURCES if source in fields}
    return Pins(sources=sources, **fields)


_PINS = record(
    {
        "base": (_BASE, "the base image, and the digest that it stood for"),
        "vllm": (_SOURCE, "vLLM"),
        "flashinfer": (_SOURCE, "FlashInfer"),
        "packages": (_CLOSURE, "the Python packages in the image: packages.PLATFORM.txt"),
        "build-packages": (
            _CLOSURE,
            "the Python packages that it takes to build the sources: build-packages.PLATFORM.txt",
        ),
    },
    make=_pins,
    fields={"packages": "python", "build-packages": "build"},
    parts=lambda pins: vars(pins) | pins.sources,
)
FILE = record(
    {
        "version": (
            scalar(str(model.VERSION), f"`{model.VERSION}`", {"const": model.VERSION}, int),
            "the format of the file; another one is refused",
        ),
        "models": (
            mapping(_MODEL, kinds.MODEL),
            "the image that serves each model, by Hugging Face id, and those that served it before, the latest first",
        ),
        "images": (mapping(_REPOSITORY, kinds.REPOSITORY), "the numbered images, by repository"),
        "builds": (
            mapping(
                _PINS,
                scalar(
                    f"(?:{kinds.DEFINITION.pattern}) (?:{kinds.PLATFORM.pattern})",
                    "a definition and a platform, such as `tf5 linux/arm64`",
                ),
            ),
            "what the next build is made from: by definition and platform",
        ),
    },
    required="version",
)


# A lock as the data of its file, and back.


def lock_of(data: Data, load: Load) -> Lock:
    """Converts the data of a file to the lock; ``load`` gives the content of a file with packages, once it is asked
    for. Raises WrongError with the path to all that is wrong."""
    file = FILE.read(data)
    lock = Lock(images=file.get("images", {}))
    lock = replace(lock, models={name: _model(lock, each) for name, each in file.get("models", {}).items()})
    if problems := list(lock.broken_rules()):
        raise WrongError(problems)
    for name, pins in file.get("builds", {}).items():
        definition, _, platform = name.rpartition(" ")
        of_file = partial(_of_file, load, definition, platform)
        lock = lock.with_pins(definition, platform, _with_packages(pins, of_file))
    return lock


def _of_file(
    load: Load, definition: str, platform: str, part: str, pin: model.BasePin | model.PythonPin
) -> LockedPackages:
    return LockedPackages(closures.path_of(definition, platform, part), str(pin.packages), load)


def data_of(lock: Lock) -> dict[str, Any]:
    """Converts a lock to the data of its file: dicts and lists in its order, numbers and truth values as they are."""
    builds = {
        f"{definition} {platform}": _with_packages(pins, partial(closures.digest_of, definition, platform))
        for definition, platforms in lock.pins.items()
        for platform, pins in platforms.items()
    }
    models = {name: _images_of(lock, model) for name, model in lock.models.items()}
    data: dict[str, Any] = FILE.write(
        {"version": model.VERSION, "models": models, "images": lock.images, "builds": builds}
    )
    return data


def _with_packages(pins: Pins, packages: Callable[[str, Any], Any]) -> Pins:
    """The pins with other packages in each part that has a file."""
    changed = {part: replace(pin, packages=packages(part, pin)) for part, pin in closures.of_pins(pins)}
    return replace(
        pins,
        base=changed.get("base-packages", pins.base),
        python=changed.get("packages"),
        build=changed.get("build-packages"),
    )


# lock.schema.json, made from the records: ``make reference`` writes it (``python -m builder.lock.layout``).

PATH = Path(__file__).parent / "lock.schema.json"


def text() -> str:
    """The JSON Schema of images.lock."""
    import json

    title = "images.lock: which image serves each model, what each image is, and what the next build is made from"
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return json.dumps({**head, **FILE.schema}, ensure_ascii=False, indent=2) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
