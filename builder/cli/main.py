"""The whole command line: its commands, its help and its errors.

A command's module is imported only when the command runs or shows its own help.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import TYPE_CHECKING

import click

from builder import commands
from builder.base.errors import BUG, CLOSED_PIPE, INTERRUPTED, BuilderError, SystemFailureError
from builder.base.redaction import redacted
from builder.base.words import did_you_mean, shell_word
from builder.cli import output
from builder.cli.options import Context, WordChoice, matching

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType, TracebackType

    from click.shell_completion import CompletionItem


# The groups in the order of `builder --help`, by the user's task. Each command has its module in builder.cli, its
# object in the module, and one line of help. A module is imported only when its command runs or shows its help.
GROUPS: dict[str, dict[str, tuple[str, str, str]]] = {
    "Main commands": {
        "build": ("build_cli", "build", "Build a numbered image from a recipe or a definition."),
        "list": ("images_cli", "list_", "Show the numbered images and the models paired with each."),
        "rollback": ("pointers_cli", "rollback", "Go back to the previous image, or to a number."),
    },
    "Begin": {
        "init": ("init_cli", "init", "Make a project: definitions, mods, recipes and pins."),
        "up": ("serve_cli", "up", "Bring up a model: its image, its weights, its server."),
    },
    "Build": {
        "lock": ("lock_cli", "lock", "Resolve or move pins without building."),
        "upgrade": ("build_cli", "upgrade", "Move a model to newer upstream versions, if they are as good."),
        "adopt": ("transfers_cli", "adopt", "Give a number to an image that was built elsewhere."),
        "rebuild": ("build_cli", "rebuild", "Rebuild a number from its build directory."),
        "migrate": ("init_cli", "migrate", "Take over a checkout of spark-vllm-docker."),
        "recipes": ("recipes_cli", "recipes", "Show, check, copy and convert recipes."),
        "mods": ("mods_cli", "mods", "List, check, copy and create mods."),
    },
    "Go back": {
        "promote": ("pointers_cli", "promote", "Make an image the current one, and move `latest` to it."),
        "pair": ("pointers_cli", "pair", "Choose the image that serves a model."),
        "mark": ("pointers_cli", "mark", "Record how well an image works, or a model on its image."),
    },
    "Serve": {
        "run": ("serve_cli", "run_command", "Serve a model with the image that it is paired with."),
        "stop": ("serve_cli", "stop", "Stop the server of a model."),
        "restart": ("serve_cli", "restart", "Restart a server from the image that is paired now."),
        "status": ("serve_cli", "status", "Show what is being served, and its health."),
        "logs": ("serve_cli", "logs", "Show what a server prints."),
        "checkpoints": ("checkpoints_cli", "checkpoints", "Make the weights that a recipe serves, in recorded steps."),
        "download": ("transfers_cli", "download", "Download a model and its draft model, also to nodes."),
        "export": ("recipes_cli", "export", "Export the server of a recipe or model for other tools."),
    },
    "Inspect and measure": {
        "show": ("images_cli", "show", "Show everything that is in an image."),
        "diff": ("diff_cli", "diff", "Show what changed between two images."),
        "why": ("diff_cli", "why", "Show what changed since a model last worked."),
        "compare": ("measure_cli", "compare", "Check whether an image answers as well as another image."),
        "bisect": ("bisect_cli", "bisect", "Find the change that broke a model."),
        "report": ("evidence_cli", "report", "Write one page on how well each image serves its models."),
        "bases": ("lock_cli", "bases", "Show the images of a registry by date, without pulling them."),
        "matrix": ("evidence_cli", "matrix", "Show which image goes with which model."),
        "prove": ("measure_cli", "prove", "Prove an image's chat templates and parsers, without a GPU."),
        "bench": ("measure_cli", "bench", "Measure how fast a model is served, or compare two images."),
        "probe": ("measure_cli", "probe", "Check a served model: tool calls, and checks of your own."),
    },
    "Several machines": {
        "nodes": ("transfers_cli", "nodes", "Show which images each node has, and what each node serves."),
        "push": ("transfers_cli", "push", "Push numbered images to the registry."),
        "pull": ("transfers_cli", "pull", "Pull a numbered image from the registry."),
        "mirror": ("lock_cli", "mirror", "Copy upstream images to your own registry."),
        "copy": ("transfers_cli", "copy", "Copy a numbered image to other machines."),
        "export-image": ("transfers_cli", "export_image", "Write a numbered image into a file."),
        "import-image": ("transfers_cli", "import_image", "Import a numbered image from a file."),
    },
    "Housekeeping": {
        "keep": ("pointers_cli", "keep", "Protect an image from `builder prune`."),
        "release": ("pointers_cli", "release", "Undo `builder keep`: let `builder prune` remove the image."),
        "prune": ("transfers_cli", "prune", "Remove images that are no longer needed, and build leftovers."),
        "verify": ("about_cli", "verify", "Compare images.lock with the engine and with the files."),
        "doctor": ("about_cli", "doctor", "Look for anything that would make a build fail."),
        "advisories": ("about_cli", "advisories", "Show known problems, and the versions that they affect."),
        "explain": ("about_cli", "explain", "Explain an exit code or a key of a file."),
        "schema": ("about_cli", "schema", "Print the JSON Schema of a file, for editors."),
        "completion": ("main", "completion", "Print the completion script for bash, zsh or fish."),
        "help": ("main", "help_", "Show the help of a command."),
    },
}

TABLE = {name: row for group in GROUPS.values() for name, row in group.items()}

# Earlier names of commands, hidden from help and completion.
RENAMED = {"pin": "keep", "unpin": "release"}

# Names in other programs. A suggestion by spelling would mislead here.
ELSEWHERE = {
    "images": "list",
    "inspect": "show",
    "ls": "list",
    "ps": "status",
    "rm": "prune",
    "serve": "run",
    "start": "run",
}


class Group(click.Group):
    """A group of commands. Its list shows the whole first line of each help; a long line is wrapped."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Raises click's error if a word is not a command, and suggests the nearest command."""
        word, names, top = args[0] if args else "", self.list_commands(ctx), ctx.parent is None
        if word and not word.startswith("-") and word not in names and not ctx.resilient_parsing:
            suggestion = did_you_mean(ELSEWHERE.get(word, word) if top else word, names, code=True)
            message = f"no command `{word if top else f'{ctx.info_name} {word}'}`"
            raise click.UsageError(message + (f"; {suggestion}" if suggestion else ""), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        rows = [(name, each.get_short_help_str(1000)) for name, each in commands.items() if each and not each.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class Commands(Group):
    """A group that knows the names and one-line helps of its commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(TABLE)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        import importlib

        if (row := TABLE.get(RENAMED.get(cmd_name, cmd_name))) is None:
            return None
        command: click.Command = getattr(importlib.import_module(f"builder.cli.{row[0]}"), row[1])
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        return super().resolve_command(ctx, [*(RENAMED.get(word, word) for word in args[:1]), *args[1:]])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes commands from the table, and then options, without importing any command."""
        from click.shell_completion import CompletionItem

        commands = [
            CompletionItem(name, help=line) for name, (_, _, line) in TABLE.items() if name.startswith(incomplete)
        ]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        width = max(map(len, TABLE))
        for group, rows in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(width), line) for name, (_, _, line) in rows.items()])


@click.command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]…", shell_complete=lambda _, __, text: matching(TABLE, text))
def help_(words: tuple[str, ...]) -> None:
    """Show the help of a command.

    `builder help COMMAND` does the same as `builder COMMAND --help`. COMMAND may have two words, such as
    `recipes check`. Without COMMAND, the command lists all commands by purpose.
    """
    cli.main([*words, "--help"], prog_name="builder", standalone_mode=False, terminal_width=_help_width())


@click.command()
@click.argument("shell", type=WordChoice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for bash, zsh or fish.

    \b
    bash   builder completion bash > ~/.local/share/bash-completion/completions/builder
    zsh    builder completion zsh > ~/.zfunc/_builder     (with ~/.zfunc in $fpath)
    fish   builder completion fish > ~/.config/fish/completions/builder.fish
    """
    output.print_document(completion_script(shell))


def completion_script(shell: str) -> str:
    """The completion script of ``shell``; the script calls `builder` for the names."""
    from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

    kinds: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
    return kinds[shell](click.Command("builder"), {}, "builder", "_BUILDER_COMPLETE").source() + "\n"


# The line after ^C: each command undoes unfinished work; some commands can continue later.

_BUILD = "nothing changed; run the command again: finished steps are cached"
_RESUMES = "run the command again; it continues where it stopped"
_SENT = "run the command again; layers that were sent are not sent again"
_LEFT = {
    "build": _BUILD,
    "rebuild": _BUILD,
    "lock": "nothing changed; run the command again",
    "download": _RESUMES,
    "up": _RESUMES,
    "upgrade": _RESUMES,
    "push": _SENT,
    "pull": "nothing changed; run the command again",
    "copy": _SENT,
    "prune": "removed images stay removed; run the command again for the rest",
}


def sentence(arguments: Sequence[str], error: BaseException, *, has_written: bool = False) -> str:
    """The line for an interrupted command: the text of ``error`` (click wraps it in an Abort without text), or else the
    text for the command. ``has_written`` is true if the command had already changed images.lock."""
    name = next((word for word in arguments if word in TABLE), "")
    left = str(error.__cause__ or error) or _LEFT.get(name, "")
    if has_written and (not left or left.startswith("nothing changed")):
        left = "images.lock already has the change: `builder list` shows it"
    return f"interrupted: {left}" if left else "interrupted"


# The main group: its options, and the translation of every error into text and an exit code.

_WIDEST_HELP = 100


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        output.print_result(f"builder {commands.about.program_version()}")
        ctx.exit()


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="The project is the current folder, or a folder above it, with dockerfiles/ and images.lock.",
)
@click.option("--project", type=click.Path(), metavar="FOLDER", help="Work on the project in FOLDER.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and the commit, and exit.",
)
@click.pass_context
def cli(ctx: click.Context, project: str | None) -> None:
    """Numbered vLLM images: build, pin, list what serves which model, roll back."""
    ctx.obj = Context(project or ".")
    ctx.color = output.colour()


def run_program(arguments: list[str]) -> int:
    """Runs a command and returns its exit code. A bug ends the process itself, with a report and code 3."""
    sys.excepthook = _report_bug
    _settle_streams()
    # SIGTERM unwinds like ^C, so that unfinished work is undone.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # nohup ignores SIGHUP
        signal.signal(signal.SIGHUP, _hang_up)
    try:
        code = cli.main(args=arguments, prog_name="builder", standalone_mode=False, terminal_width=_help_width())
    except BuilderError as error:
        output.print_error(error)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt) as error:
        # Exceptions in a thread or a temporary folder are not bugs while the process ends.
        sys.excepthook = lambda *_: None
        lock_file = sys.modules.get("builder.lock.lock_file")  # without it, nothing was written
        output.print_note(sentence(arguments, error, has_written=bool(lock_file and lock_file.LockWriter.has_written)))
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        output.print_line(error.format_message(), err=True)
        return 2
    except click.ClickException as error:
        output.print_usage_error(error)
        return 2
    except SystemExit:  # click, if the reader of the output has ended
        return CLOSED_PIPE
    except (OSError, MemoryError, RuntimeError) as error:
        if (failed := _report_system_failure(error)) is None:
            raise
        return failed
    return code if isinstance(code, int) else 0


def _settle_streams() -> None:
    """Opens /dev/null in place of closed streams; otherwise a new file would get their descriptors. Other streams print
    characters outside their encoding as escapes."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="backslashreplace")


def _help_width() -> int:
    """The columns of help text. To find them, click would import shutil with three compression libraries."""
    return max(min(output.terminal_columns(sys.stdout), _WIDEST_HELP) - 2, 50)


def _hang_up(_signal: int, _frame: FrameType | None) -> None:
    """Makes SIGHUP unwind like ^C. The terminal is closed, so text for it is dropped: writing would fail."""
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    for descriptor in (1, 2):
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            os.dup2(null, descriptor)
    os.close(null)
    raise KeyboardInterrupt


def _report_system_failure(error: BaseException) -> int | None:
    """Prints an error of the system if possible, and returns its exit code; None for a bug."""
    failure = translate(error)
    if failure is None:
        return None
    with suppress(OSError):
        output.print_error(failure)
    return failure.exit_code


def _report_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    # Printing may itself raise an error of the system.
    is_closed = isinstance(error, BrokenPipeError) and error.filename == output.STREAM
    code = CLOSED_PIPE if is_closed else _report_system_failure(error)
    with suppress(OSError):
        if code is None:
            report(kind, error, trace)
        sys.stdout.flush()
    os._exit(code or BUG)


def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Writes the report of a bug to a temporary file and prints its path. The report can be pasted into an issue. Only
    the file contains the traceback; if the file cannot be written, the report itself is printed."""
    import platform
    import tempfile
    import traceback
    from importlib.metadata import version
    from pathlib import Path

    arguments = [re.sub("(?s)=.*", "=…", word) for word in sys.argv[1:]]  # values may be secrets
    lines = [
        f"builder {version('builder')}, Python {platform.python_version()}, {platform.platform()}",
        f"arguments: {arguments}",
        "",
        *traceback.format_exception(kind, error, trace),
    ]
    text = redacted("\n".join(lines))
    output.print_note(output.styled("this is a bug in builder:", fg="red", bold=True) + f" {kind.__name__}: {error}")
    try:
        path = Path(tempfile.mkdtemp(prefix="builder-report-")) / "report.txt"
        path.write_text(text, encoding="utf-8")
        output.print_note(f"what to do: send this file to the developers of builder: {path}")
    except OSError as failure:
        output.print_note(text)
        output.print_note(
            f"what to do: send the lines above to the developers of builder; no file was written: {failure}"
        )


# A failure of the system is not a bug. It becomes an error with the path and a remedy. Errors that a command can
# explain better are handled there.

_ROOM = (
    "make room: `df -h {quoted}` and `df -i {quoted}` show what is used up, and `builder prune --dry-run` lists images"
    " that `docker image rm` can remove"
)
_NETWORK = (errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT)
_ADVICE: dict[int | None, str] = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EROFS: "{folder} is mounted read-only: mount {folder} for writing, or move the project",
    errno.ENOENT: "check the path: only {folder} exists",
    errno.ENAMETOOLONG: "use a shorter name: a file name has at most 255 bytes",
    errno.EIO: "check the disk that holds {folder} (`sudo dmesg` shows more)",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`)",
    errno.EAGAIN: "your user has too many processes: stop some, or raise the limit (`ulimit -u`)",
    errno.ENOMEM: "the machine is out of memory: stop programs that use a lot of memory",
    **dict.fromkeys(_NETWORK, "check the network"),
}


def translate(error: BaseException) -> SystemFailureError | None:
    """Returns the error to print. None for an error that is not from the system, which is a bug."""
    import shutil
    from pathlib import Path

    if isinstance(error, MemoryError):
        return _failure(None, "no memory is left", errno.ENOMEM)
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return _failure(None, str(error), errno.EAGAIN)
    if isinstance(error, RuntimeError) and "Symlink loop" in str(error):  # of `Path.resolve` before Python 3.13
        return _failure(Path(str(error).partition("'")[2].rstrip("'")), "a link that leads to itself", errno.ELOOP)
    if isinstance(error, RuntimeError) and "home directory" in str(error):  # of `Path.home` and `Path.expanduser`
        hint = "set HOME to a folder that you can write to; write paths of other users without `~`"
        return SystemFailureError("the home folder of a user is not known", hint=hint)
    if isinstance(error, shutil.Error):
        _, path, reason = error.args[0][0]
        return _failure(Path(path), str(reason), None)
    if isinstance(error, TimeoutError) and error.errno is None:
        return _failure(None, str(error), errno.ETIMEDOUT)
    if not isinstance(error, OSError) or error.errno is None:
        return None
    if error.filename == output.STREAM:
        return SystemFailureError(f"{output.STREAM}: {error.strerror}", hint="send the output to another file")
    name = error.filename2 or error.filename
    place = Path(os.fsdecode(name)) if isinstance(name, str | bytes | os.PathLike) else None
    return _failure(place, error.strerror or os.strerror(error.errno), error.errno)


def _failure(path: Path | None, reason: str, number: int | None) -> SystemFailureError:
    from pathlib import Path

    message = f"{path}: {reason}" if path else f"the system reports: {reason}"
    try:
        here = (path or Path()).absolute()
    except FileNotFoundError:  # the current folder is gone
        here = Path("/")
    folder = next((each for each in (here, *here.parents) if os.path.lexists(each)), Path("/"))
    is_denied = number in {errno.EACCES, errno.EPERM}
    advice = _access_advice(folder) if is_denied else _ADVICE.get(number, "check {folder}")
    if not is_denied:
        advice = advice.format(folder=folder, quoted=shell_word(folder))
    return SystemFailureError(message, hint=f"{advice}; then run the command again")


def _access_advice(path: Path) -> str:
    """The advice if access is denied. Most likely, an earlier run with sudo made the files of this folder."""
    user = os.geteuid()
    theirs = next((each for each in (path, path.parent) if each.lstat().st_uid != user), None)
    mine = next((each for each in path.parents if each.lstat().st_uid == user), None)
    if theirs is None or mine is None or user == 0:
        return f"give your user access to {path}"
    problem = f"{theirs} belongs to another user (uid {theirs.lstat().st_uid}), as after a run with sudo"
    return f"{problem}: change that with `sudo chown -R {user} {shell_word(mine)}`"
