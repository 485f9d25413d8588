"""copy and nodes: further engines, and registries that fail between them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import TransferError
from builder.base.project import Project
from builder.engine import client, containers, images, transfer
from builder.engine.client import Endpoint
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock
from builder.lock.text import dump_lock
from tests import registries, shared, stock
from tests.conftest import Command, command, remove_all
from tests.engine.relay import over_tcp
from tests.processes import until
from tests.registries import Front, Node, Registry

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.engine
FILLER = 4000  # kilobytes that every node lacks


@pytest.fixture(scope="module")
def node(endpoint: Endpoint) -> Iterator[Node]:
    """A second engine."""
    with registries.node(*shared.bridge(1)) as started:
        yield started


@pytest.fixture(scope="module")
def registry_image(endpoint: Endpoint) -> Iterator[str]:
    with registries.image(endpoint) as name:
        yield name


@pytest.fixture
def front(registry: Registry) -> Iterator[Front]:
    with registries.before(registry) as started:
        yield started


@pytest.fixture
def built(small: Project, builder: Command, repository: str, node: Node) -> Iterator[str]:
    """Number 1 of ``small``, which the node lacks."""
    registries.grow(small, FILLER, "one")
    builder("build", "chat")
    yield repository
    remove_all(node.endpoint, repository)


@pytest.fixture
def stocked(small: Project, endpoint: Endpoint, repository: str, node: Node) -> Iterator[str]:
    """The same without a build."""
    stock.stock(small, endpoint, repository, (1,))
    yield repository
    remove_all(node.endpoint, repository)


def has(node: Node, name: str, project: Project) -> bool:
    """True if the node has the image that images.lock records."""
    details = images.inspect_image(node.endpoint, name)
    repository, number = images.split_tag(name)
    recorded = lock_file.read_lock(project.lock).image(ImageName(repository, int(number)))
    assert recorded
    return details is not None and images.fingerprint(details) == recorded.fingerprint


def names(node: Node) -> set[str]:
    """All that the node calls images by."""
    details = client.listed(node.endpoint, "/images/json")
    return {name for image in details for name in (*(image["RepoTags"] or ()), *(image["RepoDigests"] or ()))}


@pytest.mark.long
def test_through_a_registry_of_its_own_only_what_lacks_moves(
    small: Project, builder: Command, built: str, node: Node, registry_image: str, endpoint: Endpoint
) -> None:
    registries.configure(small, nodes={"one": node.host, "gone": "unix:///nobody/here.sock"})
    environ = {"BUILDER_REGISTRY_IMAGE": registry_image}
    done = builder("copy", f"{built}:1", "gone", "one", code=1, environ=environ)
    assert f"{built}:1 is on one, and latest there" in done.stdout
    assert "is not on gone: no Docker engine answers" in done.stderr
    assert has(node, f"{built}:1", small)
    assert not [name for name in names(node) if name.startswith("127.0.0.1")]
    assert containers.container_listing(endpoint, transfer.LABEL) == []

    done = builder("copy", f"{built}:1", "one", environ={"BUILDER_REGISTRY_IMAGE": "no/such-registry:1"})
    assert "one: already has the image" in done.stderr

    registries.grow(small, 1, "two")
    builder("build", "chat")
    done = builder("copy", f"{built}:2", "one", environ=environ)
    # Of the base, the shared layers and the mod's, one.
    assert "has the image now; 1 layer copied" in done.stderr
    latest = images.inspect_image(node.endpoint, f"{built}:latest")
    assert latest
    assert f"{built}:2" in latest.tags


@pytest.mark.long
def test_a_rollback_copies_a_missing_image_from_a_node(
    small: Project, builder: Command, built: str, node: Node, registry_image: str, endpoint: Endpoint
) -> None:
    environ = {"BUILDER_REGISTRY_IMAGE": registry_image}
    registries.configure(small, nodes={"gone": "unix:///nobody/here.sock", "one": node.host})
    builder("copy", f"{built}:1", "one", environ=environ)
    registries.grow(small, 1, "two")
    builder("build", "chat")
    images.remove_image(endpoint, f"{built}:1")

    failed = builder("rollback", "chat", code=1, environ={"BUILDER_REGISTRY_IMAGE": "no/such-registry:1"}).stderr
    assert "no registry is available for the copy" in failed
    assert f"without a transfer, `builder rebuild {built}:1` builds the image again" in " ".join(failed.split())
    done = builder("rollback", "chat", environ=environ)
    assert f"copying {built}:1 from one" in done.stderr
    assert f"{built}:2 → {built}:1" in done.stdout

    # A node that cannot even be addressed is told; the image is built again.
    registries.configure(small, nodes={"one": "no-such-context"})
    builder("rollback", "chat")
    images.remove_image(endpoint, f"{built}:1")
    images.remove_image(node.endpoint, f"{built}:1")
    done = builder("rollback", "chat", environ=environ)
    assert f"one was not asked for {built}:1: the docker context `no-such-context`" in " ".join(done.stderr.split())
    assert f"building {built}:1 again" in done.stderr


@pytest.mark.long
def test_what_an_earlier_copy_left_under_the_number_does_not_matter(
    small: Project, builder: Command, stocked: str, node: Node, registry_image: str, endpoint: Endpoint
) -> None:
    registries.configure(small, nodes={"one": node.host})
    environ = {"BUILDER_REGISTRY_IMAGE": registry_image}
    builder("copy", f"{stocked}:1", "one", environ=environ)
    # The project begins again, so its number 1 is another image. The volume of the temporary registry stays.
    for engine in (endpoint, node.endpoint):
        remove_all(engine, stocked)
    name = ImageName(stocked, 1)
    again = stock.number(endpoint, stocked, 1, [{"file": b"again"}])
    small.lock.write_text(dump_lock(Lock().with_image(name, again).with_current(name)), encoding="utf-8")
    images.tag_image(endpoint, str(name), f"{stocked}:latest")
    builder("copy", f"{stocked}:1", "one", environ=environ)
    assert has(node, f"{stocked}:1", small)


@pytest.mark.long
def test_a_node_that_is_reached_by_tcp_wants_a_registry_before_anything_moves(
    small: Project, builder: Command, stocked: str, node: Node, registry: Registry, endpoint: Endpoint
) -> None:
    with over_tcp(node.host) as address:
        registries.configure(small, nodes={"one": address})
        # Nothing is started for it: an image of a registry that cannot be had is not asked for.
        done = builder("copy", f"{stocked}:1", "one", code=1, environ={"BUILDER_REGISTRY_IMAGE": "no/such-registry:1"})
        assert f"the engine at {address} cannot reach a registry on this machine" in done.stderr
        assert "set `registry:` in builder.yaml to a registry" in done.stderr
        assert images.inspect_image(node.endpoint, f"{stocked}:1") is None
        registries.configure(small, registry=registry.address, nodes={"one": address})
        assert f"{stocked}:1 is on one" in builder("copy", f"{stocked}:1", "one").stdout
    assert has(node, f"{stocked}:1", small)


def test_a_node_that_has_another_image_under_the_number_is_told_before_anything_moves(
    small: Project, builder: Command, built: str, node: Node
) -> None:
    stock.load(node.endpoint, f"{built}:1", [{"file": b"other"}])
    registries.configure(small, nodes={"one": node.host})
    # Nothing is started for it: an image of a registry that cannot be had is not asked for.
    done = builder("copy", f"{built}:1", "one", code=1, environ={"BUILDER_REGISTRY_IMAGE": "no/such-registry:1"})
    assert f"{built}:1 is not the image that images.lock records: its tag was moved in the engine of one" in done.stderr
    frees = f"`docker tag {built}:1 OTHER-NAME; docker image rm {built}:1` frees the name"
    assert frees in done.stderr
    assert f"→ on one, {frees}; then `builder copy {built}:1 one`" in builder("nodes", "check", code=1).stdout


@pytest.mark.long
def test_nodes_tell_what_they_have_serve_and_what_is_stale(
    small: Project, builder: Command, built: str, node: Node, registry: Registry, endpoint: Endpoint
) -> None:
    registries.configure(small, registry=registry.address, nodes={"one": node.host, "gone": "tcp://127.0.0.1:9"})
    builder("copy", f"{built}:1", "one")
    labels = {
        "builder.serve": "chat",
        "builder.serve.image": f"{built}:1",
        "builder.serve.model": "Org/Model-1B",
    }
    with containers.running(node.endpoint, f"{built}:1", labels=labels):
        found = {one["node"]: one for one in json.loads(builder("nodes", "--json", code=1).stdout)["nodes"]}
        assert found["gone"]["error"]
        (image,) = found["one"]["images"]
        assert image == {"image": f"{built}:1", "state": "present", "latest": True, "current": True, "stale": False}
        assert found["one"]["serving"][0] | {"stale": False} == found["one"]["serving"][0]
        registries.grow(small, 1, "two")
        builder("build", "chat")
        output = builder("nodes", code=1).stdout
        assert "stale latest" in output
        assert "chat (stale)" in output
        images.tag_image(node.endpoint, f"{built}:1", f"{built}:2")
        assert "moved" in builder("nodes", code=1).stdout


@pytest.mark.full
@pytest.mark.parametrize("fault", ["500", "wrong"])
def test_a_registry_that_fails_leaves_no_half_image_and_a_retry_goes_on(
    small: Project, builder: Command, built: str, node: Node, front: Front, fault: str
) -> None:
    registries.configure(small, registry=front.address, nodes={"one": node.host})
    builder("push", f"{built}:1")
    before = names(node)
    front.fault = fault
    done = builder("copy", f"{built}:1", "one", code=1)
    assert front.reached.is_set()
    assert f"{built}:1 is not on one: " in done.stderr
    assert "what to do: " in done.stderr
    assert names(node) == before
    front.heal()
    if fault == "wrong":  # the engine keeps the damaged part until its next clean-up
        assert "wait a minute until the engine has removed it" in done.stderr
        argv = command(small, "copy", f"{built}:1", "one")
        until(lambda: subprocess.run(argv, capture_output=True).returncode == 0, "the damaged part is removed")
    builder("copy", f"{built}:1", "one")
    assert has(node, f"{built}:1", small)


@pytest.mark.full
def test_a_registry_killed_in_mid_copy(
    small: Project, builder: Command, built: str, node: Node, front: Front, registry: Registry
) -> None:
    registries.configure(small, registry=front.address, nodes={"one": node.host})
    builder("push", f"{built}:1")
    front.fault = "stall"
    copying = subprocess.Popen(command(small, "copy", f"{built}:1", "one"), stderr=subprocess.PIPE, text=True)
    assert front.reached.wait(120)
    registry.kill()
    front.heal()
    _, output = copying.communicate(timeout=120)
    assert copying.returncode == 1, output
    assert f"{built}:1 is not on one: " in output
    assert f"{built}:1" not in names(node)
    registry.start()
    builder("copy", f"{built}:1", "one")
    assert has(node, f"{built}:1", small)


@pytest.mark.full
def test_a_node_killed_in_mid_copy(small: Project, builder: Command, built: str, node: Node, front: Front) -> None:
    registries.configure(small, registry=front.address, nodes={"one": node.host})
    builder("push", f"{built}:1")
    front.fault = "stall"
    copying = subprocess.Popen(command(small, "copy", f"{built}:1", "one"), stderr=subprocess.PIPE, text=True)
    assert front.reached.wait(120)
    os.kill(node.pid, signal.SIGKILL)
    _, output = copying.communicate(timeout=120)
    assert copying.returncode == 1, output
    assert output.count("is not on one") == 1
    front.heal()
    node.script("down")
    node.script("up")
    assert f"{built}:1" not in names(node)
    builder("copy", f"{built}:1", "one")
    assert has(node, f"{built}:1", small)


@pytest.mark.full
def test_a_connection_that_is_cut_is_made_again_by_the_engine(
    small: Project, builder: Command, built: str, node: Node, front: Front
) -> None:
    registries.configure(small, registry=front.address, nodes={"one": node.host})
    builder("push", f"{built}:1")
    front.fault = "cut"
    builder("copy", f"{built}:1", "one")
    assert front.reached.is_set()
    assert has(node, f"{built}:1", small)


@pytest.mark.full
def test_a_registry_that_hangs_is_told(
    small: Project, builder: Command, built: str, node: Node, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    registries.configure(small, registry=front.address, nodes={"one": node.host})
    builder("push", f"{built}:1")
    digest = lock_file.read_lock(small.lock).images[built].numbers[1].digest
    assert digest
    monkeypatch.setattr(transfer, "IDLE", 10.0)
    front.fault = "stall"
    with pytest.raises(TransferError, match="no progress for 10 seconds"):
        transfer.pull_layers(node.endpoint, f"{front.address}/{built}", digest, {}, lambda _: None)
    front.heal()
    builder("copy", f"{built}:1", "one")
    assert has(node, f"{built}:1", small)


@pytest.mark.full
def test_a_slow_registry_is_waited_for(
    small: Project, builder: Command, built: str, node: Node, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    registries.configure(small, registry=front.address, nodes={"one": node.host})
    builder("push", f"{built}:1")
    front.fault = "slow"
    healing = threading.Timer(3, front.heal)
    healing.start()
    builder("copy", f"{built}:1", "one")
    healing.join()
    assert has(node, f"{built}:1", small)


@pytest.mark.full
def test_a_node_whose_disk_is_full(small: Project, builder: Command, repository: str, registry: Registry) -> None:
    registries.grow(small, 60_000, "one")
    builder("build", "chat")
    with registries.node(*shared.bridge(2), disk="120m") as full:
        registries.configure(small, registry=registry.address, nodes={"full": full.host})
        done = builder("copy", f"{repository}:1", "full", code=1)
        assert "no space left on device" in done.stderr
        assert "make room" in done.stderr
        assert f"{repository}:1" not in names(full)


@pytest.mark.full
def test_a_copy_that_is_interrupted_or_killed_leaves_no_registry(
    small: Project, builder: Command, built: str, node: Node, registry_image: str, endpoint: Endpoint
) -> None:
    registries.configure(small, nodes={"one": node.host})
    environ = {**os.environ, "BUILDER_REGISTRY_IMAGE": registry_image}
    for number in (signal.SIGINT, signal.SIGKILL):
        argv = command(small, "copy", f"{built}:1", "one")
        copying = subprocess.Popen(argv, env=environ, stderr=subprocess.PIPE, text=True)
        until(lambda: containers.container_listing(endpoint, transfer.LABEL), "a registry runs")
        copying.send_signal(number)
        _, output = copying.communicate(timeout=120)
        assert copying.returncode in {130, -signal.SIGKILL}, output
        assert len(containers.container_listing(endpoint, transfer.LABEL)) == (number == signal.SIGKILL)
    # The next copy ends what the killed one left.
    builder("copy", f"{built}:1", "one", environ={"BUILDER_REGISTRY_IMAGE": registry_image})
    assert containers.container_listing(endpoint, transfer.LABEL) == []
    assert has(node, f"{built}:1", small)
