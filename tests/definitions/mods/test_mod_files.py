from __future__ import annotations

import os
import stat
import zipfile
from pathlib import Path

import pytest

from builder.base.errors import FileProblemsError
from builder.base.project import Project
from builder.definitions import mod
from builder.definitions.mod import ModContents, PlainFile
from tests import projects


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
    assert "save it with LF" in message


def test_links_inside_are_read_and_links_that_leave_are_refused(tmp_path: Path) -> None:
    folder(tmp_path / "m", {"x": b"inside"})
    folder(tmp_path / "m-too", {"y": b"outside"})
    links = {"in": "x", "out": "../m-too/y", "far": "/etc/passwd", "loop": "loop", "gone": "nothing", "up": ".."}
    for name, to in links.items():
        (tmp_path / "m" / name).symlink_to(to)
    assert problems(tmp_path / "m") == [
        "mods/m/far:1:1: a link that leaves the mod's folder; copy the file in",
        "mods/m/gone:1:1: not a file; a mod holds plain files",
        "mods/m/loop:1:1: not a file; a mod holds plain files",
        "mods/m/out:1:1: a link that leaves the mod's folder; copy the file in",
        "mods/m/up:1:1: a link that leaves the mod's folder; copy the file in",
    ]
    for name in set(links) - {"in"}:
        (tmp_path / "m" / name).unlink()
    assert [file.content for file in mod.read_folder(tmp_path / "m", "mods/m").files] == [b"inside"] * 2


def test_a_link_to_a_folder_is_refused(tmp_path: Path) -> None:
    folder(tmp_path, {"a/x": b""})
    (tmp_path / "b").symlink_to("a")
    assert problems(tmp_path) == ["mods/m/b:1:1: a link to a folder; copy the folder in"]


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert problems(tmp_path) == ["mods/m/pipe:1:1: not a file; a mod holds plain files"]


def test_two_gigabytes_are_refused_without_being_read(tmp_path: Path) -> None:
    with (tmp_path / "weights").open("wb") as file:
        file.truncate(1 << 31)
    (message,) = problems(tmp_path)
    assert message.startswith("mods/m/weights:1:1: 2,147,483,648 bytes; a mod's files have at most 67,108,864: ")


def test_a_mod_has_a_limit_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mod, "LARGEST_MOD", 5)
    (message,) = problems(folder(tmp_path, {"a": b"123", "b": b"456"}))
    assert message.startswith("mods/m/b:1:1: with its 3 bytes the mod has more than 5: ")
    monkeypatch.setattr(mod, "MOST_FILES", 1)
    assert "mods/m:1:1: 2 files; a mod has at most 1" in problems(folder(tmp_path, {"a": b"", "b": b""}))


def test_file_names_with_shell_characters_are_only_names(tmp_path: Path) -> None:
    names = ["$(touch x)", "a b", "`id`", "-rf", "quote'\"", "ümlaut"]
    contents = mod.read_folder(folder(tmp_path, dict.fromkeys(names, b"")), "mods/m")
    assert {file.path for file in contents.files} == set(names)


def test_file_names_that_no_dockerfile_can_hold_are_refused(tmp_path: Path) -> None:
    folder(tmp_path, {"a\nb": b""})
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))).write_bytes(b"")
    assert problems(tmp_path) == [
        "mods/m/?:1:1: its name is not UTF-8; rename it",
        "mods/m/a?b:1:1: its name holds a control character; rename it",
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


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        entry = zipfile.ZipInfo("out")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(entry, b"/etc/passwd")
    assert zip_problems(tmp_path / "m.zip") == ["mods/m.zip/out:1:1: a link; a mod in a zip holds plain files"]


def test_a_zip_bomb_is_refused_by_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mod, "LARGEST_FILE", 1000)
    monkeypatch.setattr(mod, "LARGEST_MOD", 1500)
    (message,) = zip_problems(zipped(tmp_path / "one.zip", {"x": bytes(1001)}))
    assert message.startswith("mods/m.zip/x:1:1: 1,001 bytes; a mod's files have at most 1,000: ")
    (message,) = zip_problems(zipped(tmp_path / "many.zip", {"x": bytes(900), "y": bytes(900)}))
    assert message.startswith("mods/m.zip/y:1:1: with its 900 bytes the mod has more than 1,500: ")


def test_a_zip_that_says_less_than_it_holds_is_refused(tmp_path: Path) -> None:
    content = zipped(tmp_path / "m.zip", {"x": bytes(100_000)}).read_bytes()
    (tmp_path / "m.zip").write_bytes(content.replace((100_000).to_bytes(4, "little"), (10).to_bytes(4, "little")))
    (message,) = zip_problems(tmp_path / "m.zip")
    assert message.startswith("mods/m.zip:1:1: not a zip file that can be read: ")


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x05\x06"])
def test_what_is_no_zip_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.zip").write_bytes(content)
    (message,) = zip_problems(tmp_path / "m.zip")
    assert message.startswith("mods/m.zip:1:1: not a zip file that can be read: ")


def test_a_zip_that_was_damaged_is_refused(tmp_path: Path) -> None:
    content = bytearray(zipped(tmp_path / "m.zip", {"x": os.urandom(1000)}).read_bytes())
    content[500] ^= 0xFF
    (tmp_path / "m.zip").write_bytes(content)
    (message,) = zip_problems(tmp_path / "m.zip")
    assert message.startswith("mods/m.zip:1:1: not a zip file that can be read: ")


def test_an_encrypted_entry_is_refused(tmp_path: Path) -> None:
    content = zipped(tmp_path / "m.zip", {"x": b"1"}).read_bytes()
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = content.index(mark) + at
        content = content[:start] + bytes([content[start] | 1]) + content[start + 1 :]
    (tmp_path / "m.zip").write_bytes(content)
    assert zip_problems(tmp_path / "m.zip") == ["mods/m.zip/x:1:1: it is encrypted"]


def test_a_script_with_crlf_in_a_zip_is_refused(tmp_path: Path) -> None:
    (message,) = zip_problems(zipped(tmp_path / "m.zip", {"run.sh": b"true\r\n"}))
    assert message.startswith("mods/m.zip/run.sh:1:1: its lines end in CRLF")


def test_a_folder_and_a_zip_of_one_name_are_refused(tmp_path: Path) -> None:
    projects.add_mod(tmp_path, "m", "true\n", {})
    zipped(tmp_path / "mods/m.zip", {"run.sh": b""})
    with pytest.raises(FileProblemsError) as caught:
        mod.load_mod(Project(tmp_path), "m")
    assert str(caught.value) == "mods/m.zip:1:1: mods/m is there as a folder, too; remove one of them"


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
