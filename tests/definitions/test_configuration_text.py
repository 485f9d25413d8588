"""builder.yaml with other settings of its nodes: comments stay, and what comes out is what was meant."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as some

from builder.definitions import configuration

SETTINGS = {"spark1": {"address": "10.0.0.1", "interface": "enp1s0f1np1", "rdma": ["rocep1s0f1", "roceP2p1s0f1"]}}


def test_a_file_that_is_not_there_yet() -> None:
    settings = {"spark1": {"engine": "default", **SETTINGS["spark1"]}}
    assert configuration.with_node_settings("", settings) == (
        "nodes:\n  spark1:\n    engine: default\n    address: 10.0.0.1\n    interface: enp1s0f1np1\n"
        "    rdma: [rocep1s0f1, roceP2p1s0f1]\n"
    )


def test_comments_and_all_else_stay() -> None:
    text = """\
# ours
registry: registry.lan:5000/models  # in the rack

nodes:
  # the one on the desk
  spark1:
    engine: default  # this one
    address: 10.9.9.9 # old
    rdma:
      - rocep1s0f0 # left
      # and
      - roceP2p1s0f0 # right
    models: /data/hf

  spark2: ssh://me@spark2  # the other
# the end
cache: true
"""
    expected = """\
# ours
registry: registry.lan:5000/models  # in the rack

nodes:
  # the one on the desk
  spark1:
    engine: default  # this one
    interface: enp1s0f1np1
    address: 10.0.0.1 # old
    rdma: [rocep1s0f1, roceP2p1s0f1] # right
    models: /data/hf

  spark2:  # the other
    engine: ssh://me@spark2
    address: 10.0.0.2
    env:
      NCCL_NET_PLUGIN: none
      NCCL_IB_MERGE_NICS: '0'
  spark3:
    engine: ssh://10.0.0.3
# the end
cache: true
"""
    settings: dict[str, dict[str, Any]] = {
        **SETTINGS,
        "spark2": {"address": "10.0.0.2", "env": {"NCCL_NET_PLUGIN": "none", "NCCL_IB_MERGE_NICS": "0"}},
        "spark3": {"engine": "ssh://10.0.0.3"},
    }
    after = configuration.with_node_settings(text, settings)
    assert after == expected
    assert configuration.with_node_settings(after, settings) == after


@pytest.mark.parametrize(
    "text",
    [
        "nodes: {spark1: ssh://spark1, spark2: {engine: ssh://spark2}}  # mine\n",
        "nodes:\n  spark1: {engine: ssh://spark1, address: 10.0.0.9}  # mine\n",
        "nodes:  # mine\n",
        "nodes:  # mine\n  spark1: ssh://spark1",
        "registry: a.b/c  # mine",
        "registry: a.b/c\n# mine",
        "nodes:\n  'spark1':\n    'engine': \"ssh://spark1\"  # mine\n    env: {A: 1,\n      B: 2}\nregistry: a.b/c\n",
    ],
)
def test_other_layouts_keep_their_comment(text: str) -> None:
    after = configuration.with_node_settings(text, SETTINGS)
    assert "# mine" in after
    before = yaml.safe_load(text)
    loaded = yaml.safe_load(after)
    assert loaded["nodes"]["spark1"].items() >= SETTINGS["spark1"].items()
    assert {key: value for key, value in loaded.items() if key != "nodes"} == {
        key: value for key, value in before.items() if key != "nodes"
    }


@pytest.mark.parametrize(
    "text", ["{nodes: {spark1: ssh://spark1}}\n", "nodes:\n  spark1: &a\n    engine: x\n  b: *a\n", "---\n..."]
)
def test_an_unusual_layout_is_written_anew(text: str) -> None:
    loaded = yaml.safe_load(configuration.with_node_settings(text, SETTINGS))
    assert loaded["nodes"]["spark1"].items() >= SETTINGS["spark1"].items()


_WORDS = some.text("abc#:'{}[],& -", min_size=1, max_size=8)
_NODES = some.dictionaries(
    some.sampled_from(["spark1", "spark2", "c"]),
    some.one_of(_WORDS, some.fixed_dictionaries({"engine": _WORDS, "env": some.dictionaries(_WORDS, _WORDS)})),
)


@given(
    nodes=_NODES,
    values=_WORDS,
    flow=some.sampled_from([True, False, None]),
    names=some.sets(some.sampled_from(["spark1", "d"]), min_size=1),
)
def test_what_comes_out_is_what_was_meant(
    nodes: dict[str, Any], values: str, flow: bool | None, names: set[str]
) -> None:
    text = yaml.safe_dump({"registry": values, "nodes": nodes}, default_flow_style=flow)
    settings = {name: {"address": values, "rdma": [values], "env": {values: values}} for name in names}
    after = yaml.safe_load(configuration.with_node_settings(text, settings))
    for name in names:
        before = nodes.get(name, {})
        assert after["nodes"][name] == {**({"engine": before} if isinstance(before, str) else before), **settings[name]}
    assert after["registry"] == values
    assert {**nodes, **dict.fromkeys(names, 0)} == {**after["nodes"], **dict.fromkeys(names, 0)}
