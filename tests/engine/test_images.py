"""Images: identity, tags, removal."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from builder.base.errors import ConflictError, ImageStateError
from builder.engine import containers, images, machine
from builder.engine.client import Endpoint, environment
from builder.engine.images import ImageDetails
from tests.engine.conftest import Build

RECORDINGS = Path(__file__).parent / "recordings"

DOCKERFILE = """\
FROM scratch
COPY content /content
ENV A=b
WORKDIR /w
EXPOSE 8000
VOLUME /data
USER nobody
HEALTHCHECK --interval=30s CMD true
STOPSIGNAL SIGINT
ENTRYPOINT ["cat"]
CMD ["/content"]
LABEL {label}
"""


def recorded(name: str) -> ImageDetails:
    return images.parse_details(json.loads((RECORDINGS / f"image-{name}.json").read_text()))


def test_the_same_content_has_one_fingerprint_in_both_stores_and_with_attestations() -> None:
    recordings = {name: recorded(name) for name in ("classic", "containerd", "attested")}
    assert len({image.id for image in recordings.values()}) == 3
    assert len({images.fingerprint(image) for image in recordings.values()}) == 1


def test_what_the_engine_says() -> None:
    image = recorded("attested")
    assert (image.platform, image.size, image.tags) == ("linux/amd64", 32661805, ("enginefp:att",))
    assert image.config["Healthcheck"] == {"Test": ["CMD-SHELL", "true"], "Interval": 30_000_000_000}
    assert image.labels["x"] == "y"
    assert len(image.layers) == 3
    assert "OnBuild" not in image.config


def test_a_fingerprint_stays_what_it_is() -> None:
    # It is written into images.lock: another computation would make every recorded image look changed.
    assert (
        images.fingerprint(recorded("classic"))
        == "sha256:656c357d820bfb2b38fa5715716c380b861f804fa58e9602fce2df0f4e1c7b5a"
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Env", ["PATH=/bin"]),
        ("Entrypoint", None),
        ("Cmd", ["other"]),
        ("WorkingDir", "/"),
        ("User", "root"),
        ("ExposedPorts", {}),
        ("Volumes", None),
        ("StopSignal", "SIGTERM"),
        ("Shell", ["/bin/sh"]),
        ("Healthcheck", None),
    ],
)
def test_what_changes_a_container_changes_the_fingerprint(key: str, value: object) -> None:
    before = recorded("classic")
    after = replace(before, config={**before.config, key: value})
    assert images.fingerprint(before) != images.fingerprint(after)


def test_layers_and_platform_change_the_fingerprint() -> None:
    before = recorded("classic")
    assert images.fingerprint(before) != images.fingerprint(replace(before, layers=before.layers[::-1]))
    assert images.fingerprint(before) != images.fingerprint(replace(before, platform="linux/arm64"))


def test_what_is_about_an_image_changes_nothing() -> None:
    before = recorded("classic")
    other = replace(before, id="sha256:0", size=1, created="", labels={}, tags=())
    assert images.fingerprint(before) == images.fingerprint(other)


@pytest.mark.parametrize(
    ("description", "platform"),
    [
        ({"Os": "linux", "Architecture": "arm64", "Variant": "v8"}, "linux/arm64"),
        ({"Os": "linux", "Architecture": "arm64"}, "linux/arm64"),
        ({"Os": "linux", "Architecture": "arm", "Variant": "v7"}, "linux/arm/v7"),
    ],
)
def test_platforms(description: dict[str, str], platform: str) -> None:
    assert images.parse_details({"Id": "sha256:0", **description}).platform == platform


@pytest.mark.engine
def test_labels_and_attestations_leave_the_fingerprint(
    endpoint: Endpoint, repository: str, build: Build, tmp_path: Path
) -> None:
    names = [f"{repository}:{number}" for number in (1, 2, 3)]
    for name in names[:2]:
        build(name, DOCKERFILE.format(label=f"name={name}"), files={"content": "same"})
    # The classic image store has no attestations.
    provenance = "mode=max" if machine.require_supported(endpoint).store == "containerd" else "false"
    attested = [
        *endpoint.buildx,
        "build",
        f"--provenance={provenance}",
        f"--output=type=image,name={names[2]}",
        "build",
    ]
    subprocess.run(attested, cwd=tmp_path, env={**os.environ, **environment(endpoint)}, check=True, capture_output=True)
    inspected = [images.inspect_image(endpoint, name) for name in names]
    assert all(inspected)
    assert len({image.id for image in inspected if image}) >= 2
    assert len({images.fingerprint(image) for image in inspected if image}) == 1


@pytest.mark.engine
def test_a_build_says_the_id_that_the_engine_uses(endpoint: Endpoint, repository: str, build: Build) -> None:
    baked = build(f"{repository}:1", "FROM scratch\nCOPY Dockerfile /\nLABEL a=b\n")
    image = images.inspect_image(endpoint, f"{repository}:1")
    assert image is not None
    assert (image.id, image.tags, dict(image.labels)) == (baked.id, (f"{repository}:1",), {"a": "b"})
    assert images.inspect_image(endpoint, baked.id) == image
    assert images.inspect_image(endpoint, f"{repository}:2") is None


@pytest.mark.engine
def test_an_image_for_another_platform(endpoint: Endpoint, repository: str, build: Build) -> None:
    bake = '{"target": {"image": {"context": ".", "platforms": ["linux/arm64"]}}}'
    build(f"{repository}:1", "FROM scratch\nCOPY Dockerfile /\n", files={"bake.json": bake})
    image = images.inspect_image(endpoint, f"{repository}:1")
    assert image is not None
    assert image.platform == "linux/arm64"
    assert len(image.layers) == 1


@pytest.mark.engine
def test_names_come_and_go(endpoint: Endpoint, repository: str, build: Build) -> None:
    first_name, second_name, latest = (f"{repository}:{tag}" for tag in ("1", "2", "latest"))
    first = build(first_name, "FROM scratch\nCOPY Dockerfile /\nLABEL n=1\n").id
    second = build(second_name, f"FROM scratch\nCOPY Dockerfile /\nLABEL n=2 of={repository}\n").id
    images.tag_image(endpoint, first_name, latest)
    assert images.image_tags(endpoint, [repository]) == {first_name: first, second_name: second, latest: first}
    images.tag_image(endpoint, second, latest)
    assert images.image_tags(endpoint, [latest]) == {latest: second}
    assert images.remove_extra_tag(endpoint, latest)
    assert not images.remove_extra_tag(endpoint, second_name), "the last name stays"
    assert not images.remove_extra_tag(endpoint, latest), "nobody has it any more"
    assert images.image_tags(endpoint, [f"{repository}*"]) == {first_name: first, second_name: second}
    assert images.remove_image(endpoint, second_name)
    assert images.inspect_image(endpoint, second) is None
    assert not images.remove_image(endpoint, second_name)
    assert first_name in images.image_tags(endpoint)


@pytest.mark.engine
def test_a_name_for_nothing(endpoint: Endpoint, repository: str) -> None:
    with pytest.raises(ImageStateError, match=f"no image {repository}:1"):
        images.tag_image(endpoint, f"{repository}:1", f"{repository}:2")


@pytest.mark.engine
def test_an_image_in_use_stays(endpoint: Endpoint, repository: str, build: Build) -> None:
    image = build(f"{repository}:1", "FROM debian:bookworm-slim\nLABEL a=b\n").id
    with containers.running(endpoint, image, labels={repository: ""}):
        with pytest.raises(ConflictError, match="in use"):
            images.remove_image(endpoint, f"{repository}:1")
        assert images.inspect_image(endpoint, f"{repository}:1") is not None


@pytest.mark.engine
def test_fingerprints_are_remembered(endpoint: Endpoint, repository: str, build: Build, tmp_path: Path) -> None:
    cache = tmp_path / "engine.json"
    image = build(f"{repository}:1", "FROM scratch\nCOPY Dockerfile /\n").id
    details = images.inspect_image(endpoint, image)
    assert details is not None
    expected = {image: images.fingerprint(details)}
    gone = "sha256:" + "0" * 64
    assert images.fingerprints(endpoint, [image, gone, image], cache) == expected
    nobody = replace(endpoint, host="unix:///nonexistent.sock")
    assert images.fingerprints(nobody, [image], cache) == expected, "a known id is not asked for"
    cache.write_text("damaged")
    assert images.fingerprints(endpoint, [image], cache) == expected
    assert images.fingerprints(endpoint, [], cache) == {}


@pytest.mark.engine
@pytest.mark.parametrize("name", ["", "a b", "UPPER", "-x", "a:b:c"])
def test_what_no_image_can_be_called_is_in_no_engine(endpoint: Endpoint, name: str) -> None:
    assert images.inspect_image(endpoint, name) is None
