"""What images take on the engine's disk, and what holds them there.

The engine keeps each layer once, however many images are made of it: a layer is told from others by all the layers
below it. Its size comes from the image's history: what the unpacked layer takes, on either image store. The containerd
store keeps the packed layer as well, whose size no question to the engine brings out.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from builder.engine.client.api import quoted, request
from builder.engine.images import ImageDetails, inspect

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from builder.engine.client.endpoint import Endpoint

Layer = tuple[str, ...]
"""A layer, by its digest and those of all layers below it."""

_LISTING_WAIT = 300.0
# The instructions that change no file, as BuildKit and the builder before it write them into the history.
_NO_LAYER = re.compile(
    r"(?:/bin/sh -c #\(nop\) +)?(?:ARG|CMD|ENTRYPOINT|ENV|EXPOSE|HEALTHCHECK|LABEL|MAINTAINER|ONBUILD|SHELL|STOPSIGNAL"
    r"|USER|VOLUME)\b"
)


def all_images(endpoint: Endpoint) -> tuple[ImageDetails, ...]:
    """All images of the engine, those too that have no name."""
    found = request(endpoint, "GET", "/images/json", timeout=_LISTING_WAIT) or []
    with ThreadPoolExecutor(max_workers=4) as pool:
        inspected = pool.map(lambda id_: inspect(endpoint, id_), sorted({image["Id"] for image in found}))
        return tuple(image for image in inspected if image is not None)


def dangling(endpoint: Endpoint, label: str) -> frozenset[str]:
    """The ids of the images that have this label (``key`` or ``key=value``) and no name."""
    filters = json.dumps({"dangling": ["true"], "label": [label]})
    found = request(endpoint, "GET", "/images/json", query={"filters": filters}, timeout=_LISTING_WAIT) or []
    return frozenset(image["Id"] for image in found)


def layers(image: ImageDetails) -> tuple[Layer, ...]:
    """The layers of an image, the lowest first."""
    return tuple(image.layers[:end] for end in range(1, len(image.layers) + 1))


def layer_sizes(endpoint: Endpoint, images: Iterable[ImageDetails]) -> dict[Layer, int]:
    """The bytes that each layer of these images takes unpacked. A layer that the history tells nothing certain about
    counts as none."""
    wanted = tuple(images)
    with ThreadPoolExecutor(max_workers=4) as pool:
        histories = pool.map(lambda image: request(endpoint, "GET", f"/images/{quoted(image.id)}/history"), wanted)
        found: dict[Layer, int] = {}
        for image, history in zip(wanted, histories, strict=True):
            sizes = _sizes(list(reversed(history or [])), len(image.layers))
            found.update(zip(layers(image), sizes, strict=True))
    return found


def _sizes(history: Sequence[Mapping[str, object]], count: int) -> list[int]:
    """The history names steps, and not which of them made a layer."""
    not_empty = [entry for entry in history if entry["Size"]]
    changing = [entry for entry in history if not _NO_LAYER.match(str(entry["CreatedBy"]))]
    for made in (not_empty, changing):
        if len(made) == count:
            return [int(str(entry["Size"])) for entry in made]
    return [0] * count


def containers_by_image(endpoint: Endpoint) -> dict[str, tuple[str, ...]]:
    """The names of the containers, running or not, that use each image, by the image's id."""
    found: dict[str, tuple[str, ...]] = {}
    for container in request(endpoint, "GET", "/containers/json", query={"all": 1}) or []:
        name = next(iter(container.get("Names") or ()), container["Id"][:12]).lstrip("/")
        found[container["ImageID"]] = (*found.get(container["ImageID"], ()), name)
    return found
