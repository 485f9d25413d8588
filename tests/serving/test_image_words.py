"""What an image's vLLM says of recipes: the questions, the judgement of its answers, and how they are kept."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.definitions import command
from builder.definitions.image import load_chain
from builder.definitions.source_patches import SourcePatch
from builder.engine import vllm_words
from builder.engine.installed import CommandAnswer, CommandFault, VllmFacts
from builder.lock.model import GitPin, Lock, Pins, WheelPin
from builder.serving import image_words
from builder.serving.image_words import ImageAnswer
from tests import projects
from tests.definitions.recipes import recipe_texts

if TYPE_CHECKING:
    from pathlib import Path

    from builder.definitions.recipe import Recipe

DAY = "2026-10-01T00:00:00Z"
OPTIONS = {"--port": (), "--kv-cache-dtype": ("auto", "fp8"), "--attention-backend": (), "--max-model-len": ()}
FACTS = VllmFacts(
    version="0.32.0",
    options=OPTIONS,
    variables=("VLLM_LOGGING_LEVEL", "VLLM_PORT"),
    choices={
        "tool-call-parser": ("hermes", "qwen3_xml"),
        "attention-backend": ("FLASHINFER", "TRITON_ATTN"),
        "speculative method": ("mtp", "ngram"),
    },
    fields={"speculative-config": ("method", "num_speculative_tokens")},
)


def answer(*faults: tuple[str, bool, str], is_whole: bool = True, **said: object) -> ImageAnswer:
    told = CommandAnswer(tuple(CommandFault(*fault) for fault in faults))
    return ImageAnswer("small:2", FACTS, (), replace(told, **said), is_whole)  # type: ignore[arg-type]


def asked(recipe: Recipe, told: ImageAnswer) -> ImageAnswer:
    """The answer as one about the command of ``recipe``."""
    return replace(told, argv=command.server_arguments(recipe)[0])


def problems(recipe: Recipe, told: ImageAnswer) -> list[str]:
    return [str(problem) for problem in image_words.problems(recipe, asked(recipe, told), ())]


@pytest.mark.parametrize(
    ("command", "argv", "is_whole"),
    [
        ("vllm serve m --port 1", ["serve", "m", "--port", "1"], True),
        ("python3 -m vllm.entrypoints.openai.api_server --model m", ["serve", "--model", "m"], True),
        ("export A=1\nexec /usr/bin/vllm serve m --x 1 | tee log", ["serve", "m", "--x", "1"], True),
        ("vllm serve m --port ${{PORT:-1}} --x '$1' $MORE", ["serve", "m", "--x", "$1"], False),
        ("vllm serve m --eager --port=$PORT --x 1", ["serve", "m", "--x", "1"], False),
    ],
)
def test_vllm_is_shown_what_needs_no_shell(tmp_path: Path, command: str, argv: list[str], is_whole: bool) -> None:
    asked = image_words.question(recipe_texts.make(tmp_path, command))
    assert asked is not None
    assert ([*asked[0]["argv"]], asked[1]) == (argv, is_whole)


@pytest.mark.parametrize(
    "command",
    [
        "sglang serve m",
        "if x; then vllm serve a; else vllm serve b; fi",
        pytest.param("vllm serve {long}{long}", marks=pytest.mark.slow),
    ],
)
def test_other_programs_several_servers_and_huge_commands_are_no_question(tmp_path: Path, command: str) -> None:
    head = f"defaults: {{long: {'m' * 40_000}}}\n"
    assert image_words.question(recipe_texts.make(tmp_path, command, head)) is None


def test_what_was_typed_is_asked_about_with_the_recipe(tmp_path: Path) -> None:
    recipe = recipe_texts.make(tmp_path, "vllm serve m --port {port}", "defaults: {port: 1}\n")
    asked = image_words.question(recipe, {"port": "2"}, ["--eager"])
    assert asked is not None
    assert asked[0]["argv"] == ("serve", "m", "--port", "2", "--eager")


def test_variables_of_vllm_alone_are_asked_about(tmp_path: Path) -> None:
    head = "env: {VLLM_PORT: 1, NCCL_DEBUG: INFO, VLLM_X: $HOME, vllm_y: 1}\n"
    asked = image_words.question(recipe_texts.make(tmp_path, "vllm serve m", head))
    assert asked is not None
    assert asked[0]["env"] == {"VLLM_PORT": "1", "VLLM_X": ""}


def test_each_fault_is_told_at_its_place_with_the_nearest_right_word(tmp_path: Path) -> None:
    recipe = recipe_texts.make(tmp_path, "vllm serve m --prt 1 --kv_cache_dtype fp9 --attention-backend flashinfre")
    told = answer(
        ("--prt", True, "unrecognized arguments: --prt 1"),
        ("--kv-cache-dtype", False, "argument --kv-cache-dtype: invalid choice: 'fp9' (choose from 'auto', 'fp8')"),
    )
    assert problems(recipe, told) == [
        "r.yaml:4:65: small:2 (vLLM 0.32.0) has no --attention-backend `FLASHINFRE`; did you mean `FLASHINFER`?",
        "r.yaml:4:16: small:2 (vLLM 0.32.0) has no option `--prt`; did you mean `--port`?",
        "r.yaml:4:41: small:2 (vLLM 0.32.0) refuses `--kv_cache_dtype fp9`: did you mean `fp8`?",
    ]
    told = asked(recipe, told)
    known = [*image_words.problems(recipe, told, ())]
    assert [*image_words.problems(recipe, told, known)] == known[:1], "nothing is told twice"


@pytest.mark.parametrize(
    ("option", "version", "hint"),
    [
        ("--max-num-partial-prefills", "0.32.0", "; vLLM 0.26 is the last release with it"),
        ("--max-num-partial-prefills", "0.26.1rc1", ""),
        ("--device-ids", "0.20.2+cpu", "; vLLM 0.24 is the first release with it"),
        ("--device-ids", "dev", ""),
    ],
)
def test_the_releases_with_an_option_are_told(tmp_path: Path, option: str, version: str, hint: str) -> None:
    recipe = recipe_texts.make(tmp_path, f"vllm serve m {option} 1")
    told = answer((option, True, "unrecognized arguments"))
    (problem,) = problems(recipe, replace(told, facts=replace(FACTS, version=version)))
    assert problem.endswith(f"has no option `{option}`{hint}")


def test_backends_are_taken_in_any_case_and_auto_too(tmp_path: Path) -> None:
    for name in ("flashinfer", "TRITON_ATTN", "auto"):
        assert problems(recipe_texts.make(tmp_path, f"vllm serve m --attention-backend {name}"), answer()) == []


def test_json_options_are_judged_by_their_fields(tmp_path: Path) -> None:
    text = 'vllm serve m --speculative-config \'{{"method": "mtpp", "num-speculative-tokens": 1, "tokens": 2}}\''
    assert problems(recipe_texts.make(tmp_path, text), answer()) == [
        "r.yaml:4:38: small:2 (vLLM 0.32.0) has no speculative method `mtpp`; did you mean `mtp`?",
        "r.yaml:4:87: --speculative-config: small:2 (vLLM 0.32.0) has no field `tokens`",
    ]


def test_a_refusal_that_names_no_option_is_one_of_the_command(tmp_path: Path) -> None:
    fault = ("", False, "Error: --enable-auto-tool-choice requires --tool-call-parser")
    recipe = recipe_texts.make(tmp_path, "vllm serve m --enable-auto-tool-choice")
    (problem,) = problems(recipe, answer(fault))
    assert problem.endswith("refuses the command: --enable-auto-tool-choice requires --tool-call-parser")
    assert problems(recipe, answer(fault, is_whole=False)) == [], "what it misses may be what only the shell can tell"


def test_the_reason_of_vllm_is_one_line(tmp_path: Path) -> None:
    said = (
        "argument --compilation-config/-cc: 1 validation error for CompilationConfig\nmodee\n"
        "  Unexpected keyword argument [type=unexpected_keyword_argument, input_value=3, input_type=int]\n"
        "    For further information visit https://errors.pydantic.dev/2.14/v/unexpected_keyword_argument"
    )
    recipe = recipe_texts.make(tmp_path, "vllm serve m --compilation-config '{{\"modee\": 3}}'")
    (problem,) = problems(recipe, answer(("--compilation-config", False, said)))
    assert problem.endswith('refuses `--compilation-config {"modee": 3}`: modee: Unexpected keyword argument')


def test_variables_without_effect_are_notes(tmp_path: Path) -> None:
    head = "env: {VLLM_ATTENTION_BACKEND: X, VLLM_LOGING_LEVEL: INFO, VLLM_PORT: 'tcp://1'}\n"
    recipe = recipe_texts.make(tmp_path, "vllm serve m", head)
    told = answer(unread=("VLLM_ATTENTION_BACKEND", "VLLM_LOGING_LEVEL"), values={"VLLM_PORT": "a URI"})
    assert [str(note) for note in image_words.notes(recipe, told)] == [
        "r.yaml:3:7: nothing in small:2 (vLLM 0.32.0) reads VLLM_ATTENTION_BACKEND; the option `--attention-backend`"
        " does this",
        "r.yaml:3:34: nothing in small:2 (vLLM 0.32.0) reads VLLM_LOGING_LEVEL; did you mean `VLLM_LOGGING_LEVEL`?",
        "r.yaml:3:59: small:2 (vLLM 0.32.0) refuses the value of VLLM_PORT: a URI",
    ]


@pytest.mark.parametrize(
    ("argv", "names", "kept"),
    [
        (["m", "--foo", "1", "-2", "--port", "1"], {"--foo"}, ["m", "--port", "1"]),
        (["m", "--foo_bar=--x", "--foo-bar.key", "v", "y"], {"--foo-bar"}, ["m"]),
        (["m", "--config", "/etc/passwd"], vllm_words.FILES, ["m"]),
    ],
)
def test_options_are_taken_out_with_their_values(argv: list[str], names: set[str], kept: list[str]) -> None:
    assert vllm_words.without(argv, names) == kept


# Before there is an image: the options of the pinned release.


@pytest.mark.parametrize(
    ("used", "release", "hint"),
    [
        ("--max-model-len 4k --no-enable-prefix-caching --max_num_seqs 4 --attention-config.backend X", "0.32.0", ""),
        ("--gpu-memory-util 0.5 -tp 2", "0.32.0", ""),  # vLLM takes the beginning of a name
        ("--gpu-memory-utilisation 0.5", "0.32.0", "did you mean `--gpu-memory-utilization`?"),
        ("--calculate-kv-scales", "0.28.0", "vLLM 0.27 is the last release with it"),
        ("--calculate-kv-scales", "0.27.1", ""),
        ("--watchdog-config x", "0.32.1", "vLLM 0.33 is the first release with it"),
        ("--watchdog-config x", "0.33.0", ""),
    ],
)
def test_an_option_that_the_pinned_release_lacks_is_a_problem(
    tmp_path: Path, used: str, release: str, hint: str
) -> None:
    found = [*image_words.unknown_options(recipe_texts.make(tmp_path, f"vllm serve m {used}"), release)]
    name = used.split(maxsplit=1)[0]
    expected = f"vLLM {release} has no option `{name}`; {hint}"
    assert [each.message for each in found] == ([expected] if hint else [])


@pytest.mark.parametrize(
    ("pin", "release"),
    [
        (GitPin("https://x.example/v", "main", "a" * 40, "0.30.0", DAY), "0.30.0"),
        (GitPin("https://x.example/v", "main", "a" * 40, "0.30.1.dev5+gabc", DAY), ""),
        (GitPin("https://x.example/v", "main", "a" * 40, "0.34.0", DAY), ""),
        (GitPin("https://x.example/v", "main", "a" * 40, "0.17.1", DAY), ""),
        (
            GitPin("https://x.example/v", "main", "a" * 40, "0.30.0", DAY, (SourcePatch("40898", "b" * 40, "c" * 64),)),
            "",
        ),
        (WheelPin("vllm==0.32.0", "0.32.0"), "0.32.0"),
    ],
)
def test_the_release_is_known_of_pinned_sources_alone(tmp_path: Path, pin: GitPin | WheelPin, release: str) -> None:
    lock = Lock(pins={"small": {"linux/amd64": Pins(sources={"vllm": pin})}})
    project = projects.make(tmp_path)
    assert image_words.pinned_release(lock, load_chain(project, "small", "linux/amd64")) == release
    assert image_words.pinned_release(Lock(), load_chain(project, "small", "linux/amd64")) == ""
