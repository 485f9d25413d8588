"""One model on several machines by real ssh: which take part, in which order they start, and how they end."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.definitions.container import LABEL
from builder.engine import client, containers
from builder.engine.containers import Service
from tests import linked
from tests.commands.linked_kitchen import Builder, builder, configure, link
from tests.commands.serving import MODEL, Kitchen
from tests.linked import Linked, Machine

__all__ = ["builder", "link"]
pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(900)]

ALL = ("--node", "one", "--node", "two", "--node", "three")


@pytest.fixture
def cluster(kitchen: Kitchen, link: Linked) -> Iterator[Kitchen]:
    """A project with three nodes that talk over TCP; nothing of it runs when the test ends."""
    configure(kitchen, link, interface=linked.INTERFACE, rdma=[])
    yield kitchen
    for each in link.machines:
        containers.remove_labelled(each.endpoint, LABEL)


def serving(each: Machine, cluster: Kitchen) -> Service | None:
    return containers.find_container(each.endpoint, cluster.name)


def nothing_runs(cluster: Kitchen, link: Linked) -> bool:
    return [serving(each, cluster) for each in link.machines] == [None, None, None]


def folded(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join(done.stderr.split())


def test_as_many_nodes_as_the_model_is_spread_over_the_head_last(
    cluster: Kitchen, link: Linked, builder: Builder
) -> None:
    cluster.recipe("-tp 2", more="cluster_only: true\n")
    done = builder("run", "chat")
    assert "tp 2 uses 2 of the nodes: one, two; not used: three" in folded(done)
    head, worker = (serving(each, cluster) for each in link.machines[:2])
    assert head is not None
    assert worker is not None
    assert worker.started < head.started
    assert serving(link.machines[2], cluster) is None
    env = client.request(link.machines[1].endpoint, "GET", f"/containers/{cluster.name}/json")["Config"]["Env"]
    address = link.machines[1].address
    assert {f"VLLM_HOST_IP={address}", f"GLOO_SOCKET_IFNAME={linked.INTERFACE}", "NCCL_IB_DISABLE=1"} <= set(env)
    assert '"--headless"' in builder("logs", "chat", "--node", "two").stdout
    (state,) = json.loads(builder("status", "chat", "--json").stdout)["services"]
    assert (state["state"], state["nodes"]) == ("healthy", ["one", "two"])
    (start,) = json.loads(cluster.project.answered.read_text(encoding="utf-8"))[MODEL].values()
    assert start["starts"][0]["nodes"] == ["one", "two"]
    assert [each["kernel"] for each in start["starts"][0]["machines"]] == ["6.17.0-1032-nvidia"] * 2
    why = json.loads(builder("why", MODEL, "--json").stdout)
    assert (why["worked"], why["causes"]) == (None, [])

    builder("rollback", MODEL)
    assert f"serves from {cluster.repository}:1" in builder("restart", "chat").stdout
    images = [service and service.image for service in (serving(each, cluster) for each in link.machines)]
    assert images == [f"{cluster.repository}:1"] * 2 + [None]
    builder("stop", "chat")
    assert nothing_runs(cluster, link)


def test_too_few_nodes_are_an_error_before_anything_starts(cluster: Kitchen, link: Linked, builder: Builder) -> None:
    cluster.recipe("-tp 2 -pp 2")
    done = builder("run", "chat", *ALL, code=2)
    assert "its command requires 4 machines (tp 2 x pp 2), but there are only 3" in folded(done)
    assert nothing_runs(cluster, link)


def test_a_node_that_lacks_the_image(cluster: Kitchen, link: Linked, builder: Builder) -> None:
    cluster.recipe("-tp 3")
    done = builder("run", "chat", *ALL, code=7)
    assert f"{cluster.repository}:2 is missing from node three: nothing was started" in folded(done)
    assert "`builder copy" in done.stderr
    assert nothing_runs(cluster, link)


def test_a_node_without_its_devices(cluster: Kitchen, link: Linked, builder: Builder) -> None:
    assert not Path("/dev/infiniband").exists()  # there is no RoCE on a machine of the tests
    configure(cluster, link, interface=linked.INTERFACE, rdma=["rocep1s0f1"])
    cluster.recipe("-tp 2")
    done = builder("run", "chat", *ALL, code=1)
    assert "/dev/infiniband" in done.stderr
    assert "`builder nodes check`" in done.stderr
    assert nothing_runs(cluster, link)


def test_a_node_that_is_killed_while_they_start_ends_all_with_its_lines(
    cluster: Kitchen, link: Linked, builder: Builder
) -> None:
    cluster.recipe("-tp 2 --slow-head 60 --crash-further --slow 3")
    began = time.monotonic()
    done = builder("run", "chat", *ALL, code=1)
    assert time.monotonic() - began < 60
    # Where the machine is busy, Docker starts it again before it is looked at.
    assert re.search(rf"{cluster.name} on node two ended( \d times)? before it answered", folded(done))
    assert "Free memory on device cuda:0 (9.31/119.7 GiB) on startup is less than desired" in folded(done)
    assert "on node one" not in folded(done)
    assert f".builder/serve-logs/{cluster.name}@two.log" in folded(done)
    assert nothing_runs(cluster, link)


def test_a_node_that_is_stopped_from_outside_is_told_with_its_lines(
    cluster: Kitchen, link: Linked, builder: Builder
) -> None:
    cluster.recipe("-tp 2")
    builder("run", "chat", *ALL)
    client.request(link.machines[1].endpoint, "POST", f"/containers/{cluster.name}/kill")
    time.sleep(3)
    (state,) = json.loads(builder("status", "chat", "--json").stdout)["services"]
    assert state["state"] == "ended"
    (ended,) = state["ended_nodes"]
    assert (ended["node"], ended["exit_code"]) == ("two", 137)
    assert any("Graph capturing finished" in line for line in ended["lines"])
    assert f"`builder restart {cluster.name}@one,two` restarts the server" in " ".join(builder("status").stdout.split())
    assert "serves from" in builder("restart", "chat").stdout
    assert all(service and service.is_up for service in (serving(each, cluster) for each in link.machines[:2]))


def test_exported_scripts_serve_the_same(cluster: Kitchen, link: Linked, builder: Builder, tmp_path: Path) -> None:
    cluster.recipe("-tp 2")
    folder = tmp_path / "scripts"
    builder("export", "chat", *ALL, "--format", "script", "--output", str(folder))
    for rank, name in ((1, "two"), (0, "one")):
        node = link.machines[rank].node
        environ = {**node.environ, **cluster.environ, "DOCKER_HOST": node.host}
        environ["PATH"] = f"{node.environ['BUILDER_ENGINE_HOME']}/bin:{environ['PATH']}"
        subprocess.run([folder / f"{name}.sh"], env=environ, check=True, capture_output=True)
    end = time.monotonic() + 60
    while "Application startup complete" not in builder("logs", f"{cluster.name}@one,two").stdout:
        assert time.monotonic() < end
    assert builder("stop", f"{cluster.name}@one,two").stdout
    assert nothing_runs(cluster, link)
