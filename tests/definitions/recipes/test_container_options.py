from __future__ import annotations

from pathlib import Path

import pytest

from builder.base.errors import FileProblemsError, UsageError
from builder.definitions import container
from builder.definitions.configuration import NOTHING_REQUESTED, RequestedOptions
from builder.definitions.container import ContainerOptions, PublishedPort
from builder.definitions.recipe import Recipe
from tests.definitions.recipes import recipe_texts

ENVIRON = {"HOME": "/home/ann", "MY_OWN": "from outside"}
FOLDERS = (Path("/project"), Path("/current"))


def settle(
    folder: Path,
    typed: RequestedOptions = NOTHING_REQUESTED,
    configured: RequestedOptions = NOTHING_REQUESTED,
    head: str = "",
) -> tuple[ContainerOptions, Recipe]:
    recipe = recipe_texts.make(folder, "vllm serve x", head)
    return container.settle_container_options(configured, recipe, typed, ENVIRON, FOLDERS)


def test_the_command_line_counts_before_the_recipe_and_that_before_builder_yaml(tmp_path: Path) -> None:
    configured = RequestedOptions(
        volumes=("./a:/a", "./shared:/shared", "/c:/c"), env=("A=configured", "B=configured", "C=configured")
    )
    head = "env: {B: recipe, C: recipe}\nvolumes: [./r:/a, ./r:/shared]\n"
    typed = RequestedOptions(volumes=("./t:/a",), env=("C=typed", "D=typed"))
    options, recipe = settle(tmp_path, typed, configured, head)
    assert {mount.target: mount.source for mount in options.volumes} == {
        "/a": "/current/t",
        "/shared": "/project/r",
        "/c": "/c",
    }
    assert options.env == {"A": "configured", "C": "typed", "D": "typed"}
    assert recipe.env == {"B": "recipe"}


def test_the_other_options_that_are_typed_replace_those_of_builder_yaml(tmp_path: Path) -> None:
    configured = RequestedOptions(publish=("1:8000",), earlyoom=True, memory="100g")
    options, _ = settle(tmp_path, configured=configured)
    assert (options.publish, options.earlyoom, options.memory) == ((PublishedPort(1, 8000),), True, "100g")
    typed = RequestedOptions(publish=("2:8000", "3:3"), earlyoom=False, memory="90g")
    options, _ = settle(tmp_path, typed, configured)
    assert (options.publish, options.earlyoom, options.memory) == (
        (PublishedPort(2, 8000), PublishedPort(3, 3)),
        False,
        "90g",
    )


def test_nothing_said_is_nothing_set(tmp_path: Path) -> None:
    assert settle(tmp_path)[0] == container.NONE


def test_the_value_of_a_secret_is_apart_and_in_no_text(tmp_path: Path) -> None:
    typed = RequestedOptions(env=("API_KEY=hidden1", "PLAIN=hf_abcdefghijk", "MY_OWN", "SHOWN=yes"))
    options, _ = settle(tmp_path, typed, RequestedOptions(env=("OTHER_TOKEN=hidden2", "API_KEY=hidden3")))
    assert options.env == {"OTHER_TOKEN": None, "API_KEY": None, "PLAIN": None, "MY_OWN": None, "SHOWN": "yes"}
    assert options.secrets == {"OTHER_TOKEN": "hidden2", "API_KEY": "hidden1", "PLAIN": "hf_abcdefghijk"}
    kept = container.kept(typed, ENVIRON, Path("/current"))
    assert kept == {"env": ["API_KEY", "PLAIN", "MY_OWN", "SHOWN=yes"]}
    texts = f"{options!r} {typed!r} {kept!r}"
    assert "hidden" not in texts
    assert "hf_abc" not in texts


def test_a_secret_of_the_recipe_s_name_is_the_typed_one(tmp_path: Path) -> None:
    options, recipe = settle(tmp_path, RequestedOptions(env=("HF_TOKEN=x",)), head="env: {HF_TOKEN: none}\n")
    assert (dict(recipe.env), options.env) == ({}, {"HF_TOKEN": None})


def test_a_later_value_in_clear_takes_the_place_of_the_environment_s(tmp_path: Path) -> None:
    options, _ = settle(tmp_path, RequestedOptions(env=("A", "A=1")), RequestedOptions(env=("A",)))
    assert (options.env, options.secrets) == ({"A": "1"}, {})


def test_values_that_the_environment_lacks_are_named(tmp_path: Path) -> None:
    options, _ = settle(tmp_path, RequestedOptions(env=("MISSING_KEY", "MY_OWN", "API_KEY=hidden")))
    with pytest.raises(UsageError, match="MISSING_KEY: wanted from your environment, and not set there") as caught:
        container.require_values(options, ENVIRON)
    assert "--env MISSING_KEY=…" in caught.value.hint
    container.require_values(options, {**ENVIRON, "MISSING_KEY": ""})


def test_what_was_kept_starts_it_again_from_any_folder(tmp_path: Path) -> None:
    typed = RequestedOptions(
        ("./t:/a:ro", "~/b:/b"), ("A=1", "KEY=hidden"), ("9000:8000",), earlyoom=True, memory="90g"
    )
    kept = container.kept(typed, ENVIRON, Path("/current"))
    same = container.again(kept, NOTHING_REQUESTED)
    assert same.volumes == ("/current/t:/a:ro", "/home/ann/b:/b")
    assert (same.env, same.publish, same.earlyoom, same.memory) == (("A=1", "KEY"), ("9000:8000",), True, "90g")
    changed = container.again(kept, RequestedOptions(("/x:/a",), ("KEY=new",), ("1:8000",), False, "80g"))
    options, _ = settle(tmp_path, changed)
    assert [str(mount) for mount in options.volumes] == ["/x:/a", "/home/ann/b:/b"]
    assert (options.env, options.secrets) == ({"A": "1", "KEY": None}, {"KEY": "new"})
    assert (options.publish, options.earlyoom, options.memory) == ((PublishedPort(1, 8000),), False, "80g")


def test_a_request_without_options_keeps_nothing() -> None:
    assert container.kept(NOTHING_REQUESTED, ENVIRON, Path("/")) == {}
    assert container.again({}, NOTHING_REQUESTED).is_empty


@pytest.mark.parametrize("text", ["=hidden", "A B=hidden", "1=hidden", "A-B=hidden", "", "ÄPFEL=hidden", "A=hidden\0"])
def test_an_error_in_a_variable_shows_no_value(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="NAME=VALUE") as caught:
        settle(tmp_path, RequestedOptions(env=(text,)))
    assert "hidden" not in caught.value.message


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (RequestedOptions(volumes=("x:/y",)), "--volume x:/y: `x` is no path"),
        (RequestedOptions(publish=("a",)), "--publish a: PORT:INSIDE"),
        (RequestedOptions(memory="100"), "--memory 100: a size such as 100g"),
        (RequestedOptions(memory="-1g"), "--memory -1g"),
    ],
)
def test_errors_name_the_option(tmp_path: Path, typed: RequestedOptions, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        settle(tmp_path, typed)
    assert caught.value.message.startswith(message)
    with pytest.raises(UsageError, match=r"builder\.yaml: (volumes|publish|memory)"):
        settle(tmp_path, configured=typed)


def test_errors_in_a_recipe_s_volumes_have_their_place(tmp_path: Path) -> None:
    with pytest.raises(FileProblemsError) as caught:
        settle(tmp_path, head="volumes:\n  - /a:/b\n  - models:/m\n  - $NOT_SET/x:/x\n")
    assert [(problem.location.line, problem.message.partition(":/")[0]) for problem in caught.value.problems] == [
        (caught.value.problems[0].location.line, "`models"),
        (caught.value.problems[0].location.line + 1, "`$NOT_SET/x"),
    ]
