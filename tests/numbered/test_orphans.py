"""The records of BuildKit's cache that are removed with the images."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builder.base.project import Project
from builder.engine.bake_run import CacheRecord
from builder.lock.model import ImageName
from builder.numbers import retention
from tests import projects

SCRIPT = "# the vllm wheel\nset -eu\nbuild ."
LAYER = CacheRecord("layer", "RUN-LINE", 10, True, False)
STAGE = CacheRecord("stage", SCRIPT, 10, False, False)
BASE = CacheRecord("base", "", 10, True, False)


def let_go(before: CacheRecord, after: CacheRecord, gone: str, kept: str = "") -> set[str]:
    return retention.removable_records([before, BASE], [after, BASE], gone, kept)


def test_the_copy_of_a_layer_goes_with_the_last_image_that_has_it() -> None:
    free = replace(LAYER, shared=False)
    assert let_go(LAYER, free, "FROM x\nRUN RUN-LINE\n", "RUN RUN-LINE") == {"layer"}
    assert let_go(LAYER, LAYER, "RUN RUN-LINE") == set(), "an image has it still"
    assert let_go(free, free, "RUN RUN-LINE") == set(), "no image of ours had it"
    assert let_go(LAYER, free, "RUN another") == set(), "an image of another project went meanwhile"
    assert let_go(LAYER, replace(free, in_use=True), "RUN RUN-LINE") == set()


def test_an_engine_that_marks_no_layer_as_shared_tells_nothing() -> None:
    free = replace(LAYER, shared=False)
    assert retention.removable_records([LAYER, BASE], [free, replace(BASE, shared=False)], "RUN RUN-LINE", "") == set()


def test_another_stage_goes_with_the_last_dockerfile_that_has_it() -> None:
    dockerfile = f"RUN <<'EOF'\n{SCRIPT}\nEOF\n"
    assert let_go(STAGE, STAGE, dockerfile) == {"stage"}
    assert let_go(STAGE, STAGE, dockerfile, dockerfile) == set()
    assert let_go(STAGE, STAGE, "FROM x") == set()
    assert let_go(STAGE, replace(STAGE, in_use=True), dockerfile) == set()


@pytest.mark.parametrize("step", ["", "make"])
def test_what_could_be_anybodys_stays(step: str) -> None:
    record = replace(STAGE, step=step)
    assert let_go(record, record, "RUN make\n") == set()


def test_the_dockerfiles_of_a_chain_are_all_read(tmp_path: object) -> None:
    from pathlib import Path

    project = Project(Path(str(tmp_path)))
    projects.write(project.build_directory("a/b", 3) / "Dockerfile", "FROM one\n")
    projects.write(project.build_directory("a/b", 3) / "below/Dockerfile", "FROM two\n")
    found = retention.dockerfile_text(project, [ImageName("a/b", 3), ImageName("a/b", 4)])
    assert "FROM one" in found
    assert "FROM two" in found
