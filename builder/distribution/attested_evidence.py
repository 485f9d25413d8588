"""Evidence beside an image in a registry: each run an in-toto statement of the type test-result, in one artifact.

The statement is what other programs read (https://in-toto.io/attestation/test-result/v0.1); its ``evidence`` is the run
as this program keeps it, and all that this program reads of it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from builder.engine.registry import referrers
from builder.errors import FileProblemsError, TransferError
from builder.evidence import document, store, traveling
from builder.storage.huggingface_cache import is_commit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.engine.client.endpoint import Endpoint
    from builder.evidence.record import Evidence

_STATEMENT = "https://in-toto.io/Statement/v1"
_PREDICATE = "https://in-toto.io/attestation/test-result/v0.1"
_MEDIA_TYPE = "application/vnd.in-toto+json"
_ANNOTATIONS = {"in-toto.io/predicate-type": _PREDICATE}
_RESULTS = {"pass": "PASSED", "changed": "WARNED", "unclear": "WARNED", "fail": "FAILED"}
_LARGEST = 2 * store.LARGEST  # the run, and what the statement repeats of it


def push(endpoint: Endpoint, repository: str, digest: str, runs: Sequence[Evidence]) -> bool:
    """Puts the runs beside the image with this digest in ``repository`` (``HOST/NAME``); False if they are there.
    Raises TransferError where the registry does not take them."""
    blobs = tuple(sorted(statement(run, repository, digest) for run in runs))
    return referrers.attach(endpoint, repository, digest, referrers.Artifact(_MEDIA_TYPE, _ANNOTATIONS, blobs))


def pull(endpoint: Endpoint, repository: str, digest: str, fingerprint: str) -> tuple[Evidence, ...]:
    """The runs beside the image with this digest, all of the content with this fingerprint. Raises TransferError where
    they cannot be read, FileProblemsError where one is not what this program writes."""
    blobs = referrers.attached(endpoint, repository, digest, _MEDIA_TYPE, _ANNOTATIONS, _LARGEST)
    texts: dict[str, str] = {}
    for blob in blobs:
        if run := _evidence(blob):
            texts |= run
    return traveling.read(texts, fingerprint, f"the evidence beside {repository}@{digest}")


def statement(run: Evidence, repository: str, digest: str) -> bytes:
    """The in-toto statement of a run."""
    subject = run.subject
    tests: dict[str, list[str]] = {"pass": [], "changed": [], "fail": []}
    for finding in run.findings:
        tests.setdefault(finding.verdict, []).append(f"{finding.check}: {finding.at}" if finding.at else finding.check)
    configuration = [
        {"name": name, "digest": {"sha256": value.removeprefix("sha256:")}}
        for name, value in (("set", run.set), ("arguments", subject.arguments), ("template", subject.template))
        if value
    ]
    if subject.model:
        revision = {"digest": {"gitCommit": subject.revision}} if is_commit(subject.revision or "") else {}
        configuration.append({"name": "model", "uri": f"https://huggingface.co/{subject.model}", **revision})
    predicate: dict[str, Any] = {
        "result": _RESULTS[run.verdict],
        "configuration": configuration,
        "passedTests": sorted(set(tests["pass"])) or ([run.name] if run.verdict == "pass" else []),
        "warnedTests": sorted(set(tests["changed"])),
        "failedTests": sorted(set(tests["fail"])),
        "evidence": document.of(run),
    }
    whole = {
        "_type": _STATEMENT,
        "subject": [{"name": repository, "digest": {"sha256": digest.removeprefix("sha256:")}}],
        "predicateType": _PREDICATE,
        "predicate": predicate,
    }
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode()


def _evidence(blob: bytes) -> dict[str, str]:
    """The run in a statement by the name of its file; nothing of a statement that another program made."""
    try:
        evidence = json.loads(blob)["predicate"].get("evidence")
        if evidence is None:
            return {}
        run, _ = document.parse(json.dumps(evidence, ensure_ascii=False).encode(), "evidence")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise TransferError("a statement beside the image is not what this program writes") from None
    except document.UnreadableError as error:
        raise FileProblemsError(error.problems) from None
    return traveling.files([run])
