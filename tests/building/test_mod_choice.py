"""Files of mods from addresses, fetched from a real HTTP server. Then the dry run before a build: patches that do not
apply stop it, and those that could not be tried are reported."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from builder.base import files
from builder.base.errors import FileProblemsError, SourceError, UsageError
from builder.base.project import Project
from builder.building import mod_choice
from builder.definitions import image, mod, recipe
from builder.definitions.image import ImageDefinition
from builder.definitions.mod import Mod, load_mod
from builder.definitions.recipe import Recipe
from builder.lock.model import BasePin, GitPin, LockedPackage, Pins, PythonPin
from builder.pins import packages
from builder.sources import python
from tests import projects, web_server, workspaces
from tests.commands.mod_project import INC, NEW, RELEASES, ModProject, diff, made
from tests.conftest import Command
from tests.sources.wheelhouse import make_simple_index, make_wheel, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.web_server import Web


TEMPLATE = b"{{ messages }}\n"
CHANGED = b"changed\n"
DIGEST = hashlib.sha256(TEMPLATE).hexdigest()


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setattr(python, "_PAUSES", (0.01, 0.01))
    with web_server.serving() as server:
        server.files["/model/chat.jinja"] = TEMPLATE
        yield server


def fetch(project: Project, address: str, sha256: str = DIGEST) -> Mod:
    yaml = f"description: x\nfiles:\n  - {{from: '{address}', to: ., sha256: '{sha256}'}}\n"
    projects.write(project.mods / "chat/mod.yaml", yaml)
    workspace = workspaces.workspace(project, workspaces.NO_ENGINE)
    ((mod,),) = mod_choice.fetch_mod_files(workspace, [(load_mod(project, "chat"),)])
    return mod


def test_a_file_is_fetched_once_and_kept(tmp_path: Path, web: Web) -> None:
    project = Project(tmp_path)
    address = f"{web.url}/model/chat.jinja?download=true"
    mod = fetch(project, address)
    (file,) = mod.fetched
    assert (file.path, file.content, file.executable) == (f".fetched/{DIGEST}/chat.jinja", TEMPLATE, False)
    assert [path.name for path in project.downloads.iterdir()] == [DIGEST]
    assert fetch(project, address) == mod
    assert web.requests == ["/model/chat.jinja"]


def test_a_file_that_no_mod_names_any_more_is_stale(tmp_path: Path, web: Web) -> None:
    project = Project(tmp_path)
    fetch(project, f"{web.url}/model/chat.jinja")
    web.files["/model/chat.jinja"] = CHANGED
    changed = hashlib.sha256(CHANGED).hexdigest()
    fetch(project, f"{web.url}/model/chat.jinja", changed)
    part = f".{changed}.1.2"  # what a killed process left
    for name in (part, "mine"):
        projects.write(project.downloads / name, "x")
    (project.downloads / ("c" * 64)).symlink_to(tmp_path)
    with files.beside(project.downloads / "another"):
        assert [path.name for path in mod_choice.stale(project)] == sorted([part, DIGEST])
    projects.write(project.mods / "broken/mod.yaml", "files: [")
    assert mod_choice.stale(project) == ()


def test_the_content_hash_is_that_of_the_content_and_not_of_the_address(tmp_path: Path, web: Web) -> None:
    project = Project(tmp_path)
    web.files["/mirror/chat.jinja"] = TEMPLATE
    first, second = (fetch(project, f"{web.url}/{folder}/chat.jinja") for folder in ("model", "mirror"))
    assert first.content_hash == second.content_hash
    assert load_mod(project, "chat").content_hash == first.content_hash


def test_another_content_is_an_error_with_both_hashes(tmp_path: Path, web: Web) -> None:
    project = Project(tmp_path)
    web.files["/model/chat.jinja"] = CHANGED
    with pytest.raises(SourceError) as caught:
        fetch(project, f"{web.url}/model/chat.jinja")
    assert caught.value.message == (
        f"mods/chat/mod.yaml:3:6: {web.url}/model/chat.jinja has different content:\n"
        f"  sha256 {hashlib.sha256(CHANGED).hexdigest()} was downloaded,\n"
        f"  sha256 {DIGEST} is in mod.yaml"
    )
    assert "`builder mods pin chat`" in caught.value.hint
    assert list(project.downloads.glob("*")) == []


def test_what_is_kept_is_compared_again(tmp_path: Path, web: Web) -> None:
    project = Project(tmp_path)
    (project.downloads).mkdir(parents=True)
    (project.downloads / DIGEST).write_bytes(b"cut o")
    assert fetch(project, f"{web.url}/model/chat.jinja").fetched[0].content == TEMPLATE
    assert (project.downloads / DIGEST).read_bytes() == TEMPLATE


def test_a_content_that_is_gone_comes_from_an_earlier_build(tmp_path: Path, web: Web) -> None:
    project = Project(tmp_path)
    projects.write(project.builds / f"small/1/lower/mods/chat/.fetched/{DIGEST}/chat.jinja", TEMPLATE.decode())
    assert fetch(project, f"{web.url}/gone/chat.jinja").fetched[0].content == TEMPLATE
    with pytest.raises(SourceError, match="the server answers 404"):
        fetch(project, f"{web.url}/gone/chat.jinja", "0" * 64)


@pytest.mark.parametrize(("status", "hint"), [(404, "has no such file"), (403, "without a login")])
def test_what_to_do_depends_on_the_servers_answer(tmp_path: Path, web: Web, status: int, hint: str) -> None:
    web.absent = status
    with pytest.raises(SourceError) as caught:
        fetch(Project(tmp_path), f"{web.url}/gone/chat.jinja", "0" * 64)
    assert f"{web.url}/gone/chat.jinja: the server answers {status}" in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.slow
def test_a_server_that_is_busy_is_asked_again(tmp_path: Path, web: Web) -> None:
    web.busy = 2
    web.redirects["/latest/chat.jinja"] = f"{web.url}/model/chat.jinja"
    assert fetch(Project(tmp_path), f"{web.url}/latest/chat.jinja").fetched[0].content == TEMPLATE
    web.busy = 3
    with pytest.raises(SourceError, match=r"cannot be fetched \(3 tries\): the server answers 503"):
        fetch(Project(tmp_path / "other"), f"{web.url}/model/chat.jinja")


def test_what_is_too_large_or_leads_elsewhere_is_refused(
    tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path)
    web.redirects["/file/passwd"] = "file:///etc/passwd"
    with pytest.raises(SourceError):
        fetch(project, f"{web.url}/file/passwd")
    monkeypatch.setattr(mod_choice, "LARGEST_FILE", 5)
    with pytest.raises(SourceError, match="more than 5 bytes"):
        fetch(project, f"{web.url}/model/chat.jinja")
    assert list(project.downloads.glob("*")) == []
    port = web.url.rpartition(":")[2]
    with pytest.raises(SourceError) as caught:
        fetch(project, f"http://me:secret@127.0.0.1:{port}/gone/x")
    assert "secret" not in caught.value.message


def test_a_template_from_an_address_that_cannot_be_compiled_ends_the_build_before_it_begins(
    tmp_path: Path, web: Web
) -> None:
    broken = b"{% if tools %}\n{{ tools }\n"
    web.files["/model/chat.jinja"] = broken
    with pytest.raises(FileProblemsError, match=r"mods/chat/chat\.jinja:2:1: this chat template does not"):
        fetch(Project(tmp_path), f"{web.url}/model/chat.jinja", hashlib.sha256(broken).hexdigest())


# Which mods are baked, and where the files say so.


@pytest.fixture
def mod_selection_project(tmp_path: Path) -> Project:
    project = projects.make(tmp_path)
    projects.add_mod(tmp_path, "other", "true\n", {})
    return project


def define(project: Project, name: str, mods: str) -> ImageDefinition:
    text = f"{projects.IMAGE.format(repository=name)}mods: {mods}\n"
    projects.write(project.dockerfiles / name / "image.yaml", text)
    projects.write(project.dockerfiles / name / "Dockerfile.j2", projects.DOCKERFILE)
    return image.load_image(project, name, "linux/arm64")


def asking(project: Project, *mods: str) -> Recipe:
    projects.add_recipe(project.root, "r", "small", "Org/M", list(mods))
    return recipe.load_recipe(project, project.recipes / "r.yaml")


def test_each_is_baked_once_on_the_lowest_image_that_asks_for_it(mod_selection_project: Project) -> None:
    chain = (define(mod_selection_project, "low", "[mods/other]"), define(mod_selection_project, "high", "[]"))
    loaded = mod_choice.load_mods(
        mod_selection_project, chain, asking(mod_selection_project, "mods/other", "mods/template"), ("template",)
    )
    assert [[mod.name for mod in mods] for mods in loaded] == [["other"], ["template"]]


def test_unknown_ones_are_told_with_their_places_in_all_files(mod_selection_project: Project) -> None:
    chain = (
        define(mod_selection_project, "low", "[template, mods/tmplate]"),
        define(mod_selection_project, "high", "\n  - nothing"),
    )
    with pytest.raises(FileProblemsError) as caught:
        mod_choice.load_mods(mod_selection_project, chain, asking(mod_selection_project, "mods/othr"), ("typed",))
    assert caught.value.message.splitlines() == [
        "dockerfiles/high/image.yaml:7:5: no mod `nothing` in mods/; `builder mods add ADDRESS` copies it from its"
        " repository",
        "dockerfiles/low/image.yaml:6:18: no mod `tmplate` in mods/; did you mean `template`?",
        "recipes/r.yaml:5:8: no mod `othr` in mods/; did you mean `other`?",
    ]


def test_one_that_was_typed_has_no_place(mod_selection_project: Project) -> None:
    with pytest.raises(UsageError) as caught:
        mod_choice.load_mods(
            mod_selection_project, (define(mod_selection_project, "low", "[other]"),), None, ("templat",)
        )
    place = mod_selection_project.mods
    assert caught.value.message == (
        f"no mod `templat` in {place} (a mod is a folder with a run.sh or mod.yaml, or a zip of it)"
    )
    assert caught.value.hint == "did you mean template?"


LOOP = "nohup sh -c 'while sleep 60; do sync; echo 3 > /proc/sys/vm/drop_caches; done' > /dev/null 2>&1 &\n"


def test_one_of_a_recipe_that_an_image_cannot_keep_is_left_out_with_a_word(mod_selection_project: Project) -> None:
    projects.add_mod(mod_selection_project.root, "loop", LOOP, {})
    projects.add_mod(mod_selection_project.root, "words", "echo 'nothing to do any more'\n", {})
    chain, wanted = (
        (define(mod_selection_project, "low", "[other]"),),
        asking(mod_selection_project, "mods/loop", "mods/words", "template"),
    )
    loaded = mod_choice.load_mods(mod_selection_project, chain, wanted)
    assert [[mod.name for mod in mods] for mods in loaded] == [["other", "template"]]
    loop, words = mod_choice.left_out(mod_selection_project, wanted, loaded)
    assert loop.startswith("mod loop is left out: run.sh writes /proc/sys/vm/drop_caches and starts a process")
    assert words == (
        "mod words is left out: run.sh only prints text, which no image keeps. "
        "Instead: remove the mod; it changes nothing"
    )


def test_only_a_bare_script_of_a_recipe_is_left_out(mod_selection_project: Project) -> None:
    projects.add_mod(mod_selection_project.root, "loop", LOOP, {})
    projects.add_mod(mod_selection_project.root, "more", f"{LOOP}cp chat.jinja $WORKSPACE_DIR\n", {"chat.jinja": "x"})
    projects.add_mod(mod_selection_project.root, "said", LOOP, {}, "description: x\nrun: run.sh\n")
    wanted = asking(mod_selection_project, "mods/loop", "mods/more", "mods/said")
    chain = (define(mod_selection_project, "low", "[]"),)
    loaded = mod_choice.load_mods(mod_selection_project, chain, wanted, ("loop",))
    assert [[mod.name for mod in mods] for mods in loaded] == [["loop", "more", "said"]]
    assert list(mod_choice.left_out(mod_selection_project, wanted, loaded)) == []


# Packages of mods that the image has in another version than they name, told with their place before a build.

FLASHINFER = GitPin("https://example.org/f.git", "main", "a" * 40, "0.7.0", "2026-01-01T00:00:00Z")


def check(folder: Path, packages: str) -> None:
    project: Project = projects.make(folder)
    projects.write(folder / "mods/kernels/mod.yaml", f"description: Kernels\npackages: {packages}\n")
    projects.write(
        project.dockerfiles / "gpu/image.yaml", f"{projects.IMAGE.format(repository='gpu')}mods: [kernels]\n"
    )
    projects.write(project.dockerfiles / "gpu/Dockerfile.j2", projects.DOCKERFILE)
    chain = (image.load_image(project, "gpu", "linux/arm64"),)
    held = tuple(
        LockedPackage(name, version, ("b" * 64,)) for name, version in (("torch", "2.10.0"), ("tilelang", "1"))
    )
    pins = Pins(sources={"flashinfer": FLASHINFER}, python=PythonPin((), "2026-01-01T00:00:00Z", held))
    mod_choice.check_mod_versions(chain, mod_choice.load_mods(project, chain, None), [pins])


def test_each_that_disagrees_is_told_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        check(tmp_path, "[Torch==2.11.0, tilelang==1, flash-qla==0.1.3, flashinfer_cubin==0.6.9]")
    assert caught.value.message.splitlines() == [
        "mods/kernels/mod.yaml:2:12: Torch==2.11.0, but the image of gpu has torch==2.10.0",
        "mods/kernels/mod.yaml:2:58: flashinfer_cubin==0.6.9, but the image of gpu has flashinfer-cubin==0.7.0",
    ]
    assert caught.value.hint


@pytest.mark.parametrize("version", ["2.11.0a0~nv", "nightly", "0.7.2-dev_abc!x"])
def test_a_base_of_others_may_have_versions_that_nobody_can_compare(tmp_path: Path, version: str) -> None:
    project = projects.make(tmp_path)
    projects.write(
        tmp_path / "mods/template/mod.yaml", "description: x\nrun: run.sh\npackages: [torch==2.11.0, six==1]\n"
    )
    projects.write(
        project.dockerfiles / "small/image.yaml", f"{projects.IMAGE.format(repository='small')}mods: [template]\n"
    )
    chain = (image.load_image(project, "small", "linux/arm64"),)
    base = BasePin("others/vllm:latest", "sha256:" + "1" * 64, packages=(LockedPackage("torch", version, ()),))
    with pytest.raises(SourceError, match=r"torch==2.11.0, but the image of small has torch===") as caught:
        mod_choice.check_mod_versions(chain, mod_choice.load_mods(project, chain, None), [Pins(base)])
    assert caught.value.message.endswith(version)


def test_what_the_image_has_or_vllm_does_not_name_is_fine(tmp_path: Path) -> None:
    check(tmp_path, "[torch==2.10.0, tilelang==1.0, triton==3.6, transformers==5.0]")


@pytest.fixture
def there(tmp_path: Path) -> Iterator[ModProject]:
    with made(tmp_path) as there:
        yield there


def require(there: ModProject, version: str, *names: str) -> None:
    reach = packages.Access(there.project, there.environ, there.said.append)
    mods = mod.load_all(there.project, names)
    find = {"vllm": packages.released(reach, (), "vllm", version)}.get
    mod_choice.require_applicable(mods, find, there.report)


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
