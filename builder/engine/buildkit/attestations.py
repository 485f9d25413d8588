"""BuildKit's attestations of an image: its packages (an SBOM), and its sources (provenance).

They are stored beside the image in an index, as manifests of their own for the platform ``unknown/unknown``:
https://docs.docker.com/build/metadata/attestations/attestation-storage/
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from builder.engine.reference import repository
from builder.engine.registry import manifests, oci_layout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from builder.engine.client.endpoint import Endpoint

Kind = Literal["sbom", "provenance"]

_PREDICATES: dict[str, Kind] = {"https://spdx.dev/Document": "sbom", "https://slsa.dev/provenance/": "provenance"}


def bake_options(kinds: AbstractSet[Kind], scanner: str | None) -> tuple[str, ...]:
    """Returns buildx's ``attest`` options for these kinds.

    ``scanner`` is the image that lists packages by BuildKit's protocol, None for BuildKit's own choice,
    ``docker/buildkit-syft-scanner:stable-1``.
    """
    # The provenance names bases, sources and their digests. `mode=max` would add the build arguments.
    options: dict[Kind, str] = {
        "sbom": "type=sbom" + (f",generator={scanner}" if scanner else ""),
        "provenance": "type=provenance,mode=min",
    }
    return tuple(options[kind] for kind in sorted(kinds))


def attached(endpoint: Endpoint, reference: str) -> frozenset[Kind]:
    """Returns the kinds attached to ``reference`` in its registry. Raises TransferError where it cannot be read."""
    return frozenset(_attached(endpoint, reference))


def _attached(endpoint: Endpoint, reference: str) -> Iterator[Kind]:
    for part in manifests.imagetools_inspect(endpoint, reference, "--raw").get("manifests") or ():
        if not oci_layout.is_attestation(part):
            continue
        attestation = manifests.imagetools_inspect(endpoint, f"{repository(reference)}@{part['digest']}", "--raw")
        for layer in attestation.get("layers") or ():
            predicate = (layer.get("annotations") or {}).get("in-toto.io/predicate-type", "")
            yield from (kind for start, kind in _PREDICATES.items() if predicate.startswith(start))
