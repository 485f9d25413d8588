"""Whatever is wrong with a file that people write or merge, it is said with its place, and nothing is written.

``BUILDER_FUZZ`` sets how many mutations of each kind are tried; ``make test-fuzz`` tries 10,000.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings

from builder.base import yaml_file
from builder.base.errors import BuilderError, FileProblemsError
from builder.base.project import Project
from builder.commands import recipes
from builder.definitions import advisories, build_target, command, configuration, image, mod, recipe
from builder.definitions.fields import checked, read_text
from builder.definitions.mod import is_address
from builder.evidence import run_record
from builder.lock import lock_file
from builder.lock.text import dump_lock
from builder.moving import copies
from builder.plan.making import ImageInputs, make_plan
from builder.plan.plan_model import Plan
from tests import projects, shipped_files
from tests.evidence.runs import bench, proof
from tests.fuzz.mutations import mutations
from tests.plan import shipped

if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = pytest.mark.slow

COUNT = int(os.environ.get("BUILDER_FUZZ", "200"))
ROOT = shipped_files.project().root
VERSION_2 = Path(__file__).parents[1] / "definitions/recipes/version_2"
CONFIGURATION = b"""\
registry: registry.lan:5000/models
builder: remote
cache: true
nodes:
  one: ssh://user@one.lan
  two: {engine: "tcp://two.lan:2376", models: /data/hub, address: 10.0.0.2}
"""
MOD = b"""\
description: All that a mod may say
files: [{from: hook.patch, to: .}, {from: gdn_flashqla/hook.py, to: /etc/gb10/}]
patches:
  - {file: hook.patch, package: vllm, strip: 2}
packages: [flash-qla==0.1.2]
run: run.sh
network: true
timeout: 600
may_be_empty: true
env: {FLASHQLA: "1", NAME: a b}
requires: {vllm: ">=0.20,<0.26", transformers: ">=5"}
conflicts: [mods/other]
after: [fix-qwen3.5-autoround]
check:
  - {file: hook.patch, contains: diff}
  - {run: check.sh}
"""

EVIDENCE = "evidence/small/1/run.json"
ADVISORIES = "advisories.yaml"
FAR = b"""\
# a template of a model's own
description: From elsewhere
files:
  - from: https://example.org/model/chat.jinja  # at a commit
    to: .
  - {from: "http://x.org/b", to: a/, sha256: "0000000000000000000000000000000000000000000000000000000000000000"}
"""
SOURCE = b"""\
# Where mods/flashqla came from.
url: "https://example.org/mods.git"
path: "mods/flashqla"
ref: "HEAD"
commit: "0123456789012345678901234567890123456789"
content: "sha256:0"
files:
  "run.sh": sha256:1 +x
"""


@dataclass(frozen=True)
class Kind:
    """A kind of file: where it lies in a project, good ones to start from, and what reads it."""

    path: str
    seeds: tuple[bytes, ...]
    read: Callable[[Project], object]


def read_lock(project: Project) -> None:
    found = lock_file.read_lock(project.lock)
    assert lock_file.parse_and_explain(dump_lock(found)) == found


def read_image(name: str) -> Callable[[Project], None]:
    """Reads a definition and plans its image: a value that its template cannot use is a mistake, too."""

    def read(project: Project) -> None:
        plan: Plan | None = None
        for definition in image.load_chain(project, name, "linux/amd64"):
            plan = make_plan(
                ImageInputs(definition, shipped.pins(definition), {shipped.SHA256: shipped.DIFF}, ()), plan
            )

    return read


def read_mod(project: Project) -> None:
    """Reads a mod and plans an image with it."""
    baked = mod.load_mod(project, "flashqla")
    small = image.load_image(project, "small", "linux/amd64")
    assert make_plan(ImageInputs(small, shipped.pins(small), {}, (baked,))).input_hash


def read_and_pin(project: Project) -> None:
    """Reads a mod with files from addresses, and writes their digests into it: what is read then has them."""
    path, file = project.mods / "far/mod.yaml", "mods/far/mod.yaml"
    entries = checked(read_text(path, file), file, "mod").get("files", ())
    text = path.read_bytes().decode("utf-8-sig")
    for index in (index for index, entry in enumerate(entries) if is_address(entry["from"])):
        text = mod.with_digest(text, file, index, "e" * 64)
        assert yaml_file.load(text, file)["files"][index]["sha256"] == "e" * 64


def read_source(project: Project) -> None:
    assert copies.read_origin(project, "mod", "flashqla")


def read_recipe(project: Project) -> None:
    path = project.recipes / "chat.yaml"
    (checked,) = recipes.check_recipes(project, [str(path)])
    if checked.problems:
        raise FileProblemsError(checked.problems)
    assert command.render_command(recipe.load_recipe(project, path), {}).words
    assert build_target.find_target(project, "chat").recipe is not None


def read_advisories(project: Project) -> None:
    text = read_text(project.root / ADVISORIES, ADVISORIES)
    for each in advisories.parse_advisories(text, ADVISORIES):
        advisories.applies({"vllm": "0.30.0", "nodes": 2, "option": {}}, each)


def read_evidence(project: Project) -> None:
    """Reads a run; what is read is written as something that says the same."""
    content = (project.root / EVIDENCE).read_bytes()
    run, identity = run_record.parse_evidence(content, EVIDENCE)
    again, written = run_record.parse_evidence(run_record.evidence_text(run).encode(), EVIDENCE)
    assert again == run
    assert run_record.parse_evidence(run_record.evidence_text(again).encode(), EVIDENCE)[1] == written
    assert identity


KINDS = {
    "images.lock": Kind(
        "images.lock",
        ((projects.REPOSITORY_ROOT / "tests/lock/golden/full.lock").read_bytes(), (ROOT / "images.lock").read_bytes()),
        read_lock,
    ),
    **{
        f"image.yaml of {name}": Kind(
            f"dockerfiles/{name}/image.yaml",
            ((ROOT / f"dockerfiles/{name}/image.yaml").read_bytes(),),
            read_image(name),
        )
        for name in ("tf5", "cpu", "flashqla")
    },
    "mod.yaml": Kind(
        "mods/flashqla/mod.yaml",
        ((ROOT / "mods/flashqla/mod.yaml").read_bytes(), MOD),
        read_mod,
    ),
    "mod.yaml with addresses": Kind("mods/far/mod.yaml", (FAR,), read_and_pin),
    "source of a copy": Kind("mods/flashqla.source", (SOURCE,), read_source),
    "recipe": Kind(
        "recipes/chat.yaml",
        tuple(path.read_bytes() for folder in (ROOT / "recipes", VERSION_2) for path in sorted(folder.glob("*.yaml"))),
        read_recipe,
    ),
    "evidence": Kind(
        EVIDENCE,
        tuple(run_record.evidence_text(run).encode() for run in (proof(), bench())),
        read_evidence,
    ),
    "builder.yaml": Kind("builder.yaml", (CONFIGURATION,), configuration.load_configuration),
    "advisories": Kind(
        ADVISORIES, tuple(text.encode() for text in advisories.shipped_files().values()), read_advisories
    ),
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = projects.make(tmp_path_factory.mktemp("fuzz"))
    definitions = [f"dockerfiles/{name}" for name in ("cpu", "dflash", "flashqla", "tf5")]
    for name in (*definitions, "mods", "checkpoints"):
        shutil.copytree(ROOT / name, made.root / name, dirs_exist_ok=True)
    (made.mods / "far").mkdir()
    (made.root / EVIDENCE).parent.mkdir(parents=True)
    return made


@pytest.mark.parametrize("name", KINDS)
def test_seeds_are_good(name: str, project: Project) -> None:
    for seed in KINDS[name].seeds:
        (project.root / KINDS[name].path).write_bytes(seed)
        KINDS[name].read(project)


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_whatever_is_wrong_is_said_with_its_place(name: str, project: Project) -> None:
    kind = KINDS[name]
    path = project.root / kind.path
    good = path.read_bytes() if path.exists() else b""

    @settings(
        max_examples=COUNT,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )
    @given(mutations(kind.seeds))
    def check(content: bytes) -> None:
        path.write_bytes(content)
        before = snapshot(project)
        try:
            kind.read(project)
        except BuilderError as error:
            require_places(error, kind.path, content)
        assert snapshot(project) == before

    try:
        check()
    finally:
        path.write_bytes(good)


def require_places(error: BuilderError, file: str, content: bytes) -> None:
    """Every line of the message begins with a place that the file has."""
    breaks = "\r\n|[\r\n\x85\u2028\u2029]"  # what YAML takes for one
    end = len(re.split(breaks, content.decode(errors="replace"))) + 1  # behind the last line, where something lacks
    for line in error.message.split("\n"):
        place = re.match(rf"(?:{re.escape(file)}|dockerfiles/.*\.j2):(\d+):(\d+): \S", line)
        assert place, error.message
        assert place[0].startswith("dockerfiles/") or 1 <= int(place[1]) <= end, error.message


def snapshot(project: Project) -> dict[str, tuple[int, int]]:
    """The size and time of every file in the project."""
    found = {}
    for folder, _, files in os.walk(project.root):
        for file in files:
            said = Path(folder, file).stat()
            found[f"{folder}/{file}"] = (said.st_size, said.st_mtime_ns)
    return found
