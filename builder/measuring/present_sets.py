"""The digests of probes and bench profiles as they are now, which make earlier runs of others stale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import BuilderError

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.evidence.record import Kind
    from builder.project import Project


def of(project: Project) -> Callable[[Kind, str], str | None]:
    """A function that gives the digest of a probe or a profile by its kind and name; None for one that is gone or
    wrong, and for proofs: their answers are compared question by question, and fewer of them are no other ones."""

    def set_now(kind: Kind, name: str) -> str | None:
        if kind == "prove":
            return None
        try:
            return _of_probe(project, name) if kind == "probe" else _of_profile(project, name)
        except BuilderError:
            return None

    return set_now


def _of_probe(project: Project, name: str) -> str:
    from builder.measuring import beside_source, probing

    return beside_source.digest() if name == beside_source.NAME else probing.digest(project, name)


def _of_profile(project: Project, name: str) -> str:
    from builder.definitions import configuration
    from builder.measuring import bench

    return bench.digest(configuration.load(project).profile(name))
