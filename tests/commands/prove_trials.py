"""Proofs on the real cpu image, of every family that vLLM parses without files of its own: an unchanged image is proven
again and again, and nothing may be found changed or failed. No test of the suite: a start takes a minute or two of a
processor, and then a quarter of one for each model. By hand, on the engine of ``scripts/engine env``:

    python -m tests.commands.prove_trials 100

A proof is one model on one image in one start of the front end; each start proves all models.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base.errors import EngineError
from builder.engine import client, containers
from builder.evidence import run_record
from builder.lock import lock_file
from builder.numbers import claims
from tests import cpu_image, projects, shared
from tests.conftest import command, remove_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.base.project import Project
    from builder.engine.client import Endpoint
    from builder.evidence.run_record import Evidence
    from builder.lock.model import ImageName


RECIPE = "recipes/qwen3-0.6b-cpu.yaml"
OWN = "Qwen/Qwen3-0.6B"
REVISION = "0123456789abcdef0123456789abcdef01234567"
HERE = projects.REPOSITORY_ROOT / "tests"
TEMPLATES = (HERE / "lab/prove/hermes.jinja", HERE / "lab/prove/glm.jinja")
SHIPPED = "fix-qwen3.5-enhanced-chat-template/qwen3.5-enhanced.jinja"
TOOLS = "--enable-auto-tool-choice --tool-call-parser"
# Beside the recipe's own model, whose template is in the image: a recipe each, by its name.
SERVED = {
    "hermes": f"hermes.jinja {TOOLS} hermes --reasoning-parser qwen3",
    "hermes-without-reasoning": f"hermes.jinja {TOOLS} hermes",
    "hermes-r1": f"hermes.jinja {TOOLS} hermes --reasoning-parser deepseek_r1",
    "coder": f"qwen3.5-enhanced.jinja {TOOLS} qwen3_coder --reasoning-parser qwen3",
    "coder-xml": f"qwen3.5-enhanced.jinja {TOOLS} qwen3_xml --reasoning-parser qwen3",
    "glm": f"glm.jinja {TOOLS} glm45 --reasoning-parser glm45",
    "glm-47": f"glm.jinja {TOOLS} glm47 --reasoning-parser glm45",
    "plain": "hermes.jinja",
    "plain-with-reasoning": "hermes.jinja --reasoning-parser qwen3",
}
FAMILY = """\
recipe_version: "1"
name: {name}
model: Org/{name}
container: {repository}
mods: [mods/fix-qwen3.5-enhanced-chat-template]
volumes: ["./templates:/templates:ro"]
command: |
  vllm serve Org/{name} --max-model-len 32768 --chat-template /templates/{options}
"""
VERDICTS = ("pass", "changed", "fail", "unclear")
PAUSE_SECONDS = 0.3


@dataclass(frozen=True)
class Trials:
    """The project of the trials, and the number that is proven."""

    project: Project
    endpoint: Endpoint
    image: ImageName
    environ: dict[str, str]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command(self.project, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            stdin=subprocess.DEVNULL, env=self.environ, start_new_session=True,
        )  # fmt: skip

    def builder(self, *arguments: str, codes: tuple[int, ...] = (0,)) -> str:
        """The output of a command that ends with one of ``codes``."""
        with self.start(*arguments) as process:
            output, errors = process.communicate()
        assert process.returncode in codes, f"{arguments} ended with {process.returncode}\n{output}\n{errors}"
        return output

    def containers(self) -> list[str]:
        """The containers in which the project proves."""
        label = f"{claims.PROJECT}={claims.existing_identity(self.project)}"
        return [str(each["Id"]) for each in containers.container_listing(self.endpoint, label)]

    def runs(self) -> tuple[Evidence, ...]:
        return tuple(run_record.of_image(self.project, self.image))


class Consumption(threading.Thread):
    """The processor time of a container, in seconds, and the most memory that its programs had, in bytes, as the engine
    tells them; files that the kernel keeps in memory are not counted."""

    def __init__(self, trials: Trials) -> None:
        super().__init__(daemon=True)
        self._trials = trials
        self._ended = threading.Event()
        self.processor = 0.0
        self.memory = 0

    def run(self) -> None:
        """Looks until it is told to end."""
        while not self._ended.wait(PAUSE_SECONDS):
            with suppress(EngineError):
                for container in self._trials.containers():
                    self._look(container)

    def end(self) -> None:
        self._ended.set()
        self.join()

    def _look(self, container: str) -> None:
        query: dict[str, str | int] = {"stream": "false", "one-shot": "true"}
        stats = client.request(self._trials.endpoint, "GET", f"/containers/{container}/stats", query=query)
        self.processor = max(self.processor, stats["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9)
        memory = stats["memory_stats"].get("stats", {})
        # The first is of control groups of version 2.
        self.memory = max(self.memory, memory.get("anon", memory.get("total_rss", memory.get("rss", 0))))


@contextmanager
def made() -> Iterator[Trials]:
    """The cpu image, built, and a recipe for each family; all of it is gone at the end."""
    endpoint = client.find_endpoint(os.environ)
    repository = f"{shared.unique_name()}-cpu"
    folder = Path(tempfile.mkdtemp(prefix="builder-trials-"))
    project = cpu_image.project(folder / "project", repository, RECIPE)
    try:
        for name, options in SERVED.items():
            text = FAMILY.format(name=name, repository=repository, options=options)
            projects.write(project.recipes / f"{name}.yaml", text)
        (project.root / "templates").mkdir()
        for template in (*TEMPLATES, project.mods / SHIPPED):
            shutil.copy(template, project.root / "templates")
        own = project.root / RECIPE  # more than the tiny model's config says that it can
        projects.write(own, own.read_text(encoding="utf-8").replace("max_model_len: 8192", "max_model_len: 4096"))
        cpu_image.builder(project, "build", RECIPE, "--no-prove")
        image = lock_file.read_lock(project.lock).models[OWN].pairing.image
        _tiny_model(endpoint, image, folder / "huggingface")
        # No other model's tokenizer is there: one stands in for it, without a request to the hub.
        environ = {**os.environ, "HF_HOME": str(folder / "huggingface"), "HF_HUB_OFFLINE": "1"}
        trials = Trials(project, endpoint, image, environ)
        yield trials
        assert not trials.containers()
    finally:
        for container in containers.container_listing(endpoint, f"org.opencontainers.image.title={repository}"):
            containers.remove_container(endpoint, container["Id"])
        remove_all(endpoint, repository)
        shutil.rmtree(folder, ignore_errors=True)


def _tiny_model(endpoint: Endpoint, image: ImageName, home: Path) -> None:
    """Puts a tokenizer of 1,024 tokens, made inside the image, where that of the recipe's model is looked for."""
    model = home / f"hub/models--{OWN.replace('/', '--')}"
    projects.write(model / "refs/main", REVISION)
    folder = model / "snapshots" / REVISION
    folder.mkdir(parents=True)
    folders = {HERE / "end_to_end": "/here", folder: "/model"}
    cpu_image.run_in(endpoint, str(image), ["python3", "/here/tiny_model.py", "/model"], folders)


def proofs(trials: Trials, count: int) -> Iterator[dict[str, object]]:
    """Starts that prove all models, until there are ``count`` proofs beside the first of each, which is what they are
    compared with."""
    done = 0
    while done < count:
        before = len(trials.runs())
        consumption = Consumption(trials)
        consumption.start()
        began = time.monotonic()
        try:
            trials.builder("prove", str(trials.image), OWN, *SERVED, codes=(0, 1))
        finally:
            consumption.end()
        runs = trials.runs()[before:]
        assert len(runs) == 1 + len(SERVED), len(runs)
        done += len(runs) if before else 0
        yield {
            "proofs": done,
            **{verdict: sum(run.verdict == verdict for run in runs) for verdict in VERDICTS},
            "compared": sum(run.counts.get("compared", 0) for run in runs),
            "conversations": sum(run.counts.get("conversations", 0) for run in runs),
            "outputs": sum(run.counts.get("outputs", 0) for run in runs),
            "seconds": round(time.monotonic() - began, 1),
            "processor seconds": round(consumption.processor, 1),
            "MiB": consumption.memory >> 20,
            "findings": [
                f"{run.subject.model}: {finding.check} {finding.at}: {finding.text[:300]}"
                for run in runs
                for finding in run.findings
            ],
        }


def _main(count: int) -> None:
    for each in (signal.SIGINT, signal.SIGTERM):  # in the background of a script, too: what was made is removed
        signal.signal(each, signal.default_int_handler)
    with made() as trials:
        for number, line in enumerate(proofs(trials, count), start=1):
            sys.stdout.write(f"{number} {json.dumps(line, ensure_ascii=False)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    _main(int(sys.argv[1]))
