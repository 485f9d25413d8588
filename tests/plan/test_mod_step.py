"""The text of the steps that bake mods."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from builder.base.errors import FileProblemsError
from builder.base.project import Project
from builder.definitions import image, mod
from builder.engine.client import Endpoint, environment
from builder.lock.model import BasePin, GitPin, Pins
from builder.plan.making import ImageInputs, make_plan
from builder.plan.plan_model import Plan
from tests import projects

GOLDEN = Path(__file__).parent / "golden" / "mods.Dockerfile"
PINS = Pins(
    base=BasePin("debian:bookworm-slim", "sha256:" + "b" * 64),
    sources={"vllm": GitPin("https://x/vllm.git", "main", "a" * 40, "0.23.0.dev1+gaaaaaaa", "2026-11-19T10:00:00Z")},
)
MODS = {
    "dropped": "files: [{from: x, to: .}, {from: it's, to: /opt/$x/}]",
    "patched": "patches: [{file: x, package: vllm}, {file: it's, package: six, strip: 0}]",
    "installed": "packages: [six==1.17.0, 'a[b]==1!2+c']",
    "described": "run: x\ntimeout: 60\nmay_be_empty: true\nenv: {AFTER: 1}",
    "online": "run: x\nnetwork: true",
    "set": """env: {A: "'\\\\ $x \\" `y` #", B: ''}""",
}


def plan(root: Path, *names: str, template: str = projects.DOCKERFILE) -> Plan:
    project = projects.make(root)
    projects.write(root / "dockerfiles/small/Dockerfile.j2", template)
    for name, yaml in MODS.items():
        files = {} if name in {"installed", "set"} else {"x": "", "it's": ""}
        projects.add_mod(root, name, "", files, f"description: x\n{yaml}\n")
    definition = image.load_image(project, "small", "linux/amd64")
    return make_plan(ImageInputs(definition, PINS, {}, mod.load_all(project, names)))


def test_the_steps_are_the_golden_ones(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    rendered = plan(tmp_path, *MODS, "template").files["Dockerfile"].content.decode()
    if request.config.getoption("--write-golden"):
        projects.write(GOLDEN, rendered)
    assert rendered == GOLDEN.read_text(encoding="utf-8")


def test_a_patch_for_some_versions_is_left_out_of_images_with_others(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    yaml = """\
description: x
packages: [six==1.17.0]
patches:
  - {file: a, package: vllm, version: "<0.23"}
  - {file: b, package: vllm, version: ">=0.23.dev0"}
  - {file: c, package: six, version: "<1.17"}
  - {file: d, package: six, version: ">=1.17"}
requires: {vllm: ">=0.20", six: ">=1.16"}
"""
    projects.add_mod(tmp_path, "two", "", dict.fromkeys("abcd", ""), yaml)
    definition = image.load_image(project, "small", "linux/amd64")
    made = make_plan(ImageInputs(definition, PINS, {}, (mod.load_mod(project, "two"),)))
    lines = made.files["Dockerfile"].content.decode().splitlines()
    assert [line.split()[1] for line in lines if line.startswith("apply_patch ")] == ["b", "d"]


def test_a_build_directory_has_what_its_mods_need_and_no_more(tmp_path: Path) -> None:
    def staged(*names: str) -> set[str]:
        files = plan(tmp_path / "-".join(("p", *names)), *names).files
        return set(files) - {"Dockerfile", "bake.json", "plan.json", "build-metadata.yaml"}

    assert staged() == {"parts/step.sh"}
    assert staged("installed") == {"parts/bake-mod.sh", "parts/step.sh"}
    assert staged("dropped") == {"parts/bake-mod.sh", "parts/step.sh", "mods/dropped/x", "mods/dropped/it's"}


def test_how_mods_are_baked_is_an_input(tmp_path: Path) -> None:
    def hashed(folder: str, *names: str) -> str:
        root = tmp_path / folder
        projects.make(root)
        script = root / "dockerfiles/_parts/bake-mod.sh"
        if folder.endswith("edited"):
            projects.write(script, script.read_text(encoding="utf-8") + "# one line more\n")
        project = Project(root)
        definition = image.load_image(project, "small", "linux/amd64")
        return make_plan(ImageInputs(definition, PINS, {}, mod.load_all(project, names))).input_hash

    assert hashed("a", "template") != hashed("a-edited", "template")
    assert hashed("b") == hashed("b-edited")


def test_a_template_that_passes_over_mods_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileProblemsError) as caught:
        plan(tmp_path, "dropped", "set", template="FROM {{ base }}\n")
    message = "template: the template does not bake mod dropped, set; call `bake` of _parts/mods.j2"
    assert str(caught.value) == f"dockerfiles/small/Dockerfile.j2:1:1: {message}"


@pytest.mark.engine
def test_buildkit_finds_nothing_to_complain_of(tmp_path: Path, endpoint: Endpoint) -> None:
    rendered = plan(tmp_path / "project", *MODS, "template").files["Dockerfile"].content.decode()
    projects.write(tmp_path / "Dockerfile", rendered.replace(f"@sha256:{'b' * 64}", ""))
    argv = [*endpoint.buildx, "build", "--check", "--progress=plain", "."]
    env = {**os.environ, **environment(endpoint)}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert "Check complete, no warnings found." in done.stdout + done.stderr
