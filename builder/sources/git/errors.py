"""Classification of git's error messages: transient, refused, a fault of this machine, or a damaged mirror.

Only the messages tell these apart (git is run with LC_ALL=C). They come from git's transport.c, http.c, fetch-pack.c
and packfile.c, from curl's strerror.c and from ssh.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from builder.errors import SourceError

TRANSIENT = "again"
"""The kind of a network failure: the same request may well succeed a second later."""


class MissingError(SourceError):
    """A branch, tag, pull request or commit that the repository does not have."""


class DamagedError(SourceError):
    """A local mirror that cannot be read; the holder of its lock makes it anew."""


@dataclass(frozen=True)
class _Rule:
    kind: str
    pattern: re.Pattern[str]
    message: str = ""
    hint: str = ""


# The first match counts: `the remote end hung up` also follows a refusal, and a full disk also breaks a connection.
_RULES = (
    _Rule(
        "local",
        re.compile(
            r"No space left on device|Disk quota exceeded|Read-only file system|Too many open files|out of memory"
            r"|Cannot allocate memory|insufficient permission|unable to create temporary file|: Permission denied$",
            re.IGNORECASE | re.MULTILINE,
        ),
        "git cannot write its mirror of {url}",
        "make room, or make the folder writable, and run this again",
    ),
    _Rule(
        "missing",
        re.compile(r"couldn't find remote ref|not our ref|unadvertised object"),
        "{url} does not have what was asked for",
    ),
    _Rule(
        "refused",
        re.compile(
            r"Authentication failed|could not read (?:Username|Password)|terminal prompts disabled"
            r"|(?:returned error: |HTTP )40[137]\b|Permission denied \(|Host key verification failed"
        ),
        "{url} does not let you in",
        "is the address right? A private repository needs a token in the address (https://TOKEN@host/…), "
        "a credential helper of git, or an ssh key",
    ),
    _Rule(
        "refused",
        re.compile(
            r"[Rr]epository .*not found|(?:returned error: |HTTP )404\b|does not appear to be a git repository"
            r"|repository '.*' does not exist|not valid: is this a git repository"
        ),
        "there is no git repository at {url}",
        "correct its address in the definition's image.yaml",
    ),
    _Rule(
        "refused",
        re.compile(r"SSL certificate problem|certificate verif\w+ failed|local issuer certificate"),
        "the certificate of {url} is not trusted",
        "name the file with your certificates in SSL_CERT_FILE or GIT_SSL_CAINFO",
    ),
    _Rule(
        "refused",
        re.compile(r"transport '.*' not allowed|remote helper for|bad/illegal format|Port number|Malformed input"),
        "git cannot use the address {url}",
        "addresses look like https://host/owner/repository.git, ssh://git@host/… or /a/folder",
    ),
    _Rule(
        TRANSIENT,
        re.compile(
            r"Could(?:n't| not) (?:resolve|connect)|Failed to connect|Connection (?:refused|reset|timed out|closed)"
            r"|timed out|Empty reply|too slow|transfer closed|(?:returned error: |HTTP )(?:5\d\d|4(?:08|29))\b"
            r"|early EOF|hung up unexpectedly|unexpected disconnect|Network is unreachable|No route to host"
            r"|SSL_ERROR_SYSCALL|unexpected eof|TLS connection was non-properly|GnuTLS recv error|not closed cleanly"
            r"|RPC failed; curl (?:7|16|18|28|52|55|56|92)\b|name resolution",
            re.IGNORECASE,
        ),
        "{url} does not answer",
        "look at the network and at HTTPS_PROXY, and run this again",
    ),
    _Rule(
        "damaged",
        re.compile(
            r"packed-refs|bad object|missing (?:blob|tree|commit|object)|corrupt|is empty|not a git repository"
            r"|could not (?:parse|fetch)|failed to (?:read|traverse)|unable to read|unable to (?:lock|update local) ref"
            r"|cannot lock ref|packfile|pack has|bad config|Could not read [0-9a-f]{40}|index file|index-pack"
            r"|revision walk"
        ),
        "the mirror of {url} is damaged",
    ),
)
_OTHER = _Rule("other", re.compile(""), "git failed on {url}")


@dataclass(frozen=True)
class GitFailure:
    """A failed git command: its ``kind`` (``TRANSIENT`` or that of the rule that matched) and the error to raise."""

    kind: str
    error: SourceError


def classify(stderr: str, url: str, *, tries: int = 1) -> GitFailure:
    """Classifies a failed command. ``stderr`` is its error output without secrets; ``tries`` how often it was run."""
    rule = next((rule for rule in _RULES if rule.pattern.search(stderr)), _OTHER)
    times = f" ({tries} tries)" if tries > 1 else ""
    message = f"{rule.message.format(url=url)}{times}: {shorten(stderr) or 'git said nothing'}"
    kinds = {"missing": MissingError, "damaged": DamagedError}
    return GitFailure(rule.kind, kinds.get(rule.kind, SourceError)(message, hint=rule.hint))


def shorten(stderr: str) -> str:
    """Shortens git's error output to the lines that matter: git's own errors, without the advice below them."""
    lines = list(dict.fromkeys(printable(line) for line in stderr.splitlines() if line.strip()))
    errors = [line for line in lines if line.startswith(("fatal:", "error:", "remote:"))]
    return "; ".join(line.removeprefix("fatal: ").removeprefix("error: ") for line in (errors or lines)[:4])


def printable(text: str) -> str:
    """Makes text from elsewhere safe to print: what would move the cursor or colour the screen becomes a ``?``."""
    return "".join(letter if letter.isprintable() else "?" for letter in text.strip())
