"""builder.yaml: its settings, and the location of every mistake in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as some

from builder.base.errors import FileProblemsError, UsageError
from builder.base.project import Project
from builder.definitions import configuration, recipe
from builder.definitions.configuration import Configuration, Node, RequestedOptions, RequiredEvidence, RequiredFigure
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path


def load(folder: Path, text: str) -> Configuration:
    (folder / "builder.yaml").write_text(text, encoding="utf-8")
    return configuration.load_configuration(Project(folder))


def test_a_project_needs_none(tmp_path: Path) -> None:
    assert configuration.load_configuration(Project(tmp_path)) == Configuration()


def test_a_link_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    (tmp_path / "builder.yaml").symlink_to("elsewhere.yaml")
    with pytest.raises(UsageError, match="builder.yaml cannot be read: No such file"):
        configuration.load_configuration(Project(tmp_path))


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


@pytest.mark.parametrize("address", ["localhost:5000/copies", "https://ghcr.io/me", "docker://nas/x", "oci:copies"])
def test_a_mirror_is_a_folder(tmp_path: Path, address: str) -> None:
    assert load(tmp_path, "mirror: ../copies of others\n").mirror == tmp_path / "../copies of others"
    with pytest.raises(FileProblemsError, match=r"builder.yaml:1:1: `mirror`: .*the folder, not an address"):
        load(tmp_path, f"mirror: {address}\n")


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
        "volumes: [~/models:/models:ro, /a:/b:rw]\nenv: {A: 1, B: true, FROM_OUTSIDE: }\npublish: [8000, '9000:8001']\n"
        "earlyoom: true\nmemory: 110g\nreserve: 4g\n",
    )
    assert configuration.container == RequestedOptions(
        ("~/models:/models:ro", "/a:/b:rw"), ("A=1", "B=true", "FROM_OUTSIDE"), ("8000", "9000:8001"), True, "110g"
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


# builder.yaml with other settings of its nodes: comments stay, and what comes out is what was meant.

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
    address: 10.0.0.1 # old
    rdma: [rocep1s0f1, roceP2p1s0f1] # right
    models: /data/hf
    interface: enp1s0f1np1

  spark2:  # the other
    engine: ssh://me@spark2
    address: 10.0.0.2
    env:
      NCCL_NET_PLUGIN: none
  spark3:
    engine: ssh://10.0.0.3
# the end
cache: true
"""
    settings: dict[str, dict[str, Any]] = {
        **SETTINGS,
        "spark2": {"address": "10.0.0.2", "env": {"NCCL_NET_PLUGIN": "none"}},
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
    "text", ["{nodes: {spark1: ssh://spark1}}\n", "nodes:\n  spark1: &a\n    engine: x\n  spark2: *a\n", "---\n..."]
)
def test_an_unusual_layout_is_written_anew(text: str) -> None:
    loaded = yaml.safe_load(configuration.with_node_settings(text, SETTINGS))
    assert loaded["nodes"]["spark1"].items() >= SETTINGS["spark1"].items()


_WORDS = some.text("abc#:'{}[],& -", min_size=1, max_size=8)
_NODES = some.dictionaries(
    some.sampled_from(["spark1", "spark2", "c"]),
    some.one_of(_WORDS, some.fixed_dictionaries({"engine": _WORDS, "env": some.dictionaries(_WORDS, _WORDS)})),
)


@pytest.mark.slow
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


# ``requires:`` in recipes and in builder.yaml: what it says, and the place of what is wrong in it.

WRITTEN = 'requires: {prove: pass, probe: [tools-long], bench: {tg at 32768: ">= 95 % of current"}}\n'
READ = RequiredEvidence(True, ("tools-long",), (RequiredFigure("tg", 32768, None, True, 95, True),))
RECIPE = "name: chat\nmodel: Org/M\ncontainer: small\ncommand: vllm serve Org/M\n"


def of_recipe(root: Path, text: str) -> recipe.Recipe:
    path = root / "recipes/chat.yaml"
    projects.write(path, RECIPE + text)
    return recipe.load_recipe(Project(root), path)


def of_configuration(root: Path, text: str) -> configuration.Configuration:
    projects.write(root / "builder.yaml", text)
    return configuration.load_configuration(Project(root))


def test_a_recipe_says_what_its_model_requires(tmp_path: Path) -> None:
    assert of_recipe(tmp_path, WRITTEN).requires == READ
    assert not of_recipe(tmp_path, "").requires
    assert not of_recipe(tmp_path, "requires:\n").requires
    assert not of_recipe(tmp_path, "requires: {probe: [], bench: {}}\n").requires


def test_builder_yaml_says_it_for_all_models_and_for_one(tmp_path: Path) -> None:
    text = 'requires:\n  prove: pass\n  Org/M: {probe: [own], bench: {"pp at 0, concurrency 4": "<= 12.5"}}\n'
    read = of_configuration(tmp_path, text)
    assert read.required_of("Org/Other") == read.required_of(None) == RequiredEvidence(prove=True)
    figure = RequiredFigure("pp", 0, 4, False, 12.5, False)
    assert read.required_of("Org/M") == RequiredEvidence(True, ("own",), (figure,))
    assert str(figure) == "pp at 0, concurrency 4 <= 12.5"
    assert not of_configuration(tmp_path, "reserve: 4g\n").required_of("Org/M")


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("requires: {proof: pass}", "5:12: unknown key `proof`; did you mean `prove`?"),
        ("requires: {prove: good}", '5:12: `requires.prove`: "good" is not one of pass'),
        ("requires: {probe: tools-long}", '5:12: `requires.probe`: "tools-long" is not a list'),
        ("requires: {probe: [../x]}", '5:20: `requires.probe.0`: "../x" does not have the expected form'),
        ("requires: {bench: {tgs at 0: '>= 4'}}", "5:20: no bench run measures `tgs`; did you mean `tg`?"),
        ("requires: {bench: {tg at deep: '>= 4'}}", "5:20: `tg at deep` is not a valid figure"),
        ("requires: {bench: {tg: '95 % of current'}}", "5:20: `95 % of current` is not a valid condition, such as"),
        ("requires: {bench: {tg: '>= nan'}}", "5:20: `>= nan` is not a valid condition"),
        ("requires: {bench: {tg: 40}}", "5:20: `requires.bench.tg`: 40 is not text"),
        ("requires: prove", '5:1: `requires`: "prove" is not a mapping'),
    ],
)
def test_what_is_wrong_has_its_place(tmp_path: Path, written: str, problem: str) -> None:
    with pytest.raises(FileProblemsError) as raised:
        of_recipe(tmp_path, f"{written}\n")
    assert f"recipes/chat.yaml:{problem}" in raised.value.message
    with pytest.raises(FileProblemsError) as raised:
        of_configuration(tmp_path, f"\n\n\n\n{written}\n")
    assert f"builder.yaml:{problem}" in raised.value.message
    inner = written.removeprefix("requires: ")
    if inner.startswith("{"):
        with pytest.raises(FileProblemsError, match=r"builder.yaml:2:\d+: "):
            of_configuration(tmp_path, f"requires:\n  Org/M: {inner}\n")


required = some.builds(
    RequiredEvidence,
    some.booleans(),
    some.lists(some.sampled_from(["a", "b", "c"]), unique=True).map(tuple),
    some.lists(
        some.builds(
            RequiredFigure,
            some.sampled_from(configuration.FIGURES),
            some.none() | some.integers(0, 10**8),
            some.none() | some.integers(1, 99),
            some.booleans(),
            some.integers(0, 10**6).map(float),
            some.booleans(),
        ),
        unique_by=lambda figure: figure.figure,
    ).map(tuple),
)


@pytest.mark.slow
@given(required)
def test_what_is_told_of_a_requirement_reads_as_it_was_written(value: RequiredEvidence) -> None:
    data = {
        **({"prove": "pass"} if value.prove else {}),
        "probe": list(value.probes),
        "bench": {figure.figure: figure.condition for figure in value.figures},
    }
    assert not list(configuration.problems(data, ("requires",), "", "x.yaml"))
    assert configuration.parsed(data) == value


@pytest.mark.slow
@given(required, required)
def test_what_two_files_require_counts_together(one: RequiredEvidence, other: RequiredEvidence) -> None:
    both = one.joined(other)
    assert both.prove == (one.prove or other.prove)
    assert set(both.probes) == {*one.probes, *other.probes}
    assert set(both.figures) == {*one.figures, *other.figures}
    assert one.joined(configuration.NOTHING_REQUIRED) == one
