"""``nodes discover`` and ``nodes check`` by real ssh: three machines, each with an engine and a network of its own."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from builder.engine import images
from tests import linked, projects, spark_proc
from tests.commands.linked_kitchen import NAMES, Builder, builder, configure, link, nodes
from tests.commands.serving import MODEL, Kitchen
from tests.linked import Linked
from tests.moving.nodes import machine

__all__ = ["builder", "link"]
pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(900)]


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
