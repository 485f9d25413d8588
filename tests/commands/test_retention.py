"""The records of BuildKit's cache that are removed with the images."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.base.project import Project
from builder.commands import keeping
from builder.commands.keeping import EngineImages
from builder.engine.bake_run import CacheRecord
from builder.engine.images import ImageDetails
from builder.lock.model import ImageName, Lock, Model, NumberedImage, Pairing
from builder.plan import plan_model
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path


SCRIPT = "# the vllm wheel\nset -eu\nbuild ."
LAYER = CacheRecord("layer", "RUN-LINE", 10, True, False)
STAGE = CacheRecord("stage", SCRIPT, 10, False, False)
BASE = CacheRecord("base", "", 10, True, False)


def let_go(before: CacheRecord, after: CacheRecord, gone: str, kept: str = "") -> set[str]:
    return keeping.removable_records([before, BASE], [after, BASE], gone, kept)


def test_the_copy_of_a_layer_goes_with_the_last_image_that_has_it() -> None:
    free = replace(LAYER, shared=False)
    assert let_go(LAYER, free, "FROM x\nRUN RUN-LINE\n", "RUN RUN-LINE") == {"layer"}
    assert let_go(LAYER, LAYER, "RUN RUN-LINE") == set(), "an image has it still"
    assert let_go(free, free, "RUN RUN-LINE") == set(), "no image of ours had it"
    assert let_go(LAYER, free, "RUN another") == set(), "an image of another project went meanwhile"
    assert let_go(LAYER, replace(free, in_use=True), "RUN RUN-LINE") == set()


def test_an_engine_that_marks_no_layer_as_shared_tells_nothing() -> None:
    free = replace(LAYER, shared=False)
    assert keeping.removable_records([LAYER, BASE], [free, replace(BASE, shared=False)], "RUN RUN-LINE", "") == set()


def test_another_stage_goes_with_the_last_dockerfile_that_has_it() -> None:
    dockerfile = f"RUN <<'EOF'\n{SCRIPT}\nEOF\n"
    assert let_go(STAGE, STAGE, dockerfile) == {"stage"}
    assert let_go(STAGE, STAGE, dockerfile, dockerfile) == set()
    assert let_go(STAGE, STAGE, "FROM x") == set()
    assert let_go(STAGE, replace(STAGE, in_use=True), dockerfile) == set()


@pytest.mark.parametrize("step", ["", "make"])
def test_what_could_be_anybodys_stays(step: str) -> None:
    record = replace(STAGE, step=step)
    assert let_go(record, record, "RUN make\n") == set()


def test_the_dockerfiles_of_a_chain_are_all_read(tmp_path: Path) -> None:
    project = Project(tmp_path)
    projects.write(project.build_directory("a/b", 3) / "Dockerfile", "FROM one\n")
    projects.write(project.build_directory("a/b", 3) / "below/Dockerfile", "FROM two\n")
    found = keeping.dockerfile_text(project, [ImageName("a/b", 3), ImageName("a/b", 4)])
    assert "FROM one" in found
    assert "FROM two" in found


def test_a_dockerfile_that_cannot_be_read_or_is_too_large_counts_as_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path)
    projects.write(project.build_directory("a", 1) / "Dockerfile", "FROM one\n")
    projects.write(project.build_directory("a", 2) / "Dockerfile", "FROM two, which is longer\n")
    projects.write(project.build_directory("a", 3) / "notes", "FROM three\n")
    (project.build_directory("a", 3) / "Dockerfile").symlink_to("notes")
    projects.write(project.build_directory("a", 4) / "Dockerfile", "FROM four\n")
    monkeypatch.setattr(plan_model, "LARGEST_FILE", 10)
    found = keeping.dockerfile_text(project, [ImageName("a", number) for number in (1, 2, 3, 4)])
    assert found == "FROM one\n\nFROM four\n"


@pytest.mark.parametrize(
    ("tags", "untagged"), [((), True), (("a@sha256:1",), True), (("a:1",), False), (("a@sha256:1", "a:1"), False)]
)
def test_an_image_that_is_only_named_by_digest_has_no_tag(tags: tuple[str, ...], untagged: bool) -> None:
    assert keeping.is_untagged(replace(details("a"), tags=tags)) is untagged


# The images that stay when others are pruned.

REPO, OTHER = "vllm-node-tf5", "vllm-node-dflash"
NOW = datetime(2026, 11, 20, tzinfo=UTC)
NONE = timedelta(0)


def details(*layers: str, id_: str = "") -> ImageDetails:
    return ImageDetails(id_ or "-".join(layers), "linux/arm64", 1, "", {}, layers, {}, ())


def image(age_days: int = 0) -> NumberedImage:
    built = f"{NOW - timedelta(days=age_days):%Y-%m-%dT%H:%M:%SZ}"
    return NumberedImage(built, "tf5", "linux/arm64", "sha256:f", "sha256:i", 1)


def stocked(count: int, repository: str = REPO) -> tuple[Lock, dict[ImageName, ImageDetails]]:
    """Numbers 1 to ``count``, the last one current; each a day older than the next."""
    lock = Lock()
    for number in range(1, count + 1):
        name = ImageName(repository, number)
        lock = lock.with_image(name, image(count - number)).with_current(name)
    return lock, {ImageName(repository, n): details("base", f"own-{n}") for n in range(1, count + 1)}


def reasons(
    lock: Lock,
    numbered: dict[ImageName, ImageDetails],
    keep: int,
    older_than: timedelta = NONE,
    containers: dict[str, tuple[str, ...]] | None = None,
) -> dict[int, tuple[str, ...]]:
    engine = EngineImages(numbered, {}, containers or {})
    return {name.number: why for name, why in keeping.retention_reasons(lock, engine, keep, older_than, NOW).items()}


def test_current_pinned_paired_and_used_stay() -> None:
    lock, numbered = stocked(6)
    record = lock.images[REPO]
    lock = lock.with_image(ImageName(REPO, 1), replace(record.numbers[1], pinned=True))
    lock = lock.with_model("Org/M", Model(Pairing(ImageName(REPO, 2)), (Pairing(ImageName(REPO, 3)),)))
    kept = reasons(lock, numbered, 0, containers={"base-own-4": ("serving",)})
    assert kept == {
        1: ("kept",),
        2: ("serves Org/M",),
        3: (),
        4: ("used by container serving",),
        5: (),
        6: ("current",),
    }


@pytest.mark.parametrize(("keep", "going"), [(0, [1, 2, 3, 4, 5]), (1, [1, 2, 3, 4, 5]), (3, [1, 2, 3]), (9, [])])
def test_the_newest_stay(keep: int, going: list[int]) -> None:
    lock, numbered = stocked(6)
    assert [number for number, why in reasons(lock, numbered, keep).items() if not why] == going


def test_the_newest_of_each_repository_stay() -> None:
    lock, numbered = stocked(3)
    for number in (7, 8):
        lock = lock.with_image(ImageName(OTHER, number), image())
        numbered[ImageName(OTHER, number)] = details("base", f"other-{number}")
    kept = keeping.retention_reasons(lock, EngineImages(numbered, {}, {}), 1, NONE, NOW)
    assert {name: why for name, why in kept.items() if why} == {
        ImageName(REPO, 3): ("current", "newest"),
        ImageName(OTHER, 8): ("newest",),
    }


def test_a_number_to_keep_may_be_as_large_as_one_likes() -> None:
    lock, numbered = stocked(2)
    assert reasons(lock, numbered, 10**30) == {1: ("newest",), 2: ("current", "newest")}


def test_every_reason_and_every_container_and_model_is_named() -> None:
    lock, numbered = stocked(1)
    lock = lock.with_image(ImageName(REPO, 1), replace(image(), pinned=True))
    for model in ("Org/B", "Org/A"):
        lock = lock.with_model(model, Model(Pairing(ImageName(REPO, 1))))
    containers: dict[str, tuple[str, ...]] = {"base-own-1": ("one", "two")}
    assert reasons(lock, numbered, 1, timedelta(seconds=1), containers)[1] == (
        "current",
        "kept",
        "serves Org/A",
        "serves Org/B",
        "used by container one",
        "used by container two",
        "newest",
        "young",
    )


def test_only_what_is_old_enough_goes() -> None:
    lock, numbered = stocked(6)
    kept = reasons(lock, numbered, 0, timedelta(days=4))
    assert [number for number, why in kept.items() if not why] == [1, 2]
    assert kept[3] == ("young",)


def test_what_an_image_that_stays_was_built_on_stays() -> None:
    lock, numbered = stocked(3)
    lock = lock.with_image(ImageName(OTHER, 1), image()).with_current(ImageName(OTHER, 1))
    numbered[ImageName(OTHER, 1)] = details("base", "own-1", "kernels")
    kept = keeping.retention_reasons(
        lock, EngineImages(numbered, {"mine:1": details("base", "own-2", "more")}, {}), 0, NONE, NOW
    )
    assert kept[ImageName(REPO, 1)] == (f"{OTHER}:1 is built on this image",)
    assert kept[ImageName(REPO, 2)] == ("mine:1 is built on this image",)


def test_what_an_image_that_goes_was_built_on_goes_too() -> None:
    lock, numbered = stocked(3)
    numbered[ImageName(REPO, 2)] = details("base", "own-1", "kernels")
    assert reasons(lock, numbered, 0) == {1: (), 2: (), 3: ("current",)}


def test_the_same_content_under_another_number_is_no_reason() -> None:
    lock, numbered = stocked(2)
    numbered[ImageName(REPO, 1)] = numbered[ImageName(REPO, 2)]
    assert reasons(lock, numbered, 0)[1] == ()


@pytest.mark.slow
@given(data=st.data())
def test_nothing_that_can_be_reached_goes(data: st.DataObject) -> None:
    """Whatever the lock: after a prune, every pointer and every image that another stands on is still there."""
    lock = Lock()
    numbered = {}
    for repository in (REPO, OTHER):
        for number in data.draw(st.lists(st.integers(1, 9), max_size=6, unique=True)):
            name = ImageName(repository, number)
            aged = replace(image(data.draw(st.integers(0, 60))), pinned=data.draw(st.booleans()))
            lock = lock.with_image(name, aged)
            numbered[name] = details(
                *data.draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=4)), id_=str(name)
            )
            if data.draw(st.booleans()):
                lock = lock.with_current(name)
    for model in data.draw(st.lists(st.sampled_from("xyz"), unique=True)) if numbered else []:
        paired = data.draw(st.lists(st.sampled_from(sorted(numbered)), min_size=1, max_size=3, unique=True))
        first, *rest = (Pairing(name) for name in paired)
        lock = lock.with_model(model, Model(first, tuple(rest)))
    keep, older_than = data.draw(st.integers(0, 3)), timedelta(days=data.draw(st.integers(0, 30)))
    used = data.draw(st.sets(st.sampled_from(sorted(map(str, numbered))))) if numbered else set()
    engine = EngineImages(numbered, {}, dict.fromkeys(used, ("c",)))
    kept = keeping.retention_reasons(lock, engine, keep, older_than, NOW)
    going = {name for name, why in kept.items() if not why}
    for repository, record in lock.images.items():
        assert ImageName(repository, record.current or 0) not in going
        newest = sorted((name for name in numbered if name.repository == repository), reverse=True)[:keep]
        assert not going & set(newest)
    assert not going & {model.pairing.image for model in lock.models.values()}
    assert not {name for name in going if str(name) in used}
    for name in going:
        recorded = lock.image(name)
        assert recorded
        assert not recorded.pinned
        assert NOW - datetime.fromisoformat(recorded.built) >= older_than
        layers = numbered[name].layers
        above = [o for o in numbered.keys() - going if numbered[o].layers[: len(layers)] == layers]
        assert all(numbered[other].layers == layers for other in above)
