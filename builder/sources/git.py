"""Runs git without prompts and without secrets in arguments, with the user's network settings."""

from __future__ import annotations

import base64
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shutil import which
from typing import NamedTuple

from builder.base.errors import SourceError
from builder.base.processes import memory_file, tied_to_parent
from builder.base.values import dataclass, field, replace

# The user's own settings for package indexes, certificates and proxies, which are passed to uv and to build steps.
# They decide where packages come from, not which packages, so they are not part of a plan, a lock or an image.

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")


@dataclass(frozen=True)
class UserSettings:
    """Settings for fetching packages. ``ca_file`` replaces the certificates of the image while a step runs;
    ``find_links`` are folders or addresses with wheels; ``proxies`` are pairs of a variable in upper case and its
    value."""

    ca_file: Path | None = None
    index_url: str = ""
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    proxies: tuple[tuple[str, str], ...] = ()

    def local_wheels(self) -> tuple[Path, ...]:
        """Returns the wheels in the folders among ``find_links``, sorted."""
        links = (link.removeprefix("file://") for link in self.find_links)
        return tuple(sorted(wheel for link in links if "://" not in link for wheel in Path(link).glob("*.whl")))


def read_index_settings(environ: Mapping[str, str]) -> UserSettings:
    """Reads the settings that pip and uv also use."""
    ca_file = next((environ[name] for name in ("SSL_CERT_FILE", "PIP_CERT") if environ.get(name)), None)
    proxies = tuple((name, value) for name in PROXIES if (value := environ.get(name) or environ.get(name.lower(), "")))
    return UserSettings(
        ca_file=Path(ca_file) if ca_file and Path(ca_file).is_file() else None,
        index_url=environ.get("UV_DEFAULT_INDEX") or environ.get("PIP_INDEX_URL", ""),
        extra_index_urls=tuple((environ.get("UV_INDEX") or environ.get("PIP_EXTRA_INDEX_URL", "")).split()),
        find_links=tuple((environ.get("UV_FIND_LINKS") or environ.get("PIP_FIND_LINKS", "")).replace(",", " ").split()),
        proxies=proxies,
    )


# Credentials in the address of a repository (``https://user:token@host/…``) are passed in the environment of each git
# command, through a credential helper for this host only. No configuration file and no argument (see ``ps``) contains
# them, and a redirect to another host does not receive them.

_AUTHORITY = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<who>[^/?#]*)@(?P<rest>[^@/]*.*)", re.IGNORECASE | re.DOTALL
)
# git runs a helper that starts with `!` in a shell. It reads the values from the environment, so nothing needs quoting.
_HELPER = (
    '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n" "$BUILDER_GIT_USER" "$BUILDER_GIT_SECRET"; }; f'
)


@dataclass(frozen=True)
class Address:
    """A repository's address. ``url`` has no credentials, as it goes into locks, messages and configuration."""

    url: str
    user: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)


def split(url: str) -> Address:
    """Separates the credentials from an address. The user of an ssh address stays (``ssh://git@host/…``,
    ``git@host:…``). ``https://TOKEN@host/…`` is a token for any user, as GitHub and GitLab accept it."""
    from urllib.parse import unquote

    parts = _AUTHORITY.fullmatch(url)
    if not parts:
        return Address(url)
    scheme, userinfo, rest = parts["scheme"], parts["who"], parts["rest"]
    user, _, secret = userinfo.partition(":")
    if scheme.lower() not in ("http", "https"):
        return Address(f"{scheme}://{user}@{rest}", secret=unquote(secret))
    if not secret:
        user, secret = "x-access-token", user
    return Address(f"{scheme}://{rest}", unquote(user), unquote(secret))


def scrub(text: str, address: Address) -> str:
    """Replaces every spelling of the secret in ``text`` with ``***``: a server may repeat the secret in its answer."""
    from urllib.parse import quote

    if not address.secret:
        return text
    login = base64.b64encode(f"{address.user}:{address.secret}".encode()).decode()
    for spelling in {login, address.secret, quote(address.secret), quote(address.secret, safe="")}:
        text = text.replace(spelling, "***")
    return text


# Classification of git's error messages: its exit status does not distinguish a refusal from a network failure.
# Sources: git's transport.c, http.c, fetch-pack.c and packfile.c, curl's strerror.c, and ssh (all with LC_ALL=C).

TRANSIENT = "again"
"""The kind of a network failure: the same request may succeed a second later."""


class MissingError(SourceError):
    """A branch, tag, pull request or commit that the repository does not have."""


class DamagedError(SourceError):
    """An unreadable local mirror. The holder of its lock creates it again."""


class _Rule(NamedTuple):
    kind: str
    pattern: str
    message: str
    hint: str = ""


# The first match decides: `the remote end hung up` also follows a refusal, and a full disk also breaks a connection.
_RULES = (
    _Rule(
        "local",
        r"(?i)Too many open files|out of memory|Cannot allocate memory",
        "git needs more memory or more open files for its mirror of {url}",
        "stop programs that use a lot of memory, or raise the limit of open files (`ulimit -n`); then try again",
    ),
    _Rule(
        "local",
        r"(?im)No space left on device|Disk quota exceeded|Read-only file system|insufficient permission"
        r"|unable to create temporary file|: Permission denied$",
        "git cannot write to its mirror of {url}",
        "make room, or make the folder writable; then run the command again",
    ),
    _Rule("missing", r"couldn't find remote ref|not our ref|unadvertised object", "{url} does not have this ref"),
    _Rule(
        "refused",
        r"(?:returned error: |HTTP |response )407\b",
        "the proxy requires a login to reach {url}",
        "write the login into HTTPS_PROXY: http://USER:PASSWORD@HOST:PORT",
    ),
    _Rule(
        "refused",
        "Host key verification failed",
        "this machine does not know the ssh key of the host of {url}",
        "connect to that host once with `ssh`, and compare the key that it shows",
    ),
    _Rule(
        "refused",
        r"Authentication failed|could not read (?:Username|Password)|terminal prompts disabled"
        r"|(?:returned error: |HTTP )40[13]\b|Permission denied \(",
        "{url} refuses access",
        "check the address; a private repository needs a token in the address (https://TOKEN@host/…), "
        "a credential helper of git, or an ssh key",
    ),
    _Rule(
        "refused",
        r"[Rr]epository .*not found|(?:returned error: |HTTP )404\b|does not appear to be a git repository"
        r"|repository '.*' does not exist|not valid: is this a git repository",
        "there is no git repository at {url}",
        "check that the address is right, and that the repository exists",
    ),
    _Rule(
        "refused",
        r"SSL certificate problem|certificate verif\w+ failed|local issuer certificate",
        "the certificate of {url} is not trusted",
        "set SSL_CERT_FILE or GIT_SSL_CAINFO to the file with your certificates",
    ),
    _Rule(
        "refused",
        r"transport '.*' not allowed|remote helper for|bad/illegal format|Port number|Malformed input",
        "git cannot use the address {url}",
        "addresses look like https://host/owner/repository.git, ssh://git@host/… or /a/folder",
    ),
    _Rule(
        TRANSIENT,
        r"(?i)Could(?:n't| not) (?:resolve|connect)|Failed to connect|Connection (?:refused|reset|timed out|closed)"
        r"|timed out|Empty reply|too slow|transfer closed|(?:returned error: |HTTP )(?:5\d\d|4(?:08|29))\b"
        r"|early EOF|hung up unexpectedly|unexpected disconnect|Network is unreachable|No route to host"
        r"|SSL_ERROR_SYSCALL|unexpected eof|TLS connection was non-properly|GnuTLS recv error|not closed cleanly"
        r"|RPC failed; curl (?:7|16|18|28|52|55|56|92)\b|name resolution",
        "{url} does not answer",
        "check the network and HTTPS_PROXY, then run the command again",
    ),
    # What git writes if the other side fails. The mirror is not at fault, and must not be replaced.
    _Rule(
        "incomplete",
        r"on the remote side|(?m:^remote: (?:fatal|error): )",
        "the repository at {url} is incomplete or damaged",
        "repair the repository there; if it is a partial clone: `git fetch --refetch --no-filter`",
    ),
    _Rule(
        "damaged",
        r"packed-refs|bad object|missing (?:blob|tree|commit|object)|corrupt|is empty|not a git repository"
        r"|could not (?:parse|fetch)|failed to (?:read|traverse)|unable to read|unable to (?:lock|update local) ref"
        r"|cannot lock ref|packfile|pack has|bad config|Could not read [0-9a-f]{40}|index file|index-pack"
        r"|revision walk",
        "the mirror of {url} is damaged",
    ),
    _Rule("other", "", "git failed on {url}"),
)


def classify(stderr: str, url: str, *, tries: int = 1) -> tuple[str, SourceError]:
    """Returns the kind of a failure (``TRANSIENT``, or the kind of its rule), and the error to raise. ``stderr`` is
    git's error output without secrets; ``tries`` is the number of tries so far."""
    kind, _, message, hint = next(rule for rule in _RULES if re.search(rule[1], stderr))
    times = f" ({tries} tries)" if tries > 1 else ""
    error = {"missing": MissingError, "damaged": DamagedError}.get(kind, SourceError)
    return kind, error(f"{message.format(url=url)}{times}: {shorten(stderr) or 'git gave no reason'}", hint=hint)


def shorten(stderr: str) -> str:
    """Shortens git's error output to the lines that matter: git's own errors, without the advice below them."""
    lines = list(dict.fromkeys(printable(line) for line in stderr.splitlines() if line.strip()))
    errors = [line for line in lines if line.startswith(("fatal:", "error:", "remote:"))]
    return "; ".join(line.removeprefix("fatal: ").removeprefix("error: ") for line in (errors or lines)[:4])


def printable(text: str) -> str:
    """Makes untrusted text safe to print: control characters become ``?``."""
    return "".join(letter if letter.isprintable() else "?" for letter in text.strip())


_NO_HOOKS = ("core.hooksPath", "/dev/null")  # nothing in a mirror is run
_NO_PROGRAM = "false"  # replaces a program that a repository names, and fails
_NO_PROGRAMS = (
    _NO_HOOKS,
    ("safe.bareRepository", "explicit"),  # git 2.38: a folder with HEAD, objects and refs is no repository
    ("core.fsmonitor", "false"),
    ("core.sshCommand", _NO_PROGRAM),
    ("core.gitProxy", _NO_PROGRAM),
    ("core.alternateRefsCommand", _NO_PROGRAM),
    *((f"gpg.{kind}program", _NO_PROGRAM) for kind in ("", "openpgp.", "x509.", "ssh.")),
    ("diff.external", ""),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
)


def config_variables(settings: Sequence[tuple[str, str]], first: int = 0) -> dict[str, str]:
    """GIT_CONFIG_KEY_n and GIT_CONFIG_VALUE_n from n = ``first``: as ``-c``, but hidden from other users."""
    variables = {"GIT_CONFIG_COUNT": str(first + len(settings))}
    for number, (key, value) in enumerate(settings, start=first):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return variables


_ALWAYS = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "",  # set but empty: neither core.askPass nor SSH_ASKPASS opens a window
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
}
_NO_NETWORK = {
    "GIT_ALLOW_PROTOCOL": "none",  # a missing blob is not fetched silently
    "GIT_NO_LAZY_FETCH": "1",  # the same, for git 2.45 and later
}
# Without the user's settings, because some of them change a diff.
_ISOLATED = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_PARAMETERS": "",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_DIFF_OPTS": "",
    **_NO_NETWORK,
    **config_variables((_NO_HOOKS, ("core.attributesFile", "/dev/null"), ("core.quotePath", "false"))),
}


def _repository_variables(path: Path) -> dict[str, str]:
    """The variables that select this repository. Otherwise, the variables of a hook would select the hook's
    repository."""
    return {
        **_ALWAYS,
        "GIT_DIR": str(path),
        "GIT_WORK_TREE": str(path),  # there is none; the variable of a hook would shift every path
        "GIT_OBJECT_DIRECTORY": str(path / "objects"),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": "",
        "GIT_NAMESPACE": "",
        "GIT_NO_REPLACE_OBJECTS": "1",
    }


def _remote_variables(repository: GitRepository) -> dict[str, str]:
    """The variables that keep the user's own settings and add ours."""
    settings = (("http.lowSpeedLimit", "1"), ("http.lowSpeedTime", str(STALLED_SECONDS)))
    variables = _repository_variables(repository.path)
    login: tuple[tuple[str, str], ...] = ()
    if user := repository.address.user:
        # Only this helper is asked when the address requires a login.
        scheme, _, rest = repository.address.url.partition("://")
        key = f"credential.{scheme}://{rest.partition('/')[0]}.helper"
        login = ((key, ""), (key, _HELPER))
        variables |= {"BUILDER_GIT_USER": user, "BUILDER_GIT_SECRET": repository.address.secret}
    variables |= config_variables((_NO_HOOKS, *settings, *login), _count_settings())
    if ssh := _ssh_command(repository):
        variables["GIT_SSH_COMMAND"] = f"{ssh} -o BatchMode=yes -o ConnectTimeout=20"
    ca_file = read_index_settings(os.environ).ca_file
    if ca_file and "GIT_SSL_CAINFO" not in os.environ:
        variables["GIT_SSL_CAINFO"] = str(ca_file)
    return variables


def _count_settings() -> int:
    present = os.environ.get("GIT_CONFIG_COUNT", "")
    return int(present) if present.isdecimal() else 0


# Running git. `run_local` never uses the network, and uses only its own settings: a commit gives the same bytes on
# every machine. `run_remote` contacts the repository with the user's settings (proxy, certificates, ssh, credential
# helpers), and retries after a network failure. `run_in_project` is for the repository of a project.

Notify = Callable[[str], None]

PAUSES = (1.0, 3.0, 9.0)  # seconds before the second, third and fourth try
# The addresses that did not answer any try of this process. They get one try: a check of many mods asks many times.
_SILENT: set[str] = set()
STALLED_SECONDS = 60  # at less than one byte a second; a server that counts objects sends five bytes in five seconds
_LARGEST_PACK = 16 << 30  # bytes; the pack of vLLM with all contents has less than one GB
# The limit ends git itself or its index-pack with SIGXFSZ.
_TOO_LARGE = re.compile(r"died of signal 25|File too large|[Ff]ile size limit exceeded")
_TIMED_OUT = 124  # the exit status of timeout(1)
_NOT_INSTALLED = 127  # the exit status of a shell that does not find a program
SUBMODULE_MODE = "160000"  # of an entry in a tree
PROJECT_SECONDS = 120  # for git in an untrusted repository
ANSWER_SECONDS = 90  # for a request with a short answer; a connection alone may take two minutes to fail


def discard(_: str) -> None:
    """A ``Notify`` that discards the message."""


@dataclass(frozen=True)
class GitRepository:
    """A local bare repository, and the ``address`` that it mirrors. ``notify`` is called before slow steps."""

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
        return self.status == _NOT_INSTALLED


def run_local(
    repository: GitRepository,
    arguments: Sequence[str],
    stdin: bytes = b"",
    *,
    environ: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> GitResult:
    """Runs git on the mirror, without the network. The caller checks the status."""
    variables = {**_repository_variables(repository.path), **_ISOLATED, **(environ or {})}
    return _run(repository, _limited(["git", *arguments], seconds), stdin, variables)


def run_checked(
    repository: GitRepository, arguments: Sequence[str], stdin: bytes = b"", *, environ: Mapping[str, str] | None = None
) -> GitResult:
    """Runs git like `run_local`. Raises DamagedError if the mirror is damaged, SourceError if the disk is full."""
    result = run_local(repository, arguments, stdin, environ=environ)
    if result.status:
        raise damaged(repository, result.stderr)
    return result


def run_remote(
    repository: GitRepository, arguments: Sequence[str], stdin: bytes = b"", *, seconds: float | None = None
) -> GitResult:
    """Runs git with the network; one try may take ``seconds``. Raises MissingError if the repository lacks what was
    requested, DamagedError if the mirror is at fault, and SourceError after a refusal or the last try."""
    url = repository.address.url
    command = _limited(["git", *arguments], seconds)
    if which("prlimit"):  # of util-linux: the server decides the size of its pack, and git cannot limit it
        command = ["prlimit", f"--fsize={_LARGEST_PACK}", "--", *command]
    environ = _remote_variables(repository)
    tries = 0
    while True:
        tries += 1
        result = _run(repository, command, stdin, environ)
        if result.status == 0:
            _SILENT.discard(url)
            return result
        timed_out = "\nthe connection timed out" if result.status == _TIMED_OUT else ""
        if _TOO_LARGE.search(result.stderr):
            message = f"{url} sends more than {_LARGEST_PACK >> 30} GiB, so it was not fetched"
            raise SourceError(message, hint="check the address: no repository of source code is that large")
        kind, error = classify(result.stderr + timed_out, url, tries=tries)
        if kind == "other" and run_local(repository, ["rev-list", "--quiet", "--all"]).status:
            raise damaged(repository, result.stderr)
        if kind != TRANSIENT or url in _SILENT or tries > len(PAUSES):
            if kind == TRANSIENT:
                _SILENT.add(url)
            raise error
        pause = PAUSES[tries - 1]
        repository.notify(f"{error.message}; trying again in {pause:g} s")
        time.sleep(pause)


def _limited(command: list[str], seconds: float | None) -> list[str]:
    return ["timeout", "--foreground", "--kill-after=5", f"{seconds:g}", *command] if seconds else command


def damaged(repository: GitRepository, stderr: str) -> SourceError:
    """The error for what git says of a mirror that it cannot read."""
    kind, error = classify(stderr, repository.address.url)
    if kind == "local":
        return error
    message = f"the mirror of {repository.address.url} in {repository.path} is damaged: {shorten(stderr)}"
    return DamagedError(message, hint=f"delete {repository.path}: builder fetches the mirror again when needed")


def run_in_project(
    folder: Path,
    *arguments: str,
    environ: Mapping[str, str] | None = None,
    settings: Sequence[tuple[str, str]] = (),
) -> GitResult:
    """Runs git in ``folder``, without the network. Programs and addresses that the repository names are not used; for
    files of a working tree, that requires the ``settings`` of `without_filters`. ``environ`` are additional variables.
    The caller checks the status, also if git is not installed."""
    # Settings may include an endless file, or a pipe without a writer.
    command = _limited(["git", "--no-pager", *arguments], PROJECT_SECONDS)
    # The user's own settings apply, such as safe.directory.
    own = config_variables((*_NO_PROGRAMS, *settings), _count_settings())
    variables = {**_ALWAYS, **_NO_NETWORK, "GIT_EXTERNAL_DIFF": "", **own, **(environ or {})}
    return _execute(folder, command, b"", variables)


def without_filters(folder: Path) -> tuple[tuple[str, str], ...]:
    """The settings that turn off each filter that the repository in ``folder``, or a submodule, names itself: git would
    run its program for each file. The user's own filters, such as the filter of Git LFS, stay, also if a repository
    repeats them."""
    listing = ("config", "--show-scope", "-z", "--get-regexp", r"^filter\.")
    of_repository, of_user = set[str](), set[str]()
    waiting, seen = [folder], set[str]()
    while waiting:
        at = waiting.pop()
        seen.add(os.path.realpath(at))
        words = run_in_project(at, *listing).output.decode("utf-8", "replace").split("\0")
        for scope, setting in zip(words[::2], words[1::2], strict=False):  # a line feed separates key and value
            (of_repository if scope in {"local", "worktree"} else of_user).add(setting)
        entries = run_in_project(at, "ls-files", "--stage", "-z").output.decode("utf-8", "surrogateescape").split("\0")
        inner = [at / entry.partition("\t")[2] for entry in entries if entry.startswith(SUBMODULE_MODE)]
        waiting += [each for each in inner if (each / ".git").exists() and os.path.realpath(each) not in seen]
    keys = sorted({setting.partition("\n")[0] for setting in of_repository - of_user})
    return tuple((key, "false" if key.endswith(".required") else "") for key in keys)


def _run(repository: GitRepository, command: list[str], stdin: bytes, environ: Mapping[str, str]) -> GitResult:
    """Runs git once on the mirror. Raises SourceError if git is not installed."""
    result = _execute(repository.path.parent, command, stdin, environ)
    if result.is_without_git:
        raise SourceError("git is not installed", hint="install it: apt-get install git")
    return replace(result, stderr=scrub(result.stderr, repository.address))


def _execute(folder: Path, command: list[str], stdin: bytes, environ: Mapping[str, str]) -> GitResult:
    """Runs git. It ends with this process, so nothing writes to a mirror after its lock is released."""
    if not which("git"):  # GitPython cannot even be imported
        return GitResult(_NOT_INSTALLED, b"", "")
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
    return GitResult(status, output, stderr)


def _ssh_command(repository: GitRepository) -> str:
    """The user's ssh command; empty if the address does not use ssh, or if GIT_SSH names the program. This program sets
    a variable that overrides core.sshCommand, so the setting is read here."""
    if "GIT_SSH_COMMAND" in os.environ:
        return os.environ["GIT_SSH_COMMAND"]
    if "GIT_SSH" in os.environ or repository.address.url.lower().startswith(("http:", "https:", "file:", "/")):
        return ""
    lookup = ["git", "config", "--get", "core.sshCommand"]
    return _run(repository, lookup, b"", _repository_variables(repository.path)).text or "ssh"
