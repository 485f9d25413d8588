from __future__ import annotations

from pathlib import Path

import pytest

from builder.definitions import container
from builder.definitions.container import Mount

ENVIRON = {"HOME": "/home/ann", "MODELS": "/srv/models", "EMPTY": ""}
FOLDER = Path("/project/here")


@pytest.mark.parametrize(
    ("text", "source", "target", "read_only"),
    [
        ("/srv/models:/models", "/srv/models", "/models", False),
        ("/srv/models/:/models/:ro", "/srv/models", "/models", True),
        ("/srv/a b:/models:rw", "/srv/a b", "/models", False),
        ("~:/home", "/home/ann", "/home", False),
        ("~/m:/m", "/home/ann/m", "/m", False),
        ("$MODELS/qwen:/m", "/srv/models/qwen", "/m", False),
        ("${HOME}/m:/m", "/home/ann/m", "/m", False),
        ("./x.jinja:/x.jinja:ro", "/project/here/x.jinja", "/x.jinja", True),
        ("../shared:/m", "/project/shared", "/m", False),
    ],
)
def test_a_volume_as_it_is_written(text: str, source: str, target: str, read_only: bool) -> None:
    mount = container.parse_volume(text, ENVIRON, FOLDER)
    assert mount == Mount(source, target, read_only=read_only, ours=False)
    assert container.parse_volume(str(mount), {}, Path("/elsewhere")) == mount


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("/models", "SRC:DST"),
        (":/models", "SRC:DST"),
        ("/models:", "SRC:DST"),
        ("/a:/b:ro:x", "SRC:DST"),
        ("/a:/b:z", "`z` is no mode"),
        ("/a:/b:", "no mode"),
        ("models:/models", "named volumes"),
        ("/a:models", "no place in the container"),
        ("/a:/", "no place in the container"),
        ("/a:/b/../c", "no place in the container"),
        ("$MISSING/m:/m", "MISSING is not set"),
        ("$EMPTY/m:/m", "EMPTY is not set"),
        ("/srv/$(id):/m", "cannot be mounted"),
    ],
)
def test_anything_else_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        container.parse_volume(text, ENVIRON, FOLDER)
    assert reason in str(caught.value)


@pytest.mark.parametrize("text", ["~/m:/m", "$ANY/m:/m:ro", "${ANY}:/m", "./x:/m", "/a:/b"])
def test_a_volume_that_may_be_right_has_no_fault(text: str) -> None:
    assert container.fault(text) == ""


@pytest.mark.parametrize(
    ("text", "reason"), [("models:/m", "named volumes"), ("/a:/b/../c", "no place"), ("/a:/", "no")]
)
def test_the_fault_of_one_that_cannot_be(text: str, reason: str) -> None:
    assert reason in container.fault(text)


def test_a_volume_takes_the_place_of_ours_and_of_those_below() -> None:
    hub = (Mount("/hf", "/root/hf"), Mount("/hub", "/root/hf/hub"), Mount("/c", "/root/cache"))
    typed = Mount("/data", "/root/hf", ours=False)
    assert container.merged(hub, (typed,)) == (hub[2], typed)


def test_a_volume_around_ours_leaves_them() -> None:
    ours = (Mount("/c", "/root/cache/vllm"),)
    around = Mount("/data", "/root/cache", ours=False)
    assert container.merged(ours, (around,)) == (*ours, around)


def test_the_last_volume_at_a_path_counts() -> None:
    first, last = Mount("/a", "/m", ours=False), Mount("/b", "/m", ours=False)
    assert container.merged((), (first, last)) == (last,)
