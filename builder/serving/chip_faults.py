"""The known faults of the GB10's software that a numbered image has and a recipe meets.

docs/image-contents.md lists them with their sources; `tests/mods/test_known_faults.py` reads vLLM's in its releases.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from builder.definitions.recipes import arguments, command
from builder.diagnosis import Diagnosis
from builder.numbered import adopted, plan_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.lock.model import ImageName, NumberedImage
    from builder.project import Project
    from builder.serving.image_selection import SelectedImage

# https://github.com/vllm-project/vllm/issues/52504, 42354 and 41725
_HANGING_NCCL = "2.28.9"
_FIRST_INSTANTTENSOR = "0.2.1"
# https://github.com/vllm-project/vllm/pull/53007, looked for up to 0.33
LARGE_DRAFTER_BLOCKS = ">=0.30,<0.34"


def of_selection(project: Project, selection: SelectedImage, nodes: int) -> tuple[Diagnosis, ...]:
    """The faults that the selected image has where its recipe serves on so many ``nodes``. Raises FileProblemsError for
    a recipe whose command cannot be rendered."""
    words = command.render(selection.recipe, {}, ()).words
    packages = packages_of(project, selection.image, selection.record)
    return tuple(of_software(selection.name, packages, words, nodes))


def packages_of(project: Project, name: ImageName, image: NumberedImage) -> dict[str, str]:
    """The versions of the packages and sources of an image, by name, as far as its build directory tells them."""
    directory = project.build_directory(name.repository, name.number)
    inside = adopted.read(directory) if image.adopted else None
    packages = inside.packages if inside else plan_file.packages(plan_file.read_if_possible(directory) or ())
    return {**packages, **{source: version.version for source, version in image.versions.items()}}


def of_software(name: str, packages: Mapping[str, str], words: Sequence[str], nodes: int) -> Iterator[Diagnosis]:
    """The faults of an image called ``name`` with these ``packages``, where ``words`` serve on so many ``nodes``."""
    nccl = next((packages[package] for package in ("nvidia-nccl-cu13", "nvidia-nccl-cu12") if package in packages), "")
    if nodes > 1 and nccl == _HANGING_NCCL:
        message = f"{name} has NCCL {nccl}: over several nodes, tensor parallelism with CUDA graphs hangs"
        remedy = "take an image with NCCL 2.29.7 (vLLM 0.27.1 to 0.32); `--enforce-eager` serves without CUDA graphs"
        yield Diagnosis("NCCL", "warning", message, remedy)
    loads_with = arguments.option(words, "--load-format", "--load_format")
    loader = packages.get("instanttensor", "")
    if loads_with == "instanttensor" and loader and not _is_in(loader, f">={_FIRST_INSTANTTENSOR}"):
        message = f"{name} has InstantTensor {loader}, which counts the page cache as used memory: the start may stop"
        remedy = "`instanttensor==0.2.2` under `python.packages` in image.yaml, or `--load-format auto` in the recipe"
        yield Diagnosis("loader", "warning", message, remedy)
    if _drafts_with_dflash(words) and _is_in(packages.get("vllm", ""), LARGE_DRAFTER_BLOCKS):
        message = f"{name} has vLLM {packages['vllm']}, in which a drafter with sliding windows takes more KV cache"
        remedy = "vLLM 0.28 and 0.29 take less; a smaller `--max-model-len` leaves room, too"
        yield Diagnosis("drafter", "warning", message, remedy)


def _is_in(version: str, versions: str) -> bool:
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion

    try:
        return bool(version) and SpecifierSet(versions).contains(version, prereleases=True)
    except InvalidVersion:
        return False


def _drafts_with_dflash(words: Sequence[str]) -> bool:
    text = arguments.option(words, "--speculative-config", "--speculative_config", "-sc")
    try:
        value = json.loads(text or "")
    except ValueError:
        return False
    return isinstance(value, dict) and value.get("method") == "dflash"
