"""Placeholders, and commands as bash reads them: every text is compared with what a real bash makes of it."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.definitions import shell
from builder.definitions.shell import ParsedCommand, Placeholder, Scalar, ShellContext

VALUES: dict[str, Scalar] = {"port": 8000, "max-num-seqs": 16, "share": 0.5, "name": "a b", "none": None, "flag": True}
FRAGMENTS = st.sampled_from(
    [
        "{port}",
        "{none}",
        "{flag}",
        "{max-num-seqs}",
        "{share:.2f}",
        "{name!r}",
        "{name:>6}",
        "{{",
        "}}",
        "{",
        "}",
        "x",
        " ",
        "'",
        '"',
        "\\",
    ]
)


def rendered(template: str) -> str:
    units, _ = shell.parse_placeholders(template)
    return shell.text_of_units(shell.filled(units, VALUES))


@given(st.lists(FRAGMENTS, max_size=12).map("".join))
def test_it_is_python_format_and_refuses_what_python_refuses(template: str) -> None:
    try:
        expected: str | None = template.format(**VALUES)
    except (ValueError, KeyError, IndexError):
        expected = None
    units, wrong = shell.parse_placeholders(template)
    if expected is None:
        assert wrong or set(shell.keys(units)) - VALUES.keys()  # "{", "x" and "}" make a key that has no value
    elif not wrong:
        assert rendered(template) == expected


def test_every_character_and_placeholder_has_its_offset() -> None:
    units, wrong = shell.parse_placeholders("a {port} {{b}} {max-num-seqs}")
    assert not wrong
    port, seqs = Placeholder("port", "{port}", 2), Placeholder("max-num-seqs", "{max-num-seqs}", 15)
    assert [(unit.item, unit.offset) for unit in units] == [
        *(("a", 0), (" ", 1), (port, 2), (" ", 8)),
        *(("{", 9), ("b", 11), ("}", 12), (" ", 14), (seqs, 15)),
    ]
    assert shell.keys(units) == ("port", "max-num-seqs")


@pytest.mark.parametrize(
    ("template", "offset", "message"),
    [
        (
            "x {port.real}",
            2,
            "`{port.real}`: only a plain key can be in braces, such as {port}; double all other braces: {{ and }}",
        ),
        (
            "{env[HOME]}",
            0,
            "`{env[HOME]}`: only a plain key can be in braces, such as {port}; double all other braces: {{ and }}",
        ),
        (
            "{port.__class__.__mro__}",
            0,
            "`{port.__class__.__mro__}`: only a plain key can be in braces, such as {port}; "
            "double all other braces: {{ and }}",
        ),
        ("x {}", 2, "`{}`: only a plain key can be in braces, such as {port}; double all other braces: {{ and }}"),
        ("x {0}", 2, "`{0}`: only a plain key can be in braces, such as {port}; double all other braces: {{ and }}"),
        (
            'x {"a": 1}',
            2,
            '`{"a": 1}`: only a plain key can be in braces, such as {port}; double all other braces: {{ and }}',
        ),
        ("x {port", 2, "`{`: only a plain key can be in braces, such as {port}; double all other braces: {{ and }}"),
        ("x} y", 1, "`}`: only a plain key can be in braces, such as {port}; double all other braces: {{ and }}"),
        ("a\0b", 1, "the command contains a NUL character; remove it"),
    ],
)
def test_what_is_no_placeholder_is_refused_with_the_reason(template: str, offset: int, message: str) -> None:
    _, wrong = shell.parse_placeholders(template)
    assert [(problem.offset, problem.message) for problem in wrong] == [(offset, message)]


def test_everything_wrong_is_told_at_once() -> None:
    _, wrong = shell.parse_placeholders('{} {a.b} {"n": 3}')
    assert [problem.offset for problem in wrong] == [0, 3, 9]


def test_a_format_takes_the_number_that_text_spells() -> None:
    (share,) = shell.placeholders(shell.parse_placeholders("{share:.2f}")[0])
    assert shell.text_of(share, "0.755") == "0.76"
    with pytest.raises(ValueError, match="format code 'f'"):
        shell.text_of(share, "half")


def test_values_take_the_place_of_their_placeholders_at_its_offset() -> None:
    units, _ = shell.parse_placeholders("a {port} {none}{name}")
    port, none, name = shell.placeholders(units)
    filled = list(shell.filled(units, {"port": 8000, "none": None}))
    assert shell.text_of_units(filled) == "a 8000 None\0"
    assert [(unit.offset, unit.source) for unit in filled[2:]] == [
        *4 * [(2, port)],
        (8, None),
        *4 * [(9, none)],
        (15, None),
    ]
    assert filled[-1].item == name


SHOW = "show() { [ $# = 0 ] || printf '%s\\0' \"$@\"; }\n"


def scan(text: str) -> ParsedCommand:
    pieces, wrong = shell.parse_placeholders(text)
    assert not wrong
    return shell.scan(pieces)


def words(text: str) -> list[str]:
    return list(shell.words(scan(text), {}))


def bash(script: str) -> list[str]:
    """The arguments that `show` gets in ``script``."""
    done = subprocess.run(["bash", "-c", SHOW + script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize(
    "text",
    [
        "show a  b\tc",
        "show 'a b' \"c d\" e'f'\"g\"",
        "show '' \"\"",
        r"show a\ b \'x\' \"y\" \\",
        r'show "a\"b\\c\n"',
        "show 'a\\b'",
        "show a \\\n  b \\\n  c",
        "show a#b # the rest",
        "show --x=1 --y '{{\"a\": [1, 2]}}'",
        "show 'two\nlines'",
        "show x^2 @y %z é",
        'show {{\\"a\\":true}} {{a}} x{{}}y a={{b',
    ],
)
def test_plain_words_are_those_of_bash(text: str) -> None:
    parsed = scan(text)
    assert not parsed.needs_shell
    assert not parsed.wrong
    assert words(text)[1:] == bash(text.replace("{{", "{").replace("}}", "}"))


SAFE_CHARACTERS = st.text(alphabet="ab -='\"\\\n\t#é{},.", max_size=14)


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(SAFE_CHARACTERS)
def test_whatever_counts_as_plain_reads_as_in_bash(text: str) -> None:
    text = text.replace("{", "{{").replace("}", "}}")
    parsed = scan(f"show {text}")
    if not parsed.needs_shell and not parsed.wrong and "#" not in text and not text.rstrip().endswith("\\"):
        assert words(f"show {text}")[1:] == bash(f"show {text}".replace("{{", "{").replace("}}", "}"))


@pytest.mark.parametrize(
    "text",
    [
        "a | b",
        "a && b",
        "a; b",
        "a &",
        "a > log",
        "a 2>&1",
        "a <<< x",
        "a\nb",
        "a $HOME",
        "a ${{HOME}}",
        'a "$HOME"',
        "a $(b)",
        'a "$(b)"',
        "a `b`",
        "a *.txt",
        "a ~/x",
        "a --x=~/y",
        "a {{b,c}}",
        "a {{1..3}}",
        'a {{"b c",d}}',
        "a {{b\\ c,d}}",
        "a $'b'",
        "X=1 a",
        "export X=1",
        "exec a",
        "cd /x",
        "if a; then b; fi",
        "a <<EOF\nx\nEOF",
    ],
)
def test_what_only_a_shell_can_run_is_told_apart(text: str) -> None:
    assert scan(text).needs_shell


@pytest.mark.parametrize(
    "text", ["vllm serve a~b", "vllm serve x --n 5$", "vllm serve {{}}", "vllm 'a $HOME | b'", "a\n\n"]
)
def test_what_looks_like_a_script_and_is_none(text: str) -> None:
    assert not scan(text).needs_shell


def test_the_backslash_of_the_last_line_has_nothing_to_join() -> None:
    assert words("vllm serve x \\\n  --a 1 \\\n") == ["vllm", "serve", "x", "--a", "1"]
    assert words("vllm serve x \\") == ["vllm", "serve", "x"]


def test_options_switched_off_between_continued_lines_are_left_out() -> None:
    text = "vllm serve x \\\n  --a 1 \\\n  # --b 2 \\\n#--c 3\n  --d 4 \\\n  # --e 5"
    parsed = scan(text)
    assert words(text) == ["vllm", "serve", "x", "--a", "1", "--d", "4"]
    assert not parsed.wrong
    assert not parsed.needs_shell


def test_a_comment_that_no_option_follows_ends_the_command_as_in_bash() -> None:
    parsed = scan("show a \\\n  # done\nshow b")
    assert len(parsed.commands) == 2


def test_the_list_of_a_variable_has_options_on_lines_of_their_own() -> None:
    text = 'ARGS=(\n  --port 8000 # one\n  --x "$(y)"\n)\nARGS+=(\n  --z\n)\nvllm serve x $ARGS\n'
    assert not scan(text).wrong
    assert [problem.offset for problem in scan(f"{text}  --a\n").wrong] == [len(text) + 2]


def test_what_makes_no_sense_is_reported_with_its_offset() -> None:
    text = "vllm serve x\n  --a 1 \\ \n  --b 'c"
    parsed = scan(text)
    assert [(problem.offset, problem.message) for problem in parsed.wrong] == [
        (
            text.index("\\"),
            "spaces follow the backslash; it continues the command only if it is the last character of its line",
        ),
        (text.index("'"), "the quote ' that opens here is never closed"),
        (
            text.index("--a"),
            "the line before this option lacks the backslash at its end; similar lines: 1",
        ),
    ]


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("vllm serve x \\ --a 1 \\ -b", [13, 21]),
        ("vllm serve x \\  --a", [13]),
        ("cut -d \\  -f1; show \\ x a\\ --b", []),
    ],
)
def test_a_folded_block_whose_lines_end_in_backslashes_is_named(text: str, places: list[int]) -> None:
    wrong = scan(text).wrong
    assert [problem.offset for problem in wrong] == places
    assert all("write `command: |`" in problem.message for problem in wrong)


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("show a > log 2>&1 b", [["show", "a", "b"]]),
        ("show a 2> log | show b &> log", [["show", "a"], ["show", "b"]]),
        ("show a1>&2", [["show", "a1"]]),
        ("show 1 >log; show 2>log", [["show", "1"], ["show"]]),
        ("show a <<EOF b\nnot; read\nEOF\nshow c", [["show", "a", "b"], ["show", "c"]]),
        ("show <<A <<B\na\nA\nb\nB\nshow c", [["show"], ["show", "c"]]),
        ("if show a; then show b; fi", [["if", "show", "a"], ["then", "show", "b"], ["fi"]]),
    ],
)
def test_the_words_of_each_command_of_a_script(text: str, commands: list[list[str]]) -> None:
    read = [["".join(token.raw for token in word) for word in command] for command in scan(text).commands]
    assert read == commands


@pytest.mark.parametrize(
    ("text", "context"),
    [
        ("a {x}", "plain"),
        ("a '{x}'", "single"),
        ('a "{x}"', "double"),
        ("a $(b {x})", "opaque"),
        ('a "$(b {x})"', "opaque"),
        ("a `b {x}`", "opaque"),
        ("a ${{y:-{x}}}", "opaque"),
        ("a $'{x}'", "opaque"),
        ("a <<EOF\n{x}\nEOF", "opaque"),
        ("a $(case a in b) {x};; esac)", "opaque"),
        ("case a in b) c {x};; esac", "plain"),
        ("a <<'E O'\nb\nE O\nc {x}", "plain"),
        ("a <<-EOF | b\nc\n\t\tEOF\nd '{x}'", "single"),
        ("a $(b) {x}", "plain"),
        ('a "$(b "c)" d)" {x}', "plain"),
        ("a $((1 + (2))) {x}", "plain"),
        ("a `b` '{x}'", "single"),
        ("a # {x}", "comment"),
    ],
)
def test_the_context_of_a_placeholder(text: str, context: ShellContext) -> None:
    (token,) = [token for token in scan(text).tokens if token.placeholder]
    assert token.context is context
