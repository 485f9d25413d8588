from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import UsageError
from builder.base.project import Project
from builder.evidence import matrix
from builder.lock.model import ImageName

if TYPE_CHECKING:
    from pathlib import Path


NAME = ImageName("small", 1)
CONTENT = f"sha256:{'1' * 64}"


def state(project: Project, key: Path | None = None, fingerprint: str = CONTENT) -> Path:
    return matrix.state_witness(project, NAME, fingerprint, "sha256:2", "linux/amd64", {"engine": "28.5.2"}, key)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path], check=True)
    return path


def test_a_machine_counts_once_and_is_not_named(tmp_path: Path) -> None:
    project = Project(tmp_path)
    assert state(project) == state(project)
    (statement,) = matrix.read_statements(project, NAME, CONTENT).statements
    assert statement.versions == {"engine": "28.5.2"}
    import socket

    assert socket.gethostname() not in state(project).read_text()


def test_a_signature_fits_its_statement_alone(tmp_path: Path, key: Path) -> None:
    project = Project(tmp_path)
    path = state(project, key)
    assert matrix.read_statements(project, NAME, CONTENT).signed == 1
    path.write_text(path.read_text().replace("28.5.2", "29.0.0"))
    (problem,) = matrix.read_statements(project, NAME, CONTENT).problems
    assert problem.message == "its signature does not fit: the statement was changed after it was signed"


def test_a_statement_of_other_content_is_a_problem(tmp_path: Path) -> None:
    project = Project(tmp_path)
    path = state(project, fingerprint=f"sha256:{'3' * 64}")
    assert "it tells of other content" in matrix.read_statements(project, NAME, CONTENT).problems[0].message
    path.write_text("[]")
    assert "it is no statement" in matrix.read_statements(project, NAME, CONTENT).problems[0].message


def test_a_key_that_cannot_sign_leaves_no_statement(tmp_path: Path) -> None:
    project = Project(tmp_path)
    with pytest.raises(UsageError, match="cannot sign"):
        state(project, tmp_path / "none")
    assert matrix.read_statements(project, NAME, CONTENT) == matrix.Witnesses()
