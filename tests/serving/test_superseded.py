"""A server that goes on from an image which its model is no longer paired with."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.base.project import Project
from builder.definitions.container import LABEL
from builder.lock.model import ImageName, Lock, Model, Pairing
from builder.serving import running
from builder.serving.running import NODES, PROJECT, STARTED_BY

HERE = Project(Path("/project"))
LOCK = Lock(models={"Org/M": Model(Pairing(ImageName("tf5", 1), "recipes/m.yaml"))})
LABELS = {
    LABEL: "m",
    f"{LABEL}.model": "Org/M",
    f"{LABEL}.image": "tf5:2",
    f"{LABEL}.recipe": "recipes/m.yaml",
    PROJECT: "/project",
}


def test_it_is_told_with_both_images() -> None:
    told = running.of_labels(HERE, LOCK, LABELS)
    assert told == running.SupersededServer("m", "Org/M", "tf5:2", ImageName("tf5", 1))
    on_node = running.of_labels(HERE, LOCK, {**LABELS, NODES: "spark2"})
    assert on_node is not None
    assert on_node.name == "m@spark2"


@pytest.mark.parametrize(
    "other",
    [
        {f"{LABEL}.image": "tf5:1"},
        {f"{LABEL}.model": "Org/Other"},
        {f"{LABEL}.recipe": "recipes/numbered.yaml"},
        {PROJECT: "/elsewhere"},
        {STARTED_BY: "llama-swap"},
    ],
    ids=["the paired image", "a model without a pairing", "another recipe", "another project", "another program"],
)
def test_any_other_server_is_none(other: dict[str, str]) -> None:
    assert running.of_labels(HERE, LOCK, {**LABELS, **other}) is None
