"""Running git through GitPython: without prompts, without secrets on the command line, and in one of two environments.

``run_local`` never reaches the network and obeys no settings but its own, so that the same commit gives the same bytes
on every machine. ``run_remote`` contacts the repository with the user's settings (proxy, certificates, ssh, credential
helpers), and retries after a network failure.
"""

from __future__ import annotations

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
_TIMED_OUT = 124  # the exit status of timeout(1)
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


def run_local(
    repository: GitRepository, arguments: Sequence[str], stdin: bytes = b"", *, environ: Mapping[str, str] | None = None
) -> GitResult:
    """Runs git on the mirror, without the network. A failure is for the caller to judge, by the status."""
    return _run_once(
        repository,
        ["git", *arguments],
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

    command = ["git", *arguments]
    if seconds:
        command = ["timeout", "--foreground", "--kill-after=5", f"{seconds:g}", *command]
    user_variables = git_environment.user_variables(repository.address, _ssh_command(repository), STALLED_SECONDS)
    environ = {**git_environment.repository_variables(repository.path), **user_variables}
    tries = 0
    while True:
        tries += 1
        result = _run_once(repository, command, stdin, environ)
        if result.status == 0:
            return result
        timed_out = "\nthe connection timed out" if result.status == _TIMED_OUT else ""
        failure = errors.classify(result.stderr + timed_out, repository.address.url, tries=tries)
        if failure.kind == "other" and not is_readable(repository):
            raise _damaged(repository, result)
        if failure.kind != errors.TRANSIENT or tries > len(PAUSES):
            raise failure.error
        pause = PAUSES[tries - 1]
        repository.notify(f"{failure.error.message}; trying again in {pause:g} s")
        time.sleep(pause)


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


def _run_once(repository: GitRepository, command: list[str], stdin: bytes, environ: Mapping[str, str]) -> GitResult:
    """Runs git once. It ends with this process, so that nothing writes to a mirror whose lock has been released."""
    from shutil import which

    if not which("git"):  # GitPython would not even import
        raise SourceError("git is not installed", hint="install it: apt-get install git")
    from git.cmd import Git

    with memory_file() as input_file:
        input_file.write(stdin)
        input_file.seek(0)
        status, output, stderr = Git(repository.path.parent).execute(
            [*tied_to_parent(), *command],
            istream=input_file,
            with_extended_output=True,
            with_exceptions=False,
            stdout_as_string=False,
            strip_newline_in_stdout=False,
            env=environ,
        )
    return GitResult(status, output, credentials.scrub(stderr, repository.address))


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
