"""What is wrong in a recipe before it is served."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError
from builder.base.project import Project
from builder.commands import recipes
from builder.definitions import build_target, command, recipe, recipe_problems
from tests import projects, shipped_files
from tests.definitions.recipes import recipe_texts

if TYPE_CHECKING:
    from pathlib import Path

    from builder.definitions.recipe import Recipe


HEAD = "name: x\ncontainer: small\n"
BROKEN = "name: x\ncontainer: smal\nmods: [mods/templat, ./mods/other/]\ncommand: vllm serve x --port {prt}\n"
NO_VALUE = "recipes/r.yaml:4:30: no value for {prt}: set it under `defaults`; known keys: none"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = projects.make(tmp_path)
    projects.add_mod(tmp_path, "opaque", "python3 change.py\n", {"change.py": "print()\n"})
    far = f"description: x\nfiles: [{{from: https://example.org/far.jinja, to: ., sha256: '{'0' * 64}'}}]\n"
    projects.add_mod(tmp_path, "far", "", {}, far)
    return project


def load(project: Project, text: str) -> Recipe:
    projects.write(project.recipes / "r.yaml", text)
    return recipe.load_recipe(project, project.recipes / "r.yaml")


def problems(project: Project, text: str) -> list[str]:
    return [str(problem) for problem in recipe_problems.recipe_problems(load(project, text))]


def notes(project: Project, text: str) -> list[str]:
    return [str(note) for note in recipe_problems.notes(project, load(project, text))]


def test_every_problem_has_its_location(project: Project) -> None:
    assert problems(project, BROKEN) == [NO_VALUE]


@pytest.mark.parametrize(
    ("written", "column", "message"),
    [
        ("$ vllm serve Org/M --port 1", 3, "`$`: remove the prompt of the shell"),
        (
            "cd /x && docker run -p 8000:8000 vllm/vllm-openai vllm serve Org/M",
            12,
            "`docker`: it runs inside the container, so write only `vllm serve MODEL` and its options",
        ),
    ],
)
def test_a_command_that_no_container_can_start_is_a_problem(
    project: Project, written: str, column: int, message: str
) -> None:
    wrong = problems(project, f"{HEAD}model: Org/M\ncommand: |\n  {written}\n")
    assert wrong == [f"recipes/r.yaml:5:{column}: the command begins with {message}"]


@pytest.mark.parametrize("written", ["--model Org/M --port 1", "serve Org/M --port 1", "Org/M --port 1"])
def test_a_command_without_its_program_is_noted(project: Project, written: str) -> None:
    """An image's own entrypoint may be `vllm serve`."""
    first, _, _ = written.partition(" ")
    told = f"the command begins with `{first}`: write `vllm serve` before it, unless the image's entrypoint runs vLLM"
    content = f"{HEAD}model: Org/M\ncommand: |\n  {written}\n"
    assert notes(project, content) == [f"recipes/r.yaml:5:3: {told}"]
    assert not problems(project, content)


def test_a_file_of_options_is_not_read(project: Project) -> None:
    note = "builder does not read the file of `--config`: write the model and `--port` into the command, too"
    for written in (
        "vllm serve --config /x.yaml",
        "vllm serve Org/M --config=/x.yaml",
        "vllm serve --config /x --port 1",
    ):
        (found,) = notes(project, f"{HEAD}command: {written}\n")
        assert found == f"recipes/r.yaml:3:{written.index('--config') + 10}: {note}"
    assert not notes(project, f"{HEAD}command: vllm serve Org/M --config /x.yaml --port 1\n")


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("--ssl-certfile=/c.pem", "remove --ssl-certfile; for HTTPS, put a proxy in front of the server"),
        ("--ssl_certfile /c.pem", "remove --ssl_certfile; for HTTPS, put a proxy in front of the server"),
        ("--uds /run/x.sock", "remove --uds; for a socket, put a proxy in front of the server"),
        ("--headless", "remove --headless; builder adds it on every machine but the first"),
        ("--grpc --port 1", "remove --grpc"),
    ],
)
def test_a_server_that_no_health_check_reaches_is_a_problem(project: Project, option: str, advice: str) -> None:
    (wrong,) = problems(project, f"{HEAD}command: vllm serve Org/M --ssl-keyfile /k.pem {option}\n")
    assert wrong == f"recipes/r.yaml:3:48: builder reaches servers by HTTP at a port: {advice}"


@pytest.mark.parametrize(
    "written", ["/app/start.sh --port 1", "exec vllm serve x", "X=1 vllm serve x", "python3 -m server", '"$SERVER" x']
)
def test_any_other_program_may_serve(project: Project, written: str) -> None:
    assert not problems(project, f"{HEAD}model: Org/M\ncommand: |\n  {written}\n")


@pytest.mark.slow
def test_json_that_is_nested_too_deep_ends_no_check(project: Project) -> None:
    text = "'" + '{{"a": ' * 5000 + "1" + "}}" * 5000 + "'"
    projects.write(project.recipes / "r.yaml", f"{HEAD}command: |\n  vllm serve x --hf-overrides {text}\n")
    (checked,) = recipes.check_recipes(project, ("r",))
    assert [problem.message for problem in checked.problems] == ["the value of --hf-overrides is nested too deeply"]


def test_what_the_project_lacks_is_a_note(project: Project) -> None:
    assert notes(project, BROKEN) == [
        "recipes/r.yaml:2:1: no image definition makes `smal`; did you mean `small`?",
        "recipes/r.yaml:3:8: no mod `templat` in mods/; did you mean `template`?",
        "recipes/r.yaml:3:22: no mod `other` in mods/; `builder mods add ADDRESS` copies it from its repository",
    ]
    (note,) = notes(project, "name: x\ncontainer: vllm/vllm-openai:v0.20.0\ncommand: x\n")
    assert note == (
        "recipes/r.yaml:2:1: no image definition makes `vllm/vllm-openai:v0.20.0`; the engine's image of that name "
        "is served; to give it a number: `builder adopt vllm/vllm-openai:v0.20.0`"
    )


def test_a_secret_in_the_command_is_told_as_one_in_the_environment(project: Project) -> None:
    options = "--api-key sk-abcdefgh12345678 --hf-token $HF_TOKEN --tokenizer some/tokenizer --api-key EMPTY"
    assert notes(project, f"name: x\ncontainer: small\ncommand: vllm serve x {options}\n") == [
        "recipes/r.yaml:3:33: the value of --api-key looks like a secret; remove it here, and pass it with "
        "`--env VLLM_API_KEY`"
    ]


@pytest.mark.parametrize("container", ["small", "small:latest", "small:3"])
def test_an_image_that_is_made_here_needs_no_note(project: Project, container: str) -> None:
    assert notes(project, f"name: x\ncontainer: {container}\ncommand: x\n") == []


def test_a_definition_that_cannot_be_read_hides_no_other(project: Project) -> None:
    projects.write(project.dockerfiles / "broken/image.yaml", "repository: [\n")
    assert notes(project, "name: x\ncontainer: small\ncommand: x\n") == []
    (note,) = notes(project, "name: x\ncontainer: other\ncommand: x\n")
    assert note.startswith(
        "recipes/r.yaml:2:1: builder cannot tell which definition makes `other`: dockerfiles/broken/"
    )


def test_a_valid_recipe_has_no_problems(project: Project) -> None:
    text = f"{HEAD}mods: [template, mods/template, ./mods/template, mods/template/]\ncommand: vllm serve x\n"
    assert problems(project, text) == notes(project, text) == []


def test_one_for_an_unknown_image_is_refused_with_all_that_is_wrong_in_it(project: Project) -> None:
    projects.write(project.recipes / "r.yaml", BROKEN)
    with pytest.raises(FileProblemsError) as caught:
        build_target.definition_of(project, build_target.find_target(project, "r"))
    container = "recipes/r.yaml:2:1: container: no image definition makes `smal`; the definitions make: small"
    assert caught.value.message.splitlines() == [container, NO_VALUE]


def test_the_problems_of_several_recipes_are_told_at_once(project: Project) -> None:
    for name in ("b", "a"):
        projects.write(project.recipes / f"{name}.yaml", f"{HEAD}command: x {{y}}\n")
    recipes = [recipe.load_recipe(project, project.recipes / f"{name}.yaml") for name in ("b", "a", "chat")]
    with pytest.raises(FileProblemsError) as caught:
        recipe_problems.require_buildable(project, [*recipes, *recipes])
    message = "3:12: no value for {y}: set it under `defaults`; known keys: none"
    assert caught.value.message.splitlines() == [f"recipes/a.yaml:{message}", f"recipes/b.yaml:{message}"]
    recipe_problems.require_buildable(project, recipes[2:])


def test_the_text_of_a_template_is_not_taken_for_json(project: Project) -> None:
    template = "'{{%- for one in messages -%}} {{{{ one.content }}}} {{%- endfor -%}}'"
    assert problems(project, f"{HEAD}command: |\n  vllm serve x --chat-template {template}\n") == []
    (message,) = problems(project, f"{HEAD}command: |\n  vllm serve x --other {template}\n")
    assert message.startswith("recipes/r.yaml:4:27: the value of --other is not valid JSON: ")


def test_a_mod_that_cannot_be_baked_is_a_note_with_what_to_use(project: Project) -> None:
    projects.add_mod(project.root, "loop", "nohup watch.sh &\n", {"watch.sh": "x"})
    text = f"{HEAD}mods: [template, mods/loop]\ncommand: vllm serve x\n"
    (note,) = notes(project, text)
    assert "mod loop: run.sh starts a process that outlives the script, which no image keeps" in note
    assert "in the recipe's command" in note


def json_problems(folder: Path, text: str, head: str = "") -> list[str]:
    recipe = recipe_texts.make(folder, text, head)
    return list(map(str, recipe_problems.json_problems(recipe, command.unchecked_words(recipe))))


@pytest.mark.parametrize(
    ("value", "column", "said"),
    [
        ("\"{{'a': 1}}\"", 15, "Expecting property name enclosed in double quotes: {'a': 1}"),
        ("'{{\"a\": True}}'", 20, 'Expecting value: {"a": True}'),
        ("'{{\"a\": 1'", 21, "Expecting ',' delimiter: {\"a\": 1"),
        ("'{{\"a\" 1}}'", 19, "Expecting ':' delimiter: {\"a\" 1}"),
        ("'{{\"a\": 1}} x'", 24, 'Extra data: {"a": 1} x'),
        ("'{{\"a\": \\d}}'", 20, 'Expecting value: {"a": \\d}'),
        ("'{{\\\"n\\\": 1}}'", 15, 'Expecting property name enclosed in double quotes: {\\"n\\": 1}'),
        ('{{"n":1}}', 5, "Expecting property name enclosed in double quotes: {n:1}"),
        ('{{\\"n\\": 1}}', 5, 'Expecting value: {"n":'),
    ],
)
def test_a_fault_is_told_where_it_stands(tmp_path: Path, value: str, column: int, said: str) -> None:
    (problem,) = json_problems(tmp_path, f"vllm serve x \\\n  --spec {value}")
    hint = "write single quotes around the whole value, and double quotes in it"
    assert problem == f"r.yaml:5:{column}: the value of --spec is not valid JSON: {said}; {hint}"


def test_the_column_is_that_of_the_file(tmp_path: Path) -> None:
    (problem,) = json_problems(tmp_path, 'vllm serve x \\\n  --a 1 --spec \'{{"n": 1, "m": oh}}\'')
    line, column = map(int, problem.split(":")[1:3])
    written = (tmp_path / "r.yaml").read_text(encoding="utf-8").splitlines()[line - 1]
    assert written[column - 1 :].startswith("oh")


def test_a_value_from_the_defaults_is_told_there(tmp_path: Path) -> None:
    head = "defaults:\n  port: 1\n  spec: '{\"n\": oh}'\n"
    (problem,) = json_problems(tmp_path, "vllm serve x --port {port} --spec '{spec}'", head)
    assert problem.startswith("r.yaml:5:16: the value of --spec is not valid JSON: ")


def test_only_the_part_around_the_fault_of_a_long_value_is_shown(tmp_path: Path) -> None:
    value = ", ".join(f'"name{n}": {n}' for n in range(30))
    (problem,) = json_problems(tmp_path, f"vllm serve x --spec '{{{{{value}, oh}}}}'")
    assert len(problem) < 240
    assert '"name29": 29, oh}; write' in problem


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve x --spec '{{\"n\": 1}}'",
        "vllm serve x --chat-template '{{% x %}}'",
        'export N=1\nvllm serve x --spec "{{\\"n\\": $N}}"',
        "vllm serve x --spec=",
        "vllm serve x --allowed-origins {{a,b}}",
    ],
)
def test_what_is_no_fault(tmp_path: Path, text: str) -> None:
    assert json_problems(tmp_path, text) == []


def test_text_over_several_lines(tmp_path: Path) -> None:
    (problem,) = json_problems(tmp_path, 'vllm serve x \\\n  --spec \'{{\n    "a": 1,\n    "b": oh\n  }}\' --y 1')
    assert problem.startswith("r.yaml:7:12: ")


@pytest.mark.parametrize(
    ("option", "codes", "advice"),
    [
        ("--max\N{NON-BREAKING HYPHEN}model-len", "U+2011", "write `--max-model-len`"),
        ("\N{EN DASH}\N{MINUS SIGN}port=1", "U+2013, U+2212", "write `--port`"),
        ("\N{EM DASH}port", "U+2014", "write `--port`"),
        ("\N{EN DASH}tp", "U+2013", "write `-tp`"),
        ("--\N{ZERO WIDTH SPACE}port", "U+200B", "write `--port`"),
        ("--po\N{RIGHT-TO-LEFT OVERRIDE}rt", "U+202E", "write `--port`"),
        ("--p\N{CYRILLIC SMALL LETTER O}rt", "U+043E", "type the option again"),
    ],
)
def test_an_option_that_only_looks_like_one_is_told_with_the_right_one(
    project: Project, option: str, codes: str, advice: str
) -> None:
    version_2 = "recipe_version: '2'\nmodel: a/b\nruntime: vllm\n"
    text = f"{HEAD}{version_2}command: vllm serve x --served-model-name é {option} 1\n"
    (problem,) = problems(project, text)
    assert problem.startswith("recipes/r.yaml:6:45: the option `")
    assert problem.endswith(f"` contains {codes}, which no option of vLLM has: {advice}")
    with pytest.raises(FileProblemsError, match="which no option of vLLM has"):
        command.render_command(load(project, text), {})


def test_a_text_that_begins_with_a_dash_is_no_option(project: Project) -> None:
    assert problems(project, f"{HEAD}command: vllm serve x --system '\N{EN DASH}x hello'\n") == []


HYBRID = "Qwen/Qwen3.5-35B-A3B"


def findings(project: Project, options: str, head: str = "", model: str = "Org/M") -> tuple[list[str], list[str]]:
    """The messages of problems and of notes."""
    text = f"name: x\n{head or 'container: small'}\ncommand: |\n  vllm serve {model} \\\n  {options}\n"
    projects.write(project.recipes / "r.yaml", text)
    loaded = recipe.load_recipe(project, project.recipes / "r.yaml")
    wrong, notes = recipe_problems.find_launch_problems(
        loaded, command.render_command(loaded, {}), recipe_problems.image_facts(project, loaded)
    )
    return [str(p).removeprefix("recipes/r.yaml:") for p in wrong], [note.message for note in notes]


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("/models/m", "`volumes: [~/models:/models]` in the recipe mounts it"),
        ("/a/b/m/", "`volumes: [~/b:/a/b]` in the recipe mounts it"),
        ("/m", "`volumes: [~/m:/m]` in the recipe mounts it"),
        ("~/models/m", "mount it with `volumes:` in the recipe, and write its path inside the container"),
        ("./m", "mount it with `volumes:` in the recipe, and write its path inside the container"),
    ],
)
def test_a_model_of_this_machine_takes_a_volume(project: Project, path: str, advice: str) -> None:
    problems, _ = findings(project, "--port 1", model=path)
    assert problems == [f"4:14: no volume mounts the model's folder {path}; {advice}"]


@pytest.mark.parametrize(
    ("volume", "path"),
    [
        ("~/models:/models", "/models/m"),
        ("/a:/models/m:ro", "/models/m"),
        ("/a:/models/m:rw", "/models/m"),
        ("/a:/root/models/", "~/models/m"),
        ("/a:/b", "/root/.cache/huggingface/hub/x"),
    ],
)
def test_a_model_that_is_mounted(project: Project, volume: str, path: str) -> None:
    assert findings(project, "--port 1", f"container: small\nvolumes: ['{volume}']", path) == ([], [])


def test_paths_in_options_are_looked_at_too(project: Project) -> None:
    problems, _ = findings(project, '--tokenizer /t/x --speculative-config \'{{"method": "eagle3", "model": "/d/x"}}\'')
    assert [problem.partition(": ")[2].partition(";")[0] for problem in problems] == [
        "no volume mounts /t/x of --tokenizer",
        "no volume mounts /d/x of --speculative-config",
    ]


@pytest.mark.parametrize(
    ("path", "problems", "notes"), [("/models/d", 1, 0), ("/workspace/d", 0, 1), ("/workspace/chat.jinja", 0, 0)]
)
def test_a_script_may_stage_a_model_in_the_workspace(project: Project, path: str, problems: int, notes: int) -> None:
    head = "container: small\nmods: [template, opaque]"
    result = findings(project, f'--speculative-config \'{{{{"method": "x", "model": "{path}"}}}}\'', head)
    assert tuple(map(len, result)) == (problems, notes)
    assert tuple(map(len, findings(project, "--port 1", head, path))) == (problems, notes)


def test_a_model_from_the_defaults_is_told_there(project: Project) -> None:
    problems, _ = findings(project, "--port 1", "container: small\ndefaults: {model: /models/m}", "{model}")
    assert problems[0].startswith("3:12: ")
    problems, _ = findings(project, "--port 1", "container: small\nmodel: /models/m", "{model}")
    assert problems[0].startswith("3:1: ")


@pytest.mark.parametrize("mods", ["[]", "[template]"])
def test_a_template_that_nothing_brings(project: Project, mods: str) -> None:
    problems, notes = findings(project, "--chat-template x.jinja", f"container: small\nmods: {mods}")
    assert problems == [
        "6:19: the image, its mods and the volumes do not contain the chat template x.jinja; add it with a mod"
    ]
    assert notes == []


@pytest.mark.parametrize(
    "step", ["cat > /t/x.jinja <<'E'\nhello\nE", "curl -fo /t/x.jinja https://h/x", "cp a /t/x.jinja"]
)
def test_a_template_that_the_command_makes(project: Project, step: str) -> None:
    served = "vllm serve Org/M --chat-template \\\n    /t/x.jinja"
    for before, count in ((step, 0), ("true", 1)):
        lines = "\n  ".join([*before.splitlines(), served])
        loaded = load(project, f"{HEAD}command: |\n  {lines}\n")
        facts = recipe_problems.image_facts(project, loaded)
        wrong, told = recipe_problems.find_launch_problems(loaded, command.render_command(loaded, {}), facts)
        assert ["template /t/x.jinja" in each.message for each in (*wrong, *told)] == [True] * count


@pytest.mark.parametrize(
    ("head", "template"),
    [
        ("container: small\nmods: [template]", "chat.jinja"),
        ("container: small\nmods: [opaque, template]", "chat.jinja"),
        ("container: small\nmods: [far]", "far.jinja"),
        ("container: small\nvolumes: ['/a/x.jinja:/workspace/x.jinja']", "x.jinja"),
        ("container: small\nvolumes: ['/a:/t']", "/t/x.jinja"),
        ("container: small", "/usr/lib/python3/dist-packages/vllm/x.jinja"),
        ("container: small", "'{{{{ messages }}}}'"),
        ("container: small", "chatml"),
        ("container: small\nmods: [missing]", "x.jinja"),
    ],
)
def test_a_template_that_is_brought(project: Project, head: str, template: str) -> None:
    assert findings(project, f"--chat-template {template}", head) == ([], [])


@pytest.mark.parametrize(
    ("head", "who"),
    [
        ("container: small\nmods: [opaque]", "the script of mod opaque may add it"),
        ("container: vllm/vllm-openai:nightly", "the image itself may have it"),
    ],
)
def test_a_template_that_may_be_brought_is_a_note(project: Project, head: str, who: str) -> None:
    problems, notes = findings(project, "--chat-template x.jinja", head)
    assert problems == []
    (note,) = notes
    assert note.endswith(f"the chat template x.jinja; add it with a mod; however, {who}")


def test_a_base_of_others_may_have_templates_in_its_folders(project: Project) -> None:
    assert tuple(map(len, findings(project, "--chat-template examples/x.jinja"))) == (0, 1)
    with_vllm(project, "{wheel: vllm==0.32.0}")
    assert tuple(map(len, findings(project, "--chat-template examples/x.jinja"))) == (1, 0)


def test_a_block_that_no_step_fills(project: Project) -> None:
    options = "--block-size 4096 --max-num-batched-tokens 2048"
    problems, _ = findings(project, options, model=HYBRID)
    assert problems == [
        "5:16: a block of 4096 tokens is larger than a step (--max-num-batched-tokens 2048): "
        "vLLM refuses this for hybrid models such as this model. Lower --block-size"
    ]
    assert findings(project, f"{options} --mamba-cache-mode align")[0] != []


@pytest.mark.parametrize(
    ("options", "model", "source"),
    [
        ("--block-size 128 --max-num-batched-tokens 2048", HYBRID, ""),
        ("--block-size 4096 --max-num-batched-tokens 2048", "Qwen/Qwen3-0.6B", ""),
        ("--block-size 4096 --max-num-batched-tokens 2048 --no-enable-prefix-caching", HYBRID, ""),
        ("--block-size 4096 --max-num-batched-tokens 2048", HYBRID, "vllm==0.32.0"),
    ],
)
def test_blocks_that_are_taken(project: Project, options: str, model: str, source: str) -> None:
    if source:
        with_vllm(project, f"{{wheel: {source}}}")
    assert findings(project, options, model=model) == ([], [])


def with_vllm(project: Project, source: str) -> None:
    path = project.dockerfiles / "small/image.yaml"
    python = "python: {version: '3.12', packages: []}\n"
    projects.write(path, f"{path.read_text(encoding='utf-8')}sources: {{vllm: {source}}}\n{python}")


def test_the_shipped_recipes_have_nothing_against_them() -> None:
    project = shipped_files.project()
    for name, loaded in recipe.readable_recipes(project):
        wrong, _ = recipe_problems.find_launch_problems(
            loaded, command.render_command(loaded, {}), recipe_problems.image_facts(project, loaded)
        )
        assert (name, wrong) == (name, [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "defaults: {p: 8}\ncommand: vllm serve x --port {p:>999999999}\n",
            "a format can ask for at most 1000 characters",
        ),
        (f"command: vllm serve x {'--a b ' * 20_000}\n", "a recipe has at most 65,536 characters"),
        (f"defaults: {{a: {'x' * 2000}}}\ncommand: vllm serve x {'{a}' * 200}\n", "it is longer than 128 KiB"),
        (f"command: vllm serve x {'{0} ' * 10_000}\n", "`{0}`: only a plain key can be in braces"),
        (f"command: vllm serve x {'--port x ' * 5000}\n", "--port x: expected a port"),
        (f"command: vllm serve x {'$(' * 20_000}\n", "more than 100 quotes and substitutions are nested here"),
        (f"command: vllm serve x -tp {'9' * 5000}\n", "expected a number of at most 18 characters"),
        (
            f"command: vllm serve x --block-size {'9' * 5000} --max-num-batched-tokens 1\n",
            "expected a number of at most 18",
        ),
        ("command: |\n  vllm serve x --hf-overrides '" + "{{" * 1000 + '\'"x"\n', "is not valid JSON"),
        (f"description: é\n```{' ' * 50_000}x\n", "found character that cannot start any token"),
        ("model: a/b\nrecipe_version: 2\nmin_nodes: 3\nmax_nodes: 2\ncommand: x\n", "at least 3 machines are required"),
    ],
)
def test_what_would_take_all_time_or_memory_is_told_at_once(project: Project, text: str, told: str) -> None:
    projects.write(project.recipes / "r.yaml", HEAD + text)
    (checked,) = recipes.check_recipes(project, ("r",))
    assert 1 <= len(checked.problems) <= 50
    assert told in checked.problems[0].message


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [f"|\n  vllm serve x \\\n  {' ' * 50_000}x", f"vllm serve x {'{{' * 20_000}", f"vllm serve x {chr(92) * 40_000}"],
)
def test_what_is_long_and_right_is_read(project: Project, command: str) -> None:
    assert problems(project, f"{HEAD}command: {command}\n") == []


@pytest.mark.slow
def test_braces_that_never_end_are_read_in_version_2(project: Project) -> None:
    text = f"recipe_version: 2\nmodel: v\ndefaults: {{k: v}}\n{HEAD}command: vllm serve {{k}} {'{' * 50_000}k\n"
    assert command.render_command(load(project, text), {}).words == ("vllm", "serve", "v", "{" * 25_000 + "k")
