"""The rendered command, compared with what a real bash does with it, and the arguments in it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from builder.base.errors import FileProblemsError, UsageError
from builder.definitions import command, recipe_problems
from builder.definitions.command import Backend
from builder.definitions.recipe import Recipe
from builder.definitions.shell import Scalar
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
        "env:\n  A: 1\n  B: true\n  C: ''\n  D: 'x {\\\"a\\\": 1}'\n",
    )


def test_a_shared_recipe_renders_with_its_defaults(tmp_path: Path) -> None:
    rendered = command.render_command(shared(tmp_path), {})
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
    assert rendered.env == {"A": "1", "B": "True", "C": "", "D": 'x {"a": 1}'}


def test_overrides_reach_the_keys_that_recipes_have_for_them(tmp_path: Path) -> None:
    rendered = command.render_command(
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
    assert command.render_command(recipe, {"tensor_parallel": "2"}).argv[-1] == "2"


def test_an_option_that_the_command_has_no_key_for_comes_last(tmp_path: Path) -> None:
    rendered = command.render_command(shared(tmp_path), {"tensor_parallel": "2"}, ["--seed", "1"])
    assert rendered.argv[-4:] == ("--tensor-parallel-size", "2", "--seed", "1")
    fixed = recipe_texts.make(tmp_path, "vllm serve x --port 8000")
    assert command.render_command(fixed, {"port": "9"}).port == 9


@pytest.mark.parametrize("key", ["unused", "nonsense"])
def test_a_setting_that_would_do_nothing_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(UsageError, match=f"its command has no placeholder {{{key}}}") as caught:
        command.render_command(shared(tmp_path), {key: "1"})
    assert caught.value.hint.startswith("its placeholders: served_model_name, max_model_len")


def test_a_key_without_a_value_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    text = "vllm serve x \\\n  --port {port} \\\n  --x {prot} --y {prot}"
    recipe = recipe_texts.make(tmp_path, text, "defaults: {port: 1, host: h}\n")
    with pytest.raises(FileProblemsError) as caught:
        command.render_command(recipe, {})
    assert [str(problem) for problem in caught.value.problems] == [
        "r.yaml:7:9: no value for {prot}: set it under `defaults`; known keys: host, port",
        "r.yaml:7:20: no value for {prot}: set it under `defaults`; known keys: host, port",
    ]
    assert command.render_command(recipe, {"prot": "7"}).argv[-1] == "7"


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
    (problem,) = [p for p in command.command_problems(parsed.recipe) if "nope" in p.message]
    assert str(problem.location) == f"r.yaml:{place}"


def test_everything_wrong_in_a_command_is_told_at_once(tmp_path: Path) -> None:
    text = 'vllm serve x --a {port.real} --b {"n": 1} --c {nope} \''
    problems = command.command_problems(recipe_texts.make(tmp_path, text))
    assert [str(problem.location) for problem in problems] == [
        f"r.yaml:4:{3 + text.index(part)}" for part in ("{port", '{"n"', "{nope", "'")
    ]


def test_a_command_without_a_word_is_refused(tmp_path: Path) -> None:
    recipe = recipe_texts.make(tmp_path, "# nothing")
    with pytest.raises(FileProblemsError, match=r"r\.yaml:3:1: `command`: the text contains no command"):
        command.render_command(recipe, {})


DEFAULTS = [
    "plain",
    "two words",
    "'{\\\"a\\\": 1}'",
    '{\\"enable_thinking\\":true}',
    '"a b" c\\ d',
    '\'a "b"\' "it\'s"',
    "--seed 7 --name 'a b'",
    "",
    "''",
    "größe “quoted” 模型 🦙",
    "a#b # c",
    "$((1 + 1))",
    "$HOME ~ {a,b}",
    "\"$(printf '%s' a b)\"",
    "[1,2]",
    "a \\\n--b c",
]


@pytest.mark.parametrize("value", DEFAULTS)
@pytest.mark.parametrize("around", ["{v}", "--a={v} 1", '"{v}"', "x{v}y"])
def test_a_default_is_text_that_bash_reads(tmp_path: Path, value: str, around: str) -> None:
    recipe = replace(recipe_texts.make(tmp_path, f"show {around} \\\n  --end"), defaults={"v": value})
    done = shown(("bash", "-c", recipe.command.format(v=value)), tmp_path)
    try:
        rendered = command.render_command(recipe, {})
    except FileProblemsError:
        assert done.returncode
        return
    if rendered.is_script:
        assert shown(rendered.argv, tmp_path).stdout == done.stdout
    else:
        assert list(rendered.argv[1:]) == done.stdout.decode().split("\0")[:-1]


def test_a_default_that_takes_a_shell_makes_the_command_a_script(tmp_path: Path) -> None:
    recipe = recipe_texts.make(tmp_path, "vllm serve m {v}", "defaults: {v: '| tee log'}\n")
    assert command.render_command(recipe, {}).argv == ("bash", "-c", "vllm serve m | tee log")


def test_what_is_wrong_in_a_value_is_told_at_its_placeholder(tmp_path: Path) -> None:
    recipe = recipe_texts.make(tmp_path, "vllm serve m \\\n  --a {v}", 'defaults: {v: "it\'s"}\n')
    with pytest.raises(
        FileProblemsError, match=r"r\.yaml:6:9: in the value of \{v\}: the quote ' that opens here is ne"
    ):
        command.render_command(recipe, {})


@pytest.mark.parametrize("value", HOSTILE)
def test_what_comes_from_the_command_line_is_one_argument(tmp_path: Path, value: str) -> None:
    recipe = recipe_texts.make(tmp_path, "vllm serve x --a {v}", "defaults: {v: 1}\n")
    assert command.render_command(recipe, {"v": value}, [value]).argv == ("vllm", "serve", "x", "--a", value, value)


def test_an_empty_value_is_no_argument_unless_it_is_quoted(tmp_path: Path) -> None:
    recipe = recipe_texts.make(tmp_path, "vllm serve {none} {empty} '{none}'", "defaults: {none: '', empty: }\n")
    assert command.render_command(recipe, {}).argv == ("vllm", "serve", "None", "")


SCRIPT = """\
export NAME={v}
cd "{v}" 2>/dev/null || true
show {v} '{v}' "{v}" a{v}b "x$(printf y)" '{{"j": "{v}"}}' # {v}
"""


def shown(argv: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[bytes]:
    """The result of a script in which `show` prints its arguments."""
    script = "show() { printf '%s\\0' \"$@\"; }\n" + argv[2]
    return subprocess.run(("bash", "-c", script, *argv[3:]), capture_output=True, cwd=folder, timeout=120)


def run_script(argv: tuple[str, ...], folder: Path) -> list[str]:
    """The arguments that `show` gets when a rendered script is run."""
    assert argv[:2] == ("bash", "-c")
    done = shown(argv, folder)
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
    rendered = command.render_command(recipe_texts.make(tmp_path, SCRIPT), {"v": f"v{value}"})
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
    recipe = replace(recipe_texts.make(tmp_path, "x"), command=f"echo {text}{{v}}")
    try:
        rendered = command.render_command(recipe, {"v": value})
    except FileProblemsError:
        return
    if rendered.is_script:
        subprocess.run(rendered.argv, capture_output=True, cwd=tmp_path, timeout=120, stdin=subprocess.DEVNULL)
        assert not (tmp_path / "pwned").exists()


def test_a_line_in_a_list_is_part_of_the_command(tmp_path: Path) -> None:
    recipe = recipe_texts.make(tmp_path, 'CMD=(vllm serve Org/M\n  --port 9000\n)\nexec "${{CMD[@]}}"')
    assert command.port(words(recipe)) == 9000
    rendered = command.render_command(recipe, {"port": "9100"})
    assert rendered.port == 9100
    assert "--port 9000 --port 9100\n)" in rendered.argv[2]


def test_a_script_runs_as_it_is_written(tmp_path: Path) -> None:
    text = "set -e\nexport A=1 # why\nif true; then\n  vllm serve x --port {port}\nfi"
    recipe = recipe_texts.make(tmp_path, text, "defaults: {port: 8000}\n")
    rendered = command.render_command(recipe, {})
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
    assert "8000" in " ".join(command.render_command(recipe, {}).argv)
    with pytest.raises(FileProblemsError, match=r"r\.yaml:\d+:\d+: the value of {v} is used in .*cannot be quoted"):
        command.render_command(recipe, {"v": "$(touch pwned)"})


@pytest.mark.parametrize("tail", ["", " # note", "\n", " \\", "\n# note\n"])
def test_more_arguments_follow_the_last_command_of_a_script(tmp_path: Path, tail: str) -> None:
    recipe = recipe_texts.make(tmp_path, f"export A=1\nvllm serve x --port 1{tail}")
    rendered = command.render_command(recipe, {}, ["--x", "a 'b' $(c)"])
    function = 'vllm() { show "$@"; }\n'
    assert run_script(("bash", "-c", function + rendered.argv[2]), tmp_path)[-2:] == ["--x", "a 'b' $(c)"]


def test_more_arguments_take_the_place_that_a_script_has_for_them(tmp_path: Path) -> None:
    recipe = recipe_texts.make(tmp_path, 'show vllm "$@" | cat')
    rendered = command.render_command(recipe, {}, ["--x", "a b"])
    assert rendered.argv == ("bash", "-c", 'show vllm "$@" | cat', "bash", "--x", "a b")
    assert run_script(rendered.argv, tmp_path) == ["vllm", "--x", "a b"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vllm serve x | tee log", "vllm serve x --x 1 | tee log"),
        ("vllm serve x > log 2>&1 &\nwait", "vllm serve x --x 1 > log 2>&1 &\nwait"),
        ("pip install vllm && exec vllm serve x # y", "pip install vllm && exec vllm serve x --x 1 # y"),
        ("if a; then\n  vllm serve x\nelse\n  /bin/vllm serve y --z\nfi", None),
        ("cat > t <<'EOF'\nvllm serve\nEOF\nvllm serve x", "cat > t <<'EOF'\nvllm serve\nEOF\nvllm serve x --x 1"),
        (
            "python3 -m vllm.entrypoints.openai.api_server 2>log",
            "python3 -m vllm.entrypoints.openai.api_server --x 1 2>log",
        ),
        ("start-server $HOME", "start-server $HOME --x 1"),
        ("case a in a) vllm serve x;; *) exit 1;; esac", "case a in a) vllm serve x --x 1;; *) exit 1;; esac"),
    ],
)
def test_more_arguments_reach_the_server_of_a_script(tmp_path: Path, text: str, expected: str | None) -> None:
    recipe = recipe_texts.make(tmp_path, text)
    expected = expected or text.replace("serve x", "serve x --x 1").replace("--z", "--z --x 1")
    assert command.render_command(recipe, {}, ["--x", "1"]).argv == ("bash", "-c", expected)


@pytest.mark.parametrize("text", ["show '\"$@\"' | cat", "./start &\nwait", "bash -c 'vllm serve x'; true"])
def test_more_arguments_that_a_script_has_no_place_for_are_refused(tmp_path: Path, text: str) -> None:
    recipe = recipe_texts.make(tmp_path, text)
    assert command.render_command(recipe, {}).argv == ("bash", "-c", text)
    with pytest.raises(UsageError, match="builder cannot add further arguments") as caught:
        command.render_command(recipe, {}, ["--x"])
    assert '"$@"' in caught.value.hint


@pytest.mark.parametrize("text", ["a \\{v}", 'a "\\{v}"', "a ${v}", 'a "${v}"'])
def test_what_would_change_a_value_before_it_is_refused(tmp_path: Path, text: str) -> None:
    recipe = recipe_texts.make(tmp_path, text, "defaults: {v: 1}\n")
    for overrides in ({"v": "2"}, {} if "$" in text else {"v": "3"}):
        with pytest.raises(FileProblemsError, match=r"r\.yaml:5:\d: `.` right before `{v}` would change the value"):
            command.render_command(recipe, overrides)


SOLO = [
    "vllm serve m -tp {tensor_parallel} --distributed-executor-backend ray --port 1",
    "vllm serve m -tp {tensor_parallel} \\\n  --distributed-executor-backend=ray \\\n  --port 1",
    "vllm serve m -tp {tensor_parallel} \\\n  --distributed-executor-backend \\\n  ray --port 1",
    "vllm serve m -tp {tensor_parallel} \\\n  --distributed-executor-backend {backend} \\\n\n  \\\n  --port 1 \\\n",
    "vllm serve m -tp {tensor_parallel} --port 1 \\\n  --distributed-executor-backend 'ray'",
]


@pytest.mark.parametrize("text", SOLO)
def test_one_machine_spreads_nothing_unless_it_is_told_to(tmp_path: Path, text: str) -> None:
    recipe = recipe_texts.make(tmp_path, text, "defaults: {tensor_parallel: 2, backend: ray}\n")
    assert command.render_command(recipe, {}).argv == ("vllm", "serve", "m", "-tp", "1", "--port", "1")
    assert command.render_command(recipe, {"tensor_parallel": "4"}).argv[4] == "4"
    assert command.render_command(recipe, {}, ["--distributed-executor-backend", "mp"]).argv[-1] == "1"


def test_one_machine_keeps_what_the_command_itself_says(tmp_path: Path) -> None:
    recipe = recipe_texts.make(tmp_path, "vllm serve m -tp 2 -pp {pp} --x {tp}", "defaults: {pp: 2, tp: 2}\n")
    assert command.render_command(recipe, {}).argv == ("vllm", "serve", "m", "-tp", "2", "-pp", "2", "--x", "2")


def test_what_joins_machines_goes_from_a_script_too(tmp_path: Path) -> None:
    text = 'export A=1\nvllm serve m \\\n  --distributed-executor-backend ray \\\n  --port 1 2>&1 | tee "log"'
    recipe = recipe_texts.make(tmp_path, text)
    assert command.render_command(recipe, {}).argv[2] == 'export A=1\nvllm serve m \\\n  --port 1 2>&1 | tee "log"'
    quoted = recipe_texts.make(tmp_path, 'bash -c "vllm serve m --distributed-executor-backend ray"; true')
    assert command.render_command(quoted, {}).argv[2] == 'bash -c "vllm serve m "; true'


@pytest.mark.parametrize(("backend", "expected"), [("mp", ()), ("ray", ("--distributed-executor-backend", "ray"))])
def test_several_machines_are_joined_as_they_are_told_to(
    tmp_path: Path, backend: Backend, expected: tuple[str, ...]
) -> None:
    for option in ("", " --distributed-executor-backend ray"):
        recipe = recipe_texts.make(
            tmp_path, f"vllm serve m -tp {{tensor_parallel}}{option}", "defaults: {tensor_parallel: 2}\n"
        )
        rendered = command.render_command(recipe, {}, ["--x"], backend, ["--place"])
        assert sorted(rendered.argv) == sorted(("vllm", "serve", "m", "-tp", "2", *expected, "--x", "--place"))
        assert rendered.argv[-1] == "--place"


ENVIRONMENT: dict[str, Scalar] = {
    "PLAIN": "a 'b' é",
    "QUOTED": '{\\"a\\": 1}',
    "BACKSLASH": r"a\\b\c\$d\`",
    "HOME_IN_IT": "$HOME/x",
    "ITSELF": "${ITSELF:-none}:/more",
    "RUNS": '$(printf "%s" 1)`printf 2`',
    "NO_NAME": "5$ $",
    "END": "$HOME\\",
    "YES": True,
    "NONE": None,
}


def test_the_environment_is_what_bash_reads_between_double_quotes(tmp_path: Path) -> None:
    recipe = replace(recipe_texts.make(tmp_path, "env"), env=ENVIRONMENT)
    expected = {
        "PLAIN": "a 'b' é",
        "QUOTED": '{"a": 1}',
        "BACKSLASH": "a\\b\\c$d`",
        "HOME_IN_IT": "/root/x",
        "ITSELF": "none:/more",
        "RUNS": "12",
        "NO_NAME": "5$ $",
        "END": "/root\\",
        "YES": "True",
        "NONE": "",
    }
    for script in ("env -0", "true; env -0"):
        rendered = command.render_command(replace(recipe, command=script), {})
        environ = {"PATH": os.environ["PATH"], "HOME": "/root", **rendered.env}
        done = subprocess.run(rendered.argv, capture_output=True, text=True, env=environ, check=True)
        read = dict(line.split("=", 1) for line in done.stdout.split("\0")[:-1])
        assert {name: read[name] for name in ENVIRONMENT} == expected
    assert set(ENVIRONMENT) - set(rendered.env) == {"HOME_IN_IT", "ITSELF", "RUNS", "END"}


def test_json_in_the_environment_keeps_quotes_that_nobody_escaped(tmp_path: Path) -> None:
    recipe = replace(recipe_texts.make(tmp_path, "env"), env={"A": '{"a": 1}', "B": '{"a": "$HOME"}'})
    rendered = command.render_command(recipe, {})
    assert rendered.env == {"A": '{"a": 1}'}
    assert rendered.argv == ("bash", "-c", 'export B="{\\"a\\": \\"$HOME\\"}"\nexec "$@"', "bash", "env")


def test_nul_characters_are_refused(tmp_path: Path) -> None:
    recipe = recipe_texts.make(tmp_path, "vllm serve x --a {v}", "defaults: {v: 1}\n")
    with pytest.raises(FileProblemsError, match="the value of {v} contains a NUL character"):
        command.render_command(recipe, {"v": "a\0b"})
    with pytest.raises(UsageError, match="an argument cannot contain a NUL character"):
        command.render_command(recipe, {}, ["a\0b"])


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
    assert " ".join(command.render_command(recipe, {}).argv) == rendered


@pytest.mark.parametrize(
    ("words", "port"),
    [
        ("vllm serve x", 8000),
        ("vllm serve x --port 1", 1),
        ("vllm serve x --port=1 --port 2", 2),
        ("vllm serve x --port $PORT", None),
        ("vllm serve x --port ٣", None),
        ("vllm serve x --port", 8000),
    ],
)
def test_the_port(words: str, port: int | None) -> None:
    assert command.port(words.split()) == port


@pytest.mark.parametrize(
    ("words", "model", "served"),
    [
        ("vllm serve Org/M", "Org/M", ("Org/M",)),
        ("vllm serve Org/M --served-model-name a b --port 1", "Org/M", ("a", "b")),
        ("vllm serve Org/M --served-model-name=a", "Org/M", ("a",)),
        ("vllm serve Org/M --served_model_name a b --port 1", "Org/M", ("a", "b")),
        ("vllm serve Org/M --served_model_name=a", "Org/M", ("a",)),
        ("python3 -m vllm.entrypoints.openai.api_server --model Org/M", "Org/M", ("Org/M",)),
        ("vllm serve --port 1", None, ()),
        ("vllm serve $(cat model) --port 1", "$(cat", ()),
        ("vllm serve `cat model` --served-model-name a", "`cat", ("a",)),
        ("uvicorn server:app", None, ()),
    ],
)
def test_the_model_and_its_names(words: str, model: str | None, served: tuple[str, ...]) -> None:
    assert command.model(words.split()) == model
    assert command.served(words.split()) == served


def test_an_option_has_the_value_that_counts() -> None:
    words = ["vllm", "serve", "x", "--a", "1", "--a=2", "-b", "3", "--c"]
    assert command.option(words, "--a") == "2"
    assert command.option(words, "--b", "-b") == "3"
    assert command.option(words, "--c") is None
    assert command.option(words, "--d") is None
    # vLLM reads both spellings.
    assert command.option(["--max_model_len", "1", "--max-model-len=2"], "--max-model-len") == "2"
    assert command.option(["--max-model-len", "1"], "--max_model_len") == "1"
    assert command.option(["-a_b", "1"], "-a-b") is None
    assert command.without(["x", "--master_port", "1", "--master_port=2", "y"], "--master-port") == ("x", "y")


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        ("vllm serve x", {}),
        ("vllm serve x -tp 2", {"tp": 2}),
        ("vllm serve x --tensor-parallel-size=2 -pp 3 --data-parallel-size 4", {"tp": 2, "pp": 3, "dp": 4}),
        ("vllm serve x -tp 2 --tensor_parallel_size 4", {"tp": 4}),
        ("vllm serve x -tp $TP", {}),
    ],
)
def test_the_sizes_that_a_model_is_spread_by(words: str, sizes: dict[str, int]) -> None:
    assert command.parallelism(words.split()) == sizes


@pytest.mark.parametrize("option", ["--distributed-executor-backend ray", "--distributed-executor-backend=ray"])
def test_what_joins_machines_is_taken_out(option: str) -> None:
    assert command.without(["-a", *option.split(), "-b"], command.BACKEND) == ("-a", "-b")
    assert command.without([*option.split()[:1]], command.BACKEND) == ()


def words(recipe: Recipe) -> tuple[str, ...]:
    return command.unchecked_words(recipe)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--gpu-memory-utilization 0,8", "a number cannot contain a comma; write 0.8"),
        ("--gpu_memory_utilization=0,8", "a number cannot contain a comma; write 0.8"),
        ("--max-model-len 131,072", "a number cannot contain a comma; write 131072"),
        ("-tp two", "expected a whole number"),
        ("--max-model-len 1e5", "expected a number"),
        ("--cpu-offload-gb some", "expected a number"),
        ("--gpu-memory-utilization 85", "expected a share of the memory: more than 0, and at most 1, such as 0.85"),
        ("--gpu-memory-utilization most", "expected a share of the memory: more than 0, and at most 1, such as 0.85"),
    ],
)
def test_a_value_that_vllm_refuses(tmp_path: Path, options: str, said: str) -> None:
    recipe = recipe_texts.make(tmp_path, f"vllm serve x {options}")
    (problem,) = map(str, command.number_problems(recipe, words(recipe)))
    assert problem.endswith(f"{options.replace('=', ' ')}: {said}")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--port 80000", "expected a port: 1 to 65535"),
        ("--port 0", "expected a port: 1 to 65535"),
        ("--master-port=99999", "expected a port: 1 to 65535"),
        ("--host 'a b'", "expected a host name or an address, such as 0.0.0.0"),
        ('--host "a\nb"', "expected a host name or an address, such as 0.0.0.0"),
        ('--served-model-name m "a\nb"', "a name cannot contain a line break or a control character"),
        ("--port 80a", "expected a port: 1 to 65535"),
    ],
)
def test_a_name_that_is_none_is_in_no_command(tmp_path: Path, options: str, said: str) -> None:
    recipe = recipe_texts.make(tmp_path, f"vllm serve x {options}")
    with pytest.raises(FileProblemsError, match=said):
        command.render_command(recipe, {})
    assert [problem for problem in recipe_problems.recipe_problems(recipe) if said in problem.message]


@pytest.mark.parametrize(
    "options",
    [
        "--host ::1",
        "--host 0.0.0.0 --port 8000",
        "--host fe80::1%eth0",
        "--host my-spark.local",
        '--port "$PORT" --host "$(hostname)"',
        "--served-model-name a b/c:d",
    ],
)
def test_names_that_are_some(tmp_path: Path, options: str) -> None:
    recipe = recipe_texts.make(tmp_path, f"vllm serve x {options}")
    assert command.render_command(recipe, {}).words[:3] == ("vllm", "serve", "x")


def test_a_value_is_told_where_it_comes_from(tmp_path: Path) -> None:
    recipe = recipe_texts.make(
        tmp_path, "vllm serve x --gpu-memory-utilization {gpu}", "defaults: {port: 1, gpu: '0,8'}\n"
    )
    (problem,) = map(str, command.number_problems(recipe, words(recipe)))
    assert problem == "r.yaml:3:27: --gpu-memory-utilization 0,8: a number cannot contain a comma; write 0.8"


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve x --port 8000 --max-model-len 128k --gpu-memory-utilization 1 --max-num-batched-tokens auto",
        "vllm serve x --allowed-origins a,b --port 1 --trust-remote-code --seed -1",
        'P=1\nvllm serve x --port "$P"',
        "vllm serve x --swap-space .5 --kv-cache-memory-bytes 4GiB --max-num-batched-tokens 8_192",
        "ray start --port 6379 --max-model-len y\nsed -e a -e b f\nvllm serve x",
    ],
)
def test_values_that_vllm_takes(tmp_path: Path, text: str) -> None:
    recipe = recipe_texts.make(tmp_path, text)
    assert list(command.number_problems(recipe, words(recipe))) == []
    assert list(command.contradictions(recipe, words(recipe))) == []


def test_only_the_options_of_the_server_count(tmp_path: Path) -> None:
    text = "ray start --port 6379\njq -n '{{a: 1}}' && vllm serve m --max-model-len 1,2\nproxy --port 9000"
    recipe = recipe_texts.make(tmp_path, text)
    assert command.render_command(recipe, {}).port == 8000
    (problem,) = map(str, recipe_problems.recipe_problems(recipe))
    assert problem.startswith("r.yaml:5:52: --max-model-len 1,2: ")


def test_the_model_may_follow_options(tmp_path: Path) -> None:
    text = "vllm serve --port 9001 --enforce-eager {model} --served-model-name m"
    recipe = recipe_texts.make(tmp_path, text, "model: Org/M\nmodel_revision: abc\n")
    rendered = command.render_command(recipe, {})
    assert (rendered.model, rendered.served, rendered.port) == ("Org/M", ("m",), 9001)
    assert rendered.argv == (*text.replace("{model}", "Org/M").split(), "--revision", "abc")


VARIABLES = [
    ("ARGS=(\n  --port 9007 # why\n  --served-model-name m\n)\nARGS+=(--seed 1)", '"${{ARGS[@]}}"'),
    ('ARGS="--port 9007 --served-model-name m "', "$ARGS"),
    ("export ARGS='--port 1'\nif true; then\n  ARGS='--port 9007 --served-model-name m'\nfi", "${{ARGS}}"),
    ("PORT=9007\nNAME='m'", '--port "$PORT" --served-model-name ${{NAME}}'),
]


@pytest.mark.parametrize(("sets", "uses"), VARIABLES)
def test_variables_that_a_script_sets_are_read(tmp_path: Path, sets: str, uses: str) -> None:
    recipe = recipe_texts.make(tmp_path, f"{sets}\nvllm serve Org/M {uses}")
    rendered = command.render_command(recipe, {})
    assert (rendered.port, rendered.served) == (9007, ("m",))
    vllm = tmp_path / "vllm"
    vllm.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    vllm.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    printed = subprocess.run(rendered.argv, env=environ, capture_output=True, check=True, text=True).stdout
    assert ("vllm", *printed.splitlines()) == rendered.words


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("P=$(free-port)\nvllm serve m --port $P", None),
        ("P=9000\nP=$((P + 1))\nvllm serve m --port $P", None),
        ("P=9000 vllm serve m --port $P", None),
        ("vllm serve m --port $P &\nP=9000", None),
        ("P=()\nvllm serve m $P", 8000),
    ],
)
def test_what_only_the_shell_knows_stays_unknown(tmp_path: Path, text: str, port: int | None) -> None:
    assert command.render_command(recipe_texts.make(tmp_path, text), {}).port == port


def test_a_quoted_variable_is_one_argument(tmp_path: Path) -> None:
    text = """C='{{"method": "mtp", "n": 1}}'\nvllm serve m --speculative-config "$C\""""
    recipe = recipe_texts.make(tmp_path, text)
    assert command.option(words(recipe), "--speculative-config") == '{"method": "mtp", "n": 1}'
    assert not recipe_problems.recipe_problems(recipe)


def test_a_command_in_a_shell_of_its_own_is_read(tmp_path: Path) -> None:
    recipe = recipe_texts.make(tmp_path, 'bash -lc "exec vllm serve m --port 9000 --seed x"')
    rendered = command.render_command(recipe, {})
    assert rendered.argv == ("bash", "-lc", "exec vllm serve m --port 9000 --seed x")
    assert (rendered.port, rendered.model, rendered.is_script) == (9000, "m", True)
    (problem,) = map(str, recipe_problems.recipe_problems(recipe))
    assert problem == "r.yaml:4:50: --seed x: expected a number"


@pytest.mark.parametrize(
    ("text", "argv"),
    [
        ('bash -lc "exec vllm serve m -q; true"', ("bash", "-lc", "exec vllm serve m -q --port 1; true")),
        ("bash -c 'a && vllm serve m' b", ("bash", "-c", "a && vllm serve m --port 1", "b")),
        ("sh -ec 'vllm serve \"$@\"'", ("sh", "-ec", 'vllm serve "$@"', "bash", "--port", "1")),
        ("sh -c 'vllm serve \"$@\"' x m", ("sh", "-c", 'vllm serve "$@"', "x", "m", "--port", "1")),
    ],
)
def test_arguments_reach_the_server_in_a_shell_of_its_own(tmp_path: Path, text: str, argv: tuple[str, ...]) -> None:
    rendered = command.render_command(recipe_texts.make(tmp_path, text), {"port": "1"})
    assert (rendered.argv, rendered.port) == (argv, 1)


def test_a_script_that_another_shell_expands_gets_no_arguments_that_it_would_lose(tmp_path: Path) -> None:
    recipe = recipe_texts.make(tmp_path, 'bash -c "vllm serve $MODEL"')
    with pytest.raises(UsageError, match="its command starts a shell within a shell") as caught:
        command.render_command(recipe, {"port": "1"})
    assert "without `bash -c`" in caught.value.hint


def test_of_two_equal_options_the_last_counts(tmp_path: Path) -> None:
    recipe = recipe_texts.make(
        tmp_path, "vllm serve x --max-model-len 1 \\\n --a \\\n --max_model_len=2 -tp 1 --no-a -tp 1"
    )
    assert [str(note) for note in command.contradictions(recipe, words(recipe))] == [
        "r.yaml:6:4: `--max_model_len 2` CONTRADICTS `--max-model-len 1` before it; vLLM uses the last one",
        "r.yaml:6:28: `--no-a` CONTRADICTS `--a` before it; vLLM uses the last one",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve x --middleware a --middleware b",
        "vllm serve x --a 1 --a 1",
        "if x; then\n vllm serve x --a 1\nelse\n vllm serve x --a 2\nfi",
    ],
)
def test_what_is_no_contradiction(tmp_path: Path, text: str) -> None:
    recipe = recipe_texts.make(tmp_path, text)
    assert list(command.contradictions(recipe, words(recipe))) == []
