"""What the images in an engine say of recipes: kept by their content, and compared."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from builder.base import records
from builder.definitions import recipe
from builder.engine import images, installed
from builder.engine.installed import CommandAnswer, CommandFault, VllmFacts
from builder.serving import image_words
from builder.serving.image_words import RememberedAnswers
from tests import projects
from tests.stock import stock

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.engine.client import Endpoint
    from tests.conftest import Command

pytestmark = pytest.mark.engine

FAULT = CommandFault("--swap-space", True, "unrecognized arguments: --swap-space 4")


@pytest.fixture
def stocked(small: Project, endpoint: Endpoint, repository: str) -> Project:
    """Two numbers, and a recipe with an option that the second one's vLLM no longer has, as if both had been asked."""
    stock(small, endpoint, repository, (1, 2))
    file = small.recipes / "chat.yaml"
    text = file.read_text(encoding="utf-8").replace("--port 8000", "--port 8000 --swap-space 4")
    projects.write(file, re.sub(r"(?m)^mods:.*\n", "", text))
    asked = image_words.question(recipe.load_recipe(small, file))
    assert asked is not None
    kept = {}
    for number, version, faults in ((1, "0.19.0", ()), (2, "0.32.0", (FAULT,))):
        facts = VllmFacts(version, {"--port": ()}, (), {}, {})
        answers = {image_words.key_of(asked[0]): CommandAnswer(faults)}
        details = images.inspect_image(endpoint, f"{repository}:{number}")
        assert details is not None
        remembered = RememberedAnswers(installed.vllm_words_digest(), facts, answers)
        kept[images.fingerprint(details)] = records.plain(remembered)
    images.store_cache(small.state / "vllm-words.json", "images", kept)
    return small


def test_each_recipe_is_judged_by_its_image_or_by_another(stocked: Project, builder: Command, repository: str) -> None:
    message = f"{repository}:2 (vLLM 0.32.0) has no option `--swap-space`"
    assert message in builder("recipes", "check", code=2).stdout, "it is the current one"
    assert message not in builder("recipes", "check", "--image", "small:1").stdout
    document = json.loads(builder("recipes", "check", "--image", f"{repository}:2", "--json", code=2).stdout)
    assert document["recipes"][0]["problems"][0]["message"].startswith(message)
    assert "has no number 9" in builder("recipes", "check", "--image", "small:9", code=2).stderr


def test_an_image_without_the_recipe_s_mods_is_no_judge_of_it(stocked: Project, builder: Command) -> None:
    file = stocked.recipes / "chat.yaml"
    projects.write(file, file.read_text(encoding="utf-8") + "mods: [mods/template]\n")
    assert "has no option" not in builder("recipes", "check").stdout


def test_diff_says_which_options_of_recipes_are_gone(stocked: Project, builder: Command, repository: str) -> None:
    said = builder("diff", "small:1", "small:2").stdout
    assert f"parts of recipes that {repository}:2 no longer supports\n  recipes/chat.yaml:" in said
    assert json.loads(builder("diff", "small:1", "small:2", "--json").stdout)["recipes"][0].startswith(
        "recipes/chat.yaml"
    )
    assert "no longer supports" not in builder("diff", "small:2", "small:1").stdout


def test_an_image_that_cannot_be_asked_keeps_no_recipe_from_being_checked(
    stocked: Project, builder: Command, repository: str
) -> None:
    (stocked.state / "vllm-words.json").unlink()
    done = builder("recipes", "check")
    assert f"recipes were not checked with the vLLM of {repository}:2: " in done.stderr
    assert builder("diff", "small:1", "small:2").stdout
    assert f"programs of {repository}:2" in builder("recipes", "check", "--image", "small:2", code=7).stderr
