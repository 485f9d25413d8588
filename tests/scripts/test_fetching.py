"""Fetching by the scripts from a mirror that lies: what runs as root then comes from a signed index or not at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pip
import pytest

from tests import projects
from tests.scripts import mirror as mirrors
from tests.scripts.mirror import NOW, Mirror, Release

if TYPE_CHECKING:
    from collections.abc import Iterator

# gpg, and apt, which takes half a second.
pytestmark = pytest.mark.slow

SCRIPTS = projects.REPOSITORY_ROOT / "scripts"
RUNS = "the program runs: serve it\n"
MONTH = timedelta(days=30)


@pytest.fixture(scope="module")
def served() -> Iterator[Mirror]:
    with mirrors.serving() as mirror:
        yield mirror


@pytest.fixture
def mirror(served: Mirror) -> Mirror:
    """A mirror that tells the truth, so far."""
    served.reset()
    return served


@dataclass(frozen=True)
class Checkout:
    """The scripts in a folder of their own, on a Debian whose apt is configured by the file ``apt`` alone."""

    root: Path
    environ: dict[str, str]

    @property
    def apt(self) -> Path:
        return Path(self.environ["APT_CONFIG"])

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [str(self.root / "scripts" / arguments[0]), *arguments[1:]]
        return subprocess.run(argv, env=self.environ, capture_output=True, text=True)

    def refusal(self, *arguments: str) -> str:
        """What a refused run of a script says; it has run nothing, and left nothing."""
        done = self.run(*(arguments or ("registry", "serve", "it")))
        assert done.returncode == 5, done.stderr
        assert not done.stdout
        assert not [path for path in self.root.rglob("*") if path.name in {"docker-registry", "root"}]
        return done.stderr


@pytest.fixture
def checkout(mirror: Mirror) -> Iterator[Checkout]:
    # apt reads as another user than root, who cannot get into the folders of pytest.
    with TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        shutil.copytree(SCRIPTS, root / "scripts")
        # Ubuntu's packages come from the sources of the machine.
        common = root / "scripts/lib/common.sh"
        (root / "os-release").write_text("ID=debian\nVERSION_CODENAME=bookworm\n")
        common.write_text(common.read_text().replace("/etc/os-release", str(root / "os-release")))
        (root / "apt.conf").write_text('Dir::Etc::Parts "/nonexistent";\nDir::State::Lists "/nonexistent";\n')
        environ = {
            **os.environ,
            "APT_CONFIG": str(root / "apt.conf"),
            "BUILDER_DEBIAN_MIRROR": mirror.url,
            "BUILDER_DEBIAN_KEYRING": str(mirror.keyring),
            "BUILDER_ENGINE_HOME": str(root / "home"),
            "BUILDER_ENGINE_RUN": str(root / "run"),
            "BUILDER_ENGINE_PRIVATE": "1",
            "no_proxy": "127.0.0.1",
            "LC_ALL": "C.UTF-8",
        }
        yield Checkout(root, environ)


def test_a_mirror_that_tells_the_truth(checkout: Checkout) -> None:
    done = checkout.run("registry", "serve", "it")
    assert (done.returncode, done.stdout) == (0, RUNS), done.stderr


@pytest.mark.parametrize(
    ("release", "named"),
    [
        (Release("bookworm", signer=None), "the index of {url} bookworm is not signed"),
        (
            Release("bookworm", signer="stranger"),
            "no key in {keyring} signed the index of {url} bookworm",
        ),
        (Release("unstable"), "{url} serves the index of unstable sid as bookworm"),
        (
            Release("bookworm", NOW - MONTH, timedelta(days=7)),
            "{url}/dists/bookworm/InRelease is expired (invalid since",
        ),
        (Release("bookworm", NOW + MONTH), "{url}/dists/bookworm/InRelease is not valid yet (invalid for another"),
    ],
    ids=["unsigned", "of a stranger", "of another suite", "expired", "of tomorrow"],
)
def test_an_index_that_is_refused(checkout: Checkout, mirror: Mirror, release: Release, named: str) -> None:
    mirror.publish("bookworm", release)
    assert f"refused: {named.format(url=mirror.url, keyring=mirror.keyring)}" in checkout.refusal()


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("Origin: Debian", "Origin: Nobody", "has no valid signature: "),
        ("-----BEGIN PGP SIGNED", "Suite: unstable\n-----BEGIN PGP SIGNED", "is not signed"),
        ("-----END PGP SIGNATURE-----", "-----END PGP SIGNATURE-----\nSuite: unstable", "has no valid signature: "),
    ],
    ids=["inside", "before", "after"],
)
def test_an_index_changed_after_it_was_signed(
    checkout: Checkout, mirror: Mirror, old: str, new: str, named: str
) -> None:
    mirror.replace("bookworm", old, new)
    assert f"refused: the index of {mirror.url} bookworm {named}" in checkout.refusal()


def test_other_packages_than_the_signed_index_names(checkout: Checkout, mirror: Mirror) -> None:
    mirror.publish("bookworm", packages=mirror.packages.replace(b"Version: 1", b"Version: 2"))
    address = f"{mirror.url}/dists/bookworm/main/binary-{mirrors.architecture()}/Packages"
    assert f"refused: {address} differs from the signed index: Hash Sum mismatch" in checkout.refusal()


@pytest.mark.parametrize(
    ("more", "named"), [(b"", "Hash Sum mismatch"), (b"x", "File has unexpected size")], ids=["content", "size"]
)
def test_a_swapped_package(checkout: Checkout, mirror: Mirror, more: bytes, named: str) -> None:
    content = mirror.web.files[mirror.package]
    mirror.web.files[mirror.package] = content[:-1] + b"x" + more
    named = f"refused: {mirror.web.url}{mirror.package} differs from the signed index: {named}"
    assert named in checkout.refusal()


def test_an_old_index_served_again(checkout: Checkout, mirror: Mirror) -> None:
    assert checkout.run("registry", "serve", "it").returncode == 0
    shutil.rmtree(checkout.root / ".builder/registry")
    mirror.publish("bookworm", Release("bookworm", NOW - MONTH))
    error = checkout.refusal()
    assert f"refused: the index of bookworm at {mirror.url} is from {NOW - MONTH:%Y-%m-%d %H:%M} UTC" in error
    assert f"older than the earlier one from {NOW:%Y-%m-%d %H:%M} UTC" in error
    mirror.publish("bookworm")
    assert checkout.run("registry", "serve", "it").stdout == RUNS


def test_an_index_older_than_the_one_that_apt_has(checkout: Checkout, mirror: Mirror) -> None:
    lists = checkout.root / "lists"
    lists.mkdir()
    index = f"{mirror.url.removeprefix('http://').replace('/', '_')}_dists_bookworm_InRelease"
    (lists / index).write_bytes(mirror.web.files["/debian/dists/bookworm/InRelease"])
    checkout.apt.write_text(f'Dir::Etc::Parts "/nonexistent";\nDir::State::Lists "{lists}";\n')
    mirror.publish("bookworm", Release("bookworm", NOW - MONTH))
    assert "older than the earlier one" in checkout.refusal()


def test_an_expired_index_where_apt_is_told_not_to_look(checkout: Checkout, mirror: Mirror) -> None:
    checkout.apt.write_text(f'{checkout.apt.read_text()}Acquire::Check-Valid-Until "false";\n')
    mirror.publish("bookworm", Release("bookworm", NOW - MONTH, timedelta(days=7)))
    done = checkout.run("registry", "serve", "it")
    assert done.stdout == RUNS
    assert f"warning: the index of bookworm at {mirror.url} has expired" in done.stderr


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("local.list", "deb [arch=amd64 trusted=yes] {url}/ bookworm main\n"),
        (
            "local.sources",
            "Types: deb\nURIs: http://example.org {url}\nSuites: bookworm\nTrusted: yes\nComponents: main\n",
        ),
    ],
)
@pytest.mark.parametrize("signer", [None, "stranger"])
def test_a_mirror_that_the_machine_trusts(
    checkout: Checkout, mirror: Mirror, name: str, source: str, signer: str | None
) -> None:
    sources = checkout.root / "sources"
    sources.mkdir()
    (sources / name).write_text(source.format(url=mirror.url))
    checkout.apt.write_text(f'{checkout.apt.read_text()}Dir::Etc::SourceParts "{sources}";\n')
    mirror.publish("bookworm", Release("bookworm", signer=signer))
    done = checkout.run("registry", "serve", "it")
    assert done.stdout == RUNS, done.stderr
    assert f"this machine's apt trusts its mirror without a signature ({sources / name})" in done.stderr
    (sources / name).write_text(source.format(url="http://elsewhere.example.org"))
    shutil.rmtree(checkout.root / ".builder")
    assert "refused: " in checkout.refusal()


def test_a_machine_without_the_keys(checkout: Checkout) -> None:
    checkout.environ["BUILDER_DEBIAN_KEYRING"] = str(checkout.root / "missing.gpg")
    assert "  apt-get install debian-archive-keyring\n" in checkout.refusal()


def test_a_machine_that_cannot_check_signatures(checkout: Checkout) -> None:
    programs = checkout.root / "bin"
    programs.mkdir()
    for folder in os.get_exec_path():
        for program in Path(folder).glob("*"):
            if program.name not in {"gpgv", "sqv"} and not (programs / program.name).exists():
                (programs / program.name).symlink_to(program)
    checkout.environ["PATH"] = str(programs)
    assert "  apt-get install gpgv\n" in checkout.refusal()


def test_the_engine_refuses_as_well(checkout: Checkout, mirror: Mirror) -> None:
    mirror.publish("unstable", Release("bookworm"))
    assert "serves the index of bookworm as unstable" in checkout.refusal("engine", "up")


@pytest.mark.parametrize("which", ["home", "run"])
def test_a_folder_of_others_is_no_place_for_the_engine(checkout: Checkout, which: str) -> None:
    folder = checkout.root / which
    folder.mkdir()
    (folder / ".builder-engine").touch()
    folder.chmod(0o777)
    error = checkout.refusal("engine", "up")
    assert f"refused: other users can change {folder} (everyone may write to it)" in error
    folder.chmod(0o755)
    os.chown(folder, 65534, 65534)
    assert f"refused: other users can change {folder} (it belongs to user 65534)" in checkout.refusal("engine", "up")


def test_the_base_image_is_made_of_checked_indexes(checkout: Checkout, mirror: Mirror) -> None:
    # An engine that has no image, and no registry.
    programs = checkout.root / "bin"
    for name in ("docker", "mmdebstrap"):
        projects.write(programs / name, '#!/bin/sh\n[ "$1" = version ]\n')
        (programs / name).chmod(0o755)
    checkout.environ["PATH"] = f"{programs}:{checkout.environ['PATH']}"
    mirror.publish("bookworm-updates", Release("bookworm"))
    error = checkout.refusal("base-image", "debian:bookworm-slim")
    assert f"refused: {mirror.url} serves the index of bookworm as bookworm-updates" in error


def test_setup_takes_the_uv_of_the_lock_alone(checkout: Checkout) -> None:
    lock = projects.REPOSITORY_ROOT / "uv.lock"
    version = next(
        package["version"] for package in tomllib.loads(lock.read_text())["package"] if package["name"] == "uv"
    )
    shutil.copy(lock, checkout.root)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", checkout.root / ".venv"], check=True)
    for folder in ("wheels", "pip"):
        (checkout.root / folder).mkdir()
    (checkout.root / "pip/pip").symlink_to(Path(pip.__file__).parent)
    with zipfile.ZipFile(checkout.root / f"wheels/uv-{version}-py3-none-any.whl", "w") as wheel:
        info = f"uv-{version}.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: uv\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    wheels = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(checkout.root / "wheels")}
    checkout.environ.update(wheels, PYTHONPATH=str(checkout.root / "pip"))
    done = checkout.run("setup")
    assert done.returncode
    assert "DO NOT MATCH THE HASHES" in done.stderr
