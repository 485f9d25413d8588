"""Running git: failures that are retried and others that are not, and no secret in any output."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.definitions.source_patches import SourcePatch
from builder.sources import git, mirror, pulls
from builder.sources.git import MissingError
from tests.sources.git_server import Vllm, served_vllm

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.slow

SECRET = "s3cret/pass word"
WRITTEN = "s3cret%2Fpass%20word"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git, "PAUSES", (0.01, 0.02, 0.04))


def resolve(vllm: Vllm, url: str = "", ref: str = "main") -> str:
    return mirror.resolve_ref(mirror.locate(vllm.mirrors, url or vllm.url, vllm.messages.append), ref).commit


@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_a_server_in_trouble_is_asked_again(vllm: Vllm, status: int) -> None:
    vllm.server.trouble.status, vllm.server.trouble.refuse = status, 2
    assert resolve(vllm) == vllm.history.main
    assert [line.rpartition("; ")[2] for line in vllm.messages[:2]] == [
        "trying again in 0.01 s",
        "trying again in 0.02 s",
    ]


def test_a_dropped_connection_is_tried_again(vllm: Vllm) -> None:
    vllm.server.trouble.drop = 3
    assert resolve(vllm) == vllm.history.main


def test_a_fetch_that_breaks_off_is_tried_again(vllm: Vllm) -> None:
    vllm.server.trouble.stall_after = 400
    vllm.server.trouble.over.set()  # does not hang then, but closes the connection

    def tell(line: str) -> None:
        vllm.messages.append(line)
        if "trying again" in line:
            vllm.server.trouble.stall_after = None

    assert mirror.resolve_ref(mirror.locate(vllm.mirrors, vllm.url, tell), "main").commit == vllm.history.main
    assert any("trying again" in line for line in vllm.messages)


def test_a_server_that_stays_in_trouble_is_asked_four_times(vllm: Vllm) -> None:
    vllm.server.trouble.status, vllm.server.trouble.refuse = 503, 100
    with pytest.raises(SourceError, match=r"does not answer \(4 tries\): .*503"):
        resolve(vllm)
    assert len(vllm.server.requests) == 4
    # A check of many mods asks the same server many times.
    for more in (1, 2):
        with pytest.raises(SourceError, match=r"does not answer: .*503"):
            resolve(vllm)
        assert len(vllm.server.requests) == 4 + more
    vllm.server.trouble.refuse = 0
    assert resolve(vllm) == vllm.history.main
    vllm.server.trouble.refuse = 1
    assert resolve(vllm) == vllm.history.main


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"http://127.0.0.1:9/x.git does not answer \(4 tries\)"):
        mirror.resolve_ref(mirror.locate(tmp_path, "http://127.0.0.1:9/x.git"), "main")


@pytest.mark.long
def test_a_server_that_says_nothing_is_given_up(vllm: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git, "PAUSES", ())
    monkeypatch.setattr(git, "STALLED_SECONDS", 1)
    vllm.server.trouble.stall_after = 400
    started = time.monotonic()
    with pytest.raises(SourceError, match="does not answer"):
        resolve(vllm)
    assert time.monotonic() - started < 120


def test_a_question_without_an_answer_is_given_up(vllm: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    from builder.sources import mirror

    monkeypatch.setattr(git, "PAUSES", ())
    monkeypatch.setattr(mirror, "ANSWER_SECONDS", 0.2)
    # Says nothing, and ends with the git that it is connected to.
    monkeypatch.setenv("GIT_SSH_COMMAND", "sh -c 'cat > /dev/null' --")
    with pytest.raises(SourceError, match=r"does not answer: .*the connection timed out"):
        resolve(vllm, "ssh://git@example.org/a.git")


@pytest.mark.parametrize(("status", "why"), [(401, "refuses access"), (403, "refuses access")])
def test_a_refusal_is_not_tried_again(vllm: Vllm, status: int, why: str) -> None:
    vllm.server.trouble.status, vllm.server.trouble.refuse = status, 100
    with pytest.raises(SourceError, match=why) as caught:
        resolve(vllm)
    assert "token" in caught.value.hint
    assert len(vllm.server.requests) == 1


def test_what_is_not_there_is_not_tried_again(vllm: Vllm) -> None:
    with pytest.raises(SourceError, match="there is no git repository at"):
        resolve(vllm, f"{vllm.server.url}/other.git")
    with pytest.raises(MissingError):
        resolve(vllm, ref="nothing")
    assert not any("trying again" in line for line in vllm.messages)


def test_the_login_in_an_address_is_used_and_stands_nowhere(vllm: Vllm, capfd: pytest.CaptureFixture[str]) -> None:
    vllm.server.trouble.login = f"me:{SECRET}"
    url = f"{vllm.server.with_login(f'me:{WRITTEN}')}/vllm.git"
    pin = mirror.resolve_ref(mirror.locate(vllm.mirrors, url, vllm.messages.append), "main")
    assert pin.git == vllm.url
    assert mirror.read_files(mirror.locate(vllm.mirrors, url), pin.commit, ["VERSION"]).get("VERSION") == b"0.19.1\n"
    vendored = pulls.vendor(mirror.locate(vllm.mirrors, url, vllm.messages.append), SourcePatch("40898"), pin.commit)
    with pytest.raises(SourceError) as missing:
        mirror.resolve_ref(mirror.locate(vllm.mirrors, url), "nothing")
    told = f"{pin} {vendored} {vllm.messages} {missing.value} {missing.value.hint} {capfd.readouterr()}"
    assert_nowhere(vllm.mirrors, told)


def test_a_wrong_login_is_refused_once_and_not_repeated(vllm: Vllm) -> None:
    vllm.server.trouble.login = "me:another"
    with pytest.raises(SourceError, match="refuses access") as caught:
        resolve(vllm, f"{vllm.server.with_login(f'me:{WRITTEN}')}/vllm.git")
    assert_nowhere(vllm.mirrors, f"{caught.value} {caught.value.hint} {vllm.messages}")
    assert len(vllm.server.requests) == 2  # without and with the login


def test_a_login_reaches_no_other_host(vllm: Vllm, tmp_path: Path) -> None:
    with served_vllm(tmp_path / "other") as other:
        other.server.trouble.login = f"me:{SECRET}"
        vllm.server.trouble.redirect = other.server.url
        with pytest.raises(SourceError, match="refuses access"):
            resolve(vllm, f"{vllm.server.with_login(f'me:{WRITTEN}')}/vllm.git")


def test_no_password_is_asked_for(vllm: Vllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = tmp_path / "asked"
    program = tmp_path / "askpass"
    program.write_text(f"#!/bin/sh\ntouch {prompts}\n")
    program.chmod(0o755)
    monkeypatch.setenv("SSH_ASKPASS", str(program))
    monkeypatch.setenv("GIT_ASKPASS", str(program))
    vllm.server.trouble.login = "me:x"
    with pytest.raises(SourceError, match="refuses access"):
        resolve(vllm)
    assert not prompts.exists()


def test_settings_of_the_person_reach_git_with_ours_beside_them(vllm: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.{vllm.server.url}/.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://git.example.org/")
    assert resolve(vllm, "https://git.example.org/vllm.git") == vllm.history.main


def test_a_server_can_not_colour_the_screen(vllm: Vllm) -> None:
    vllm.history.repository.git("config", "uploadpack.hideRefs", "refs/tags")
    commits = mirror.commits_between(vllm.source, vllm.history.v0_19_1, vllm.history.main)
    assert all(commit.title.isprintable() for commit in commits.commits)


def assert_nowhere(folder: Path, told: str) -> None:
    """No spelling of the secret is in what was told, nor in any file below ``folder``."""
    spellings = (SECRET, WRITTEN, "czNjcmV0", "s3cret")
    everything = b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
    assert len(everything) > 100
    for spelling in spellings:
        assert spelling not in told
        assert spelling.encode() not in everything
        assert spelling not in str([str(file) for file in folder.rglob("*")])
        assert spelling not in str(dict(os.environ))


def test_a_pack_without_an_end_is_not_kept(vllm: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is that of the kernel on each file, so the length of the real pack is as good as any."""
    monkeypatch.setattr(git, "_LARGEST_PACK", 2048)
    with pytest.raises(SourceError, match="so it was not fetched"):
        resolve(vllm)
    monkeypatch.undo()
    assert resolve(vllm) == vllm.history.main
