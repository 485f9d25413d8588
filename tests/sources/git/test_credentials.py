"""Credentials in addresses: apart, given to git alone, and taken out of what a server says."""

from __future__ import annotations

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
    configured = git.configuration(git.split("https://me:s3cret@host:8443/a/b"))
    assert {key for key, _ in configured} == {"credential.https://host:8443.helper"}
    assert "s3cret" not in str(configured)
    assert git.configuration(Address("https://host/a")) == ()
    assert git.environment(Address("https://host/a")) == {}


def test_every_spelling_is_scrubbed() -> None:
    address = git.split("https://me:p%2Fw@host/a")
    scrubbed = git.scrub("p/w, p%2Fw, bWU6cC93 at https://me:p%2Fw@host/a", address)
    assert scrubbed == "***, ***, *** at https://me:***@host/a"
    assert git.scrub("as it is", Address("https://host/a")) == "as it is"
