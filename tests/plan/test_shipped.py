"""The rendered Dockerfiles of every shipped definition, in every mode and for both platforms."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from builder.engine.client import Endpoint, environment
from tests import projects
from tests.plan import shipped

GOLDEN = Path(__file__).parent / "golden" / "shipped"


@pytest.mark.parametrize("platform", shipped.PLATFORMS)
@pytest.mark.parametrize(("name", "mode"), shipped.MODES)
def test_the_dockerfile_is_the_golden_one(name: str, mode: str, platform: str, request: pytest.FixtureRequest) -> None:
    golden = GOLDEN / f"{name}-{mode}-{platform.removeprefix('linux/')}.Dockerfile"
    rendered = shipped.plan(name, mode, platform).files["Dockerfile"].content.decode()
    if request.config.getoption("--write-golden"):
        projects.write(golden, rendered)
    assert rendered == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "mode"), shipped.MODES)
def test_everybody_can_repeat_a_build_whose_sources_have_remotes(name: str, mode: str) -> None:
    assert shipped.plan(name, mode, "linux/arm64").warnings == ()


def test_an_image_that_stands_on_another_says_what_that_holds() -> None:
    dflash, flashqla = (shipped.plan(name, "git", "linux/arm64") for name in ("dflash", "flashqla"))
    metadata = flashqla.files["build-metadata.yaml"]
    assert metadata == dflash.files["build-metadata.yaml"]
    message = yaml.safe_load(metadata.content)
    assert message["vllm_commit"] == "a" * 40
    assert message["gpu_arch"] == "12.1a"
    assert message["base_image"] == "nvidia/cuda:13.0.2-devel-ubuntu24.04@sha256:" + "b" * 64
    assert flashqla.epoch == dflash.epoch


@pytest.mark.engine
@pytest.mark.parametrize("platform", shipped.PLATFORMS)
@pytest.mark.parametrize(("name", "mode"), shipped.MODES)
def test_buildkit_finds_nothing_to_complain_of(
    name: str, mode: str, platform: str, endpoint: Endpoint, tmp_path: Path
) -> None:
    for path, file in shipped.plan(name, mode, platform).files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(file.content)
    for dockerfile in sorted(tmp_path.glob("**/Dockerfile")):
        # Only the text is looked at: a base that this engine has stands in for one that a registry holds.
        lines = [
            "FROM debian:bookworm-slim" + line.partition("@sha256:" + "b" * 64)[2] if "@sha256:" in line else line
            for line in dockerfile.read_text(encoding="utf-8").splitlines()
        ]
        text = "\n".join(lines).replace("FROM dflash", "FROM debian:bookworm-slim") + "\n"
        dockerfile.write_text(text, encoding="utf-8")
        argv = [*endpoint.buildx, "build", "--check", "--progress=plain", "."]
        env = {**os.environ, **environment(endpoint)}
        done = subprocess.run(argv, cwd=dockerfile.parent, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Check complete, no warnings found." in done.stdout + done.stderr
