"""The recipes and export commands, as a user runs them."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from builder.base.project import Project
from tests import locks, projects
from tests.conftest import WITHOUT_ENGINE, run_command

if TYPE_CHECKING:
    from pathlib import Path


# Nothing here needs an engine, and none is found.
BUILD = ("build x", "build x --dry-run")
EVERY = (*BUILD, "run x", "recipes show x", "export x --format script")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = projects.make(tmp_path)
    text = (
        'recipe_version: "1"\nname: Chat\ndescription: d\nmodel: Org/Model-1B\ncontainer: small\n'
        "build_args: [--tf5]\nmods: [mods/template]\ndefaults: {port: 8000, max-num-seqs: 2}\nenv: {A: b c}\n"
        "solo_only: true\ncommand: |\n  vllm serve Org/Model-1B \\\n  --port {port} \\\n  --n {max-num-seqs}\n"
    )
    projects.write(project.recipes / "chat.yaml", text)
    return project


def run(project: Project, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    return run_command(project, *arguments, code=code, environ={**WITHOUT_ENGINE, "HOME": "/home/ann"})


def test_list_shows_what_serves_each(project: Project) -> None:
    projects.write(project.recipes / "broken.yaml", "name: x\n")
    projects.add_recipe(project.root, "tiny", "small", "Org/Other", [])
    locks.write(project, (1, 2), current=2, paired=1)
    done = run(project, "recipes", "list")
    assert done.stdout.splitlines() == [
        "RECIPE  IMAGE    STATE                MODEL",
        "broken  -        broken               `builder recipes check` shows the problem",
        "chat    small:1  unknown, paired      Org/Model-1B",
        "tiny    small:2  unknown, not paired  Org/Other",
    ]
    assert "the engine does not answer" in done.stderr
    document = json.loads(run(project, "recipes", "list", "--json").stdout)
    assert document["schema_version"] == 1
    assert [(row["file"], row.get("model"), row.get("image"), row["state"]) for row in document["recipes"]] == [
        ("recipes/broken.yaml", None, None, "none"),
        ("recipes/chat.yaml", "Org/Model-1B", "small:1", "unknown"),
        ("recipes/tiny.yaml", "Org/Other", "small:2", "unknown"),
    ]


def test_list_without_recipes(project: Project) -> None:
    (project.recipes / "chat.yaml").unlink()
    assert (
        run(project, "recipes", "list").stdout == "no recipes in recipes/; to copy one: `builder recipes add ADDRESS`\n"
    )


def test_show_prints_the_command_as_a_shell_takes_it(project: Project) -> None:
    done = run(
        project, "recipes", "show", "chat", "--port", "9", "--tp", "2", "--set", "max-num-seqs=3", "--", "--x", "a b"
    )
    assert done.stdout.splitlines() == [
        "recipe       recipes/chat.yaml",
        "name         Chat",
        "description  d",
        "model        Org/Model-1B",
        "answers to   Org/Model-1B",
        "listens on   any address, port 9",
        "image        small (not built)",
        "mods         mods/template",
        "machines     one machine only",
        "environment  A='b c'",
        "note         builder ignores build_args: --tf5",
        "",
        "vllm serve Org/Model-1B \\",
        "  --port 9 \\",
        "  --n 3 \\",
        "  --tensor-parallel-size 2 \\",
        "  --x 'a b'",
    ]
    document = json.loads(run(project, "recipes", "show", "chat", "--json").stdout)
    assert document["command"]["argv"] == ["vllm", "serve", "Org/Model-1B", "--port", "8000", "--n", "2"]
    assert (document["command"]["port"], document["command"]["script"]) == (8000, False)


def test_show_prints_a_script_as_it_is(project: Project) -> None:
    text = "name: x\ncontainer: small\ncommand: |\n  export A=1\n  vllm serve x\n"
    projects.write(project.recipes / "script.yaml", text)
    assert run(project, "recipes", "show", "script").stdout.endswith("\n\nexport A=1\nvllm serve x\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["recipes", "show", "small"], "`small` is an image definition, not a recipe"),
        (["recipes", "show", "chat", "--set", "x"], "`x`: expected KEY=VALUE"),
        (["lock", "--update", "vllm="], "`vllm=`: expected SOURCE or SOURCE=REF"),
        (["lock", "--update", "vllm", "--update", "vllm=v1"], "vllm is named twice, with different refs"),
        (["lock", "--update", "vllm", "--check"], "--check and --update cannot be combined"),
        (["recipes", "show", "chat", "--set", "nope=1"], "its command has no placeholder {nope}"),
        (["recipes", "show", "chat", "--port", "70000"], "70000 is not in the range"),
        (["recipes", "show", "chat", "--gpu-mem", "0"], "0.0 is not in the range"),
        (["recipes", "check", "nowhere"], "nowhere: no such file, folder or recipe"),
        (["export", "chat"], "Missing option '--format'"),
        (["bench", "chat", "--compare", "1", "2", "--image", "1"], "--compare and --image cannot be combined"),
        (["export", "chat", "--format", "recipe", "--port", "1"], "takes no options for the command or the container"),
    ],
)
def test_a_mistake_ends_with_2(project: Project, arguments: list[str], expected: str) -> None:
    locks.write(project, (1,), current=1)
    done = run(project, *arguments, code=2)
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_check_ends_with_2_where_something_is_wrong(project: Project, tmp_path: Path) -> None:
    done = run(project, "recipes", "check")
    assert done.stdout.splitlines() == [
        "recipes/chat.yaml:6:1: note: builder ignores build_args: --tf5",
        "1 recipe checked: no problems, with notes",
    ]
    projects.write(tmp_path / "shared/a.yaml", "name: x\ncontainer: small\ncommand: |\n  x \\\n  --y “1”\n")
    projects.write(tmp_path / "shared/b.yaml", "name: x\ncontainer: small\ncommand: x {y}\n")
    done = run(project, "recipes", "check", str(tmp_path / "shared"), code=2)
    assert done.stdout.splitlines() == [
        "shared/a.yaml:5:7: this recipe was pasted from a web page; to correct it: "
        "`builder recipes add --mend shared/a.yaml`",
        "shared/b.yaml:3:12: no value for {y}: set it under `defaults`; known keys: none",
        "2 recipes checked: 2 problems in 2 of them",
    ]
    document = json.loads(run(project, "recipes", "check", str(tmp_path / "shared"), "--json", code=2).stdout)
    assert [(p["line"], p["column"]) for checked in document["recipes"] for p in checked["problems"]] == [
        (5, 7),
        (3, 12),
    ]


def test_the_lines_of_a_recipe_stay_together(project: Project) -> None:
    (project.recipes / "chat.yaml").unlink()
    for name in ("a", "b"):
        text = f"name: {name}\ncontainer: nowhere-{name}\ncommand: vllm serve x --port 80000\n"
        projects.write(project.recipes / f"{name}.yaml", text)
    projects.write(project.recipes / "c.yaml", "name: c\ncontainer: nowhere-c\ncommand: vllm serve x\n")
    lines = run(project, "recipes", "check", code=2).stdout.splitlines()
    assert [line.partition(":")[0].removeprefix("recipes/") for line in lines[:-1]] == [
        "c.yaml",
        *("a.yaml", "a.yaml"),
        *("b.yaml", "b.yaml"),
    ]


def test_build_refuses_a_recipe_that_names_a_number(project: Project) -> None:
    projects.add_recipe(project.root, "chat", "small:1", "Org/Model-1B", [])
    done = run(project, "build", "chat", code=2)
    assert "recipes/chat.yaml names the number small:1, but a build makes a new number" in done.stderr
    assert "`container: small`" in done.stderr


def test_what_only_a_build_needs_is_its_own_error(project: Project) -> None:
    projects.write(project.recipes / "x.yaml", "name: x\ncontainer: small\nmods: [x]\ncommand: x\n")
    checked = run(project, "recipes", "check", "x", code=2)
    assert "recipes/x.yaml:3:8: no mod `x` in mods/; " in checked.stdout
    for typed in BUILD:
        message = run(project, *typed.split(), code=2).stderr
        remedy = "`builder mods add ADDRESS` copies it from its repository"
        assert message == f"error: recipes/x.yaml:3:8: no mod `x` in mods/; {remedy}\n"


@pytest.mark.slow
def test_a_mistake_in_a_recipe_is_said_the_same_way_by_every_command(project: Project) -> None:
    locks.write(project, (1,), current=1)
    projects.write(project.recipes / "x.yaml", "name: x\ncontainer: small\ncommand: x {nosuch}\n")
    expected = "recipes/x.yaml:3:12: no value for {nosuch}: set it under `defaults`; known keys: none"
    assert run(project, "recipes", "check", "x", code=2).stdout.splitlines()[0] == expected
    for typed in EVERY:
        assert run(project, *typed.split(), code=2).stderr == f"error: {expected}\n"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("compose", "    image: small:1\n"),
        ("script", "  small:1 serve Org/Model-1B --port 9 --n 2 --x 'a b'\n"),
        ("opencode", '"baseURL": "http://127.0.0.1:9/v1"'),
    ],
)
def test_export_writes_the_paired_image_down(project: Project, tmp_path: Path, kind: str, expected: str) -> None:
    locks.write(project, (1, 2), current=2, paired=1, template="sha256:" + "0" * 64)
    arguments = ("export", "chat", "--format", kind, "--port", "9")
    done = run(project, *arguments, "--", "--x", "a b")
    assert expected in done.stdout
    assert done.stderr == ""
    file = tmp_path / "out"
    assert run(project, *arguments, "--output", str(file), "--", "--x", "a b").stdout == f"{file}: small:1\n"
    assert file.read_text(encoding="utf-8") == done.stdout
    assert bool(file.stat().st_mode & 0o100) == (kind == "script")


def test_export_takes_an_image_of_others_as_it_is_called(project: Project) -> None:
    projects.add_recipe(project.root, "other", "host/vllm:v1", "Org/M", ["mods/template"])
    done = run(project, "export", "other", "--format", "compose")
    assert "    image: host/vllm:v1\n" in done.stdout
    assert "builder/compile" not in done.stdout
    notes = " ".join(done.stderr.split())
    assert "host/vllm:v1 has no number" in notes
    assert "`builder adopt host/vllm:v1` gives the image a number" in notes
    assert "is not known to contain mods/template: a definition with `base: host/vllm:v1` can add them" in notes
    assert "container: host/vllm:v1\n" in run(project, "export", "other", "--format", "recipe").stdout
    refused = run(project, "build", "other", code=2).stderr
    assert "no image definition makes `host/vllm:v1`" in refused
    assert "`builder adopt host/vllm:v1`" in " ".join(refused.split())
    # One that a definition makes is to be built, or adopted.
    unbuilt = " ".join(run(project, "export", "chat", "--format", "compose", code=7).stderr.split())
    assert "no image of small has been built yet" in unbuilt
    assert "`builder build recipes/chat.yaml`; `builder adopt small`" in unbuilt


def test_export_takes_a_model(project: Project) -> None:
    locks.write(project, (1, 2), current=2, paired=1)
    assert run(project, "export", "Org/Model-1B", "--format", "script").stdout == (
        run(project, "export", "recipes/chat.yaml", "--format", "script").stdout
    )


@pytest.mark.slow
def test_an_exported_recipe_serves_the_same_here(project: Project) -> None:
    locks.write(project, (1, 2), current=2, paired=1, template="sha256:" + "0" * 64)
    file = project.recipes / "exported.yaml"
    run(project, "export", "chat", "--format", "recipe", "--output", str(file))
    assert run(project, "recipes", "check", "exported").stdout == "1 recipe checked: no problems\n"
    shown, exported = (
        json.loads(run(project, "recipes", "show", name, "--json").stdout) for name in ("chat", "exported")
    )
    assert exported["command"] == shown["command"]
    assert (exported["container"], exported["image"], exported["mods"]) == ("small:1", "small:1", [])


def test_export_says_what_is_not_as_it_should_be(project: Project) -> None:
    locks.write(project, (1,), current=1)
    assert run(project, "export", "chat", "--format", "recipe").stderr.splitlines() == [
        "Org/Model-1B is not paired with an image; the current image small:1 is used",
        "mods/template is not in small:1: the launcher must apply it",
    ]


def test_export_of_what_was_never_built_ends_with_7(project: Project) -> None:
    done = run(project, "export", "chat", "--format", "compose", code=7)
    assert "no image of small has been built yet" in done.stderr
    assert "builder build recipes/chat.yaml" in done.stderr


def test_a_file_that_cannot_be_written_is_named(project: Project, tmp_path: Path) -> None:
    locks.write(project, (1,), current=1, paired=1)
    done = run(project, "export", "chat", "--format", "script", "--output", str(tmp_path / "no/file"), code=2)
    assert f"{tmp_path}/no/file cannot be written: No such file or directory" in done.stderr


@pytest.mark.parametrize("folder", ["", ".", "/", "recipes"])
def test_an_export_into_the_place_of_a_folder_is_refused(project: Project, folder: str) -> None:
    locks.write(project, (1,), current=1, paired=1)
    done = run(project, "export", "chat", "--format", "script", "--output", folder, code=2)
    assert f"{folder or '.'} cannot be written: Is a directory" in done.stderr


CLUSTER = (
    "name: big\ncontainer: {container}\nmods: [mods/nowhere]\ncluster_only: true\ndefaults: {{tensor_parallel: 2}}\n"
    "env: {{NCCL_DEBUG: WARN}}\ncommand: |\n  vllm serve m -tp {{tensor_parallel}} \\\n"
    "  --distributed-executor-backend ray\n"
)
PAIR = (
    "nodes:\n  one: {engine: default, address: 10.0.0.1, interface: enp1s0f1np1, rdma: [rocep1s0f1, roceP2p1s0f1]}\n"
    "  two: {engine: default, address: 10.0.0.2, rdma: [], env: {NCCL_DEBUG: INFO}}\n"
)


def show_nodes(project: Project, *options: str) -> dict[str, dict[str, Any]]:
    document = json.loads(run(project, "recipes", "show", "big", "--json", *options).stdout)
    return {node["node"]: node for node in document["nodes"]}


def test_show_with_nodes_tells_what_runs_on_each(project: Project) -> None:
    projects.write(project.recipes / "big.yaml", CLUSTER.format(container="small"))
    projects.write(project.root / "builder.yaml", PAIR)
    nodes = show_nodes(project, "--node", "one", "--node", "two", "--node", "three", "--port", "1")
    assert list(nodes) == ["one", "two"]
    serve = ["vllm", "serve", "m", "-tp", "2", "--port", "1", "--nnodes", "2", "--node-rank"]
    master = ["--master-addr", "10.0.0.1", "--master-port", "29501"]
    assert nodes["one"]["argv"] == [*serve, "0", *master]
    assert nodes["two"]["argv"] == [*serve, "1", *master, "--headless"]
    assert (nodes["one"]["devices"], nodes["one"]["capabilities"]) == (["/dev/infiniband"], ["IPC_LOCK"])
    assert (nodes["two"]["devices"], nodes["two"]["capabilities"]) == ([], [])
    one, two = nodes["one"]["env"], nodes["two"]["env"]
    assert (one["NCCL_IB_HCA"], one["NCCL_DEBUG"]) == ("rocep1s0f1,roceP2p1s0f1", "WARN")
    assert (one["GLOO_SOCKET_IFNAME"], one["VLLM_HOST_IP"]) == ("enp1s0f1np1", "10.0.0.1")
    assert (two["NCCL_IB_DISABLE"], two["NCCL_DEBUG"]) == ("1", "INFO")


def test_show_takes_addresses_for_nodes_and_ray(project: Project) -> None:
    projects.write(project.recipes / "big.yaml", CLUSTER.format(container="small"))
    nodes = show_nodes(project, "--node", "10.0.0.1", "--node", "10.0.0.2", "--ray")
    served = ["vllm", "serve", "m", "-tp", "2", "--distributed-executor-backend", "ray"]
    assert nodes["10.0.0.1"]["argv"] == served
    assert nodes["10.0.0.1"]["ray"][:4] == ["ray", "start", "--block", "--head"]
    assert nodes["10.0.0.2"]["argv"][:3] == ["ray", "start", "--block"]
    assert nodes["10.0.0.2"]["env"]["RAY_NODE_IP_ADDRESS"] == "10.0.0.2"


@pytest.mark.parametrize(
    "container", ["vllm-node-of-others", "vllm/vllm-openai:nightly", "nvcr.io/nvidia/vllm:26.04-py3"]
)
def test_show_needs_no_image_definition(project: Project, container: str) -> None:
    projects.write(project.recipes / "4x/big.yaml", CLUSTER.format(container=container))
    nodes = show_nodes(project, "--node", "a", "--node", "b")
    assert nodes["b"]["argv"][-1] == "--headless"
    assert nodes["b"]["devices"] == ["/dev/infiniband"]
    assert nodes["b"]["env"]["NCCL_IGNORE_CPU_AFFINITY"] == "1"


def test_show_prints_the_command_of_each_node(project: Project) -> None:
    projects.write(project.recipes / "big.yaml", CLUSTER.format(container="small"))
    done = run(project, "recipes", "show", "big", "--node", "a", "--node", "b", "--node", "c")
    assert "\na:\nvllm serve m \\\n  -tp 2 \\\n  --nnodes 2 \\\n" in done.stdout
    assert "\nb:\nvllm serve m \\\n" in done.stdout
    assert done.stderr.splitlines()[-1].endswith("tp 2 uses 2 of the nodes: a, b; not used: c")
    alone = run(project, "recipes", "show", "big")
    assert alone.stdout.endswith("\nvllm serve m \\\n  -tp 1\n")
    assert "this recipe requires several machines: name them with --node" in alone.stderr


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--node", "a", "--node", "b", "--tp", "3"], "its command requires 3 machines (tp 3), but there are only 2"),
        (["--ray"], "--ray joins several nodes"),
    ],
)
def test_show_refuses_what_the_nodes_cannot_do(project: Project, options: list[str], expected: str) -> None:
    projects.write(project.recipes / "big.yaml", CLUSTER.format(container="small"))
    assert expected in run(project, "recipes", "show", "big", *options, code=2).stderr


def test_a_recipe_for_several_machines_is_not_exported_for_one(project: Project) -> None:
    locks.write(project, (1,), current=1)
    projects.write(project.recipes / "big.yaml", CLUSTER.format(container="small"))
    for form in ("compose", "script"):
        done = run(project, "export", "big", "--format", form, code=2)
        assert "recipes/big.yaml says `cluster_only`: one machine alone cannot serve it" in done.stderr
