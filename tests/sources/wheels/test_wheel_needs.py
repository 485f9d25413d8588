"""What a wheel needs, read of it behind a server, against the packages of an image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.definitions.image import PythonRequirements
from builder.sources import wheels
from builder.sources.wheels import CommitWheel
from tests.sources.wheelhouse import make_wheel, serving, sha256

if TYPE_CHECKING:
    from pathlib import Path


WANTS = PythonRequirements("3.12", "2.39", ())


@pytest.mark.parametrize(
    ("needs", "problem"),
    [
        ("torch==2.13.0", ""),
        ("torch==2.11.0", "needs torch==2.11.0, and not 2.13.0+cu130"),
        ("Torch>=2.14", "needs Torch>=2.14, and not 2.13.0+cu130"),
        ("torch==2.11.0; platform_machine == 'x86_64'", ""),
        ("torch==2.11.0; python_version >= '3.12'", "needs torch==2.11.0, and not 2.13.0+cu130"),
        ("torch==2.11.0; extra == 'audio'", ""),
        ("xgrammar==1.0", ""),
        ("no requirement at all", ""),
    ],
)
def test_another_version_is_a_conflict_and_a_package_that_is_left_out_is_none(needs: str, problem: str) -> None:
    assert wheels.conflict([needs], {"torch": "2.13.0+cu130"}, WANTS, "linux/arm64") == problem


def test_what_a_wheel_needs_is_read_in_place(tmp_path: Path) -> None:
    version = "0.32.1.dev7+gabcdef012.cu130"
    made = make_wheel(tmp_path / "files", "vllm", version, requires=("torch==2.11.0", "numpy"))
    with serving(tmp_path / "files") as served:
        wheel = CommitWheel(version, f"{served.url}/{made.name}", sha256(made))
        assert wheels.read_wheel_needs(tmp_path / "cache", "vllm", wheel, None) == ("torch==2.11.0", "numpy")
