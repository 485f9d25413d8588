"""Runs for tests of evidence: one of each kind, with every part of a record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from builder.base.machine_record import Machine
from builder.base.project import Project
from builder.evidence import run_record
from builder.evidence.run_record import Evidence, Figure, Finding, Subject
from builder.lock.model import ImageName

NAME = ImageName("vllm-node-tf5", 7)
MODEL = "Org/Model-1B"
COMMIT = "ab" * 20
SUBJECT = Subject(
    image=str(NAME),
    fingerprint=f"sha256:{7:064x}",
    model=MODEL,
    revision=COMMIT,
    template=f"sha256:{1:064x}",
    recipe="recipes/chat.yaml",
    arguments=f"sha256:{2:064x}",
)
MACHINE = Machine("NVIDIA GB10", 1, "580.95", "linux/arm64", "arm64 0x41/0xd87 0x41/0xd85", 128_000_000_000)


def identity(run: Evidence) -> str:
    """The identity that a reader finds in the file of a run."""
    return run_record.parse_evidence(run_record.evidence_text(run).encode(), "file")[1]


def proof(verdict: str = "pass", **changes: Any) -> Evidence:
    """A proof of behaviour."""
    fields: dict[str, Any] = {
        "kind": "prove",
        "name": "behaviour",
        "version": "1",
        "set": f"sha256:{3:064x}",
        "started": "2026-11-20T22:00:00Z",
        "seconds": 61.5,
        "subject": SUBJECT,
        "verdict": verdict,
        "counts": {"conversations": 64, "properties": 512, "failed": 0, "changed": 0},
        "goldens": {"parallel calls": "0123456789abcdef"},
    }
    return Evidence(**{**fields, **changes})


def bench(verdict: str = "pass", **changes: Any) -> Evidence:
    """A benchmark, with every part of a record."""
    fields: dict[str, Any] = {
        "kind": "bench",
        "name": "quick",
        "version": "llama-benchy 0.4.0",
        "set": f"sha256:{4:064x}",
        "started": "2026-11-20T23:00:00Z",
        "seconds": 120,
        "subject": replace(SUBJECT, overrides={"max_model_len": "4096"}, machine=MACHINE),
        "verdict": verdict,
        "sampling": {"temperature": 0, "top_p": 0.95, "mode": "greedy"},
        "figures": (
            Figure("tg", {"depth": 32768, "concurrency": 1}, "tokens/s", "higher", (50.0, 52.5, 51.0)),
            Figure("memory_floor", {}, "bytes", "", (2e9,)),
        ),
        "findings": (Finding("calls", "step 9 of 12", "fail", 'two of it:\n<tool_call>{"a": "ä"}'),),
        "raw": f"sha256:{5:064x}",
        "accepted": "as meant",
        "sequence": 3,
    }
    return Evidence(**{**fields, **changes})


def keep(project: Project, *names: ImageName) -> dict[str, bytes]:
    """Keeps a proof of each number with its raw output, and returns all files of evidence."""
    for name in names:
        raw = f"raw output of {name}".encode()
        run_record.add_run(project, name, proof(subject=replace(SUBJECT, image=str(name))), raw)
    return files(project)


def files(project: Project) -> dict[str, bytes]:
    """Every file of evidence with its content, the raw outputs included."""
    paths = [*project.evidence.rglob("*"), *project.raw_evidence.rglob("*")]
    return {str(path.relative_to(project.root)): path.read_bytes() for path in paths if path.is_file()}
