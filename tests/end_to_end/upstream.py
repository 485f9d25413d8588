"""vLLM's and FlashInfer's real source trees on a git server of our own: the sdists of releases, committed and tagged in
order."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
import tomllib
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from uv import find_uv_bin

from tests.sources import git_server
from tests.sources.git_server import Repository

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

MAIN = "refs/heads/main"
# The SHA-256 of each sdist on PyPI: the release that dflash stands on, and one that wants the torch of the cpu image.
RELEASES = {
    "0.28.0": "ac96dd0ec5be9c13f2aa4bfb50498c4727110406f6e4980b58a4097e4d18634a",
    "0.32.0": "d2c957d5eee3d0985012151315ddc62cbe0cd368fc96a5fc3510438d9dddf2ad",
}
_DATE = 1_769_000_000  # seconds since 1970


@dataclass(frozen=True)
class Release:
    """A release of ``package``, by the SHA-256 of its sdist. It is committed at ``date``, in seconds since 1970, with
    the files that the repository has and the sdist lacks ``added``."""

    package: str
    version: str
    sha256: str
    date: int = _DATE
    added: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Upstream:
    """vLLM at ``url``; ``releases`` are the commits by version."""

    repository: Repository
    url: str
    releases: dict[str, str]

    def text(self, version: str, file: str) -> str:
        """A file of a release, which ends with one newline."""
        return self.repository.git("show", f"{self.releases[version]}:{file}") + "\n"

    def force_push_and_delete(self, ref: str) -> None:
        """Moves ``ref`` elsewhere and takes it away; what it held is gone for good."""
        self.repository.git("update-ref", ref, self.releases["0.28.0"])
        self.repository.git("update-ref", "-d", ref)
        self.repository.git("prune", "--expire=now")


@contextmanager
def served(folder: Path) -> Iterator[Upstream]:
    """Serves vLLM from ``folder`` until the block ends. Its commits are the same every time, for BuildKit's cache."""
    repository = git_server.make_repository(folder / "served" / "vllm.git")
    repository.git("config", "core.compression", "1")
    releases: dict[str, str] = {}
    for version, sha256 in RELEASES.items():
        previous = next(reversed(releases.values()), None)
        releases[version] = add_release(repository, Release("vllm", version, sha256), previous)
    with git_server.serve(folder / "served") as server:
        yield Upstream(repository, f"{server.url}/vllm.git", releases)


def add_release(repository: Repository, release: Release, previous: str | None = None) -> str:
    """Commits a release on ``previous``, tags it, and returns the commit."""
    with tarfile.open(fileobj=io.BytesIO(_sdist(release))) as archive:
        stream = b"".join(_stream(archive, release, previous))
    repository.git("fast-import", "--quiet", "--depth=0", given=stream)
    return repository.git("rev-parse", f"v{release.version}")


def _sdist(release: Release) -> bytes:
    with urllib.request.urlopen(_address(release), timeout=120) as answer:
        content: bytes = answer.read()
    assert hashlib.sha256(content).hexdigest() == release.sha256
    return content


def _address(release: Release) -> str:
    """Where the person's package index has the sdist: uv follows the person's settings, and names it in a lock."""
    argv = [find_uv_bin(), "pip", "compile", "--quiet", "--no-deps", "--format", "pylock.toml", "--no-header", "-"]
    requirement = f"{release.package}=={release.version}"
    done = subprocess.run(argv, input=requirement, check=True, capture_output=True, text=True)
    (package,) = tomllib.loads(done.stdout)["packages"]
    return str(package["sdist"]["url"])


def _stream(archive: tarfile.TarFile, release: Release, previous: str | None) -> Iterator[bytes]:
    """What an sdist holds as a commit on ``previous``, and its tag, for git's fast-import: thousands of files need not
    be written to the disk for it. Left out is what only an sdist has."""
    title, committer = f"Release {release.version}", f"tests <tests@example.org> {release.date} +0000"
    yield f"commit {MAIN}\ncommitter {committer}\ndata {len(title)}\n{title}\n".encode()
    if previous:
        yield f"from {previous}\n".encode()
    yield b"deleteall\n"
    for path, text in release.added.items():
        yield f"M 100644 inline {path}\ndata {len(text)}\n{text}\n".encode()
    for member in archive:
        path = member.name.partition("/")[2]
        if not member.isdir() and path.partition("/")[0] not in {"PKG-INFO", f"{_stem(release)}.egg-info"}:
            mode = "120000" if member.issym() else "100755" if member.mode & 0o100 else "100644"
            content = _content(archive, member)
            yield f"M {mode} inline {path}\ndata {len(content)}\n".encode() + content + b"\n"
    yield f"reset refs/tags/v{release.version}\nfrom {MAIN}\n".encode()


def _stem(release: Release) -> str:
    return release.package.replace("-", "_")


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    if member.issym():
        return member.linkname.encode()
    file = archive.extractfile(member)
    assert file is not None
    return file.read()
