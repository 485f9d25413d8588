"""The build hook of hatchling: what a wheel has that is in no file of the repository.

The commit that it was made from, for `builder --version`, and click's scripts with which bash, zsh and fish complete
names. A source archive carries the commit, so that a wheel made from it knows the commit as well.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMMIT = "builder/commit"
COMPLETIONS = {
    "bash": "share/bash-completion/completions/builder",
    "zsh": "share/zsh/site-functions/_builder",
    "fish": "share/fish/vendor_completions.d/builder.fish",
}


class ReleaseHook(BuildHookInterface[Any]):
    """Adds these files to what is built; a checkout that is installed in place (`--editable`) needs none of them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        made = Path(tempfile.mkdtemp(prefix="builder-wheel-"))
        self._made = made
        root = Path(self.root)
        if not (root / COMMIT).is_file() and (commit := _commit(root)):
            (made / "commit").write_text(f"{commit}\n", encoding="ascii")
            build_data["force_include"][str(made / "commit")] = COMMIT
        if self.target_name == "wheel":
            for shell, path in COMPLETIONS.items():
                (made / path).parent.mkdir(parents=True, exist_ok=True)
                (made / path).write_text(_completion(root, shell), encoding="utf-8")
                build_data["shared_data"][str(made / path)] = path

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        import shutil

        if version != "editable":
            shutil.rmtree(self._made, ignore_errors=True)


def _commit(root: Path) -> str:
    """The commit of the checkout at ``root``; empty where it is none."""
    if not (root / ".git").exists():
        return ""
    argv = ["git", "-C", str(root), "rev-parse", "--verify", "HEAD"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def _completion(root: Path, shell: str) -> str:
    """What `builder completion` prints for the shell."""
    sys.path.insert(0, str(root))
    try:
        from builder.cli import main
    finally:
        sys.path.remove(str(root))
    return main.completion_script(shell)
