"""Images of others by date: the list of a registry, and a base that is pinned by its day."""

from __future__ import annotations

import base64
import http.client
import json
import os
import secrets
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest

from builder.base import processes, words
from builder.base.errors import SourceError, UsageError
from builder.commands import bases
from builder.engine import images, transfer
from builder.engine import registry as engine_registry
from builder.engine.client import environment
from builder.lock import lock_file
from tests import projects, registries, shared, web_server
from tests.commands import bisect_trials
from tests.conftest import BASE
from tests.workspaces import NO_ENGINE, workspace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.base.project import Project
    from builder.engine.client import Endpoint
    from tests.conftest import Command
    from tests.registries import Registry

    Published = tuple[Registry, dict[str, str]]

NAME = "keeper/nightly"
LABELS = {
    "dev.keeper.vllm-version": "0.33.0",
    "dev.keeper.vllm-hash": "1f3a5b7c9d1f3a5b7c9d1f3a5b7c9d1f3a5b7c9d",
    "dev.keeper.repo-commit": "0123456789abcdef0123456789abcdef01234567",
}


@pytest.mark.parametrize(
    ("tag", "day"),
    [
        ("nightly-20260920", "2026-09-20"),
        ("2026092001", "2026-09-20"),
        ("2026-09-20", "2026-09-20"),
        ("v0.33.0-20260920-cu130", "2026-09-20"),
        ("latest", ""),
        ("20261399", ""),
        ("2026-0920", ""),
        ("20260230", ""),
        ("sha-120260920", ""),
        ("13.0.2", ""),
    ],
)
def test_the_day_of_a_tag(tag: str, day: str) -> None:
    assert images.day_of(tag) == day


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, endpoint: Endpoint) -> Iterator[Published]:
    """A registry with images of four days, two of one of them, and their digests."""
    with registries.registry(tmp_path_factory.mktemp("registry")) as registry:
        registries.push_base(endpoint, f"{registry.address}/{NAME}:latest")
        digests = {
            tag: registries.publish(registry, NAME, tag, {**LABELS, "number": tag} if tag != "20260918" else {})
            for tag in ("20260918", "20260919", "2026092001", "2026092002", "20260922")
        }
        yield registry, digests
        registries.forget(endpoint, registry.address)


def upstream_findings(builder: Command) -> str:
    """What `doctor --upstream` prints, in one line."""
    return " ".join(builder("doctor", "--upstream", code=None).stdout.split())


def base_of(project: Project, base: str) -> None:
    """Gives the definition of a small project another base image."""
    path = project.root / "dockerfiles/small/image.yaml"
    lines = path.read_text(encoding="utf-8").splitlines()
    changed = [f"base: {base}" if line.startswith("base:") else line for line in lines]
    assert changed != lines
    projects.write(path, "\n".join(changed) + "\n")


@pytest.mark.engine
def test_the_images_of_a_registry_by_date(published: Published, small: Project, builder: Command) -> None:
    registry, digests = published
    shown = json.loads(builder("bases", f"{registry.address}/{NAME}", "--json").stdout)
    assert [(image["day"], image["tag"]) for image in shown["images"]] == [
        ("2026-09-22", "20260922"),
        ("2026-09-20", "2026092002"),
        ("2026-09-20", "2026092001"),
        ("2026-09-19", "20260919"),
        ("2026-09-18", "20260918"),
    ]
    assert {image["tag"]: image["digest"] for image in shown["images"]} == digests
    newest, oldest = shown["images"][0], shown["images"][-1]
    assert newest["labels"]["vllm"] == "0.33.0"
    assert newest["labels"]["vllm_commit"] == LABELS["dev.keeper.vllm-hash"]
    assert oldest["labels"] == {}
    assert oldest["size"] > 1_000_000

    base_of(small, f"{registry.address}/{NAME}@2026-09-20")
    builder("lock", "small")
    table = builder("bases", "small", "--newest", "3").stdout
    assert "vLLM 0.33.0 1f3a5b7c9, built from 012345678, pinned by small" in " ".join(table.split())
    assert "20260919" not in table
    other = "linux/amd64" if shown["platform"] == "linux/arm64" else "linux/arm64"
    none = builder("bases", "small", "--newest", "4", "--platform", other)
    assert none.stdout.endswith(f": none of its 4 newest tags is for {other}\n")
    assert "not read: 1 older tag; `--newest N` reads more" in none.stderr


@pytest.mark.engine
def test_a_tag_whose_image_the_registry_removed_hides_no_other(
    registry: Registry, small: Project, builder: Command, endpoint: Endpoint
) -> None:
    registries.push_base(endpoint, f"{registry.address}/{NAME}:latest")
    digests = [registries.publish(registry, NAME, tag, {"number": tag}) for tag in ("20260918", "20260919")]
    connection = http.client.HTTPConnection(registry.address)

    def send(method: str, version: str, body: bytes = b"") -> bytes:
        kind = "application/vnd.oci.image.index.v1+json"
        connection.request(method, f"/v2/{NAME}/manifests/{version}", body or None, {"Content-Type": kind})
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status < 300, content
        return content

    part: dict[str, object] = {"digest": digests[1], "platform": {"os": "linux", "architecture": "amd64"}}
    part |= {"mediaType": "application/vnd.oci.image.manifest.v1+json", "size": 1}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [part]}
    send("PUT", "20260919", json.dumps(index).encode())
    send("DELETE", digests[1])

    def listed() -> list[str]:
        asked = builder("bases", f"{registry.address}/{NAME}", "--platform", "linux/amd64", "--json").stdout
        return sorted(image["tag"] for image in json.loads(asked)["images"])

    assert listed() == ["20260918"]
    # The same image is pushed again.
    assert registries.publish(registry, NAME, "20260920", {"number": "20260919"}) == digests[1]
    assert listed() == ["20260918", "20260919", "20260920"]
    registries.forget(endpoint, registry.address)


@pytest.mark.engine
def test_a_base_is_pinned_by_its_day(published: Published, small: Project, builder: Command) -> None:
    registry, digests = published
    image = f"{registry.address}/{NAME}"
    base_of(small, f"{image}@2026-09-20")
    builder("build", "small")
    (pins,) = lock_file.read_lock(small.lock).pins["small"].values()
    assert pins.base is not None
    assert (pins.base.requested, pins.base.resolved) == (f"{image}:2026092002", digests["2026092002"])
    assert "already built" in builder("build", "small").stdout  # the day is no reason to ask the registry again

    failed = builder("build", "small", "--update", "base=2026-09-19", code=2)
    assert "base of small accepts no value" in failed.stderr
    base_of(small, f"{image}@2026-09-21")
    failed = builder("build", "small", code=6)
    assert "no image of 2026-09-21: the nearest are 2026092002 and 20260922" in " ".join(failed.stderr.split())

    base_of(small, f"{image}:latest")
    builder("lock", "small", "--update", "base=2026-09-19")
    (pins,) = lock_file.read_lock(small.lock).pins["small"].values()
    assert pins.base is not None
    assert (pins.base.requested, pins.base.resolved) == (f"{image}:latest", digests["20260919"])
    builder("build", "small")
    assert "already built" in builder("build", "small").stdout


@pytest.mark.engine
@pytest.mark.parametrize("place", ["registry", pytest.param("folder", marks=pytest.mark.long)])
def test_a_base_that_vanished_is_taken_from_the_mirror(
    small: Project, builder: Command, endpoint: Endpoint, tmp_path: Path, place: str
) -> None:
    with registries.registry(tmp_path / "own") as own, registries.registry(tmp_path / "theirs") as theirs:
        registries.push_base(endpoint, f"{theirs.address}/{NAME}:latest")
        digest = registries.publish(theirs, NAME, "20260920", {"test": shared.unique_name()})
        image = f"{theirs.address}/{NAME}"
        base_of(small, f"{image}@2026-09-20")
        if place == "folder":
            registries.configure(small, mirror="copies")
            copy = shown = f"{small.root}/copies@{digest}"
        else:
            registries.configure(small, registry=own.address)
            shown = f"{own.address}/mirror/{image.replace(':', '-')}"
            copy = f"{shown}:20260920@{digest}"
        builder("lock", "small")
        assert f"copied to {copy}" in builder("mirror", "small").stdout
        assert "already copied to" in builder("mirror", f"{image}@2026-09-20").stdout
        assert "ok" in upstream_findings(builder)
        registries.withdraw(theirs, NAME, digest)
        upstream = upstream_findings(builder)
        assert f"the base of small: the registry no longer has the image; a copy exists: {shown}" in upstream
        built = builder("build", "small")
        assert f"building on the copy {shown}" in " ".join(built.stderr.split())
        (pins,) = lock_file.read_lock(small.lock).pins["small"].values()
        assert pins.base is not None
        assert pins.base.resolved == digest
        listed = builder("list")
        assert "only here" not in listed.stdout
        assert "gone" not in listed.stderr


@pytest.mark.engine
@pytest.mark.parametrize("place", [pytest.param("registry", marks=pytest.mark.long), "folder"])
def test_the_engine_s_copy_of_what_vanished_is_mirrored(
    small: Project, builder: Command, endpoint: Endpoint, tmp_path: Path, place: str
) -> None:
    with registries.registry(tmp_path / "own") as own, registries.registry(tmp_path / "theirs") as theirs:
        registries.push_base(endpoint, f"{theirs.address}/{NAME}:latest")
        registries.configure(small, registry=own.address, mirror="copies" if place == "folder" else "")
        image = f"{theirs.address}/{NAME}"
        lost = registries.publish(theirs, NAME, "20260920", {"test": shared.unique_name()})
        kept = registries.publish(theirs, NAME, "20260921", {"test": shared.unique_name()})
        transfer.pull_layers(endpoint, image, kept, {}, lambda _: None)
        try:
            base_of(small, f"{image}:20260921")
            builder("lock", "small")
            theirs.kill()
            assert "this engine has the last known copy" in upstream_findings(builder)
            copied = " ".join(builder("mirror", f"{image}@{kept}").stderr.split())
            assert f"copying {image}@{kept} from this engine" in copied
            builder("mirror", f"{image}@{lost}", code=6 if place == "folder" else 1)
        finally:
            images.remove_image(endpoint, f"{image}@{kept}")


@pytest.mark.engine
def test_a_registry_that_does_not_answer_is_no_reason_to_choose_another_image(small: Project, builder: Command) -> None:
    projects.add_recipe(small.root, "away", "127.0.0.1:9/none:1", "Org/Model-2B", [])
    upstream = upstream_findings(builder)
    assert "no copy is known → check the network" in upstream
    assert "choose another image" not in upstream


@pytest.mark.engine
def test_what_exists_nowhere_but_here_is_in_the_list(
    small: Project, builder: Command, endpoint: Endpoint, repository: str, tmp_path: Path
) -> None:
    """A number on a base that vanished, an adopted image that vanished, and one that never was in a registry."""

    def only_here() -> set[str]:
        shown = json.loads(builder("list", "--json").stdout)["images"]
        return {image["image"] for image in shown if image["only_here"]}

    with registries.registry(tmp_path / "theirs") as theirs:
        registries.push_base(endpoint, f"{theirs.address}/{NAME}:latest")
        image = f"{theirs.address}/{NAME}"
        digest = registries.publish(theirs, NAME, "20260920", {"test": shared.unique_name()})
        registries.configure(small, mirror="copies")
        base_of(small, f"{image}@2026-09-20")
        builder("build", "small")
        own = f"{repository}-own:1"
        projects.write(tmp_path / "own/Dockerfile", f"FROM {BASE}\nENV OWN=yes\n")
        argv = [*endpoint.buildx, "build", "--load", "--tag", own, str(tmp_path / "own")]
        try:
            transfer.pull_layers(endpoint, image, digest, {}, lambda _: None)
            subprocess.run(argv, check=True, capture_output=True, env={**os.environ, **environment(endpoint)})
            builder("adopt", f"{image}@{digest}", "--as", repository)
            projects.add_recipe(small.root, "theirs", f"{image}:20260920", "Org/Model-2B", [])
            builder("adopt", own, "--as", repository)
            assert only_here() == {f"{repository}:3"}
            registries.withdraw(theirs, NAME, digest)
            upstream = upstream_findings(builder)
            assert f"{repository}:1: this image exists only here" in upstream
            gone = f"{image}:20260920: the base of small, {repository}:1: the registry no longer has the image"
            assert gone in upstream
            assert only_here() == {f"{repository}:{number}" for number in (1, 2, 3)}
            shown = builder("list")
            assert shown.stdout.count("only here") == 3
            for user in ("base of small", "image of recipe theirs"):
                assert f"was missing from its registry on {words.now()[:10]}: the image is the {user}" in shown.stderr
            theirs.kill()
            builder("mirror", f"{repository}:2")
            theirs.start()
            upstream_findings(builder)
            assert only_here() == {f"{repository}:3"}
        finally:
            images.remove_image(endpoint, own)
            images.remove_image(endpoint, f"{image}@{digest}")


@pytest.mark.parametrize("name", ["a b", "A", "https://ghcr.io/a/b", "-x", "a:b:c", "$(id)"])
def test_what_names_no_image_is_refused_before_a_registry_is_asked(tmp_path: Path, name: str) -> None:
    context = workspace(projects.make(tmp_path), NO_ENGINE)
    with pytest.raises(UsageError, match="is not the name of an image"):
        bases.list_bases(context, name, None, 5)
    projects.write(tmp_path / "builder.yaml", "registry: 127.0.0.1:1/x\n")
    with pytest.raises(UsageError, match="is not the name of an image"):
        list(bases.mirror_images(context, [name]))


@pytest.mark.engine
def test_what_cannot_be_asked_is_said(published: Published, small: Project, builder: Command, tmp_path: Path) -> None:
    registry, _ = published
    missing = builder("bases", f"{registry.address}/keeper/none", code=6).stderr
    assert "404" in missing
    assert "cannot be read" in builder("bases", f"127.0.0.1:{processes.free_port()}/a/b", code=6).stderr
    with registries.registry(tmp_path, users=registries.HTPASSWD) as closed:
        assert "401" in builder("bases", f"{closed.address}/a/b", code=6).stderr
        login = base64.b64encode(b"tester:secret").decode()
        projects.write(tmp_path / "config.json", json.dumps({"auths": {closed.address: {"auth": login}}}))
        with_login = {"DOCKER_CONFIG": str(tmp_path)}
        # Whoever may come in hears that there is nothing of that name.
        assert "404" in builder("bases", f"{closed.address}/a/b", environ=with_login, code=6).stderr


@pytest.mark.engine
def test_a_list_of_several_pages_is_read_whole(
    published: Published, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, digests = published
    monkeypatch.setattr(engine_registry, "_PAGE", 2)
    assert set(engine_registry.tags(endpoint, f"{registry.address}/{NAME}")) == {*digests, "latest"}


class _TokenRegistry(BaseHTTPRequestHandler):
    """A registry that wants a token, as the large ones do: it names the service that gives one."""

    def do_GET(self) -> None:
        address = f"http://127.0.0.1:{self.server.server_port}"  # type: ignore[attr-defined]
        if self.path.startswith("/token?"):
            assert parse_qs(urlsplit(self.path).query) == {"service": ["s"], "scope": ["repository:a/b:pull"]}
            self._answer(200, {"token": "once"})
        elif self.headers["Authorization"] == "Bearer once":
            self._answer(200, {"tags": ["20260920", "../../etc", 7 * "x"]})
        else:
            challenge = f'Bearer realm="{address}/token",service="s",scope="repository:a/b:pull"'
            self._answer(401, {}, challenge)

    def _answer(self, status: int, content: dict[str, object], challenge: str = "") -> None:
        self.send_response(status)
        if challenge:
            self.send_header("WWW-Authenticate", challenge)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.engine
def test_a_token_is_fetched_where_the_registry_wants_one(endpoint: Endpoint) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _TokenRegistry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        # A tag is a part of addresses, and what cannot be one is left out.
        assert engine_registry.tags(endpoint, f"127.0.0.1:{server.server_port}/a/b") == ("20260920", "xxxxxxx")
        server.shutdown()


@pytest.mark.engine
@pytest.mark.long
def test_the_day_among_64_that_broke_it_is_found(
    small: Project, builder: Command, endpoint: Endpoint, tmp_path: Path
) -> None:
    """Images as their keepers build them: a layer that changes every 20 days, and one of each day's own. The program is
    killed after each answer, and once in the middle of a layer."""
    days = [f"2026{month:02}{day:02}" for month in (8, 9, 10) for day in range(1, 31)][:64]
    with registries.registry(tmp_path / "theirs") as theirs, registries.before(theirs) as front:
        registries.push_base(endpoint, f"{theirs.address}/{NAME}:latest")
        slow = [registries.layer("slow", secrets.token_bytes(1_000_000)) for _ in range(4)]
        made = {}
        for place, day in enumerate(days):
            made[day] = (slow[place // 20], registries.layer("own", secrets.token_bytes(1_000_000)))
            labels = {"day": day, "org.keeper.vllm-hash": f"{day}abc"}
            registries.publish(theirs, NAME, f"nightly-{day}", labels, layers=made[day])
        for day in (days[0], days[-1]):
            base_of(small, f"{front.address}/{NAME}:nightly-{day}")
            builder("build", "small")
        script = tmp_path / "judge.sh"
        projects.write(
            script,
            "#!/bin/sh\n"
            'day=$(docker image inspect --format \'{{ index .Config.Labels "day" }}\' "$BUILDER_IMAGE") || exit 125\n'
            f'echo "$day" >> {tmp_path}/tried\n'
            f'test "$day" -lt {days[40]}\n',
        )
        script.chmod(0o755)
        arguments = ("bisect", "small", "--good", "1", "--run", str(script))
        sent, layers = front.sent, front.layers
        front.fault, front.times = "slow", 1
        result, kills = bisect_trials.run_killed(
            small,
            [*arguments, "--json"],
            {},
            tmp_path,
            lambda project: bisect_trials.answers(project) + (front.layers > layers),
        )
        (culprit,) = result["culprits"]
        assert (culprit["axis"], culprit["good"], culprit["bad"]) == (
            "base image", f"nightly-{days[39]}", f"nightly-{days[40]}"
        )  # fmt: skip
        assert f"--update base=nightly-{days[39]}" in culprit["now"]
        assert f"-vllm commit {days[39]}abc\n+vllm commit {days[40]}abc\n" in culprit["change"]
        tried = set((tmp_path / "tried").read_text(encoding="utf-8").split())
        assert len(tried) <= 8
        # Each layer of the images that were tried, once; those of the two ends are here.
        least = sum(map(len, {each for day in tried for each in made[day]} - {*made[days[0]], *made[days[-1]]}))
        assert least <= front.sent - sent <= 1.3 * least
        assert kills >= 8 + 1
        assert bisect_trials.left_over(endpoint, small) == []


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"[" * 100_000, b"<html>", b'{"tags": [1e999]}', b"null", b'{"tags": 1'])
def test_what_is_no_answer_of_a_registry(endpoint: Endpoint, content: bytes) -> None:
    with web_server.serving() as web:
        web.files["/v2/x/tags/list"] = content
        with pytest.raises(SourceError, match="does not behave like a registry"):
            engine_registry.tags(endpoint, f"{web.url.removeprefix('http://')}/x")
