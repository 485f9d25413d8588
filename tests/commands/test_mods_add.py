"""Mods copied from a real git server: added, updated, edited in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import ConflictError, NothingToDoError, SourceError, UsageError
from builder.base.events import ignore
from builder.base.project import Project
from builder.commands import mods
from builder.definitions.mod import load_mod, mod_names
from builder.moving import copies
from tests import projects
from tests.sources import git_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.moving.copies import PlannedCopy


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
        mods.add_mods(self.project, planned)
        return planned

    def plan_update(self, *names: str, ref: str | None = None) -> tuple[PlannedCopy, ...]:
        planned = mods.plan_copies_update(self.project, "mod", names, ref, ignore)
        planned.require_all()
        return planned.copies

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


def test_credentials_are_not_written_down(community: Community) -> None:
    planned = mods.plan_copies(
        community.project,
        community.url.replace("://", "://me:secret@") + "//mods/house",
        None,
        ignore,
        everything=False,
    )
    mods.add_mods(community.project, planned)
    assert "secret" not in community.file("mods/house.source").read_text()


def test_several_are_named_and_taken_together(community: Community) -> None:
    with pytest.raises(UsageError, match="has 2 mods there:\n  mods/house\n  mods/other"):
        community.add("")
    assert [each.name for each in community.add("", everything=True)] == ["house", "other"]
    with pytest.raises(SourceError) as caught:
        community.add("//mods/hous")
    assert caught.value.hint == "did you mean mods/house?"
    with pytest.raises(SourceError, match="no branch or tag `v9`"):
        community.add("//mods/house@v9")


def test_it_may_have_another_name_here(community: Community) -> None:
    community.add("//mods/house", "ours")
    assert mod_names(community.project) == ("ours",)
    with pytest.raises(UsageError, match="`a/b` is no name for a mod"):
        community.add("//mods/house", "a/b")


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
    mods.add_mods(community.project, [planned])
    assert community.file("mods/house/house.jinja").read_text() == "two\n"
    assert not community.file("mods/house/README.md").exists()
    copied = copies.read_origin(community.project, "mod", "house")
    assert copied
    assert copied.commit == commit
    assert not list(community.project.mods.glob(".*"))


def test_a_ref_moves_it_elsewhere_and_is_followed_from_then_on(community: Community) -> None:
    old = community.repository.git("rev-parse", MAIN)
    community.add("//mods/house@main")
    community.repository.git("tag", "v1", old)
    community.commit({"mods/house/house.jinja": "two\n"})
    mods.add_mods(community.project, community.plan_update("house"))
    mods.add_mods(community.project, community.plan_update("house", ref="v1"))
    copied = copies.read_origin(community.project, "mod", "house")
    assert copied
    assert (copied.ref, copied.commit) == ("v1", old)
    assert community.file("mods/house/house.jinja").read_text() == "one\n"


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
    mods.add_mods(community.project, [planned])
    assert community.file("mods/house/house.jinja").read_text() == "one\n"
    assert mods.list_mods(community.project)[0].edited == ()


def test_what_was_made_here_is_not_replaced_unasked(community: Community) -> None:
    projects.write(community.file("mods/house/run.sh"), "own\n")
    planned = mods.plan_copies(community.project, f"{community.url}//mods/house", None, ignore, everything=False)
    with pytest.raises(ConflictError, match="mods/house is there, and was not copied from anywhere"):
        mods.require_lossless(planned)
    projects.write(community.file("mods/house/run.sh"), "changed meanwhile\n")
    with pytest.raises(ConflictError, match="mod house has changed meanwhile"):
        mods.add_mods(community.project, planned)
    assert community.file("mods/house/run.sh").read_text() == "changed meanwhile\n"


def test_a_link_or_a_zip_in_its_place_stays(community: Community) -> None:
    community.project.mods.mkdir()
    community.file("mods/house").symlink_to(community.project.root)
    with pytest.raises(ConflictError, match="mods/house is a link"):
        community.add("//mods/house")
    projects.write(community.file("mods/other.zip"), "x")
    with pytest.raises(ConflictError, match=r"mods/other\.zip is there"):
        community.add("//mods/other")


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


def test_a_repository_that_is_gone_keeps_no_other_from_being_updated(community: Community) -> None:
    community.add("//mods/house")
    community.add("//mods/other")
    record = community.file("mods/house.source")
    projects.write(record, record.read_text().replace("community.git", "gone.git"))
    community.commit({"mods/other/mod.yaml": "description: y\nenv: {A: 2}\n"})
    planned = mods.plan_copies_update(community.project, "mod", (), None, ignore)
    assert [each.name for each in planned.copies] == ["other"]
    with pytest.raises(SourceError, match="there is no git repository at .*gone.git"):
        planned.require_all()


def test_a_broken_record_breaks_nothing_else(community: Community) -> None:
    community.add("", everything=True)
    projects.write(community.file("mods/house.source"), "url: 1\n")
    house, other = mods.list_mods(community.project)
    assert "mods/house.source:1:1: no origin of a copy" in house.problem
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
mods.add_mods(project, planned.copies)
"""


@pytest.mark.parametrize(("moment", "text"), [("old", "one\n"), ("new", "two\n"), ("record", "two\n")])
def test_a_kill_leaves_the_old_copy_or_the_new(community: Community, moment: str, text: str) -> None:
    community.add("//mods/house")
    community.commit({"mods/house/house.jinja": "two\n"})
    done = subprocess.run([sys.executable, "-c", KILLED, community.project.root, moment])
    assert done.returncode == -signal.SIGKILL
    assert mod_names(community.project) == ("house",)
    assert community.file("mods/house/house.jinja").read_text() == text
    assert len(list(community.file("mods/house").iterdir())) == 3
    mods.add_mods(community.project, community.plan_update())
    assert community.file("mods/house/house.jinja").read_text() == "two\n"
    assert mods.list_mods(community.project)[0].edited == ()
    assert not list(community.project.mods.glob(".*"))
