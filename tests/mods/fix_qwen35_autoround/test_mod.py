"""What breaks for Qwen3.5's configs with transformers 5, in real releases, and what the mod does about it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

from builder.engine.client import Endpoint
from tests import cpu_image
from tests.mods import releases
from tests.mods.conftest import CpuImages
from tests.mods.releases import TRANSFORMERS, Releases

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
NAME = "fix-qwen3.5-autoround"
PATCH = "rope-validation.patch"
BROKEN = "TypeError: unsupported operand type(s) for -=: 'set' and 'list'"


def test_it_is_applied_up_to_5_4_and_in_place_from_5_5_on(released: Releases, tmp_path: Path) -> None:
    wanted = releases.held(releases.shipped(NAME), "transformers", TRANSFORMERS)
    assert wanted == list(TRANSFORMERS[TRANSFORMERS.index("5.3.0") :])
    sites = dict(released.sites(tmp_path, "transformers", wanted))
    became = {version: releases.apply(NAME, PATCH, site) for version, site in sites.items()}
    assert became == {version: "applied" if version in ("5.3.0", "5.4.0") else "in place" for version in wanted}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """transformers 5.4.0 with what it needs."""
    folder = tmp_path_factory.mktemp("transformers") / "site"
    uv = [find_uv_bin(), "pip", "install", "--quiet", "--python", sys.executable, "--target", str(folder)]
    find = [word for link in os.environ.get("PIP_FIND_LINKS", "").split() for word in ("--find-links", link)]
    subprocess.run([*uv, *find, "transformers==5.4.0"], check=True)
    return folder


def load(site: Path, *configs: Path) -> Any:
    command = [sys.executable, str(HERE / "loading.py"), *map(str, configs)]
    environ = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
def test_a_list_breaks_the_configs_and_the_mod_mends_them(site: Path, released: Releases, tmp_path: Path) -> None:
    """A list is what vLLM 0.17 and 0.18 pass, whatever the checkpoint says, and what a saved config holds."""
    configs = {
        version: [found / f"vllm/transformers_utils/configs/{name}.py" for name in ("qwen3_5", "qwen3_5_moe")]
        for version, found in released.sites(tmp_path, "vllm", ["0.18.1", "0.19.1"])
    }
    kinds = ("qwen3_5", "qwen3_5_moe")
    before = {version: load(site, *paths) for version, paths in configs.items()}
    for kind in kinds:
        assert {before["0.18.1"][f"vllm {kind}"], before["0.18.1"][f"vllm {kind}, kept"]} == {BROKEN}
        assert {before["0.19.1"][f"vllm {kind}"], before["0.19.1"][f"vllm {kind}, kept"]} == {"ok"}
        assert before["0.18.1"][f"transformers {kind}"] == "ok"
        assert before["0.18.1"][f"transformers {kind}, kept"] == BROKEN
    assert check(site).returncode == 1

    assert releases.apply(NAME, PATCH, site) == "applied"
    assert load(site, *configs["0.18.1"]) == {
        "version": "5.4.0",
        **{
            f"{owner} {kind}{how}": "ok"
            for owner in ("transformers", "vllm")
            for kind in kinds
            for how in ("", ", kept")
        },
    }
    assert check(site).returncode == 0


def check(site: Path) -> subprocess.CompletedProcess[str]:
    return releases.run_script(NAME, "check.sh", site)


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.image
def test_with_the_transformers_of_today_nothing_is_left_to_do(endpoint: Endpoint, cpu: CpuImages) -> None:
    found = cpu_image.answer(endpoint, cpu.plain, ["python3", "/here/loading.py"], {HERE: "/here"})
    assert {outcome for case, outcome in found.items() if case != "version"} == {"ok"}
