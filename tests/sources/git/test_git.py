"""Credentials in addresses: apart, given to git alone, and taken out of what a server says."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.sources import git
from builder.sources.git import Address


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("https://host/a.git", Address("https://host/a.git")),
        ("https://me:s3cret@host:8443/a.git", Address("https://host:8443/a.git", "me", "s3cret")),
        ("https://me%40firm:p%2Fw%3A@host/a", Address("https://host/a", "me@firm", "p/w:")),
        ("https://ghp_token@host/a", Address("https://host/a", "x-access-token", "ghp_token")),
        ("https://me:p@ss@host/a@b", Address("https://host/a@b", "me", "p@ss")),
        ("HTTP://me:x@host", Address("HTTP://host", "me", "x")),
        ("ssh://git@host/a", Address("ssh://git@host/a")),
        ("ssh://git:x@host/a", Address("ssh://git@host/a", secret="x")),
        ("git@host:owner/a.git", Address("git@host:owner/a.git")),
        ("/a/folder", Address("/a/folder")),
        ("file:///a/b@c/d", Address("file:///a/b@c/d")),
    ],
)
def test_an_address_is_split(written: str, address: Address) -> None:
    assert git.split(written) == address


def test_an_address_does_not_print_its_secret() -> None:
    assert "s3cret" not in repr(git.split("https://me:s3cret@host/a"))


def test_the_helper_answers_for_its_host_alone_and_is_no_secret() -> None:
    private = git._remote_variables(git.GitRepository(Path("/a.git"), git.split("https://me:s3cret@host:8443/a/b")))
    helpers = {name: value for name, value in private.items() if value.startswith("credential.")}
    assert set(helpers.values()) == {"credential.https://host:8443.helper"}
    assert [name for name, value in private.items() if "s3cret" in value] == ["BUILDER_GIT_SECRET"]
    public = git._remote_variables(git.GitRepository(Path("/a.git"), Address("https://host/a")))
    assert not any(value.startswith("credential.") for value in public.values())
    assert "BUILDER_GIT_SECRET" not in public


def test_every_spelling_is_scrubbed() -> None:
    address = git.split("https://me:p%2Fw@host/a")
    scrubbed = git.scrub("p/w, p%2Fw, bWU6cC93 at https://me:p%2Fw@host/a", address)
    assert scrubbed == "***, ***, *** at https://me:***@host/a"
    assert git.scrub("as it is", Address("https://host/a")) == "as it is"


# Classification of error messages, as git, curl and ssh print them.

URL = "https://host/a.git"
AGAIN = [
    "fatal: unable to access 'https://host/a.git/': Could not resolve host: host",
    "fatal: unable to access 'https://host/a.git/': Failed to connect to host port 443 after 2 ms: Connection refused",
    "fatal: unable to access 'https://host/a.git/': Recv failure: Connection reset by peer",
    "fatal: unable to access 'https://host/a.git/': The requested URL returned error: 502",
    "fatal: unable to access 'https://host/a.git/': Operation too slow. Less than 1 bytes/sec transferred",
    "error: RPC failed; HTTP 500 curl 22 The requested URL returned error: 500\nfatal: expected flush",
    "error: RPC failed; curl 18 transfer closed with outstanding read data remaining\nfatal: early EOF\n"
    "fatal: fetch-pack: invalid index-pack output",
    "error: RPC failed; curl 56 GnuTLS recv error (-110): The TLS connection was non-properly terminated.",
    "ssh: connect to host host port 22: Connection timed out\nfatal: Could not read from remote repository.",
    "kex_exchange_identification: Connection closed by remote host\nfatal: Could not read from remote repository.",
]
REFUSED = [
    "remote: Invalid username or token.\nfatal: Authentication failed for 'https://host/a.git/'",
    "fatal: could not read Username for 'https://host': terminal prompts disabled",
    "fatal: unable to access 'https://host/a.git/': The requested URL returned error: 403",
    "error: RPC failed; HTTP 403 curl 22 The requested URL returned error: 403\n"
    "fatal: the remote end hung up unexpectedly",
    "git@host: Permission denied (publickey).\nfatal: Could not read from remote repository.",
    "remote: Repository not found.\nfatal: repository 'https://host/a.git/' not found",
    "fatal: '/a/b' does not appear to be a git repository\nfatal: Could not read from remote repository.",
    "fatal: unable to access 'https://host/a.git/': SSL certificate problem: self-signed certificate",
    "fatal: unable to access 'https://host/a.git/': server certificate verification failed. CAfile: none CRLfile: none",
    "git: 'remote-foo' is not a git command. See 'git --help'.\nfatal: remote helper for 'foo' is missing",
]
MISSING = [
    "fatal: remote error: upload-pack: not our ref dddddddddddddddddddddddddddddddddddddddd",
    "fatal: couldn't find remote ref refs/pull/5/head",
    "error: Server does not allow request for unadvertised object dddddddddddddddddddddddddddddddddddddddd",
]
LOCAL = [
    "error: file write error: No space left on device\nfatal: early EOF\nfatal: fetch-pack: invalid index-pack output",
    "error: cannot open objects/pack/tmp_pack_x: Permission denied\nfatal: early EOF",
]
DAMAGED = [
    "fatal: bad object refs/tags/v0.19.1",
    "fatal: unterminated line in ./packed-refs: 8d2413dbb",
    "error: packfile ./objects/pack/pack-1.pack does not match index",
    "fatal: not a git repository: '/a/b.git'",
]
# The server lacks objects: the mirror, which may hold the only copy of a pinned commit, is not at fault.
INCOMPLETE = [
    "fatal: git upload-pack: aborting due to possible repository corruption on the remote side.",
    "remote: fatal: could not fetch dddddddddddddddddddddddddddddddddddddddd from promisor remote",
    "remote: error: Could not read dddddddddddddddddddddddddddddddddddddddd",
]


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        *((message, "again") for message in AGAIN),
        *((message, "refused") for message in REFUSED),
        *((message, "missing") for message in MISSING),
        *((message, "local") for message in LOCAL),
        *((message, "damaged") for message in DAMAGED),
        *((message, "incomplete") for message in INCOMPLETE),
        ("fatal: something new", "other"),
    ],
)
def test_a_message_is_understood(message: str, kind: str) -> None:
    found, error = git.classify(message, URL)
    assert found == kind
    assert error.exit_code == 6
    assert URL in error.message


def test_the_telling_lines_are_kept_and_what_controls_a_terminal_is_not() -> None:
    stderr = "hint: advice\nremote: \x1b[31mgo away\nfatal: no\n"
    assert git.shorten(stderr) == "remote: ?[31mgo away; no"
