from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError
from builder.base.project import Project
from builder.commands import rebuild
from builder.engine import images
from builder.engine.client import Endpoint, environment
from builder.lock import lock_file, text
from builder.lock.model import ImageName, Lock
from builder.numbers import images_lock
from tests import projects
from tests.commands import kept, second_engine
from tests.conftest import Command
from tests.plan.test_making import small_plan
from tests.stock import stock
from tests.workspaces import workspace

if TYPE_CHECKING:
    from builder.numbers.workspace import Workspace


pytestmark = pytest.mark.engine


@pytest.mark.long
def test_a_number_is_built_again_though_templates_and_mods_have_moved_on(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    builder("build", "chat")
    before = small.lock.read_bytes()
    projects.write(small.root / "mods/template/chat.jinja", "version two\n")
    projects.write(small.root / "dockerfiles/small/Dockerfile.j2", "FROM {{ nothing }}\n")
    for tag in ("1", "latest"):
        images.remove_image(endpoint, f"{repository}:{tag}")
    output = builder("rebuild", f"{repository}:1").stdout
    assert output.startswith(f"{repository}:1 built again in ")
    assert output.endswith(": the same content, tagged again\n")
    details = images.inspect_image(endpoint, f"{repository}:1")
    assert details is not None
    assert images.fingerprint(details) == lock_file.read_lock(small.lock).images[repository].numbers[1].fingerprint
    assert small.lock.read_bytes() == before


@pytest.mark.long
def test_a_build_directory_is_complete_and_what_it_changed_or_lacks_is_named(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    builder("build", "chat")
    # It needs nothing of this program.
    directory = next(small.builds.glob("*/1"))
    argv = [*endpoint.buildx, "bake", "-f", "bake.json", "--set", "image.output=type=cacheonly"]
    env = {**os.environ, **environment(endpoint)}
    subprocess.run(argv, cwd=directory, env=env, check=True, capture_output=True)

    # Other content is kept beside, and told by layer.
    built = images.inspect_image(endpoint, f"{repository}:1")
    projects.write(small.builds / repository / "1/mods/template/chat.jinja", "edited since\n")
    output = builder("rebuild", "small", code=1).stdout
    assert f"different content: {repository}:1-rebuilt" in output
    assert "layers that differ: mod template\n" in output
    assert f"`diffoci diff docker://{repository}:1 docker://{repository}:1-rebuilt`" in output
    assert images.inspect_image(endpoint, f"{repository}:1") == built
    assert images.inspect_image(endpoint, f"{repository}:1-rebuilt") is not None
    # Its own: others may be building in this engine.
    assert images.image_tags(endpoint, [f"builder-work:{repository}-*"]) == {}
    # Layers are named where the first image is gone.
    for tag in ("1", "1-rebuilt", "latest"):
        images.remove_image(endpoint, f"{repository}:{tag}")
    output = builder("rebuild", "small", code=1).stdout
    assert "layers that differ: mod template\n" in output
    assert "diffoci" not in output

    shutil.rmtree(small.builds / repository / "1/mods")
    failed = " ".join(builder("rebuild", f"{repository}:1", code=6).stderr.split())
    where = f"builds/{repository}/1"
    changed = f"{where} has changed since the build: mods/template no longer exists"
    assert f"{changed}. `git checkout HEAD -- {where}`" in failed


@pytest.mark.long
def test_another_machine_without_any_cache_makes_the_same_bytes(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    projects.settle(small)
    builder("build", "chat")
    # The path of a socket has at most 107 characters.
    with (
        tempfile.TemporaryDirectory(prefix="engine-") as folder,
        second_engine.running(Path(folder), "brebuilt", "10.213.7.1/24") as environ,
    ):
        second_engine.load(endpoint.host, environ, "debian:bookworm-slim")
        output = builder("rebuild", f"{repository}:1", environ=environ).stdout
    assert output.endswith(": the same content, tagged again\n")


def test_a_build_directory_that_is_gone_is_said(small: Project, builder: Command, repository: str) -> None:
    builder("build", "chat")
    shutil.rmtree(small.builds)
    assert f"builds/{repository}/1 is missing" in builder("rebuild", "small", code=7).stderr


READS_HOST = """
RUN --mount=type=secret,id=file --mount=type=secret,id=token --mount=type=bind,from=host,target=/host \\
    cp -R /host /run/secrets /taken
"""


def of_a_stranger(project: Project, key: str) -> tuple[ImageName, Path]:
    """A number whose bake file asks for a file, a variable or a folder of the machine, or writes into that folder."""
    numbers = kept.Kept(project, Lock())
    name = numbers.add(small_plan(project.root / "planned"))
    private, planted = project.root / "private/key", project.root / "planted"
    projects.write(private, "the key")
    obeyed = {
        "contexts": {"host": str(private.parent)},
        "secret": [f"id=file,src={private}", "id=token,env=HF_TOKEN"],
        "cache-to": [f"type=local,dest={planted}"],
        "output": [f"type=local,dest={planted}"],
    }
    folder = numbers.folder(name)
    document = json.loads((folder / "bake.json").read_text())
    document["target"]["image"][key] = obeyed[key]
    (folder / "bake.json").write_text(json.dumps(document))
    (folder / "Dockerfile").write_text((folder / "Dockerfile").read_text() + READS_HOST)
    return name, planted


@pytest.mark.parametrize("key", ["contexts", "secret", "cache-to", "output"])
def test_a_bake_file_of_others_is_never_obeyed(small: Project, builder: Command, key: str) -> None:
    name, planted = of_a_stranger(small, key)
    error = builder("rebuild", str(name), code=2).stderr
    assert f"builds/{name.repository}/1/bake.json:1:1: `{key}` of target image does not have the form" in error
    assert "the file was not run" in error
    assert not planted.exists()


def test_a_definition_of_others_is_no_option_of_buildx(small: Project, builder: Command) -> None:
    name = kept.Kept(small, Lock()).add(small_plan(small.root / "planned"), definition="x,type=local,dest=planted")
    assert f"the definition of {name}, 'x,type=local" in builder("rebuild", str(name), code=4).stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--network=host", "network.host is not allowed"),
        ("--mount=type=secret,id=HF_TOKEN,env=HF_TOKEN,required", "secret HF_TOKEN: not found"),
        ("--mount=type=secret,id=GIT_AUTH_TOKEN,required", "secret GIT_AUTH_TOKEN: not found"),
    ],
)
def test_a_recorded_dockerfile_gets_nothing_of_the_machine(
    small: Project, builder: Command, repository: str, monkeypatch: pytest.MonkeyPatch, option: str, message: str
) -> None:
    builder("build", "chat")
    dockerfile = small.builds / repository / "1/Dockerfile"
    dockerfile.write_text(f"{dockerfile.read_text()}RUN {option} id\n")
    monkeypatch.setenv("HF_TOKEN", "hf_planted")
    monkeypatch.setenv("GIT_AUTH_TOKEN", "planted")
    assert message in builder("rebuild", "small", code=6).stderr


DAMAGES = ["empty", "not JSON", "a list", "wrong types", "missing keys", "binary", "huge", "a folder", "gone", "a pipe"]


def damage(path: Path, kind: str) -> None:
    """Puts something else in the place of a file."""
    whole = path.read_bytes()
    path.unlink()
    if kind == "a folder":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "huge":
        path.touch()
        os.truncate(path, 1 << 40)
    elif kind != "gone":
        contents = {
            "empty": b"",
            "not JSON": b"{",
            "a list": b"[]",
            "wrong types": b'{"target": {"image": "x"}, "steps": [{"name": "base", "takes": {"image": 1}}]}',
            "missing keys": b'{"target": {"image": {}}, "steps": [{}]}',
            "binary": whole.replace(b"a", b"\xff\x00"),
        }
        path.write_bytes(contents[kind])


@pytest.mark.parametrize("file", ["bake.json", "plan.json"])
def test_each_damage_of_a_build_directory_is_named(
    small: Project, builder: Command, endpoint: Endpoint, file: str
) -> None:
    numbers, plan = kept.Kept(small, Lock()), small_plan(small.root / "planned")
    for kind in DAMAGES:
        name = numbers.add(plan)
        damage(numbers.folder(name) / file, kind)
        with pytest.raises(FileProblemsError) as raised:
            rebuild.rebuild_image(workspace(small, endpoint), str(name))
        assert f"builds/{name.repository}/{name.number}/{file}:1:1: " in raised.value.message, kind
    assert f"/{file}:1:1: " in builder("rebuild", f"{plan.repository}:1", code=2).stderr


def _pruned(project: Project, endpoint: Endpoint, name: ImageName) -> Lock:
    """What images.lock has been with the number; it is pruned now, and its content still there as ``kept``."""
    lock = lock_file.read_lock(project.lock)
    image = lock.image(name)
    assert image
    images.tag_image(endpoint, str(name), f"{name.repository}:kept")
    images.remove_image(endpoint, str(name))
    project.lock.write_text(text.dump_lock(lock.with_image(name, replace(image, pruned="2026-11-21T00:00:00Z"))))
    return lock


@pytest.mark.long
def test_a_pruned_number_is_brought_back_by_going_there(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    builder("build", "chat")
    projects.write(small.root / "mods/template/chat.jinja", "version two\n")
    builder("build", "chat")
    _pruned(small, endpoint, ImageName(repository, 1))
    images.remove_image(endpoint, f"{repository}:kept")
    planned = builder("rollback", "chat", "--dry-run")
    assert f"{repository}:1 is not in this engine: it would be pulled" in planned.stderr
    assert images.inspect_image(endpoint, f"{repository}:1") is None
    moved = builder("rollback", "chat")
    assert f"Org/Model-1B: {repository}:2 → {repository}:1" in moved.stdout
    record = lock_file.read_lock(small.lock).images[repository].numbers[1]
    details = images.inspect_image(endpoint, f"{repository}:1")
    assert details is not None
    assert (images.fingerprint(details), record.pruned) == (record.fingerprint, None)
    assert images.inspect_image(endpoint, f"{repository}:latest") == details


def _killed_before_the_record(ours: Workspace, name: ImageName) -> None:
    """A process that gave the number its tag again, and ended there."""
    before = ours.project.lock.read_bytes()
    child = os.fork()
    if not child:
        images_lock.Transaction.commit = lambda *_: os._exit(0)  # type: ignore[method-assign]
        images_lock.restore_tag(ours, name, f"{name.repository}:kept")
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert ours.project.lock.read_bytes() == before


def test_a_rebuild_that_ends_before_it_is_recorded_is_recorded_next(
    small: Project, endpoint: Endpoint, repository: str
) -> None:
    stock(small, endpoint, repository, (1, 2), ())
    ours, name = workspace(small, endpoint), ImageName(repository, 1)
    lock = _pruned(small, endpoint, name)
    # A process that ended before it gave the tag leaves the number pruned.
    lock_file.write_journal(small, name, "")
    with images_lock.transaction(ours) as transaction:
        assert transaction.lock.image(name) != lock.image(name)
    assert not [*small.journal.glob("*.json")]
    _killed_before_the_record(ours, name)
    with images_lock.transaction(ours) as transaction:
        assert transaction.lock == lock
    assert lock_file.read_lock(small.lock) == lock


@pytest.mark.long
def test_a_rebuild_with_nothing_to_tag_records_what_a_killed_one_tagged(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    builder("build", "chat")
    name = ImageName(repository, 1)
    lock = _pruned(small, endpoint, name)
    _killed_before_the_record(workspace(small, endpoint), name)
    builder("rebuild", str(name))
    assert lock_file.read_lock(small.lock) == lock
    assert not [*small.journal.glob("*.json")]
