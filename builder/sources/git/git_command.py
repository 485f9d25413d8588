"""Running git through GitPython: without prompts, without secrets on the command line, in one of three environments.

``run_local`` never reaches the network and obeys no settings but its own, so that the same commit gives the same bytes
on every machine. ``run_remote`` contacts the repository with the user's settings (proxy, certificates, ssh, credential
helpers), and retries after a network failure. ``run_in_project`` is for the repository around a project, which others
may have made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.child_process import memory_file, tied_to_parent
from builder.errors import SourceError
from builder.sources.git import credentials, errors, git_environment

if TYPE_CHECKING:
    from pathlib import Path

    from builder.sources.git.credentials import Address

Notify = Callable[[str], None]

PAUSES = (1.0, 3.0, 9.0)  # seconds before the second, third and fourth try
STALLED_SECONDS = 60  # at less than one byte a second; a server that counts objects sends five bytes every five seconds
_LARGEST_PACK = 16 << 30  # bytes; that of vLLM with all contents has less than one
# What ends by it is git itself or its index-pack, by SIGXFSZ.
_TOO_LARGE = re.compile(r"died of signal 25|File too large|[Ff]ile size limit exceeded")
_TIMED_OUT = 124  # the exit status of timeout(1)
_NOT_INSTALLED = 127  # that of a shell that does not find a program
PROJECT_SECONDS = 120  # for git in a repository of others
ANSWER_SECONDS = 90  # for a request with a short answer; a connection alone may take two minutes to fail


def discard(_: str) -> None:
    """A ``Notify`` that discards the message."""


@dataclass(frozen=True)
class GitRepository:
    """A local bare repository at ``path``, and the ``address`` of the one that it mirrors. ``notify`` is called before
    steps that take long."""

    path: Path
    address: Address
    notify: Notify = discard


@dataclass(frozen=True)
class GitResult:
    """The result of a git command; ``stderr`` is without secrets."""

    status: int
    output: bytes
    stderr: str

    @property
    def text(self) -> str:
        return self.output.decode("utf-8", "replace").strip()

    @property
    def is_without_git(self) -> bool:
        """True if git is not installed."""
        return self.status == _NOT_INSTALLED


def run_local(
    repository: GitRepository,
    arguments: Sequence[str],
    stdin: bytes = b"",
    *,
    environ: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> GitResult:
    """Runs git on the mirror, without the network, for ``seconds`` at most. A failure is for the caller to judge, by
    the status."""
    return _run_once(
        repository,
        _limited(["git", *arguments], seconds),
        stdin,
        {
            **git_environment.repository_variables(repository.path),
            **git_environment.isolated_variables(),
            **(environ or {}),
        },
    )


def run_checked(
    repository: GitRepository, arguments: Sequence[str], stdin: bytes = b"", *, environ: Mapping[str, str] | None = None
) -> GitResult:
    """Runs git as ``run_local`` does, where a failure can only mean that the mirror is damaged (DamagedError) or that
    this machine has no room (SourceError)."""
    result = run_local(repository, arguments, stdin, environ=environ)
    if result.status:
        raise _damaged(repository, result)
    return result


def run_remote(
    repository: GitRepository, arguments: Sequence[str], stdin: bytes = b"", *, seconds: float | None = None
) -> GitResult:
    """Runs git with the network. ``seconds`` is the longest that one try may take.

    Raises MissingError if the repository lacks what was requested, DamagedError if the mirror is at fault, and
    SourceError after a refusal, or after the last try if the network fails.
    """
    import time

    command = [*_size_limit(), *_limited(["git", *arguments], seconds)]
    user_variables = git_environment.user_variables(repository.address, _ssh_command(repository), STALLED_SECONDS)
    environ = {**git_environment.repository_variables(repository.path), **user_variables}
    tries = 0
    while True:
        tries += 1
        result = _run_once(repository, command, stdin, environ)
        if result.status == 0:
            return result
        timed_out = "\nthe connection timed out" if result.status == _TIMED_OUT else ""
        if _TOO_LARGE.search(result.stderr):
            raise SourceError(
                f"{repository.address.url} sends more than {_LARGEST_PACK >> 30} GiB: it is not fetched",
                hint="is the address right? No repository of source code is that large",
            )
        failure = errors.classify(result.stderr + timed_out, repository.address.url, tries=tries)
        if failure.kind == "other" and not is_readable(repository):
            raise _damaged(repository, result)
        if failure.kind != errors.TRANSIENT or tries > len(PAUSES):
            raise failure.error
        pause = PAUSES[tries - 1]
        repository.notify(f"{failure.error.message}; trying again in {pause:g} s")
        time.sleep(pause)


def _size_limit() -> list[str]:
    """A prefix of an argument vector that limits each file: a server decides how long the pack is that it sends, and
    git has no setting for it. prlimit belongs to util-linux, as setpriv does."""
    from shutil import which

    return ["prlimit", f"--fsize={_LARGEST_PACK}", "--"] if which("prlimit") else []


def _limited(command: list[str], seconds: float | None) -> list[str]:
    return ["timeout", "--foreground", "--kill-after=5", f"{seconds:g}", *command] if seconds else command


def is_readable(repository: GitRepository) -> bool:
    """True if every commit that the mirror should have can be read. Takes some tenths of a second for vLLM."""
    return run_local(repository, ["rev-list", "--quiet", "--all"]).status == 0


def _damaged(repository: GitRepository, result: GitResult) -> SourceError:
    failure = errors.classify(result.stderr, repository.address.url)
    if failure.kind == "local":
        return failure.error
    message = errors.shorten(result.stderr)
    return errors.DamagedError(
        f"the mirror of {repository.address.url} in {repository.path} is damaged: {message}",
        hint=f"delete {repository.path}: it is made anew when it is needed",
    )


def run_in_project(folder: Path, *arguments: str, stdin: bytes = b"") -> GitResult:
    """Runs git in ``folder``, without the network, so that it obeys no program and no address that the repository there
    names. A failure is for the caller to judge, also where git is not installed."""
    import os

    variables = git_environment.project_variables(os.environ)
    # Settings may include a file that never ends, or a pipe that nobody writes to.
    command = _limited(["git", "--no-pager", *arguments], PROJECT_SECONDS)
    return GitResult(*_execute(folder, command, stdin, variables))


def _run_once(repository: GitRepository, command: list[str], stdin: bytes, environ: Mapping[str, str]) -> GitResult:
    """Runs git once on the mirror. Raises SourceError where git is not installed."""
    status, output, stderr = _execute(repository.path.parent, command, stdin, environ)
    result = GitResult(status, output, credentials.scrub(stderr, repository.address))
    if result.is_without_git:
        raise SourceError("git is not installed", hint="install it: apt-get install git")
    return result


def _execute(folder: Path, command: list[str], stdin: bytes, environ: Mapping[str, str]) -> tuple[int, bytes, str]:
    """Runs git in ``folder``; returns its exit status, its output and its messages. It ends with this process, so that
    nothing writes to a mirror whose lock has been released."""
    from shutil import which

    if not which("git"):  # GitPython would not even import
        return _NOT_INSTALLED, b"", ""
    from git.cmd import Git

    with memory_file() as input_file:
        input_file.write(stdin)
        input_file.seek(0)
        status, output, stderr = Git(folder).execute(
            [*tied_to_parent(), *command],
            istream=input_file,
            with_extended_output=True,
            with_exceptions=False,
            stdout_as_string=False,
            strip_newline_in_stdout=False,
            env=environ,
        )
    return status, output, stderr


def _ssh_command(repository: GitRepository) -> str:
    """Returns the user's ssh command; empty if the address is not reached by ssh, or GIT_SSH names the program. The
    variable that this program sets hides the setting core.sshCommand, so that is looked up here."""
    import os

    if "GIT_SSH_COMMAND" in os.environ:
        return os.environ["GIT_SSH_COMMAND"]
    if "GIT_SSH" in os.environ or repository.address.url.lower().startswith(("http:", "https:", "file:", "/")):
        return ""
    configured = _run_once(
        repository,
        ["git", "config", "--get", "core.sshCommand"],
        b"",
        git_environment.repository_variables(repository.path),
    )
    return configured.text or "ssh"
