"""Recipes of version 2: they come to the same as with sparkrun, are checked with places, and are converted.

The recipes in version_2/ are written for these tests, with what public ones have in them. of-sparkrun.json is what
sparkrun makes of them: `python benchmarks/recipe_agreement.py tests/definitions/recipes/version_2 --sparkrun PYTHON
--record tests/definitions/recipes/version_2/of-sparkrun.json` writes it again.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.recipe_agreement import compared, recipes_in
from builder.base.errors import UsageError
from builder.definitions import cluster, command, container, recipe, recipe_conversion, recipe_problems
from builder.definitions.configuration import Node
from builder.definitions.image import ServeSettings
from builder.definitions.recipe import Recipe
from tests.definitions.recipes import recipe_texts

FOLDER = Path(__file__).parent / "version_2"
OF_SPARKRUN = json.loads((FOLDER / "of-sparkrun.json").read_text(encoding="utf-8"))
FILES = list(recipes_in(FOLDER))
HEAD = "recipe_version: '2'\nmodel: House/M\ncontainer: house/serving\n"


def load(path: Path) -> Recipe:
    parsed = recipe.parse_recipe(path.read_text(encoding="utf-8"), path.name)
    assert parsed.recipe, parsed.problems
    return parsed.recipe


def read(folder: Path, text: str) -> Recipe:
    parsed = recipe_texts.read(folder, text)
    assert parsed.recipe, parsed.problems
    return parsed.recipe


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_argv_and_environment_are_those_of_sparkrun(file: Path) -> None:
    result = compared("here", file, OF_SPARKRUN[file.name])
    assert (result.outcome, result.why, result.version) == ("same", "", 2)


def test_a_difference_is_found(tmp_path: Path) -> None:
    file = FOLDER / "two-machines.yaml"
    theirs = OF_SPARKRUN[file.name]
    for other in (
        {"one": f"{theirs['one']} --more"},
        {"env": {"A": "b"}},
        {"several": [theirs["several"][0], f"{theirs['several'][1]} --x"]},
        {"nodes": 3},
    ):
        assert compared("here", file, {**theirs, **other}).outcome != "same"
    assert compared("here", file, {"runtime": "sglang"}).outcome == "differs"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_recipe_survives_both_conversions(file: Path) -> None:
    before = load(file)
    first = recipe.parse_recipe(recipe_conversion.converted(before, 1), file.name).recipe
    assert first
    assert first.version == 1
    again = recipe.parse_recipe(recipe_conversion.converted(first, 2), file.name).recipe
    assert again
    for backend in (None, "mp"):
        old, new = (command.render_command(each, {}, (), backend) for each in (before, again))
        assert command.without(old.words, command.BACKEND) == command.without(new.words, command.BACKEND)
        assert old.env == new.env
    assert (again.solo_only, again.cluster_only) == (before.solo_only, before.cluster_only)


@pytest.mark.parametrize(
    ("command_text", "argv"),
    [
        ("vllm serve /w/x", ("vllm", "serve", "/w/x", "--served-model-name", "House/M")),
        ("vllm serve /w/x --served-model-name a b", ("vllm", "serve", "/w/x", "--served-model-name", "a", "b")),
        ("vllm serve House/M", ("vllm", "serve", "House/M")),
        ("vllm serve --model House/M", ("vllm", "serve", "--model", "House/M")),
        ("python3 train.py", ("python3", "train.py")),
        ("vllm serve /w/x | tee log", ("vllm serve /w/x --served-model-name House/M | tee log",)),
    ],
)
def test_weights_in_a_folder_have_the_name_of_the_model(
    tmp_path: Path, command_text: str, argv: tuple[str, ...]
) -> None:
    loaded = read(tmp_path, f"{HEAD}command: {command_text}\n")
    assert command.render_command(loaded, {}).argv[-len(argv) :] == argv
    first = recipe.parse_recipe(recipe_conversion.converted(loaded, 1), "r.yaml").recipe
    assert first
    assert command.render_command(first, {}).argv[-len(argv) :] == argv


@pytest.mark.parametrize(
    "script", ["cd /w\n./start.sh serve /w/x", 'bash -c "cd $A; vllm serve /w/x"', "bash -c 'cd /w; ./go serve /w/x'"]
)
def test_a_script_without_a_place_for_the_name_stays_as_it_is(tmp_path: Path, script: str) -> None:
    loaded = read(tmp_path, f"{HEAD}command: {json.dumps(script)}\n")
    rendered = command.render_command(loaded, {})
    assert "--served-model-name" not in " ".join(rendered.argv)
    assert rendered.served == ("/w/x",)
    first = recipe.parse_recipe(recipe_conversion.converted(loaded, 1), "r.yaml").recipe
    assert first
    again = recipe.parse_recipe(recipe_conversion.converted(first, 2), "r.yaml").recipe
    assert again
    assert rendered.argv == command.render_command(first, {}).argv == command.render_command(again, {}).argv


def test_a_recipe_of_version_1_keeps_the_name_of_its_folder(tmp_path: Path) -> None:
    loaded = recipe_texts.make(tmp_path, "vllm serve /w/x --port 1 \\\n", "model: House/M\n")
    before = command.render_command(loaded, {})
    after = recipe.parse_recipe(recipe_conversion.converted(loaded, 2), "r.yaml").recipe
    assert after
    rendered = command.render_command(after, {})
    assert rendered.served == before.served == ("/w/x",)
    assert rendered.words == (*before.words, "--served-model-name", "/w/x")


def test_what_the_other_version_cannot_say_is_named(tmp_path: Path) -> None:
    text = recipe_conversion.converted(load(FOLDER / "script.yaml"), 1)
    head = text[: text.index("recipe_version")]
    for lost in ("pre_exec", "post_exec", "benchmark", "executor_config.user", "does not download this model"):
        assert lost in head
    one = recipe_texts.make(
        tmp_path,
        "vllm serve Org/M -tp {tensor_parallel} --gpu-memory-utilization {share:.1f} --x '{{\"n\": {n}}}'",
        "volumes: [~/m:/m]\ndefaults: {tensor_parallel: 2, share: 0.75, n: 3}\nenv: {A: $HOME/x}\n",
    )
    text = recipe_conversion.converted(one, 2)
    head = text[: text.index("recipe_version")]
    assert "only builder knows `volumes`" in head
    assert "`env.A`: in version 1 bash expands $HOME/x" in head
    assert "`tensor_parallel` stays 2 on one machine" in head
    assert "--gpu-memory-utilization 0.8 --x '{\"n\": 3}'" in text
    with pytest.raises(UsageError, match="already has version 1"):
        recipe_conversion.converted(one, 1)


# Problems and notes, with their places.


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (f"{HEAD}min_nodes: two\n", ['4:1: `min_nodes`: "two" is not a whole number']),
        (f"{HEAD}min_nodes: 0\n", ["4:1: `min_nodes`"]),
        (f"{HEAD}max_nodes: 99999999\n", ["4:1: `max_nodes`"]),
        (f"{HEAD}mode: both\n", ['4:1: `mode`: "both" is not one of auto, solo, cluster']),
        (f"{HEAD}defaults: [a]\n", ["4:1: `defaults`"]),
        (f"{HEAD}include: base\n", ["4:1: builder does not read other recipes that a recipe includes"]),
        (f"{HEAD}env:\n  A B: 1\n", ["5:3: `A B` is not a valid name here: names must match"]),
        (f"{HEAD}metadata: x\n", ["4:1: `metadata`"]),
        (f"{HEAD}pre_exec: make\n", ["4:1: `pre_exec`"]),
        (
            f"{HEAD}distribution_config:\n  models:\n    entries: [{{name: 3}}]\n",
            ["6:16: `distribution_config.models.entries.0.name`"],
        ),
        ("recipe_version: '2'\ncontainer: a\n", ["1:1: the key `model` is missing"]),
        (f"{HEAD}runtime: {{}}\n", ["4:1: this recipe is for the runtime `{}`"]),
        (f"{HEAD}runtime: llama-cpp\n", ["4:1: this recipe is for the runtime `llama-cpp`"]),
        (f"{HEAD}command: llama-server -m x\n", ["4:1: this recipe is for the runtime `llama-cpp`"]),
        (f"{HEAD}command: python3 -m sglang.launch_server\n", ["4:1: this recipe is for the runtime `sglang`"]),
    ],
)
def test_every_problem_has_its_place(tmp_path: Path, text: str, problems: list[str]) -> None:
    told = recipe_texts.problem_lines(tmp_path, text)
    assert len(told) == len(problems)
    for line, expected in zip(told, problems, strict=True):
        assert line.startswith(f"r.yaml:{expected}"), line


def test_a_placeholder_without_a_value_is_told_where_it_stands(tmp_path: Path) -> None:
    text = f"{HEAD}command: |\n  vllm serve {{model}} --port {{port}} --kv-cache-dtype {{dtype}} --x 'a {{y}}'\n"
    parsed = recipe_texts.read(tmp_path, text)
    assert parsed.recipe
    told = list(map(str, recipe_problems.recipe_problems(parsed.recipe)))
    assert told == [
        "r.yaml:5:29: there is no value for {port} of --port: set `port` under `defaults`",
        "r.yaml:5:53: there is no value for {dtype} of --kv-cache-dtype: set `dtype` under `defaults`",
    ]
    assert any("{y} has no value and stays as written" in str(note) for note in parsed.notes)


def test_all_that_has_no_effect_is_told_and_explained() -> None:
    text = (FOLDER / "script.yaml").read_text(encoding="utf-8") + "builder: eugr\nstop_after_post: true\n"
    text = text.replace("  NCCL_DEBUG", "  FROM_HERE: $USER-x\n  WANDB_MODE: $WANDB_MODE\n  NCCL_DEBUG").replace(
        "pre_exec:\n", "pre_exec:\n  - copy: /a\n"
    )
    text += "runtime_config:\n  dashboard: true\n"
    parsed = recipe.parse_recipe(text, "script.yaml")
    told = [str(note) for note in parsed.notes]
    for part in (
        *(
            "`builder` has",
            "`benchmark` has",
            "`post_exec` has",
            "`stop_after_post` has",
            "executor_config.user`",
            "shm_size`",
        ),
        *("copies no file", "this command runs in the container before", "WANDB_MODE comes from your environment"),
        *(
            "FROM_HERE: variables in its value are not expanded",
            "`runtime_config.dashboard`",
            "does not download this model",
        ),
    ):
        assert any(part in note for note in told), (part, told)
    assert not any("restart_policy" in note or "cap_add" in note for note in told)


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("overrides: [{when: {nodes: 1}, defaults: {port: 1}}]\n", "4:1: `overrides` has no effect"),
        ("containers: [{host: a, image: b}]\n", "4:1: `containers` has no effect"),
        ("executor: local\n", "4:1: `executor` has no effect: builder starts servers with Docker"),
        ("executor: {a: 1}\n", "4:1: `executor` has no effect: builder starts servers with Docker"),
        ("executor: docker\ncapabilities: [tools]\nmin_sparkrun_version: 0.4.0\n", ""),
        ("readiness: {timeout: 60}\n", "4:1: `readiness` has no effect: builder waits until the server answers"),
        ("layout: {groups: [1]}\n", "4:1: `layout` has no effect: `--node` names the machines"),
        ("env: {A: '{launch.model_path}/x'}\n", "4:7: A: builder does not fill in the braces in its value"),
        ("env: {A: '{config.port}'}\n", "4:7: A: builder does not fill in the braces in its value"),
        ("command: vllm serve {model} --revision {model_revision}\n", "4:1: {model_revision} has no value"),
        ("defaults: {swap_space: 4}\n", "4:12: `swap_space` has no effect"),
        ("defaults: {tool_call_parser: x, distributed_executor_backend: mp}\n", ""),
        ("env: {A: '${config.port} {{config.port}}'}\n", "4:7: A: variables in its value are not expanded"),
        ("command: vllm serve {resolved_model_path} '{{swap_space}}'\n", ""),
    ],
)
def test_what_only_newer_releases_of_sparkrun_do_is_told(tmp_path: Path, text: str, note: str) -> None:
    parsed = recipe_texts.read(tmp_path, f"{HEAD}{text}")
    assert parsed.recipe
    told = "\n".join(map(str, parsed.notes))
    assert told.startswith(f"r.yaml:{note}") if note else not told


def test_a_value_that_is_typed_replaces_json_of_a_recipe_without_a_command(tmp_path: Path) -> None:
    loaded = read(tmp_path, f"{HEAD}defaults:\n  speculative_config: {{method: mtp, note: it's}}\n")
    words = command.render_command(loaded, {}).words
    assert words[-2:] == ("--speculative-config", '{"method":"mtp","note":"it\'s"}')
    assert command.render_command(loaded, {"speculative_config": "{}"}).words[-1] == "{}"


def test_a_recipe_of_version_1_that_only_sparkrun_reads_is_told() -> None:
    text = (FOLDER / "version-1-with-braces.yaml").read_text(encoding="utf-8")
    (note,) = recipe.parse_recipe(text, "r.yaml").notes
    assert str(note).startswith("r.yaml:2:1: builder reads the recipe as version 2, like sparkrun")
    doubled = text.replace('\'{"image": 2, "audio": 0}\'', '\'{{"image": 2, "audio": 0}}\'')
    parsed = recipe.parse_recipe(doubled, "r.yaml").recipe
    assert parsed
    assert parsed.version == 1


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("name: x\ncontainer: c\nmodel: House/M\ncommand: |\n  vllm serve {model} --x '{\"a\": 1}'\n", 2),
        ("name: x\ncontainer: c\nmodel: House/M\ncommand: |\n  vllm serve {model} --x '{{\"a\": 1}}'\n", 1),
        ("container: c\nmodel: House/M\ncommand: vllm serve {model}\n", 2),
        # What neither of the launchers reads keeps the message of version 1.
        ("name: x\ncontainer: c\nmodel: House/M\ncommand: vllm serve {a.b}\n", None),
        ("name: x\ncontainer: c\ncommand: |\n  vllm serve --x '{\"a\": 1}'\n", None),
        ("container: c\ncommand: vllm serve House/M\n", None),
        ("container: c\nmodel: House/M\ncommand: vllm serve {model} —port 1\n", None),
    ],
)
def test_a_recipe_without_a_mark_is_of_the_version_that_can_read_it(
    tmp_path: Path, text: str, version: int | None
) -> None:
    parsed = recipe_texts.read(tmp_path, text)
    problems = [*parsed.problems, *(recipe_problems.recipe_problems(parsed.recipe) if parsed.recipe else ())]
    assert bool(problems) is (version is None)
    assert version is None or (parsed.recipe is not None and parsed.recipe.version == version)


def test_revision_and_draft_model_come_from_the_distribution() -> None:
    script = load(FOLDER / "script.yaml")
    assert script.draft_model == "House/Script-Drafter"
    assert script.revision == "0123456789abcdef0123456789abcdef01234567"
    assert script.volumes == ("~/.cache/huggingface:/cache/huggingface",)
    assert script.name == "script"


def test_steps_run_before_the_server_and_a_failure_ends_it(tmp_path: Path) -> None:
    steps = "pre_exec: ['echo first-{n}', '{how}']\ndefaults: {n: 7, how: 'true'}\n"
    text = f"{HEAD}{steps}command: echo {{model}} {{n}}\n"
    rendered = command.render_command(read(tmp_path, text), {"n": "a b; echo $0"})
    done = subprocess.run(
        command.after_steps(rendered.before, rendered.argv), capture_output=True, text=True, check=True
    )
    assert done.stdout == "first-a b; echo $0\nHouse/M a b; echo $0\n"
    failing = command.render_command(read(tmp_path, text.replace("'true'", "exit 3")), {})
    done = subprocess.run(
        command.after_steps(failing.before, failing.argv), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, "first-7\n")


def test_every_machine_runs_the_steps(tmp_path: Path) -> None:
    text = f"{HEAD}min_nodes: 2\npre_exec: [echo a]\ndefaults: {{tensor_parallel: 2}}\n"
    nodes = [Node(f"n{n}", "default", address=f"10.0.0.{n}") for n in range(2)]
    for runtime, backend in (("vllm", "mp"), ("vllm-ray", "ray")):
        loaded = read(tmp_path, f"{text}runtime: {runtime}\n")
        used = cluster.backend_of(loaded, None)
        assert used == backend
        together = cluster.cluster_of(loaded, {}, (), nodes, used)
        assert together.command.argv[:3] == ("vllm", "serve", "House/M")
        alike = container.settings(loaded, together.command, ServeSettings(), "house/serving", {"HOME": "/home/ann"})
        for member in together.members:
            argv = cluster.member_settings(alike, member, used).argv
            assert argv[3:6] == ("bash", "1", "echo a")
            assert command.after_steps(("echo a",), argv[6:]) == argv


def test_the_numbers_of_machines_hold() -> None:
    wide = load(FOLDER / "three-in-a-row.yaml")
    nodes = [Node(f"n{n}", "default", address=f"10.0.0.{n}") for n in range(5)]
    with pytest.raises(UsageError, match="requires at least 3 machines"):
        cluster.cluster_of(wide, {}, (), nodes[:2], "mp")
    two = load(FOLDER / "two-machines.yaml")
    with pytest.raises(UsageError, match=r"allows at most 4 machines .* but its command requires 5"):
        cluster.cluster_of(two, {"tensor_parallel": "5"}, (), nodes, "mp")
    with pytest.raises(UsageError, match="cluster_only"):
        cluster.require_fit(two, 1)
    together = cluster.cluster_of(two, {}, (), nodes, "mp")
    assert [member.rank for member in together.members] == [0, 1]
    assert together.command.env == {"NCCL_CUMEM_ENABLE": "0"}


# Recipes of others: nothing in them reaches a shell, a path or a file that it should not.

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(f'*{chr(97 + n)}' for _ in range(9))}]\n" for n in range(12)
)

GROWING = "".join(f"  k{n}: '{{k{n + 1}}}{{k{n + 1}}}'\n" for n in range(40))


@pytest.mark.parametrize(
    "text",
    [
        f"{HEAD}{BOMB}",
        f"{HEAD}defaults:\n{''.join(f'  {line}' for line in BOMB.splitlines(keepends=True))}",
        f"{HEAD}defaults: &a\n  b: *a\n",
        f"{HEAD}metadata: !!python/object/apply:os.system [id]\n",
        f"{HEAD}metadata: {'[' * 5000}{']' * 5000}\n",
        f"{HEAD}defaults: {{a: '{{b}}', b: 'x{{a}}'}}\ncommand: vllm serve {{a}}\n",
        f"{HEAD}defaults:\n{GROWING}  k40: xx\ncommand: vllm serve {{k0}}\n",
        f'{HEAD}command: "vllm serve {{model}} \\0"\n',
        f'{HEAD}env: {{A: "\\0"}}\n',
        f'{HEAD}name: "a\\nb"\n',
        HEAD.replace("house/serving", "'-v /:/host'"),
        HEAD.replace("house/serving", "'a b'"),
        HEAD.replace("House/M", "'--trust-remote-code'"),
        HEAD.replace("House/M", '"a\\nb"'),
        f"{HEAD}mods: [../../etc/..]\n",
        f"{HEAD}mods: ['@house/../../x y']\n",
        f"{HEAD}runtime_config: {{mods: ['a b']}}\n",
        f"{HEAD}volumes: ['/:/h:rw:x']\n",
        f"{HEAD}model_revision: ../../x\n",
        f"{HEAD}model_revision: --upload-pack=x\n",
        f"{HEAD}draft_model: '-x'\n",
    ],
)
def test_a_hostile_recipe_is_refused(tmp_path: Path, text: str) -> None:
    parsed = recipe_texts.read(tmp_path, text)
    problems = [*parsed.problems, *(recipe_problems.recipe_problems(parsed.recipe) if parsed.recipe else ())]
    assert problems
    assert all(problem.location.line for problem in problems)


@pytest.mark.parametrize("value", ["$(touch x)", "`touch x`", "'; touch x; '", '"; touch x; "', "a b", "$HOME"])
def test_no_variable_of_a_recipe_is_expanded(tmp_path: Path, value: str) -> None:
    text = f"{HEAD}command: env\nenv:\n  A: {json.dumps(value)}\n"
    rendered = command.render_command(read(tmp_path, text), {})
    assert (rendered.env, rendered.is_script) == ({"A": value}, False)


@pytest.mark.parametrize("value", ["$(touch x)", "'; touch x; '", "a b", "{model}", "--flag"])
def test_what_is_typed_is_one_argument(tmp_path: Path, value: str) -> None:
    loaded = read(
        tmp_path,
        f"{HEAD}defaults: {{port: 1, base: 'x{{port}}'}}\ncommand: vllm serve {{model}} --port {{port}} --x {{base}}\n",
    )
    rendered = command.unchecked_words(loaded)
    assert rendered == ("vllm", "serve", "House/M", "--port", "1", "--x", "x1")
    assert command.render_command(loaded, {"port": "7"}).words[-1] == "x1"
    named = read(tmp_path, f"{HEAD}defaults: {{n: 1}}\ncommand: vllm serve {{model}} --x {{n}}\n")
    assert command.render_command(named, {"n": value}).words[-1] == value


@pytest.mark.parametrize("rest", ["| tee log", "2>&1 | tee log", "&> log", "&& true # a note", ";"])
def test_the_served_name_goes_to_vllm_whatever_follows_it(tmp_path: Path, rest: str) -> None:
    served = "defaults: {port: 9, served_model_name: short}\n"
    made = read(tmp_path, f'{HEAD}{served}command: "vllm serve {{model}} --port {{port}} {rest}"\n')
    rendered = command.render_command(made, {})
    assert rendered.argv == ("bash", "-c", f"vllm serve House/M --port 9 --served-model-name short {rest}")
    assert rendered.served == ("short",)
    assert command.render_command(made, {"served_model_name": "other"}).served == ("other",)


def test_doubled_braces_stay_doubled_before_the_served_name(tmp_path: Path) -> None:
    text = """command: "vllm serve {model} --a '{{port}}' --b '{{{port}}}'"\n"""
    made = read(tmp_path, f"{HEAD}defaults: {{port: 9, served_model_name: short}}\n{text}")
    words = ("--a", "{port}", "--b", "{9}", "--served-model-name", "short")
    assert command.render_command(made, {}).words[3:] == words


def test_a_recipe_of_version_1_before_a_pipe_keeps_the_name_of_its_folder(tmp_path: Path) -> None:
    loaded = recipe_texts.make(tmp_path, "vllm serve /w/x --j '{{}}' | tee log", "model: House/M\n")
    after = recipe.parse_recipe(recipe_conversion.converted(loaded, 2), "r.yaml").recipe
    assert after
    assert command.render_command(after, {}).argv[-1] == "vllm serve /w/x --j '{}' --served-model-name /w/x | tee log"


def test_the_served_name_does_not_hide_what_is_wrong_with_a_command(tmp_path: Path) -> None:
    text = f'{HEAD}defaults: {{served_model_name: short}}\ncommand: vllm serve "{{model}} | tee log\n'
    (problem,) = command.command_problems(read(tmp_path, text))
    assert str(problem) == 'r.yaml:5:21: the quote " that opens here is never closed'


def test_blanks_after_a_backslash_do_not_end_the_command(tmp_path: Path) -> None:
    text = f"{HEAD}command: |\n  vllm serve {{model}} \\ \t \n    --port 1\n"
    assert command.render_command(read(tmp_path, text), {}).words == ("vllm", "serve", "House/M", "--port", "1")


def test_braces_of_the_shell_in_quotes_are_no_open_quote(tmp_path: Path) -> None:
    text = f'{HEAD}command: |\n  export A="${{A:-${{B}}}}"\n  exec vllm serve {{model}}\n'
    assert recipe_problems.recipe_problems(read(tmp_path, text)) == ()
