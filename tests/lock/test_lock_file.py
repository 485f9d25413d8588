"""A missing images.lock is lost, or there is none yet."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.base import files as atomic_file
from builder.base.errors import LockBusyError, LockError, UsageError
from builder.base.project import Project
from builder.lock import layout, lock_file
from builder.lock.lock_file import LockWriter, parse_and_explain, parse_bytes, read_lock, writing
from builder.lock.model import ImageName, Lock, LockedPackage, Model, NumberedImage, Pairing, PythonPin, Repository
from builder.lock.text import dump_lock
from tests import locks, projects
from tests.lock import disk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hypothesis.strategies import DataObject


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


OTHER = ImageName("small", 1)


def build(project: Project, name: str) -> None:
    projects.write(project.builds / name / "bake.json", "{}")


def note(project: Project, repository: str, number: int, engine_id: str) -> None:
    noted = {"repository": repository, "number": number, "engine_id": engine_id}
    projects.write(project.journal / f"{repository.replace('/', '+')}.json", json.dumps(noted))


def test_what_is_announced_is_read_back_the_last_of_each_repository(project: Project) -> None:
    engine_id = f"sha256:{'1' * 64}"
    assert lock_file.is_empty(project)
    alike = ImageName("org_small", 1)  # its entry replaced the entry of org/small, which was then forgotten
    for name, content in (
        (ImageName("org/small", 2), ""),
        (ImageName("org/small", 3), engine_id),
        (alike, ""),
        (OTHER, ""),
    ):
        lock_file.write_journal(project, name, content)
    announced = [(entry.name, entry.engine_id) for entry in lock_file.journal_entries(project)]
    assert announced == [(ImageName("org/small", 3), engine_id), (alike, ""), (OTHER, "")]
    # Another process finishes one meanwhile.
    entries = lock_file.journal_entries(project)
    next(entries)
    (project.journal / "org_small.json").unlink()
    (project.journal / "small.json").unlink()
    assert list(entries) == []


def test_a_project_in_which_nothing_was_built_has_none_yet(project: Project) -> None:
    assert lock_file.read_project_lock(project) == Lock()
    (project.builds / "small").mkdir(parents=True)
    projects.write(project.builds / "small/README.md", "what is built is kept here\n")
    assert lock_file.read_project_lock(project) == Lock()


@pytest.mark.parametrize("name", ["small/1", "org/team/small/12"])
def test_it_is_lost_where_something_was_built(project: Project, name: str) -> None:
    build(project, name)
    with pytest.raises(LockError, match="images.lock is lost") as refused:
        lock_file.read_project_lock(project)
    assert "`git checkout HEAD -- images.lock`" in refused.value.hint
    assert "`builder lock --recover`" in refused.value.hint
    with lock_file.writing(project.lock) as transaction:
        transaction.commit(Lock())
    assert lock_file.read_project_lock(project) == Lock()


def test_a_first_number_that_is_being_given_loses_nothing(project: Project) -> None:
    build(project, "org/small/1")
    build(project, "org/small/1/mods/9")  # a mod may hold anything
    note(project, "org/small", 1, f"sha256:{'1' * 64}")
    assert not lock_file.is_lost(project)
    build(project, "org/small/2")
    assert lock_file.is_lost(project)


def test_a_pointer_that_is_being_moved_does(project: Project) -> None:
    build(project, "small/1")
    note(project, "small", 1, "")
    assert lock_file.is_lost(project)


# Everything that can be wrong with images.lock is refused, with the line and column of each fault.

CPU = "vllm-node-cpu"
HERE = "▶"  # stands in a text where its fault must be reported


def faults_of(text: str) -> tuple[list[str], LockError]:
    """The lines of the error for ``text`` without the marks, and the error."""
    with pytest.raises(LockError) as raised:
        parse_and_explain(text.replace(HERE, ""))
    return raised.value.message.split("\n"), raised.value


def places_of(text: str) -> list[str]:
    """``images.lock:LINE:COLUMN`` of each mark."""
    lines = text.split("\n")
    return [
        f"images.lock:{number}:{index + 1 - line[:index].count(HERE)}"
        for number, line in enumerate(lines, 1)
        for index, character in enumerate(line)
        if character == HERE
    ]


def line_of(text: str, line: str) -> int:
    """The number of the one line that is ``line``."""
    return text.split("\n").index(line) + 1


def changed(golden: str, old: str, new: str) -> str:
    assert golden.count(old) == 1, f"{old!r} stands {golden.count(old)} times"
    return golden.replace(old, new)


@pytest.mark.parametrize("target", ["/dev/zero", "pipe"])
def test_what_has_no_end_is_not_read(tmp_path: Path, target: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "images.lock").symlink_to(target)
    with pytest.raises(LockError, match="cannot be read: not a regular file"):
        read_lock(tmp_path / "images.lock")


def test_golden(full: Lock, golden: str) -> None:
    assert locks.reread(golden, full) == full


def test_a_missing_file_is_an_empty_lock(tmp_path: Path) -> None:
    assert read_lock(tmp_path / "images.lock") == Lock()


def test_a_file_is_read(tmp_path: Path, full: Lock) -> None:
    locks.write_lock(tmp_path, full)
    assert read_lock(tmp_path / "images.lock") == full


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    next: 12\n", "    next: 12 # the next one\n"),
        ("pulls: [{number", "pulls: [\n          # why\n          {number"),
        ("since: 2026-11-21T08:00:00Z", "since: '2026-11-21T08:00:00Z'"),
        ("recipe: qwen3-0.6b-cpu,", "recipe: recipes/qwen3-0.6b-cpu.yaml,"),
        ("asked: from-vllm,", "asked: from-vllm/ced6857afa0e,"),
        ("before: [10, 1]}\n", "before: [vllm-node-cpu:10, 2, 1]}\n"),
        ('version: "0.40"', "version: 0.40"),
        ('  "1.0":', "  1.0:"),
        ("before: [10, 1]}\n", "before: [  10,1 ]}\n"),
        ("    10: {status", "    # 2\n    10: {status"),
        ("tf5 linux/amd64: {}", "tf5 linux/amd64:\n    {}"),
        ("    next: 4", '    "next": "4"'),
        ("version: 3\n", "version: 3\r\n"),
        ("    vllm-node-cpu:10: {status: bad, note", "    vllm-node-cpu:10: {status: bad,\n          note"),
        ("    1: {status: good, built", "    1: {platform: linux/amd64, status: good, built"),
        (
            "    latest: {now: 2, before: [10, 1]}\n",
            "    latest:\n      now: 2\n      before:\n      - 10\n      - 1\n",
        ),
        ("# images.lock", "\ufeff# images.lock"),
        ("\n...\n", "\n..."),
        ("\n...\n", "\n...\n\n \n"),
    ],
)
def test_other_spellings_mean_the_same(full: Lock, golden: str, old: str, new: str) -> None:
    assert old in golden
    assert locks.reread(golden.replace(old, new, 1), full) == full


def test_a_pointer_may_be_moved_by_hand(full: Lock, golden: str) -> None:
    """The image that it left stays among those before, if something else is known of it."""
    since = "2026-11-21T08:00:00Z"
    text = changed(golden, "    image: {now: vllm-node-cpu:2", "    image: {now: vllm-node-cpu:1")
    model = locks.reread(text, full).models["Qwen/Qwen3-0.6B"]
    assert [pairing.image.number for pairing in (model.pairing, *model.previous)] == [1, 10, 2]
    text = changed(
        golden, "now: vllm-node-cpu:2, since: 2026-11-21T08:00:00Z, before: [10", "now: vllm-node:1, before: [2"
    )
    assert locks.reread(text, full).models["Qwen/Qwen3-0.6B"].previous[0].image == ImageName("vllm-node", 2)
    with pytest.raises(LockError, match="paired with vllm-node:3, which is not among"):
        locks.reread(text.replace("[2, 1]", "[2, 3]"), full)
    text = changed(golden, "    image: {now: vllm-node-cpu:2", "    image: {now: vllm-node:1")
    text = text.replace("before: [10, 1]}\n    vllm", "before: [vllm-node-cpu:10]}\n    vllm")
    assert locks.reread(text, full).models["Qwen/Qwen3-0.6B"].pairing == Pairing(ImageName("vllm-node", 1), since=since)
    text = changed(golden, "    latest: {now: 2, before", "    latest: {now: 1, before")
    repository = locks.reread(text, full).images[CPU]
    assert (repository.current, repository.previous) == (1, (10,))


IMAGE = "expected an image as engines name it, such as `debian:bookworm-slim`"
NUMBER = "expected a whole number of 1 or more"
STATUS = "expected `untested`, `good` or `bad`"
WRONG = [
    ("    next: 4", "    ▶nxt: 4", "unknown key `nxt`: did you mean `next`?"),
    ("pinned: true,", "▶pined: true,", "unknown key `pined`: did you mean `pinned`?"),
    ("pinned: true,", "▶frobnicate: true,", "unknown key `frobnicate`"),
    ("pinned: true,", "▶pinned: yes,", "`pinned`: expected `true` or `false`, found `yes`"),
    ("\nimages:", "\n▶pictures:", "unknown key `pictures`"),
    ("    10: {status: bad", "    10: {▶status: great", f"`status`: {STATUS}, found `great`"),
    ("    next: 4", "    ▶next: many", f"`next`: {NUMBER}, found `many`"),
    ("    next: 4", "    ▶next: 0", f"`next`: {NUMBER}, found `0`"),
    ("    next: 4", "    ▶next: 04", f"`next`: {NUMBER}, found `04`"),
    ("    next: 4", "    ▶next: ٤", f"`next`: {NUMBER}, found `٤`"),
    ("    next: 4", "    ▶next:", f"`next`: {NUMBER}, found nothing"),
    ("    next: 4", f"    ▶next: {'4' * 5000}", f"`next`: {NUMBER}, found `{'4' * 60}…`"),
    ("    next: 4", "    ▶next: [4]", f"`next`: {NUMBER}, found a list"),
    (
        "  vllm-node-empty:\n    next: 4",
        "  ▶vllm-node-empty: 4",
        "`vllm-node-empty`: expected a block of keys, found `4`",
    ),
    ("latest: {now: 2, before: [10, 1]", "latest: {now: 2, ▶before: 10", "`before`: expected a list, found `10`"),
    ("    next: 4", "    next: 4\n    ▶current: 1", "unknown key `current`"),
    (
        "pruned: 2026-11-22T08:00:00Z",
        "▶pruned: true",
        "`pruned`: expected a time in UTC such as `2026-11-20T22:00:00Z`, found `true`",
    ),
    ("\n    10: {", "\n    ▶ten: {", "unknown key `ten`"),
    ("asked: vllm-node-base", "▶asked: ", f"`asked`: {IMAGE}, found nothing"),
    ("asked: vllm-node-base", "▶asked: {a: b}", f"`asked`: {IMAGE}, found a block of keys"),
    (
        "08:00:00Z, before: [10, 1]",
        "08:00:00Z, before: [▶[10]]",
        "expected a number, or a numbered image such as `vllm-node-tf5:7`, found a list",
    ),
    (
        "commit: 8bc3b578028bc3b578028bc3b578028bc3b57802 of 2",
        "▶commit: 8bc3b578028bc3b578028bc3b578028bc3b57802 2",
        "`commit`: expected a commit of 40 hex digits, ` of `, and its time in UTC, found"
        " `8bc3b578028bc3b578028bc3b578028bc3b57802 2026-09-21T22:32:49…`",
    ),
    ("    base: {asked: vllm-node-base,\n      ", "    ▶base: {", "`base`: lacks `asked`"),
    ('{status: bad, note: "null"', '{▶imagine: bad, note: "null"', "unknown key `imagine`"),
    (
        "    image: {now: vllm-node-cpu:2,",
        "    image: {▶now: vllm-node-cpu,",
        "`now`: expected a numbered image such as `vllm-node-tf5:7`, found `vllm-node-cpu`",
    ),
    (
        '  "1.0":\n    image: {now: localhost:5000/vllm-node-tf5:1, since: 2026-11-20T22:00:00Z}\n',
        '  ▶"1.0": {}\n',
        "`1.0`: lacks `image`",
    ),
    (
        "  localhost:5000/vllm-node-tf5:\n    each: {definition: tf5, platform: linux/amd64}\n",
        "  ▶localhost:5000/vllm-node-tf5:\n    each: {definition: tf5}\n",
        "localhost:5000/vllm-node-tf5:1 lacks `platform`",
    ),
    (
        '  "1.0":\n    image: {now: localhost:5000/vllm-node-tf5:1,',
        '  ▶"1.0":\n    image: {now: localhost:5000/vllm-node-tf5:2,',
        "1.0 is paired with localhost:5000/vllm-node-tf5:2, which is not among the images",
    ),
    (
        "  vllm-node-cpu:\n    latest: {now: 2,",
        "  ▶vllm-node-cpu:\n    latest: {now: 3,",
        "`latest` names vllm-node-cpu:3, which is not among the images",
    ),
    (
        "    next: 4",
        "    next: 4\n    ▶next: 5",
        "the key `next` is repeated; the first one is at images.lock:{line}:5",
    ),
    ("    next: 4", "    next: 4\n    ? ▶[a]\n    : b", "a key must be plain text"),
    ("    next: 4", "    next: &x 4\n    ▶current: *x", "an alias is not allowed in this file"),
]


@pytest.mark.parametrize(("old", "new", "message"), WRONG)
def test_anything_wrong_is_named(golden: str, old: str, new: str, message: str) -> None:
    text = changed(golden, old, new)
    lines, error = faults_of(text)
    expected = message.replace("{line}", str(text.replace(HERE, "")[: text.index(HERE)].count("\n")))
    assert lines == [f"{places_of(text)[0]}: {expected}"]
    assert error.exit_code == 4
    assert "git checkout HEAD -- images.lock" in error.hint


def test_all_faults_are_reported_at_once(golden: str) -> None:
    text = changed(golden, "    next: 4", "    ▶next: four\n    ▶pevious: []")
    text = changed(text, "      resolved: local", "      ▶resolve: local")
    text = changed(text, ", revision: c", ", ▶revision: [c], ▶recipes: c")
    lines, _ = faults_of(text)
    assert [line.split(": ")[0] for line in lines] == places_of(text)


def test_a_next_below_a_number_given_means_nothing(golden: str) -> None:
    assert parse_and_explain(changed(golden, "    next: 12", "    next: 3")).images[CPU].next == 11


@pytest.mark.parametrize(("version", "column"), [("1", 1), ("17", 1), ("0", 1), ("2", 1)])
def test_another_version_is_named_before_all_else(golden: str, version: str, column: int) -> None:
    text = golden.replace("version: 3\n", f"version: {version}\n").replace("    next: 4", "    later: 4")
    lines, error = faults_of(text)
    message = f"images.lock has version {version}, but this builder reads version 3"
    assert lines == [f"images.lock:8:{column}: {message}"]
    assert (
        "update builder"
        if version == "17"
        else "remove the file, then rebuild it from builds/ and the engine: `builder lock --recover`"
    ) in error.hint


@pytest.mark.parametrize("version", ["1", "99999"])
def test_another_version_with_nothing_new_in_it_is_refused_too(golden: str, version: str) -> None:
    assert "has version" in faults_of(golden.replace("version: 3\n", f"version: {version}\n"))[0][0]


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("version: one\n", "images.lock:8:1: `version`: expected `3`, found `one`"),
        ("version:\n", "images.lock:8:1: `version`: expected `3`, found nothing"),
        ("", "images.lock:9:1: lacks `version`"),
    ],
)
def test_a_lock_must_say_its_version(golden: str, version: str, message: str) -> None:
    assert faults_of(golden.replace("version: 3\n", version))[0] == [message]


def test_conflict_markers_are_named_before_all_else(golden: str) -> None:
    text = changed(
        golden,
        "    next: 12\n",
        "▶<<<<<<< HEAD\n    next: 12\n▶||||||| 1a2b3c4\n    next: 11\n▶=======\n    next: [\n▶>>>>>>> tf5 (next)\n",
    )
    lines, error = faults_of(text)
    marks = ["<<<<<<< HEAD", "||||||| 1a2b3c4", "=======", ">>>>>>> tf5 (next)"]
    assert lines == [f"{at}: git conflict marker `{m}`" for at, m in zip(places_of(text), marks, strict=True)]
    assert "builder lock --merge" in error.hint
    with pytest.raises(LockError, match="git conflict marker `=======`"):
        parse_and_explain(text.replace(HERE, "").replace("\n", "\r\n"))


def test_a_note_may_hold_a_conflict_marker(golden: str) -> None:
    text = changed(golden, 'note: "fast: 12 tokens/s # on 8 cores"', r'note: "<<<<<<< HEAD\n=======\n"')
    assert parse_and_explain(text).images[CPU].numbers[1].note == "<<<<<<< HEAD\n=======\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    next: 12", "    next: ▶[2", "did not find expected ',' or ']'"),
        ("    next: 12", "▶\tnext: 2", "a tab in the indentation"),
        ("    next: 12", "   ▶next: 2", ""),
        ('note: "null"', 'note: "▶null', ""),
        ("    next: 4", "    next: 4\n...\n▶images: {}", ""),
        ("    next: 4", "    next: 4\x00", "the character U+0000 is not allowed in a text file"),
        ("    next: 4", f"    next: {'[' * 100_000}", "blocks are nested too deeply"),
    ],
)
def test_a_text_that_is_not_yaml_is_named(golden: str, old: str, new: str, message: str) -> None:
    lines, error = faults_of(changed(golden, old, new))
    assert lines[0].startswith("images.lock:")
    assert ": not YAML: " in lines[0]
    assert message in "\n".join(lines)
    assert "git checkout HEAD -- images.lock" in error.hint
    assert "--recover" in error.hint
    assert "needs double quotes" in error.hint


def test_characters_that_yaml_refuses_have_their_place(golden: str) -> None:
    text = changed(golden, "stürzt ab", "stürzt ▶\x07 ab")
    message = "not YAML: the character U+0007 is not allowed in a text file; remove it"
    assert faults_of(text)[0] == [f"{places_of(text)[0]}: {message}"]


def test_yaml_mistakes_have_their_place(golden: str) -> None:
    text = changed(golden, "    next: 4", "    next: 4▶: 5")
    assert faults_of(text)[0][0].startswith(f"{places_of(text)[0]}: not YAML: mapping values are not allowed")


@pytest.mark.parametrize("text", ["", "\n", " \n\n"])
def test_an_empty_file_is_no_empty_lock(text: str) -> None:
    assert faults_of(text)[0] == ["images.lock:1:1: the file is empty"]


@pytest.mark.parametrize("text", ["...\n", "# a\n...\n", "[]\n...\n", "null\n...\n", "a\n...\n"])
def test_a_file_that_says_nothing_is_no_empty_lock(text: str) -> None:
    assert faults_of(text)[0][0].startswith("images.lock:")


@pytest.mark.slow
def test_a_lock_cut_off_anywhere_is_never_read_as_a_shorter_one(full: Lock, golden: str) -> None:
    content = golden.encode()
    assert locks.reread(content[:-1].decode(), full) == full  # only the last line end is missing
    for length in range(len(content) - 1):
        with pytest.raises(LockError):
            parse_bytes(content[:length], "images.lock")
        with pytest.raises(LockError):  # a file system that kept the length and lost the rest
            parse_bytes(content[:length].ljust(len(content), b"\0"), "images.lock")


def test_where_it_is_cut_off(golden: str) -> None:
    lines, error = faults_of(golden[: golden.index("    next: 4")])
    last = line_of(golden, "    next: 4") - 1
    assert lines == [f"images.lock:{last}:1: truncated here: the last line must be `...`"]
    assert "git checkout HEAD -- images.lock" in error.hint


def test_a_comment_below_the_end_is_not_a_truncated_file(golden: str) -> None:
    lines, error = faults_of(f"{golden}\n# mine\n")
    below = len(golden.splitlines()) + 1
    assert lines == [f"images.lock:{below}:1: nothing may follow `...`"]
    assert error.hint.startswith("correct these lines")


def test_bytes_that_are_not_text_have_their_place(golden: str) -> None:
    content = golden.encode().replace("stürzt".encode(), "stürzt".encode("latin-1"))
    line = next(n for n, line in enumerate(golden.split("\n"), 1) if "stürzt" in line)
    with pytest.raises(
        LockError, match=rf"^images.lock:{line}:{1 + golden.splitlines()[line - 1].index('rzt') - 1}: not UTF-8 text$"
    ):
        parse_bytes(content, "images.lock")


def test_a_folder_is_no_lock(tmp_path: Path) -> None:
    with pytest.raises(LockError, match=r"cannot be read: Is a directory"):
        read_lock(tmp_path)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_damage_is_a_lock_error_or_a_lock(golden: str, data: DataObject) -> None:
    content = golden.encode()
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, min(len(content), start + 200)))
    some = [b"", b"\n", b"  ", b": ", b"- ", b"[", b"{", b'"', b"&a ", b"*a"]
    put = data.draw(st.binary(max_size=8) | st.sampled_from(some))
    try:
        lock = parse_bytes(content[:start] + put + content[end:], "images.lock")
    except LockError as error:
        assert error.message.startswith("images.lock:")
    else:
        assert isinstance(lock, Lock)


def test_a_digest_is_one(golden: str) -> None:
    text = golden.replace("{status: good, built", f"{{status: good, {HERE}digest: sha256:1234, built", 1)
    (line,), _ = faults_of(text)
    expected = "expected a digest such as `sha256:` and 64 hex digits, found `sha256:1234`"
    assert line == f"{places_of(text)[0]}: `digest`: {expected}"


# Writers take turns; whatever happens to one, images.lock says the old or the new.

if TYPE_CHECKING:
    Fork = Callable[[Callable[[], object]], int]

LEFT = {"images.lock", ".images.lock.writer", "dockerfiles"}


@pytest.fixture
def path(tmp_path: Path, full: Lock) -> Path:
    """images.lock, in a folder of its own."""
    folder = tmp_path / "project"
    locks.write_lock(folder, full)
    return folder / "images.lock"


@pytest.fixture
def grown(full: Lock) -> Lock:
    """``full`` with a repository more, and with other packages."""
    pins = full.pins_of("cpu", "linux/amd64")
    assert pins.python
    python = replace(pins.python, packages=(LockedPackage("numpy", "2.5", ("5" * 64,)),))
    grown = full.with_pins("cpu", "linux/amd64", replace(pins, python=python))
    return grown.with_repository("vllm-node-new", Repository(next=2))


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_a_commit_replaces_the_text(path: Path, full: Lock, grown: Lock) -> None:
    with writing(path) as transaction:
        assert transaction.lock == full
        assert transaction.commit(grown) is True
        assert transaction.lock == grown
        assert path.read_text() == dump_lock(grown)
    assert read_lock(path) == grown
    assert names(path.parent) == LEFT


def test_a_first_commit_makes_the_file(tmp_path: Path, full: Lock) -> None:
    path = tmp_path / "images.lock"
    before = os.umask(0o027)
    try:
        with writing(path) as transaction:
            assert transaction.lock == Lock()
            transaction.commit(full)
    finally:
        os.umask(before)
    assert read_lock(path) == full
    assert path.stat().st_mode & 0o777 == 0o640


def test_without_a_commit_nothing_is_written(path: Path, golden: str) -> None:
    with writing(path):
        pass
    assert path.read_text() == golden


def test_the_same_text_is_not_written_again(path: Path, full: Lock) -> None:
    before = path.stat()
    with writing(path) as transaction:
        assert transaction.commit(full) is False
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_several_commits_in_one_turn(path: Path, full: Lock, grown: Lock) -> None:
    with writing(path) as transaction:
        assert transaction.commit(grown)
        assert transaction.commit(full)
        assert not transaction.commit(full)
    assert read_lock(path) == full


def test_a_failed_block_keeps_what_it_committed_and_lets_go(path: Path, grown: Lock) -> None:
    with pytest.raises(KeyError), writing(path) as transaction:
        transaction.commit(grown)
        raise KeyError
    with writing(path, wait_seconds=0) as transaction:
        assert transaction.lock == grown


@pytest.mark.parametrize("damage", ["", "<<<<<<< HEAD\n", "version: 4\n...\n"])
def test_a_damaged_lock_is_never_written_over(path: Path, damage: str) -> None:
    path.write_text(damage)
    with pytest.raises(LockError, match=r"images\.lock:1:1"), writing(path):
        pytest.fail("a damaged lock was handed out")
    assert path.read_text() == damage
    with pytest.raises(LockError), writing(path, wait_seconds=0):
        pytest.fail("a damaged lock was handed out")


def test_a_lock_that_could_not_be_read_back_is_a_bug(path: Path, full: Lock, golden: str) -> None:
    dangling = full.with_model("x/y", Model(Pairing(ImageName("nowhere", 1))))
    with (
        writing(path) as transaction,
        pytest.raises(ValueError, match="x/y is paired with nowhere:1, which is not among"),
    ):
        transaction.commit(dangling)
    assert path.read_text() == golden
    assert names(path.parent) == LEFT


def test_text_that_is_no_text_is_refused(path: Path, full: Lock, golden: str) -> None:
    note = os.fsdecode(b"caf\xe9")
    noted = full.with_model("x/y", Model(Pairing(ImageName("vllm-node-cpu", 1), note=note)))
    with writing(path) as transaction, pytest.raises(UsageError, match="not UTF-8"):
        transaction.commit(noted)
    assert path.read_text() == golden


@pytest.mark.slow
def test_a_writer_that_waits_too_long_learns_who_writes(path: Path, fork: Fork) -> None:
    reader, ready = os.pipe()

    def write_for_long() -> None:
        with writing(path):
            os.write(ready, b".")
            time.sleep(600)

    child = fork(write_for_long)
    os.read(reader, 1)
    with pytest.raises(LockBusyError) as raised, writing(path, wait_seconds=0.1):
        pytest.fail("two writers")
    assert raised.value.message == f"process {child} has been writing images.lock for more than 0.1 s"
    assert raised.value.exit_code == 4
    assert "wait for that process" in raised.value.hint


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with (
        pytest.raises(LockError, match=r"\.images\.lock\.writer cannot be locked: No such file") as raised,
        writing(tmp_path / "none" / "images.lock"),
    ):
        pytest.fail("held")
    assert str(tmp_path / "none") in raised.value.hint


def test_changes_of_others_in_the_meantime_are_not_lost(path: Path, grown: Lock) -> None:
    with writing(path) as transaction:
        path.write_text("version: 1\n...\n")
        with pytest.raises(LockError, match="changed while it was being updated"):
            transaction.commit(grown)
    assert path.read_text() == "version: 1\n...\n"
    assert names(path.parent) == LEFT


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o664])
def test_permissions_stay(path: Path, grown: Lock, mode: int) -> None:
    path.chmod(mode)
    with writing(path) as transaction:
        transaction.commit(grown)
    assert path.stat().st_mode & 0o7777 == mode


def test_the_owner_and_the_group_stay(path: Path, grown: Lock) -> None:
    """Root may give a file to anybody; others may give it to another group of theirs, where they have one."""
    own = os.geteuid(), max(os.getgroups(), default=os.getegid())
    owner = (12345, 54321) if os.geteuid() == 0 else own
    os.chown(path, *owner)
    with writing(path) as transaction:
        transaction.commit(grown)
    assert (path.stat().st_uid, path.stat().st_gid) == owner


def test_a_link_is_followed(path: Path, tmp_path: Path, full: Lock, grown: Lock) -> None:
    locks.write_lock(tmp_path, full)
    link = tmp_path / "images.lock"
    link.unlink()
    link.symlink_to("project/images.lock")
    with writing(link) as transaction:
        transaction.commit(grown)
        with pytest.raises(LockBusyError), writing(path, wait_seconds=0):
            pytest.fail("two writers")
    assert link.is_symlink()
    assert read_lock(link) == grown  # the packages are in the project, where the link is
    assert names(path.parent) == LEFT
    assert names(tmp_path) == {"images.lock", "project", "dockerfiles"}


def test_a_circle_of_links(tmp_path: Path) -> None:
    (tmp_path / "images.lock").symlink_to("images.lock")
    with pytest.raises(LockError), writing(tmp_path / "images.lock"):
        pytest.fail("no such file")


def test_files_of_a_killed_writer_do_not_hinder_the_next(path: Path, grown: Lock) -> None:
    path.with_name(".images.lock.1.2").write_text("half a lo")
    with writing(path) as transaction:
        transaction.commit(grown)
    assert read_lock(path) == grown
    assert names(path.parent) == LEFT


def bump(path: Path, times: int, make_image: Callable[..., NumberedImage]) -> Callable[[], None]:
    """Gives ``times`` numbers, each in a turn of its own."""

    def run() -> None:
        for _ in range(times):
            with writing(path, wait_seconds=600) as transaction:
                repository = transaction.lock.images.get("counted", Repository())
                image = make_image(repository.next, note=str(os.getpid()))
                numbers = {**repository.numbers, repository.next: image}
                if len(numbers) > 5:
                    del numbers[min(numbers)]
                counted = replace(repository, next=repository.next + 1, numbers=numbers)
                transaction.commit(transaction.lock.with_repository("counted", counted))

    return run


@pytest.mark.slow
def test_eight_writers_lose_nothing(tmp_path: Path, fork: Fork, make_image: Callable[..., NumberedImage]) -> None:
    path = tmp_path / "images.lock"
    children = [fork(bump(path, 50, make_image)) for _ in range(8)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    assert read_lock(path).images["counted"].next == 401
    assert names(tmp_path) == LEFT - {"dockerfiles"}


@pytest.mark.slow
def test_killed_at_any_moment_the_lock_is_old_or_new(path: Path, fork: Fork, full: Lock, grown: Lock) -> None:
    def write_for_ever() -> None:
        while True:
            for lock in (grown, full):
                with writing(path) as transaction:
                    transaction.commit(lock)

    chance = random.Random(7)  # noqa: S311
    for _ in range(60):
        child = fork(write_for_ever)
        time.sleep(chance.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert read_lock(path) in (full, grown)
    with writing(path, wait_seconds=0) as transaction:
        transaction.commit(Lock())
    assert read_lock(path) == Lock()
    assert names(path.parent) == LEFT


@pytest.mark.slow
def test_killed_at_each_line_the_lock_is_old_or_new(path: Path, fork: Fork, full: Lock, grown: Lock) -> None:
    """A kill changes no file: what is there while the writer stands before a line is what a kill there leaves."""
    files = {lock_file.__file__, atomic_file.__file__}
    stands, standing = os.pipe()
    goes, going = os.pipe()

    def stop(frame: Any, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            os.write(standing, b".")
            os.read(goes, 1)
        return stop

    def run() -> None:
        sys.settrace(stop)
        with writing(path, wait_seconds=0) as transaction:
            transaction.commit(grown)

    child = fork(run)
    os.close(standing)
    seen = []
    locks: dict[bytes, Lock] = {}  # by the content of the file, which takes long to read
    while os.read(stands, 1):
        if (content := path.read_bytes()) not in locks:
            locks[content] = read_lock(path)
        assert locks[content] in (full, grown)
        seen.append(locks[content] == grown)
        os.write(going, b".")
    assert os.waitpid(child, 0)[1] == 0
    assert read_lock(path) == grown
    assert seen.count(False) > 30  # lines before the new file was in its place
    assert seen.count(True) > 5
    assert sorted(seen) == seen


def refused(path: Path, lock: Lock) -> LockError:
    with pytest.raises(LockError) as raised, writing(path, wait_seconds=0) as transaction:
        transaction.commit(lock)
    return raised.value


def test_a_full_disk_leaves_the_old_lock(public_folder: Path, fork: Fork, full: Lock, grown: Lock) -> None:
    def run() -> None:
        with disk.small(public_folder) as (folder, fill, make_room):
            path = folder / "images.lock"
            with writing(path) as transaction:
                transaction.commit(full)
            fill()
            error = refused(path, grown)
            assert "images.lock cannot be written, and was left unchanged: No space left on device" in error.message
            assert "prune" in error.hint
            assert read_lock(path) == full
            assert names(folder) - {disk.FILLER} == LEFT
            make_room()
            with writing(path) as transaction:
                transaction.commit(grown)
            assert read_lock(path) == grown

    assert os.waitpid(fork(run), 0)[1] == 0


def test_a_read_only_disk_leaves_the_old_lock(public_folder: Path, fork: Fork, full: Lock, grown: Lock) -> None:
    def run() -> None:
        with disk.small(public_folder) as (folder, _, _):
            path = folder / "images.lock"
            with writing(path) as transaction:
                transaction.commit(full)
            reason = disk.make_read_only(folder)
            error = refused(path, grown)
            assert reason in error.message
            assert str(folder) in error.hint
            assert read_lock(path) == full

    assert os.waitpid(fork(run), 0)[1] == 0


def test_a_folder_without_write_permission(public_folder: Path, fork: Fork, full: Lock, grown: Lock) -> None:
    path = public_folder / "images.lock"
    with writing(path) as transaction:
        transaction.commit(full)
    public_folder.chmod(0o555)

    def run() -> None:
        if os.geteuid() == 0:
            os.setuid(65534)
        error = refused(path, grown)
        assert "images.lock cannot be written, and was left unchanged: Permission denied" in error.message
        assert str(public_folder) in error.hint

    assert os.waitpid(fork(run), 0)[1] == 0
    public_folder.chmod(0o755)
    assert read_lock(path) == full
    assert names(public_folder) == LEFT


def test_a_write_that_ends_half_way_leaves_the_old_lock(path: Path, fork: Fork, full: Lock, grown: Lock) -> None:
    def run() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        assert "File too large" in refused(path, grown).message

    assert os.waitpid(fork(run), 0)[1] == 0
    assert read_lock(path) == full
    assert names(path.parent) == LEFT


def test_a_transaction_comes_from_writing_alone(path: Path) -> None:
    with pytest.raises(TypeError):
        LockWriter(path)  # type: ignore[call-arg]


# The files with packages, of which images.lock has the digests.

PACKAGES = "dockerfiles/cpu/packages.linux-amd64.txt"


def packages_of(path: Path) -> tuple[LockedPackage, ...]:
    pin = read_lock(path).pins_of("cpu", "linux/amd64").python
    assert pin
    return tuple(pin.packages)


@pytest.mark.parametrize("change", ["missing", "edited"])
def test_packages_that_are_not_those_recorded_are_told_when_they_are_asked_for(path: Path, change: str) -> None:
    file = path.parent / PACKAGES
    expected = "is missing" if change == "missing" else "is not the file that images.lock records"
    if change == "missing":
        file.unlink()
    else:
        file.write_text(file.read_text().replace("numpy==2.4", "numpy==2.5"))
    assert read_lock(path).images  # nothing but the packages needs the file
    with pytest.raises(LockError, match=f"{PACKAGES} {expected}") as refused:
        packages_of(path)
    assert f"git checkout HEAD -- {PACKAGES}" in refused.value.hint
    assert "remove the entry `packages` of cpu from images.lock, then run `builder lock cpu`" in refused.value.hint


def test_a_line_that_is_no_package_has_its_place() -> None:
    for line in ("-r y", "# asked: --index-url=http://evil", "# newest: soon"):
        with pytest.raises(LockError, match=rf"^x.txt:2: expected NAME==VERSION with --hash=.* found `{line}`$"):
            layout.parse_packages(f"a==1\n{line}\n", "x.txt")


@pytest.mark.parametrize("line", ["--index-url=http://evil", "torch\n--index-url=http://evil", "torch\n# asked: numpy"])
def test_a_requirement_that_would_be_another_one_is_not_written(line: str) -> None:
    with pytest.raises((LockError, ValueError)):
        layout.packages_file("dockerfiles/cpu/packages.linux-amd64.txt", PythonPin((line,), "", ()))


@pytest.mark.parametrize("placed", [False, True])
def test_what_a_killed_writer_left_beside_is_used_or_goes(
    path: Path, full: Lock, grown: Lock, monkeypatch: pytest.MonkeyPatch, placed: bool
) -> None:
    """It is killed before images.lock was replaced, or after it, and before the file got its place."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    place, name = ((lock_file, "_settle"), (LockWriter, "_refuse_changed"))[not placed]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), writing(path) as transaction:
        patch.setattr(place, name, killed)
        transaction.commit(grown)
    beside = path.parent / f"{PACKAGES}.new"
    assert beside.exists()
    assert read_lock(path) == (grown if placed else full)
    with writing(path) as transaction:
        assert transaction.lock == (grown if placed else full)
    assert not beside.exists()
    assert read_lock(path) == (grown if placed else full)
