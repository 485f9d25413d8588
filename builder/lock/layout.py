"""The keys of images.lock: what each holds, a lock as the data of its file, and the JSON Schema.

The models come first in the file, then the numbered images, then what the next builds are made from. Reading, writing
and the schema all come from the records below.
"""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.base.words import RECIPE_FILE
from builder.definitions import source_patches
from builder.definitions.source_patches import SourcePatch
from builder.lock import closures, kinds, model
from builder.lock.closures import PackagesFile
from builder.lock.kinds import ValueKind, WrongError, list_of, mapping, record, scalar, whole
from builder.lock.model import ImageName, Lock, Model, NumberedImage, Pairing, Pins, Repository, Version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
_SHORT_RECIPE = re.compile(r"recipes/([A-Za-z0-9][A-Za-z0-9._+-]*)\.yaml")


def _recipe_kind(pattern: str, expected: str) -> ValueKind:
    """A recipe: of `recipes/chat.yaml`, the name `chat` alone."""

    def write(path: str) -> str:
        match = _SHORT_RECIPE.fullmatch(path)
        return match[1] if match else path if "/" in path or path == _NO_RECIPE else f"./{path}"

    def read(text: str) -> str:
        return text.removeprefix("./") if "/" in text or text == _NO_RECIPE else f"recipes/{text}.yaml"

    return scalar(pattern, expected, convert=read, write=write, types=kinds.ANY)


def _unless_untested(marked: NumberedImage | Pairing) -> str:
    return marked.status if marked.status != "untested" else ""


# The models: `image` has the image that serves the model, and those that served it before, the latest first. What
# else is known of a model on an image has a line.

_PAIRING = record(
    {
        "status": (_STATUS, "how the model does on this image; untested unless it says so"),
        "recipe": (
            _recipe_kind(f"{_NO_RECIPE}|(?:{RECIPE_FILE})", "the name or path of a recipe, or `-`"),
            "the recipe of the pairing, where it is not the image's; `-` for none",
        ),
        "revision": (kinds.REVISION, "the revision of the model, or of a checkpoint: NAME@REVISION"),
        "note": (kinds.TEXT, "what was seen"),
    },
)


_SERVING = record(
    {
        "now": (kinds.IMAGE_NAME, "the image that serves the model"),
        "since": (_TIME, "when it began to serve the model"),
        "before": (
            list_of(kinds.NUMBER_OR_IMAGE),
            "the images that served it before; a number alone is of `now`'s name",
        ),
    },
    required="now",
)
_MODEL = record(
    {"image": (_SERVING, "the image that serves the model now, and those before it")},
    required="image",
    rest=(kinds.IMAGE_NAME, _PAIRING),
)


def _model(lock: Lock, data: dict[str, Any]) -> Model:
    serving, marks = data["image"], data["rest"]
    now = serving["now"]
    before = (ImageName(now.repository, n) if isinstance(n, int) else n for n in serving.get("before", ()))
    pairings = []
    for image in dict.fromkeys((now, *before, *marks)):
        fields = {"recipe": _recipe_of(lock, image), **marks.get(image, {})}
        recipe = fields.pop("recipe")
        pairings.append(Pairing(image, recipe if recipe != _NO_RECIPE else None, **fields))
    return Model(replace(pairings[0], since=serving.get("since", "")), tuple(pairings[1:]))


def _parts_of(lock: Lock, model: Model) -> dict[str, Any]:
    now, since = model.pairing.image, model.pairing.since
    before = [p.image.number if p.image.repository == now.repository else p.image for p in model.previous]
    marks = {
        pairing.image: {
            "status": _unless_untested(pairing),
            "recipe": pairing.recipe != _recipe_of(lock, pairing.image) and (pairing.recipe or _NO_RECIPE),
            "revision": pairing.revision,
            "note": pairing.note,
        }
        for pairing in (model.pairing, *model.previous)
    }
    written = {image: fields for image, fields in marks.items() if any(fields.values())}
    return {"image": {"now": now, "since": since, "before": before}, "rest": written}


def _recipe_of(lock: Lock, name: ImageName) -> str | None:
    image = lock.image(name)
    return image.recipe if image else None


# The numbered images of a repository. A value that all built ones have stands once, as it is in the lowest of them; the
# others have it only where it differs.


def _read_version(text: str) -> Version:
    version, _, commit = text.partition(" ")
    return Version(version, commit or model.commit_in(version))


_PINNED_VERSION = scalar(
    f"(?:{kinds.VERSION.pattern})(?: (?:{kinds.COMMIT_START.pattern}))?",
    "a version such as `0.32.0+cpu`, and the first digits of its commit",
    convert=_read_version,
    write=lambda it: it.version if it.commit in (None, model.commit_in(it.version)) else f"{it.version} {it.commit}",
    types=kinds.ANY,
)


_ADOPTION = record(
    {
        "image": (kinds.REFERENCE, "its name or id in the engine when it got its number"),
        "digests": (list_of(kinds.REFERENCE), "the names by which registries may have it"),
    },
    make=model.Adoption,
    required="image",
)
# 256 bits in 43 characters: of the last one, two bits are 0.
_CONTENT = scalar(
    "[A-Za-z0-9_-]{42}[AEIMQUYcgkosw048]",
    "43 letters, digits, - or _",
    convert=lambda text: f"sha256:{a2b_base64(text.replace('-', '+').replace('_', '/') + '=').hex()}",
    write=lambda digest: (
        b2a_base64(bytes.fromhex(digest.removeprefix("sha256:")), newline=False)
        .decode()
        .rstrip("=")
        .replace("+", "-")
        .replace("/", "_")
    ),
)
_COMMON = {
    "definition": (kinds.DEFINITION, "the image definition"),
    "platform": (kinds.PLATFORM, "linux/arm64 or linux/amd64"),
    "base": (kinds.REFERENCE, "the base image, and the first digits of its digest"),
    "gpu": (kinds.TEXT, "the GPU on which it passed its checks, where it was built beside one"),
}
_NO_GPU = "none"
_DIGITS = re.compile("[0-9a-f]{12}")
_SOURCES = ("vllm", "flashinfer")
_NUMBER = record(
    {
        "status": (_STATUS, "how the image does; untested unless it says so"),
        "built": (_TIME, "when it was built, or got its number as it was"),
        "adopted": (_ADOPTION, "the image of others that got this number as it was"),
        "recipe": (
            _recipe_kind(RECIPE_FILE, "the name or path of a recipe"),
            "the recipe that it was built from: its name in recipes/, or its path",
        ),
        "pinned": (kinds.FLAG, "true where `prune` keeps it"),
        "pruned": (_TIME, "when it was removed on purpose"),
        "vllm": (_PINNED_VERSION, "the version of vLLM, and its commit, where that is known and not in the version"),
        "base": (
            kinds.REFERENCE,
            "the base image and the first digits of its digest; digits alone have the name of the base in `each`",
        ),
        "note": (kinds.TEXT, "what was seen"),
        "flashinfer": (_PINNED_VERSION, "the version of FlashInfer, likewise"),
        "transformers": (kinds.VERSION, "the version of transformers"),
        **{key: _COMMON[key] for key in ("definition", "platform", "gpu")},
        "builder": (kinds.INSTANCE, "the `docker buildx` instance that built it, where not the engine itself"),
        "mods": (
            mapping(kinds.TOKEN, kinds.PART),
            "the baked mods: by name, the first digits of a hash of their content",
        ),
        "pulls": (
            mapping(kinds.TOKEN, kinds.PART),
            "the patches on its sources: by source and number or name, the first digits of the SHA-256 of the patch",
        ),
        "unchecked": (mapping(kinds.TEXT, kinds.PART), "the checks that were left out when it was built: by name, why"),
        "rebuilt": (kinds.TEXT, "when an equivalent image that was built again took its place, and what differed"),
        "digest": (_DIGEST, "its digest in the registry of builder.yaml, where it was pushed"),
        "size": (whole(0), "bytes, as the engine counts them"),
        "content": (
            _CONTENT,
            "the identity of its content, the same on every engine that holds it: a SHA-256 in base64url",
        ),
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
    current = latest["now"] if latest else None
    before = tuple(number for number in latest.get("before", ()) if number != current) if latest else ()
    numbers = {n: _image({} if "adopted" in rest[n] else each or {}, rest[n]) for n in sorted(rest)}
    return Repository(max(next, max(numbers, default=0) + 1), current, before, numbers)


def _image(common: dict[str, Any], own: dict[str, Any]) -> NumberedImage:
    versions = {source: own.pop(source) for source in _SOURCES if source in own}
    fields = {"definition": "", "platform": "", "input_hash": "", **common, **own, "versions": versions}
    if fields.get("gpu") == _NO_GPU:
        del fields["gpu"]
    if "base" in common and _DIGITS.fullmatch(own.get("base", "")):
        fields["base"] = _name_of_base(common) + own["base"]
    return NumberedImage(**fields)


def _name_of_base(common: dict[str, Any]) -> str:
    return f"{common.get('base', '').partition('@')[0]}@"


def _repository_parts(repository: Repository) -> dict[str, Any]:
    built = [image for _, image in sorted(repository.numbers.items()) if not image.adopted]
    common = {
        key: value
        for key in _COMMON
        if built and (value := getattr(built[0], key)) and (key == "gpu" or all(getattr(each, key) for each in built))
    }
    numbers = {}
    for number, image in sorted(repository.numbers.items(), reverse=True):
        numbers[number] = own = {**vars(image), **image.versions, "status": _unless_untested(image)}
        if image.adopted:
            continue
        digits = image.base.removeprefix(_name_of_base(common))
        own["base"] = digits if _DIGITS.fullmatch(digits) else image.base
        own["gpu"] = image.gpu or ("gpu" in common and _NO_GPU)
        own |= {key: "" for key, value in common.items() if getattr(image, key) == value}
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


# What the next build of a definition on a platform is made from. A closure is the digest of a file, which has the
# packages and what was asked for.

_CLOSURE = replace(_DIGEST, write=lambda file: file.digest)
_PULL = record(
    {
        "number": (
            scalar(
                f"{kinds.NUMBER.pattern}|(?:{source_patches.PULL})",
                "the number or the address of a pull request",
                {"type": ["integer", "string"], "minimum": 1, "pattern": f"^{source_patches.PULL}$"},
                write=lambda name: int(name) if name.isdecimal() else name,
            ),
            "the number of the pull request, or the address of one in another repository",
        ),
        "head": (_COMMIT, "its last commit when it was pinned"),
        "sha256": (_SHA256, "the SHA-256 of its vendored patch, which the project keeps as a file"),
        "base": (kinds.REF, "the branch that it was opened for, where the definition names one"),
    },
    make=SourcePatch,
    fields={"number": "name"},
    required="number head sha256",
)
_PATCH = record(
    {
        "file": (
            scalar(source_patches.FILE, "the path of a patch file", types=kinds.ANY),
            "the patch file, or local-changes for what a checkout has beside its commit",
        ),
        "sha256": (_SHA256, "the SHA-256 of the patch"),
        "strip": (
            scalar("[0-9]", "a digit", {"type": "integer", "minimum": 0, "maximum": 9}, int, int),
            "how many folders are removed from its file names, where not one",
        ),
    },
    make=SourcePatch,
    parts=lambda patch: {**vars(patch), "strip": "" if patch.strip == 1 else str(patch.strip)},  # 0 is a value
    fields={"file": "name"},
    required="file sha256",
)


def _git_pin(
    commit: list[str], pulls: tuple[SourcePatch, ...] = (), patches: tuple[SourcePatch, ...] = (), **fields: Any
) -> model.GitPin:
    return model.GitPin(commit=commit[0], date=commit[1], **fields, patches=(*pulls, *patches))


def _git_parts(pin: model.GitPin) -> dict[str, Any]:
    sides = {is_pull: [patch for patch in pin.patches if patch.is_pull is is_pull] for is_pull in (True, False)}
    return {**vars(pin), "commit": (pin.commit, pin.date), "pulls": sides[True], "patches": sides[False]}


_GIT = record(
    {
        "asked": (kinds.REF, "the branch, tag or commit that was asked for; `from-vllm` is what the pinned vLLM names"),
        "git": (kinds.ADDRESS, "the address of the repository, without a login"),
        "version": (kinds.VERSION, "what the repository's tags make of the commit"),
        "commit": (
            scalar(
                f"(?:{_COMMIT.pattern}) of (?:{_TIME.pattern})",
                "a commit of 40 hex digits, ` of `, and its time in UTC",
                convert=lambda text: text.split(" of "),
                write=" of ".join,
            ),
            "the commit that it stood for, and when that was made",
        ),
        "pulls": (list_of(_PULL), "the pull requests on top, in this order"),
        "patches": (list_of(_PATCH), "the patch files on top of those, in this order"),
    },
    make=_git_pin,
    parts=_git_parts,
    required="asked git version commit",
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


def _either(key: str, kind: ValueKind, other: ValueKind) -> ValueKind:
    """One kind of value where the value has ``key``, another one where it has not."""
    return ValueKind(
        lambda data: (kind if key in (data or ()) else other).read(data),
        {"if": {"type": "object", "required": [key]}, "then": kind.schema, "else": other.schema},
        lambda pin: (kind if hasattr(pin, key) else other).write(pin),
    )


_SOURCE = _either("git", _GIT, _either("base", _INCLUDED, _WHEEL))
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
        "packages": (_CLOSURE, "the digest of base-packages.PLATFORM.txt: what a base that brings vLLM holds"),
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


def _pins(**fields: Any) -> Pins:
    sources = {source: fields.pop(source) for source in _SOURCES if source in fields}
    return Pins(sources=_reworded(sources, "from-vllm", _from_vllm(sources)), **fields)


def _from_vllm(sources: Mapping[str, model.SourcePin]) -> str:
    """The request for a source whose version the pinned vLLM names; in the file, without the commit of that."""
    return f"from-vllm/{model.identity(sources.get('vllm'))}"


def _reworded(sources: Mapping[str, model.SourcePin], old: str, new: str) -> dict[str, model.SourcePin]:
    return {
        name: replace(pin, requested=new) if isinstance(pin, model.GitPin) and pin.requested == old else pin
        for name, pin in sources.items()
    }


_PINS = record(
    {
        "base": (_BASE, "the base image, and the digest that it stood for"),
        "vllm": (_SOURCE, "vLLM"),
        "flashinfer": (_SOURCE, "FlashInfer"),
        "packages": (_CLOSURE, "the digest of packages.PLATFORM.txt: the Python packages in the image"),
        "build-packages": (
            _CLOSURE,
            "the digest of build-packages.PLATFORM.txt: the Python packages that it takes to build the sources",
        ),
    },
    make=_pins,
    fields={"packages": "python", "build-packages": "build"},
    parts=lambda pins: vars(pins) | _reworded(pins.sources, _from_vllm(pins.sources), "from-vllm"),
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
        of_files = _with_files(definition, platform, pins, lambda path, digest: PackagesFile(path, digest, load))
        lock = lock.with_pins(definition, platform, of_files)
    return lock


def data_of(lock: Lock) -> dict[str, Any]:
    """Converts a lock to the data of its file: dicts and lists in its order, numbers and truth values as they are."""
    builds = {
        f"{definition} {platform}": _with_files(definition, platform, pins, closures.file_of)
        for definition, platforms in lock.pins.items()
        for platform, pins in platforms.items()
    }
    models = {name: _parts_of(lock, model) for name, model in lock.models.items()}
    data: dict[str, Any] = FILE.write(
        {"version": model.VERSION, "models": models, "images": lock.images, "builds": builds}
    )
    return data


def _with_files(definition: str, platform: str, pins: Pins, file: Callable[[str, Any], PackagesFile]) -> Pins:
    """The pins with the file in the place of each closure."""
    files: dict[str, Any] = {
        part: file(path, closure) for part, path, closure in closures.of_pins(definition, platform, pins)
    }
    base = pins.base and replace(pins.base, packages=files.get("base-packages", ()))
    return replace(pins, base=base, python=files.get("packages"), build=files.get("build-packages"))


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
