"""Mods for tests, read from the text of a mod.yaml."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError
from builder.definitions import mod
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path

    from builder.definitions.mod import Mod


ALL_KEYS = """\
description: all keys
files: [{from: a.jinja, to: .}, {from: tree/, to: /opt/tree}]
patches: [{file: a.patch, package: vllm}, {file: b.patch, package: six, strip: 0, version: ">=1.16"}]
packages: ["tilelang[extra]==0.1.8", other==1.0.post1+cpu]
run: go.sh
timeout: 60
env: {VLLM_X: 1, TEXT: "a $b"}
requires: {vllm: ">=0.19,<0.23", transformers: ">=5", six: "<2"}
conflicts: [mods/foe]
after: [friend]
may_be_empty: true
check: [{file: a.jinja, contains: tool}, {run: look.sh}]
"""


def load(root: Path, yaml: str, *files: str) -> Mod:
    """The mod ``m`` with this mod.yaml, and files of these names."""
    project = projects.make(root)
    projects.add_mod(root, "m", "", dict.fromkeys(files, "x\n"), yaml)
    return mod.load_mod(project, "m")


def problems(root: Path, yaml: str, *files: str) -> list[str]:
    """The problems of such a mod, as lines."""
    with pytest.raises(FileProblemsError) as caught:
        load(root, yaml, *files)
    return str(caught.value).splitlines()
