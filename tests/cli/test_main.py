"""The report of a bug, which users paste into an issue."""

from __future__ import annotations

import errno
import os
import pkgutil
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from builder import cli as cli_package
from builder.base import errors, redaction
from builder.base.errors import SystemFailureError
from builder.base.files import naming
from builder.cli import main
from builder.cli.main import ELSEWHERE, GROUPS, TABLE
from builder.lock.model import ImageName, Lock, NumberedImage
from builder.lock.text import dump_lock
from tests import program, projects


def test_an_interrupt_before_the_program_is_imported_prints_no_traceback() -> None:
    code = """\
import sys
class Interrupted:
    @staticmethod
    def find_spec(name, *_):
        if name == "builder.cli.main":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted)
from builder.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_values_of_variables_and_of_api_keys_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = ["--env", "A=hidden1", "-e", "B=hidden2", "--env=C=hidden3", "-eD=hidden4", "--env", "E", "-d"]
    monkeypatch.setattr(sys, "argv", ["builder", "run", "chat", *secret, "--", "--api-key", "hidden-five", "--x=y"])
    redaction._secret.cache_clear()  # a process knows its arguments from the start
    main.report(ValueError, ValueError("a bug"), None)
    path = Path(capsys.readouterr().err.rpartition("of builder: ")[2].strip())
    try:
        text = path.read_text(encoding="utf-8")
    finally:
        path.unlink()
        path.parent.rmdir()
        redaction._secret.cache_clear()
    assert "hidden" not in text
    shown = ["run", "chat", "--env", "A=…", "-e", "B=…", "--env=…", "-eD=…", "--env", "E", "-d", "--"]
    assert f"arguments: {[*shown, '--api-key', '***', '--x=…']}" in text


# What ^C has left is told with what to do next.


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["build", "chat"], "interrupted: nothing changed; run the command again: finished steps are cached"),
        (["--project", "x", "download", "chat"], "interrupted: run the command again; it continues where it stopped"),
        (["list"], "interrupted"),
        ([], "interrupted"),
    ],
)
def test_a_command_says_what_it_left(arguments: list[str], told: str) -> None:
    assert main.sentence(arguments, KeyboardInterrupt()) == told


@pytest.mark.slow
def test_what_a_command_knows_itself_comes_first() -> None:
    broken = (
        "import sys\nfrom builder.cli import main\n"
        "def broken(_): raise KeyboardInterrupt('one stays')\n"
        "main.completion_script = broken\nsys.exit(main.run_program(['completion', 'bash']))"
    )
    done = subprocess.run([sys.executable, "-c", broken], capture_output=True, text=True)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (errors.INTERRUPTED, "interrupted: one stays")


@pytest.mark.parametrize("command", ["build", "rollback", "lock"])
def test_an_interrupt_after_images_lock_was_written_does_not_promise_that_nothing_changed(command: str) -> None:
    line = main.sentence([command], KeyboardInterrupt(), has_written=True)
    assert line == "interrupted: images.lock already has the change: `builder list` shows it"
    assert "one stays" in main.sentence([command], KeyboardInterrupt("one stays"), has_written=True)
    assert "stay removed" in main.sentence(["prune"], KeyboardInterrupt(), has_written=True)


def test_only_commands_are_told_of() -> None:
    assert set(main._LEFT) <= set(TABLE)


# The command line as a whole: helps, exit codes, and what start-up costs.


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return program.run([*program.PYTHON, *arguments], cwd=cwd)


@pytest.mark.slow
def test_the_help_lists_every_command_with_its_line() -> None:
    output = run("--help").stdout
    width = max(map(len, TABLE))
    for name, (_, _, line) in TABLE.items():
        assert f"  {name:<{width}}  {line}" in output.splitlines()


@pytest.mark.slow
def test_each_command_stands_in_one_group_of_the_help_and_the_main_three_are_first() -> None:
    grouped = [name for group in GROUPS.values() for name in group]
    assert len(grouped) == len(set(grouped)), "a name stands twice"
    assert grouped == list(TABLE)
    assert grouped[:3] == ["build", "list", "rollback"]
    lines = run("--help").stdout.splitlines()
    for group, names in GROUPS.items():
        start = lines.index(f"{group}:") + 1
        assert [line.split()[0] for line in lines[start : start + len(names)]] == list(names)


def test_each_module_of_a_command_is_in_the_table() -> None:
    """A command that is written and never listed."""
    modules = {module.name for module in pkgutil.iter_modules(cli_package.__path__)}
    listed = {module for module, _, _ in TABLE.values()}
    commands = {name for name in modules if re.search(r"(?m)^@click\.(command|group)\(", source_of(name))}
    assert commands - listed == set()
    assert listed <= modules


def source_of(module: str) -> str:
    return (Path(cli_package.__file__ or "").parent / f"{module}.py").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("words", [["build"], ["recipes", "check"], ["help"]])
def test_help_of_a_command_is_what_the_command_says_of_itself(words: list[str]) -> None:
    assert run("help", *words).stdout == run(*words, "--help").stdout


@pytest.mark.slow
def test_help_alone_shows_all_commands() -> None:
    assert run("help").stdout == run("--help").stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["biuld"], "error: no command `biuld`; did you mean `build`?"),
        (["ps"], "error: no command `ps`; did you mean `status`?"),
        (["recipes", "chek"], "error: no command `recipes chek`; did you mean `check`?"),
    ],
)
def test_help_of_what_is_no_command_names_the_nearest(words: list[str], expected: str) -> None:
    done = run("help", *words)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_every_command_explains_itself_as_the_table_does(name: str) -> None:
    done = run(name, "--help")
    assert done.returncode == 0
    assert TABLE[name][2] in done.stdout.replace("\n  ", " ")


@pytest.mark.slow
def test_a_number_is_kept_without_yaml_and_without_the_programs_that_build(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    image = NumberedImage("2026-01-01T00:00:00Z", "small", "linux/amd64", "sha256:" + "1" * 64, "sha256:" + "2" * 64, 1)
    project.lock.write_text(dump_lock(Lock().with_image(ImageName("small", 1), image)))
    heavy = ("yaml", "secrets", "subprocess", "ssl", "builder.plan.making", "builder.definitions.image")
    code = (
        "import sys\nfrom builder.cli.main import run_program\n"
        "run_program(['keep', 'small:1'])\n"
        f"print('heavy:', [m for m in {heavy!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "small:1 is kept\n"
    assert done.stderr.splitlines()[-1] == "heavy: []", done.stderr


@pytest.mark.parametrize(("earlier", "now"), main.RENAMED.items())
def test_an_earlier_name_of_a_command_is_understood_and_not_shown(earlier: str, now: str) -> None:
    group = main.Commands("builder")
    context = click.Context(group)
    assert group.get_command(context, earlier) is group.get_command(context, now)
    assert earlier not in group.list_commands(context)
    assert earlier not in [item.value for item in group.shell_complete(context, "")]
    assert group.resolve_command(context, [earlier, "small:1"]) == (now, group.get_command(context, now), ["small:1"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (["--help"], ("shutil", "pathlib", "json", "builder.base.events")),
        (["build", "--help"], ("shutil", "yaml", "builder.definitions.image", "builder.lock.model")),
        (["list"], ("yaml", "concurrent.futures", "builder.numbers.claims", "builder.cli.build_cli")),
        (["rollback", "--help"], ("shutil", "yaml", "builder.evidence.requirements", "builder.lock.model")),
    ],
)
def test_start_up_imports_nothing_heavy(tmp_path: Path, arguments: list[str], more: tuple[str, ...]) -> None:
    projects.make(tmp_path)
    heavy = ("docker", "requests", "git", "jinja2", "rich", "packaging", "jsonschema_rs", *more)
    code = (
        "import sys\nfrom builder.cli.main import run_program\n"
        f"run_program({arguments!r})\nprint('heavy:', [m for m in {heavy!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr.splitlines()[-1] == "heavy: []", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["biuld"], "no command `biuld`; did you mean `build`?"),
        (["ps"], "no command `ps`; did you mean `status`?"),
        (["build"], "Missing argument 'TARGET…'"),
        (["export", "x"], "'--format'. Choose from: compose, recipe, script, opencode"),
        (
            ["mark", "x", "terrible"],
            "Invalid value for 'STATUS': `terrible` is not one of good, bad, unmarked, untested\n",
        ),
        (["mark", "x", "god"], "`god` is not one of good, bad, unmarked, untested; did you mean `good`?\n"),
        (
            ["export", "x", "--format", "scrip"],
            "'--format': `scrip` is not one of compose, recipe, script, opencode, llama-swap, litellm; did",
        ),
        (["completion", "bsh"], "'SHELL': `bsh` is not one of bash, zsh, fish; did you mean `bash`?"),
        (["list", "--jsn"], "No such option"),
        (["mark", "small:1", "--note"], "`--help` in place of the option shows how to use the command"),
        (["rollback", "small", "--to", "0"], "0 is not in the range"),
        (["run", "small", "--port", "web"], "'--port': 'web' is not a whole number"),
        (["build", "smal"], "`smal` is not a definition, repository or recipe"),
        (["show", "small:1"], "images.lock has no image `small:1`"),
    ],
)
def test_a_mistake_on_the_command_line_ends_with_2(tmp_path: Path, arguments: list[str], expected: str) -> None:
    projects.make(tmp_path)
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["mods"]])
def test_a_group_alone_shows_its_help_and_calls_it_no_error(tmp_path: Path, arguments: list[str]) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == run(*arguments, "--help", cwd=tmp_path).stdout


def test_what_other_programs_call_a_command_is_none_of_ours() -> None:
    assert set(ELSEWHERE.values()) <= set(TABLE)
    assert not set(ELSEWHERE) & set(TABLE)


@pytest.mark.slow
def test_outside_a_project_it_is_said_what_is_missing(tmp_path: Path) -> None:
    done = run("list", cwd=tmp_path)
    assert done.returncode == 2
    assert "no project found" in done.stderr
    assert "--project FOLDER" in done.stderr


@pytest.mark.slow
def test_a_project_may_be_named_or_lie_above(tmp_path: Path) -> None:
    projects.make(tmp_path)
    number = "to number an existing image: `builder adopt IMAGE`"
    expected = f"no images yet; to build the first: `builder build TARGET`; {number}\n"
    assert run("--project", str(tmp_path), "list").stdout == expected
    assert run("list", cwd=tmp_path / "mods").stdout == expected
    own = expected.replace("no images", "no images of small").replace("TARGET", "small")
    assert run("list", "small", cwd=tmp_path).stdout == own


@pytest.mark.slow
def test_a_bug_ends_with_3_and_names_a_report(tmp_path: Path) -> None:
    projects.make(tmp_path)
    code = (
        "import builder.cli.main as main, builder.base.project as project\n"
        "def broken(start): raise RuntimeError('unforeseen')\n"
        "project.find_project = broken\nmain.run_program(['list'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 3
    assert "this is a bug in builder: RuntimeError: unforeseen" in done.stderr
    assert "Traceback" not in done.stderr
    report = Path(done.stderr.split()[-1])
    assert "RuntimeError: unforeseen" in report.read_text(encoding="utf-8")
    report.unlink()
    report.parent.rmdir()


@pytest.mark.slow
@pytest.mark.parametrize("words", ["--help", "explain 2", "list --json", "list --no-such"])
def test_a_reader_that_goes_away_ends_it_quietly(tmp_path: Path, words: str) -> None:
    """A wrong option is for standard error, anything else for standard output."""
    projects.make(tmp_path)
    begin, end = os.pipe()
    os.close(begin)
    kept = tmp_path / "kept"
    with os.fdopen(end, "wb") as closed, kept.open("wb") as other:
        stdout, stderr = (other, closed) if "--no-such" in words else (closed, other)
        argv = [sys.executable, "-m", "builder", *words.split()]
        done = subprocess.run(argv, cwd=tmp_path, stdout=stdout, stderr=stderr)
    assert (done.returncode, kept.read_text(encoding="utf-8")) == (errors.CLOSED_PIPE, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends_by", "code", "expected"),
    [
        ("KeyboardInterrupt", errors.INTERRUPTED, "interrupted\n"),
        ("SystemExit", SystemFailureError.exit_code, "error: /no/such/folder/file: No such file or directory\n"),
    ],
)
def test_what_fails_while_a_process_ends_is_no_bug(tmp_path: Path, ends_by: str, code: int, expected: str) -> None:
    script = (
        "import sys, weakref\nfrom builder.cli import main\n"
        "class Command:\n"
        "    def main(self, **_):\n"
        f"        raise {ends_by}\n"
        "main.cli = Command()\n"
        "weakref.finalize(main.cli, open, '/no/such/folder/file')\n"
        "sys.exit(main.run_program([]))\n"
    )
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environ)
    assert done.returncode == code
    assert expected in done.stderr
    assert "bug" not in done.stderr


@pytest.mark.slow
def test_a_terminal_that_closes_ends_a_command_like_an_interruption(tmp_path: Path) -> None:
    script = (
        "import fcntl, signal, sys, termios, time\nfrom pathlib import Path\nfrom builder.cli import main, output\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # ignored where the tests run without a terminal
        "class Command:\n"
        "    def main(self, **_):\n"
        "        fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
        "        try:\n"
        "            output.print_note('begun')\n"
        "            time.sleep(600)\n"
        "        finally:\n"
        "            output.print_note('putting back')\n"
        "            Path(sys.argv[1]).touch()\n"
        "main.cli = Command()\n"
        "sys.exit(main.run_program([]))\n"
    )
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-c", script, str(tmp_path / "put-back")]
    with subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as process:
        os.close(theirs)
        assert os.read(ours, 100).startswith(b"begun")
        os.close(ours)
        assert process.wait(timeout=120) == errors.INTERRUPTED
    assert (tmp_path / "put-back").exists()


@pytest.mark.slow
@pytest.mark.parametrize("left", [2, 0])
def test_a_report_that_cannot_be_written_is_printed(tmp_path: Path, left: int) -> None:
    """``left`` is the number of outputs that still take something."""
    projects.make(tmp_path)
    code = (
        "import builder.cli.main as main, builder.base.project as project, tempfile\n"
        "def broken(start): raise LookupError('unforeseen')\n"
        "tempfile.tempdir = '/no/such/folder'\n"
        "project.find_project = broken\nmain.run_program(['list'])"
    )
    command = ["bash", "-c", '"$@"' if left else '"$@" > /dev/full 2>&1', "-", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == errors.BUG
    if left:
        assert "Traceback" in done.stderr
        assert "arguments: " in done.stderr


@pytest.mark.slow
def test_a_disk_that_takes_no_output_is_told(tmp_path: Path) -> None:
    projects.make(tmp_path)
    command = ["bash", "-c", '"$@" > /dev/full', "-", sys.executable, "-m", "builder", "list"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == SystemFailureError.exit_code
    assert done.stderr.startswith("error: standard output: No space left on device\n")
    assert "Exception ignored" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("group", ["bisect", "checkpoints", "mods", "nodes", "recipes"])
def test_the_line_of_a_command_is_whole_in_the_list_of_its_group(tmp_path: Path, group: str) -> None:
    """Click cuts it at the width of the terminal."""
    commands = run(group, "--help", cwd=tmp_path).stdout.partition("Commands:")[2]
    assert commands.strip()
    assert "..." not in commands


# What the system refuses is told with the path, what that is for, and what to do; a bug stays one.

NUMBERS = [
    number
    for number in sorted(errno.errorcode)
    if number not in {errno.EINTR, errno.ECHILD}  # Python tries the first again, and means the second otherwise
]


@pytest.mark.parametrize("number", NUMBERS)
def test_whatever_the_system_says_is_no_bug(tmp_path: Path, number: int) -> None:
    path = tmp_path / "builds/image/1/plan.json"
    failure = main.translate(OSError(number, os.strerror(number), str(path)))
    assert failure is not None
    assert failure.message == f"{path}: {os.strerror(number)}"
    assert failure.hint


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, "make room: `df -h {folder}` and `df -i {folder}` show what is used up"),
        (errno.EDQUOT, "`builder prune --dry-run` lists images that `docker image rm` can remove"),
        (errno.ENOENT, "check the path: only {folder} exists"),
        (errno.ENAMETOOLONG, "use a shorter name: a file name has at most 255 bytes"),
        (errno.EIO, "check the disk that holds {folder}"),
        (errno.EROFS, "{folder} is mounted read-only"),
        (errno.EMFILE, "raise the limit of open files (`ulimit -n`)"),
        (errno.ENOMEM, "the machine is out of memory"),
        (errno.ECONNRESET, "check the network"),
        (errno.EISDIR, "check {folder}"),
    ],
)
def test_each_kind_has_its_advice_for_the_folder_that_is_there(tmp_path: Path, number: int, expected: str) -> None:
    failure = main.translate(OSError(number, "x", str(tmp_path / ".builder/journal/a.json")))
    assert failure is not None
    assert expected.format(folder=tmp_path) in failure.hint


def test_a_file_that_is_open_has_its_name(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught, naming(tmp_path / "a"):
        raise OSError(errno.ENOSPC, "full")
    assert caught.value.filename == str(tmp_path / "a")


def test_files_of_root_in_a_users_project_are_told_with_the_way_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody but root could make them here: who owns what is set instead."""
    work = tmp_path / ".builder/work"
    work.mkdir(parents=True)
    denied = PermissionError(errno.EACCES, "denied", str(work / "x"))
    users = {work: 0, work.parent: 4321}
    real = type(tmp_path).lstat
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    monkeypatch.setattr(
        type(tmp_path), "lstat", lambda path: SimpleNamespace(st_uid=users[path]) if path in users else real(path)
    )
    failure = main.translate(denied)
    assert failure is not None
    assert failure.hint == (
        f"{work} belongs to another user (uid 0), as after a run with sudo: "
        f"change that with `sudo chown -R 4321 {work.parent}`; then run the command again"
    )
    users[work] = 4321
    failure = main.translate(denied)
    assert failure is not None
    assert failure.hint == f"give your user access to {work}; then run the command again"


def test_a_user_without_a_home_folder_is_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 987_654_321)
    with pytest.raises(RuntimeError) as caught:
        Path.home()
    failure = main.translate(caught.value)
    assert failure is not None
    assert "set HOME" in failure.hint
    assert main.translate(RuntimeError("any other")) is None


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread"), TimeoutError("timed out")])
def test_what_else_the_system_lacks_is_no_bug(error: BaseException) -> None:
    failure = main.translate(error)
    assert failure is not None
    assert failure.hint


def test_a_copy_that_failed_is_told_by_its_first_file(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/link").symlink_to("nowhere")
    with pytest.raises(shutil.Error) as caught:
        shutil.copytree(tmp_path / "a", tmp_path / "c")
    failure = main.translate(caught.value)
    assert failure is not None
    assert failure.message.startswith(f"{tmp_path}/c/link: ")


@pytest.mark.parametrize("error", [ValueError("x"), RuntimeError("x"), OSError("x"), KeyError("x"), BlockingIOError()])
def test_a_bug_is_one(error: BaseException) -> None:
    assert main.translate(error) is None


def test_its_exit_code_is_its_own() -> None:
    from builder.base import errors

    kinds = [kind for kind in errors.BuilderError.__subclasses__() if kind.exit_code == SystemFailureError.exit_code]
    assert kinds == [SystemFailureError]


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("builder help list >&-", 0, ""),
        ("builder list >&-", 2, "no project found"),
        ("PYTHONIOENCODING=latin-1 builder help recipes check", 0, "\\u2026"),
        ("mkdir gone && cd gone && rmdir ../gone && builder list", 2, "the current folder no longer exists"),
    ],
)
def test_odd_surroundings_are_no_bug(tmp_path: Path, command: str, code: int, told: str) -> None:
    argv = ["bash", "-c", f'builder() {{ {sys.executable} -m builder "$@"; }}; {command}']
    environ = {**os.environ, "PYTHONPATH": str(projects.REPOSITORY_ROOT)}
    done = subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, told in done.stdout + done.stderr) == (code, True), done
    assert "Traceback" not in done.stderr


def test_a_link_that_leads_to_itself_is_no_bug(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises((RuntimeError, OSError)) as caught:
        (tmp_path / "loop").resolve(strict=True)
    failure = main.translate(caught.value)
    assert failure is not None
    assert failure.message.startswith(f"{tmp_path}/loop: ")
