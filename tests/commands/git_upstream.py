"""A repository behind a git daemon, which BuildKit reaches as well."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base import processes
from tests import projects

if TYPE_CHECKING:
    from collections.abc import Iterator


NO_TAGS: Mapping[str, int] = {}


def written(files: Mapping[str, str]) -> str:
    """The change of a commit that writes these files, as git's fast-import reads it."""
    return "".join(f"M 100644 inline {path}\ndata {len(text)}\n{text}\n" for path, text in files.items())


@dataclass(frozen=True)
class Upstream:
    """A repository that a git daemon serves at ``url``, and a clone of it to work in."""

    url: str
    work: Path

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.org"]
        done = subprocess.run(["git", *identity, *arguments], cwd=self.work, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, title: str, **files: str) -> str:
        """A commit on the branch that is checked out, pushed; returns its 40 hex digits."""
        for name, text in files.items():
            projects.write(self.work / f"{name}.py", text)
        self.git("add", ".")
        self.git("commit", "--quiet", "--message", title)
        self.git("push", "--quiet", "--force", "origin", "HEAD", "--tags")
        return self.git("rev-parse", "HEAD")

    def write_main(
        self, count: int, title: Callable[[int], str], changes: Callable[[int], str], tags: Mapping[str, int] = NO_TAGS
    ) -> list[str]:
        """Gives the server a main line of so many commits, a minute apart, with ``changes`` as git's fast-import reads
        them, and ``tags`` on some of them; returns them all, the first one first."""
        lines = []
        for number in range(count):
            when = f"Somebody <somebody@example.org> {1_780_000_000 + 60 * number} +0000"
            lines.append(
                f"commit refs/heads/main\nmark :{number + 1}\nauthor {when}\ncommitter {when}\n"
                f"data {len(title(number))}\n{title(number)}\n" + (f"from :{number}\n" if number else "")
            )
            lines.append(changes(number))
        lines += [f"reset refs/tags/{name}\nfrom :{number + 1}\n\n" for name, number in tags.items()]
        served = ["git", "-C", self.git("remote", "get-url", "origin")]
        subprocess.run([*served, "fast-import", "--quiet"], input="".join(lines), text=True, check=True)
        listed = subprocess.run([*served, "rev-list", "--reverse", "main"], capture_output=True, text=True, check=True)
        return listed.stdout.split()

    def forget(self) -> None:
        """Makes the server lose every commit: one that shares nothing with them takes the place of main."""
        served = Path(self.git("remote", "get-url", "origin"))
        self.git("checkout", "--quiet", "--orphan", "another")
        self.commit("another history", another="1")
        self.git("push", "--quiet", "--force", "origin", "HEAD:main")
        for arguments in (["reflog", "expire", "--expire=now", "--all"], ["gc", "--quiet", "--prune=now"]):
            subprocess.run(["git", "-C", served, *arguments], check=True)


def make_served(folder: Path, name: str) -> Path:
    """An empty repository below ``folder/served``, and a clone of it to work in, which is returned."""
    served = folder / "served" / f"{name}.git"
    work = folder / f"{name}-work"
    subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", served], check=True)
    for key in ("uploadpack.allowAnySHA1InWant", "uploadpack.allowFilter"):
        subprocess.run(["git", "-C", served, "config", key, "true"], check=True)
    subprocess.run(["git", "clone", "--quiet", served, work], check=True, capture_output=True)
    return work


@contextmanager
def serving(folder: Path) -> Iterator[Upstream]:
    """A git daemon for all that is below ``folder/served``, with a first repository in it."""
    work = make_served(folder, "flashinfer")
    port = processes.free_port()
    argv = ["git", "daemon", "--export-all", f"--base-path={folder / 'served'}", "--listen=127.0.0.1", f"--port={port}"]
    with subprocess.Popen([*argv, "--reuseaddr"], stderr=subprocess.DEVNULL, start_new_session=True) as daemon:
        try:
            wait_for(port)
            yield Upstream(f"git://127.0.0.1:{port}/flashinfer.git", work)
        finally:
            os.killpg(daemon.pid, 9)


def wait_for(port: int) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("git daemon does not listen")
