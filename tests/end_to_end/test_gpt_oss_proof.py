"""GPT-OSS on the real cpu image: vLLM writes and reads its format by code of its own, and no template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.engine.client import Endpoint
from builder.lab.prove import prove
from tests import projects, shared
from tests.conftest import remove_all
from tests.cpu_image import builder, project, run_in
from tests.end_to_end.test_serving import RECIPE

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = [pytest.mark.engine, pytest.mark.image, pytest.mark.timeout(1800)]

HERE = Path(__file__).parent
GPT_OSS = """\
recipe_version: "1"
name: gpt-oss
model: /models/gpt-oss
container: {repository}
volumes: ["{folder}:/models/gpt-oss:ro"]
env: {{TIKTOKEN_ENCODINGS_BASE: /nowhere}}
command: |
  vllm serve /models/gpt-oss --enable-auto-tool-choice --tool-call-parser openai --reasoning-parser openai_gptoss
"""


@pytest.fixture
def cpu(tmp_path: Path, endpoint: Endpoint) -> Iterator[Project]:
    repository = f"{shared.unique_name()}-cpu"
    yield project(tmp_path / "project", repository, RECIPE)
    remove_all(endpoint, repository)


@pytest.mark.long
def test_every_conversation_and_every_output(cpu: Project, endpoint: Endpoint, tmp_path: Path) -> None:
    image = builder(cpu, "build", RECIPE, "--no-prove").split()[1]
    folder = tmp_path / "gpt-oss"
    folder.mkdir()
    run_in(endpoint, image, ["python3", "/here/gpt_oss_files.py", "/model"], {HERE: "/here", folder: "/model"})
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    # The very file that openai-harmony would fetch: it knows it by the same digest.
    assert len(prove.harmony_vocabulary(files) or b"") == 3_613_922

    text = GPT_OSS.format(repository=image.partition(":")[0], folder=folder)
    projects.write(cpu.root / "recipes/gpt-oss.yaml", text)
    (proof,) = json.loads(builder(cpu, "prove", image, "recipes/gpt-oss.yaml", "--json"))["proofs"]
    assert proof["verdict"] == "pass"
    assert {finding["verdict"] for finding in proof["findings"]} <= {"pass"}
    assert proof["counts"]["conversations"] > 60
    assert proof["counts"]["outputs"] > 45
