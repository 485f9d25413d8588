from __future__ import annotations

from typing import TYPE_CHECKING

from builder.definitions import mod
from builder.plan.making import collect_warnings
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path


def load(root: Path, **lines: str) -> list[mod.Mod]:
    project = projects.make(root)
    for name, more in lines.items():
        projects.add_mod(root, name, "", {"go": ""}, f"description: x\n{more}\n")
    return [mod.load_mod(project, name) for name in (*lines, "template")]


def test_what_is_not_pinned_is_said(tmp_path: Path) -> None:
    mods = load(tmp_path, a="run: go\nnetwork: true", b="packages: [x==1, y==2]", c="run: go")
    assert collect_warnings((), tuple(mods), None) == (
        "mod a runs go with the network: what that downloads is not pinned",
        "mod b installs x==1 y==2: pinned by version, not by hash",
        "mod template has no mod.yaml: what it downloads, if anything, is not pinned",
    )


def test_a_variable_that_is_set_again_is_said(tmp_path: Path) -> None:
    a, b, c, _ = load(tmp_path, a="env: {X: 1, Y: 1}", b="env: {X: 2, Y: 1}", c="env: {X: 2}")
    message = "mod b sets X to '2' in place of '1' of mod a"
    assert collect_warnings((), (a, b, c), None) == (message,)
    assert collect_warnings((a,), (b, c), None) == (message,)
    assert collect_warnings((a, b), (c,), None) == ()
