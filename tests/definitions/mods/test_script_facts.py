"""Facts read from scripts such as mods have; each of the kinds is one of ours."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.definitions import mod
from builder.definitions.mod import ScriptFacts
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path


DROP_LOOP = """\
LOOP='sync; echo 3 > /proc/sys/vm/drop_caches'
nohup bash -c '
  while true; do
    '"$LOOP"'
    sleep 30
  done
' > /dev/null 2>&1 &
echo "runs as $!"
"""


def facts(root: Path, script: str, *beside: str) -> ScriptFacts:
    projects.add_mod(root, "m", script, dict.fromkeys(beside, "no matter\n"))
    read = mod.read_script_facts(mod.load_mod(Project(root), "m"))
    assert read
    return read


@pytest.mark.parametrize(
    ("script", "applies"),
    [
        ("patch -p1 -d / < a.patch\n", True),
        ("cd /x && git apply --check a.patch\n", True),
        ("if git -C /x apply a.patch; then echo; fi\n", True),
        ("curl -L https://example.org/1.diff | patch -p1 -R -d /x\n", True),
        ("# patch -p1 < a.patch\necho patch\n", False),
        ("python3 patch_it.py\n", False),
    ],
)
def test_a_script_that_applies_patches_is_told(tmp_path: Path, script: str, applies: bool) -> None:
    assert facts(tmp_path, script, "a.patch").applies_patches is applies


def test_patches_come_in_the_order_in_which_the_script_names_them(tmp_path: Path) -> None:
    script = "# not c.patch\npatch -p1 -d / < b.patch\npatch -p1 -d / < a.patch\n"
    read = facts(tmp_path, script, "a.patch", "b.patch", "c.patch")
    assert (read.patches, read.unnamed) == (("b.patch", "a.patch"), ("c.patch",))


def test_a_pattern_names_all_of_its_kind(tmp_path: Path) -> None:
    script = 'for file in parts/*.patch; do git apply "$file"; done\n'
    read = facts(tmp_path, script, "parts/2.patch", "parts/1.patch", "other.diff")
    assert (read.patches, read.unnamed) == (("parts/1.patch", "parts/2.patch"), ("other.diff",))


def test_downloads_are_told_by_their_program(tmp_path: Path) -> None:
    script = "wget https://example.org/x\nuv pip install \\\n  y==1\napt-get -y install git\ngit clone /a\n"
    assert facts(tmp_path, script).downloads == ("wget", "git clone", "pip", "apt-get")


def test_a_script_that_only_copies_has_nothing_that_stops_applying(tmp_path: Path) -> None:
    assert facts(
        tmp_path, 'cp chat.jinja $WORKSPACE_DIR/our.jinja\necho "==> use --chat-template our.jinja; done"\n'
    ).only_copies
    assert not facts(tmp_path, "cp a b && sed -i s/a/b/ /x\n").only_copies
    assert not facts(tmp_path, "echo nothing\n").only_copies


def test_a_loop_that_drops_caches_belongs_to_the_machine(tmp_path: Path) -> None:
    read = facts(tmp_path, DROP_LOOP)
    assert [use.does for use in read.run_time] == [
        "writes /proc/sys/vm/drop_caches",
        "starts a process that is to outlive it",
    ]
    assert "echo 3 > /proc/sys/vm/drop_caches; done'`" in read.instead


@pytest.mark.parametrize(
    ("script", "does"),
    [
        ("sysctl -w vm.swappiness=0\n", "writes settings of the kernel with sysctl"),
        ("echo 1 | tee /proc/sys/vm/compact_memory\n", "writes /proc/sys/vm/compact_memory"),
        ("nvidia-smi -pm 1\n", "sets the GPU with nvidia-smi"),
        ("python3 metrics.py &\n", "starts a process that is to outlive it"),
        ("python3 metrics.py > /tmp/log 2>&1 & pid=$!\n", "starts a process that is to outlive it"),
        ("(setsid watch.sh)\n", "starts a process that is to outlive it"),
        ("systemctl start earlyoom\n", "starts a service"),
        ("# nothing to do any more\necho done\n", "only prints text"),
    ],
)
def test_what_no_image_keeps_is_told(tmp_path: Path, script: str, does: str) -> None:
    assert [use.does for use in facts(tmp_path, script).run_time] == [does]


@pytest.mark.parametrize(
    "script",
    [
        "a && b\n",
        "a > /dev/null 2>&1\na &> /dev/null\n",
        "sed -i 's/x/[&]/' /opt/file\n",
        "download one & download two &\nwait\n",
        "python3 - <<'PY'\nflags = a &\\\n  b &\nPY\n",
        "echo 'sysctl is no business of ours'; sed -i s/a/b/ /x\n",
        "cat /proc/sys/vm/swappiness > /opt/x\n",
        "grep -q 'R&D' /x || sed -i s/a/b/ /x\n",
        "nvidia-smi\ncp -pm a b\nsystemctl status x\necho start\n",
    ],
)
def test_ordinary_scripts_are_taken_for_no_such_thing(tmp_path: Path, script: str) -> None:
    assert facts(tmp_path, script).instead == ""


def test_a_long_script_is_read_at_once(tmp_path: Path) -> None:
    began = time.monotonic()
    facts(tmp_path, "systemctl " * 20_000 + "\n" + "echo a$b " * 20_000 + "|\n" + "git -c x " * 20_000 + "\n")
    assert time.monotonic() - began < 10
