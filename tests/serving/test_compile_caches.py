"""What images compile: which numbers share it, and that nothing incomplete or damaged is used again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.definitions import image
from builder.definitions.container import compile_cache
from builder.engine.client import Endpoint
from builder.lock import lock_file
from builder.lock.model import ImageName
from builder.plan.making import ImageInputs, make_plan
from builder.serving import compile_caches
from tests import projects, shipped_files
from tests.commands import kept
from tests.commands.kept import Kept
from tests.conftest import BASE
from tests.plan import shipped
from tests.plan.test_making import MAKE_PINS

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.definitions.mod import Mod
    from builder.plan.plan_model import Plan

PLATFORM = "linux/arm64"
HERE = Endpoint("unix:///nowhere", ("docker", "buildx"), "a test")
INFORMATION = "driver/nvidia/gpus/0000:01/information"
SPARK = "Model: \t\t NVIDIA GB10\nIRQ: \t 12\n"
PACKAGES = ("torch", "triton", "flashinfer-python", "b12x", "tilelang", "nvidia-cuda-runtime", "fastapi")


@pytest.fixture
def numbers(tmp_path: Path) -> Kept:
    return kept.start(tmp_path)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    projects.write(tmp_path / "proc" / INFORMATION, SPARK)
    return tmp_path / "proc"


def plan_with(*mods: Mod) -> Plan:
    definition = image.load_image(shipped_files.project(), "cpu", "linux/amd64")
    return make_plan(ImageInputs(definition, MAKE_PINS, {}, mods), None)


def flashqla(numbers: Kept) -> ImageName:
    """A number on the definition dflash, with all packages that matter, and a mod of each kind."""
    name = numbers.add(shipped.plan("flashqla", "git", PLATFORM))
    for mod, files in {
        "template": {"run.sh": '#!/bin/sh\nset -e\ncp chat.jinja "$WORKSPACE_DIR/"\n', "chat.jinja": "one"},
        "kernels": {"mod.yaml": "files: [{from: kernel.py, package: vllm}]\n", "kernel.py": "x = 1"},
    }.items():
        for path, text in files.items():
            projects.write(numbers.folder(name) / "mods" / mod / path, text)
        edit(
            numbers, name, lambda plan, mod=mod: plan["steps"].append({"name": f"mod {mod}", "takes": {"content": "1"}})
        )
    edit(numbers, name, lambda plan: takes(plan, "python packages").update(dict.fromkeys(PACKAGES, "1.0")))
    return name


def takes(plan: dict[str, list[dict[str, dict[str, str]]]], step: str) -> dict[str, str]:
    return next(each["takes"] for each in plan["steps"] if each["name"] == step)  # type: ignore[comparison-overlap]


def edit(numbers: Kept, name: ImageName, change: Callable[..., object]) -> None:
    file = numbers.folder(name) / "plan.json"
    plan = json.loads(file.read_text(encoding="utf-8"))
    change(plan)
    file.write_text(json.dumps(plan), encoding="utf-8")


def key(numbers: Kept, name: ImageName, proc: Path) -> str:
    image = lock_file.read_lock(numbers.project.lock).image(name)
    assert image
    return compile_caches.cache_key(numbers.project, name, image, proc)


@pytest.mark.parametrize(
    ("step", "part", "value"),
    [
        ("dflash: base", "content", f"sha256:{'c' * 64}"),
        ("dflash: vllm", "version", "0.20.0"),
        ("dflash: vllm", "commit", "c" * 40),
        ("dflash: flashinfer", "commit", "c" * 40),
        *(("python packages", package, "2.0") for package in PACKAGES if package != "fastapi"),
        ("mod kernels", "content", "2"),
    ],
)
def test_what_is_compiled_from_other_parts_is_not_used(
    numbers: Kept, proc: Path, step: str, part: str, value: str
) -> None:
    name = flashqla(numbers)
    before = key(numbers, name, proc)
    edit(numbers, name, lambda plan: takes(plan, step).update({part: value}))
    assert key(numbers, name, proc) != before


def test_another_chip_and_another_step_of_the_dockerfile_are_not_the_same(numbers: Kept, proc: Path) -> None:
    name = flashqla(numbers)
    keys = {key(numbers, name, proc)}
    dockerfile = numbers.folder(name) / "Dockerfile"
    projects.write(dockerfile, dockerfile.read_text(encoding="utf-8") + "ENV TORCH_CUDA_ARCH_LIST=12.0\n")
    keys.add(key(numbers, name, proc))
    projects.write(proc / INFORMATION, SPARK.replace("GB10", "H100"))
    keys.add(key(numbers, name, proc))
    (numbers.folder(name) / "plan.json").unlink()
    keys.add(key(numbers, name, proc))
    assert len(keys) == 4


def test_a_template_and_a_package_that_compiles_nothing_change_nothing(numbers: Kept, proc: Path) -> None:
    name = flashqla(numbers)
    before = key(numbers, name, proc)
    edit(numbers, name, lambda plan: takes(plan, "mod template").update(content="2"))
    edit(numbers, name, lambda plan: takes(plan, "python packages").update(fastapi="2.0"))
    assert key(numbers, name, proc) == before


def test_a_further_template_changes_nothing_in_the_dockerfile_that_counts(numbers: Kept, proc: Path) -> None:
    mods = [kept.baked(name, {"run.sh": "cp a.jinja /a.jinja\n", "a.jinja": name}) for name in ("one", "two")]
    with_one, with_two = (numbers.add(plan_with(*each)) for each in (mods[:1], mods))
    assert key(numbers, with_one, proc) == key(numbers, with_two, proc)


@pytest.mark.parametrize(
    ("files", "harmless"),
    [
        (
            {"run.sh": 'set -euo pipefail\n# comment\ncp a.jinja "$WORKSPACE_DIR/a.jinja"\necho done\n', "a.jinja": ""},
            True,
        ),
        ({"run.sh": "if [ -d /x ]; then\n  cp a.jinja /x/\nfi\n", "a.jinja": ""}, True),
        ({"mod.yaml": "description: x\nfiles: [{from: a.jinja, to: .}]\n", "a.jinja": ""}, True),
        ({"run.sh": "cp a.jinja /x\npip install six\n", "a.jinja": ""}, False),
        ({"run.sh": "cp a.jinja $(python3 -c 'print(1)')\n", "a.jinja": ""}, False),
        ({"run.sh": "cp a.jinja /usr/lib/python3/dist-packages/vllm/x.jinja\n", "a.jinja": ""}, False),
        ({"run.sh": "cp a.jinja /x\n", "a.jinja": "", "b.py": ""}, False),
        ({"run.sh": "echo x > /usr/lib/x\n"}, False),
        ({"run.sh": "cp a.txt /vllm/x.py\n", "a.txt": ""}, False),
        ({"run.sh": "sed -i s/a/b/ /x\n"}, False),
        ({"mod.yaml": "packages: [six==1]\n"}, False),
        ({"mod.yaml": "env: {A: b}\n"}, False),
        ({"mod.yaml": '{"patches": [{"file": "a.txt"}]}', "a.txt": ""}, False),
        ({"mod.yaml": "files: [{from: a.json, package: vllm, to: x}]\n", "a.json": ""}, False),
    ],
)
def test_a_mod_that_only_brings_data(tmp_path: Path, files: dict[str, str], *, harmless: bool) -> None:
    for path, text in files.items():
        projects.write(tmp_path / path, text)
    assert compile_caches.is_harmless(tmp_path) == harmless


def test_the_shipped_template_is_harmless_and_the_kernels_are_not() -> None:
    mods = shipped_files.project().mods
    assert compile_caches.is_harmless(mods / "fix-qwen3.5-enhanced-chat-template")
    assert not compile_caches.is_harmless(mods / "flashqla")
    assert not compile_caches.is_harmless(mods / "int8-lm-head")


def test_a_number_uses_the_folder_of_the_first_that_compiled_from_the_same(numbers: Kept, tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    one, two, other = (
        numbers.add(plan_with(kept.baked("m", {"run.sh": f"cp {file} /x\n", file: text})))
        for file, text in (("a.jinja", "1"), ("a.jinja", "2"), ("a.py", "1"))
    )
    lock = lock_file.read_lock(numbers.project.lock)

    def owner(name: ImageName) -> ImageName:
        return compile_caches.shared_with(numbers.project, environ, name)

    assert (owner(one), owner(two)) == (one, two)
    folder = environ_folder(environ, one)
    projects.write(folder / "vllm/kernel", "x")
    assert (owner(one), owner(two), owner(other)) == (one, one, other)
    caches = compile_caches.find_compile_caches(HERE, environ, [one])
    assert [cache.name for cache in caches] == [one]
    assert compile_caches.without_used(numbers.project, lock, caches, {one}) == ()
    assert compile_caches.without_used(numbers.project, lock, caches, {one, two}) == caches


def environ_folder(environ: dict[str, str], name: ImageName) -> Path:
    return Path(compile_cache(environ, name.repository, name.number))


def test_only_what_is_complete_is_used_again(tmp_path: Path) -> None:
    for path in ("vllm/a/kernel", "triton/b", "flashinfer/c"):
        projects.write(tmp_path / path, "complete")
    (tmp_path / "tilelang").symlink_to("/etc")
    assert compile_caches.begin(HERE, tmp_path, "x:1") == ()
    compile_caches.record_complete(tmp_path)
    assert compile_caches.begin(HERE, tmp_path, "x:1") == ()

    # A server that has answered compiles more, and ends well.
    compile_caches.record_complete(tmp_path)
    projects.write(tmp_path / "triton/later", "complete")
    projects.write(tmp_path / "flashinfer/c", "complete, and written again")
    assert compile_caches.begin(HERE, tmp_path, "x:1") == ()
    compile_caches.record_complete(tmp_path)
    compile_caches.begin(HERE, tmp_path, "x:1")
    projects.write(tmp_path / "triton/last", "comp")

    # The next one is killed in the middle; a disk loses bits, with neither size nor time changed.
    projects.write(tmp_path / "vllm/a/half", "hal")
    times = (tmp_path / "triton/b").stat()
    projects.write(tmp_path / "triton/b", "complets")
    os.utime(tmp_path / "triton/b", ns=(times.st_atime_ns, times.st_mtime_ns))
    removed = compile_caches.begin(HERE, tmp_path, "x:1")
    assert set(removed) == {"triton/b", "triton/last", "vllm/a/half"}
    left = {
        str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".json"
    }
    assert left == {"vllm/a/kernel", "flashinfer/c", "triton/later", "begun"}
    assert (tmp_path / "tilelang").is_symlink()


def test_what_was_compiled_after_the_first_answer_is_recorded_at_the_end(tmp_path: Path) -> None:
    projects.write(tmp_path / "triton/first", "complete")
    compile_caches.record_added(tmp_path / "missing")
    compile_caches.record_complete(tmp_path)
    projects.write(tmp_path / "triton/later", "complete")
    times = (tmp_path / "triton/first").stat()
    projects.write(tmp_path / "triton/first", "lost bit")
    os.utime(tmp_path / "triton/first", ns=(times.st_atime_ns, times.st_mtime_ns))
    compile_caches.record_added(tmp_path)
    assert set(compile_caches.complete_files(tmp_path)) == {"triton/first", "triton/later"}
    assert compile_caches.begin(HERE, tmp_path, "x:1") == ("triton/first",)

    # This start never answers.
    projects.write(tmp_path / "triton/half", "comp")
    compile_caches.record_added(tmp_path)
    assert compile_caches.begin(HERE, tmp_path, "x:1") == ("triton/half",)
    assert (tmp_path / "triton/later").read_text() == "complete"


def test_a_first_start_that_was_killed_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    compile_caches.begin(HERE, tmp_path, "x:1")
    projects.write(tmp_path / "vllm/half", "h")
    assert compile_caches.begin(HERE, tmp_path, "x:1") == ("vllm/half",)
    assert list((tmp_path / "vllm").iterdir()) == []


def test_a_damaged_record_and_one_that_leads_elsewhere_remove_nothing_elsewhere(tmp_path: Path) -> None:
    projects.write(tmp_path / "mine", "mine")
    folder = tmp_path / "cache"
    projects.write(folder / "vllm/kernel", "x")
    compile_caches.record_complete(folder)
    text = (folder / "complete.json").read_text(encoding="utf-8")
    projects.write(folder / "complete.json", text.replace("vllm/kernel", "../mine"))
    assert compile_caches.begin(HERE, folder, "x:1") == ()
    assert (tmp_path / "mine").read_text() == "mine"
    projects.write(folder / "complete.json", text[:20])
    (folder / "begun").unlink()
    assert compile_caches.begin(HERE, folder, "x:1") == ()
    assert (folder / "vllm/kernel").read_text() == "x"


def test_a_file_that_lost_bits_is_not_used_after_a_good_start(tmp_path: Path) -> None:
    projects.write(tmp_path / "triton/b", "complete")
    compile_caches.record_complete(tmp_path)
    times = (tmp_path / "triton/b").stat()
    projects.write(tmp_path / "triton/b", "complets")
    os.utime(tmp_path / "triton/b", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert compile_caches.begin(HERE, tmp_path, "x:1") == ("triton/b",)


def test_the_chip_is_the_gpu_and_without_one_the_processor_and_what_it_can_do() -> None:
    cpu = "model name\t: A CPU\nflags\t\t: avx512 avx2\nmodel name\t: A CPU\nflags\t\t: avx512 avx2\n"
    assert compile_caches.parse_chips(SPARK + SPARK + cpu) == ("NVIDIA GB10",)
    name, able = compile_caches.parse_chips(cpu)
    assert name == "A CPU"
    assert compile_caches.parse_chips(cpu.replace("avx512 ", "")) != (name, able)


@pytest.mark.engine
def test_any_number_of_files_of_root_is_removed_before_a_start(
    tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More paths than the arguments of one command may have: 2 MiB. Only the files that are gone count as removed."""
    folder = "/".join(["vllm", *("d" * 240 for _ in range(14))])
    (tmp_path / folder).mkdir(parents=True)
    compile_caches.begin(HERE, tmp_path, "x:1")
    names = [f"{folder}/{number:0240}" for number in range(600)]
    assert sum(map(len, names)) > 1 << 21
    for name in names:
        (tmp_path / name).touch()

    def refuse(_path: Path, **_options: bool) -> None:
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        assert compile_caches.begin(HERE, tmp_path, "x:1") == ()  # this engine does not answer
        assert compile_caches.begin(endpoint, tmp_path, BASE) == tuple(names)
    assert list((tmp_path / folder).iterdir()) == []
