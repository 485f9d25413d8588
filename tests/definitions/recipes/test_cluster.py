"""The number of machines that a recipe serves on, and the command of each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.definitions.recipes import cluster
from builder.errors import UsageError
from tests.definitions.recipes import recipe_texts

if TYPE_CHECKING:
    from pathlib import Path

NODES = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


def test_one_node_runs_the_command_as_it_is(tmp_path: Path) -> None:
    recipe = recipe_texts.make(tmp_path, "vllm serve m --port 1")
    (command,) = cluster.commands(recipe, {}, ["--seed", "7"], ["10.0.0.1"])
    assert command.argv == ("vllm", "serve", "m", "--port", "1", "--seed", "7")


def test_several_get_their_rank_after_everything_else(tmp_path: Path) -> None:
    recipe = recipe_texts.make(tmp_path, "vllm serve m --port 1")
    first, *others = cluster.commands(recipe, {}, ["--seed", "7"], NODES)
    common = ("vllm", "serve", "m", "--port", "1", "--seed", "7", "--nnodes", "3", "--node-rank")
    assert first.argv == (*common, "0", "--master-addr", "10.0.0.1")
    assert [other.argv for other in others] == [
        (*common, rank, "--master-addr", "10.0.0.1", "--headless") for rank in ("1", "2")
    ]


def test_a_script_gets_it_where_its_arguments_belong(tmp_path: Path) -> None:
    recipe = recipe_texts.make(tmp_path, 'export A=1; vllm serve m "$@"')
    _, second = cluster.commands(recipe, {}, [], NODES[:2])
    assert second.argv[:2] == ("bash", "-c")
    assert second.argv[3:] == ("bash", "--nnodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.1", "--headless")


@pytest.mark.parametrize("option", ["--distributed-executor-backend ray", "--distributed-executor-backend=ray"])
def test_ray_is_started_first_where_the_command_asks_for_it(tmp_path: Path, option: str) -> None:
    recipe = recipe_texts.make(tmp_path, f"vllm serve m --greeting 'a $(b)' {option}")
    first, second = cluster.commands(recipe, {}, [], ["fe80::1", "fe80::2"])
    assert first.argv[:2] == ("bash", "-c")
    assert first.argv[3:] == ("bash", "6379", "fe80::1", "vllm", "serve", "m", "--greeting", "a $(b)", *option.split())
    assert "--address=[fe80::1]:6379" in second.argv
    assert "--node-ip-address=fe80::2" in second.argv


def test_solo_and_cluster_recipes_are_held_to_it(tmp_path: Path) -> None:
    solo = recipe_texts.make(tmp_path, "vllm serve m", "solo_only: true\n")
    cluster.require_fit(solo, 0)
    cluster.require_fit(solo, 1)
    with pytest.raises(UsageError, match="`solo_only`: one machine serves it"):
        cluster.require_fit(solo, 2)
    together = recipe_texts.make(tmp_path, "vllm serve m", "cluster_only: true\n")
    cluster.require_fit(together, 2)
    for count in (0, 1):
        with pytest.raises(UsageError, match="`cluster_only`: several machines serve it together"):
            cluster.require_fit(together, count)
