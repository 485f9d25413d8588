"""The command advisories: the list, an update from a file and from git, signatures, and what `recipes check` says."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError, SourceError, UsageError
from builder.base.events import ignore
from builder.commands import advising as command
from builder.commands import recipes
from builder.definitions import advisories
from builder.lock import lock_file
from builder.lock.model import Version
from builder.lock.text import dump_lock
from tests import locks, projects
from tests.commands.git_upstream import Upstream, make_served
from tests.conftest import WITHOUT_ENGINE, run_command

if TYPE_CHECKING:
    from pathlib import Path

    from builder.base.project import Project

OWN = """\
port-8000:
  what: another program has port 8000 here
  do: write another port
  when: {{option.port: "8000"}}
  sources: ["https://git.example/team/issues/7"]
  checked: {checked}
  certain: {certain}
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return projects.make(tmp_path / "project")


def written(path: Path, checked: str = "2026-11-26", certain: str = "false") -> Path:
    projects.write(path, OWN.format(checked=checked, certain=certain))
    return path


def update(project: Project, source: object, signers: Path | None = None) -> advisories.AdvisorySet:
    return command.update_advisories(project, str(source), signers, lambda _: None)


def own(project: Project) -> list[tuple[str, str]]:
    """The advisories that did not come with the program, each with the day when it was checked."""
    return [(each.id, each.checked) for each in advisories.every_advisory(project) if each.origin]


def notes(project: Project) -> list[str]:
    (checked,) = recipes.check_recipes(project, ())
    return [note.message for note in checked.notes if note.message.startswith("advisory ")]


def test_the_list_and_one_of_it(project: Project) -> None:
    listed = json.loads(run_command(project, "advisories", "--json", environ=WITHOUT_ENGINE).stdout)
    assert listed["update"] is None
    assert len(listed["advisories"]) >= 40
    shown = run_command(project, "advisories", "show", "dflash-large-blocks", environ=WITHOUT_ENGINE).stdout
    assert "https://github.com/vllm-project/vllm/pull/53007" in shown
    assert "vllm >=0.30,<0.34" in shown
    refused = run_command(project, "advisories", "show", "dflash-large-block", code=2, environ=WITHOUT_ENGINE).stderr
    assert "did you mean `dflash-large-blocks`?" in refused


def test_an_update_from_a_file_is_a_note_of_recipes_check_until_it_is_silenced(
    project: Project, tmp_path: Path
) -> None:
    file = written(tmp_path / "own.yaml")
    done = run_command(project, "advisories", "update", str(file), environ=WITHOUT_ENGINE).stdout
    assert done.startswith(f"1 advisory from {file} on ")
    line = "advisory port-8000: another program has port 8000 here; write another port"
    assert notes(project) == [line]
    assert f"note: {line}" in run_command(project, "recipes", "check", environ=WITHOUT_ENGINE).stdout
    projects.write(project.root / "builder.yaml", "silenced: {port-8000: it was moved, port-9: nobody knows it}\n")
    assert notes(project) == []
    said = " ".join(run_command(project, "advisories", environ=WITHOUT_ENGINE).stderr.split())
    assert "port-8000 is silenced: it was moved" in said
    assert "port-9 is silenced: nobody knows it; no advisory has that id" in said


def test_an_update_without_a_source_reads_the_same_file_from_any_folder(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "own.yaml")
    monkeypatch.chdir(tmp_path)
    update(project, "own.yaml")
    written(tmp_path / "own.yaml", "2026-11-27")
    monkeypatch.chdir(project.root)
    command.update_advisories(project, None, None, ignore)
    assert own(project) == [("port-8000", "2026-11-27")]


def test_what_is_certain_keeps_a_recipe_from_being_served(project: Project, tmp_path: Path) -> None:
    update(project, written(tmp_path / "own.yaml", certain="true"))
    assert (
        "advisory port-8000: another" in run_command(project, "recipes", "check", code=2, environ=WITHOUT_ENGINE).stdout
    )


def test_a_recipe_is_checked_on_the_image_that_serves_it(project: Project) -> None:
    """The release that the recorded image has, and the variable that the recipe sets."""
    locks.write(project, (1, 2), current=2, paired=2)
    path = project.recipes / "chat.yaml"
    projects.write(path, path.read_text() + "env:\n  VLLM_ATTENTION_BACKEND: FLASHINFER\n")
    assert notes(project) == []
    lock = lock_file.read_lock(project.lock)
    record = lock.images["small"].numbers[2]
    record.versions["vllm"] = Version("0.30.0")
    project.lock.write_text(dump_lock(lock), encoding="utf-8")
    assert [line.partition(":")[0] for line in notes(project)] == ["advisory attention-backend-variable"]


def test_of_two_with_one_id_the_one_counts_that_was_checked_later(project: Project, tmp_path: Path) -> None:
    before = len(advisories.every_advisory(project))
    file = tmp_path / "own.yaml"
    for checked, expected in (("2020-01-01", []), ("2100-01-01", [("dflash-large-blocks", "2100-01-01")])):
        text = OWN.format(checked=checked, certain="false").replace("port-8000", "dflash-large-blocks")
        projects.write(file, text)
        update(project, file)
        assert own(project) == expected
    assert len(advisories.every_advisory(project)) == before


@pytest.mark.slow
def test_an_update_from_git_is_by_commit_and_goes_on_from_there(project: Project, tmp_path: Path) -> None:
    work = make_served(tmp_path, "team")
    upstream = Upstream(str(tmp_path / "served/team.git"), work)
    written(work / "spark/own.yaml", "2026-11-01")
    first = upstream.commit("first", unrelated="1")
    taken = update(project, f"{upstream.url}//spark")
    assert (taken.commit, own(project)) == (first, [("port-8000", "2026-11-01")])
    written(work / "spark/own.yaml", "2026-11-02")
    second = upstream.commit("second", unrelated="2")
    assert command.update_advisories(project, None, None, ignore).commit == second
    assert own(project) == [("port-8000", "2026-11-02")]
    assert update(project, f"{upstream.url}//spark@{first}").commit == first
    with pytest.raises(SourceError, match="has no advisories"):
        update(project, f"{upstream.url}//unrelated.py")


def test_a_damaged_update_leaves_what_was_there(project: Project, tmp_path: Path) -> None:
    update(project, written(tmp_path / "own.yaml"))
    kept = (project.state / advisories.UPDATED).read_bytes()
    projects.write(tmp_path / "bad.yaml", OWN.format(checked="2026-11-27", certain="false") + "x: {what: y}\n")
    with pytest.raises(FileProblemsError, match=r"bad\.yaml:8:1"):
        update(project, tmp_path / "bad.yaml")
    assert (project.state / advisories.UPDATED).read_bytes() == kept
    (project.state / advisories.UPDATED).write_bytes(kept[:-20])
    assert own(project) == []


def test_only_what_an_allowed_signer_signed_is_taken(project: Project, tmp_path: Path) -> None:
    file, signers = written(tmp_path / "own.yaml"), tmp_path / "allowed"
    for name in ("ann", "bob"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", tmp_path / name], check=True)
    projects.write(signers, f"ann@example.org {(tmp_path / 'ann.pub').read_text()}")

    def sign(name: str, namespace: str = command.NAMESPACE) -> None:
        file.with_name("own.yaml.sig").unlink(missing_ok=True)
        argv = ["ssh-keygen", "-Y", "sign", "-q", "-n", namespace, "-f", str(tmp_path / name), str(file)]
        subprocess.run(argv, check=True, capture_output=True)

    with pytest.raises(UsageError, match="no valid signature"):
        update(project, file, signers)
    sign("bob")
    with pytest.raises(UsageError, match="no valid signature"):
        update(project, file, signers)
    sign("ann", "builder-other")
    with pytest.raises(UsageError, match="no valid signature"):
        update(project, file, signers)
    sign("ann")
    assert update(project, file, signers).signed == "ann@example.org"
    written(file, "2026-11-27")
    with pytest.raises(UsageError, match="no valid signature"):
        update(project, file, signers)
    assert own(project) == [("port-8000", "2026-11-26")]
