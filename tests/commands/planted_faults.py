"""Ten faults, each planted between two numbers of a small project with much else that differs: on which axis each is,
and what a bisection has to answer. Two judges are noisy; in two histories some candidates do not build or start."""

from __future__ import annotations

import difflib
import subprocess
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.base import processes
from builder.base.project import Project
from builder.definitions import container
from builder.definitions.container import LABEL
from builder.engine import bake_run, containers, images
from builder.lab.bisect import points
from tests import projects, shared, shipped_files
from tests.commands import git_upstream, serving
from tests.commands.serving import MODEL
from tests.conftest import BASE, remove_all, run_command
from tests.sources import wheelhouse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from builder.engine.client import Endpoint
    from tests.commands.git_upstream import Upstream


COMMITS, PLANTED = 1024, 700
HOLES = (*range(500, 531), *range(690, 698))
VERSIONS = tuple(f"1.{number}" for number in range(40))
IMAGE = """\
repository: {repository}
description: much that may be broken
platform: host
base: {base}
sources:
  vllm: {{git: "{url}", ref: main, pulls: {pulls}}}
python: {{version: "3.11", glibc: "2.36", packages: {packages}, as_of: today}}
serve: {{gpus: none, ipc: private, shm_size: 64m}}
mods: {mods}
"""
DOCKERFILE = """\
{% import "_parts/metadata.j2" as parts_metadata %}
{% import "_parts/mods.j2" as parts_mods %}
FROM scratch AS vllm-source
FROM {{ base }} AS base
ARG SOURCE_DATE_EPOCH
RUN --mount=type=bind,from=vllm-source,target=/run/builder/source \\
    --mount=type=bind,source=patches,target=/run/builder/patches \\
    --mount=type=bind,source=python,target=/run/builder/python <<'END'
# the vllm wheel
set -eu
site=/usr/lib/python3/dist-packages
cp -R /run/builder/source/vllm "$site/vllm"
test ! -e "$site/vllm/unbuildable"
cd "$site"
for patch in /run/builder/patches/*-*.patch; do
    GIT_DIR=/dev/null git apply "$patch"
done
mkdir "$site/vllm-{{ sources.vllm.version }}.dist-info"
printf 'Metadata-Version: 2.1\\nName: vllm\\nVersion: {{ sources.vllm.version }}\\n' \\
    > "$site/vllm-{{ sources.vllm.version }}.dist-info/METADATA"
cp /run/builder/python/*.txt /usr/share/
END
ENV FIRST=1
# settings
{{ parts_metadata.write(workspace) }}
{{ parts_mods.bake(mods, workspace, "base") }}
"""
RECIPE = """\
recipe_version: "1"
name: {name}
model: {model}
container: {repository}
mods: []
defaults: {{port: {port}}}
command: |
  vllm serve {model} --port {{port}} --host 127.0.0.1
{options}"""
PARSERS = "".join(f"def parse_{number}(text):\n    return text\n\n\n" for number in range(9))
# One of these flags makes it answer wrongly, one needs another that comes with it.
STANDIN = (
    ('"root": sys.argv[2]', '"root": "bad" if "--lossy" in sys.argv else "good"'),
    ("if crashes():", 'if crashes() or ("--overlap" in sys.argv and "--async" not in sys.argv):'),
)


@dataclass
class Planting:
    """A project in which a fault is planted, with what its images are made from: a git server, a package index, and two
    bases of which the second has newer packages."""

    project: Project
    repository: str
    upstream: Upstream
    commits: tuple[str, ...]
    name: str
    port: int
    environ: dict[str, str]
    mods: tuple[str, ...]

    def builder(self, *arguments: str) -> str:
        return run_command(self.project, *arguments, environ=self.environ, timeout=600).stdout

    def define(self, *, base: int = 1, packages: str = "1.0", pulls: tuple[int, ...] = (7, 8)) -> None:
        """Writes image.yaml; ``packages`` is the version of the one that has many, the others' goes with it."""
        others = "2.0" if packages == "1.0" else "2.1"
        listed = [f"quantizer=={others}", f"tokens=={packages}", f"xgrammar=={others}"]
        text = IMAGE.format(
            repository=self.repository, base=f"{self.repository}-base:{base}", url=self.upstream.url, pulls=list(pulls),
            packages=str(listed).replace("'", '"'), mods=list(self.mods),
        )  # fmt: skip
        projects.write(self.project.root / "dockerfiles/trial/image.yaml", text)

    def template(self, *lines: str) -> None:
        """Writes the template with these lines in their place."""
        text = DOCKERFILE.replace("# settings\n", "".join(f"{line}\n" for line in lines))
        projects.write(self.project.root / "dockerfiles/trial/Dockerfile.j2", text)

    def parsers(self, *changed: int) -> None:
        """Makes the mod's patch change these functions."""
        new = PARSERS
        for number in changed:
            new = new.replace(f"def parse_{number}(text):\n    return text\n", _changed(number))
        patch = "".join(
            difflib.unified_diff(
                PARSERS.splitlines(True), new.splitlines(True), "a/vllm/parsers.py", "b/vllm/parsers.py"
            )
        )
        projects.write(self.project.mods / "parsers/parsers.patch", patch)

    def recipe(self, *options: str) -> None:
        lines = "".join(f"    {option} \\\n" for option in options)
        text = RECIPE.format(
            name=self.name, model=MODEL, repository=self.repository, port=self.port, options=""
        )  # fmt: skip
        if lines:
            text = text.rstrip("\n") + " \\\n" + lines.removesuffix(" \\\n") + "\n"
        projects.write(self.project.recipes / "chat.yaml", text)

    def git(self, *arguments: str) -> None:
        identity = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=self.project.root, check=True, capture_output=True)


def _changed(number: int) -> str:
    return f'def parse_{number}(text):\n    return text.strip() if text != "{number}" else ""\n'


@dataclass(frozen=True)
class Fault:
    """A planted fault: ``plant`` makes the numbers, the last one broken; ``check`` is shell code that fails where the
    fault is, in a container of the image, or where ``serves``, on the machine with the server's address. With ``noise``
    that verdict is turned round in so many percent of the trials of a broken image; the commits in ``holes`` do not
    build. The answer is a ``unit`` whose name begins so, with the ``bad`` point where it has points, and the text
    ``change`` where it has one, without the ``spared`` that is of another unit."""

    name: str
    axis: str
    unit: str
    plant: Callable[[Planting], None]
    check: str
    bad: Callable[[Planting], str] = lambda _: ""
    serves: bool = False
    noise: int = 0
    holes: tuple[int, ...] = ()
    change: str = ""
    spared: str = "nothing else"


def _everything(planting: Planting) -> None:
    """Changes a little on every axis."""
    planting.define(base=2, packages="1.39", pulls=(7, 8, 9))
    planting.template("ENV SECOND=1", "ENV THIRD=1")
    planting.parsers(0, 2, 4, 6)


def _numbers(planting: Planting, *last: str) -> None:
    planting.builder("build", "trial", "--update", f"vllm={planting.commits[0]}")
    _everything(planting)
    planting.builder("build", "trial", "--update", "vllm", "--update", "base", *last)


def _three_numbers(planting: Planting) -> None:
    planting.builder("build", "trial", "--update", f"vllm={planting.commits[0]}")
    planting.parsers(0, 2)
    planting.builder("build", "trial")
    _everything(planting)
    planting.builder("build", "trial", "--update", "vllm", "--update", "base")


def _flags(planting: Planting) -> None:
    planting.git("init", "--quiet")
    planting.recipe("--first")
    planting.git("add", "recipes")
    planting.git("commit", "--quiet", "--message", "a recipe", "--date", "2026-01-01T00:00:00Z")
    planting.builder("build", "trial", "--update", "vllm")
    planting.parsers(0, 2)
    planting.builder("build", "trial")
    planting.recipe("--first", "--overlap", "--lossy", "--plain", "--async")


def _python(code: str) -> str:
    return f"python3 -c '{code}'"


def _planted_commit(planting: Planting) -> str:
    return planting.commits[PLANTED]


_TOOL = _python("import sys, vllm.tools; sys.exit(vllm.tools.ANSWER)")
_ROOT = """\
python3 -c 'import json, os, sys, urllib.request
listing = json.load(urllib.request.urlopen(os.environ["BUILDER_ADDRESS"] + "/models", timeout=120))
sys.exit(listing["data"][0]["root"] != "good")'
"""
FAULTS = (
    Fault("a commit", "vllm", "vllm", _numbers, _TOOL, _planted_commit),
    Fault("a commit, noisy", "vllm", "vllm", _numbers, _TOOL, _planted_commit, noise=25),
    Fault("a commit, holes", "vllm", "vllm", _numbers, _TOOL, _planted_commit, holes=HOLES),
    Fault(
        "a package's version", "Python packages", "package tokens", _numbers,
        "test \"$(sed -n 's/^tokens==1[.]\\([0-9]*\\).*/\\1/p' /usr/share/packages.txt)\" -lt 23", lambda _: "1.23",
    ),
    Fault(
        "a mod", "mod parsers", "mod parsers", _three_numbers,
        _python("import sys, vllm.parsers; sys.exit(vllm.parsers.parse_4(\"4\") != \"4\")"),
        change='text != "4"', spared="THIRD",
    ),
    Fault(
        "a template", "template", "template", _numbers, 'test -z "${THIRD:-}"', change="+ENV THIRD=1", spared="text !=",
    ),
    Fault(
        "a template, noisy", "template", "template", _numbers, 'test -z "${SECOND:-}"', noise=30,
        change="+ENV SECOND=1", spared="text !=",
    ),
    # That of a flag alone does not start, where the one that it needs is not there.
    Fault(
        "a flag, holes", "recipe", "recipe, --lossy", _flags, _ROOT, serves=True, change="--lossy", spared="--async",
    ),
    Fault(
        "a package of the base", "base image", "base image", _numbers, "test ! -e /usr/bin/tree",
        change="+package tree ",
    ),
    Fault(
        "a pull request", "pull requests", "pull request vllm#9", _numbers,
        _python("import sys, importlib.util; sys.exit(importlib.util.find_spec(\"vllm.pull_9\") is not None)"),
    ),
)  # fmt: skip


def script(fault: Fault, folder: Path) -> Path:
    """The judge of a fault, as a program."""
    inside = f"docker run --rm -i \"$BUILDER_IMAGE\" sh <<'EOF'\n{fault.check}\nEOF"
    check = f"check() {{\n{fault.check if fault.serves else inside}\n}}\n"
    noise = f"""\
if [ "$verdict" != 0 ]; then
    count=$(($(cat {folder}/count 2>/dev/null || echo 0) + 1))
    echo "$count" > {folder}/count
    drawn=$(printf '%s' "$count" | cksum | cut -d ' ' -f 1)
    if [ $((drawn % 100)) -lt {fault.noise} ]; then verdict=0; fi
fi
"""
    path = folder / "judge.sh"
    body = f"#!/bin/sh\n{check}verdict=0\ncheck || verdict=1\n{noise if fault.noise else ''}exit $verdict\n"
    projects.write(path, body)
    path.chmod(0o755)
    return path


@contextmanager
def planting(endpoint: Endpoint, folder: Path, base: str, fault: Fault) -> Iterator[Planting]:
    """A project with one fault planted; everything that it makes is gone at the end."""
    repository = shared.unique_name()
    name = container.container_name(shared.unique_name())  # the server has its container's name
    with ExitStack() as stack:
        upstream = stack.enter_context(git_upstream.serving(folder / "git"))
        index = stack.enter_context(wheelhouse.serving(_wheels(folder / "index")))
        for name_of_images in (repository, f"{repository}-base"):
            stack.callback(remove_all, endpoint, name_of_images)
        stack.callback(_remove_servers, endpoint, name)
        made = Planting(
            project=_project(folder / "project"),
            repository=repository,
            upstream=upstream,
            commits=_history(upstream, holes=fault.holes),
            name=name,
            port=processes.free_port(),
            environ={
                "PIP_INDEX_URL": f"{index.url}/simple",
                "HF_ENDPOINT": "http://127.0.0.1:9",
                "HOME": str(folder / "home"),
            },
            mods=("parsers", *(["standin"] if fault.serves else [])),
        )
        stack.callback(_remove_candidates, endpoint, made.project)
        for number in (1, 2):
            _tag(f"{base}:{number}", f"{repository}-base:{number}")
        made.define()
        made.template()
        made.parsers(0)
        made.recipe()
        fault.plant(made)
        yield made


def _tag(old: str, new: str) -> None:
    subprocess.run(["docker", "tag", old, new], check=True)


def _remove_candidates(endpoint: Endpoint, project: Project) -> None:
    """Removes those of a bisection that was interrupted."""
    for tag in images.image_tags(endpoint, [points.candidate_repository(project)]):
        images.remove_image(endpoint, tag)


def _remove_servers(endpoint: Endpoint, name: str) -> None:
    for service in containers.labelled(endpoint, LABEL):
        if service.name.startswith(name):
            containers.remove_container(endpoint, service.id)


def _project(root: Path) -> Project:
    import shutil

    shutil.copytree(shipped_files.project().root / "dockerfiles/_parts", root / "dockerfiles/_parts")
    text = projects.replaced((serving.HERE / "standin.py").read_text(encoding="utf-8"), *STANDIN)
    projects.add_mod(root, "standin", "install -m 755 vllm /usr/local/bin/vllm\n", {"vllm": text})
    mod = "description: other parsers\npatches: [{file: parsers.patch, package: vllm}]\n"
    projects.write(root / "mods/parsers/mod.yaml", mod)
    return Project(root)


def make_base(endpoint: Endpoint, folder: Path) -> str:
    """Makes two base images with Python and git, of which the second has one more package; returns their repository,
    which is removed at the end of the session."""
    repository = f"{shared.unique_name()}-base"
    shared.remove_at_end(repository)
    own = f"FROM {BASE}\nRUN apt-get update -qq && apt-get install -qq -y --no-install-recommends python3 git\n"
    for number, more in ((1, ""), (2, "RUN apt-get install -qq -y tree\n")):
        context = folder / f"base-{number}"
        projects.write(context / "Dockerfile", own + more)
        projects.write(context / "bake.json", '{"target": {"image": {"context": "."}}}')
        bake_run.bake_targets(
            endpoint, context, names={"image": f"{repository}:{number}"},
            log_path=context / "log", on_event=lambda _: None, environ={},
        )  # fmt: skip
    return repository


def _wheels(folder: Path) -> Path:
    for version in VERSIONS:
        wheelhouse.make_wheel(folder, "tokens", version)
    wheelhouse.make_wheel(folder, "uv", "1.0")
    for name in ("quantizer", "xgrammar"):
        for version in ("2.0", "2.1"):
            wheelhouse.make_wheel(folder, name, version)
    wheelhouse.make_simple_index(folder)
    return folder


def _history(upstream: Upstream, *, holes: tuple[int, ...]) -> tuple[str, ...]:
    """1,024 commits, each of which writes its number into a file; the one planted breaks another one. Those in
    ``holes`` have what does not build."""

    def changes(number: int) -> str:
        files = {"vllm/number": f"{number}\n"}
        if number == 0:
            files |= {"vllm/__init__.py": "", "vllm/parsers.py": PARSERS, "vllm/tools.py": "ANSWER = 0\n"}
        if number == PLANTED:
            files |= {"vllm/tools.py": "ANSWER = 1\n"}
        if number in holes:
            files |= {"vllm/unbuildable": ""}
        mended = "D vllm/unbuildable\n" if number - 1 in holes and number not in holes else ""
        return git_upstream.written(files) + mended

    commits = tuple(
        upstream.write_main(
            COMMITS,
            lambda number: "[Frontend] Stream `arguments`" if number == PLANTED else f"commit {number}",
            changes,
        )
    )
    upstream.git("fetch", "--quiet", "origin")
    for number in (7, 8, 9):
        upstream.git("checkout", "--quiet", "-B", "feature", commits[0])
        projects.write(upstream.work / f"vllm/pull_{number}.py", "")
        upstream.git("add", ".")
        upstream.git("commit", "--quiet", "--message", f"feature {number}")
        upstream.git("push", "--quiet", "origin", f"HEAD:refs/pull/{number}/head")
    return commits
