"""Cached tags are always those of a full listing."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from builder.engine import client, containers, images
from builder.engine.client import Endpoint
from tests.engine.conftest import Build

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


A, B = ("sha256:" + letter * 64 for letter in "ab")


def event(action: str, name: str = "", id_: str = A, kind: str = "image") -> dict[str, Any]:
    return {"Type": kind, "Action": action, "Actor": {"ID": id_, "Attributes": {"name": name}}, "timeNano": 1}


@pytest.mark.parametrize(
    ("happened", "touched"),
    [
        ([], set()),
        ([event("start", kind="container"), event("connect", kind="network"), event("prune", kind="builder")], set()),
        ([event("tag", "r:2", B)], {"r:2"}),
        ([event("untag", "r:1")], {"r:1", "r:latest"}),
        # As the classic image store writes it.
        ([event("untag", A, A), event("delete", A, A)], {"r:1", "r:latest", A}),
        ([event("create", B, B), event("push", "r:1"), event("save", A)], set()),
        ([event("tag", "r:2", B), event("pull", "debian:1", "debian:1")], None),
        ([event("load", A)], None),
        ([event("commit", "c", kind="container")], None),
        ([event("something new", "r:1")], None),
    ],
)
def test_what_may_have_changed(happened: list[dict[str, Any]], touched: set[str] | None) -> None:
    assert images._changed_names(happened, {"r:1": A, "r:latest": A, "r:0": B}) == touched


@pytest.mark.parametrize(
    ("name", "wanted", "matches"),
    [
        ("r:1", [], True),
        ("r:1", ["r"], True),
        ("r:1", ["r:1"], True),
        ("r:1", ["r:2", "s"], False),
        ("rest:1", ["r*"], True),
        ("h/rest:1", ["r*"], False),
        ("h:5000/rest:1", ["h:5000/r*"], True),
        (A, [], False),
    ],
)
def test_which_names_are_listed(name: str, wanted: list[str], matches: bool) -> None:
    assert images._matches(name, wanted) == matches


@contextmanager
def unasked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Records the listings that are requested of the engine during the block, and passes them on."""
    listings: list[str] = []
    real = client.listed

    def listed(
        endpoint: Endpoint, path: str, *, query: Mapping[str, str | int] | None = None, timeout: float = 60
    ) -> list[client.EngineAnswer]:
        if path == "/images/json":
            listings.append(json.dumps(query))
        return real(endpoint, path, query=query, timeout=timeout)

    with monkeypatch.context() as patched:
        patched.setattr(images, "listed", listed)
        yield listings


@pytest.fixture
def own_events(monkeypatch: pytest.MonkeyPatch, repository: str) -> None:
    """Leaves out the events of other tests: they share the engine, and after each of their pulls all is listed."""
    real = images.list_since

    def list_own(endpoint: Endpoint, since: images.EventMarker | None) -> list[dict[str, Any]] | None:
        events = real(endpoint, since)
        return events and [event for event in events if repository in json.dumps(event)]

    monkeypatch.setattr(images, "list_since", list_own)


@pytest.mark.engine
def test_every_change_is_seen(endpoint: Endpoint, repository: str, build: Build, tmp_path: Path) -> None:
    cache = tmp_path / "engine.json"
    wanted = [repository, "builder-test-another"]

    def check() -> dict[str, str]:
        tags = images.cached_tags(endpoint, wanted, cache)
        assert tags == images.image_tags(endpoint, wanted)
        return tags

    assert check() == {}
    build(f"{repository}:1", "FROM scratch\nCOPY Dockerfile /\nLABEL n=1\n")
    assert list(check()) == [f"{repository}:1"]
    build(f"{repository}:2", "FROM scratch\nCOPY Dockerfile /\nLABEL n=2\n")
    images.tag_image(endpoint, f"{repository}:1", f"{repository}:latest")
    assert len(check()) == 3
    images.tag_image(endpoint, f"{repository}:2", f"{repository}:latest")
    moved = check()
    assert moved[f"{repository}:latest"] == moved[f"{repository}:2"]
    images.remove_extra_tag(endpoint, f"{repository}:latest")
    check()
    build(f"{repository}:1", "FROM scratch\nCOPY Dockerfile /\nLABEL n=3\n")
    rebuilt = check()
    assert rebuilt[f"{repository}:1"] != moved[f"{repository}:1"]
    images.remove_image(endpoint, rebuilt[f"{repository}:2"])
    assert list(check()) == [f"{repository}:1"]
    images.tag_image(endpoint, f"{repository}:1", f"{repository}-2:1")
    try:
        assert list(check()) == [f"{repository}:1"]
    finally:
        images.remove_extra_tag(endpoint, f"{repository}-2:1")


@pytest.mark.engine
def test_images_that_exist_are_found_with_their_content(
    endpoint: Endpoint, repository: str, build: Build, tmp_path: Path
) -> None:
    build(f"{repository}:1", "FROM scratch\nCOPY Dockerfile /\n")
    details = images.inspect_image(endpoint, f"{repository}:1")
    assert details is not None
    names = [f"{repository}:1", f"{repository}:2"]
    ids, fingerprints = images.find_images(endpoint, [repository], names, tmp_path / "engine.json")
    assert list(ids) == [f"{repository}:1"]
    assert fingerprints == {f"{repository}:1": images.fingerprint(details)}
    assert images.find_images(endpoint, [repository], [], tmp_path / "none") == ({}, {})


@pytest.mark.engine
@pytest.mark.usefixtures("own_events")
def test_what_has_not_changed_is_not_asked_for(
    endpoint: Endpoint, repository: str, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "engine.json"
    image = build(f"{repository}:1", "FROM debian:bookworm-slim\nLABEL n=1\n").id
    first = images.cached_tags(endpoint, [repository], cache)
    with unasked(monkeypatch) as listings:
        assert images.cached_tags(endpoint, [repository], cache) == first
        with containers.running(endpoint, image, labels={repository: ""}):
            assert images.cached_tags(endpoint, [repository], cache) == first
        assert listings == []
        images.tag_image(endpoint, image, f"{repository}:2")
        assert len(images.cached_tags(endpoint, [repository], cache)) == 2
        assert len(listings) == 1
        assert f"{repository}:2" in listings[0]
        images.cached_tags(endpoint, [f"{repository}:1"], cache)
        assert len(listings) == 2, "other references are another question"


@pytest.mark.engine
@pytest.mark.usefixtures("own_events")
def test_a_record_that_does_not_reach_back_is_not_trusted(
    endpoint: Endpoint, repository: str, build: Build, tmp_path: Path
) -> None:
    cache = tmp_path / "engine.json"
    build(f"{repository}:1", "FROM scratch\nCOPY Dockerfile /\n")
    tags = images.cached_tags(endpoint, [repository], cache)
    section = images.load_cache(cache)["tags"]
    wrong = {**section, "tags": {f"{repository}:9": A}}
    for lost in (
        {"nanoseconds": section["nanoseconds"] - 1},
        {"nanoseconds": section["nanoseconds"] + 10**9 * 3600},  # the clock was set back
        {"actor": "another"},
        {"host": "unix:///other"},
        {"tags": 7},
    ):
        images.store_cache(cache, "tags", {**wrong, **lost})
        assert images.cached_tags(endpoint, [repository], cache) == tags
    images.store_cache(cache, "tags", wrong)
    assert images.cached_tags(endpoint, [repository], cache) == wrong["tags"], (
        "the marker is there, so nothing is asked"
    )


@pytest.mark.engine
def test_an_engine_elsewhere_is_asked_each_time(
    endpoint: Endpoint, repository: str, build: Build, tcp: str, tmp_path: Path
) -> None:
    image = build(f"{repository}:1", "FROM scratch\nCOPY Dockerfile /\n").id
    assert images.cached_tags(replace(endpoint, host=tcp), [repository], tmp_path / "c") == {f"{repository}:1": image}
    assert not (tmp_path / "c").exists()


@pytest.mark.engine
def test_the_record_of_events(endpoint: Endpoint, repository: str, build: Build) -> None:
    image = build(f"{repository}:1", "FROM scratch\nCOPY Dockerfile /\n").id
    before = images._marker_of((images.list_since(endpoint, None) or [])[-1])
    assert before is not None
    images.tag_image(endpoint, image, f"{repository}:2")
    recent = images.list_since(endpoint, before)
    assert recent is not None
    mine = [
        (each["Type"], each["Action"], each["Actor"]["ID"])
        for each in recent
        if each["Actor"]["Attributes"].get("name") == f"{repository}:2"
    ]
    assert mine == [("image", "tag", image)]
    assert images.list_since(endpoint, (before[0], "somebody else")) is None
