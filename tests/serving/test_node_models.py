"""The folder of models that a container on a node mounts."""

from __future__ import annotations

import pytest

from builder.base.errors import UsageError
from builder.definitions.configuration import Node
from builder.serving import preparation

ENVIRON = {"HOME": "/home/ann", "USER": "ann"}


@pytest.mark.parametrize(
    ("engine", "written", "mounted"),
    [
        ("ssh://me@spark2", None, None),
        ("ssh://me@spark2", "/data/hf", "/data/hf"),
        ("ssh://ann@spark2", "~/hf", "/home/ann/hf"),
        ("ssh://spark2", "~", "/home/ann"),
        ("unix:///run/docker.sock", "~/hf", "/home/ann/hf"),
        ("office", "~/hf", "/home/ann/hf"),
    ],
)
def test_a_home_folder_is_written_out(engine: str, written: str | None, mounted: str | None) -> None:
    assert preparation.node_model_folder(ENVIRON, Node("two", engine, written)) == mounted


@pytest.mark.parametrize(
    ("written", "message"), [("~/hf", "in the home folder of me"), ("hf", "no whole path"), ("~me/hf", "no whole path")]
)
def test_a_folder_that_cannot_be_known_is_refused(written: str, message: str) -> None:
    with pytest.raises(UsageError, match=rf"builder\.yaml: `models: {written}` of node two is {message}"):
        preparation.node_model_folder(ENVIRON, Node("two", "ssh://me@spark2", written))
