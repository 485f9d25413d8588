from __future__ import annotations

from pathlib import Path

import pytest

from builder.definitions import mod
from builder.errors import FileProblemsError, UsageError
from tests import projects


def test_a_folder_with_only_a_run_sh_is_a_mod_and_keeps_the_network(tmp_path: Path) -> None:
    found = mod.load(projects.make(tmp_path), "mods/template")
    assert (found.name, found.described, found.network) == ("template", False, True)
    assert [file.path for file in found.files] == ["chat.jinja", "run.sh"]


def test_a_described_mod_has_no_network_unless_it_asks(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.add_mod(tmp_path, "quiet", "true\n", {}, "description: x\nrun: run.sh\n")
    projects.add_mod(tmp_path, "loud", "true\n", {}, "description: x\nrun: run.sh\nnetwork: true\n")
    assert [mod.load(project, name).network for name in ("quiet", "loud")] == [False, True]


def test_the_content_hash_covers_names_bytes_and_execute_bits(tmp_path: Path) -> None:
    def hashed(folder: str, name: str, text: str, mode: int) -> str:
        root = tmp_path / folder
        project = projects.make(root)
        projects.add_mod(root, "m", "true\n", {name: text})
        (root / "mods/m" / name).chmod(mode)
        return mod.load(project, "m").content_hash

    plain = hashed("a", "x", "1", 0o644)
    assert plain == hashed("b", "x", "1", 0o600)
    others = {hashed("c", "y", "1", 0o644), hashed("d", "x", "2", 0o644), hashed("e", "x", "1", 0o755)}
    assert len(others | {plain}) == 4


def test_descriptions_are_no_part_of_the_change(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    before = mod.load(project, "template").content_hash
    projects.write(tmp_path / "mods/template/README.md", "words")
    projects.write(tmp_path / "mods/template/mod.yaml", "description: x\nrun: run.sh\n")
    assert mod.load(project, "template").content_hash == before


def test_links_that_leave_the_folder_and_large_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = projects.make(tmp_path)
    (tmp_path / "mods/template/out").symlink_to("/etc/passwd")
    monkeypatch.setattr(mod, "LARGEST_FILE", 11)
    with pytest.raises(FileProblemsError) as caught:
        mod.load(project, "template")
    assert str(caught.value).splitlines() == [
        "mods/template/chat.jinja:1:1: 12 bytes; a mod's files have at most 11",
        "mods/template/out:1:1: a link that leaves the mod's folder; copy the file in",
        "mods/template/run.sh:1:1: 50 bytes; a mod's files have at most 11",
    ]


def test_a_script_that_is_named_must_be_there(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    yaml = "description: x\nrun: other.sh\ncheck: [{run: look.sh}]\n"
    projects.add_mod(tmp_path, "m", "true\n", {}, yaml)
    with pytest.raises(FileProblemsError) as caught:
        mod.load(project, "m")
    assert str(caught.value).splitlines() == [
        "mods/m/mod.yaml:1:1: no file look.sh in mods/m",
        "mods/m/mod.yaml:1:1: no file other.sh in mods/m",
    ]


def test_an_unknown_mod_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        mod.load(projects.make(tmp_path), "templat")
    assert caught.value.hint == "did you mean template?"


@pytest.mark.parametrize("name", ["../template", "template; rm -rf /", "", "a/b"])
def test_a_name_that_is_no_folder_of_mods_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        mod.load(projects.make(tmp_path), name)
