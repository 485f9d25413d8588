"""Builds, promotions and pairings of a model that requires evidence of its images."""

from __future__ import annotations

import json

import pytest

from builder.base.project import Project
from builder.engine import images
from builder.engine.client import Endpoint
from builder.evidence import run_record, standing
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock
from tests import projects
from tests.commands.git_upstream import Upstream
from tests.conftest import Command
from tests.evidence import runs
from tests.stock import stock

pytestmark = pytest.mark.engine

MODEL = "Org/Model-1B"
OFFLINE = {"HF_HUB_OFFLINE": "1"}  # nothing is asked of the hub: a tokenizer stands in
REQUIRES = "requires: {prove: pass}\n"


def prove(project: Project, name: ImageName, verdict: str = "pass") -> None:
    """Records a proof of the image as it is now, with which the next one is compared."""
    lock = lock_file.read_lock(project.lock)
    subject = standing.present_subject(project, lock, name, MODEL, "prove")
    run_record.add_run(project, name, runs.proof(verdict, subject=subject))


def where(project: Project, repository: str) -> tuple[int | None, int | None]:
    """The current number, and the one that serves the model."""
    lock = lock_file.read_lock(project.lock)
    model = lock.models.get(MODEL)
    return lock.images[repository].current, model.pairing.image.number if model else None


def require(project: Project, requires: str = REQUIRES) -> None:
    path = project.recipes / "chat.yaml"
    projects.write(path, path.read_text(encoding="utf-8") + requires)


def change(project: Project, text: str) -> None:
    projects.write(project.mods / "template/chat.jinja", f"{text}\n")


@pytest.mark.long
def test_a_number_waits_for_its_evidence(small: Project, builder: Command, endpoint: Endpoint, repository: str) -> None:
    builder("build", "chat")
    require(small)
    change(small, "version two")
    first, second = (f"{repository}:{number}" for number in (1, 2))

    lines = builder("build", "chat").stdout.splitlines()
    assert f"  {MODEL} stays at {first}; once its evidence exists: `builder pair {MODEL} {second}`" in lines
    assert any(line.startswith("    prove: ") and f"`builder prove {second} {MODEL}`" in line for line in lines)
    latest = f"  {repository}:latest stays at {first}; once its evidence exists: `builder promote {second}`"
    assert latest in lines
    assert where(small, repository) == (1, 1)
    details = images.inspect_image(endpoint, f"{repository}:latest")
    assert details
    assert first in details.tags

    again = builder("build", "chat").stdout
    assert f"{MODEL} stays at {first}; once its evidence exists" in again
    before = small.lock.read_bytes()
    for arguments in (("promote", second), ("pair", MODEL, second), ("rollback", "small", "--to", "2")):
        refused = builder(*arguments, code=1)
        assert f"{second} lacks what {MODEL} requires: no pointer was moved" in refused.stderr
        assert f"`builder prove {second} {MODEL}`" in " ".join(refused.stderr.split())
    assert "lacks what" in builder("promote", second, "--force", code=1).stderr
    builder("promote", second, "--note", "x", code=2)
    assert small.lock.read_bytes() == before

    prove(small, ImageName(repository, 2), "fail")
    assert "prove: failed" in builder("pair", MODEL, second, code=1).stderr
    prove(small, ImageName(repository, 2))
    builder("pair", MODEL, second)
    builder("promote", second)
    assert where(small, repository) == (2, 2)
    # Back to what served before, whatever is known of it.
    builder("rollback", "chat")
    assert where(small, repository) == (1, 1)
    builder("rollback", "chat")
    change(small, "version three")
    builder("build", "chat")
    builder("pair", MODEL, f"{repository}:3", "--force", "--note", "seen by eye")
    builder("promote", f"{repository}:3", "--force", "--note", "seen by eye")
    assert where(small, repository) == (3, 3)
    assert "without its evidence: seen by eye" in builder("list", "--models").stdout
    assert "note: without its evidence: seen by eye" in builder("list").stdout


@pytest.mark.long
def test_the_first_number_waits_as_well_and_counts_once_it_is_proven(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    require(small)
    first = builder("build", "chat").stdout
    assert f"{MODEL} points to no image yet; once its evidence exists" in first
    assert where(small, repository) == (None, None)
    assert images.inspect_image(endpoint, f"{repository}:latest") is None
    assert f"no image is current; to use this one: `builder promote {repository}:1`" in builder("build", "chat").stdout
    assert f"{repository}:1" in builder("list").stdout
    prove(small, ImageName(repository, 1))
    assert f"{MODEL} is now paired with {repository}:1" in builder("build", "chat").stdout
    builder("promote", f"{repository}:1")
    assert where(small, repository) == (1, 1)


@pytest.mark.long
def test_others_of_the_same_build_move_at_once(small: Project, builder: Command, repository: str) -> None:
    builder("build", "chat")
    assert builder("build", MODEL).stdout == f"already built as {repository}:1\n"
    projects.write(small.root / "builder.yaml", "requires: {Org/Other: {probe: [long]}}\n")
    change(small, "version two")
    lines = builder("build", "chat", "--model", "Org/Other").stdout.splitlines()
    assert f"  paired with {MODEL}" in lines
    assert (
        f"  Org/Other points to no image yet; once its evidence exists: `builder pair Org/Other {repository}:2`"
        in lines
    )
    assert where(small, repository) == (1, 2)


def test_an_image_of_others_is_not_adopted_for_a_model_that_requires_evidence(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    stock(small, endpoint, repository, (1,), (MODEL,))
    projects.write(small.root / "builder.yaml", REQUIRES)
    before: Lock = lock_file.read_lock(small.lock)
    refused = builder("adopt", f"{repository}:1", "--as", f"{repository}-x", "--model", MODEL, code=1)
    assert f"{MODEL} requires evidence, but a new image has no evidence yet" in refused.stderr
    assert lock_file.read_lock(small.lock) == before


# A Python that stands in for vLLM's: its front end does not start, for a fault of the template.
PYTHON = "#!/bin/sh\n"
PYTHON += """\
case "$*" in
*version_info*) echo /usr/bin/python3; exit ;;
*find_spec*) exit 0 ;;
esac
case "$2" in */driver.py) ;; *) echo 0.1.0; exit ;; esac
cp /usr/share/answers.json "$3/answers-0.json"
echo '{"step": "done", "version": "0.1"}' > "$3/state.json"
"""
FAULT = '{"answers": null, "log": "jinja2.exceptions.TemplateSyntaxError: unexpected end of template"}\n'
SOURCE = 'sources:\n  vllm: {{git: "{url}", ref: main}}\n'


@pytest.fixture
def proven(small: Project, upstream: Upstream, builder: Command, repository: str) -> Project:
    """Number 1 holds a vLLM and is proven; the next number has a template that its vLLM cannot read."""
    upstream.commit("the first", serve="1")
    upstream.git("tag", "v0.1.0")
    upstream.git("push", "--quiet", "--tags")
    image = small.dockerfiles / "small/image.yaml"
    projects.write(image, image.read_text(encoding="utf-8") + SOURCE.format(url=upstream.url))
    text = (small.dockerfiles / "small/Dockerfile.j2").read_text(encoding="utf-8")
    projects.write(small.dockerfiles / "small/Dockerfile.j2", f"FROM scratch AS vllm-source\n{text}")
    script = "install -m 755 python3 /usr/bin/python3\ncp answers.json /usr/share\n"
    projects.add_mod(small.root, "template", script, {"python3": PYTHON, "answers.json": FAULT})
    builder("build", "chat")
    prove(small, ImageName(repository, 1))
    change(small, "version two")
    return small


@pytest.mark.long
def test_a_build_whose_proof_fails_keeps_its_number_and_moves_nothing(
    proven: Project, builder: Command, repository: str, endpoint: Endpoint
) -> None:
    first, second = (f"{repository}:{number}" for number in (1, 2))
    failed = builder("build", "chat", code=6, environ=OFFLINE)
    lines = failed.stdout.splitlines()
    assert f"  {MODEL} stays at {first}: {second} did not pass" in lines
    assert f"  {repository}:latest stays at {first}: {second} did not pass" in lines
    assert any(line.startswith("    prove: failed") for line in lines)
    said = " ".join(failed.stderr.split())
    assert f"required evidence of {second} failed for {MODEL}: no pointer moved, but the number is kept" in said
    for remedy in (f"`builder diff {first} {second}`", f"`builder prove {second} {MODEL}`", "`--promote-anyway --note"):
        assert remedy in said
    assert where(proven, repository) == (1, 1)
    assert images.inspect_image(endpoint, second)
    latest = images.inspect_image(endpoint, f"{repository}:latest")
    assert latest
    assert first in latest.tags

    again = builder("build", "chat", "--json", code=6)
    assert [each["failed"] for each in json.loads(again.stdout)["images"][0]["waiting"]] == [True]
    assert "rollback" not in builder("build", "chat", code=6).stdout
    for arguments in (("promote", second), ("pair", MODEL, second)):
        assert (
            f"{second} did not pass its proof for {MODEL}: no pointer was moved" in builder(*arguments, code=1).stderr
        )

    builder("build", "chat", "--promote-anyway", code=2)
    builder("build", "chat", "--promote-anyway", "--note", "seen by eye")
    assert where(proven, repository) == (2, 2)
    assert "without its evidence: seen by eye" in builder("list", "--models").stdout
    builder("build", "chat")  # what the user wants is no failure any more

    builder("rollback", "chat")
    assert where(proven, repository) == (1, 1)
    because = f"{second} did not pass its proof for {MODEL}"
    assert because in " ".join(builder("rollback", "chat", code=1).stderr.split())
    assert f"{second}: unmarked: " in builder("rollback", "chat", "--to", "2", "--dry-run").stderr
    known = " ".join(builder("rollback", "chat", "--to", "2").stderr.split())
    assert f"its proof for {MODEL} failed" in known
    assert where(proven, repository) == (2, 2)


@pytest.mark.long
def test_a_build_whose_proof_fails_is_promoted_where_that_is_asked(
    proven: Project, builder: Command, repository: str
) -> None:
    told = builder("build", "chat", "--promote-anyway", "--note", "for a look", environ=OFFLINE).stdout
    assert "failed: " in told
    assert where(proven, repository) == (2, 2)
