from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.engine import client, images
from builder.engine.client import Endpoint
from builder.engine.images import ImageDetails
from tests import shared
from tests.conftest import remove_all
from tests.stock import BASE, labels, load

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.engine


@pytest.fixture
def name(endpoint: Endpoint) -> Iterator[str]:
    repository = shared.unique_name()
    yield repository
    remove_all(endpoint, repository)


def inspected(endpoint: Endpoint, tag: str) -> ImageDetails:
    image = images.inspect_image(endpoint, tag)
    assert image
    return image


def test_a_layer_is_told_by_all_below_it(endpoint: Endpoint, name: str) -> None:
    load(endpoint, f"{name}:1", (BASE, {"a": b"1" * 50_000}, {"b": b"2" * 90_000}))
    load(endpoint, f"{name}:2", (BASE, {"b": b"2" * 90_000}))
    first, second = (inspected(endpoint, f"{name}:{n}") for n in (1, 2))
    assert [len(layer) for layer in images.layers(first)] == [1, 2, 3]
    assert set(images.layers(first)) & set(images.layers(second)) == {images.layers(first)[0]}
    sizes = images.layer_sizes(endpoint, [first, second])
    assert [sizes[layer] // 10_000 for layer in images.layers(first)] == [2, 5, 9]
    assert {first.id, second.id} <= {image.id for image in images.all_images(endpoint)}


def test_an_image_removed_meanwhile_changes_no_size(endpoint: Endpoint, name: str) -> None:
    load(endpoint, f"{name}:1", (BASE, {"a": name.encode()}))
    load(endpoint, f"{name}:2", (BASE, {"b": name.encode()}))
    one, two = (inspected(endpoint, f"{name}:{number}") for number in (1, 2))
    before = images.layer_sizes(endpoint, [one])
    images.remove_image(endpoint, f"{name}:2")
    after = images.layer_sizes(endpoint, [one, two])
    assert {layer: after[layer] for layer in before} == before
    assert after[images.layers(two)[1]] == 0


@pytest.mark.parametrize(
    ("created_by", "sizes", "layers", "expected"),
    [
        (["ADD x", "ENV a=b", "RUN y", "LABEL a=b"], [10, 0, 20, 0], 2, [10, 20]),
        # The classic store gives 0 for a layer that holds only a folder.
        (["ADD x", "ENV a=b", "WORKDIR /a", "RUN y"], [10, 0, 0, 20], 3, [10, 0, 20]),
        (["/bin/sh -c #(nop) ADD x", "/bin/sh -c #(nop)  CMD [a]", "/bin/sh -c y"], [10, 0, 0], 2, [10, 0]),
        # An imported image, or a tool that wrote no history.
        (["x"], [10], 3, [0, 0, 0]),
        ([], [], 2, [0, 0]),
    ],
)
def test_the_history_tells_the_sizes_where_it_can(
    created_by: list[str], sizes: list[int], layers: int, expected: list[int]
) -> None:
    history = [{"CreatedBy": by, "Size": size} for by, size in zip(created_by, sizes, strict=True)]
    assert images._sizes(history, layers) == expected


def test_containers_are_found_by_the_image_that_they_use(endpoint: Endpoint, name: str) -> None:
    load(endpoint, f"{name}:1", (BASE, {"a": name.encode()}))
    body = {"Image": f"{name}:1"}
    made = [
        client.request(endpoint, "POST", "/containers/create", query={"name": f"{name}-{n}"}, body=body)["Id"]
        for n in (1, 2)
    ]
    try:
        names = images.containers_by_image(endpoint)[inspected(endpoint, f"{name}:1").id]
        assert sorted(names) == [f"{name}-1", f"{name}-2"]
    finally:
        for container in made:
            client.request(endpoint, "DELETE", f"/containers/{container}", query={"force": 1})


def test_images_that_lost_their_name_are_dangling(endpoint: Endpoint, name: str) -> None:
    ids = []
    for content in (b"1", b"2"):
        load(endpoint, f"{name}:1", (BASE, {"a": content + name.encode()}), labels(name, 1))
        ids.append(inspected(endpoint, f"{name}:1").id)
    assert images.dangling(endpoint).intersection(ids) == {ids[0]}
