"""Mods copied from a real git server: added, updated, edited in between."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import ConflictError, FileProblemsError, NothingToDoError, SourceError, UsageError
from builder.base.events import ignore
from builder.base.project import Project
from builder.building.mod_choice import ModVerdict
from builder.commands import mods
from builder.commands.mods import changes, list_mods
from builder.definitions import mod
from builder.definitions.mod import load_mod, mod_names
from builder.definitions.source_patches import SourcePatch
from builder.lock import lock_file
from builder.lock.model import GitPin, NumberedImage, Repository
from builder.moving import copies
from builder.sources import mirror, pulls
from tests import projects, web_server
from tests.commands.mod_project import INC, NEW, OLD, RELEASES, ModProject, diff, made
from tests.conftest import WITHOUT_ENGINE, run_command
from tests.sources import git_server
from tests.sources.wheelhouse import make_simple_index, make_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.moving.copies import PlannedCopy
    from tests.web_server import Web


MAIN = "refs/heads/main"
RUN = "#!/bin/bash\nset -e\ncp house.jinja $WORKSPACE_DIR/house.jinja\n"


class Community:
    """A repository with mods as the field has them, that is served, and a project to copy them into."""

    def __init__(self, server: git_server.Server, repository: git_server.Repository, project: Project) -> None:
        self.url = f"{server.url}/community.git"
        self.repository = repository
        self.project = project

    def commit(self, files: dict[str, str | bytes | None]) -> str:
        return self.repository.commit(MAIN, "A change", files, modes={"mods/house/run.sh": "100755"})

    def add(self, path: str, name: str | None = None, *, everything: bool = False) -> tuple[PlannedCopy, ...]:
        planned = mods.plan_copies(self.project, f"{self.url}{path}", name, ignore, everything=everything)
        mods.make_copies(self.project, planned)
        return planned

    def plan_update(self, *names: str, ref: str | None = None) -> tuple[PlannedCopy, ...]:
        planned, faults = mods.plan_copies_update(self.project, "mod", names, ref, ignore)
        mods.raise_all(faults)
        return tuple(planned)

    def file(self, path: str) -> Path:
        return self.project.root / path


@pytest.fixture
def community(tmp_path: Path) -> Iterator[Community]:
    repository = git_server.make_repository(tmp_path / "served/community.git")
    (tmp_path / "project/dockerfiles").mkdir(parents=True)
    with git_server.serve(tmp_path / "served") as server:
        made = Community(server, repository, Project(tmp_path / "project"))
        made.commit(
            {
                "mods/house/run.sh": RUN,
                "mods/house/house.jinja": "one\n",
                "mods/house/README.md": "Read me\n",
                "mods/other/mod.yaml": "description: x\nenv: {A: 1}\n",
                "README.md": "x\n",
            }
        )
        yield made


@pytest.mark.slow
def test_a_mod_of_a_run_sh_alone_is_copied_as_it_is(community: Community) -> None:
    commit = community.repository.git("rev-parse", MAIN)
    community.add("//mods/house")
    assert sorted(path.name for path in community.file("mods/house").iterdir()) == [
        "README.md",
        "house.jinja",
        "run.sh",
    ]
    assert community.file("mods/house/run.sh").read_text() == RUN
    assert os.access(community.file("mods/house/run.sh"), os.X_OK)
    mod = load_mod(community.project, "house")
    own = Project(community.project.root / "own")
    projects.write(own.mods / "house/run.sh", RUN)
    projects.write(own.mods / "house/house.jinja", "one\n")
    (own.mods / "house/run.sh").chmod(0o755)
    assert mod.content_hash == load_mod(own, "house").content_hash
    copied = copies.read_origin(community.project, "mod", "house")
    assert copied
    assert (copied.url, copied.path, copied.ref, copied.commit) == (community.url, "mods/house", "HEAD", commit)
    assert f"content: {copied.content}" in community.file("mods/house.source").read_text().replace('"', "")
    assert mod_names(community.project) == ("house",)


@pytest.mark.slow
def test_credentials_are_not_written_down(community: Community) -> None:
    planned = mods.plan_copies(
        community.project,
        community.url.replace("://", "://me:secret@") + "//mods/house",
        None,
        ignore,
        everything=False,
    )
    mods.make_copies(community.project, planned)
    assert "secret" not in community.file("mods/house.source").read_text()


@pytest.mark.slow
def test_several_are_named_and_taken_together(community: Community) -> None:
    with pytest.raises(UsageError, match="there are 2 mods at .*:\n  mods/house\n  mods/other"):
        community.add("")
    with pytest.raises(UsageError) as several:
        community.add("//mods@main")
    assert several.value.hint.startswith(f"name one: `builder mods add {community.url}//mods/house@main`")
    assert [each.name for each in community.add("", everything=True)] == ["house", "other"]
    with pytest.raises(SourceError) as caught:
        community.add("//mods/hous")
    assert caught.value.hint == "did you mean mods/house?"
    with pytest.raises(SourceError, match="no branch or tag `v9`"):
        community.add("//mods/house@v9")


@pytest.mark.slow
def test_it_may_have_another_name_here(community: Community) -> None:
    community.add("//mods/house", "ours")
    assert mod_names(community.project) == ("ours",)
    with pytest.raises(UsageError, match="`a/b` is not a valid mod name"):
        community.add("//mods/house", "a/b")


@pytest.mark.slow
def test_a_branch_that_moved_is_followed_with_the_difference(community: Community) -> None:
    community.add("//mods/house")
    (same,) = community.plan_update("house")
    assert (same.changes, same.replaces) == ((), False)
    commit = community.commit({"mods/house/house.jinja": "two\n", "mods/house/README.md": None})
    (planned,) = community.plan_update("mods/house")
    assert [(change.path, change.kind) for change in planned.changes] == [
        ("README.md", "removed"),
        ("house.jinja", "changed"),
    ]
    assert planned.changes[1].lines == ("@@ -1 +1 @@", "-one", "+two")
    assert (planned.replaces, planned.loses) == (True, False)
    mods.require_lossless([planned])
    mods.make_copies(community.project, [planned])
    assert community.file("mods/house/house.jinja").read_text() == "two\n"
    assert not community.file("mods/house/README.md").exists()
    copied = copies.read_origin(community.project, "mod", "house")
    assert copied
    assert copied.commit == commit
    assert not list(community.project.mods.glob(".*"))


@pytest.mark.slow
def test_a_ref_moves_it_elsewhere_and_is_followed_from_then_on(community: Community) -> None:
    old = community.repository.git("rev-parse", MAIN)
    community.add("//mods/house@main")
    community.repository.git("tag", "v1", old)
    community.commit({"mods/house/house.jinja": "two\n"})
    mods.make_copies(community.project, community.plan_update("house"))
    mods.make_copies(community.project, community.plan_update("house", ref="v1"))
    copied = copies.read_origin(community.project, "mod", "house")
    assert copied
    assert (copied.ref, copied.commit) == ("v1", old)
    assert community.file("mods/house/house.jinja").read_text() == "one\n"


@pytest.mark.slow
def test_an_edited_copy_is_told_and_not_replaced_unasked(community: Community) -> None:
    community.add("//mods/house")
    projects.write(community.file("mods/house/house.jinja"), "mine\n")
    projects.write(community.file("mods/house/more.txt"), "mine\n")
    projects.write(community.file("mods/house/__pycache__/x.pyc"), "litter\n")
    (listed,) = mods.list_mods(community.project)
    assert listed.edited == ("house.jinja", "more.txt")
    (planned,) = community.plan_update("house")
    assert (planned.edited, planned.loses) == (("house.jinja", "more.txt"), True)
    with pytest.raises(ConflictError, match=r"mod house was edited since it was copied: house\.jinja, more\.txt"):
        mods.require_lossless([planned])
    assert community.file("mods/house/house.jinja").read_text() == "mine\n"
    mods.make_copies(community.project, [planned])
    assert community.file("mods/house/house.jinja").read_text() == "one\n"
    assert mods.list_mods(community.project)[0].edited == ()


@pytest.mark.slow
def test_what_was_made_here_is_not_replaced_unasked(community: Community) -> None:
    projects.write(community.file("mods/house/run.sh"), "own\n")
    planned = mods.plan_copies(community.project, f"{community.url}//mods/house", None, ignore, everything=False)
    with pytest.raises(ConflictError, match="mods/house already exists, and is not a copy"):
        mods.require_lossless(planned)
    projects.write(community.file("mods/house/run.sh"), "changed meanwhile\n")
    with pytest.raises(ConflictError, match="mod house changed while this command ran"):
        mods.make_copies(community.project, planned)
    assert community.file("mods/house/run.sh").read_text() == "changed meanwhile\n"


@pytest.mark.slow
def test_a_link_or_a_zip_in_its_place_stays(community: Community) -> None:
    community.project.mods.mkdir()
    community.file("mods/house").symlink_to(community.project.root)
    with pytest.raises(ConflictError, match="mods/house is a link"):
        community.add("//mods/house")
    projects.write(community.file("mods/other.zip"), "x")
    with pytest.raises(ConflictError, match=r"mods/other\.zip already exists"):
        community.add("//mods/other")


@pytest.mark.slow
def test_what_is_no_copy_cannot_be_updated(community: Community) -> None:
    with pytest.raises(NothingToDoError, match="no mod was copied"):
        community.plan_update()
    community.add("//mods/house")
    with pytest.raises(UsageError, match="mod hose was not copied") as caught:
        community.plan_update("hose")
    assert caught.value.hint == "did you mean house?"
    community.commit({f"mods/house/{name}": None for name in ("run.sh", "house.jinja", "README.md")})
    with pytest.raises(SourceError, match="there is no mod at mods/house of"):
        community.plan_update()


@pytest.mark.slow
def test_a_repository_that_is_gone_keeps_no_other_from_being_updated(community: Community) -> None:
    community.add("//mods/house")
    community.add("//mods/other")
    record = community.file("mods/house.source")
    projects.write(record, record.read_text().replace("community.git", "gone.git"))
    community.commit({"mods/other/mod.yaml": "description: y\nenv: {A: 2}\n"})
    planned, faults = mods.plan_copies_update(community.project, "mod", (), None, ignore)
    assert [each.name for each in planned] == ["other"]
    with pytest.raises(SourceError, match="there is no git repository at .*gone.git"):
        mods.raise_all(faults)


@pytest.mark.parametrize(
    ("place", "hint"),
    [
        ("folder", "copy it into mods/"),
        ("mod.zip", "copy it into mods/"),
        ("chat.yaml", "copy it into recipes/"),
        ("repository/mods/house", "/repository//mods/house"),
    ],
)
def test_a_folder_or_a_file_is_no_repository_to_copy_from(tmp_path: Path, place: str, hint: str) -> None:
    projects.write(tmp_path / "repository/.git/HEAD", "ref: refs/heads/main\n")
    for folder in ("folder", "repository/mods/house"):
        projects.write(tmp_path / folder / "run.sh", "true\n")
    for file in ("mod.zip", "chat.yaml"):
        projects.write(tmp_path / file, "PK")
    with pytest.raises(SourceError, match="is not a git repository") as raised:
        mods.plan_copies(Project(tmp_path), str(tmp_path / place), None, ignore, everything=False)
    assert hint in raised.value.hint


def test_a_missing_file_is_no_missing_repository(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    for typed in (("recipes", "add", "./gone.yaml"), ("mods", "add", "./gone"), ("advisories", "update", "gone.yaml")):
        printed = run_command(project, *typed, code=6, environ=WITHOUT_ENGINE).stderr
        assert "there is no file or folder /" in printed
        assert "/gone" in printed


@pytest.mark.slow
def test_a_broken_record_breaks_nothing_else(community: Community) -> None:
    community.add("", everything=True)
    projects.write(community.file("mods/house.source"), "url: 1\n")
    house, other = mods.list_mods(community.project)
    assert "mods/house.source:1:1: not a valid origin of a copy" in house.problem
    assert house.mod
    assert (other.problem, other.edited) == ("", ())


KILLED = """\
import os
import shutil
import signal
import sys
from pathlib import Path
from builder.commands import mods
from builder.moving import copies
from builder.base.events import ignore
from builder.base.project import Project
from builder.base import files
project, moment = Project(Path(sys.argv[1])), sys.argv[2]
planned = mods.plan_copies_update(project, "mod", (), None, ignore)
kill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if moment == "record":
    copies.write_origin = kill
elif moment == "old":
    files._exchange = kill
else:
    shutil.rmtree = lambda path, **_: kill() if list(Path(path).glob("*")) else None
mods.make_copies(project, planned[0])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "text"), [("old", "one\n"), ("new", "two\n"), ("record", "two\n")])
def test_a_kill_leaves_the_old_copy_or_the_new(community: Community, moment: str, text: str) -> None:
    community.add("//mods/house")
    community.commit({"mods/house/house.jinja": "two\n"})
    done = subprocess.run([sys.executable, "-c", KILLED, community.project.root, moment])
    assert done.returncode == -signal.SIGKILL
    assert mod_names(community.project) == ("house",)
    assert community.file("mods/house/house.jinja").read_text() == text
    assert len(list(community.file("mods/house").iterdir())) == 3
    mods.make_copies(community.project, community.plan_update())
    assert community.file("mods/house/house.jinja").read_text() == "two\n"
    assert mods.list_mods(community.project)[0].edited == ()
    assert not list(community.project.mods.glob(".*"))


# Mods against versions: a wheel of a real index, a commit of a real repository, and what is said of each.


@pytest.fixture
def there(tmp_path: Path) -> Iterator[ModProject]:
    with made(tmp_path) as there:
        yield there


def run(there: ModProject, *refs: str, names: tuple[str, ...] = ()) -> tuple[ModVerdict, ...]:
    return mods.check_mods(there.project, names, refs, there.environ, there.report)


@pytest.mark.slow
def test_each_version_tells_whether_the_patch_applies(there: ModProject) -> None:
    there.add_mod("fix")
    verdicts = run(there, *RELEASES)
    assert [(verdict.target, verdict.state, verdict.holds) for verdict in verdicts] == [
        ("vllm 0.20.0", "applies", True),
        ("vllm 0.21.0", "applies", True),
        ("vllm 0.22.0", "applies", True),
        ("vllm 0.23.0", "fails", False),
        ("vllm 0.24.0", "in place", True),
        ("vllm 0.25.0", "fails", False),
    ]
    outcomes = [verdict.tried[0].outcome for verdict in verdicts]
    assert outcomes[1].offsets == (2, 2)
    assert len(outcomes[2].reduced) == 1
    assert outcomes[3].problem == f"{INC}, hunk 2 of 2 (@@ -37,7 +37,7 @@)"
    assert outcomes[5].problem == f"{INC} does not exist"


@pytest.mark.slow
def test_what_was_looked_at_once_takes_no_network(there: ModProject) -> None:
    there.add_mod("fix")
    first = run(there, "0.20.0", "0.21.0")
    there.server.sent.clear()
    assert run(there, "0.20.0", "0.21.0") == first
    assert there.server.sent == []


@pytest.mark.slow
def test_a_version_that_is_not_required_is_told_apart(there: ModProject) -> None:
    there.add_mod("fix", 'requires: {vllm: ">=0.21,<0.23"}')
    states = [
        (verdict.state, verdict.excluded, verdict.tried[0].outcome.state)
        for verdict in run(there, "0.20.0", "0.21.0", "0.23.0")
    ]
    excluded = "it requires vllm >=0.21,<0.23"
    assert states == [("excluded", excluded, "applies"), ("applies", "", "applies"), ("excluded", excluded, "fails")]


@pytest.mark.slow
def test_every_mod_is_tried_alone_and_those_without_patches_are_shown(there: ModProject) -> None:
    there.add_mod("one")
    there.add_mod("two", patch=diff(NEW, NEW.replace("ten\n", "TEN\n")))
    there.add_mod("other", package="elsewhere")
    states = {verdict.mod.name: verdict.state for verdict in run(there, "0.20.0")}
    assert states == {"one": "applies", "other": "no patches", "two": "fails"}
    assert [verdict.mod.name for verdict in run(there, "0.20.0", names=("mods/two", "one"))] == ["two", "one"]


@pytest.mark.slow
def test_patches_of_one_mod_build_on_each_other(there: ModProject) -> None:
    there.add_mod("fix", patch=diff())
    folder = there.project.mods / "fix"
    (folder / "b.patch").write_text(diff(NEW, NEW.replace("ten\n", "TEN\n")))
    (folder / "mod.yaml").write_text(
        "description: A mod\npatches: [{file: a.patch, package: vllm}, {file: b.patch, package: vllm}]\n"
    )
    old, gone = run(there, "0.20.0", "0.25.0")
    assert [tried.outcome.state for tried in old.tried] == ["applies", "applies"]
    assert [tried.outcome.state for tried in gone.tried] == ["fails", "fails"]


@pytest.mark.slow
def test_another_package_is_named(there: ModProject) -> None:
    make_wheel(there.wheels, "flashinfer_python", "0.6.7", files={"flashinfer/a.py": "a\n"})
    make_simple_index(there.wheels)
    there.add_mod("fix", package="flashinfer", patch=diff("a\n", "b\n", "flashinfer/a.py"))
    (verdict,) = run(there, "flashinfer=0.6.7")
    assert (verdict.target, verdict.state) == ("flashinfer-python 0.6.7", "applies")


@pytest.mark.slow
def test_a_ref_means_the_repository_of_a_definition(there: ModProject, tmp_path: Path) -> None:
    there.add_mod("fix", 'requires: {vllm: "<0.19.1"}', diff(OLD, NEW, git_server.DRAFTER))
    with git_server.served_vllm(tmp_path) as vllm:
        there.define_git("git", vllm.url)
        old, main = vllm.history.v0_19_0, vllm.history.main
        verdicts = run(there, "v0.19.0", "main", old, main)
        assert [(verdict.target, verdict.state) for verdict in verdicts] == [
            ("vllm v0.19.0", "applies"),
            ("vllm main", "excluded"),
            (f"vllm {old[:12]}", "applies"),
            (f"vllm {main[:12]}", "excluded"),
        ]
        assert vllm.requests_of(lambda: run(there, old, main)) == 0


@pytest.mark.slow
def test_all_that_is_no_version_is_told_at_once(there: ModProject) -> None:
    there.add_mod("fix")
    with pytest.raises(SourceError) as caught:
        run(there, "0.20.0", "7.1", "7.2")
    assert "vllm==7.1" in caught.value.message
    assert "vllm==7.2" in caught.value.message


def test_mistakes_are_told_with_what_to_do(there: ModProject) -> None:
    there.add_mod("fix")
    with pytest.raises(UsageError, match="`main` is not a version, and no definition takes vllm from git") as refused:
        run(there, "main")
    assert refused.value.hint == "write a release as `vllm=1.2.3`"
    with pytest.raises(UsageError, match="no mod `fx`"):
        run(there, "0.20.0", names=("fx",))
    there.add_mod("fix", "after: [nothing]")
    with pytest.raises(FileProblemsError, match=r"mods/fix/mod\.yaml:3:9: no mod `nothing` in mods/"):
        run(there, "0.20.0")


# Mods against the pins of images.lock: where they are used, or else where they could be used.


@pytest.fixture
def mods_check_pinned_there(tmp_path: Path) -> Iterator[ModProject]:
    with made(tmp_path) as there:
        there.define("wheel", "0.20.0")
        yield there


def mods_check_pinned_run(there: ModProject, *names: str) -> tuple[ModVerdict, ...]:
    return mods.check_pinned_mods(there.project, names, there.environ, there.report)


def add_recipe(there: ModProject, name: str, *mods: str) -> None:
    projects.add_recipe(there.project.root, name, "vllm-node-wheel", "Org/Model", list(mods))


def said(verdicts: tuple[ModVerdict, ...]) -> list[tuple[str, str, str, bool]]:
    return [(verdict.mod.name, verdict.target, verdict.state, verdict.holds) for verdict in verdicts]


@pytest.mark.slow
def test_one_that_nobody_asks_for_is_tried_wherever_it_could_be_used(mods_check_pinned_there: ModProject) -> None:
    mods_check_pinned_there.define("newer", "0.23.0")
    mods_check_pinned_there.add_mod("fix")
    mods_check_pinned_there.add_mod("other", package="elsewhere")
    assert said(mods_check_pinned_run(mods_check_pinned_there)) == [
        ("fix", "newer", "fails", False),
        ("fix", "wheel", "applies", True),
        ("other", "", "not tried", True),
    ]
    assert (
        mods_check_pinned_run(mods_check_pinned_there, "other")[0].missing == "no pinned definition contains elsewhere"
    )
    assert mods_check_pinned_run(mods_check_pinned_there)[0].tried[0].against == "vllm 0.23.0"


@pytest.mark.slow
def test_a_recipe_may_name_mods_that_are_not_here(mods_check_pinned_there: ModProject) -> None:
    mods_check_pinned_there.add_mod("fix")
    add_recipe(mods_check_pinned_there, "theirs", "mods/not-here", "mods/fix")
    projects.write(mods_check_pinned_there.project.recipes / "bad.yaml", "name: [\n")
    assert said(mods_check_pinned_run(mods_check_pinned_there)) == [
        ("fix", "wheel, recipe theirs without not-here", "applies", True)
    ]


@pytest.mark.slow
def test_one_that_nobody_asks_for_may_be_for_another_version(mods_check_pinned_there: ModProject) -> None:
    mods_check_pinned_there.add_mod("fix", 'requires: {vllm: ">=0.21"}')
    (verdict,) = mods_check_pinned_run(mods_check_pinned_there)
    assert (verdict.state, verdict.holds) == ("excluded", True)
    assert verdict.excluded == "fix requires vllm >=0.21, but 0.20.0 is pinned"
    add_recipe(mods_check_pinned_there, "chat", "mods/fix")
    assert said(mods_check_pinned_run(mods_check_pinned_there)) == [("fix", "wheel, recipe chat", "excluded", False)]


@pytest.mark.slow
def test_in_a_recipe_it_comes_after_those_before_it(mods_check_pinned_there: ModProject) -> None:
    mods_check_pinned_there.add_mod("one")
    mods_check_pinned_there.add_mod("two", patch=diff(NEW, NEW.replace("ten\n", "TEN\n")))
    assert said(mods_check_pinned_run(mods_check_pinned_there, "two")) == [("two", "wheel", "fails", False)]
    add_recipe(mods_check_pinned_there, "chat", "one", "two")
    assert said(mods_check_pinned_run(mods_check_pinned_there, "two")) == [
        ("two", "wheel, recipe chat", "applies", True)
    ]
    add_recipe(mods_check_pinned_there, "chat", "two", "one")
    assert said(mods_check_pinned_run(mods_check_pinned_there)) == [
        ("one", "wheel, recipe chat", "applies", True),
        ("two", "wheel, recipe chat", "fails", False),
    ]
    mods_check_pinned_there.add_mod("two", "after: [one]", diff(NEW, NEW.replace("ten\n", "TEN\n")))
    assert {verdict.state for verdict in mods_check_pinned_run(mods_check_pinned_there)} == {"applies"}


@pytest.mark.slow
def test_a_mod_that_is_invalid_keeps_no_other_from_being_tried(mods_check_pinned_there: ModProject) -> None:
    mods_check_pinned_there.add_mod("fix")
    projects.write(mods_check_pinned_there.project.mods / "bad/mod.yaml", "descripton: x\n")
    assert said(mods_check_pinned_run(mods_check_pinned_there)) == [("fix", "wheel", "applies", True)]
    with pytest.raises(FileProblemsError, match="unknown key `descripton`"):
        mods.require_valid(mods_check_pinned_there.project)
    with pytest.raises(FileProblemsError, match="unknown key `descripton`"):
        mods_check_pinned_run(mods_check_pinned_there, "bad")
    add_recipe(mods_check_pinned_there, "chat", "mods/fix", "mods/bad")
    add_recipe(mods_check_pinned_there, "well", "mods/fix")
    untried, applies = mods_check_pinned_run(mods_check_pinned_there)
    assert untried.missing.startswith("mods/bad/mod.yaml:1:1: ")
    assert (untried.state, applies.state) == ("not tried", "applies")


@pytest.mark.slow
def test_the_mods_of_a_definition_come_before_those_of_a_recipe(mods_check_pinned_there: ModProject) -> None:
    mods_check_pinned_there.define("wheel", "0.20.0", "[one]")
    mods_check_pinned_there.add_mod("one")
    mods_check_pinned_there.add_mod("two", patch=diff(NEW, NEW.replace("ten\n", "TEN\n")))
    add_recipe(mods_check_pinned_there, "chat", "two")
    assert said(mods_check_pinned_run(mods_check_pinned_there)) == [
        ("one", "wheel", "applies", True),
        ("two", "wheel, recipe chat", "applies", True),
    ]


@pytest.mark.slow
def test_what_excludes_another_is_told_where_both_are_asked_for(mods_check_pinned_there: ModProject) -> None:
    mods_check_pinned_there.add_mod("one", "conflicts: [two]")
    mods_check_pinned_there.add_mod("two", patch=diff(file="vllm/none.py"))
    add_recipe(mods_check_pinned_there, "chat", "one", "two")
    one, two = mods_check_pinned_run(mods_check_pinned_there)
    assert one.excluded == "one and two cannot be in one image; remove one of them"
    assert two.state == "fails"


def test_mods_that_wait_for_each_other_are_a_mistake(mods_check_pinned_there: ModProject) -> None:
    mods_check_pinned_there.add_mod("one", "after: [two]")
    mods_check_pinned_there.add_mod("two", "after: [one]")
    with pytest.raises(FileProblemsError, match="these mods form a cycle: one after two after one"):
        mods_check_pinned_run(mods_check_pinned_there)


@pytest.mark.slow
def test_what_is_not_pinned_is_said(mods_check_pinned_there: ModProject) -> None:
    mods_check_pinned_there.define_git("git", "https://example.org/vllm.git")
    mods_check_pinned_there.add_mod("fix")
    assert said(mods_check_pinned_run(mods_check_pinned_there)) == [
        ("fix", "wheel", "applies", True),
        ("fix", "git", "not tried", True),
    ]
    assert (
        mods_check_pinned_run(mods_check_pinned_there)[1].missing
        == "it is not pinned yet; to pin it: `builder lock git`"
    )


def test_one_without_patches_has_nothing_to_try(mods_check_pinned_there: ModProject) -> None:
    projects.add_mod(mods_check_pinned_there.project.root, "bare", "echo\n", {})
    assert said(mods_check_pinned_run(mods_check_pinned_there)) == [("bare", "", "no patches", True)]
    add_recipe(mods_check_pinned_there, "chat", "bare")
    assert said(mods_check_pinned_run(mods_check_pinned_there)) == [("bare", "wheel, recipe chat", "no patches", True)]


def test_a_source_that_does_not_answer_is_no_failure_of_the_mod(mods_check_pinned_there: ModProject) -> None:
    mods_check_pinned_there.add_mod("fix")
    mods_check_pinned_there.withdraw("0.20.0")
    (verdict,) = mods_check_pinned_run(mods_check_pinned_there)
    assert (verdict.state, verdict.holds) == ("not tried", True)
    assert "no wheel of vllm==0.20.0 was found" in verdict.tried[0].outcome.problem


@pytest.mark.slow
def test_a_commit_has_the_pull_requests_that_it_is_built_with(
    mods_check_pinned_there: ModProject, tmp_path: Path
) -> None:
    window = {"line10": "SLIDING", "line50": "fifty"}
    with_pull = git_server.lines(1, 60, **window)
    mods_check_pinned_there.add_mod(
        "fix", patch=diff(with_pull, with_pull.replace("SLIDING\n", "GLIDING\n"), git_server.DRAFTER)
    )
    with git_server.served_vllm(tmp_path) as vllm:
        source = mirror.locate(mods_check_pinned_there.project.mirrors, vllm.url)
        pin = mirror.resolve_ref(source, "main")
        mods_check_pinned_there.define_git("git", vllm.url, pin)
        assert said(mods_check_pinned_run(mods_check_pinned_there))[0] == ("fix", "git", "fails", False)
        taken = pulls.vendor(source, SourcePatch("40898"), pin.commit)
        file = mods_check_pinned_there.project.dockerfiles / "git/pulls" / f"vllm-40898-{taken[0].sha256[:12]}.patch"
        file.parent.mkdir()
        file.write_bytes(taken[1])
        mods_check_pinned_there.define_git("git", vllm.url, replace(pin, patches=(taken[0],)))
    assert isinstance(pin, GitPin)
    verdict = mods_check_pinned_run(mods_check_pinned_there)[0]
    assert said((verdict,)) == [("fix", "git", "applies", True)]
    assert verdict.tried[0].against == f"vllm {pin.version} ({pin.commit[:12]}) with pull request 40898"


@pytest.mark.slow
def test_one_that_recipes_are_built_without_has_nothing_to_try(mods_check_pinned_there: ModProject) -> None:
    mods_check_pinned_there.add_mod("fix")
    projects.add_mod(mods_check_pinned_there.project.root, "words", "echo nothing\n", {})
    add_recipe(mods_check_pinned_there, "chat", "mods/words", "mods/fix")
    assert said(mods_check_pinned_run(mods_check_pinned_there)) == [
        ("fix", "wheel, recipe chat", "applies", True),
        ("words", "wheel, recipe chat", "no patches", True),
    ]


YAML = """\
description: A bit of everything
files: [{from: a.txt, to: .}, {from: b.txt, to: /opt/}]
patches: [{file: a.patch, package: vllm}, {file: a.patch, package: toy}]
packages: [tilelang==0.1.8]
run: run.sh
env: {A: 1, B: 2}
"""


def test_what_each_changes_is_said_in_a_few_words(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    files = {"a.txt": "a\n", "b.txt": "b\n", "a.patch": "no matter\n"}
    projects.add_mod(tmp_path, "much", "true\n", files, YAML)
    assert changes(mod.load_mod(project, "much")) == (
        "packages tilelang==0.1.8",
        "2 files",
        "2 patches to vllm, toy",
        "run.sh with the network",
        "environment A, B",
    )
    assert changes(mod.load_mod(project, "template")) == ("run.sh with the network",)


def test_definitions_recipes_and_images_that_use_one_are_named(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    for name, listed in (("lower", "[mods/own]"), ("upper", "[template]")):
        text = f"repository: {name}\ndescription: x\nplatform: host\nbase: debian:12\nmods: {listed}\n"
        projects.write(project.dockerfiles / name / "image.yaml", text)
        projects.write(project.dockerfiles / name / "Dockerfile.j2", "FROM {{ base }}\n")
    projects.add_mod(tmp_path, "own", "true\n", {}, "")
    projects.add_recipe(tmp_path, "elsewhere", "vllm-node", "Org/Other", ["template"])
    image = NumberedImage(
        "2026-01-01T00:00:00Z", "small", "linux/amd64", f"sha256:{0:064x}", "h", 1, mods={"template": "sha256:0"}
    )
    with lock_file.writing(project.lock, on_wait=lambda: None) as transaction:
        transaction.commit(transaction.lock.with_repository("small", Repository(3, 2, numbers={1: image, 2: image})))
    own, template = list_mods(project)
    assert (own.definitions, own.recipes, own.images) == (("lower",), (), ())
    assert (template.definitions, template.recipes) == (("upper",), ("chat",))
    assert template.images == ("small:1", "small:2")


def test_a_broken_mod_does_not_hide_the_others(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.write(project.mods / "broken/mod.yaml", "descripton: x\n")
    broken, template = list_mods(project)
    assert broken.mod is None
    assert "mods/broken/mod.yaml:1:1: unknown key `descripton`; did you mean `description`?" in broken.problem
    assert template.problem == ""


def test_files_that_are_wrong_hide_no_other(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.write(project.recipes / "a.yaml", "name: [\n")
    projects.write(project.recipes / "twice.yaml", "name: x\nname: x\ncontainer: small\nmods: [template]\ncommand: x\n")
    projects.write(project.dockerfiles / "broken/image.yaml", "repository: [\n")
    (template,) = list_mods(project)
    assert (template.definitions, template.recipes) == ((), ("chat", "twice"))


# ``mods pin`` against a real HTTP server.


@pytest.fixture
def web() -> Iterator[Web]:
    with web_server.serving() as server:
        server.files |= {"/a.jinja": b"a\n", "/b.py": b"b\n"}
        yield server


@pytest.mark.slow
def test_what_is_there_today_is_filled_in(tmp_path: Path, web: Web) -> None:
    project = projects.make(tmp_path)
    yaml = f"description: x\nfiles:\n  - from: {web.url}/a.jinja\n    to: .\n  - {{from: {web.url}/b.py, to: lib/}}\n"
    projects.write(project.mods / "m/mod.yaml", yaml)
    with pytest.raises(FileProblemsError, match="`builder mods pin m` downloads the file and writes its digest"):
        load_mod(project, "m")
    first, second = mods.pin_mod_files(project, "mods/m", {}, ignore)
    assert first == (f"{web.url}/a.jinja", hashlib.sha256(b"a\n").hexdigest(), "")
    mod = load_mod(project, "m")
    assert [copy.sha256 for copy in mod.copies] == [first[1], second[1]]
    assert mods.changes(mod) == (f"2 files (from {web.url.removeprefix('http://')}, pinned)",)
    web.files["/a.jinja"] = b"changed\n"
    changed, same = mods.pin_mod_files(project, "m", {}, ignore)
    assert changed[1:] == (hashlib.sha256(b"changed\n").hexdigest(), first[1])
    assert same[1:] == (second[1], second[1])


def test_nothing_is_written_before_all_are_here(tmp_path: Path, web: Web) -> None:
    project = projects.make(tmp_path)
    yaml = f"description: x\nfiles: [{{from: {web.url}/a.jinja, to: .}}, {{from: {web.url}/none, to: .}}]\n"
    projects.write(project.mods / "m/mod.yaml", yaml)
    with pytest.raises(SourceError, match="the server answers 404"):
        mods.pin_mod_files(project, "m", {}, ignore)
    assert (project.mods / "m/mod.yaml").read_text() == yaml


def test_a_mod_without_addresses_has_nothing_to_pin(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.write(project.mods / "m/mod.yaml", "description: x\nenv: {A: 1}\n")
    with pytest.raises(NothingToDoError):
        mods.pin_mod_files(project, "m", {}, ignore)
    with pytest.raises(UsageError, match=r"there is no mods/template/mod\.yaml") as caught:
        mods.pin_mod_files(project, "template", {}, ignore)
    assert caught.value.hint == "only the files that a mod.yaml names can be pinned"
