"""The targets that a recorded build is baked from are those of its plan, whatever its bake file says."""

from __future__ import annotations

import json
import os
import shutil
import socket
from typing import TYPE_CHECKING, Any

import pytest

from builder.base.errors import FileProblemsError
from builder.lock import lock_file
from builder.numbers import build_directory
from builder.plan import plan_model
from builder.plan.plan_model import Step
from tests import projects
from tests.commands import kept
from tests.commands.kept import Kept
from tests.plan import shipped
from tests.plan.test_making import MAKE_PINS, cpu_plan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from builder.lock.model import ImageName
    from builder.plan.plan_model import StagedFile


PLATFORM = "linux/arm64"


@pytest.fixture
def numbers(tmp_path: Path) -> Kept:
    return kept.start(tmp_path)


@pytest.mark.parametrize(("name", "mode"), shipped.MODES)
def test_they_are_those_of_the_plan(numbers: Kept, name: str, mode: str) -> None:
    plan = shipped.plan(name, mode, PLATFORM)
    directory = build_directory.read_build_directory(numbers.project, numbers.add(plan))
    assert build_directory.bake_targets_of(directory, PLATFORM) == plan.targets


def refused(numbers: Kept, change: Callable[[Any], object]) -> str:
    name = numbers.add(shipped.plan("flashqla", "git", PLATFORM))
    file = numbers.folder(name) / "bake.json"
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))
    with pytest.raises(FileProblemsError) as raised:
        build_directory.bake_targets_of(build_directory.read_build_directory(numbers.project, name), PLATFORM)
    assert raised.value.message.startswith(f"builds/{name}/bake.json:1:1: ".replace(":1/", "/1/"))
    return raised.value.message


CHANGES: list[tuple[Callable[[Any], object], str]] = [
    (lambda d: d["target"]["image"].update(secret=["id=x,src=/etc/shadow"]), "`secret` of target image"),
    (lambda d: d["target"]["dflash"].update(secret=["id=x,env=HF_TOKEN"]), "`secret` of target dflash"),
    (lambda d: d["target"]["dflash"].update(context="/etc"), "`context` of target dflash"),
    (lambda d: d["target"]["dflash"].update(context=".."), "`context` of target dflash"),
    (lambda d: d["target"]["dflash"]["contexts"].update(etc="/etc"), "`contexts` of target dflash"),
    (lambda d: d["target"]["image"]["contexts"].update(dflash="/etc"), "`contexts` of target image"),
    (lambda d: d["target"]["image"]["contexts"].update(dflash="target:other"), "`contexts` of target image"),
    (
        lambda d: d["target"]["dflash"]["contexts"].update({"vllm-source": "/x#" + "a" * 40}),
        "`contexts` of target dflash",
    ),
    (
        lambda d: d["target"]["dflash"]["contexts"].update({"vllm-source": "https://x.org/v#" + "b" * 40}),
        "`contexts` of target dflash",
    ),
    (lambda d: d["target"]["image"].update({"cache-to": ["type=local,dest=/tmp/x"]}), "`cache-to` of target image"),
    (lambda d: d["target"]["image"].update(output=["type=local,dest=/tmp/x"]), "`output` of target image"),
    (lambda d: d["target"]["image"].update(labels={"x": "y"}), "`labels` of target image"),
    (lambda d: d["target"]["image"]["args"].update(SOURCE_DATE_EPOCH="1764000000 "), "`args` of target image"),
    (lambda d: d["target"]["image"]["args"].update(SOURCE_DATE_EPOCH="1764000000x"), "`args` of target image"),
    (lambda d: d["target"].update(other={"context": "/etc"}), "target other"),
    (lambda d: d["target"].pop("dflash"), "of target dflash"),
    (lambda d: d.update(function={"x": {}}), "`function`"),
    (lambda d: d.update(group={"default": {"targets": ["dflash"]}}), "`group`"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_what_no_plan_has_is_refused(numbers: Kept, change: Callable[[Any], object], message: str) -> None:
    assert message in refused(numbers, change)


def test_what_no_plan_has_is_listed_in_order(numbers: Kept) -> None:
    name = numbers.add(cpu_plan())
    file = numbers.folder(name) / "bake.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **{key: {} for key in "hgfedcba"}}))
    directory = build_directory.read_build_directory(numbers.project, name)
    assert list(build_directory.deviations(directory, "linux/amd64")) == [f"`{key}`" for key in "abcdefgh"]


@pytest.mark.slow
def test_not_more_is_told_than_can_be_read(numbers: Kept) -> None:
    message = refused(numbers, lambda d: d["target"].update({f"{n}{'x' * 10_000}": {} for n in range(1000)}))
    assert len(message) < 5000


def test_a_plan_without_the_image_itself_is_refused(numbers: Kept) -> None:
    name = numbers.add(cpu_plan())
    file = numbers.folder(name) / "plan.json"
    steps = json.loads(file.read_text())["steps"]
    file.write_text(json.dumps({"steps": [{**step, "name": f"x: {step['name']}"} for step in steps]}))
    with pytest.raises(FileProblemsError, match="target image, which the plan does not contain") as caught:
        build_directory.bake_targets_of(build_directory.read_build_directory(numbers.project, name), PLATFORM)
    bake_file = numbers.project.relative(numbers.folder(name) / "bake.json")
    assert caught.value.hint.endswith(f"`git checkout HEAD -- {bake_file}` restores it")


# What is read of a build directory that anybody may have written: its own files, and nothing through them.


@pytest.fixture
def build_files_numbers(tmp_path: Path) -> Kept:
    return kept.start(tmp_path)


def read(numbers: Kept, name: ImageName) -> dict[str, StagedFile]:
    return build_directory.read_build_files(build_directory.read_build_directory(numbers.project, name))


@pytest.mark.parametrize(("name", "mode"), shipped.MODES)
def test_the_files_of_a_plan_are_read(build_files_numbers: Kept, name: str, mode: str) -> None:
    plan = shipped.plan(name, mode, "linux/arm64")
    number = build_files_numbers.add(plan)
    assert read(build_files_numbers, number) == plan.files
    assert list(build_directory.strays(build_directory.read_build_directory(build_files_numbers.project, number))) == []


def test_what_is_no_part_of_it_stays_outside(build_files_numbers: Kept) -> None:
    plan = cpu_plan()
    name = build_files_numbers.add(plan)
    folder = build_files_numbers.folder(name)
    paths = (".git/config", ".dockerignore", "Dockerfile~", "docker-bake.override.hcl", "mods/none/run.sh", "a/b/c")
    for path in paths:
        projects.write(folder / path, "x\n")
    (folder / "Dockerfile").chmod(0o755)
    assert read(build_files_numbers, name) == plan.files
    assert sorted(
        build_directory.strays(build_directory.read_build_directory(build_files_numbers.project, name))
    ) == sorted(paths)


def test_what_a_number_is_recorded_with_is_part_of_it(build_files_numbers: Kept) -> None:
    name = build_files_numbers.add(cpu_plan())
    recorded = lock_file.record_files(build_files_numbers.lock.with_pins("cpu", PLATFORM, MAKE_PINS))
    assert any("transformers" in content.decode() and "5.19.0" in content.decode() for content in recorded.values())
    for path, content in recorded.items():
        projects.write(build_files_numbers.folder(name) / path, content.decode())
    directory = build_directory.read_build_directory(build_files_numbers.project, name)
    assert list(build_directory.strays(directory)) == []


@pytest.mark.parametrize("place", ["Dockerfile", "python/packages.txt", "notes", "mods/x", "python", "mods"])
@pytest.mark.parametrize("kind", ["link", "link to a folder", "pipe", "socket"])
def test_what_leads_elsewhere_is_refused(build_files_numbers: Kept, place: str, kind: str) -> None:
    name = build_files_numbers.add(cpu_plan())
    path = build_files_numbers.folder(name) / place
    if path.exists():
        path.rename(build_files_numbers.project.root / "aside")
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        descriptor = os.open(path.parent, os.O_PATH)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{descriptor}/{path.name}")
        os.close(descriptor)
    else:
        path.symlink_to("/etc" if kind == "link to a folder" else "/etc/hostname")
    with pytest.raises(FileProblemsError) as raised:
        read(build_files_numbers, name)
    assert f"builds/{name.repository}/1/{place}:1:1: neither a file nor a folder" in raised.value.message


def test_all_files_together_have_a_limit(build_files_numbers: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = cpu_plan()
    name = build_files_numbers.add(plan)
    monkeypatch.setattr(plan_model, "LARGEST_BUILD", sum(len(file.content) for file in plan.files.values()))
    assert read(build_files_numbers, name) == plan.files
    monkeypatch.setattr(plan_model, "LARGEST_BUILD", plan_model.LARGEST_BUILD - 1)
    with pytest.raises(FileProblemsError, match="cannot be read: larger than"):
        read(build_files_numbers, name)


def test_only_a_script_that_its_owner_may_run_is_executable(build_files_numbers: Kept) -> None:
    plan = cpu_plan()
    name = build_files_numbers.add(plan)
    (script,) = (path for path in plan.files if path.endswith("/run.sh"))
    for mode, executable in ((0o644, False), (0o744, True), (0o655, False)):
        (build_files_numbers.folder(name) / script).chmod(mode)
        assert read(build_files_numbers, name)[script].executable is executable


@pytest.mark.parametrize(
    ("text", "metadata"),
    [
        (None, {}),
        ("a: [\n", {}),
        ("a: 1\nb: b\n", {}),
        ("[" * 9**5, {}),
        ('vllm: "0.31.0: rc"\nargs: {"a": 1}\n', {"vllm": "0.31.0: rc", "args": {"a": 1}}),
    ],
)
def test_metadata_is_read_as_this_program_writes_it(tmp_path: Path, text: str | None, metadata: dict[str, Any]) -> None:
    if text is not None:
        projects.write(tmp_path / "build-metadata.yaml", text)
    assert build_directory.read_metadata(tmp_path) == metadata


def test_the_packages_of_all_parts_are_known_by_their_versions() -> None:
    steps = (
        Step("tf5: base packages", {"torch": "2.13.0", "six": "1.17"}),
        Step("python packages", {"torch": "2.14.0 4f5e", "ray": "2.50 1a2b"}),
        Step("build packages", {"ninja": "1.13 3c4d"}),
        Step("base packages: x", {"no": "1"}),
    )
    assert build_directory.packages(steps) == {"ray": "2.50", "six": "1.17", "torch": "2.14.0"}


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("plan.json", "", "plan.json:1:1: cannot be read: "),
        ("plan.json", '{"steps": [{"name": "mod ../x", "takes": {}}]}', "`mod ../x` is not a valid step name"),
        ("plan.json", '{"steps": [{"name": "../x: base", "takes": {}}]}', "`../x: base` is not a valid step name"),
        ("bake.json", "[]", "bake.json:1:1: cannot be read: builder did not write this file"),
        ("bake.json", '{"target": {"image": []}}', "bake.json:1:1: cannot be read: builder did not write this file"),
        ("bake.json", '{"target": {"image": {"labels": 1}}}', "cannot be read: builder did not write this file"),
        ("bake.json", '{"target": {"image": {"contexts": {"a": 1}}}}', "builder did not write this file"),
    ],
)
def test_a_damaged_build_directory_is_named(numbers: Kept, file: str, content: str, problem: str) -> None:
    name = numbers.add(cpu_plan())
    projects.write(numbers.folder(name) / file, content)
    with pytest.raises(FileProblemsError) as caught:
        build_directory.read_build_directory(numbers.project, name)
    assert f"builds/{name.repository}/1/{file}:1:1: cannot be read: " in caught.value.message
    assert problem in caught.value.message
    (numbers.folder(name) / file).unlink()
    with pytest.raises(FileProblemsError, match=f"{file}:1:1: cannot be read: No such file or directory"):
        build_directory.read_build_directory(numbers.project, name)
    shutil.rmtree(numbers.folder(name))
    with pytest.raises(FileProblemsError, match=f"the build directory of {name} is missing"):
        build_directory.read_build_directory(numbers.project, name)


def test_a_file_that_is_gone_or_too_large_is_named(build_files_numbers: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    name = build_files_numbers.add(shipped.plan("flashqla", "git", "linux/arm64"))
    (build_files_numbers.folder(name) / "dflash/Dockerfile").unlink()
    with pytest.raises(FileProblemsError, match="1/dflash/Dockerfile:1:1: the file is missing"):
        read(build_files_numbers, name)
    monkeypatch.setattr(plan_model, "LARGEST_FILE", 10)
    with pytest.raises(FileProblemsError, match="1/Dockerfile:1:1: cannot be read: larger than 10 bytes"):
        read(build_files_numbers, name)
