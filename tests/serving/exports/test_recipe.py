from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import UsageError
from builder.definitions import command
from builder.definitions.recipe import Recipe
from builder.serving import compose as exported
from tests.definitions.recipes import recipe_texts

if TYPE_CHECKING:
    from pathlib import Path


HEAD = (
    "# by hand\nrecipe_version: 1\ndescription: 'größe: x'\nmodel: Org/M\nsolo_only: true\nbuild_args: [--tf5]\n"
    "mods: [mods/a, mods/b]\nenv: {A: 1, B: '0123'}\n"
    'defaults:\n  port: 8000\n  share: 0.80\n  spec: \'{"n": 3}\'\n  text: "it\'s"\n  empty:\n'
)
COMMAND = "vllm serve Org/M \\\n  --port {port} --x '{spec}' \\\n\n  # --y {{}}\n  --z \"{text}\" \\"


def again(folder: Path, original: Recipe, mods: list[str]) -> Recipe:
    """The exported recipe, read as any other."""
    rendered = command.render_command(original, {})
    reread = recipe_texts.read(folder, exported.render_recipe(original, rendered, "small:7", mods))
    assert reread.recipe is not None
    assert reread.problems == ()
    return reread.recipe


def test_other_launchers_serve_the_same_from_the_numbered_image(tmp_path: Path) -> None:
    original = recipe_texts.make(tmp_path, COMMAND.replace("\n\n", "\n"), HEAD)
    reread = again(tmp_path, original, ["mods/b"])
    assert (reread.container, reread.mods, reread.ignored_build_args) == ("small:7", ("mods/b",), ())
    assert (reread.command, reread.defaults, reread.env) == (original.command, original.defaults, original.env)
    assert (reread.name, reread.description, reread.model, reread.solo_only) == ("x", "größe: x", "Org/M", True)
    assert command.render_command(reread, {}) == command.render_command(original, {})
    assert 'recipe_version: "1"' in reread.text.replace("'", '"')


def test_baked_mods_are_not_applied_again(tmp_path: Path) -> None:
    reread = again(tmp_path, recipe_texts.make(tmp_path, "vllm serve Org/M", HEAD), [])
    assert reread.mods == ()
    assert "mods" not in reread.text


@pytest.mark.parametrize("text", ["vllm serve Org/M", "vllm serve Org/M \\\n  --port {port} \\\n"])
def test_the_revision_is_written_out(tmp_path: Path, text: str) -> None:
    original = recipe_texts.make(tmp_path, text, f"{HEAD}model_revision: a{{b}}'c\n")
    reread = again(tmp_path, original, [])
    assert reread.revision is None
    assert command.render_command(reread, {}).argv == command.render_command(original, {}).argv
    assert command.render_command(reread, {}).argv[-2:] == ("--revision", "a{b}'c")


@pytest.mark.parametrize("text", ["export A=1\nvllm serve Org/M", "vllm serve Org/M # why"])
def test_a_revision_that_cannot_be_written_out_is_refused(tmp_path: Path, text: str) -> None:
    original = recipe_texts.make(tmp_path, text, f"{HEAD}model_revision: abc\n")
    with pytest.raises(UsageError, match="other launchers know no `model_revision`"):
        again(tmp_path, original, [])


def test_a_script_stays_as_it_is(tmp_path: Path) -> None:
    original = recipe_texts.make(tmp_path, "export A=1  # why\n\nif true; then\n    vllm serve {port}\nfi", HEAD)
    assert again(tmp_path, original, []).command == original.command
