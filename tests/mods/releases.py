"""Released wheels, a few files of each: what the patches and checks of the shipped mods are held against."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet

from builder.base.project import Project
from builder.definitions import mod
from builder.definitions.mod import Mod
from builder.pins import packages
from builder.pins.packages import Access
from tests import shipped_files

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path


# All releases from the first that a shipped mod holds for, and the last ones before it.
VLLM = (
    *("0.17.1", "0.18.0", "0.18.1", "0.19.0", "0.19.1", "0.20.0", "0.20.1", "0.20.2", "0.21.0", "0.22.0", "0.22.1"),
    *("0.23.0", "0.24.0", "0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0"),
    *("0.32.0", "0.33.0"),
)
# The first of transformers 5, the two around each change of the lines in question, and some since.
TRANSFORMERS = ("5.0.0", "5.2.0", "5.3.0", "5.4.0", "5.5.0", "5.9.0", "5.10.4", "5.16.1", "5.19.0", "5.23.0")
_LAYERS = "vllm/model_executor/layers"
# What the mods change, look at or extend; a wheel is opened once for all of them.
FILES = {
    "vllm": (
        *("vllm/__init__.py", "vllm/config/vllm.py", "vllm/config/speculative.py", "vllm/model_executor/custom_op.py"),
        *(f"vllm/model_executor/model_loader/{file}.py" for file in ("base_loader", "utils")),
        *(f"{_LAYERS}/{file}.py" for file in ("logits_processor", "vocab_parallel_embedding")),
        *(f"{_LAYERS}/quantization/{file}" for file in ("__init__.py", "fp8.py", "inc.py", "inc/inc.py")),
        *(f"{_LAYERS}/mamba/{file}" for file in ("__init__.py", "gdn_linear_attn.py", "gdn/qwen_gdn_linear_attn.py")),
        *(f"vllm/transformers_utils/configs/{file}" for file in ("qwen3_5.py", "qwen3_5_moe.py")),
    ),
    "transformers": ("transformers/modeling_rope_utils.py",),
    "flash_qla": tuple(
        f"flash_qla/ops/gated_delta_rule/chunk/{file}"
        for file in (
            *("__init__.py", "cp_context.py", "cp/__init__.py", "cp/context.py", "cp/autocp/coefs/sm90.csv"),
            *(f"cp/autocp/{file}.py" for file in ("__init__", "decision", "launch", "utils")),
        )
    ),
}


def shipped(name: str) -> Mod:
    return mod.load_mod(shipped_files.project(), name)


def folder_of(name: str) -> Path:
    return shipped_files.project().root / "mods" / name


def held(one: Mod, package: str, versions: Collection[str]) -> list[str]:
    """The ``versions`` of ``package`` that the mod requires."""
    return [version for version in versions if version in SpecifierSet(one.requires[package])]


@dataclass(frozen=True)
class Releases:
    """Reads files of wheels, each once a test session."""

    reach: Access

    def sites(self, root: Path, package: str, versions: Collection[str]) -> Iterator[tuple[str, Path]]:
        """For each of ``versions`` a folder like site-packages that holds those of FILES that the wheel has."""
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda version: self._read(package, version), versions))
        for version, files in zip(versions, found, strict=True):
            write(root / version, files)
            yield version, root / version

    def text(self, package: str, version: str, path: str) -> str:
        """One text file of a wheel."""
        return packages.released(self.reach, (), package, version).tree.read([path])[path].decode()

    def texts(self, package: str, version: str, paths: Collection[str]) -> dict[str, str]:
        """Those of ``paths`` that a wheel has, as text."""
        files = packages.released(self.reach, (), package, version).tree.read(paths)
        return {path: content.decode() for path, content in files.items()}

    def _read(self, package: str, version: str) -> dict[str, bytes]:
        return packages.released(self.reach, (), package, version).tree.read(FILES[package])


def releases(cache: Path) -> Releases:
    return Releases(Access(Project(cache), os.environ, lambda _: None))


def write(root: Path, files: dict[str, bytes]) -> None:
    for path, content in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def apply(name: str, patch: str, site: Path) -> str:
    """What became of a patch of the mod ``name`` in the folder ``site``: ``applied``, ``in place`` or what git said."""
    command = ["git", "apply", "--whitespace=nowarn"]
    environ = {**os.environ, "GIT_DIR": "/dev/null", "LC_ALL": "C"}
    file = folder_of(name) / patch

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *options, file], cwd=site, env=environ, capture_output=True, text=True)

    whole = run()
    if whole.returncode == 0:
        return "applied"
    return "in place" if run("--reverse", "--check").returncode == 0 else whole.stderr


def run_script(name: str, script: str, site: Path) -> subprocess.CompletedProcess[str]:
    """A script of the mod, from a copy of it, where Python finds packages in ``site``; checks run as ``bash -c``, as in
    an image."""
    copy = site.parent / f"{site.name}-mod"
    shutil.copytree(folder_of(name), copy, dirs_exist_ok=True)
    bash = ["bash", "-c", (copy / script).read_text()] if script == "check.sh" else ["bash", script]
    return subprocess.run(bash, cwd=copy, env=site_packages(site), capture_output=True, text=True, timeout=120)


def site_packages(folder: Path) -> dict[str, str]:
    """The environment in which ``folder`` is to Python what site-packages is: it reads the .pth files there, too."""
    start = folder.parent / f"{folder.name}-start"
    start.mkdir(exist_ok=True)
    (start / "sitecustomize.py").write_text(f"import site\nsite.addsitedir({str(folder)!r})\n")
    return {**os.environ, "PYTHONPATH": f"{start}:{folder}"}
