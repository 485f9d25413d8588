"""A new mod works as it is, and explains every key that there is."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
import yaml

from builder.base.errors import UsageError
from builder.base.project import Project
from builder.commands import mods
from builder.definitions import fields, mod
from tests import projects
from tests.conftest import Command

if TYPE_CHECKING:
    from pathlib import Path


def test_a_new_mod_is_valid_and_explains_every_key(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    files = mods.new_mod(project, "mods/my-mod")
    assert [file.name for file in files] == ["README.md", "check.sh", "example.txt", "mod.yaml"]
    loaded = mod.load_mod(project, "my-mod")
    assert loaded.copies
    assert loaded.checks
    text = (project.mods / "my-mod/mod.yaml").read_text(encoding="utf-8")
    keys = json.loads((fields.SCHEMAS / "mod.schema.json").read_bytes())["properties"]
    for key in keys:
        assert re.search(rf"^(# )?{key}:", text, re.MULTILINE), key
    assert "builder mods check my-mod" in (project.mods / "my-mod/README.md").read_text(encoding="utf-8")


def test_every_key_is_right_as_it_is_explained(tmp_path: Path) -> None:
    """With all of them taken in, nothing but the files that they name is missing."""
    project = projects.make(tmp_path)
    mods.new_mod(project, "full")
    path = project.mods / "full/mod.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r"^# (?=[a-z_]+:|  - \{)", "", text, flags=re.MULTILINE), encoding="utf-8")
    (project.mods / "full/run.sh").write_text("true\n")
    (project.mods / "full/inc.py.patch").write_text("no matter\n")
    described = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert set(described) == set(json.loads((fields.SCHEMAS / "mod.schema.json").read_bytes())["properties"])
    described["network"] = True
    path.write_text(yaml.safe_dump(described), encoding="utf-8")
    assert mod.load_mod(project, "full").patches


def test_an_editor_is_led_to_the_schema_where_the_project_has_it(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    first, _, rest = mods.new_mod(project, "without")[-1].read_text(encoding="utf-8").partition("\n")
    assert first.startswith("# What this mod changes")
    projects.write(project.root / "builder/definitions/schemas/mod.schema.json", "{}")
    led = mods.new_mod(project, "within")[-1]
    line, _, others = led.read_text(encoding="utf-8").partition("\n")
    assert (led.parent / line.removeprefix("# yaml-language-server: $schema=")).read_text() == "{}"
    assert others == f"{first}\n{rest}"


@pytest.mark.parametrize("name", ["", "..", "a/b", "-a", ".a", "a b", "a$b", "mods/"])
def test_a_name_that_no_mod_may_have_is_refused(tmp_path: Path, name: str) -> None:
    project = projects.make(tmp_path)
    with pytest.raises(UsageError, match="is not a valid mod name"):
        mods.new_mod(project, name)
    assert [path.name for path in project.mods.iterdir()] == ["template"]


def test_one_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    (project.mods / "notes").mkdir()
    for name in ("template", "notes"):
        with pytest.raises(UsageError, match=f"mods/{name} already exists"):
            mods.new_mod(project, name)
    assert sorted(path.name for path in project.mods.glob("*/*")) == ["chat.jinja", "run.sh"]


def test_what_a_killed_run_left_is_no_hindrance(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.write(project.mods / ".my-mod.new/half", "x")
    mods.new_mod(project, "my-mod")
    assert mod.mod_names(project) == ("my-mod", "template")
    assert not (project.mods / ".my-mod.new").exists()


@pytest.mark.engine
def test_a_new_mod_is_baked_and_its_check_holds(small: Project, builder: Command) -> None:
    builder("mods", "new", "my-mod")
    assert "no patches to check" in builder("mods", "check", "my-mod").stdout
    builder("build", "small", "--mod", "my-mod")
    (small.mods / "my-mod/example.txt").write_text("another text\n")
    assert "my-mod" in builder("build", "small", "--mod", "my-mod", code=6).stderr
