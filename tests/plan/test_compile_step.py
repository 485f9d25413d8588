"""The steps that compile: how many jobs they take, and that they run one after the other."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.engine.client import Endpoint, environment
from builder.plan import rules
from builder.plan.making import render_dockerfile
from builder.plan.rules import BuildMachine, CompileJobs
from tests.plan import shipped
from tests.shared import unique_name

if TYPE_CHECKING:
    from pathlib import Path


GIB = 1 << 30
SPARK = BuildMachine(20, 121 * GIB, 122 * GIB)


def test_jobs_come_from_memory_as_well_as_from_processors() -> None:
    plan = shipped.plan("tf5", "git", "linux/arm64")

    def jobs(machine: BuildMachine, requested: int | None = None) -> list[CompileJobs]:
        return list(rules.of_plan(plan, 0, machine, requested))

    assert jobs(SPARK) == [
        CompileJobs("flashinfer", 15, "121 GiB at 8 GiB a job"),
        CompileJobs("vllm", 15, "121 GiB at 8 GiB a job"),
    ]
    assert {each.jobs for each in jobs(BuildMachine(4, 121 * GIB))} == {4}
    assert {each.jobs for each in jobs(BuildMachine(20, 3 * GIB))} == {1}
    assert jobs(BuildMachine(64, 900 * GIB))[0] == CompileJobs("flashinfer", 16, "`build_jobs` of the definition")
    assert jobs(SPARK, 24)[1] == CompileJobs("vllm", 24, "as requested")
    assert jobs(BuildMachine())[0].jobs is None
    assert jobs(BuildMachine(20, None, 122 * GIB))[0] == CompileJobs(
        "flashinfer", 15, "122 GiB in all at 8 GiB a job", at_most=True
    )


def test_what_is_kept_is_not_compiled() -> None:
    plan = shipped.plan("flashqla", "git", "linux/arm64")
    names = [step.name for step in plan.steps]

    def sources(kept: int) -> int:
        return len(rules.of_plan(plan, kept, SPARK, None))

    assert sources(names.index("dflash: Dockerfile")) == 2
    assert sources(names.index("dflash: Dockerfile") + 1) == 0


@pytest.mark.slow
def test_every_image_that_compiles_says_so_and_no_other() -> None:
    def sources(name: str, mode: str) -> list[str]:
        return [each.source for each in rules.of_plan(shipped.plan(name, mode, "linux/arm64"), 0, SPARK, None)]

    assert sources("tf5", "git") == sources("flashqla", "git") == ["flashinfer", "vllm"]
    assert not sources("tf5", "wheel")
    assert not sources("node", "base")


@pytest.mark.parametrize(("name", "mode"), shipped.MODES)
def test_what_compiles_waits_for_what_compiled_before(name: str, mode: str) -> None:
    for path, file in shipped.plan(name, mode, "linux/arm64").files.items():
        if path.rpartition("/")[2] != "Dockerfile":
            continue
        steps = [step for step in file.content.decode().split("\nRUN ") if "id=compiling," in step]
        assert all("sharing=locked" in step.partition("<<")[0] for step in steps)
        stages = re.findall(r"^FROM build AS (\S+)$", file.content.decode(), re.MULTILINE)
        for before, step in zip(stages, steps[1:], strict=False):
            assert f"from={before},source=/built," in step


TEMPLATE = """
{% import "_parts/wheels.j2" as wheels %}
FROM scratch AS flashinfer-source
FROM scratch AS vllm-source
FROM debian:bookworm-slim AS build
FROM build AS flashinfer-wheel
{{ wheels.begin(definition, arch, "flashinfer", sources.flashinfer, args) }}
: FLASHINFER
mkdir /built
EOF
FROM build AS vllm-wheel
{{ wheels.begin(definition, arch, "vllm", sources.vllm, args, after="flashinfer") }}
: VLLM
EOF
FROM scratch
COPY --from=vllm-wheel /span /vllm
COPY --from=flashinfer-wheel /span /flashinfer
"""
# When it began and ended, as a file of the image.
SPAN = "date +%s%N > /span; sleep 0.5; date +%s%N >> /span"


def rendered(template: str) -> str:
    tf5 = shipped.plan("tf5", "git", "linux/arm64").definition
    sources = {
        name: {
            "kind": "git",
            "version": "1",
            "commit": "a" * 40,
            "context": f"{name}-source",
            "patches": {},
            "epoch": 0,
            "gib_per_job": rules.GIB_PER_JOB[name],
        }
        for name in ("flashinfer", "vllm")
    }
    definition = replace(tf5, name="compiled", platform="linux/amd64", args={"build_jobs": 16}, template=template)
    return render_dockerfile(definition, "", (), sources, ())


def dockerfile(flashinfer: str = SPAN, vllm: str = SPAN) -> str:
    return rendered(TEMPLATE).replace(": FLASHINFER", flashinfer).replace(": VLLM", vllm)


def script(text: str, source: str) -> str:
    """The commands of the step that compiles ``source``."""
    return text.partition(f"# the {source} wheel\n")[2].partition("\nEOF")[0]


def run_script(endpoint: Endpoint, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    argv = ["docker", "run", "--rm", "-i", *options, "debian:bookworm-slim", "sh"]
    prepared = f"mkdir -p /src/vllm; touch /src/vllm/pyproject.toml\n{text}\n"
    return subprocess.run(argv, env=environ(endpoint), input=prepared, capture_output=True, text=True)


def environ(endpoint: Endpoint, **more: str) -> dict[str, str]:
    return {**os.environ, **environment(endpoint), **more}


@pytest.mark.long
@pytest.mark.engine
def test_the_step_finds_its_jobs_where_it_runs_and_tells_the_memory_that_they_took(endpoint: Endpoint) -> None:
    until_seen = 'for i in $(seq 600); do [ "$(cat /tmp/memory || echo 0)" -lt 60000000 ] || break; sleep 0.2; done'
    hungry = f'echo "jobs: $MAX_JOBS"; x=$(head -c 60000000 /dev/zero | tr "\\0" x); {until_seen}; unset x'
    limited = run_script(endpoint, script(dockerfile(vllm=hungry), "vllm"), "--memory=1g")
    assert limited.returncode == 0, limited.stderr
    assert "compiling vllm with MAX_JOBS=1: 1 GiB at 8 GiB a job\njobs: 1\n" in limited.stdout
    peak = re.search(r"^compiling vllm with MAX_JOBS=1 took (\d+) MiB of memory$", limited.stdout, re.MULTILINE)
    assert peak
    assert 57 <= int(peak[1]) <= 400

    asked = run_script(endpoint, script(dockerfile(vllm='echo "jobs: $MAX_JOBS"'), "vllm"), "--env=BUILD_JOBS=7")
    assert "\njobs: 7\n" in asked.stdout


@pytest.mark.engine
def test_the_step_says_that_the_kernel_killed_one_of_its_processes(endpoint: Endpoint) -> None:
    too_much = "sh -c 'x=$(head -c 400000000 /dev/zero | tr \"\\0\" x)'"
    done = run_script(endpoint, script(dockerfile(vllm=too_much), "vllm"), "--memory=64m", "--memory-swap=64m")
    assert done.returncode == 137, done.stdout + done.stderr
    assert "compiling vllm with MAX_JOBS=1 ran out of memory: the kernel killed a process" in done.stdout


@pytest.mark.long
@pytest.mark.engine
def test_steps_that_compile_run_one_after_the_other_in_all_builds(endpoint: Endpoint, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "pyproject.toml").write_text(unique_name())

    def build(name: str, text: str, jobs: int) -> subprocess.Popen[str]:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "Dockerfile").write_text(text)
        contexts = [f"--build-context={source}-source={tree}" for source in ("flashinfer", "vllm")]
        argv = [*endpoint.buildx, "build", *contexts, "--secret=id=BUILD_JOBS,env=BUILD_JOBS", f"--output={folder}/out"]
        return subprocess.Popen(
            [*argv, "--progress=plain", str(folder)],
            env=environ(endpoint, BUILD_JOBS=str(jobs)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ended(*builds: subprocess.Popen[str]) -> str:
        texts = [build.communicate()[1] for build in builds]
        assert [build.returncode for build in builds] == [0] * len(builds), texts
        return "".join(texts)

    def span(name: str, source: str) -> list[int]:
        return [int(line) for line in (tmp_path / name / "out" / source).read_text().split()]

    output = ended(build("one", dockerfile(), 3), build("two", dockerfile(f"{SPAN}; true", f"{SPAN}; true"), 3))
    assert output.count("with MAX_JOBS=3: ") == 4
    spans = [span(name, source) for name in ("one", "two") for source in ("flashinfer", "vllm")]
    in_order = sorted(spans)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(in_order))
    assert spans[0][1] <= spans[1][0]
    assert spans[2][1] <= spans[3][0]

    # Another FlashInfer, another number of jobs: what was compiled from vLLM stays as it is.
    output = ended(build("one", dockerfile(f"{SPAN}; echo another > /dev/null"), 2))
    assert output.count("with MAX_JOBS=2: ") == 1
    assert span("one", "flashinfer") != spans[0]
    assert span("one", "vllm") == spans[1]


@pytest.mark.engine
def test_an_image_limits_what_is_compiled_at_start_and_keeps_what_its_base_says(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    template = '{% import "_parts/toolchain.j2" as toolchain %}{{ toolchain.start_jobs() }}\n'
    ours = rendered(template)
    head, tail = "FROM debian:bookworm-slim AS base\n", "RUN env > /env\nFROM scratch\nCOPY --from=image /env /env\n"
    (tmp_path / "Dockerfile").write_text(f"{head}ENV MAX_JOBS=16\nFROM base AS image\n{ours}{tail}")
    argv = [*endpoint.buildx, "build", f"--output={tmp_path}", str(tmp_path)]
    subprocess.run(argv, env=environ(endpoint), check=True, capture_output=True)
    env = (tmp_path / "env").read_text().splitlines()
    assert {"MAX_JOBS=16", "TILELANG_AUTO_TUNING_MAX_CPU_COUNT=4", "TORCHINDUCTOR_COMPILE_THREADS=4"} <= set(env)
