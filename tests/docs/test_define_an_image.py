"""The definitions of docs/how-to/define-an-image.md are whole: each can be read, and renders a Dockerfile."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

from builder.base.project import Project
from builder.definitions import image
from builder.definitions.image import Overrides
from builder.plan.making import ImageInputs, make_plan
from tests import projects, shipped_files
from tests.plan import shipped

if TYPE_CHECKING:
    from pathlib import Path

    from builder.plan.plan_model import Plan


PAGE = projects.REPOSITORY_ROOT / "docs/how-to/define-an-image.md"
PLATFORM = "linux/arm64"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def rendered(folder: Path, name: str, number: int) -> Plan:
    shutil.copytree(shipped_files.project().dockerfiles, folder / "dockerfiles")
    projects.add_mod(folder, "house-rules", "", {"a": "x\n"}, "description: x\nfiles: [{from: a, to: .}]\n")
    projects.write(folder / f"dockerfiles/{name}/image.yaml", blocks("yaml")[number])
    projects.write(folder / f"dockerfiles/{name}/Dockerfile.j2", blocks("jinja")[number])
    plan: Plan | None = None
    for definition in image.load_chain(Project(folder), name, PLATFORM, Overrides(PLATFORM)):
        plan = make_plan(ImageInputs(definition, shipped.pins(definition), {}, ()), plan)
    assert plan is not None
    return plan


def test_the_one_on_an_image_of_others(tmp_path: Path) -> None:
    plan = rendered(tmp_path, "nightly", 0)
    assert plan.repository == "vllm-node-nightly"
    assert plan.definition.mods == ("house-rules",)


def test_the_one_on_another_definition(tmp_path: Path) -> None:
    plan = rendered(tmp_path, "tools", 1)
    assert plan.parent is not None
    assert plan.parent.definition.name == "tf5-wheel"
    assert b"    strace \\\n    gdb\n" in plan.files["Dockerfile"].content


def test_every_how_to_is_found_from_the_readme() -> None:
    readme = (projects.REPOSITORY_ROOT / "README.md").read_text(encoding="utf-8")
    pages = sorted(path.name for path in PAGE.parent.glob("*.md"))
    assert [page for page in pages if f"docs/how-to/{page})" not in readme] == []
