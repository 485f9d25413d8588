"""Versions from tags: those that setuptools-scm makes of the same repository, and those where it makes none."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from uv import find_uv_bin

from builder.sources import mirror
from tests.sources.git_server import make_repository

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sources.git_server import Repository


@pytest.mark.parametrize(
    ("version", "following"),
    [
        ("0.19.1", "0.19.2"),
        ("0.19", "0.20"),
        ("0.19.1rc0", "0.19.1rc1"),
        ("0.6.7.post1", "0.6.7.post2"),
        ("1.0.dev0", "1.0"),
        ("0.9.9", "0.9.10"),
        ("1.2+cu130", "1.3"),
    ],
)
def test_the_next_version_is_guessed(version: str, following: str) -> None:
    assert mirror.next_version(version) == following


# With the version that setuptools-scm makes of them, too.
AS_SETUPTOOLS_SCM = [
    (("v0.19.2rc0",), "0.19.2rc1.dev2+g"),
    (("v2.0rc1", "v2.0", "v2.0rc2"), "2.1.dev2+g"),
    (("0.5.0",), "0.5.1.dev2+g"),
    (("v0.6.7.post1",), "0.6.7.post2.dev2+g"),
    ((), "0.1.dev3+g"),
]


def tagged(folder: Path, tags: tuple[str, ...]) -> Repository:
    """A repository with two commits after the one that has the tags."""
    upstream = make_repository(folder / "upstream.git")
    first = upstream.commit("refs/heads/main", "One", {"a": "1"})
    for tag in tags:
        upstream.git("tag", tag, first)
    upstream.commit("refs/heads/main", "Two", {"a": "2"})
    upstream.commit("refs/heads/main", "Three", {"a": "3"})
    return upstream


@pytest.mark.parametrize(
    ("tags", "version"),
    [
        *AS_SETUPTOOLS_SCM,
        # setuptools-scm takes FlashInfer's nightly tag here, and refuses the other two repositories.
        (("v0.6.7", "nightly-v0.9.0-20260401"), "0.6.8.dev2+g"),
        (("v1.0-legacy-branch", "v1.x"), "0.1.dev3+g"),
        (("release/v3",), "0.1.dev3+g"),
    ],
)
def test_a_version_is_made_of_the_nearest_tags(tmp_path: Path, tags: tuple[str, ...], version: str) -> None:
    upstream = tagged(tmp_path, tags)
    commit = upstream.git("rev-parse", "main")
    assert mirror.resolve_ref(tmp_path / "mirrors", str(upstream.path), "main").version == version + commit[:7]


@pytest.mark.slow
def test_setuptools_scm_makes_the_same_version(tmp_path: Path) -> None:
    site = tmp_path / "site"
    uv = [find_uv_bin(), "pip", "install", "--quiet", "--python", sys.executable, "--target", str(site)]
    subprocess.run([*uv, "setuptools-scm==10.3.4"], check=True)
    script = "import setuptools_scm, sys; print([setuptools_scm.get_version(root=root) for root in sys.argv[1:]])"
    clones = []
    for number, (tags, _) in enumerate(AS_SETUPTOOLS_SCM):
        upstream = tagged(tmp_path / str(number), tags)
        clones.append(str(tmp_path / str(number) / "clone"))
        subprocess.run(["git", "clone", "--quiet", str(upstream.path), clones[-1]], check=True)
    environ = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", script, *clones], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = [version.partition("+g")[0] for version in ast.literal_eval(done.stdout.splitlines()[-1])]
    assert made == [version.removesuffix("+g") for _, version in AS_SETUPTOOLS_SCM]
