"""The wheel of one commit, found by the real uv on the index of that commit."""

from __future__ import annotations

import base64
import shutil
import subprocess
import threading
import zipfile
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from builder.base import processes
from builder.base.errors import SourceError
from builder.definitions.image import Index, PythonRequirements
from builder.sources import python, wheels
from builder.sources.git import UserSettings
from builder.sources.wheels import CommitWheel, Wheel, WheelRequest
from tests.sources.wheelhouse import (
    Served,
    make_commit_index,
    make_index,
    make_simple_index,
    make_wheel,
    serving,
    sha256,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


COMMIT, ANOTHER, BARE = "e2f56c309d2a28899c68975a7e104502d56deb8f", "ab" * 20, "cd" * 20
VERSION = "0.11.2.dev363+ge2f56c309.cu130"
WANTS = PythonRequirements("3.12", "2.39", (), indexes=(Index("https://example.org/other", ("torch",)),))


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """The index of one commit with a wheel for each machine type, and that of another, which holds the same wheels."""
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    for commit in (COMMIT, ANOTHER):
        wheels = [
            make_wheel(tmp_path / "wheels" / commit, "vllm", VERSION, f"cp38-abi3-manylinux_2_31_{machine}", ("serve",))
            for machine in ("x86_64", "aarch64")
        ]
        make_commit_index(tmp_path / "wheels" / commit, wheels)
    with serving(tmp_path / "wheels") as server:
        yield server


def find(tmp_path: Path, served: Served, commit: str, wants: PythonRequirements = WANTS) -> CommitWheel:
    index = f"{served.url}/COMMIT/cu130"
    cache = tmp_path / "cache"
    return wheels.find_commit_wheel(cache, "vllm", index, commit, wants, "linux/arm64", UserSettings())


def test_it_is_the_platforms_own_with_its_hash_and_no_other_is_fetched(tmp_path: Path, served: Served) -> None:
    found = find(tmp_path, served, COMMIT)
    (wheel,) = (tmp_path / "wheels" / COMMIT).glob("*aarch64.whl")
    assert (found.version, found.sha256) == (VERSION, sha256(wheel))
    assert found.address.startswith(f"{served.url}/{COMMIT}/vllm-0.11.2.dev363")
    assert found.line("vllm") == f"vllm @ {found.address} \\\n    --hash=sha256:{sha256(wheel)}\n"
    assert sum(size >= wheel.stat().st_size for size in served.sent) == 1
    served.sent.clear()
    assert find(tmp_path, served, COMMIT) == found
    assert served.sent == []


@pytest.mark.slow
def test_a_commit_without_a_wheel_says_which_and_for_what(tmp_path: Path, served: Served) -> None:
    with pytest.raises(
        SourceError, match=rf"{BARE}/cu130 has no wheel of vllm for linux/arm64, Python 3.12: .*vllm was not found"
    ):
        find(tmp_path, served, BARE)
    older = PythonRequirements("3.12", "2.17", ())
    with pytest.raises(SourceError, match="has no wheel of vllm for linux/arm64, Python 3.12: .*platform"):
        find(tmp_path, served, COMMIT, older)
    with pytest.raises(SourceError, match=f"{ANOTHER}/cu130 has only a wheel of another commit, {VERSION[:10]}"):
        find(tmp_path, served, ANOTHER)


@pytest.mark.slow
@pytest.mark.parametrize("columns", ["40", "80", "100000"])
def test_an_index_that_does_not_answer_is_not_one_without_a_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    """uv breaks its messages at the width of the terminal, which a variable may say."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    index = f"http://127.0.0.1:{processes.free_port()}/COMMIT/cu130"
    with pytest.raises(SourceError) as caught:
        wheels.find_commit_wheel(tmp_path, "vllm", index, COMMIT, WANTS, "linux/arm64", UserSettings())
    assert f"/{COMMIT}/cu130/vllm/ cannot be fetched: " in caught.value.message.splitlines()[0]
    assert "has no wheel" not in caught.value.message
    assert caught.value.hint.startswith("check the network, HTTPS_PROXY and the address of the index")


@pytest.mark.parametrize("name", ["", "odd'name"])
def test_an_address_that_no_build_can_fetch_is_refused(tmp_path: Path, served: Served, name: str) -> None:
    folder = tmp_path / "wheels" / BARE / name
    (wheel,) = (tmp_path / "wheels" / COMMIT).glob("*aarch64.whl")
    address = f"{served.url}/{BARE}/{name}/{wheel.name}" if name else wheel.as_uri()
    page = folder / "cu130/vllm/index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<!DOCTYPE html><html><body><a href="{address}">{wheel.name}</a></body></html>', encoding="utf-8")
    (folder / wheel.name).write_bytes(wheel.read_bytes())
    index = f"{served.url}/COMMIT/{name}/cu130" if name else f"{folder.parent.as_uri()}/COMMIT/cu130"
    with pytest.raises(SourceError, match="a build cannot fetch"):
        wheels.find_commit_wheel(tmp_path / "cache", "vllm", index, BARE, WANTS, "linux/arm64", UserSettings())


@pytest.mark.parametrize(
    ("version", "digits"),
    [
        (VERSION, "e2f56c309"),
        ("0.32.1.dev7+gabcdef0", "abcdef0"),
        ("0.32.1.dev7+cpu.gabcdef0.d20261101", "abcdef0"),
        ("0.32.0", ""),
        ("0.32.0+cu130", ""),
    ],
)
def test_a_version_names_its_commit_unless_it_is_a_release(version: str, digits: str) -> None:
    assert wheels.named(version) == digits


def test_the_template_of_an_address_has_the_commit_that_the_version_names() -> None:
    own = f"https://wheels.vllm.ai/{COMMIT}/cu130"
    text = f"install --default-index https://example.org/{ANOTHER}/x\ninstall --default-index '{own}' -r x"
    assert wheels.template(text, VERSION) == "https://wheels.vllm.ai/COMMIT/cu130"
    assert wheels.template(text, "0.32.0") == ""
    assert wheels.template(text.replace(COMMIT, "nightly"), VERSION) == ""


@pytest.mark.slow
def test_a_pinned_wheel_is_staged_for_its_group(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "local", "torch", "2.13.0+cpu")
    make_wheel(tmp_path / "local", "other", "1")
    settings = UserSettings(find_links=(f"file://{tmp_path / 'local'}",))
    assert wheels.stage(tmp_path / "out", {"cpu-index-1": frozenset([sha256(wheel)])}, settings)
    staged = [str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.whl")]
    assert staged == [f"cpu-index-1/{wheel.name}"]


@pytest.mark.slow
def test_a_wheel_with_another_hash_stays_where_it_is(tmp_path: Path) -> None:
    make_wheel(tmp_path / "local", "torch", "2.13.0+cpu")
    settings = UserSettings(find_links=(str(tmp_path / "local"),))
    assert not wheels.stage(tmp_path / "out", {"cpu-index-1": frozenset(["0" * 64])}, settings)
    assert not wheels.stage(tmp_path / "out", {}, settings)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_uv_unpacks_a_local_wheel_once_however_often_it_is_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uv takes a wheel whose ctime changed for another one, and a hard link to it changes its ctime."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("UV_CACHE_DIR", str(cache))
    wheel = make_wheel(tmp_path / "local", "torch", "2.13.0+cpu")
    settings = UserSettings(index_url=make_index(tmp_path / "simple", []), find_links=(str(tmp_path / "local"),))
    wants = PythonRequirements(version="3.12", glibc="2.39", packages=("torch",))
    unpacked = []
    for build in ("first", "second"):
        resolved = python.resolve_closure(python.ClosureRequest(wants, (), wants.packages, "linux/amd64"), settings)
        assert [package.name for package in resolved.pin.packages] == ["torch"]
        unpacked.append(len(list((cache / "archive-v0").iterdir())))
        assert wheels.stage(tmp_path / build, {"cpu": frozenset([sha256(wheel)])}, settings)
        shutil.rmtree(tmp_path / build)
    assert unpacked == [1, 1]


@pytest.mark.slow
def test_a_wheel_that_cannot_be_copied_is_named(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "local", "torch", "2.13.0+cpu")
    settings = UserSettings(find_links=(str(tmp_path / "local"),))
    (tmp_path / "out").touch()
    with pytest.raises(SourceError, match="cpu: Not a directory"):
        wheels.stage(tmp_path / "out", {"cpu": frozenset([sha256(wheel)])}, settings)


LOGIN = "Basic " + base64.b64encode(b"tester:secret").decode()


def test_files_are_read_by_one_connection_or_from_the_disk(tmp_path: Path) -> None:
    made = make_wheel(tmp_path, "toy", "1.0", files={"toy/a.py": "a\n"})
    with serving(tmp_path) as served:
        for address in (f"{served.url}/{made.name}", made.as_uri()):
            with wheels.open_wheel(address, None) as archive:
                assert archive.read("toy/a.py") == b"a\n"


def test_a_server_that_knows_no_ranges_is_not_asked_for_the_whole_wheel(tmp_path: Path) -> None:
    made = make_wheel(tmp_path, "toy", "1.0")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/{made.name}"
    try:
        with (
            pytest.raises(SourceError, match="cannot be read: the server does not support range requests"),
            wheels.open_wheel(address, None),
        ):
            pass
    finally:
        server.shutdown()
        server.server_close()


def test_a_server_that_sends_more_than_the_range_is_not_read_on(tmp_path: Path) -> None:
    class Endless(SimpleHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(206)
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(b"0" * 65536)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_port}/toy.whl"
        with (
            pytest.raises(SourceError, match="the server sent more than [0-9,]+ bytes"),
            wheels.open_wheel(address, None),
        ):
            pass
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("length", [None, "many"])
def test_a_server_that_does_not_tell_the_size(tmp_path: Path, length: str | None) -> None:
    class Chunked(SimpleHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200)
            if length:
                self.send_header("Content-Length", length)
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Chunked)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_port}/toy.whl"
        with pytest.raises(SourceError, match="toy.whl cannot be read: "), wheels.open_wheel(address, None):
            pass
    finally:
        server.shutdown()
        server.server_close()


def test_a_server_that_is_not_there_is_said(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        gone = f"{served.url}/toy.whl"
    message = r"the wheel http://127\.0\.0\.1:\d+/toy\.whl cannot be read: .*refused"
    with pytest.raises(SourceError, match=message), wheels.open_wheel(gone, None):
        pass


def test_a_login_comes_from_the_address_or_from_netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """uv reads the same file."""
    logins: list[str | None] = []

    class Closed(SimpleHTTPRequestHandler):
        def do_HEAD(self) -> None:
            logins.append(self.headers["Authorization"])
            self.send_error(401)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Closed)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    netrc = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(netrc))
    host = f"127.0.0.1:{server.server_port}"
    try:
        for content, address in (
            ("", f"http://{host}/a.whl"),
            ("machine 127.0.0.1 login tester password secret\n", f"http://{host}/a.whl"),
            ("machine 127.0.0.1 login other password other\n", f"http://tester:secret@{host}/a.whl"),
            ("no netrc at all", f"http://{host}/a.whl"),
        ):
            netrc.write_text(content)
            with pytest.raises(SourceError, match="401"), wheels.open_wheel(address, None):
                pass
    finally:
        server.shutdown()
        server.server_close()
    assert logins == [None, LOGIN, LOGIN, None]


@pytest.mark.slow
def test_a_server_with_a_certificate_of_its_own(tmp_path: Path) -> None:
    """The file that uv is given as SSL_CERT_FILE is what the server is checked with."""
    made = make_wheel(tmp_path, "toy", "1.0", files={"toy/a.py": "a\n"})
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    options = ["-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", "-x509", *options, *subject], check=True, capture_output=True)
    with serving(tmp_path, tls=(certificate, key)) as served:
        address = f"{served.url}/{made.name}"
        with wheels.open_wheel(address, certificate) as archive:
            assert archive.read("toy/a.py") == b"a\n"
        with pytest.raises(SourceError, match="(?i)certificate"), wheels.open_wheel(address, None):
            pass


WHEEL_COMMIT_VERSION = "__version__ = version = '0.19.1'\n__commit_id__ = commit_id = {commit}\n"


def make(folder: Path, commit: str) -> Path:
    path = folder / "vllm-0.19.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("vllm/kernels.so", b"\0" * 1_000_000)
        archive.writestr("vllm/_version.py", WHEEL_COMMIT_VERSION.format(commit=commit))
        archive.writestr("vllm/third_party/_version.py", WHEEL_COMMIT_VERSION.format(commit="'gffffffff'"))
    return path


@pytest.fixture
def wheel_commit_served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as server:
        yield server


def test_the_commit_is_read_without_the_whole_wheel(tmp_path: Path, wheel_commit_served: Served) -> None:
    wheel = make(tmp_path, "'gb1388b1fb'")
    assert wheels.read_wheel_commit(f"{wheel_commit_served.url}/{wheel.name}", None) == "b1388b1fb"
    assert sum(wheel_commit_served.sent) < wheel.stat().st_size / 4


@pytest.mark.parametrize(("commit", "expected"), [("'gb1388b1fb'", "b1388b1fb"), ("None", None)])
def test_a_local_wheel_is_read_as_well(tmp_path: Path, commit: str, expected: str | None) -> None:
    assert wheels.read_wheel_commit(make(tmp_path, commit).as_uri(), None) == expected


def test_what_is_no_wheel_is_said(tmp_path: Path, wheel_commit_served: Served) -> None:
    (tmp_path / "x.whl").write_bytes(b"not a zip file")
    for address in (
        f"{wheel_commit_served.url}/x.whl",
        f"{wheel_commit_served.url}/none.whl",
        (tmp_path / "none.whl").as_uri(),
    ):
        with pytest.raises(SourceError, match="cannot be read"):
            wheels.read_wheel_commit(address, None)


# Files of a wheel: read in ranges, once.

FILES = {
    "vllm/kernels.so": "\0" * 1_000_000,
    "vllm/a.py": "a\n",
    "vllm/more.so": "\0" * 1_000_000,
    "vllm/b.py": "b\n",
    "vllm-0.20.0.data/purelib/vllm/apart.py": "apart\n",
    "vllm-0.20.0.data/scripts/vllm/script.py": "no\n",
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "files") as server:
        yield server


@pytest.fixture
def wheel(tmp_path: Path, server: Served) -> Wheel:
    made = make_wheel(tmp_path / "files", "vllm", "0.20.0", files=FILES)
    return Wheel(f"{server.url}/{made.name}", sha256(made))


def test_a_file_comes_without_the_whole_wheel(tmp_path: Path, server: Served, wheel: Wheel) -> None:
    paths = ["vllm/a.py", "vllm/apart.py", "vllm/script.py", "vllm/none.py", "vllm"]
    assert wheels.read_wheel_files(tmp_path / "cache", wheel, paths, None) == {
        "vllm/a.py": b"a\n",
        "vllm/apart.py": b"apart\n",
    }
    assert sum(server.sent) < 300_000


def test_what_was_read_once_is_not_fetched_again(tmp_path: Path, server: Served, wheel: Wheel) -> None:
    cache = tmp_path / "cache"
    first = wheels.read_wheel_files(cache, wheel, ["vllm/a.py"], None)
    server.sent.clear()
    assert wheels.read_wheel_files(cache, wheel, ["vllm/a.py", "vllm/none.py"], None) == first
    assert server.sent == []
    assert wheels.read_wheel_files(cache, wheel, ["vllm/a.py", "vllm/b.py"], None) == {**first, "vllm/b.py": b"b\n"}
    assert server.sent


def test_a_cache_that_cannot_be_written_costs_time_and_nothing_else(tmp_path: Path, wheel: Wheel) -> None:
    (tmp_path / "cache").write_text("a file")
    assert wheels.read_wheel_files(tmp_path / "cache", wheel, ["vllm/a.py"], None) == {"vllm/a.py": b"a\n"}


def test_a_wheel_that_is_gone_is_an_error(tmp_path: Path, wheel: Wheel) -> None:
    for path in (tmp_path / "files").iterdir():
        path.unlink()
    with pytest.raises(
        SourceError, match=r"vllm-0\.20\.0-py3-none-any\.whl cannot be read: the server answers 404 Not Found"
    ):
        wheels.read_wheel_files(tmp_path / "cache", wheel, ["vllm/a.py"], None)


# Wheels looked up by the real uv, on an index and in a folder.

WHEEL_LOOKUP_WANTS = PythonRequirements("3.12", "2.39", ())
TAGS = ("cp38-abi3-manylinux_2_35_x86_64", "cp38-abi3-manylinux_2_35_aarch64", "cp311-cp311-manylinux_2_35_aarch64")


def wheel_lookup_find(folder: Path, settings: UserSettings, platform: str, hashes: tuple[str, ...] = ()) -> Wheel:
    wanted = WheelRequest("vllm==0.20.0", WHEEL_LOOKUP_WANTS, platform, frozenset(hashes))
    return wheels.find_wheel(folder / "cache", wanted, settings)


def test_the_platforms_own_wheel_is_taken_and_else_any(tmp_path: Path) -> None:
    x86, arm, _ = (make_wheel(tmp_path / "files", "vllm", "0.20.0", tag) for tag in TAGS)
    make_simple_index(tmp_path / "files")
    with serving(tmp_path / "files") as server:
        settings = UserSettings(index_url=f"{server.url}/simple")
        assert wheel_lookup_find(tmp_path, settings, "linux/amd64") == Wheel(f"{server.url}/{x86.name}", sha256(x86))
        assert wheel_lookup_find(tmp_path, settings, "linux/arm64").sha256 == sha256(arm)
        assert wheel_lookup_find(tmp_path, settings, "linux/arm64", (sha256(x86),)).sha256 == sha256(x86)
    settings = UserSettings(index_url=make_index(tmp_path / "simple", [x86]))
    assert wheel_lookup_find(tmp_path, settings, "linux/arm64") == Wheel(x86.as_uri(), sha256(x86))


def test_an_index_is_asked_once_for_a_version(tmp_path: Path) -> None:
    make_wheel(tmp_path / "files", "vllm", "0.20.0")
    make_simple_index(tmp_path / "files")
    with serving(tmp_path / "files") as server:
        settings = UserSettings(index_url=f"{server.url}/simple")
        first = wheel_lookup_find(tmp_path, settings, "linux/amd64")
        server.sent.clear()
        assert wheel_lookup_find(tmp_path, settings, "linux/amd64") == first
        assert server.sent == []


def test_a_pinned_wheel_that_the_index_did_not_have_is_asked_for_again(tmp_path: Path) -> None:
    make_wheel(tmp_path / "files", "vllm", "0.20.0", TAGS[0])
    make_simple_index(tmp_path / "files")
    with serving(tmp_path / "files") as server:
        settings = UserSettings(index_url=f"{server.url}/simple")
        wheel_lookup_find(tmp_path, settings, "linux/arm64")
        later = make_wheel(tmp_path / "files", "vllm", "0.20.0", TAGS[1])
        make_simple_index(tmp_path / "files")
        assert wheel_lookup_find(tmp_path, settings, "linux/arm64", (sha256(later),)).sha256 == sha256(later)


def test_a_wheel_in_a_folder_may_be_made_anew(tmp_path: Path) -> None:
    settings = UserSettings(index_url=make_index(tmp_path / "simple", []), find_links=(str(tmp_path / "own"),))
    for content in ("one", "two"):
        made = make_wheel(tmp_path / "own", "vllm", "0.20.0", files={"vllm/a.py": content})
        assert wheel_lookup_find(tmp_path, settings, "linux/amd64") == Wheel(made.as_uri(), sha256(made))


def test_an_index_that_serves_this_package_alone_is_asked_for_it(tmp_path: Path) -> None:
    made = make_wheel(tmp_path / "files", "vllm", "0.20.0")
    wants = PythonRequirements("3.12", "2.39", (), indexes=(Index(make_index(tmp_path / "own", [made]), ("vllm",)),))
    settings = UserSettings(index_url=make_index(tmp_path / "simple", []))
    wheel = wheels.find_wheel(tmp_path / "cache", WheelRequest("vllm==0.20.0", wants, "linux/amd64"), settings)
    assert wheel.sha256 == sha256(made)


def test_no_such_version_and_no_such_wheel_are_said(tmp_path: Path) -> None:
    settings = UserSettings(
        index_url=make_index(tmp_path / "simple", [make_wheel(tmp_path / "files", "vllm", "0.20.0")])
    )
    with pytest.raises(SourceError, match=r"no wheel of vllm==9 was found:\n(?s:.*)no version of vllm==9"):
        wheels.find_wheel(tmp_path / "cache", WheelRequest("vllm==9", WHEEL_LOOKUP_WANTS, "linux/amd64"), settings)
    with pytest.raises(SourceError, match="the index no longer has the pinned wheel of vllm==0.20.0"):
        wheel_lookup_find(tmp_path, settings, "linux/amd64", ("0" * 64,))


# What a wheel needs, read of it behind a server, against the packages of an image.


@pytest.mark.parametrize(
    ("needs", "problem"),
    [
        ("torch==2.13.0", ""),
        ("torch==2.11.0", "requires torch==2.11.0, but the image has 2.13.0+cu130"),
        ("Torch>=2.14", "requires Torch>=2.14, but the image has 2.13.0+cu130"),
        ("torch==2.11.0; platform_machine == 'x86_64'", ""),
        ("torch==2.11.0; python_version >= '3.12'", "requires torch==2.11.0, but the image has 2.13.0+cu130"),
        ("torch==2.11.0; extra == 'audio'", ""),
        ("xgrammar==1.0", ""),
        ("no requirement at all", ""),
    ],
)
def test_another_version_is_a_conflict_and_a_package_that_is_left_out_is_none(needs: str, problem: str) -> None:
    assert wheels.conflict([needs], {"torch": "2.13.0+cu130"}, "linux/arm64", "3.12") == problem


def test_what_a_wheel_needs_is_read_in_place(tmp_path: Path) -> None:
    version = "0.32.1.dev7+gabcdef012.cu130"
    made = make_wheel(tmp_path / "files", "vllm", version, requires=("torch==2.11.0", "numpy"))
    with serving(tmp_path / "files") as served:
        wheel = Wheel(f"{served.url}/{made.name}", sha256(made))
        assert wheels.read_requirements(tmp_path / "cache", wheel, None) == ("torch==2.11.0", "numpy")


@pytest.mark.parametrize("mark", ["encrypted", "method", "name", "lzma", "size"])
def test_a_wheel_of_others_that_cannot_be_read(tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "vllm.whl"
    with zipfile.ZipFile(path, "w", compression=zipfile.ZIP_LZMA if mark == "lzma" else zipfile.ZIP_STORED) as archive:
        archive.writestr("vllm/_version.py", "commit_id = 'gabcdef0'\n" * 100)
        archive.writestr("é", "")
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\x01\x02")
    if mark == "encrypted":
        content[6] |= 1
        content[entry + 8] |= 1
    if mark == "method":
        content[8] = content[entry + 10] = 99
    if mark == "name":
        content = content.replace("é".encode(), b"\xff\xfe")
    if mark == "lzma":
        content[50:70] = b"\xff" * 20
    if mark == "size":
        monkeypatch.setattr(wheels, "_LARGEST", 1000)
    path.write_bytes(content)
    with pytest.raises(SourceError, match="cannot be read: "):
        wheels.read_wheel_commit(path.as_uri(), None)
    with pytest.raises(SourceError, match="cannot be read: "):
        wheels.read_wheel_files(tmp_path / "cache", Wheel(path.as_uri(), "0"), ["vllm/_version.py"], None)
