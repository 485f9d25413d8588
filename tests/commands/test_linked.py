"""Three machines by real ssh, each with an engine and a network of its own: ``nodes discover`` and ``nodes check``, and
one model on several of them, with the stand-in for vLLM: which take part, in which order they start, how they end."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.base.project import Project
from builder.definitions.container import LABEL
from builder.engine import client, containers, images
from builder.engine.client import Endpoint
from builder.engine.containers import Service
from tests import linked, projects, spark_proc
from tests.commands import second_engine
from tests.commands.serving import MODEL, Kitchen
from tests.conftest import run_command
from tests.linked import Linked, Machine
from tests.moving.nodes import machine
from tests.processes import until

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(900)]

NAMES = ("one", "two", "three")
ALL = ("--node", "one", "--node", "two", "--node", "three")
Builder = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory, endpoint: Endpoint, built: tuple[Project, str]) -> Iterator[Linked]:
    """Three machines, of which the first two have both numbers."""
    with linked.linked(endpoint, tmp_path_factory.mktemp("link"), 1, 3) as made:
        for each in made.machines[:2]:
            environ = {**each.node.environ, "DOCKER_HOST": each.node.host}
            second_engine.load(endpoint.host, environ, f"{built[1]}:1", f"{built[1]}:2")
        yield made


@pytest.fixture
def builder(kitchen: Kitchen, link: Linked) -> Builder:
    def run(*arguments: str, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        environ = {**kitchen.environ, **link.environ, "COLUMNS": "80", **more}
        return run_command(kitchen.project, *arguments, code=code, environ=environ)

    return run


def configure(kitchen: Kitchen, link: Linked, **more: Any) -> None:
    """Writes builder.yaml with the three machines, reached by ssh, and ``more`` in each."""
    lines = [
        f"  {name}:  # machine {rank}\n    engine: {made.engine}\n    models: {made.folder}/home/models\n"
        for rank, (name, made) in enumerate(zip(NAMES, link.machines, strict=True))
    ]
    text = "".join(
        [line + "".join(f"    {key}: {json.dumps(value)}\n" for key, value in more.items()) for line in lines]
    )
    projects.write(kitchen.project.root / "builder.yaml", f"nodes:\n{text}")


def nodes(kitchen: Kitchen) -> dict[str, Any]:
    loaded = yaml.safe_load((kitchen.project.root / "builder.yaml").read_text())
    return dict(loaded["nodes"])


def found(done: subprocess.CompletedProcess[str], verdict: str) -> list[tuple[str, str, str]]:
    """What `nodes check --json` found with that verdict."""
    findings = json.loads(done.stdout)["findings"]
    return [(each["node"], each["check"], each["message"]) for each in findings if each["verdict"] == verdict]


def test_three_machines_say_what_their_links_are(kitchen: Kitchen, link: Linked, builder: Builder) -> None:
    configure(kitchen, link)
    builder("nodes", "discover", "--yes")
    text = (kitchen.project.root / "builder.yaml").read_text()
    assert all(f"{name}:  # machine {rank}\n" in text for rank, name in enumerate(NAMES))
    for name, made in zip(NAMES, link.machines, strict=True):
        assert nodes(kitchen)[name] == {
            "engine": made.engine,
            "models": f"{made.folder}/home/models",
            "address": made.address,
            "interface": linked.INTERFACE,
            "rdma": list(machine.PAIR),
        }

    done = builder("nodes", "check", "--json", code=0)
    assert found(done, "error") == []
    image = f"{kitchen.repository}:2"
    assert found(done, "warning") == [("three", "image", f"{image} is missing")]
    assert {check for _, check, _ in found(done, "ok")} == {
        *("ssh", "engine", "image", "interface", "devices", "subnets", "driver", "kernel", "clock")
    }
    shown = builder("nodes", "check").stdout
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    assert f"→ `builder copy {image} three` copies it there" in shown


def test_known_faults_of_a_nodes_driver_and_kernel(kitchen: Kitchen, link: Linked, builder: Builder) -> None:
    """A node that uses no RoCE device does not meet the kernel's."""
    configure(kitchen, link, interface=linked.INTERFACE, rdma=list(machine.PAIR))
    two = link.machines[1].folder / "proc"
    spark_proc.write_whole(two, driver="590.48.01", kernel="7.0.0-1019-nvidia")
    try:
        warnings = found(builder("nodes", "check", "--json"), "warning")
        configure(kitchen, link, interface=linked.INTERFACE, rdma=[])
        over_tcp = found(builder("nodes", "check", "--json"), "warning")
    finally:
        spark_proc.write_whole(two)

    def told(lines: list[tuple[str, str, str]]) -> list[str]:
        return [said.partition(":")[0] for node, subject, said in lines if (node, subject) == ("two", "advisory")]

    assert told(warnings) == ["driver-590-cuda-graphs", "kernel-7-kexec-handover"]
    assert told(over_tcp) == ["driver-590-cuda-graphs"]


def test_a_recipe_needs_its_image_and_its_model_on_every_node(kitchen: Kitchen, link: Linked, builder: Builder) -> None:
    configure(kitchen, link, interface=linked.INTERFACE, rdma=list(machine.PAIR))
    one, two, _ = link.machines
    folder = one.folder / f"home/models/hub/models--{MODEL.replace('/', '--')}/snapshots/0123456"
    folder.mkdir(parents=True, exist_ok=True)
    image, kept = f"{kitchen.repository}:2", f"{kitchen.repository}:kept"
    images.tag_image(two.endpoint, image, kept)
    images.tag_image(two.endpoint, f"{kitchen.repository}:1", image)
    try:
        done = builder("nodes", "check", "chat", "--json", code=1)
    finally:
        images.tag_image(two.endpoint, kept, image)
        images.remove_extra_tag(two.endpoint, kept)
    assert found(done, "error") == [
        ("two", "image", f"{image} differs from the image in images.lock"),
        ("two", "model", f"{MODEL} is missing"),
        ("three", "image", f"{image} is missing"),
        ("three", "model", f"{MODEL} is missing"),
    ]
    assert ("one", "model", MODEL) in found(done, "ok")
    only = builder("nodes", "check", "chat", "--node", "one", "--json")
    assert found(only, "error") == []


def test_an_image_without_a_number_has_to_be_the_same(kitchen: Kitchen, link: Linked, builder: Builder) -> None:
    configure(kitchen, link, interface=linked.INTERFACE, rdma=[])
    one, two, _ = link.machines
    name = f"{kitchen.repository}-other:v1"
    recipe = (kitchen.project.recipes / "chat.yaml").read_text()
    text = recipe.replace(f"container: {kitchen.repository}", f"container: {name}")
    projects.write(kitchen.project.recipes / "other.yaml", text.replace("mods: [mods/standin]\n", ""))
    images.tag_image(one.endpoint, f"{kitchen.repository}:1", name)
    images.tag_image(two.endpoint, f"{kitchen.repository}:2", name)
    try:
        done = builder("nodes", "check", "other", "--json", code=1)
    finally:
        images.remove_extra_tag(one.endpoint, name)
        images.remove_extra_tag(two.endpoint, name)
    assert [each for each in found(done, "error") if each[1] == "image"] == [
        ("two", "image", f"{name} differs from the image on one"),
        ("three", "image", f"{name} is missing"),
    ]
    assert ("one", "image", f"{name}, same as on one") in found(done, "ok")


def test_wrong_names_and_machines_that_do_not_answer(kitchen: Kitchen, link: Linked, builder: Builder) -> None:
    one, two, three = link.machines
    settings: dict[str, Any] = {
        "one": {"engine": one.engine, "address": one.address, "interface": "enp1s0f1np2", "rdma": ["rocep1s0f2"]},
        "two": {"engine": two.engine, "address": "10.0.0.1", "interface": linked.INTERFACE, "rdma": ["rocep1s0f0"]},
        "three": {"engine": f"ssh://stranger@{three.address}"},
        "four": {"engine": "tcp://127.0.0.1:9"},
    }
    projects.write(kitchen.project.root / "builder.yaml", json.dumps({"nodes": settings}))
    second = f"{two.address.rpartition('.')[0]}"
    two.in_network("ip", "address", "add", f"{second}.14/28", "dev", linked.SECOND)
    try:
        done = builder("nodes", "check", "--json", code=1)
    finally:
        two.in_network("ip", "address", "del", f"{second}.14/28", "dev", linked.SECOND)
    errors = found(done, "error")
    assert ("one", "interface", "the machine has no interface enp1s0f1np2") in errors
    assert ("one", "devices", "the machine has no RoCE device rocep1s0f2") in errors
    assert ("two", "interface", f"{linked.INTERFACE} has {two.address}, but builder.yaml says 10.0.0.1") in errors
    assert ("two", "devices", "the link of rocep1s0f0 (enp1s0f0np0) is down") in errors
    assert any(each[:2] == ("two", "subnets") and "share the subnet" in each[2] for each in errors)
    assert any(each[:2] == ("three", "ssh") and "fails" in each[2] for each in errors)
    assert any(each[:2] == ("four", "engine") for each in errors)


@pytest.fixture
def cluster(kitchen: Kitchen, link: Linked) -> Iterator[Kitchen]:
    """A project with three nodes that talk over TCP; nothing of it runs when the test ends."""
    configure(kitchen, link, interface=linked.INTERFACE, rdma=[])
    yield kitchen
    for each in link.machines:
        containers.remove_labelled(each.endpoint, LABEL)


def status(builder: Builder) -> dict[str, Any]:
    (state,) = json.loads(builder("status", "chat", "--json").stdout)["services"]
    return dict(state)


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
    state = status(builder)
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
    cluster.recipe("-tp 2 --slow-head 600 --crash-further --slow 3")
    began = time.monotonic()
    done = builder("run", "chat", *ALL, code=1)
    assert time.monotonic() - began < 300
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
    until(lambda: status(builder)["state"] == "ended", "the server has ended")
    state = status(builder)
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
    address = f"{cluster.name}@one,two"
    until(lambda: "Application startup complete" in builder("logs", address).stdout, "the server is ready")
    assert builder("stop", address).stdout
    assert nothing_runs(cluster, link)
