"""Mods of every kind, good and bad, baked on the real engine."""

from __future__ import annotations

import secrets
import zipfile

import pytest

from builder.base.project import Project
from builder.engine import client, containers, images
from builder.engine.client import Endpoint
from tests import projects
from tests.conftest import Command

pytestmark = pytest.mark.engine

# An image with the tools that mods rely on, the package `toy` 1.0, compiled as pip does, and an index in /index.
DOCKERFILE = """\
{% import "_parts/apt.j2" as parts_apt %}
{% import "_parts/metadata.j2" as parts_metadata %}
{% import "_parts/mods.j2" as parts_mods %}
FROM {{ base }} AS base
{{ parts_apt.install("test", arch, ["git", "patch", "python3", "python3-pip"], "the tools that mods rely on") }}
ENV PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore UV_BREAK_SYSTEM_PACKAGES=1
RUN --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \\
    --mount=type=secret,id=PIP_INDEX_URL,env=PIP_INDEX_URL <<'EOF'
# uv
PIP_CERT=/etc/ssl/certs/ca-certificates.crt python3 -m pip install --quiet --no-cache-dir uv==0.9.0
EOF
RUN <<'EOF'
# the package toy, and an index
set -eu
cat > /tmp/make.py <<'PYTHON'
import pathlib, zipfile


def wheel(name, version, requires=(), code=""):
    folder = pathlib.Path("/index") / name
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    tags = "Wheel-Version: 1.0\\nGenerator: tests\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    needs = "".join(f"Requires-Dist: {one}\\n" for one in requires)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}/__init__.py", "")
        archive.writestr(f"{name}/math.py", code)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n{needs}")
        archive.writestr(f"{info}/WHEEL", tags)
        archive.writestr(f"{info}/RECORD", "")
    links = "".join(f'<a href="{one.name}">{one.name}</a>' for one in sorted(folder.glob("*.whl")))
    (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")


code = "".join(f"def f{n}():\\n    return {n}\\n\\n" for n in range(1, 15))
wheel("toy", "1.0", code=code)
wheel("toy", "2.0", code=code)
wheel("extra", "0.1")
wheel("needy", "0.1", ["extra"])
wheel("newer", "0.1", ["toy>=2"])
PYTHON
python3 /tmp/make.py
python3 -m pip install --quiet --no-cache-dir --no-index --find-links /index/toy toy==1.0
rm /tmp/make.py
echo 'x = 1' > /usr/local/lib/python3.11/dist-packages/bare.py
EOF
{{ parts_metadata.write(workspace) }}
{{ parts_mods.bake(mods, workspace, "base") }}
"""
INDEX = {"PIP_EXTRA_INDEX_URL": "file:///index"}


def patch(number: int) -> str:
    """A diff after which the function ``f<number>`` of toy.math returns 9."""
    functions = {near: [f" def f{near}():", f"     return {near}", " "] for near in (number - 1, number, number + 1)}
    functions[number][1:2] = [f"-    return {number}", "+    return 9"]
    head = f"@@ -{3 * number - 5},8 +{3 * number - 5},8 @@ def f{number - 2}():"
    lines = [line for function in functions.values() for line in function]
    return "\n".join(["--- a/toy/math.py", "+++ b/toy/math.py", head, *lines[:-1], ""])


PATCH = patch(3)
PATCH_MOD = "description: x\npatches: [{file: f.patch, package: toy}]\n"
SITE = "/usr/local/lib/python3.11/dist-packages"


@pytest.fixture
def with_python(small: Project) -> Project:
    """The small project with an image that has git, Python, uv and the package toy."""
    projects.write(small.root / "dockerfiles/small/Dockerfile.j2", DOCKERFILE)
    return small


def uncached() -> dict[str, str]:
    """A file that no mod had before, so that its step cannot come from BuildKit's cache."""
    return {"salt": secrets.token_hex()}


def look(endpoint: Endpoint, image: str, script: str) -> str:
    with containers.running(endpoint, image, labels={"builder.test": "1"}, workdir="/workspace/vllm") as container:
        result = container.run(["bash", "-euc", script], timeout=120)
    assert result.exit_code == 0, result.output
    return result.output


def mod_layers(endpoint: Endpoint, image: str) -> list[tuple[str, int]]:
    """The layers that mods made, lowest first: the mod's name, and the bytes that the engine counts for it."""
    history = client.listed(endpoint, f"/images/{image}/history")
    named = [(step["CreatedBy"].partition("# mod ")[2].partition("\n")[0], step["Size"]) for step in reversed(history)]
    return [(name, size) for name, size in named if name]


def bake(builder: Command, *mods: str, code: int = 0) -> str:
    """The message of ``build`` about these mods."""
    options = [option for name in mods for option in ("--mod", name)]
    done = builder("build", "small", *options, code=code, environ=INDEX)
    return done.stderr if code else done.stdout + done.stderr


def assert_nothing_is_left(project: Project, endpoint: Endpoint, repository: str) -> None:
    assert images.image_tags(endpoint, [repository]) == {}
    assert not [tag for tag in images.image_tags(endpoint, ["builder-work"]) if repository in tag]
    assert not project.lock.exists()
    assert not list((project.state / "work").iterdir())


# What the engine itself puts into a container.
MOUNTED = ("/proc", "/sys", "/dev", "/.dockerenv", "/etc/hostname", "/etc/hosts", "/etc/mtab", "/etc/resolv.conf")


def listing(endpoint: Endpoint, image: str) -> dict[str, str]:
    """All files of an image, and its folders: type, size, mode, owner; for files the date as well."""
    mounted = " -o ".join(f"-path {path}" for path in MOUNTED)
    kinds = "-type d -printf '%p\\td 0 %m %u\\n' -o -printf '%p\\t%y %s %m %u %T@\\n'"
    found = look(endpoint, image, f"find / -xdev \\( {mounted} \\) -prune -o {kinds}")
    return dict(line.split("\t") for line in found.splitlines())


@pytest.mark.long
def test_a_mod_that_drops_a_file_is_one_layer_with_that_file_and_nothing_else(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    projects.settle(small)
    files = {"qwen.jinja": "x" * 5000, "README.md": "words", "notes.txt": "not dropped"}
    projects.add_mod(small.root, "dropped", "", files, "description: x\nfiles: [{from: qwen.jinja, to: .}]\n")
    bake(builder)
    bake(builder, "dropped")
    without, with_it = (images.inspect_image(endpoint, f"{repository}:{number}") for number in (1, 2))
    assert without is not None
    assert with_it is not None
    assert with_it.layers[:-1] == without.layers
    ((_, size),) = mod_layers(endpoint, f"{repository}:2")
    # Some engines count whole blocks, and those of the folders above the file.
    assert 5000 <= size <= 5000 + 6 * 4096
    before, after = (listing(endpoint, f"{repository}:{number}") for number in (1, 2))
    assert after.pop("/workspace/vllm/qwen.jinja").startswith("f 5000 644 root 315532800")
    assert after == before


@pytest.mark.long
def test_a_mod_of_every_kind(with_python: Project, builder: Command, endpoint: Endpoint, repository: str) -> None:
    root = with_python.root
    tree = {"tree/a b": "1", "tree/deep/$x": "2", "tool": "#!/bin/sh\n"}
    drops = "{from: tree, to: /opt/}, {from: tree/, to: parsers}, {from: tool, to: /usr/local/bin/tool}"
    projects.add_mod(root, "dropped", "", tree, f"description: x\nfiles: [{drops}]\n")
    (root / "mods/dropped/tool").chmod(0o755)
    patched = "description: x\npatches: [{file: f.patch, package: toy}]\ncheck: [{run: look.sh}]\n"
    check = "cd / && python3 -c 'import toy.math as m; assert m.f3() == 9'\n"
    projects.add_mod(root, "patched", "", {"f.patch": PATCH, "look.sh": check, **uncached()}, patched)
    projects.add_mod(root, "installed", "", {}, "description: x\npackages: [needy==0.1, extra==0.1]\n")
    projects.add_mod(root, "scripted", "cp a /a\ntouch left-behind\n", {"a": "a"}, "description: x\nrun: run.sh\n")
    projects.add_mod(root, "bare", 'cp a "$WORKSPACE_DIR/b"; pwd > /where\n', {"a": "a"})
    env = """description: x\nenv: {VLLM_X: 1, TEXT: 'a "b" $HOME \\ `c` ''d'' #'}\n"""
    projects.add_mod(root, "set", "", {}, env)
    with zipfile.ZipFile(root / "mods/zipped.zip", "w") as archive:
        archive.writestr("zipped/run.sh", "echo zip > /zipped\n")

    said = bake(builder, "dropped", "patched", "installed", "scripted", "set", "bare", "zipped")
    assert "mod bare has no mod.yaml: its downloads, if any, are not pinned" in said
    assert "mod installed installs needy==0.1 extra==0.1: pinned by version, not by hash" in said
    image = f"{repository}:1"
    baked = ["dropped", "patched", "installed", "scripted", "bare", "zipped"]
    assert [name for name, _ in mod_layers(endpoint, image)] == baked
    files = {
        "/opt/tree/a b": "f 1 644",
        "/opt/tree/deep/$x": "f 1 644",
        "/workspace/vllm/parsers/a b": "f 1 644",
        "/usr/local/bin/tool": "f 10 755",
        "/a": "f 1 644",
        "/workspace/vllm/b": "f 1 644",
        "/zipped": "f 4 644",
    }
    found = listing(endpoint, image)
    assert {path: found[path].rpartition(" root ")[0] for path in files} == files
    assert not [path for path in found if path.startswith("/run/builder") or "left-behind" in path]
    assert look(endpoint, image, "cat /where") == "/run/builder/work/mod\n"
    assert look(endpoint, image, 'printf "%s|%s" "$VLLM_X" "$TEXT"') == "1|a \"b\" $HOME \\ `c` 'd' #"
    assert look(endpoint, image, "python3 -c 'import needy, extra, toy.math as m; print(m.f3())'") == "9\n"
    log = max((with_python.state / "logs").iterdir()).read_text(encoding="utf-8")
    assert f"f.patch: applied to {SITE}" in log
    assert bake(builder, "dropped", "patched", "installed", "scripted", "set", "bare", "zipped").startswith("already")


@pytest.mark.long
def test_building_mods_again_gives_the_same_layers(
    with_python: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    yaml = "description: x\npatches: [{file: f.patch, package: toy}]\npackages: [extra==0.1]\nrun: run.sh\n"
    projects.add_mod(
        with_python.root, "m", "echo $$ > /dev/null; echo x > /x\n", {"f.patch": PATCH, **uncached()}, yaml
    )
    bake(builder, "m")
    projects.add_mod(with_python.root, "m", "", uncached())
    bake(builder, "m")
    first, second = (images.inspect_image(endpoint, f"{repository}:{number}") for number in (1, 2))
    assert first is not None
    assert second is not None
    assert first.layers == second.layers


def log_of(project: Project) -> str:
    return max((project.state / "logs").iterdir()).read_text(encoding="utf-8")


@pytest.mark.long
def test_patches_that_do_their_work_say_how(
    with_python: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    # A repository around the package makes git skip what it thinks lies elsewhere; bytecode whose source has the same
    # date and size is taken for that source's.
    script = f"""\
git init --quiet /usr/local
touch -d @315532800 {SITE}/toy/math.py
python3 -m compileall -q --invalidation-mode timestamp {SITE}/toy
"""
    projects.add_mod(with_python.root, "prepared", script, {})
    shift = f"sed -i -e '1i # a line above' -e 's/return 5/return 55/' -e 's/def f7/def g7/' {SITE}/toy/math.py\n"
    projects.add_mod(with_python.root, "shifted", shift, {})
    patches = {"first": patch(3), "second": patch(3), "around": patch(6)}
    for name, diff in patches.items():
        yaml = PATCH_MOD.replace("f.patch", f"{name}.patch")
        projects.add_mod(with_python.root, name, "", {f"{name}.patch": diff, **uncached()}, yaml)
    git_tries = f"cp f.patch /f; cd {SITE}; git apply --check --reverse /f || git apply /f\n"
    projects.add_mod(with_python.root, "git-tries", git_tries, {"f.patch": patch(9)})
    tries = f"patch --dry-run -R -p1 -d {SITE} < f.patch || patch -p1 -d {SITE} < f.patch\n"
    projects.add_mod(with_python.root, "tries", tries, {"f.patch": patch(12)})
    bake(builder, "prepared", "git-tries", "tries", "first", "second", "shifted", "around")
    said = [line.partition(" ")[2].strip() for line in log_of(with_python).splitlines()]
    assert [line for line in said if ".patch: " in line or "ffset" in line or "Context" in line] == [
        f"first.patch: applied to {SITE}",
        f"second.patch: already in place in {SITE}",
        f"around.patch: applied to {SITE}, where the lines around it have changed:",
        "Hunk #1 succeeded at 17 (offset 7 lines).",
        "Context reduced to (1/1) to apply fragment at 17",
    ]
    assert (
        look(endpoint, f"{repository}:1", "python3 -c 'import toy.math as m; print(m.f3(), m.f6(), m.f9(), m.f12())'")
        == "9 9 9 9\n"
    )


PATCH_FOR_ANOTHER = PATCH.replace("return 3", "return three")
PATCH_OUTSIDE = "--- /dev/null\n+++ b/../evil.py\n@@ -0,0 +1 @@\n+evil\n"
PATCH_BREAKS = PATCH.replace("+    return 9", "+    return (")
MASKED = f"patch -p1 -d {SITE} < f.patch || echo already applied or failed\n"
GIT_MASKED = f"cp f.patch /f; cd {SITE}; git apply /f || true\n"
GIT_TRIED = f"cp f.patch /f; cd {SITE}; git apply --check /f && git apply /f || true\n"
REJECTED = ["the script succeeded, but a patch was rejected:", "patches:` in mod.yaml"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "files", "yaml", "said"),
    [
        (
            "",
            {"f.patch": PATCH_FOR_ANOTHER},
            PATCH_MOD,
            [
                "mod bad: f.patch does not apply to toy 1.0, and is not already applied",
                "toy/math.py: the hunk @@ -4,8 +4,8 @@ def f1(): (line 3 of the patch)",
                "builder mods check bad --against",
            ],
        ),
        (
            "",
            {"f.patch": PATCH.replace("toy/math", "toy/physics")},
            PATCH_MOD,
            ["f.patch does not apply to toy 1.0", "toy/physics.py: No such file or directory"],
        ),
        ("", {"f.patch": PATCH}, PATCH_MOD.replace("toy}", "vllm}"), ["f.patch: the image has no Python package vllm"]),
        ("", {"f.patch": "words\n"}, PATCH_MOD, ["f.patch does not apply to toy 1.0", "No valid patches in input"]),
        ("", {"f.patch": PATCH_OUTSIDE}, PATCH_MOD, ["f.patch does not apply to toy 1.0", "invalid path '../evil.py'"]),
        ("", {"f.patch": PATCH_BREAKS}, PATCH_MOD, ["a changed file is no longer valid Python", "toy/math.py"]),
        (MASKED, {"f.patch": PATCH_FOR_ANOTHER}, "", ["1 out of 1 hunk FAILED", *REJECTED]),
        (f"{MASKED} >/dev/null", {"f.patch": PATCH_FOR_ANOTHER}, "", ["math.py.rej", *REJECTED]),
        (GIT_MASKED, {"f.patch": PATCH_FOR_ANOTHER}, "", ["error: patch failed: toy/math.py:4", *REJECTED]),
        (GIT_TRIED, {"f.patch": PATCH_FOR_ANOTHER}, "", ["error: patch failed: toy/math.py:4", *REJECTED]),
        (MASKED, {"f.patch": PATCH[:-40]}, "", ["patch: **** ", *REJECTED]),
        (MASKED, {"f.patch": "404: Not Found\n"}, "", ["patch: **** Only garbage was found", *REJECTED]),
        (MASKED.replace("3.11", "3.12"), {"f.patch": PATCH}, "", ["patch: **** Can't change to directory", *REJECTED]),
        (GIT_MASKED, {"f.patch": PATCH.replace("-4,8", "-4,80")}, "", ["error: corrupt patch at line", *REJECTED]),
        (f"echo '(' >> {SITE}/bare.py\n", {}, "", ["a changed file is no longer valid Python", "bare.py: '(' was"]),
    ],
    ids=[
        "patch for another version",
        "patch of a file that is not there",
        "patch of a package that is not there",
        "no patch",
        "patch of what lies outside",
        "patch that breaks the source",
        "failure masked",
        "failure hidden",
        "git's failure masked",
        "git's try failed, and nothing was applied",
        "cut patch masked",
        "no patch masked",
        "folder of another Python masked",
        "git's cut patch masked",
        "a script that breaks a source without bytecode",
    ],
)
def test_a_patch_that_does_not_do_its_work_fails_the_build(
    with_python: Project,
    builder: Command,
    endpoint: Endpoint,
    repository: str,
    script: str,
    files: dict[str, str],
    yaml: str,
    said: list[str],
) -> None:
    projects.add_mod(with_python.root, "bad", script, files, yaml)
    told = bake(builder, "bad", code=6)
    assert [text for text in said if text not in told] == [], told
    assert_nothing_is_left(with_python, endpoint, repository)


DESCRIBED = "description: x\nrun: run.sh\n"
NO_CHANGE = ["mod bad: the script succeeded, but changed nothing in the image", "may_be_empty: true"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "yaml", "said"),
    [
        ("touch here; cp /greeting /tmp/x; rm /tmp/x", "", NO_CHANGE),
        ("sed -i s/nothing-like-it/x/ /greeting", DESCRIBED, NO_CHANGE),
        ("sed -i s/nothing-like-it/x/ /opt/given", f"{DESCRIBED}files: [{{from: given, to: /opt/}}]\n", NO_CHANGE),
        ("exit 3", "", ["mod bad: run.sh ended with exit code 3"]),
        ("kill -KILL $$", "", ["mod bad: run.sh ended with exit code 137"]),
        (
            "(trap '' TERM; setsid sleep 300 & wait)",
            f"{DESCRIBED}timeout: 1\n",
            ["run.sh did not end within 1 seconds and was stopped", "`timeout: SECONDS` in mod.yaml"],
        ),
        (
            "echo x > /x; sleep 300 &",
            "",
            ["mod bad: these processes still ran after run.sh had ended: sleep", "A build ends all processes"],
        ),
        (
            "echo x > /x; setsid sleep 300 > /dev/null 2>&1 < /dev/null & disown",
            "",
            ["mod bad: these processes still ran after run.sh had ended: sleep"],
        ),
        (
            "mkdir -p /root/.cache/vllm/kernels; echo x > /root/.cache/vllm/kernels/x",
            "",
            ["mod bad: the script writes only to /root/.cache/vllm, where a server mounts a folder of the host\n"],
        ),
        (
            "mkdir -p ~/.triton; sed -i s/nothing-like-it/x/ /greeting",
            "",
            ["the script writes only to /root/.triton, where a server mounts a folder of the host\n"],
        ),
        (
            "nvidia-smi --query-gpu=name > /gpu",
            "",
            ["mod bad: run.sh ended with exit code 127: it needs a GPU, and a build has no GPU"],
        ),
        (
            "exec 3<> /dev/tcp/example.org/80",
            DESCRIBED,
            ["it needs the network, which mod.yaml does not allow", "write `network: true` into mod.yaml"],
        ),
    ],
    ids=[
        "leaves nothing",
        "changes no text",
        "changes nothing of the file that was put there before it",
        "fails",
        "is killed",
        "hangs and will not end",
        "leaves a process",
        "leaves a daemon",
        "fills a cache that is mounted over",
        "makes a folder that is mounted over",
        "wants a GPU",
        "wants the network",
    ],
)
def test_a_script_that_cannot_be_baked_fails_the_build(
    small: Project, builder: Command, endpoint: Endpoint, repository: str, script: str, yaml: str, said: list[str]
) -> None:
    projects.add_mod(small.root, "bad", f"{script}\n", {"given": "text\n"}, yaml)
    told = bake(builder, "bad", code=6)
    assert [text for text in said if text not in told] == [], told
    assert_nothing_is_left(small, endpoint, repository)


@pytest.mark.long
def test_a_script_runs_by_the_program_of_its_first_line(
    with_python: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    scripts = {
        "snake": "#!/usr/bin/env python3\nopen('/snake', 'w').write('x')\n",
        "shell": "#!/bin/sh\n[[ x == x ]] && echo y > /shell\n",
        "traced": "#! /usr/bin/env -S bash -eu -o pipefail\necho $- $SHELLOPTS > /traced\n",
        "none": "echo z > /none\n",
    }
    for name, script in scripts.items():
        projects.write(with_python.root / "mods" / name / "run.sh", script)
    python = {"a.py": "open('/py', 'w').write('p')\n"}
    projects.add_mod(with_python.root, "py", "", python, "description: x\nrun: a.py\n")
    bake(builder, *scripts, "py")
    said = look(endpoint, f"{repository}:1", "cat /snake /shell /none /py /traced")
    assert said.startswith("xy\nz\np")
    assert "pipefail" in said
    projects.write(with_python.root / "mods/ends/run.sh", "#!/bin/bash -e\nfalse\necho x > /ends\n")
    assert "mod ends: run.sh ended with exit code 1" in bake(builder, "ends", code=6)


@pytest.mark.long
def test_a_small_change_is_a_change(small: Project, builder: Command, endpoint: Endpoint, repository: str) -> None:
    scripts = {
        "text": "sed -i s/hello/bye/ /greeting",
        "mode": "chmod 600 /greeting",
        "removed": "rm /greeting",
        "folder-removed": "rm -r /opt",
        "folder": "mkdir /empty",
        "link": "ln -s nowhere /link",
        "link-elsewhere": "ln -sf elsewhere /link",
        "cache-and-more": "mkdir -p ~/.cache/vllm; echo x > /x",
        "soon-done": "(sleep 0.3; echo x > /y) &",
    }
    for name, script in scripts.items():
        projects.add_mod(small.root, name, f"{script}\n", {})
    projects.add_mod(small.root, "allowed", "true\n", {}, f"{DESCRIBED}may_be_empty: true\n")
    given = f"{DESCRIBED}files: [{{from: given, to: /opt/}}]\n"
    projects.add_mod(small.root, "changes-given", "sed -i s/old/new/ /opt/given\n", {"given": "old\n"}, given)
    names = [*scripts, "allowed", "changes-given"]
    bake(builder, *names)
    assert [name for name, _ in mod_layers(endpoint, f"{repository}:1")] == names


def test_a_script_needs_no_execute_bit_and_its_helpers_keep_theirs(small: Project, builder: Command) -> None:
    projects.add_mod(small.root, "m", "./helper > /x\n", {"helper": "#!/bin/sh\necho x\n"})
    (small.root / "mods/m/run.sh").chmod(0o600)
    (small.root / "mods/m/helper").chmod(0o700)
    bake(builder, "m")


@pytest.mark.long
@pytest.mark.parametrize(
    ("packages", "said"),
    [
        ("newer==0.1", ["do not fit the packages of the image: newer==0.1", "toy>=2"]),
        ("toy==2.0", ["do not fit the packages of the image: toy==2.0"]),
        (
            "needy==0.1",
            ["`packages` require other packages, which are not pinned; add them to mods/bad/mod.yaml:", "extra==0.1"],
        ),
    ],
    ids=["moves another", "another version", "unpinned needs"],
)
def test_packages_move_nothing_that_the_image_has(
    with_python: Project, builder: Command, endpoint: Endpoint, repository: str, packages: str, said: list[str]
) -> None:
    projects.add_mod(with_python.root, "bad", "", {}, f"description: x\npackages: [{packages}]\n")
    told = bake(builder, "bad", code=6)
    assert [text for text in said if text not in told] == [], told
    assert_nothing_is_left(with_python, endpoint, repository)


@pytest.mark.long
def test_a_later_mod_cannot_undo_an_earlier_one(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    yaml = "description: x\nfiles: [{from: a, to: .}]\ncheck: [{file: a, contains: first}]\n"
    projects.add_mod(small.root, "first", "", {"a": "first"}, yaml)
    projects.add_mod(small.root, "second", "", {"a": "other"}, yaml.replace("contains: first", "contains: other"))
    bake(builder, "second")
    third = yaml.replace("contains: first", "contains: third").replace("{from: a, to: .}", "{from: a, to: c}")
    projects.add_mod(small.root, "third", "", {"a": "third"}, third)
    told = bake(builder, "first", "second", "third", code=6)
    assert "check of mod first: a lacks 'first'" in told
    assert "check of mod third: a lacks 'third'" in told
    assert "or a later mod undid it; see mods/first, mods/third" in told
    assert list(images.image_tags(endpoint, [repository])) == [f"{repository}:1", f"{repository}:latest"]


def test_what_mods_say_of_each_other_is_heard_before_anything_is_built(small: Project, builder: Command) -> None:
    projects.add_mod(small.root, "a", "", {}, "description: x\nenv: {A: b}\nafter: [b]\nrequires: {vllm: '>=0.19'}\n")
    projects.add_mod(small.root, "b", "", {}, "description: x\nenv: {A: b}\nafter: [a]\nconflicts: [a]\n")
    told = bake(builder, "a", "b", code=2)
    for said in (
        "mods/a/mod.yaml:3:9: these mods form a cycle: a after b after a",
        "mods/a/mod.yaml:4:12: a requires vllm >=0.19, but small pins no vllm",
        "mods/b/mod.yaml:4:13: b and a cannot be in one image; remove one of them",
    ):
        assert said in told
    assert not small.state.exists()


@pytest.mark.long
def test_mods_are_baked_after_those_that_they_name(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    projects.add_mod(small.root, "a", "cp /b /a\n", {}, "description: x\nrun: run.sh\nafter: [b]\n")
    projects.add_mod(small.root, "b", "echo x > /b\n", {})
    bake(builder, "a", "b")
    assert [name for name, _ in mod_layers(endpoint, f"{repository}:1")] == ["b", "a"]


@pytest.mark.long
def test_a_changed_check_is_an_input(small: Project, builder: Command, repository: str) -> None:
    yaml = "description: x\nfiles: [{from: a, to: .}]\ncheck: [{file: a}]\n"
    projects.add_mod(small.root, "m", "", {"a": "text"}, yaml)
    bake(builder, "m")
    projects.write(small.root / "mods/m/mod.yaml", yaml.replace("{file: a}", "{file: a, contains: other}"))
    assert "check of mod m: a lacks 'other'" in bake(builder, "m", code=6)
