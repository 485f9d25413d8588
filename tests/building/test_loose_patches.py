from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.building import mod_choice
from builder.definitions import mod
from builder.definitions.mod import Mod, ModPatch
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path


HUNK = "@@ -1,1 +1,1 @@\n-old\n+new\n"


def diff(*names: str, old: str = "a/", new: str = "b/") -> str:
    return "".join(f"diff --git {old}{n} {new}{n}\n--- {old}{n}\n+++ {new}{n}\n{HUNK}" for n in names)


def declared(root: Path, patch: str, yaml: str = "") -> Mod:
    project = projects.make(root)
    projects.add_mod(root, "m", "patch -p1 -d / < a.patch\n", {"a.patch": patch}, yaml)
    return mod_choice.as_declared(mod.load_mod(project, "m"))


@pytest.mark.parametrize(
    ("patch", "package", "strip"),
    [
        (diff("vllm/config.py"), "vllm", 1),
        (diff("vllm/config.py", old="", new=""), "vllm", 0),
        (diff("src/transformers/x.py"), "transformers", 2),
        (diff("python/triton/x.py"), "triton", 2),
        (diff("usr/local/lib/python3.12/dist-packages/vllm/x.py"), "vllm", 6),
        (diff("opt/venv/lib/python3.12/site-packages/mistral_common/x.py", old="/", new="/"), "mistral_common", 6),
        (f"--- /dev/null\n+++ b/vllm/new.py\n{HUNK}", "vllm", 1),
    ],
)
def test_the_package_is_told_by_the_paths(tmp_path: Path, patch: str, package: str, strip: int) -> None:
    assert declared(tmp_path, patch).patches == (ModPatch("a.patch", package, strip),)


@pytest.mark.parametrize("patch", [diff("model.py", old="", new=""), diff("a-folder/x.py"), "no patch\n"])
def test_paths_that_tell_no_package_are_no_patch_to_try(tmp_path: Path, patch: str) -> None:
    assert declared(tmp_path, patch).patches == ()


def test_what_lies_outside_of_the_package_is_left_out(tmp_path: Path) -> None:
    mod = declared(tmp_path, diff("docs/page.md", "vllm/a.py", "tests/test_a.py", "vllm/b.py"))
    assert mod.patches == (ModPatch("a.patch", "vllm", 1),)
    (content,) = (file.content for file in mod.files if file.path == "a.patch")
    assert content.decode() == diff("vllm/a.py", "vllm/b.py")


def test_declared_patches_are_no_hint(tmp_path: Path) -> None:
    yaml = "description: x\nrun: run.sh\npatches: [{file: a.patch, package: toy}]\n"
    assert declared(tmp_path, diff("vllm/a.py"), yaml).patches == (ModPatch("a.patch", "toy", 1),)
