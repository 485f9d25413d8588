"""The shell that brings Rust into the stage that builds vLLM, as it is rendered. The download stands in for Rust's own
server: a `curl` on PATH that copies a small archive of the same form."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from builder.plan.making import ImageInputs, make_plan
from tests import projects
from tests.plan import shipped

if TYPE_CHECKING:
    from pathlib import Path


# Not written as the first line of a script, which this file is not.
SHELL = "#!/bin/sh"
INSTALL = f"""{SHELL}
prefix=${{1#--prefix=}}
mkdir -p "$prefix/bin"
printf '{SHELL}\\necho rustc 1.95.0\\n' > "$prefix/bin/rustc"
chmod +x "$prefix/bin/rustc"
echo "$@" > "$prefix/arguments"
"""
CURL = """\
{shell}
echo fetched >> "{log}"
while [ "$1" != -o ]; do shift; done
cp "{archive}" "$2"
"""


@dataclass(frozen=True)
class Stage:
    """A build stage: a folder with vLLM's tree, one for /opt/rust, one for the cache, and the archive to be fetched."""

    root: Path

    @property
    def archive(self) -> Path:
        return self.root / "archive.tar.xz"

    @property
    def fetched(self) -> int:
        log = self.root / "log"
        return len(log.read_text(encoding="utf-8").splitlines()) if log.is_file() else 0

    def run(self, **args: str) -> subprocess.CompletedProcess[str]:
        """Runs what tf5's stage does about Rust with these ``args`` of image.yaml, and prints the environment."""
        script = rust_of(args).replace("/opt/rust", f"{self.root}/opt").replace("/root/.cache", f"{self.root}/cache")
        script = f"set -eu\nMAX_JOBS=4\n{script}\nenv | grep -E '^(VLLM|CARGO)' || :\n"
        env = {**os.environ, "PATH": f"{self.root}/bin:{os.environ['PATH']}"}
        argv = ["sh", "-c", script]
        return subprocess.run(argv, cwd=self.root / "vllm", env=env, capture_output=True, text=True, check=False)


def rust_of(args: dict[str, str]) -> str:
    """The lines about Rust of the stage that builds vLLM in tf5 with these ``args``."""
    plan = shipped.plan("tf5", "git", "linux/arm64")
    kept = {name: value for name, value in plan.definition.args.items() if name != "rust"}
    definition = replace(plan.definition, args={**kept, **args})
    text = make_plan(ImageInputs(definition, plan.pins, {}, ())).files["Dockerfile"].content.decode()
    stage = text[text.index("# the vllm wheel") :]
    return stage[stage.index("if [ -f rust-toolchain.toml ]") : stage.index("\nbuild .\n")]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    made = Stage(tmp_path)
    name = f"rust-1.95.0-{platform.machine()}-unknown-linux-gnu"
    projects.write(tmp_path / name / "install.sh", INSTALL)
    (tmp_path / name / "install.sh").chmod(0o755)
    subprocess.run(["tar", "-cJf", made.archive, name], cwd=tmp_path, check=True)
    projects.write(tmp_path / "bin/curl", CURL.format(shell=SHELL, log=tmp_path / "log", archive=made.archive))
    (tmp_path / "bin/curl").chmod(0o755)
    (tmp_path / "cache/cargo").mkdir(parents=True)
    projects.write(tmp_path / "vllm/rust-toolchain.toml", '[toolchain]\nchannel = "1.95"\n')
    return made


def sha256(stage: Stage) -> str:
    return hashlib.sha256(stage.archive.read_bytes()).hexdigest()


@pytest.mark.slow
def test_the_front_end_is_required_and_the_toolchain_fetched_once(stage: Stage) -> None:
    done = stage.run(rust="1.95.0", rust_sha256=sha256(stage))
    assert done.returncode == 0, done.stderr
    assert "VLLM_REQUIRE_RUST_FRONTEND=1" in done.stdout
    assert "CARGO_BUILD_JOBS=4" in done.stdout
    assert "rustc 1.95.0" in done.stdout
    components = f"--components=rustc,cargo,rust-std-{platform.machine()}-unknown-linux-gnu"
    assert components in (stage.root / "opt/arguments").read_text(encoding="utf-8")
    assert stage.run(rust="1.95.0", rust_sha256=sha256(stage)).returncode == 0
    assert stage.fetched == 1


@pytest.mark.slow
def test_an_archive_with_another_sum_is_not_run(stage: Stage) -> None:
    done = stage.run(rust="1.95.0")  # with the sum of the real one
    assert done.returncode == 1
    assert f"has the SHA-256 {sha256(stage)}, not 094c9c36531911c5" in done.stderr
    assert not (stage.root / "opt").exists()
    assert not list((stage.root / "cache/cargo").iterdir())


@pytest.mark.slow
def test_what_was_cut_off_is_fetched_again(stage: Stage) -> None:
    file = stage.root / f"cache/cargo/rust-1.95.0-{platform.machine()}-unknown-linux-gnu.tar.xz"
    file.write_bytes(stage.archive.read_bytes()[:10])
    assert stage.run(rust="1.95.0", rust_sha256=sha256(stage)).returncode == 0
    assert file.read_bytes() == stage.archive.read_bytes()


@pytest.mark.slow
def test_a_vllm_that_names_another_version_says_what_to_set(stage: Stage) -> None:
    projects.write(stage.root / "vllm/rust-toolchain.toml", '[toolchain]\nchannel = "1.9"\n')
    done = stage.run(rust="1.95.0", rust_sha256=sha256(stage))
    assert done.returncode == 1
    assert "vLLM's front end is written for Rust 1.9, and image.yaml has Rust 1.95.0: set `rust`" in done.stderr
    assert stage.fetched == 0


@pytest.mark.slow
@pytest.mark.parametrize("channel", ["1.95.0", "stable"])
def test_channels_that_the_version_is_one_of(stage: Stage, channel: str) -> None:
    projects.write(stage.root / "vllm/rust-toolchain.toml", f'[toolchain]\nchannel = "{channel}"\n')
    assert stage.run(rust="1.95.0", rust_sha256=sha256(stage)).returncode == 0


@pytest.mark.slow
def test_a_vllm_without_a_front_end_needs_no_toolchain(stage: Stage) -> None:
    (stage.root / "vllm/rust-toolchain.toml").unlink()
    done = stage.run(rust="1.95.0", rust_sha256=sha256(stage))
    assert (done.returncode, done.stdout, stage.fetched) == (0, "", 0)


def test_a_front_end_that_is_left_out_is_told(stage: Stage) -> None:
    done = stage.run()
    assert "vLLM's front end in Rust is left out: image.yaml sets no `rust`" in done.stderr
    assert "VLLM_REQUIRE_RUST_FRONTEND=0" in done.stdout
