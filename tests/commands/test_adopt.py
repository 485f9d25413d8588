"""Images that plain ``docker build`` made get numbers, and are used like those that were built here."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builder.base.errors import ImageContentsError, ImageStateError, UsageError
from builder.base.project import Project
from builder.building import work_folder
from builder.commands import about, keeping
from builder.engine import containers, images
from builder.engine.client import Endpoint, environment
from builder.lock import lock_file
from builder.lock.model import ImageName, Repository
from builder.lock.text import dump_lock
from builder.numbers import adopted, claims
from tests import projects, registries, shared, spark_proc
from tests.commands.bases_of_others import COMMITS
from tests.commands.test_killed import Moments, chance, moments, require_in_line
from tests.conftest import Command, remove_all
from tests.evidence import runs
from tests.registries import Registry
from tests.stock import load
from tests.workspaces import workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


__all__ = ["chance", "moments"]

pytestmark = pytest.mark.engine

MODEL = "Org/Model-1B"
COMMIT = COMMITS["0.24.0"]
PYTHON = """\
FROM debian:bookworm-slim
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends python3
"""
SITE = "/usr/local/lib/python3.11/dist-packages"
DOCKERFILE = PYTHON + (
    f"COPY site {SITE}\n"
    "COPY build-metadata.yaml /workspace/build-metadata.yaml\n"
    "LABEL org.example=hello {mark}=1\n"
    'ENTRYPOINT ["false"]\n'
)
KILLS = 6


@pytest.fixture
def foreign(endpoint: Endpoint, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Builds an image with Docker alone, with a stand-in for vLLM of a version: ``foreign("0.24.0")``."""
    repository = shared.unique_name()

    def build(vllm: str, tag: str = "latest", dockerfile: str = DOCKERFILE, **packages: str) -> str:
        folder = tmp_path / f"context-{vllm}-{tag}"
        for name, version in {"vllm": vllm, "Flashinfer_Python": "0.7.2", "torch": "2.13.0", **packages}.items():
            text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            projects.write(folder / f"site/{name}-{version}.dist-info/METADATA", text)
        projects.write(folder / "site/vllm/__init__.py", "raise SystemExit('imported')\n")
        # Where the commit of a version is not known, neither file tells one, as in an image that was built by hand.
        commit = COMMITS.get(vllm, "")
        own = f"'g{commit[:9]}'" if commit else None
        projects.write(folder / "site/vllm/_version.py", f"__commit_id__ = commit_id = {own}\n")
        projects.write(
            folder / "build-metadata.yaml", (f"vllm_commit: {commit}\n" if commit else "") + "gpu_arch: 12.1a\n"
        )
        projects.write(folder / "Dockerfile", dockerfile.format(mark=repository))
        docker(endpoint, "build", "-q", "-t", f"{repository}:{tag}", str(folder))
        return f"{repository}:{tag}"

    yield build
    remove_all(endpoint, repository)
    remove_all(endpoint, f"{repository}-other")


def docker(endpoint: Endpoint, *arguments: str) -> str:
    program = endpoint.buildx[0] if endpoint.buildx[0].endswith("docker") else "docker"
    env = {**os.environ, **environment(endpoint)}
    done = subprocess.run([program, *arguments], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def document(builder: Command, *arguments: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(builder(*arguments, "--json").stdout)
    return result


@pytest.mark.long
def test_an_image_of_others_gets_the_next_number_as_it_is(
    small: Project, builder: Command, endpoint: Endpoint, foreign: Callable[..., str]
) -> None:
    name = foreign("0.24.0")
    repository = name.partition(":")[0]
    done = builder("adopt", repository, "--model", MODEL)
    assert done.stdout.splitlines()[0].startswith(f"adopted {repository} as {repository}:1: ")
    assert f"vllm 0.24.0 ({COMMIT[:9]}), flashinfer 0.7.2, 3 Python packages" in " ".join(done.stdout.split())
    assert f"  paired with {MODEL}" in done.stdout
    assert "the current image is" not in done.stdout, "it is current itself"
    record = lock_file.read_lock(small.lock).images[repository].numbers[1]
    details = images.inspect_image(endpoint, name)
    assert details
    assert record.fingerprint == images.fingerprint(details)
    assert record.adopted
    assert record.adopted.image == name
    assert record.versions["vllm"].commit == COMMIT
    tags = images.image_tags(endpoint, [repository])
    assert tags == dict.fromkeys((f"{repository}:1", f"{repository}:latest"), details.id)
    shown = document(builder, "show", f"{repository}:1")
    assert shown["packages"] == {"flashinfer-python": "0.7.2", "torch": "2.13.0", "vllm": "0.24.0"}
    assert shown["labels"]["org.example"] == "hello"
    assert shown["build_metadata"] == {"vllm_commit": COMMIT, "gpu_arch": "12.1a"}
    assert (shown["definition"], shown["adopted"], shown["input_hash"]) == (None, name, None)
    text = builder("show", repository, "--packages").stdout
    assert f"adopted from {name}" in " ".join(text.split())
    assert "torch" in text
    assert "adopted" in builder("list").stdout
    assert builder("verify").stdout == "everything matches images.lock\n"


@pytest.mark.long
def test_the_same_content_again_says_which_number_it_is(
    small: Project, builder: Command, endpoint: Endpoint, foreign: Callable[..., str]
) -> None:
    name = foreign("0.24.0")
    repository, other = name.partition(":")[0], f"{name.partition(':')[0]}-other"
    builder("adopt", name)
    evidence = runs.keep(small, ImageName(repository, 1))
    before = small.lock.read_bytes()
    assert builder("adopt", name).stdout == f"{name} is already {repository}:1\n"
    assert small.lock.read_bytes() == before
    assert builder("adopt", name, "--model", MODEL).stdout.splitlines()[1:] == [f"  paired with {MODEL}"]
    assert lock_file.read_lock(small.lock).models[MODEL].pairing.image == ImageName(repository, 1)
    # As --tf5 of another builder does: the same image under a second name is a number of its own.
    images.tag_image(endpoint, name, f"{other}:latest")
    assert builder("adopt", other).stdout.startswith(f"adopted {other} as {other}:1")
    # What was removed by hand has its number again.
    images.remove_image(endpoint, f"{repository}:1")
    assert f"builder adopt IMAGE --as {repository}" in " ".join(builder("verify", code=7).stdout.split())
    assert "has its tag again" in builder("adopt", name).stdout
    assert builder("verify").stdout == "everything matches images.lock\n"
    assert runs.files(small) == evidence


def test_an_image_that_has_a_number_keeps_it_and_gets_its_tag_back(
    small: Project, endpoint: Endpoint, repository: str
) -> None:
    events: list[Any] = []
    context = workspace(small, endpoint, report=events.append)

    def record() -> Repository:
        return lock_file.read_lock(small.lock).images[repository]

    for tag in ("latest", "loaded", "second"):
        load(endpoint, f"{repository}:{tag}", [{"file": f"{tag}\n".encode()}])
    today = details_of(endpoint, f"{repository}:latest").id.removeprefix("sha256:")[:12]
    first = keeping.adopt_image(context, f"{repository}:loaded", promote=False)
    assert (first.image, first.already, first.restored) == (ImageName(repository, 1), False, False)
    assert (first.current, record().current) == (ImageName(repository, 1), 1), "no other number is there"
    renamed = f"{repository}:latest was the only name of an image, now called {repository}:before-{today}"
    assert any(renamed in event.text for event in events)
    second = keeping.adopt_image(context, f"{repository}:second", promote=False)
    assert (second.image.number, second.current.number, record().current) == (2, 1, 1)
    before = small.lock.read_bytes()
    again = keeping.adopt_image(context, f"{repository}:second")
    assert (again.image.number, again.already, again.restored, again.current.number) == (2, True, False, 1)
    assert small.lock.read_bytes() == before
    with pytest.raises(ImageContentsError, match="2 is recorded without vLLM, so the image cannot be paired"):
        keeping.adopt_image(context, f"{repository}:second", models=(MODEL,))
    assert small.lock.read_bytes() == before
    pruned = replace(record().numbers[2], pruned="2026-11-22T08:00:00Z")
    lock = lock_file.read_lock(small.lock).with_image(ImageName(repository, 2), pruned)
    small.lock.write_text(dump_lock(lock), encoding="utf-8")
    images.remove_image(endpoint, f"{repository}:2")
    again = keeping.adopt_image(context, f"{repository}:second")
    assert (again.already, again.restored, again.record.pruned) == (True, True, None)
    assert small.lock.read_bytes() == before
    tags = images.image_tags(endpoint, [repository])
    assert tags[f"{repository}:2"] == tags[f"{repository}:second"]
    images.tag_image(endpoint, f"{repository}:loaded", f"{repository}:2")
    with pytest.raises(ImageStateError, match="that tag names another image in the engine") as caught:
        keeping.adopt_image(context, f"{repository}:second")
    assert f"docker image rm {repository}:2" in caught.value.hint


def test_an_image_without_a_name_gets_no_name_but_its_number(
    small: Project, endpoint: Endpoint, repository: str
) -> None:
    load(endpoint, f"{repository}:loaded", [{"file": b"x\n"}])
    loaded = details_of(endpoint, f"{repository}:loaded")
    api_untag(endpoint, f"{repository}:loaded")
    made = keeping.adopt_image(workspace(small, endpoint), loaded.id, repository)
    assert made.record.adopted
    assert made.record.adopted.image == loaded.id
    assert made.record.size == images.disk_size(endpoint, f"{repository}:1")
    tags = images.image_tags(endpoint, [repository])
    assert tags == dict.fromkeys((f"{repository}:1", f"{repository}:latest"), loaded.id)
    assert keeping.adopt_image(workspace(small, endpoint), f"{repository}:1").already


@pytest.mark.long
def test_rollback_goes_between_an_adopted_image_and_one_that_was_built_here(
    small: Project, builder: Command, endpoint: Endpoint, repository: str, foreign: Callable[..., str]
) -> None:
    name = foreign("0.24.0")
    done = builder("adopt", name, "--as", repository, "--model", MODEL)
    assert f"as {repository}:1" in done.stdout
    built = builder("build", "chat")
    assert built.stdout.startswith(f"built {repository}:2 in ")
    assert "it is the first image that is built here: the others were adopted" in built.stderr
    moved = builder("rollback", "chat").stdout
    assert f"{repository}:latest: {repository}:2 → {repository}:1" in moved
    assert f"{MODEL}: {repository}:2 → {repository}:1" in moved
    assert "vllm: not known → 0.24.0" in moved
    tags = images.image_tags(endpoint, [repository])
    assert tags[f"{repository}:latest"] == tags[f"{repository}:1"]
    # What was built here is a test's image without a vLLM, which rollback goes to only where it is asked for.
    refused = builder("rollback", "chat", code=1).stderr
    assert f"{repository}:2 contains no known vLLM" in refused
    assert "is already" not in builder("rollback", "chat", "--to", "2").stdout
    tags = images.image_tags(endpoint, [repository])
    assert tags[f"{repository}:latest"] == tags[f"{repository}:2"]
    compared = document(builder, "diff", f"{repository}:1", f"{repository}:2")
    assert [change["name"] for change in compared["sources"]] == ["vllm", "flashinfer"]
    assert any("built elsewhere" in line for line in compared["unknown"])
    assert [(change["name"], change["kind"]) for change in compared["mods"]] == [("template", "added")]
    # A further build is compared with the last one that was built here.
    builder("adopt", foreign("0.23.0", "old"), "--as", repository)
    projects.write(small.root / "mods/template/chat.jinja", "version two\n")
    assert "mod template: changed" in builder("build", "chat", "--dry-run").stdout


@pytest.mark.long
def test_two_adopted_images_are_compared_by_what_is_in_them(
    builder: Command, foreign: Callable[..., str], repository: str
) -> None:
    for version, tag in (("0.23.0", "old"), ("0.24.0", "new")):
        builder("adopt", foreign(version, tag), "--as", repository)
    compared = document(builder, "diff", f"{repository}:1", f"{repository}:2")
    assert [(c["name"], c["before"]["version"], c["after"]["version"]) for c in compared["sources"]] == [
        ("vllm", "0.23.0", "0.24.0")
    ]
    assert compared["packages"] == []
    assert "0.23.0" in builder("diff", f"{repository}:1", f"{repository}:2").stdout


@pytest.mark.long
def test_what_cannot_be_done_with_one_says_why(
    builder: Command, endpoint: Endpoint, foreign: Callable[..., str], repository: str
) -> None:
    name = foreign("0.24.0")
    builder("adopt", name, "--as", repository)
    refused = builder("rebuild", f"{repository}:1", code=7).stderr
    assert f"{repository}:1 was adopted from {name}: this project does not record how it was built" in " ".join(
        refused.split()
    )
    builder("adopt", foreign("0.23.0", "old"), "--as", repository)
    images.remove_image(endpoint, f"{repository}:1")
    images.remove_image(endpoint, name)
    for arguments in (["rollback", repository], ["promote", f"{repository}:1"]):
        missing = " ".join(builder(*arguments, code=7).stderr.split())
        assert f"{repository}:1 is missing from this engine" in missing
        assert "builder adopt" in missing
        assert "builder rebuild" not in missing


@pytest.mark.long
def test_a_number_that_lost_only_its_tag_gets_the_tag_again(
    builder: Command, endpoint: Endpoint, foreign: Callable[..., str], repository: str
) -> None:
    for version, tag in (("0.23.0", "old"), ("0.24.0", "new")):
        builder("adopt", foreign(version, tag), "--as", repository)
    before = images.inspect_image(endpoint, f"{repository}:1")
    images.remove_image(endpoint, f"{repository}:1")
    done = builder("rollback", repository)
    assert f"{repository}:1 had lost its tag in this engine: the image has the tag again" in " ".join(
        done.stderr.split()
    )
    assert f"{repository}:2 → {repository}:1" in done.stdout
    after = images.inspect_image(endpoint, f"{repository}:latest")
    assert before
    assert after
    assert before.id == after.id


@pytest.mark.long
@pytest.mark.alone
def test_prune_takes_an_adopted_image_only_once_it_is_marked_bad(
    small: Project, builder: Command, endpoint: Endpoint, foreign: Callable[..., str], repository: str
) -> None:
    for version, tag in (("0.23.0", "old"), ("0.24.0", "new")):
        builder("adopt", foreign(version, tag), "--as", repository)
    kept = builder("prune", "--keep", "0", "--older-than", "0d", "--dry-run").stdout
    assert "adopted: it cannot be built again" in kept
    builder("mark", f"{repository}:1", "bad")
    builder("prune", "--keep", "0", "--older-than", "0d", "--yes")
    assert lock_file.read_lock(small.lock).images[repository].numbers[1].pruned
    assert f"{repository}:1" not in images.image_tags(endpoint, [repository])


@pytest.mark.long
def test_images_without_python_and_of_other_platforms_are_adopted_with_a_note(
    small: Project, builder: Command, endpoint: Endpoint, foreign: Callable[..., str], repository: str
) -> None:
    plain = foreign("0.24.0", "plain", "FROM debian:bookworm-slim\nLABEL {mark}=1\n")
    refused = builder("adopt", plain, "--as", repository, "--model", MODEL, code=7).stderr
    assert f"so the image cannot be paired with {MODEL}. Nothing was recorded" in refused
    assert "has no Python 3" in refused
    assert lock_file.read_project_lock(small).images == {}
    done = builder("adopt", plain, "--as", repository)
    assert "has no Python 3" in done.stderr
    load(endpoint, f"{repository}:nothing", [{"file": b"no program at all\n"}])
    done = builder("adopt", f"{repository}:nothing")
    assert f"as {repository}:2" in done.stdout
    assert "note: " in done.stderr
    builder("adopt", plain, "--as", repository, "--model", MODEL, code=7)
    assert lock_file.read_lock(small.lock).models == {}
    shown = builder("show", f"{repository}:1").stdout
    assert "not known" in shown
    compared = document(builder, "diff", f"{repository}:1", f"{repository}:2")
    assert compared["packages"] == []
    assert lock_file.read_lock(small.lock).images[repository].current == 2


@pytest.mark.long
def test_an_image_is_named_by_tag_digest_or_id(
    small: Project, endpoint: Endpoint, foreign: Callable[..., str], repository: str
) -> None:
    name = foreign("0.24.0", "v1")
    own = name.partition(":")[0]
    details = images.inspect_image(endpoint, name)
    assert details
    context = workspace(small, endpoint)
    by_id = keeping.adopt_image(context, details.id.removeprefix("sha256:")[:12])
    assert by_id.image == ImageName(own, 1)
    assert by_id.record.adopted
    assert by_id.record.adopted.image == details.id
    assert keeping.adopt_image(context, f"docker.io/library/{name}").already
    for digest in details.digests:
        assert keeping.adopt_image(context, digest).already
    with pytest.raises(ImageStateError) as caught:
        keeping.adopt_image(context, f"{own}:gone")
    assert caught.value.hint.startswith("the engine has these tags of it: ")
    assert caught.value.hint.endswith(name)
    images.tag_image(endpoint, name, f"{own}-other:v1")
    with pytest.raises(UsageError, match="does not belong to a single repository"):
        keeping.adopt_image(context, details.id)


@pytest.mark.long
def test_a_name_that_no_repository_can_have_is_refused(
    small: Project, endpoint: Endpoint, foreign: Callable[..., str]
) -> None:
    image = foreign("0.24.0")
    for name in ("Small", "small:3", "small@sha256:1", "-x", "", "localhost:5000/small", "../x"):
        with pytest.raises(UsageError):
            keeping.adopt_image(workspace(small, endpoint), image, name)
    assert not small.lock.exists()


@pytest.mark.long
def test_a_definition_is_no_repository(small: Project, builder: Command, foreign: Callable[..., str]) -> None:
    refused = builder("adopt", foreign("0.24.0"), "--as", "small", code=2).stderr
    assert "`small` is an image definition" in refused


@pytest.mark.long
def test_an_image_without_a_number_that_was_latest_keeps_a_name(
    small: Project, builder: Command, endpoint: Endpoint, foreign: Callable[..., str]
) -> None:
    foreign("0.24.0")
    old = foreign("0.23.0", "old")
    repository = old.partition(":")[0]
    latest = images.image_tags(endpoint, [repository])[f"{repository}:latest"]
    done = builder("adopt", old)
    tags = images.image_tags(endpoint, [repository])
    assert tags[f"{repository}:latest"] == tags[f"{repository}:1"] == tags[old]
    kept = next(tag for tag, id_ in tags.items() if id_ == latest)
    assert f"`builder adopt {kept}`" in " ".join(done.stderr.split())
    assert f"as {repository}:2" in builder("adopt", kept).stdout


@pytest.mark.long
@pytest.mark.alone
def test_an_adopted_image_that_was_pushed_may_be_pruned_and_comes_back(
    small: Project,
    builder: Command,
    endpoint: Endpoint,
    foreign: Callable[..., str],
    repository: str,
    registry: Registry,
) -> None:
    projects.write(small.root / "builder.yaml", f"registry: {registry.address}\n")
    for version, tag in (("0.23.0", "old"), ("0.24.0", "new")):
        name = foreign(version, tag)
        builder("adopt", name, "--as", repository)
        images.remove_image(endpoint, name)
    builder("push", f"{repository}:1")
    builder("prune", "--keep", "0", "--older-than", "0d", "--yes")
    assert lock_file.read_lock(small.lock).images[repository].numbers[1].pruned
    assert f"{repository}:1" not in images.image_tags(endpoint, [repository])
    moved = builder("rollback", repository, "--to", "1").stdout
    assert f"{repository}:latest: {repository}:2 → {repository}:1" in moved
    assert builder("verify", "--registry").stdout == "everything matches images.lock\n"
    remove_all(endpoint, f"{registry.address}/{repository}")


@pytest.mark.long
def test_a_recipe_of_an_image_of_others_works_by_its_number(
    small: Project, builder: Command, foreign: Callable[..., str]
) -> None:
    """No definition makes it, and its tag is neither a number nor latest."""
    name = foreign("0.24.0", "v1")
    own = name.partition(":")[0]
    projects.add_recipe(small.root, "theirs", name, "Org/Theirs", [])
    assert f"`builder adopt {name}`" in " ".join(builder("recipes", "check", "theirs").stdout.split())
    assert "has no number" in builder("export", "theirs", "--format", "script").stderr
    builder("adopt", name, "--model", "Org/Theirs")
    paired = lock_file.read_lock(small.lock).models["Org/Theirs"].pairing
    assert (str(paired.image), paired.recipe) == (f"{own}:1", "recipes/theirs.yaml")
    done = builder("export", "theirs", "--format", "script")
    assert f"  {own}:1 serve Org/Theirs" in done.stdout
    assert done.stderr == ""
    assert f"{own}:1" in builder("list", "theirs").stdout
    assert f"{own}:1" in builder("recipes", "list").stdout
    assert "no image definition makes" not in builder("recipes", "check", "theirs").stdout
    refused = " ".join(builder("build", "theirs", code=2).stderr.split())
    assert f"`builder adopt {name}`" in refused
    assert f"`base: {name}`" in refused
    builder("adopt", foreign("0.23.0", "v2"), "--model", "Org/Theirs")
    assert f"Org/Theirs: {own}:2 → {own}:1" in builder("rollback", "Org/Theirs").stdout


@pytest.mark.long
def test_doctor_on_a_spark_tells_the_known_faults_that_a_recipe_meets(
    small: Project, endpoint: Endpoint, foreign: Callable[..., str], tmp_path: Path
) -> None:
    """In the image that its model is paired with, as its packages were read; the NCCL's only with several nodes."""
    name = foreign("0.30.0", "v1", nvidia_nccl_cu13="2.28.9", instanttensor="0.2.0")
    drafter = """-tp 2 --load-format instanttensor --speculative-config '{{"method": "dflash", "model": "z/X"}}'"""
    projects.add_recipe(small.root, "theirs", name, "Org/Theirs", [])
    file = small.recipes / "theirs.yaml"
    projects.write(file, file.read_text(encoding="utf-8").replace("--port 8000", f"--port 8000 {drafter}"))
    keeping.adopt_image(workspace(small, endpoint), name, None, ("Org/Theirs",))
    proc, programs = spark_proc.write_whole(tmp_path / "proc"), spark_proc.nvidia_smi(tmp_path / "bin")
    environ = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}

    def told() -> list[str]:
        every = about.run_doctor(small, environ, proc)
        return [each.message.partition(":")[0] for each in every if each.subject == "advisory"]

    assert told() == ["dflash-large-blocks", "instanttensor-page-cache"]
    nodes = "nodes: {one: {engine: ssh://a@one}, two: {engine: ssh://a@two}}\n"
    projects.write(small.root / "builder.yaml", nodes)
    assert told() == ["dflash-large-blocks", "instanttensor-page-cache", "nccl-2.28.9-cuda-graphs"]
    silenced = "silenced: {instanttensor-page-cache: nothing else runs here, dflash-large-blocks: it fits}\n"
    projects.write(small.root / "builder.yaml", nodes + silenced)
    assert told() == ["nccl-2.28.9-cuda-graphs"]
    spark_proc.write(proc, available=110, model="NVIDIA H200")
    assert told() == []


def test_an_image_without_a_number_keeps_a_name_on_another_engine_too(endpoint: Endpoint, repository: str) -> None:
    """`copy` moves ``latest`` on nodes, where the image that works today may have no other name."""
    for tag, content in (("latest", b"works today\n"), ("1", b"number one\n")):
        load(endpoint, f"{repository}:{tag}", [{"file": content}])
    today = details_of(endpoint, f"{repository}:latest").id
    kept = claims.move_latest(endpoint, ImageName(repository, 1))
    tags = images.image_tags(endpoint, [repository])
    assert tags == {
        kept: today,
        **dict.fromkeys((f"{repository}:latest", f"{repository}:1"), details_of(endpoint, f"{repository}:1").id),
    }
    assert claims.move_latest(endpoint, ImageName(repository, 1)) == ""
    assert images.image_tags(endpoint, [repository]) == tags


@pytest.mark.long
def test_a_lost_lock_is_recovered_from_what_adopting_left(
    small: Project, builder: Command, foreign: Callable[..., str]
) -> None:
    name = foreign("0.24.0")
    repository = name.partition(":")[0]
    builder("adopt", name, "--model", MODEL)
    before = lock_file.read_lock(small.lock)
    small.lock.unlink()
    assert "lost" in builder("adopt", name, code=4).stderr
    builder("lock", "--recover")
    after = lock_file.read_lock(small.lock)
    assert after.images[repository] == before.images[repository]
    assert after.models == before.models
    (small.builds / repository / "1" / adopted.FILE).unlink()
    assert adopted.FILE in builder("verify", code=1).stdout


@pytest.mark.long
def test_an_adopted_image_goes_to_another_machine_as_a_file(
    small: Project, builder: Command, endpoint: Endpoint, foreign: Callable[..., str], tmp_path: Path
) -> None:
    name = foreign("0.24.0")
    repository = name.partition(":")[0]
    builder("adopt", name)
    file = tmp_path / "image.tar"
    builder("export-image", f"{repository}:1", str(file))
    record = lock_file.read_lock(small.lock).images[repository]
    small.lock.unlink()
    kept = adopted.read_adopted(small.builds / repository / "1")
    subprocess.run(["rm", "-r", str(small.builds)], check=True)
    for tag in images.image_tags(endpoint, [repository]):
        images.remove_image(endpoint, tag)
    builder("import-image", str(file))
    assert lock_file.read_lock(small.lock).images[repository] == record
    assert adopted.read_adopted(small.builds / repository / "1") == kept


@pytest.mark.long
@pytest.mark.slow
def test_the_older_image_store_too(
    small: Project, endpoint: Endpoint, foreign: Callable[..., str], tmp_path: Path
) -> None:
    """Where an image's id is another one, and one that no registry had has no digest."""
    name = foreign("0.24.0")
    own = name.partition(":")[0]
    archive = tmp_path / "image.tar"
    docker(endpoint, "save", "-o", str(archive), name)
    with registries.node(*shared.bridge(9), classic=True) as started:
        docker(started.endpoint, "load", "-q", "-i", str(archive))
        context = workspace(small, started.endpoint)
        adopted_image = keeping.adopt_image(context, own, models=(MODEL,))
        assert adopted_image.image == ImageName(own, 1)
        assert (adopted_image.packages, adopted_image.unknown) == (3, "")
        assert adopted_image.record.adopted
        assert adopted_image.record.adopted.digests == ()
        assert adopted_image.record.fingerprint == images.fingerprint(details_of(endpoint, name))
        assert keeping.adopt_image(context, details_of(started.endpoint, name).id).already
        load(started.endpoint, f"{own}:plain", [{"file": b"x"}])
        nothing = details_of(started.endpoint, f"{own}:plain")
        load(started.endpoint, f"{own}:plain", [{"file": b"y"}])  # takes its only name
        assert keeping.adopt_image(context, nothing.id, own).image == ImageName(own, 2)
        names = {f"{own}:{tag}" for tag in ("1", "2", "latest", "plain")}
        assert set(images.image_tags(started.endpoint, [own])) == names


def details_of(endpoint: Endpoint, name: str) -> images.ImageDetails:
    details = images.inspect_image(endpoint, name)
    assert details
    return details


@pytest.mark.long
def test_killed_at_any_moment(
    small: Project, endpoint: Endpoint, foreign: Callable[..., str], repository: str, moments: Moments
) -> None:
    """The image of the user stays, and is adopted or not."""
    turn = 0
    while moments.killed < KILLS:
        turn += 1
        name = foreign(f"0.{turn}.0", f"t{turn}")
        request = (name, repository, (MODEL,))
        moments.run(partial(keeping.adopt_image, workspace(small, endpoint), *request))
        keeping.adopt_image(workspace(small, endpoint), *request)
        assert name in images.image_tags(endpoint, [name.partition(":")[0]])
        require_in_line(small, endpoint, repository)
        record = lock_file.read_lock(small.lock)
        assert sorted(record.images[repository].numbers) == list(range(1, turn + 1))
        assert record.models[MODEL].pairing.image.number == turn
        assert {path.name for path in (small.builds / repository).iterdir()} == {str(n) for n in range(1, turn + 1)}
        assert not list(small.work.iterdir())
    require_no_containers(small, endpoint)


@pytest.mark.long
def test_an_image_without_a_name_survives_a_kill(
    small: Project, endpoint: Endpoint, repository: str, moments: Moments
) -> None:
    turn = 0
    while moments.killed < KILLS:
        turn += 1
        load(endpoint, f"{repository}:loaded", [{"file": f"{repository} {turn}\n".encode()}])
        details = images.inspect_image(endpoint, f"{repository}:loaded")
        assert details
        other = f"{repository}-work:{turn}"
        images.tag_image(endpoint, details.id, other)
        images.remove_image(endpoint, f"{repository}:loaded")
        api_untag(endpoint, other)
        request = (details.id, repository)
        moments.run(partial(keeping.adopt_image, workspace(small, endpoint), *request))
        if images.inspect_image(endpoint, details.id) is None:
            pytest.fail("the image is gone")
        keeping.adopt_image(workspace(small, endpoint), *request)
        numbers = lock_file.read_lock(small.lock).images[repository].numbers
        assert len(numbers) == turn
        # With another tag, the image would stay in the engine after `prune`.
        tags = {f"{repository}:{name}" for name in (*numbers, "latest")}
        assert images.image_tags(endpoint, [repository]).keys() == tags
    require_no_containers(small, endpoint)


def require_no_containers(project: Project, endpoint: Endpoint) -> None:
    """None is left after the next command: one that the engine was making for a process when that was killed may have
    come after its work folder was cleaned up."""
    work_folder.recover(workspace(project, endpoint))
    assert containers.container_listing(endpoint, f"{claims.PROJECT}={claims.existing_identity(project)}") == []


def api_untag(endpoint: Endpoint, name: str) -> None:
    """Takes the last tag from an image, which stays: a container of it holds it meanwhile."""
    from builder.engine import client

    body = {"Image": name, "Cmd": ["x"]}
    container = client.request(endpoint, "POST", "/containers/create", body=body)["Id"]
    client.raw(endpoint, "DELETE", f"/images/{client.quoted(name)}", query={"force": 1})
    client.request(endpoint, "DELETE", f"/containers/{container}", query={"force": 1})


@pytest.fixture
def nameless(endpoint: Endpoint, foreign: Callable[..., str]) -> Iterator[Callable[..., str]]:
    """Builds an image as ``foreign`` does, and gives its name to another one; returns the first digits of its id."""
    ids: list[str] = []

    def build(vllm: str, dockerfile: str = DOCKERFILE) -> str:
        name = foreign(vllm, f"of-{vllm}", dockerfile)
        details = images.inspect_image(endpoint, name)
        assert details
        ids.append(details.id)
        images.tag_image(endpoint, "debian:bookworm-slim", name)
        lost = images.inspect_image(endpoint, details.id)
        assert lost
        assert lost.tags == ()
        return details.id.removeprefix("sha256:")[:12]

    yield build
    for each in ids:
        for tag in details.tags if (details := images.inspect_image(endpoint, each)) else ():
            images.remove_image(endpoint, tag)
        images.remove_image(endpoint, each)


@pytest.mark.long
def test_yesterdays_image_without_a_name_gets_a_number_by_its_id(
    small: Project, builder: Command, repository: str, nameless: Callable[..., str]
) -> None:
    builder("build", "chat")
    yesterday = nameless("0.33.0")
    before = lock_file.read_lock(small.lock)
    done = builder("adopt", yesterday, "--as", repository, "--no-promote")
    assert f"  the current image is {repository}:1; to use this one: `builder promote {repository}:2`" in done.stdout
    after = lock_file.read_lock(small.lock)
    assert after.images[repository].current == before.images[repository].current == 1
    assert after.models == before.models
    assert after.images[repository].numbers[2].versions["vllm"].version == "0.33.0"
