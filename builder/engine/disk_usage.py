"""The disk space of images in the engine, and the containers that use them.

The engine keeps each layer once, however many images share it: a layer is identified by its own digest and those of all
layers below it. Its size comes from the image's history: that of the unpacked layer, on either image store. The
containerd store keeps the packed layer as well, whose size no request to the engine returns.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from builder.engine import containers, images
from builder.engine.client.api import quoted, request
from builder.engine.client.errors import EngineHTTPError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from builder.engine.client.endpoint import Endpoint
    from builder.engine.images import ImageDetails

Layer = tuple[str, ...]
"""A layer: its digest and those of all layers below it."""

# The instructions that change no file, as BuildKit and the builder before it write them into the history.
NO_LAYER = re.compile(
    r"(?:/bin/sh -c #\(nop\) +)?(?:ARG|CMD|ENTRYPOINT|ENV|EXPOSE|HEALTHCHECK|LABEL|MAINTAINER|ONBUILD|SHELL|STOPSIGNAL"
    r"|USER|VOLUME)\b"
)


def all_images(endpoint: Endpoint) -> tuple[ImageDetails, ...]:
    """Returns all images of the engine, those without a tag included."""
    listing = images.listing(endpoint)
    with ThreadPoolExecutor(max_workers=4) as pool:
        inspected = pool.map(lambda id_: images.inspect(endpoint, id_), sorted({image["Id"] for image in listing}))
        return tuple(image for image in inspected if image is not None)


def dangling(endpoint: Endpoint, label: str) -> frozenset[str]:
    """Returns the ids of the images that have this label (``key`` or ``key=value``) and no tag."""
    return frozenset(image["Id"] for image in images.listing(endpoint, {"dangling": ["true"], "label": [label]}))


def layers(image: ImageDetails) -> tuple[Layer, ...]:
    """Returns the layers of an image, the lowest first."""
    return tuple(image.layers[:end] for end in range(1, len(image.layers) + 1))


def layer_sizes(endpoint: Endpoint, of_images: Iterable[ImageDetails]) -> dict[Layer, int]:
    """Returns the unpacked size in bytes of each layer of these images; 0 where the history does not tell it."""
    measured = tuple(of_images)
    with ThreadPoolExecutor(max_workers=4) as pool:
        histories = pool.map(lambda image: history(endpoint, image), measured)
        sizes: dict[Layer, int] = {}
        for image, steps in zip(measured, histories, strict=True):
            of_image = _sizes(steps, len(image.layers))
            for layer, size in zip(layers(image), of_image, strict=True):
                sizes[layer] = size or sizes.get(layer, 0)
    return sizes


def history(endpoint: Endpoint, image: ImageDetails) -> list[Mapping[str, object]]:
    """Returns the history of an image, oldest step first; empty for one that was removed since it was listed."""
    try:
        steps = request(endpoint, "GET", f"/images/{quoted(image.id)}/history")
    except EngineHTTPError as error:
        if error.is_not_found:
            return []
        raise
    return list(reversed(steps or []))


def _sizes(steps: Sequence[Mapping[str, object]], count: int) -> list[int]:
    """Returns the sizes of ``count`` layers; the history lists steps without telling which of them made a layer."""
    not_empty = [entry for entry in steps if entry["Size"]]
    changing = [entry for entry in steps if not NO_LAYER.match(str(entry["CreatedBy"]))]
    for made in (not_empty, changing):
        if len(made) == count:
            return [int(str(entry["Size"])) for entry in made]
    return [0] * count


def containers_by_image(endpoint: Endpoint) -> dict[str, tuple[str, ...]]:
    """Returns the names of the containers, running or not, that use each image, by the image's id."""
    names: dict[str, tuple[str, ...]] = {}
    for container in containers.listing(endpoint):
        name = next(iter(container.get("Names") or ()), container["Id"][:12]).lstrip("/")
        names[container["ImageID"]] = (*names.get(container["ImageID"], ()), name)
    return names
