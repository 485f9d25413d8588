"""Nodes of builder.yaml from the machines and the link in an ``.env``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builder.base.project import Project
from builder.definitions.configuration import Node
from builder.moving import checkout
from builder.moving.checkout import SettingsPlan

HERE = "unix:///var/run/docker.sock"


def settle(text: str, *existing: Node) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    return checkout.settle_nodes(checkout.parse_env_file(text, ".env"), existing, HERE)


def test_each_machine_becomes_a_node_and_this_one_has_the_engine_here() -> None:
    nodes, notes = settle("CLUSTER_NODES=127.0.0.1, 203.0.113.2\n")
    assert nodes == {
        "spark1": {"engine": HERE, "address": "127.0.0.1"},
        "spark2": {"engine": "ssh://203.0.113.2", "address": "203.0.113.2"},
    }
    assert notes["CLUSTER_NODES"] == "spark1 is 127.0.0.1, this machine; spark2 is 203.0.113.2"


def test_names_and_logins_of_hosts_are_kept() -> None:
    nodes = settle("CLUSTER_NODES=desk.lan,me@rack.lan")[0]
    assert nodes == {
        "desk.lan": {"engine": "ssh://desk.lan", "address": "desk.lan"},
        "rack.lan": {"engine": "ssh://me@rack.lan", "address": "rack.lan"},
    }


def test_one_machine_needs_no_node() -> None:
    assert settle("CLUSTER_NODES=127.0.0.1\n") == ({}, {"CLUSTER_NODES": "one machine needs no node"})


def test_a_machine_that_is_a_node_stays_as_it_is() -> None:
    there = Node("spark2", "ssh://me@203.0.113.1", interface="enp9")
    nodes, notes = settle("CLUSTER_NODES=203.0.113.1,203.0.113.2\n", there)
    assert nodes == {"spark3": {"engine": "ssh://203.0.113.2", "address": "203.0.113.2"}}
    assert notes["CLUSTER_NODES"] == "spark2 is 203.0.113.1; spark3 is 203.0.113.2"


def test_a_second_time_changes_nothing() -> None:
    text = "CLUSTER_NODES=127.0.0.1,203.0.113.2\n"
    existing = [Node(name, **values) for name, values in settle(text)[0].items()]
    assert settle(text, *existing)[0] == {}


def test_an_address_is_this_machines_if_it_can_be_bound_to() -> None:
    assert checkout.is_own("127.0.0.1")
    assert not checkout.is_own("203.0.113.1")
    assert not checkout.is_own("desk.lan")


# builder.yaml with what an ``.env`` sets: what is written, and what never is.


def plan(project: Project, text: str, *, replace: bool = False) -> SettingsPlan:
    return checkout.plan_settings(project, checkout.parse_env_file(text, ".env"), HERE, replace=replace)


def outcome(planned: SettingsPlan, key: str) -> str:
    return planned.outcomes[key]


def test_variables_of_containers_become_the_environment_of_servers(tmp_path: Path) -> None:
    planned = plan(Project(tmp_path), "CONTAINER_NCCL_DEBUG=INFO\nCONTAINER_ONE=1\nCONTAINER_EMPTY=\n")
    assert planned.after == "env:\n  NCCL_DEBUG: INFO\n  ONE: '1'\n  EMPTY: ''\n"


def test_a_secret_is_written_nowhere(tmp_path: Path) -> None:
    text = "CONTAINER_HF_TOKEN=geheim1\nCONTAINER_WEB_API_KEY=geheim2\nCONTAINER_PROXY=http://me:geheim3@proxy\n"
    planned = plan(Project(tmp_path), text)
    assert planned.after == "env:\n  WEB_API_KEY: null\n  PROXY: null\n"
    assert "geheim" not in repr(planned)
    assert outcome(planned, "CONTAINER_HF_TOKEN").startswith(
        "not taken over: a server gets HF_TOKEN from the environment of the user who starts the server"
    )
    assert "`export WEB_API_KEY=…` in your shell's profile" in outcome(planned, "CONTAINER_WEB_API_KEY")


def test_what_is_there_stays_with_its_comments(tmp_path: Path) -> None:
    text = "# ours\nregistry: lan:5000 # rack\nenv:\n  # why\n  NCCL_DEBUG: WARN # quiet\n  SAME: 1\n"
    (tmp_path / "builder.yaml").write_text(text)
    env = "CONTAINER_NCCL_DEBUG=INFO\nCONTAINER_SAME=1\nCONTAINER_NEW=yes\nCLUSTER_NODES=203.0.113.1,203.0.113.2\n"
    planned = plan(Project(tmp_path), env)
    assert planned.before == text
    assert "NCCL_DEBUG: WARN # quiet" in planned.after
    assert "# ours\nregistry: lan:5000 # rack\n" in planned.after
    assert "  NEW: 'yes'\n" in planned.after
    assert outcome(planned, "CONTAINER_NCCL_DEBUG") == "not taken over: `env` already has another value of NCCL_DEBUG"
    assert "NCCL_DEBUG: INFO # quiet" in plan(Project(tmp_path), env, replace=True).after
    (tmp_path / "builder.yaml").write_text(planned.after)
    assert not plan(Project(tmp_path), env).changed


def test_keys_without_a_place_here_say_so(tmp_path: Path) -> None:
    planned = plan(
        Project(tmp_path),
        "CONTAINER_NAME=vllm\nMASTER_PORT=29999\nCLUSTER_NODE=x\nOTHER=y\nETH_IF=enp1\nCLUSTER_NODES=\n",
    )
    assert not planned.changed
    assert outcome(planned, "CONTAINER_NAME").startswith("not needed: each container is named after its recipe")
    assert "port 29501" in outcome(planned, "MASTER_PORT")
    assert outcome(planned, "CLUSTER_NODE").endswith("did you mean CLUSTER_NODES?")
    assert outcome(planned, "OTHER") == "not taken over; builder does not use it"
    assert outcome(planned, "ETH_IF") == "not needed: `builder nodes discover` asks each machine for its own"
    assert outcome(planned, "CLUSTER_NODES") == "empty"


def test_a_value_that_builder_yaml_would_refuse_is_left_out(tmp_path: Path) -> None:
    planned = plan(Project(tmp_path), "CLUSTER_NODES=203.0.113.1,203.0.113.2,a b\n")
    assert not planned.error
    assert "left out, not a valid name: a b" in outcome(planned, "CLUSTER_NODES")
    assert planned.after.count("engine:") == 2


def test_a_broken_file_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "builder.yaml").write_text("nodes: [\n")
    planned = plan(Project(tmp_path), "CONTAINER_X=1\n")
    assert (planned.changed, bool(planned.error)) == (False, True)
