"""A build that compiles a source from a real git server, by the step that the shipped definitions have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.engine import containers
from tests import projects

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.engine.client import Endpoint
    from tests.commands.git_upstream import Upstream
    from tests.conftest import Command


pytestmark = pytest.mark.engine

IMAGE = """\
args: {{build_jobs: 16}}
sources:
  flashinfer: {{git: "{url}", ref: main}}
"""
DOCKERFILE = """\
{% import "_parts/wheels.j2" as wheels %}
FROM scratch AS flashinfer-source
FROM {{ base }} AS build
FROM build AS flashinfer-wheel
{{ wheels.begin(definition, arch, "flashinfer", sources.flashinfer, args) }}
BODY
EOF
FROM {{ base }} AS base
COPY --from=flashinfer-wheel /jobs /jobs
"""
# More than a second with more than a megabyte.
HUNGRY = 'x=$(head -c 30000000 /dev/zero | tr "\\0" x); sleep 2.5; unset x'


def use(project: Project, upstream: Upstream, body: str) -> None:
    (upstream.work / "pyproject.toml").write_text("")
    upstream.commit("the first", serve="1")
    image = project.root / "dockerfiles/small/image.yaml"
    own = image.read_text(encoding="utf-8").partition("args:")[0]
    projects.write(image, own + IMAGE.format(url=upstream.url))
    projects.write(project.root / "dockerfiles/small/Dockerfile.j2", DOCKERFILE.replace("BODY", body))


@pytest.mark.long
def test_the_number_of_jobs_is_told_and_set_and_makes_no_other_image(
    small: Project, builder: Command, upstream: Upstream, endpoint: Endpoint, repository: str
) -> None:
    use(small, upstream, 'echo "$MAX_JOBS" > /jobs; touch -d @0 /jobs\n' + HUNGRY)
    told = builder("build", "small", "--dry-run").stdout.splitlines()
    (line,) = [line for line in told if line.startswith("flashinfer is compiled by ")]
    assert line.endswith((" processors", " processor", " GiB at 8 GiB a job"))
    asked = builder("build", "small", "--dry-run", "--set", "build_jobs=3").stdout.splitlines()
    assert "flashinfer is compiled by 3 jobs: as requested" in asked
    assert [text for text in asked if text.startswith("input hash")] == [t for t in told if t.startswith("input hash")]
    wrong = builder("build", "small", "--dry-run", "--set", "build_jobs=none", code=2)
    assert "`--set build_jobs=none`: expected a whole number from 1 to 9999" in wrong.stderr

    done = builder("build", "small", "--set", "build_jobs=3")
    assert "flashinfer is compiled by 3 jobs: as requested" in done.stderr
    assert any(line.startswith("  flashinfer was compiled by 3 jobs, which used ") for line in done.stdout.splitlines())
    with containers.running(endpoint, f"{repository}:1", labels={}) as container:
        assert container.run(["cat", "/jobs"], timeout=120).output == "3\n"
    again = builder("rebuild", "small:1", "--set", "build_jobs=2", "--verbose")
    assert "built again" in again.stdout
    assert "would make a different image" in builder("rebuild", "small:1", "--set", "greeting=x", code=2).stderr
    assert builder("build", "small", "--set", "build_jobs=2").stdout == f"already built as {repository}:1\n"
    assert builder("build", "small").stdout == f"already built as {repository}:1\n"


@pytest.mark.parametrize(
    "body",
    [
        "sh -c 'kill -KILL $$'",
        pytest.param(
            "echo 'c++: fatal error: Killed signal terminated program cc1plus'; seq 100; exit 1",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "echo \"nvcc error   : 'cicc' died due to signal 9 (Kill signal)\"; seq 100; exit 1",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_build_that_the_kernel_killed_says_so_and_what_to_try(
    small: Project, builder: Command, upstream: Upstream, body: str
) -> None:
    use(small, upstream, body)
    failed = builder("build", "small", "--set", "build_jobs=6", code=6).stderr
    assert "one of its processes was killed, so the machine most likely ran out of memory" in failed
    assert "--set build_jobs=3" in failed
    alone = builder("build", "small", "--set", "build_jobs=1", code=6).stderr
    assert "free memory on the machine that builds" in alone
