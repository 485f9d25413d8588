"""Tars that are written in pieces, and tars that nobody should trust."""

from __future__ import annotations

import hashlib
import io
import tarfile
from typing import TYPE_CHECKING

import pytest

from builder.base import tar_stream

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, entries: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for info, content in entries:
            info.size = len(content) if info.isreg() else 0
            archive.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return path


def entry(name: str, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "elsewhere"
    return info


def test_members_written_in_pieces_are_what_any_tar_reads(tmp_path: Path) -> None:
    contents = {f"folder/{n}" + "x" * n * 6: bytes([n]) * n * 1000 for n in range(40)}
    path = tmp_path / "a.tar"
    with path.open("wb", buffering=0) as file:
        writer = tar_stream.Writer(file)

        def put(name: str) -> str:
            halves = contents[name][:500], contents[name][500:]
            return writer.stream(name, len(contents[name]), halves, executable=name.endswith("x"))

        digests = [put(name) for name in contents]
        assert writer.finish() == path.stat().st_size
        assert digests == [f"sha256:{hashlib.sha256(one).hexdigest()}" for one in contents.values()]
    with path.open("rb") as written:
        found = tar_stream.members(written)
        assert {name: b"".join(tar_stream.pieces(written, member)) for name, member in found.items()} == contents
    with tarfile.open(path) as archive:
        assert {info.name: info.mode for info in archive} == {
            name: 0o755 if name.endswith("x") else 0o644 for name in contents
        }


def test_a_head_holds_what_is_larger_than_8_gib() -> None:
    info = tarfile.TarInfo.frombuf(tar_stream.head("large", 20 << 30), "utf-8", "strict")
    assert (info.name, info.size) == ("large", 20 << 30)


@pytest.mark.parametrize("pieces", [[b"1234"], [b"12", b"3456"], []])
def test_a_content_of_another_size_is_refused(tmp_path: Path, pieces: list[bytes]) -> None:
    with (tmp_path / "a.tar").open("w+b") as file, pytest.raises(ValueError, match="does not have the announced size"):
        tar_stream.Writer(file).stream("five", 5, pieces)


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        (entry("../out"), "leads out"),
        (entry("/etc/passwd"), "leads out"),
        (entry("a/../../out"), "leads out"),
        (entry("a\\..\\out"), "leads out"),
        (entry("./a"), "leads out"),
        (entry("a//b"), "leads out"),
        (entry("a", tarfile.SYMTYPE), "neither a file nor a folder"),
        (entry("a", tarfile.LNKTYPE), "neither a file nor a folder"),
        (entry("a", tarfile.CHRTYPE), "neither a file nor a folder"),
        (entry("a", tarfile.FIFOTYPE), "neither a file nor a folder"),
        (entry("a", tarfile.GNUTYPE_SPARSE), "neither a file nor a folder"),
        (entry("a/" + "x" * 256), "leads out"),
        (entry("first"), "twice"),
        (entry("first/second/third"), "`first` is both a file and a folder in it"),
    ],
)
def test_what_no_archive_of_ours_holds_is_refused(tmp_path: Path, info: tarfile.TarInfo, reason: str) -> None:
    path = write(tmp_path / "a.tar", [(entry("first"), b"one"), (info, b"two")])
    with path.open("rb") as file, pytest.raises(ValueError, match=reason):
        tar_stream.members(file)


def test_more_files_than_any_archive_has_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_stream, "_MOST", 2)
    path = write(tmp_path / "a.tar", [(entry(name), b"x") for name in "abc"])
    with path.open("rb") as file, pytest.raises(ValueError, match="more than 2 files"):
        tar_stream.members(file)


def test_folders_are_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", [(entry("folder/", tarfile.DIRTYPE), b""), (entry("folder/one"), b"1")])
    with path.open("rb") as file:
        assert list(tar_stream.members(file)) == ["folder/one"]


def test_a_tar_that_is_cut_off_holds_no_member_beyond_its_end(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.tar", [(entry(f"{n}"), bytes(700)) for n in range(4)]).read_bytes()
    for length in range(0, len(whole), 97):
        path = tmp_path / "cut.tar"
        path.write_bytes(whole[:length])
        with path.open("rb") as file:
            try:
                found = tar_stream.members(file)
            except ValueError:
                continue
            assert all(member.offset + member.size <= length for member in found.values())


def test_what_is_shown_of_a_name_is_harmless() -> None:
    assert tar_stream.printable("a\x1b[31m\udcff") == "a\\x1b[31m\\udcff"


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_a_header_of_any_size_is_not_read_into_memory(tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, 3 << 30
    path = tmp_path / "sparse.tar"
    with path.open("w+b") as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        file.truncate(4 << 30)
        file.seek(0)
        with pytest.raises(ValueError, match="its header of 3,"):
            tar_stream.members(file)
