"""Recipes of registries, recipes made from vLLM's own, and conversion on the command line, with a real git server.

What vllm_recipes/ holds is written for these tests, in the form of https://github.com/vllm-project/recipes.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import BuilderError, FileProblemsError, SourceError, UsageError
from builder.base.events import ignore
from builder.base.project import Project
from builder.commands import mods, recipes
from builder.definitions import command, configuration, recipe, recipe_problems
from builder.moving import recipe_registries
from builder.moving.copies import read_origin
from tests import locks, program, projects
from tests.conftest import command as command_line
from tests.sources import git_server

if TYPE_CHECKING:
    from collections.abc import Iterator


MAIN = "refs/heads/main"
PUBLISHED = Path(__file__).parent / "vllm_recipes"
RECIPE = """\
recipe_version: "2"
model: House/M
runtime: vllm
container: house/serving
mods: [mods/trellis]
defaults: {port: 8000}
command: vllm serve {model} --port {port}
"""


class Registries:
    """A git server with a registry of recipes and vLLM's own, and a project whose builder.yaml names them."""

    def __init__(self, folder: Path, server: git_server.Server) -> None:
        self.server = server
        self.house = git_server.make_repository(folder / "served/house.git")
        self.vllm = git_server.make_repository(folder / "served/vllm.git")
        files = dict.fromkeys(("stable/chat.yaml", "stable/1x/twice.yaml", "stable/2x/twice.yml"), RECIPE)
        self.first = self.house.commit(MAIN, "Start", {**files, "house-mods/trellis/run.sh": "cp a b\n"})
        self.vllm.commit(MAIN, "Start", published())
        self.project = projects.make(folder / "project")
        self.configure(f"house: {server.url}/house.git//stable", f"vllm: {server.url}/vllm.git")

    def configure(self, *lines: str) -> None:
        text = "recipe_registries:\n" + "".join(f"  {line}\n" for line in lines)
        projects.write(self.project.root / "builder.yaml", text)

    def add(self, text: str, hardware: str | None = None) -> tuple[str, ...]:
        planned = recipes.plan_recipe_copies(self.project, text, None, ignore, everything=False, hardware=hardware)
        mods.make_copies(self.project, [*planned.mods, *planned.recipes])
        return tuple(copy.name for copy in (*planned.recipes, *planned.mods))

    def read(self, name: str) -> recipe.Recipe:
        return recipe.load_recipe(self.project, self.project.recipes / f"{name}.yaml")


def published() -> dict[str, str | bytes | None]:
    files = (path for path in PUBLISHED.rglob("*.yaml"))
    return {path.relative_to(PUBLISHED).as_posix(): path.read_text(encoding="utf-8") for path in files}


@pytest.fixture
def registries(tmp_path: Path) -> Iterator[Registries]:
    (tmp_path / "served").mkdir()
    with git_server.serve(tmp_path / "served") as server:
        yield Registries(tmp_path, server)


@pytest.mark.slow
def test_a_recipe_of_a_registry_comes_with_its_mods_and_its_commit(registries: Registries) -> None:
    assert registries.add("@house/chat") == ("chat", "trellis")
    origin = read_origin(registries.project, "recipe", "chat")
    assert origin
    assert (origin.commit, origin.path, origin.ref) == (registries.first, "stable/chat.yaml", "HEAD")
    assert registries.read("chat").version == 2
    later = registries.house.commit(MAIN, "Change", {"stable/chat.yaml": RECIPE.replace("8000", "9000")})
    update = mods.plan_copies_update(registries.project, "recipe", ["chat"], None, ignore)
    (copy,) = update[0]
    assert copy.origin
    assert (copy.origin.commit, copy.replaces) == (later, True)
    registries.add(f"@house/2x/twice@{registries.first}")
    origin = read_origin(registries.project, "recipe", "twice")
    assert origin
    assert (origin.ref, origin.path) == (registries.first, "stable/2x/twice.yml")


@pytest.mark.slow
def test_where_it_came_from_is_shown(registries: Registries) -> None:
    registries.add("@house/chat")
    told = builder(registries.project, "recipes", "show", "chat")
    assert f"{registries.server.url}/house.git//stable/chat.yaml, commit {registries.first[:12]}" in told
    assert "--port 8000" in told


@pytest.mark.slow
def test_what_a_registry_does_not_have_is_told(registries: Registries) -> None:
    cases: tuple[tuple[str, type[BuilderError], str], ...] = (
        ("@house/chatt", SourceError, "the registry house has no recipe chatt"),
        ("@house/twice", UsageError, "has several recipes named twice: stable/1x/twice.yaml, stable/2x/twice.yml"),
        ("@hous/chat", UsageError, "no registry of recipes is called `hous`"),
        ("@house", UsageError, "does not name a recipe of a registry"),
        ("@house/../chat", UsageError, "does not name a recipe of a registry"),
        ("@../chat", UsageError, "does not name a recipe of a registry"),
        ("@house/chat@--upload-pack=touch x", UsageError, "does not name a recipe of a registry"),
        ("@house/a\nb", UsageError, "does not name a recipe of a registry"),
        ("vllm:House/Nobody-1B", UsageError, "vLLM has no recipe for House/Nobody-1B"),
        ("vllm:House/Voice-1B", UsageError, "is served by vllm-omni"),
        ("vllm:House/Garden-27B:broad", UsageError, "has no variant broad"),
        ("vllm:../../etc/passwd", UsageError, "does not name a recipe of vLLM"),
        ("vllm:House/Garden-27B@--upload-pack=x y", UsageError, "does not name a recipe of vLLM"),
    )
    for text, kind, told in cases:
        with pytest.raises(kind) as caught:
            registries.add(text)
        assert told in caught.value.message, text
        assert not list(registries.project.recipes.glob("**/twice.yaml")), text


@pytest.mark.slow
def test_a_ref_that_is_an_option_is_no_ref(registries: Registries, tmp_path: Path) -> None:
    for text in (f"@house/chat@--upload-pack=touch${{IFS}}{tmp_path}/made", "@house/chat@../../x", "@house/chat@-x"):
        with pytest.raises(BuilderError):
            registries.add(text)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "address",
    [
        *("ext::sh -c touch% x", "file:///etc", "/etc", "../x", "--upload-pack=x", "-x", "~/x", "fd::17"),
        *(
            "https://-x/y",
            "git@-oProxyCommand=x:y",
            "-oProxyCommand=x@host:y",
            "git@host:-x",
            "https://h/a b",
            "ssh://-x/y",
        ),
        *('"https://h/a\\nb"', "git::https://h/x", "3", "[a]", "http:/x"),
    ],
)
def test_an_address_that_git_could_take_for_more_is_refused(tmp_path: Path, address: str) -> None:
    project = Project(tmp_path)
    written = address if address[:1] in '"[' or address.isdigit() else f"'{address}'"
    projects.write(tmp_path / "builder.yaml", f"recipe_registries:\n  house: {written}\n")
    with pytest.raises(FileProblemsError) as caught:
        configuration.load_configuration(project)
    assert caught.value.problems[0].location.line == 2
    assert "house" not in recipe_registries.read_registries(project)


def test_every_shipped_registry_has_an_address_that_is_taken(tmp_path: Path) -> None:
    shipped = recipe_registries.read_registries(Project(tmp_path))
    assert {"official", "eugr", "vllm"} <= set(shipped)
    text = "".join(f"  {name}: {address}\n" for name, address in shipped.items())
    projects.write(tmp_path / "builder.yaml", f"recipe_registries:\n{text}")
    assert configuration.load_configuration(Project(tmp_path)).recipe_registries == shipped


# vLLM's own recipes.


@pytest.mark.slow
def test_a_recipe_of_vllm_says_where_each_line_is_from(registries: Registries) -> None:
    assert registries.add("vllm:House/Garden-27B") == ("garden-27b",)
    asked = [request for request in registries.server.requests if request.startswith("POST")]
    assert len(asked) == 5  # branches and tags, HEAD, the commit, and two for the contents of all files
    made = registries.read("garden-27b")
    rendered = command.render_command(made, {})
    # The argv and the environment of their own src/lib/command-synthesis.js.
    flags = "--trust-remote-code --max-num-seqs 8 --tensor-parallel-size 1 --attention-backend house"
    tools = "--enable-auto-tool-choice --tool-call-parser garden"
    assert rendered.words == ("vllm", "serve", "House/Garden-27B", *flags.split(), *tools.split())
    assert rendered.env == {"HOUSE_BASE": "2", "HOUSE_QUOTED": 'a "b" $c', "HOUSE_OF_SPARK": "yes"}
    assert recipe_problems.recipe_problems(made) == ()
    lines = made.text.splitlines()
    file = "models/House/Garden-27B.yaml"
    overlay = "variants.default.hardware_overrides.dgx_spark_gb10"
    for line in (
        f"# --max-num-seqs 8: {file}:47 {overlay}.extra_args",
        f"# --attention-backend house: {file}:66 hardware_overrides.blackwell.extra_args",
        "# --tensor-parallel-size 1: strategies/single_node_tp.yaml:3 parallel_flag",
        f"  HOUSE_OF_SPARK: 'yes'  # {file}:49 {overlay}.extra_env.HOUSE_OF_SPARK",
        f"model: House/Garden-27B  # {file}:9 model.model_id",
        f"# Not run ({file}:20 dependencies): uv pip install house-shed==2",
        "# Note of that file: Water the garden first.",
    ):
        assert line in lines
    body = [line for line in lines if line.startswith("    --")]
    table = [line for line in lines if line.startswith("# --")]
    assert [line.strip(" \\") for line in body] == [line[2:].rpartition(": ")[0] for line in table]


@pytest.mark.slow
def test_a_checkpoint_of_a_variant_finds_it_and_two_machines_are_said(registries: Registries) -> None:
    registries.add("vllm:House/Garden-27B-NVFP4")
    words = command.render_command(registries.read("garden-27b-nvfp4"), {}).words
    assert words[-1] == '{"method":"mtp","num_speculative_tokens":3}'
    assert registries.read("garden-27b-nvfp4").container == "house/garden:pinned"
    registries.add("vllm:House/Garden-27B:wide")
    wide = registries.read("garden-27b")
    assert wide.cluster_only
    assert "HOUSE_LINK" in wide.env
    assert "NCCL_SOCKET_IFNAME" not in wide.env
    assert "# Left out: NCCL_SOCKET_IFNAME=$IFACE_NAME (strategies/multi_node_tp.yaml:4" in wide.text


@pytest.mark.slow
def test_a_recipe_may_require_more_machines(registries: Registries) -> None:
    file = "models/House/Garden-27B.yaml"
    text = (PUBLISHED / file).read_text(encoding="utf-8")
    for least, tensors in (
        *(("4", "4"), ("{multi_node_tp: 4}", "4"), ("{dgx_spark_gb10: {multi_node_tp: 6}, multi_node_tp: 4}", "6")),
        *(("{single_node_tp: 2, dgx_spark_gb10: 3}", "3"), ("{eight_big: 64}", "2"), ("{multi_node_tp: many}", "2")),
    ):
        registries.vllm.commit(MAIN, "Large", {file: f"{text}strategy_min_gpus: {least}\n"})
        registries.add("vllm:House/Garden-27B:wide")
        made = registries.read("garden-27b")
        words = command.render_command(made, {}, backend="mp").words
        assert command.option(words, "--tensor-parallel-size") == tensors, least
        assert f"multi_node_tp: {tensors} machines of this kind" in made.text, least
        for path in registries.project.recipes.glob("garden-27b.*"):
            path.unlink()


@pytest.mark.slow
def test_hardware_is_chosen_and_refused(registries: Registries) -> None:
    registries.add("vllm:House/Garden-27B", hardware="eight_big")
    assert "--attention-backend" not in command.render_command(registries.read("garden-27b"), {}).words
    for hardware, told in (
        ("of_another_brand", "only on NVIDIA GPUs"),
        ("toaster", "do not know the hardware toaster"),
        ("--x", "is not a valid name"),
        ("../x", "is not a valid name"),
    ):
        with pytest.raises(UsageError, match=told):
            registries.add("vllm:House/Garden-27B", hardware=hardware)
    with pytest.raises(UsageError, match="is not for eight_big"):
        registries.add("vllm:House/Garden-27B:nvfp4", hardware="eight_big")
    with pytest.raises(UsageError, match="--hardware applies only to recipes from vLLM"):
        registries.add("@house/chat", hardware="eight_big")


@pytest.mark.slow
def test_a_recipe_of_vllm_is_updated_for_the_same_hardware(registries: Registries) -> None:
    registries.add("vllm:House/Garden-27B", hardware="eight_big")
    file = "models/House/Garden-27B.yaml"
    text = (PUBLISHED / file).read_text(encoding="utf-8")
    commit = registries.vllm.commit(MAIN, "More", {file: text.replace('"64"', '"96"')})
    (copy,) = mods.plan_copies_update(registries.project, "recipe", ["garden-27b"], None, ignore)[0]
    mods.make_copies(registries.project, [copy])
    made = registries.read("garden-27b")
    assert "96" in command.render_command(made, {}).words
    assert commit in made.text
    assert "Hardware eight_big" in made.text
    origin = read_origin(registries.project, "recipe", "garden-27b")
    assert origin
    assert origin.path == f"{file}#default@eight_big"
    assert origin.commit == commit


HOSTILE = {
    "an argument with a line break": ("--trust-remote-code\n", '"--trust-remote-code\\n  evil: 1"\n'),
    "a list in a list": ("    - --trust-remote-code\n", "    - [--trust-remote-code]\n"),
    "arguments that are no list": ("args: [--enable-auto-tool-choice, --tool-call-parser, garden]", "args: --enable"),
    "a variable with another name": ('HOUSE_BASE: "1"', "'A=b; x': \"1\""),
    "a variable that is a list": ('HOUSE_BASE: "1"', "HOUSE_BASE: [1]"),
    "a model with an option": ("  model_id: House/Garden-27B\n", "  model_id: '--x'\n"),
    "an image with an option": ("  min_vllm_version", "  docker_image: '-v /:/h'\n  min_vllm_version"),
    "a bomb": ("meta:\n", "x: &a [b]\ny: &c [*a, *a]\nmeta: !!python/name:os.system\nmetb:\n"),
    "no mapping": ("variants:\n", "variants: []\nothers:\n"),
}


@pytest.mark.slow
def test_a_hostile_recipe_of_vllm_is_refused(registries: Registries) -> None:
    file = "models/House/Garden-27B.yaml"
    text = (PUBLISHED / file).read_text(encoding="utf-8")
    for name, change in HOSTILE.items():
        assert change[0] in text, name
        registries.vllm.commit(MAIN, "Hostile", {file: text.replace(*change, 1)})
        with pytest.raises(BuilderError):
            registries.add("vllm:House/Garden-27B")
        assert not (registries.project.recipes / "garden-27b.yaml").exists(), name
    registries.vllm.commit(MAIN, "Mended", {file: text})
    assert registries.add("vllm:House/Garden-27B") == ("garden-27b",)  # only the changes were refused


@pytest.mark.slow
def test_a_machine_without_a_gpu_counts_as_one_with_one(registries: Registries) -> None:
    text = (PUBLISHED / "taxonomy.yaml").read_text(encoding="utf-8")
    changed = re.sub(r"gpu_count: *\d+", "gpu_count: 0", text)
    assert changed != text
    registries.vllm.commit(MAIN, "Hostile", {"taxonomy.yaml": changed})
    registries.add("vllm:House/Garden-27B")
    assert "--tensor-parallel-size 1" in " ".join(command.render_command(registries.read("garden-27b"), {}).words)


@pytest.mark.slow
def test_a_hostile_strategy_is_refused(registries: Registries) -> None:
    for line in ('vllm_args: ["--x\\nvolumes: [/:/host]"]', 'parallel_flag: "--tp\\n  evil"'):
        registries.vllm.commit(MAIN, "Hostile", {"strategies/single_node_tp.yaml": f"{line}\n"})
        with pytest.raises(SourceError, match="an argument contains a control character"):
            registries.add("vllm:House/Garden-27B")


@pytest.mark.slow
def test_text_of_others_stays_in_its_comment_and_its_quotes(registries: Registries) -> None:
    file = "models/House/Garden-27B.yaml"
    text = (PUBLISHED / file).read_text(encoding="utf-8")
    text = text.replace("Water the garden first.", '"a\\nvolumes: [/:/host] \\u2028env: {} \\e[2J"')
    text = text.replace("uv pip install house-shed==2", '"x\\ncommand: touch /tmp/x"')
    text = text.replace("[--attention-backend, house]", "[--attention-backend, \"'; touch x; {model} '\"]")
    text = text.replace("  tools:\n", '  "tools\\nvolumes: [/:/host] \\x85env: {}":\n')
    registries.vllm.commit(MAIN, "Odd", {file: text})
    registries.add("vllm:House/Garden-27B")
    made = registries.read("garden-27b")
    assert (made.volumes, made.model) == ((), "House/Garden-27B")
    words = command.render_command(made, {}).words
    assert words[words.index("--attention-backend") + 1] == "'; touch x; {model} '"
    assert "\x1b" not in made.text


# Version 2 on the command line: shown on several machines, exported, converted.

TWO = """\
recipe_version: "2"
model: Org/Model-1B
runtime: vllm
container: small
min_nodes: 2
max_nodes: 3
defaults: {tensor_parallel: 2, port: 8000}
env: {OMP_NUM_THREADS: "8"}
command: |
  vllm serve {model} -tp {tensor_parallel} --port {port} --x '{"a": {"b": 1}}'
"""


def test_each_machine_of_two_is_shown_with_sparkrun_s_variables(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.write(project.recipes / "two.yaml", TWO)
    nodes = ("--node", "10.0.0.1", "--node", "10.0.0.2")
    shown = json.loads(builder(project, "recipes", "show", "two", *nodes, "--json"))["nodes"]
    serve = ["vllm", "serve", "Org/Model-1B", "-tp", "2", "--port", "8000", "--x", '{"a": {"b": 1}}']
    for rank, node in enumerate(shown):
        place = ["--nnodes", "2", "--node-rank", str(rank), "--master-addr", "10.0.0.1", "--master-port", "29501"]
        assert node["argv"] == [*serve, *place, *(["--headless"] if rank else [])]
        assert node["env"]["OMP_NUM_THREADS"] == "8"
        assert node["env"]["NCCL_CUMEM_ENABLE"] == "0"
    assert "2 to 3" in builder(project, "recipes", "show", "two")
    assert "say `cluster_only`" not in builder(project, "recipes", "check", "two")
    text = builder(project, "recipes", "show", "two", "--tp", "4", *nodes, "--node", "10.0.0.3", "--node", "n4", code=2)
    assert "allows at most 3 machines (`max_nodes`), but its command requires 4" in text


def test_a_recipe_of_version_2_is_exported_as_version_1(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.write(project.recipes / "chat.yaml", TWO.replace("max_nodes: 3", "max_nodes: 2"))
    locks.write(project, (1, 2), 2, 2)
    text = builder(project, "export", "chat", "--format", "recipe")
    exported = recipe.parse_recipe(text, "exported.yaml").recipe
    assert exported
    assert (exported.version, exported.container, exported.cluster_only) == (1, "small:2", True)
    original = recipe.load_recipe(project, project.recipes / "chat.yaml")
    words = [command.render_command(each, {}, (), "mp").words for each in (exported, original)]
    assert words[0] == words[1]
    script = builder(project, "export", "chat", "--format", "script", "--tp", "1", "--node", "10.0.0.1", code=2)
    assert "cluster_only" in script or "no node" in script


def builder(project: Project, *arguments: str, code: int = 0) -> str:
    done = program.run(command_line(project, *arguments), env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + (done.stderr if code else "")


def test_a_recipe_is_converted_and_back(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    two = builder(project, "recipes", "convert", "chat")
    assert 'recipe_version: "2"' in two or "recipe_version: '2'" in two
    projects.write(project.recipes / "two.yaml", two)
    one = builder(project, "recipes", "convert", "two", "--to", "1")
    projects.write(project.recipes / "one.yaml", one)
    loaded = [recipe.load_recipe(project, project.recipes / f"{name}.yaml") for name in ("chat", "two", "one")]
    assert [each.version for each in loaded] == [1, 2, 1]
    assert len({command.render_command(each, {}).words for each in loaded}) == 1
    assert "already has version 2" in builder(project, "recipes", "convert", "two", "--to", "2", code=2)
    assert "no such file or recipe" in builder(project, "recipes", "convert", "nothing", code=2)
    assert "no problems" in builder(project, "recipes", "check")
