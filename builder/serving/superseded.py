"""Servers that still serve a model from an image that it is no longer paired with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions.recipes.container import LABEL
from builder.engine import services
from builder.serving.running import NODES, PROJECT, STARTED_BY

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from builder.lock.model import ImageName, Lock
    from builder.project import Project
    from builder.workspace import Workspace


@dataclass(frozen=True)
class SupersededServer:
    """The server ``name`` of a ``model``, which was started from ``image``, while the model is ``paired`` with
    another."""

    name: str
    model: str
    image: str
    paired: ImageName


def find(workspace: Workspace, lock: Lock, models: Collection[str]) -> tuple[SupersededServer, ...]:
    """The servers of ``models`` on the user's own engine that another image is paired with in ``lock``; nodes are not
    asked, since one that is switched off would be waited for."""
    if not models:
        return ()
    by_name = {
        superseded.name: superseded
        for service in services.labelled(workspace.engine, LABEL)
        if service.is_up and (superseded := of_labels(workspace.project, lock, service.labels))
    }
    return tuple(by_name[name] for name in sorted(by_name) if by_name[name].model in models)


def of_labels(project: Project, lock: Lock, labels: Mapping[str, str]) -> SupersededServer | None:
    """The server with these labels, if it serves a model of this project which is paired with another image;
    None for any other, and for one that another program starts and stops. An image that the recipe names by its number
    is no pairing's."""
    model, image = labels.get(f"{LABEL}.model", ""), labels.get(f"{LABEL}.image", "")
    paired = lock.models.get(model)
    if paired is None or labels.get(PROJECT) != str(project.root) or str(paired.pairing.image) == image:
        return None
    if paired.pairing.recipe != labels.get(f"{LABEL}.recipe") or labels.get(STARTED_BY):
        return None
    nodes = labels.get(NODES, "")
    return SupersededServer(labels[LABEL] + (f"@{nodes}" if nodes else ""), model, image, paired.pairing.image)
