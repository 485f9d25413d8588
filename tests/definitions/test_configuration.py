"""builder.yaml: its settings, and the location of every mistake in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError, UsageError
from builder.base.project import Project
from builder.definitions import configuration
from builder.definitions.configuration import Configuration, Node, RequestedOptions

if TYPE_CHECKING:
    from pathlib import Path


def load(folder: Path, text: str) -> Configuration:
    (folder / "builder.yaml").write_text(text, encoding="utf-8")
    return configuration.load_configuration(Project(folder))


def test_a_project_needs_none(tmp_path: Path) -> None:
    assert configuration.load_configuration(Project(tmp_path)) == Configuration()


def test_all_of_it(tmp_path: Path) -> None:
    configuration = load(
        tmp_path,
        "registry: registry.lan:5000/models/vllm\n"
        "builder: strong\n"
        "cache: true\n"
        "nodes:\n"
        "  spark2: ssh://me@spark2\n"
        "  spark3: {engine: office, models: /data/hf, address: 10.0.0.3}\n",
    )
    nodes = (Node("spark2", "ssh://me@spark2"), Node("spark3", "office", "/data/hf", "10.0.0.3"))
    assert configuration == Configuration("registry.lan:5000/models/vllm", "strong", True, nodes)
    assert configuration.node("spark3").models == "/data/hf"


def test_the_link_of_a_node(tmp_path: Path) -> None:
    text = (
        "nodes:\n  one:\n    engine: default\n    interface: enp1s0f1np1\n    rdma: [rocep1s0f1, roceP2p1s0f1]\n"
        "    env: {NCCL_DEBUG: INFO, NCCL_IB_TIMEOUT: 22, EMPTY: }\n  two: {engine: a, rdma: []}\n  three: b\n"
    )
    one, two, three = load(tmp_path, text).nodes
    assert (one.interface, one.rdma) == ("enp1s0f1np1", ("rocep1s0f1", "roceP2p1s0f1"))
    assert one.env == {"NCCL_DEBUG": "INFO", "NCCL_IB_TIMEOUT": "22", "EMPTY": ""}
    assert (two.rdma, three.rdma, three.env) == ((), None, {})


@pytest.mark.parametrize(
    "setting", ["interface: 'a b'", "interface: ''", "rdma: rocep1s0f1", "rdma: ['a,b']", "env: {a-b: 1}", "env: [A=1]"]
)
def test_what_is_no_link(tmp_path: Path, setting: str) -> None:
    with pytest.raises(FileProblemsError, match=r"builder.yaml:\d:"):
        load(tmp_path, f"nodes:\n  one:\n    engine: default\n    {setting}\n")


@pytest.mark.parametrize("registry", ["localhost", "localhost:5000", "127.0.0.1:5000", "ghcr.io/me/images", "nas:5000"])
def test_registries(tmp_path: Path, registry: str) -> None:
    assert load(tmp_path, f"registry: {registry}\n").required_registry() == registry


@pytest.mark.parametrize(
    "registry", ["https://ghcr.io/me", "ghcr.io/Me", "ghcr.io/me:5", "models", "me/models", "ghcr.io/", "a b:5/x"]
)
def test_what_is_no_registry(tmp_path: Path, registry: str) -> None:
    with pytest.raises(FileProblemsError, match=r"builder.yaml:1:1: `registry`: .*HOST\[:PORT\]"):
        load(tmp_path, f"registry: {registry}\n")


@pytest.mark.parametrize(
    "engine",
    [
        "ssh://host:22:-oX",
        "ssh://[-oX]",
        "ssh://[::::]",
        "ssh://host:99999",
        "ssh://-oX",
        "ssh://-oX@host",
        "tcp://h:x",
    ],
)
def test_an_address_that_is_none_is_told_with_its_place(tmp_path: Path, engine: str) -> None:
    (tmp_path / "builder.yaml").write_text(f"nodes:\n  spark2: '{engine}'\n", encoding="utf-8")
    with pytest.raises(FileProblemsError, match=r"builder\.yaml:2:"):
        configuration.load_configuration(Project(tmp_path))


@pytest.mark.parametrize(
    "engine", ["ssh://me@spark2:2222", "tcp://10.0.0.1:2375", "ssh://[fe80::1]:22", "ssh://a_b.local"]
)
def test_addresses_that_are_some(tmp_path: Path, engine: str) -> None:
    (tmp_path / "builder.yaml").write_text(f"nodes:\n  spark2: '{engine}'\n", encoding="utf-8")
    assert configuration.load_configuration(Project(tmp_path)).nodes[0].engine == engine


@pytest.mark.parametrize("engine", ["http://x", "ssh://", "unix://relative", "$(id)", "two words", "-flag"])
def test_what_is_no_engine(tmp_path: Path, engine: str) -> None:
    with pytest.raises(FileProblemsError, match=r"builder.yaml:2:3: `nodes.two`.*ssh:"):
        load(tmp_path, f"nodes:\n  two: {engine!r}\n")


def test_an_unknown_key_is_named_with_what_was_meant(tmp_path: Path) -> None:
    with pytest.raises(FileProblemsError, match="builder.yaml:1:1: unknown key `regestry`; did you mean `registry`?"):
        load(tmp_path, "regestry: ghcr.io/me\n")


def test_a_node_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no node `three`") as caught:
        load(tmp_path, "nodes: {one: a, two: b}\n").node("three")
    assert caught.value.hint == "its nodes: one, two"


def test_a_missing_registry_is_reported_with_where_to_set_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, "nodes: {}\n").required_registry()
    assert "builder.yaml" in caught.value.hint


def test_options_of_every_server(tmp_path: Path) -> None:
    configuration = load(
        tmp_path,
        "volumes: [~/models:/models:ro]\nenv: {A: 1, B: true, FROM_OUTSIDE: }\npublish: [8000, '9000:8001']\n"
        "earlyoom: true\nmemory: 110g\nreserve: 4g\n",
    )
    assert configuration.container == RequestedOptions(
        ("~/models:/models:ro",), ("A=1", "B=true", "FROM_OUTSIDE"), ("8000", "9000:8001"), True, "110g"
    )
    assert configuration.reserve == 4 << 30


@pytest.mark.parametrize(
    ("text", "reserve"),
    [("cache: true\n", 8 << 30), ("reserve: 0\n", 0), ("reserve: '0'\n", 0), ("reserve: 500m\n", 500 << 20)],
)
def test_the_memory_that_is_left_to_the_machine(tmp_path: Path, text: str, reserve: int) -> None:
    assert load(tmp_path, text).reserve == reserve


@pytest.mark.parametrize(
    "setting",
    [
        *("reserve: 8", "reserve: 8t", "memory: 100", "memory: lots", "earlyoom: maybe", "volumes: [/models]"),
        *("publish: [0]", "publish: 8000", "env: {a-b: 1}", "env: [A=1]"),
    ],
)
def test_what_is_no_option_of_a_server(tmp_path: Path, setting: str) -> None:
    with pytest.raises(FileProblemsError, match=r"builder\.yaml:1:"):
        load(tmp_path, f"{setting}\n")
