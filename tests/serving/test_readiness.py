"""The known faults of the GB10's software are told where an image has them and a recipe meets them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from builder.definitions import command, image, recipe
from builder.lock import lock_file
from builder.serving import readiness
from builder.serving.readiness import ServerMetrics
from tests import shipped_files

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.lock.model import Lock


HEALTHY = {"instanttensor": "0.2.2", "nvidia-nccl-cu13": "2.29.7", "vllm": "0.28.0"}
DRAFT = json.dumps({"method": "dflash", "model": "z-lab/X-DFlash", "num_speculative_tokens": 5})
MTP = json.dumps({"method": "mtp", "num_speculative_tokens": 3})
WORDS = ("vllm", "serve", "Org/M", "--load-format", "instanttensor", "--speculative-config", DRAFT)


@pytest.mark.parametrize(
    ("packages", "words", "nodes", "subjects"),
    [
        ({}, WORDS, 2, []),
        ({"nvidia-nccl-cu13": "2.28.9"}, WORDS, 2, ["NCCL"]),
        ({"nvidia-nccl-cu13": "2.28.9"}, WORDS, 1, []),
        ({"nvidia-nccl-cu13": "2.30.7"}, WORDS, 2, []),
        ({"instanttensor": "0.2.0"}, WORDS, 1, ["loader"]),
        ({"instanttensor": "0.2.1"}, WORDS, 1, []),
        ({"instanttensor": "0.2.0"}, ("vllm", "serve", "Org/M"), 1, []),
        ({"instanttensor": "0.2.0"}, ("vllm", "serve", "Org/M", "--load-format=instanttensor"), 1, ["loader"]),
        ({"vllm": "0.30.0"}, WORDS, 1, ["drafter"]),
        ({"vllm": "0.33.1.dev5+gabc"}, WORDS, 1, ["drafter"]),
        ({"vllm": "0.29.0"}, WORDS, 1, []),
        ({"vllm": "0.30.0"}, ("vllm", "serve", "Org/M", "--speculative-config", MTP), 1, []),
        ({"vllm": "nightly"}, WORDS, 1, []),
    ],
)
def test_a_fault_is_told_where_image_and_recipe_meet_it(
    packages: dict[str, str], words: tuple[str, ...], nodes: int, subjects: list[str]
) -> None:
    faults = list(readiness.of_software("vllm-node:7", {**HEALTHY, **packages}, words, nodes))
    assert [fault.subject for fault in faults] == subjects
    for fault in faults:
        assert fault.verdict == "warning"
        assert fault.message.startswith("vllm-node:7 has ")
        assert fault.remedy


def test_an_image_of_which_nothing_is_known_has_none() -> None:
    assert list(readiness.of_software("vllm-node:7", {}, WORDS, 2)) == []


def test_no_shipped_recipe_meets_one_on_the_shipped_pins() -> None:
    project = shipped_files.project()
    lock = lock_file.read_lock(project.lock)
    looked_at = 0
    for path in recipe.recipe_files(project.recipes):
        loaded = recipe.load_recipe(project, path)
        definition = image.of_repository(project, loaded.repository)
        packages = pinned(project, lock, definition or "")
        looked_at += bool(packages)
        words = command.render_command(loaded, {}, ()).words
        assert list(readiness.of_software(loaded.container, packages, words, 2)) == [], path
    assert looked_at >= 4


def pinned(project: Project, lock: Lock, name: str) -> dict[str, str]:
    """The packages and sources that images of a definition are pinned to, those of its parents included."""
    if not name:
        return {}
    definition = image.load_image(project, name, "linux/arm64")
    pins = lock.pins_of(name, definition.platform)
    own = {package.name: package.version for package in (pins.python.packages if pins.python else ())}
    sources = {source: pin.version for source, pin in pins.sources.items()}
    return {**pinned(project, lock, definition.parent or ""), **own, **sources}


# The numbers in what a server says of itself.

TEXT = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="a} 7 {b \\" c"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:prompt_tokens_total{engine="0"} 1.2345678e+07
vllm:generation_tokens_total{engine="0"} 41.0 1700000000000
vllm:generation_tokens_created{engine="0"} 1.7e+09
vllm:kv_cache_usage_perc{engine="0"} 0.125
vllm:spec_decode_num_draft_tokens_total{engine="0"} 300.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 261.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 99.0
process_open_fds 40.0
"""


def test_the_numbers_are_summed_over_engines() -> None:
    numbers = readiness.read_metrics(TEXT)
    assert numbers == ServerMetrics(3, 4, 12345678, 41, 300, 261, 0.125)
    assert numbers.acceptance == 0.87


def test_what_a_server_does_not_count_is_nought() -> None:
    numbers = readiness.read_metrics("vllm:num_requests_running 0.0\n")
    assert numbers == ServerMetrics(0, 0, 0, 0, 0, 0, 0.0)
    assert numbers.acceptance is None


def test_another_server_has_no_numbers() -> None:
    assert readiness.read_metrics("python_info 1.0\n") is None
    assert readiness.read_metrics("") is None
    assert readiness.read_metrics("vllm:num_requests_running nonsense\n") == ServerMetrics(0, 0, 0, 0, 0, 0, 0.0)


def test_a_sample_without_labels_counts() -> None:
    text = "vllm:num_requests_running 2.0\nvllm:generation_tokens_total 41 1700000000000\n"
    assert readiness.read_metrics(text) == ServerMetrics(2, 0, 0, 41, 0, 0, 0.0)


def test_what_is_no_count_is_nought() -> None:
    text = "vllm:num_requests_running +Inf\nvllm:generation_tokens_total NaN\n"
    assert readiness.read_metrics(text) == ServerMetrics(0, 0, 0, 0, 0, 0, 0.0)
