"""The present sets of texts, scripts and profiles, by their digests. A changed digest makes earlier runs stale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.base.errors import BuilderError
from builder.definitions import configuration
from builder.definitions.configuration import load_probe

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.base.project import Project
    from builder.evidence.run_record import Kind


def present_sets(project: Project) -> Callable[[Kind, str], str | None]:
    """A function that gives the present digest of a probe, a profile or the texts of comparisons; None for one that is
    gone or wrong, and for proofs, whose answers are compared question by question."""

    def set_now(kind: Kind, name: str) -> str | None:
        if kind == "prove":
            return None
        from builder.lab.measure import bench, probes
        from builder.lab.same import image_likeness

        try:
            if kind == "bench":
                return bench.bench_digest(configuration.load_configuration(project).profile(name))
            if kind == "same":
                return image_likeness.same_digest()
            return probes.tools_long_digest() if name == probes.NAME else load_probe(project, name).digest
        except BuilderError:
            return None

    return set_now
