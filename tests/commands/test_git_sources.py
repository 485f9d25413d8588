"""A source from a real git server: pinned once, moved on request, and what moved is said."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from builder.base.project import Project
from builder.building import resolve
from builder.building.request import BuildRequest
from builder.engine.client import Endpoint
from builder.lock import lock_file
from builder.lock.model import GitPin
from builder.pins import vendored
from tests import projects
from tests.commands.git_upstream import Upstream
from tests.conftest import Command
from tests.sources.wheelhouse import make_index, make_wheel
from tests.workspaces import workspace

pytestmark = pytest.mark.engine

IMAGE = """\
sources:
  flashinfer: {{git: "{url}", ref: main, pulls: {pulls}}}
"""
DOCKERFILE = """\
FROM scratch AS flashinfer-source
FROM {{ base }} AS base
ARG SOURCE_DATE_EPOCH
RUN --mount=type=bind,from=flashinfer-source,target=/run/builder/source \\
    --mount=type=bind,source=patches,target=/run/builder/patches <<'EOF'
# the source
set -eu
cp -R /run/builder/source /source
echo {{ sources.flashinfer.version | sh }} > /source/version
ls /run/builder/patches > /source/patches
find /source -exec touch --no-dereference --date=@0 {{ "{}" }} +
EOF
"""


def use(project: Project, upstream: Upstream, pulls: Sequence[int | str]) -> None:
    """Makes ``small`` take a source from ``upstream``."""
    image = project.root / "dockerfiles/small/image.yaml"
    own = image.read_text(encoding="utf-8").partition("sources:")[0]
    projects.write(image, own + IMAGE.format(url=upstream.url, pulls=list(pulls)))
    text = (
        DOCKERFILE
        if pulls
        else DOCKERFILE.replace("ls /run/builder/patches > /source/patches\n", "").replace(
            " \\\n    --mount=type=bind,source=patches,target=/run/builder/patches", ""
        )
    )
    projects.write(project.root / "dockerfiles/small/Dockerfile.j2", text)


def pin(project: Project) -> GitPin:
    (platforms,) = lock_file.read_lock(project.lock).pins.values()
    (pins,) = platforms.values()
    found = pins.sources["flashinfer"]
    assert isinstance(found, GitPin)
    return found


@pytest.mark.long
def test_a_branch_stays_where_it_was_pinned_until_it_is_updated(
    small: Project, builder: Command, upstream: Upstream, repository: str
) -> None:
    first = upstream.commit("the first", serve="1")
    upstream.git("tag", "v0.6.7")
    upstream.git("push", "--quiet", "--tags")
    use(small, upstream, [])
    builder("build", "small")
    assert (pin(small).commit, pin(small).version, pin(small).requested) == (first, "0.6.7", "main")

    second = upstream.commit("a second thought", serve="2")
    assert builder("build", "small").stdout == f"already built as {repository}:1\n"
    assert builder("lock", "--check").stdout == "images.lock has every required pin\n"

    output = builder("lock", "small", "--update", "flashinfer").stdout.splitlines()
    assert output[0].startswith(f"small flashinfer: 0.6.7 ({first[:12]}) → 0.6.8.dev1+g{second[:7]}")
    assert output[1] == "  1 upstream commit in between"
    assert output[2].endswith("a second thought")
    done = builder("build", "small", "--locked")
    assert done.stdout.startswith(f"built {repository}:2 in ")
    assert f"  flashinfer commit: {first[:12]} → {second[:12]}" in done.stdout.splitlines()


def test_one_source_may_be_moved_to_any_ref(small: Project, builder: Command, upstream: Upstream) -> None:
    first = upstream.commit("the first", serve="1")
    upstream.commit("the second", serve="2")
    use(small, upstream, [])
    builder("lock", "small")
    builder("lock", "small", "--update", f"flashinfer={first}")
    assert (pin(small).commit, pin(small).requested) == (first, "main")
    assert "base of small accepts a day or a tag" in builder("lock", "small", "--update", "base=a/b", code=2).stderr
    assert "small has no source `vllm`" in builder("lock", "small", "--update", "vllm", code=2).stderr


@pytest.mark.long
def test_a_frozen_pull_request_survives_a_force_push_and_its_deletion(
    small: Project, builder: Command, upstream: Upstream, repository: str
) -> None:
    upstream.commit("the first", serve="1\n2\n3\n")
    upstream.git("checkout", "--quiet", "-b", "feature")
    upstream.commit("a feature", drafter="new\n")
    upstream.git("push", "--quiet", "origin", "HEAD:refs/pull/40898/head")
    upstream.git("checkout", "--quiet", "main")
    use(small, upstream, [40898])
    builder("build", "small")
    (pull,) = pin(small).patches
    (patch,) = (small.dockerfiles / "small/pulls").iterdir()
    assert patch.name == f"flashinfer-40898-{pull.sha256[:12]}.patch"
    assert (small.builds / repository / "1/patches/flashinfer-40898.patch").read_bytes() == patch.read_bytes()

    # Where the text of others is left out of a project, it is fetched again, and compared.
    content = patch.read_bytes()
    patch.unlink()
    again = builder("build", "small", "--locked", "--force").stderr
    assert "the project does not have the patch of pull request 40898" in again
    assert f"still gives the pinned patch: its SHA-256 is {pull.sha256[:12]}" in again
    assert patch.read_bytes() == content

    upstream.git("push", "--quiet", "origin", ":refs/pull/40898/head", ":feature")
    before = small.lock.read_bytes()
    builder("build", "small", "--locked", "--force")
    assert pin(small).patches == (pull,)
    assert small.lock.read_bytes() != before

    patch.write_bytes(patch.read_bytes() + b"edited\n")
    assert "was edited" in builder("build", "small", code=4).stderr


@pytest.mark.long
def test_adding_and_taking_away_a_pull_request_moves_neither_the_branch_nor_the_others(
    small: Project, builder: Command, upstream: Upstream
) -> None:
    first = upstream.commit("the first", serve="1\n2\n3\n")
    heads = {}
    for number, name in ((7, "drafter"), (8, "sampler")):
        upstream.git("checkout", "--quiet", "-B", "feature", first)
        heads[number] = upstream.commit("a feature", **{name: "new\n"})
        upstream.git("push", "--quiet", "origin", f"HEAD:refs/pull/{number}/head")
    upstream.git("checkout", "--quiet", "main")
    use(small, upstream, [7])
    builder("lock", "small")
    (seven,) = pin(small).patches

    # Upstream goes on: the branch, and the pull request that is pinned.
    second = upstream.commit("the second", serve="2\n2\n3\n")
    upstream.git("checkout", "--quiet", "-B", "feature", heads[7])
    upstream.commit("on it goes", drafter="newer\n")
    upstream.git("push", "--quiet", "origin", "HEAD:refs/pull/7/head")
    upstream.git("checkout", "--quiet", "main")

    use(small, upstream, [7, 8])
    assert ": flashinfer\n" in builder("lock", "--check", code=4).stdout
    builder("lock", "small")
    assert pin(small).commit == first
    assert pin(small).patches[0] == seven
    assert [(pull.number, pull.head) for pull in pin(small).patches] == [(7, heads[7]), (8, heads[8])]
    use(small, upstream, [8])
    builder("lock", "small")
    assert (pin(small).commit, [pull.number for pull in pin(small).patches]) == (first, [8])
    # A pull request that was removed and comes back is vendored as it is then.
    use(small, upstream, [7])
    builder("lock", "small")
    assert (pin(small).commit, pin(small).patches[0].head != heads[7]) == (first, True)

    (patch,) = (small.dockerfiles / "small/pulls").glob(f"flashinfer-7-{pin(small).patches[0].sha256[:12]}.patch")
    patch.unlink()
    use(small, upstream, [7, 8])
    assert "cannot be read" in builder("lock", "small", code=4).stderr
    builder("lock", "small", "--update", "flashinfer")
    assert pin(small).commit == second
    assert builder("lock", "--check").stdout == "images.lock has every required pin\n"


def test_a_pull_request_that_does_not_apply_is_named_before_anything_is_built(
    small: Project, builder: Command, upstream: Upstream
) -> None:
    upstream.commit("the first", serve="1\n2\n3\n")
    upstream.git("checkout", "--quiet", "-b", "feature")
    upstream.commit("a feature", serve="1\ntwo\n3\n")
    upstream.git("push", "--quiet", "origin", "HEAD:refs/pull/7/head")
    upstream.git("checkout", "--quiet", "main")
    upstream.commit("elsewhere", serve="1\nII\n3\n")
    use(small, upstream, [7])
    output = builder("build", "small", code=6).stderr
    assert "pull request 7" in output
    assert "serve.py" in output
    assert not small.lock.exists()
    assert not (small.state / "logs").exists()


@pytest.mark.long
def test_a_wish_that_resolves_to_the_same_is_recorded_without_a_build(
    small: Project, builder: Command, upstream: Upstream, repository: str
) -> None:
    first = upstream.commit("the first", serve="1")
    use(small, upstream, [])
    builder("build", "small")
    image = small.root / "dockerfiles/small/image.yaml"
    projects.write(image, image.read_text(encoding="utf-8").replace("ref: main", f"ref: {first}"))
    assert builder("build", "small").stdout == f"already built as {repository}:1\n"
    assert pin(small).requested == first


@pytest.mark.long
def test_the_closures_follow_what_the_source_itself_says(
    small: Project, builder: Command, upstream: Upstream, tmp_path: Path
) -> None:
    names = ("serve", "kernel", "uv", "torch", "tool", "flashinfer-python")
    wheels = [make_wheel(tmp_path / "files", name, "1.0") for name in names]
    environ = {"PIP_INDEX_URL": make_index(tmp_path / "simple", wheels), "PIP_FIND_LINKS": ""}
    projects.write(upstream.work / "requirements.txt", "-r common.txt\nflashinfer-python==1.0\n")
    projects.write(upstream.work / "common.txt", "kernel  # in a comment\n")
    first = upstream.commit("the first", serve="1")
    use(small, upstream, [])
    image = small.root / "dockerfiles/small/image.yaml"
    text = image.read_text(encoding="utf-8").replace("pulls: []", "requirements: [requirements.txt]")
    projects.write(image, text + 'python: {version: "3.12", packages: [serve], build: [tool]}\n')

    builder("lock", "small", environ=environ)
    (platforms,) = lock_file.read_lock(small.lock).pins.values()
    (pins,) = platforms.values()
    assert pins.python is not None
    assert pins.build is not None
    assert [package.name for package in pins.python.packages] == ["kernel", "serve", "uv"]
    assert f"requirements.txt of flashinfer {first[:12]}" in pins.python.requested
    assert [package.name for package in pins.build.packages] == ["kernel", "tool", "torch"]
    assert builder("lock", "--check").stdout == "images.lock has every required pin\n"


def test_each_package_that_moves_is_listed(small: Project, builder: Command, tmp_path: Path) -> None:
    """Also where the number of packages and the newest upload stay."""
    wheels = [make_wheel(tmp_path / "files", "serve", version) for version in ("1.0", "1.1")]
    wheels.append(make_wheel(tmp_path / "files", "uv", "1.0"))
    environ = {"PIP_INDEX_URL": make_index(tmp_path / "simple", wheels), "PIP_FIND_LINKS": ""}
    image = small.root / "dockerfiles/small/image.yaml"
    text = image.read_text(encoding="utf-8")
    for version in ("1.0", "1.1"):
        projects.write(image, text + f'python: {{version: "3.12", packages: [serve=={version}]}}\n')
        said = builder("lock", "small", environ=environ).stdout
    assert "small python: 2 packages, " in said
    assert "Python packages: 1 up\n    up  serve  1.0 → 1.1\n" in said
    assert builder("lock", "small", environ=environ).stdout == "nothing moved\n"


@pytest.mark.long
def test_two_targets_share_a_pull_request_that_is_frozen_for_the_first(
    small: Project, builder: Command, upstream: Upstream, repository: str
) -> None:
    upstream.commit("the first", serve="1\n")
    upstream.git("checkout", "--quiet", "-b", "feature")
    upstream.commit("a feature", drafter="new\n")
    upstream.git("push", "--quiet", "origin", "HEAD:refs/pull/40898/head")
    use(small, upstream, [40898])
    text = (small.root / "dockerfiles/small/Dockerfile.j2").read_text(encoding="utf-8")
    mods = '{% import "_parts/mods.j2" as parts_mods %}\n{{ parts_mods.bake(mods, workspace, "base") }}\n'
    projects.write(small.root / "dockerfiles/small/Dockerfile.j2", text + "RUN mkdir -p /workspace/vllm\n" + mods)
    upstream.git("checkout", "--quiet", "main")
    builder("build", "small", "chat")
    assert sorted(lock_file.read_lock(small.lock).images[repository].numbers) == [1, 2]


def test_what_resolves_is_pinned_and_every_other_is_named_at_the_end(
    small: Project, builder: Command, upstream: Upstream, endpoint: Endpoint
) -> None:
    commit = upstream.commit("the first", serve="1")
    use(small, upstream, [])
    for name, ref, base in (("typo", "mian", "debian:bookworm-slim"), ("baseless", "main", "localhost:1/none:1")):
        text = (small.dockerfiles / "small/image.yaml").read_text(encoding="utf-8")
        text = text.replace("ref: main", f"ref: {ref}").replace("debian:bookworm-slim", base)
        projects.write(small.dockerfiles / name / "image.yaml", text)
        projects.write(small.dockerfiles / name / "Dockerfile.j2", DOCKERFILE)
    done = builder("lock", code=6)
    lines = done.stderr.partition("error: ")[2].splitlines()
    assert lines[0].startswith("baseless base: base image localhost:1/none:1 cannot be resolved")
    assert lines[1].startswith(f"  typo flashinfer: {upstream.url} has no branch or tag `mian`")
    assert lines[2].startswith("what to do: ")
    assert "small flashinfer: not pinned → " in done.stdout
    pins = {name: next(iter(found.values())) for name, found in lock_file.read_lock(small.lock).pins.items()}
    assert {name: (found.base is not None, len(found.sources)) for name, found in pins.items()} == {
        "small": (True, 1),
        "baseless": (False, 1),
        "typo": (True, 0),
    }
    assert pins["baseless"].sources["flashinfer"].commit == commit
    missing = builder("lock", "--check", code=4).stdout
    assert [line.partition(" on ")[0] for line in missing.splitlines()] == [
        "not pinned: baseless",
        "not pinned: typo",
    ]
    assert "images.lock does not cover base of baseless" in builder("build", "baseless", "--locked", code=4).stderr
    output = builder("build", "small", "--locked", "--update", "flashinfer", code=2).stderr
    assert "use only one option" in output


def test_patches_and_a_request_of_a_fork_are_frozen_and_told(
    small: Project, builder: Command, upstream: Upstream, repository: str
) -> None:
    upstream.commit("the first", serve="1\n2\n3\n")
    upstream.git("checkout", "--quiet", "-b", "feature")
    head = upstream.commit("a feature", drafter="new\n")
    served = Path(upstream.git("remote", "get-url", "origin"))
    shutil.copytree(served, served.with_name("fork.git"))
    upstream.git("push", "--quiet", str(served.with_name("fork.git")), "HEAD:refs/pull/7/head")
    upstream.git("push", "--quiet", "origin", ":feature")
    fork = f"{upstream.url.rpartition('/')[0]}/fork.git/pull/7"
    use(small, upstream, [fork])
    image = small.dockerfiles / "small/image.yaml"
    projects.write(image, image.read_text(encoding="utf-8").replace("pulls:", "patches: fixes, pulls:"))
    # The second one changes what the pull request brings.
    projects.write(small.dockerfiles / "small/fixes/series", "# ours\none.patch -p0\ntwo.patch\n")
    one = "--- serve.py\n+++ serve.py\n@@ -1,3 +1,3 @@\n 1\n-2\n+two\n 3\n"
    two = "--- a/drafter.py\n+++ b/drafter.py\n@@ -1 +1 @@\n-new\n+newer\n"
    projects.write(small.dockerfiles / "small/fixes/one.patch", one)
    projects.write(small.dockerfiles / "small/fixes/two.patch", two)
    builder("build", "small")
    request, first, second = pin(small).patches
    assert (request.name, request.head, first.name, first.strip) == (fork, head, "fixes/one.patch", 0)
    assert second.sha256 == hashlib.sha256(two.encode()).hexdigest()
    staged = sorted(path.name for path in (small.builds / repository / "1/patches").iterdir())
    assert staged == [f"flashinfer-{name}.patch" for name in ("fixes-one", "fixes-two", "fork.git-7")]
    assert builder("build", "small", "--locked").stdout == f"already built as {repository}:1\n"

    projects.write(small.dockerfiles / "small/fixes/two.patch", two.replace("newer", "newest"))
    assert "does not cover flashinfer" in builder("build", "small", "--locked", code=4).stderr
    built = builder("build", "small")
    assert f"  flashinfer patch fixes/two.patch: {second.sha256[:12]} → " in built.stdout
    assert "flashinfer patch fixes/two.patch  changed" in builder("diff", f"{repository}:1", f"{repository}:2").stdout
    assert pin(small).patches[:2] == (request, first)

    projects.write(small.dockerfiles / "small/fixes/two.patch", two.replace("-new\n", "-old\n"))
    refused = builder("build", "small", code=6).stderr
    assert "patch fixes/two.patch does not apply to" in refused
    assert "drafter.py, hunk 1 of 1" in refused


def test_files_that_go_or_change_during_a_build_do_not_spoil_it(
    small: Project, endpoint: Endpoint, builder: Command, upstream: Upstream
) -> None:
    """The user changes to another branch, or edits a patch, while the image is built."""
    upstream.commit("the first", serve="1\n2\n3\n")
    upstream.git("checkout", "--quiet", "-b", "feature")
    upstream.commit("a feature", drafter="new\n")
    upstream.git("push", "--quiet", "origin", "HEAD:refs/pull/7/head")
    use(small, upstream, [7])
    image = small.dockerfiles / "small/image.yaml"
    projects.write(image, image.read_text(encoding="utf-8").replace("pulls:", "patches: [one.patch], pulls:"))
    own = small.dockerfiles / "small/one.patch"
    projects.write(own, "--- a/serve.py\n+++ b/serve.py\n@@ -1,3 +1,3 @@\n 1\n-2\n+two\n 3\n")
    builder("lock", "small")
    (planned,) = resolve.plan_images(workspace(small, endpoint), BuildRequest(("small",)))
    (pulled,) = (small.dockerfiles / "small/pulls").iterdir()
    content = pulled.read_bytes()
    pulled.unlink()
    projects.write(own, "edited")
    vendored.keep_vendored(small, "small", planned.plan.pins, planned.patches)
    assert pulled.read_bytes() == content
    assert own.read_text(encoding="utf-8") == "edited"


def test_a_local_checkout_is_built_as_it_is(
    small: Project, builder: Command, upstream: Upstream, repository: str
) -> None:
    commit = upstream.commit("the first", serve="1\n2\n3\n")
    use(small, upstream, [])
    image = small.dockerfiles / "small/image.yaml"
    checkout = small.root / "own/flashinfer"
    subprocess.run(["git", "clone", "--quiet", upstream.url, checkout], check=True)
    text = image.read_text(encoding="utf-8").partition("  flashinfer:")[0]
    projects.write(image, f"{text}  flashinfer: {{path: own/flashinfer}}\n")
    # Its commit is one that upstream gives: everybody can build that.
    assert "nobody else" not in builder("build", "small").stderr
    assert (pin(small).git, pin(small).commit, pin(small).patches) == (upstream.url, commit, ())

    projects.write(checkout / "serve.py", "1\ntwo\n3\n")
    projects.write(checkout / "new.py", "new\n")
    assert "does not cover flashinfer" in builder("build", "small", "--locked", code=4).stderr
    output = builder("build", "small")
    said = " ".join(output.stderr.split())
    assert f"the checkout {checkout} of flashinfer has uncommitted changes" in said
    (changes,) = pin(small).patches
    assert f"  flashinfer local changes: nothing → {changes.sha256[:12]}" in output.stdout
    staged = (small.builds / repository / "2/patches/flashinfer-local-changes.patch").read_bytes()
    assert hashlib.sha256(staged).hexdigest() == changes.sha256
    assert [b"+two" in staged, b"new.py" in staged] == [True, True]
    assert builder("build", "small", "--locked").stdout == f"already built as {repository}:2\n"
    # The kept diff may go, and no result is remembered: what is outside of the project may change at any time.
    (small.downloads / changes.sha256).unlink()
    assert builder("build", "small").stdout == f"already built as {repository}:2\n"
    assert not (small.state / "unchanged").exists()

    # Committed, and nowhere else: its files come from the checkout itself.
    upstream.git("-C", str(checkout), "add", ".")
    upstream.git("-C", str(checkout), "commit", "--quiet", "--message", "ours")
    ours = builder("build", "small")
    assert "is at a commit that none of its remotes has" in " ".join(ours.stderr.split())
    assert (pin(small).git, pin(small).patches) == (checkout.as_uri(), ())
    assert f"  flashinfer commit: {commit[:12]} → {pin(small).commit[:12]}" in ours.stdout
    checkout.rename(small.root / "own/moved")
    assert "is not a git checkout" in builder("build", "small", code=6).stderr
    builder("rebuild", f"{repository}:3")
