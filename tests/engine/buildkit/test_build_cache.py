from __future__ import annotations

import pytest

from builder.base.project import Project
from builder.engine import bake_run
from builder.engine.client import Endpoint
from tests import projects
from tests.conftest import Command


@pytest.mark.parametrize(
    ("description", "step"),
    [
        ("mount / from exec /bin/sh -c # mod x\nset -eu\ncp a b\n", "# mod x\nset -eu\ncp a b"),
        ('cached mount /root/.cache/uv from exec /bin/sh -c # y\nuv "z"\n with id "/uv-tf5-amd64"', '# y\nuv "z"'),
        ("[stage-0 4/5] WORKDIR /workspace/vllm", "WORKDIR /workspace/vllm"),
        ("local source for context", ""),
        ("git snapshot for https://example.org/a.git#0123", ""),
        ("", ""),
    ],
)
def test_which_step_a_record_is_of(description: str, step: str) -> None:
    assert bake_run._step(description) == step


@pytest.mark.long
@pytest.mark.engine
def test_a_record_goes_by_its_id_alone(small: Project, builder: Command, endpoint: Endpoint, repository: str) -> None:
    from builder.engine import images

    mark = f"echo {repository}"
    projects.write(small.root / "mods/template/run.sh", f"{mark} > /mark\n")
    projects.write(
        small.root / "dockerfiles/small/Dockerfile.j2",
        f"FROM {{{{ base }}}}\nRUN {mark}-1 > /one\nRUN {mark}-2 > /two\n",
    )
    builder("build", "small")
    records = {record.step: record for record in bake_run.records(endpoint) if repository in record.step}
    assert {step: record.shared for step, record in records.items()} == {
        f"{mark}-1 > /one": True,
        f"{mark}-2 > /two": True,
    }
    for tag in ("1", "latest"):
        images.remove_image(endpoint, f"{repository}:{tag}")
    below, top = (records[f"{mark}-{n} > /{name}"] for n, name in ((1, "one"), (2, "two")))
    assert bake_run.remove_build_cache(endpoint, []) == 0
    assert bake_run.remove_build_cache(endpoint, [below.id]) == 0, "another record stands on it"
    assert bake_run.remove_build_cache(endpoint, [top.id]) == top.size
    assert bake_run.remove_build_cache(endpoint, [below.id, "no-such-record"]) == below.size
    assert not [record for record in bake_run.records(endpoint) if repository in record.step]
