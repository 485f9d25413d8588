"""The format of `builder export-image`, without an engine: what is written is read, and nothing else is."""

from __future__ import annotations

import io
import json
import random
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from builder.base import tar_stream
from builder.base.errors import TransferError, UsageError
from builder.engine import archives
from builder.engine.archives import Descriptor
from builder.lock import text
from builder.lock.model import Adoption, BasePin, ImageName, Lock, Model, Pairing, Pins, Repository
from builder.moving import archive
from builder.moving.archive import Archive
from builder.plan import making, plan_model
from builder.plan.plan_model import StagedFile
from tests import locks
from tests.commands import kept
from tests.moving.archives import plain_build
from tests.plan import shipped

if TYPE_CHECKING:
    from pathlib import Path


NAME = ImageName("small", 2)
LOCK = Lock(
    images={"small": Repository(4, 3, (2,), {n: replace(locks.numbered(), note=str(n)) for n in (1, 2, 3)})},
    models={"Org/M": Model(Pairing(NAME, "recipes/m.yaml"), (Pairing(ImageName("small", 1)),))},
)
LAYERS = [bytes([n]) * 3000 for n in range(3)]
_CONFIG = b'{"architecture": "amd64"}'
_TYPE = "application/vnd.oci.image.manifest.v1+json"
Change = Callable[[dict[str, bytes]], None]


def digest(content: bytes) -> str:
    return f"sha256:{sha256(content).hexdigest()}"


def described(content: bytes, kind: str = "application/x") -> Descriptor:
    return Descriptor(kind, digest(content), len(content))


@dataclass(frozen=True)
class Written:
    top: Descriptor
    blobs: dict[str, bytes]


def image(attested: bool = False) -> Written:
    """An image of three layers, below an index where it is ``attested``."""
    manifest = json.dumps(
        {"config": described(_CONFIG).json, "layers": [described(layer).json for layer in LAYERS]}
    ).encode()
    blobs = [*LAYERS, _CONFIG, manifest]
    top = described(manifest, _TYPE)
    if attested:
        statement = b"{}"
        other = json.dumps({"config": described(_CONFIG).json, "layers": [described(statement).json]}).encode()
        annotated = {**described(other, _TYPE).json, "annotations": {"vnd.docker.reference.type": "attestation"}}
        index = json.dumps({"manifests": [top.json, annotated]}).encode()
        blobs += [statement, other, index]
        top = described(index, "application/vnd.oci.image.index.v1+json")
    return Written(top, {digest(blob): blob for blob in blobs})


def write(
    path: Path,
    attested: bool = False,
    build: Mapping[str, StagedFile] = plain_build.FILES,
) -> Written:
    written = image(attested)
    with path.open("w+b") as file:
        writer = tar_stream.Writer(file)
        for blob, content in written.blobs.items():
            writer.add(archives.blob_name(blob), content)
        archive.write_metadata(writer, NAME, archive.lock_excerpt(LOCK, NAME), build, written.top)
        writer.finish()
    return written


def read(path: Path) -> tuple[Archive, dict[str, bytes]]:
    """Its contents, and the files that an engine would get."""
    with archive.opened(path) as (contents, file):
        size, pieces = archive.load_stream(contents, file, path, "builder-work:x")
        content = b"".join(pieces)
    assert len(content) == size
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return contents, {info.name: b"".join(tar.extractfile(info) or ()) for info in tar}


def rewritten(path: Path, change: Change) -> None:
    """The archive with other files in it, and a whole tar again."""
    with path.open("rb") as file:
        members = tar_stream.members(file)
        files = {name: b"".join(tar_stream.pieces(file, member)) for name, member in members.items()}
    change(files)
    if archive.ABOUT in files:
        files[archive.SEAL] = archive.seal_archive(files[archive.ABOUT])
    with path.open("w+b") as file:
        writer = tar_stream.Writer(file)
        for name, content in files.items():
            writer.add(name, content)
        writer.finish()


@pytest.mark.parametrize("attested", [False, True])
def test_what_is_written_is_read(tmp_path: Path, attested: bool) -> None:
    path = tmp_path / "a.tar"
    written = write(path, attested)
    contents, loaded = read(path)
    assert (contents.name, contents.top) == (NAME, written.top)
    assert contents.build == plain_build.FILES
    assert contents.fingerprint == LOCK.images["small"].numbers[2].fingerprint
    assert [layer.digest for layer in contents.image.layers] == [digest(layer) for layer in LAYERS]
    # The models that it serves come along, the ones before and the other numbers do not.
    assert contents.part.images["small"] == Repository(4, numbers={2: LOCK.images["small"].numbers[2]})
    assert contents.part.models == {"Org/M": Model(Pairing(NAME, "recipes/m.yaml"))}
    # The engine gets the image alone, under the name that it is to have meanwhile.
    blobs = {name: content for name, content in loaded.items() if archives.digest_of(name)}
    assert set(loaded) - set(blobs) == {"oci-layout", "index.json", "manifest.json"}
    assert all(written.blobs[str(archives.digest_of(name))] == content for name, content in blobs.items())
    (docker,) = json.loads(loaded["manifest.json"])
    assert docker["RepoTags"] == ["builder-work:x"]
    assert docker["Layers"] == [archives.blob_name(digest(layer)) for layer in LAYERS]
    (entry,) = json.loads(loaded["index.json"])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == "docker.io/library/builder-work:x"


@pytest.mark.slow
def test_a_cut_or_a_flipped_bit_is_found_wherever_it_is(tmp_path: Path) -> None:
    path, chance = tmp_path / "a.tar", random.Random(7)  # noqa: S311
    write(path)
    whole, expected = path.read_bytes(), read(path)
    refused = 0
    damages = [whole[:length] for length in range(0, len(whole) - len(tar_stream.END), 251)]
    for _ in range(600):
        flipped = bytearray(whole)
        flipped[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        damages.append(bytes(flipped))
    for damaged in damages:
        path.write_bytes(damaged)
        try:
            contents = read(path)
        except TransferError as error:
            assert str(path) in error.message
            refused += 1
        else:
            # Only where nothing is kept: between two files.
            assert replace(contents[0], blobs={}) == replace(expected[0], blobs={})
            assert contents[1] == expected[1]
    assert refused > len(damages) // 2


def _about(**values: Any) -> Change:
    def change(files: dict[str, bytes]) -> None:
        files[archive.ABOUT] = json.dumps({**json.loads(files[archive.ABOUT]), **values}).encode()

    return change


def _lock(content: bytes) -> Change:
    def change(files: dict[str, bytes]) -> None:
        about = json.loads(files[archive.ABOUT])
        about["files"][archive.LOCK] = digest(content).removeprefix("sha256:")
        files |= {archive.LOCK: content, archive.ABOUT: json.dumps(about).encode()}

    return change


def _drop(name: str) -> Change:
    def change(files: dict[str, bytes]) -> None:
        del files[name]

    return change


def _add(name: str, content: bytes = b"more") -> Change:
    return lambda files: files.update({name: content})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_add("notes.txt"), "does not belong in an archive"),
        (_add("builder/build/more"), "does not belong in an archive"),
        (_add(archives.blob_name(digest(b"more"))), "no image in it uses sha256:"),
        (_drop(archives.blob_name(digest(LAYERS[2]))), "it lacks sha256:"),
        (_drop(archives.blob_name(digest(_CONFIG))), "it lacks sha256:"),
        (_drop(archives.blob_name(image().top.digest)), "it lacks sha256:"),
        (_drop("builder/images.lock"), "has an unknown form"),
        (_drop("builder/archive.json"), "it is truncated"),
        (_add("builder/archive.json", b"[" * 100_000), "not JSON: it is nested too deeply"),
        (_add(archives.blob_name(digest(LAYERS[2])), bytes(2999)), "does not have the size in the manifest"),
        (_add(archives.blob_name(digest(LAYERS[2])), bytes(3000)), "does not match"),
        (_add("builder/build/Dockerfile", b"FROM other\n"), "does not match"),
        (_about(version=2), "`version`: expected 1; another version of builder wrote this file"),
        (_about(image="small:3"), "does not describe small:3"),
        (_about(image="../small:2"), "it does not name a numbered image"),
        (_about(image="small:0"), "it does not name a numbered image"),
        (_about(manifest={"mediaType": _TYPE, "digest": "sha256:../../x", "size": 1}), "no valid digest or size"),
        (_about(files={"builder/../../x": "0"}), "does not belong"),
        (_about(files=[]), "`files`: expected a block of keys, found a list"),
        (_about(files=None), "`files`: expected a block of keys, found null"),
        (_add("builder/archive.json", b"[1]"), "`version`: expected 1"),
        (_about(more=1), "`more`: unknown key"),
        (_add("builder/archive.json", b"{"), "not JSON: "),
    ],
)
def test_what_this_program_does_not_write_is_refused(tmp_path: Path, change: Change, message: str) -> None:
    path = tmp_path / "a.tar"
    write(path)
    rewritten(path, change)
    with pytest.raises(TransferError, match=message):
        read(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_about(version=2), "archive.json: `version`: expected 1"),
        (_lock(b"version: 99\n...\n"), "images.lock:1:1: builder/images.lock has version 99"),
    ],
)
def test_an_archive_of_another_version_is_not_damaged(tmp_path: Path, change: Change, message: str) -> None:
    path = tmp_path / "a.tar"
    write(path)
    rewritten(path, change)
    with pytest.raises(TransferError, match=f"a.tar cannot be imported: builder/{message}") as caught:
        read(path)
    assert caught.value.hint == "use the same version of builder on both machines, then export the image again"


def test_what_another_program_would_obey_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    write(path, build={**plain_build.FILES, ".git/config": StagedFile(b"[core]\n\tfsmonitor = touch /tmp/planted\n")})
    with pytest.raises(
        TransferError, match=r"a.tar cannot be imported: `.git/config`: it is in a folder whose name begins"
    ):
        read(path)


def test_an_instruction_in_the_bake_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    write(path, build=plain_build.with_bake_file(secret=["id=x,src=/etc/shadow"]))
    with pytest.raises(TransferError, match="cannot be imported: `bake.json`: `secret` of target image"):
        read(path)


def test_more_than_any_build_has_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.tar"
    write(path)
    for limit, message in (("MOST_FILES", "it has more than 3 files"), ("LARGEST_BUILD", "are more than 3 bytes")):
        with monkeypatch.context() as patched:
            patched.setattr(plan_model, limit, 3)
            with pytest.raises(TransferError, match=message):
                read(path)


def test_a_file_without_its_end_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    write(path)
    content = path.read_bytes()
    path.write_bytes(content[: content.rindex(b"builder/archive.json.sha256")])
    with pytest.raises(TransferError, match="it is (cut off|truncated)"):
        read(path)


def test_several_platforms_are_refused(tmp_path: Path) -> None:
    blob = image().top
    index = json.dumps({"manifests": [blob.json, blob.json]}).encode()
    with pytest.raises(ValueError, match="exactly one image"):
        archives.read_image(
            described(index, "application/vnd.oci.image.index.v1+json"),
            {**image().blobs, digest(index): index}.__getitem__,
        )


@pytest.mark.parametrize(
    ("tag", "full"),
    [
        ("small:2", "docker.io/library/small:2"),
        ("me/small:2", "docker.io/me/small:2"),
        ("ghcr.io/me/small:2", "ghcr.io/me/small:2"),
        ("localhost/small:2", "localhost/small:2"),
        ("lan:5000/small:2", "lan:5000/small:2"),
    ],
)
def test_the_name_that_containerd_reads(tag: str, full: str) -> None:
    written = image()
    manifest, _ = archives.read_image(written.top, written.blobs.__getitem__)
    files = archives.index_files(written.top, manifest, tag)
    assert json.loads(files["index.json"])["manifests"][0]["annotations"]["io.containerd.image.name"] == full


def test_a_folder_or_nothing_is_no_archive(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none", "cannot be opened: No such file"), (tmp_path, "is not a file")):
        with pytest.raises(UsageError, match=why) as caught, archive.opened(path):
            raise AssertionError
        assert caught.value.hint == "name a file that `builder export-image` wrote"
    (tmp_path / "empty.tar").touch()
    with pytest.raises(TransferError), archive.opened(tmp_path / "empty.tar"):
        raise AssertionError


# Build directories in archives of others: what would be obeyed later is not taken.

ARCHIVED_BUILD_NAME = ImageName("small", 2)
FILE = StagedFile(b"x\n")


def fault(files: Mapping[str, StagedFile]) -> str:
    return archive.build_fault(ARCHIVED_BUILD_NAME, locks.numbered(), files)


@pytest.mark.parametrize("name", ["cpu", "dflash", "flashqla"])
def test_what_this_program_writes_is_taken(name: str) -> None:
    plan = shipped.plan(name, "wheel" if name == "cpu" else "git", "linux/arm64")
    assert archive.build_fault(ARCHIVED_BUILD_NAME, kept.image(plan), plan.files) == ""


@pytest.mark.parametrize(("definition", "platform"), [("tf5", "linux/arm64"), ("small", "linux/s390x")])
def test_no_pins_of_other_definitions_are_taken_up(definition: str, platform: str) -> None:
    """An archive of one image pinned the base of another definition, and the next build of that took it."""
    plan = shipped.plan("cpu", "wheel", "linux/arm64")
    pins = Pins(BasePin("debian:bookworm-slim", f"sha256:{'0' * 64}"))
    own, other = (
        Lock().with_image(ARCHIVED_BUILD_NAME, kept.image(plan)).with_pins(name, on, pins)
        for name, on in (("cpu", kept.image(plan).platform), (definition, platform))
    )
    for record, expected in ((own, ""), (other, "its images.lock describes other images")):
        files = {**plan.files, "images.lock": StagedFile(text.dump_lock(record).encode())}
        assert archive.build_fault(ARCHIVED_BUILD_NAME, kept.image(plan), files) == expected


def test_a_directory_that_was_lost_is_none() -> None:
    assert fault({}) == ""
    adopted = replace(locks.numbered(), adopted=Adoption("a:1", ()))
    assert archive.build_fault(ARCHIVED_BUILD_NAME, adopted, {"adopted.json": FILE, "images.lock": FILE}) == ""
    why = archive.build_fault(ARCHIVED_BUILD_NAME, adopted, {"Dockerfile": FILE})
    assert "`Dockerfile` does not belong in a build directory" in why


@pytest.mark.parametrize(
    ("path", "why"),
    [
        (".git/config", "a folder whose name begins with a dot"),
        (".git", "git would read it as its own file"),
        (".GIT/config", "a folder whose name begins with a dot"),
        ("git~1/config", "git would read it as its own file"),
        (".g\u200cit/config", "a control or invisible character"),
        ("mods/a/.git", "git would read it as its own file"),
        ("mods/a/.git/hooks/post-checkout", "a folder whose name begins with a dot"),
        ("mods/a/.gitmodules", "git would read it as its own file"),
        ("mods/a/.hg/hgrc", "a folder whose name begins with a dot"),
        ("mods/a/.vscode/tasks.json", "a folder whose name begins with a dot"),
        ("mods/a/b/.fetched/x", "a folder whose name begins with a dot"),
        ("mods/a/\x1b[2Jx", "a control or invisible character"),
        (".dockerignore", "does not belong in a build directory"),
        (".envrc", "does not belong in a build directory"),
        ("Makefile", "does not belong in a build directory"),
        ("docker-bake.override.hcl", "does not belong in a build directory"),
        ("Dockerfile.dockerignore", "does not belong in a build directory"),
        ("mods/b/run.sh", "does not belong in a build directory"),
        ("dflash/Dockerfile", "does not belong in a build directory"),
        ("python/packages.txt/x", "does not belong in a build directory"),
    ],
)
def test_a_file_that_no_build_has_is_refused(path: str, why: str) -> None:
    message = fault({**plain_build.FILES, path: FILE})
    assert why in message
    assert message.isprintable()


def test_files_of_mods_are_taken() -> None:
    paths = ("mods/a/.gitignore", f"mods/a/.fetched/{'0' * 64}/x.whl", "mods/a/sub/.pylintrc", "mods/a/config")
    assert fault({**plain_build.FILES, **dict.fromkeys(paths, FILE)}) == ""


def test_a_bare_repository_is_refused() -> None:
    paths = dict.fromkeys(("mods/a/x/HEAD", "mods/a/x/config", "mods/a/x/objects/0", "mods/a/x/refs/0"), FILE)
    assert "`mods/a/x`: git would treat this folder as a repository" in fault({**plain_build.FILES, **paths})


def test_only_the_files_of_mods_are_executable() -> None:
    executable = {**plain_build.FILES, "Dockerfile": StagedFile(b"", executable=True)}
    assert "`Dockerfile` must not be executable" in fault(executable)


@pytest.mark.parametrize(
    "changes",
    [
        {"contexts": {"host": "/etc"}},
        {"contexts": {"a-source": "/etc"}},
        {"contexts": {"a-source": f"https://example.org/a.git#{'0' * 40}"}},
        {"secret": ["id=x,src=/etc/shadow"]},
        {"secret": [{"id": "x", "env": "HF_TOKEN"}]},
        {"secrets": ["id=x,env=HF_TOKEN"]},
        {"ssh": ["default"]},
        {"cache-to": ["type=local,dest=/tmp/planted"]},
        {"cache-from": ["type=local,src=/root"]},
        {"output": ["type=local,dest=/tmp/planted"]},
        {"entitlements": ["security.insecure"]},
        {"network": "host"},
        {"context": "/"},
        {"context": "../../.."},
        {"context": "mods"},
        {"dockerfile": "/etc/passwd"},
        {"dockerfile-inline": "FROM scratch"},
        {"inherits": ["other"]},
        {"matrix": {"x": ["1"]}},
        {"tags": ["registry.example.org/x"]},
        {"call": "outline"},
        {"args": {"SOURCE_DATE_EPOCH": "0", "HTTP_PROXY": "http://evil"}},
        {"args": {"SOURCE_DATE_EPOCH": 0}},
        {"args": {}},
        {"attest": []},
        {"platforms": ["linux/riscv64"]},
        {"platforms": "linux/amd64"},
        {"labels": {"run": "x"}},
        {"labels": {"builder.x": ["x"]}},
        {"variable": {"HF_TOKEN": {"default": ""}}},
    ],
)
def test_what_no_bake_file_of_ours_says_is_refused(changes: Mapping[str, Any]) -> None:
    assert fault(plain_build.with_bake_file(**changes)).startswith("`bake.json`: ")


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\x00\xff", b'{"target": {}, "target": {}}', b"[" * 100_000])
@pytest.mark.parametrize("file", ["bake.json", "plan.json"])
def test_what_is_damaged_is_refused(file: str, content: bytes) -> None:
    assert file in fault({**plain_build.FILES, file: StagedFile(content)})
    assert file in fault({path: kept_file for path, kept_file in plain_build.FILES.items() if path != file})


def test_a_record_of_another_number_is_refused() -> None:
    lock = Lock().with_image(ARCHIVED_BUILD_NAME, locks.numbered())
    record = StagedFile(text.dump_lock(lock).encode())
    assert fault({**plain_build.FILES, "images.lock": record}) == ""
    more = StagedFile(text.dump_lock(lock.with_image(ImageName("other", 1), locks.numbered())).encode())
    assert fault({**plain_build.FILES, "images.lock": more}) == "its images.lock describes other images"


@pytest.mark.parametrize("text", ["${homedir()}", "%{ if true }x%{ endif }", "a ${HF_TOKEN} b"])
def test_an_expression_is_refused(text: str) -> None:
    assert "it contains an expression, such as ${…}" in fault(plain_build.with_bake_file(labels={"builder.x": text}))
    assert fault(plain_build.with_bake_file(labels={"builder.x": making.dump_bake({"x": text})})) == ""
