"""Claims in a real engine: who gets a number or a ``latest``, and what becomes of those of projects that are gone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import ImageStateError
from builder.base.project import Project
from builder.engine import containers
from builder.engine.client import Endpoint
from builder.lock.model import ImageName, Lock, NumberedImage, Pairing
from builder.numbers import claims
from builder.numbers.claims import ProjectIdentity
from tests import shared
from tests.conftest import remove_all
from tests.stock import load
from tests.workspaces import workspace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.engine

RECORD = NumberedImage(
    built="2026-11-20T12:00:00Z", definition="small", platform="linux/amd64", fingerprint="f", input_hash="h", size=1
)


@pytest.fixture
def claimed(endpoint: Endpoint) -> Iterator[str]:
    """A repository of which nothing is claimed; nor is when the test ends."""
    name = shared.unique_name()
    yield name
    remove_all(endpoint, name)


@pytest.fixture
def own(tmp_path: Path) -> ProjectIdentity:
    return claims.project_identity(Project(tmp_path / "own"))


@pytest.fixture
def other(tmp_path: Path) -> ProjectIdentity:
    return claims.project_identity(Project(tmp_path / "other"))


def gone(tmp_path: Path) -> ProjectIdentity:
    """A project that was here once."""
    project = Project(tmp_path / "gone")
    was = claims.project_identity(project)
    project.root.rename(tmp_path / "away")
    return was


def test_of_many_that_claim_a_number_one_gets_it(
    endpoint: Endpoint, claimed: str, own: ProjectIdentity, other: ProjectIdentity
) -> None:
    def claim(project: ProjectIdentity) -> bool:
        return claims.give_number(endpoint, project, ImageName(claimed, 1), project.id)

    with ThreadPoolExecutor(8) as pool:
        given = list(pool.map(claim, [own, other] * 4))
    assert set(given[::2]) != set(given[1::2])
    assert claims.next_number(endpoint, claimed) == 2


def test_a_number_is_never_given_to_other_content(
    endpoint: Endpoint, claimed: str, own: ProjectIdentity, other: ProjectIdentity
) -> None:
    name = ImageName(f"{claimed}/a-b", 3)
    claims.require_number(endpoint, own, name, "sha256:one")
    claims.require_number(endpoint, other, name, "sha256:one")
    with pytest.raises(ImageStateError, match=r"the project in \S+/own on ") as caught:
        claims.require_number(endpoint, other, name, "sha256:two")
    assert "docker volume rm builder.number." in caught.value.hint
    claims.release_number(endpoint, other, name)
    assert not claims.give_number(endpoint, other, name, "sha256:two")
    # This project knows what its own number is.
    claims.require_number(endpoint, own, name, "sha256:two")
    claims.release_number(endpoint, own, name)
    assert claims.give_number(endpoint, other, name, "sha256:two")


def test_a_project_that_is_gone_keeps_nothing_but_its_numbers(
    endpoint: Endpoint, claimed: str, tmp_path: Path, own: ProjectIdentity, other: ProjectIdentity
) -> None:
    was, name = gone(tmp_path), ImageName(claimed, 7)
    assert claims.give_number(endpoint, was, name, "sha256:one")
    assert claims.take_latest(endpoint, was, claimed) is None
    claims.write_holding(endpoint, was, Lock().with_image(name, RECORD), claimed)
    assert claims.next_number(endpoint, claimed) == 8
    assert claims.owner_of_latest(endpoint, own.id, claimed) is None
    assert not [each for each in claims.of_others(endpoint, own.id) if each.repository == claimed]
    assert claims.take_latest(endpoint, own, claimed) is None
    assert claims.take_latest(endpoint, other, claimed) == own
    assert claims.owner_of_latest(endpoint, "", claimed) == own
    claims.require_number(endpoint, own, name, "sha256:own")
    claims.write_holding(endpoint, own, Lock().with_image(name, RECORD), claimed)
    assert {claims.of_labels(labels) for labels in claims.of_repository(endpoint, claimed).values()} == {own}


def test_latest_is_of_the_project_that_took_it(
    endpoint: Endpoint, claimed: str, own: ProjectIdentity, other: ProjectIdentity
) -> None:
    assert claims.take_latest(endpoint, own, claimed) is None
    assert claims.take_latest(endpoint, other, claimed) == own
    assert claims.take_latest(endpoint, own, claimed) is None
    assert claims.owner_of_latest(endpoint, other.id, claimed) == own
    containers.remove_volume(endpoint, claims.volume_of_latest(claimed))
    assert claims.take_latest(endpoint, other, claimed) is None
    assert claims.owner_of_latest(endpoint, own.id, claimed) == other


def test_others_are_told_which_numbers_a_project_has(
    endpoint: Endpoint, claimed: str, own: ProjectIdentity, other: ProjectIdentity
) -> None:
    lock = Lock()
    for number in (1, 2, 3, 5):
        lock = lock.with_image(ImageName(claimed, number), RECORD)
    pruned = NumberedImage(**{**vars(RECORD), "pruned": "2026-11-21T12:00:00Z"})
    lock = lock.with_image(ImageName(claimed, 7), pruned).with_image(ImageName(claimed, 9), pruned)
    lock = lock.with_pairing("Org/M", Pairing(ImageName(claimed, 7)))
    for _ in range(2):
        claims.write_holding(endpoint, own, lock, claimed)
        assert len(claims.of_repository(endpoint, claimed)) == 1
    others = claims.of_others(endpoint, other.id)
    had = [number for number in range(12) if others.get(ImageName(claimed, number)) == own]
    assert had == [1, 2, 3, 5, 7]
    assert claims.next_number(endpoint, claimed) == 10
    lock = lock.with_image(ImageName(claimed, 2), pruned)
    claims.write_holding(endpoint, own, lock, claimed)
    others = claims.of_others(endpoint, other.id)
    assert not others.get(ImageName(claimed, 2))
    assert not [each for each in claims.of_others(endpoint, own.id) if each.repository == claimed]
    claims.write_holding(endpoint, own, Lock(), claimed)
    assert claims.of_repository(endpoint, claimed) == {}


def test_a_number_that_is_left_out_has_a_reason(endpoint: Endpoint, claimed: str, tmp_path: Path) -> None:
    here = workspace(Project(tmp_path), endpoint)
    before = f"another project or an earlier images.lock already gave {claimed}:1 in this engine"
    assert claims.reason(here, ImageName(claimed, 2)) == before
    load(endpoint, f"{claimed}:1", [{"file": b"x"}])
    assert claims.reason(here, ImageName(claimed, 2)) == f"the engine has {claimed}:1, but images.lock does not"


def test_the_names_in_an_engine_are_those_of_every_version(
    endpoint: Endpoint, claimed: str, own: ProjectIdentity, other: ProjectIdentity
) -> None:
    """Projects that share an engine may use different versions: what one wrote, the others have to read."""
    written = {
        "builder.project": other.id,
        "builder.project.path": other.path,
        "builder.project.host": other.host,
        "builder.project.machine": other.machine,
        "builder.claim.repository": claimed,
    }
    number = {"builder.claim": "number", "builder.claim.number": "4", "builder.claim.fingerprint": "sha256:one"}
    containers.create_volume(endpoint, f"builder.number.{claimed}.4", {**written, **number})
    assert claims.next_number(endpoint, claimed) == 5
    assert claims.numbers_for(endpoint, other, claimed, "sha256:one") == {4}
    with pytest.raises(ImageStateError, match=r"the project in \S+/other on "):
        claims.require_number(endpoint, own, ImageName(claimed, 4), "sha256:two")
    listed = {"builder.claim": "project", "builder.claim.next": "9", "builder.claim.numbers": "2 3 4 7"}
    containers.create_volume(endpoint, f"builder.project.{claimed}", {**written, **listed})
    assert claims.next_number(endpoint, claimed) == 9
    others = claims.of_others(endpoint, own.id)
    assert [n for n in range(12) if others.get(ImageName(claimed, n)) == other] == [2, 3, 4, 7]
    containers.create_volume(endpoint, f"builder.latest.{claimed}", {**written, "builder.claim": "latest"})
    assert claims.owner_of_latest(endpoint, own.id, claimed) == other


def test_labels_of_others_may_hold_anything(endpoint: Endpoint, claimed: str, own: ProjectIdentity) -> None:
    for kind in ("number", "project", "latest", "?"):
        labels = {claims.KIND: kind, claims.REPOSITORY: claimed, claims.NUMBER: "²", claims.NEXT: "9" * 40}
        containers.create_volume(
            endpoint, f"builder.{kind.replace('?', 'x')}.{claimed}.odd", {**labels, claims.KIND: kind}
        )
    listed = {claims.KIND: "project", claims.REPOSITORY: claimed, f"{claims.KIND}.numbers": f"{10**14} x 2-  ²"}
    containers.create_volume(endpoint, f"builder.project.{claimed}", listed)
    assert claims.next_number(endpoint, claimed) == 1
    others = claims.of_others(endpoint, own.id)
    assert others.get(ImageName(claimed, 10**14))
    claims.contents_of_others(endpoint, own.id)


def test_names_of_repositories_make_different_volumes() -> None:
    names = ["a", "a/b", "a.b", "a_b", "a__b", "a-b", "a/b/c", f"{'x' * 180}/a", f"{'x' * 180}/b"]
    volumes_ = {claims.volume_of_latest(name) for name in names}
    assert len(volumes_) == len(names)
    assert max(map(len, volumes_)) < 230
