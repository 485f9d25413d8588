"""The dry run before a build: patches that do not apply stop it, and those that could not be tried are reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError
from builder.base.project import Project
from builder.building import mod_dry_run
from builder.definitions import mod
from builder.pins import packages
from tests import projects
from tests.commands.mod_project import INC, NEW, RELEASES, ModProject, diff, made
from tests.conftest import Command
from tests.sources.wheelhouse import make_simple_index, make_wheel, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def there(tmp_path: Path) -> Iterator[ModProject]:
    with made(tmp_path) as there:
        yield there


def require(there: ModProject, version: str, *names: str) -> None:
    reach = packages.Access(there.project, there.environ, there.said.append)
    mods = mod.load_all(there.project, names)
    find = {"vllm": packages.released(reach, (), "vllm", version)}.get
    mod_dry_run.require_applicable(mods, find, there.report)


@pytest.mark.slow
def test_patches_that_apply_say_nothing(there: ModProject) -> None:
    there.add_mod("one")
    there.add_mod("two", patch=diff(NEW, NEW.replace("ten\n", "TEN\n")))
    require(there, "0.20.0", "one", "two")
    require(there, "0.21.0", "one", "two")
    assert there.said == []


@pytest.mark.slow
def test_every_patch_that_does_not_apply_is_told_with_its_place(there: ModProject) -> None:
    there.add_mod("one")
    there.add_mod("two", patch=diff(file="vllm/none.py"))
    with pytest.raises(FileProblemsError) as caught:
        require(there, "0.23.0", "one", "two")
    place = "mods/{}/mod.yaml:2:12: a.patch does not apply to vllm 0.23.0: {}"
    assert caught.value.message.splitlines() == [
        place.format("one", f"{INC}, hunk 2 of 2 (@@ -37,7 +37,7 @@)"),
        place.format("two", "vllm/none.py does not exist"),
    ]
    assert caught.value.hint == "`builder mods check one --against VERSION…` shows which versions it applies to"


@pytest.mark.slow
def test_a_patch_for_other_versions_is_not_tried(there: ModProject) -> None:
    patches = "patches: [{file: a.patch, package: vllm, version: '<0.23'}, {file: b.patch, package: vllm}]"
    yaml = f"description: A mod\n{patches}\nrequires: {{vllm: '>=0.20'}}\n"
    own = diff(NEW, NEW.replace("ten\n", "TEN\n"))
    projects.add_mod(there.project.root, "two", "", {"a.patch": diff(), "b.patch": own}, yaml)
    require(there, "0.20.0", "two")
    assert there.said == []
    with pytest.raises(FileProblemsError) as caught:
        require(there, "0.23.0", "two")
    assert caught.value.message.startswith("mods/two/mod.yaml:2:")
    assert "b.patch does not apply to vllm 0.23.0" in caught.value.message
    assert "a.patch" not in caught.value.message


@pytest.mark.slow
def test_what_is_in_place_or_fits_in_part_is_said(there: ModProject) -> None:
    there.add_mod("fix")
    require(there, "0.24.0", "fix")
    require(there, "0.22.0", "fix")
    assert there.said[0] == "mod fix: a.patch is already in vllm 0.24.0"
    assert there.said[1].startswith(f"mod fix: a.patch applies to vllm 0.22.0 with less context: {INC}: at line 3")


def test_what_cannot_be_told_here_is_left_to_the_image(there: ModProject) -> None:
    there.add_mod("fix")
    there.add_mod("other", package="elsewhere")
    there.withdraw("0.20.0")
    require(there, "0.20.0", "fix", "other")
    fix, other = there.said
    assert fix.startswith("mod fix: a.patch was not tried before the build: no wheel of vllm==0.20.0 was found")
    assert other == (
        "mod other: a.patch was not tried before the build: no version of elsewhere is pinned; "
        "its step in the build decides"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [
        "sed -i s/x/y/ /usr/lib/python3/dist-packages/vllm/layers/inc.py\n",
        "python3 change.py\n",
        'sed -i s/x/y/ "$(python3 -c "import vllm; print(vllm.__path__[0])")"/layers/*.py\n',
        "pip install --force-reinstall vllm==0.20.0\n",
    ],
    ids=["by name", "by a program of its own", "by a pattern", "by installing it anew"],
)
def test_what_a_script_before_it_may_have_changed_is_left_to_the_image(there: ModProject, script: str) -> None:
    there.add_mod("fix")
    program = {"change.py": "import vllm.layers.inc as changed\n"} if "change.py" in script else {}
    projects.add_mod(there.project.root, "legacy", script, program)
    with pytest.raises(FileProblemsError):
        require(there, "0.23.0", "fix", "legacy")
    require(there, "0.23.0", "legacy", "fix")
    assert there.said == [
        f"mod fix: a.patch was not tried before the build: {INC}, hunk 2 of 2 (@@ -37,7 +37,7 @@); "
        "but legacy may change the file first; its step in the build decides"
    ]
    require(there, "0.20.0", "legacy", "fix")
    assert len(there.said) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    ["cp chat.jinja $WORKSPACE_DIR/\n", "pip install tilelang==0.1.8\n", "echo 'for vllm' > /etc/motd\n"],
)
def test_a_script_before_it_that_has_nothing_to_do_with_it_is_no_excuse(there: ModProject, script: str) -> None:
    there.add_mod("fix")
    projects.add_mod(
        there.project.root, "template", script, {"chat.jinja": "{{ messages }}\n", "README.md": "inc.py\n"}
    )
    with pytest.raises(FileProblemsError, match=r"mods/fix/mod\.yaml:2:12: a\.patch does not apply to vllm 0\.23\.0"):
        require(there, "0.23.0", "template", "fix")


@pytest.mark.slow
def test_a_patch_is_tried_on_the_files_that_a_mod_before_it_puts_over_the_package(there: ModProject) -> None:
    there.add_mod("fix")
    yaml = "description: Theirs\nfiles: [{{from: {}, to: {}}}]\n"
    installed = "/opt/venv/lib/python3.12/site-packages/vllm/layers"
    for name, version in (("good", "0.20.0"), ("bad", "0.23.0")):
        text = yaml.format("inc.py", f"{installed}/inc.py")
        projects.add_mod(there.project.root, name, "", {"inc.py": RELEASES[version] or ""}, text)
    require(there, "0.23.0", "good", "fix")
    assert there.said == []
    with pytest.raises(FileProblemsError, match="hunk 2 of 2"):
        require(there, "0.20.0", "bad", "fix")
    text = yaml.format("tree", f"{installed}/")
    projects.add_mod(there.project.root, "tree", "", {"tree/inc.py": RELEASES["0.20.0"] or ""}, text)
    with pytest.raises(FileProblemsError, match="hunk 2 of 2"):  # it lands in layers/tree
        require(there, "0.23.0", "tree", "fix")


@pytest.mark.slow
def test_a_file_that_is_put_over_the_package_comes_before_the_patch(there: ModProject) -> None:
    there.add_mod("fix", "files: [{from: inc.py, to: /usr/lib/python3/dist-packages/vllm/layers/}]")
    (there.project.mods / "fix/inc.py").write_text(RELEASES["0.20.0"] or "")
    require(there, "0.25.0", "fix")
    assert there.said == []
    there.add_mod("fix", "files: [{from: inc.py, to: .}]")
    with pytest.raises(FileProblemsError):
        require(there, "0.25.0", "fix")


SOURCES = """\
sources:
  vllm: {{wheel: vllm=={version}}}
python: {{version: "3.12", packages: []}}
"""


@pytest.mark.long
@pytest.mark.engine
def test_a_build_stops_before_it_begins(small: Project, repository: str, builder: Command, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    make_wheel(wheels, "uv", "1.0")
    for version in ("0.20.0", "0.22.0", "0.23.0"):
        make_wheel(wheels, "vllm", version, files={INC: RELEASES[version] or ""})
    yaml = "description: A mod\npatches: [{file: a.patch, package: vllm}]\n"
    projects.add_mod(small.root, "fix", "", {"a.patch": diff()}, yaml)
    make_simple_index(wheels)
    with serving(wheels) as server:
        errors = {}
        for version in ("0.20.0", "0.22.0", "0.23.0"):
            text = projects.IMAGE.format(repository=repository) + SOURCES.format(version=version)
            projects.write(small.dockerfiles / "small/image.yaml", text)
            ask = ("build", "small", "--mod", "fix", "--dry-run")
            code = 2 if version == "0.23.0" else 0
            errors[version] = builder(*ask, code=code, environ={"PIP_INDEX_URL": f"{server.url}/simple"}).stderr
    assert "a.patch" not in errors["0.20.0"]
    assert "a.patch applies to vllm 0.22.0 with less context" in errors["0.22.0"]
    assert "mods/fix/mod.yaml:2:12: a.patch does not apply to vllm 0.23.0" in errors["0.23.0"]
