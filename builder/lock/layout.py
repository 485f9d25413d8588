"""This page converts a lock to the data of images.lock and back: dicts, lists and text, as in lock.schema.json.

The models come first in the file, then the numbered images, then the pins for the next builds. Each has a reader, which
requires data without problems, and a writer, which leaves out empty values. The files with packages, which belong to
the pins, come last.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from builder.base.errors import LockError
from builder.base.words import sha256_of, shell_word
from builder.definitions.source_patches import SourcePatch
from builder.lock import checking, model
from builder.lock.model import (
    ImageName,
    Lock,
    LockedPackage,
    Model,
    NumberedImage,
    Pairing,
    Pins,
    PythonPin,
    Repository,
    Version,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from builder.lock.model import SourcePin

    Load = Callable[[str, str], bytes | None]
    """Returns the content of the file with this path in the project and this digest; None if it is missing."""


Block = dict[str, Any]


def lock_of(data: Any, load: Load) -> Lock:
    """The lock in the data of a file, in which `checking.problems` must have found nothing. ``load`` returns the
    content of a file with packages when it is first used."""
    lock = Lock(images={name: _repository(each) for name, each in data.get("images", {}).items()})
    lock = replace(lock, models={name: _model(lock, each) for name, each in data.get("models", {}).items()})
    for name, each in data.get("builds", {}).items():
        definition, _, platform = name.rpartition(" ")
        lock = lock.with_pins(definition, platform, pins_of(definition, platform, each, load))
    return lock


def data_of(lock: Lock) -> Block:
    """The data for the file of ``lock``, in the order of the file. Numbers and truth values are not yet text."""
    builds = {
        f"{definition} {platform}": pins_data(definition, platform, pins)
        for definition, platforms in lock.pins.items()
        for platform, pins in platforms.items()
    }
    return {"version": model.VERSION} | _filled(
        models={name: _model_data(lock, each) for name, each in sorted(lock.models.items())},
        images={name: _repository_data(each) for name, each in sorted(lock.images.items())},
        builds=dict(sorted(builds.items())),
    )


def _filled(**values: Any) -> Block:
    """The values that are neither empty nor false. Each underscore in a key becomes a dash."""
    return {key.replace("_", "-"): value for key, value in values.items() if value}


# The recipe `recipes/chat.yaml` is written as `chat`.

_NO_RECIPE = "-"  # no path of a recipe begins with it
_SHORT_RECIPE = re.compile(r"recipes/([A-Za-z0-9][A-Za-z0-9._+-]*)\.yaml")


def _recipe(text: str) -> str:
    return text.removeprefix("./") if "/" in text else f"recipes/{text}.yaml"


def _recipe_text(path: str) -> str:
    match = _SHORT_RECIPE.fullmatch(path)
    return match[1] if match else path if "/" in path else f"./{path}"


def _unless_untested(marked: NumberedImage | Pairing) -> str:
    return marked.status if marked.status != "untested" else ""


# The models: `image` names the image that serves the model, and the images that served it before, the latest first.
# Other facts about the model on an image have a line for each image.


def _model(lock: Lock, data: Block) -> Model:
    serving = data["image"]
    now = model.image_name(serving["now"])
    before = (
        ImageName(now.repository, int(each)) if each.isdecimal() else model.image_name(each)
        for each in serving.get("before", ())
    )
    marks = {model.image_name(name): each for name, each in data.items() if name != "image"}
    pairings = []
    for image in dict.fromkeys((now, *before, *marks)):
        own = marks.get(image, {})
        recipe = own.get("recipe")
        path = (_recipe(recipe) if recipe != _NO_RECIPE else None) if recipe else _recipe_of(lock, image)
        pairings.append(Pairing(image, path, own.get("revision"), own.get("status", "untested"), own.get("note", "")))
    return Model(replace(pairings[0], since=serving.get("since", "")), tuple(pairings[1:]))


def _model_data(lock: Lock, paired: Model) -> Block:
    now, since = paired.pairing.image, paired.pairing.since
    before = [p.image.number if p.image.repository == now.repository else str(p.image) for p in paired.previous]
    data = {"image": _filled(now=str(now), since=since, before=before)}
    for pairing in (paired.pairing, *paired.previous):
        recipe = _recipe_text(pairing.recipe) if pairing.recipe else _NO_RECIPE
        marks = _filled(
            status=_unless_untested(pairing),
            recipe=recipe if pairing.recipe != _recipe_of(lock, pairing.image) else "",
            revision=pairing.revision,
            note=pairing.note,
        )
        if marks:
            data[str(pairing.image)] = marks
    return data


def _recipe_of(lock: Lock, name: ImageName) -> str | None:
    image = lock.image(name)
    return image.recipe if image else None


# The numbered images of a repository. A value that all built images have is written once, from the lowest number. The
# other numbers repeat the key only if their value differs.

_COMMON = ("definition", "platform", "base", "gpu")
_NO_GPU = "none"
_DIGITS = re.compile("[0-9a-f]{12}")
_SOURCES = ("vllm", "flashinfer")
_AS_THEY_ARE = ["built", "status", "note", "mods", "pulls", "pruned", "digest", "builder", "unchecked", "transformers"]


def _repository(data: Block) -> Repository:
    latest, each = data.get("latest"), data.get("each", {})
    current = int(latest["now"]) if latest else None
    before = (int(number) for number in latest.get("before", ())) if latest else ()
    own = {int(key): block for key, block in data.items() if key.isdecimal()}
    numbers = {number: _image({} if "adopted" in own[number] else each, own[number]) for number in sorted(own)}
    following = max(int(data.get("next", 1)), max(numbers, default=0) + 1)
    return Repository(following, current, tuple(number for number in before if number != current), numbers)


def _repository_data(repository: Repository) -> Block:
    numbers = dict(sorted(repository.numbers.items()))
    built = [image for image in numbers.values() if not image.adopted]
    each = {
        key: value
        for key in _COMMON
        if built and (value := getattr(built[0], key)) and (key == "gpu" or all(getattr(each, key) for each in built))
    }
    current, following = repository.current, repository.next
    return _filled(
        latest=current and _filled(now=current, before=list(repository.previous)),
        next=following if following > max(numbers, default=0) + 1 else None,
        each=each,
    ) | {str(n): _image_data(image, {} if image.adopted else each) for n, image in reversed(numbers.items())}


def _name_of_base(each: Block) -> str:
    return f"{each.get('base', '').partition('@')[0]}@"


def _image(each: Block, own: Block) -> NumberedImage:
    data = each | own
    base = data.get("base", "")
    if "base" in each and _DIGITS.fullmatch(own.get("base", "")):
        base = _name_of_base(each) + base
    adopted = data.get("adopted")
    return NumberedImage(
        definition=data.get("definition", ""),
        platform=data.get("platform", ""),
        fingerprint=f"sha256:{urlsafe_b64decode(data['content'] + '=').hex()}",
        input_hash=data.get("inputs", ""),
        size=int(data["size"]),
        pinned=data.get("pinned") == "true",
        recipe=_recipe(data["recipe"]) if "recipe" in data else None,
        versions={source: _version(data[source]) for source in _SOURCES if source in data},
        gpu=data.get("gpu") if data.get("gpu") != _NO_GPU else None,
        adopted=model.Adoption(adopted["image"], tuple(adopted.get("digests", ()))) if adopted else None,
        base=base,
        **{key: data[key] for key in _AS_THEY_ARE if key in data},
    )


def _image_data(image: NumberedImage, each: Block) -> Block:
    digits, adopted = image.base.removeprefix(_name_of_base(each)), image.adopted
    common = {
        "definition": image.definition,
        "platform": image.platform,
        "base": digits if _DIGITS.fullmatch(digits) else image.base,
        "gpu": image.gpu or ("gpu" in each and _NO_GPU),
    } | {key: "" for key, value in each.items() if getattr(image, key) == value}
    versions = {source: _version_text(version) for source, version in image.versions.items()}
    described = _filled(
        status=_unless_untested(image),
        built=image.built,
        adopted=adopted and _filled(image=adopted.image, digests=list(adopted.digests)),
        recipe=image.recipe and _recipe_text(image.recipe),
        pinned=image.pinned,
        pruned=image.pruned,
        vllm=versions.get("vllm"),
        base=common["base"],
        note=image.note,
        flashinfer=versions.get("flashinfer"),
        transformers=image.transformers,
        definition=common["definition"],
        platform=common["platform"],
        gpu=common["gpu"],
        builder=image.builder,
        mods=dict(sorted(image.mods.items())),
        pulls=dict(sorted(image.pulls.items())),
        unchecked=dict(sorted(image.unchecked.items())),
        digest=image.digest,
    )
    content = urlsafe_b64encode(bytes.fromhex(image.fingerprint.removeprefix("sha256:"))).decode().rstrip("=")
    return described | {"size": image.size, "content": content} | _filled(inputs=image.input_hash)


def _version(text: str) -> Version:
    version, _, commit = text.partition(" ")
    return Version(version, commit or model.commit_in(version))


def _version_text(version: Version) -> str:
    is_in = version.commit in (None, model.commit_in(version.version))
    return version.version if is_in else f"{version.version} {version.commit}"


# The pins for the next build of a definition on a platform. A closure is the digest of a file, which contains the
# packages and the requests. If the pinned vLLM names the version of a source, the request is written as `from-vllm`,
# without vLLM's commit. So an update of vLLM changes fewer lines.

_FROM_VLLM = "from-vllm"


def pins_of(definition: str, platform: str, data: Block, load: Load) -> Pins:
    def file(part: str, digest: str) -> Any:
        return PackagesFile(packages_path(definition, platform, part), digest, load)

    base = data.get("base")
    if isinstance(base, str):
        name, _, digest = base.rpartition("@")
        base = model.BasePin(name, digest)
    elif base:
        packages = file("base-packages", base["packages"]) if "packages" in base else ()
        base = model.BasePin(base["asked"], base["resolved"], base.get("created", ""), packages)
    sources = {source: _source(data[source]) for source in _SOURCES if source in data}
    vllm = f"{_FROM_VLLM}/{model.identity(sources.get('vllm'))}"
    python, build = (file(part, data[part]) if part in data else None for part in ("packages", "build-packages"))
    return Pins(base, {name: _asked_as(pin, _FROM_VLLM, vllm) for name, pin in sources.items()}, python, build)


def _asked_as(pin: SourcePin, old: str, new: str) -> SourcePin:
    return replace(pin, requested=new) if isinstance(pin, model.GitPin) and pin.requested == old else pin


def _source(data: Block) -> SourcePin:
    if "git" in data:
        commit, _, date = data["commit"].partition(" of ")
        patches = [SourcePatch(p["number"], p["head"], p["sha256"], p.get("base", "")) for p in data.get("pulls", ())]
        files = data.get("patches", ())
        patches += (SourcePatch(p["file"], sha256=p["sha256"], strip=int(p.get("strip", 1))) for p in files)
        return model.GitPin(data["git"], data["asked"], commit, data["version"], date, tuple(patches))
    if "base" in data:
        return model.IncludedPin(data["base"], data["version"], data.get("commit"))
    return model.WheelPin(data["asked"], data["version"], data.get("commit"))


def pins_data(definition: str, platform: str, pins: Pins) -> Block:
    digests = {
        part: packages_file(path, closure).digest
        for part, path, closure in closures_of_pins(definition, platform, pins)
    }
    vllm = f"{_FROM_VLLM}/{model.identity(pins.sources.get('vllm'))}"
    sources = {name: _source_data(_asked_as(pin, vllm, _FROM_VLLM)) for name, pin in pins.sources.items()}
    return _filled(
        base=pins.base and _base_data(pins.base, digests.get("base-packages")),
        vllm=sources.get("vllm"),
        flashinfer=sources.get("flashinfer"),
        packages=digests.get("packages"),
        build_packages=digests.get("build-packages"),
    )


def _base_data(pin: model.BasePin, packages: str | None) -> str | Block:
    if pin.resolved.startswith("sha256:") and not (pin.created or packages):
        return f"{pin.requested}@{pin.resolved}"
    return _filled(asked=pin.requested, resolved=pin.resolved, created=pin.created, packages=packages)


def _source_data(pin: SourcePin) -> Block:
    if isinstance(pin, model.IncludedPin):
        return _filled(base=pin.base, version=pin.version, commit=pin.commit)
    if isinstance(pin, model.WheelPin):
        return _filled(asked=pin.requested, version=pin.version, commit=pin.commit)
    pulls = [
        _filled(number=int(p.name) if p.name.isdecimal() else p.name, head=p.head, sha256=p.sha256, base=p.base)
        for p in pin.patches
        if p.is_pull
    ]
    patches = [
        {"file": p.name, "sha256": p.sha256} | ({} if p.strip == 1 else {"strip": p.strip})
        for p in pin.patches
        if not p.is_pull
    ]
    commit = f"{pin.commit} of {pin.date}"
    return _filled(asked=pin.requested, git=pin.git, version=pin.version, commit=commit, pulls=pulls, patches=patches)


# The files with Python packages beside the Dockerfiles; images.lock has their digests.
#
# A definition has up to three of them on a platform: the packages in the image, the packages for building the sources,
# and the packages of its base image. pip and uv can read them. A build installs the first two, and anybody can install
# them without this program. The requests are in comments.

_WHAT = {
    "packages": "in the image",
    "build-packages": "that it takes to build the sources of",
    "base-packages": "that the base image brings to",
}
_FILE = r"(?:base-|build-)?packages\.[a-z0-9_.-]+\.txt(?:\.new)?"
_LINE = r"([A-Za-z0-9][A-Za-z0-9._+-]*)==([A-Za-z0-9][A-Za-z0-9.!+_~-]*)((?: --hash=sha256:[0-9a-f]{64})*)"
_FACT = "# (asked|newest|as_of|undated): (.+)"
_FACTS = {"asked": "line", "undated": "line", "newest": "moment", "as_of": "moment"}
_OTHER = r"#.*|--extra-index-url \S+|"
_INDEX = r".+ from (https?://[^\s'\"\\]+)"


class PackagesFile:
    """A file with packages. It stands for a `PythonPin` in a lock; iterating over it yields the packages. The file is
    read on first use, because `list` and `rollback` need no packages.

    That use raises LockError if the file is missing or has another digest."""

    def __init__(self, path: str, digest: str, load: Load) -> None:
        self.path, self.digest, self.load = path, digest, load

    @property
    def content(self) -> bytes:
        """The bytes of the file. Raises LockError as above."""
        content = self.load(self.path, self.digest)
        if content is None or sha256_of(content) != self.digest:
            state = "is missing" if content is None else "is not the file that images.lock records"
            _, definition, name = self.path.split("/")
            entry = name.partition(".")[0].replace("base-packages", "base")
            takes_back = f"`git checkout HEAD -- {shell_word(self.path)}` restores the committed file"
            hint = f"{takes_back}; if none is committed, remove the entry `{entry}` of {definition} from images.lock,"
            raise LockError(f"{self.path} {state}", hint=f"{hint} then run `builder lock {definition}`")
        return content

    @cached_property
    def _pin(self) -> PythonPin:
        return parse_packages(self.content.decode(errors="replace"), self.path)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._pin, name)

    def __iter__(self) -> Iterator[LockedPackage]:
        return iter(self._pin.packages)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackagesFile):
            return other.digest == self.digest
        return other in (self._pin, self._pin.packages)

    __hash__ = None  # type: ignore[assignment]


def parse_packages(text: str, file: str) -> PythonPin:
    """The closure in the text of a file. Raises LockError with the place of an invalid line."""
    packages: list[LockedPackage] = []
    facts: dict[str, list[str]] = {name: [] for name in _FACTS}
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        if package := parse_requirement(line):
            packages.append(package)
        elif (fact := re.fullmatch(_FACT, line)) and checking.is_a(_FACTS[fact[1]], fact[2]):
            facts[fact[1]].append(fact[2])
        elif fact or not re.fullmatch(_OTHER, line):
            raise LockError(
                f"{file}:{number}: expected NAME==VERSION with --hash=sha256: digests, or a known comment, found"
                f" `{line[:60]}`",
                hint=f"`git checkout HEAD -- {shell_word(file)}` restores the committed file",
            )
    newest, as_of = ("".join(facts[name]) for name in ("newest", "as_of"))
    return PythonPin(tuple(facts["asked"]), newest, tuple(packages), as_of, tuple(facts["undated"]))


def parse_requirement(line: str) -> LockedPackage | None:
    """The package in a line of a requirements file; None for any other line."""
    match = re.fullmatch(_LINE, line)
    return LockedPackage(match[1], match[2], tuple(match[3].split(" --hash=sha256:")[1:])) if match else None


def requirement_line(package: LockedPackage) -> str:
    hashes = "".join(f" --hash=sha256:{digest}" for digest in package.hashes)
    return f"{package.name}=={package.version}{hashes}\n"


def packages_path(definition: str, platform: str, part: str) -> str:
    return f"dockerfiles/{definition}/{part}.{platform.replace('/', '-')}.txt"


def is_packages(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return folder.count("/") == 1 and folder.startswith("dockerfiles/") and bool(re.fullmatch(_FILE, name))


def name_of_copy(digest: str) -> str:
    return f"locked-{digest.removeprefix('sha256:')[:16]}.txt"


def packages_file(path: str, closure: PythonPin | PackagesFile | Sequence[LockedPackage]) -> PackagesFile:
    """The file at ``path`` for a closure. Raises ValueError for a closure that could not be read back (a bug)."""
    if isinstance(closure, PackagesFile):
        return closure
    pin = closure if isinstance(closure, PythonPin) else PythonPin((), "", closure)
    pin = replace(pin, packages=tuple(sorted(pin.packages, key=lambda package: package.name)))
    text = _text(path, pin)
    if parse_packages(text, path) != pin:
        raise ValueError(f"{path} would hold another closure")
    content = text.encode()
    return PackagesFile(path, sha256_of(content), lambda *_: content)


def packages_files(lock: Lock) -> Iterator[PackagesFile]:
    for definition, platforms in lock.pins.items():
        for platform, pins in platforms.items():
            yield from (
                packages_file(path, closure) for _, path, closure in closures_of_pins(definition, platform, pins)
            )


def closures_of_pins(definition: str, platform: str, pins: Pins) -> Iterator[tuple[str, str, Any]]:
    """The closures of pins, each with its key in images.lock and the path of its file."""
    of_base = pins.base.packages if pins.base else ()
    for part, closure in (("base-packages", of_base), ("packages", pins.python), ("build-packages", pins.build)):
        if closure:
            yield part, packages_path(definition, platform, part), closure


def _text(path: str, pin: PythonPin) -> str:
    _, definition, name = path.split("/")
    part, _, platform = name.removesuffix(".txt").partition(".")
    lines = [
        f"# The Python packages {_WHAT[part]} {definition} on {platform}.",
        "# `builder lock` writes this file, and images.lock has its digest.",
    ]
    if part != "base-packages":
        lines += [
            "# Each has the SHA-256 of every file that suits. To install them without builder:",
            f"#   uv pip install --require-hashes --no-deps --index-strategy unsafe-best-match -r {name}",
        ]
    facts = {"asked": pin.requested, "newest": [pin.newest], "as_of": [pin.as_of], "undated": pin.undated}
    lines += [f"# {name}: {fact}" for name, values in facts.items() for fact in values if fact]
    indexes = (re.fullmatch(_INDEX, line) for line in pin.requested)
    lines += dict.fromkeys(f"--extra-index-url {match[1]}" for match in indexes if match)
    return "".join((*(f"{line}\n" for line in lines), *map(requirement_line, pin.packages)))
