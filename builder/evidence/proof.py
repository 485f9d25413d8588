"""The findings of `prove` about an image, and how they are kept as evidence of a numbered image."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.evidence import store

if TYPE_CHECKING:
    from builder.evidence.record import Evidence
    from builder.lock.model import ImageName
    from builder.project import Project


@dataclass(frozen=True)
class Proof:
    """The evidence for one model and the texts behind it; ``stand_in`` says why the tokenizer is not the model's own,
    ``reference`` names the image that it was compared with."""

    evidence: Evidence
    raw: bytes
    stand_in: str = ""
    reference: str = ""


@dataclass(frozen=True)
class ProvedImage:
    """The result for one model of an image: its run, the file that keeps it, and what it was compared with.
    ``stand_in`` says why the tokenizer is not the model's own, and is empty where it is."""

    image: ImageName
    evidence: Evidence
    file: str
    stand_in: str = ""
    reference: str = ""


def keep_proof(project: Project, name: ImageName, proof: Proof) -> ProvedImage:
    """Keeps a proof as evidence of a number."""
    evidence = replace(proof.evidence, subject=replace(proof.evidence.subject, image=str(name)))
    path = store.add(project, name, evidence, proof.raw)
    return ProvedImage(name, evidence, project.relative(path), proof.stand_in, proof.reference)
