from __future__ import annotations

import os
import re
import stat
import tempfile
import time
import zipfile
from pathlib import Path

import pytest

from builder.base.errors import FileProblemsError, UsageError
from builder.base.project import Project
from builder.commands.recipes import check_recipes
from builder.definitions import mod, recipe_problems
from builder.definitions.mod import ModContents, PlainFile, ScriptFacts
from builder.definitions.recipe import load_recipe
from builder.moving import copies
from tests import projects
from tests.definitions.mods.mod_texts import ALL_KEYS, load
from tests.definitions.mods.mod_texts import problems as problems_of_mod_problems

SHA = "a" * 64
OLD = "b" * 64


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("files: [{from: https://x/y, to: .}]\n", f"files: [{{from: https://x/y, to: ., sha256: {SHA}}}]\n"),
        (
            "files:\n  - from: https://x/y  # why\n    to: .  # where\nenv: {A: ü}\n",
            f"files:\n  - from: https://x/y  # why\n    to: .  # where\n    sha256: {SHA}\nenv: {{A: ü}}\n",
        ),
        (
            "# ümlaut\nfiles:\n- to: .\n  from: 'https://x/y'",
            f"# ümlaut\nfiles:\n- to: .\n  from: 'https://x/y'\n  sha256: {SHA}\n",
        ),
        (
            f"files:\r\n  - from: https://x/y\r\n    sha256: {OLD}\r\n    to: .\r\n",
            f"files:\r\n  - from: https://x/y\r\n    sha256: {SHA}\r\n    to: .\r\n",
        ),
        (
            "files:\r\n- from: https://x/y\r\n  to: .\r\n",
            f"files:\r\n- from: https://x/y\r\n  to: .\r\n  sha256: {SHA}\r\n",
        ),
        (
            f"files: [{{to: ., sha256: '{OLD}', from: https://x/y}}]\n",
            f"files: [{{to: ., sha256: {SHA}, from: https://x/y}}]\n",
        ),
    ],
)
def test_the_rest_of_the_text_stays(before: str, after: str) -> None:
    assert mod.with_digest(before, "mod.yaml", 0, SHA) == after


def test_only_the_entry_that_is_meant_is_changed() -> None:
    text = "files:\n  - {from: a, to: .}\n  - {from: https://x/y, to: .}\n"
    assert mod.with_digest(text, "mod.yaml", 1, SHA).splitlines()[1:] == [
        "  - {from: a, to: .}",
        f"  - {{from: https://x/y, to: ., sha256: {SHA}}}",
    ]


def test_a_digest_of_digits_alone_stays_text() -> None:
    digits = "1" * 64
    changed = mod.with_digest("files: [{from: https://x/y, to: .}]\n", "mod.yaml", 0, digits)
    assert f"sha256: '{digits}'" in changed


def test_a_file_that_only_one_of_the_two_loaders_takes_is_an_error_of_the_user() -> None:
    """libyaml passes over a byte order mark at the end, PyYAML's own scanner does not."""
    with pytest.raises(FileProblemsError, match=f"add it by hand: sha256: {SHA}"):
        mod.with_digest("files: [{from: https://x/y, to: .}]\n\ufeff", "mod.yaml", 0, SHA)


# Places where mods are known to be, and what a recipe is told that names a mod which the project lacks.

NAME = "fix-qwen3.6-chat-template"
# The most named ones of 240 public recipes.
MOST_NAMED = {
    "fix-qwen3.5-chat-template", "fix-qwen3-coder-next", NAME, "fix-qwen3.5-autoround", "gpu-mem-util-gb",
    "drop-caches", "nemotron-nano",
}  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = projects.make(tmp_path)
    projects.add_recipe(tmp_path, "lost", "small", "Org/Model", [f"mods/{NAME}", "mods/nowhere"])
    return project


def test_every_shipped_address_is_at_a_commit_and_has_the_name_of_its_mod(tmp_path: Path) -> None:
    shipped = mod.read_known_sources(Project(tmp_path))
    assert shipped.keys() >= MOST_NAMED
    for name, text in shipped.items():
        parsed = copies.parse_address(text)
        assert mod.NAME.fullmatch(name)
        assert re.fullmatch("[0-9a-f]{40}", parsed.ref), text
        assert parsed.path == f"mods/{name}", text


def test_the_command_stands_in_every_message_on_a_recipe_that_lacks_the_mod(project: Project) -> None:
    remedy = f"`builder mods add {mod.read_known_sources(project)[NAME]}` copies it from its known source"
    (checked,) = check_recipes(project, ["lost"])
    told = [note.message for note in checked.problems if "no mod" in note.message]
    assert told == [
        f"no mod `{NAME}` in mods/; {remedy}",
        "no mod `nowhere` in mods/; `builder mods add ADDRESS` copies it from its repository",
    ]
    with pytest.raises(FileProblemsError) as caught:
        recipe_problems.require_buildable(project, [load_recipe(project, project.recipes / "lost.yaml")])
    assert sorted(problem.message for problem in caught.value.problems) == [
        f"no mod `{NAME}` in mods/; {remedy}",
        "no mod `nowhere` in mods/; `builder mods add ADDRESS` copies it from its repository",
    ]
    with pytest.raises(UsageError) as missing:
        mod.load_mod(project, f"mods/{NAME}")
    assert missing.value.hint == remedy


def test_a_project_adds_places_and_goes_before_the_shipped_ones(project: Project) -> None:
    own = "git@git.example:team/mods.git//nowhere@v1"
    projects.write(project.root / "builder.yaml", f"mod_sources: {{nowhere: '{own}', {NAME}: '/srv/mods//other'}}\n")
    assert mod.remedy(project, "nowhere").startswith(f"`builder mods add {own}` copies")
    assert mod.remedy(project, NAME).startswith(f"`builder mods add /srv/mods//other --as {NAME}` copies")
    assert mod.remedy(project, "drop-caches")
    assert mod.remedy(project, "unheard-of") == ""


@pytest.mark.parametrize("text", ["mod_sources: {house: '--upload-pack=x'}", "mod_sources: {'../x': 'https://x//y'}"])
def test_a_wrong_builder_yaml_leaves_the_shipped_places(project: Project, text: str) -> None:
    shipped = mod.read_known_sources(project)
    projects.write(project.root / "builder.yaml", f"{text}\n")
    assert mod.read_known_sources(project) == shipped


def test_the_content_hash_covers_names_bytes_and_execute_bits(tmp_path: Path) -> None:
    def hashed(folder: str, name: str, text: str, mode: int) -> str:
        root = tmp_path / folder
        project = projects.make(root)
        projects.add_mod(root, "m", "true\n", {name: text})
        (root / "mods/m" / name).chmod(mode)
        return mod.load_mod(project, "m").content_hash

    plain = hashed("a", "x", "1", 0o644)
    assert plain == hashed("b", "x", "1", 0o600) == hashed("f", "x", "1", 0o666)
    others = {hashed("c", "y", "1", 0o644), hashed("d", "x", "2", 0o644), hashed("e", "x", "1", 0o755)}
    assert len(others | {plain}) == 4


def test_the_content_hash_covers_what_is_done_and_checked_and_nothing_else(tmp_path: Path) -> None:
    files = ("a.jinja", "tree/x", "a.patch", "b.patch", "go.sh", "look.sh")
    same = [
        ALL_KEYS,
        ALL_KEYS.replace("all keys", "other words"),
        ALL_KEYS.replace('">=0.19,<0.23"', '">=0.19"'),
        ALL_KEYS.replace("friend", "stranger"),
        f"# a comment\n{ALL_KEYS}",
    ]
    other = [
        ALL_KEYS.replace("to: .", "to: /opt/"),
        ALL_KEYS.replace("package: six", "package: vllm"),
        ALL_KEYS.replace(">=1.16", ">=1.17"),
        ALL_KEYS.replace("0.1.8", "0.1.9"),
        ALL_KEYS.replace("VLLM_X: 1", "VLLM_X: 2"),
        ALL_KEYS.replace("contains: tool", "contains: fool"),
        ALL_KEYS.replace("timeout: 60", "timeout: 61"),
        ALL_KEYS.replace("may_be_empty: true", "may_be_empty: false"),
        ALL_KEYS.replace("run: go.sh", "run: look.sh"),
    ]

    def hashed(number: int, yaml: str) -> str:
        return load(tmp_path / str(number), yaml, *files).content_hash

    assert len({hashed(number, yaml) for number, yaml in enumerate(same)}) == 1
    assert len({hashed(number, yaml) for number, yaml in enumerate([ALL_KEYS, *other], start=10)}) == len(other) + 1


def folder(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def problems(root: Path) -> list[str]:
    with pytest.raises(FileProblemsError) as caught:
        mod.read_folder(root, "mods/m")
    return str(caught.value).splitlines()


def zipped(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return path


def zip_problems(path: Path) -> list[str]:
    with pytest.raises(FileProblemsError) as caught:
        mod.read_zip(path, "mods/m.zip")
    return str(caught.value).splitlines()


def test_only_what_makes_the_change_is_read(tmp_path: Path) -> None:
    names = [
        "run.sh",
        "b/x",
        "b.txt",
        "a/README.md",
        "README.md",
        ".git/config",
        "__pycache__/x.pyc",
        ".DS_Store",
        "mod.yaml",
    ]
    contents = mod.read_folder(folder(tmp_path, dict.fromkeys(names, b"x")), "mods/m")
    assert [file.path for file in contents.files] == ["b/x", "b.txt", "run.sh"]
    assert (contents.yaml, contents.yaml_file) == ("x", "mods/m/mod.yaml")


def test_of_the_mode_only_the_owners_execute_bit_counts(tmp_path: Path) -> None:
    folder(tmp_path, dict.fromkeys("abcd", b"x"))
    for name, mode in {"a": 0o644, "b": 0o700, "c": 0o655, "d": 0o4755}.items():
        (tmp_path / name).chmod(mode)
    files = mod.read_folder(tmp_path, "mods/m").files
    assert [file.executable for file in files] == [False, True, False, True]


@pytest.mark.parametrize(
    ("checked_out", "stored"),
    [
        (b"a\r\nb\r\n", b"a\nb\n"),
        (b"a\nb\r\n", b"a\nb\n"),
        (b"a\r\nb\rc", b"a\r\nb\rc"),
        (b"a\r\n\0", b"a\r\n\0"),
        (b"", b""),
    ],
    ids=["crlf", "mixed", "lone CR is no text", "NUL is no text", "empty"],
)
def test_a_checkout_with_crlf_reads_as_what_git_stores(tmp_path: Path, checked_out: bytes, stored: bytes) -> None:
    assert mod.read_folder(folder(tmp_path, {"x.jinja": checked_out}), "mods/m").files == (
        PlainFile("x.jinja", False, stored),
    )


@pytest.mark.parametrize(("name", "content"), [("run.sh", b"true\r\n"), ("tool", b"#!/bin/bash\r\ntrue\r\n")])
def test_a_script_with_crlf_is_refused_with_the_remedy(tmp_path: Path, name: str, content: bytes) -> None:
    (message,) = problems(folder(tmp_path, {name: content}))
    assert message.startswith(f"mods/m/{name}:1:1: its lines end in CRLF")
    assert "save the file with LF" in message


def test_a_script_with_a_byte_order_mark_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """bash looks for a program of the name BOM + `set` and goes on without `set -e`."""
    (message,) = problems(folder(tmp_path, {"run.sh": b"\xef\xbb\xbfset -e\n", "x.jinja": b"\xef\xbb\xbf{}\n"}))
    assert message.startswith("mods/m/run.sh:1:1: it begins with a byte order mark")
    assert "save the file as UTF-8 without BOM" in message


def test_links_inside_are_read_and_links_that_leave_are_refused(tmp_path: Path) -> None:
    folder(tmp_path / "m", {"x": b"inside"})
    folder(tmp_path / "m-too", {"y": b"outside"})
    links = {"in": "x", "out": "../m-too/y", "far": "/etc/passwd", "loop": "loop", "gone": "nothing", "up": ".."}
    for name, to in links.items():
        (tmp_path / "m" / name).symlink_to(to)
    assert problems(tmp_path / "m") == [
        "mods/m/far:1:1: a link that leaves the mod's folder; copy the file into the mod",
        "mods/m/gone:1:1: not a file; a mod contains plain files only",
        "mods/m/loop:1:1: not a file; a mod contains plain files only",
        "mods/m/out:1:1: a link that leaves the mod's folder; copy the file into the mod",
        "mods/m/up:1:1: a link that leaves the mod's folder; copy the file into the mod",
    ]
    for name in set(links) - {"in"}:
        (tmp_path / "m" / name).unlink()
    assert [file.content for file in mod.read_folder(tmp_path / "m", "mods/m").files] == [b"inside"] * 2


@pytest.mark.parametrize("name", ["linked", "linked.zip"])
def test_a_mod_that_is_a_link_out_of_the_project_is_refused(tmp_path: Path, name: str) -> None:
    project = projects.make(tmp_path / "project")
    folder(tmp_path / "elsewhere", {"run.sh": b"true\n"})
    outside = tmp_path / "elsewhere"
    if name.endswith(".zip"):
        outside = zipped(tmp_path / "elsewhere.zip", {"run.sh": b"true\n"})
    (project.mods / name).symlink_to(outside)
    (project.mods / "inside").symlink_to("template")
    assert mod.load_mod(project, "inside").run == "run.sh"
    with pytest.raises(FileProblemsError, match=rf"mods/{name}:1:1: a link leads out of .*, to {outside}: replace"):
        mod.load_mod(project, "linked")


def test_a_mod_that_names_itself_is_told_before_a_build(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.add_mod(tmp_path, "m", "", {}, "description: x\nenv: {A: b}\nconflicts: [x, mods/m]\nafter: [m]\n")
    with pytest.raises(FileProblemsError) as caught:
        mod.load_mod(project, "m")
    assert str(caught.value).splitlines() == [
        "mods/m/mod.yaml:3:16: a mod cannot name itself under `conflicts`: remove m",
        "mods/m/mod.yaml:4:9: a mod cannot name itself under `after`: remove m",
    ]


def test_a_link_to_a_folder_is_refused(tmp_path: Path) -> None:
    folder(tmp_path, {"a/x": b""})
    (tmp_path / "b").symlink_to("a")
    assert problems(tmp_path) == ["mods/m/b:1:1: a link to a folder; copy the folder into the mod"]


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert problems(tmp_path) == ["mods/m/pipe:1:1: not a file; a mod contains plain files only"]


def test_two_gigabytes_are_refused_without_being_read(tmp_path: Path) -> None:
    with (tmp_path / "weights").open("wb") as file:
        file.truncate(1 << 31)
    (message,) = problems(tmp_path)
    said = "mods/m/weights:1:1: the file has 2,147,483,648 bytes, but a mod's file has at most 67,108,864: "
    assert message.startswith(said)


def test_a_mod_has_a_limit_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mod, "LARGEST_MOD", 5)
    (message,) = problems(folder(tmp_path, {"a": b"123", "b": b"456"}))
    assert message.startswith("mods/m/b:1:1: with this file of 3 bytes the mod has more than 5 bytes: ")
    monkeypatch.setattr(mod, "MOST_FILES", 1)
    said = "mods/m:1:1: the mod has 2 files, but at most 1 are allowed"
    assert said in problems(folder(tmp_path, {"a": b"", "b": b""}))


def test_file_names_with_shell_characters_are_only_names(tmp_path: Path) -> None:
    names = ["$(touch x)", "a b", "`id`", "-rf", "quote'\"", "ümlaut"]
    contents = mod.read_folder(folder(tmp_path, dict.fromkeys(names, b"")), "mods/m")
    assert {file.path for file in contents.files} == set(names)


def test_file_names_that_no_dockerfile_can_hold_are_refused(tmp_path: Path) -> None:
    folder(tmp_path, {"a\nb": b""})
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))).write_bytes(b"")
    assert problems(tmp_path) == [
        "mods/m/?:1:1: its name is not UTF-8; rename it",
        "mods/m/a\\nb:1:1: its name has a control character; rename it",
    ]


@pytest.mark.parametrize("top", ["", "my-mod/"], ids=["flat", "in one folder"])
def test_a_zip_of_a_mod_is_the_mod(tmp_path: Path, top: str) -> None:
    files = {
        "mod.yaml": b"description: x\nrun: run.sh\n",
        "run.sh": b"true\n",
        "sub/x.txt": b"a\r\n",
        "README.md": b"words",
    }
    (tmp_path / "mods").mkdir()
    zipped(
        tmp_path / "mods/packed.zip", {f"{top}{name}": content for name, content in files.items()} | {"__MACOSX/x": b""}
    )
    projects.add_mod(tmp_path, "plain", "", {name: content.decode() for name, content in files.items()})
    packed, plain = (mod.load_mod(Project(tmp_path), name) for name in ("mods/packed.zip", "plain"))
    assert packed.files == plain.files
    assert packed.content_hash == plain.content_hash
    assert packed.file == f"mods/packed.zip/{top}mod.yaml"
    assert mod.mod_names(Project(tmp_path)) == ("packed", "plain")


def test_a_zip_keeps_execute_bits(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        for name, mode in (("a", 0o755), ("b", 0o644)):
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (stat.S_IFREG | mode) << 16
            archive.writestr(entry, b"")
    assert [file.executable for file in mod.read_zip(tmp_path / "m.zip", "mods/m.zip").files] == [True, False]


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "a\\..\\x", "a//x", "./x"])
def test_a_zip_entry_that_leaves_is_refused(tmp_path: Path, name: str) -> None:
    assert zip_problems(zipped(tmp_path / "m.zip", {"run.sh": b"", name: b""})) == [
        f"mods/m.zip/{name}:1:1: a path that leaves the mod's folder"
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["m.zip"]


def test_what_no_folder_could_hold_is_refused_in_a_zip(tmp_path: Path) -> None:
    long = "é" * 128
    assert zip_problems(zipped(tmp_path / "m.zip", {"run.sh": b"", "a/b/c": b"", "a": b"", f"a/{long}/x": b""})) == [
        "mods/m.zip/a:1:1: both a file and a folder",
        f"mods/m.zip/a/{long}/x:1:1: its name has more than 255 bytes; rename it",
    ]


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        entry = zipfile.ZipInfo("out")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(entry, b"/etc/passwd")
    assert zip_problems(tmp_path / "m.zip") == ["mods/m.zip/out:1:1: a link; a mod in a zip contains plain files only"]


def test_a_zip_bomb_is_refused_by_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mod, "LARGEST_FILE", 1000)
    monkeypatch.setattr(mod, "LARGEST_MOD", 1500)
    (message,) = zip_problems(zipped(tmp_path / "one.zip", {"x": bytes(1001)}))
    assert message.startswith("mods/m.zip/x:1:1: the file has 1,001 bytes, but a mod's file has at most 1,000: ")
    (message,) = zip_problems(zipped(tmp_path / "many.zip", {"x": bytes(900), "y": bytes(900)}))
    assert message.startswith("mods/m.zip/y:1:1: with this file of 900 bytes the mod has more than 1,500 bytes: ")


def test_a_zip_that_says_less_than_it_holds_is_refused(tmp_path: Path) -> None:
    content = zipped(tmp_path / "m.zip", {"x": bytes(100_000)}).read_bytes()
    (tmp_path / "m.zip").write_bytes(content.replace((100_000).to_bytes(4, "little"), (10).to_bytes(4, "little")))
    (message,) = zip_problems(tmp_path / "m.zip")
    assert message.startswith("mods/m.zip:1:1: this zip file cannot be read: ")


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x05\x06"])
def test_what_is_no_zip_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.zip").write_bytes(content)
    (message,) = zip_problems(tmp_path / "m.zip")
    assert message.startswith("mods/m.zip:1:1: this zip file cannot be read: ")


def test_a_zip_that_was_damaged_is_refused(tmp_path: Path) -> None:
    content = bytearray(zipped(tmp_path / "m.zip", {"x": os.urandom(1000)}).read_bytes())
    content[500] ^= 0xFF
    (tmp_path / "m.zip").write_bytes(content)
    (message,) = zip_problems(tmp_path / "m.zip")
    assert message.startswith("mods/m.zip:1:1: this zip file cannot be read: ")


def test_an_encrypted_entry_is_refused(tmp_path: Path) -> None:
    content = zipped(tmp_path / "m.zip", {"x": b"1"}).read_bytes()
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = content.index(mark) + at
        content = content[:start] + bytes([content[start] | 1]) + content[start + 1 :]
    (tmp_path / "m.zip").write_bytes(content)
    assert zip_problems(tmp_path / "m.zip") == [
        "mods/m.zip/x:1:1: the file is encrypted; create the zip again without a password"
    ]


def test_a_script_with_crlf_in_a_zip_is_refused(tmp_path: Path) -> None:
    (message,) = zip_problems(zipped(tmp_path / "m.zip", {"run.sh": b"true\r\n"}))
    assert message.startswith("mods/m.zip/run.sh:1:1: its lines end in CRLF")


def test_a_folder_and_a_zip_of_one_name_are_refused(tmp_path: Path) -> None:
    projects.add_mod(tmp_path, "m", "true\n", {})
    zipped(tmp_path / "mods/m.zip", {"run.sh": b""})
    with pytest.raises(FileProblemsError) as caught:
        mod.load_mod(Project(tmp_path), "m")
    assert str(caught.value) == "mods/m.zip:1:1: mods/m also exists as a folder; remove one of them"


def test_a_zip_without_a_script_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mods").mkdir()
    zipped(tmp_path / "mods/m.zip", {"x": b""})
    with pytest.raises(FileProblemsError) as caught:
        mod.load_mod(Project(tmp_path), "m")
    assert str(caught.value) == "mods/m.zip:1:1: no file run.sh in mods/m"


def test_the_same_files_read_alike(tmp_path: Path) -> None:
    names = {f"{folder}{name}": b"x" for folder in ("", "b/", "b-c/", "B/") for name in ("z", "a.b")}
    plain: ModContents = mod.read_folder(folder(tmp_path / "m", names), "m")
    assert mod.read_zip(zipped(tmp_path / "m.zip", names), "m").files == plain.files


def test_a_described_mod_runs_nothing_that_it_does_not_name(tmp_path: Path) -> None:
    assert load(tmp_path / "a", "description: x\nfiles: [{from: y, to: .}]\n", "y").run is None
    assert problems_of_mod_problems(tmp_path / "b", "description: x\nfiles: [{from: y, to: .}]\n", "y", "run.sh") == [
        "mods/m/mod.yaml:1:1: nothing runs the file run.sh; write `run: run.sh`, or remove the file"
    ]


def test_a_mod_that_changes_nothing_is_none(tmp_path: Path) -> None:
    message = "the mod changes nothing: add `files`, `patches`, `packages`, `run` or `env`"
    assert problems_of_mod_problems(tmp_path, "description: x\n", "y") == [f"mods/m/mod.yaml:1:1: {message}"]


def test_packages_without_a_network_are_a_contradiction(tmp_path: Path) -> None:
    assert problems_of_mod_problems(tmp_path, "description: x\npackages: [a==1]\nnetwork: false\n") == [
        "mods/m/mod.yaml:3:1: `packages` are downloaded and need the network: remove `network: false`"
    ]


def test_a_package_is_asked_for_once(tmp_path: Path) -> None:
    assert problems_of_mod_problems(tmp_path, "description: x\npackages: [A.b==1, 'a_B[c]==2']\n") == [
        "mods/m/mod.yaml:2:20: a_B[c]==2: the mod also lists A.b==1; remove one of them"
    ]


def test_every_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    yaml = """\
description: x
run: other.sh
check: [{run: look.sh}]
files: [{from: a, to: .}, {from: tree, to: .}, {from: tre, to: .}]
patches: [{file: tree, package: vllm}]
"""
    assert problems_of_mod_problems(tmp_path, yaml, "tree/x") == [
        "mods/m/mod.yaml:2:1: no file other.sh in mods/m",
        "mods/m/mod.yaml:3:10: no file look.sh in mods/m",
        "mods/m/mod.yaml:4:10: no file a in mods/m",
        "mods/m/mod.yaml:4:49: no file tre in mods/m",
        "mods/m/mod.yaml:5:12: no file tree in mods/m",
    ]


def test_a_path_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    yaml = "description: x\nfiles: [{from: ../template/run.sh, to: .}]\npatches: [{file: /etc/passwd, package: vllm}]\n"
    assert problems_of_mod_problems(tmp_path, yaml) == [
        "mods/m/mod.yaml:2:10: ../template/run.sh leaves the mod's folder; copy the file into the mod",
        "mods/m/mod.yaml:3:12: /etc/passwd leaves the mod's folder; copy the file into the mod",
    ]


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("../x", "a path cannot contain `..`"),
        ("/root/.cache/vllm/x", "when the image serves, a folder of the host is mounted over /root/.cache/vllm"),
        ("/root/.triton", "when the image serves, a folder of the host is mounted over /root/.triton"),
        ("/proc/x", "an image does not keep files below /proc"),
    ],
)
def test_a_path_where_nothing_stays_is_refused(tmp_path: Path, to: str, message: str) -> None:
    (problem,) = problems_of_mod_problems(tmp_path, f"description: x\nfiles: [{{from: y, to: {to}}}]\n", "y")
    assert problem.startswith(f"mods/m/mod.yaml:2:19: {to}: {message}")


def test_ranges_of_versions_are_read_by_the_standard_parser(tmp_path: Path) -> None:
    message = "is not a version range in pip's syntax, such as >=0.19,<0.23"
    assert problems_of_mod_problems(
        tmp_path, "description: x\nenv: {A: b}\nrequires:\n  vllm: newest\n  six: '>=1'\n"
    ) == [f"mods/m/mod.yaml:4:3: vllm: 'newest' {message}"]


def test_a_patch_for_some_versions_has_a_range_of_a_package_that_is_required(tmp_path: Path) -> None:
    yaml = "description: x\npatches:\n  - {file: y, package: flash_qla, version: newest}\n"
    assert problems_of_mod_problems(tmp_path / "a", yaml, "y") == [
        "mods/m/mod.yaml:3:35: a patch with `version` also needs flash-qla under `requires`",
        "mods/m/mod.yaml:3:35: flash_qla: 'newest' is not a version range in pip's syntax, such as >=0.19,<0.23",
    ]
    yaml = yaml.replace("newest", "'<0.1.3'") + "requires: {Flash.QLA: '>=0.1'}\n"
    (patch,) = load(tmp_path / "b", yaml, "y").patches
    assert [patch.fits(version) for version in ("0.1.2", "0.1.3.dev1", "0.1.3")] == [True, False, False]


def test_a_file_from_an_address_has_a_name_and_a_digest(tmp_path: Path) -> None:
    digest = "0" * 64
    yaml = f"""\
description: x
files:
  - {{from: https://example.org/a.jinja, to: .}}
  - {{from: https://example.org/, to: ., sha256: {digest}a}}
"""
    assert problems_of_mod_problems(tmp_path / "a", yaml)[0].startswith("mods/m/mod.yaml:4:")
    yaml = f"""\
description: x
files:
  - {{from: https://example.org/a.jinja, to: .}}
  - {{from: "https://example.org/a%2F..%20b?x=y", to: ., sha256: "{digest}"}}
  - {{from: own, to: ., sha256: "{digest}"}}
  - {{from: https://example.org/a.jinja, to: ., sha256: "{digest}"}}
"""
    no_digest = "has no sha256; `builder mods pin m` downloads the file and writes its digest"
    assert problems_of_mod_problems(tmp_path / "b", yaml, "own") == [
        f"mods/m/mod.yaml:3:6: https://example.org/a.jinja {no_digest}",
        "mods/m/mod.yaml:4:6: https://example.org/a%2F..%20b?x=y: an address must end with a file name of "
        "letters, digits and . _ + -",
        "mods/m/mod.yaml:5:24: only a file from an address can have a sha256; remove it",
    ]


@pytest.mark.parametrize("yaml", ["description: x\nfiles: [{from: ours.jinja, to: .}]\n", None])
def test_a_chat_template_that_cannot_be_compiled_is_told_by_its_line(tmp_path: Path, yaml: str | None) -> None:
    """vLLM reads it only when the model is in memory: four minutes into serving."""
    project = projects.make(tmp_path)
    script = "" if yaml else "cp ours.jinja $WORKSPACE_DIR\n"
    projects.add_mod(project.root, "m", script, {"ours.jinja": "ok\n{% if x %}\n"}, yaml or "")
    with pytest.raises(FileProblemsError) as caught:
        mod.require_templates([mod.load_mod(project, "m")])
    assert "mods/m/ours.jinja:2:1: this chat template does not compile: Unexpected end of" in caught.value.message


def test_a_folder_with_only_a_run_sh_is_a_mod_and_keeps_the_network(tmp_path: Path) -> None:
    loaded = mod.load_mod(projects.make(tmp_path), "mods/template")
    assert (loaded.name, loaded.described, loaded.run, loaded.network) == ("template", False, "run.sh", True)
    assert [file.path for file in loaded.files] == ["chat.jinja", "run.sh"]


def test_all_that_is_written_is_read(tmp_path: Path) -> None:
    loaded = load(tmp_path, ALL_KEYS, "a.jinja", "tree/x", "a.patch", "b.patch", "go.sh", "look.sh")
    assert loaded.copies == (mod.FileCopy("a.jinja", "."), mod.FileCopy("tree", "/opt/tree"))
    assert loaded.patches == (mod.ModPatch("a.patch", "vllm", 1), mod.ModPatch("b.patch", "six", 0, ">=1.16"))
    assert loaded.packages == ("tilelang[extra]==0.1.8", "other==1.0.post1+cpu")
    assert (loaded.run, loaded.seconds, loaded.may_be_empty) == ("go.sh", 60, True)
    assert loaded.env == {"VLLM_X": "1", "TEXT": "a $b"}
    assert loaded.requires == {"vllm": ">=0.19,<0.23", "transformers": ">=5", "six": "<2"}
    assert (loaded.conflicts, loaded.after) == (("foe",), ("friend",))
    assert loaded.checks == (mod.ModCheck(file="a.jinja", contains="tool"), mod.ModCheck(run="look.sh"))


@pytest.mark.parametrize(
    ("more", "network"),
    [("", False), ("network: true\n", True), ("packages: [a==1]\n", True), ("network: false\n", False)],
)
def test_a_described_mod_has_no_network_unless_it_asks_or_lists_packages(
    tmp_path: Path, more: str, network: bool
) -> None:
    assert load(tmp_path, f"description: x\nenv: {{A: b}}\n{more}").network is network


@pytest.mark.parametrize(
    "package", ["a", "a>=1", "a==1.*", "a==1; x", "a==1 --index-url=x", "a @ http://x", "-r x", ""]
)
def test_packages_that_are_not_one_exact_version_are_refused(tmp_path: Path, package: str) -> None:
    (message,) = problems_of_mod_problems(tmp_path, f"description: x\npackages: ['{package}']\n")
    assert message.startswith("mods/m/mod.yaml:2:12: `packages.0`: ")
    assert "one exact version, NAME==VERSION" in message


@pytest.mark.parametrize("script", ["../x.sh", "a;b", "$(x)", "-x", "a b", "sub/x.sh"])
def test_a_script_is_called_by_a_plain_name(tmp_path: Path, script: str) -> None:
    (message,) = problems_of_mod_problems(tmp_path, f"description: x\nrun: '{script}'\n")
    assert message.startswith("mods/m/mod.yaml:2:1: `run`: ")
    assert "does not have the expected form" in message


@pytest.mark.parametrize("value", ["1.5", "true", '"a\\nb"', "[a]", ""])
def test_values_of_the_environment_are_text_on_one_line(tmp_path: Path, value: str) -> None:
    (message,) = problems_of_mod_problems(tmp_path, f"description: x\nenv: {{A: {value}}}\n")
    assert message.startswith("mods/m/mod.yaml:2:7: `env.A`: ")


def test_an_unknown_mod_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        mod.load_mod(projects.make(tmp_path), "templat")
    assert caught.value.hint == "did you mean template?"


@pytest.mark.parametrize("name", ["../template", "template; rm -rf /", "", "a/b"])
def test_a_name_that_is_no_folder_of_mods_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        mod.load_mod(projects.make(tmp_path), name)


@pytest.mark.parametrize("name", ["$(id)", "a b", "a,readonly", "-m", "`x`"])
def test_a_folder_whose_name_would_need_quoting_is_refused(tmp_path: Path, name: str) -> None:
    project = projects.make(tmp_path)
    projects.add_mod(tmp_path, name, "true\n", {})
    with pytest.raises(FileProblemsError) as caught:
        mod.load_mod(project, name)
    assert str(caught.value) == f"mods/{name}:1:1: the name of a mod may contain only letters, digits and . _ + -"


def test_the_problems_of_all_mods_are_told_at_once(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    for name in ("a", "b"):
        projects.add_mod(tmp_path, name, "", {}, "description: x\n")
    with pytest.raises(FileProblemsError) as caught:
        mod.load_all(project, ["a", "template", "mods/a", "b"])
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == ["mods/a/mod.yaml", "mods/b/mod.yaml"]


def test_all_unknown_mods_are_told_at_once(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    with pytest.raises(UsageError) as caught:
        mod.load_all(project, ["templat", "template", "zzz"])
    assert [line.partition(" in ")[0] for line in caught.value.message.splitlines()] == [
        "no mod `templat`",
        "no mod `zzz`",
    ]
    assert caught.value.hint == "did you mean template?\nexisting mods: template"


def test_each_mod_is_loaded_once(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    assert [mod.name for mod in mod.load_all(project, ["template", "mods/template", "mods/template/"])] == ["template"]


# Facts read from scripts such as mods have; each of the kinds is one of ours.

DROP_LOOP = """\
LOOP='sync; echo 3 > /proc/sys/vm/drop_caches'
nohup bash -c '
  while true; do
    '"$LOOP"'
    sleep 30
  done
' > /dev/null 2>&1 &
echo "runs as $!"
"""


def facts(root: Path, script: str, *beside: str) -> ScriptFacts:
    projects.add_mod(root, "m", script, dict.fromkeys(beside, "no matter\n"))
    read = mod.read_script_facts(mod.load_mod(Project(root), "m"))
    assert read
    return read


def test_patches_come_in_the_order_in_which_the_script_names_them(tmp_path: Path) -> None:
    script = "# not c.patch\npatch -p1 -d / < b.patch\npatch -p1 -d / < a.patch\n"
    read = facts(tmp_path, script, "a.patch", "b.patch", "c.patch")
    assert (read.patches, read.unnamed) == (("b.patch", "a.patch"), ("c.patch",))


def test_a_pattern_names_all_of_its_kind(tmp_path: Path) -> None:
    script = 'for file in parts/*.patch; do git apply "$file"; done\n'
    read = facts(tmp_path, script, "parts/2.patch", "parts/1.patch", "other.diff")
    assert (read.patches, read.unnamed) == (("parts/1.patch", "parts/2.patch"), ("other.diff",))


def test_downloads_are_told_by_their_program(tmp_path: Path) -> None:
    script = "wget https://example.org/x\nuv pip install \\\n  y==1\napt-get -y install git\ngit clone /a\n"
    assert facts(tmp_path, script).downloads == ("wget", "pip", "apt-get", "git")


def test_a_script_that_only_copies_has_nothing_that_stops_applying(tmp_path: Path) -> None:
    assert facts(
        tmp_path, 'cp chat.jinja $WORKSPACE_DIR/our.jinja\necho "==> use --chat-template our.jinja; done"\n'
    ).only_copies
    assert not facts(tmp_path, "cp a b && sed -i s/a/b/ /x\n").only_copies
    assert not facts(tmp_path, "echo nothing\n").only_copies


def test_a_loop_that_drops_caches_belongs_to_the_machine(tmp_path: Path) -> None:
    read = facts(tmp_path, DROP_LOOP)
    assert [use.does for use in read.run_time] == [
        "writes /proc/sys/vm/drop_caches",
        "starts a process that outlives the script",
    ]
    assert "echo 3 > /proc/sys/vm/drop_caches; done'`" in read.instead


@pytest.mark.parametrize(
    ("script", "does"),
    [
        ("sysctl -w vm.swappiness=0\n", "changes settings of the machine (sysctl)"),
        ("echo 1 | tee /proc/sys/vm/compact_memory\n", "changes settings of the machine (/proc/sys/vm/compact_memory)"),
        ("nvidia-smi -pm 1\n", "changes settings of the machine (nvidia-smi)"),
        ("python3 metrics.py &\n", "starts a process that outlives the script"),
        ("python3 metrics.py > /tmp/log 2>&1 & pid=$!\n", "starts a process that outlives the script"),
        ("(setsid watch.sh)\n", "starts a process that outlives the script"),
        ("systemctl start earlyoom\n", "starts a process that outlives the script"),
        ("# nothing to do any more\necho done\n", "only prints text"),
    ],
)
def test_what_no_image_keeps_is_told(tmp_path: Path, script: str, does: str) -> None:
    assert [use.does for use in facts(tmp_path, script).run_time] == [does]


@pytest.mark.parametrize(
    "script",
    [
        "a && b\n",
        "a > /dev/null 2>&1\na &> /dev/null\n",
        "sed -i 's/x/[&]/' /opt/file\n",
        "download one & download two &\nwait\n",
        "python3 - <<'PY'\nflags = a &\\\n  b &\nPY\n",
        "echo 'sysctl is no business of ours'; sed -i s/a/b/ /x\n",
        "cat /proc/sys/vm/swappiness > /opt/x\n",
        "grep -q 'R&D' /x || sed -i s/a/b/ /x\n",
        "nvidia-smi\ncp -pm a b\nsystemctl status x\necho start\n",
    ],
)
def test_ordinary_scripts_are_taken_for_no_such_thing(tmp_path: Path, script: str) -> None:
    assert facts(tmp_path, script).instead == ""


def test_a_long_script_is_read_at_once(tmp_path: Path) -> None:
    began = time.thread_time()
    facts(tmp_path, "systemctl " * 20_000 + "\n" + "echo a$b " * 20_000 + "|\n" + "git -c x " * 20_000 + "\n")
    assert time.thread_time() - began < 10


@pytest.mark.parametrize("packing", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_packed_file_that_was_damaged_is_refused(tmp_path: Path, packing: int) -> None:
    with zipfile.ZipFile(tmp_path / "m.zip", "w", compression=packing) as archive:
        archive.writestr("run.sh", b"true\n" * 1000)
    content = bytearray((tmp_path / "m.zip").read_bytes())
    content[42:60] = b"\xff" * 18
    (tmp_path / "m.zip").write_bytes(content)
    (message,) = zip_problems(tmp_path / "m.zip")
    assert message.startswith("mods/m.zip:1:1: this zip file cannot be read: ")


def test_a_name_in_a_zip_that_is_no_text_is_refused(tmp_path: Path) -> None:
    content = zipped(tmp_path / "m.zip", {"é": b""}).read_bytes()
    (tmp_path / "m.zip").write_bytes(content.replace("é".encode(), b"\xff\xfe"))
    (message,) = zip_problems(tmp_path / "m.zip")
    assert message.startswith("mods/m.zip:1:1: this zip file cannot be read: ")


@pytest.mark.parametrize("content", ["echo \0\n", f"# {'x' * 200_000}\n"])
def test_a_check_that_no_shell_takes_is_refused(tmp_path: Path, content: str) -> None:
    projects.add_mod(tmp_path, "m", "", {"a": "", "c.sh": content}, f"{CHECKED}{{run: c.sh}}]\n")
    with pytest.raises(
        FileProblemsError, match=r"mods/m/mod.yaml:3:\d+: a check must be a text file of less than 128 KiB"
    ):
        mod.load_mod(Project(tmp_path), "m")


CHECKED = "description: x\nfiles: [{from: a, to: .}]\ncheck: ["


@pytest.mark.parametrize("to", ["//dev/shm/x", "/./proc/x", "/root//.cache/./vllm/x"])
def test_a_place_that_is_written_oddly_is_the_same(tmp_path: Path, to: str) -> None:
    projects.add_mod(tmp_path, "m", "", {"a": ""}, f"description: x\nfiles: [{{from: a, to: {to}}}]\n")
    with pytest.raises(FileProblemsError, match=r"does not keep files below|is mounted over"):
        mod.load_mod(Project(tmp_path), "m")


def test_a_folder_that_cannot_be_read_is_no_empty_one() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        projects.write(folder / "run.sh", "true\n")
        projects.write(folder / "inner/a", "a")
        folder.chmod(0o755)
        (folder / "inner").chmod(0)
        user = os.geteuid()
        if user == 0:  # which may read everything
            os.seteuid(65534)
        try:
            with pytest.raises(
                FileProblemsError, match="mods/m/inner:1:1: this folder cannot be read: Permission denied"
            ):
                mod.read_folder(folder, "mods/m")
        finally:
            os.seteuid(user)
            (folder / "inner").chmod(0o755)
