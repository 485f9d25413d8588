"""An adopted image was built elsewhere and has a number in this project.

Its record and its recovery come first, then its contents, then its names.
The build directory of an adopted image describes the image but cannot build it again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base import records, words
from builder.base.errors import BuildFailedError, ImageContentsError, ImageStateError, UsageError
from builder.base.events import Message
from builder.base.values import dataclass, field, replace
from builder.definitions import image
from builder.engine import images
from builder.engine.client import Endpoint, EngineHTTPError
from builder.plan import plan_model

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.engine.images import ImageDetails
    from builder.engine.installed import InstalledPackage
    from builder.lock.model import ImageName, NumberedImage
    from builder.numbers.workspace import Workspace


# The file ``adopted.json`` in the build directory of an adopted image, and the ways to restore a missing number.

FILE = plan_model.ADOPTED
_HEAD = {"version": 1}


@dataclass(frozen=True)
class AdoptedContents:
    """The contents that were read from an adopted image: the labels, the software as in
    `engine.installed.InstalledSoftware`, and the entrypoint. ``unknown`` says why the software is unknown; empty if it
    is known."""

    fingerprint: str
    labels: Mapping[str, str] = field(default_factory=dict)
    python: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    unknown: str = ""
    entrypoint: tuple[str, ...] = ()


def dump(contents: AdoptedContents) -> bytes:
    return records.text_of(contents, _HEAD).encode()


def read_adopted(directory: Path) -> AdoptedContents | None:
    try:
        return records.read_file(directory / FILE, AdoptedContents, _HEAD)
    except (OSError, records.RecordError):
        return None


def way_back(name: ImageName, image: NumberedImage) -> str:
    """Returns the way to restore a number that the engine lacks: from the registry first, else from its source."""
    if image.digest:
        return f"`builder pull {name}` gets it from the registry that `registry:` in builder.yaml names"
    if image.adopted is None:
        return f"`builder rebuild {name}` builds it again"
    if image.adopted.digests:
        source = image.adopted.digests[0]
        return f"`docker pull {source}`, then `builder adopt {source} --as {name.repository}` restores its number"
    again = f"`builder adopt IMAGE --as {name.repository}`"
    return f"copy the image back from the machine that built it; then {again} restores its number"


def frees(name: ImageName | str) -> str:
    """The command that takes a number's tag from another image, which keeps another name."""
    return f"docker tag {name} OTHER-NAME; docker image rm {name}"


def require_present(endpoint: Endpoint, name: ImageName, recorded: NumberedImage) -> None:
    """Raises ImageStateError if the engine lacks the image that images.lock records for this number."""
    if not is_present(endpoint, name, recorded):
        state = f"was pruned on {recorded.pruned[:10]}" if recorded.pruned else "is missing from this engine"
        raise ImageStateError(f"{name} {state}", hint=way_back(name, recorded))


def is_present(endpoint: Endpoint, name: ImageName, recorded: NumberedImage) -> bool:
    """True if the engine has the image that images.lock records for this number. Raises ImageStateError if the number's
    tag names another image: no command of builder takes a tag from an image."""
    details = images.inspect_image(endpoint, str(name))
    if details and images.fingerprint(details) != recorded.fingerprint:
        where = f"the engine of {endpoint.node}" if endpoint.node else "this engine"
        message = f"{name} is not the image that images.lock records: its tag was moved in {where}"
        raise ImageStateError(message, hint=f"in {where}, `{frees(name)}` frees the name; then run the command again")
    return details is not None


# Reading the contents of an image that was built elsewhere.

_LONGEST = 200


def look_into(
    workspace: Workspace, image: str, details: ImageDetails, marks: Mapping[str, str]
) -> tuple[AdoptedContents, Mapping[str, InstalledPackage]]:
    """Reads the contents of an image, in a container with the labels ``marks``. If the software cannot be read, the
    result has none; this is not an error."""
    from builder.engine import installed

    workspace.report(Message(f"reading what {image} contains"))
    entrypoint = tuple(map(str, details.config.get("Entrypoint", ())))
    contents = AdoptedContents(images.fingerprint(details), labels=dict(details.labels), entrypoint=entrypoint)
    try:
        software = installed.read_installed(workspace.engine, details.id, marks, details.platform)
    except (ImageContentsError, ImageStateError, EngineHTTPError) as error:
        why = _plain(error.message.splitlines()[0].replace(details.id, image))
        return replace(contents, unknown=why), {}
    except BuildFailedError:  # its message is the whole script
        return replace(
            contents, unknown=f"{image} did not report what it contains within {installed.READ_SECONDS} seconds"
        ), {}
    packages = {_plain(name): _plain(version) for name, version in software.packages.items()}
    contents = replace(contents, python=_plain(software.python), packages=packages, metadata=software.metadata)
    if "vllm" not in software.sources:
        contents = replace(contents, unknown=f"{image} has no vLLM")
    sources = {name: replace(package, version=_plain(package.version)) for name, package in software.sources.items()}
    return contents, sources


def _plain(text: str) -> str:
    """``text`` from an untrusted image, safe for a terminal."""
    return "".join(character for character in text if character.isprintable())[:_LONGEST]


# The names of an image that was built elsewhere: the name that the user typed, its names in registries, and the
# repository that gives it a number.

# The pattern of image.schema.json for the repositories of definitions.
_REPOSITORY = re.compile(r"(?=.{1,200}$)[a-z0-9]+(?:(?:[._/]|__|-+)[a-z0-9]+)*")
_ID = re.compile("(sha256:)?[0-9a-f]{12,64}")
_SHOWN_TAGS = 8


def find_image_to_adopt(engine: Endpoint, typed: str) -> ImageDetails:
    """The image whose name or id the user ``typed``. Raises ImageStateError if the engine has no such image."""
    details = images.inspect_image(engine, typed)
    if details is not None:
        return details
    repository = images.repository(typed)
    tags = sorted(images.image_tags(engine, [repository]))
    shown = ", ".join(tags[:_SHOWN_TAGS]) + (" …" if len(tags) > _SHOWN_TAGS else "")
    hint = "`docker image ls` shows the images of the engine"
    if tags:
        hint = f"the engine has these tags of it: {shown}"
    elif not _ID.fullmatch(typed):
        hint = f"`docker pull {typed}` gets it; {hint}"
    raise ImageStateError(f"the engine has no image {typed}", hint=hint)


def choose(project: Project, typed: str, wanted: str | None, details: ImageDetails) -> tuple[str, str]:
    """The repository that gets the number, and the name under which the image is recorded. The user ``typed`` a name or
    an id; ``wanted`` is a repository, or None for the image's own.

    Raises UsageError if the image has no single repository, or the name of the repository is invalid.
    """
    name = images.familiar(typed)
    own = {images.repository(other) for other in (*details.tags, *details.digests)}
    if images.repository(name) in own:
        repository = images.repository(name)
        source = name if "@" in name else ":".join(images.split_tag(name))
    else:
        tagged = sorted({images.repository(tag) for tag in details.tags})
        if len(tagged) != 1 and wanted is None:
            several = f"it has tags in {', '.join(tagged)}" if tagged else "it has no tag"
            message = f"{typed} does not belong to a single repository: {several}"
            raise UsageError(message, hint="name the repository whose number it gets: `--as REPOSITORY`")
        repository, source = (tagged or [""])[0], details.id
    chosen = repository if wanted is None else wanted
    if wanted in image.definition_names(project) and (other := image.repository_of(project, wanted)) != wanted:
        raise UsageError(f"`{wanted}` is an image definition: its images belong to {other}", hint=f"`--as {other}`")
    is_reserved = re.fullmatch(words.RESERVED_REPOSITORY, chosen)
    if is_reserved or not _REPOSITORY.fullmatch(chosen):
        what = f"`{chosen}`" if wanted is None else f"`--as {chosen}`"
        valid = "is not a valid repository name: use lower-case letters and digits, with . _ - or / between them"
        message = f"{what} {'is reserved for images that are being made' if is_reserved else valid}"
        raise UsageError(message, hint="name another repository with `--as REPOSITORY`, such as `--as vllm-node`")
    return chosen, source


def in_registries(details: ImageDetails, source: str) -> tuple[str, ...]:
    """The names by which registries may have an image; the name in the repository of ``source`` comes first. A name
    without a slash is left out: only this engine has it, or it is one of Docker's own images."""
    names = {name for name in details.digests if "/" in name}
    own = images.repository(source)
    return tuple(sorted(names, key=lambda name: (images.repository(name) != own, name)))
