"""A Debian mirror of one package on this machine, signed by a key of its own, which can be made to lie."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tests import web_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.web_server import Web

NOW = datetime.now(UTC).replace(microsecond=0)
CODENAMES = {"unstable": "sid", "bookworm": "bookworm", "bookworm-updates": "bookworm-updates"}
CODENAMES["bookworm-security"] = "bookworm-security"


@dataclass(frozen=True)
class Release:
    """The index of a suite as it is served: ``claims`` is what it says it is, ``signer`` the key that signs it, or
    none. It expires ``lasts`` after its ``date``, if ever."""

    claims: str
    date: datetime = NOW
    lasts: timedelta | None = None
    signer: str | None = "archive"


@dataclass
class Mirror:
    """A mirror at ``url``; ``keyring`` has the public key of the archive, ``keys`` all keys; ``package`` is the path of
    its only package on the server, ``packages`` the list that names it, ``truth`` what is served by path."""

    url: str
    keyring: Path
    package: str
    web: Web
    packages: bytes
    keys: Path
    truth: dict[str, bytes] = field(default_factory=dict)

    def reset(self) -> None:
        """Tells the truth again."""
        self.web.files = dict(self.truth)

    def publish(self, suite: str, release: Release | None = None, packages: bytes | None = None) -> None:
        """Serves ``suite`` with that ``release``; with other ``packages`` than it names where these are given."""
        release = release or Release(suite)
        index = f"main/binary-{architecture()}/Packages"
        text = "".join(
            [
                f"Origin: Debian\nSuite: {release.claims}\nCodename: {CODENAMES[release.claims]}\n",
                f"Date: {_stamp(release.date)}\n",
                f"Valid-Until: {_stamp(release.date + release.lasts)}\n" if release.lasts is not None else "",
                f"Architectures: {architecture()}\nComponents: main\nSHA256:\n",
                f" {hashlib.sha256(self.packages).hexdigest()} {len(self.packages)} {index}\n",
            ]
        )
        folder = f"/debian{'-security' if suite.endswith('-security') else ''}/dists/{suite}"
        self.web.files.pop(f"{folder}/InRelease", None)
        self.web.files[f"{folder}/Release"] = text.encode()
        if release.signer:
            self.web.files[f"{folder}/InRelease"] = _gpg(
                self.keys, "--local-user", release.signer, "--clearsign", text=text.encode()
            )
        self.web.files[f"{folder}/{index}"] = self.packages if packages is None else packages

    def replace(self, suite: str, old: str, new: str) -> None:
        """Changes the signed index of ``suite``."""
        path = f"/debian/dists/{suite}/InRelease"
        self.web.files[path] = self.web.files[path].replace(old.encode(), new.encode())


@contextmanager
def serving() -> Iterator[Mirror]:
    """Serves unstable and the suites of bookworm, all right and of now, until the block ends."""
    with TemporaryDirectory() as folder, web_server.serving() as web:
        # apt reads as another user than root.
        Path(folder).chmod(0o755)
        keys, package = Path(folder, "keys"), Path(folder, "docker-registry.deb")
        keys.mkdir(mode=0o700)
        try:
            for name in ("archive", "stranger"):
                _gpg(keys, "--passphrase", "", "--quick-generate-key", name, "ed25519", "sign", "never")
            keyring = Path(folder, "archive.gpg")
            keyring.write_bytes(_gpg(keys, "--export", "archive"))
            content = _package(Path(folder, "tree"), package)
            path = "pool/docker-registry.deb"
            web.files[f"/debian/{path}"] = content
            entry = [
                "Package: docker-registry",
                "Version: 1",
                f"Architecture: {architecture()}",
                f"Filename: {path}",
                f"Size: {len(content)}",
                f"SHA256: {hashlib.sha256(content).hexdigest()}",
                "Description: a program",
            ]
            text = "\n".join([*entry, "", ""]).encode()
            mirror = Mirror(f"{web.url}/debian", keyring, f"/debian/{path}", web, text, keys)
            for suite in CODENAMES:
                mirror.publish(suite)
            mirror.truth = dict(web.files)
            yield mirror
        finally:
            subprocess.run(["gpgconf", "--homedir", keys, "--kill", "all"], check=True)


def _package(tree: Path, path: Path) -> bytes:
    """Makes a package whose program prints what it was called with."""
    program = tree / "usr/bin/docker-registry"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "the program runs: $*"\n')
    program.chmod(0o755)
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN/control").write_text(
        f"Package: docker-registry\nVersion: 1\nArchitecture: {architecture()}\n"
        "Maintainer: Nobody <nobody@example.org>\nDescription: a program\n"
    )
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", tree, path], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(tree)
    return path.read_bytes()


@cache
def architecture() -> str:
    return subprocess.run(["dpkg", "--print-architecture"], check=True, capture_output=True, text=True).stdout.strip()


def _stamp(moment: datetime) -> str:
    return format_datetime(moment, usegmt=True).replace("GMT", "UTC")


def _gpg(keys: Path, *arguments: str, text: bytes = b"") -> bytes:
    command = ["gpg", "--homedir", str(keys), "--batch", "--quiet", "--pinentry-mode", "loopback", *arguments]
    return subprocess.run(
        command, check=True, input=text, capture_output=True, env={**os.environ, "LC_ALL": "C"}
    ).stdout
