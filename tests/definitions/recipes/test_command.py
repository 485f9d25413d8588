"""The rendered command, compared with what a real bash does with it."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from builder.definitions.recipes import command
from builder.definitions.recipes.recipe import Recipe
from builder.errors import FileProblemsError, UsageError
from tests.definitions.recipes import recipe_texts

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = [
    "two words",
    "'; touch pwned; '",
    '"; touch pwned; "',
    "$(touch pwned)",
    "`touch pwned`",
    "${HOME} $HOME ~ *",
    "a\nb\n",
    "a & touch pwned | cat > pwned",
    "\\",
    "ends in \\",
    "größe “quoted” \u2013 模型 🦙",
    "{port} {{port}} {0}",
    "#not a comment",
    "!! \t\r",
    "-n",
    "--port 1 $(touch pwned)",
]
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12) | st.text(
    "'\"$`\\(){}<>|&;#!*?~ \n-ab", max_size=12
)


def shared(folder: Path) -> Recipe:
    """A recipe as users share them."""
    return recipe_texts.make(
        folder,
        "vllm serve Org/M-int4 \\\n"
        "--served-model-name {served_model_name} \\\n"
        "--max-model-len {max_model_len} \\\n"
        "--max-num-seqs {max-num-seqs} \\\n"
        "--port {port} \\\n"
        "--host {host} \\\n"
        "# --kv-cache-dtype fp8_e4m3 \\\n"
        "--speculative-config '{spec}' \\\n"
        "--override-generation-config '{{\"top_p\": 0.8}}' \\",
        "model: Org/M-int4\n"
        "defaults:\n"
        "  port: 8001\n"
        "  host: 127.0.0.1\n"
        "  max_model_len: 196608\n"
        "  max-num-seqs: 16\n"
        "  served_model_name: org/m\n"
        "  unused: 1\n"
        '  spec: \'{"method": "mtp", "n": 3}\'\n'
        "env:\n  A: 1\n  B: true\n  C:\n  D: 'x $HOME'\n",
    )


def test_a_shared_recipe_renders_with_its_defaults(tmp_path: Path) -> None:
    rendered = command.render(shared(tmp_path), {})
    assert rendered.argv == (
        *("vllm", "serve", "Org/M-int4", "--served-model-name", "org/m", "--max-model-len", "196608"),
        *("--max-num-seqs", "16", "--port", "8001", "--host", "127.0.0.1"),
        *("--speculative-config", '{"method": "mtp", "n": 3}', "--override-generation-config", '{"top_p": 0.8}'),
    )
    assert rendered.words == rendered.argv
    assert not rendered.is_script
    assert (rendered.port, rendered.host, rendered.model, rendered.served) == (
        8001,
        "127.0.0.1",
        "Org/M-int4",
        ("org/m",),
    )
    assert rendered.env == {"A": "1", "B": "true", "C": "", "D": "x $HOME"}


def test_overrides_reach_the_keys_that_recipes_have_for_them(tmp_path: Path) -> None:
    rendered = command.render(
        shared(tmp_path), {"port": "9", "max_model_len": "5", "max_num_seqs": "2"}, ["--x", "a b"]
    )
    words = rendered.argv
    assert words[words.index("--port") + 1] == "9"
    assert words[words.index("--max-model-len") + 1] == "5"
    assert words[words.index("--max-num-seqs") + 1] == "2"
    assert words[-2:] == ("--x", "a b")
    assert rendered.port == 9


@pytest.mark.parametrize("key", ["tensor_parallel", "tensor-parallel-size", "tensor_parallel_size", "tp"])
def test_one_option_sets_whatever_a_recipe_calls_it(tmp_path: Path, key: str) -> None:
    recipe = recipe_texts.make(tmp_path, f"vllm serve x -tp {{{key}}}", f"defaults:\n  {key}: 1\n")
    assert command.render(recipe, {"tensor_parallel": "2"}).argv[-1] == "2"


def test_an_option_that_the_command_has_no_key_for_comes_last(tmp_path: Path) -> None:
    rendered = command.render(shared(tmp_path), {"tensor_parallel": "2"}, ["--seed", "1"])
    assert rendered.argv[-4:] == ("--tensor-parallel-size", "2", "--seed", "1")
    fixed = recipe_texts.make(tmp_path, "vllm serve x --port 8000")
    assert command.render(fixed, {"port": "9"}).port == 9


@pytest.mark.parametrize("key", ["unused", "nonsense"])
def test_a_setting_that_would_do_nothing_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(UsageError, match=f"its command has no {{{key}}} to set") as caught:
        command.render(shared(tmp_path), {key: "1"})
    assert caught.value.hint.startswith("it has: served_model_name, max_model_len")


def test_a_key_without_a_value_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    text = "vllm serve x \\\n  --port {port} \\\n  --x {prot} --y {prot}"
    recipe = recipe_texts.make(tmp_path, text, "defaults: {port: 1, host: h}\n")
    with pytest.raises(FileProblemsError) as caught:
        command.render(recipe, {})
    assert [str(problem) for problem in caught.value.problems] == [
        "r.yaml:7:9: no value for {prot}; there are: host, port",
        "r.yaml:7:20: no value for {prot}; there are: host, port",
    ]
    assert command.render(recipe, {"prot": "7"}).argv[-1] == "7"


@pytest.mark.parametrize(
    ("head", "place"),
    [
        ("command: vllm serve x {nope}\n", "3:23"),
        ('command: "vllm serve x {nope}"\n', "3:24"),
        ("command: >\n  vllm serve x\n  {nope}\n", "5:3"),
        ("command: |-\n    vllm serve x\n\n    # ü {a}\n    {{{nope}}}\n", "7:7"),
    ],
)
def test_locations_are_right_however_the_command_is_written(tmp_path: Path, head: str, place: str) -> None:
    parsed = recipe_texts.read(tmp_path, f"name: x\ncontainer: small\n{head}")
    assert parsed.recipe is not None
    (problem,) = [p for p in command.problems(parsed.recipe) if "nope" in p.message]
    assert str(problem.location) == f"r.yaml:{place}"


def test_everything_wrong_in_a_command_is_told_at_once(tmp_path: Path) -> None:
    text = 'vllm serve x --a {port.real} --b {"n": 1} --c {nope} \''
    problems = command.problems(recipe_texts.make(tmp_path, text))
    assert [str(problem.location) for problem in problems] == [
        f"r.yaml:4:{3 + text.index(part)}" for part in ("{port", '{"n"', "{nope", "'")
    ]


def test_a_command_without_a_word_is_refused(tmp_path: Path) -> None:
    recipe = recipe_texts.make(tmp_path, "# nothing")
    with pytest.raises(FileProblemsError, match=r"r\.yaml:3:1: `command`: there is no command in it"):
        command.render(recipe, {})


@pytest.mark.parametrize("value", HOSTILE)
def test_a_default_is_one_argument_whatever_it_holds(tmp_path: Path, value: str) -> None:
    recipe = recipe_texts.make(tmp_path, "vllm serve x --a={v} --b '{v}' --c \"{v}\" --d {v}x")
    recipe = replace(recipe, defaults={"v": value})
    expected = ("vllm", "serve", "x", f"--a={value}", "--b", value, "--c", value, "--d", f"{value}x")
    assert command.render(recipe, {}).argv == expected


@pytest.mark.parametrize("value", HOSTILE)
def test_what_comes_from_the_command_line_is_one_argument(tmp_path: Path, value: str) -> None:
    recipe = recipe_texts.make(tmp_path, "vllm serve x --a {v}", "defaults: {v: 1}\n")
    assert command.render(recipe, {"v": value}, [value]).argv == ("vllm", "serve", "x", "--a", value, value)


def test_a_default_that_is_a_row_of_options_is_as_many_arguments(tmp_path: Path) -> None:
    head = "defaults:\n  extra_args: --seed 7 --name 'a b'\n  none: ''\n  empty:\n"
    recipe = recipe_texts.make(tmp_path, "vllm serve x {extra_args} {none} {empty} '{none}'", head)
    assert command.render(recipe, {}).argv == ("vllm", "serve", "x", "--seed", "7", "--name", "a b", "")


SCRIPT = """\
export NAME={v}
cd "{v}" 2>/dev/null || true
show {v} '{v}' "{v}" a{v}b "x$(printf y)" '{{"j": "{v}"}}' # {v}
"""


def run_script(argv: tuple[str, ...], folder: Path) -> list[str]:
    """The arguments that `show` gets when a rendered script is run."""
    assert argv[:2] == ("bash", "-c")
    shown = ("bash", "-c", "show() { printf '%s\\0' \"$@\"; }\n" + argv[2], *argv[3:])
    done = subprocess.run(shown, capture_output=True, cwd=folder, timeout=20)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().split("\0")[:-1]


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXTS)
@example("'; touch pwned; '")
@example('"; touch pwned; "')
@example("$(touch pwned)`touch pwned`")
@example("a\n touch pwned\n")
def test_values_in_a_script_stay_text(tmp_path: Path, value: str) -> None:
    recipe = replace(recipe_texts.make(tmp_path, SCRIPT), defaults={"v": f"v{value}"})
    rendered = command.render(recipe, {})
    assert rendered.is_script
    text = f"v{value}"
    assert run_script(rendered.argv, tmp_path) == [text, text, text, f"a{text}b", "xy", f'{{"j": "{text}"}}']
    assert {path.name for path in tmp_path.iterdir()} == {"r.yaml"}


FRAGMENTS = st.sampled_from(
    [
        *(
            "{v}",
            "'",
            '"',
            "$(",
            "$((",
            ")",
            "))",
            "`",
            "\\",
            "\n",
            " ",
            "a",
            ";",
            "#",
            "<<E\n",
            "E\n",
            "${{",
            "}}",
            "$'",
        ),
        *("(", "|", "&&", "case a in a) ", "esac", "=", "\\\n", "$", "{{", "<", "<<<", "[[", " ]] ", "for i in a; do "),
    ]
)
ATTACKS = st.sampled_from(
    [
        *(
            "; touch pwned;",
            "$(touch pwned)",
            "`touch pwned`",
            "'; touch pwned; '",
            '"; touch pwned; "',
            "|touch pwned",
        ),
        *("\ntouch pwned\n", ") ; touch pwned; (", "}; touch pwned", "E\ntouch pwned\n", "\\'; touch pwned;'"),
        "-x `touch pwned`",
    ]
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(FRAGMENTS, min_size=1, max_size=8).map("".join), ATTACKS)
def test_no_script_lets_a_value_run(tmp_path: Path, text: str, value: str) -> None:
    recipe = replace(recipe_texts.make(tmp_path, "x"), command=f"echo {text}{{v}}", defaults={"v": value})
    try:
        rendered = command.render(recipe, {})
    except FileProblemsError:
        return
    if rendered.is_script:
        subprocess.run(rendered.argv, capture_output=True, cwd=tmp_path, timeout=20, stdin=subprocess.DEVNULL)
        assert not (tmp_path / "pwned").exists()


def test_a_script_runs_as_it_is_written(tmp_path: Path) -> None:
    text = "set -e\nexport A=1 # why\nif true; then\n  vllm serve x --port {port}\nfi"
    recipe = recipe_texts.make(tmp_path, text, "defaults: {port: 8000}\n")
    rendered = command.render(recipe, {})
    assert rendered.argv == ("bash", "-c", text.replace("{port}", "8000"))
    assert rendered.port == 8000
    assert rendered.model == "x"


@pytest.mark.parametrize(
    "text",
    [
        "a $(b {v})",
        "a $((1 + {v}))",
        "a $[1 + {v}]",
        "((x = {v})); a",
        "[[ {v} -eq 1 ]]",
        'a "$(b {v})"',
        "a `b {v}`",
        "a <<EOF\n{v}\nEOF",
        "a; bash -c '{v}'",
        "bash -c 'a {v}'",
        "eval {v}",
    ],
)
def test_a_value_that_no_quoting_keeps_from_a_shell_is_refused(tmp_path: Path, text: str) -> None:
    recipe = recipe_texts.make(tmp_path, text, "defaults: {v: 8000}\n")
    assert "8000" in " ".join(command.render(recipe, {}).argv)
    with pytest.raises(FileProblemsError, match=r"r\.yaml:\d+:\d+: the value of {v} stands in .*cannot be quoted"):
        command.render(recipe, {"v": "$(touch pwned)"})


@pytest.mark.parametrize("tail", ["", " # note", "\n", " \\", "\n# note\n"])
def test_more_arguments_follow_the_last_command_of_a_script(tmp_path: Path, tail: str) -> None:
    recipe = recipe_texts.make(tmp_path, f"export A=1\nvllm serve x --port 1{tail}")
    rendered = command.render(recipe, {}, ["--x", "a 'b' $(c)"])
    function = 'vllm() { show "$@"; }\n'
    assert run_script(("bash", "-c", function + rendered.argv[2]), tmp_path)[-2:] == ["--x", "a 'b' $(c)"]


def test_more_arguments_take_the_place_that_a_script_has_for_them(tmp_path: Path) -> None:
    recipe = recipe_texts.make(tmp_path, 'show vllm "$@" | cat')
    rendered = command.render(recipe, {}, ["--x", "a b"])
    assert rendered.argv == ("bash", "-c", 'show vllm "$@" | cat', "bash", "--x", "a b")
    assert run_script(rendered.argv, tmp_path) == ["vllm", "--x", "a b"]


@pytest.mark.parametrize(
    "text", ["vllm serve x | tee log", "show '\"$@\"' | cat", "vllm serve x &\nwait", "vllm serve x > log"]
)
def test_more_arguments_that_a_script_has_no_place_for_are_refused(tmp_path: Path, text: str) -> None:
    recipe = recipe_texts.make(tmp_path, text)
    assert command.render(recipe, {}).argv == ("bash", "-c", text)
    with pytest.raises(UsageError, match="no place for more arguments") as caught:
        command.render(recipe, {}, ["--x"])
    assert '"$@"' in caught.value.hint


@pytest.mark.parametrize("text", ["a \\{v}", 'a "\\{v}"', "a ${v}", 'a "${v}"'])
def test_what_would_change_a_value_before_it_is_refused(tmp_path: Path, text: str) -> None:
    recipe = recipe_texts.make(tmp_path, text, "defaults: {v: 1}\n")
    with pytest.raises(FileProblemsError, match=r"r\.yaml:5:\d: `.` right before `{v}` would change the value"):
        command.render(recipe, {})


def test_nul_characters_are_refused(tmp_path: Path) -> None:
    recipe = recipe_texts.make(tmp_path, "vllm serve x --a {v}", "defaults: {v: 1}\n")
    with pytest.raises(FileProblemsError, match="the value of {v} holds a NUL character"):
        command.render(recipe, {"v": "a\0b"})
    with pytest.raises(UsageError, match="an argument cannot hold a NUL character"):
        command.render(recipe, {}, ["a\0b"])


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("vllm serve Org/M", "vllm serve Org/M --revision abc"),
        ("vllm serve {model} --port 1", "vllm serve Org/M --port 1 --revision abc"),
        ("vllm serve --model Org/M", "vllm serve --model Org/M --revision abc"),
        ("vllm serve Org/M --revision def", "vllm serve Org/M --revision def"),
        ("vllm serve /models/m", "vllm serve /models/m"),
    ],
)
def test_the_revision_of_the_recipe_is_passed_on(tmp_path: Path, text: str, rendered: str) -> None:
    recipe = recipe_texts.make(tmp_path, text, "model: Org/M\nmodel_revision: abc\n")
    assert " ".join(command.render(recipe, {}).argv) == rendered
