"""The kernels that an image has ready, as `show` knows them from its build directory."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from builder.commands.listing import ShownImage
from builder.numbers.adopted import AdoptedContents
from builder.numbers.status import ImageRow
from builder.plan.plan_model import Step

BUILT = Step("flashinfer", {"version": "0.7.2", "commit": "a" * 40})
WHEEL = Step("flashinfer", {"version": "0.7.2"})


def shown(*steps: Step, **args: bool) -> ShownImage:
    return ShownImage(cast("ImageRow", None), steps, None, Path("nowhere"), args)


def packages(*names: str, title: str = "python packages", version: str = "1.0") -> Step:
    return Step(title, dict.fromkeys(names, f"{version} sha256:x"))


@pytest.mark.parametrize(
    ("image", "compiles"),
    [
        (shown(WHEEL, packages("flashinfer-python", "flashinfer-cubin")), True),
        (shown(WHEEL, packages("flashinfer-python", "flashinfer-jit-cache", version="0.6.16+cu130")), False),
        (shown(WHEEL, packages("flashinfer-python", "flashinfer-jit-cache", version="0.7.2+cu130")), True),
        (shown(BUILT, packages("torch"), flashinfer_jit_cache=True), False),
        (shown(BUILT, packages("torch"), flashinfer_jit_cache=False), True),
        (shown(BUILT, packages("torch")), True),
        (shown(Step("dflash: flashinfer", BUILT.takes), packages("flash-qla"), flashinfer_jit_cache=True), False),
        (shown(Step("dflash: flashinfer", BUILT.takes), packages("flash-qla")), True),
        (shown(packages("flashinfer-python", title="base packages")), True),
        (shown(packages("flashinfer-python", "flashinfer-jit-cache-sm121a", title="base packages")), False),
        (shown(packages("torch")), False),
        (shown(), False),
    ],
)
def test_an_image_without_kernels_is_known(image: ShownImage, compiles: bool) -> None:
    assert image.compiles_kernels is compiles


def test_an_adopted_image_is_known_by_its_packages() -> None:
    contents = AdoptedContents("sha256:x", packages={"flashinfer-python": "0.7.2"})
    assert ShownImage(cast("ImageRow", None), (), contents, Path("nowhere")).compiles_kernels
