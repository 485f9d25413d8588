"""Evidence beside an image in a real registry: pushed as in-toto statements, pulled as that of others."""

from __future__ import annotations

import json
import shutil
import urllib.request
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from builder.distribution import attested_evidence
from builder.engine import images
from builder.engine.client.endpoint import Endpoint
from builder.engine.registry import referrers
from builder.errors import FileProblemsError, TransferError
from builder.evidence import store
from builder.evidence.record import Evidence, Subject
from builder.lock import reading
from builder.lock.model import ImageName
from builder.project import Project
from tests import registries
from tests.conftest import Command, remove_all
from tests.evidence.runs import bench, proof
from tests.registries import Registry

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engine
MODEL = "Org/Model-1B"


def fingerprint(project: Project, name: ImageName) -> str:
    record = reading.read(project.lock).image(name)
    assert record
    return record.fingerprint


def add(project: Project, name: ImageName, run: Evidence) -> None:
    subject = Subject(str(name), fingerprint(project, name), MODEL, "ab" * 20)
    store.add(project, name, replace(run, subject=subject))


def of_registry(registry: Registry, path: str, kind: str = "application/vnd.oci.image.index.v1+json") -> Any:
    request = urllib.request.Request(f"http://{registry.address}/v2/{path}", headers={"Accept": kind})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read())


def test_evidence_goes_with_the_image_and_is_foreign_elsewhere(
    small: Project, builder: Command, repository: str, registry: Registry, endpoint: Endpoint, tmp_path: Path
) -> None:
    registries.configure(small, registry=registry.address)
    builder("build", "chat")
    name = ImageName(repository, 1)
    assert "evidence" not in builder("push", f"{repository}:1").stdout
    pushed = reading.read(small.lock).image(name)
    assert pushed
    assert pushed.digest
    add(small, name, proof())
    store.add(small, name, proof("fail", foreign="archive x.tar", subject=store.of_image(small, name)[0].subject))
    assert "1 run of evidence beside it, as in-toto test results" in builder("push", f"{repository}:1").stdout
    assert "evidence" not in builder("push", f"{repository}:1").stdout
    add(small, name, bench(foreign=""))
    assert "2 runs of evidence beside it" in builder("push", f"{repository}:1").stdout
    after = reading.read(small.lock).image(name)
    assert after == pushed  # the digest stays

    # What other programs find there.
    listed = of_registry(registry, f"{repository}/manifests/{pushed.digest.replace(':', '-')}")["manifests"]
    assert [entry["artifactType"] for entry in listed] == ["application/vnd.in-toto+json"] * 2
    manifest = of_registry(registry, f"{repository}/manifests/{listed[1]['digest']}", listed[1]["mediaType"])
    assert manifest["subject"]["digest"] == pushed.digest
    statements = [of_registry(registry, f"{repository}/blobs/{layer['digest']}") for layer in manifest["layers"]]
    for statement in statements:
        assert statement["_type"] == "https://in-toto.io/Statement/v1"
        assert statement["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
        assert f"sha256:{statement['subject'][0]['digest']['sha256']}" == pushed.digest
        assert statement["predicate"]["result"] == "PASSED"
    failed = [statement["predicate"]["failedTests"] for statement in statements]
    assert sorted(failed) == [[], ["calls: step 9 of 12"]]

    # Another clone, which has none of it; this one, which wrote it.
    clone = Project(tmp_path / "clone")
    shutil.copytree(small.root, clone.root, ignore=shutil.ignore_patterns(".builder", "evidence"))
    for project in (clone, small):
        for tag in ("1", "latest"):
            images.remove(endpoint, f"{repository}:{tag}")
        done = builder("--project", str(project.root), "pull", f"{repository}:1")
        assert f"{repository}:1 pulled" in done.stdout
    received = store.of_image(clone, name)
    assert {run.foreign for run in received} == {f"registry {registry.address}/{repository}"}
    assert {run.name for run in received} == {"behaviour", "quick"}
    assert [run.foreign for run in store.of_image(small, name)] == ["", "archive x.tar", ""]
    assert f"unproven with {MODEL}" in builder("--project", str(clone.root), "show", f"{repository}:1").stdout

    # The image is there, and what was added beside it since comes without it.
    add(small, name, bench(name="community", foreign=""))
    builder("push", f"{repository}:1")
    done = builder("--project", str(clone.root), "pull", f"{repository}:1")
    assert f"{repository}:1: 1 run of others came along" in done.stderr
    assert {run.name for run in store.of_image(clone, name)} == {"behaviour", "quick", "community"}

    # What somebody else put there is left, and the image comes all the same.
    repository_there = f"{registry.address}/{repository}"
    forged = attested_evidence.statement(proof(), repository_there, pushed.digest)
    artifact = referrers.Artifact(
        "application/vnd.in-toto+json",
        {"in-toto.io/predicate-type": "https://in-toto.io/attestation/test-result/v0.1"},
        (forged, b"{}", b"not JSON"),
    )
    assert referrers.attach(endpoint, repository_there, pushed.digest, artifact)
    for tag in ("1", "latest"):
        images.remove(endpoint, f"{repository}:{tag}")
    done = builder("pull", f"{repository}:1")
    assert f"{repository}:1: its evidence was left:" in done.stderr.replace("\n  ", " ")
    assert f"{repository}:1 pulled" in done.stdout
    assert len(store.of_image(small, name)) == 4
    with pytest.raises((TransferError, FileProblemsError)):
        attested_evidence.pull(endpoint, repository_there, pushed.digest, pushed.fingerprint)
    remove_all(endpoint, repository)


def test_a_registry_that_takes_no_artifacts_has_the_image_all_the_same(
    small: Project, builder: Command, repository: str, registry: Registry
) -> None:
    registries.configure(small, registry=registry.address)
    builder("build", "chat")
    name = ImageName(repository, 1)
    with registries.before(registry) as front:
        registries.configure(small, registry=front.address)
        builder("push", f"{repository}:1")
        digest = reading.read(small.lock).image(name)
        assert digest
        front.immutable = frozenset({str(digest.digest).replace(":", "-")})
        add(small, name, proof())
        done = builder("push", f"{repository}:1")
    assert f"{repository}:1: its evidence was not pushed:" in done.stderr.replace("\n  ", " ")
    assert "is there already" in done.stdout
