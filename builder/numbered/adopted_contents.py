"""The contents of an image that was built elsewhere, read out of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.engine import images, installed
from builder.engine.client.errors import EngineHTTPError
from builder.errors import BuildFailedError, ImageContentsError, ImageStateError
from builder.events import Message
from builder.numbered.adopted import AdoptedContents

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.engine.images import ImageDetails
    from builder.engine.installed import InstalledPackage
    from builder.workspace import Workspace

_LONGEST = 200


def look_into(
    workspace: Workspace, image: str, details: ImageDetails, marks: Mapping[str, str]
) -> tuple[AdoptedContents, Mapping[str, InstalledPackage]]:
    """Reads what is in an image, in a container with the labels ``marks``; without its software where that cannot be
    read, which is no error."""
    workspace.report(Message(f"looking into {image}"))
    entrypoint = tuple(map(str, details.config.get("Entrypoint", ())))
    contents = AdoptedContents(images.fingerprint(details), labels=dict(details.labels), entrypoint=entrypoint)
    try:
        software = installed.read(workspace.engine, details.id, marks, details.platform)
    except (ImageContentsError, ImageStateError, EngineHTTPError) as error:
        why = _plain(error.message.splitlines()[0].replace(details.id, image))
        return replace(contents, unknown=why), {}
    except BuildFailedError:  # its message is the whole script
        return replace(contents, unknown=f"{image} did not tell in {installed.READ_SECONDS} seconds what is in it"), {}
    packages = {_plain(name): _plain(version) for name, version in software.packages.items()}
    contents = replace(contents, python=_plain(software.python), packages=packages, metadata=software.metadata)
    if "vllm" not in software.sources:
        contents = replace(contents, unknown=f"{image} has no vLLM")
    sources = {name: replace(package, version=_plain(package.version)) for name, package in software.sources.items()}
    return contents, sources


def _plain(text: str) -> str:
    """``text`` of an image of others, as it may stand on a terminal."""
    return "".join(character for character in text if character.isprintable())[:_LONGEST]
